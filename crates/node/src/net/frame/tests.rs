//! Tests of frames: encoded frames decode to the same, and other bytes are refused. The inputs are drawn
//! from the table.

use std::path::Path;

use plasmon::wire::{Draw, Types, page};

use super::*;

/// The seed of all inputs, the same on every machine.
const SEED: u64 = 7;

fn header(draw: &mut Draw) -> MessageHeader {
    MessageHeader { version: VERSION, reserved: 0, ..MessageHeader::draw(draw) }
}

fn envelopes() -> (MessageHeader, Vec<Envelope>) {
    let mut draw = Draw::new(SEED);
    let header = header(&mut draw);
    let messages = Message::draw_all(50, SEED);
    (header, messages.into_iter().map(|message| Envelope::draw(&mut draw, &header, message)).collect())
}

#[test]
fn messages_survive_the_wire() {
    let (header, envelopes) = envelopes();
    for (envelope, other) in envelopes.iter().zip(envelopes.iter().rev()) {
        let mut message = header.encode();
        message.extend_from_slice(&envelope.encode());
        message.extend_from_slice(&other.encode());
        let mut message = message.freeze();
        assert_eq!(MessageHeader::take_first(&mut message), Ok(header));
        assert_eq!(Envelope::decode_first(&header, &mut message), Ok(envelope.clone()));
        assert_eq!(Envelope::decode_first(&header, &mut message), Ok(other.clone()));
        assert!(message.is_empty());
    }
}

#[test]
fn a_header_that_is_cut_or_of_another_version_is_refused() {
    let header = header(&mut Draw::new(SEED));
    let whole = header.encode().freeze();
    for len in 0..MESSAGE_HEADER_LEN {
        assert_eq!(MessageHeader::take_first(&mut whole.slice(..len)), Err(FrameError::Malformed));
    }
    let take = |header: MessageHeader| MessageHeader::take_first(&mut header.encode().freeze());
    assert_eq!(take(MessageHeader { reserved: 1, ..header }), Err(FrameError::Malformed));
    let version = VERSION - 1;
    assert_eq!(take(MessageHeader { version, ..header }), Err(FrameError::Version(version)));
}

#[test]
fn a_cut_or_padded_frame_is_refused() {
    let mut draw = Draw::new(SEED);
    let (header, envelopes) = envelopes();
    for envelope in envelopes {
        let refused = |frame: &BytesMut| {
            let decoded = Envelope::decode_first(&header, &mut frame.clone().freeze());
            assert!(decoded.is_err(), "{envelope:?}");
        };
        let mut frame = envelope.encode();
        let len = frame.len();
        frame.extend_from_slice(&[0]);
        Header::set_body_len(&mut frame, (len - HEADER_LEN) as u32 + 1);
        refused(&frame);
        frame.truncate(len - 1 - draw.below(100).min(len - 1));
        refused(&frame);
        if let Some(body_len) = frame.len().checked_sub(HEADER_LEN) {
            Header::set_body_len(&mut frame, body_len as u32);
            refused(&frame);
        }
    }
}

#[test]
fn damaged_frames_never_panic() {
    let mut draw = Draw::new(SEED);
    let (header, envelopes) = envelopes();
    for envelope in envelopes {
        let mut frame = envelope.encode();
        let at = draw.below(frame.len());
        frame[at] = draw.word() as u8;
        // Whether the damaged frame is refused depends on which byte was hit.
        let _ = Envelope::decode_first(&header, &mut frame.freeze());
    }
}

#[test]
fn what_fits_eager_fits_a_frame() {
    let mut draw = Draw::new(SEED);
    let sender = header(&mut draw);
    for spare in [0, 1].repeat(50) {
        let mut head = Head { metadata_len: 0, data_len: 0, ..Head::draw(&mut draw) };
        let eager = |head: &Head| {
            let bytes = vec![0; head.data_len as usize].into();
            let message = Message::Eager { head: head.clone(), bytes };
            Envelope::draw(&mut Draw::new(SEED), &sender, message).encode().len()
        };
        head.data_len = (FRAME_MAX_BYTES - eager(&head) + spare) as u64;
        assert_eq!(eager(&head) <= FRAME_MAX_BYTES, head.len() <= Message::eager_room(&head));
    }
}

#[test]
fn what_a_frame_is_beside_its_body_follows_from_its_fields() {
    for message in Message::draw_all(1, SEED) {
        let fields = (message.row().expect("one of the table").fields)(&mut Types::default());
        let has = |name| fields.iter().any(|(field, _)| *field == name);
        assert_eq!(message.comes_with_a_lease(), has("head") && has("lease_ms"), "{message:?}");
        // Such a frame may come by another fabric than the one that it is about.
        assert_eq!(has("provider"), has("base") && has("key"), "{message:?}");
    }
}

#[test]
fn the_page_has_the_frames_of_the_code() {
    let design = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/net.md");
    let message = format!("Version {VERSION}.\n\n{}", page::fields(header::MESSAGE_FIELDS));
    page::check(&design, "header of a message", message.trim_end());
    page::check(&design, "header of a node frame", page::fields(header::FRAME_FIELDS).trim_end());
    page::check(&design, "node frames", page::rows(Message::ROWS, Message::ROWS).trim_end());
}
