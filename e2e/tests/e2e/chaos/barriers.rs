//! Barriers at which workers meet, two at a time: who passes was there together with another, and when
//! nothing is broken any more, every barrier can be passed.
//!
//! A visit of a worker opens a barrier, waits there once, and closes it. A visit that failed may have been
//! counted all the same, once: the worker gave up, and its node could not say so in time.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use plasmon::{Client, Error, ErrorKind};
use plasmon_e2e::PATIENCE;
use plasmon_e2e::wait::patiently;

use super::worker::Worker;

/// Number of barriers, and of the parties of each.
pub(super) const BARRIERS: usize = 2;
const PARTIES: u32 = 2;
/// Time that opening and closing may take.
const LIMIT: Duration = Duration::from_secs(60);

/// End of a visit to a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The visit goes on.
    There,
    /// The visit passed the barrier, at this moment.
    Passed(u64),
    /// The visit failed.
    InVain,
}

/// Visits of one barrier, with the moments at which they began.
#[derive(Debug, Default)]
struct Visits {
    moments: u64,
    all: Vec<(u64, End)>,
}

impl Visits {
    fn moment(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }

    fn begin(&mut self) -> usize {
        let now = self.moment();
        self.all.push((now, End::There));
        self.all.len() - 1
    }

    /// Notes that a visit has passed, and looks for another that was there as well.
    fn pass(&mut self, visit: usize) {
        let (now, (begun, _)) = (self.moment(), self.all[visit]);
        let was_there = |(at, (_, end)): (usize, &(u64, End))| {
            at != visit && (*end == End::There || matches!(end, End::Passed(end) if *end > begun))
        };
        if !self.all.iter().enumerate().any(was_there) {
            let in_vain = self.all.iter().position(|(_, end)| *end == End::InVain);
            let counted = in_vain.unwrap_or_else(|| panic!("it passed alone: {:?}", self.all));
            // A visit in vain counts once.
            self.all[counted].1 = End::Passed(0);
        }
        self.all[visit].1 = End::Passed(now);
    }
}

/// Visits of all barriers.
#[derive(Default)]
pub(super) struct Barriers([Mutex<Visits>; BARRIERS]);

impl Barriers {
    /// Number of visits so far that have passed.
    pub(super) fn passed(&self) -> usize {
        let passed = |visits: &Mutex<Visits>| {
            let visits = visits.lock().unwrap();
            visits.all.iter().filter(|(_, end)| matches!(end, End::Passed(1..))).count()
        };
        self.0.iter().map(passed).sum()
    }
}

fn named(barrier: usize) -> String {
    format!("chaos {barrier}")
}

impl Worker {
    /// Meets another worker at a barrier, if one comes in time.
    pub(super) fn meet(&mut self, barrier: usize, patience: Duration) {
        let ground = Arc::clone(&self.ground);
        let visits = &ground.barriers.0[barrier];
        let visit = visits.lock().unwrap().begin();
        let meet = |client: &Client| client.barrier(&named(barrier), PARTIES)?.wait(Some(patience));
        match self.call("barrier", patience + LIMIT, meet) {
            Ok(place) => {
                assert!(place < PARTIES.into(), "place {place} of {PARTIES}");
                visits.lock().unwrap().pass(visit);
            }
            Err(error) => {
                let fits = [ErrorKind::Broken, ErrorKind::TimedOut, ErrorKind::Disconnected];
                assert!(fits.contains(&error.kind()), "barrier: {:?}: {error}", error.kind());
                visits.lock().unwrap().all[visit].1 = End::InVain;
            }
        }
    }
}

/// Has two clients meet at a barrier, which they leave when both have passed.
fn meet(barrier: usize, clients: &[Client]) -> Result<[u64; 2], Error> {
    let [one, other] = [0, 1].map(|at| clients[at].barrier(&named(barrier), PARTIES));
    let (one, other) = (one?, other?);
    thread::scope(|threads| {
        let waits = threads.spawn(|| other.wait(Some(LIMIT)));
        let place = one.wait(Some(LIMIT));
        Ok([place?, waits.join().expect("no panic")?])
    })
}

/// Checks that every barrier, at which nobody is now, lets clients of all nodes pass.
pub(super) fn look(clients: &[Client]) {
    for (barrier, pair) in
        (0..BARRIERS).flat_map(|barrier| clients.windows(2).map(move |pair| (barrier, pair)))
    {
        let met = patiently(PATIENCE, || meet(barrier, pair));
        let mut places = met.unwrap_or_else(|error| panic!("barrier {barrier}: {:?}: {error}", error.kind()));
        places.sort_unstable();
        assert_eq!(places, [0, 1], "places at barrier {barrier}");
    }
}
