//! Tests of a connection with the other end of a socket pair, whose frames each test writes itself.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread;

use bytes::BytesMut;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::super::{Client, handshake};
use super::*;
use crate::wire::{Access, Granted, MAX_METADATA_BYTES, NewObject, Placement, Span, Table, peer_of};
use crate::{CreateOptions, NodeId, Presence, Rights};

const SEGMENT: u64 = 1 << 20;
/// Time-out that no call takes: a test that waits for it has failed.
const FOREVER: Duration = Duration::from_secs(120);

/// Daemon's end of the connection.
struct Peer {
    socket: UnixStream,
    receiver: Receiver,
}

impl Peer {
    /// Receives the next request.
    fn next(&mut self) -> (u64, Request) {
        loop {
            if let Some((header, body)) = Header::take_frame(&mut self.receiver.buffer).unwrap() {
                return (header.request, Request::decode_body(header.opcode, body).unwrap());
            }
            assert_ne!(self.receiver.receive(&self.socket).unwrap(), 0, "the client hung up");
        }
    }

    fn answer(&self, request: u64, reply: &Reply) {
        self.answer_with(request, reply, &[]);
    }

    fn answer_with(&self, request: u64, reply: &Reply, descriptors: &[OwnedFd]) {
        let mut frame = BytesMut::new();
        reply.encode(request, &mut frame);
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let sent = send_with_descriptors(&self.socket, &frame, &descriptors).unwrap();
        assert_eq!(sent, frame.len());
    }
}

/// Client with the daemon's end of its connection, after `Hello`.
fn pair() -> (Client, Peer) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let (at, uid) = (Socket::from("/run/test.sock"), peer_of(&ours).unwrap().uid);
    let client =
        thread::spawn(move || handshake::greet(ours, &at, uid, "test", handshake::Until::new(None, None)));
    let mut peer = Peer { socket: theirs, receiver: Receiver::default() };
    let (request, hello) = peer.next();
    assert_eq!(hello, Request::Hello { name: "test".into() });
    let node = NodeId::from_bytes([7; 16]);
    peer.answer(
        request,
        &Reply::Hello {
            node,
            segment_size: SEGMENT,
            segments: 2,
            inline_max: 100,
            user: 7,
            capacity: 2 * SEGMENT,
        },
    );
    // This daemon shares no tables: all calls use the socket.
    let (request, channel) = peer.next();
    assert_eq!(channel, Request::Channel);
    let error = Error::new(ErrorKind::Internal, "nothing to share");
    peer.answer(request, &Reply::Failed { error });
    let client = Client::from(client.join().unwrap().unwrap());
    assert_eq!(client.node(), node);
    (client, peer)
}

fn segment() -> OwnedFd {
    let memory = memfd_create("segment", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, SEGMENT).unwrap();
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    memory
}

fn found(offset: u64) -> Result<Span> {
    Ok(Span { offset, data_len: 3, metadata_len: 2, digest: 0 })
}

const READ_FIRST: Granted = Granted { segment: 0, version: 1, access: Access::Read };

fn id(number: u8) -> ObjectId {
    ObjectId::from_bytes([number; 20])
}

#[test]
fn a_waiting_get_holds_up_nobody_and_replies_find_their_callers() {
    let (client, mut peer) = pair();
    let waiting: Vec<_> = (0..4)
        .map(|number| {
            let client = client.clone();
            thread::spawn(move || client.get(&[id(number)], None).unwrap().remove(0).unwrap())
        })
        .collect();
    let mut gets: Vec<_> = (0..4).map(|_| peer.next()).collect();

    let other = {
        let client = client.clone();
        thread::spawn(move || client.contains(&[id(9)]))
    };
    let (request, contains) = peer.next();
    assert_eq!(contains, Request::Contains { ids: vec![id(9)] });
    peer.answer(request, &Reply::Contains(vec![Presence::Elsewhere]));
    assert_eq!(other.join().unwrap(), Ok(vec![Presence::Elsewhere]));

    // The replies come in another order than the requests. The first reply brings the segment for all.
    gets.rotate_left(2);
    let mut grants = vec![READ_FIRST];
    let mut descriptors = vec![segment()];
    for (request, get) in gets {
        let Request::Get { timeout_us: u64::MAX, ids, .. } = get else { panic!("{get:?}") };
        let objects = vec![found(u64::from(ids[0].as_bytes()[0]) * 64)];
        let granted = std::mem::take(&mut grants);
        peer.answer_with(request, &Reply::Got { objects, granted }, &std::mem::take(&mut descriptors));
    }
    let objects: Vec<_> = waiting.into_iter().map(|waiting| waiting.join().unwrap()).collect();
    let base = objects[0].data().as_ptr() as usize;
    for (number, object) in objects.iter().enumerate() {
        assert_eq!(object.id(), id(number as u8));
        assert_eq!(object.data().as_ptr() as usize, base + number * 64);
        assert_eq!((object.data().len(), object.metadata().len()), (3, 2));
    }
}

