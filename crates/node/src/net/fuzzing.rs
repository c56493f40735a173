//! The fuzzer's target for messages, and its seeds. Owns no state. Any thread.

use bytes::Bytes;
use plasmon::wire::{Draw, Table, Wire};

use super::frame::{Envelope, Message, MessageHeader, VERSION};

/// Decodes a message, frame by frame; the header and each frame must decode to the same after encoding.
pub(crate) fn message(mut bytes: Bytes) {
    let Ok(header) = MessageHeader::take_first(&mut bytes) else { return };
    assert_eq!(MessageHeader::take_first(&mut header.encode().freeze()), Ok(header));
    while !bytes.is_empty() {
        let before = bytes.len();
        let Ok(envelope) = Envelope::decode_first(&header, &mut bytes) else { return };
        assert!(bytes.len() < before, "a frame of no bytes");
        let mut again = envelope.encode().freeze();
        assert_eq!(Envelope::decode_first(&header, &mut again), Ok(envelope));
        assert!(again.is_empty(), "{} bytes behind it", again.len());
    }
}

/// Returns messages of one frame of each kind, of several frames, and of none.
pub(crate) fn messages() -> Vec<Vec<u8>> {
    let mut draw = Draw::new(7);
    let header = MessageHeader { version: VERSION, reserved: 0, ..MessageHeader::draw(&mut draw) };
    let encode = |message| Envelope::draw(&mut draw, &header, message).encode().to_vec();
    let frames: Vec<_> = Message::draw_all(3, 7).into_iter().map(encode).collect();
    let several = [frames[..4].concat(), Vec::new()];
    let messages = frames.iter().chain(&several);
    messages.map(|frames| [&header.encode()[..], frames].concat()).collect()
}
