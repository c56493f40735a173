//! Cases of the simulation: each says what happens and when, and a seed decides the rest, such as the number
//! of nodes and how long messages take.
//!
//! A race that a test or a drawn seed found is a case of its own, because the seed that found it shows
//! another run as soon as the code draws one random number more.

use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use plasmon::wire::{NewObject, Request, Terms};
use plasmon::{ObjectId, Rights};
use plasmon_linear::Action;

use super::host::Host;
use super::worker::USER;
use super::{REST_TIME, Simulation, below};
use crate::control::Event;
use crate::net::ahead::ATTEMPT_PATIENCE;
use crate::object::Pin;
use crate::transfer::LEASE;

/// Seeds of each case: of clusters without disks.
const SEEDS: RangeInclusive<u64> = 1..=3;
/// Number of times that a put is tried.
const MAX_PUT_TRIES: usize = 20;
/// Time in which nodes follow a change of members.
const VIEW_TIME: Duration = Duration::from_millis(100);
/// An id of which one node is to keep the object.
const ID: usize = 0;
/// Length in bytes of an object that comes in a message.
const SHORT_BYTES: usize = 100;
/// Length in bytes of an object that moves for a while.
const LONG_BYTES: usize = 6_000_000;
/// Length in bytes of an object that is put with a message, and read by a fetch.
const READ_BYTES: usize = 60_000;
/// Number of objects that one node wants from another: more than it reads from one holder at a time.
const MANY: usize = 24;

impl Simulation {
    /// Has the coordinator take a node for gone. The node fences itself first.
    pub(super) fn expel(&mut self, host: usize) {
        self.begin_expelling(host);
        self.note_cut_off(host);
        self.pass(VIEW_TIME);
    }

    /// Tells a node that the coordinator is about to take it for gone.
    pub(super) fn begin_expelling(&mut self, host: usize) {
        self.hosts[host].is_expelled = true;
        self.hosts[host].send(Event::Expelled, self.time.now());
    }

    /// Has a client of a host put an object; the put ends well.
    pub(super) fn put(&mut self, host: usize, id: usize, len: usize) {
        let puts = |simulation: &Self| {
            simulation.histories[id].iter().filter(|call| matches!(call.action, Action::Put(_))).count()
        };
        let before = puts(self);
        for _ in 0..MAX_PUT_TRIES {
            self.with_worker(host, |worker, simulation| worker.put_now(simulation, id, len));
            assert!(self.await_workers().is_empty(), "a put ends");
            if puts(self) > before {
                break;
            }
            // The keepers may not know yet whether the id is free.
            self.pass(Duration::from_secs(1));
        }
        assert_eq!(puts(self), before + 1, "node {host} puts id {id}: {:?}", self.histories[id]);
    }

    /// Has a client of a host put objects of ids that nobody else uses.
    fn put_many(&mut self, host: usize, len: usize) -> Vec<ObjectId> {
        self.put_lot(host, len, 0)
    }

    /// Puts objects as [`Simulation::put_many`] does. Each lot has ids of its own.
    pub(super) fn put_lot(&mut self, host: usize, len: usize, lot: usize) -> Vec<ObjectId> {
        let name = |number| format!("{number} of node {host} and lot {lot}");
        let ids: Vec<_> = (0..MANY).map(|number| ObjectId::from_name(&name(number))).collect();
        self.begin_puts(host, &ids, len, true);
        self.pass(VIEW_TIME);
        assert_eq!(self.here(host, &ids), MANY, "node {host} has put them");
        ids
    }

    /// Has a client of a host begin to put objects. No keeper is asked about `fresh` ids.
    pub(super) fn begin_puts(&mut self, host: usize, ids: &[ObjectId], len: usize, fresh: bool) {
        for id in ids {
            let object = NewObject {
                id: *id,
                rights: Rights::default(),
                name: String::new(),
                metadata: Default::default(),
                terms: Terms { fresh, copies: 1, ttl_ms: 0, owned: false, replaces: false },
            };
            let put = Request::Put { object, digest: 0, room_us: 1_000_000, data: vec![1; len].into() };
            self.with_worker(host, |worker, simulation| worker.ask_further(simulation, put));
        }
    }

