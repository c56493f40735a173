//! Attachments of this node's clients to volumes. Owns [`AllAttached`]. Engine thread only.
//!
//! Invariants: a session ends with the connection of its client. This node tells a new home what its sessions
//! have open before it asks for anything else there ([`Opened`](super::opens::Opened)).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use plasmon::text::printable;
use plasmon::wire::files::{VolumeInfo, VolumeTerms};
use plasmon::wire::{MAX_NAME_BYTES, Reply};
use plasmon::{Error, ErrorKind, NodeId};

use super::Files;
use super::access::is_trusted;
use super::frames::{SessionKey, Wish, ask};
use super::homes::{lost, no_volume};
use super::making::create_somewhere;
use super::record::Whereabouts;
use crate::kernel::ClientKey;
use crate::kernel::random::{HashMap, HashSet};

/// Time that a home may take to answer before it is asked again.
pub(super) const HOME_PATIENCE: Duration = Duration::from_secs(10);
/// Pause before a home that could not be reached is asked again.
pub(super) const HOME_PAUSE: Duration = Duration::from_millis(50);
/// Number of leases for which sessions outlast their node, so that they can go on at another node.
pub(super) const SESSION_LEASES: u32 = 2;
/// Maximum number of volumes that a client is attached to.
const MAX_ATTACHED: usize = 64;

/// Session of a client with a volume.
#[derive(Clone, Copy)]
pub(super) struct Attached {
    pub(super) key: SessionKey,
    pub(super) user: u32,
    pub(super) reach: Reach,
}

/// Objects of its volume that a session may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Objects of the session's user. No other user has objects in the volume.
    Own,
    /// Objects of all users.
    All,
    /// Ranges of objects that the home has told the session.
    Granted,
}

impl Reach {
    fn of(info: &VolumeInfo, trusted: bool) -> Self {
        match (info.terms.shared, trusted) {
            (false, _) => Self::Own,
            (true, true) => Self::All,
            (true, false) => Self::Granted,
        }
    }
}

/// The volumes of one client.
#[derive(Default)]
struct Own {
    volumes: HashMap<u32, Attached>,
    last: u32,
}

/// Volumes that the clients of this node are attached to.
#[derive(Default)]
pub(super) struct AllAttached {
    clients: RefCell<HashMap<ClientKey, Own>>,
    /// Clients that have asked for something that belongs to others.
    faulty: RefCell<HashSet<ClientKey>>,
}

impl AllAttached {
    pub(super) fn get(&self, client: ClientKey, volume: u32) -> Result<Attached, Error> {
        let clients = self.clients.borrow();
        clients.get(&client).and_then(|own| own.volumes.get(&volume)).copied().ok_or_else(|| {
            let text = format!("this connection is not attached to a volume {volume}: attach first");
            Error::new(ErrorKind::Invalid, text)
        })
    }

    /// Whether a client was never attached to a volume of this number.
    pub(super) fn was_never(&self, client: ClientKey, volume: u32) -> bool {
        self.clients.borrow().get(&client).is_none_or(|own| !(1..=own.last).contains(&volume))
    }

    /// Notes that a client has asked for something that belongs to others. Returns whether that was the first
    /// time.
    pub(super) fn is_first_fault(&self, client: ClientKey) -> bool {
        self.faulty.borrow_mut().insert(client)
    }

    fn open(&self, client: ClientKey, attached: Attached) -> u32 {
        let mut clients = self.clients.borrow_mut();
        let own = clients.entry(client).or_default();
        own.last += 1;
        own.volumes.insert(own.last, attached);
        own.last
    }

    fn is_full(&self, client: ClientKey) -> bool {
        let clients = self.clients.borrow();
        clients.get(&client).is_some_and(|own| own.volumes.len() >= MAX_ATTACHED || own.last == u32::MAX)
    }

    /// Returns the attachments of all clients, each session once.
    pub(super) fn all(&self) -> Vec<Attached> {
        let clients = self.clients.borrow();
        let all = clients.values().flat_map(|own| own.volumes.values().copied());
        let mut all: Vec<_> = all.map(|one| ((one.key.volume, one.key.session), one)).collect();
        all.sort_unstable_by_key(|(session, _)| *session);
        all.dedup_by_key(|(session, _)| *session);
        all.into_iter().map(|(_, one)| one).collect()
    }

    fn close(&self, client: ClientKey, volume: u32) -> Option<Attached> {
        self.clients.borrow_mut().get_mut(&client)?.volumes.remove(&volume)
    }

