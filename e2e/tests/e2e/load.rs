//! Tests with very many clients, very many waiting gets, and clients that do not read their replies.

use std::collections::HashSet;
use std::io::{ErrorKind as IoError, Write};
use std::sync::{Barrier, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::wire::{Reply, Request};
use plasmon::{Client, CreateOptions, ErrorKind, ObjectId};
use plasmon_e2e::wait::had_its_time;
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually, until};

use crate::raw::{Raw, frame};
use crate::support::{MIB, descriptors, get, may_open, own_memory, put};

/// Memory in bytes that a daemon may keep after a crowd is gone: what it remembers of the crowd, and memory
/// that is not worth giving back.
const KEPT_BYTES: u64 = 80 * MIB as u64;

/// Whether tests may take long (`make test-all`).
fn long() -> bool {
    std::env::var_os("PLASMON_E2E_LONG").is_some()
}

#[test]
fn a_thousand_clients_work_at_once() {
    const CLIENTS: usize = 1000;
    let rounds = if long() { 50 } else { 3 };
    if !may_open(16_000) {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("256MiB").start();
    let common = put(&cluster.client(1), Pattern(1), 200_000);
    drop(get(&cluster.client(0), common));
    let before = (descriptors(&cluster, 0), own_memory(&cluster, 0));
    let mut left = Vec::new();
    for crowd in 0..3 {
        work_at_once(&cluster, CLIENTS, rounds, common);
        eventually("all clients are forgotten", || cluster.status(0).clients <= 1);
        eventually("their descriptors are closed", || descriptors(&cluster, 0) <= before.0 + 16);
        let status = cluster.status(0);
        assert_eq!((status.objects.pinned, status.objects.unsealed, status.objects.doomed), (0, 0, 0));
        assert!(status.memory.used < MIB as u64, "{:?}", status.memory);
        left.push(own_memory(&cluster, 0));
        eprintln!("crowd {crowd}: {} bytes are left", left[crowd].saturating_sub(before.1));
    }
    // Nothing is added by the next crowd.
    let more = left[2].saturating_sub(left[0].max(left[1])) / CLIENTS as u64;
    assert!(
        more < 16 << 10,
        "{more} bytes more are kept for each of {CLIENTS} clients that have gone: {left:?}"
    );
    eventually("their memory is the system's again", || own_memory(&cluster, 0) < before.1 + KEPT_BYTES);
}

/// Makes `clients` clients of node 0 put, get and delete, all of them connected all the time.
fn work_at_once(cluster: &Cluster, clients: usize, rounds: u64, common: ObjectId) {
    let meeting = Meeting::new(clients);
    thread::scope(|scope| {
        for number in 0..clients as u64 {
            let meeting = &meeting;
            let work = move || {
                let _attendance = Attendance(meeting);
                let client = cluster.client(0);
                meeting.wait();
                for round in 0..rounds {
                    let pattern = Pattern(2 + number * rounds + round);
                    // Through the ring, by a mapping, and what another node holds.
                    for len in [500, 70_000] {
                        let id = put(&client, pattern, len);
                        pattern.check(get(&client, id).data());
                        delete(&client, id);
                    }
                    Pattern(1).check(get(&client, common).data());
                    let never = client.get(&[ObjectId::random()], Some(Duration::from_millis(1)));
                    let error = never.expect("the daemon lives").remove(0).expect_err("nobody makes it");
                    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
                }
                meeting.wait();
            };
            let thread = thread::Builder::new().stack_size(256 << 10);
            thread.spawn_scoped(scope, work).expect("a thousand threads can be had");
        }
    });
}

/// Deletes an object. On a busy machine another node may take longer to answer than a deletion waits for it.
fn delete(client: &Client, id: ObjectId) {
    eventually("it is deleted", || match client.delete(&[id]) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::OutcomeUnknown => false,
        Err(error) => panic!("delete: {error}"),
    });
}

/// Barrier that does not wait for threads that have failed.
struct Meeting {
    all: usize,
    /// Number of waits begun so far, and whether a thread has failed.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Meeting {
    fn new(all: usize) -> Self {
        Self { all, state: Mutex::new((0, false)), changed: Condvar::new() }
    }

