//! Cases of keepers that change while objects are put and deleted: nodes follow a change of members at
//! different moments, so some nodes tell a former keeper what the next keeper has to know.

use std::ops::RangeInclusive;
use std::time::Duration;

use plasmon::ObjectId;
use plasmon::wire::Request;

use super::Simulation;

/// Seeds of each case.
const SEEDS: RangeInclusive<u64> = 1..=2;
/// Number of the node that goes and comes back.
const LEAVER: usize = 1;
/// Number of the node whose client puts.
const PUTTER: usize = 0;
/// Number of the node whose client deletes and gets.
const GETS: usize = 2;
/// Number of objects of a lot: so many that some are of any shard that changes its keepers.
const MANY: usize = 40;
/// Time in which nodes follow a change of members, and end what they had begun.
const SETTLED_TIME: Duration = Duration::from_secs(20);
/// Length in bytes of an object.
const LEN_BYTES: usize = 100;

fn lot(name: &str) -> Vec<ObjectId> {
    (0..MANY).map(|number| ObjectId::from_name(&format!("{name} {number}"))).collect()
}

impl Simulation {
    /// Has the other client begin to delete objects.
    pub(super) fn begin_deletion(&mut self, ids: &[ObjectId]) {
        let delete = Request::Delete { ids: ids.to_vec() };
        self.with_worker(GETS, |worker, simulation| worker.ask_further(simulation, delete));
    }

    /// Removes the node that goes from the cluster: it dies, or is taken for dead.
    fn let_go(&mut self, dies: bool) {
        if dies {
            self.hosts[LEAVER].kill();
            self.coordinator.forget(&mut self.hosts, self.time.now(), None);
        } else {
            self.begin_expelling(LEAVER);
            self.coordinator.remove(&mut self.hosts, LEAVER, self.time.now());
        }
    }

    /// Checks that the client that gets can have the objects of the lot that another node has, and no others.
    fn check_lot(&mut self, seed: u64, ids: &[ObjectId], here: usize) {
        assert_eq!(self.here(PUTTER, ids), here, "seed {seed}: objects that node {PUTTER} has");
        self.prefetch(GETS, ids);
        self.pass(SETTLED_TIME);
        assert_eq!(self.here(GETS, ids), here, "seed {seed}: objects that node {GETS} can get");
        let evict = Request::Evict { bytes: u64::MAX };
        self.with_worker(GETS, |worker, simulation| worker.ask_further(simulation, evict));
        self.pass(SETTLED_TIME);
    }
}

#[test]
fn what_is_put_and_deleted_while_keepers_change_is_known_to_the_next_ones() {
    for seed in SEEDS {
        for dies in [true, false] {
            let mut simulation = Simulation::new(seed, |_| Vec::new());
            simulation.network.change_faults(|faults| {
                (faults.spoiled_read_ppm, faults.cut_ppm, faults.early_send_ppm) = (0, 0, 0);
            });
            simulation.pass(SETTLED_TIME);
            let [old, other, first, second] = ["old", "other", "first", "second"].map(lot);
            simulation.begin_puts(PUTTER, &[&old[..], &other].concat(), LEN_BYTES, false);
            simulation.pass(SETTLED_TIME);
            assert_eq!(simulation.here(PUTTER, &old), MANY, "seed {seed}: they are put");

            simulation.let_go(dies);
            simulation.begin_deletion(&old);
            simulation.begin_puts(PUTTER, &first, LEN_BYTES, false);
            simulation.pass(SETTLED_TIME);
            simulation.bring_back(LEAVER);
            simulation.begin_deletion(&other);
            simulation.begin_puts(PUTTER, &second, LEN_BYTES, false);
            simulation.pass(SETTLED_TIME);
            // If a former keeper had kept entries, they would count again now.
            simulation.let_go(dies);
            simulation.pass(SETTLED_TIME);
            // A deletion that the change disturbed has said so.
            for ids in [&old, &other] {
                if simulation.here(PUTTER, ids) > 0 {
                    simulation.begin_deletion(ids);
                    simulation.pass(SETTLED_TIME);
                }
            }
            for (ids, here) in [(&old, 0), (&other, 0), (&first, MANY), (&second, MANY)] {
                simulation.check_lot(seed, ids, here);
            }
            simulation.bring_back(LEAVER);
            simulation.pass(SETTLED_TIME);
            for ids in [&first, &second] {
                simulation.check_lot(seed, ids, MANY);
                simulation.begin_deletion(ids);
                simulation.pass(SETTLED_TIME);
            }
            let wrong = simulation.wrong();
            assert!(wrong.is_empty(), "seed {seed}:\n{}\n{}", simulation.log.join("\n"), wrong.join("\n"));
        }
    }
}