    /// Has a node bring objects.
    pub(super) fn prefetch(&mut self, host: usize, ids: &[ObjectId]) {
        let prefetch = Request::Prefetch { timeout_us: 60_000_000, ids: ids.to_vec() };
        self.with_worker(host, |worker, simulation| worker.ask_further(simulation, prefetch));
    }

    /// Number of these objects that a node has.
    pub(super) fn here(&self, host: usize, ids: &[ObjectId]) -> usize {
        let objects = self.hosts[host].core().expect("it runs").store.objects.borrow();
        ids.iter().filter(|id| objects.get(id).is_some()).count()
    }

    /// Number of objects for which a node waits for a place at their holder.
    fn queued(&self, host: usize) -> u64 {
        self.hosts[host].core().expect("it runs").services.status().transfer.queued
    }

    /// Whether two nodes have exchanged something.
    fn are_connected(&self, one: usize, other: usize) -> bool {
        let to = |from: usize, to: usize| {
            let node = self.hosts[to].id().expect("it runs");
            self.hosts[from].core().expect("it runs").network.connected(node)
        };
        to(one, other) && to(other, one)
    }

    /// Number of one-sided reads that a node has made.
    fn reads(&self, host: usize) -> u64 {
        self.hosts[host].core().expect("it runs").services.status().fabric.reads
    }

    /// Changes one byte of a host's replica of an object, as bad memory does.
    fn spoil(&mut self, host: usize, id: usize, len: usize) {
        let objects = self.hosts[host].core().expect("it runs").store.objects.borrow();
        let replica = objects.get(&self.ids[id]).expect("the node has the object");
        let pin = Pin::new(replica).expect("it is in memory");
        let (at, mut byte) = (below(len) as u64, [0]);
        pin.run().read(at, &mut byte).expect("inside the object");
        pin.run().write(at, &[byte[0] ^ 1 << below(8)]).expect("inside the object");
    }

    /// Has a client of a host get an object that its node does not have. Returns how the get ended.
    pub(super) fn get_anew(&mut self, host: usize, id: usize) -> Result<(), String> {
        let evict = Request::Evict { bytes: u64::MAX };
        self.with_worker(host, |worker, simulation| worker.ask_further(simulation, evict));
        assert!(self.await_workers().is_empty(), "an eviction ends");
        self.with_worker(host, |worker, simulation| worker.get(simulation, id));
        assert!(self.await_workers().is_empty(), "a get ends");
        self.workers[host].last_get.clone().expect("it was answered")
    }

    /// Number of objects that have come to a node with other bytes than were sealed.
    fn damaged(&self, host: usize) -> u64 {
        self.hosts[host].core().expect("it runs").services.status().transfer.damaged
    }

    /// Has a client of a host delete an object.
    pub(super) fn delete(&mut self, host: usize, id: usize) {
        self.with_worker(host, |worker, simulation| worker.delete(simulation, id));
        assert!(self.await_workers().is_empty(), "a deletion ends");
    }

    /// Ends a case, and checks that all promises hold.
    fn end(mut self, seed: u64) {
        let wrong = self.wrong();
        assert!(wrong.is_empty(), "seed {seed}:\n{}\n{}", self.log.join("\n"), wrong.join("\n"));
    }
}

/// A cluster of a seed, in which nothing happens by itself.
pub(super) fn cluster(seed: u64) -> Simulation {
    let simulation = Simulation::new(seed, |_| Vec::new());
    simulation.network.change_faults(|faults| {
        (faults.spoiled_read_ppm, faults.cut_ppm, faults.early_send_ppm) = (0, 0, 0);
    });
    simulation
}

