//! The fuzzer's target for frames about files, and its seeds.

use bytes::{Bytes, BytesMut};
use plasmon::wire::Table;

use super::frames::FileFrame;

/// Decodes a frame, which must decode to the same after encoding.
pub(crate) fn frame(bytes: &[u8]) {
    let Some((opcode, body)) = bytes.split_first() else { return };
    let Ok(frame) = FileFrame::decode_body(*opcode, Bytes::copy_from_slice(body)) else { return };
    let mut again = BytesMut::new();
    frame.put_body(&mut again);
    assert_eq!(FileFrame::decode_body(frame.opcode(), again.freeze()), Ok(frame));
}

/// Returns a few frames of each kind.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let encode = |frame: FileFrame| {
        let mut bytes = BytesMut::from(&[frame.opcode()][..]);
        frame.put_body(&mut bytes);
        bytes.to_vec()
    };
    FileFrame::draw_all(3, 7).into_iter().map(encode).collect()
}
