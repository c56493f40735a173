//! Opens of the sessions of this node's clients, and how new homes are told. Owns [`Opened`]. Engine thread
//! only.
//!
//! Mirrors are not told of opens and closes of trusted sessions, so these cost no message. The node of such a
//! session knows them from the answers of homes. If the session goes on from another node, to which its
//! client has come, the client tells them. A new home, which was a mirror, knows the opens of all other
//! sessions, and is told only that the node has the session. Invariants: a new home is told what a trusted
//! session has open before the session asks it for anything. From then on this node takes no answer of a
//! former home. An operation counts once, however often its client asks for it. If it has counted, the node
//! itself answers again, since a new home may not know the operation.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use plasmon::wire::Reply;
use plasmon::wire::files::{FileAnswer, FileAsked, FileOperation, FileOutcome};
use plasmon::{Error, ErrorKind, NodeId};

use super::Files;
use super::access::is_trusted;
use super::answer::kept;
use super::attached::{Attached, HOME_PATIENCE, HOME_PAUSE};
use super::frames::{MAX_OBJECTS, SessionKey, ask};
use super::inherited::Part;
use super::state::Opens;
use crate::kernel::ClientKey;
use crate::kernel::random::{HashMap, HashSet};

/// Maximum number of inodes that a session may tell as open.
pub(super) const MAX_TOLD: usize = 1 << 20;
/// Maximum number of operations of a session whose outcomes are kept: as many as a home keeps.
const MAX_COUNTED: usize = 1 << 14;

/// Opens of all trusted sessions, and which homes know them.
#[derive(Default)]
pub(super) struct Opened {
    /// Opens of each session that homes have confirmed, by volume and session.
    by_session: RefCell<HashMap<(u32, u32), Counted>>,
    /// Home of each volume that knows what the sessions of this node have open.
    told: RefCell<HashMap<u32, NodeId>>,
    /// Opens that clients have told so far, by session that goes on. The entry goes when its client has told
    /// all.
    awaited: RefCell<HashMap<(u32, u32), Awaited>>,
    /// Number of times that homes were told what a session has open.
    tellings: Cell<u64>,
}

/// Opens that a client of a session that goes on has told so far.
struct Awaited {
    client: ClientKey,
    told: BTreeMap<u64, Opens>,
}

/// Opens of a session, and the operations that have been counted in them.
#[derive(Default)]
struct Counted {
    inodes: BTreeMap<u64, Opens>,
    /// Outcomes of counted operations that the client may ask for again.
    outcomes: BTreeMap<u64, FileOutcome>,
    /// Number below which the client asks for no operation again.
    answered: u64,
}

impl Counted {
    /// Counts what an operation has opened or closed, unless it has counted before.
    fn note(&mut self, asked: &FileAsked, outcome: &FileOutcome) {
        if asked.answered > self.answered {
            self.answered = asked.answered;
            self.outcomes = self.outcomes.split_off(&asked.answered);
        }
        if asked.number < self.answered || self.outcomes.contains_key(&asked.number) {
            return;
        }
        match (&asked.operation, outcome) {
            (operation, FileOutcome::Opened { attributes, maps, .. }) => {
                let opens = self.inodes.entry(attributes.inode).or_default();
                opens.count = opens.count.saturating_add(1);
                opens.writes |= !matches!(operation, FileOperation::Open { write: false, .. });
                opens.maps = opens.maps.saturating_add((*maps).into());
            }
            (FileOperation::Closed { opens }, _) => {
                opens.iter().for_each(|(inode, maps)| self.close(*inode, *maps));
            }
            _ => return,
        }
        if self.outcomes.len() == MAX_COUNTED
            && let Some((oldest, _)) = self.outcomes.pop_first()
        {
            self.answered = oldest.saturating_add(1);
        }
        self.outcomes.insert(asked.number, kept(outcome));
    }

    fn close(&mut self, inode: u64, maps: bool) {
        let Some(opens) = self.inodes.get_mut(&inode) else { return };
        opens.count = opens.count.saturating_sub(1);
        opens.maps = opens.maps.saturating_sub(maps.into());
        if opens.count == 0 {
            self.inodes.remove(&inode);
        }
    }
}

impl Opened {
    /// Notes that a home has made a session, so that it knows the opens of the volume's sessions.
    pub(super) fn is_known(&self, volume: u32, home: NodeId) {
        self.told.borrow_mut().entry(volume).or_insert(home);
    }