    /// Waits until all threads wait.
    fn wait(&self) {
        let mut state = self.state.lock().expect("nobody fails while it is locked");
        state.0 += 1;
        let complete = state.0.next_multiple_of(self.all);
        self.changed.notify_all();
        let waits = |state: &mut (usize, bool)| state.0 < complete && !state.1;
        let failed = self.changed.wait_while(state, waits).expect("nobody fails while it is locked").1;
        assert!(!failed, "another client has failed");
    }
}

/// Guard of a thread for which others wait in a meeting.
struct Attendance<'a>(&'a Meeting);

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        if thread::panicking()
            && let Ok(mut state) = self.0.state.lock()
        {
            state.1 = true;
            self.0.changed.notify_all();
        }
    }
}

#[test]
fn very_many_waiting_gets_end_at_their_time_out_and_leave_nothing() {
    let gets = if long() { 100_000 } else { 10_000 };
    let patience = Duration::from_secs(if long() { 40 } else { 10 });
    let cluster = Cluster::builder().nodes(2).start();
    let own = |node| own_memory(&cluster, node);
    let before = [0, 1].map(own);
    for wave in 0..2 {
        let (mut grown, mut patience) = (None, patience);
        while grown.is_none() {
            grown = wait_for_many(&cluster, gets, patience);
            patience *= 2;
        }
        let grown = grown.expect("all waited at once");
        for node in [0, 1] {
            let (each, left) = (grown[node] / gets as u64, own(node).saturating_sub(before[node]));
            eprintln!(
                "wave {wave}, node {node}: {each} bytes for each of {gets} waiting gets, {left} at their end"
            );
        }
    }
    for node in [0, 1] {
        eventually("their memory is the system's again", || own(node) < before[node] + KEPT_BYTES);
    }
}

/// Makes `gets` gets wait on node 0, creates the objects of some of them, and checks how each ends. Returns
/// the memory that each node took for them. Returns nothing if the first get had given up before the last one
/// waited.
fn wait_for_many(cluster: &Cluster, gets: usize, patience: Duration) -> Option<[u64; 2]> {
    const CONNECTIONS: usize = 10;
    const BATCH: usize = 100;
    /// Time before the end of the gets at which an object has to be created to come in time.
    const AMPLE: Duration = Duration::from_secs(3);
    /// Number of objects of which one is created while gets wait for it.
    const MADE: usize = 50;
    let client = cluster.client(0);
    let ids: Vec<_> = (0..gets).map(|_| ObjectId::random()).collect();
    let before = [0, 1].map(|node| own_memory(cluster, node));
    let begun = Instant::now();
    let mut waiting: Vec<_> = (0..CONNECTIONS).map(|_| Raw::connect(cluster, 0)).collect();
    let timeout_us = patience.as_micros() as u64;
    for (number, ids) in ids.chunks(BATCH).enumerate() {
        let question = |(at, id): (usize, &ObjectId)| {
            frame((BATCH * number + at) as u64, &Request::Get { timeout_us, verify: false, ids: vec![*id] })
                .to_vec()
        };
        let questions: Vec<u8> = ids.iter().enumerate().flat_map(question).collect();
        waiting[number % CONNECTIONS].stream.write_all(&questions).expect("the daemon reads");
    }
    let all_wait = until("all wait, or some have given up", || {
        let all = cluster.status(0).transfer.fetching == gets as u64;
        (all || begun.elapsed() > patience).then_some(all)
    });
    if !all_wait {
        eprintln!("{gets} gets did not come to wait at once within {patience:?}: once more, with more time");
        drop(waiting);
        eventually("those that wait are forgotten", || cluster.status(0).transfer.fetching == 0);
        return None;
    }
    let grown = [0, 1].map(|node| own_memory(cluster, node).saturating_sub(before[node]));

    // Others are served meanwhile, and what is made comes.
    let bystander = put(&cluster.client(1), Pattern(7), MIB);
    Pattern(7).check(get(&client, bystander).data());
    client.delete(&[bystander]).expect("delete");
    let made: HashSet<_> = (0..gets).step_by(MADE).collect();
    let homes = [client, cluster.client(1)];
    for at in &made {
        homes[at / MADE % 2].put(ids[*at], b"made", b"", &CreateOptions::default()).expect("put");
    }
    let made_in_time = Instant::now() + AMPLE < begun + patience;
    let mut came = HashSet::new();
    for (connection, mut raw) in waiting.into_iter().enumerate() {
        for _ in 0..gets / CONNECTIONS {
            let Some((number, Reply::Got { objects, .. })) = raw.next() else { panic!("a get is answered") };
            let at = number as usize;
            assert_eq!(at / BATCH % CONNECTIONS, connection, "it is another's answer");
            match &objects[..] {
                [Ok(_)] => assert!(came.insert(at), "it was answered twice"),
                [Err(error)] => {
                    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
                    had_its_time("a get", begun, patience);
                    assert!(!made.contains(&at) || !made_in_time, "it was made, and did not come");
                }
                other => panic!("{other:?} to a get of one"),
            }
        }
    }
    if made_in_time {
        assert_eq!(came, made);
    }

    let made: Vec<_> = made.iter().map(|at| ids[*at]).collect();
    homes[0].delete(&made).expect("delete");
    for node in [0, 1] {
        eventually("nothing is left", || {
            let status = cluster.status(node);
            (status.transfer.fetching, status.cluster.directory_entries, status.memory.used) == (0, 0, 0)
        });
    }
    if !made_in_time {
        eprintln!("{} objects were made too late within {patience:?}: once more, with more time", made.len());
    }
    made_in_time.then_some(grown)
}