    /// Ends all attachments of a client, and returns them.
    pub(super) fn close_all(&self, client: ClientKey) -> Vec<Attached> {
        self.faulty.borrow_mut().remove(&client);
        let own = self.clients.borrow_mut().remove(&client).unwrap_or_default();
        let mut all: Vec<_> = own.volumes.into_iter().collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, attached)| attached).collect()
    }

    /// Returns the attachment with this session, if a client of this node has it.
    pub(super) fn find(&self, volume: u32, session: u32) -> Option<Attached> {
        let clients = self.clients.borrow();
        let mut all = clients.values().flat_map(|own| own.volumes.values());
        all.find(|attached| (attached.key.volume, attached.key.session) == (volume, session)).copied()
    }

    /// Whether a client of this node has a session.
    pub(super) fn has(&self, volume: u32, session: u32) -> bool {
        self.find(volume, session).is_some()
    }

    /// All sessions that clients of this node have, each with its volume.
    pub(super) fn sessions(&self) -> HashSet<(u32, u32)> {
        let clients = self.clients.borrow();
        let all = clients.values().flat_map(|own| own.volumes.values());
        all.map(|attached| (attached.key.volume, attached.key.session)).collect()
    }

    /// Returns the clients that are attached to a volume.
    pub(super) fn clients(&self) -> Vec<ClientKey> {
        let clients = self.clients.borrow();
        clients.iter().filter(|(_, own)| !own.volumes.is_empty()).map(|(client, _)| *client).collect()
    }

    /// Number of sessions.
    pub(super) fn count(&self) -> u64 {
        self.clients.borrow().values().map(|own| own.volumes.len() as u64).sum()
    }
}

/// Request of a client to attach.
pub(super) struct Asked {
    pub(super) name: String,
    pub(super) create: bool,
    pub(super) read_only: bool,
    pub(super) checked: bool,
    pub(super) again: Option<(u32, u64)>,
}

