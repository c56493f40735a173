//! Tests of calls by slot: they end in any order and in time, and slots cannot be used against the engine or
//! against other clients.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use plasmon::wire::{Receiver, Reply, Request};
use plasmon::{Client, ErrorKind, NodeId};
use plasmon_e2e::{Chance, Cluster, PATIENCE, eventually, wait};

use crate::commands::{failure, json};
use crate::support::{LONG_LEASE, ask};

/// Client that has its slots and their bell in its own hands.
struct Intruder {
    _stream: UnixStream,
    slots: File,
    bell: File,
}

impl Intruder {
    fn connect(cluster: &Cluster) -> Self {
        let mut stream = UnixStream::connect(cluster.socket(0)).expect("the daemon listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("the time-out is not zero");
        let mut receiver = Receiver::default();
        let mut ask = |request: Request| ask(&mut stream, &mut receiver, &request);
        ask(Request::Hello { name: "intruder".to_owned() });
        let (early, _) = ask(Request::Slots);
        assert!(matches!(&early, Reply::Failed { error } if error.kind() == ErrorKind::Invalid), "{early:?}");
        let (_, channel) = ask(Request::Channel);
        let (Reply::Slots, slots) = ask(Request::Slots) else { panic!("no slots") };
        let (again, _) = ask(Request::Slots);
        assert!(matches!(&again, Reply::Failed { error } if error.kind() == ErrorKind::Invalid), "{again:?}");
        let bell = channel.into_iter().nth(1).expect("a bell").into();
        let slots = slots.into_iter().next().expect("a page set").into();
        Self { _stream: stream, slots, bell }
    }
}

/// Offset of the submitted bits in a page set.
const SUBMITTED: u64 = 4 << 10;
/// Offset of the first slot.
const FIRST_SLOT: u64 = 128 << 10;
/// Bytes of a slot.
const SLOT_LEN: u64 = 512;

/// Length of the random attack: a minute if tests may take long (`make test-all`).
fn torment() -> Duration {
    Duration::from_secs(if std::env::var_os("PLASMON_E2E_LONG").is_some() { 60 } else { 8 })
}

fn ping(client: &Client, node: NodeId) {
    client.ping(node, PATIENCE).expect("the node answers");
}

#[test]
fn scribbling_over_slots_hurts_nobody_else() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let mut chance = Chance::of_seed(1);
    let until = Instant::now() + torment();
    let mut rounds = 0u64;
    // At least so many rounds, whatever else the machine does.
    while Instant::now() < until || rounds <= 10 {
        let mut intruder = Intruder::connect(&cluster);
        for _ in 0..50 {
            for _ in 0..200 {
                let at = match chance.below(3) {
                    0 => SUBMITTED + chance.below(4) as u64 * 8,
                    1 => FIRST_SLOT + chance.below(256) as u64 * SLOT_LEN + chance.below(64) as u64 * 8,
                    _ => chance.below(64 << 10) as u64 * 8,
                };
                let word = match chance.below(4) {
                    0 => 0,
                    // A ping in the next slots, of no node.
                    1 => 80 << 32 | chance.below(300) as u64,
                    2 => 1 << chance.below(64),
                    _ => chance.word(),
                };
                let _ = intruder.slots.write_at(&word.to_le_bytes(), at);
            }
            let _ = intruder.bell.write(&1u64.to_ne_bytes());
        }
        rounds += 1;
        ping(&client, client.node());
    }
    eventually("the slots end with their clients", || {
        let slots = cluster.status(0).slots;
        (slots.clients, slots.under_way) == (1, 0)
    });
    // The engine took all that made sense as calls.
    assert!(cluster.status(0).slots.calls > rounds);
}

#[test]
fn many_threads_call_at_a_time() {
    const THREADS: usize = 300;
    const CALLS: usize = 20;
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(0);
    let nodes = [0, 1].map(|node| cluster.client(node).node());
    thread::scope(|threads| {
        for thread in 0..THREADS {
            let client = &client;
            threads.spawn(move || (0..CALLS).for_each(|call| ping(client, nodes[(thread + call) % 2])));
        }
    });
    let waits = client.wait_stats();
    assert_eq!(waits.looked + waits.yielded + waits.slept, (THREADS * CALLS) as u64);
    let slots = cluster.status(0).slots;
    assert_eq!((slots.clients, slots.under_way, slots.calls), (1, 0, (THREADS * CALLS) as u64));
    drop(client);
    eventually("the slots end with their client", || cluster.status(0).slots.clients == 0);
}

#[test]
fn a_call_that_waits_delays_no_other_and_ends_in_time() {
    let cluster = Cluster::builder().nodes(2).args(&LONG_LEASE).start();
    let client = cluster.client(0);
    let stopped = cluster.client(1).node();
    ping(&client, stopped);
    cluster.pause(1);
    thread::scope(|threads| {
        let late = threads.spawn(|| {
            let began = Instant::now();
            let error = client.ping(stopped, Duration::from_secs(1)).expect_err("the node is stopped");
            wait::ended_in_time("the ping", began, Duration::from_secs(1));
            error.kind()
        });
        eventually("the call waits", || cluster.status(0).slots.under_way == 1);
        (0..100).for_each(|_| ping(&client, client.node()));
        assert_eq!(late.join().expect("it returns"), ErrorKind::TimedOut);
    });
    assert_eq!(cluster.status(0).slots.under_way, 0);
    cluster.resume(1);
    eventually("the node answers again", || client.ping(stopped, PATIENCE).is_ok());
}

#[test]
fn calls_end_with_their_node_and_when_they_are_given_up() {
    let mut cluster = Cluster::builder().nodes(2).args(&LONG_LEASE).start();
    let (client, caller) = (cluster.client(0), cluster.client(0));
    let stopped = cluster.client(1).node();
    cluster.pause(1);
    thread::scope(|threads| {
        let ended = threads.spawn(|| client.ping(stopped, PATIENCE).expect_err("the node dies").kind());
        eventually("the call waits", || cluster.status(0).slots.under_way == 1);
        let caller = caller.interruptible(|| true);
        for _ in 0..3 {
            let error = caller.ping(stopped, PATIENCE).expect_err("it is interrupted");
            assert_eq!(error.kind(), ErrorKind::Interrupted);
        }
        eventually("the node ends them", || cluster.status(0).slots.under_way == 1);
        cluster.kill(0);
        assert_eq!(ended.join().expect("it returns"), ErrorKind::Disconnected);
    });
    assert_eq!(client.ping(client.node(), PATIENCE).unwrap_err().kind(), ErrorKind::Disconnected);
}

#[test]
fn the_command_pings_nodes() {
    let cluster = Cluster::builder().nodes(2).start();
    let other = cluster.client(1).node().to_string();
    let words = ["ping", "--count", "3", "--interval", "0"];
    let here = json(&cluster, 0, &words);
    assert_eq!(here["node"], cluster.client(0).node().to_string());
    let pings = here["pings"].as_array().expect("a list");
    assert_eq!(pings.len(), 3);
    assert!(pings.iter().all(|ping| ping["network_us"] == 0.0 && ping["total_us"].as_f64() > Some(0.0)));
    let there = json(&cluster, 0, &[&words[..], &[&other]].concat());
    for ping in there["pings"].as_array().expect("a list") {
        let [network, total] = ["network_us", "total_us"].map(|key| ping[key].as_f64().expect("a time"));
        assert!(0.0 < network && network < total, "{ping}");
    }
    let (code, message) = failure(&cluster, 0, &["ping", &NodeId::random().to_string()]);
    assert_eq!(code, 7, "{message}");
}
