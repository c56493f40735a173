//! The engine's time: a clock that tests can move, and the timers that follow it.
//!
//! Engine thread only. A timer is a future. It fires when [`Clock::fire`] is called at or after its due
//! time, which the engine does once a turn. Dropped timers are removed from the heap when they are the
//! larger part of it.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use futures::future::{Either, select};

/// A time for people: rounded to milliseconds.
pub(crate) fn rounded(time: Duration) -> Duration {
    Duration::from_millis((time.as_secs_f64() * 1000.0).round() as u64)
}

/// Time and timers.
pub(crate) struct Clock {
    source: Box<dyn Fn() -> Instant>,
    /// The time of the source when the clock was made, and the time of day then.
    began: (Instant, Duration),
    /// The time since the host was booted, in nanoseconds, if it is not told by the source.
    boot: Option<Box<dyn Fn() -> u64>>,
    timers: RefCell<BinaryHeap<Reverse<Timer>>>,
    drawn: Cell<u64>,
    /// Number of timers in the heap whose futures were dropped.
    dropped: Rc<Cell<usize>>,
}

/// A timer in the heap. Timers are ordered by their due time; `number` makes equal times distinct.
struct Timer {
    due: Instant,
    number: u64,
    state: Weak<State>,
}

#[derive(Default)]
struct State {
    fired: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Number of dropped timers up to which the heap is not searched for them.
const FEW_DROPPED_TIMERS: usize = 64;

impl Clock {
    /// Makes a clock that shows the machine's monotonic clock.
    pub(crate) fn system() -> Rc<Self> {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::made(Instant::now, unix, Some(Box::new(plasmon::shared::boot_ns)))
    }

    #[cfg(test)]
    /// Makes a clock that shows the time of `source`. At first the time of day is `unix` after 1970.
    pub(crate) fn with_source(source: impl Fn() -> Instant + 'static, unix: Duration) -> Rc<Self> {
        Self::made(source, unix, None)
    }

    #[cfg(test)]
    /// Makes a clock as [`Clock::with_source`] does, of a host that sleeps at times: `boot` tells the time
    /// since it was booted.
    pub(crate) fn with_boot(
        source: impl Fn() -> Instant + 'static,
        unix: Duration,
        boot: impl Fn() -> u64 + 'static,
    ) -> Rc<Self> {
        Self::made(source, unix, Some(Box::new(boot)))
    }

    fn made(
        source: impl Fn() -> Instant + 'static,
        unix: Duration,
        boot: Option<Box<dyn Fn() -> u64>>,
    ) -> Rc<Self> {
        Rc::new(Self {
            began: (source(), unix),
            source: Box::new(source),
            boot,
            timers: RefCell::default(),
            drawn: Cell::new(0),
            dropped: Rc::default(),
        })
    }

    /// The present time.
    pub(crate) fn now(&self) -> Instant {
        (self.source)()
    }

    /// The time of day in milliseconds since 1970. It is read when the clock is made and moves with the
    /// clock since, so setting the host's clock does not move it.
    pub(crate) fn unix_ms(&self) -> u64 {
        let (began, unix) = self.began;
        (unix + self.now().saturating_duration_since(began)).as_millis() as u64
    }

    /// The time since the host was booted in nanoseconds, with the time in which it slept, which timers do
    /// not count. Leases are counted by it.
    pub(crate) fn boot_ns(&self) -> u64 {
        match &self.boot {
            Some(boot) => boot(),
            None => self.unix_ns(),
        }
    }

    /// The time of day as [`Clock::unix_ms`] tells it, in nanoseconds.
    pub(crate) fn unix_ns(&self) -> u64 {
        let (began, unix) = self.began;
        (unix + self.now().saturating_duration_since(began)).as_nanos() as u64
    }

    /// Returns a future that ends at `due`, or at the first turn after it.
    pub(crate) fn until(&self, due: Instant) -> Sleep {
        let state = Rc::new(State::default());
        let number = self.drawn.get();
        self.drawn.set(number + 1);
        let mut timers = self.timers.borrow_mut();
        if self.dropped.get() > FEW_DROPPED_TIMERS.max(timers.len() / 2) {
            timers.retain(|Reverse(timer)| timer.state.strong_count() > 0);
            self.dropped.set(0);
        }
        timers.push(Reverse(Timer { due, number, state: Rc::downgrade(&state) }));
        Sleep { state, dropped: Rc::clone(&self.dropped) }
    }

