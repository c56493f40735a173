//! Test of deaths in the middle of a push: a node dies or stops while objects of 8 KiB to 256 KiB come to it,
//! or from it, by messages or by one-sided writes.
//!
//! In each round a node puts objects, and clients of another get them again and again. While they are pushed,
//! one of the two is killed, or stopped for less or for longer than its lease. Every byte that a client gets
//! is checked. A get ends in time, and fails only for a reason that the death explains. What was acknowledged
//! is there afterwards, unless all nodes that were to keep it have died. In the end nothing is left over.
//! `PLASMON_E2E_SEED` sets the seed, which determines what is put and who dies, but not how the calls
//! interleave.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::transfer::Calibration;
use plasmon::{Client, CreateOptions, Error, ErrorKind, ObjectId};
use plasmon_e2e::wait::{ended_in_time, let_pass, patiently};
use plasmon_e2e::{Chance, Cluster, PATIENCE, Pattern, eventually};

use super::calm::complete;
use super::deaths::{has, left};
use crate::support::MIB;

/// Number of nodes. The first has the coordinator, and is spared.
const NODES: usize = 3;
/// Number of clients that get objects.
const GETTERS: usize = 4;
/// Number of objects of a round. Every third of them is put with two replicas. Each is pushed to a node once,
/// and read where it lies the next time, so the deaths come amid the first gets.
const OBJECTS: usize = 60;
/// Largest number of pushes before a death. Some objects come otherwise: the first ones, and those for which
/// the window has no room.
const PUSHES_BEFORE_DEATH: usize = 10;
/// Lengths in bytes of the objects.
const LENGTHS: std::ops::RangeInclusive<usize> = 8 << 10..=256 << 10;
/// The cluster's lease.
const LEASE: Duration = Duration::from_secs(3);
/// Time that a call may take beyond its time-out, because nodes die and start meanwhile.
const DISTURBANCE: Duration = Duration::from_secs(10);
/// Number of changes of the members by a death of which the cluster learns: the node goes, and comes.
const CHANGES: u64 = 2;

/// Number of deaths with each way of pushing.
fn deaths() -> usize {
    if std::env::var_os("PLASMON_E2E_LONG").is_some() { 100 } else { 4 }
}

/// Way in which objects come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Messages,
    Writes,
}

impl By {
    /// Starts the nodes.
    fn cluster(self) -> Cluster {
        let push = if self == Self::Messages { "messages" } else { "write" };
        let lease = LEASE.as_secs().to_string();
        let builder = Cluster::builder().nodes(0).memory("64MiB");
        let mut cluster = builder.args(&["--push", push, "--lease", &lease]).start();
        if self == Self::Messages {
            // The settings are those of a calibration that lets objects of all lengths come in messages.
            let provider = "tcp;ofi_rxm".to_owned();
            let eager_max = *LENGTHS.end() as u32;
            let calibration = Calibration { provider, eager_max, ..Calibration::default() };
            let folder = cluster.folder().join("plasmon");
            fs::create_dir_all(&folder).expect("the folder is ours");
            let text = serde_json::to_vec(&[calibration]).expect("it is plain data");
            fs::write(folder.join("calibration.json"), text).expect("the folder is ours");
        }
        (0..NODES).for_each(|_| _ = cluster.add_node());
        cluster
    }

    /// Number of objects that have been pushed to a node.
    fn pushed(self, client: &Client) -> u64 {
        let transfer = client.status().expect("the node answers").transfer;
        match self {
            Self::Messages => transfer.eager_fetched,
            Self::Writes => transfer.pushed_fetched,
        }
    }
}

/// Fault of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    /// SIGKILL, and after this time another start.
    Kill(Duration),
    /// SIGSTOP, and after this time SIGCONT.
    Stop(Duration),
}

/// Plan of a round.
#[derive(Debug, Clone, Copy)]
struct Plan {
    holder: usize,
    asker: usize,
    victim: usize,
    death: Death,
    /// Number of pushes after which the death happens, and the time between the last of them and the death.
    after: (u64, Duration),
}

