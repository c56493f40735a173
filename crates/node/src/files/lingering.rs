//! Inodes that have lost their last name a moment ago, and are kept for a short time. Owns [`Lingering`].
//! Engine thread only.
//!
//! A host that looks a name up asks for the inode by its number afterwards, and the kernel looks a name up
//! again once if that fails. So where a name is replaced again and again, a program would see ESTALE. An
//! inode that lingers can be opened and looked at by number, as if that had been done a moment earlier.
//! Invariants: what lingers is little; what it takes counts as free, and goes as soon as anything else needs
//! it. Mirrors know what lingers as inodes without names, and a new home lets such inodes go.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use plasmon::wire::files::Errno;

use super::change::Change;
use super::map::Map;
use super::state::State;
use super::volume::Volume;
use crate::kernel::random::HashMap;

/// Time for which an inode lingers.
const LINGER_TIME: Duration = Duration::from_secs(2);
/// Maximum number of inodes that linger.
const MAX_INODES: usize = 1 << 12;
/// Maximum number of bytes of files that linger.
const MAX_BYTES: u64 = 64 << 20;
/// Part of the free memory that files which linger may take, as a divisor.
const FREE_PART: u64 = 16;

/// An inode that lingers.
struct Left {
    until: Instant,
    bytes: u64,
}

/// The inodes of a volume that linger.
#[derive(Default)]
pub(super) struct Lingering {
    inodes: HashMap<u64, Left>,
    /// Inodes with the times when they go, the first to go first. An inode may be left in the queue that
    /// lingers no more, or lingers until a later time.
    queue: VecDeque<(Instant, u64)>,
    bytes: u64,
    /// Number of bytes for which nodes have room.
    free: u64,
}

/// What counts as free although inodes that linger take it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Spare {
    pub(super) inodes: u64,
    pub(super) bytes: u64,
    /// Number of bytes of the files of one user.
    pub(super) of_user: u64,
}

impl Lingering {
    /// Whether an inode lingers.
    pub(super) fn has(&self, inode: u64) -> bool {
        self.inodes.contains_key(&inode)
    }

    /// Notes a change that is about to be applied.
    fn note(&mut self, state: &State, change: &Change, now: Instant) {
        match change {
            Change::Head { inode, head } => {
                let Some(before) = state.inode(*inode) else { return };
                self.end(*inode);
                if head.links == 0 && before.head.links > 0 {
                    let (bytes, until) = (before.map().map_or(0, Map::used), now + LINGER_TIME);
                    self.inodes.insert(*inode, Left { until, bytes });
                    self.queue.push_back((until, *inode));
                    self.bytes += bytes;
                }
            }
            Change::Forget { inode } => self.end(*inode),
            _ => {}
        }
    }

    fn end(&mut self, inode: u64) {
        if let Some(left) = self.inodes.remove(&inode) {
            self.bytes -= left.bytes;
        }
    }

    /// Takes out the inodes that linger no more: their time is over, or they are too many, or too large.
    fn over(&mut self, now: Instant) -> Vec<u64> {
        let most = MAX_BYTES.min(self.free / FREE_PART);
        let mut over = Vec::new();
        while let Some((until, inode)) = self.queue.front().copied() {
            let is_full = self.inodes.len() > MAX_INODES || self.bytes > most;
            let lingers = self.inodes.get(&inode).is_some_and(|left| left.until == until);
            if lingers && until > now && !is_full {
                break;
            }
            self.queue.pop_front();
            if lingers {
                self.end(inode);
                over.push(inode);
            }
        }
        over
    }

    fn take_all(&mut self) -> Vec<u64> {
        self.queue.clear();
        self.bytes = 0;
        self.inodes.drain().map(|(inode, _)| inode).collect()
    }

    /// Returns what counts as free.
    pub(super) fn spare(&self, state: &State, uid: u32) -> Spare {
        let mut spare = Spare::default();
        let unused = self.inodes.keys().filter(|inode| !state.opens.contains_key(inode));
        for inode in unused.filter_map(|inode| state.inode(*inode)) {
            let bytes = inode.map().map_or(0, Map::used);
            spare.inodes += 1;
            spare.bytes += bytes;
            spare.of_user += if inode.head.uid == uid { bytes } else { 0 };
        }
        spare
    }
}

/// Whether an operation failed for want of something that inodes which linger may have.
pub(super) fn lacks_room(errno: Errno) -> bool {
    matches!(errno, Errno::Full | Errno::OverQuota | Errno::Again)
}

impl Volume {
    /// Applies changes, and tells mirrors. Inodes that nobody has any more go, unless they linger.
    pub(super) fn commit(&self, state: &mut State, changes: Vec<Change>) {
        let now = self.kernel.clock.now();
        // A session that has not told its opens may have any inode open.
        let is_untold = self.inherited.borrow().is_untold();
        let keeps = |inode| is_untold || self.lingering.borrow().has(inode);
        state.carry_out(changes, keeps, |state, change| {
            self.lapsing.borrow_mut().note(state, change);
            self.lingering.borrow_mut().note(state, change, now);
            self.log.note(state, change);
        });
        let over = self.lingering.borrow_mut().over(now);
        self.forget(state, over);
    }

