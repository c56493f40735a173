//! Schedule, drawn from the seed alone: the operations of each worker, and the faults of each round with
//! their times.

use std::time::Duration;

use plasmon::ObjectId;
use plasmon_e2e::Chance;

use super::barriers::BARRIERS;
use super::calls::SERVICES;
use super::locks::LOCKS;
use super::regions::REGIONS;
use crate::support::MIB;

/// Number of hosts of the cluster. The first one has the embedded coordinator.
pub(super) const NODES: usize = 5;
/// Number of etcd servers, if etcd coordinates.
pub(super) const SERVERS: usize = 3;
/// Number of clients. Each has a thread; the nodes get clients in turn.
pub(super) const WORKERS: usize = 8;
/// Number of names that all workers put, get and delete.
pub(super) const NAMES: usize = 6;
/// Sizes in bytes of what calls bring: in slots, in messages, by reads.
const LENS: [usize; 3] = [100, 5_000, 100_000];
/// Number of faults in a round.
const FAULTS: usize = 4;
/// Time at the beginning of a round without faults.
pub(super) const UNTROUBLED: Duration = Duration::from_secs(3);
const BEGINS: Duration = Duration::from_secs(9);
const LONGEST: Duration = Duration::from_secs(10);

/// Put of a worker, counted back from its last one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Which {
    pub(super) worker: usize,
    pub(super) back: usize,
}

/// How an object takes the place of another.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    /// Whether only the version may be replaced of which the worker was told.
    pub(super) compares: bool,
    /// Whether the object is created and sealed.
    pub(super) creates: bool,
}

/// Operation of a worker.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    /// Puts a new object, under an id that was never used.
    Put {
        len: usize,
        private: bool,
        digest: bool,
        copies: u16,
    },
    /// Puts an object under one of the names.
    PutName {
        name: usize,
        len: usize,
    },
    /// Puts an object in the place of another.
    Replace {
        which: Which,
        len: usize,
        copies: u16,
        how: How,
    },
    /// Puts an object under one of the names, whatever is there.
    ReplaceName {
        name: usize,
        len: usize,
        how: How,
    },
    /// Gets an object, and checks every byte.
    Get {
        which: Which,
        patience: Duration,
    },
    /// Gets several objects.
    GetMany {
        which: Vec<Which>,
        patience: Duration,
    },
    GetName {
        name: usize,
        patience: Duration,
    },
    /// Gets an object and keeps it pinned.
    Hold {
        which: Which,
    },
    /// Releases the oldest pinned object.
    LetGo,
    /// Waits for an object that a worker will put next.
    Await {
        worker: usize,
        patience: Duration,
    },
    /// Waits for some of several objects, without pinning them.
    Wait {
        which: Vec<Which>,
        count: usize,
        patience: Duration,
    },
    Delete {
        which: Which,
    },
    DeleteName {
        name: usize,
    },
    Contains {
        which: Vec<Which>,
    },
    ContainsName {
        name: usize,
    },
    Locate {
        which: Which,
    },
    Prefetch {
        which: Vec<Which>,
        patience: Duration,
    },
    Evict {
        bytes: u64,
    },
    List,
    /// Asks a node for a sign of life, by slot.
    Ping {
        to: usize,
    },
    /// Makes more nodes keep an object.
    Replicate {
        which: Which,
        copies: u16,
        patience: Duration,
    },
    /// Moves an object to another node.
    Migrate {
        which: Which,
        to: usize,
        patience: Duration,
    },
    /// Brings an object to all nodes.
    Broadcast {
        which: Which,
        patience: Duration,
    },
    /// Adds to a region, or makes it.
    Add {
        region: usize,
    },
    /// Reads a region, and checks every byte.
    ReadRegion {
        region: usize,
    },
    /// Moves a region to another node.
    MoveRegion {
        region: usize,
        to: usize,
    },
    /// Makes an object of a region, and checks every byte of it.
    SnapshotRegion {
        region: usize,
    },
    FreeRegion {
        region: usize,
    },
    /// Takes a lock and holds it for a while. It is unlocked, or its guard is dropped.
    Lock {
        lock: usize,
        patience: Duration,
        span: Duration,
        quietly: bool,
    },
    /// Waits once at a barrier of two parties.
    Meet {
        barrier: usize,
        patience: Duration,
    },
    /// Calls a function, with data and a reply of these lengths.
    Call {
        service: usize,
        lens: (usize, usize),
        patience: Duration,
    },
}