impl Plan {
    fn draw(chance: &mut Chance) -> Self {
        let (holder, asker) = *chance.pick(&[(0, 1), (0, 2), (1, 0), (2, 0), (1, 2), (2, 1)]);
        let victim = match (holder, asker) {
            (0, other) | (other, 0) => other,
            both => *chance.pick(&[both.0, both.1]),
        };
        let death = match chance.below(100) {
            0..55 => Death::Kill(chance.span(Duration::from_millis(500))),
            55..85 => Death::Stop(chance.span(LEASE / 3)),
            _ => Death::Stop(LEASE + Duration::from_millis(500) + chance.span(LEASE / 2)),
        };
        let pushes = 1 + chance.below(PUSHES_BEFORE_DEATH) as u64;
        let after = (pushes, chance.span(Duration::from_millis(3)));
        Self { holder, asker, victim, death, after }
    }

    /// Whether the victim's memory goes.
    fn kills(&self) -> bool {
        matches!(self.death, Death::Kill(_))
    }

    /// Whether the others take the victim for dead.
    fn is_noticed(&self) -> bool {
        !matches!(self.death, Death::Stop(span) if span < LEASE)
    }
}

/// An object whose put has succeeded.
#[derive(Debug, Clone, Copy)]
struct Stored {
    id: ObjectId,
    pattern: Pattern,
    len: usize,
    copies: u16,
}

impl Stored {
    fn put(client: &Client, chance: &mut Chance, copies: u16) -> Self {
        let (id, pattern) = (ObjectId::random(), Pattern(chance.word()));
        let len = LENGTHS.start() + chance.below(LENGTHS.end() - LENGTHS.start() + 1);
        let options = CreateOptions { replicas: copies, fresh: true, ..CreateOptions::default() };
        client.put(id, &pattern.bytes(len), b"", &options).expect("put");
        Self { id, pattern, len, copies }
    }

    fn check(&self, data: &[u8]) {
        assert_eq!(data.len(), self.len);
        self.pattern.check(data);
    }
}

/// State that the clients of a round share.
struct Round {
    plan: Plan,
    stored: Vec<Stored>,
    /// Socket of the spared node.
    spared: PathBuf,
    /// Epoch of the spared node at the beginning.
    epoch: u64,
    /// Whether the death has begun.
    is_struck: AtomicBool,
    is_over: AtomicBool,
    /// Number of objects that were got.
    got: AtomicU64,
    /// Number of calls that are open.
    open: AtomicU64,
}

impl Round {
    fn struck(&self) -> bool {
        self.is_struck.load(Ordering::SeqCst)
    }

    /// Whether more nodes have come or gone than by the death: a machine may be so busy that a node cannot
    /// renew its lease.
    fn is_disturbed(&self) -> bool {
        let status = Client::connect(self.spared.as_path()).and_then(|client| client.status());
        let epoch = status.expect("the spared node answers").cluster.epoch;
        let expected = if self.plan.is_noticed() && self.struck() { CHANGES } else { 0 };
        epoch > self.epoch + expected
    }

    /// Checks that a get had a reason to fail.
    fn judge(&self, stored: &Stored, patience: Duration, error: &Error) {
        let Plan { holder, victim, .. } = self.plan;
        let explained = match error.kind() {
            ErrorKind::TimedOut => self.struck() || patience < DISTURBANCE || self.is_disturbed(),
            ErrorKind::Lost => {
                let is_lost = self.struck() && victim == holder && self.plan.is_noticed();
                (is_lost && stored.copies == 1) || self.is_disturbed()
            }
            _ => false,
        };
        assert!(explained, "{:?}: {stored:?}: {:?}: {error}", self.plan, error.kind());
    }
}

/// A client that gets the objects of a round.
struct Getter {
    round: Arc<Round>,
    client: Client,
    chance: Chance,
    ends: BTreeMap<String, usize>,
}

impl Getter {
    /// Gets all objects again and again. Returns how its gets have ended.
    fn work(mut self) -> BTreeMap<String, usize> {
        let round = Arc::clone(&self.round);
        let mut stored = round.stored.clone();
        loop {
            self.chance.shuffle(&mut stored);
            for lot in stored.chunks(*self.chance.pick(&[1, 1, 6])) {
                if round.is_over.load(Ordering::SeqCst) {
                    return self.ends;
                }
                round.open.fetch_add(1, Ordering::SeqCst);
                let lives = self.get(lot);
                round.open.fetch_sub(1, Ordering::SeqCst);
                if !lives {
                    return self.ends;
                }
            }
            // Objects here are not pushed, so all are evicted. A stopped or dead node evicts nothing.
            if let Err(error) = self.client.clone().within(DISTURBANCE).evict(u64::MAX) {
                assert!(round.struck(), "{error}");
            }
        }
    }

