//! Tests of a link that is down for a while in the middle of batches, for less and for longer than the lease.
//!
//! A client on each of two nodes puts objects of 1 KiB, gets those of the other in batches, has others come
//! ahead, and deletes some. The link goes down in the middle and comes back. Nobody dies: so what was
//! acknowledged is there, what was deleted stays away, and each object has been fetched once.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use plasmon::{Client, CreateOptions, DeleteOutcome, Error, ErrorKind, ObjectId, Presence};
use plasmon_e2e::wait::{let_pass, let_pass_unless, patiently};
use plasmon_e2e::{Chance, Cluster, PATIENCE, Pattern, eventually, own_namespaces};

use super::calm::complete;
use super::deaths::left;

/// Length in bytes of an object.
const LEN: usize = 1 << 10;
/// Number of objects of a batch.
const BATCH: u64 = 64;
/// Number of rounds before the link goes down, and after it is back.
const ROUNDS: u64 = 3;
/// Time-out of a get.
const GET_PATIENCE: Duration = Duration::from_secs(5);
/// Time that anything may take although the link is down meanwhile.
const OUTAGE_PATIENCE: Duration = Duration::from_secs(120);
/// Lot of the objects that the other node gets and deletes in a round.
const DELETED: u64 = 0;
/// Lot of the objects that come to the other node ahead in a round.
const AHEAD: u64 = 1;

/// State that both sides share.
struct Ground {
    seed: u64,
    sockets: Vec<PathBuf>,
    /// Number of rounds of which all objects were put, for each side.
    put: [AtomicU64; 2],
    /// Number of rounds that are done, for each side.
    done: [AtomicU64; 2],
    /// Number of rounds to make.
    last: AtomicU64,
}

impl Ground {
    /// A lot of a round: the objects of a node, each with its bytes.
    fn lot(&self, node: usize, round: u64, kind: u64) -> Vec<(ObjectId, Pattern)> {
        let name = |number| format!("{} {node} {round} {kind} {number}", self.seed);
        let pattern = |number| Pattern(self.seed ^ (node as u64) << 60 ^ round << 8 ^ kind << 7 ^ number);
        (0..BATCH).map(|number| (ObjectId::from_name(&name(number)), pattern(number))).collect()
    }
}

/// The client of a node.
struct Side {
    ground: Arc<Ground>,
    node: usize,
    client: Client,
    /// Number of calls that have failed, for people.
    failures: usize,
    /// Number of objects that may have come twice.
    twice: u64,
}

impl Side {
    /// Makes the rounds. Returns how many calls have failed, and how many objects may have come twice.
    fn work(mut self) -> (usize, u64) {
        let (ground, other) = (Arc::clone(&self.ground), 1 - self.node);
        for round in 0.. {
            if round >= ground.last.load(Ordering::SeqCst) {
                break;
            }
            for kind in [DELETED, AHEAD] {
                ground.lot(self.node, round, kind).into_iter().for_each(|object| self.put(object));
            }
            ground.put[self.node].store(round + 1, Ordering::SeqCst);
            let is_there = || (ground.put[other].load(Ordering::SeqCst) > round).then_some(()).ok_or(());
            patiently(OUTAGE_PATIENCE, is_there).expect("the other side puts its objects");
            let [deleted, ahead] = [DELETED, AHEAD].map(|kind| ground.lot(other, round, kind));
            self.get(&deleted);
            let ids: Vec<_> = ahead.iter().map(|(id, _)| *id).collect();
            self.again("a prefetch", |client| client.prefetch(&ids, GET_PATIENCE));
            let is_here = |id: &&ObjectId| self.client.get_here(id).is_some();
            let why = "what comes ahead gives up then";
            let_pass_unless(GET_PATIENCE, why, || ids.iter().all(|id| is_here(&id)));
            // An object comes twice if a get asks for it while it still comes ahead.
            self.twice += ids.iter().filter(|id| !is_here(id)).count() as u64;
            self.get(&ahead);
            self.delete(&deleted);
            ground.done[self.node].store(round + 1, Ordering::SeqCst);
        }
        (self.failures, self.twice)
    }

