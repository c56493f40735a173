//! Tests of locks while nobody dies: one holder in the cluster, the order of those who wait, readers, names,
//! arguments, and clients that break the rules.

use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use plasmon::region::{RegionOptions, Rights};
use plasmon::sync::{Lock, LockInfo, LockList, LockOptions, SyncKind};
use plasmon::wire::{BySlot, OnRegion, Operation, Receiver, RegionCall, Reply, Request, SyncCall};
use plasmon::{Client, ErrorKind, Guard};
use plasmon_e2e::{Cluster, PATIENCE, eventually, until, wait};

use crate::support::{ClientProcess, NOBODY, ask, client_of, kind};

/// Options of a lock with a short time to live.
pub(crate) fn short_lived() -> LockOptions {
    LockOptions { ttl: Duration::from_secs(3), ..LockOptions::default() }
}

/// Takes a lock that will be free soon.
pub(crate) fn take(client: &Client, name: &str) -> Guard {
    let options = LockOptions { timeout: Some(PATIENCE), ..short_lived() };
    client.lock(name, &options).unwrap_or_else(|error| panic!("lock {name}: {:?}: {error}", error.kind()))
}

/// Tries to take a lock at once.
pub(crate) fn attempt(client: &Client, name: &str) -> plasmon::Result<Guard> {
    client.lock(name, &LockOptions { timeout: Some(Duration::ZERO), ..short_lived() })
}

/// Row of a lock or a barrier in the list, as a node tells it.
pub(crate) fn row(cluster: &Cluster, node: usize, name: &str) -> Option<LockInfo> {
    let list = LockList::of(&cluster.client(node)).expect("the daemon lives");
    list.locks.into_iter().find(|info| info.name == name)
}

/// Makes a region of two words on the first node.
pub(crate) fn region(cluster: &Cluster, name: &str) {
    let made = cluster.client(0).create_region(name, 16, &RegionOptions::default());
    drop(made.expect("there is room"));
}

#[test]
fn processes_of_three_hosts_count_under_a_lock() {
    const PROCESSES: usize = 3;
    const TIMES: usize = 40;
    let cluster = Cluster::builder().nodes(3).start();
    region(&cluster, "count");
    thread::scope(|threads| {
        for at in 0..3 * PROCESSES {
            let cluster = &cluster;
            let todo = ["count", "lock", "count", &TIMES.to_string()].map(str::to_owned);
            threads.spawn(move || {
                ClientProcess::start(cluster, at % 3, &todo.each_ref().map(String::as_str)).kill();
            });
        }
    });
    let region = cluster.client(2).map_region("count", Rights::READ, None).expect("it is there");
    let mut word = [0; 8];
    region.read(0, &mut word).expect("its home lives");
    assert_eq!(u64::from_le_bytes(word), (3 * PROCESSES * TIMES) as u64);
    eventually("nobody holds it", || row(&cluster, 1, "lock").is_none());
}

#[test]
fn a_lock_is_free_when_unlocking_has_returned() {
    let cluster = Cluster::builder().nodes(3).start();
    let clients = [0, 1, 2].map(|node| cluster.client(node));
    let mut last = 0;
    for nth in 0..60 {
        let guard = attempt(&clients[nth % 3], "handed over").expect("it is free");
        assert!(guard.is_valid() && !guard.abandoned());
        assert!(guard.token() > last, "{:#x} after {last:#x}", guard.token());
        last = guard.token();
        assert_eq!(kind(attempt(&clients[(nth + 1) % 3], "handed over")), ErrorKind::Busy);
        if nth % 2 == 0 {
            guard.unlock().expect("it was held");
            assert!(!guard.is_valid());
            guard.unlock().expect("a second call does nothing");
        }
    }
}

/// Has one after the other wait for a lock, each on its node, and returns the order in which they got it.
fn order_of(cluster: &Cluster, name: &str, nodes: &[usize]) -> Vec<usize> {
    let held = take(&cluster.client(0), name);
    let (sender, order) = channel();
    thread::scope(|threads| {
        for (nth, node) in nodes.iter().enumerate() {
            let (client, sender) = (cluster.client(*node), sender.clone());
            threads.spawn(move || {
                let guard = take(&client, name);
                sender.send(nth).expect("the test waits");
                drop(guard);
            });
            let waits = || row(cluster, 0, name).is_some_and(|row| row.waiting as usize == nth + 1);
            eventually("it waits", waits);
        }
        let row = row(cluster, 1, name).expect("it is held");
        assert_eq!((row.kind, row.shared, row.held, row.holders.len()), (SyncKind::Lock, false, 1, 1));
        assert_eq!(row.holders[0].token, held.token());
        assert_eq!(row.holders[0].pid, std::process::id());
        drop(held);
        drop(sender);
        order.into_iter().collect()
    })
}

