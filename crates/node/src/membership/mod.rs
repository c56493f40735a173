//! Membership: the nodes of the cluster, and the keepers of the directory's shards.
//!
//! Owns the [`Cluster`]: the view, the map of shards, and the records of volumes. Engine thread only. The
//! members come from the coordinator as a [`View`], by events of [`control`](crate::control). Each node
//! derives the rest from the view without asking: which nodes keep which shard of the directory, which nodes
//! to publish to, and which calls cannot be answered.

mod report;
pub(crate) mod shards;
pub(crate) mod views;
pub(crate) mod volumes;

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use self::shards::{Keepers, ShardMap};
use self::views::ViewChange;
use self::volumes::Volumes;
use crate::control::validity::Validity;
use crate::kernel::Kernel;
use crate::kernel::random::HashMap;
use crate::net::frame::Envelope;
use crate::net::members::{Incarnation, View};
use crate::net::network::Network;
use crate::net::rekey::Rekeying;
use crate::object::TABLE_LIFE;
use crate::store::Store;

/// The minimum time after a change of keepers in which all members are asked.
const UNSETTLED_TIME: Duration = Duration::from_secs(10);
/// Time for which all members are asked longer than a lease after a change of keepers.
const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// Greatest time by which the clock that clients look at may be behind.
const CLOCK_LAG: Duration = Duration::from_millis(20);
/// How long a node that has just become a keeper is asked second.
const NEW_KEEPER_TIME: Duration = Duration::from_secs(5);
/// How long a keeper that was silent is asked second.
const SUSPICION_TIME: Duration = Duration::from_secs(2);

/// The cluster, as this node knows it. Engine thread only.
pub(crate) struct Cluster {
    kernel: Rc<Kernel>,
    network: Rc<Network>,
    store: Rc<Store>,
    pub(crate) own: NodeId,
    pub(crate) view: RefCell<View>,
    pub(crate) shards: RefCell<Rc<ShardMap>>,
    /// The map before the last change of members; `None` if this node was alone before.
    pub(crate) former: RefCell<Option<Rc<ShardMap>>>,
    /// Time at which the last change of members was followed.
    pub(crate) followed: Cell<Option<Instant>>,
    /// Members that died lately, and when. Clients may read their objects for a while.
    pub(crate) dead: RefCell<HashMap<NodeId, Instant>>,
    /// For each shard, the epoch in which one of its keepers was last replaced, and the time when this node
    /// followed that.
    pub(crate) moved: RefCell<Vec<(u64, Option<Instant>)>>,
    /// How long after a replacement the former keeper may still be asked, and the new one may not know all.
    pub(crate) unsettled: Duration,
    /// The node in which the coordinator is embedded, if it is embedded.
    pub(crate) coordinator: Cell<Option<NodeId>>,
    /// The address of the node in which the coordinator is embedded.
    pub(crate) coordinator_at: RefCell<Option<String>>,
    pub(crate) connected: Cell<bool>,
    /// Number of times the coordinator was lost.
    pub(crate) losses: Cell<u64>,
    /// Until when this node is a member.
    pub(crate) validity: Arc<Validity>,
    /// Whether this node has lost its membership. A fenced node ignores peers and has no directory.
    pub(crate) fenced: Cell<bool>,
    /// Whether this node serves nobody its objects, since they may have been deleted while it was not a
    /// member.
    pub(crate) withheld: Cell<bool>,
    /// Number of times this node was fenced since it started.
    pub(crate) fencings: Cell<u64>,
    /// Whether no other member was ever seen, so that nothing needs publishing.
    pub(crate) solo: Cell<bool>,
    pub(crate) watchers: RefCell<Vec<oneshot::Sender<()>>>,
    /// Keepers that were silent, and the times until which each of them is asked second.
    pub(crate) suspects: RefCell<HashMap<NodeId, Instant>>,
    pub(crate) rekeying: Rekeying,
    /// The records of volumes of files.
    pub(crate) volumes: Volumes,
    /// Time until which members may be missing, with the records of their volumes, because this node has
    /// joined anew.
    settling_until: Cell<Option<Instant>>,
    /// The coordinator's node, if it stayed away so long that the other members go on without it.
    outlived: Cell<Option<NodeId>>,
}

