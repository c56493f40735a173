//! Many nodes as one store: who they are, what they say, and who knows where objects are.
//!
//! Engine thread, but for [`control`], which has a thread of its own. Membership comes from the
//! coordinator as a [`View`]; everything else follows from it without asking anyone: who keeps
//! which shard of the directory, whom to publish to, which calls are in vain.

mod calls;
mod control;
mod directory;
mod dispatch;
mod fabric;
mod faults;
mod frame;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod link;
mod members;
mod network;
mod news;
mod peer;
mod shards;
mod views;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use futures::channel::oneshot;
use plasmon::{NodeId, ObjectId};

pub(crate) use self::calls::Call;
pub use self::control::ControlError;
pub(crate) use self::control::{Control, Event, EventSender, Listener};
use self::directory::Directory;
pub(crate) use self::frame::{
    Envelope, FRAME_MAX, HEADER_LEN, Holding, Location, Message, Stage, Stamp, Wish,
};
pub(crate) use self::link::LinkWatch;
pub(crate) use self::members::{Incarnation, Member, View};
pub(crate) use self::network::{Network, Remote};
use self::news::News;
use self::shards::{Keepers, ShardMap};

/// What the node knows of its cluster. Engine thread only.
pub(crate) struct Cluster {
    own: NodeId,
    view: RefCell<View>,
    shards: RefCell<ShardMap>,
    directory: RefCell<Directory>,
    coordinator: Cell<NodeId>,
    connected: Cell<bool>,
    /// How often the coordinator was lost.
    losses: Cell<u64>,
    /// No other member was ever seen: nothing needs publishing.
    solo: Cell<bool>,
    watchers: RefCell<Vec<oneshot::Sender<()>>>,
    /// What other nodes are to be told of this one's objects.
    news: News,
    calls: RefCell<HashMap<u64, calls::Open>>,
    next_request: Cell<u64>,
}

impl Cluster {
    pub(crate) fn new(own: NodeId) -> Self {
        Self {
            own,
            view: RefCell::new(View { epoch: 0, members: Vec::new() }),
            shards: RefCell::new(ShardMap::alone(own)),
            directory: RefCell::default(),
            coordinator: Cell::new(own),
            connected: Cell::new(false),
            losses: Cell::new(0),
            solo: Cell::new(true),
            watchers: RefCell::default(),
            news: News::default(),
            calls: RefCell::default(),
            next_request: Cell::new(1),
        }
    }

    /// The members now.
    pub(crate) fn view(&self) -> View {
        self.view.borrow().clone()
    }

    /// The address that a member listens on for others.
    pub(crate) fn address(&self, node: NodeId) -> Option<IpAddr> {
        let view = self.view.borrow();
        let member = view.members.iter().find(|member| member.node == node)?;
        member.listen.parse().ok().map(|listen: SocketAddr| listen.ip())
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.view.borrow().epoch
    }

    /// Whether the coordinator answers.
    pub(crate) fn connected(&self) -> bool {
        self.connected.get()
    }

    /// Whether this node never had company.
    pub(crate) fn solo(&self) -> bool {
        self.solo.get()
    }

    /// Entries of the directory shards kept here.
    pub(crate) fn directory_entries(&self) -> usize {
        self.directory.borrow().len()
    }

    /// Whether an answer of another node is waited for.
    pub(crate) fn asks(&self) -> bool {
        !self.calls.borrow().is_empty()
    }

    /// Ends at the next change of members.
    pub(crate) fn next_view(&self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut watchers = self.watchers.borrow_mut();
        // Now and then, so that it costs little however many watch.
        if watchers.len() == watchers.capacity() {
            watchers.retain(|watcher| !watcher.is_canceled());
            let room = watchers.len() + 16;
            watchers.reserve(room);
        }
        watchers.push(sender);
        receiver
    }

    fn keepers(&self, id: &ObjectId) -> Keepers {
        self.shards.borrow().keepers(id)
    }

    /// The node to ask about an object: this one, if it keeps the shard, and the other keeper every
    /// second attempt, since a node that has just become a keeper does not know what was lost before.
    pub(crate) fn keeper(&self, id: &ObjectId, attempt: usize) -> NodeId {
        let keepers = self.keepers(id);
        let mut order = [Some(keepers.first), keepers.second];
        if keepers.second == Some(self.own) {
            order.reverse();
        }
        order[attempt % 2].unwrap_or(keepers.first)
    }

    /// Whether the cluster has an object that this user may see, if this node can tell by itself.
    pub(crate) fn known_here(&self, id: &ObjectId, tenant: u32) -> Option<bool> {
        let tells = self.solo() || self.keepers(id).contains(self.own);
        tells.then(|| self.directory.borrow().knows(id, tenant))
    }

    /// Whether this node remembers that the object was deleted.
    pub(crate) fn deleted(&self, id: &ObjectId) -> bool {
        self.directory.borrow().deleted(id)
    }
}