#[test]
fn of_two_lives_that_come_back_the_later_stays() {
    for seed in SEEDS {
        for order in [[0, 1], [1, 0]] {
            let mut simulation = cluster(seed);
            simulation.put(0, ID, SHORT_BYTES);
            simulation.expel(0);
            simulation.put(1, ID, SHORT_BYTES);
            simulation.expel(1);
            for host in order {
                simulation.join(host);
                simulation.pass(VIEW_TIME);
            }
            simulation.end(seed);
        }
    }
}

#[test]
fn what_was_created_anew_and_deleted_does_not_come_back() {
    for seed in SEEDS {
        let mut simulation = cluster(seed);
        simulation.put(0, ID, SHORT_BYTES);
        simulation.expel(0);
        simulation.put(1, ID, SHORT_BYTES);
        simulation.delete(2, ID);
        simulation.join(0);
        simulation.end(seed);
    }
}

#[test]
fn a_deletion_whose_answer_is_lost_with_its_keeper_deletes_nothing_that_is_created_then() {
    for seed in SEEDS {
        let mut simulation = cluster(seed);
        let object = simulation.ids[ID];
        // Keepers that are not new to the shard decide by themselves.
        simulation.pass(REST_TIME);
        let keepers = simulation.hosts[0].core().expect("it runs").cluster.keepers(&object);
        let is = |host: &Host, node| host.id() == Some(node);
        let place = |node| simulation.hosts.iter().position(|host| is(host, node)).expect("a member");
        let [first, second] = [keepers.first, keepers.second.expect("there are two")].map(place);
        let asker = (0..simulation.hosts.len()).find(|host| ![first, second].contains(host)).expect("three");
        simulation.put(second, ID, SHORT_BYTES);
        simulation.pass(VIEW_TIME);
        simulation.with_worker(asker, |worker, simulation| worker.delete(simulation, ID));
        let until = simulation.time.now() + Duration::from_secs(1);
        let core = Rc::clone(simulation.hosts[first].core().expect("it runs"));
        while simulation.time.now() < until && !core.directory.deletion.is_under_way(&object) {
            simulation.step(until, false);
        }
        simulation.network.partition(first as u32, asker as u32, true);
        simulation.pass(VIEW_TIME);
        assert!(core.directory.table.borrow().deleted(&object), "seed {seed}: it is deleted");
        drop(core);
        simulation.with_worker(second, |worker, simulation| worker.put_now(simulation, ID, SHORT_BYTES));
        simulation.pass(VIEW_TIME);
        simulation.hosts[first].kill();
        simulation.note_loss(first);
        simulation.coordinator.forget(&mut simulation.hosts, simulation.time.now(), None);
        assert!(simulation.await_workers().is_empty(), "the deletion ends");
        let last = simulation.histories[ID].last().expect("a call");
        assert!(matches!(last.action, Action::MaybeDeleted), "seed {seed}: {last:?}");
        assert_eq!(simulation.here(second, &[object]), 1, "seed {seed}: the object that was created anew");
        simulation.bring_back(first);
        simulation.end(seed);
    }
}

#[test]
fn an_id_is_free_when_the_node_that_claimed_it_died_before_it_was_granted() {
    for seed in SEEDS {
        let mut simulation = cluster(seed);
        // Keepers of a new cluster ask all members before they grant a claim, and one of these stands still.
        let last = simulation.hosts.len() - 1;
        let until = simulation.time.now() + Duration::from_millis(500);
        simulation.hosts[last].stall(until);
        let ids: Vec<_> = (0..MANY).map(|number| ObjectId::from_name(&number.to_string())).collect();
        simulation.begin_puts(0, &ids, SHORT_BYTES, false);
        simulation.pass(VIEW_TIME);
        let Simulation { hosts, coordinator, time, .. } = &mut simulation;
        hosts[0].kill();
        coordinator.forget(hosts, time.now(), None);
        simulation.pass(REST_TIME);
        simulation.begin_puts(1, &ids, SHORT_BYTES, false);
        simulation.pass(REST_TIME);
        assert_eq!(simulation.here(1, &ids), MANY, "seed {seed}");
        simulation.with_worker(1, |worker, simulation| {
            worker.ask_further(simulation, Request::Delete { ids });
        });
        simulation.pass(VIEW_TIME);
        simulation.end(seed);
    }
}

