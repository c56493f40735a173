//! Tests of services: calls of all sizes on a host and between hosts, several servers of one name, wrong
//! arguments, and what happens when somebody dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::service::{Allow, ServeOptions};
use plasmon::{Client, ErrorKind, Server, Service};
use plasmon_e2e::wait::let_pass;
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually, until, wait};

use crate::commands::{failure, json};
use crate::support::{ClientProcess, LONG_LEASE, MIB, NOBODY, client_of, kind};

/// Sizes in bytes of calls and replies: what a slot has room for, what a frame has, what a piece of lent
/// memory has, and more, each with its neighbours.
const SIZES: [usize; 12] = [0, 1, 319, 320, 321, 8191, 8192, 8193, 256 << 10, (256 << 10) + 1, MIB, 64 * MIB];
/// Functions of the server of these tests.
const FUNCTIONS: [&str; 4] = ["echo", "fail", "drop", "node"];

/// Runs the functions until it is told to stop.
fn run(server: &Server, node: &str, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let Some(call) = server.receive(Some(Duration::from_millis(100))).expect("it serves") else {
            continue;
        };
        let replied = match call.function() {
            0 => {
                let data = call.data().to_vec();
                call.reply(&data)
            }
            1 => call.fail("it does not work"),
            2 => {
                drop(call);
                Ok(())
            }
            _ => call.reply(node.as_bytes()),
        };
        replied.expect("the daemon lives");
    }
}

