//! Log lines about clients that do what no client of this release does. Owns [`Blamed`]. Engine thread only.
//!
//! Requests of such clients are refused, or delay nobody any more. Invariant: a session is logged once for
//! each kind of fault, and a client once, so that no client fills the log.

use std::cell::RefCell;
use std::collections::BTreeSet;

use plasmon::NodeId;
use plasmon::text::printable;
use plasmon::wire::files::{Errno, FileOperation};

use super::Files;
use super::decide::{FEW_OPENS, MAX_OPENS};
use super::frames::SessionKey;
use super::state::{FileSession, State};
use super::volume::Volume;
use crate::kernel::ClientKey;

/// Kind of fault that the operations of a session show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Objects,
    Opens,
    Silence,
    Secret,
}

impl Fault {
    /// Returns the fault of a session whose operation is refused, if the refusal shows one.
    fn of(session: &FileSession, operation: &FileOperation, refused: Errno) -> Option<Self> {
        use FileOperation as O;
        let opens = session.opens.len();
        match (operation, refused) {
            (O::Commit { .. } | O::Append { .. } | O::Tidy { .. }, Errno::NotPermitted) => {
                Some(Self::Objects)
            }
            (O::Open { .. }, Errno::Full) if opens >= FEW_OPENS => Some(Self::Opens),
            (O::Create { .. }, Errno::Full) if opens >= MAX_OPENS => Some(Self::Opens),
            _ => None,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Objects => "names objects for a file that are not its own, or are gone, which is refused",
            Self::Opens => "has as many files open as it may, and is refused to open more",
            Self::Silence => {
                "has not confirmed for long what others change: they do not wait for it, and it is given \
                 nothing to keep"
            }
            Self::Secret => "is asked for by this user, who does not have its secret, and is refused",
        }
    }
}

/// Faults of a volume's sessions that were logged.
#[derive(Default)]
pub(super) struct Blamed(RefCell<BTreeSet<(u32, Fault)>>);

impl Blamed {
    /// Notes a fault of a session. Returns whether this is the session's first fault of the kind.
    fn is_first(&self, session: u32, fault: Fault) -> bool {
        self.0.borrow_mut().insert((session, fault))
    }

    /// Forgets a session that has ended.
    pub(super) fn forget(&self, session: u32) {
        self.0.borrow_mut().retain(|(other, _)| *other != session);
    }
}

impl Volume {
    /// Logs that an operation of a session was refused, if the refusal shows a fault.
    pub(super) fn blame_refused(&self, state: &State, session: u32, operation: &FileOperation, errno: Errno) {
        let Some(one) = state.sessions.get(&session) else { return };
        if let Some(fault) = Fault::of(one, operation, errno) {
            self.blame(session, (one.node, one.uid), fault);
        }
    }

    /// Logs the sessions that never confirm changes of others.
    pub(super) fn blame_silent(&self) {
        let (state, watchers) = (self.state.borrow(), self.watchers.borrow());
        for session in watchers.who_never_confirm() {
            if let Some(one) = state.sessions.get(&session) {
                self.blame(session, (one.node, one.uid), Fault::Silence);
            }
        }
    }

    /// Logs that a user of a node names a session with a wrong secret.
    pub(super) fn blame_stranger(&self, state: &State, (node, user): (NodeId, u32), key: &SessionKey) {
        if state.sessions.get(&key.session).is_some_and(|session| session.secret != key.secret) {
            self.blame(key.session, (node, user), Fault::Secret);
        }
    }

    fn blame(&self, session: u32, (node, uid): (NodeId, u32), fault: Fault) {
        if self.blamed.is_first(session, fault) {
            let (name, what) = (self.name.borrow(), fault.text());
            let volume = printable(&name);
            tracing::warn!(session, uid, %node, "a session of volume '{volume}' {what}");
        }
    }
}

impl Files {
    /// Logs that a client asks for something that belongs to others. A client is logged once.
    pub(super) fn blame(&self, client: ClientKey, volume: u32, what: &str) {
        if self.attached.is_first_fault(client) {
            let (uid, process, name) =
                self.sessions.client(client, |client| (client.uid, client.pid, client.name.clone()));
            tracing::warn!(uid, process, volume, "client '{}' {what}", printable(&name));
        }
    }
}

#[cfg(test)]
mod tests {
    use plasmon::wire::Draw;
    use plasmon::wire::Wire;
    use plasmon::wire::files::{ROOT_INODE, Time, VolumeTerms};

    use super::*;
    use crate::files::change::{Begun, Change};
    use crate::files::state::Opens;

    #[test]
    fn a_session_is_named_once_for_each_kind_of_fault() {
        let blamed = Blamed::default();
        assert!(blamed.is_first(1, Fault::Objects) && !blamed.is_first(1, Fault::Objects));
        assert!(blamed.is_first(1, Fault::Opens) && blamed.is_first(2, Fault::Objects));
        blamed.forget(1);
        assert!(blamed.is_first(1, Fault::Objects) && !blamed.is_first(2, Fault::Objects));
    }

    #[test]
    fn what_programs_may_be_refused_is_no_fault() {
        let mut state = State::new(1, VolumeTerms::default(), 0, 0, Time::default());
        state.apply(Change::Begin(Begun::draw(&mut Draw::new(1))));
        let session = state.sessions.get_mut(&1).expect("it has begun");
        let open =
            FileOperation::Open { inode: ROOT_INODE, read: true, write: false, truncate: false, maps: false };
        let name = "name".into();
        let create = FileOperation::Create { folder: 1, name, mode: 0o600, exclusive: true, maps: false };
        let unlink = FileOperation::Unlink { folder: 1, name: "name".into() };
        let commit = FileOperation::Commit {
            inode: ROOT_INODE,
            sections: Vec::new(),
            modified: None,
            drops_privileges: false,
            credit: 0,
            credit_of: 0,
        };
        let faults = |session: &FileSession| {
            [&open, &create, &unlink, &commit].map(|operation| {
                [Errno::NotPermitted, Errno::Full].map(|errno| Fault::of(session, operation, errno))
            })
        };
        let [none, objects, opens] = [None, Some(Fault::Objects), Some(Fault::Opens)];
        assert_eq!(faults(session), [[none, none], [none, none], [none, none], [objects, none]]);
        let mut all = 1..;
        let mut fill = |session: &mut FileSession, most| {
            let opened = all.by_ref().take(most - session.opens.len());
            session.opens.extend(opened.map(|inode| (inode, Opens { count: 1, writes: false, maps: 0 })));
        };
        fill(session, FEW_OPENS);
        assert_eq!(faults(session), [[none, opens], [none, none], [none, none], [objects, none]]);
        fill(session, MAX_OPENS);
        assert_eq!(faults(session), [[none, opens], [none, opens], [none, none], [objects, none]]);
    }
}