#[test]
fn an_order_to_keep_what_is_deleted_meanwhile_ends() {
    let mut met = 0;
    for seed in SEEDS {
        let mut simulation = cluster(seed);
        simulation.put(0, ID, LONG_BYTES);
        let (object, until) = (simulation.ids[ID], simulation.time.now() + Duration::from_secs(1));
        simulation.with_worker(2, |worker, simulation| worker.get(simulation, ID));
        let moves =
            |host: &Host| host.core().is_some_and(|core| core.transfer.records.moves_here(&object, USER));
        while simulation.time.now() < until && !moves(&simulation.hosts[2]) {
            simulation.step(until, false);
        }
        // The order joins the fetch of the get, and the fetch does not end when the object is deleted.
        let copies = simulation.hosts.len() as u16;
        let keep = Request::Replicate { timeout_us: 10_000_000, id: object, copies, put: false };
        simulation.with_worker(0, |worker, simulation| worker.ask_further(simulation, keep));
        simulation.delete(1, ID);
        let failed = |host: &Host| host.core().map(|core| core.services.status().transfer.fetch_failures);
        met += simulation.hosts.iter().filter_map(failed).sum::<u64>();
        simulation.end(seed);
    }
    assert!(met > 0, "no object was deleted during its fetch");
}

#[test]
fn a_holder_that_stands_still_holds_up_no_other_holders_objects() {
    for seed in SEEDS {
        let mut simulation = cluster(seed);
        let [stalled, others] = [1, 2].map(|host| simulation.put_many(host, READ_BYTES));
        simulation.prefetch(0, &stalled);
        let until = simulation.time.now() + Duration::from_secs(1);
        while simulation.time.now() < until && simulation.queued(0) == 0 {
            simulation.step(until, false);
        }
        simulation.network.partition(0, 1, true);
        simulation.prefetch(0, &others);
        // Attempts at the holder that stands still fail only later.
        simulation.pass(LEASE / 4);
        assert!(simulation.queued(0) > 0, "seed {seed}: nothing waits for the holder that stands still");
        assert_eq!(simulation.here(0, &others), MANY, "seed {seed}: objects that node 2 gives");
        simulation.network.partition(0, 1, false);
        simulation.pass(LEASE);
        assert_eq!(simulation.here(0, &stalled), MANY, "seed {seed}: objects that node 1 gives again");
        for ids in [stalled, others] {
            let delete = Request::Delete { ids };
            simulation.with_worker(0, |worker, simulation| worker.ask_further(simulation, delete));
            simulation.pass(VIEW_TIME);
        }
        simulation.end(seed);
    }
}

#[test]
fn short_objects_come_together() {
    for seed in SEEDS {
        let mut simulation = cluster(seed);
        let ids = [simulation.put_many(1, SHORT_BYTES), simulation.put_many(2, SHORT_BYTES)].concat();
        simulation.pass(VIEW_TIME);
        let sent = |simulation: &Simulation| -> u64 {
            let sent =
                |host: &Host| host.core().map_or(0, |core| core.services.status().fabric.messages_sent);
            simulation.hosts.iter().map(sent).sum()
        };
        for round in ["asked for at their keepers", "asked for where they were"] {
            let before = sent(&simulation);
            simulation.prefetch(0, &ids);
            simulation.pass(VIEW_TIME);
            assert_eq!(simulation.here(0, &ids), 2 * MANY, "seed {seed}: {round}");
            let count = sent(&simulation) - before;
            assert!(
                count < 2 * MANY as u64,
                "seed {seed}: {count} messages for {} objects, {round}",
                2 * MANY
            );
            let core = simulation.hosts[0].core().expect("it runs");
            let came = |id: &&ObjectId| {
                let fetched = core.transfer.records.explain(id, USER).fetched.expect("it was fetched");
                fetched.why == "it fits a message with others"
            };
            assert_eq!(ids.iter().filter(came).count(), 2 * MANY, "seed {seed}: {round}");
            let evict = Request::Evict { bytes: u64::MAX };
            simulation.with_worker(0, |worker, simulation| worker.ask_further(simulation, evict));
            simulation.pass(VIEW_TIME);
            assert_eq!(simulation.here(0, &ids), 0);
        }
        let delete = Request::Delete { ids };
        simulation.with_worker(0, |worker, simulation| worker.ask_further(simulation, delete));
        simulation.pass(VIEW_TIME);
        simulation.end(seed);
    }
}

