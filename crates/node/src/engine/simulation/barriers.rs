//! Barriers of simulated nodes: in each generation as many calls pass as there are parties, each with another
//! index. If the barrier is broken, all waiting clients hear of it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use plasmon::ErrorKind;
use plasmon::wire::{BySlot, Passed, Reply, Request, SlotResult, SyncCall};

use super::counters::{Ended, User, end};
use super::{Simulation, below, percent, span};

/// Seeds of each case.
const SEEDS: RangeInclusive<u64> = 1..=6;
/// Time in which nodes follow a change of members, and end what they had begun.
const SETTLED_TIME: Duration = Duration::from_secs(20);
/// Longest time that a call waits.
const ARRIVAL_PATIENCE: Duration = Duration::from_secs(600);
/// Number of rounds of a run.
const ROUNDS: usize = 60;

/// A client with a handle, and its call if the client waits.
struct Party {
    user: User,
    handle: u32,
    waits: Option<Ended>,
}

/// A cluster with a barrier. The last node has no parties.
struct Bench {
    simulation: Simulation,
    parties: Vec<Party>,
    /// Indices of the calls that have passed, by generation.
    passed: BTreeMap<u64, Vec<u32>>,
    /// Reasons that were told to clients for which the barrier is broken.
    broken: Vec<String>,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let mut simulation = Simulation::new(seed, |_| Vec::new());
        simulation.network.change_faults(|faults| (faults.spoiled_read_ppm, faults.cut_ppm) = (0, 0));
        simulation.pass(SETTLED_TIME);
        let count = simulation.hosts.len() as u32 + 2;
        let mut parties = Vec::new();
        for number in 0..count as usize {
            let mut user = User::connect(&simulation, number % (simulation.hosts.len() - 1));
            let timeout_us = 30_000_000;
            let open =
                Request::OpenBarrier { name: "meet".to_owned(), public: false, parties: count, timeout_us };
            let handle = match user.ask(&mut simulation, open) {
                Ok(Reply::BarrierOpened { barrier }) => barrier,
                other => panic!("seed {seed}: {other:?}"),
            };
            parties.push(Party { user, handle, waits: None });
        }
        Self { simulation, parties, passed: BTreeMap::new(), broken: Vec::new() }
    }

    /// Has parties arrive that do not wait, and notes which calls have passed.
    fn round(&mut self, chance: usize) {
        for party in &mut self.parties {
            if let Some(result) = party.waits.as_ref().and_then(|waits| waits.get().cloned()) {
                party.waits = None;
                match result {
                    Ok(result) => {
                        let passed = Passed::of_values(result.values, &result.payload);
                        let Passed { index, generation } = passed.expect("it has a place");
                        self.passed.entry(generation).or_default().push(index);
                    }
                    Err(error) if error.kind() == ErrorKind::Broken => self.broken.push(error.to_string()),
                    Err(error) => panic!("{:?}: {error}", error.kind()),
                }
            }
            if party.waits.is_none() && percent(chance) {
                let arrive = SyncCall::Arrive { barrier: party.handle, ticket: 1 }.encode();
                party.waits = Some(party.user.call(&self.simulation, arrive, ARRIVAL_PATIENCE));
            }
        }
        self.simulation.pass(span(Duration::from_millis(100)));
    }

    /// Checks that all parties passed each generation, one generation after the other.
    fn check(&mut self, seed: u64, least: usize) {
        let count = self.parties.len() as u32;
        let generations = self.passed.len();
        assert!(generations >= least, "seed {seed}: {generations} generations");
        for (nth, (generation, indices)) in (0..).zip(&mut self.passed) {
            indices.sort_unstable();
            let all: Vec<_> = (0..count).collect();
            assert_eq!((*generation, &*indices), (nth, &all), "seed {seed}: generation {nth}");
        }
    }

    /// Lets all waiting clients pass.
    fn gather(&mut self) {
        self.simulation.mend();
        for _ in 0..20 {
            self.round(0);
        }
        if self.parties.iter().any(|party| party.waits.is_some()) {
            for party in self.parties.iter_mut().filter(|party| party.waits.is_none()) {
                let arrive = SyncCall::Arrive { barrier: party.handle, ticket: 1 }.encode();
                party.waits = Some(party.user.call(&self.simulation, arrive, ARRIVAL_PATIENCE));
            }
        }
        self.simulation.pass(SETTLED_TIME);
        self.round(0);
    }
}

