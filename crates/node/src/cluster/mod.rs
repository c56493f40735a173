//! Many nodes as one store: who they are, what they say, and who knows where objects are.
//!
//! Engine thread, but for [`control`], which has a thread of its own. Membership comes from the
//! coordinator as a [`View`]; everything else follows from it without asking anyone: who keeps
//! which shard of the directory, whom to publish to, which calls are in vain.

mod calls;
mod claims;
mod control;
mod copies;
mod directory;
mod dispatch;
mod drain;
mod early;
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
mod placing;
mod rekey;
mod repair;
mod shards;
#[cfg(feature = "simulation")]
pub(crate) mod simulation;
mod validity;
mod views;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

pub(crate) use self::calls::Call;
pub(crate) use self::claims::Claim;
use self::claims::Claims;
pub(crate) use self::control::{Control, Event, EventSender, Listener};
pub use self::control::{ControlError, GuardError, SecretError};
use self::copies::Copies;
use self::directory::Directory;
use self::drain::Drain;
use self::early::Early;
pub(crate) use self::frame::{
    Envelope, FRAME_MAX, HEADER_LEN, Holding, Location, Message, Passing, Stage, Stamp, Wish,
};
pub(crate) use self::link::LinkWatch;
pub(crate) use self::members::{Incarnation, Member, View};
pub(crate) use self::network::{Network, Remote};
use self::news::News;
use self::rekey::Rekeying;
use self::repair::Repair;
use self::shards::{Keepers, ShardMap};
pub(crate) use self::validity::Validity;

/// How long a keeper comes second that has only just become one.
const NEW: Duration = Duration::from_secs(5);
/// How long a keeper that was silent comes second.
const SUSPECTED: Duration = Duration::from_secs(2);

/// What the node knows of its cluster. Engine thread only.
pub(crate) struct Cluster {
    own: NodeId,
    view: RefCell<View>,
    shards: RefCell<ShardMap>,
    /// The map before the last change, for as long as new keepers may know little; none if this node was alone.
    former: RefCell<Option<(Option<ShardMap>, Instant)>>,
    directory: RefCell<Directory>,
    /// The node that the coordinator is embedded in, if it is in one.
    coordinator: Cell<Option<NodeId>>,
    connected: Cell<bool>,
    /// How often the coordinator was lost.
    losses: Cell<u64>,
    /// Until when this node is a member.
    validity: Arc<Validity>,
    /// It is none: it talks to nobody and keeps no directory.
    fenced: Cell<bool>,
    /// How often that came about.
    fencings: Cell<u64>,
    /// The holders' news that keepers have not been told yet.
    repair: Repair,
    /// No other member was ever seen: nothing needs publishing.
    solo: Cell<bool>,
    claims: Claims,
    copies: Copies,
    drain: Drain,
    watchers: RefCell<Vec<oneshot::Sender<()>>>,
    /// Keepers that were silent, and until when others are asked first.
    suspects: RefCell<HashMap<NodeId, Instant>>,
    /// What nodes say that have followed a later view already.
    early: Early,
    /// What other nodes are to be told of this one's objects.
    news: News,
    calls: RefCell<HashMap<u64, calls::Open>>,
    rekeying: Rekeying,
    next_request: Cell<u64>,
}

