//! Cases of replacements: bugs that drawn seeds hardly ever find, and what a death or a view that comes late
//! makes of an object that is being replaced.
//!
//! Each case names the roles of its nodes, by an id that is drawn until its keepers fit.

use std::cell::RefMut;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use plasmon::ObjectId;
use plasmon::wire::Request;
use plasmon_linear::Value;

use super::cases::cluster;
use super::{REST_TIME, Simulation};
use crate::directory::table::Table;
use crate::kernel::planted::{Bug, plant};

/// Seeds of each case.
const SEEDS: RangeInclusive<u64> = 1..=8;
/// The id that is replaced, of which one node is to keep the object.
const ID: usize = 0;
/// Length in bytes of an object that comes in a message.
const SHORT_BYTES: usize = 100;
/// Length in bytes of an object that moves for a while.
const LONG_BYTES: usize = 6_000_000;
/// Longest time until a step of a replacement is done.
const STEP_TIME: Duration = Duration::from_secs(1);
/// Time in which a replacement ends, or its client is told that it is late.
const CALL_TIME: Duration = Duration::from_secs(5);

impl Simulation {
    /// Draws an id whose keepers are these hosts, by the view of the first of them.
    fn give_to(&mut self, first: usize, second: Option<usize>) {
        let core = Rc::clone(self.hosts[first].core().expect("it runs"));
        let is_kept = |id: &ObjectId| {
            let keepers = core.cluster.keepers(id);
            let is = |host: usize, node| self.hosts[host].id() == node;
            is(first, Some(keepers.first)) && second.is_none_or(|second| is(second, keepers.second))
        };
        let mut ids = (0..).map(|number: u64| ObjectId::from_name(&format!("kept {number}")));
        self.ids[ID] = ids.find(is_kept).expect("some id is theirs");
    }

    /// A host's part of the directory.
    fn directory(&self, host: usize) -> RefMut<'_, Table> {
        self.hosts[host].core().expect("it runs").directory.table.borrow_mut()
    }

    /// The life of the object on a host, and whether it is guarded there.
    fn life_on(&self, host: usize) -> Option<(u64, bool)> {
        let objects = self.hosts[host].core().expect("it runs").store.objects.borrow();
        objects.get(&self.ids[ID]).map(|replica| (replica.life, replica.is_guarded()))
    }

    /// Goes on until something is so, but no longer than `span`. Returns whether it is.
    fn await_that(&mut self, span: Duration, is_so: impl Fn(&Self) -> bool) -> bool {
        let until = self.time.now() + span;
        while self.time.now() < until && !is_so(self) {
            self.step(until, false);
        }
        is_so(self)
    }

    /// Has a client of a host begin to replace the object. Returns its former life.
    fn begin_replacing(&mut self, holder: usize, writer: usize) -> u64 {
        let (life, _) = self.life_on(holder).expect("it was put there");
        self.with_worker(writer, |worker, simulation| {
            worker.replace_now(simulation, (ID, SHORT_BYTES), None)
        });
        life
    }

    /// Has a client get the object, and waits until it was answered.
    fn get_now(&mut self, worker: usize) {
        self.with_worker(worker, |worker, simulation| worker.get(simulation, ID));
        self.await_that(REST_TIME, |simulation| simulation.workers[worker].is_idle());
    }
}

/// A cluster of this many nodes or more. Its seed is drawn from a seed.
fn cluster_of(nodes: usize, seed: u64) -> Simulation {
    let seeds = (1000 * seed..).filter(|seed| !seed.is_multiple_of(super::DISK_SEEDS));
    let mut clusters = seeds.map(cluster);
    clusters.find(|simulation| simulation.hosts.len() >= nodes).expect("a seed in three does")
}

/// Runs a case with each seed, without a bug and then with this one, which one of the seeds has to find.
fn finds(bug: Bug, case: fn(u64) -> Vec<String>) {
    for seed in SEEDS {
        assert_eq!(case(seed), Vec::<String>::new(), "seed {seed}");
    }
    plant(Some(bug));
    let found = SEEDS.into_iter().find(|seed| !case(*seed).is_empty());
    plant(None);
    let seed = found.unwrap_or_else(|| panic!("no seed finds {bug:?}"));
    eprintln!("seed {seed} finds {bug:?}");
}