impl Cluster {
    pub(crate) fn new(kernel: &Rc<Kernel>, network: &Rc<Network>, store: &Rc<Store>) -> Self {
        let own = kernel.node;
        Self {
            kernel: Rc::clone(kernel),
            network: Rc::clone(network),
            store: Rc::clone(store),
            own,
            view: RefCell::new(View { epoch: 0, members: Vec::new() }),
            shards: RefCell::new(Rc::new(ShardMap::alone(own))),
            former: RefCell::default(),
            followed: Cell::new(None),
            dead: RefCell::default(),
            moved: RefCell::new(vec![(0, None); shards::SHARDS]),
            unsettled: UNSETTLED_TIME.max(kernel.config.lease + LEASE_MARGIN),
            coordinator: Cell::new(None),
            coordinator_at: RefCell::default(),
            connected: Cell::new(false),
            losses: Cell::new(0),
            validity: Arc::new(Validity::forever()),
            fenced: Cell::new(false),
            withheld: Cell::new(false),
            fencings: Cell::new(0),
            solo: Cell::new(true),
            watchers: RefCell::default(),
            suspects: RefCell::default(),
            rekeying: Rekeying::default(),
            volumes: Volumes::default(),
            settling_until: Cell::new(None),
            outlived: Cell::new(None),
        }
    }

    /// The present members.
    pub(crate) fn view(&self) -> View {
        self.view.borrow().clone()
    }

    /// The address on which a member listens for others.
    pub(crate) fn address(&self, node: NodeId) -> Option<IpAddr> {
        let view = self.view.borrow();
        let member = view.members.iter().find(|member| member.node == node)?;
        member.listen.parse().ok().map(|listen: SocketAddr| listen.ip())
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.view.borrow().epoch
    }

    /// Notes that the cluster has come to an epoch: objects that are created here from now on are later than
    /// those of the epochs before. Epochs of etcd are its revisions, which leap as others write, so that
    /// what lives keep of them gives no order.
    pub(crate) fn note_epoch(&self, epoch: u64) {
        if self.kernel.config.etcd.is_none() {
            self.kernel.lives.note_epoch(epoch);
        }
    }

    /// Whether this node is going to follow the views that other members follow. Without its coordinator it
    /// is not, until it is a member anew; with etcd it ceases to be a member then.
    pub(crate) fn awaits_views(&self) -> bool {
        self.connected() || self.coordinator.get().is_none()
    }

    /// Whether the coordinator answers.
    pub(crate) fn connected(&self) -> bool {
        self.connected.get()
    }

