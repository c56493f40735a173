//! What the fuzzer does with frames, and what it begins with.

use bytes::Bytes;
use plasmon::{DeleteOutcome, Error, ErrorKind, NodeId, ObjectId, Protocol};
use plasmon_fabric::RemoteRegion;

pub(crate) use super::control::fuzzing::{control_message, control_messages};
use super::frame::{Envelope, Holding, Location, Message, Order, Passing, Stage, Stamp, Verdict, Wish};
use crate::object::{Head, Role};

/// Reads a message, frame by frame; what they say survives being said again.
pub(crate) fn message(mut bytes: Bytes) {
    while !bytes.is_empty() {
        let before = bytes.len();
        let Ok((envelope, token, credits)) = Envelope::decode_first(&mut bytes) else { return };
        assert!(bytes.len() < before, "a frame of no bytes");
        let again = |envelope: &Envelope| {
            let mut frame = envelope.encode(token);
            Envelope::set_credits(&mut frame, credits);
            let mut frame = frame.freeze();
            let (again, same_token, same_credits) =
                Envelope::decode_first(&mut frame).expect("our own frame");
            assert_eq!((same_token, same_credits, frame.len()), (token, credits, 0));
            again
        };
        let once = again(&envelope);
        // Messages for people are cut when they are sent.
        if !matches!(envelope.message, Message::Refused { .. }) {
            assert_eq!(once, envelope);
        }
        assert_eq!(again(&once), once);
    }
}

/// A message of a frame of each kind, and of several.
pub(crate) fn messages() -> Vec<Vec<u8>> {
    let (id, node) = (ObjectId::from_bytes([7; 20]), NodeId::from_bytes([1; 16]));
    let head = Head {
        id,
        name: "flights".into(),
        life: 3,
        tenant: 1000,
        private: true,
        data_len: 100,
        metadata_len: 8,
        digest: 9,
        copies: 2,
        expires: 1 << 40,
    };
    let ids = || vec![id, ObjectId::from_bytes([8; 20])];
    let bytes = Bytes::from_static(b"bytes");
    let region = RemoteRegion { base: 1 << 40, key: 5, len: 1 << 20 };
    let pieces = vec![Location { segment: 1, version: 2, offset: 4096, len: 108 }];
    let holding = |role, owner| Holding { id, role, copies: 2, life: 3, owner };
    let messages = [
        Message::Fetch {
            id,
            stage: Stage::Asked,
            avoid: vec![node],
            wish: Wish { protocol: Protocol::Auto, eager_max: u32::MAX },
        },
        Message::Forget { id },
        Message::Eager { head: head.clone(), bytes: bytes.clone() },
        Message::Offer {
            head: head.clone(),
            lease_ms: 10_000,
            pieces,
            stamp: Some(Stamp { slot: 1, value: 2 }),
            others: vec![node],
        },
        Message::Registered { head: head.clone(), lease_ms: 10_000, regions: vec![region] },
        Message::Dial { head: head.clone(), lease_ms: 10_000, port: 4741, secret: u128::MAX - 1 },
        Message::Stream { head, lease_ms: 10_000 },
        Message::Probe { of: 0, len: 32 << 20 },
        Message::Locate { id },
        Message::Located { holders: vec![(node, Role::Primary), (node, Role::Cached)] },
        Message::Ready { request: 4 },
        Message::Part { request: 4, at: 0, bytes },
        Message::Renew { lease: 4 },
        Message::Renewed { lease_ms: 10_000 },
        Message::Release { requests: vec![4, 5] },
        Message::Publish { holdings: vec![holding(Role::Primary, None), holding(Role::Cached, Some(7))] },
        Message::Unpublish { deleted: true, ids: ids() },
        Message::Delete { ids: ids() },
        Message::Deleted { outcomes: vec![DeleteOutcome::Deleted, DeleteOutcome::NotAllowed] },
        Message::Bury { lives: vec![(id, 3)] },
        Message::Drop { lives: vec![(id, 3)] },
        Message::Hold { ids: ids() },
        Message::Held { lives: vec![3, 0] },
        Message::Done,
        Message::Promote { ids: ids() },
        Message::Query { ids: ids() },
        Message::Found { known: vec![true, false] },
        Message::Segment { segment: 1, version: 2, base: region.base, key: region.key, len: region.len },
        Message::Stamps { base: region.base, key: region.key, len: region.len },
        Message::Credit { count: 16 },
        Message::Claim { id, probe: true },
        Message::Claimed { verdict: Verdict::Creating },
        Message::Unclaim { ids: ids() },
        Message::Taken { ids: ids() },
        Message::Affirm { ids: ids() },
        Message::Migrate { id, to: node },
        Message::Drain { step: plasmon::drain::DrainStep::Look },
        Message::Acquire {
            order: Order { id, life: 3, role: Role::Kept, copies: 2, patient: true, from: Some(node) },
        },
        Message::Passed { request: 4, bytes: 1 << 20, state: Passing::Sealed },
        Message::Refused { error: Error::new(ErrorKind::Lost, "it is lost") },
    ];
    let frames = messages.into_iter().map(|message| {
        let envelope = Envelope {
            request: 4,
            from: node,
            incarnation: 1,
            reply_to: node,
            epoch: 2,
            deadline_us: u64::MAX,
            tenant: 1000,
            class: 0,
            message,
        };
        envelope.encode(6).to_vec()
    });
    let mut messages: Vec<_> = frames.collect();
    let several = messages[..4].concat();
    messages.push(several);
    messages
}
