//! Tests of frames: encoded frames decode to the same, and other bytes are refused. The inputs are drawn
//! from the table.

use std::fmt::Write;
use std::path::Path;

use plasmon::wire::{Draw, Types, page};

use super::*;

/// The seed of all inputs, the same on every machine.
const SEED: u64 = 7;

fn envelopes() -> Vec<Envelope> {
    let mut draw = Draw::new(SEED);
    let messages = Message::draw_all(50, SEED);
    messages.into_iter().map(|message| Envelope::draw(&mut draw, message)).collect()
}

#[test]
fn frames_survive_the_wire() {
    let (mut draw, envelopes) = (Draw::new(SEED), envelopes());
    for (envelope, other) in envelopes.iter().zip(envelopes.iter().rev()) {
        let (token, credits) = (draw.number(), draw.number() as u16);
        let mut frame = envelope.encode(token);
        Header::set_credits(&mut frame, credits);
        frame.extend_from_slice(&other.encode(token));
        let mut message = frame.freeze();
        assert_eq!(Envelope::decode_first(&mut message), Ok((envelope.clone(), token, credits)));
        assert_eq!(Envelope::decode_first(&mut message), Ok((other.clone(), token, 0)));
        assert!(message.is_empty());
    }
}

#[test]
fn a_cut_or_padded_frame_is_refused() {
    let mut draw = Draw::new(SEED);
    for envelope in envelopes() {
        let mut frame = envelope.encode(1);
        let len = frame.len();
        frame.extend_from_slice(&[0]);
        Header::set_body_len(&mut frame, (len - HEADER_LEN) as u32 + 1);
        assert!(Envelope::decode_first(&mut frame.clone().freeze()).is_err(), "{envelope:?}");
        frame.truncate(len - 1 - draw.below(100).min(len - 1));
        assert!(Envelope::decode_first(&mut frame.clone().freeze()).is_err(), "{envelope:?}");
        if let Some(body_len) = frame.len().checked_sub(HEADER_LEN) {
            Header::set_body_len(&mut frame, body_len as u32);
            assert!(Envelope::decode_first(&mut frame.freeze()).is_err(), "{envelope:?}");
        }
    }
}

#[test]
fn damaged_frames_never_panic() {
    let mut draw = Draw::new(SEED);
    for envelope in envelopes() {
        let mut frame = envelope.encode(1);
        let at = draw.below(frame.len());
        frame[at] = draw.word() as u8;
        // Whether the damaged frame is refused depends on which byte was hit.
        let _ = Envelope::decode_first(&mut frame.freeze());
    }
}

#[test]
fn what_fits_eager_fits_a_frame() {
    let mut draw = Draw::new(SEED);
    for spare in [0, 1].repeat(50) {
        let mut head = Head { metadata_len: 0, data_len: 0, ..Head::draw(&mut draw) };
        let eager = |head: &Head| {
            let bytes = vec![0; head.data_len as usize].into();
            Envelope::draw(&mut Draw::new(SEED), Message::Eager { head: head.clone(), bytes }).encode(0).len()
        };
        head.data_len = (FRAME_MAX - eager(&head) + spare) as u64;
        assert_eq!(eager(&head) <= FRAME_MAX, head.len() <= Message::eager_room(&head));
    }
}

#[test]
fn what_a_frame_is_beside_its_body_follows_from_its_fields() {
    for message in Message::draw_all(1, SEED) {
        let fields = (message.row().expect("one of the table").fields)(&mut Types::default());
        let has = |name| fields.iter().any(|(field, _)| *field == name);
        assert_eq!(message.comes_with_a_lease(), has("head") && has("lease_ms"), "{message:?}");
        let frame = Envelope::draw(&mut Draw::new(SEED), message.clone()).encode(1);
        assert_eq!(Message::is_of_a_fabric(&frame), has("base") && has("key"), "{message:?}");
    }
}

#[test]
fn the_page_has_the_frames_of_the_code() {
    let design = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/net.md");
    let mut header =
        format!("Version {VERSION}.\n\n| at | bytes | field | what it is |\n|---|---|---|---|\n");
    for (at, len, name, about) in header::FIELDS {
        writeln!(header, "| {at} | {len} | {name} |{about} |").expect("text takes all");
    }
    page::check(&design, "header of a node frame", header.trim_end());
    page::check(&design, "node frames", page::rows(Message::ROWS, Message::ROWS).trim_end());
}