/// Serves on some nodes while `act` runs.
fn served(cluster: &Cluster, nodes: &[usize], threads: usize, act: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let servers: Vec<_> = nodes
        .iter()
        .map(|node| {
            let client = cluster.client(*node);
            let server = client.serve("tests", &FUNCTIONS, &ServeOptions::default());
            (client.node().to_string(), server.unwrap_or_else(|error| panic!("node {node} serves: {error}")))
        })
        .collect();
    thread::scope(|scope| {
        for (node, server) in &servers {
            (0..threads).for_each(|_| drop(scope.spawn(|| run(server, node, &stop))));
        }
        // A panic has to end the threads as well.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
}

fn find(cluster: &Cluster, node: usize) -> Service {
    cluster.client(node).service("tests", Some(PATIENCE)).expect("it is served")
}

/// Calls a function with every size.
fn echo_all(service: &Service) {
    for (nth, size) in SIZES.into_iter().enumerate() {
        let data = Pattern(nth as u64).bytes(size);
        let reply = service.call("echo", &data, PATIENCE);
        let reply = reply.unwrap_or_else(|error| panic!("{size} bytes: {:?}: {error}", error.kind()));
        assert!(*reply == *data, "{size} bytes");
        let times = reply.times();
        assert!(times.queue + times.function <= times.total, "{times:?}");
    }
}

#[test]
fn an_interrupted_receiver_stops_waiting_and_loses_no_call() {
    const CALLS: u64 = 24;
    let cluster = Cluster::builder().start();
    // Waits for calls alone are interrupted: the node may take its time for the rest.
    let receives = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&receives);
    let client = cluster.client(0).interruptible(move || asked.load(Ordering::Relaxed));
    let server = client.serve("tests", &FUNCTIONS, &ServeOptions::default()).expect("it is served");
    let receive = |timeout| {
        receives.store(true, Ordering::Relaxed);
        let received = server.receive(timeout);
        receives.store(false, Ordering::Relaxed);
        received
    };
    // Nobody calls, and there is no end of this wait but the interruption.
    assert_eq!(kind(receive(None)), ErrorKind::Interrupted);
    assert_eq!(cluster.status(0).slots.under_way, 0, "the daemon does not go on for it");
    let mut interrupted = 0;
    thread::scope(|scope| {
        let calling = scope.spawn(|| {
            let service = find(&cluster, 0);
            for nth in 0..CALLS {
                // From a little before such a thread looks whether it is interrupted to a little after.
                let_pass(Duration::from_millis(238 + nth), "a call comes when its receiver is interrupted");
                let reply = service.call("echo", &nth.to_le_bytes(), PATIENCE).expect("it echoes");
                assert_eq!(*reply, nth.to_le_bytes());
            }
        });
        while !calling.is_finished() {
            match receive(Some(PATIENCE)) {
                Ok(call) => {
                    let mut call = call.expect("a call or an interruption comes");
                    let data = call.take_data();
                    call.reply(&data).expect("it is waited for");
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
                    interrupted += 1;
                }
            }
        }
    });
    assert!(interrupted > 0);
}

#[test]
fn calls_of_all_sizes_on_a_host() {
    let cluster = Cluster::builder().memory("1GiB").start();
    served(&cluster, &[0], 2, || echo_all(&find(&cluster, 0)));
    let counts = cluster.status(0).functions;
    assert_eq!((counts.begun, counts.served, counts.failed), (12, 12, 0));
    eventually("the name ends with its server", || cluster.status(0).functions.names == 0);
}

#[test]
fn calls_of_all_sizes_between_hosts() {
    let cluster = Cluster::builder().nodes(3).memory("1GiB").start();
    // The name may have any home.
    served(&cluster, &[1], 2, || {
        for node in [0, 1, 2] {
            echo_all(&find(&cluster, node));
        }
    });
    eventually("nothing is under way", || cluster.status(0).functions.under_way == 0);
    let kept = || (0..3).map(|node| cluster.status(node).functions.names).sum::<u64>();
    eventually("the name ends with its server", || kept() == 0);
}

/// Number of calls and replies that came to a node by windows, and by reads.
fn bodies(cluster: &Cluster, node: usize) -> [u64; 2] {
    let functions = cluster.status(node).functions;
    [functions.bodies_written, functions.bodies_read]
}

#[test]
fn bodies_are_written_to_windows_and_read_where_that_is_not_wanted() {
    const SIZES: [usize; 5] = [8193, 60_000, 65_536, 65_537, 256 << 10];
    for push in ["auto", "messages"] {
        let cluster = Cluster::builder().nodes(2).memory("256MiB").args(&["--push", push]).start();
        served(&cluster, &[1], 4, || {
            let service = find(&cluster, 0);
            // The first body of each node is read.
            service.call("echo", &[1; 10_000], PATIENCE).expect("it echoes");
            let told = || bodies(&cluster, 0)[1] == 1 && bodies(&cluster, 1)[1] == 1;
            eventually("both nodes have read a body", told);
            let before = [0, 1].map(|node| bodies(&cluster, node));
            thread::scope(|scope| {
                for thread in 0..4_u64 {
                    let service = &service;
                    scope.spawn(move || {
                        for (nth, size) in SIZES.into_iter().enumerate().cycle().take(40) {
                            let data = Pattern(thread << 32 | nth as u64).bytes(size);
                            let reply = service.call("echo", &data, PATIENCE).expect("it echoes");
                            assert!(*reply == *data, "{size} bytes");
                        }
                    });
                }
            });
            for node in [0, 1] {
                let [written, read] = bodies(&cluster, node);
                assert_eq!(written + read, before[node].iter().sum::<u64>() + 160, "node {node}");
                let is_written = written > before[node][0];
                assert_eq!(is_written, push == "auto", "node {node}: {written} written, {read} read");
            }
        });
        eventually("nothing is under way", || cluster.status(0).functions.under_way == 0);
    }
}

#[test]
fn functions_that_fail_or_are_dropped_say_so() {
    let cluster = Cluster::builder().nodes(2).start();
    served(&cluster, &[1], 1, || {
        for node in [0, 1] {
            let service = find(&cluster, node);
            let failed = service.call("fail", b"", PATIENCE).expect_err("it fails");
            assert_eq!((failed.kind(), failed.message()), (ErrorKind::Raised, "it does not work"));
            let dropped = service.call("drop", b"", PATIENCE).expect_err("it is dropped");
            assert_eq!(
                (dropped.kind(), dropped.message()),
                (ErrorKind::Raised, "the server dropped the call")
            );
            let unknown = service.call("nothing", b"", PATIENCE).expect_err("there is no such function");
            assert_eq!(unknown.kind(), ErrorKind::Invalid);
            assert!(unknown.message().contains("echo, fail"), "{unknown}");
            service.send("fail", b"").expect("a server has it");
            service.send("echo", &[7; 100_000]).expect("a server has it");
            assert_eq!(&*service.call("echo", b"again", PATIENCE).expect("it serves on"), b"again");
        }
    });
}

#[test]
fn names_belong_to_who_serves_first_and_functions_agree() {
    let cluster = Cluster::builder().nodes(2).args(&["--socket-mode", "0666"]).start();
    let (client, other) = (cluster.client(0), cluster.client(1));
    let options = ServeOptions::default();
    assert_eq!(kind(client.service("a", None)), ErrorKind::NotFound);
    let server = client.serve("a", &["f", "g"], &options).expect("it serves");
    let differ = other.serve("a", &["f", "h"], &options).expect_err("other functions");
    assert_eq!(differ.kind(), ErrorKind::Invalid);
    assert!(differ.message().contains("'g'") && differ.message().contains("'h'"), "{differ}");
    let too_long = "n".repeat(256);
    let wrong: [(&str, &[&str]); 6] = [
        ("", &["f"]),
        (&too_long, &["f"]),
        ("b", &[]),
        ("b", &[""]),
        ("b", &["f", "f"]),
        ("b", &[&too_long]),
    ];
    for (name, functions) in wrong {
        assert_eq!(
            kind(client.serve(name, functions, &options)),
            ErrorKind::Invalid,
            "{name}: {functions:?}"
        );
    }
    if rustix::process::geteuid().is_root() {
        let stranger = client_of(NOBODY, &cluster, 1);
        let refused = stranger.serve("a", &["f", "g"], &options);
        let list = json(&cluster, 1, &["services"]);
        assert_eq!(refused.map_err(|error| error.kind()).err(), Some(ErrorKind::NotAllowed), "{list}");
        // The service is root's, which everybody may look for, and nobody may call.
        let service = stranger.service("a", None).expect("it is there");
        assert_eq!(kind(service.call("f", b"", PATIENCE)), ErrorKind::NotAllowed);
        let open = ServeOptions { allow: Allow::Users(vec![NOBODY]) };
        let open = other.serve("a", &["f", "g"], &open).expect("it serves as well");
        thread::scope(|threads| {
            let calling = threads.spawn(|| service.call("g", b"1", PATIENCE));
            let call = open.receive(Some(PATIENCE)).expect("it serves").expect("a call");
            assert_eq!((call.function(), call.caller().user), (1, NOBODY));
            call.reply(b"2").expect("the caller waits");
            assert_eq!(&*calling.join().expect("no panic").expect("it is allowed"), b"2");
        });
        let own = stranger.serve("mine", &["f"], &options).expect("it serves");
        assert_eq!(kind(client_of(70_001, &cluster, 0).service("mine", None)), ErrorKind::NotAllowed);
        drop(own);
    }
    drop(server);
}

#[test]
fn near_servers_come_first_and_a_server_that_ends_is_replaced() {
    let cluster = Cluster::builder().nodes(3).start();
    let names = [0, 1, 2].map(|node| cluster.client(node).node().to_string());
    let far = find_later(&cluster);
    served(&cluster, &[1], 1, || {
        let here = find(&cluster, 2);
        let asked = |service: &Service| {
            String::from_utf8(service.call("node", b"", PATIENCE).expect("it is served").to_vec())
                .expect("text")
        };
        assert_eq!(asked(&here), names[1]);
        served(&cluster, &[2], 1, || {
            assert_eq!(asked(&here), names[2], "a server of this host comes first");
            let far = far();
            eventually("both servers are used", || {
                let several: Vec<_> = (0..8).map(|_| asked(&far)).collect();
                several.contains(&names[1]) && several.contains(&names[2])
            });
        });
        assert_eq!(asked(&here), names[1], "the other server is left");
    });
    let gone = far().call("node", b"", PATIENCE);
    assert_eq!(kind(gone), ErrorKind::NotFound);
}

/// A handle of node 0, made when it is first asked for.
fn find_later(cluster: &Cluster) -> impl Fn() -> Service {
    let client = cluster.client(0);
    let found = std::cell::OnceCell::new();
    move || {
        let find = || client.service("tests", Some(PATIENCE)).expect("it is served");
        found.get_or_init(find).clone()
    }
}

#[test]
fn calls_end_in_time_and_late_ones_are_not_run() {
    let cluster = Cluster::builder().nodes(2).start();
    let server = cluster.client(1).serve("tests", &["f"], &ServeOptions::default()).expect("it serves");
    let promised = Duration::from_millis(300);
    for node in [0, 1] {
        let service = find(&cluster, node);
        let late = until("the call's end is known", || {
            let began = Instant::now();
            let late = service.call("f", b"late", promised).expect_err("no thread is free");
            wait::ended_in_time("the call", began, promised);
            // The server's node may have been too late to say so.
            let is_known = node == 1 || late.kind() != ErrorKind::OutcomeUnknown;
            is_known.then_some(late)
        });
        assert_eq!(late.kind(), ErrorKind::TimedOut, "{late}");
    }
    assert!(server.receive(Some(Duration::ZERO)).expect("it serves").is_none(), "what is late is not run");
    // A call that was begun may have been run, wherever its caller is.
    for node in [0, 1] {
        let service = find(&cluster, node);
        let begun = service.begin("f", b"begun", promised).expect("it is sent");
        let call = server.receive(Some(PATIENCE)).expect("it serves").expect("a call");
        assert_eq!(kind(begun.wait()), ErrorKind::OutcomeUnknown);
        assert!(call.caller_gone());
        call.reply(b"too late").expect("that is no error");
    }
    // A call that was begun tells the server when its caller has gone.
    let service = find(&cluster, 0);
    let begun = service.begin("f", b"on time", PATIENCE).expect("it is sent");
    let call = server.receive(Some(PATIENCE)).expect("it serves").expect("a call");
    assert!(!call.caller_gone() && call.left() <= PATIENCE);
    drop(begun);
    drop(service);
    call.reply(b"nobody wants it").expect("that is no error");
}

#[test]
fn many_calls_wait_and_too_many_are_refused() {
    const MOST: usize = 1024;
    let cluster = Cluster::builder().start();
    let server = cluster.client(0).serve("tests", &["f"], &ServeOptions::default()).expect("it serves");
    let clients: Vec<_> = (0..MOST / 128 + 1).map(|_| find(&cluster, 0)).collect();
    let begun: Vec<_> = (0..MOST)
        .map(|nth| clients[nth / 128].begin("f", &nth.to_le_bytes(), PATIENCE).expect("it waits"))
        .collect();
    eventually("all wait", || cluster.status(0).functions.waiting == MOST as u64);
    assert_eq!(kind(clients[MOST / 128].call("f", b"", PATIENCE)), ErrorKind::Busy);
    for _ in 0..MOST {
        let call = server.receive(Some(PATIENCE)).expect("it serves").expect("a call");
        let data = call.data().to_vec();
        call.reply(&data).expect("it is waited for");
    }
    for (nth, begun) in begun.into_iter().enumerate() {
        assert_eq!(*begun.wait().expect("it was answered"), nth.to_le_bytes());
    }
}

#[test]
fn a_call_is_answered_once_by_who_has_it() {
    let cluster = Cluster::builder().start();
    let server = cluster.client(0).serve("tests", &["f"], &ServeOptions::default()).expect("it serves");
    let service = find(&cluster, 0);
    let begun = service.begin("f", b"1", PATIENCE).expect("it is sent");
    let call = server.receive(Some(PATIENCE)).expect("it serves").expect("a call");
    let next = service.begin("f", b"2", PATIENCE).expect("it is sent");
    let call = server.reply_and_receive(call, b"one", Some(PATIENCE)).expect("it serves").expect("a call");
    assert_eq!((&*begun.wait().expect("answered"), call.data()), (&b"one"[..], &b"2"[..]));
    // A server that is closed can still answer what it has; what waits there has nobody else.
    let waits = service.begin("f", b"3", PATIENCE).expect("it is sent");
    eventually("it waits", || cluster.status(0).functions.waiting == 1);
    drop(server);
    assert_eq!(kind(waits.wait()), ErrorKind::NotFound);
    call.reply(b"two").expect("it is waited for");
    assert_eq!(&*next.wait().expect("answered"), b"two");
}

#[test]
fn the_death_of_a_server_is_told_and_others_take_over() {
    let cluster = Cluster::builder().nodes(2).start();
    for (caller, dying) in [(0, 0), (0, 1)] {
        let victim = ClientProcess::start(&cluster, dying, &["serve", "tests"]);
        let service = find(&cluster, caller);
        assert_eq!(&*service.call("echo", b"it lives", PATIENCE).expect("it is served"), b"it lives");
        let begun = service.begin("hang", b"", PATIENCE).expect("it is sent");
        eventually("the server has it", || cluster.status(dying).functions.running == 1);
        let spare = ClientProcess::start(&cluster, dying, &["serve", "tests"]);
        victim.kill();
        let unknown = begun.wait().expect_err("its server died");
        assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown, "{unknown}");
        assert_eq!(&*service.call("echo", b"the other", PATIENCE).expect("it is served"), b"the other");
        spare.kill();
        eventually("nobody is left", || kind_of(&service) == Some(ErrorKind::NotFound));
    }
}