#[test]
fn all_pass_although_connections_break() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        bench.simulation.network.change_faults(|faults| faults.cut_ppm = 10_000);
        for round in 0..ROUNDS {
            bench.round(60);
            if round % 20 == 10 {
                let until = bench.simulation.time.now() + span(Duration::from_secs(2));
                let host = below(bench.simulation.hosts.len());
                bench.simulation.hosts[host].stall(until);
            }
        }
        bench.gather();
        bench.check(seed, 3);
        assert!(bench.broken.is_empty(), "seed {seed}: {:?}", bench.broken.first());
        // A close breaks the barrier for no client, as no client waits.
        for at in 0..bench.parties.len() {
            let barrier = bench.parties[at].handle;
            let closed = bench.parties[at].user.ask(&mut bench.simulation, Request::CloseBarrier { barrier });
            assert_eq!(closed, Ok(Reply::Done), "seed {seed}");
        }
        for core in bench.simulation.hosts.iter().filter_map(|host| host.core()) {
            let locks = core.services.status().locks;
            assert_eq!((locks.barriers, locks.arrived), (0, 0), "seed {seed}");
        }
        end(bench.simulation);
    }
}

#[test]
fn a_new_home_lets_pass_whom_the_former_one_has_not_told() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        for round in 0..ROUNDS {
            bench.round(60);
            // A node without parties, which may be the home, goes and comes.
            let last = bench.simulation.hosts.len() - 1;
            match round % 12 {
                4 => bench.simulation.begin_expelling(last),
                10 => bench.simulation.bring_back(last),
                _ => {}
            }
        }
        bench.gather();
        bench.check(seed, 3);
        assert!(bench.broken.is_empty(), "seed {seed}: {:?}", bench.broken.first());
        end(bench.simulation);
    }
}

#[test]
fn a_node_that_dies_breaks_it_for_all_who_wait() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        (0..20).for_each(|_| bench.round(60));
        bench.gather();
        let host = below(bench.simulation.hosts.len() - 1);
        // All others wait, because a party of the node does not come.
        for party in bench.parties.iter_mut().filter(|party| party.user.host != host) {
            let arrive = SyncCall::Arrive { barrier: party.handle, ticket: 1 }.encode();
            party.waits = Some(party.user.call(&bench.simulation, arrive, ARRIVAL_PATIENCE));
        }
        bench.simulation.pass(span(Duration::from_millis(20)));
        bench.simulation.hosts[host].kill();
        bench.parties.retain(|party| party.user.host != host);
        let Simulation { hosts, coordinator, time, .. } = &mut bench.simulation;
        coordinator.forget(hosts, time.now(), None);
        bench.simulation.pass(SETTLED_TIME);
        let waiting = bench.parties.len();
        bench.round(0);
        assert_eq!(bench.broken.len(), waiting, "seed {seed}: those who heard of it");
        end(bench.simulation);
    }
}

