//! Sessions of a volume that this node has taken over as the home, and the opens that only the former home
//! knew. Owns [`Inherited`]. Engine thread only.
//!
//! Trusted sessions tell what they have open, in parts that count when the last has come. The state has the
//! opens of other sessions, because a home cannot trust their word. The node of each session claims the
//! session. A session that no node claims for a time ends: the former home may have died before it answered
//! the client that attached. Invariants: what a session has open counts once, however often it or a part of
//! it is told. No inode goes, and no file is cut, before all other sessions that have to tell their opens
//! have told them, or have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use plasmon::wire::files::FileOutcome;
use plasmon::{Error, ErrorKind};

use super::change::Change;
use super::log::Log;
use super::opens::MAX_TOLD;
use super::state::{Opens, State};
use super::volume::Volume;
use crate::control::records::VolumeRecord;
use crate::kernel::Kernel;
use crate::kernel::random::HashSet;

/// Maximum number of inodes that are counted as opened in one turn of the engine.
const OPENS_A_TURN: usize = 1 << 10;

/// A part of what a session has open.
#[derive(Clone)]
pub(super) struct Part {
    /// Number of the telling. A later telling of the node has a higher number.
    pub(super) telling: u64,
    /// Number of parts before this one.
    pub(super) number: u32,
    pub(super) opens: Vec<(u64, Opens)>,
    /// Whether further parts follow.
    pub(super) more: bool,
}

/// Telling of a session: the opens that it has told so far.
#[derive(Default)]
struct Telling {
    /// Number of the telling; 0 before the first.
    number: u64,
    /// Number of parts of the telling that have come.
    parts: u32,
    /// Inodes that were told, and are not counted yet.
    opens: BTreeMap<u64, Opens>,
    /// Whether all parts have come, so that inodes are being counted. No other telling replaces this one
    /// then.
    is_whole: bool,
}

impl Telling {
    /// Takes a part, unless it has come before. The first part of a telling replaces what was told before.
    /// Returns whether all parts have come.
    ///
    /// # Errors
    /// `Invalid` for a part of an earlier telling, and if a part before it is missing. `Disconnected` while
    /// an earlier telling is being counted. `TooLarge` for too many inodes.
    fn take(&mut self, part: Part) -> Result<bool, Error> {
        if part.telling > self.number && part.number == 0 {
            if self.is_whole {
                let text = "what a session has open is being counted as it was told before";
                return Err(Error::new(ErrorKind::Disconnected, text));
            }
            *self = Self { number: part.telling, ..Self::default() };
        }
        let is_next = part.number == self.parts && !self.is_whole;
        if part.telling != self.number || !(is_next || part.number < self.parts) {
            let text = "a session tells what it has open by another telling, or a part is missing";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if is_next {
            if self.opens.len() + part.opens.len() > MAX_TOLD {
                return Err(Error::new(ErrorKind::TooLarge, "a session tells that too many inodes are open"));
            }
            self.opens.extend(part.opens);
            self.parts += 1;
            self.is_whole = !part.more;
        }
        Ok(self.is_whole)
    }

    /// Takes out the inodes that are counted in this turn. Returns none when all were counted.
    fn share(&mut self) -> Vec<(u64, Opens)> {
        (0..OPENS_A_TURN).map_while(|_| self.opens.pop_first()).collect()
    }
}

/// Sessions of a former home, and what they have yet to tell.
#[derive(Default)]
pub(super) struct Inherited {
    /// Sessions that have yet to tell what they have open, with what they have told so far.
    untold: BTreeMap<u32, Telling>,
    /// Sessions that no node has claimed so far.
    unclaimed: BTreeSet<u32>,
    /// Operations that opened an inode at a former home, and whose outcome the session may ask for again.
    reopens: HashSet<(u32, u64)>,
}

impl Inherited {
    fn of(state: &State) -> Self {
        let mut inherited = Self { unclaimed: state.sessions.keys().copied().collect(), ..Self::default() };
        let opened = |outcome: &FileOutcome| matches!(outcome, FileOutcome::Opened { .. });
        for (number, session) in state.sessions.iter().filter(|(_, session)| session.trusted) {
            inherited.untold.insert(*number, Telling::default());
            let reopens = session.outcomes.iter().filter(|(_, outcome)| opened(outcome));
            inherited.reopens.extend(reopens.map(|(operation, _)| (*number, *operation)));
        }
        inherited
    }

    /// Whether any session has yet to tell what it has open.
    pub(super) fn is_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    /// Whether a session has yet to tell what it has open.
    pub(super) fn has_to_tell(&self, session: u32) -> bool {
        self.untold.contains_key(&session)
    }

