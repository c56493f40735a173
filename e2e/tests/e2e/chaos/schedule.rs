//! What happens, drawn from the seed alone: the operations of each worker, and what breaks when in each
//! round.

use std::time::Duration;

use plasmon::ObjectId;
use plasmon_e2e::Chance;

use crate::support::MIB;

/// Hosts of the cluster. The first is the coordinator's, where it is embedded.
pub(super) const NODES: usize = 5;
/// Servers of etcd, where that coordinates.
pub(super) const SERVERS: usize = 3;
/// Clients, each with a thread; they are of the nodes in turn.
pub(super) const WORKERS: usize = 8;
/// Names that all workers put, get and delete.
pub(super) const NAMES: usize = 6;
/// Faults in a round.
const FAULTS: usize = 4;
/// How long a round lasts, at least: first nothing breaks, then faults begin, and the last ends.
pub(super) const UNTROUBLED: Duration = Duration::from_secs(3);
const BEGINS: Duration = Duration::from_secs(9);
const LONGEST: Duration = Duration::from_secs(10);

/// A put of a worker, counted from its last one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Which {
    pub(super) worker: usize,
    pub(super) back: usize,
}

/// What a worker does.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    /// A new object, under an id that was never used.
    Put {
        len: usize,
        private: bool,
        digest: bool,
        copies: u16,
    },
    /// An object under one of the names.
    PutName {
        name: usize,
        len: usize,
    },
    /// A get, which looks at every byte.
    Get {
        which: Which,
        patience: Duration,
    },
    /// A get of several.
    GetMany {
        which: Vec<Which>,
        patience: Duration,
    },
    GetName {
        name: usize,
        patience: Duration,
    },
    /// A get whose object is kept pinned.
    Hold {
        which: Which,
    },
    /// The oldest of these is let go.
    LetGo,
    /// A wait for what a worker will put next.
    Await {
        worker: usize,
        patience: Duration,
    },
    /// A wait that pins nothing, for some of several.
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
    /// More nodes are to keep an object.
    Replicate {
        which: Which,
        copies: u16,
        patience: Duration,
    },
    /// It is to be another node's.
    Migrate {
        which: Which,
        to: usize,
        patience: Duration,
    },
    /// It is to come to all nodes.
    Broadcast {
        which: Which,
        patience: Duration,
    },
}

type Draw = fn(&mut Chance) -> Operation;

/// How often each operation is drawn.
const WEIGHTS: &[(usize, Draw)] = &[
    (22, |chance| Operation::Put {
        len: len(chance),
        private: chance.percent(15),
        digest: chance.percent(25),
        copies: *chance.pick(&[1, 1, 1, 2, 3]),
    }),
    (5, |chance| Operation::PutName { name: chance.below(NAMES), len: len(chance).min(MIB) }),
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
];

/// The operations of a worker, without end: whatever becomes of one, the next is the same.
pub(super) struct Operations(Chance);

impl Operations {
    pub(super) fn of(seed: u64, worker: usize) -> Self {
        Self(part(seed, 1 + worker as u64))
    }
}

impl Iterator for Operations {
    type Item = (Operation, Duration);

    /// What to do, and how long to rest after it.
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

/// The id of a worker's put of that number.
pub(super) fn id_of(seed: u64, worker: usize, number: usize) -> ObjectId {
    ObjectId::from_name(&format!("chaos {seed} {worker} {number}"))
}

/// What breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// SIGKILL; the daemon is started again at the end, or when the cluster can be joined.
    Kill(usize),
    /// SIGSTOP, and SIGCONT at the end.
    Stop(usize),
    /// The cable is out.
    Unplug(usize),
    /// These hosts and the others hear nothing of each other.
    Part(Vec<usize>),
    /// What one host sends to another is lost.
    OneWay(usize, usize),
    /// The disk for spilled objects takes no more.
    FullDisk(usize),
    /// Its clocks jump: the monotonic ones ahead by so many milliseconds, the time of day by so many seconds.
    Jump(usize, u64, i64),
    /// SIGKILL for servers of etcd, which go on with what they have on disk at the end: without two of the
    /// three nobody is a member any more when leases are over.
    KillEtcd(Vec<usize>),
}

/// A fault with its time in the round.
#[derive(Debug, Clone)]
pub(super) struct Trouble {
    pub(super) fault: Fault,
    pub(super) begins: Duration,
    pub(super) ends: Duration,
}

/// Who says who the members are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coordinator {
    /// The first node.
    Embedded,
    Etcd,
}

/// What breaks in each round.
pub(super) struct Troubles {
    coordinator: Coordinator,
    chance: Chance,
    deck: Vec<Draught>,
}

/// Hosts that nothing has happened to in this round.
struct Hosts {
    whole: Vec<usize>,
    /// The coordinator's.
    first: Option<usize>,
}

type Draught = fn(&mut Chance, &mut Hosts) -> Fault;

/// Every kind comes about as often as every other; the coordinator is a kind of its own.
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
    /// A host that nothing else happens to in this round, and that is not the coordinator's.
    fn victim(&mut self) -> usize {
        let at = self.whole.iter().position(|host| Some(*host) != self.first);
        self.whole.remove(at.expect("there are more hosts than faults in a round"))
    }

    /// The coordinator's, if nothing has happened to it.
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

/// A part of a seed's chances.
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