#[test]
fn who_waits_gets_the_lock_in_the_order_of_asking() {
    let cluster = Cluster::builder().nodes(3).start();
    assert_eq!(order_of(&cluster, "hosts", &[2, 1, 0]), [0, 1, 2]);
    // A host that has the lock may hand it over within itself a few times, in order as well.
    let nodes = [0, 1, 2, 0, 1, 2, 0, 1, 2];
    let order = order_of(&cluster, "many", &nodes);
    for node in 0..3 {
        let of_node: Vec<_> = order.iter().filter(|nth| nodes[**nth] == node).collect();
        assert!(of_node.is_sorted(), "node {node}: {order:?}");
    }
}

#[test]
fn those_who_share_hold_it_together_and_pass_nobody_who_waits() {
    let cluster = Cluster::builder().nodes(3).start();
    let sharing = LockOptions { shared: true, timeout: Some(Duration::ZERO), ..short_lived() };
    let clients = [0, 1, 2].map(|node| cluster.client(node));
    let readers = clients.each_ref().map(|client| client.lock("data", &sharing).expect("they share it"));
    assert!(readers.iter().all(Guard::is_valid));
    assert_eq!(kind(attempt(&clients[0], "data")), ErrorKind::Busy);
    let told = row(&cluster, 1, "data").expect("it is held");
    assert_eq!((told.shared, told.held), (true, 3));
    thread::scope(|threads| {
        let writer = threads.spawn(|| take(&clients[1], "data"));
        eventually("the writer waits", || row(&cluster, 0, "data").is_some_and(|row| row.waiting == 1));
        let late = clients[2].lock("data", &sharing);
        assert_eq!(kind(late), ErrorKind::Busy, "a reader passed the writer");
        drop(readers);
        let writer = writer.join().expect("no panic");
        assert!(writer.is_valid());
        assert_eq!(kind(clients[0].lock("data", &sharing)), ErrorKind::Busy);
    });
    drop(clients[0].lock("data", &sharing).expect("the writer is done"));
}

#[test]
fn waits_end_in_time_and_leave_nothing() {
    let cluster = Cluster::builder().nodes(2).start();
    // The lease is longer than a busy host stands still.
    let for_long = LockOptions { timeout: Some(PATIENCE), ..LockOptions::default() };
    let held = cluster.client(0).lock("held", &for_long).expect("it is free");
    let promised = Duration::from_millis(300);
    for node in [0, 1] {
        let client = cluster.client(node);
        let began = Instant::now();
        let late = client.lock("held", &LockOptions { timeout: Some(promised), ..short_lived() });
        wait::ended_in_time("the wait", began, promised);
        let late = late.expect_err("it is held");
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        let (pid, uid) = (std::process::id(), rustix::process::getuid().as_raw());
        let holder = match node {
            0 => format!("this process ({pid}) has held it for "),
            _ => format!("process {pid} of user {uid} on node {} has held it for ", cluster.status(0).node),
        };
        assert!(late.to_string().contains(&holder), "{late}");
        let busy = attempt(&client, "held").expect_err("it is held");
        assert!(busy.kind() == ErrorKind::Busy && busy.to_string().contains(&holder), "{busy}");
    }
    // Waits that are interrupted are withdrawn, and so are those of clients that go away.
    let impatient = cluster.client(1).interruptible(|| true);
    assert_eq!(kind(impatient.lock("held", &short_lived())), ErrorKind::Interrupted);
    eventually("nobody waits", || row(&cluster, 1, "held").is_some_and(|row| row.waiting == 0));
    drop(held);
    drop(attempt(&cluster.client(1), "held").expect("it is free"));
}

#[test]
fn interrupted_waits_never_keep_the_lock() {
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(1);
    let lock = Lock::new(&client.clone().interruptible(|| true), "torn", &short_lived()).expect("a handle");
    for _ in 0..200 {
        // Some of them are granted before they notice.
        drop(lock.take(None));
        drop(take(&cluster.client(0), "torn"));
    }
    eventually("nobody holds it", || row(&cluster, 0, "torn").is_none());
}