    /// Notes a session that goes on, and whose client is about to tell what it has open.
    pub(super) fn await_client(&self, key: &SessionKey, client: ClientKey) {
        let awaited = Awaited { client, told: BTreeMap::new() };
        self.awaited.borrow_mut().insert((key.volume, key.session), awaited);
    }

    /// Takes a part of what a client has open. Returns whether this was the last part.
    fn take(
        &self,
        client: ClientKey,
        key: &SessionKey,
        opens: Vec<(u64, u32, u32)>,
        more: bool,
    ) -> Result<bool, Error> {
        let session = (key.volume, key.session);
        let mut awaited = self.awaited.borrow_mut();
        // An earlier connection of the session may have left a part behind.
        let Some(Awaited { told, .. }) = awaited.get_mut(&session).filter(|one| one.client == client) else {
            return Err(Error::new(ErrorKind::Invalid, "the node knows what this session has open"));
        };
        if told.len() + opens.len() > MAX_TOLD {
            let text = format!("more than {MAX_TOLD} inodes are open: close some, and attach anew");
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        // The client does not tell how files are open. All count as open to write, so homes ask the session
        // before cuts.
        let opens = opens
            .into_iter()
            .map(|(inode, count, maps)| (inode, Opens { count, writes: true, maps: maps.min(count) }));
        told.extend(opens);
        if !more && let Some(Awaited { told, .. }) = awaited.remove(&session) {
            // The client does not know which of its operations were counted, so none is kept.
            let counted = Counted { inodes: told, ..Counted::default() };
            self.by_session.borrow_mut().insert(session, counted);
        }
        Ok(!more)
    }

    /// Notes the opens or closes of an operation of a trusted session.
    pub(super) fn note(&self, attached: &Attached, asked: &FileAsked, outcome: &FileOutcome) {
        let counts = match outcome {
            FileOutcome::Opened { .. } => true,
            FileOutcome::Done => matches!(asked.operation, FileOperation::Closed { .. }),
            _ => false,
        };
        if counts && is_trusted(attached.user) {
            let session = (attached.key.volume, attached.key.session);
            self.by_session.borrow_mut().entry(session).or_default().note(asked, outcome);
        }
    }

    /// Returns the answer to an operation that was counted already and is asked for again.
    pub(super) fn again(&self, key: &SessionKey, asked: &FileAsked) -> Option<FileAnswer> {
        let opened = self.by_session.borrow();
        let outcome = opened.get(&(key.volume, key.session))?.outcomes.get(&asked.number)?;
        Some(FileAnswer::of(outcome.clone()))
    }

    /// Returns a part of what a session has open, the inodes behind `after`, and whether there are more.
    fn part(&self, key: &SessionKey, after: u64) -> (Vec<(u64, Opens)>, bool) {
        let opened = self.by_session.borrow();
        let counted = opened.get(&(key.volume, key.session)).into_iter();
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        let mut inodes = counted.flat_map(|counted| counted.inodes.range(behind));
        let part = inodes.by_ref().take(MAX_OBJECTS).map(|(inode, opens)| (*inode, *opens)).collect();
        (part, inodes.next().is_some())
    }

    /// Forgets the opens of all sessions but these, which clients of this node have.
    pub(super) fn forget(&self, sessions: &HashSet<(u32, u32)>) {
        self.by_session.borrow_mut().retain(|session, _| sessions.contains(session));
        self.awaited.borrow_mut().retain(|session, _| sessions.contains(session));
    }
}

impl Files {
    /// Tells new homes what the sessions of this node have open.
    pub(super) fn tell_homes(self: &Rc<Self>) {
        for attached in self.attached.all() {
            let Some(home) = self.home_of(attached.key.volume) else { continue };
            let session = (attached.key.volume, attached.key.session);
            let told = self.opened.told.borrow().get(&attached.key.volume) == Some(&home);
            if !told && !self.opened.awaited.borrow().contains_key(&session) {
                let files = Rc::clone(self);
                self.kernel.spawn(async move { files.tell_opens(home, attached).await });
            }
        }
        let mut told = self.opened.told.borrow_mut();
        told.retain(|volume, home| match self.home_of(*volume) {
            Some(now) => {
                *home = now;
                true
            }
            // The record may come back with another home.
            None => self.attached.all().iter().any(|attached| attached.key.volume == *volume),
        });
    }

