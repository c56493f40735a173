//! Tests of calls that break at a step of their own: callers and servers that make each step by hand die,
//! lie or hang between two of them.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use plasmon::service::{Allow, ServeOptions};
use plasmon::shared::ARGUMENTS;
use plasmon::wire::{
    BySlot, Header, LentRange, Looked, Received, Receiver, Replied, Reply, Request, ServiceCall, SlotResult,
};
use plasmon::{Error, ErrorKind, Server, Service};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually, until, wait};

use crate::support::{ClientProcess, LONG_LEASE, MIB, kind};

const NOWHERE: LentRange = LentRange { buffer: 0, at: 0 };
/// Name of the service.
const NAME: &str = "steps";
/// Bytes of a call or a reply that go by reads of the memory of the other host.
const LONG: usize = 3 * MIB + 1;

/// Client that makes its calls by hand, by the socket. Dropping it is its death.
struct ByHand {
    stream: UnixStream,
    receiver: Receiver,
    requests: u64,
    come: Vec<(u64, Reply)>,
}

/// Result of a call.
type Result<T> = std::result::Result<T, Error>;

impl ByHand {
    fn connect(cluster: &Cluster, node: usize) -> Self {
        let stream = UnixStream::connect(cluster.socket(node)).expect("the daemon listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("the time-out is not zero");
        let mut client = Self { stream, receiver: Receiver::default(), requests: 0, come: Vec::new() };
        client.ask(Request::Hello { name: "by hand".to_owned() }).expect("it may connect");
        client
    }

    fn begin(&mut self, request: &Request) -> u64 {
        self.requests += 1;
        let mut out = BytesMut::new();
        request.encode(self.requests, &mut out);
        std::io::Write::write_all(&mut self.stream, &out).expect("the daemon reads");
        self.requests
    }

    fn wait(&mut self, request: u64) -> Result<Reply> {
        loop {
            if let Some(at) = self.come.iter().position(|(number, _)| *number == request) {
                return match self.come.swap_remove(at).1 {
                    Reply::Failed { error } => Err(error),
                    reply => Ok(reply),
                };
            }
            match Header::take_frame(&mut self.receiver.buffer).expect("the daemon's frames are whole") {
                Some((header, body)) => {
                    drop(self.receiver.take_descriptors(header.descriptors.into()));
                    let reply = Reply::decode(&header, body).expect("they make sense");
                    self.come.push((header.request, reply));
                }
                None => {
                    let got = self.receiver.receive(&self.stream).expect("the daemon answers");
                    assert_ne!(got, 0, "it hung up");
                }
            }
        }
    }

    fn ask(&mut self, request: Request) -> Result<Reply> {
        let request = self.begin(&request);
        self.wait(request)
    }

    fn begin_call(&mut self, call: ServiceCall, payload: &[u8], timeout: Duration) -> u64 {
        let (operation, arguments): (u8, [u64; ARGUMENTS]) = call.encode();
        let timeout_us = timeout.as_micros() as u64;
        let payload = payload.to_vec().into();
        let arguments = arguments.to_vec();
        self.begin(&Request::Call { operation, class: None, timeout_us, arguments, payload })
    }

    /// Values and bytes that a call gives.
    fn end_call(&mut self, request: u64) -> Result<([u64; 7], Vec<u8>)> {
        match self.wait(request)? {
            Reply::Called { values, payload } => {
                let mut all = [0; 7];
                all[..values.len()].copy_from_slice(&values);
                Ok((all, payload.to_vec()))
            }
            other => panic!("{other:?}"),
        }
    }

    /// The result that a call ended with.
    fn ended<T: SlotResult>(&mut self, request: u64) -> T {
        let (values, payload) = self.end_call(request).expect("it is answered");
        T::of_values(values, &payload).expect("it is a result of such a call")
    }

    fn call(&mut self, call: ServiceCall, payload: &[u8]) -> Result<([u64; 7], Vec<u8>)> {
        let request = self.begin_call(call, payload, PATIENCE);
        self.end_call(request)
    }

    /// Memory of the node.
    fn lend(&mut self, len: usize) -> LentRange {
        match self.ask(Request::Lend { len: len as u64, private: true, room_us: 0 }) {
            Ok(Reply::Lent { buffer, .. }) => LentRange { buffer, at: 0 },
            other => panic!("{other:?}"),
        }
    }

    fn serve(&mut self) -> u32 {
        let functions = vec!["f".to_owned()];
        match self.ask(Request::Serve { name: NAME.to_owned(), functions, allow: Allow::User }) {
            Ok(Reply::Serving { port }) => port,
            other => panic!("{other:?}"),
        }
    }

    fn find(&mut self) -> u32 {
        let timeout_us = PATIENCE.as_micros() as u64;
        match self.ask(Request::FindService { name: NAME.to_owned(), owner: None, timeout_us }) {
            Ok(Reply::ServiceFound { service, .. }) => service,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for a call, for whose data there is no room.
    fn receive(&mut self, port: u32) -> (Received, Vec<u8>) {
        let receive = ServiceCall::Receive { port, room: 0, into: NOWHERE };
        let (values, payload) = self.call(receive, &[]).expect("a call comes");
        (Received::of_values(values, &payload).expect("it has a caller"), payload)
    }

    fn reply(&mut self, number: u64, payload: &[u8]) -> Result<()> {
        self.call(ServiceCall::Reply { number, len: 0, data: NOWHERE }, payload).map(drop)
    }

    /// Begins a call with these bytes in memory of the node.
    fn begin_long(&mut self, service: u32, len: usize) -> u64 {
        let data = self.lend(len);
        let len = len as u32;
        let call = ServiceCall::Call { service, function: 0, len, data, room: 0, into: NOWHERE };
        self.begin_call(call, &[], PATIENCE)
    }

    fn begin_short(&mut self, service: u32, payload: &[u8]) -> u64 {
        let (data, into) = (NOWHERE, NOWHERE);
        let call = ServiceCall::Call { service, function: 0, len: 0, data, room: 0, into };
        self.begin_call(call, payload, PATIENCE)
    }
}

fn serve(cluster: &Cluster, node: usize) -> Server {
    cluster.client(node).serve(NAME, &["f"], &ServeOptions::default()).expect("it serves")
}

fn find(cluster: &Cluster, node: usize) -> Service {
    cluster.client(node).service(NAME, Some(PATIENCE)).expect("it is served")
}

/// Checks that a server runs the next call, and that nothing is left of those before.
fn goes_on(cluster: &Cluster, service: &Service, server: &Server) {
    thread::scope(|threads| {
        let calling = threads.spawn(|| service.call("f", b"again", PATIENCE));
        let call = server.receive(Some(PATIENCE)).expect("it serves on").expect("a call");
        assert_eq!(call.data(), b"again");
        call.reply(b"on").expect("it is waited for");
        assert_eq!(&*calling.join().expect("no panic").expect("it is answered"), b"on");
    });
    nothing_is_left(cluster);
}

/// Waits until no call is under way.
fn nothing_is_left(cluster: &Cluster) {
    nothing_is_left_of(cluster, &(0..cluster.nodes()).collect::<Vec<_>>());
}

/// Waits until no call is under way at some nodes.
pub(crate) fn nothing_is_left_of(cluster: &Cluster, nodes: &[usize]) {
    for node in nodes {
        eventually("no call is left", || {
            let calls = cluster.status(*node).functions;
            (calls.waiting, calls.running, calls.under_way) == (0, 0, 0)
        });
    }
}

/// Waits until no node has any memory in use.
fn no_memory_is_left(cluster: &Cluster, nodes: &[usize]) {
    for node in nodes {
        let used = || cluster.status(*node).memory.used;
        until(&format!("node {node} has {} bytes in use", used()), || (used() == 0).then_some(()));
    }
}

#[test]
fn callers_that_die_at_any_step_leave_nothing_and_servers_go_on() {
    let cluster = Cluster::builder().nodes(2).start();
    let server = serve(&cluster, 1);
    for node in [0, 1] {
        // The call waits at the port.
        let mut caller = ByHand::connect(&cluster, node);
        let service = caller.find();
        caller.begin_short(service, b"nobody waits");
        eventually("it waits", || cluster.status(1).functions.waiting == 1);
        drop(caller);
        goes_on(&cluster, &find(&cluster, node), &server);

        // A thread has the call, and its data have not been read.
        let mut by_hand = ByHand::connect(&cluster, 1);
        let port = by_hand.serve();
        let receive = ServiceCall::Receive { port, room: 0, into: NOWHERE };
        let receiving = by_hand.begin_call(receive, &[], PATIENCE);
        // The thread of the port is parked when the next request is answered.
        let into = by_hand.lend(LONG);
        let mut caller = ByHand::connect(&cluster, node);
        let service = caller.find();
        caller.begin_long(service, LONG);
        let taken: Received = by_hand.ended(receiving);
        drop(caller);
        eventually("the server is told", || {
            let look = by_hand.begin_call(ServiceCall::Look { number: taken.number }, &[], PATIENCE);
            by_hand.ended::<Looked>(look).gone
        });
        // The bytes stay what they are until the call is answered.
        by_hand.call(ServiceCall::TakeData { number: taken.number, into }, &[]).expect("they are there");
        by_hand.reply(taken.number, b"nobody").expect("that is no error");
        drop(by_hand);

        // The reply is kept, and was not taken.
        let mut caller = ByHand::connect(&cluster, node);
        let service = caller.find();
        let begun = caller.begin_short(service, b"a long reply");
        thread::scope(|threads| {
            let replying = threads.spawn(|| {
                let call = server.receive(Some(PATIENCE)).expect("it serves").expect("a call");
                call.reply(&Pattern(1).bytes(LONG))
            });
            let replied: Replied = caller.ended(begun);
            assert_eq!(replied.len, LONG as u64);
            assert_ne!(replied.number, 0, "it has no room");
            drop(caller);
            replying.join().expect("no panic").expect("a caller that has gone is no error");
        });
        goes_on(&cluster, &find(&cluster, node), &server);
    }
    drop(server);
    no_memory_is_left(&cluster, &[0, 1]);
}

#[test]
fn servers_that_die_at_any_step_are_told_and_leave_nothing() {
    let cluster = Cluster::builder().nodes(2).start();
    for node in [0, 1] {
        // The data are not read, or were read and not answered.
        for reads in [false, true] {
            let mut by_hand = ByHand::connect(&cluster, 1);
            let port = by_hand.serve();
            let service = find(&cluster, node);
            let begun = service.begin("f", &Pattern(2).bytes(LONG), PATIENCE).expect("it is sent");
            let (received, _) = by_hand.receive(port);
            if reads {
                let into = by_hand.lend(LONG);
                let take = ServiceCall::TakeData { number: received.number, into };
                by_hand.call(take, &[]).expect("they are there");
            }
            drop(by_hand);
            assert_eq!(kind(begun.wait()), ErrorKind::OutcomeUnknown);
            nothing_is_left(&cluster);
        }
        // The caller has not taken a long reply: it can, or is told that it cannot.
        let mut by_hand = ByHand::connect(&cluster, 1);
        let port = by_hand.serve();
        let mut caller = ByHand::connect(&cluster, node);
        let service = caller.find();
        let begun = caller.begin_short(service, b"");
        let (received, _) = by_hand.receive(port);
        let data = by_hand.lend(LONG);
        let reply = ServiceCall::Reply { number: received.number, len: LONG as u32, data };
        by_hand.begin_call(reply, &[], PATIENCE);
        let replied: Replied = caller.ended(begun);
        drop(by_hand);
        let into = caller.lend(LONG);
        let taken = caller.call(ServiceCall::TakeReply { number: replied.number, into }, &[]);
        assert!(
            taken.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::OutcomeUnknown),
            "{taken:?}"
        );
        drop(caller);
        nothing_is_left(&cluster);
    }
    no_memory_is_left(&cluster, &[0, 1]);
}

#[test]
fn data_that_cannot_be_read_end_their_call_and_not_their_server() {
    let mut cluster = Cluster::builder().nodes(3).args(&LONG_LEASE).start();
    let server = serve(&cluster, 1);
    let near = find(&cluster, 1);
    thread::scope(|threads| {
        let mut caller = ByHand::connect(&cluster, 2);
        let service = caller.find();
        caller.begin_long(service, 32 * MIB);
        eventually("it waits", || cluster.status(1).functions.waiting == 1);
        // The caller's host stands still, so the server waits for the data; then it is gone.
        cluster.pause(2);
        let receiving = threads.spawn(|| server.receive(Some(PATIENCE)));
        eventually("the server has it", || cluster.status(1).functions.running == 1);
        let calling = threads.spawn(|| near.call("f", b"of another", PATIENCE));
        eventually("another call waits", || cluster.status(1).functions.waiting == 1);
        cluster.daemon(2).signal(rustix::process::Signal::KILL);
        let call = receiving.join().expect("no panic").expect("it serves on").expect("the other call");
        assert_eq!(call.data(), b"of another");
        call.reply(b"on").expect("it is waited for");
        assert_eq!(&*calling.join().expect("no panic").expect("it is answered"), b"on");
    });
    cluster.kill(2);
    nothing_is_left_of(&cluster, &[0, 1]);
}

#[test]
fn a_call_whose_data_find_no_room_is_told_as_one_that_was_not_run() {
    let cluster = Cluster::builder().nodes(2).memory("64MiB").start();
    let server = serve(&cluster, 1);
    let service = find(&cluster, 0);
    let hog = cluster.client(1);
    thread::scope(|threads| {
        // The server is parked, with room for short data, when the memory of its node is taken.
        let receiving = threads.spawn(|| server.receive(Some(PATIENCE)));
        eventually("it waits for a call", || cluster.status(1).memory.used >= MIB as u64);
        let mut taken = Vec::new();
        for len in [8 * MIB, MIB, MIB / 4, MIB / 64] {
            taken.extend(std::iter::from_fn(|| hog.buffer(len, true, None).ok()));
        }
        let refused = service.call("f", &Pattern(1).bytes(LONG), PATIENCE).map(drop);
        let refused = refused.expect_err("there is no room for its data");
        assert_eq!(refused.kind(), ErrorKind::TimedOut, "{refused}");
        assert!(refused.message().contains("not run"), "{refused}");
        drop(taken);
        let calling = threads.spawn(|| service.call("f", b"short", PATIENCE));
        let call = receiving.join().expect("no panic").expect("it serves on").expect("the next call");
        assert_eq!(call.data(), b"short");
        call.reply(b"on").expect("it is waited for");
        assert_eq!(&*calling.join().expect("no panic").expect("it is answered"), b"on");
    });
    nothing_is_left(&cluster);
}

#[test]
fn the_node_of_a_long_reply_dies_before_it_is_taken() {
    let mut cluster = Cluster::builder().nodes(3).args(&LONG_LEASE).start();
    let mut by_hand = ByHand::connect(&cluster, 2);
    let port = by_hand.serve();
    let mut caller = ByHand::connect(&cluster, 1);
    let service = caller.find();
    let begun = caller.begin_short(service, b"");
    let (received, _) = by_hand.receive(port);
    let data = by_hand.lend(LONG);
    by_hand.begin_call(ServiceCall::Reply { number: received.number, len: LONG as u32, data }, &[], PATIENCE);
    let replied: Replied = caller.ended(begun);
    let into = caller.lend(LONG);
    cluster.pause(2);
    let taking = caller.begin_call(ServiceCall::TakeReply { number: replied.number, into }, &[], PATIENCE);
    cluster.kill(2);
    let taken = caller.end_call(taking).expect_err("its bytes are gone");
    assert_eq!(taken.kind(), ErrorKind::OutcomeUnknown, "{taken}");
    drop(caller);
    nothing_is_left_of(&cluster, &[0, 1]);
    no_memory_is_left(&cluster, &[0, 1]);
}

#[test]
fn numbers_of_others_and_of_nothing_are_refused() {
    let cluster = Cluster::builder().nodes(2).start();
    let mut server = ByHand::connect(&cluster, 1);
    let port = server.serve();
    let mut caller = ByHand::connect(&cluster, 1);
    let service = caller.find();
    let long_reply = caller.begin_short(service, b"long");
    let (first, _) = server.receive(port);
    let data = server.lend(LONG);
    let replying =
        server.begin_call(ServiceCall::Reply { number: first.number, len: LONG as u32, data }, &[], PATIENCE);
    let kept = caller.ended::<Replied>(long_reply).number;
    let waits = caller.begin_short(service, b"held");
    let (held, payload) = server.receive(port);
    assert_eq!(payload, b"held");

    // Another process, of the same user even, has none of these numbers.
    let mut thief = ByHand::connect(&cluster, 1);
    let into = thief.lend(LONG);
    let wrong_number = |number: u64| {
        vec![
            ServiceCall::Reply { number, len: 0, data: NOWHERE },
            ServiceCall::Fail { number },
            ServiceCall::Look { number },
            ServiceCall::Refuse { number },
            ServiceCall::TakeData { number, into },
            ServiceCall::ReplyAndReceive { number, port, room: 0, into: NOWHERE },
        ]
    };
    let numbers = [held.number, first.number, kept, 0, 1, u64::MAX, held.number + 1];
    for call in numbers.into_iter().flat_map(wrong_number) {
        assert_eq!(kind(thief.call(call, b"forged")), ErrorKind::Invalid, "{call:?}");
    }
    for number in [kept, 0, u64::MAX] {
        let taken = thief.call(ServiceCall::TakeReply { number, into }, &[]);
        assert_eq!(kind(taken), ErrorKind::OutcomeUnknown);
    }
    for number in [port, 0, port + 1, u32::MAX] {
        let receive = ServiceCall::Receive { port: number, room: 0, into: NOWHERE };
        assert_eq!(kind(thief.call(receive, &[])), ErrorKind::Invalid);
        _ = thief.begin(&Request::Unserve { port: number });
    }
    for service in [service, 0, u32::MAX] {
        let call = ServiceCall::Call { service, function: 0, len: 0, data: NOWHERE, room: 0, into: NOWHERE };
        assert_eq!(kind(thief.call(call, b"")), ErrorKind::Invalid, "it has found no service");
    }
    _ = thief.begin(&Request::DropCall { number: held.number });

    // Nothing of this has reached the others.
    drop(thief);
    server.reply(held.number, b"by its server").expect("it is waited for");
    assert_eq!(caller.end_call(waits).expect("it is answered").1, b"by its server");
    assert_eq!(kind(server.reply(held.number, b"again")), ErrorKind::Invalid, "a call is answered once");
    let into = caller.lend(LONG);
    caller.call(ServiceCall::TakeReply { number: kept, into }, &[]).expect("it is kept");
    server.end_call(replying).expect("it was taken");
    let again = caller.call(ServiceCall::TakeReply { number: kept, into }, &[]);
    assert_eq!(kind(again), ErrorKind::OutcomeUnknown, "a reply is taken once");
    nothing_is_left(&cluster);
}

#[test]
fn callers_name_their_own_memory_and_functions_that_there_are() {
    let cluster = Cluster::builder().start();
    let server = serve(&cluster, 0);
    let mut caller = ByHand::connect(&cluster, 0);
    let (service, into) = (caller.find(), caller.lend(LONG));
    let outside = LentRange { buffer: into.buffer, at: LONG as u64 };
    let nobodys = LentRange { buffer: into.buffer + 1000, at: 0 };
    let overflows = LentRange { buffer: into.buffer, at: u64::MAX - 4 };
    for memory in [outside, nobodys, overflows] {
        for (len, room) in [(100_000, 0), (0, 8192)] {
            let (data, into) = (memory, memory);
            let call = ServiceCall::Call { service, function: 0, len, data, room, into };
            assert_eq!(kind(caller.call(call, b"")), ErrorKind::Invalid, "{call:?}");
        }
    }
    let too_long =
        ServiceCall::Call { service, function: 0, len: (1 << 30) + 1, data: into, room: 0, into: NOWHERE };
    assert_eq!(kind(caller.call(too_long, b"")), ErrorKind::TooLarge);
    for function in [1, u16::MAX - 1] {
        let (data, into) = (NOWHERE, NOWHERE);
        let call = ServiceCall::Call { service, function, len: 0, data, room: 0, into };
        assert_eq!(kind(caller.call(call, b"")), ErrorKind::Invalid);
    }
    assert_eq!(cluster.status(0).functions.begun, 0, "nothing of this is a call");
    goes_on(&cluster, &find(&cluster, 0), &server);
}

#[test]
fn replies_that_are_too_long_or_elsewhere_are_refused_and_the_call_goes_on() {
    let cluster = Cluster::builder().nodes(2).start();
    let mut server = ByHand::connect(&cluster, 1);
    let port = server.serve();
    for node in [0, 1] {
        let service = find(&cluster, node);
        let begun = service.begin("f", b"", PATIENCE).expect("it is sent");
        let (received, _) = server.receive(port);
        let (number, data) = (received.number, server.lend(MIB));
        let outside = LentRange { at: 2 * MIB as u64, ..data };
        for (len, data, expected) in [
            ((1 << 30) + 1, data, ErrorKind::TooLarge),
            (u32::MAX, data, ErrorKind::TooLarge),
            (MIB as u32 * 2, data, ErrorKind::Invalid),
            (100, outside, ErrorKind::Invalid),
            (100, NOWHERE, ErrorKind::Invalid),
        ] {
            let refused = server.call(ServiceCall::Reply { number, len, data }, &[]);
            assert_eq!(kind(refused), expected, "{len} bytes in {data:?}");
        }
        server.reply(number, b"at last").expect("it is waited for");
        assert_eq!(&*begun.wait().expect("it is answered"), b"at last");
    }
    nothing_is_left(&cluster);
}

#[test]
fn a_257th_call_waits_for_a_slot_and_no_longer_than_its_time() {
    const MOST: usize = 256;
    let cluster = Cluster::builder().start();
    let server = serve(&cluster, 0);
    let service = find(&cluster, 0);
    let begun: Vec<_> =
        (0..MOST).map(|_| service.begin("f", b"", PATIENCE).expect("there are slots")).collect();
    eventually("all wait", || cluster.status(0).functions.waiting == MOST as u64);
    let (began, promised) = (Instant::now(), Duration::from_millis(300));
    let late = service.call("f", b"no slot", promised).map(drop);
    wait::ended_in_time("the call", began, promised);
    let late = late.expect_err("no slot is free");
    assert_eq!(late.kind(), ErrorKind::Busy, "{late}");
    assert!(late.message().contains("256 calls"), "the node answers, so it is not to blame: {late}");
    thread::scope(|threads| {
        let calling = threads.spawn(|| service.call("f", b"the last", PATIENCE));
        let mut begun = begun.into_iter();
        for _ in 0..MOST {
            server.receive(Some(PATIENCE)).expect("it serves").expect("a call").reply(b"").expect("it waits");
        }
        // A result that is taken frees a slot.
        begun.next().expect("there are many").wait().expect("it is answered");
        let call = server.receive(Some(PATIENCE)).expect("it serves").expect("a call");
        assert_eq!(call.data(), b"the last");
        call.reply(b"done").expect("it is waited for");
        assert_eq!(&*calling.join().expect("no panic").expect("it is answered"), b"done");
        begun.for_each(|call| drop(call.wait().expect("it is answered")));
    });
}

#[test]
fn a_stopped_server_process_holds_up_its_own_calls_alone() {
    let cluster = Cluster::builder().nodes(2).start();
    let stopped = ClientProcess::start(&cluster, 1, &["serve", NAME]);
    let service = find(&cluster, 0);
    assert_eq!(&*service.call("echo", b"it lives", PATIENCE).expect("it is served"), b"it lives");
    stopped.signal(rustix::process::Signal::STOP);
    let (began, promised) = (Instant::now(), Duration::from_millis(500));
    let late = service.call("echo", b"", promised).map(drop);
    wait::ended_in_time("the call", began, promised);
    // Whether its thread was parked when it was stopped is a matter of chance.
    let late = kind(late);
    assert!(matches!(late, ErrorKind::OutcomeUnknown | ErrorKind::TimedOut), "{late:?}");
    let _other = ClientProcess::start(&cluster, 1, &["serve", NAME]);
    for _ in 0..20 {
        assert_eq!(&*service.call("echo", b"on", PATIENCE).expect("it is served"), b"on");
    }
    stopped.signal(rustix::process::Signal::CONT);
    nothing_is_left(&cluster);
    stopped.kill();
}

#[test]
fn a_stopped_caller_holds_up_its_own_reply_alone() {
    let cluster = Cluster::builder().nodes(2).start();
    let server = serve(&cluster, 1);
    for node in [0, 1] {
        let caller = ClientProcess::start(&cluster, node, &["call", NAME, "f"]);
        let call = server.receive(Some(PATIENCE)).expect("it serves").expect("a call");
        caller.signal(rustix::process::Signal::STOP);
        thread::scope(|threads| {
            let replying = threads.spawn(|| call.reply(&Pattern(3).bytes(LONG)));
            goes_on_but_for_one(&find(&cluster, node), &server);
            caller.kill();
            replying.join().expect("no panic").expect("a caller that has gone is no error");
        });
        nothing_is_left(&cluster);
    }
}

fn goes_on_but_for_one(service: &Service, server: &Server) {
    thread::scope(|threads| {
        let calling = threads.spawn(|| service.call("f", b"of another", PATIENCE));
        let call = server.receive(Some(PATIENCE)).expect("it serves").expect("a call");
        call.reply(b"on").expect("it is waited for");
        assert_eq!(&*calling.join().expect("no panic").expect("it is answered"), b"on");
    });
}
