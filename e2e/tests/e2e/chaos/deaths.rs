//! Test of gets while nodes are killed: no get outlives its time-out, no byte is wrong, every error is one
//! that a death explains, and at the end nothing is left over.
//!
//! Workers get, evict, delete and put objects. The main thread kills nodes and restarts them, each time with
//! another protocol. The content of each life of an object is noted before it is put, and the metadata of an
//! object tells its life. One node is never killed: at the end it must have what it had at the beginning.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use plasmon::{Client, CreateOptions, Error, ErrorKind, Object, ObjectId, Protocol};
use plasmon_e2e::wait::{SLACK, ended_in_time, let_pass_unless, patiently};
use plasmon_e2e::{Chance, Cluster, PATIENCE, Pattern, eventually};

use super::life::Life;
use crate::support::{MIB, descriptors, own_memory};

const NODES: usize = 4;
const WORKERS: usize = 6;
const OBJECTS: usize = 24;
/// Number of objects that are so large that they are read from all of their holders.
const STRIPED: usize = 2;
/// Time that a call may take beyond its time-out, because nodes die and start meanwhile.
const DISTURBANCE: Duration = Duration::from_secs(10);
/// Time that a deletion may take, because it waits some seconds each for keepers and holders.
const DELETION: Duration = Duration::from_secs(10);

/// Number of gets that have to fetch from another node.
fn fetches() -> usize {
    if std::env::var_os("PLASMON_E2E_LONG").is_some() { 10_000 } else { 150 }
}

/// Id with all contents that were ever put under it.
struct Slot {
    id: ObjectId,
    longest: usize,
    lives: Mutex<Vec<Life>>,
}

/// State that all workers share.
struct Ground {
    sockets: Vec<PathBuf>,
    slots: Vec<Slot>,
    /// Number of fetches still to be made.
    left: AtomicUsize,
    /// Number of deaths of each node, counted before the kill.
    deaths: Vec<AtomicUsize>,
    /// For each worker, the time at which its call has to end, and a description of the call.
    calls: Vec<Mutex<Option<(Instant, String)>>>,
    /// Number of calls by how they ended.
    ends: Mutex<BTreeMap<String, usize>>,
}

impl Ground {
    fn deaths(&self, node: usize) -> usize {
        self.deaths[node].load(Ordering::SeqCst)
    }

    fn any_death(&self) -> bool {
        self.deaths.iter().any(|deaths| deaths.load(Ordering::SeqCst) > 0)
    }
}

/// Client of one node, which connects again after its daemon was killed.
struct Worker {
    ground: Arc<Ground>,
    number: usize,
    node: usize,
    chance: Chance,
    client: Client,
    /// Number of deaths of the node before the worker connected.
    deaths: usize,
    held: VecDeque<(Life, Object)>,
}

impl Worker {
    fn new(ground: &Arc<Ground>, number: usize, chance: Chance) -> Self {
        let node = number % NODES;
        let deaths = ground.deaths(node);
        let client = Client::connect(&ground.sockets[node]).expect("nobody has died yet");
        Self { ground: Arc::clone(ground), number, node, chance, client, deaths, held: VecDeque::new() }
    }

    /// Makes a call that must end in time.
    fn call<T>(
        &mut self,
        what: &str,
        limit: Duration,
        call: impl FnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (begun, name) = (Instant::now(), what);
        let what = format!("{what} on node {} within {limit:?}", self.node);
        *self.ground.calls[self.number].lock().unwrap() =
            Some((begun + limit + DISTURBANCE + SLACK, what.clone()));
        let result = call(&self.client);
        *self.ground.calls[self.number].lock().unwrap() = None;
        ended_in_time(&what, begun, limit + DISTURBANCE);
        let end = result.as_ref().map_or_else(|error| format!("{:?}", error.kind()), |_| "well".to_owned());
        *self.ground.ends.lock().unwrap().entry(format!("{name}: {end}")).or_default() += 1;
        if let Err(error) = &result
            && error.kind() == ErrorKind::Disconnected
        {
            self.connect(error);
        }
        result
    }

    /// Connects again after the daemon was killed. Nothing else ends a connection.
    fn connect(&mut self, reason: &Error) {
        // A node that cannot be reached for a deletion is another one's death.
        if self.client.status().is_ok() {
            assert!(self.ground.any_death(), "nobody died: {reason}");
            return;
        }
        assert!(self.ground.deaths(self.node) > self.deaths, "its daemon lives: {reason}");
        let connected = patiently(PATIENCE, || {
            self.deaths = self.ground.deaths(self.node);
            Client::connect(&self.ground.sockets[self.node])
        });
        self.client = connected.unwrap_or_else(|error| panic!("node {}: {error}", self.node));
    }

    fn work(&mut self) {
        while self.ground.left.load(Ordering::SeqCst) > 0 {
            match self.chance.below(100) {
                0..75 => self.get(),
                75..85 => self.evict(),
                85..92 => {
                    let slot = self.chance.below(OBJECTS);
                    self.put_anew(slot);
                }
                _ => self.let_go(),
            }
        }
        while !self.held.is_empty() {
            self.let_go();
        }
    }