    /// Takes a part of what a session that goes on by this node has open. After the last part, tells the home
    /// all opens of the session.
    ///
    /// # Errors
    /// `NotAllowed` for a session that is not trusted, `Invalid` if the opens were told before, or another
    /// connection is to tell them.
    pub(super) fn on_opened(
        self: &Rc<Self>,
        client: ClientKey,
        volume: u32,
        opens: Vec<(u64, u32, u32)>,
        more: bool,
    ) -> Result<Reply, Error> {
        let attached = self.attached.get(client, volume)?;
        if !is_trusted(attached.user) {
            let text = "the home takes no word of a session that is not trusted";
            return Err(Error::new(ErrorKind::NotAllowed, text));
        }
        if self.opened.take(client, &attached.key, opens, more)?
            && let Some(home) = self.home_of(attached.key.volume)
        {
            let files = Rc::clone(self);
            self.kernel.spawn(async move { files.tell_opens(home, attached).await });
        }
        Ok(Reply::Done)
    }

    /// Tells a home of a session and its opens, until the home has confirmed or is not the home any more.
    /// Until then the opens do not change, unless the client tells them anew, which makes another telling.
    async fn tell_opens(self: &Rc<Self>, home: NodeId, attached: Attached) {
        let telling = self.opened.tellings.get() + 1;
        self.opened.tellings.set(telling);
        let (mut number, mut after) = (0, 0);
        loop {
            let (opens, more) = self.opened.part(&attached.key, after);
            after = opens.last().map_or(after, |(inode, _)| *inode);
            let part = Part { telling, number, opens, more };
            if !self.tell_part(home, &attached, &part).await || !more {
                return;
            }
            number += 1;
        }
    }

    /// Tells a home a part of what a session has open. Returns whether the home has confirmed it.
    async fn tell_part(self: &Rc<Self>, home: NodeId, attached: &Attached, part: &Part) -> bool {
        let Attached { key, user, .. } = *attached;
        while self.home_of(key.volume) == Some(home) && self.attached.has(key.volume, key.session) {
            let told = if home == self.kernel.node {
                self.on_opens(home, &key, part.clone()).await
            } else {
                let Part { telling, number, opens, more } = part.clone();
                let question = ask::TellOpens { key, telling, part: number, opens, more };
                self.network.ask(home, user, question, HOME_PATIENCE).await.map(|ask::Ended| ())
            };
            match told {
                Ok(()) => return true,
                Err(error) if matches!(error.kind(), ErrorKind::Disconnected | ErrorKind::TimedOut) => {
                    self.kernel.clock.sleep(HOME_PAUSE).await;
                }
                // The session has ended, or is telling anew.
                Err(_) => return false,
            }
        }
        false
    }

    /// Notes that a node has a session, and what the session has open. Returns when all that was told so far
    /// is counted.
    ///
    /// # Errors
    /// `Disconnected` if this node is not the home, `Fenced` if the session has ended; as
    /// [`Volume::tell_opens`](super::volume::Volume::tell_opens).
    pub(super) async fn on_opens(&self, node: NodeId, key: &SessionKey, part: Part) -> Result<(), Error> {
        let volume = self.volume_of(key.volume).ok_or_else(|| self.not_here(key.volume))?;
        if !volume.knows(node, key) {
            return Err(Error::new(ErrorKind::Fenced, "the session has ended: attach to the volume anew"));
        }
        volume.tell_opens(key.session, part).await
    }
}

#[cfg(test)]
mod tests {
    use plasmon::wire::files::{Actor, Extended, ROOT_INODE, Time, VolumeTerms};

    use super::*;
    use crate::files::attached::Reach;
    use crate::files::state::State;
    use crate::object::ROOT;

    const KEY: SessionKey = SessionKey { volume: 1, session: 7, secret: 3 };

    fn asked(number: u64, answered: u64, operation: FileOperation) -> FileAsked {
        FileAsked { number, answered, actor: Actor::default(), operation }
    }

    fn open(number: u64, answered: u64) -> FileAsked {
        let operation =
            FileOperation::Open { inode: ROOT_INODE, read: true, write: false, truncate: false, maps: false };
        asked(number, answered, operation)
    }

