//! Cases of spilling: memory and disk of a node are full, and other nodes get what lies on the disk; a node
//! that comes back says of what is on its disk what was true when that was written.

use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use plasmon::ObjectId;
use plasmon::wire::Request;

use super::host::Room;
use super::{DISK_SEEDS, REST_TIME, Simulation};
use crate::engine::Core;
use crate::object::Role;

/// Seeds of the case, of clusters with disks after multiplication.
const SEEDS: RangeInclusive<u64> = 1..=4;
/// Number of lots of objects that are put while the disk has room: several times what memory holds.
const LOTS: usize = 4;
/// Length in bytes of an object of a lot.
const LOT_BYTES: usize = 60_000;
/// Length in bytes of an object that is sent in many parts.
const LONG_BYTES: usize = 1_100_000;
/// Number of the id of the long object.
const LONG_ID: usize = 0;
/// Time in which a node without memory writes much to its disk, while an object is withheld.
const FILLING_TIME: Duration = Duration::from_secs(1);
/// Time in which puts end that find no room.
const PUT_TIME: Duration = Duration::from_secs(10);

/// Runs a seed: node 0 fills its memory behind what it has written to disk, whose room then ends. Another
/// node gets each object that node 0 has on disk alone. Returns the broken promises.
fn full_disk(seed: u64) -> Vec<String> {
    let (mut simulation, mut short) = filled(seed);
    simulation.hosts[0].set_disk_room(Room::Never);
    for lot in LOTS..2 * LOTS {
        let ids: Vec<_> =
            (0..LOTS).map(|number| ObjectId::from_name(&format!("large {lot} {number}"))).collect();
        simulation.begin_puts(0, &ids, 4 * LOT_BYTES, true);
        simulation.pass(PUT_TIME);
        short.extend(ids);
    }
    let on_disk = simulation.on_disk(0, &[&short[..], &[simulation.ids[LONG_ID]]].concat());
    assert!(on_disk.contains(&simulation.ids[LONG_ID]), "seed {seed}: the oldest object is on disk");
    for id in &on_disk {
        let until = simulation.time.now() + REST_TIME;
        simulation.prefetch(1, &[*id]);
        while simulation.here(1, &[*id]) == 0 {
            assert!(simulation.time.now() < until, "seed {seed}: object {id} does not come");
            simulation.step(until, false);
        }
    }
    let still = simulation.on_disk(0, &on_disk);
    assert!(still.contains(&simulation.ids[LONG_ID]), "seed {seed}: there is no memory for it");
    simulation.delete_all(seed, &short);
    simulation.wrong()
}

/// Makes a cluster in which node 0 has put the long object, and then more short ones than its memory holds.
/// Returns the ids of the short ones.
fn filled(seed: u64) -> (Simulation, Vec<ObjectId>) {
    let mut simulation = Simulation::new(DISK_SEEDS * seed, |_| Vec::new());
    simulation.hosts[0].set_disk_room(Room::Always);
    simulation.put(0, LONG_ID, LONG_BYTES);
    let mut short = Vec::new();
    for lot in 0..LOTS {
        short.extend(simulation.put_lot(0, LOT_BYTES, lot));
    }
    (simulation, short)
}

impl Simulation {
    /// Deletes objects until no node has one of them.
    fn delete_all(&mut self, seed: u64, ids: &[ObjectId]) {
        let until = self.time.now() + REST_TIME;
        while (0..self.hosts.len()).any(|host| self.here(host, ids) > 0) {
            assert!(self.time.now() < until, "seed {seed}: objects are not deleted");
            let delete = Request::Delete { ids: ids.to_vec() };
            self.with_worker(0, |worker, simulation| worker.ask_further(simulation, delete));
            self.pass(Duration::from_secs(1));
        }
    }

    /// Numbers of nodes that are to keep an object, as its primaries say.
    fn wished(&self, id: &ObjectId) -> Vec<u16> {
        let primary = |core: &Rc<Core>| {
            let objects = core.store.objects.borrow();
            objects.get(id).filter(|replica| replica.role() == Role::Primary).map(|replica| replica.copies())
        };
        self.hosts.iter().filter_map(|host| host.core().and_then(primary)).collect()
    }

