//! Objects of files that are to lie on other nodes: an object of which a client was told that it is settled
//! is kept by as many nodes as are to keep it, one of them the primary, although connections break and a node
//! dies. An object that no file has goes from all nodes.

use std::ops::RangeInclusive;
use std::time::Duration;

use plasmon::wire::files::{Place, Settling};
use plasmon::wire::{Reply, Request};
use plasmon::{ErrorKind, NodeId, ObjectId};

use super::counters::{SETTLED_TIME, end};
use super::files::{Writer, attached, detach};
use super::{REST_TIME, Simulation, below, percent, span};
use crate::kernel::planted::{Bug, plant};
use crate::object::Role;

/// Seeds of the case.
const SEEDS: RangeInclusive<u64> = 1..=8;
/// Seeds that are tried to find a bug that was put in.
const SEEDS_FOR_A_BUG: RangeInclusive<u64> = 1..=40;
/// Number of rounds in which each client puts an object.
const ROUNDS: u64 = 12;

/// An object of a file, and the answer that its client got.
struct Put {
    id: ObjectId,
    writer: usize,
    place: Place,
    copies: u16,
    /// Number of the request to settle the object, and the primary that its answer names, or the reason why
    /// there is none.
    request: u64,
    settled: Option<Result<NodeId, ErrorKind>>,
}

