use std::os::fd::AsFd;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::drain::DrainStep;
use crate::{Error, ErrorKind, NodeId, ObjectId};

fn object_id() -> impl Strategy<Value = ObjectId> {
    any::<[u8; 20]>().prop_map(ObjectId::from_bytes)
}

fn ids() -> impl Strategy<Value = Vec<ObjectId>> {
    prop::collection::vec(object_id(), 0..5)
}

fn bytes(max: usize) -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..max).prop_map(Bytes::from)
}

fn new_object() -> impl Strategy<Value = NewObject> {
    let terms = (any::<bool>(), any::<u16>(), any::<u64>()).prop_map(|(fresh, copies, ttl_ms)| Terms {
        fresh,
        copies,
        ttl_ms,
    });
    (object_id(), any::<bool>(), "[a-z]{0,20}", bytes(50), terms)
        .prop_map(|(id, private, name, metadata, terms)| NewObject { id, private, name, metadata, terms })
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        "[a-z]{0,20}".prop_map(|name| Request::Hello { name }),
        (new_object(), any::<u64>(), any::<u64>(), bytes(200))
            .prop_map(|(object, digest, room_us, data)| Request::Put { object, digest, room_us, data }),
        (new_object(), any::<u64>(), any::<u64>()).prop_map(|(object, data_len, room_us)| Request::Create {
            object,
            data_len,
            room_us
        }),
        (object_id(), any::<u64>(), bytes(100)).prop_map(|(id, digest, data)| Request::Seal {
            id,
            digest,
            data
        }),
        object_id().prop_map(|id| Request::Abort { id }),
        (any::<u64>(), ids()).prop_map(|(timeout_us, ids)| Request::Get { timeout_us, ids }),
        prop::collection::vec(any::<u64>(), 0..5).prop_map(|offsets| Request::Release { offsets }),
        ids().prop_map(|ids| Request::Contains { ids }),
        ids().prop_map(|ids| Request::Delete { ids }),
        Just(Request::List),
        Just(Request::Status),
        any::<u64>().prop_map(|request| Request::Cancel { request }),
        (any::<u64>(), any::<u32>(), ids()).prop_map(|(timeout_us, count, ids)| Request::Wait {
            timeout_us,
            count,
            ids
        }),
        any::<u64>().prop_map(|bytes| Request::Evict { bytes }),
        ids().prop_map(|ids| Request::Refresh { ids }),
        (prop::option::of("[a-z]{1,20}"), prop::option::of(0..u64::MAX))
            .prop_map(|(name, quota)| Request::Options { name, quota }),
        Just(Request::Subscribe),
        Just(Request::Channel),
        Just(Request::Tables),
        object_id().prop_map(|id| Request::Explain { id }),
        object_id().prop_map(|id| Request::Locations { id }),
        (any::<u64>(), ids()).prop_map(|(timeout_us, ids)| Request::Prefetch { timeout_us, ids }),
        Just(Request::Overview),
        any::<[u8; 16]>().prop_map(|peer| Request::Calibrate { peer: NodeId::from_bytes(peer) }),
        (any::<u64>(), any::<bool>(), any::<u64>()).prop_map(|(len, private, room_us)| Request::Lend {
            len,
            private,
            room_us
        }),
        any::<u64>().prop_map(|len| Request::Adopt { len }),
        any::<u64>().prop_map(|buffer| Request::GiveBack { buffer }),
        (any::<u64>(), object_id(), any::<[u64; 3]>()).prop_map(|(timeout_us, id, [buffer, at, room])| {
            Request::GetInto { timeout_us, id, buffer, at, room }
        }),
        (any::<u64>(), object_id(), any::<u16>()).prop_map(|(timeout_us, id, copies)| Request::Replicate {
            timeout_us,
            id,
            copies
        }),
        (any::<u64>(), object_id(), any::<[u8; 16]>()).prop_map(|(timeout_us, id, node)| Request::Migrate {
            timeout_us,
            id,
            node: NodeId::from_bytes(node)
        }),
        (any::<u64>(), object_id(), prop::collection::vec(any::<[u8; 16]>(), 0..4)).prop_map(
            |(timeout_us, id, nodes)| Request::Broadcast {
                timeout_us,
                id,
                nodes: nodes.into_iter().map(NodeId::from_bytes).collect(),
            }
        ),
        (any::<[u8; 16]>(), 0u8..3).prop_map(|(node, step)| Request::Drain {
            node: NodeId::from_bytes(node),
            step: DrainStep::from_wire(step).expect("in use"),
        }),
        (any::<u64>(), object_id()).prop_map(|(timeout_us, id)| Request::Pin { timeout_us, id }),
        object_id().prop_map(|id| Request::Unpin { id }),
        (new_object(), any::<[u64; 3]>()).prop_map(|(object, [digest, buffer, data_len])| {
            Request::PutFrom { object, digest, buffer, data_len }
        }),
    ]
}

