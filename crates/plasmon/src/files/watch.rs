//! Changes by others that the home of a volume tells.
//!
//! Owns the order of the changes that were told: each bucket of inodes has the number of the last change of
//! one of its inodes. Any thread; [`Watcher::run`] has a thread of its own. An answer is not kept if a
//! change of its bucket was told after the question, because the answer may be older than the change.
//! Invariant: a caller that answers a kernel while it holds [`Current`] has answered before the kernel is
//! told the next change, so the kernel forgets this answer too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockReadGuard};

use super::session::Attached;
use super::volume::Shared;
use super::{Result, Stale, Volume};
use crate::client::VolumeStream;

/// Number of buckets of inodes.
pub(super) const BUCKETS: usize = 256;
/// Time between two checks whether the session still has the same connection.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Pause before a node that is away is asked again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Changes that were told so far.
pub(super) struct Told {
    last: AtomicU64,
    buckets: RwLock<[u64; BUCKETS]>,
}

impl Default for Told {
    fn default() -> Self {
        Self { last: AtomicU64::new(0), buckets: RwLock::new([0; BUCKETS]) }
    }
}

/// Time for which an answer may be kept ([`Current::left`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    until: Instant,
    /// Number of the last change that was told before the question.
    since: u64,
}

impl Keep {
    /// Returns a value for an answer that may not be kept.
    pub(super) fn none() -> Self {
        Self { until: Instant::now(), since: 0 }
    }
}

/// Guard that holds back further changes, so that an answer is not overtaken while it is given.
pub struct Current<'a>(RwLockReadGuard<'a, [u64; BUCKETS]>);

impl Told {
    /// Returns the number of the last change that was told, for an operation that is about to be asked.
    pub(super) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Returns how long an answer may be kept that is valid for the time `valid` from the question on.
    pub(super) fn keep(since: u64, asked: Instant, valid: Duration) -> Keep {
        Keep { until: asked + valid, since }
    }

    /// Notes changes that are told, before any thread acts on them.
    pub(super) fn note(&self, stale: &[Stale]) {
        let mut buckets = self.buckets.write();
        let number = self.last.load(Ordering::Relaxed) + 1;
        for one in stale {
            buckets[bucket(inode_of(one))] = number;
        }
        self.last.store(number, Ordering::Release);
    }

    pub(super) fn current(&self) -> Current<'_> {
        Current(self.buckets.read())
    }
}

impl Current<'_> {
    /// Returns the time for which an answer about these inodes may still be kept: zero if a change of one of
    /// them, or of a name in one, was told since the question.
    pub fn left(&self, keep: Keep, inodes: &[u64]) -> Duration {
        if inodes.iter().any(|inode| self.0[bucket(*inode)] > keep.since) {
            return Duration::ZERO;
        }
        keep.until.saturating_duration_since(Instant::now())
    }
}

/// Returns the bucket of an inode.
pub(super) fn bucket(inode: u64) -> usize {
    (inode % BUCKETS as u64) as usize
}

/// Returns the inode, or the folder, of a change.
fn inode_of(stale: &Stale) -> u64 {
    match stale {
        Stale::Attributes { inode }
        | Stale::Bytes { inode, .. }
        | Stale::Waiting { inode }
        | Stale::Mapped { inode } => *inode,
        Stale::Name { folder, .. } => *folder,
    }
}

/// Watch over changes of a volume by others. A watcher does not keep the session from ending.
pub struct Watcher(Arc<Shared>);

impl Volume {
    /// Holds back changes by others while the caller gives an answer that may be kept.
    pub fn current(&self) -> Current<'_> {
        self.0.session.told().current()
    }

    /// Makes a watcher of the session. As long as a watcher runs, names and attributes may be kept although
    /// others use the volume.
    pub fn watcher(&self) -> Watcher {
        Watcher(Arc::clone(&self.0))
    }
}

impl Watcher {
    /// Calls `forget` for each change by others, until the session ends. `forget` returns when nothing is
    /// kept any more of what has changed.
    pub fn run(self, mut forget: impl FnMut(&Stale)) {
        loop {
            let attached = self.0.session.attached();
            // A node that is away is asked again. Meanwhile no answer may be kept.
            let _ = self.follow(&attached, &mut forget);
            if self.0.is_over(RETRY_INTERVAL) {
                return;
            }
        }
    }