fn kind_of(service: &Service) -> Option<ErrorKind> {
    service.call("echo", b"", PATIENCE).err().map(|error| error.kind())
}

#[test]
fn a_function_runs_on_when_its_caller_dies() {
    let cluster = Cluster::builder().nodes(2).start();
    let server = cluster.client(1).serve("tests", &["f"], &ServeOptions::default()).expect("it serves");
    for node in [0, 1] {
        let caller = ClientProcess::start(&cluster, node, &["call", "tests", "f"]);
        let call = server.receive(Some(PATIENCE)).expect("it serves").expect("a call");
        assert!(!call.caller_gone());
        caller.kill();
        eventually("the server is told", || call.caller_gone());
        call.reply(&vec![1; MIB]).expect("nobody gets the reply, which is no error");
    }
    eventually("nothing is left", || cluster.status(1).functions.running == 0);
}

#[test]
fn the_death_of_a_node_is_told_and_the_name_goes_on() {
    let mut cluster = Cluster::builder().nodes(3).start();
    // The first to serve keeps the name.
    let _first =
        cluster.client(1).serve("tests", &["echo", "hang"], &ServeOptions::default()).expect("it serves");
    let spare = ClientProcess::start(&cluster, 2, &["serve", "tests"]);
    let service = find(&cluster, 0);
    let begun: Vec<_> = (0..8).map(|_| service.begin("hang", b"", PATIENCE).expect("it is sent")).collect();
    eventually("both nodes have calls", || {
        let [there, other] = [1, 2].map(|node| cluster.status(node).functions);
        there.waiting > 0 && other.running > 0 && there.waiting + other.running == 8
    });
    let lost = cluster.status(1).functions.waiting as usize;
    cluster.kill(1);
    eventually("the calls there end", || begun.iter().filter(|call| call.is_over()).count() == lost);
    for call in begun.into_iter().filter(|call| call.is_over()) {
        assert_eq!(kind(call.wait()), ErrorKind::OutcomeUnknown, "it may have been run there");
    }
    eventually("the other server is left", || {
        service.call("echo", b"on", PATIENCE).is_ok_and(|reply| *reply == *b"on")
    });
    // A living node keeps the name now, so that the service is found and others may join.
    let found = until("the name is found", || cluster.client(0).service("tests", None).ok());
    assert_eq!(&*found.call("echo", b"found", PATIENCE).expect("it is served"), b"found");
    spare.kill();
}