    fn get(&mut self) {
        let ground = Arc::clone(&self.ground);
        let number = self.chance.below(OBJECTS);
        let slot = &ground.slots[number];
        let patience = Duration::from_millis(*self.chance.pick(&[0, 20, 300, 1000]));
        let here = self.client.get_here(&slot.id).is_some();
        let get = |client: &Client| client.get(&[slot.id], Some(patience))?.remove(0);
        match self.call("a get", patience, get) {
            Ok(object) => {
                if !here {
                    // The last ones may go below nothing.
                    let _ =
                        ground.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
                }
                let life = Life::of(&object);
                assert!(slot.lives.lock().unwrap().contains(&life), "it was never put under this id");
                if self.chance.percent(20) {
                    self.held.push_back((life, object));
                }
                if self.held.len() > 3 {
                    self.let_go();
                }
            }
            Err(error) => {
                match error.kind() {
                    ErrorKind::TimedOut | ErrorKind::Disconnected => {}
                    ErrorKind::NotFound => assert!(patience.is_zero(), "{error}"),
                    ErrorKind::Lost => assert!(ground.any_death(), "nobody died: {error}"),
                    other => panic!("a get within {patience:?}: {other:?}: {error}"),
                }
                if self.chance.percent(70) {
                    self.put_anew(number);
                }
            }
        }
    }

    /// Releases held objects, and checks that they have not changed.
    fn let_go(&mut self) {
        if let Some((life, object)) = self.held.pop_front() {
            assert!(Life::of(&object) == life);
        }
    }

    fn evict(&mut self) {
        let bytes = if self.chance.percent(50) { u64::MAX } else { 4 * MIB as u64 };
        let evicted = self.call("an eviction", Duration::ZERO, |client| client.evict(bytes));
        self.only_by_death(evicted);
    }

    /// Deletes an object and puts another under its id.
    fn put_anew(&mut self, slot: usize) {
        let ground = Arc::clone(&self.ground);
        let slot = &ground.slots[slot];
        let deleted = self.call("a deletion", DELETION, |client| client.delete(&[slot.id]));
        self.only_by_death(deleted);
        let len = match slot.longest {
            long if long > 16 * MIB => 16 * MIB + self.chance.below(long - 16 * MIB),
            long => self.chance.below(long + 1),
        };
        let life = Life { seed: self.chance.word(), len };
        slot.lives.lock().unwrap().push(life);
        let data = Pattern(life.seed).bytes(len);
        let put = |client: &Client| client.put(slot.id, &data, &life.metadata(), &CreateOptions::default());
        match self.call("a put", Duration::ZERO, put) {
            // Another worker was faster, or a replica has not gone yet.
            Err(error) if error.kind() == ErrorKind::Exists => {}
            result => self.only_by_death(result),
        }
    }

    fn only_by_death<T>(&self, result: Result<T, Error>) {
        if let Err(error) = result {
            let explained = [ErrorKind::Disconnected, ErrorKind::TimedOut, ErrorKind::OutcomeUnknown];
            let explained = explained.contains(&error.kind());
            assert!(explained && self.ground.any_death(), "{:?}: {error}", error.kind());
        }
    }
}

/// Number of descriptors of a daemon, and size in bytes of its own memory.
pub(super) fn has(cluster: &Cluster, node: usize) -> (usize, u64) {
    (descriptors(cluster, node), own_memory(cluster, node))
}

/// Description of what a node still holds, fetches or knows. `None` if it is nothing.
pub(super) fn left(cluster: &Cluster, node: usize) -> Option<String> {
    let status = cluster.status(node);
    let (objects, transfer) = (&status.objects, &status.transfer);
    let counts = [
        ("bytes used", status.memory.used),
        ("pinned", objects.pinned),
        ("unsealed", objects.unsealed),
        ("doomed", objects.doomed),
        ("leases", transfer.leases),
        ("fetching", transfer.fetching),
        ("known to the directory", status.cluster.directory_entries),
    ];
    let left: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    (!left.is_empty()).then(|| format!("node {node}: {left:?} of\n{status:?}"))
}

/// Waits until every node knows every other node.
fn complete(cluster: &Cluster) {
    eventually("every node knows every node", || {
        (0..NODES).all(|node| {
            let members = cluster.status(node).cluster.members;
            members.len() == NODES
                && (0..NODES).all(|other| {
                    let id = cluster.status(other).node;
                    members.iter().any(|member| member.node == id)
                })
        })
    });
}

/// Checks that every node gets a new object from every other node.
fn all_reach_all(cluster: &Cluster, chance: &mut Chance) {
    let options = CreateOptions::default();
    for home in 0..NODES {
        for len in [1000, MIB] {
            let (id, life) = (ObjectId::random(), Life { seed: chance.word(), len });
            let client = cluster.client(home);
            client.put(id, &Pattern(life.seed).bytes(len), &life.metadata(), &options).expect("put");
            for node in 0..NODES {
                let got = cluster.client(node).get(&[id], Some(PATIENCE)).expect("get").remove(0);
                assert!(Life::of(&got.expect("nobody is dead")) == life);
            }
            client.delete(&[id]).expect("delete");
        }
    }
}

