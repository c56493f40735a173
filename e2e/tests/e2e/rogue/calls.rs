//! Tests of a rogue among those who call functions: as the node of a caller, as that of a server, and as one
//! that has nothing to do with a call.

use std::thread;
use std::time::Duration;

use plasmon::service::{ServeOptions, service_id};
use plasmon::{ErrorKind, ObjectId, Server, Service};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually};

use super::call_frames::{Called, data_of, join, opcode, returned, seek};
use super::frames::{Frame, body};
use super::region_frames::Piece;
use super::regions::refusal;
use super::{Rogue, cluster, dropped, heard, the_others_go_on};
use crate::support::kind;

/// A user whom no server allows to call.
const STRANGER: u32 = 70_001;
/// Largest number of bytes that come with a frame.
const CARRIED: usize = 8 << 10;

/// Service of user 0 on node 0 that a client of node 1 calls.
struct Honest {
    id: ObjectId,
    name: String,
    server: Server,
    far: Service,
}

impl Honest {
    fn make(cluster: &Cluster, rogue: &Rogue) -> Self {
        let own = rogue.id();
        let names = (0..).map(|nth| format!("service {nth} of {}", ObjectId::random()));
        let is_foreign = |name: &String| !rogue.keepers(&service_id(name)).contains(&own);
        let name = names.into_iter().find(is_foreign).expect("others");
        let server = cluster.client(0).serve(&name, &["f", "g"], &ServeOptions::default()).expect("serve");
        let far = cluster.client(1).service(&name, Some(PATIENCE)).expect("it is served");
        let honest = Self { id: service_id(&name), name, server, far };
        honest.check();
        honest
    }

    /// Checks that a call of the other node is run.
    fn check(&self) {
        let data = Pattern(5).bytes(100_000);
        thread::scope(|threads| {
            let calling = threads.spawn(|| self.far.call("g", &data, PATIENCE));
            let call = self.server.receive(Some(PATIENCE)).expect("it serves").expect("a call");
            assert!(call.data() == data);
            let back = call.data().to_vec();
            call.reply(&back).expect("it is waited for");
            assert!(*calling.join().expect("no panic").expect("it is answered") == *data);
        });
    }

    /// A call of the rogue.
    fn called(&self, call: u64) -> Called<'static> {
        let (data, pieces) = (b"rogue".to_vec(), Vec::new());
        Called { call, id: self.id, owner: 0, function: "f", left_us: 60_000_000, data, pieces }
    }
}

impl Rogue {
    /// Calls a function; the request has the number of the call.
    fn call(&mut self, to: &str, called: &Called<'_>) {
        let frame = Frame { request: called.call, ..self.frame(to, opcode::CALL, called.body()) };
        self.send(to, &frame);
    }

    fn answer_to(&mut self, call: u64) -> Frame {
        self.next("the answer to a call", |frame| frame.request == call)
    }
}

