//! Tests of barriers: all parties pass together, again and again, and one that dies, leaves or is late breaks
//! the barrier for the others, who are told which.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::sync::{Barrier, SyncKind};
use plasmon::{Client, Error, ErrorKind};
use plasmon_e2e::{Cluster, PATIENCE, eventually, until, wait};
use rustix::process::Signal;

use crate::commands::{failure, json};
use crate::locks::row;
use crate::support::{ClientProcess, NOBODY, client_of, kind};

fn barrier(client: &Client, name: &str, parties: u32) -> Barrier {
    client.barrier(name, parties).unwrap_or_else(|error| panic!("barrier {name}: {error}"))
}

/// Waits at a barrier in a thread, until it is broken, and returns the error.
fn broken(cluster: &Cluster, barrier: Barrier, act: impl FnOnce()) -> Error {
    let before = row(cluster, 0, barrier.name()).map_or(0, |row| row.waiting);
    thread::scope(|threads| {
        let waiting = threads.spawn(|| barrier.wait(Some(PATIENCE)));
        eventually("it waits", || row(cluster, 0, barrier.name()).is_some_and(|row| row.waiting > before));
        act();
        let error = waiting.join().expect("no panic").expect_err("not all have arrived");
        assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
        error
    })
}

#[test]
fn parties_of_three_hosts_pass_together_again_and_again() {
    const PARTIES: usize = 6;
    const ROUNDS: usize = 30;
    let cluster = Cluster::builder().nodes(3).start();
    let arrived: Vec<_> = (0..ROUNDS).map(|_| AtomicUsize::new(0)).collect();
    let indices: Vec<_> = thread::scope(|threads| {
        let party = |nth: usize| {
            let (client, arrived) = (cluster.client(nth % 3), &arrived);
            threads.spawn(move || {
                let barrier = barrier(&client, "rounds", PARTIES as u32);
                let pass = |round: usize| {
                    arrived[round].fetch_add(1, Ordering::SeqCst);
                    let index = barrier.wait(Some(PATIENCE)).expect("all arrive");
                    assert_eq!(arrived[round].load(Ordering::SeqCst), PARTIES, "it passed alone");
                    index
                };
                let indices: Vec<_> = (0..ROUNDS).map(pass).collect();
                // A party that leaves would break the last round for those who have not heard of it yet.
                barrier.wait(Some(PATIENCE)).map(|_| indices).unwrap_or_default()
            })
        };
        let parties: Vec<_> = (0..PARTIES).map(party).collect();
        parties.into_iter().map(|party| party.join().expect("no panic")).collect()
    });
    for round in 0..ROUNDS {
        let told: BTreeSet<_> = indices.iter().filter_map(|indices| indices.get(round)).collect();
        assert_eq!(told.len(), indices.iter().filter(|indices| !indices.is_empty()).count());
    }
    eventually("it ends with its parties", || row(&cluster, 1, "rounds").is_none());
}

#[test]
fn a_party_that_dies_breaks_it_and_is_named() {
    let cluster = Cluster::builder().nodes(3).start();
    for node in 0..3 {
        let name = format!("deaths {node}");
        let party = ClientProcess::start(&cluster, node, &["party", &name, "2"]);
        let pid = party.pid().to_string();
        let survivor = barrier(&cluster.client((node + 1) % 3), &name, 2);
        let told = row(&cluster, 0, &name).expect("it has parties");
        assert_eq!((told.kind, told.parties), (SyncKind::Barrier, 2));
        let error = broken(&cluster, survivor, || party.kill());
        assert!(error.message().contains(&pid), "pid {pid} is not named: {error}");
    }
}

#[test]
fn a_node_that_dies_breaks_the_barriers_of_its_parties() {
    let mut cluster = Cluster::builder().nodes(3).args(&["--lease", "2"]).start();
    let _party = barrier(&cluster.client(2), "node", 2);
    let survivor = barrier(&cluster.client(1), "node", 2);
    thread::scope(|threads| {
        let waiting = threads.spawn(|| survivor.wait(Some(PATIENCE)));
        eventually("it waits", || row(&cluster, 0, "node").is_some_and(|row| row.waiting == 1));
        cluster.kill(2);
        assert_eq!(kind(waiting.join().expect("no panic")), ErrorKind::Broken);
    });
}

