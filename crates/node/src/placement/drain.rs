//! Draining: the objects that a node keeps move to other nodes, and then the node leaves.
//!
//! Owns [`Drain`]. Engine thread only. A node that is being drained creates nothing and takes no order to
//! keep anything, so its objects can only become fewer. The first keeper of the shard moves each primary,
//! like any other move ([`super::distribution`]), so its readers do not notice. An object that no node
//! takes stays, is tried again, and keeps the node from leaving: a drain loses nothing. The node also
//! stays until other nodes certainly have what it dropped: when a death has left a cached replica of this
//! node as the only one, the directory takes [`SETTLING_TIME`] to make that the primary. A client's pin
//! does not delay the drain, because its mapping outlives the node.
//!
//! A node that stands still holds up the objects that it leads or was asked to take, and no others. An
//! object whose bytes are not those that were sealed is taken by no node that compares them. Such an
//! object stays, is not tried again, is named in the report of the drain, and keeps the node from
//! leaving until it is deleted. Regions move to another node in each round, and volumes by themselves;
//! one that stays keeps the node from leaving.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use futures::future::LocalBoxFuture;
use futures::stream::{self, StreamExt};
use plasmon::drain::{DrainStatus, DrainStep};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};
use tracing::{debug, info, warn};

use super::replication::candidates;
use super::turns::Turns;
use crate::kernel::planted::{Bug, is_planted};
use crate::kernel::random::HashMap;
use crate::net::frame::{Envelope, Message};
use crate::net::frame::{Order, ask};
use crate::net::stands_still;
use crate::object::{Replica, Role, Table};
use crate::placement::Placement;
use crate::transfer::{Transfer, check};

/// Maximum number of objects moved at a time that one node takes, or of whose shards it is a keeper.
/// The number is large because each small object takes some round trips. A receiver reads no more
/// large objects at once because of a drain.
const MOVES_A_NODE: usize = 32;
/// Maximum number of objects moved at a time: a few nodes that stand still leave room for others.
const MAX_MOVES_AT_ONCE: usize = 8 * MOVES_A_NODE;
/// Maximum number of nodes that are asked to take an object in one round.
const MAX_NODES_ASKED: usize = 4;
/// How long a node may take to take an object.
const MOVE_PATIENCE: Duration = Duration::from_secs(600);
/// How long another node may take to begin a drain or to report its progress.
const ASK_PATIENCE: Duration = Duration::from_secs(5);
/// The pause before objects that stayed are offered again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Number of leases after which a node that has been silent is no member any more.
const SILENT_LEASES: u32 = 2;
/// How long a drained node waits for a client to see that the drain is done.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(3);
/// How long a drained node stays after a client has seen that the drain is done, since other
/// clients may be looking too.
const LINGER_TIME: Duration = Duration::from_millis(500);
/// Interval at which a drained node checks whether a client has seen that the drain is done.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// How long it takes until all nodes have acted on a change of members, or on a replica that was left to
/// another node. The directory gives orphans 3 s, and looks once a second.
const SETTLING_TIME: Duration = Duration::from_secs(6);
/// Maximum number of damaged objects, of regions and of volumes that a report names.
const MAX_NAMED: usize = 8;
/// Maximum number of characters of the reason why objects stay, so that a report fits a frame.
const MAX_TROUBLE_CHARS: usize = 600;

/// Things beside objects that live on this node and keep it from leaving: regions, or volumes of files.
pub(crate) trait Lodgers {
    /// Number of things.
    fn count(&self) -> u64;
    /// Returns the names of at most `most` things, for people.
    fn names(&self, most: usize) -> Vec<String>;
    /// Number of things that no other node could take at the last attempt. Only things that move by
    /// themselves are counted.
    fn refused(&self) -> u64 {
        0
    }
}

/// The regions that live on this node.
pub(crate) trait Residents: Lodgers {
    /// Moves all regions to a node, one after the other. Returns the last error of those that stay.
    fn move_away(self: Rc<Self>, to: NodeId) -> LocalBoxFuture<'static, Option<Error>>;
}