    fn close(number: u64, answered: u64) -> FileAsked {
        asked(number, answered, FileOperation::Closed { opens: vec![(ROOT_INODE, false)] })
    }

    /// Notes operations whose homes have answered. Returns how often the inode is open after each.
    fn counts(opened: &Opened, all: &[FileAsked]) -> Vec<u32> {
        let state = State::new(1, VolumeTerms::default(), 0, 0, Time::default());
        let attributes = state.attributes(ROOT_INODE).expect("every volume has a root");
        let attached = Attached { key: KEY, user: ROOT, reach: Reach::All };
        let note = |asked: &FileAsked| {
            let map = Extended { sections: Vec::new(), next: None };
            let outcome = match asked.operation {
                FileOperation::Closed { .. } => FileOutcome::Done,
                _ => FileOutcome::Opened { attributes: attributes.clone(), created: false, map, maps: false },
            };
            opened.note(&attached, asked, &outcome);
            opened.part(&KEY, 0).0.iter().map(|(_, opens)| opens.count).sum()
        };
        all.iter().map(note).collect()
    }

    #[test]
    fn an_operation_counts_once() {
        let opened = Opened::default();
        assert_eq!(counts(&opened, &[open(1, 1), open(1, 1), open(2, 1), open(3, 2)]), [1, 1, 2, 3]);
        assert_eq!(counts(&opened, &[close(4, 2), close(4, 2), open(3, 2), open(2, 2)]), [2, 2, 2, 2]);
        // The answer of an earlier task may come late, when its client has the answer of another task.
        assert_eq!(counts(&opened, &[open(6, 5), close(4, 2), open(3, 2)]), [3, 3, 3]);
    }

    #[test]
    fn an_operation_that_has_counted_has_its_outcome_again() {
        let opened = Opened::default();
        assert_eq!(counts(&opened, &[open(1, 1), open(2, 1), close(3, 2)]), [1, 2, 1]);
        let again = |number| opened.again(&KEY, &close(number, 2)).map(|answer| answer.outcome);
        assert_eq!(again(3), Some(FileOutcome::Done));
        assert!(matches!(again(2), Some(FileOutcome::Opened { .. })));
        assert_eq!((again(1), again(4)), (None, None), "one was answered, the other was not asked");
        assert_eq!(opened.again(&SessionKey { session: 8, ..KEY }, &close(3, 2)), None);
    }

    #[test]
    fn what_a_client_tells_takes_the_place_of_what_was_counted() {
        let opened = Opened::default();
        counts(&opened, &[open(1, 1), close(2, 1), open(3, 1)]);
        let client = ClientKey::new(9).expect("it is not 0");
        opened.await_client(&KEY, client);
        // The session has no answer so far to its last operation.
        assert!(opened.take(client, &KEY, vec![(ROOT_INODE, 1, 0)], false).expect("it is awaited"));
        assert_eq!(counts(&opened, &[open(3, 2), open(3, 2), close(2, 2)]), [2, 2, 1]);
    }

    #[test]
    fn what_is_open_is_told_in_parts() {
        let (opened, client) = (Opened::default(), ClientKey::new(9).expect("it is not 0"));
        assert_eq!(opened.part(&KEY, 0), (Vec::new(), false));
        let all: Vec<_> = (1..=2 * MAX_OBJECTS as u64).map(|inode| (inode, 3, 1)).collect();
        opened.await_client(&KEY, client);
        opened.take(client, &KEY, all.clone(), false).expect("it is awaited");
        let (mut told, mut after) = (Vec::new(), 0);
        for more in [true, false] {
            let (part, further) = opened.part(&KEY, after);
            assert_eq!((part.len(), further), (MAX_OBJECTS, more));
            told.extend(part.iter().map(|(inode, opens)| (*inode, opens.count, opens.maps)));
            after = told.last().expect("it has told some").0;
        }
        assert_eq!(told, all);
    }

    #[test]
    fn few_outcomes_are_kept() {
        let opened = Opened::default();
        let most = MAX_COUNTED as u64;
        let all: Vec<_> = (1..=most + 1).map(|number| open(number, 0)).collect();
        counts(&opened, &all);
        assert_eq!(opened.again(&KEY, &open(1, 0)), None);
        assert!(opened.again(&KEY, &open(2, 0)).is_some());
        assert_eq!(counts(&opened, &[open(1, 0)]), [most as u32 + 1], "it has counted");
    }
}
