//! Credit of sessions that lapses at the home. Owns [`Lapsing`]. Engine thread only.
//!
//! A session that takes credit and does not use it keeps others from writing while the volume is full. So
//! credit that was not used for a turn lapses if a session was refused room meanwhile. Invariant: credit
//! stays for a turn at least, unless its session uses it, gives it back or ends.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::change::Change;
use super::state::State;

/// Length of a turn. Unused credit lapses after one turn at least, and two at most. Sessions give back
/// earlier what they do not need.
const TURN_TIME: Duration = Duration::from_secs(15);

/// Credit that sessions had at the last turn, and whether a session lacked room since.
pub(super) struct Lapsing {
    turned: Instant,
    /// Whether a session was refused room since the turn began.
    refused: bool,
    /// Rest of the credit that sessions had at the turn, by session and user. Use of credit is taken off it
    /// first.
    old: BTreeMap<(u32, u32), u64>,
    /// Number of bytes that have lapsed so far.
    pub(super) lapsed: u64,
}

impl Lapsing {
    pub(super) fn new(now: Instant) -> Self {
        Self { turned: now, refused: false, old: BTreeMap::new(), lapsed: 0 }
    }

    /// Notes that a session was refused room.
    pub(super) fn note_refused(&mut self) {
        self.refused = true;
    }

    /// Notes a change that is about to be applied.
    pub(super) fn note(&mut self, state: &State, change: &Change) {
        if let Change::Credit { session, uid, bytes } = change
            && let Some(old) = self.old.get_mut(&(*session, *uid))
        {
            let had = state.sessions.get(session).and_then(|session| session.credit.get(uid));
            *old = old.saturating_sub(had.map_or(0, |had| had.saturating_sub(*bytes)));
        }
    }

    /// Begins a new turn if the last one is over. Returns the changes by which credit lapses.
    pub(super) fn turn(&mut self, now: Instant, state: &State) -> Vec<Change> {
        if now < self.turned + TURN_TIME {
            return Vec::new();
        }
        self.turned = now;
        let refused = std::mem::take(&mut self.refused);
        let before = std::mem::take(&mut self.old);
        let mut lapsed = Vec::new();
        for (number, session) in &state.sessions {
            for (uid, bytes) in &session.credit {
                // The old credit that lapses is taken off `old` when its change is noted.
                let key = (*number, *uid);
                let old = before.get(&key).filter(|_| refused).map_or(0, |old| *bytes.min(old));
                if old > 0 {
                    self.lapsed = self.lapsed.saturating_add(old);
                    lapsed.push(Change::Credit { session: *number, uid: *uid, bytes: bytes - old });
                }
                self.old.insert(key, *bytes);
            }
        }
        lapsed
    }
}

#[cfg(test)]
mod tests {
    use plasmon::NodeId;
    use plasmon::wire::files::{Time, VolumeTerms};

    use super::*;
    use crate::files::change::Begun;

    /// A volume with two sessions.
    fn state() -> State {
        let mut state = State::new(9, VolumeTerms::default(), 0, 0, Time::default());
        for secret in 1..3 {
            state.apply(Change::Begin(Begun {
                node: NodeId::from_bytes([1; NodeId::LEN]),
                secret,
                uid: 0,
                gid: 0,
                groups: Vec::new(),
                trusted: true,
                checked: false,
                read_only: false,
            }));
        }
        state
    }

    fn set(lapsing: &mut Lapsing, state: &mut State, session: u32, bytes: u64) {
        let change = Change::Credit { session, uid: 7, bytes };
        lapsing.note(state, &change);
        state.apply(change);
    }

    fn turn(lapsing: &mut Lapsing, state: &mut State, now: Instant) -> u64 {
        for change in lapsing.turn(now, state) {
            lapsing.note(state, &change);
            state.apply(change);
        }
        state.credit
    }

    #[test]
    fn what_nobody_uses_lapses_when_others_are_refused() {
        let now = Instant::now();
        let (mut lapsing, mut state) = (Lapsing::new(now), state());
        set(&mut lapsing, &mut state, 1, 100);
        set(&mut lapsing, &mut state, 2, 50);
        assert_eq!(turn(&mut lapsing, &mut state, now + TURN_TIME), 150);
        // The first session uses 30 of the old credit, and gets new credit.
        set(&mut lapsing, &mut state, 1, 70);
        set(&mut lapsing, &mut state, 1, 90);
        assert_eq!(turn(&mut lapsing, &mut state, now + 2 * TURN_TIME), 140, "nobody needs it");
        lapsing.note_refused();
        assert_eq!(turn(&mut lapsing, &mut state, now + 2 * TURN_TIME), 140, "it is not time");
        set(&mut lapsing, &mut state, 1, 60);
        set(&mut lapsing, &mut state, 1, 80);
        assert_eq!(turn(&mut lapsing, &mut state, now + 3 * TURN_TIME), 20, "only what came since is left");
        assert_eq!(lapsing.lapsed, 110);
        assert_eq!(state.credit_of.get(&7), Some(&20));
        lapsing.note_refused();
        assert_eq!(turn(&mut lapsing, &mut state, now + 4 * TURN_TIME), 0);
        assert!(state.credit_of.is_empty());
    }
}
