//! Cuts of files that others write: these sessions commit what they hold before the cut is decided. Opens of
//! files that others may map: these sessions tell closes before. Owns [`Cut`]. Engine thread only.
//!
//! Otherwise bytes that were written before a cut would come back with a later commit, behind the new end. A
//! session that writes is told, commits and confirms. Invariant: neither a cut nor a commit waits for a
//! session that itself waits to cut the same file.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use plasmon::wire::files::Stale;

use super::{Done, Expected, News, SILENCE_TIME, Waiting, Watchers};

/// Time for which a cut waits for sessions that write: they may have much to commit.
const COMMIT_PATIENCE: Duration = Duration::from_secs(1);

/// An operation that is about to cut a file, or to open one that others may map.
pub(super) struct Cut {
    inode: u64,
    cuts: bool,
    /// Number of the message that is to be confirmed.
    number: u64,
    /// Time when the message is given up.
    due: Instant,
    done: Done,
}

impl Cut {
    /// Whether no operation can be waiting for the cut any more.
    pub(super) fn is_old(&self, now: Instant) -> bool {
        self.due + SILENCE_TIME <= now
    }
}

impl Watchers {
    /// Returns the news for the other sessions that have a file open to write, before an operation cuts the
    /// file, and for those that may map it, before it is opened: `asked` has what each is told, and `cuts`
    /// says whether the operation cuts the file. `None` if the operation may go on. When the operation is
    /// tried again, no session is told again. A session that is silent about changes is asked all the same,
    /// because its bytes would undo the cut later.
    pub(in crate::files) fn before_cut(
        &mut self,
        now: Instant,
        (by, operation): (u32, u64),
        (inode, cuts): (u64, bool),
        asked: BTreeMap<u32, Vec<Stale>>,
    ) -> Option<News> {
        self.turn(now);
        if let Some(cut) = self.cuts.get(&(by, operation)) {
            if self.tellings.contains_key(&cut.number) && now < cut.due {
                return Some(News::default());
            }
            self.cuts.remove(&(by, operation));
            return None;
        }
        let is_stalled = |session: &u32| self.stalled.get(session).is_some_and(|until| now < *until);
        let mut told = asked;
        told.retain(|session, stale| !is_stalled(session) && !self.is_cutting(*session, stale));
        if told.is_empty() {
            return None;
        }
        let left: BTreeSet<_> = told.keys().copied().collect();
        self.last += 1;
        self.counts.told += left.len() as u64;
        let news = News { number: self.last, told };
        let expected = Expected { left, keys: Vec::new(), by, folders: Vec::new(), cuts: true };
        let (number, due, done) = self.expect(news.number, expected, now + COMMIT_PATIENCE);
        self.cuts.insert((by, operation), Cut { inode, cuts, number, due, done });
        Some(news)
    }

    /// Returns what an operation that is about to cut a file waits for.
    pub(in crate::files) fn waits_to_cut(&self, session: u32, operation: u64) -> Option<Waiting> {
        let cut = self.cuts.get(&(session, operation))?;
        Some(Waiting { confirmed: vec![(cut.number, cut.due, cut.done.clone())], over: None })
    }