/// The drain of this node, if one is under way.
pub(crate) struct Drain {
    /// The regions of this node. The value is set once, by the room above that has the regions.
    pub(crate) residents: OnceCell<Weak<dyn Residents>>,
    /// The volumes whose home or mirror this node is, which move by themselves. The value is set
    /// once, by the room above that has the volumes.
    pub(crate) volumes: OnceCell<Weak<dyn Lodgers>>,
    /// Turns at the keepers of the objects and at the nodes that take the objects.
    turns: Turns,
    /// Number of drains begun so far.
    begun: Cell<u64>,
    under_way: RefCell<Option<UnderWay>>,
    /// Whether the node has nothing left and is to leave.
    over: Cell<bool>,
    /// Whether the node was told to stop.
    stops: Cell<bool>,
}

#[derive(Default)]
struct UnderWay {
    /// Number of the drain. Tasks of a drain that was called off have no part in a later one.
    number: u64,
    /// Number of regions that stayed when they were last offered to another node.
    refused_regions: u64,
    /// Time at which a replica was last left to another node that kept it before.
    left: Option<Instant>,
    moved_objects: u64,
    moved_bytes: u64,
    /// Whether the node has nothing left, as far as clients are told.
    finished: bool,
    /// Whether a client was told that the node has nothing left.
    told: bool,
    /// Why the remaining objects were not taken.
    trouble: String,
    /// Objects whose bytes on this node are not those that were sealed, with the life and a
    /// description of the damage.
    damaged: HashMap<ObjectId, (u64, String)>,
}

impl Drain {
    pub(super) fn new(transfer: &Transfer) -> Self {
        Self {
            residents: OnceCell::new(),
            volumes: OnceCell::new(),
            turns: Turns::of(transfer, MOVES_A_NODE),
            begun: Cell::default(),
            under_way: RefCell::default(),
            over: Cell::default(),
            stops: Cell::default(),
        }
    }

    /// Notes that the node was told to stop. Returns whether it was told before.
    pub(super) fn stops(&self) -> bool {
        self.stops.replace(true)
    }

    /// Has the node leave, whatever is left.
    pub(super) fn end(&self) {
        self.over.set(true);
    }

    /// Notes that no client waits for the end of the drain that is under way.
    pub(super) fn expect_no_look(&self) {
        self.under_way.borrow_mut().iter_mut().for_each(|drain| drain.told = true);
    }

    /// Number of regions that live on this node.
    pub(super) fn residents_count(&self) -> u64 {
        self.residents().map_or(0, |residents| residents.count())
    }

    /// Whether a drain is under way. This node then takes nothing new.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.borrow().is_some()
    }

    fn residents(&self) -> Option<Rc<dyn Residents>> {
        self.residents.get().and_then(Weak::upgrade)
    }

    fn volumes(&self) -> Option<Rc<dyn Lodgers>> {
        self.volumes.get().and_then(Weak::upgrade)
    }

    fn is(&self, number: u64) -> bool {
        self.under_way.borrow().as_ref().is_some_and(|drain| drain.number == number)
    }

    /// Whether the bytes of a replica are known to differ from those that were sealed.
    fn knows_damaged(&self, replica: &Replica) -> bool {
        let under_way = self.under_way.borrow();
        let damaged = under_way.as_ref().and_then(|drain| drain.damaged.get(&replica.id()));
        damaged.is_some_and(|(life, _)| *life == replica.life)
    }

    /// Changes the state of a drain, if that drain is still under way.
    fn note(&self, number: u64, what: impl FnOnce(&mut UnderWay)) {
        if let Some(drain) = self.under_way.borrow_mut().as_mut().filter(|drain| drain.number == number) {
            what(drain);
        }
    }
}

impl Placement {
    /// Whether this node is being drained. It then takes nothing new.
    pub(crate) fn is_draining(&self) -> bool {
        self.drain.is_under_way()
    }

    /// Whether all objects have gone, and the node is to leave.
    pub(crate) fn is_drained(&self) -> bool {
        self.drain.over.get()
    }