    /// Returns those of the objects of a node that are on its disk alone.
    fn on_disk(&self, host: usize, ids: &[ObjectId]) -> Vec<ObjectId> {
        let objects = self.hosts[host].core().expect("it runs").store.objects.borrow();
        let is_on_disk = |id: &ObjectId| objects.get(id).is_some_and(|replica| !replica.in_memory());
        ids.iter().copied().filter(is_on_disk).collect()
    }
}

#[test]
fn what_a_full_node_has_on_disk_comes_to_nodes_that_have_room() {
    for seed in SEEDS {
        assert_eq!(full_disk(seed), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn a_former_number_of_copies_on_a_disk_does_not_replace_the_present_one() {
    const COPIES: u16 = 2;
    for seed in SEEDS {
        let (mut simulation, short) = filled(seed);
        let id = simulation.ids[LONG_ID];
        assert!(simulation.on_disk(0, &[id]).contains(&id), "seed {seed}: the oldest object is on disk");
        let replicate = Request::Replicate { timeout_us: 60_000_000, id, copies: COPIES, put: false };
        simulation.with_worker(0, |worker, simulation| worker.ask_further(simulation, replicate));
        simulation.pass(REST_TIME);
        assert_eq!(simulation.wished(&id), [COPIES], "seed {seed}");
        let Simulation { hosts, coordinator, time, .. } = &mut simulation;
        hosts[0].kill();
        coordinator.forget(hosts, time.now(), None);
        simulation.pass(REST_TIME);
        assert_eq!(simulation.wished(&id), [COPIES], "seed {seed}: there is an heir");
        simulation.bring_back(0);
        simulation.pass(REST_TIME);
        assert_eq!(simulation.wished(&id), [COPIES], "seed {seed}: one of the two primaries stayed");
        simulation.delete_all(seed, &short);
        assert_eq!(simulation.wrong(), Vec::<String>::new(), "seed {seed}");
    }
}

/// A node writes to its disk what its memory does not hold, and dies while it withholds an object that is to
/// take the place of another.
#[test]
fn what_is_withheld_is_on_no_disk() {
    let (holder, writer) = (1, 0);
    for seed in SEEDS {
        let mut simulation = Simulation::new(DISK_SEEDS * seed, |_| Vec::new());
        simulation.hosts[writer].set_disk_room(Room::Always);
        let id = simulation.ids[LONG_ID];
        simulation.put(holder, LONG_ID, LOT_BYTES);
        simulation.pass(REST_TIME);
        let life_on = |simulation: &Simulation, host: usize| {
            let objects = simulation.hosts[host].core().expect("it runs").store.objects.borrow();
            objects.get(&id).map(|replica| replica.life)
        };
        let former = life_on(&simulation, holder);
        // The holder does not confirm that it guards the object.
        let until = simulation.time.now() + 2 * FILLING_TIME;
        simulation.hosts[holder].stall(until);
        simulation.with_worker(writer, |worker, simulation| {
            worker.replace_now(simulation, (LONG_ID, LOT_BYTES), None);
        });
        let short: Vec<_> = (0..LOTS * 24).map(|number| ObjectId::from_name(&format!("{number}"))).collect();
        let filler = (writer + 1..).find(|worker| simulation.workers[*worker].host == writer);
        simulation.begin_puts(filler.expect("there are more clients than nodes"), &short, LOT_BYTES, true);
        simulation.pass(FILLING_TIME);
        assert!(!simulation.on_disk(writer, &short).is_empty(), "seed {seed}: it writes to its disk");
        assert!(!simulation.workers[writer].is_idle(), "seed {seed}: the object is withheld");
        let Simulation { hosts, coordinator, time, .. } = &mut simulation;
        hosts[writer].kill();
        coordinator.forget(hosts, time.now(), None);
        simulation.pass(REST_TIME);
        simulation.bring_back(writer);
        simulation.pass(REST_TIME);
        assert!(simulation.here(writer, &short) > 0, "seed {seed}: it has what was on its disk");
        assert_eq!(simulation.here(writer, &[id]), 0, "seed {seed}: it has what was withheld");
        assert_eq!(life_on(&simulation, holder), former, "seed {seed}");
        simulation.delete_all(seed, &short);
        assert_eq!(simulation.wrong(), Vec::<String>::new(), "seed {seed}");
    }
}
