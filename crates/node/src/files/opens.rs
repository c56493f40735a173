//! What the sessions of this node's clients have open, and telling new homes. Engine thread only.
//!
//! Mirrors are not told of opens and closes, so that these cost no message. The node of a session knows
//! them from the answers of homes. If the session goes on from another node, from which its client may have
//! come, the client tells them. Invariant: a new home is told what a session has open before the session asks
//! it for anything, and this node takes no answer of a former home any more.

use std::cell::RefCell;
use std::rc::Rc;

use plasmon::wire::Reply;
use plasmon::wire::files::{FileOperation, FileOutcome};
use plasmon::{Error, ErrorKind, NodeId};

use super::Files;
use super::access::is_trusted;
use super::attached::{Attached, PATIENCE, PAUSE};
use super::frames::{MAX_OBJECTS, SessionKey, ask};
use super::state::Opens;
use crate::kernel::ClientKey;
use crate::kernel::random::{HashMap, HashSet};

/// Maximum number of inodes that a client may tell of.
const MAX_TOLD: usize = 1 << 20;

/// What all sessions have open.
#[derive(Default)]
pub(super) struct Opened {
    /// Inodes by volume and session, as far as homes have answered.
    by_session: RefCell<HashMap<(u32, u32), HashMap<u64, Opens>>>,
    /// The homes that know what the sessions of a volume have open.
    told: RefCell<HashMap<u32, NodeId>>,
    /// Opens that clients have told so far, by sessions that go on. An entry goes when its client has told
    /// all.
    awaited: RefCell<HashMap<(u32, u32), HashMap<u64, Opens>>>,
}

impl Opened {
    /// Notes a session that a home has made, and which has nothing open.
    pub(super) fn is_known(&self, volume: u32, home: NodeId) {
        self.told.borrow_mut().entry(volume).or_insert(home);
    }

    /// Notes a session that goes on by a client which is about to tell what it has open.
    pub(super) fn await_client(&self, key: &SessionKey) {
        self.awaited.borrow_mut().insert((key.volume, key.session), HashMap::default());
    }

    /// Takes a part of what a client has open. Says whether that is all.
    fn take(&self, key: &SessionKey, opens: Vec<(u64, u32)>, more: bool) -> Result<bool, Error> {
        let session = (key.volume, key.session);
        let mut awaited = self.awaited.borrow_mut();
        let Some(told) = awaited.get_mut(&session) else {
            return Err(Error::new(ErrorKind::Invalid, "the node knows what this session has open"));
        };
        if told.len() + opens.len() > MAX_TOLD {
            let text = format!("more than {MAX_TOLD} inodes are open: close some, and attach anew");
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        // The home tells whoever may write that bytes may wait.
        told.extend(opens.into_iter().map(|(inode, count)| (inode, Opens { count, writes: true })));
        if !more && let Some(told) = awaited.remove(&session) {
            self.by_session.borrow_mut().insert(session, told);
        }
        Ok(!more)
    }

    /// Notes what an operation has opened or closed.
    pub(super) fn note(&self, key: &SessionKey, operation: &FileOperation, outcome: &FileOutcome) {
        let session = (key.volume, key.session);
        match (operation, outcome) {
            (_, FileOutcome::Opened { attributes, .. }) => {
                let mut opened = self.by_session.borrow_mut();
                let opens = opened.entry(session).or_default().entry(attributes.inode).or_default();
                opens.count = opens.count.saturating_add(1);
                opens.writes |= !matches!(operation, FileOperation::Open { write: false, .. });
            }
            (FileOperation::Closed { inodes }, FileOutcome::Done) => {
                let mut opened = self.by_session.borrow_mut();
                let Some(opened) = opened.get_mut(&session) else { return };
                for inode in inodes {
                    if let Some(opens) = opened.get_mut(inode) {
                        opens.count = opens.count.saturating_sub(1);
                        if opens.count == 0 {
                            opened.remove(inode);
                        }
                    }
                }
            }
            _ => {}
        }
    }

    /// What a session has open.
    fn of(&self, key: &SessionKey) -> Vec<(u64, Opens)> {
        let opened = self.by_session.borrow();
        let opened = opened.get(&(key.volume, key.session)).into_iter().flatten();
        let mut all: Vec<_> = opened.map(|(inode, opens)| (*inode, *opens)).collect();
        all.sort_unstable_by_key(|(inode, _)| *inode);
        all
    }

    /// Forgets what sessions had open that no client has.
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
            None => false,
        });
    }

    /// Takes a part of what a session has open that goes on by this node, and has the home told of all.
    ///
    /// # Errors
    /// `NotAllowed` for a session that is not trusted, `Invalid` if this was told before.
    pub(super) fn on_opened(
        self: &Rc<Self>,
        client: ClientKey,
        volume: u32,
        opens: Vec<(u64, u32)>,
        more: bool,
    ) -> Result<Reply, Error> {
        let attached = self.attached.get(client, volume)?;
        if !is_trusted(attached.user) {
            let text = "the home takes no word of a session that is not trusted";
            return Err(Error::new(ErrorKind::NotAllowed, text));
        }
        if self.opened.take(&attached.key, opens, more)?
            && let Some(home) = self.home_of(attached.key.volume)
        {
            let files = Rc::clone(self);
            self.kernel.spawn(async move { files.tell_opens(home, attached).await });
        }
        Ok(Reply::Done)
    }

    /// Tells a home what a session has open, until the home knows or is none any more.
    async fn tell_opens(self: &Rc<Self>, home: NodeId, attached: Attached) {
        let Attached { key, user, .. } = attached;
        let opened = self.opened.of(&key);
        let mut parts: Vec<_> = opened.chunks(MAX_OBJECTS).map(<[_]>::to_vec).collect();
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        let count = parts.len();
        for (number, opens) in parts.into_iter().enumerate() {
            let more = number + 1 < count;
            while self.home_of(key.volume) == Some(home) && self.attached.has(key.volume, key.session) {
                let told = if home == self.kernel.node {
                    self.on_opens(home, &key, opens.clone(), more)
                } else {
                    let question = ask::TellOpens { key, opens: opens.clone(), more };
                    self.network.ask(home, user, question, PATIENCE).await.map(|ask::Ended| ())
                };
                match told {
                    Err(error) if matches!(error.kind(), ErrorKind::Disconnected | ErrorKind::TimedOut) => {
                        self.kernel.clock.sleep(PAUSE).await;
                    }
                    Ok(()) | Err(_) => break,
                }
            }
        }
    }

    /// Takes what a session of a node has open.
    ///
    /// # Errors
    /// `Disconnected` if this node is not the home, `Fenced` if the session has ended.
    pub(super) fn on_opens(
        &self,
        node: NodeId,
        key: &SessionKey,
        opens: Vec<(u64, Opens)>,
        more: bool,
    ) -> Result<(), Error> {
        let volume = self.volume_of(key.volume).ok_or_else(|| self.not_here(key.volume))?;
        if !volume.knows(node, key) {
            return Err(Error::new(ErrorKind::Fenced, "the session has ended: attach to the volume anew"));
        }
        volume.tell_opens(key.session, opens, more);
        Ok(())
    }
}