#[test]
fn a_client_that_gave_up_before_its_home_answered_is_no_party() {
    const PARTIES: u32 = 2;
    let timeout_us = 30_000_000;
    let open =
        || Request::OpenBarrier { name: "meet".to_owned(), public: false, parties: PARTIES, timeout_us };
    for seed in SEEDS {
        let mut simulation = Simulation::new(seed, |_| Vec::new());
        simulation.network.change_faults(|faults| (faults.spoiled_read_ppm, faults.cut_ppm) = (0, 0));
        simulation.pass(SETTLED_TIME);
        // The home asks every member what is held. One that stands still keeps it from answering.
        let last = simulation.hosts.len() - 1;
        let until = simulation.time.now() + span(Duration::from_secs(1));
        simulation.hosts[last].stall(until);
        let mut users: Vec<_> = (0..last).map(|host| User::connect(&simulation, host)).collect();
        for user in &mut users {
            user.begin_ask(&simulation, open());
        }
        simulation.pass(span(Duration::from_millis(100)));
        for user in &mut users {
            let request = user.requests();
            user.begin_ask(&simulation, Request::Cancel { request });
        }
        simulation.pass(SETTLED_TIME);
        drop(users);
        // A party waits no longer, which breaks the barrier until the last handle is closed.
        let mut user = User::connect(&simulation, 0);
        for time in 0..2 {
            let barrier = match user.ask(&mut simulation, open()) {
                Ok(Reply::BarrierOpened { barrier }) => barrier,
                other => panic!("seed {seed}, time {time}: {other:?}"),
            };
            let arrive = SyncCall::Arrive { barrier, ticket: 1 }.encode();
            let waits = user.call(&simulation, arrive, Duration::from_secs(1));
            simulation.pass(SETTLED_TIME);
            let late = waits.get().expect("it ends").as_ref().expect_err("nobody else comes");
            assert_eq!(late.kind(), ErrorKind::TimedOut, "seed {seed}, time {time}");
            let closed = user.ask(&mut simulation, Request::CloseBarrier { barrier });
            assert_eq!(closed, Ok(Reply::Done), "seed {seed}, time {time}");
        }
        for core in simulation.hosts.iter().filter_map(|host| host.core()) {
            assert_eq!(core.services.status().locks.barriers, 0, "seed {seed}");
        }
        end(simulation);
    }
}

#[test]
fn a_node_that_died_while_its_home_stood_still_has_no_parties() {
    let timeout_us = 30_000_000;
    let open = || Request::OpenBarrier { name: "meet".to_owned(), public: false, parties: 2, timeout_us };
    for seed in SEEDS {
        let mut simulation = Simulation::new(seed, |_| Vec::new());
        simulation.network.change_faults(|faults| (faults.spoiled_read_ppm, faults.cut_ppm) = (0, 0));
        simulation.pass(SETTLED_TIME);
        let barriers = |simulation: &Simulation, host: usize| {
            simulation.hosts[host].core().map_or(0, |core| core.services.status().locks.barriers)
        };
        let mut user = User::connect(&simulation, 0);
        let Ok(Reply::BarrierOpened { barrier }) = user.ask(&mut simulation, open()) else {
            panic!("seed {seed}: it is free")
        };
        let hosts = simulation.hosts.len();
        let home = (0..hosts).find(|host| barriers(&simulation, *host) == 1).expect("it has a home");
        let closed = user.ask(&mut simulation, Request::CloseBarrier { barrier });
        assert_eq!(closed, Ok(Reply::Done), "seed {seed}");
        // When the home goes on, it finds the question and the death at the same time.
        let dying = (home + 1) % hosts;
        let mut late = User::connect(&simulation, dying);
        let until = simulation.time.now() + span(Duration::from_millis(500));
        simulation.hosts[home].stall(until);
        late.begin_ask(&simulation, open());
        simulation.pass(span(Duration::from_millis(100)));
        simulation.hosts[dying].kill();
        let Simulation { hosts: all, coordinator, time, .. } = &mut simulation;
        coordinator.forget(all, time.now(), None);
        simulation.pass(SETTLED_TIME);
        let left: Vec<_> = (0..hosts).map(|host| barriers(&simulation, host)).collect();
        assert!(left.iter().all(|count| *count == 0), "seed {seed}: {left:?}");
        end(simulation);
    }
}