#[test]
fn more_threads_wait_than_a_client_has_slots() {
    const THREADS: usize = 300;
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(1);
    let lock = Lock::new(&client, "crowd", &short_lived()).expect("a handle");
    let count = Mutex::new(0);
    let held = take(&cluster.client(0), "crowd");
    thread::scope(|threads| {
        for _ in 0..THREADS {
            threads.spawn(|| {
                let guard = lock.take(Some(PATIENCE)).expect("its turn comes");
                *count.try_lock().expect("nobody else holds the lock") += 1;
                guard.unlock().expect("it was held");
            });
        }
        let waiting = || row(&cluster, 0, "crowd").map_or(0, |row| row.waiting);
        eventually("all wait", || waiting() as usize == THREADS);
        drop(held);
    });
    assert_eq!(count.into_inner().expect("no panic"), THREADS);
}

#[test]
fn names_are_those_of_users_unless_they_are_public() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("Other users take root: not tested.");
    }
    let cluster = Cluster::builder().nodes(2).args(&["--socket-mode", "0666"]).start();
    let (own, stranger) = (cluster.client(0), client_of(NOBODY, &cluster, 1));
    let mine = attempt(&own, "name").expect("it is free");
    let theirs = attempt(&stranger, "name").expect("it is another lock");
    assert!(mine.is_valid() && theirs.is_valid());
    let public = LockOptions { public: true, timeout: Some(Duration::ZERO), ..short_lived() };
    let everybodys = own.lock("name", &public).expect("it is a third one");
    assert_eq!(kind(stranger.lock("name", &public)), ErrorKind::Busy);
    drop(everybodys);
    drop(stranger.lock("name", &public).expect("it is everybody's"));
}

#[test]
fn wrong_arguments_are_refused() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let too_long = "n".repeat(256);
    for name in ["", &too_long] {
        assert_eq!(kind(attempt(&client, name)), ErrorKind::Invalid);
    }
    for ttl in [Duration::from_millis(99), Duration::from_millis(60_001), Duration::MAX] {
        let options = LockOptions { ttl, ..LockOptions::default() };
        assert_eq!(kind(client.lock("a", &options)), ErrorKind::Invalid, "{ttl:?}");
    }
    region(&cluster, "fenced");
    let region = client.map_region("fenced", Rights::READ_WRITE, None).expect("it is there");
    let strange = take(&cluster.client(0), "strange");
    assert_eq!(kind(region.write_fenced(0, b"x", &strange)), ErrorKind::Invalid, "another client's guard");
    let guard = take(&client, "own");
    region.write_fenced(0, b"x", &guard).expect("it is valid");
    guard.unlock().expect("it was held");
    assert_eq!(kind(region.write_fenced(0, b"y", &guard)), ErrorKind::Fenced);
}

#[test]
fn a_region_that_saw_a_guard_refuses_the_ones_before() {
    let cluster = Cluster::builder().nodes(2).start();
    region(&cluster, "data");
    for node in [0, 1] {
        let mut stopped = Raw::connect(&cluster, node);
        let (handle, lock) = (stopped.region("data"), stopped.lock("late"));
        // Nobody says that this process is alive.
        stopped.call(SyncCall::Lock { lock, ticket: 7, shared: false }).expect("it is free");
        stopped.write(handle, 7).expect("it holds the lock");
        let successor = take(&cluster.client(1), "late");
        assert!(successor.abandoned());
        let late = stopped.write(handle, 7).expect_err("the lock is another's");
        assert_eq!(late, ErrorKind::Fenced);
        // Without a guard it may write: a region is not protected from those who do not ask.
        stopped.write(handle, 0).expect("it has the right");
    }
}

/// Client that makes calls by the socket as it likes.
struct Raw {
    stream: UnixStream,
    receiver: Receiver,
}

