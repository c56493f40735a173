//! A volume that this node has mirrored and is the home of now: what sessions tell it that only the former
//! home knew. Engine thread only.
//!
//! Invariants: no inode goes, and no file is cut, before all other sessions have told what they have open, or
//! have ended. Who tells nothing for a time ends: its node may have no such session, if the former home died
//! before it could answer who attached.

use std::rc::Rc;

use plasmon::wire::files::FileOutcome;

use super::change::Change;
use super::log::Log;
use super::state::{Opens, State};
use super::volume::Volume;
use crate::control::records::VolumeRecord;
use crate::kernel::Kernel;

impl Volume {
    /// A volume that this node has mirrored.
    pub(super) fn inherited(kernel: &Rc<Kernel>, record: &VolumeRecord, state: State, log: Log) -> Self {
        let volume = Self::new(kernel, record, state, log);
        let state = volume.state.borrow();
        volume.untold.borrow_mut().extend(state.sessions.keys());
        let opened = |outcome: &FileOutcome| matches!(outcome, FileOutcome::Opened { .. });
        for (number, session) in &state.sessions {
            let reopens = session.outcomes.iter().filter(|(_, outcome)| opened(outcome));
            volume.reopens.borrow_mut().extend(reopens.map(|(operation, _)| (*number, *operation)));
        }
        drop(state);
        volume
    }

    /// Whether another session has yet to tell what it has open.
    pub(super) fn others_are_untold(&self, session: u32) -> bool {
        self.untold.borrow().iter().any(|other| *other != session)
    }

    /// Notes what a session has open, which a former home knew; `more` follows otherwise.
    pub(super) fn tell_opens(&self, session: u32, opens: Vec<(u64, Opens)>, more: bool) {
        if !self.untold.borrow().contains(&session) {
            return;
        }
        let opens = opens.into_iter().map(|(inode, opens)| Change::Open { inode, session, opens });
        self.commit(&mut self.state.borrow_mut(), opens.collect());
        if !more {
            self.told(session);
        }
    }

    /// Notes that a session has told all that it has open, or ends. When all have, inodes go that nobody has.
    pub(super) fn told(&self, session: u32) {
        let mut untold = self.untold.borrow_mut();
        if !untold.remove(&session) {
            return;
        }
        // Who cuts a file may wait for it.
        self.wake();
        if !untold.is_empty() {
            return;
        }
        drop(untold);
        let mut state = self.state.borrow_mut();
        let unused = state.unlinked.iter().filter(|inode| !state.opens.contains_key(inode));
        let unused = unused.map(|inode| Change::Forget { inode: *inode }).collect();
        self.commit(&mut state, unused);
    }

    /// Has changes wait for what a former home gave sessions to keep.
    pub(super) fn await_former(&self) {
        let until = self.kernel.clock.now() + self.log.changes_in();
        self.watchers.borrow_mut().wait_for_former(until);
    }

    /// Counts an inode as opened that an operation opened at a former home, which is asked again.
    pub(super) fn reopen(&self, state: &mut State, session: u32, number: u64, outcome: &FileOutcome) {
        if let FileOutcome::Opened { attributes, .. } = outcome
            && self.reopens.borrow_mut().remove(&(session, number))
        {
            let opens = Opens { count: 1, writes: true };
            self.commit(state, vec![Change::Open { inode: attributes.inode, session, opens }]);
        }
    }
}