#[test]
fn a_party_that_leaves_or_is_late_breaks_it() {
    let cluster = Cluster::builder().nodes(2).start();
    let clients = [0, 1].map(|node| cluster.client(node));
    let leaving = barrier(&clients[0], "leaving", 2);
    broken(&cluster, barrier(&clients[1], "leaving", 2), || drop(leaving));
    // Parties that come afterwards have a new barrier.
    let pair = [0, 1].map(|at: usize| barrier(&clients[at], "leaving", 2));
    thread::scope(|threads| {
        for party in &pair {
            threads.spawn(|| party.wait(Some(PATIENCE)).expect("both arrive"));
        }
    });

    let three = [0, 1, 0].map(|at: usize| barrier(&clients[at], "late", 3));
    let [late, waiting, _absent] = three;
    let promised = Duration::from_millis(300);
    broken(&cluster, waiting, || {
        let began = Instant::now();
        assert_eq!(kind(late.wait(Some(promised))), ErrorKind::TimedOut);
        wait::ended_in_time("the wait", began, promised);
    });
}

#[test]
fn a_stopped_party_of_an_earlier_barrier_is_named() {
    let cluster = Cluster::builder().nodes(3).start();
    let client = cluster.client(2);
    let stopped = ClientProcess::start(&cluster, 1, &["party", "again", "2"]);
    stopped.signal(Signal::STOP);
    let eldest = format!("rocess {} on node {}", stopped.pid(), cluster.status(1).node);
    let differs = client.barrier("again", 3).expect_err("it has two parties");
    assert_eq!(differs.kind(), ErrorKind::Invalid);
    assert!(differs.message().contains(&eldest), "{differs}");
    // All parties are there, one of which will never arrive.
    let waiting = barrier(&client, "again", 2);
    let late = waiting.wait(Some(Duration::from_millis(300))).expect_err("one is stopped");
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    assert!(late.message().contains(&eldest), "{late}");
    drop(waiting);
    // Now it is broken, and stays so as long as that party has a handle.
    for node in [2, 0, 1] {
        let broken = until("the node knows", || {
            let broken = cluster.client(node).barrier("again", 2).err()?;
            broken.message().contains(&eldest).then_some(broken)
        });
        assert_eq!(broken.kind(), ErrorKind::Broken);
        assert!(broken.message().contains("an earlier one"), "{broken}");
    }
    stopped.signal(Signal::CONT);
    stopped.kill();
    until("the name is free", || client.barrier("again", 2).ok());
}

#[test]
fn parties_agree_on_their_number_and_names_are_those_of_users() {
    let cluster = Cluster::builder().nodes(2).args(&["--socket-mode", "0666"]).start();
    let (client, other) = (cluster.client(0), cluster.client(1));
    let _two = barrier(&client, "number", 2);
    let differs = other.barrier("number", 3).and_then(|three| three.wait(Some(PATIENCE)));
    let differs = differs.expect_err("others have it with two");
    assert_eq!(differs.kind(), ErrorKind::Invalid, "{differs}");
    assert!(differs.message().contains('2') && differs.message().contains('3'), "{differs}");
    assert_eq!(kind(client.barrier("none", 0)), ErrorKind::Invalid);
    assert_eq!(kind(client.barrier("", 1)), ErrorKind::Invalid);
    assert_eq!(barrier(&client, "alone", 1).wait(Some(PATIENCE)).expect("it is all"), 0);
    if rustix::process::geteuid().is_root() {
        let stranger = client_of(NOBODY, &cluster, 1);
        drop(stranger.barrier("number", 3).expect("it is another barrier"));
        let pair = [
            Barrier::new(&stranger, "everybody", 2, true).expect("a handle"),
            Barrier::new(&client, "everybody", 2, true).expect("a handle"),
        ];
        thread::scope(|threads| {
            for party in &pair {
                threads.spawn(|| party.wait(Some(PATIENCE)).expect("both arrive"));
            }
        });
    }
}

#[test]
fn the_command_waits_prints_its_place_and_says_who_broke_it() {
    let cluster = Cluster::builder().nodes(2).start();
    let places: BTreeSet<_> = thread::scope(|threads| {
        let commands = [0, 1].map(|node| {
            let cluster = &cluster;
            threads.spawn(move || json(cluster, node, &["barrier", "commands", "2"])["index"].as_u64())
        });
        commands.map(|command| command.join().expect("no panic")).into()
    });
    assert_eq!(places, [Some(0), Some(1)].into());
    let (code, message) = failure(&cluster, 0, &["barrier", "commands", "2", "--timeout", "0.2s"]);
    assert_eq!(code, 4, "{message}");
    let party = ClientProcess::start(&cluster, 1, &["party", "broken", "2"]);
    thread::scope(|threads| {
        let command = threads.spawn(|| failure(&cluster, 0, &["barrier", "broken", "2"]));
        eventually("it waits", || row(&cluster, 1, "broken").is_some_and(|row| row.waiting == 1));
        party.kill();
        let (code, message) = command.join().expect("no panic");
        assert_eq!(code, 12, "{message}");
    });
}