#[test]
fn a_batch_with_a_holder_that_stands_still_ends() {
    for seed in SEEDS {
        let mut simulation = cluster(seed);
        let [stalled, others] = [1, 2].map(|host| simulation.put_many(host, SHORT_BYTES));
        simulation.network.partition(0, 1, true);
        simulation.prefetch(0, &[stalled.clone(), others.clone()].concat());
        simulation.pass(Duration::from_secs(1));
        assert_eq!(simulation.here(0, &others), MANY, "seed {seed}: objects that node 2 gives");
        simulation.network.partition(0, 1, false);
        simulation.pass(LEASE);
        assert_eq!(simulation.here(0, &stalled), MANY, "seed {seed}: objects that node 1 gives again");
        let delete = Request::Delete { ids: [stalled, others].concat() };
        simulation.with_worker(0, |worker, simulation| worker.ask_further(simulation, delete));
        simulation.pass(VIEW_TIME);
        simulation.end(seed);
    }
}

#[test]
fn wrong_bytes_of_a_holder_are_seen_by_nobody_else() {
    let mut met = 0;
    for seed in SEEDS {
        // A keeper sends those who ask to the holders in turn.
        for (len, wrong) in
            [SHORT_BYTES, READ_BYTES, LONG_BYTES].into_iter().flat_map(|len| [(len, 0), (len, 1)])
        {
            let mut simulation = cluster(seed);
            simulation.put(0, ID, len);
            assert_eq!(simulation.get_anew(1, ID), Ok(()));
            simulation.pass(VIEW_TIME);
            simulation.spoil(wrong, ID, len);
            for _ in 0..5 {
                assert_eq!(simulation.get_anew(2, ID), Ok(()), "seed {seed}: another has the right bytes");
                simulation.pass(VIEW_TIME);
            }
            met += simulation.damaged(2);
            simulation.spoil(1 - wrong, ID, len);
            let told = simulation.get_anew(2, ID).expect_err("nobody has the right bytes");
            assert!(told.contains("is damaged: node"), "seed {seed}: {told}");
            simulation.delete(0, ID);
            simulation.end(seed);
        }
    }
    assert!(met > 0, "no holder gave wrong bytes while another had the right ones");
}

#[test]
fn who_watches_all_nodes_knows_what_they_have_after_they_died_and_came_back() {
    for seed in SEEDS {
        let mut simulation = cluster(seed);
        simulation.put(0, ID, SHORT_BYTES);
        simulation.pass(VIEW_TIME);
        assert_eq!((simulation.check_watcher(), simulation.watcher.gaps), (Vec::new(), 0));
        // One node comes back with its objects, another without.
        simulation.expel(0);
        simulation.hosts[1].kill();
        simulation.note_loss(1);
        simulation.pass(VIEW_TIME);
        simulation.coordinator.forget(&mut simulation.hosts, simulation.time.now(), None);
        simulation.pass(VIEW_TIME);
        assert_eq!(simulation.watcher.gaps, 2, "each of them is out of reach");
        simulation.bring_back(0);
        simulation.bring_back(1);
        // The first node gives nobody its objects until it knows which were deleted.
        simulation.pass(REST_TIME);
        assert_eq!(simulation.watcher.gaps, 4, "each of them comes");
        simulation.end(seed);
    }
}