    /// Lets a session that goes on by another connection or node tell its opens anew, unless it has told all.
    pub(super) fn begin_again(&mut self, session: u32) {
        if let Some(telling) = self.untold.get_mut(&session).filter(|telling| !telling.is_whole) {
            *telling = Telling::default();
        }
    }

    /// Returns the telling of a session, if all parts of it have come.
    fn whole(&mut self, session: u32) -> Option<&mut Telling> {
        self.untold.get_mut(&session).filter(|telling| telling.is_whole)
    }

    /// Whether no node has claimed a session so far.
    pub(super) fn is_unclaimed(&self, session: u32) -> bool {
        self.unclaimed.contains(&session)
    }
}

impl Volume {
    /// Makes a volume that this node has mirrored, and is the home of now.
    pub(super) fn inherited(kernel: &Rc<Kernel>, record: &VolumeRecord, state: State, log: Log) -> Self {
        let inherited = Inherited::of(&state);
        let volume = Self::new(kernel, record, state, log);
        volume.inherited.replace(inherited);
        volume
    }

    /// Whether another session has yet to tell what it has open.
    pub(super) fn others_are_untold(&self, session: u32) -> bool {
        self.inherited.borrow().untold.keys().any(|other| *other != session)
    }

    /// Notes a part of what a session has open. Also notes that its node has the session, even if the session
    /// has nothing to tell. After the last part all inodes are counted, [`OPENS_A_TURN`] in a turn, before
    /// the session is answered anything.
    ///
    /// # Errors
    /// `Invalid` if another part is to come, `Disconnected` while another telling is being counted,
    /// `TooLarge` for too many inodes.
    pub(super) async fn tell_opens(&self, session: u32, part: Part) -> Result<(), Error> {
        let is_whole = match self.inherited.borrow_mut().untold.get_mut(&session) {
            Some(telling) => telling.take(part)?,
            None => !part.more,
        };
        if !is_whole {
            return Ok(());
        }
        // The last part may come again while what was told is being counted.
        while self.count_share(session) {
            self.pause().await;
        }
        self.told(session);
        Ok(())
    }

    /// Counts some of the inodes that a session has told as opened. Returns whether there were any.
    fn count_share(&self, session: u32) -> bool {
        let share = self.inherited.borrow_mut().whole(session).map(Telling::share).unwrap_or_default();
        let is_some = !share.is_empty();
        let opens = share.into_iter().map(|(inode, opens)| Change::Open { inode, session, opens });
        self.commit(&mut self.state.borrow_mut(), opens.collect());
        is_some
    }

    /// Notes that a session has told all that it has open, has nothing to tell, or ends. When all sessions
    /// have told, inodes without links and opens go.
    pub(super) fn told(&self, session: u32) {
        let mut inherited = self.inherited.borrow_mut();
        inherited.unclaimed.remove(&session);
        if inherited.untold.remove(&session).is_none() {
            return;
        }
        // A session that cuts a file may wait for this one.
        self.wake();
        if inherited.is_untold() {
            return;
        }
        drop(inherited);
        let mut state = self.state.borrow_mut();
        let unused = state.unlinked.iter().filter(|inode| !state.opens.contains_key(inode));
        let unused = unused.map(|inode| Change::Forget { inode: *inode }).collect();
        self.commit(&mut state, unused);
    }

    /// Makes changes wait until nothing is valid any more that a former home let sessions keep.
    pub(super) fn await_former(&self) {
        let until = self.kernel.clock.now() + self.log.changes_in();
        self.watchers.borrow_mut().wait_for_former(until);
    }

    /// Counts an inode as opened if an operation that opened it at a former home is asked again.
    pub(super) fn reopen(&self, state: &mut State, session: u32, number: u64, outcome: &FileOutcome) {
        let FileOutcome::Opened { attributes, maps, .. } = outcome else { return };
        let reopens = self.inherited.borrow_mut().reopens.remove(&(session, number));
        if reopens {
            let opens = Opens { count: 1, writes: true, maps: u32::from(*maps) };
            self.commit(state, vec![Change::Open { inode: attributes.inode, session, opens }]);
        }
    }
}

#[cfg(test)]
mod tests {
    use plasmon::wire::files::{Extended, ROOT_INODE, Time, VolumeTerms};
    use plasmon::wire::{Draw, Wire};

    use super::*;
    use crate::files::change::Begun;
    use crate::files::frames::MAX_OBJECTS;

    fn part(telling: u64, number: u32, inodes: &[u64]) -> Part {
        let opens = inodes.iter().map(|inode| (*inode, Opens { count: 1, writes: true, maps: 0 })).collect();
        Part { telling, number, opens, more: true }
    }

