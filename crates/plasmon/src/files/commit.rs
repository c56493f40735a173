//! Commits, which tell the home of a file what was written to the file.
//!
//! Owns no state. Any thread that has the file locked commits its waiting bytes. Threads of the background
//! lock a file to commit bytes that have waited for their time, and when they have settled the first objects
//! of a file that is being written. Invariants: parts are committed in the order in which they were written;
//! bytes that can never be committed are given up, and the next sync of each open says so, once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::Result;
use super::ahead::{Ahead, Settling};
use super::credit::may_be_done;
use super::inode::{Inode, State};
use super::placing::Goal;
use super::session::unexpected;
use super::tidy::ragged;
use super::volume::Shared;
use super::writer::Commit;
use crate::wire::files::{FileOperation, FileOutcome, Section};

/// Longest wait of a thread of the background, with a file locked, until objects are where they are to lie.
/// The commit is tried again soon.
const BACKGROUND_PATIENCE: Duration = Duration::from_secs(1);

impl Shared {
    /// Locks a file for a call of a program.
    ///
    /// # Errors
    /// `Interrupted` if the program is killed while another call has the file locked. `Io` if the file stays
    /// locked for longer than the patience of the session.
    pub(super) fn lock<'a>(&self, open: &'a Inode) -> Result<MutexGuard<'a, State>> {
        let until = Instant::now() + self.session.patience();
        let mut state = self.session.lock(&open.state, until)?;
        state.due = Some(until);
        Ok(state)
    }

    /// Commits all waiting bytes of a file. Bytes that can never be committed are given up, and the next sync
    /// or close tells that.
    pub(super) fn commit(&self, inode: u64, state: &mut State) -> Result<()> {
        let committed = self.try_commit(inode, state);
        self.note_failure(state, committed)
    }

    /// Commits the objects that the background has settled, of a file of which as many bytes wait as may.
    /// Waits for the settling. Commits everything if nothing is being settled.
    fn commit_some(&self, inode: u64, state: &mut State) -> Result<()> {
        match state.writer.join_ahead() {
            Some(Ok(())) => {
                let committed = self.send_parts(inode, state);
                self.note_failure(state, committed)
            }
            Some(Err(_)) | None => self.commit(inode, state),
        }
    }

    /// Commits as [`Shared::commit`] before a write that does not depend on the waiting bytes. Returns no
    /// error for bytes that were given up, which syncs and closes tell.
    pub(super) fn commit_before(&self, inode: u64, state: &mut State) -> Result<()> {
        untold(self.commit(inode, state))
    }

    /// Has waiting bytes of a file committed by a thread of the background, if they have waited for their
    /// time.
    pub(super) fn commit_if_old(self: &Arc<Self>, inode: u64, open: &Arc<Inode>) {
        // A file that is locked is in use, and is looked at the next time.
        if !open.state.try_lock().is_some_and(|state| state.writer.is_old()) {
            return;
        }
        let Some(turn) = Turn::take(open) else { return };
        let shared = Arc::clone(self);
        self.committers.run(move || {
            let Some(mut state) = turn.0.state.try_lock() else { return };
            if state.writer.is_old() {
                state.due = Some(Instant::now() + BACKGROUND_PATIENCE);
                // The next sync or close tells of a failure.
                let _ = shared.commit(inode, &mut state);
            }
        });
    }

    /// Commits some or all waiting bytes of a file before more are written, if many wait, or wait for long.
    pub(super) fn commit_in_time(&self, inode: u64, state: &mut State) -> Result<()> {
        if state.writer.is_full() {
            untold(self.commit_some(inode, state))
        } else if state.writer.is_old() {
            self.commit_before(inode, state)
        } else {
            Ok(())
        }
    }

    /// Commits a write to a file of which no bytes waited before. If the commit fails, the write is given up.
    pub(super) fn commit_through(&self, inode: u64, state: &mut State, written: Result<()>) -> Result<()> {
        let committed = written.and_then(|()| self.try_commit(inode, state));
        // The write itself returns the failure.
        committed.inspect_err(|_| self.give_up(state))
    }

    /// Gives up the waiting bytes of a file after a failure, unless the failure was for want of room or time.
    fn note_failure(&self, state: &mut State, committed: Result<()>) -> Result<()> {
        if let Err(error) = &committed
            && !error.leaves_bytes()
        {
            self.give_up(state);
            state.failures.note(error.clone());
        }
        committed
    }

    /// Gives up the waiting bytes of a file.
    pub(super) fn give_up(&self, state: &mut State) {
        if state.writer.first_object().is_some() {
            self.blocks.note_left();
        }
        state.writer.clear();
    }

    fn try_commit(&self, inode: u64, state: &mut State) -> Result<()> {
        if let Some(lost) = state.writer.take_lost() {
            return Err(lost);
        }
        if state.writer.is_empty() {
            return Ok(());
        }
        if let Some(inline) = state.writer.inline(state.size)
            && self.send_commit(inode, state, &inline)?
        {
            state.writer.clear();
            return Ok(());
        }
        let attached = self.session.attached();
        let target = self.target(&attached, &state.place, state.wanted());
        state.writer.store(&target)?;
        self.send_parts(inode, state)?;
        state.writer.clear();
        Ok(())
    }

    /// Commits the settled objects of a file.
    fn send_parts(&self, inode: u64, state: &mut State) -> Result<()> {
        while self.send_part(inode, state)? {}
        Ok(())
    }

    /// Commits one part of the settled objects of a file. Returns whether there was a part.
    fn send_part(&self, inode: u64, state: &mut State) -> Result<bool> {
        let Some(part) = state.writer.part() else { return Ok(false) };
        self.look_for_losses(state)?;
        let sent = self.send_commit(inode, state, &part);
        // Meanwhile the node may have gone and come back without the objects, or the session may have begun
        // anew, and only the former session may commit them.
        self.look_for_losses(state)?;
        if !sent? {
            return Err(unexpected());
        }
        state.writer.committed(&part);
        Ok(true)
    }

    /// Checks whether objects of a file went with a former node of this host, or with a former session.
    fn look_for_losses(&self, state: &mut State) -> Result<()> {
        let (attached, place) = (self.session.attached(), state.place.clone());
        let target = self.target(&attached, &place, state.wanted());
        state.writer.look_for_losses(&target)
    }

    /// Sends a commit. Returns whether the map of the file had room for the bytes that lie in the commit.
    fn send_commit(&self, inode: u64, state: &mut State, commit: &Commit) -> Result<bool> {
        let (credit, credit_of) = state.writer.credit(commit);
        let operation = FileOperation::Commit {
            inode,
            sections: commit.sections.clone(),
            modified: Some(commit.modified),
            drops_privileges: commit.drops_privileges,
            credit,
            credit_of,
        };
        let of = self.inode(inode).map_or(Ok(None), |open| self.session_of(&open))?;
        let answered = self.session.ask_steadily(of, operation).map(|(outcome, _)| outcome);
        self.open_again();
        if !matches!(&answered, Ok(FileOutcome::NoRoomInline))
            && answered.as_ref().err().is_none_or(may_be_done)
        {
            state.writer.spend(credit);
        }
        match answered? {
            FileOutcome::Entry(attributes) => {
                self.tidying.note(inode, ragged(&commit.sections, state.size));
                state.learn(&attributes);
                Ok(true)
            }
            FileOutcome::NoRoomInline => Ok(false),
            _ => Err(unexpected()),
        }
    }

    /// Begins to settle and to commit the first objects of a file in the background, if enough bytes wait.
    pub(super) fn begin_commit(self: &Arc<Self>, inode: u64, open: &Arc<Inode>, state: &mut State) {
        let Some((ahead, sections)) = state.writer.begin_ahead() else { return };
        let attached = self.session.attached();
        let goal = self.target(&attached, &state.place, state.wanted()).goal();
        let (shared, open) = (Arc::clone(self), Arc::clone(open));
        let settling = Settling::new(&ahead);
        let job = move || shared.commit_first(inode, &open, &ahead, settling, sections, &goal);
        if !self.committers.offer(job) {
            // The dropped job has told a failure. The writer commits when it is time.
            let _ = state.writer.join_ahead();
        }
    }

    /// Settles the first waiting objects of a file, and commits them unless another thread does.
    fn commit_first(
        &self,
        inode: u64,
        open: &Inode,
        ahead: &Ahead,
        settling: Settling,
        mut sections: Vec<Section>,
        goal: &Goal,
    ) {
        if !ahead.run() {
            return;
        }
        let settled = goal.target().settle(&mut sections);
        settling.end(settled.map(|()| sections));
        let Some(mut state) = ahead.lock(&open.state) else { return };
        state.due = Some(Instant::now() + BACKGROUND_PATIENCE);
        // The next sync or close tells of a failure.
        if state.writer.join_ahead().is_some_and(|settled| settled.is_err()) {
            let _ = self.commit(inode, &mut state);
            return;
        }
        loop {
            let sent = self.send_part(inode, &mut state);
            if !matches!(sent, Ok(true)) {
                let _ = self.note_failure(&mut state, sent.map(drop));
                return;
            }
            // Writes may go on between two parts.
            MutexGuard::bump(&mut state);
        }
    }
}

/// Place of a file in the queue of files that the background commits. A file has one place at a time.
struct Turn(Arc<Inode>);

impl Turn {
    fn take(open: &Arc<Inode>) -> Option<Self> {
        (!open.is_queued.swap(true, Ordering::AcqRel)).then(|| Self(Arc::clone(open)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.is_queued.store(false, Ordering::Release);
    }
}

/// Hides an error about bytes of earlier writes, unless these bytes still wait for want of room or time.
fn untold(committed: Result<()>) -> Result<()> {
    committed.or_else(|error| if error.leaves_bytes() { Err(error) } else { Ok(()) })
}