/// Another node asks the second keeper when that is enlisted, while no node guards the object yet. The object
/// takes so long to come there that a second get begins after the replacement is over.
fn the_second_keeper_is_asked(seed: u64) -> Vec<String> {
    let (first, second, holder) = (1, 0, 2);
    let mut simulation = cluster_of(3, seed);
    simulation.give_to(first, Some(second));
    simulation.put(holder, ID, LONG_BYTES);
    simulation.pass(REST_TIME);
    simulation.begin_replacing(holder, first);
    let id = simulation.ids[ID];
    assert!(
        simulation
            .await_that(STEP_TIME, |simulation| { simulation.directory(second).replaced_by(&id).is_some() })
    );
    simulation.with_worker(second, |worker, simulation| worker.get(simulation, ID));
    assert!(simulation.await_that(CALL_TIME, |simulation| simulation.workers[first].is_idle()));
    // This client has a connection of its own to the same node.
    let other = simulation.hosts.len();
    assert_eq!(simulation.workers[other].host, second, "there are more clients than nodes");
    simulation.get_now(other);
    simulation.wrong()
}

#[test]
fn a_second_keeper_that_answers_by_itself_is_found() {
    finds(Bug::SecondKeeperAnswers, the_second_keeper_is_asked);
}

/// The second keeper switches, and its answer does not come until the call's time is over. Then the node that
/// has the object hands it over, and the keepers are told of that.
fn the_second_keeper_is_silent_after_the_switch(seed: u64) -> Vec<String> {
    let (first, second, holder, writer) = (0, 1, 2, 3);
    let mut simulation = cluster_of(4, seed);
    simulation.give_to(first, Some(second));
    simulation.put(holder, ID, SHORT_BYTES);
    simulation.pass(REST_TIME);
    let (life, id) = (simulation.begin_replacing(holder, writer), simulation.ids[ID]);
    assert!(simulation.await_that(STEP_TIME, |simulation| simulation.directory(second).is_buried(&id, life)));
    simulation.network.partition(first as u32, second as u32, true);
    simulation.pass(CALL_TIME);
    simulation.network.partition(first as u32, second as u32, false);
    assert!(simulation.await_workers().is_empty());
    simulation.get_now(holder);
    let node = simulation.hosts[writer].id().expect("it runs");
    let migrate = Request::Migrate { timeout_us: 10_000_000, id, node };
    simulation.with_worker(holder, |worker, simulation| worker.ask_further(simulation, migrate));
    assert!(simulation.await_workers().is_empty());
    simulation.pass(STEP_TIME);
    simulation.with_worker(second, |worker, simulation| worker.ask_contains(simulation));
    assert!(simulation.await_workers().is_empty());
    simulation.wrong()
}

#[test]
fn a_way_back_after_the_switch_is_found() {
    finds(Bug::WayBack, the_second_keeper_is_silent_after_the_switch);
}

#[test]
fn a_node_leaves_with_nothing_that_it_withholds() {
    let (first, second, holder, writer) = (0, 1, 2, 3);
    for seed in SEEDS {
        let mut simulation = cluster_of(4, seed);
        simulation.give_to(first, Some(second));
        simulation.put(holder, ID, SHORT_BYTES);
        simulation.pass(REST_TIME);
        // The holder does not confirm that it guards the object.
        let until = simulation.time.now() + STEP_TIME + STEP_TIME / 2;
        simulation.hosts[holder].stall(until);
        simulation.begin_replacing(holder, writer);
        simulation.hosts[writer].drain();
        simulation.pass(STEP_TIME);
        assert!(simulation.hosts[writer].is_alive(), "seed {seed}: it withholds an object");
        assert!(simulation.await_workers().is_empty(), "seed {seed}");
        let has_left = simulation.await_that(REST_TIME, |simulation| !simulation.hosts[writer].is_alive());
        assert!(has_left, "seed {seed}: nothing is left on it");
        simulation.get_now(first);
        simulation.bring_back(writer);
        assert_eq!(simulation.wrong(), Vec::<String>::new(), "seed {seed}");
    }
}

