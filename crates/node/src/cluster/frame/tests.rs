//! Frames survive the wire, and whatever else comes is refused.

use bytes::BufMut;
use plasmon::ErrorKind;
use proptest::prelude::*;

use super::*;

fn id() -> impl Strategy<Value = ObjectId> {
    any::<[u8; 20]>().prop_map(ObjectId::from_bytes)
}

fn node() -> impl Strategy<Value = NodeId> {
    any::<[u8; 16]>().prop_map(NodeId::from_bytes)
}

fn head() -> impl Strategy<Value = Head> {
    (id(), "[a-z]{0,30}", any::<u64>(), any::<u32>(), any::<bool>(), 0u64..1 << 40, 0u32..65_000).prop_map(
        |(id, name, life, tenant, private, data_len, metadata_len)| Head {
            id,
            name: name.into(),
            life,
            tenant,
            private,
            data_len,
            metadata_len,
            digest: life.rotate_left(7),
            copies: tenant as u16,
            expires: life.rotate_left(9),
        },
    )
}

fn ids() -> impl Strategy<Value = Vec<ObjectId>> {
    prop::collection::vec(id(), 0..5)
}

fn flags() -> impl Strategy<Value = Vec<bool>> {
    prop::collection::vec(any::<bool>(), 0..5)
}

fn nodes() -> impl Strategy<Value = Vec<NodeId>> {
    prop::collection::vec(node(), 0..4)
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from)
}

fn stage() -> impl Strategy<Value = Stage> {
    prop_oneof![Just(Stage::Asked), Just(Stage::Forwarded), Just(Stage::Direct), Just(Stage::Relayed)]
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Primary), Just(Role::Kept), Just(Role::Cached)]
}

fn wish() -> impl Strategy<Value = Wish> {
    let protocol = prop::sample::select(Protocol::ALL.to_vec());
    (protocol, any::<u32>()).prop_map(|(protocol, eager_max)| Wish { protocol, eager_max })
}

fn stamp() -> impl Strategy<Value = Option<Stamp>> {
    prop::option::of((any::<u32>(), 1..u64::MAX).prop_map(|(slot, value)| Stamp { slot, value }))
}

fn region() -> impl Strategy<Value = RemoteRegion> {
    any::<(u64, u64, u64)>().prop_map(|(base, key, len)| RemoteRegion { base, key, len })
}

fn message() -> impl Strategy<Value = Message> {
    let piece = (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>())
        .prop_map(|(segment, version, offset, len)| Location { segment, version, offset, len });
    let holding = (id(), role(), any::<u16>(), any::<u64>(), any::<Option<u32>>())
        .prop_map(|(id, role, copies, life, owner)| Holding { id, role, copies, life, owner });
    let order = (id(), any::<u64>(), role(), any::<u16>(), any::<bool>(), prop::option::of(node()))
        .prop_map(|(id, life, role, copies, patient, from)| Order { id, life, role, copies, patient, from });
    let lives = || prop::collection::vec((id(), any::<u64>()), 0..5);
    let outcome = (0u8..4).prop_map(|code| DeleteOutcome::from_wire(code).expect("a code in use"));
    prop_oneof![
        (id(), stage(), nodes(), wish()).prop_map(|(id, stage, avoid, wish)| Message::Fetch {
            id,
            stage,
            avoid,
            wish
        }),
        id().prop_map(|id| Message::Forget { id }),
        (head(), bytes()).prop_map(|(head, bytes)| Message::Eager { head, bytes }),
        (head(), any::<u32>(), prop::collection::vec(piece, 0..4), stamp(), nodes()).prop_map(
            |(head, lease_ms, pieces, stamp, others)| Message::Offer {
                head,
                lease_ms,
                pieces,
                stamp,
                others
            }
        ),
        (head(), any::<u32>(), prop::collection::vec(region(), 0..4))
            .prop_map(|(head, lease_ms, regions)| Message::Registered { head, lease_ms, regions }),
        (head(), any::<u32>()).prop_map(|(head, lease_ms)| Message::Stream { head, lease_ms }),
        (head(), any::<u32>(), any::<u16>(), any::<u128>())
            .prop_map(|(head, lease_ms, port, secret)| Message::Dial { head, lease_ms, port, secret }),
        any::<u64>().prop_map(|request| Message::Ready { request }),
        id().prop_map(|id| Message::Locate { id }),
        nodes().prop_map(|nodes| Message::Located {
            holders: nodes.into_iter().map(|node| (node, Role::Kept)).collect()
        }),
        any::<(u64, u64)>().prop_map(|(of, len)| Message::Probe { of, len }),
        (any::<u64>(), any::<u64>(), bytes()).prop_map(|(request, at, bytes)| Message::Part {
            request,
            at,
            bytes
        }),
        region().prop_map(|RemoteRegion { base, key, len }| Message::Stamps { base, key, len }),
        any::<u64>().prop_map(|lease| Message::Renew { lease }),
        any::<u32>().prop_map(|lease_ms| Message::Renewed { lease_ms }),
        prop::collection::vec(any::<u64>(), 0..5).prop_map(|requests| Message::Release { requests }),
        prop::collection::vec(holding, 0..5).prop_map(|holdings| Message::Publish { holdings }),
        (any::<bool>(), ids()).prop_map(|(deleted, ids)| Message::Unpublish { deleted, ids }),
        ids().prop_map(|ids| Message::Delete { ids }),
        lives().prop_map(|lives| Message::Bury { lives }),
        Just(Message::Done),
        Just(Message::Report),
        (0u8..3).prop_map(|code| Message::Drain { step: DrainStep::from_wire(code).expect("in use") }),
        bytes().prop_map(|json| Message::Reported { json }),
        ids().prop_map(|ids| Message::Promote { ids }),
        ids().prop_map(|ids| Message::Hold { ids }),
        prop::collection::vec(any::<u64>(), 0..5).prop_map(|lives| Message::Held { lives }),
        prop::collection::vec(outcome, 0..5).prop_map(|outcomes| Message::Deleted { outcomes }),
        lives().prop_map(|lives| Message::Drop { lives }),
        ids().prop_map(|ids| Message::Query { ids }),
        flags().prop_map(|known| Message::Found { known }),
        (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
            |(segment, version, base, key, len)| Message::Segment { segment, version, base, key, len }
        ),
        any::<u32>().prop_map(|count| Message::Credit { count }),
        (id(), any::<bool>()).prop_map(|(id, probe)| Message::Claim { id, probe }),
        (0u8..4).prop_map(|code| Message::Claimed { verdict: Verdict::from_wire(code).expect("in use") }),
        ids().prop_map(|ids| Message::Unclaim { ids }),
        ids().prop_map(|ids| Message::Taken { ids }),
        ids().prop_map(|ids| Message::Affirm { ids }),
        (id(), node()).prop_map(|(id, to)| Message::Migrate { id, to }),
        order.prop_map(|order| Message::Acquire { order }),
        (any::<u64>(), any::<u64>(), 0u8..3).prop_map(|(request, bytes, code)| Message::Passed {
            request,
            bytes,
            state: Passing::from_wire(code).expect("in use")
        }),
        "[a-z ]{0,40}".prop_map(|text| Message::Refused { error: Error::new(ErrorKind::Lost, text) }),
    ]
}