#[test]
fn members_are_connected_before_anybody_wants_something() {
    for seed in SEEDS {
        let simulation = cluster(seed);
        let count = simulation.hosts.len();
        for one in 0..count {
            assert!((0..one).all(|other| simulation.are_connected(one, other)), "seed {seed}: node {one}");
        }
        // Each node has tried the bulk lane to each other node.
        let others = count as u64 - 1;
        assert!((0..count).all(|host| simulation.reads(host) == others), "seed {seed}");
        simulation.end(seed);
    }
}

#[test]
fn members_that_cannot_be_reached_delay_no_connection_to_others() {
    for seed in SEEDS {
        let mut simulation = cluster(seed);
        let last = simulation.hosts.len() - 1;
        simulation.hosts[0].kill();
        simulation.coordinator.forget(&mut simulation.hosts, simulation.time.now(), None);
        // The first node refuses, the last can be reached, and the nodes between are silent.
        simulation.hosts[1].kill();
        (2..last).for_each(|silent| simulation.network.partition(0, silent as u32, true));
        simulation.hosts[0].start_again();
        simulation.join(0);
        simulation.pass(4 * ATTEMPT_PATIENCE);
        assert!(simulation.are_connected(0, last), "seed {seed}");
        (2..last).for_each(|silent| simulation.network.partition(0, silent as u32, false));
        simulation.pass(ATTEMPT_PATIENCE);
        assert!((2..last).all(|silent| simulation.are_connected(0, silent)), "seed {seed}");
        simulation.bring_back(1);
        simulation.end(seed);
    }
}

#[test]
fn a_drain_leaves_no_object_to_one_node_because_others_are_silent_for_a_while() {
    let mut met = 0;
    for seed in SEEDS {
        let mut simulation = cluster(seed);
        let ids = simulation.put_many(0, READ_BYTES);
        for id in &ids {
            let keep = Request::Replicate { timeout_us: 10_000_000, id: *id, copies: 2, put: false };
            simulation.with_worker(0, |worker, simulation| worker.ask_further(simulation, keep));
        }
        simulation.pass(Duration::from_secs(1));
        let keeps = |simulation: &Simulation, host: usize, id: &ObjectId| {
            let core = simulation.hosts[host].core()?;
            let stays = core.store.objects.borrow().get(id)?.role().stays();
            stays.then_some(())
        };
        let kept: Vec<_> = ids.iter().filter(|id| keeps(&simulation, 1, id).is_some()).collect();
        met += kept.len();
        let until = simulation.time.now() + Duration::from_secs(5);
        simulation.hosts[2..].iter_mut().for_each(|host| host.stall(until));
        let contains = Request::Contains { ids: (0..MANY).map(|_| ObjectId::random()).collect() };
        simulation.with_worker(0, |worker, simulation| worker.ask_further(simulation, contains));
        simulation.pass(Duration::from_secs(2));
        simulation.hosts[0].drain();
        simulation.pass(Duration::from_secs(2));
        let Simulation { hosts, coordinator, time, .. } = &mut simulation;
        hosts[1].kill();
        coordinator.forget(hosts, time.now(), None);
        simulation.pass(REST_TIME);
        for id in kept {
            let keepers = (0..simulation.hosts.len()).filter_map(|host| keeps(&simulation, host, id)).count();
            assert!(keepers > 0, "seed {seed}: object {id} is lost");
        }
        simulation.with_worker(2, |worker, simulation| {
            worker.ask_further(simulation, Request::Delete { ids });
        });
        simulation.pass(VIEW_TIME);
        simulation.end(seed);
    }
    assert!(met > 0, "no object was kept by the node that died");
}