impl Files {
    /// Attaches a client to a volume.
    pub(super) async fn attach(self: Rc<Self>, client: ClientKey, asked: Asked) -> Result<Reply, Error> {
        if self.attached.is_full(client) {
            let text = format!("this connection is attached to {MAX_ATTACHED} volumes already");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let user = self.user(client);
        let trusted = is_trusted(user);
        let (gid, groups) = self.groups(client);
        let wish = Wish {
            gid,
            groups,
            trusted,
            checked: asked.checked || !trusted,
            read_only: asked.read_only,
            again: asked.again,
        };
        let attached = self.attach_at_home(&asked.name, asked.create, user, wish).await?;
        let ask::Attached { key, fresh, info } = attached;
        self.opened.is_known(key.volume, info.home);
        let reach = Reach::of(&info, trusted);
        if self.sessions.session(client).is_none() {
            // The client has gone meanwhile.
            self.end_untaken(Attached { key, user, reach }, fresh);
            return Err(Error::new(ErrorKind::Interrupted, "the client has gone"));
        }
        if trusted && !fresh {
            self.opened.await_client(&key, client);
        }
        let volume = self.attached.open(client, Attached { key, user, reach });
        Ok(Reply::VolumeAttached { volume, session: key.session, secret: key.secret, trusted, fresh, info })
    }

    /// Makes a session at the home of a volume. With `create`, a volume that is not there is created.
    async fn attach_at_home(
        self: &Rc<Self>,
        name: &str,
        create: bool,
        user: u32,
        wish: Wish,
    ) -> Result<ask::Attached, Error> {
        if name.len() > MAX_NAME_BYTES {
            return Err(no_volume(name));
        }
        if create {
            self.homes.await_others(name).await;
        }
        if create && self.cluster.volumes.named(name).is_none() {
            match create_somewhere(self, name, user, VolumeTerms::default()).await {
                // Another call has created the volume first.
                Err(error) if error.kind() == ErrorKind::Exists => {}
                made => _ = made?,
            }
        }
        let attach = async |home| {
            if home == self.kernel.node {
                return self.attach_here(name, home, user, wish.clone()).await;
            }
            let question = ask::Attach { name: name.to_owned(), wish: wish.clone() };
            self.network.ask(home, user, question, HOME_PATIENCE).await
        };
        self.homes.with_home(name, attach).await
    }

    /// Makes a session of a node to a volume whose home is this node.
    ///
    /// # Errors
    /// `NotFound`, and `NotAllowed` for another user than the owner.
    pub(super) async fn attach_here(
        &self,
        name: &str,
        node: NodeId,
        user: u32,
        wish: Wish,
    ) -> Result<ask::Attached, Error> {
        let volume = self.homes.ensure_here(name)?;
        if user != volume.owner && !volume.state.borrow().terms.shared {
            let (name, owner) = (printable(name), volume.owner);
            let text = format!(
                "volume '{name}' belongs to user {owner}, and this is a process of user {user}: mount it as \
                 user {owner}, have it shared by `plasmon volume set {name} --shared true`, or use a volume \
                 of your own"
            );
            return Err(Error::new(ErrorKind::NotAllowed, text));
        }
        let (key, fresh) = volume.attach(node, user, wish).await?;
        volume.settled().await?;
        let info: VolumeInfo = volume.info(self.homes.mirrors_of(&volume));
        Ok(ask::Attached { key, fresh, info })
    }

    /// Detaches a client from a volume.
    pub(super) fn detach(self: &Rc<Self>, client: ClientKey, volume: u32) -> Result<Reply, Error> {
        self.attached.get(client, volume)?;
        if let Some(attached) = self.attached.close(client, volume) {
            self.placing.forget(&attached.key);
            self.granted.forget(&attached.key);
            self.following.end_session(&attached.key);
            self.end_session(attached);
        }
        Ok(Reply::Done)
    }

    /// Ends a session at its home, unless a client of this node still has it. Then sweeps the objects that
    /// the session has put and not committed.
    pub(super) fn end_session(self: &Rc<Self>, attached: Attached) {
        let Attached { key, user, .. } = attached;
        if self.attached.has(key.volume, key.session) {
            return;
        }
        let files = Rc::clone(self);
        self.kernel.spawn(async move {
            while let Some(home) = files.home_of(key.volume) {
                if home == files.kernel.node {
                    files.end_here(home, &key);
                    break;
                }
                match files.network.ask(home, user, ask::Detach { key }, HOME_PATIENCE).await {
                    Ok(ask::Ended) => break,
                    Err(error) if error.kind() == ErrorKind::TimedOut => {}
                    Err(error) if error.kind() == ErrorKind::Disconnected && files.is_served(key.volume) => {
                        files.kernel.clock.sleep(HOME_PAUSE).await;
                    }
                    Err(_) => break,
                }
            }
            files.opened.forget(&files.attached.sessions());
            files.sweep_soon();
        });
    }

    /// Ends a session that no client has taken. A new session ends at once. A session that goes on waits,
    /// since a client that has asked again may take it.
    pub(super) fn end_untaken(self: &Rc<Self>, attached: Attached, fresh: bool) {
        if fresh {
            return self.end_session(attached);
        }
        let files = Rc::clone(self);
        self.kernel.spawn(async move {
            files.kernel.clock.sleep(files.kernel.config.lease * SESSION_LEASES).await;
            files.end_session(attached);
        });
    }

    /// Ends a session of a volume whose home is this node, if the session is still that node's. Tells all
    /// members, which may have objects of the session.
    pub(super) fn end_here(self: &Rc<Self>, node: NodeId, key: &SessionKey) {
        if let Some(volume) = self.volume_of(key.volume).filter(|volume| volume.knows(node, key)) {
            volume.end(key.session);
            self.delete_condemned(&volume);
            self.tell_ended(volume.number);
            self.sweep_soon();
        }
    }

    /// Returns the home of a volume, as far as this node knows.
    pub(super) fn home_of(&self, volume: u32) -> Option<NodeId> {
        if self.homes.volumes.borrow().contains_key(&volume) {
            return Some(self.kernel.node);
        }
        self.cluster.volumes.get(volume).map(|record| record.home)
    }

    /// Whether a volume has a home, or will have one.
    pub(super) fn is_served(&self, volume: u32) -> bool {
        let record = self.cluster.volumes.get(volume);
        self.homes.volumes.borrow().contains_key(&volume)
            || self.cluster.is_settling()
            || record.is_some_and(|record| self.homes.whereabouts(&record) != Whereabouts::Lost)
    }

    /// Makes the error for a volume whose home is another node, or that has gone.
    pub(super) fn not_here(&self, volume: u32) -> Error {
        if self.cluster.volumes.get(volume).is_none() && !self.cluster.is_settling() {
            return lost(volume);
        }
        let text = format!("node {} is not the home of volume number {volume}", self.kernel.node);
        Error::new(ErrorKind::Disconnected, text)
    }
}