    /// Whether a session waits to cut one of these files. It may keep the file locked meanwhile, and is told
    /// the attributes with the answer.
    pub(super) fn is_cutting(&self, session: u32, stale: &[Stale]) -> bool {
        let names = |cut: &Cut| {
            stale.iter().any(|one| match one {
                Stale::Attributes { inode }
                | Stale::Bytes { inode, .. }
                | Stale::Waiting { inode }
                | Stale::Mapped { inode } => *inode == cut.inode,
                Stale::Name { .. } => false,
            })
        };
        let waits = |cut: &Cut| cut.cuts && self.tellings.contains_key(&cut.number) && names(cut);
        self.cuts.iter().any(|((by, _), cut)| *by == session && waits(cut))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use plasmon::wire::files::{FileOperation, FileOutcome, ROOT_INODE, Time, VolumeTerms};

    use super::*;
    use crate::files::state::State;

    /// The file that is cut: the root, which every volume has.
    const FILE: (u64, bool) = (ROOT_INODE, true);
    const CUT: (u32, u64) = (1, 7);

    fn writers(sessions: &[u32]) -> BTreeMap<u32, Vec<Stale>> {
        let waiting = Stale::Waiting { inode: FILE.0 };
        sessions.iter().map(|session| (*session, vec![waiting.clone()])).collect()
    }

    #[test]
    fn a_cut_waits_until_all_who_write_have_confirmed() {
        let now = Instant::now();
        let mut watchers = Watchers::new(now);
        assert!(watchers.before_cut(now, CUT, FILE, BTreeMap::new()).is_none(), "nobody else writes");
        let news = watchers.before_cut(now, CUT, FILE, writers(&[2, 3])).expect("two others write");
        assert_eq!(news.told.keys().copied().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(news.told[&2], [Stale::Waiting { inode: FILE.0 }]);
        watchers.confirm(2, news.number);
        let again = watchers.before_cut(now, CUT, FILE, writers(&[2, 3])).expect("one of two has confirmed");
        assert!(again.told.is_empty(), "they were told");
        let waiting = watchers.waits_to_cut(CUT.0, CUT.1).expect("it waits");
        watchers.confirm(3, news.number);
        assert!(waiting.confirmed.iter().all(|(_, _, done)| done.clone().now_or_never().is_some()));
        assert!(watchers.before_cut(now, CUT, FILE, writers(&[2, 3])).is_none());
        assert!(watchers.waits_to_cut(CUT.0, CUT.1).is_none());
    }

    #[test]
    fn who_does_not_answer_delays_one_cut() {
        let now = Instant::now();
        let mut watchers = Watchers::new(now);
        let news = watchers.before_cut(now, CUT, FILE, writers(&[2])).expect("another writes");
        watchers.give_up(news.number, now + COMMIT_PATIENCE);
        assert!(watchers.before_cut(now + COMMIT_PATIENCE, CUT, FILE, writers(&[2])).is_none());
        assert!(
            watchers.before_cut(now + COMMIT_PATIENCE, (1, 8), FILE, writers(&[2])).is_none(),
            "it is stalled"
        );
        assert!(!watchers.is_silent(2, now + COMMIT_PATIENCE), "it may confirm changes in time");
        let later = now + COMMIT_PATIENCE + SILENCE_TIME;
        let news = watchers.before_cut(later, (1, 9), FILE, writers(&[2])).expect("it may answer again");
        watchers.end(2);
        assert_eq!(news.told.len(), 1);
        assert!(watchers.before_cut(later, (1, 9), FILE, writers(&[2])).is_none(), "it has ended");
    }

    #[test]
    fn a_cut_that_is_asked_for_again_when_it_is_late_is_waited_for_no_more() {
        let now = Instant::now();
        let mut watchers = Watchers::new(now);
        let news = watchers.before_cut(now, CUT, FILE, writers(&[2])).expect("another writes");
        let late = now + COMMIT_PATIENCE;
        assert!(watchers.before_cut(late, CUT, FILE, writers(&[2])).is_none(), "it is carried out");
        watchers.give_up(news.number, late);
        assert!(watchers.before_cut(late, (1, 8), FILE, writers(&[2])).is_none(), "it is stalled");
        assert!(!watchers.is_silent(2, late));
    }

    #[test]
    fn a_cut_waits_for_who_was_late_with_a_change() {
        let now = Instant::now();
        let mut watchers = Watchers::new(now);
        let state = State::new(1, VolumeTerms::default(), 0, 0, Time::default());
        let attributes = state.attributes(ROOT_INODE).expect("every volume has a root");
        let look = FileOperation::GetAttributes { inode: ROOT_INODE };
        assert!(watchers.give(now, 2, &look, &FileOutcome::Entry(attributes), 1 << 30));
        let changed = vec![Stale::Attributes { inode: ROOT_INODE }];
        let (told, waiting) = watchers.change(now, (1, 6), changed, |_| Vec::new());
        assert!(told.told.contains_key(&2) && waiting.is_some(), "it watches");
        watchers.give_up(told.number, now);
        assert!(watchers.is_silent(2, now));
        let news = watchers.before_cut(now, CUT, FILE, writers(&[2])).expect("it writes");
        assert_eq!(news.told[&2], [Stale::Waiting { inode: FILE.0 }]);
    }

    #[test]
    fn a_session_that_waits_for_the_right_to_map_commits_before_a_cut_by_another() {
        let now = Instant::now();
        let mut watchers = Watchers::new(now);
        let mapped = BTreeMap::from([(2, vec![Stale::Mapped { inode: FILE.0 }])]);
        let opens = (FILE.0, false);
        watchers.before_cut(now, (1, 7), opens, mapped).expect("another may map the file");
        let news = watchers.before_cut(now, (3, 1), FILE, writers(&[1])).expect("it may write");
        assert_eq!(news.told[&1], [Stale::Waiting { inode: FILE.0 }]);
    }

    #[test]
    fn neither_cuts_nor_commits_wait_for_a_session_that_waits_to_cut() {
        let now = Instant::now();
        let mut watchers = Watchers::new(now);
        let state = State::new(1, VolumeTerms::default(), 0, 0, Time::default());
        let attributes = state.attributes(ROOT_INODE).expect("every volume has a root");
        let look = FileOperation::GetAttributes { inode: ROOT_INODE };
        assert!(watchers.give(now, 1, &look, &FileOutcome::Entry(attributes), 1 << 30));
        let news = watchers.before_cut(now, CUT, FILE, writers(&[2])).expect("another writes");
        assert!(watchers.before_cut(now, (2, 3), FILE, writers(&[1])).is_none(), "it cuts too");
        let bytes = Stale::Bytes { inode: ROOT_INODE, start: 0, end: 5 };
        let (told, waiting) = watchers.change(now, (2, 4), vec![bytes], |_| Vec::new());
        assert!(told.told.contains_key(&1) && waiting.is_none(), "it is told, and not waited for");
        watchers.confirm(2, news.number);
        assert!(watchers.before_cut(now, CUT, FILE, writers(&[2])).is_none());
    }
}
