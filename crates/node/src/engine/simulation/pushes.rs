//! Cases of pushes: what breaks in the middle of a push, and when the rest of its writes land.

use std::ops::RangeInclusive;
use std::time::Duration;

use plasmon::Verify;
use plasmon::wire::Request;

use super::{FIRST_REPLICATED_ID, Setup, Simulation, below};
use crate::transfer::pushes_under_way;

/// Seeds of the case.
const SEEDS: RangeInclusive<u64> = 1..=3;
/// Times that a window is spoilt in a case.
const ROUNDS: usize = 8;
/// Number of short objects that are being written when the connections break. They take as many slots of the
/// window as the long ones.
const BROKEN: usize = 12;
/// Length in bytes of an object that takes one slot of a window.
const SHORT_BYTES: usize = 60_000;
/// Length in bytes of an object that takes several slots of a window.
const LONG_BYTES: usize = 250_000;
/// Longest time that a message takes.
const DELAY_TIME: Duration = Duration::from_micros(500);
/// Longest time after which a write by a broken connection lands by itself: later than the end of a case.
const LATE: Duration = Duration::from_secs(1 << 20);
/// Maximum number of moments at which something happens between the next pushes and the landing.
const MOMENTS: usize = 12;
/// Time for which a node makes no other window for a peer.
const ANOTHER_WINDOW: Duration = Duration::from_secs(11);

/// Runs a seed: a node asks another for many short objects, and the connections break in the middle of the
/// writes, so that some writes have not landed. They land while longer objects come to the next window.
/// Returns the broken promises.
pub(super) fn late_writes(seed: u64) -> Vec<String> {
    let uncompared = |seed| Setup { verify: Verify::Off, ..Setup::plain(seed) };
    let mut simulation = Simulation::with(4 * seed + 1, |_| Vec::new(), uncompared);
    simulation.network.change_faults(|faults| {
        (faults.delay_max, faults.late_write_max, faults.spoiled_read_ppm) = (DELAY_TIME, LATE, 0);
        (faults.cut_ppm, faults.early_send_ppm) = (0, 0);
    });
    for round in 0..ROUNDS {
        let short = simulation.put_lot(1, SHORT_BYTES, round);
        let long: Vec<_> = (0..FIRST_REPLICATED_ID).collect();
        long.iter().for_each(|id| simulation.put(1, *id, LONG_BYTES));
        // The first object opens the window.
        simulation.prefetch(0, &short[..1]);
        simulation.pass(ANOTHER_WINDOW);
        simulation.prefetch(0, &short[1..=BROKEN]);
        let until = simulation.time.now() + Duration::from_secs(1);
        while simulation.time.now() < until && simulation.pushing(1) < BROKEN / 3 {
            simulation.step(until, false);
        }
        simulation.network.cut(0, 1);
        // The objects that did not come are read, and the first of them opens the next window.
        simulation.pass(Duration::from_secs(1));
        let ids: Vec<_> = long.iter().map(|id| simulation.ids[*id]).collect();
        simulation.prefetch(0, &ids);
        let (until, mut moments) = (simulation.time.now() + Duration::from_secs(1), below(MOMENTS));
        while simulation.time.now() < until && simulation.here(0, &ids) < ids.len() {
            if simulation.pushing(1) > 0 {
                if moments == 0 {
                    simulation.network.land_late_writes();
                }
                moments = moments.wrapping_sub(1);
            }
            simulation.step(until, false);
        }
        for id in &long {
            simulation.with_worker(0, |worker, simulation| worker.get(simulation, *id));
            simulation.await_workers();
        }
        let delete = Request::Delete { ids: short };
        simulation.with_worker(0, |worker, simulation| worker.ask_further(simulation, delete));
        simulation.pass(Duration::from_secs(1));
        long.iter().for_each(|id| simulation.delete(0, *id));
    }
    simulation.wrong()
}

impl Simulation {
    /// Number of objects that a host has written to windows whose owners have not released them.
    fn pushing(&self, host: usize) -> usize {
        pushes_under_way(&self.hosts[host].core().expect("it runs").transfer)
    }
}

#[test]
fn writes_that_land_late_harm_no_object_that_comes_to_the_next_window() {
    for seed in SEEDS {
        assert_eq!(late_writes(seed), Vec::<String>::new(), "seed {seed}");
    }
}
