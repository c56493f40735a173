//! Invalid frames, and the limit after which a peer that sends them is cut off. Owns the count of one peer.
//! Engine thread only.
//!
//! A few invalid frames are dropped and counted, since a passing fault costs only what it hit. A peer that
//! sends many is *cut off* until it starts anew, because nothing that follows can be trusted either. A frame
//! counts against the sender that it names only if it carries this node's token. Invariant: only members can
//! have a member cut off.

use std::time::{Duration, Instant};

/// Number of invalid frames that are forgiven within [`FAULT_WINDOW`].
pub(crate) const MAX_FORGIVEN_FAULTS: u32 = 64;
/// The span in which invalid frames are counted.
const FAULT_WINDOW: Duration = Duration::from_secs(60);

/// The count of a peer's invalid frames.
#[derive(Default)]
pub(crate) struct Faults {
    count: u32,
    since: Option<Instant>,
}

impl Faults {
    /// Counts another invalid frame; returns whether there are too many.
    pub(crate) fn another(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= FAULT_WINDOW {
            *self = Self { count: 0, since: Some(now) };
        }
        self.count += 1;
        self.count > MAX_FORGIVEN_FAULTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_within_a_while_are_too_many() {
        let (mut faults, start) = (Faults::default(), Instant::now());
        // A few faults are forgiven in every window.
        for round in 0..10 {
            for _ in 0..MAX_FORGIVEN_FAULTS {
                assert!(!faults.another(start + FAULT_WINDOW * round), "in round {round}");
            }
        }
        let last = start + FAULT_WINDOW * 10;
        for _ in 0..MAX_FORGIVEN_FAULTS {
            assert!(!faults.another(last));
        }
        assert!(faults.another(last + FAULT_WINDOW / 2));
    }
}