impl Raw {
    fn connect(cluster: &Cluster, node: usize) -> Self {
        let stream = UnixStream::connect(cluster.socket(node)).expect("the daemon listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("the time-out is not zero");
        let mut raw = Self { stream, receiver: Receiver::default() };
        raw.ask(&Request::Hello { name: "raw".to_owned() });
        raw.ask(&Request::Channel);
        raw.ask(&Request::Slots);
        raw
    }

    fn ask(&mut self, request: &Request) -> Reply {
        ask(&mut self.stream, &mut self.receiver, request).0
    }

    fn made(&mut self, operation: u8, arguments: &[u64], payload: &'static [u8]) -> Result<(), ErrorKind> {
        let (arguments, payload) = (arguments.to_vec(), payload.into());
        let timeout_us = PATIENCE.as_micros() as u64;
        match self.ask(&Request::Call { operation, class: None, timeout_us, arguments, payload }) {
            Reply::Called { .. } => Ok(()),
            Reply::Failed { error } => Err(error.kind()),
            other => panic!("{other:?}"),
        }
    }

    fn call(&mut self, call: SyncCall) -> Result<(), ErrorKind> {
        let (operation, arguments) = call.encode();
        self.made(operation, &arguments, b"")
    }

    fn lock(&mut self, name: &str) -> u32 {
        let open = Request::OpenLock { name: name.to_owned(), public: false, ttl_ms: 1000 };
        match self.ask(&open) {
            Reply::LockOpened { lock } => lock,
            other => panic!("{other:?}"),
        }
    }

    fn region(&mut self, name: &str) -> u32 {
        let rights = Rights::READ_WRITE;
        match self.ask(&Request::MapRegion { name: name.to_owned(), owner: None, rights, timeout_us: 0 }) {
            Reply::RegionMapped { handle, .. } => handle,
            other => panic!("{other:?}"),
        }
    }

    /// Writes with the guard of a ticket.
    fn write(&mut self, handle: u32, ticket: u64) -> Result<(), ErrorKind> {
        let call = RegionCall::On(Operation::Write { offset: 0 });
        let (operation, arguments) = OnRegion { handle, guard: ticket, call }.encode();
        self.made(operation, &arguments, b"written!")
    }
}

#[test]
fn a_client_that_breaks_the_rules_harms_nobody() {
    let cluster = Cluster::builder().nodes(2).start();
    region(&cluster, "data");
    let other = cluster.client(1);
    let victim = take(&other, "victim");
    let mut raw = Raw::connect(&cluster, 1);
    let (handle, lock) = (raw.region("data"), raw.lock("own"));
    raw.call(SyncCall::Lock { lock, ticket: 5, shared: false }).expect("it is free");
    let again = raw.call(SyncCall::Lock { lock, ticket: 5, shared: false });
    assert!(matches!(again, Err(ErrorKind::Invalid | ErrorKind::Exists)), "a ticket twice: {again:?}");
    for (operation, arguments) in [(140, [77, 6, 0]), (140, [lock.into(), 0, 0]), (140, [lock.into(), 6, 2])]
    {
        assert!(raw.made(operation, &arguments, b"").is_err(), "{operation}: {arguments:?}");
    }
    for operation in [143, 144, 146, 149] {
        assert!(raw.made(operation, &[1, 2, 3], b"").is_err(), "there is no call {operation}");
    }
    // Tickets are a connection's own: nobody can end, or show, the guard of another client.
    for ticket in 1..=16 {
        if ticket != 5 {
            raw.call(SyncCall::Unlock { ticket }).expect_err("there is no such guard");
            raw.write(handle, ticket).expect_err("there is no such guard");
        }
    }
    raw.call(SyncCall::Unlock { ticket: 5 }).expect("it holds the lock");
    raw.call(SyncCall::Unlock { ticket: 5 }).expect_err("it does not any more");
    // A close of a lock or a barrier that does not exist is answered.
    for request in [Request::CloseLock { lock: 99 }, Request::CloseBarrier { barrier: 99 }] {
        assert!(matches!(raw.ask(&request), Reply::Done), "{request:?}");
    }
    for ttl_ms in [0, 99, 60_001, u32::MAX] {
        let open = Request::OpenLock { name: "own".to_owned(), public: false, ttl_ms };
        let refused = raw.ask(&open);
        assert!(
            matches!(&refused, Reply::Failed { error } if error.kind() == ErrorKind::Invalid),
            "{refused:?}"
        );
    }
    for (name, parties) in [("", 1), ("b", 0), ("b", 1_000_001)] {
        let (name, timeout_us) = (name.to_owned(), 1_000_000);
        let refused = raw.ask(&Request::OpenBarrier { name, public: false, parties, timeout_us });
        assert!(
            matches!(&refused, Reply::Failed { error } if error.kind() == ErrorKind::Invalid),
            "{refused:?}"
        );
    }
    assert!(victim.is_valid());
    victim.unlock().expect("it was held all the time");
    drop(raw);
    let guard = until("what it held is free", || attempt(&other, "own").ok());
    assert!(!guard.abandoned(), "it had unlocked");
}