#[test]
fn the_last_clone_of_an_object_releases_its_pin_by_place() {
    let (client, mut peer) = pair();
    let getting = {
        let client = client.clone();
        thread::spawn(move || client.get(&[id(1)], None).unwrap().remove(0).unwrap())
    };
    let (request, _) = peer.next();
    peer.answer_with(
        request,
        &Reply::Got { objects: vec![found(640)], granted: vec![READ_FIRST] },
        &[segment()],
    );
    let object = getting.join().unwrap();
    let clone = object.clone();
    drop(object);
    drop(client);
    assert_eq!(clone.data(), [0; 3]);
    drop(clone);
    assert_eq!(peer.next().1, Request::Release { offsets: vec![640] });
    // The object was the last user of the connection.
    assert_eq!(peer.socket.read(&mut [0]).unwrap(), 0);
}

#[test]
fn an_interrupted_get_is_cancelled_and_what_it_would_have_got_released() {
    let (client, mut peer) = pair();
    let mut asked = 0;
    let mut interrupt = || {
        asked += 1;
        asked == 2
    };
    let error = client.get_interruptible(&[id(1), id(2), id(3)], None, &mut interrupt).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    let (get, _) = peer.next();
    assert_eq!(peer.next().1, Request::Cancel { request: get });

    // The reply was under way already. Its segment is used by later replies.
    let lost = Err(Error::new(ErrorKind::Lost, "gone"));
    let reply = Reply::Got { objects: vec![found(0), lost, found(64)], granted: vec![READ_FIRST] };
    peer.answer_with(get, &reply, &[segment()]);
    let later = {
        let client = client.clone();
        thread::spawn(move || client.get(&[id(4)], Some(Duration::ZERO)).unwrap().remove(0))
    };
    let (get, _) = peer.next();
    assert_eq!(peer.next().1, Request::Release { offsets: vec![0, 64] });
    peer.answer(get, &Reply::Got { objects: vec![found(128)], granted: vec![] });
    assert_eq!(later.join().unwrap().unwrap().data(), [0; 3]);
}

#[test]
fn a_silent_daemon_is_given_up_and_a_late_creation_aborted() {
    let (client, mut peer) = pair();
    let object = NewObject {
        id: id(1),
        rights: Rights::default(),
        name: String::new(),
        metadata: Default::default(),
        terms: Default::default(),
    };
    let create = Request::Create { object, data_len: 1000, metadata_len: 0, room_us: 0 };
    let soon = Instant::now() + Duration::from_millis(20);
    let error =
        client.connection.send(&create, Undo::Abort(id(1))).unwrap().wait(Some(soon), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.message().contains("/run/test.sock"), "{error}");
    let (request, _) = peer.next();
    assert_eq!(peer.next().1, Request::Cancel { request });

    peer.answer(request, &Reply::Created { placement: Placement::Inline, granted: vec![] });
    let status = {
        let client = client.clone();
        thread::spawn(move || client.status_json())
    };
    let (request, _) = peer.next();
    assert_eq!(peer.next().1, Request::Abort { id: id(1) });
    peer.answer(request, &Reply::Status("{}".into()));
    assert_eq!(status.join().unwrap(), Ok("{}".into()));
}

