//! Target of the fuzzer for frames about regions, and its seeds. Owns no state. Any thread.

use bytes::{Bytes, BytesMut};
use plasmon::wire::Table;

use super::frames::RegionFrame;

/// Decodes a frame, which must decode to the same after encoding.
pub(crate) fn frame(bytes: &[u8]) {
    let Some((opcode, body)) = bytes.split_first() else { return };
    let Ok(frame) = RegionFrame::decode_body(*opcode, Bytes::copy_from_slice(body)) else { return };
    let mut again = BytesMut::new();
    frame.put_body(&mut again);
    assert_eq!(RegionFrame::decode_body(frame.opcode(), again.freeze()), Ok(frame));
}

/// Returns a few frames of each kind, as bytes.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let encode = |frame: RegionFrame| {
        let mut bytes = BytesMut::from(&[frame.opcode()][..]);
        frame.put_body(&mut bytes);
        bytes.to_vec()
    };
    RegionFrame::draw_all(3, 7).into_iter().map(encode).collect()
}