    /// Refuses with an error while this node is being drained.
    pub(crate) fn ensure_stays(&self) -> Result<(), Error> {
        match self.is_draining() {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::Disconnected,
                format!("node {} is being drained and takes nothing new: use another node", self.kernel.node),
            )),
        }
    }

    /// Has a node take a step of its drain, for a user; returns the progress.
    ///
    /// # Errors
    /// `NotAllowed` for users other than root and the node's own, `Invalid` if the node cannot be
    /// drained, `Disconnected` while its coordinator does not answer.
    pub(crate) async fn drain(
        self: &Rc<Self>,
        node: NodeId,
        step: DrainStep,
        user: u32,
    ) -> Result<DrainStatus, Error> {
        if node == self.kernel.node {
            return self.drain_here(step, user);
        }
        let ask::Reported { json } = self.network.ask(node, user, ask::Drain { step }, ASK_PATIENCE).await?;
        serde_json::from_slice(&json).map_err(|error| {
            let text = format!("node {node} sent an invalid report of its drain: {error}; see its release");
            Error::new(ErrorKind::Internal, text)
        })
    }

    /// Takes a step of this node's drain for another node.
    pub(crate) fn on_drain(self: &Rc<Self>, asked: &Envelope, step: DrainStep) {
        let message = match self.drain_here(step, asked.user) {
            Ok(status) => {
                Message::Reported { json: serde_json::to_vec(&status).expect("plain values").into() }
            }
            Err(error) => Message::Refused { error },
        };
        self.network.answer(asked, message);
    }

    pub(crate) fn drain_here(self: &Rc<Self>, step: DrainStep, user: u32) -> Result<DrainStatus, Error> {
        let drain = &self.drain;
        let may_begin = user == 0 || user == rustix::process::getuid().as_raw();
        if step != DrainStep::Look && !may_begin {
            let text = format!("node {} is drained by root or by the user it runs as only", self.kernel.node);
            return Err(Error::new(ErrorKind::NotAllowed, text));
        }
        match step {
            DrainStep::Look => {}
            DrainStep::Begin => self.begin_drain()?,
            DrainStep::CallOff => {
                if drain.under_way.take().is_some() {
                    info!("the drain was called off: this node takes objects again");
                }
            }
        }
        let status = self.drain_status(may_begin);
        if let Some(drain) = drain.under_way.borrow_mut().as_mut() {
            drain.told = drain.finished;
        }
        Ok(status)
    }

    fn begin_drain(self: &Rc<Self>) -> Result<(), Error> {
        let drain = &self.drain;
        if drain.is_under_way() {
            return Ok(());
        }
        self.ensure_may_drain()?;
        info!("draining: the objects of this node move to other nodes, and then it leaves");
        let number = drain.begun.get() + 1;
        drain.begun.set(number);
        drain.under_way.replace(Some(UnderWay { number, ..UnderWay::default() }));
        let placement = Rc::clone(self);
        self.kernel.spawn(async move { placement.run_drain(number).await });
        Ok(())
    }

    /// Refuses a drain of this node if there is nobody to take its objects, or nobody who hears of its end.
    pub(super) fn ensure_may_drain(&self) -> Result<(), Error> {
        if let Some(trouble) = self.cluster.trouble() {
            let text = format!(
                "node {} cannot be drained now: {trouble}. Try again when its coordinator is back",
                self.kernel.node
            );
            return Err(Error::new(ErrorKind::Disconnected, text));
        }
        if self.cluster.others(&[self.kernel.node]).is_empty() {
            let text = format!(
                "node {} cannot be drained: its cluster has no other node that could take its objects",
                self.kernel.node
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if self.cluster.coordinator.get() == Some(self.kernel.node) {
            let text = format!(
                "node {} cannot be drained: the cluster's coordinator is part of it, and without one no \
                 node can join \
                 and no death is noticed. Stop it last, or give the cluster a coordinator of its own \
                 (--coordinator etcd://...)",
                self.kernel.node
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(())
    }

    /// Returns the progress of the drain. Regions and volumes are named only if `names` says so, because
    /// a user need not know those of other users.
    pub(super) fn drain_status(&self, names: bool) -> DrainStatus {
        let left = self.left_to_drain();
        let residents = self.drain.residents().filter(|_| names);
        let volumes = self.drain.volumes().filter(|_| names);
        let under_way = self.drain.under_way.borrow();
        under_way.as_ref().map_or_else(DrainStatus::default, |drain| {
            let objects = self.store.objects.borrow();
            let is_here = |id: &ObjectId, life| objects.get(id).is_some_and(|one| one.life == life);
            let damaged = drain.damaged.iter().filter(|(id, (life, _))| is_here(id, *life));
            let mut damaged: Vec<_> = damaged.map(|(_, (_, why))| why.clone()).collect();
            damaged.sort_unstable();
            DrainStatus {
                draining: true,
                objects: left.objects,
                bytes: left.bytes,
                unsealed: left.unsealed,
                moved_objects: drain.moved_objects,
                moved_bytes: drain.moved_bytes,
                finished: drain.finished,
                trouble: drain.trouble.clone(),
                damaged: damaged.len() as u64,
                damage: damaged.into_iter().take(MAX_NAMED).collect(),
                regions: left.regions,
                regions_refused: drain.refused_regions,
                region_names: residents.map_or_else(Vec::new, |residents| residents.names(MAX_NAMED)),
                volumes: left.volumes,
                volumes_refused: self.drain.volumes().map_or(0, |volumes| volumes.refused()),
                volume_names: volumes.map_or_else(Vec::new, |volumes| volumes.names(MAX_NAMED)),
            }
        })
    }

    /// Moves all objects, round after round, until nothing is left; then has the node leave.
    async fn run_drain(self: Rc<Self>, number: u64) {
        let drain = &self.drain;
        if is_planted(Bug::DrainedTooSoon) {
            return drain.over.set(true);
        }
        for round in 0.. {
            drain.note(number, |drain| drain.trouble.clear());
            // Each share of the table is looked at when there are turns for its objects.
            let ids = stream::iter(0..Table::SHARDS).flat_map(|shard| stream::iter(self.staying_in(shard)));
            let moves = ids.map(|id| self.drain_one(id, number, round));
            moves.buffer_unordered(MAX_MOVES_AT_ONCE).collect::<()>().await;
            self.move_residents(number, round).await;
            if !drain.is(number) {
                return;
            }
            if self.may_leave() && self.say_farewell(number).await {
                info!("drained: all objects that this node kept are on other nodes");
                return drain.over.set(true);
            }
            self.kernel.clock.sleep(RETRY_PAUSE).await;
        }
    }

    /// Has another node take the regions of this node, in each round another one.
    async fn move_residents(&self, number: u64, round: usize) {
        let Some(residents) = self.drain.residents().filter(|residents| residents.count() > 0) else {
            return;
        };
        let mut others = self.cluster.others(&[self.kernel.node]);
        others.retain(|node| !stands_still(&self.network, *node));
        let Some(to) = others.get(round % others.len().max(1)).filter(|_| self.drain.is(number)) else {
            return;
        };
        let error = Rc::clone(&residents).move_away(*to).await;
        self.drain.note(number, |drain| drain.refused_regions = residents.count());
        if let Some(error) = error {
            debug!("a region was not drained: {error}");
            let trouble = error.message().chars().take(MAX_TROUBLE_CHARS).collect();
            self.drain.note(number, |drain| drain.trouble = trouble);
        }
    }

    /// Returns the objects in a share of the table that have to leave.
    fn staying_in(&self, shard: usize) -> Vec<ObjectId> {
        let objects = self.store.objects.borrow();
        let staying = objects.sealed_in(shard).filter(|replica| replica.role().stays() && !replica.is_deed());
        staying.map(|replica| replica.id()).collect()
    }

    /// Whether certainly nothing is left, and the coordinator will learn that this node leaves.
    fn may_leave(&self) -> bool {
        let now = self.kernel.clock.now();
        let left = self.drain.under_way.borrow().as_ref().and_then(|drain| drain.left);
        let settled = left.is_none_or(|left| now >= left + SETTLING_TIME)
            && !self.cluster.followed_within(SETTLING_TIME, now);
        settled && self.cluster.trouble().is_none() && self.left_to_drain().nothing()
    }

    /// Waits until a client knows that nothing is left, or long enough. Returns whether still
    /// nothing is left.
    async fn say_farewell(&self, number: u64) -> bool {
        let drain = &self.drain;
        drain.note(number, |drain| drain.finished = true);
        let due = self.kernel.clock.now() + FAREWELL_PATIENCE;
        let told = || drain.under_way.borrow().as_ref().is_none_or(|drain| drain.told);
        while self.kernel.clock.now() < due && !told() {
            self.kernel.clock.sleep(LOOK_INTERVAL).await;
        }
        self.kernel.clock.sleep(LINGER_TIME).await;
        let nothing = drain.is(number) && self.may_leave();
        drain.note(number, |drain| drain.finished = nothing);
        nothing
    }

    /// Has another node keep an object in place of this one.
    async fn drain_one(self: &Rc<Self>, id: ObjectId, number: u64, round: usize) {
        if !self.drain.is(number) {
            return;
        }
        let Some(replica) = self.store.objects.borrow().get(&id).filter(|one| one.role().stays()).cloned()
        else {
            return;
        };
        if self.drain.knows_damaged(&replica) {
            return;
        }
        let moved = self.move_away(&replica, number, round).await;
        if moved.as_ref().is_err_and(|error| error.kind() == ErrorKind::Damaged)
            && let Err(error) = check(&self.kernel, &self.store, &replica).await
            && error.kind() == ErrorKind::Damaged
        {
            // No other node would take the object either.
            warn!("an object cannot be drained: {error}; it has to be deleted, and put again");
            let why = error.message().chars().take(MAX_TROUBLE_CHARS).collect();
            self.drain.note(number, |drain| _ = drain.damaged.insert(id, (replica.life, why)));
            return;
        }
        self.drain.note(number, |drain| match moved {
            Ok(()) => {
                drain.moved_objects += 1;
                drain.moved_bytes += replica.len();
            }
            // The object was deleted, or its time was over.
            Err(_) if !self.store.objects.borrow().has(&replica) => {}
            Err(error) => {
                debug!("object {id} was not drained: {error}");
                drain.trouble = error.message().chars().take(MAX_TROUBLE_CHARS).collect();
            }
        });
    }

    async fn move_away(
        self: &Rc<Self>,
        replica: &Rc<Replica>,
        number: u64,
        round: usize,
    ) -> Result<(), Error> {
        let (id, user) = (replica.id(), replica.ownership().user);
        let mut concerned: Vec<_> = self.cluster.keepers(&id).iter().collect();
        concerned.retain(|keeper| *keeper != self.kernel.node);
        let turn = self.drain.turns.take(&concerned).await?;
        let (keeping, cached) = self.elsewhere(id, user).await?;
        drop(turn);
        let others = self.cluster.others(&[&keeping[..], &[self.kernel.node]].concat());
        let mut nodes = candidates(&id, others, &cached);
        // Every round asks other nodes, until all have been asked.
        let asked = MAX_NODES_ASKED * round;
        let mut all_asked = asked + MAX_NODES_ASKED >= nodes.len();
        let first = asked.checked_rem(nodes.len()).unwrap_or_default();
        nodes.rotate_left(first);
        nodes.truncate(MAX_NODES_ASKED);
        nodes.sort_by_key(|node| stands_still(&self.network, *node));
        let (mut error, mut may_answer) = (None, false);
        for node in nodes {
            let mut concerned = concerned.clone();
            concerned.extend((!concerned.contains(&node)).then_some(node));
            let turn = self.drain.turns.take(&concerned).await;
            if !self.drain.is(number) {
                return Err(Error::new(ErrorKind::Interrupted, "the drain was called off"));
            }
            let done = match (&turn, replica.role()) {
                (Err(still), _) => Err(still.clone()),
                (Ok(_), Role::Primary) => self.migrate(id, user, node, self.in_time()).await.map(drop),
                (Ok(_), Role::Kept) => self.keep_instead(replica, user, node).await,
                (Ok(_), Role::Cached) => return Ok(()),
            };
            match done {
                Ok(()) => return Ok(()),
                Err(one) if !self.store.objects.borrow().has(replica) => return Err(one),
                Err(one) => {
                    may_answer |= matches!(one.kind(), ErrorKind::TimedOut | ErrorKind::Busy);
                    error = Some(Error::new(one.kind(), format!("node {node}: {}", one.message())));
                }
            }
            if error.as_ref().is_some_and(|error| error.kind() == ErrorKind::Damaged) {
                // No other node would find other bytes.
                all_asked = true;
                break;
            }
        }
        // A node that is silent for longer than this leaves the cluster, and is not asked any more.
        let waits = may_answer && RETRY_PAUSE * round as u32 <= self.kernel.config.lease * SILENT_LEASES;
        let is_still = |keeper: &NodeId| stands_still(&self.network, *keeper);
        if let Some(error) = error.take_if(|_| waits || concerned.iter().any(is_still)) {
            return Err(error);
        }
        let (keeping, _) = self.elsewhere(id, user).await?;
        // If too few nodes keep the object afterwards, the directory looks for another one.
        match (replica.role(), keeping.first()) {
            (Role::Primary, Some(node)) if all_asked => {
                self.migrate(id, user, *node, self.in_time()).await.map(drop)
            }
            (Role::Kept, Some(_)) if all_asked => {
                self.drain.note(number, |drain| drain.left = Some(self.kernel.clock.now()));
                self.demote(replica);
                Ok(())
            }
            _ => Err(error.unwrap_or_else(|| {
                Error::new(ErrorKind::TooFew, format!("no other node is there to keep object {id}"))
            })),
        }
    }

    /// Returns the other nodes that keep an object, and those that have only a cached replica.
    async fn elsewhere(
        self: &Rc<Self>,
        id: ObjectId,
        user: u32,
    ) -> Result<(Vec<NodeId>, Vec<NodeId>), Error> {
        let holders = self.directory.holders(id, user).await?;
        let others = holders.into_iter().filter(|(node, _)| *node != self.kernel.node);
        let (keeping, cached): (Vec<_>, Vec<_>) = others.partition(|(_, role)| role.stays());
        let nodes = |holders: Vec<(NodeId, Role)>| holders.into_iter().map(|(node, _)| node).collect();
        Ok((nodes(keeping), nodes(cached)))
    }

    /// Has another node keep an object that this node kept beside the primary.
    async fn keep_instead(
        self: &Rc<Self>,
        replica: &Rc<Replica>,
        user: u32,
        node: NodeId,
    ) -> Result<(), Error> {
        let (id, life, copies) = (replica.id(), replica.life, replica.copies());
        let order =
            Order { id, life, role: Role::Kept, copies, patient: false, from: Some(self.kernel.node) };
        self.network.ask(node, user, ask::Acquire { order }, MOVE_PATIENCE).await?;
        self.demote(replica);
        Ok(())
    }

    /// Makes a replica cached, if it has not become the primary meanwhile.
    fn demote(&self, replica: &Rc<Replica>) {
        if self.store.objects.borrow().has(replica) && replica.role() == Role::Kept {
            self.keep_no_longer(replica);
        }
    }

    fn in_time(&self) -> Option<Instant> {
        Some(self.kernel.clock.now() + MOVE_PATIENCE)
    }

    fn left_to_drain(&self) -> Left {
        let (objects, bytes, unsealed) = self.store.objects.borrow().staying();
        let regions = self.drain.residents_count();
        let volumes = self.drain.volumes().map_or(0, |volumes| volumes.count());
        let unsealed = (unsealed + self.directory.writer.under_way() + self.copies_ahead()) as u64;
        Left { objects, bytes, unsealed, regions, volumes }
    }
}

/// Objects, regions and volumes that have not left the node yet.
struct Left {
    objects: u64,
    bytes: u64,
    /// Number of objects that clients are writing.
    unsealed: u64,
    /// Number of regions that live here.
    regions: u64,
    /// Number of volumes whose home or mirror is here.
    volumes: u64,
}

impl Left {
    fn nothing(&self) -> bool {
        self.objects == 0 && self.unsealed == 0 && self.regions == 0 && self.volumes == 0
    }
}