    /// Number of times the coordinator was lost.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.get()
    }

    /// Until when this node is a member.
    pub(crate) fn validity(&self) -> Arc<Validity> {
        Arc::clone(&self.validity)
    }

    /// Whether this node is to fence itself: it is not a member any more, and is not fenced yet.
    pub(crate) fn has_lapsed(&self) -> bool {
        self.validity.is_over(self.kernel.clock.boot_ns()) && !self.fenced.get()
    }

    /// Whether this node is not a member at the moment.
    pub(crate) fn fenced(&self) -> bool {
        self.fenced.get()
    }

    /// Whether this node serves nobody its objects, since they may have been deleted.
    pub(crate) fn withholds(&self) -> bool {
        self.withheld.get()
    }

    /// How long clients may read this node's objects without asking.
    pub(crate) fn table_life(&self) -> Duration {
        match self.validity.left(self.kernel.clock.boot_ns()) {
            _ if self.withholds() => Duration::ZERO,
            Some(left) => TABLE_LIFE.min(left.saturating_sub(CLOCK_LAG)),
            None => TABLE_LIFE,
        }
    }

    /// Number of times this node was fenced since it started.
    pub(crate) fn fencings(&self) -> u64 {
        self.fencings.get()
    }

    /// The trouble with the membership of this node, if there is any.
    pub(crate) fn trouble(&self) -> Option<String> {
        if self.fenced.get() {
            let text = "this node is not a member of its cluster at the moment, and cannot know what others \
                        hold or delete";
            return Some(text.into());
        }
        if self.connected.get() || self.solo.get() {
            return None;
        }
        Some(match &*self.coordinator_at.borrow() {
            Some(at) => format!(
                "the cluster's coordinator at {at} does not answer, so that this node does not notice that \
                 members die (start the first node again with `plasmon serve --listen {at}`)"
            ),
            None => {
                "this node's coordinator does not answer, so that it does not notice that members die".into()
            }
        })
    }

    /// Fails when this node cannot speak for the cluster.
    pub(crate) fn ensure_member(&self) -> Result<(), Error> {
        match self.trouble().filter(|_| self.fenced.get()) {
            None => Ok(()),
            Some(trouble) => Err(Error::new(
                ErrorKind::Disconnected,
                format!(
                    "{trouble}: it goes on as soon as its coordinator takes it back; `plasmon status` says \
                     more"
                ),
            )),
        }
    }

    /// Whether this node never had another member in its view.
    pub(crate) fn solo(&self) -> bool {
        self.solo.get()
    }

    /// Returns a future that ends at the next change of members.
    pub(crate) fn next_view(&self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut watchers = self.watchers.borrow_mut();
        // Closed watchers are removed only when the list would grow, so that it costs little with many
        // watchers.
        if watchers.len() == watchers.capacity() {
            watchers.retain(|watcher| !watcher.is_canceled());
            let room = watchers.len() + 16;
            watchers.reserve(room);
        }
        watchers.push(sender);
        receiver
    }

    /// Removes the watchers that stopped watching. The engine calls it when nobody waits for an answer.
    /// After a crowd they are many, each in a page of the heap.
    pub(crate) fn forget_watchers(&self) {
        let mut watchers = self.watchers.borrow_mut();
        watchers.retain(|watcher| !watcher.is_canceled());
        watchers.shrink_to(16);
    }

    pub(crate) fn keepers(&self, id: &ObjectId) -> Keepers {
        self.shards.borrow().keepers(id)
    }

    /// The node to ask about an object at this attempt: this node, if it keeps the shard, and the other
    /// keeper at every second attempt, since a node that has just become a keeper does not know what was
    /// lost before.
    pub(crate) fn keeper(&self, id: &ObjectId, attempt: usize) -> NodeId {
        let keepers = self.keepers(id);
        let mut order = [Some(keepers.first), keepers.second];
        if keepers.second == Some(self.own) {
            order.reverse();
        }
        order[attempt % 2].unwrap_or(keepers.first)
    }

    /// The node to ask about an object, as [`Cluster::keeper`] says, except that a keeper that was silent
    /// lately or has only just become one is asked second.
    pub(crate) fn keeper_for(&self, id: &ObjectId, attempt: usize, now: Instant) -> NodeId {
        let suspects = self.suspects.borrow();
        let doubtful = |keeper: &NodeId| {
            suspects.get(keeper).is_some_and(|until| now < *until) || self.is_new_keeper(id, keeper, now)
        };
        let [first, other] = [0, 1].map(|attempt| self.keeper(id, attempt));
        self.keeper(id, attempt + usize::from(doubtful(&first) && !doubtful(&other)))
    }

    /// Whether the members changed within a span before now.
    pub(crate) fn followed_within(&self, span: Duration, now: Instant) -> bool {
        self.followed.get().is_some_and(|followed| now < followed + span)
    }

    /// Whether the last change of members, at most [`NEW_KEEPER_TIME`] ago, made a node a keeper of an
    /// object. A node that was alone before counts itself as new.
    pub(crate) fn is_new_keeper(&self, id: &ObjectId, keeper: &NodeId, now: Instant) -> bool {
        self.followed_within(NEW_KEEPER_TIME, now)
            && match &*self.former.borrow() {
                Some(former) => !former.keepers(id).contains(*keeper),
                None => *keeper == self.own,
            }
    }

    /// Notes that a keeper did not answer while the other did.
    pub(crate) fn suspect(&self, keeper: NodeId, now: Instant) {
        let mut suspects = self.suspects.borrow_mut();
        suspects.retain(|_, until| now < *until);
        suspects.insert(keeper, now + SUSPICION_TIME);
    }

    /// Removes a node that sent something from the suspects.
    pub(crate) fn trust(&self, node: &NodeId) {
        let mut suspects = self.suspects.borrow_mut();
        if !suspects.is_empty() {
            suspects.remove(node);
        }
    }

    /// Whether a node is a member.
    pub(crate) fn is_member(&self, node: NodeId) -> bool {
        self.shards.borrow().is_member(node)
    }

    /// Whether the sender of a frame still is the member that sent it. A task that takes note of the sender
    /// looks at this when it does: nobody takes back what concerns a node that has gone before.
    pub(crate) fn has_sender(&self, frame: &Envelope) -> bool {
        self.has(frame.from, frame.incarnation)
    }

    /// Whether a node is the member that it was in this incarnation.
    pub(crate) fn has(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.incarnation(node) == Some(incarnation)
    }

    /// The incarnation of a member.
    pub(crate) fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        let view = self.view.borrow();
        view.members.iter().find(|member| member.node == node).map(|member| member.incarnation)
    }

    /// Notes the shards whose keepers are others than before, or in another order, or may not remember what
    /// they kept.
    fn note_moved(&self, change: &ViewChange) {
        let (epoch, shards) = (self.epoch(), self.shards.borrow());
        if change.moves_nothing(&shards) {
            return;
        }
        for (moved, places) in self.moved.borrow_mut().iter_mut().zip(change.former_places(&shards)) {
            if places != [Some(0), Some(1)] {
                *moved = (epoch, self.followed.get());
            }
        }
    }

    /// Whether the keepers of an object have been the same since an epoch.
    pub(crate) fn kept_since(&self, id: &ObjectId, epoch: u64) -> bool {
        self.moved.borrow()[shards::shard_of(id)].0 <= epoch
    }

    /// Whether a keeper of an object was replaced so lately that some nodes may not know of the change, or
    /// that the new keeper may not know all holders.
    pub(crate) fn is_unsettled(&self, id: &ObjectId, now: Instant) -> bool {
        self.moved.borrow()[shards::shard_of(id)].1.is_some_and(|moved| now < moved + self.unsettled)
    }

    /// Notes that members have died.
    pub(crate) fn note_dead(&self, gone: &[NodeId], now: Instant) {
        let mut dead = self.dead.borrow_mut();
        dead.retain(|_, died| now < end_of_tables(*died));
        dead.extend(gone.iter().map(|node| (*node, now)));
    }

    /// Until when clients of dead daemons may read those daemons' objects; `None` if no member died lately.
    pub(crate) fn tables_of_the_dead(&self) -> Option<Instant> {
        self.dead.borrow().values().copied().max().map(end_of_tables)
    }

    /// Returns the members that are not among `these`.
    pub(crate) fn others(&self, these: &[NodeId]) -> Vec<NodeId> {
        let view = self.view.borrow();
        let members = view.members.iter().map(|member| member.node);
        members.filter(|node| !these.contains(node)).collect()
    }
}

/// Returns the time when the last client of a daemon that died at `died` stops reading the daemon's table.
pub(crate) fn end_of_tables(died: Instant) -> Instant {
    died + TABLE_LIFE + CLOCK_LAG
}