#[test]
fn calls_that_are_wrong_are_refused_and_their_servers_go_on() {
    let (cluster, mut rogue) = cluster();
    let honest = Honest::make(&cluster, &rogue);
    let node = cluster.status(0).node;
    let valid = honest.called(0);
    let refused = [
        (Called { id: ObjectId::random(), ..valid.clone() }, 0, ErrorKind::NotHere),
        (Called { owner: STRANGER, ..valid.clone() }, 0, ErrorKind::NotHere),
        (Called { owner: u32::MAX, ..valid.clone() }, STRANGER, ErrorKind::NotHere),
        (Called { function: "h", ..valid.clone() }, 0, ErrorKind::Invalid),
        (valid.clone(), STRANGER, ErrorKind::NotAllowed),
        (Called { left_us: 0, ..valid.clone() }, 0, ErrorKind::TimedOut),
    ];
    for (called, user, expected) in refused {
        let answer = rogue.ask_as(user, &node, opcode::CALL, called.body());
        assert_eq!(refusal(&answer), Some(expected), "{called:?} of user {user}");
    }
    // Bytes that are not there: no thread of a server gets such a call.
    rogue.tell_segment(&node);
    let long = CARRIED as u64 + 1;
    let nowhere: [&[Piece]; 4] =
        [&[(9, 1, 0, long)], &[(0, 2, 0, long)], &[(0, 1, 1 << 40, long)], &[(0, 1, 0, 8), (7, 7, 0, long)]];
    for (call, pieces) in (100..).zip(nowhere) {
        let (data, pieces) = (Vec::new(), pieces.to_vec());
        rogue.call(&node, &Called { call, data, pieces, ..valid.clone() });
        heard(&mut rogue, &node);
        assert!(honest.server.receive(Some(Duration::from_millis(10))).expect("it serves").is_none());
        let answer = rogue.answer_to(call);
        assert_eq!(refusal(&answer), Some(ErrorKind::Disconnected));
        honest.check();
    }
    // Time without end ends, two calls of one number are two calls, and nobody gives up another's.
    let call = 200;
    rogue.call(&node, &Called { call, left_us: u64::MAX, ..valid.clone() });
    rogue.call(&node, &Called { call, data: b"the second".to_vec(), ..valid.clone() });
    for number in [0, 1, 7, u64::MAX] {
        rogue.send(&node, &rogue.frame(&node, opcode::GIVE_UP, body::words(&[number])));
        rogue.send(&node, &rogue.frame(&node, opcode::TAKEN, body::words(&[number])));
    }
    heard(&mut rogue, &node);
    for expected in [&b"rogue"[..], b"the second"] {
        let got = honest.server.receive(Some(PATIENCE)).expect("it serves").expect("a call");
        assert_eq!(got.data(), expected);
        assert!(!got.caller_gone() && got.left() <= Duration::from_secs(24 * 3600));
        got.reply(expected).expect("it is waited for");
        assert_eq!(data_of(&rogue.answer_to(call).body), expected);
    }
    honest.check();
    let before = dropped(&cluster, 0);
    let malformed: [(usize, &[Piece]); 5] = [
        (CARRIED + 1, &[]),
        (1, &[(0, 1, 0, long)]),
        (0, &[(0, 1, 0, 100)]),
        (0, &[(0, 1, 0, (1 << 30) + 1)]),
        (0, &[(0, 1, u64::MAX, long)]),
    ];
    for (call, (data, pieces)) in (300..).zip(malformed) {
        rogue.call(&node, &Called { call, data: vec![1; data], pieces: pieces.to_vec(), ..valid.clone() });
    }
    eventually("they are counted", || dropped(&cluster, 0) == before + malformed.len() as u64);
    honest.check();
    drop(honest);
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn a_flood_of_calls_fills_a_port_and_goes_with_its_node() {
    const CALLS: u64 = 3000;
    const MOST: u64 = 1024;
    let (cluster, mut rogue) = cluster();
    let honest = Honest::make(&cluster, &rogue);
    let node = cluster.status(0).node;
    let calls: Vec<_> = (1..=CALLS)
        .map(|call| {
            let body = honest.called(call).body();
            Frame { request: call, ..rogue.frame(&node, opcode::CALL, body) }.encode()
        })
        .collect();
    rogue.send_bytes(&node, &calls);
    heard(&mut rogue, &node);
    assert_eq!(cluster.status(0).functions.waiting, MOST);
    let is_busy = |frame: &Frame| frame.request > 0 && refusal(frame) == Some(ErrorKind::Busy);
    assert_eq!(rogue.count(is_busy) as u64, CALLS - MOST, "the others are refused");
    assert_eq!(kind(honest.far.call("f", b"", PATIENCE)), ErrorKind::Busy);
    // Other services of the node have nothing of it.
    let other = Honest::make(&cluster, &rogue);
    drop(other);
    rogue.kill();
    eventually("its calls end with it", || cluster.status(0).functions.waiting == 0);
    honest.check();
}

#[test]
fn answers_to_calls_of_others_end_nothing() {
    const ANSWERS: u64 = 2000;
    let (cluster, mut rogue) = cluster();
    let honest = Honest::make(&cluster, &rogue);
    let (asker, server) = (cluster.status(1).node, cluster.status(0).node);
    let begun = honest.far.begin("f", b"its own", PATIENCE).expect("it is sent");
    let call = honest.server.receive(Some(PATIENCE)).expect("it serves").expect("a call");
    let false_answers: Vec<_> = (1..ANSWERS)
        .flat_map(|request| {
            let answer = |opcode, body| Frame { request, flags: 1, ..rogue.frame(&asker, opcode, body) };
            [
                answer(opcode::RETURNED, returned(b"false", &[], 0)).encode(),
                answer(opcode::RETURNED, returned(b"", &[(0, 1, 0, 1 << 20)], 7)).encode(),
                answer(opcode::JOINED, Vec::new()).encode(),
            ]
        })
        .collect();
    rogue.send_bytes(&asker, &false_answers);
    heard(&mut rogue, &asker);
    // The rogue cannot give a call of others up, or part with their service.
    for number in 0..ANSWERS {
        rogue.send(&server, &rogue.frame(&server, opcode::GIVE_UP, body::words(&[number])));
    }
    rogue.send(&server, &rogue.frame(&server, opcode::PART, honest.id.as_bytes().to_vec()));
    heard(&mut rogue, &server);
    assert!(!begun.is_over() && !call.caller_gone());
    call.reply(b"the true one").expect("it is waited for");
    assert_eq!(&*begun.wait().expect("it is answered"), b"the true one");
    honest.check();
    drop(honest);
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn a_server_that_answers_nonsense_leaves_its_calls_unknown() {
    let (cluster, mut rogue) = cluster();
    let honest = Honest::make(&cluster, &rogue);
    let node = cluster.status(0).node;
    // The rogue joins a service as others do, or not at all.
    for (owner, functions, expected) in [
        (STRANGER, &["f", "g"][..], ErrorKind::NotAllowed),
        (0, &["g", "f"], ErrorKind::Invalid),
        (0, &[], ErrorKind::Invalid),
    ] {
        let answer = rogue.ask_as(0, &node, opcode::JOIN, join(honest.id, owner, functions));
        assert_eq!(refusal(&answer), Some(expected));
    }
    let nobody = rogue.ask_as(0, &node, opcode::JOIN, join(ObjectId::random(), 0, &["f"]));
    assert_eq!(refusal(&nobody), Some(ErrorKind::NotFound));
    let stranger = rogue.ask_as(STRANGER, &node, opcode::SEEK, seek(honest.id));
    assert_eq!(refusal(&stranger), None, "it is root's");
    for from in [0, 1, u64::MAX] {
        assert_eq!(rogue.ask_as(0, &node, opcode::LIST, body::words(&[from])).opcode, opcode::LISTED);
    }
    assert_eq!(rogue.ask_as(0, &node, opcode::JOIN, join(honest.id, 0, &["f", "g"])).opcode, opcode::JOINED);
    // From here on it is the only one.
    let Honest { id, name, server, .. } = honest;
    drop(server);
    let service = cluster.client(1).service(&name, Some(PATIENCE)).expect("it is served");
    let asker = cluster.status(1).node;
    rogue.tell_segment(&asker);
    let nonsense: [(u8, Vec<u8>); 7] = [
        (opcode::JOINED, Vec::new()),
        (opcode::LISTED, [0; 5].to_vec()),
        (opcode::RETURNED, returned(&[1; CARRIED + 1], &[], 0)),
        (opcode::RETURNED, returned(b"both", &[(0, 1, 0, 1 << 20)], 11)),
        (opcode::RETURNED, returned(b"", &[(0, 1, 0, 9)], 12)),
        (opcode::RETURNED, returned(b"", &[(0, 1, 0, u64::MAX), (0, 1, 0, 1 << 20)], 13)),
        (opcode::RETURNED, returned(b"", &[(5, 9, 1 << 50, 1 << 20)], 14)),
    ];
    for (opcode, body) in nonsense {
        let begun = service.begin("f", b"who is there?", PATIENCE).expect("it is sent");
        let asked = rogue.next_of(opcode::CALL);
        rogue.reply_about(&asked, opcode, body);
        // The last one is of a reply that this client tries to read.
        thread::scope(|threads| {
            let waiting = threads.spawn(|| begun.wait().map(drop));
            assert_eq!(kind(waiting.join().expect("no panic")), ErrorKind::OutcomeUnknown);
        });
    }
    for lent in 11..=14u64 {
        let given_back = |frame: &Frame| frame.opcode == opcode::TAKEN && frame.body == lent.to_le_bytes();
        rogue.next("what is lent is given back", given_back);
    }
    // The rogue does not answer at all.
    let late = service.call("f", b"", Duration::from_millis(300));
    assert_eq!(kind(late), ErrorKind::OutcomeUnknown);
    rogue.next("it is told", |frame| frame.opcode == opcode::GIVE_UP);
    assert_eq!(id, service_id(&name));
    drop(service);
    rogue.kill();
    eventually("no call is left", || cluster.status(1).functions.under_way == 0);
    eventually("nobody serves it any more", || cluster.status(0).functions.names == 0);
}