    /// Makes a call until it succeeds. It may fail for lack of the link.
    fn again<T>(&mut self, what: &str, mut call: impl FnMut(&Client) -> Result<T, Error>) -> T {
        let mut failures = 0;
        let result = patiently(OUTAGE_PATIENCE, || {
            call(&self.client).inspect_err(|error| {
                failures += 1;
                let kinds = [ErrorKind::TimedOut, ErrorKind::OutcomeUnknown, ErrorKind::Disconnected];
                assert!(kinds.contains(&error.kind()), "{what}: {:?}: {error}", error.kind());
            })
        });
        self.failures += failures;
        result.unwrap_or_else(|error| panic!("{what} on node {}: {error}", self.node))
    }

    fn put(&mut self, (id, pattern): (ObjectId, Pattern)) {
        let (data, mut tries) = (pattern.bytes(LEN), 0);
        self.again("a put", |client| {
            tries += 1;
            match client.put(id, &data, b"", &CreateOptions::default()) {
                // An earlier try stored the object, although nobody could say so.
                Err(error) if error.kind() == ErrorKind::Exists && tries > 1 => Ok(()),
                end => end,
            }
        });
    }

    /// Gets a batch, and those objects of it again that did not come.
    fn get(&mut self, objects: &[(ObjectId, Pattern)]) {
        let mut left = objects.to_vec();
        let got = patiently(OUTAGE_PATIENCE, || self.get_once(&mut left).map_or(Ok(()), Err));
        got.unwrap_or_else(|error| panic!("a get on node {}: {error}", self.node));
    }

    /// Gets those objects that are left. Returns why one of them did not come.
    fn get_once(&mut self, left: &mut Vec<(ObjectId, Pattern)>) -> Option<Error> {
        let ids: Vec<_> = left.iter().map(|(id, _)| *id).collect();
        let results = self.again("a get", |client| client.get(&ids, Some(GET_PATIENCE)));
        let mut last = None;
        for (object, result) in std::mem::take(left).into_iter().zip(results) {
            match result {
                Ok(got) => {
                    assert_eq!(got.data().len(), LEN);
                    object.1.check(got.data());
                }
                Err(error) => {
                    // Lost, while its holder is taken for dead.
                    let kinds = [ErrorKind::TimedOut, ErrorKind::Lost];
                    assert!(kinds.contains(&error.kind()), "{:?}: {error}", error.kind());
                    left.push(object);
                    last = Some(error);
                }
            }
        }
        self.failures += usize::from(last.is_some());
        last
    }

    /// Deletes a batch. What is said to have been absent was deleted by a call that did not know its end.
    fn delete(&mut self, objects: &[(ObjectId, Pattern)]) {
        let ids: Vec<_> = objects.iter().map(|(id, _)| *id).collect();
        let mut tries = 0;
        let outcomes = self.again("a deletion", |client| {
            tries += 1;
            client.delete(&ids)
        });
        let is_right = |outcome: &DeleteOutcome| match outcome {
            DeleteOutcome::Absent => tries > 1,
            _ => true,
        };
        assert!(outcomes.iter().all(is_right), "after {tries} tries: {outcomes:?}");
    }
}

/// Number of objects that a node has fetched.
fn fetched(cluster: &Cluster, node: usize) -> u64 {
    cluster.status(node).transfer.protocols.values().map(|count| count.fetched).sum()
}

/// Takes the link away for so long, or stops a node where there are no links.
fn link_down(cluster: &Cluster, span: Duration) {
    if own_namespaces() {
        cluster.unplug(1);
    } else {
        cluster.pause(1);
    }
    let_pass(span, "for so long the link is down");
    if own_namespaces() {
        cluster.plug(1);
    } else {
        cluster.resume(1);
    }
}