/// Kills nodes and starts them again until the workers are done.
fn torment(
    cluster: &mut Cluster,
    ground: &Ground,
    workers: &[JoinHandle<()>],
    spared: usize,
    chance: &mut Chance,
) {
    let done = || {
        for call in &ground.calls {
            let call = call.lock().unwrap().clone();
            assert!(call.as_ref().is_none_or(|(due, _)| Instant::now() < *due), "it hangs: {call:?}");
        }
        workers.iter().all(JoinHandle::is_finished)
    };
    let rest = |span| let_pass_unless(span, "the pause between two deaths is drawn", &done);
    // Auto is what people use.
    let protocols = [Protocol::Auto, Protocol::Auto, Protocol::Send, Protocol::Read, Protocol::ReadRegister];
    rest(chance.span(Duration::from_secs(1)));
    while !done() {
        let victim = (spared + 1 + chance.below(NODES - 1)) % NODES;
        ground.deaths[victim].fetch_add(1, Ordering::SeqCst);
        cluster.kill(victim);
        rest(chance.span(Duration::from_secs(1)));
        cluster.start_again(victim, &["--protocol", chance.pick(&protocols).name()]);
        rest(chance.span(Duration::from_secs(2)));
    }
}

#[test]
fn whoever_is_killed_gets_are_right_or_fail_in_time_and_nothing_is_left() {
    let mut chance = Chance::of_this_run("chaos");
    let mut cluster = Cluster::builder().nodes(NODES).memory("256MiB").start();
    let spared = chance.below(NODES);
    all_reach_all(&cluster, &mut chance);
    let before = has(&cluster, spared);

    let longest = |number: usize| match number {
        0 => 0,
        number if number < STRIPED + 1 => 24 * MIB,
        number => [100, 16 << 10, 20 << 10, 200_000, MIB, 4 * MIB][number % 6],
    };
    let slots = (0..OBJECTS)
        .map(|number| Slot { id: ObjectId::random(), longest: longest(number), lives: Mutex::default() })
        .collect();
    let ground = Arc::new(Ground {
        sockets: (0..NODES).map(|node| cluster.socket(node)).collect(),
        slots,
        left: AtomicUsize::new(fetches()),
        deaths: (0..NODES).map(|_| AtomicUsize::new(0)).collect(),
        calls: (0..WORKERS).map(|_| Mutex::default()).collect(),
        ends: Mutex::default(),
    });
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            let mut worker = Worker::new(&ground, number, chance.split());
            thread::spawn(move || {
                (number..OBJECTS).step_by(WORKERS).for_each(|slot| worker.put_anew(slot));
                worker.work();
            })
        })
        .collect();
    torment(&mut cluster, &ground, &workers, spared, &mut chance);
    for worker in workers {
        worker.join().expect("a worker found something wrong");
    }

    eprintln!("chaos: deaths {:?}, {:?}", ground.deaths, ground.ends.lock().unwrap());

    // Calm again: every id can be had anew, and every node sees the new object.
    complete(&cluster);
    all_reach_all(&cluster, &mut chance);
    let clients: Vec<_> = (0..NODES).map(|node| cluster.client(node)).collect();
    for slot in &ground.slots {
        let (home, life) = (chance.below(NODES), Life { seed: chance.word(), len: slot.longest });
        slot.lives.lock().unwrap().push(life);
        let data = Pattern(life.seed).bytes(life.len);
        eventually("the id is free", || {
            clients[chance.below(NODES)].delete(&[slot.id]).expect("delete");
            let put = clients[home].put(slot.id, &data, &life.metadata(), &CreateOptions::default());
            put.inspect_err(|error| assert_eq!(error.kind(), ErrorKind::Exists, "{error}")).is_ok()
        });
        for client in &clients {
            eventually("the new object is seen", || {
                let got = client.get(&[slot.id], Some(PATIENCE)).expect("get").remove(0);
                let seen = Life::of(&got.expect("it is there"));
                assert!(slot.lives.lock().unwrap().contains(&seen), "it was never put under this id");
                seen == life
            });
        }
        clients[0].delete(&[slot.id]).expect("delete");
    }
    drop(clients);

    // Nothing is left.
    let deadline = Instant::now() + PATIENCE;
    while let Some(left) = (0..NODES).find_map(|node| left(&cluster, node)) {
        assert!(Instant::now() < deadline, "{left}");
    }
    all_reach_all(&cluster, &mut chance);
    // Two nodes that connect to each other at the same moment may keep both connections, on each lane.
    let crossed = 2 * (NODES - 1);
    eventually("descriptors are as many as before", || has(&cluster, spared).0 <= before.0 + crossed);
    let (_, own) = has(&cluster, spared);
    assert!(own < before.1 + 32 * MIB as u64, "{own} bytes instead of {}", before.1);
}