fn envelope() -> impl Strategy<Value = Envelope> {
    (any::<u64>(), node(), any::<u64>(), node(), any::<u64>(), any::<u64>(), any::<u32>(), message())
        .prop_map(|(request, from, incarnation, reply_to, epoch, deadline_us, tenant, message)| Envelope {
            request,
            from,
            incarnation,
            reply_to,
            epoch,
            deadline_us,
            tenant,
            class: 0,
            message,
        })
}

proptest! {
    #[test]
    fn frames_survive_the_wire(envelope in envelope(), other in envelope(), token in any::<u64>(), credits in any::<u16>()) {
        let mut frame = envelope.encode(token);
        Envelope::set_credits(&mut frame, credits);
        frame.extend_from_slice(&other.encode(token));
        let mut message = frame.freeze();
        prop_assert_eq!(Envelope::decode_first(&mut message), Ok((envelope, token, credits)));
        prop_assert_eq!(Envelope::decode_first(&mut message), Ok((other, token, 0)));
        prop_assert!(message.is_empty());
    }

    #[test]
    fn a_cut_or_padded_frame_is_refused(envelope in envelope(), cut in 1usize..100) {
        let mut frame = envelope.encode(1);
        let len = frame.len();
        frame[4..8].copy_from_slice(&((len - HEADER_LEN) as u32 + 1).to_le_bytes());
        frame.put_u8(0);
        prop_assert!(Envelope::decode_first(&mut frame.clone().freeze()).is_err());
        frame.truncate(len.saturating_sub(cut));
        prop_assert!(Envelope::decode_first(&mut frame.freeze()).is_err());
    }

    #[test]
    fn damaged_frames_never_panic(
        envelope in envelope(), at in any::<prop::sample::Index>(), value in any::<u8>(),
    ) {
        let mut frame = envelope.encode(1);
        let at = at.index(frame.len());
        frame[at] = value;
        let _ = Envelope::decode_first(&mut frame.freeze());
    }

    #[test]
    fn what_fits_eager_fits_a_frame(mut head in head(), spare in 0usize..2) {
        head.metadata_len = 0;
        head.data_len = (FRAME_MAX - HEADER_LEN - head_len(&head) - 4 + spare) as u64;
        let fits = Message::fits_eager(&head);
        let bytes = vec![0; head.data_len as usize].into();
        let envelope = Envelope {
            request: 0, from: NodeId::random(), incarnation: 0, reply_to: NodeId::random(), epoch: 0,
            deadline_us: 0, tenant: 0, class: 0, message: Message::Eager { head, bytes },
        };
        prop_assert_eq!(envelope.encode(0).len() <= FRAME_MAX, fits);
    }
}