#[test]
fn clients_that_do_not_read_hold_up_nobody_else() {
    const SLOW: usize = 50;
    const QUESTIONS: usize = 5000;
    const BOUND: u64 = 256 * MIB as u64;
    let rounds = if long() { 2000 } else { 200 };
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let fast = cluster.client(0);
    // A reply is as long as the messages of its errors: of a thousand objects that are not here.
    let ids: Vec<_> = (0..200).map(|_| ObjectId::random()).collect();
    let question = |number: usize| {
        frame(number as u64 + 1, &Request::Get { timeout_us: 0, verify: false, ids: ids.clone() })
    };
    let before = own_memory(&cluster, 0);
    let grown = || own_memory(&cluster, 0).saturating_sub(before);

    let mut slow: Vec<_> = (0..SLOW).map(|_| (Raw::connect(&cluster, 0), 0)).collect();
    for (raw, asked) in &mut slow {
        raw.stream.set_nonblocking(true).expect("it is connected");
        while *asked < QUESTIONS {
            match raw.stream.write(&question(*asked)) {
                Ok(len) if len == question(*asked).len() => *asked += 1,
                // Half a question went: the rest is sent when the daemon reads again.
                Ok(len) => {
                    raw.stream.set_nonblocking(false).expect("it is connected");
                    let rest = question(*asked)[len..].to_vec();
                    let stream = raw.stream.try_clone().expect("it is connected");
                    thread::spawn(move || (&stream).write_all(&rest));
                    *asked += 1;
                    break;
                }
                Err(error) if error.kind() == IoError::WouldBlock => break,
                Err(error) => panic!("the daemon ended the connection: {error}"),
            }
        }
    }
    let asked: usize = slow.iter().map(|(_, asked)| asked).sum();
    for number in 0..rounds {
        let (here, there) =
            (put(&fast, Pattern(number), 1000), put(&cluster.client(1), Pattern(number), 100_000));
        Pattern(number).check(get(&fast, here).data());
        Pattern(number).check(get(&fast, there).data());
        fast.delete(&[here, there]).expect("delete");
        assert!(grown() < BOUND, "{} bytes for {SLOW} clients that do not read", grown());
    }
    eprintln!("{} bytes for {SLOW} clients that asked {asked} questions and do not read", grown());

    // A client that reads at last gets all of its replies.
    let all_read = Barrier::new(SLOW);
    thread::scope(|scope| {
        for (mut raw, asked) in slow {
            let all_read = &all_read;
            scope.spawn(move || {
                raw.stream.set_nonblocking(false).expect("it is connected");
                raw.stream.set_read_timeout(Some(PATIENCE)).expect("it is not zero");
                let mut answered = HashSet::new();
                while answered.len() < asked {
                    let Some((number, Reply::Got { objects, .. })) = raw.next() else {
                        panic!("a get is answered")
                    };
                    assert!(answered.insert(number), "request {number} was answered twice");
                    assert!(objects.len() == 200 && objects.iter().all(Result::is_err));
                }
                all_read.wait();
            });
        }
    });
    eventually("they are forgotten", || cluster.status(0).clients <= 2);
    eventually("their memory is the system's again", || grown() < KEPT_BYTES);
}
