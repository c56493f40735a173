//! Frames of the socket: several in a row, as they come.

use bytes::{Bytes, BytesMut};
use plasmon::wire::{
    Access, Event, Gathering, Granted, Header, MAX_IDS, NewObject, ObjectInfo, ObjectState, Placement,
    Presence, Reply, Request, Span, TableDomain, TablePart, TablePartKind, Terms,
};
use plasmon::{DeleteOutcome, Error, ErrorKind, NodeId, ObjectId};

/// Reads whatever a client may send.
pub(crate) fn requests(bytes: &[u8]) {
    let mut buffer = BytesMut::from(bytes);
    let mut gathering = Gathering::default();
    while let Ok(Some((header, body))) = Header::take_frame(&mut buffer) {
        match gathering.take(&header, body) {
            Ok(Some(request)) => {
                let mut again = BytesMut::new();
                request.encode(header.request, &mut again);
                assert_eq!(gathered(again), request);
            }
            Ok(None) => {}
            // The end of the connection.
            Err(_) => return,
        }
    }
}

/// The request that these frames are.
fn gathered(mut frames: BytesMut) -> Request {
    let mut gathering = Gathering::default();
    loop {
        let (header, body) = Header::take_frame(&mut frames).expect("our own frame").expect("a whole one");
        if let Some(request) = gathering.take(&header, body).expect("our own request") {
            assert!(frames.is_empty(), "{} bytes behind it", frames.len());
            return request;
        }
    }
}

/// Reads whatever a daemon may answer.
pub(crate) fn replies(bytes: &[u8]) {
    let mut buffer = BytesMut::from(bytes);
    while let Ok(Some((header, body))) = Header::take_frame(&mut buffer) {
        if let Ok(reply) = Reply::decode(&header, body) {
            let mut again = BytesMut::new();
            reply.encode(header.request, &mut again);
            let (header, body) = Header::take_frame(&mut again).expect("our own frame").expect("a whole one");
            assert_eq!(Reply::decode(&header, body), Ok(reply));
        }
    }
}

fn id() -> ObjectId {
    ObjectId::from_bytes([7; 20])
}

pub(crate) fn request_seeds() -> Vec<Vec<u8>> {
    let object = || NewObject {
        id: id(),
        private: true,
        name: "flights".into(),
        metadata: Bytes::from_static(b"metadata"),
        terms: Terms { fresh: true, copies: 2, ttl_ms: 1000 },
    };
    let data = Bytes::from_static(b"data");
    let ids = vec![id(), ObjectId::from_bytes([8; 20])];
    let requests = [
        Request::Hello { name: "client".into() },
        Request::Put { object: object(), digest: 7, room_us: 1, data: data.clone() },
        Request::Create { object: object(), data_len: 1 << 20, room_us: u64::MAX },
        Request::Seal { id: id(), digest: 7, data },
        Request::Abort { id: id() },
        Request::Get { timeout_us: 1000, ids: ids.clone() },
        Request::Release { offsets: vec![0, 4096] },
        Request::Contains { ids: ids.clone() },
        Request::Delete { ids: ids.clone() },
        Request::List,
        Request::Status,
        Request::Cancel { request: 3 },
        Request::Wait { timeout_us: 0, count: 1, ids: ids.clone() },
        Request::Wait { timeout_us: 0, count: 1, ids: vec![id(); MAX_IDS + 1] },
        Request::Explain { id: id() },
        Request::Locations { id: id() },
        Request::Prefetch { timeout_us: 1000, ids: ids.clone() },
        Request::Overview,
        Request::Calibrate { peer: NodeId::from_bytes([1; 16]) },
        Request::Lend { len: 1 << 20, private: true, room_us: 1 },
        Request::Adopt { len: 1 << 20 },
        Request::GiveBack { buffer: 3 },
        Request::GetInto { timeout_us: 1000, id: id(), buffer: 3, at: 64, room: 1 << 16 },
        Request::PutFrom { object: object(), digest: 7, buffer: 3, data_len: 100 },
        Request::Evict { bytes: u64::MAX },
        Request::Refresh { ids },
        Request::Options { name: Some("other".into()), quota: Some(1 << 30) },
        Request::Options { name: None, quota: None },
        Request::Subscribe,
        Request::Channel,
        Request::Tables,
    ];
    let frames = requests.iter().map(|request| {
        let mut out = BytesMut::new();
        request.encode(5, &mut out);
        out.to_vec()
    });
    frames.collect()
}

pub(crate) fn reply_seeds() -> Vec<Vec<u8>> {
    let span = Span { offset: 4096, data_len: 100, metadata_len: 8, digest: 7 };
    let granted = || vec![Granted { segment: 1, version: 2, access: Access::Write }];
    let error = || Error::new(ErrorKind::Full, "the store is full");
    let parts = || vec![TablePart { domain: TableDomain::Shared, kind: TablePartKind::Chunk, number: 1 }];
    let row = ObjectInfo {
        id: id(),
        name: Some("flights".into()),
        state: ObjectState::Cached,
        private: false,
        data_len: 100,
        metadata_len: 8,
        pins: 3,
        age_ms: 12,
    };
    let sealed = Event::Sealed { id: id(), data_len: 100, metadata_len: 8 };
    let replies = [
        Reply::Hello {
            node: NodeId::from_bytes([1; 16]),
            segment_size: 1 << 20,
            segments: 64,
            inline_max: 1 << 16,
        },
        Reply::PUT_DONE,
        Reply::SEALED,
        Reply::ABORTED,
        Reply::Created { placement: Placement::Inline, granted: Vec::new() },
        Reply::Created { placement: Placement::Mapped(span), granted: granted() },
        Reply::Got { objects: vec![Ok(span), Err(error())], granted: granted() },
        Reply::Contains(vec![Presence::Absent, Presence::Here, Presence::Elsewhere]),
        Reply::Deleted(vec![DeleteOutcome::Absent, DeleteOutcome::Deleted, DeleteOutcome::Deferred]),
        Reply::List { objects: vec![row], more: true },
        Reply::Status("{}".into()),
        Reply::REFRESHED,
        Reply::OPTIONS_SET,
        Reply::PREFETCHING,
        Reply::PUT_FROM_DONE,
        Reply::Lent { buffer: 3, offset: 4096, capacity: 1 << 20, granted: granted() },
        Reply::Landed { data_len: Some(100) },
        Reply::Landed { data_len: None },
        Reply::explained("{}".into()),
        Reply::located("[]".into()),
        Reply::calibrated("{}".into()),
        Reply::Waited(vec![true, false]),
        Reply::Evicted { bytes: 7 },
        Reply::Events(vec![sealed, Event::Deleted { id: id() }, Event::Gap { missed: 3 }]),
        Reply::Channel { parts: parts() },
        Reply::Tables { parts: parts() },
        Reply::Failed { error: error() },
    ];
    let frames = replies.iter().map(|reply| {
        let mut out = BytesMut::new();
        reply.encode(5, &mut out);
        out.to_vec()
    });
    frames.collect()
}
