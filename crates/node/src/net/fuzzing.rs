//! The fuzzer's target for frames, and its seeds.

use bytes::Bytes;
use plasmon::wire::{Draw, Table};

use super::frame::{Envelope, Header, Message};

/// Decodes a message, frame by frame; each frame must decode to the same after encoding.
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

/// Returns messages of one frame of each kind, and of several frames.
pub(crate) fn messages() -> Vec<Vec<u8>> {
    let mut draw = Draw::new(7);
    let frames = Message::draw_all(3, 7).into_iter();
    let frames = frames.map(|message| Envelope::draw(&mut draw, message).encode(6).to_vec());
    let mut messages: Vec<_> = frames.collect();
    let several = messages[..4].concat();
    messages.push(several);
    messages
}