fn span() -> impl Strategy<Value = Span> {
    (any::<u64>(), any::<u64>(), any::<u32>(), any::<u64>())
        .prop_map(|(offset, data_len, metadata_len, digest)| Span { offset, data_len, metadata_len, digest })
}

fn granted() -> impl Strategy<Value = Vec<Granted>> {
    let one = (any::<u32>(), any::<u32>(), any::<bool>()).prop_map(|(segment, version, write)| Granted {
        segment,
        version,
        access: if write { Access::Write } else { Access::Read },
    });
    prop::collection::vec(one, 0..4)
}

fn parts() -> impl Strategy<Value = Vec<TablePart>> {
    let domain = prop_oneof![Just(TableDomain::Shared), Just(TableDomain::Private)];
    let kind = prop_oneof![Just(TablePartKind::Root), Just(TablePartKind::Index), Just(TablePartKind::Chunk)];
    let one =
        (domain, kind, any::<u32>()).prop_map(|(domain, kind, number)| TablePart { domain, kind, number });
    prop::collection::vec(one, 0..4)
}

fn error() -> impl Strategy<Value = Error> {
    (1u16..=14, ".{0,30}").prop_map(|(kind, text)| Error::new(ErrorKind::from_wire(kind), text))
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        (any::<[u8; 16]>(), any::<u64>(), any::<u32>(), any::<u32>()).prop_map(
            |(node, segment_size, segments, inline_max)| Reply::Hello {
                node: NodeId::from_bytes(node),
                segment_size,
                segments,
                inline_max,
            }
        ),
        Just(Reply::PUT_DONE),
        Just(Reply::SEALED),
        Just(Reply::ABORTED),
        (prop_oneof![Just(Placement::Inline), span().prop_map(Placement::Mapped)], granted())
            .prop_map(|(placement, granted)| Reply::Created { placement, granted }),
        (prop::collection::vec(prop_oneof![span().prop_map(Ok), error().prop_map(Err)], 0..5), granted())
            .prop_map(|(objects, granted)| Reply::Got { objects, granted }),
        Just(Reply::Contains(vec![Presence::Absent, Presence::Here, Presence::Elsewhere])),
        Just(Reply::Deleted(vec![DeleteOutcome::Absent, DeleteOutcome::Deleted, DeleteOutcome::Deferred])),
        (object_id(), any::<u64>(), any::<bool>()).prop_map(|(id, data_len, more)| Reply::List {
            objects: vec![ObjectInfo {
                id,
                name: Some("flights".into()),
                state: ObjectState::Cached,
                private: true,
                data_len,
                metadata_len: 7,
                pins: 3,
                age_ms: 12,
            }],
            more,
        }),
        ".{0,50}".prop_map(Reply::Status),
        Just(Reply::REFRESHED),
        Just(Reply::OPTIONS_SET),
        prop::collection::vec(any::<bool>(), 0..5).prop_map(Reply::Waited),
        any::<u64>().prop_map(|bytes| Reply::Evicted { bytes }),
        (any::<[u64; 3]>(), granted()).prop_map(|([buffer, offset, capacity], granted)| Reply::Lent {
            buffer,
            offset,
            capacity,
            granted
        }),
        prop::option::of(any::<u64>()).prop_map(|data_len| Reply::Landed { data_len }),
        Just(Reply::PUT_FROM_DONE),
        (object_id(), any::<u64>(), any::<u32>()).prop_map(|(id, data_len, metadata_len)| {
            let sealed = Event::Sealed { id, data_len, metadata_len };
            Reply::Events(vec![sealed, Event::Deleted { id }, Event::Gap { missed: data_len }])
        }),
        parts().prop_map(|parts| Reply::Channel { parts }),
        parts().prop_map(|parts| Reply::Tables { parts }),
        error().prop_map(|error| Reply::Failed { error }),
    ]
}