    /// Gets some objects. Returns whether the node lives.
    fn get(&mut self, lot: &[Stored]) -> bool {
        let (begun, round) = (Instant::now(), Arc::clone(&self.round));
        let patience = *self.chance.pick(&[Duration::from_millis(300), Duration::from_secs(1), PATIENCE / 4]);
        let ids: Vec<_> = lot.iter().map(|stored| stored.id).collect();
        let results = self.client.get(&ids, Some(patience));
        ended_in_time("a get", begun, patience + DISTURBANCE);
        let results = match results {
            Ok(results) => results,
            Err(error) if error.kind() == ErrorKind::Disconnected => {
                let Plan { asker, victim, .. } = round.plan;
                assert!(round.plan.kills() && asker == victim && round.struck(), "{error}");
                return false;
            }
            Err(error) => {
                self.note(&format!("{:?}", error.kind()));
                round.judge(&lot[0], patience, &error);
                return true;
            }
        };
        for (stored, result) in lot.iter().zip(results) {
            match result {
                Ok(object) => {
                    stored.check(object.data());
                    round.got.fetch_add(1, Ordering::SeqCst);
                    self.note("well");
                }
                Err(error) => {
                    self.note(&format!("{:?}", error.kind()));
                    round.judge(stored, patience, &error);
                }
            }
        }
        true
    }

    fn note(&mut self, end: &str) {
        *self.ends.entry(end.to_owned()).or_default() += 1;
    }
}

/// Has a node die or stop as planned, until it is a member again.
fn strike(cluster: &mut Cluster, plan: &Plan) {
    match plan.death {
        Death::Kill(span) => {
            cluster.kill(plan.victim);
            let_pass(span, "the time until a dead node starts again is drawn");
            cluster.start_again(plan.victim, &[]);
        }
        Death::Stop(span) => {
            cluster.pause(plan.victim);
            let_pass(span, "for so long the node stands still");
            cluster.resume(plan.victim);
        }
    }
    if plan.is_noticed() {
        complete(cluster);
    }
}

/// Makes one death. Returns how gets have ended, the number of calls that it met, and the objects.
fn die(
    cluster: &mut Cluster,
    by: By,
    plan: Plan,
    chance: &mut Chance,
) -> (BTreeMap<String, usize>, u64, Vec<Stored>) {
    let holder = cluster.client(plan.holder);
    let stored: Vec<_> = (0..OBJECTS)
        .map(|number| Stored::put(&holder, chance, if number % 3 == 0 { 2 } else { 1 }))
        .collect();
    let round = Arc::new(Round {
        plan,
        stored: stored.clone(),
        spared: cluster.socket(0),
        epoch: cluster.status(0).cluster.epoch,
        is_struck: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
        got: AtomicU64::new(0),
        open: AtomicU64::new(0),
    });
    let looker = cluster.client(plan.asker);
    let before = by.pushed(&looker);
    let getters: Vec<_> = (0..GETTERS)
        .map(|_| {
            let (client, chance) = (cluster.client(plan.asker), chance.split());
            let getter = Getter { round: Arc::clone(&round), client, chance, ends: BTreeMap::new() };
            thread::spawn(move || getter.work())
        })
        .collect();
    let is_well = || assert!(!getters.iter().any(|getter| getter.is_finished()), "a getter failed: {plan:?}");
    eventually("pushes flow", || {
        is_well();
        by.pushed(&looker) >= before + plan.after.0
    });
    drop(looker);
    let_pass(plan.after.1, "the moment of the death is drawn");
    round.is_struck.store(true, Ordering::SeqCst);
    let open = round.open.load(Ordering::SeqCst);
    strike(cluster, &plan);
    if !(plan.kills() && plan.victim == plan.asker) {
        let got = round.got.load(Ordering::SeqCst);
        eventually("objects come again", || {
            is_well();
            round.got.load(Ordering::SeqCst) > got + OBJECTS as u64
        });
    }
    round.is_over.store(true, Ordering::SeqCst);
    let mut ends = BTreeMap::new();
    for getter in getters {
        let own = getter.join().expect("a getter found something wrong");
        own.into_iter().for_each(|(end, count)| *ends.entry(end).or_default() += count);
    }
    look(cluster, &round);
    (ends, open, stored)
}