#[test]
fn many_threads_call_and_serve_at_a_time() {
    const THREADS: usize = 16;
    const CALLS: u64 = 50;
    let cluster = Cluster::builder().nodes(2).start();
    let run = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let servers = [0, 1].map(|node| {
        cluster.client(node).serve("tests", &["add"], &ServeOptions::default()).expect("it serves")
    });
    thread::scope(|scope| {
        for server in &servers {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut next = None;
                    while !stop.load(Ordering::Relaxed) {
                        let wait = Some(Duration::from_millis(100));
                        let received = match next.take() {
                            Some(call) => {
                                run.fetch_add(1, Ordering::Relaxed);
                                server.reply_and_receive(call, b"done", wait)
                            }
                            None => server.receive(wait),
                        };
                        next = received.expect("it serves");
                    }
                });
            }
        }
        let clients: [Client; 2] = [0, 1].map(|node| cluster.client(node));
        thread::scope(|callers| {
            for thread in 0..THREADS {
                let client = &clients[thread % 2];
                callers.spawn(move || {
                    let service = client.service("tests", Some(PATIENCE)).expect("it is served");
                    for _ in 0..CALLS {
                        assert_eq!(&*service.call("add", b"", PATIENCE).expect("it is answered"), b"done");
                    }
                });
            }
        });
        let service = clients[0].service("tests", None).expect("it is served");
        let to = vec![service; 100];
        let replies = clients[0].multicast(&to, "add", b"x", PATIENCE).expect("nobody interrupts");
        assert!(replies.iter().all(|reply| reply.as_ref().is_ok_and(|reply| **reply == *b"done")));
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(run.load(Ordering::Relaxed), THREADS as u64 * CALLS + 100, "each call is run once");
}