proptest! {
    #[test]
    fn requests_survive_the_wire(request in request(), id in any::<u64>()) {
        let mut buffer = BytesMut::new();
        request.encode(id, &mut buffer);
        let (header, body) = Header::take_frame(&mut buffer).unwrap().unwrap();
        prop_assert_eq!(header.request, id);
        prop_assert!(buffer.is_empty());
        prop_assert_eq!(Request::decode(&header, body), Ok(request));
    }

    #[test]
    fn replies_survive_the_wire(reply in reply(), id in any::<u64>()) {
        let mut buffer = BytesMut::new();
        reply.encode(id, &mut buffer);
        let (header, body) = Header::take_frame(&mut buffer).unwrap().unwrap();
        prop_assert_eq!(Reply::decode(&header, body), Ok(reply));
    }

    #[test]
    fn a_cut_frame_is_never_a_frame(request in request(), cut in 1usize..40) {
        let mut buffer = BytesMut::new();
        request.encode(1, &mut buffer);
        buffer.truncate(buffer.len().saturating_sub(cut));
        prop_assert_eq!(Header::take_frame(&mut buffer), Ok(None));
    }

    #[test]
    fn damaged_frames_are_refused_or_read_but_never_panic(
        request in request(), reply in reply(), at in any::<prop::sample::Index>(), value in any::<u8>(),
    ) {
        let (mut asked, mut answered) = (BytesMut::new(), BytesMut::new());
        request.encode(1, &mut asked);
        reply.encode(1, &mut answered);
        for buffer in [&mut asked, &mut answered] {
            let index = at.index(buffer.len());
            buffer[index] = value;
            if let Ok(Some((header, body))) = Header::take_frame(buffer) {
                let _ = Request::decode(&header, body.clone());
                let _ = Reply::decode(&header, body);
            }
        }
    }

    #[test]
    fn random_bodies_never_panic(opcode in 0u8..20, body in bytes(300), error in 0u16..3) {
        let header = Header { opcode, flags: 0, body_len: body.len() as u32, request: 0, error, descriptors: 0 };
        let _ = Request::decode(&header, body.clone());
        let _ = Reply::decode(&header, body);
    }
}

#[test]
fn a_header_over_the_limits_is_refused() {
    let header = |version: u8, len: u32, descriptors: u16| {
        let mut buffer = BytesMut::new();
        Header { opcode: 1, flags: 0, body_len: len, request: 1, error: 0, descriptors }.put(&mut buffer);
        buffer[0] = version;
        Header::peek(&buffer)
    };
    assert!(header(VERSION, 0, 0).is_ok());
    assert_eq!(header(9, 0, 0), Err(WireError::Version(9)));
    assert_eq!(header(VERSION, 2 << 20, 0), Err(WireError::TooLong(2 << 20)));
    assert!(matches!(header(VERSION, 0, 65), Err(WireError::Malformed(_))));
}