/// Checks that what was acknowledged is there, for the asker and for the spared node, unless all nodes that
/// were to keep it have died.
fn look(cluster: &Cluster, round: &Round) {
    let Plan { holder, asker, victim, .. } = round.plan;
    let stays = |stored: &Stored| !round.plan.kills() || victim != holder || stored.copies > 1;
    let (kept, lost): (Vec<_>, Vec<_>) = round.stored.iter().copied().partition(stays);
    let ids: Vec<_> = lost.iter().map(|stored| stored.id).collect();
    for client in [cluster.client(asker), cluster.client(0)] {
        for stored in &kept {
            let got = patiently(PATIENCE, || client.get(&[stored.id], Some(PATIENCE))?.remove(0));
            let object = got.unwrap_or_else(|error| panic!("{:?}: {stored:?}: {error}", round.plan));
            stored.check(object.data());
        }
        let results = client.get(&ids, Some(Duration::from_secs(1))).expect("the node lives");
        for (stored, result) in lost.iter().zip(results) {
            match result {
                Ok(object) => stored.check(object.data()),
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Lost | ErrorKind::TimedOut), "{error}")
                }
            }
        }
    }
}

/// Deletes objects behind the rounds, since a deletion waits for clients of nodes that have died.
fn cleaner(socket: PathBuf) -> (Sender<Vec<Stored>>, thread::JoinHandle<()>) {
    let (sender, lots) = channel::<Vec<Stored>>();
    let cleaning = thread::spawn(move || {
        let client = Client::connect(socket).expect("the spared node serves");
        for lot in lots {
            let ids: Vec<_> = lot.iter().map(|stored| stored.id).collect();
            let deleted = patiently(4 * PATIENCE, || client.delete(&ids).map(drop));
            deleted.unwrap_or_else(|error| panic!("objects cannot be deleted: {error}"));
        }
    });
    (sender, cleaning)
}

fn deaths_amid_pushes(by: By) {
    let mut chance = Chance::of_this_run(&format!("deaths amid pushes by {by:?}"));
    let mut cluster = by.cluster();
    let (lots, cleaning) = cleaner(cluster.socket(0));
    let mut before = None;
    let (mut ends, mut met) = (BTreeMap::<String, usize>::new(), 0);
    for death in 0..deaths() {
        let plan = Plan::draw(&mut chance);
        eprintln!("death {death}: {plan:?}");
        let (own, open, stored) = die(&mut cluster, by, plan, &mut chance);
        own.into_iter().for_each(|(end, count)| *ends.entry(end).or_default() += count);
        met += usize::from(open > 0);
        lots.send(stored).expect("the cleaner lives");
        assert!(!cleaning.is_finished(), "the cleaner failed");
        // Connections, windows and blocks are there from the first round on.
        before.get_or_insert_with(|| has(&cluster, 0));
    }
    eprintln!("{met} of {} deaths met a call; gets ended: {ends:?}", deaths());
    assert!(met > 0, "no death met a call");
    drop(lots);
    cleaning.join().expect("the cleaner found something wrong");

    let is_clean = patiently(PATIENCE, || match (0..NODES).find_map(|node| left(&cluster, node)) {
        Some(left) => {
            // An object of a get that was given up may have come after a deletion that found nothing.
            (0..NODES).for_each(|node| _ = cluster.client(node).evict(u64::MAX));
            Err(left)
        }
        None => Ok(()),
    });
    is_clean.unwrap_or_else(|left| panic!("{left}"));
    let before = before.expect("somebody died");
    let crossed = 2 * (NODES - 1);
    eventually("descriptors are as many as before", || has(&cluster, 0).0 <= before.0 + crossed);
    let own = || has(&cluster, 0).1;
    eventually("its own memory is what it was", || own() < before.1 + 32 * MIB as u64);
}

#[test]
fn whoever_dies_amid_a_push_by_messages_gets_are_right_or_fail_in_time_and_nothing_is_left() {
    deaths_amid_pushes(By::Messages);
}

#[test]
fn whoever_dies_amid_a_push_by_writes_gets_are_right_or_fail_in_time_and_nothing_is_left() {
    deaths_amid_pushes(By::Writes);
}