    fn last(part: Part) -> Part {
        Part { more: false, ..part }
    }

    fn told(telling: &Telling) -> Vec<(u64, u32)> {
        telling.opens.iter().map(|(inode, opens)| (*inode, opens.count)).collect()
    }

    #[test]
    fn sessions_that_are_not_trusted_have_nothing_to_tell() {
        let mut state = State::new(1, VolumeTerms::default(), 0, 0, Time::default());
        let outcome = FileOutcome::Opened {
            attributes: state.attributes(ROOT_INODE).expect("every volume has a root"),
            created: false,
            map: Extended { sections: Vec::new(), next: None },
            maps: false,
        };
        for (session, trusted) in [(1, true), (2, false)] {
            let begun = Begun { trusted, ..Begun::draw(&mut Draw::new(1)) };
            state.apply(Change::Begin(begun));
            state.apply(Change::Note { session, number: 9, outcome: outcome.clone() });
        }
        let inherited = Inherited::of(&state);
        assert!(inherited.has_to_tell(1) && !inherited.has_to_tell(2));
        assert!(inherited.is_unclaimed(1) && inherited.is_unclaimed(2));
        // Opens of a session that is not trusted count already.
        assert_eq!(inherited.reopens, HashSet::from_iter([(1, 9)]));
    }

    #[test]
    fn what_is_told_again_counts_once() {
        let mut telling = Telling::default();
        for (number, inodes) in [(0, [1, 2]), (0, [1, 2]), (1, [3, 4]), (0, [1, 2]), (1, [3, 4]), (2, [5, 6])]
        {
            telling.take(part(1, number, &inodes)).expect("it has come before, or is the next");
        }
        assert_eq!(told(&telling), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]);
    }

    #[test]
    fn a_telling_takes_the_place_of_an_earlier_one_and_of_no_later_one() {
        let mut telling = Telling::default();
        telling.take(part(7, 0, &[1, 2])).expect("it is the first");
        telling.take(part(7, 1, &[3])).expect("it is the next");
        telling.take(part(8, 1, &[4])).expect_err("a part is missing before it");
        telling.take(part(8, 0, &[2])).expect("it begins anew");
        assert_eq!(told(&telling), [(2, 1)], "what was closed meanwhile is not open");
        telling.take(part(7, 2, &[9])).expect_err("it is of an earlier telling");
        telling.take(part(7, 0, &[9])).expect_err("it is of an earlier telling");
        telling.take(part(8, 2, &[4])).expect_err("a part is missing before it");
        telling.take(part(8, 1, &[4])).expect("it is the next");
        assert_eq!(told(&telling), [(2, 1), (4, 1)]);
    }

    #[test]
    fn what_was_told_counts_in_shares_and_once() {
        let untold = BTreeMap::from([(1, Telling::default())]);
        let mut inherited = Inherited { untold, ..Inherited::default() };
        let inodes: Vec<_> = (1..=2 * OPENS_A_TURN as u64 + 5).collect();
        for (number, inodes) in inodes.chunks(MAX_OBJECTS).enumerate() {
            assert!(inherited.whole(1).is_none(), "a part is missing");
            let part = part(7, number as u32, inodes);
            let part = if inodes.len() < MAX_OBJECTS { last(part) } else { part };
            inherited.untold.get_mut(&1).expect("it has to tell").take(part).expect("it is the next");
        }
        let mut counted = Vec::new();
        for share in [OPENS_A_TURN, OPENS_A_TURN, 5, 0] {
            let telling = inherited.whole(1).expect("all has come");
            let share_of = telling.share();
            assert_eq!(share_of.len(), share);
            counted.extend(share_of.into_iter().map(|(inode, _)| inode));
            // A part that comes again meanwhile replaces nothing.
            telling.take(last(part(7, 0, &[1]))).expect("it has come before");
            let parts = telling.parts;
            let next = telling.take(part(7, parts, &[1])).map_err(|error| error.kind());
            assert_eq!(next, Err(ErrorKind::Invalid), "the last has come");
            let anew = telling.take(part(8, 0, &[1])).map_err(|error| error.kind());
            assert_eq!(anew, Err(ErrorKind::Disconnected), "it may be told later");
            inherited.begin_again(1);
        }
        assert_eq!(counted, inodes);
    }

    #[test]
    fn no_session_tells_more_than_it_may_have_open() {
        let mut telling = Telling::default();
        let all: Vec<_> = (0..MAX_TOLD as u64).collect();
        telling.take(part(1, 0, &all)).expect("as many may be open");
        assert_eq!(telling.take(part(1, 1, &[0])).map_err(|error| error.kind()), Err(ErrorKind::TooLarge));
    }
}