#[test]
fn descriptors_arrive_with_their_bytes() {
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let file = tempfile();
    let sent = send_with_descriptors(&near, b"hello", &[file.as_fd(), near.as_fd()]).unwrap();
    assert_eq!(sent, 5);
    let mut receiver = Receiver::default();
    assert_eq!(receiver.receive(&far).unwrap(), 5);
    assert_eq!(&receiver.buffer[..], b"hello");
    assert_eq!(receiver.take_descriptors(9).len(), 2);
    assert!(receiver.take_descriptors(1).is_empty());
}

#[test]
fn a_receiver_that_takes_one_descriptor_takes_no_more() {
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let file = tempfile();
    let mut receiver = Receiver::with_one_descriptor();
    send_with_descriptors(&near, b"hello", &[file.as_fd()]).unwrap();
    assert_eq!(receiver.receive(&far).unwrap(), 5);
    assert_eq!(receiver.take_descriptors(2).len(), 1);
    send_with_descriptors(&near, b"hello", &[file.as_fd(); 4]).unwrap();
    assert_eq!(receiver.receive(&far).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
}

fn tempfile() -> std::fs::File {
    let name = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    std::fs::File::from(name)
}

/// The frames of a request, taken one by one.
fn taken(gathering: &mut Gathering, mut frames: BytesMut) -> Vec<Result<Option<Request>, WireError>> {
    std::iter::from_fn(|| Header::take_frame(&mut frames).unwrap())
        .map(|(header, body)| gathering.take(&header, body))
        .collect()
}

fn wait_for(range: std::ops::Range<u32>) -> Request {
    let ids = range.map(|number| ObjectId::from_name(&number.to_string())).collect();
    Request::Wait { timeout_us: 7, count: 3, ids }
}

fn frames_of(number: u64, request: &Request) -> BytesMut {
    let mut frames = BytesMut::new();
    request.encode(number, &mut frames);
    frames
}

#[test]
fn a_wait_for_many_survives_the_wire() {
    let mut gathering = Gathering::default();
    for (count, frames) in [(0, 1), (1024, 1), (1025, 2), (2048, 2), (MAX_WAIT as u32, 64)] {
        let request = wait_for(0..count);
        let mut taken = taken(&mut gathering, frames_of(9, &request));
        assert_eq!(taken.len(), frames, "{count}");
        assert_eq!(taken.pop(), Some(Ok(Some(request))));
        assert!(taken.iter().all(|before| *before == Ok(None)));
    }
    let here = Reply::Waited((0..MAX_WAIT).map(|number| number % 3 == 0).collect());
    let mut buffer = BytesMut::new();
    here.encode(9, &mut buffer);
    let (header, body) = Header::take_frame(&mut buffer).unwrap().unwrap();
    assert_eq!(Reply::decode(&header, body), Ok(here));
}

#[test]
fn frames_that_belong_to_nothing_are_refused() {
    let begun = || {
        let mut gathering = Gathering::default();
        let mut frames = frames_of(9, &wait_for(0..3000));
        let (header, body) = Header::take_frame(&mut frames).unwrap().unwrap();
        assert_eq!(gathering.take(&header, body), Ok(None));
        gathering
    };
    let refused = |gathering: &mut Gathering, frames| taken(gathering, frames).pop().unwrap().unwrap_err();
    refused(&mut begun(), frames_of(9, &Request::List));
    refused(&mut begun(), frames_of(8, &wait_for(0..1)));
    refused(&mut begun(), frames_of(9, &wait_for(0..MAX_WAIT as u32)));
    refused(&mut Gathering::default(), frames_of(9, &wait_for(0..MAX_WAIT as u32 + 1)));
    for (request, flags) in [(Request::List, FLAG_MORE), (wait_for(0..1), 2), (wait_for(0..1), 3)] {
        let mut frames = frames_of(9, &request);
        frames[2..4].copy_from_slice(&flags.to_le_bytes());
        refused(&mut Gathering::default(), frames);
    }
}
