//! Rate limits for log messages: a message is logged once in a while, with the number of times it was not. A
//! limit owns the time at which it let a message through. Any thread.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time after a message in which the same message is not logged again.
const PAUSE: Duration = Duration::from_secs(30);

/// The rate limit of a message, or of several messages of one kind. Any thread.
pub(crate) struct Seldom(Mutex<Told>);

struct Told {
    last: Option<Instant>,
    unsaid: u64,
}

impl Seldom {
    /// Makes the rate limit of a message that was never logged.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Told { last: None, unsaid: 0 }))
    }

    /// Number of times the message was not logged since it last was. `None` if the message is not to be
    /// logged now.
    pub(crate) fn due(&self) -> Option<u64> {
        self.due_at(Instant::now())
    }

    fn due_at(&self, now: Instant) -> Option<u64> {
        let mut told = self.0.lock().expect("no holder of this lock panics");
        if told.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            told.unsaid += 1;
            return None;
        }
        told.last = Some(now);
        Some(std::mem::take(&mut told.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_counted() {
        let (seldom, now) = (Seldom::new(), Instant::now());
        assert_eq!(seldom.due_at(now), Some(0));
        assert_eq!(seldom.due_at(now), None);
        assert_eq!(seldom.due_at(now + PAUSE / 2), None);
        assert_eq!(seldom.due_at(now + PAUSE), Some(2));
        assert_eq!(seldom.due_at(now + 3 * PAUSE), Some(0));
    }
}