type Draw = fn(&mut Chance) -> Operation;

/// Weights with which the operations are drawn.
const WEIGHTS: &[(usize, Draw)] = &[
    (22, |chance| Operation::Put {
        len: len(chance),
        private: chance.percent(15),
        digest: chance.percent(25),
        copies: *chance.pick(&[1, 1, 1, 2, 3]),
    }),
    (5, |chance| Operation::PutName { name: chance.below(NAMES), len: len(chance).min(MIB) }),
    (10, |chance| Operation::Replace {
        which: which(chance),
        len: len(chance),
        copies: *chance.pick(&[0, 0, 0, 0, 1, 2, 3]),
        how: how(chance),
    }),
    (5, |chance| Operation::ReplaceName {
        name: chance.below(NAMES),
        len: len(chance).min(MIB),
        how: how(chance),
    }),
    (24, |chance| Operation::Get { which: which(chance), patience: patience(chance) }),
    (5, |chance| Operation::GetMany { which: several(chance), patience: patience(chance) }),
    (7, |chance| Operation::GetName { name: chance.below(NAMES), patience: patience(chance) }),
    (6, |chance| Operation::Hold { which: which(chance) }),
    (5, |_| Operation::LetGo),
    (4, |chance| Operation::Await { worker: chance.below(WORKERS), patience: patience(chance) }),
    (3, |chance| Operation::Wait {
        which: several(chance),
        count: 1 + chance.below(3),
        patience: patience(chance),
    }),
    (14, |chance| Operation::Delete { which: which(chance) }),
    (4, |chance| Operation::DeleteName { name: chance.below(NAMES) }),
    (3, |chance| Operation::Contains { which: several(chance) }),
    (2, |chance| Operation::ContainsName { name: chance.below(NAMES) }),
    (2, |chance| Operation::Locate { which: which(chance) }),
    (2, |chance| Operation::Prefetch { which: several(chance), patience: patience(chance) }),
    (3, |chance| Operation::Evict { bytes: *chance.pick(&[1 << 20, 8 << 20, u64::MAX]) }),
    (1, |_| Operation::List),
    (3, |chance| Operation::Ping { to: chance.below(NODES) }),
    (3, |chance| Operation::Replicate {
        which: which(chance),
        copies: 2 + chance.below(2) as u16,
        patience: patience(chance),
    }),
    (6, |chance| Operation::Migrate {
        which: which(chance),
        to: chance.below(NODES),
        patience: patience(chance),
    }),
    (3, |chance| Operation::Broadcast { which: which(chance), patience: patience(chance) }),
    (10, |chance| Operation::Add { region: chance.below(REGIONS) }),
    (4, |chance| Operation::ReadRegion { region: chance.below(REGIONS) }),
    (3, |chance| Operation::MoveRegion { region: chance.below(REGIONS), to: chance.below(NODES) }),
    (3, |chance| Operation::SnapshotRegion { region: chance.below(REGIONS) }),
    (1, |chance| Operation::FreeRegion { region: chance.below(REGIONS) }),
    (8, |chance| Operation::Lock {
        lock: chance.below(LOCKS),
        patience: *chance.pick(&[Duration::ZERO, Duration::from_millis(200), Duration::from_secs(5)]),
        span: chance.span(Duration::from_millis(50)),
        quietly: chance.percent(30),
    }),
    (6, |chance| Operation::Meet {
        barrier: chance.below(BARRIERS),
        patience: Duration::from_millis(*chance.pick(&[20, 200, 2_000])),
    }),
    (12, |chance| Operation::Call {
        service: chance.below(SERVICES),
        lens: (*chance.pick(&LENS), *chance.pick(&LENS)),
        patience: Duration::from_millis(*chance.pick(&[20, 200, 2_000, 2_000, 10_000])),
    }),
];

/// Endless operations of a worker. The outcome of one does not influence the next.
pub(super) struct Operations(Chance);