/// Calls that wait for the daemon, each with a time-out.
#[test]
fn calls_end_at_their_time_out_though_the_daemon_is_silent() {
    type Call = (&'static str, fn(&Client) -> Result<()>);
    const SOON: Duration = Duration::from_millis(20);
    let calls: [Call; 12] = [
        ("get", |client| client.get(&[id(1)], Some(SOON)).and_then(|mut got| got.remove(0)).map(drop)),
        ("get of what is here", |client| {
            client.get(&[id(1)], Some(Duration::ZERO)).and_then(|mut got| got.remove(0)).map(drop)
        }),
        ("get into", |client| client.get_into(id(1), &mut [0; 8], Some(SOON)).map(drop)),
        ("wait", |client| client.wait(&[id(1)], 1, Some(SOON), None).map(drop)),
        ("pin", |client| client.pin(id(1), Some(SOON))),
        ("replicate", |client| client.replicate(id(1), 2, Some(SOON)).map(drop)),
        ("migrate", |client| client.migrate(id(1), NodeId::from_bytes([1; 16]), Some(SOON)).map(drop)),
        ("broadcast", |client| client.broadcast(id(1), &[], Some(SOON)).map(drop)),
        ("put", |client| {
            client.put(id(1), b"small", b"", &CreateOptions { room: Some(SOON), ..Default::default() })
        }),
        ("create", |client| {
            client
                .create(id(2), 1000, b"", &CreateOptions { room: Some(SOON), ..Default::default() })
                .map(drop)
        }),
        ("contains", |client| client.clone().within(SOON).contains(&[id(1)]).map(drop)),
        ("list", |client| client.clone().within(SOON).list().map(drop)),
    ];
    let (client, peer) = pair();
    for (name, call) in calls {
        // The client's clock ended the call, because the other end sends nothing and stays open.
        let error = call(&client).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{name}: {error}");
        assert!(error.message().contains("/run/test.sock"), "{name}: {error}");
    }
    assert!(client.connection.is_alive());
    drop(peer);
}

#[test]
fn a_daemon_that_reads_nothing_holds_up_no_call() {
    let (client, _peer) = pair();
    let options = CreateOptions { room: Some(Duration::from_millis(20)), ..CreateOptions::default() };
    // The request is larger than any socket's buffer.
    let ids: Vec<_> = (0..200_000).map(|_| id(3)).collect();
    let flood = client.wait(&ids[..crate::wire::MAX_WAIT_IDS], 1, Some(Duration::ZERO), None);
    assert_eq!(flood.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(client.put(id(1), &[1; 90], b"", &options).unwrap_err().kind(), ErrorKind::TimedOut);
    let error = client.within(Duration::from_millis(20)).contains(&ids).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn a_pin_that_comes_too_late_is_taken_back_unless_another_call_has_it() {
    let (client, mut peer) = pair();
    let calling = |call: fn(&Client) -> Result<()>| {
        let client = client.clone();
        thread::spawn(move || call(&client))
    };
    // No thread reads the answer before the next call.
    let too_late = |peer: &mut Peer| {
        let late = calling(|client| client.pin(id(1), Some(Duration::from_millis(20))));
        let (request, pin) = peer.next();
        assert!(matches!(pin, Request::Pin { .. }), "{pin:?}");
        assert_eq!(late.join().unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(peer.next().1, Request::Cancel { request });
        peer.answer(request, &Reply::Done);
    };
    let status = |client: &Client| client.status_json().map(drop);
    let done = Reply::Status("{}".into());

    too_late(&mut peer);
    let asking = calling(status);
    let (request, _) = peer.next();
    assert_eq!(peer.next().1, Request::Unpin { id: id(1) });
    peer.answer(request, &done);
    asking.join().unwrap().unwrap();

    // Another call is under way, and leads next.
    too_late(&mut peer);
    let held = calling(|client| client.pin(id(1), None));
    let (request, _) = peer.next();
    peer.answer(request, &Reply::Done);
    held.join().unwrap().unwrap();
    too_late(&mut peer);
    let asking = calling(status);
    let (request, _) = peer.next();
    peer.answer(request, &done);
    asking.join().unwrap().unwrap();
    let unpinning = calling(|client| client.unpin(id(1)));
    let (request, unpin) = peer.next();
    assert_eq!(unpin, Request::Unpin { id: id(1) }, "it was taken back before");
    peer.answer(request, &Reply::Done);
    unpinning.join().unwrap().unwrap();
}

#[test]
fn creations_are_written_inline_or_in_the_arena_and_aborted_when_dropped() {
    let (client, mut peer) = pair();
    let daemon = thread::spawn(move || {
        let (request, _) = peer.next();
        peer.answer(request, &Reply::Created { placement: Placement::Inline, granted: vec![] });
        let (request, seal) = peer.next();
        assert_eq!(seal, Request::Seal { id: id(1), digest: 0, data: (&b"inline"[..]).into() });
        peer.answer(request, &Reply::Done);

        let memory = segment();
        let (request, _) = peer.next();
        let span = Span { offset: SEGMENT + 128, data_len: 200, metadata_len: 2, digest: 0 };
        let granted = vec![Granted { segment: 1, version: 1, access: Access::Write }];
        let reply = Reply::Created { placement: Placement::Mapped(span), granted };
        peer.answer_with(request, &reply, &[memory.try_clone().unwrap()]);
        let (request, seal) = peer.next();
        assert_eq!(seal, Request::Seal { id: id(2), digest: 0, data: Default::default() });
        let mut written = [0; 201];
        rustix::io::pread(&memory, &mut written, 128).unwrap();
        assert_eq!(written[..200], [5; 200]);
        assert_eq!(written[200], 0, "the metadata is the daemon's to write");
        peer.answer(request, &Reply::Done);

        let (request, _) = peer.next();
        peer.answer(request, &Reply::Created { placement: Placement::Inline, granted: vec![] });
        assert_eq!(peer.next().1, Request::Abort { id: id(3) });
    });
    let options = CreateOptions::default();
    let mut creation = client.create(id(1), 6, b"", &options).unwrap();
    creation.as_mut_slice().copy_from_slice(b"inline");
    creation.seal().unwrap();
    client.put(id(2), &[5; 200], b"md", &options).unwrap();
    drop(client.create(id(3), 1, b"", &options).unwrap());
    daemon.join().unwrap();
}

#[test]
fn metadata_that_no_frame_carries_is_written_by_its_creator() {
    const LEN: usize = MAX_METADATA_BYTES + 1;
    let (client, mut peer) = pair();
    let daemon = thread::spawn(move || {
        let memory = segment();
        let (request, create) = peer.next();
        let Request::Create { object, data_len: 3, metadata_len, .. } = create else { panic!("{create:?}") };
        assert_eq!((object.metadata.len(), metadata_len as usize), (0, LEN));
        let span = Span { offset: SEGMENT + 128, data_len: 3, metadata_len, digest: 0 };
        let granted = vec![Granted { segment: 1, version: 1, access: Access::Write }];
        let reply = Reply::Created { placement: Placement::Mapped(span), granted };
        peer.answer_with(request, &reply, &[memory.try_clone().unwrap()]);
        let (request, seal) = peer.next();
        assert_eq!(seal, Request::Seal { id: id(1), digest: 0, data: Default::default() });
        let mut written = vec![0; 3 + LEN];
        rustix::io::pread(&memory, &mut written, 128).unwrap();
        assert!(written.starts_with(b"abc") && written[3..].iter().all(|byte| *byte == 7));
        peer.answer(request, &Reply::Done);

        let (request, _) = peer.next();
        peer.answer(request, &Reply::Created { placement: Placement::Inline, granted: vec![] });
        assert_eq!(peer.next().1, Request::Abort { id: id(2) });
    });
    let options = CreateOptions::default();
    client.put(id(1), b"abc", &[7; LEN], &options).unwrap();
    let error = client.create(id(2), 3, &[7; LEN], &options).map(drop).unwrap_err();
    assert!(error.message().contains("no extent for large metadata"), "{error}");
    daemon.join().unwrap();
}

#[test]
fn what_frames_cannot_carry_is_refused_before_it_is_sent() {
    let (client, _peer) = pair();
    let options = CreateOptions { name: Some("n".repeat(256)), ..CreateOptions::default() };
    let error = client.put(id(1), b"", b"", &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("over the limit"), "{error}");
}

#[test]
fn when_the_daemon_hangs_up_everybody_learns_it() {
    let (client, mut peer) = pair();
    let waiting: Vec<_> = (0..3)
        .map(|number| {
            let client = client.clone();
            thread::spawn(move || client.get(&[id(number)], None).map(drop))
        })
        .collect();
    (0..3).for_each(|_| drop(peer.next()));
    drop(peer);
    for waiting in waiting {
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Disconnected);
        assert!(error.message().contains("/run/test.sock"), "{error}");
    }
    assert_eq!(client.list().unwrap_err().kind(), ErrorKind::Disconnected);
}

#[test]
fn the_last_words_of_the_daemon_are_passed_on() {
    let (client, peer) = pair();
    let error = Error::new(ErrorKind::Busy, "too many clients");
    peer.answer(u64::MAX, &Reply::Failed { error: error.clone() });
    drop(peer);
    assert_eq!(client.status_json(), Err(error));
}

#[test]
fn replies_that_make_no_sense_end_the_connection() {
    let wrong_count = Reply::Got { objects: vec![], granted: vec![] };
    let outside = Reply::Got { objects: vec![found(3 * SEGMENT)], granted: vec![] };
    let not_granted = Reply::Got { objects: vec![found(0)], granted: vec![] };
    for reply in [wrong_count, outside, not_granted, Reply::Done] {
        let (client, mut peer) = pair();
        let get = {
            let client = client.clone();
            thread::spawn(move || client.get(&[id(1)], None).map(drop))
        };
        let (request, _) = peer.next();
        peer.answer(request, &reply);
        assert_eq!(get.join().unwrap().unwrap_err().kind(), ErrorKind::Internal, "{reply:?}");
        assert_eq!(client.list().unwrap_err().kind(), ErrorKind::Internal, "{reply:?}");
    }
}

#[test]
fn a_reply_in_several_frames_is_one() {
    let (client, mut peer) = pair();
    let list = thread::spawn(move || client.list());
    let (request, _) = peer.next();
    let row = |number| crate::ObjectInfo {
        id: id(number),
        name: None,
        state: crate::ObjectState::Primary,
        rights: Rights::default(),
        data_len: 1,
        metadata_len: 0,
        pins: 0,
        age_ms: 0,
        construction_s: 0,
        version: None,
        beginning: bytes::Bytes::new(),
    };
    peer.answer(request, &Reply::List { objects: vec![row(1), row(2)], more: true });
    peer.answer(request, &Reply::List { objects: vec![row(3)], more: false });
    assert_eq!(list.join().unwrap(), Ok(vec![row(1), row(2), row(3)]));
}

#[test]
fn more_ids_than_a_frame_takes_are_asked_at_once_and_answered_in_order() {
    let (client, mut peer) = pair();
    let ids: Vec<_> = (0..2500).map(|_| ObjectId::random()).collect();
    let asked = ids.clone();
    let get = thread::spawn(move || client.get(&asked, Some(Duration::ZERO)).unwrap());
    let mut requests: Vec<_> = (0..3).map(|_| peer.next()).collect();
    requests.reverse();
    for (request, get) in requests {
        let Request::Seek { ids, .. } = get else { panic!("{get:?}") };
        let objects = ids.iter().map(|id| Err(Error::new(ErrorKind::TimedOut, id.to_string()))).collect();
        peer.answer(request, &Reply::Got { objects, granted: vec![] });
    }
    let messages: Vec<_> =
        get.join().unwrap().into_iter().map(|one| one.unwrap_err().message().to_owned()).collect();
    assert_eq!(messages, ids.iter().map(ToString::to_string).collect::<Vec<_>>());
}

#[test]
fn threads_that_flood_a_slow_daemon_all_get_their_answers() {
    let (client, mut peer) = pair();
    let (done, finished) = mpsc::channel();
    for thread in 0..8u8 {
        let (client, done) = (client.clone(), done.clone());
        thread::spawn(move || {
            for round in 0..200u8 {
                let ids: Vec<_> = (0..1024).map(|_| id(thread ^ round)).collect();
                assert_eq!(client.contains(&ids).unwrap(), vec![Presence::Here; 1024]);
            }
            done.send(()).unwrap();
        });
    }
    let daemon = thread::spawn(move || {
        for _ in 0..8 * 200 {
            let (request, contains) = peer.next();
            let Request::Contains { ids } = contains else { panic!("{contains:?}") };
            peer.answer(request, &Reply::Contains(vec![Presence::Here; ids.len()]));
        }
    });
    (0..8).for_each(|_| finished.recv_timeout(FOREVER).unwrap());
    daemon.join().unwrap();
}
