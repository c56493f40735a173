//! Tests of the frames of clients: every row of the tables survives the wire, and damaged bytes are refused.

use std::os::fd::AsFd;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;
use crate::{Filter, ObjectId};

/// Returns a strategy for any message of any row.
fn message<T: Table + std::fmt::Debug>() -> impl Strategy<Value = T> {
    (select(T::ROWS), any::<u64>()).prop_map(|(row, seed)| T::draw_body(row.opcode, &mut Draw::new(seed)))
}

#[test]
fn every_row_survives_the_wire() {
    for (request, id) in Request::draw_all(100, 1).into_iter().zip(0..) {
        let mut frames = frames_of(id, &request);
        let (header, body) = Header::take_frame(&mut frames).unwrap().unwrap();
        assert_eq!((header.request, frames.len()), (id, 0));
        assert_eq!(Request::decode_body(header.opcode, body), Ok(request));
    }
    for reply in Reply::draw_all(100, 2) {
        let mut buffer = BytesMut::new();
        reply.encode(9, &mut buffer);
        let (header, body) = Header::take_frame(&mut buffer).unwrap().unwrap();
        assert_eq!(Reply::decode(&header, body), Ok(reply));
    }
}

#[test]
fn answers_are_replies() {
    const REPLIES: [bool; 256] = answers(Request::ROWS, Reply::ROWS);
    let never = Reply::ROWS.iter().filter(|row| !REPLIES[usize::from(row.opcode)]).map(|row| row.name);
    assert_eq!(never.collect::<Vec<_>>(), ["Failed"], "it answers any of them");
    let silent = Request::ROWS.iter().filter(|row| row.answers.is_empty()).map(|row| row.name);
    assert_eq!(
        silent.collect::<Vec<_>>(),
        [
            "Release",
            "Cancel",
            "GiveBack",
            "UnmapRegion",
            "Unserve",
            "LeaveService",
            "DropCall",
            "ConfirmStale",
            "CountReads",
            "BeginSettling"
        ]
    );
}

#[test]
fn a_reply_announces_the_descriptors_that_came() {
    let mut buffer = BytesMut::new();
    Reply::Channel { parts: vec![] }.encode(1, &mut buffer);
    let (header, body) = Header::take_frame(&mut buffer).unwrap().unwrap();
    assert!(Reply::decode(&header, body.clone()).is_ok());
    assert!(Reply::decode(&Header { descriptors: 3, ..header }, body.clone()).is_err());
    assert!(Reply::decode(&Header { flags: FLAG_MORE, ..header }, body).is_err());
}

proptest! {
    #[test]
    fn a_cut_frame_is_never_a_frame(request in message::<Request>(), cut in 1usize..40) {
        let mut buffer = BytesMut::new();
        request.encode(1, &mut buffer);
        buffer.truncate(buffer.len().saturating_sub(cut));
        prop_assert_eq!(Header::take_frame(&mut buffer), Ok(None));
    }

    #[test]
    fn damaged_frames_are_refused_or_read_but_never_panic(
        request in message::<Request>(), reply in message::<Reply>(),
        at in any::<Index>(), value in any::<u8>(),
    ) {
        let (mut asked, mut answered) = (BytesMut::new(), BytesMut::new());
        request.encode(1, &mut asked);
        reply.encode(1, &mut answered);
        for buffer in [&mut asked, &mut answered] {
            let index = at.index(buffer.len());
            buffer[index] = value;
            if let Ok(Some((header, body))) = Header::take_frame(buffer) {
                let _ = Request::decode_body(header.opcode, body.clone());
                let _ = Reply::decode(&header, body);
            }
        }
    }

    #[test]
    fn random_bodies_never_panic(opcode: u8, body in prop::collection::vec(any::<u8>(), 0..300)) {
        let body = Bytes::from(body);
        let header = Header { opcode, flags: 0, body_len: body.len() as u32, request: 0, descriptors: 0 };
        let _ = Request::decode_body(header.opcode, body.clone());
        let _ = Reply::decode(&header, body);
    }
}

#[test]
fn a_header_over_the_limits_is_refused() {
    let header = |version: u8, len: u32, descriptors: u16| {
        let mut buffer = BytesMut::new();
        Header { opcode: 1, flags: 0, body_len: len, request: 1, descriptors }.put(&mut buffer);
        buffer[0] = version;
        Header::peek(&buffer)
    };
    assert!(header(VERSION, 0, 0).is_ok());
    assert_eq!(header(VERSION + 1, 0, 0), Err(WireError::Version(VERSION + 1)));
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

/// Returns what each frame of a request gives when the frames are taken one by one.
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
    for (count, frames) in [(0, 1), (1024, 1), (1025, 2), (2048, 2), (MAX_WAIT_IDS as u32, 64)] {
        let request = wait_for(0..count);
        let mut taken = taken(&mut gathering, frames_of(9, &request));
        assert_eq!(taken.len(), frames, "{count}");
        assert_eq!(taken.pop(), Some(Ok(Some(request))));
        assert!(taken.iter().all(|before| *before == Ok(None)));
    }
    let here = Reply::Waited((0..MAX_WAIT_IDS).map(|number| number % 3 == 0).collect());
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
    refused(&mut begun(), frames_of(9, &Request::List { filter: Filter::default() }));
    refused(&mut begun(), frames_of(8, &wait_for(0..1)));
    refused(&mut begun(), frames_of(9, &wait_for(0..MAX_WAIT_IDS as u32)));
    refused(&mut Gathering::default(), frames_of(9, &wait_for(0..MAX_WAIT_IDS as u32 + 1)));
    for (request, flags) in
        [(Request::List { filter: Filter::default() }, FLAG_MORE), (wait_for(0..1), 2), (wait_for(0..1), 3)]
    {
        let mut frames = frames_of(9, &request);
        frames[2..4].copy_from_slice(&flags.to_le_bytes());
        refused(&mut Gathering::default(), frames);
    }
}

#[test]
fn the_page_has_the_frames_of_the_code() {
    let design = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/sessions.md");
    let header = format!("Version {VERSION}.\n\n{}", page::fields(header::FIELDS));
    page::check(&design, "header of a client frame", header.trim_end());
    page::check(&design, "requests", page::rows(Request::ROWS, Reply::ROWS).trim_end());
    page::check(&design, "replies", page::rows(Reply::ROWS, &[]).trim_end());
}

#[test]
fn the_page_has_the_calls_of_the_code() {
    let design = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/sessions.md");
    page::check(&design, "calls by slot", page::calls(&CALLS).trim_end());
}