    /// Lets inodes go that lingered, unless they are open or have got a name. Returns whether there was one.
    fn forget(&self, state: &mut State, inodes: Vec<u64>) -> bool {
        let is_unused = |inode: &u64| state.unlinked.contains(inode) && !state.opens.contains_key(inode);
        let gone: Vec<_> =
            inodes.into_iter().filter(is_unused).map(|inode| Change::Forget { inode }).collect();
        if gone.is_empty() || self.inherited.borrow().is_untold() {
            return false;
        }
        self.commit(state, gone);
        true
    }

    /// Lets all inodes go that linger. Returns whether there was one that nobody has open.
    pub(super) fn forget_lingering(&self, state: &mut State) -> bool {
        let all = self.lingering.borrow_mut().take_all();
        self.forget(state, all)
    }

    /// Notes how many bytes nodes have room for.
    pub(super) fn note_free(&self, free: u64) {
        self.lingering.borrow_mut().free = free;
    }

    /// Returns the numbers of bytes and of inodes of the volume, without what lingers.
    pub(super) fn counts(&self) -> (u64, u64) {
        let state = self.state.borrow();
        let spare = self.lingering.borrow().spare(&state, 0);
        (state.used - spare.bytes, state.inodes.len() as u64 - spare.inodes)
    }
}

#[cfg(test)]
mod tests {
    use plasmon::wire::files::{FileKind, ROOT_INODE, Time, VolumeTerms};

    use super::*;
    use crate::files::change::Made;
    use crate::files::map::{Piece, Place};
    use crate::files::state::Head;

    struct Bench {
        state: State,
        lingering: Lingering,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let lingering = Lingering { free: 1 << 40, ..Lingering::default() };
            let state = State::new(1, VolumeTerms::default(), 0, 0, Time::default());
            Self { state, lingering, now: Instant::now() }
        }

        fn apply(&mut self, change: Change) {
            self.lingering.note(&self.state, &change, self.now);
            self.state.apply(change);
        }

        fn head(&self, links: u32) -> Head {
            let root = self.state.inode(ROOT_INODE).expect("every volume has a root").head;
            Head { kind: FileKind::File, links, uid: 7, ..root }
        }

        /// Makes a file with bytes, and removes its last name.
        fn lose(&mut self, bytes: u64) -> u64 {
            let head = self.head(1);
            self.apply(Change::Make { head, above: ROOT_INODE, made: Made::File });
            let inode = self.state.last_inode;
            if bytes > 0 {
                let id = plasmon::wire::files::file_object(1, 1, inode);
                let (piece, node) =
                    (Piece { len: bytes, place: Place::Object(id, 0) }, plasmon::NodeId::from_bytes([1; 16]));
                self.apply(Change::Cover { inode, offset: 0, piece, object: Some((bytes, node)) });
            }
            self.links(inode, 0);
            inode
        }

        fn links(&mut self, inode: u64, links: u32) {
            let head = self.head(links);
            self.apply(Change::Head { inode, head });
        }

        fn over(&mut self, later: Duration) -> Vec<u64> {
            self.now += later;
            self.lingering.over(self.now)
        }
    }

    #[test]
    fn what_loses_its_last_name_lingers_for_a_time() {
        let mut bench = Bench::new();
        let first = bench.lose(10);
        assert!(bench.over(LINGER_TIME / 2).is_empty() && bench.lingering.has(first));
        let second = bench.lose(20);
        let spare = Spare { inodes: 2, bytes: 30, of_user: 30 };
        assert_eq!(bench.lingering.spare(&bench.state, 7), spare);
        assert_eq!(bench.lingering.spare(&bench.state, 8), Spare { of_user: 0, ..spare });
        assert_eq!(bench.over(LINGER_TIME / 2), [first]);
        assert_eq!(bench.lingering.bytes, 20);
        assert_eq!(bench.lingering.take_all(), [second]);
        assert!(bench.lingering.bytes == 0 && bench.over(LINGER_TIME).is_empty());
    }

    #[test]
    fn what_gets_a_name_or_is_gone_lingers_no_more() {
        let mut bench = Bench::new();
        let [named, gone] = [bench.lose(10), bench.lose(20)];
        bench.links(named, 1);
        bench.apply(Change::Forget { inode: gone });
        assert!(!bench.lingering.has(named) && !bench.lingering.has(gone) && bench.lingering.bytes == 0);
        bench.over(LINGER_TIME / 2);
        bench.links(named, 0);
        assert!(bench.over(LINGER_TIME / 2).is_empty(), "it has lost a name again");
        assert_eq!(bench.over(LINGER_TIME / 2), [named]);
    }

    #[test]
    fn what_lingers_is_little_and_the_oldest_goes_first() {
        let mut bench = Bench::new();
        let first = bench.lose(MAX_BYTES / 2);
        let second = bench.lose(MAX_BYTES / 2);
        assert!(bench.over(Duration::ZERO).is_empty());
        let third = bench.lose(1);
        assert_eq!(bench.over(Duration::ZERO), [first]);
        bench.lingering.free = FREE_PART;
        assert_eq!(bench.over(Duration::ZERO), [second], "memory is short");
        bench.lingering.take_all();
        assert!(third > second);
        let all: Vec<_> = (0..=MAX_INODES).map(|_| bench.lose(0)).collect();
        assert_eq!(bench.over(Duration::ZERO), all[..1]);
        let large = bench.lose(MAX_BYTES + 1);
        assert!(bench.over(Duration::ZERO).contains(&large), "it would be all");
    }
}