impl Operations {
    pub(super) fn of(seed: u64, worker: usize) -> Self {
        Self(part(seed, 1 + worker as u64))
    }
}

impl Iterator for Operations {
    type Item = (Operation, Duration);

    /// Draws the next operation, and the rest after it.
    fn next(&mut self) -> Option<Self::Item> {
        let all: usize = WEIGHTS.iter().map(|(weight, _)| weight).sum();
        let mut at = self.0.below(all);
        let (_, draw) = WEIGHTS.iter().find(|(weight, _)| {
            let found = at < *weight;
            at = at.saturating_sub(*weight);
            found
        })?;
        Some((draw(&mut self.0), self.0.span(Duration::from_millis(40))))
    }
}

/// Id of the put with this number of a worker.
pub(super) fn id_of(seed: u64, worker: usize, number: usize) -> ObjectId {
    ObjectId::from_name(&format!("chaos {seed} {worker} {number}"))
}

/// Fault of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// A daemon is killed by SIGKILL. It is started again at the end, or when the cluster can be joined.
    Kill(usize),
    /// A daemon is stopped by SIGSTOP, until SIGCONT at the end.
    Stop(usize),
    /// The network cable of a host is pulled.
    Unplug(usize),
    /// The named hosts and all others are cut off from each other.
    Part(Vec<usize>),
    /// Packets from one host to another are lost.
    OneWay(usize, usize),
    /// The disk for spilled objects of a host is full.
    FullDisk(usize),
    /// The clocks of a host jump: the monotonic ones forward by so many ms, the time of day by so many s.
    Jump(usize, u64, i64),
    /// Servers of etcd are killed by SIGKILL. They continue with their data on disk at the end. Without two
    /// of the three servers no node is a member any more after the leases have ended.
    KillEtcd(Vec<usize>),
}

/// Fault with its time in the round.
#[derive(Debug, Clone)]
pub(super) struct Trouble {
    pub(super) fault: Fault,
    pub(super) begins: Duration,
    pub(super) ends: Duration,
}

/// Coordinator of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coordinator {
    /// The first node is the coordinator.
    Embedded,
    Etcd,
}

/// Source of the faults of each round.
pub(super) struct Troubles {
    coordinator: Coordinator,
    chance: Chance,
    deck: Vec<Draught>,
}

/// Hosts that have no fault in this round.
struct Hosts {
    whole: Vec<usize>,
    /// Host of the coordinator, if it has no fault.
    first: Option<usize>,
}

type Draught = fn(&mut Chance, &mut Hosts) -> Fault;

/// Kinds of faults. All are equally frequent; a fault of the coordinator is a kind of its own.
const DECK: &[Draught] = &[
    |_, hosts| Fault::Kill(hosts.victim()),
    |_, hosts| Fault::Kill(hosts.victim()),
    |_, hosts| Fault::Stop(hosts.victim()),
    |_, hosts| Fault::Unplug(hosts.victim()),
    |chance, _| Fault::Part((0..NODES).filter(|_| chance.percent(50)).collect()),
    |chance, _| {
        let from = chance.below(NODES);
        Fault::OneWay(from, (from + 1 + chance.below(NODES - 1)) % NODES)
    },
    |chance, _| Fault::FullDisk(chance.below(NODES)),
    |chance, _| {
        let ahead = *chance.pick(&[300, 1_000, 4_000, 10_000]);
        Fault::Jump(chance.below(NODES), ahead, *chance.pick(&[-7_200, 0, 30, 86_400]))
    },
    |chance, hosts| match (hosts.first, hosts.take_first()) {
        (None, _) => {
            let one = chance.below(SERVERS);
            let two = vec![one, (one + 1) % SERVERS];
            Fault::KillEtcd(chance.pick(&[vec![one], two]).clone())
        }
        (Some(first), true) => {
            chance.pick(&[Fault::Kill(first), Fault::Stop(first), Fault::Unplug(first)]).clone()
        }
        (Some(_), false) => Fault::Kill(hosts.victim()),
    },
];