/// A cluster whose clients put objects that are to lie on any nodes.
struct Bench {
    seed: u64,
    simulation: Simulation,
    writers: Vec<Writer>,
    puts: Vec<Put>,
    dead: Option<usize>,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let (simulation, writers) = attached(seed);
        Self { seed, simulation, writers, puts: Vec::new(), dead: None }
    }

    fn lives(&self, writer: usize) -> bool {
        self.dead != Some(self.writers[writer].user.host)
    }

    /// The clients whose nodes live.
    fn living(&self) -> Vec<usize> {
        (0..self.writers.len()).filter(|at| self.lives(*at)).collect()
    }

    /// Draws a place. Nodes that a place names are one or two.
    fn place(&self) -> Place {
        let node = |at: usize| self.simulation.hosts[at % self.simulation.hosts.len()].id();
        match below(4) {
            0 => Place::Local,
            1 => Place::Spread,
            named => {
                let first = below(self.simulation.hosts.len());
                Place::Nodes((first..first + named - 1).filter_map(node).collect())
            }
        }
    }

    /// Has each client put an object, and begin to settle it.
    fn put(&mut self, counter: u64) {
        for at in self.living() {
            let (place, copies) = (self.place(), 1 + below(3) as u16);
            let writer = &mut self.writers[at];
            let (id, _) = writer.put(&mut self.simulation, counter, 1);
            let (volume, ids) = (writer.volume, vec![id]);
            let settling = Settling { volume, ids, place: place.clone(), copies };
            writer.user.begin_ask(&self.simulation, Request::Settle(settling));
            let request = writer.user.requests();
            self.puts.push(Put { id, writer: at, place, copies, request, settled: None });
        }
    }

    /// Takes in the answers to the clients.
    fn hear(&mut self) {
        for at in 0..self.writers.len() {
            let told: Vec<_> = self.writers[at].user.session.0.borrow_mut().drain(..).collect();
            for (number, reply) in told {
                let put = self.puts.iter_mut().find(|put| (put.writer, put.request) == (at, number));
                let put = put.expect("nothing else is under way");
                put.settled = Some(match reply {
                    Reply::Settled { nodes, .. } => Ok(nodes[0]),
                    Reply::Failed { error } => Err(error.kind()),
                    other => panic!("seed {}: {other:?}", self.seed),
                });
            }
        }
    }

    /// Has clients put objects while connections break, nodes are parted, and, in most runs, one node dies.
    fn work(&mut self) {
        self.simulation.network.change_faults(|faults| faults.cut_ppm = 20_000);
        let (dies, hosts) = (percent(70).then(|| 4 + below(5) as u64), self.simulation.hosts.len());
        for round in 0..ROUNDS {
            // A put is asked for while no other request is under way; settling goes on meanwhile.
            self.await_all();
            self.put(round);
            let (one, other) = (below(hosts), below(hosts));
            if percent(40) && one != other {
                self.simulation.network.partition(one as u32, other as u32, true);
                self.simulation.pass(span(Duration::from_secs(15)));
                self.simulation.network.partition(one as u32, other as u32, false);
            }
            if dies == Some(round) {
                let (host, now) = (below(hosts), self.simulation.time.now());
                self.simulation.pass(span(Duration::from_millis(2)));
                self.simulation.hosts[host].kill();
                self.dead = Some(host);
                self.simulation.coordinator.forget(&mut self.simulation.hosts, now, None);
            }
        }
        self.await_all();
        self.simulation.mend();
        self.simulation.pass(REST_TIME);
        self.hear();
    }

    /// Lets time pass until all clients that live were told of their objects.
    fn await_all(&mut self) {
        for _ in 0..100 {
            self.hear();
            if self.puts.iter().all(|put| put.settled.is_some() || !self.lives(put.writer)) {
                return;
            }
            self.simulation.pass(Duration::from_secs(1));
        }
        panic!("seed {}: a settling does not end", self.seed);
    }

    /// The nodes that have an object, with its role there.
    fn roles(&self, id: ObjectId) -> Vec<(NodeId, Role)> {
        let of = |host: &super::Host| {
            let objects = host.core()?.store.objects.borrow();
            Some((host.id()?, objects.get(&id)?.role()))
        };
        self.simulation.hosts.iter().filter_map(of).collect()
    }

    /// Describes a fault of an object of a session that goes on, if there is one.
    fn wrong(&self, put: &Put) -> Option<String> {
        let (roles, own) =
            (self.roles(put.id), self.simulation.hosts[self.writers[put.writer].user.host].id());
        let alive: Vec<_> =
            self.simulation.hosts.iter().filter_map(|host| host.core()?.kernel.node.into()).collect();
        let primaries: Vec<_> = roles.iter().filter(|(_, role)| *role == Role::Primary).collect();
        let staying = roles.iter().filter(|(_, role)| role.stays()).count();
        let (told, settled) = match put.settled? {
            Ok(node) => (Some(node), true),
            // A node has no room. The client still has an object then.
            Err(ErrorKind::Full) => (None, false),
            Err(kind) => return Some(format!("settling failed: {kind:?}")),
        };
        let promised = if settled { alive.len().min(put.copies.into()) } else { 1 };
        // Where a pull and an order of the keepers meet, the keepers choose one of two primaries: the one
        // that the client was told may not be a primary any more.
        let is_there = primaries.len() == 1 && staying >= promised;
        let alone = put.copies == 1 && self.dead.is_some();
        let is_lost = alone && told.is_none_or(|node| !alive.contains(&node));
        let misplaced = match (&put.place, told) {
            (Place::Nodes(nodes), Some(node)) => !nodes.contains(&node) && Some(node) != own,
            _ => false,
        };
        let text = || {
            let Put { settled, place, copies, .. } = put;
            format!("{settled:?} {place:?}, {copies} copies, put on {own:?}, of {alive:?}: {roles:?}")
        };
        (!is_there && !is_lost || misplaced).then(text)
    }

    /// Describes all faults at rest, and after all sessions have ended.
    fn check(mut self) -> Vec<String> {
        let goes_on = |put: &&Put| self.lives(put.writer);
        let mut wrong: Vec<_> = self.puts.iter().filter(goes_on).filter_map(|put| self.wrong(put)).collect();
        for at in self.living() {
            let writer = &mut self.writers[at];
            let detached = writer.user.ask(&mut self.simulation, detach(writer));
            assert_eq!(detached, Ok(Reply::Done), "seed {}", self.seed);
        }
        self.simulation.pass(SETTLED_TIME * 2);
        let left = |put: &Put| {
            let roles = self.roles(put.id);
            (!roles.is_empty()).then(|| format!("no file has {}, and it is left: {roles:?}", put.id))
        };
        wrong.extend(self.puts.iter().filter_map(left));
        end(self.simulation);
        wrong
    }
}

/// Runs a seed. Returns its faults, and the number of objects that other nodes took.
fn run(seed: u64) -> (Vec<String>, u64) {
    let mut bench = Bench::new(seed);
    bench.work();
    let status = |host: &super::Host| host.core().map_or(0, |core| core.services.status().files.placed_here);
    let taken = bench.simulation.hosts.iter().map(status).sum();
    (bench.check(), taken)
}

#[test]
fn what_is_settled_is_kept_where_it_was_said_to_be() {
    let mut all = 0;
    for seed in SEEDS {
        let (wrong, taken) = run(seed);
        assert!(wrong.is_empty(), "seed {seed}:\n{}", wrong.join("\n"));
        all += taken;
    }
    assert!(all > 100, "{all} objects were pulled");
}

#[test]
fn a_bug_in_pulls_is_found() {
    plant(Some(Bug::CopiesForgotten));
    let found = SEEDS_FOR_A_BUG.into_iter().find(|seed| !run(*seed).0.is_empty());
    plant(None);
    assert!(found.is_some(), "no seed finds that too few nodes keep an object after a death");
}
