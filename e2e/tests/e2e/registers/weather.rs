//! Faults of the nodes in a round, with the calls that they add to the history of every id.

use std::time::Duration;

use plasmon::ErrorKind;
use plasmon_e2e::linear::{Action, Call};
use plasmon_e2e::wait::let_pass_unless;
use plasmon_e2e::{Builder, Chance, Cluster, EtcdOptions, own_namespaces};

use super::NODES;
use super::worker::Ground;
use crate::coordinators::agree;

/// Variant of the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// No faults.
    Calm,
    /// Objects go to disk and come back, because memory is short.
    Crowded,
    /// Nodes die and are started again, except the first, which has the coordinator.
    Deaths,
    /// With etcd, nodes die, are stopped for longer than their lease, or are cut off.
    Outages,
}

/// Fault of a node, or of the network between some nodes and the others.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill(usize),
    Stop(usize),
    Unplug(usize),
    /// The first so many nodes are cut off from the others. All reach etcd.
    Part(usize),
}

impl Kind {
    /// Whether nodes die or are cut off.
    pub(super) fn is_rough(self) -> bool {
        matches!(self, Self::Deaths | Self::Outages)
    }

    /// Errors with which any call may end.
    pub(super) fn excuses(self) -> &'static [ErrorKind] {
        match self {
            Self::Calm => &[],
            Self::Crowded => &[ErrorKind::Full],
            Self::Deaths | Self::Outages => &[
                ErrorKind::Disconnected,
                ErrorKind::TimedOut,
                ErrorKind::OutcomeUnknown,
                ErrorKind::Lost,
                ErrorKind::TooFew,
            ],
        }
    }
}

/// Shortest length of a fault: longer than etcd's shortest lease, so that the other nodes notice.
const OUTAGE: Duration = Duration::from_millis(2500);
/// Longest time between two faults.
const WHILE: Duration = Duration::from_millis(800);

/// Cluster with its faults.
pub(super) struct Weather {
    kind: Kind,
    pub(super) cluster: Cluster,
    chance: Chance,
    deck: Vec<fn(usize) -> Fault>,
}

impl Weather {
    pub(super) fn new(kind: Kind, chance: Chance) -> Self {
        let builder = Cluster::builder().nodes(NODES);
        // No death but those that are meant, on a machine that has other things to do.
        let patient = |builder: Builder| builder.args(&["--lease", "30"]);
        let builder = match kind {
            Kind::Calm | Kind::Deaths => patient(builder.memory("256MiB")),
            Kind::Crowded => patient(builder.memory("40MiB").args(&["--spill-dir", "spill"])),
            Kind::Outages => builder.memory("256MiB").args(&["--lease", "2"]).etcd(EtcdOptions::default()),
        };
        Self { kind, cluster: builder.start(), chance, deck: Vec::new() }
    }

    /// Makes the faults of a round, which may end when it `is_over`. Returns their calls for every history.
    pub(super) fn happen(&mut self, ground: &Ground, is_over: &dyn Fn() -> bool) -> Vec<Call> {
        let begin = ground.now();
        let note = |node, begin, action| Call { node, client: None, begin, end: None, action };
        match self.kind {
            Kind::Calm | Kind::Crowded => Vec::new(),
            Kind::Deaths => {
                self.rest(Duration::ZERO, is_over);
                let victim = 1 + self.chance.below(NODES - 1);
                let death = ground.now();
                self.begin(ground, Fault::Kill(victim));
                self.rest(Duration::ZERO, is_over);
                self.end(Fault::Kill(victim));
                self.rest(Duration::ZERO, is_over);
                vec![note(victim, death, Action::Lost)]
            }
            Kind::Outages => {
                let mut nodes: Vec<_> = (0..NODES).collect();
                self.chance.shuffle(&mut nodes);
                let faults = [nodes[0], nodes[1]].map(|node| self.draw(node));
                for fault in faults {
                    self.rest(Duration::ZERO, is_over);
                    self.begin(ground, fault);
                }
                self.rest(OUTAGE, is_over);
                // A node is started when it can be reached.
                let (killed, others): (Vec<_>, Vec<_>) =
                    faults.into_iter().partition(|fault| matches!(fault, Fault::Kill(_)));
                others.into_iter().chain(killed).for_each(|fault| self.end(fault));
                self.rest(Duration::ZERO, is_over);
                // A node that had too little of this machine's time was cut off as well, at any time.
                vec![note(nodes[0], begin, Action::CutOff)]
            }
        }
    }

    /// Waits until all nodes are members again.
    pub(super) fn settle(&self) {
        agree(&self.cluster, &(0..NODES).collect::<Vec<_>>());
    }

    fn draw(&mut self, node: usize) -> Fault {
        if self.deck.is_empty() {
            self.deck = vec![Fault::Kill, Fault::Stop];
            if own_namespaces() {
                self.deck.extend([Fault::Unplug as fn(usize) -> Fault, |node| {
                    Fault::Part(1 + node % (NODES - 1))
                }]);
            }
            self.chance.shuffle(&mut self.deck);
        }
        self.deck.pop().expect("it was filled")(node)
    }

    fn begin(&mut self, ground: &Ground, fault: Fault) {
        eprintln!("registers: {fault:?} at {} us", ground.now() / 1000);
        match fault {
            Fault::Kill(node) => self.cluster.kill(node),
            Fault::Stop(node) => self.cluster.pause(node),
            Fault::Unplug(node) => self.cluster.unplug(node),
            Fault::Part(at) => ways(at).for_each(|(from, to)| self.cluster.lose(from, to)),
        }
    }

    fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(node) => self.cluster.start_again(node, &[]),
            Fault::Stop(node) => self.cluster.resume(node),
            Fault::Unplug(node) => self.cluster.plug(node),
            Fault::Part(at) => ways(at).for_each(|(from, to)| self.cluster.carry(from, to)),
        }
    }

    /// Waits for `least` and a random time more, unless the round is over.
    fn rest(&mut self, least: Duration, is_over: &dyn Fn() -> bool) {
        let span = least + self.chance.span(WHILE);
        let_pass_unless(span, "how long weather lasts is drawn", is_over);
    }
}

/// Ways between the first nodes and the others.
fn ways(at: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..at).flat_map(move |one| (at..NODES).flat_map(move |other| [(one, other), (other, one)]))
}
