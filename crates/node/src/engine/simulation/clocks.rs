//! The clocks of a simulated host: the clock of timers, which stands still while the host sleeps, and the
//! clock since the boot, which goes on, and may run faster or slower than others.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::{Time, below};

/// Greatest difference of the speed of a clock since the boot from the simulated time, in parts of a million.
/// Two hosts differ by less than a tenth, which leases allow for.
const MAX_DRIFT_PPM: usize = 40_000;
/// Longest time for which a host was running before the simulation.
const MAX_UPTIME: Duration = Duration::from_secs(1_000_000);

/// The clocks of a host.
#[derive(Clone)]
pub(super) struct Clocks {
    time: Time,
    state: Rc<RefCell<State>>,
}

struct State {
    /// A simulated time, and what the clock since the boot shows then.
    shows: (Duration, Duration),
    /// Speed of the clock since the boot, in parts of a million.
    speed_ppm: u64,
    /// Times in which the host slept or sleeps.
    slept: Vec<Range<Duration>>,
}

impl Clocks {
    /// Clocks that run as the simulated time does.
    pub(super) fn new(time: &Time, shows: Duration) -> Self {
        let state = State { shows: (time.now(), shows), speed_ppm: 1_000_000, slept: Vec::new() };
        Self { time: time.clone(), state: Rc::new(RefCell::new(state)) }
    }

    /// The time of timers.
    pub(super) fn instant(&self) -> Instant {
        let now = self.time.now();
        let state = self.state.borrow();
        let slept = state.slept.iter().map(|slept| now.min(slept.end).saturating_sub(slept.start));
        self.time.instant() - slept.sum::<Duration>()
    }

    /// The time since the host was booted.
    pub(super) fn boot(&self) -> Duration {
        let state = self.state.borrow();
        let (at, shown) = state.shows;
        shown + scaled(self.time.now() - at, state.speed_ppm, 1_000_000)
    }

    /// The simulated time that it takes until the clock since the boot has gone on by a span.
    pub(super) fn real(&self, span: Duration) -> Duration {
        scaled(span, 1_000_000, self.state.borrow().speed_ppm)
    }

    /// Has the clock since the boot show another time, and run at another speed. No code has read the clock
    /// yet.
    pub(super) fn draw(&self) {
        let uptime = super::span(MAX_UPTIME);
        let speed_ppm = (1_000_000 - MAX_DRIFT_PPM + below(2 * MAX_DRIFT_PPM + 1)) as u64;
        let mut state = self.state.borrow_mut();
        (state.shows, state.speed_ppm) = ((self.time.now(), uptime), speed_ppm);
    }

    /// Whether the host sleeps.
    pub(super) fn are_asleep(&self) -> bool {
        let now = self.time.now();
        self.state.borrow().slept.iter().any(|slept| slept.contains(&now))
    }

    /// Has the host wake up, if it sleeps.
    pub(super) fn wake(&self) {
        let now = self.time.now();
        self.state.borrow_mut().slept.iter_mut().for_each(|slept| slept.end = slept.end.min(now));
    }

    /// Has the host sleep from now on.
    pub(super) fn sleep(&self, until: Duration) {
        let now = self.time.now();
        self.wake();
        let mut state = self.state.borrow_mut();
        state.slept.push(now..until);
    }
}

fn scaled(span: Duration, by: u64, of: u64) -> Duration {
    let nanos = span.as_nanos() * u128::from(by) / u128::from(of);
    Duration::from_nanos(u64::try_from(nanos).expect("a simulation is short"))
}