impl Cluster {
    pub(crate) fn new(own: NodeId) -> Self {
        Self {
            own,
            view: RefCell::new(View { epoch: 0, members: Vec::new() }),
            shards: RefCell::new(ShardMap::alone(own)),
            former: RefCell::default(),
            directory: RefCell::default(),
            coordinator: Cell::new(None),
            connected: Cell::new(false),
            losses: Cell::new(0),
            validity: Arc::new(Validity::forever()),
            fenced: Cell::new(false),
            fencings: Cell::new(0),
            repair: Repair::default(),
            solo: Cell::new(true),
            claims: Claims::default(),
            copies: Copies::new(),
            drain: Drain::default(),
            watchers: RefCell::default(),
            suspects: RefCell::default(),
            early: Early::default(),
            news: News::default(),
            calls: RefCell::default(),
            rekeying: Rekeying::default(),
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

    /// How often the coordinator was lost.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.get()
    }

    /// Until when this node is a member.
    pub(crate) fn validity(&self) -> Arc<Validity> {
        Arc::clone(&self.validity)
    }

    /// Whether this node is to fence itself: it is no member any more, and has not done so.
    pub(crate) fn has_lapsed(&self, now: Instant) -> bool {
        self.validity.is_over(now) && !self.fenced.get()
    }

    /// Whether this node is no member at the moment.
    pub(crate) fn fenced(&self) -> bool {
        self.fenced.get()
    }

    /// How often this node was no member any more.
    pub(crate) fn fencings(&self) -> u64 {
        self.fencings.get()
    }

    /// What is the matter with the membership of this node.
    pub(crate) fn trouble(&self) -> Option<&'static str> {
        if self.fenced.get() {
            Some("this node is no member of its cluster at the moment, and cannot know what others hold")
        } else if !self.connected.get() && !self.solo.get() {
            Some("this node's coordinator does not answer, so that who has died meanwhile is not known")
        } else {
            None
        }
    }

    /// An error when this node cannot speak for the cluster.
    pub(crate) fn ensure_member(&self) -> Result<(), Error> {
        match self.trouble().filter(|_| self.fenced.get()) {
            None => Ok(()),
            Some(trouble) => Err(Error::new(
                ErrorKind::Disconnected,
                format!(
                    "{trouble}: it goes on as soon as its coordinator takes it back; `plasmon status` says more"
                ),
            )),
        }
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

    /// Lets go of those who stopped watching, when nobody waits for an answer: after a crowd they are many, each in a
    /// page of the heap.
    pub(crate) fn forget_watchers(&self) {
        if !self.asks() {
            let mut watchers = self.watchers.borrow_mut();
            watchers.retain(|watcher| !watcher.is_canceled());
            watchers.shrink_to(16);
        }
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

    /// The same, but that a keeper comes second which was silent lately, or has only just become one.
    pub(crate) fn keeper_for(&self, id: &ObjectId, attempt: usize, now: Instant) -> NodeId {
        let suspects = self.suspects.borrow();
        let doubtful = |keeper: &NodeId| {
            suspects.get(keeper).is_some_and(|until| now < *until) || self.is_new_keeper(id, keeper, now)
        };
        let [first, other] = [0, 1].map(|attempt| self.keeper(id, attempt));
        self.keeper(id, attempt + usize::from(doubtful(&first) && !doubtful(&other)))
    }

    fn is_new_keeper(&self, id: &ObjectId, keeper: &NodeId, now: Instant) -> bool {
        let former = self.former.borrow();
        former.as_ref().is_some_and(|(former, until)| {
            let knew = match former {
                Some(former) => former.keepers(id).contains(*keeper),
                None => *keeper != self.own,
            };
            now < *until && !knew
        })
    }

    /// A keeper did not answer, and the other did.
    pub(crate) fn suspect(&self, keeper: NodeId, now: Instant) {
        self.suspects.borrow_mut().insert(keeper, now + SUSPECTED);
    }

    /// A node that says something is no suspect.
    pub(crate) fn trust(&self, node: &NodeId) {
        let mut suspects = self.suspects.borrow_mut();
        if !suspects.is_empty() {
            suspects.remove(node);
        }
    }

    /// Whether the cluster has an object that this user may see, if this node can tell by itself.
    pub(crate) fn known_here(&self, id: &ObjectId, tenant: u32) -> Option<bool> {
        let tells = self.solo() || self.keepers(id).contains(self.own);
        tells.then(|| self.directory.borrow_mut().knows(id, tenant))
    }

    /// Whether this node remembers that the object was deleted.
    pub(crate) fn deleted(&self, id: &ObjectId) -> bool {
        self.directory.borrow().deleted(id)
    }
}