impl Hosts {
    /// Draws a host that has no other fault in this round and is not the coordinator's.
    fn victim(&mut self) -> usize {
        let at = self.whole.iter().position(|host| Some(*host) != self.first);
        self.whole.remove(at.expect("there are more hosts than faults in a round"))
    }

    /// Takes the coordinator's host, if it has no fault. Returns whether it has none.
    fn take_first(&mut self) -> bool {
        let at = self.whole.iter().position(|host| Some(*host) == self.first);
        at.map(|at| self.whole.remove(at)).is_some()
    }
}

impl Troubles {
    pub(super) fn of(seed: u64, coordinator: Coordinator) -> Self {
        Self { coordinator, chance: part(seed, 0), deck: Vec::new() }
    }
}

impl Iterator for Troubles {
    type Item = Vec<Trouble>;

    fn next(&mut self) -> Option<Self::Item> {
        let chance = &mut self.chance;
        let mut whole: Vec<_> = (0..NODES).collect();
        chance.shuffle(&mut whole);
        let first = (self.coordinator == Coordinator::Embedded).then_some(0);
        let mut hosts = Hosts { whole, first };
        let troubles = (0..FAULTS).map(|_| {
            if self.deck.is_empty() {
                self.deck = DECK.to_vec();
                chance.shuffle(&mut self.deck);
            }
            let draught = self.deck.pop().expect("it was filled");
            let fault = draught(chance, &mut hosts);
            let begins = UNTROUBLED + chance.span(BEGINS);
            Trouble { fault, begins, ends: begins + Duration::from_millis(500) + chance.span(LONGEST) }
        });
        Some(troubles.collect())
    }
}

/// Random generator of a part of the schedule.
fn part(seed: u64, number: u64) -> Chance {
    Chance::of_seed(Chance::of_seed(seed).word() ^ Chance::of_seed(number).word())
}

fn len(chance: &mut Chance) -> usize {
    let longest = match chance.below(100) {
        0..3 => 0,
        3..40 => 200,
        40..65 => 16 << 10,
        65..80 => 200_000,
        80..95 => MIB,
        _ => 8 * MIB,
    };
    chance.below(longest + 1)
}

fn which(chance: &mut Chance) -> Which {
    Which { worker: chance.below(WORKERS), back: chance.below(20) }
}

fn how(chance: &mut Chance) -> How {
    How { compares: chance.percent(50), creates: chance.percent(40) }
}

fn several(chance: &mut Chance) -> Vec<Which> {
    (0..2 + chance.below(4)).map(|_| which(chance)).collect()
}

fn patience(chance: &mut Chance) -> Duration {
    Duration::from_millis(*chance.pick(&[0, 0, 20, 20, 200, 200, 1000, 10_000]))
}

#[test]
fn a_seed_says_all_that_happens() {
    let operations = |seed, worker| -> Vec<_> {
        Operations::of(seed, worker).take(500).map(|drawn| format!("{drawn:?}")).collect()
    };
    let troubles = |seed| -> Vec<_> {
        Troubles::of(seed, Coordinator::Etcd).take(50).map(|drawn| format!("{drawn:?}")).collect()
    };
    assert_eq!(operations(7, 0), operations(7, 0));
    assert_ne!(operations(7, 0), operations(7, 1));
    assert_ne!(operations(7, 0), operations(8, 0));
    assert_eq!(troubles(7), troubles(7));
    assert_ne!(troubles(7), troubles(8));
}

#[test]
fn no_host_is_killed_while_it_is_stopped() {
    let both = [Coordinator::Embedded, Coordinator::Etcd].map(|one| Troubles::of(3, one).take(200));
    for troubles in both.into_iter().flatten() {
        let alone = |fault: &Fault| match fault {
            Fault::Kill(host) | Fault::Stop(host) | Fault::Unplug(host) => Some(*host),
            Fault::Part(_)
            | Fault::OneWay(..)
            | Fault::FullDisk(_)
            | Fault::Jump(..)
            | Fault::KillEtcd(_) => None,
        };
        let mut hosts: Vec<_> = troubles.iter().filter_map(|trouble| alone(&trouble.fault)).collect();
        let all = hosts.len();
        hosts.sort_unstable();
        hosts.dedup();
        assert_eq!(hosts.len(), all, "{troubles:?}");
    }
}
