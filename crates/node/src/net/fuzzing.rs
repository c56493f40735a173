//! What the fuzzer does with frames, and what it begins with.

use bytes::Bytes;
use plasmon::wire::{Draw, Table};

use super::frame::{Envelope, Header, Message};

/// Reads a message, frame by frame; what they say survives being said again.
pub(crate) fn message(mut bytes: Bytes) {
    while !bytes.is_empty() {
        let before = bytes.len();
        let Ok((envelope, token, credits)) = Envelope::decode_first(&mut bytes) else { return };
        assert!(bytes.len() < before, "a frame of no bytes");
        let mut again = envelope.encode(token);
        Header::set_credits(&mut again, credits);
        let mut again = again.freeze();
        assert_eq!(Envelope::decode_first(&mut again), Ok((envelope, token, credits)));
        assert!(again.is_empty(), "{} bytes behind it", again.len());
    }
}

/// Messages of a frame of each kind, and of several.
pub(crate) fn messages() -> Vec<Vec<u8>> {
    let mut draw = Draw::new(7);
    let frames = Message::draw_all(3, 7).into_iter();
    let frames = frames.map(|message| Envelope::draw(&mut draw, message).encode(6).to_vec());
    let mut messages: Vec<_> = frames.collect();
    let several = messages[..4].concat();
    messages.push(several);
    messages
}