    /// Follows the session on this connection, until the session has another connection.
    fn follow(&self, attached: &Attached, forget: &mut impl FnMut(&Stale)) -> Result<()> {
        let mut stream =
            VolumeStream::open(&attached.client, (attached.info.number, attached.session, attached.secret()))
                .map_err(|error| super::Error::of_client(&error))?;
        loop {
            let came = stream.next(LOOK_INTERVAL).map_err(|error| super::Error::of_client(&error))?;
            if let Some((number, stale)) = came {
                self.0.session.told().note(&stale);
                self.0.folders.forget(&stale);
                self.0.make_old(&stale);
                stale.iter().for_each(&mut *forget);
                let wanted = Wanted::of(&self.0, &stale);
                let confirmed = match wanted.is_empty() {
                    true => stream.confirm(number),
                    false => self.act_and_confirm(wanted, &stream, number),
                };
                confirmed.map_err(|error| super::Error::of_client(&error))?;
            } else if self.0.is_over(Duration::ZERO)
                || self.0.session.attached().generation != attached.generation
            {
                return Ok(());
            }
        }
    }
}

impl Watcher {
    /// Does what another session waits for in a thread of its own, and then confirms the message. It needs a
    /// thread of its own because it waits for the home, and the home waits for the next confirmations of this
    /// session.
    fn act_and_confirm(&self, wanted: Wanted, stream: &VolumeStream, number: u64) -> crate::Result<()> {
        let (shared, confirmer) = (Arc::clone(&self.0), stream.confirmer()?);
        let act = move || {
            // The next sync or close tells of a failure; the reader tells of a connection that broke.
            wanted.bytes.into_iter().for_each(|inode| _ = shared.settle(inode));
            wanted.rights.into_iter().for_each(|inode| shared.give_right_back(inode));
            let _ = confirmer.confirm(number);
        };
        thread::Builder::new().name("committer".to_owned()).spawn(act).map(drop).map_err(|error| {
            let text = format!("no thread can be started that does what another host waits for: {error}");
            crate::Error::new(crate::ErrorKind::Internal, text)
        })
    }
}

/// What another session waits for.
#[derive(Default)]
struct Wanted {
    /// Files whose waiting bytes are to be committed, before they are cut.
    bytes: Vec<u64>,
    /// Files which this session has the right to map.
    rights: Vec<u64>,
}

impl Wanted {
    /// Returns what a message asks a session to do.
    fn of(shared: &Shared, stale: &[Stale]) -> Self {
        let waits = |inode: u64| {
            let open = shared.inode(inode);
            open.is_some_and(|open| open.state.try_lock().is_none_or(|state| !state.writer.is_empty()))
        };
        let mut wanted = Self::default();
        for one in stale {
            match one {
                Stale::Waiting { inode } if waits(*inode) => wanted.bytes.push(*inode),
                Stale::Mapped { inode } => wanted.rights.push(*inode),
                _ => {}
            }
        }
        wanted
    }

    fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.rights.is_empty()
    }
}

impl Shared {
    /// Notes that what is known of open files is old, if the files have changed.
    fn make_old(&self, stale: &[Stale]) {
        for one in stale {
            if let Stale::Attributes { inode } | Stale::Bytes { inode, .. } = one
                && let Some(open) = self.inode(*inode)
            {
                open.old.store(true, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_was_asked_for_before_something_was_told_is_not_kept() {
        let told = Told::default();
        let valid = Duration::from_secs(3600);
        let before = Told::keep(told.last(), Instant::now(), valid);
        assert!(!told.current().left(before, &[7]).is_zero());
        told.note(&[Stale::Name { folder: 7, name: "a".into(), is_folder: false }]);
        assert!(told.current().left(before, &[7]).is_zero(), "it may be older");
        assert!(told.current().left(before, &[9, 7]).is_zero(), "one of two");
        assert!(!told.current().left(before, &[9]).is_zero(), "of another inode nothing was told");
        let after = Told::keep(told.last(), Instant::now(), valid);
        assert!(!told.current().left(after, &[7]).is_zero(), "the home had decided before");
        let over = Told::keep(told.last(), Instant::now(), Duration::ZERO);
        assert!(told.current().left(over, &[7]).is_zero());
    }
}