fn outage_amid_batches(span: Duration, is_noticed: bool) {
    let seed = Chance::of_this_run(&format!("a link down for {span:?}")).word();
    let cluster = Cluster::builder().nodes(2).args(&["--lease", "5"]).start();
    let ground = Arc::new(Ground {
        seed,
        sockets: (0..2).map(|node| cluster.socket(node)).collect(),
        put: Default::default(),
        done: Default::default(),
        last: AtomicU64::new(u64::MAX),
    });
    let sides = [0, 1].map(|node| {
        let client = Client::connect(&ground.sockets[node]).expect("it serves");
        let side = Side { ground: Arc::clone(&ground), node, client, failures: 0, twice: 0 };
        thread::spawn(move || side.work())
    });
    let done = || ground.done.iter().map(|done| done.load(Ordering::SeqCst)).min().expect("two sides");
    let goes_on = |from: u64| {
        let is_well = || !sides.iter().any(thread::JoinHandle::is_finished);
        let gone_on = patiently(OUTAGE_PATIENCE, || {
            assert!(is_well(), "a side has failed: see above");
            if done() >= from + ROUNDS { Ok(()) } else { Err(()) }
        });
        gone_on.unwrap_or_else(|()| panic!("no round has ended since round {from}"));
    };
    goes_on(0);
    let epoch = cluster.status(0).cluster.epoch;
    link_down(&cluster, span);
    goes_on(done());
    // No side has begun the round after the next one of the other.
    let last = ground.put.iter().map(|put| put.load(Ordering::SeqCst)).max().expect("two sides") + 2;
    ground.last.store(last, Ordering::SeqCst);
    let ends = sides.map(|side| side.join().expect("a side found something wrong"));
    eprintln!("{last} rounds; calls that failed, and objects that may have come twice: {ends:?}");
    complete(&cluster);
    let changed = cluster.status(0).cluster.epoch > epoch;
    assert!(changed || !is_noticed, "nobody has noticed that the link was down");

    let expected = 2 * BATCH * last;
    for (node, (_, twice)) in ends.into_iter().enumerate() {
        let fetched = fetched(&cluster, node);
        assert!((expected..=expected + twice).contains(&fetched), "node {node}: {fetched}, not {expected}");
    }
    look(&cluster, &ground, last);
    let is_clean = patiently(PATIENCE, || (0..2).find_map(|node| left(&cluster, node)).map_or(Ok(()), Err));
    is_clean.unwrap_or_else(|left| panic!("{left}"));
}

/// Checks of all objects that they are there, or were deleted; then deletes the rest.
fn look(cluster: &Cluster, ground: &Ground, last: u64) {
    let clients = [cluster.client(0), cluster.client(1)];
    for (round, home) in (0..last).flat_map(|round| [(round, 0), (round, 1)]) {
        let deleted: Vec<_> = ground.lot(home, round, DELETED).into_iter().map(|(id, _)| id).collect();
        let (ids, patterns): (Vec<_>, Vec<_>) = ground.lot(home, round, AHEAD).into_iter().unzip();
        for client in &clients {
            let presence = client.contains(&deleted).expect("contains");
            assert!(presence.iter().all(|one| *one == Presence::Absent), "round {round} of node {home}");
            let got = client.get(&ids, Some(PATIENCE)).expect("get");
            for (pattern, object) in patterns.iter().zip(got) {
                pattern.check(object.expect("it was acknowledged").data());
            }
        }
        eventually("what is left of the round is deleted", || clients[1 - home].delete(&ids).is_ok());
    }
}

#[test]
fn batches_survive_a_link_that_is_down_for_less_than_the_lease() {
    outage_amid_batches(Duration::from_secs(2), false);
}

#[test]
fn batches_survive_a_link_that_is_down_for_longer_than_the_lease() {
    outage_amid_batches(Duration::from_secs(12), true);
}