#[test]
fn commands_list_services_and_call_them() {
    let cluster = Cluster::builder().nodes(2).start();
    assert_eq!(json(&cluster, 0, &["services"]), serde_json::json!([]));
    served(&cluster, &[1], 1, || {
        let list = json(&cluster, 0, &["services"]);
        assert_eq!((&list[0]["name"], &list[0]["nodes"]), (&"tests".into(), &1.into()), "{list}");
        assert_eq!(list[0]["functions"], serde_json::json!(FUNCTIONS), "{list}");
        let called = json(&cluster, 0, &["call", "tests", "echo", "some data"]);
        assert_eq!((&called["reply"], &called["bytes"]), (&"some data".into(), &9.into()), "{called}");
        assert!(called["seconds"].as_f64() > called["function_seconds"].as_f64(), "{called}");
        let (code, message) = failure(&cluster, 0, &["call", "tests", "fail"]);
        assert_eq!(code, 1);
        assert!(message.contains("it does not work"), "{message}");
        assert_eq!(failure(&cluster, 0, &["call", "tests", "nothing"]).0, 1);
        assert_eq!(failure(&cluster, 0, &["call", "none", "f"]).0, 3);
        // A server's thread answers, on whichever host, and runs none of its functions.
        for node in [0, 1] {
            let pinged = json(&cluster, node, &["ping", "tests", "--count", "3", "--interval", "0.01"]);
            assert_eq!(
                (&pinged["service"], pinged["pings"].as_array().map(Vec::len)),
                (&"tests".into(), Some(3))
            );
        }
        let (code, _) = failure(&cluster, 0, &["ping", "nobody"]);
        assert_ne!(code, 0);
        let status = json(&cluster, 1, &["status"]);
        assert_eq!(status["functions"]["ports"], 1, "{status}");
    });
}

#[test]
fn a_silent_home_of_a_name_is_told_of_within_the_time_out() {
    let cluster = Cluster::builder().nodes(2).args(&LONG_LEASE).start();
    let (server, client) = (cluster.client(1), cluster.client(0));
    let _served = server.serve("tests", &FUNCTIONS, &ServeOptions::default()).expect("the name is free");
    cluster.pause(1);
    until("its node says that the home is silent", || {
        let found = client.service("tests", Some(Duration::from_secs(1)));
        let error = found.expect_err("the home stands still");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        error.to_string().contains("was not found within the time-out").then_some(())
    });
    cluster.resume(1);
}
