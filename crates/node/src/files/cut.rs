//! Operations that wait for other sessions: for a lock; before they cut a file or set what its commits set,
//! for sessions that write to the file; before they open one to read and write, for closes of the session
//! that may map it. Engine thread only.
//!
//! Owns no state: [`watch`](super::watch) knows what these wait for. Invariant: an operation that waits is
//! tried again when others have confirmed, have released a lock, or have told their opens.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use plasmon::Error;
use plasmon::wire::files::{
    Change as TimeChange, FileAnswer, FileAsked, FileOperation, SetAttributes, Stale,
};

use super::Files;
use super::decide::{Decision, Say};
use super::frames::SessionKey;
use super::state::{FileSession, Opens, State};
use super::volume::Volume;
use super::watch::{News, Waiting};

/// Outcome of an operation that was carried out.
pub(super) struct Ran {
    pub(super) answer: FileAnswer,
    /// Confirmations that the answer waits for. `None` if it waits for nothing.
    pub(super) waiting: Option<Waiting>,
    /// Messages to other sessions.
    pub(super) news: News,
}

/// Result of an attempt to carry an operation out.
pub(super) enum Run {
    Done(Box<Ran>),
    /// The operation waits. It is tried again when other sessions have done what this news asks of them.
    Waits(News),
}

impl Run {
    pub(super) fn only(answer: FileAnswer, waiting: Option<Waiting>) -> Self {
        Self::Done(Box::new(Ran { answer, waiting, news: News::default() }))
    }

    /// Returns the answer with its confirmations, if there is an answer, and the news for other sessions.
    pub(super) fn split(self) -> (Option<(FileAnswer, Option<Waiting>)>, News) {
        match self {
            Self::Done(ran) => (Some((ran.answer, ran.waiting)), ran.news),
            Self::Waits(news) => (None, news),
        }
    }
}

/// An operation of a session.
pub(super) struct Operation<'a> {
    pub(super) key: &'a SessionKey,
    /// Whether the session is told of changes by other sessions.
    pub(super) follows: bool,
    pub(super) asked: &'a FileAsked,
}

impl Volume {
    /// Returns the news for sessions that write to a file, before a decision cuts the file, and for the
    /// session that may map a file, before another one opens it without that right. `None` if the decision
    /// may be carried out.
    pub(super) fn before(
        &self,
        state: &State,
        operation: &Operation<'_>,
        decision: &Decision,
    ) -> Option<News> {
        let by = operation.key.session;
        let cut = cut_of(&operation.asked.operation, decision);
        let unmapped = unmapped_of(&operation.asked.operation, decision);
        let inode = cut.or(unmapped)?;
        if cut.is_some() && self.others_are_untold(by) {
            // Sessions that have not told their opens may write to the file. They are asked after they have
            // told.
            return Some(News::default());
        }
        let now = self.kernel.clock.now();
        let mut asked: BTreeMap<u32, Vec<Stale>> = BTreeMap::new();
        if cut.is_some() {
            let writers = others(state, by, inode, |opens| opens.writes);
            asked.extend(writers.into_iter().map(|session| (session, vec![Stale::Waiting { inode }])));
        }
        if unmapped.is_some() {
            for session in others(state, by, inode, |opens| opens.maps > 0) {
                asked.entry(session).or_default().push(Stale::Mapped { inode });
            }
        }
        self.watchers.borrow_mut().before_cut(
            now,
            (by, operation.asked.number),
            (inode, cut.is_some()),
            asked,
        )
    }
}

impl Files {
    /// Waits until an operation that waits for others is to be tried again. Returns false if a lock has not
    /// become free until `due`. At a new home a cut waits until all sessions have told what they have open.
    ///
    /// # Errors
    /// `Disconnected` if this node is not the home, `Lost` if the volume has gone.
    pub(super) async fn await_others(
        self: &Rc<Self>,
        operation: &Operation<'_>,
        due: Option<Instant>,
    ) -> Result<bool, Error> {
        let (number, session) = (operation.key.volume, operation.key.session);
        let volume = self.volume_of(number).ok_or_else(|| self.not_here(number))?;
        let cuts = volume.watchers.borrow().waits_to_cut(session, operation.asked.number);
        if let Some(waiting) = cuts {
            Rc::clone(self).await_confirmed(volume, waiting).await;
            return Ok(true);
        }
        let due = due.filter(|_| matches!(operation.asked.operation, FileOperation::Lock { .. }));
        let freed = volume.freed();
        Ok(self.kernel.clock.bounded(due, freed).await.is_some())
    }
}

/// Returns the file that an operation cuts: the operation makes a hole, clones over its bytes, or changes its
/// size or other attributes that come with bytes. Bytes that were written before the cut and are committed
/// after it would undo the cut.
fn cut_of(operation: &FileOperation, decision: &Decision) -> Option<u64> {
    match operation {
        FileOperation::Punch { inode, len, .. } if *len > 0 => Some(*inode),
        FileOperation::Clone { inode, .. } if !decision.changes.is_empty() => Some(*inode),
        FileOperation::SetAttributes { inode, set } => is_undone_by_commits(set).then_some(*inode),
        FileOperation::Open { inode, truncate: true, .. } => Some(*inode),
        _ => None,
    }
}

/// Whether the commit of bytes that were written before undoes a change of attributes: of the size, of the
/// time at which the file was written, or of bits that writes clear.
fn is_undone_by_commits(set: &SetAttributes) -> bool {
    set.size.is_some() || set.modified != TimeChange::Keep || set.mode.is_some_and(|mode| mode & 0o6000 != 0)
}

/// Returns the file that an operation opens without the right to map it, although it asks for the right.
/// Programs may have closed the file elsewhere, without the home knowing so far.
fn unmapped_of(operation: &FileOperation, decision: &Decision) -> Option<u64> {
    let asks = matches!(
        operation,
        FileOperation::Open { maps: true, .. } | FileOperation::Create { maps: true, .. }
    );
    match decision.say {
        Say::Opened { inode, maps: false, .. } if asks => Some(inode),
        _ => None,
    }
}

/// Returns the sessions other than `by` that have a file open in a manner.
fn others(state: &State, by: u32, inode: u64, is_so: impl Fn(&Opens) -> bool) -> Vec<u32> {
    let own = state.sessions.get(&by).and_then(|session| session.opens.get(&inode));
    if state.opens.get(&inode).is_none_or(|all| *all <= own.map_or(0, |opens| opens.count.into())) {
        return Vec::new();
    }
    let has = |session: &FileSession| session.opens.get(&inode).is_some_and(&is_so);
    let others = state.sessions.iter().filter(|(session, one)| **session != by && has(one));
    others.map(|(session, _)| *session).collect()
}
