//! Tests of the codec of operations and outcomes.

use super::*;
use crate::wire::{BySlot, SlotResult, Table};
use crate::{NodeId, ObjectId};

#[test]
fn every_operation_and_outcome_survives_the_wire() {
    for operation in FileOperation::draw_all(60, 3) {
        let bytes = encoded(&operation).freeze();
        assert_eq!(decoded::<FileOperation>(bytes, "operation"), Ok(operation));
    }
    for outcome in FileOutcome::draw_all(60, 3) {
        let answer = FileAnswer { valid_ms: 7, ..FileAnswer::of(outcome) };
        assert_eq!(decoded::<FileAnswer>(encoded(&answer).freeze(), "answer"), Ok(answer));
    }
}

#[test]
fn what_is_out_of_range_is_no_operation() {
    let lookup = |len: usize| {
        let lookup = FileOperation::Lookup { folder: 1, name: vec![b'a'; len].into() };
        decoded::<FileOperation>(encoded(&lookup).freeze(), "operation").is_ok()
    };
    assert!(lookup(MAX_SENT_NAME_BYTES), "the home says that it is too long");
    assert!(!lookup(MAX_SENT_NAME_BYTES + 1));
    let mut bytes = encoded(&FileOperation::Usage);
    bytes.extend_from_slice(&[0]);
    assert_eq!(
        decoded::<FileOperation>(bytes.freeze(), "operation"),
        Err(WireError::Malformed("operation")),
        "something is left"
    );
}

#[test]
fn a_call_by_slot_is_an_operation() {
    let asked =
        FileAsked { number: 9, answered: 4, actor: Actor::default(), operation: FileOperation::Usage };
    let call = FilesCall::OnFile { volume: 3, asked: asked.clone() };
    let (number, mut arguments, payload) = call.packed();
    assert_eq!((number, arguments, &payload), (150, [3, 0, 0, 0, 0, 0], &encoded(&asked)));
    assert_eq!(FilesCall::decode(150, arguments, &payload), Some(call));
    arguments[1] = 1;
    assert_eq!(FilesCall::decode(150, arguments, &payload), None);
    assert_eq!(FilesCall::decode(150, [1 << 32, 0, 0, 0, 0, 0], &payload), None);
    assert_eq!(FilesCall::decode(150, [1, 0, 0, 0, 0, 0], &payload[1..]), None);
    assert_eq!(FileAnswered { too_long: true }.values(), [1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn ids_of_objects_say_whose_they_are() {
    let id = file_object(7, u32::MAX, (1 << 48) - 1);
    assert_eq!(parts_of(&id), Some((7, u32::MAX, (1 << 48) - 1)));
    for at in 0..ObjectId::LEN {
        let mut bytes = *id.as_bytes();
        bytes[at] ^= 1;
        assert_eq!(parts_of(&ObjectId::from_bytes(bytes)), None, "another object's id has no mark");
    }
}

#[test]
fn kinds_are_bits_of_a_mode() {
    for kind in FileKind::ALL {
        assert_eq!(FileKind::of_mode(kind.mode_bits() | 0o7777), Some(*kind));
    }
    assert_eq!(FileKind::of_mode(0o644), Some(FileKind::File));
    assert_eq!(FileKind::of_mode(0o170_000), None);
}

#[test]
fn a_page_of_sections_fits_a_frame_between_nodes() {
    let source = Source::Object {
        id: ObjectId::from_bytes([1; ObjectId::LEN]),
        at: 0,
        object_len: 1,
        node: NodeId::from_bytes([2; NodeId::LEN]),
    };
    let sections = vec![Section { offset: 0, len: 1, source }; MAX_SECTIONS];
    assert!(encoded(&Extended { sections, next: None }).len() <= PAGE_BYTES, "with what comes with it");
}

#[test]
fn a_place_is_its_text() {
    let node = |number| NodeId::from_bytes([number; NodeId::LEN]);
    let most = Place::Nodes(vec![node(9); MAX_PLACE_NODES]);
    for place in [Place::Local, Place::Spread, Place::Nodes(vec![node(1), node(2)]), most] {
        assert!(place.is_valid());
        assert_eq!(place.to_string().parse(), Ok(place));
    }
    let spaced = format!("{}, {}", node(1), node(2));
    assert_eq!(spaced.parse(), Ok(Place::Nodes(vec![node(1), node(2)])));
    let too_many = Place::Nodes(vec![node(9); MAX_PLACE_NODES + 1]).to_string();
    for wrong in ["", "locally", "07", &format!("{},", node(1)), &too_many] {
        assert!(wrong.parse::<Place>().is_err(), "{wrong}");
    }
}