/// The first keeper is taken for gone and does not know it. The holder hears of that late, and asks it.
fn the_holder_hears_late_of_the_keeper(seed: u64) -> Vec<String> {
    const LAG: Duration = Duration::from_secs(20);
    let (former, first, holder, writer) = (0, 1, 2, 3);
    let mut simulation = cluster_of(4, seed);
    simulation.give_to(former, Some(first));
    simulation.put(holder, ID, SHORT_BYTES);
    simulation.pass(REST_TIME);
    simulation.coordinator.late = Some((holder, LAG));
    let Simulation { hosts, coordinator, time, .. } = &mut simulation;
    coordinator.remove(hosts, former, time.now());
    // Clients of the former keeper may read its table for a while, which the new one waits for.
    simulation.pass(CALL_TIME);
    let (life, id) = (simulation.begin_replacing(holder, writer), simulation.ids[ID]);
    simulation.await_that(CALL_TIME, |simulation| simulation.directory(first).is_buried(&id, life));
    // What the keeper orders from now on does not come to the holder.
    simulation.network.partition(first as u32, holder as u32, true);
    simulation.await_that(CALL_TIME, |simulation| simulation.workers[writer].is_idle());
    simulation.get_now(holder);
    simulation.network.partition(first as u32, holder as u32, false);
    simulation.coordinator.late = None;
    simulation.pass(LAG);
    simulation.bring_back(former);
    simulation.wrong()
}

#[test]
fn a_guard_of_a_later_view_is_found() {
    finds(Bug::GuardOfLaterView, the_holder_hears_late_of_the_keeper);
}

#[test]
fn what_a_keeper_had_guarded_before_it_was_gone_is_dropped() {
    let (former, first, holder, writer) = (0, 1, 2, 3);
    for seed in 1..=20 {
        let mut simulation = cluster_of(4, seed);
        simulation.give_to(former, Some(first));
        simulation.put(holder, ID, SHORT_BYTES);
        simulation.pass(REST_TIME);
        let (life, id) = (simulation.begin_replacing(holder, writer), simulation.ids[ID]);
        let is_noted = |simulation: &Simulation| simulation.directory(first).is_buried(&id, life);
        assert!(simulation.await_that(STEP_TIME, is_noted), "seed {seed}");
        // Its order to drop the life does not come to the holder. The next keeper does not name the life,
        // which is over for it.
        simulation.network.partition(former as u32, holder as u32, true);
        let Simulation { hosts, coordinator, time, .. } = &mut simulation;
        coordinator.remove(hosts, former, time.now());
        simulation.pass(CALL_TIME);
        assert!(simulation.await_workers().is_empty(), "seed {seed}");
        let is_dropped = |simulation: &Simulation| simulation.life_on(holder).is_none_or(|on| on.0 != life);
        assert!(simulation.await_that(CALL_TIME, is_dropped), "seed {seed}");
        simulation.network.partition(former as u32, holder as u32, false);
        simulation.bring_back(former);
        assert_eq!(simulation.wrong(), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn an_object_of_which_no_keeper_has_heard_yet_is_there_to_be_compared() {
    let (first, creator, writer) = (0, 1, 2);
    let never = Some((1, Value { writer: u32::MAX, number: 0 }));
    for seed in 1..=20 {
        let mut simulation = cluster_of(3, seed);
        simulation.give_to(first, None);
        simulation.pass(REST_TIME);
        simulation.put(creator, ID, SHORT_BYTES);
        simulation.with_worker(writer, |worker, simulation| {
            worker.replace_now(simulation, (ID, SHORT_BYTES), never)
        });
        assert!(simulation.await_workers().is_empty(), "seed {seed}");
        assert_eq!(simulation.wrong(), Vec::<String>::new(), "seed {seed}");
    }
}