    /// Returns a future that ends after `span`.
    pub(crate) fn sleep(&self, span: Duration) -> Sleep {
        self.until(self.now() + span)
    }

    /// Awaits `future`; `None` when it has not ended by `due`. A `due` of `None` waits for ever.
    pub(crate) async fn bounded<T>(
        &self,
        due: Option<Instant>,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let future = std::pin::pin!(future);
        let Some(due) = due else {
            return Some(future.await);
        };
        match select(future, self.until(due)).await {
            Either::Left((value, _)) => Some(value),
            Either::Right(((), _)) => None,
        }
    }

    /// Wakes the timers that are due, and returns their number.
    pub(crate) fn fire(&self) -> usize {
        let now = self.now();
        let mut fired = 0;
        loop {
            let mut timers = self.timers.borrow_mut();
            if timers.peek().is_none_or(|Reverse(timer)| timer.due > now) {
                return fired;
            }
            let timer = timers.pop().map(|Reverse(timer)| timer.state);
            drop(timers);
            match timer.and_then(|state| state.upgrade()) {
                Some(state) => {
                    state.fired.set(true);
                    fired += 1;
                    if let Some(waker) = state.waker.borrow_mut().take() {
                        waker.wake();
                    }
                }
                None => self.dropped.set(self.dropped.get().saturating_sub(1)),
            }
        }
    }

    /// The time until the next timer is due; `None` when there is none.
    pub(crate) fn next(&self) -> Option<Duration> {
        let mut timers = self.timers.borrow_mut();
        while timers.peek().is_some_and(|Reverse(timer)| timer.state.strong_count() == 0) {
            timers.pop();
            self.dropped.set(self.dropped.get().saturating_sub(1));
        }
        timers.peek().map(|Reverse(timer)| timer.due.saturating_duration_since(self.now()))
    }
}

/// A timer that has been set.
pub(crate) struct Sleep {
    state: Rc<State>,
    dropped: Rc<Cell<usize>>,
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if !self.state.fired.get() {
            self.dropped.set(self.dropped.get() + 1);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.state.fired.get() {
            return Poll::Ready(());
        }
        *self.state.waker.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use futures::future::{join, pending};

    use super::*;

    fn manual() -> (Rc<Clock>, Rc<Cell<Instant>>) {
        let now = Rc::new(Cell::new(Instant::now()));
        let source = Rc::clone(&now);
        (Clock::with_source(move || source.get(), Duration::ZERO), now)
    }

    #[test]
    fn times_for_people_are_whole_milliseconds() {
        for (nanos, shown) in [(999_997_957, "1s"), (1_250_400_000, "1.25s"), (3_600_000, "4ms"), (0, "0ns")]
        {
            assert_eq!(format!("{:?}", rounded(Duration::from_nanos(nanos))), shown);
        }
    }

    #[test]
    fn timers_fire_in_order_and_never_early() {
        let (clock, now) = manual();
        let start = now.get();
        let mut late = Box::pin(clock.sleep(Duration::from_secs(60)));
        let mut soon = Box::pin(clock.sleep(Duration::from_secs(10)));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(clock.next(), Some(Duration::from_secs(10)));
        assert_eq!(clock.fire(), 0);
        now.set(start + Duration::from_secs(10));
        assert_eq!(clock.fire(), 1);
        assert!(soon.as_mut().poll(&mut context).is_ready());
        assert!(late.as_mut().poll(&mut context).is_pending());
        drop(late);
        assert_eq!(clock.next(), None, "a dropped timer keeps nobody awake");
    }

    #[test]
    fn dropped_timers_do_not_pile_up() {
        let (clock, _) = manual();
        let _first = clock.sleep(Duration::from_secs(1));
        for _ in 0..10_000 {
            drop(clock.sleep(Duration::from_secs(86_400)));
        }
        assert!(clock.timers.borrow().len() <= 2 * FEW_DROPPED_TIMERS, "{}", clock.timers.borrow().len());
    }

    #[test]
    fn a_bounded_wait_ends_at_its_moment() {
        let (clock, now) = manual();
        let due = clock.now() + Duration::from_secs(5);
        let wait = clock.bounded(Some(due), pending::<()>());
        let tick = async {
            now.set(due);
            clock.fire();
        };
        assert_eq!(block_on(join(wait, tick)).0, None);
        assert_eq!(block_on(clock.bounded(Some(due + Duration::from_secs(1)), async { 7 })), Some(7));
    }
}
