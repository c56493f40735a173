//! Kept replicas: nodes are ordered to hold objects, and objects that too few nodes keep get new replicas.
//!
//! Owns [`Replication`]. Engine thread only. The number of nodes that are to keep an object (*copies* in
//! the API) is part of what each of its holders publishes, so the directory knows it after any death. The
//! first keeper of the shard restores this number: when too few nodes keep an object for longer than a put
//! takes, the keeper orders other nodes to, [`MAX_ORDERS`] at a time, and [`ORDERS_A_NODE`] of them to one
//! node or for the objects of one holder. No caller waits for these orders, so they take turns on the node
//! that gets them: it fetches [`ARRIVALS_A_HOLDER`] objects of one holder at once, and [`MAX_ARRIVALS`] of
//! all, each with as many reads as the window of a transfer allows. That bounds the bytes under way on
//! each node, however many nodes have died, and a node that stands still holds up only its own objects.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, select};
use plasmon::status::CopiesStatus;
use plasmon::wire::files::parts_of;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};
use tokio::sync::{Semaphore, SemaphorePermit};
use tracing::{debug, info, warn};

use super::turns::{Turn, Turns};
use crate::directory::arrivals::Lies;
use crate::directory::table::Shortage;
use crate::kernel::counted::Counted;
use crate::kernel::planted::{Bug, is_planted};
use crate::kernel::random::HashSet;
use crate::membership::shards::ranked;
use crate::net::frame::{Envelope, Heir, Message, Order, Withdrawal, ask};
use crate::net::stands_still;
use crate::object::{Replica, Role};
use crate::placement::Placement;
use crate::transfer::Transfer;

/// Maximum number of a keeper's orders under way for which no caller waits. A few nodes that stand
/// still leave room for others.
const MAX_ORDERS: usize = 8 * ORDERS_A_NODE;
/// Maximum number of a keeper's orders to one node, and for the objects of one holder, for which no
/// caller waits.
const ORDERS_A_NODE: usize = 32;
/// Maximum number of objects that a node fetches at once by orders for which no caller waits. A few
/// holders that stand still leave room for others.
const MAX_ARRIVALS: usize = 4 * ARRIVALS_A_HOLDER;
/// Maximum number of objects that a node fetches at once from one holder by orders for which no caller waits.
const ARRIVALS_A_HOLDER: usize = 2;
/// How long a keeper waits until an order for which no caller waits is carried out. The order may
/// stand behind many others.
const ORDER_PATIENCE: Duration = Duration::from_secs(600);
/// How long a keeper waits before it tries again to restore the replicas of an object that no node
/// could take.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// How long a keeper waits before it tries again to restore the replicas of a damaged object. Until the
/// object is deleted, or a node with the right bytes comes back, each attempt is in vain.
const DAMAGED_PAUSE: Duration = Duration::from_secs(300);
/// Time after which a keeper is first asked whether an ordered object of which no bytes come still exists.
/// Each further time is twice as long.
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// The longest time before a keeper is asked again.
const LONGEST_LOOK: Duration = Duration::from_secs(2);
/// How long the bytes of an ordered object may stay away.
const STALL_PATIENCE: Duration = Duration::from_secs(30);
/// Number of times that an order fetches an object before the order fails, because the object left
/// memory each time.
const MAX_KEEP_TRIES: usize = 3;

/// The state of a node's orders and restorations.
pub(crate) struct Replication {
    arrivals: Semaphore,
    /// Turns at the holders from which this node fetches.
    holders: Turns,
    /// Turns of this keeper's orders, at the holders of the objects and at the nodes that take them.
    ordered: Turns,
    restoring: Cell<u64>,
    orders: Cell<usize>,
    counters: RefCell<CopiesStatus>,
    /// Objects that this keeper is moving to another node.
    pub(crate) moving: RefCell<HashSet<ObjectId>>,
    /// Objects of this node of which another node is about to be the primary. An order that this node
    /// keeps an object takes it out of this set, and the replica stays.
    pub(crate) handing: RefCell<HashSet<ObjectId>>,
}

impl Replication {
    pub(super) fn new(transfer: &Transfer) -> Self {
        Self {
            arrivals: Semaphore::new(MAX_ARRIVALS),
            holders: Turns::of(transfer, ARRIVALS_A_HOLDER),
            ordered: Turns::of(transfer, ORDERS_A_NODE),
            restoring: Cell::new(0),
            orders: Cell::new(0),
            counters: RefCell::default(),
            moving: RefCell::default(),
            handing: RefCell::default(),
        }
    }
}

impl Placement {
    /// Enters the counters of this node's orders. The counts of the directory stay as they are.
    pub(super) fn report_replication(&self, status: &mut CopiesStatus) {
        let CopiesStatus { short, claims, .. } = *status;
        let restoring = self.replication.restoring.get();
        *status = CopiesStatus { short, claims, restoring, ..self.replication.counters.borrow().clone() };
    }

    /// Counts objects that were deleted because their time was over.
    pub(crate) fn count_expired(&self, count: u64) {
        self.replication.counters.borrow_mut().expired += count;
    }

    /// Carries out an order of another node or of this one.
    pub(crate) fn on_order(self: &Rc<Self>, asked: Envelope, order: Order) {
        let placement = Rc::clone(self);
        self.kernel.spawn(async move {
            let message = match placement.carry_out(order, asked.user, None).await {
                Ok(()) => Message::Done,
                Err(error) => Message::Refused { error },
            };
            // Nodes that were to read the object from this one get their answer.
            placement.transfer.serve_waiting(order.id);
            placement.network.answer(&asked, message);
        });
    }

    /// Makes this node hold an object in the role that an order says. `lies` has the place of the object,
    /// if the node that gave the order said it.
    pub(super) async fn carry_out(
        self: &Rc<Self>,
        order: Order,
        user: u32,
        lies: Option<Rc<Lies>>,
    ) -> Result<(), Error> {
        let id = order.id;
        self.ensure_keeps(&order)?;
        self.directory.writer.until_known(id, order.life).await;
        if self.assume(&order)? || is_planted(Bug::ReplicaNotMade) {
            return Ok(());
        }
        let replication = &self.replication;
        let _turn = match order.patient {
            true => Some(self.turn_to_arrive(id, user).await?),
            false => None,
        };
        let _restoring = order.patient.then(|| Counted::new(&replication.restoring));
        for _ in 0..MAX_KEEP_TRIES {
            self.bring(&order, user, lies.as_ref()).await?;
            if self.assume(&order)? {
                if order.patient {
                    let len = self.store.objects.borrow().get(&id).map_or(0, |replica| replica.len());
                    replication.counters.borrow_mut().restored_bytes += len;
                }
                return Ok(());
            }
        }
        let text = format!(
            "object {id} left the memory of node {} as soon as it came; it is too full",
            self.kernel.node
        );
        Err(Error::new(ErrorKind::Full, text))
    }

    /// Refuses to keep objects of files on a node that is a cache, which may drop them, or that is
    /// without files.
    fn ensure_keeps(&self, order: &Order) -> Result<(), Error> {
        let (config, node) = (&self.kernel.config, self.kernel.node);
        if !order.role.stays() || parts_of(&order.id).is_none() || (config.files && !config.cache) {
            return Ok(());
        }
        let why = if config.cache { "is a cache" } else { "was started with --no-files" };
        let text = format!("node {node} {why}, and keeps no bytes of files");
        Err(Error::new(ErrorKind::NotAllowed, text))
    }

    /// Waits for the turn of an object for which no caller waits: first among those of its holder,
    /// then among all.
    async fn turn_to_arrive(
        self: &Rc<Self>,
        id: ObjectId,
        user: u32,
    ) -> Result<(Option<Turn>, SemaphorePermit<'_>), Error> {
        let replication = &self.replication;
        let holders = self.directory.holders(id, user).await?;
        let holder = holders.iter().find(|(_, role)| role.stays()).or(holders.first());
        let turn = match holder {
            Some((holder, _)) => Some(replication.holders.take(&[*holder]).await?),
            None => None,
        };
        Ok((turn, replication.arrivals.acquire().await.expect("the semaphore is never closed")))
    }

    /// Fetches an object, as long as bytes keep coming.
    async fn bring(self: &Rc<Self>, order: &Order, user: u32, lies: Option<&Rc<Lies>>) -> Result<(), Error> {
        let fetch = match order.from.filter(|from| *from != self.kernel.node) {
            Some(from) => self.transfer.fetch_from(order.id, user, from, lies.cloned()),
            None => self.transfer.fetch(order.id, user, false),
        };
        let end = std::pin::pin!(self.until_in_vain(order, user));
        match select(fetch, end).await {
            Either::Left((fetched, _)) => fetched,
            Either::Right((error, _)) => Err(error),
        }
    }

    /// Waits until an ordered object cannot come any more: its life has ended, or no bytes have come for
    /// long.
    async fn until_in_vain(self: &Rc<Self>, order: &Order, user: u32) -> Error {
        let (mut moved, mut look) = (self.kernel.clock.now(), FIRST_LOOK);
        loop {
            self.kernel.clock.sleep(look).await;
            look = (2 * look).min(LONGEST_LOOK);
            if self.transfer.records.moves_here(&order.id, user) {
                moved = self.kernel.clock.now();
                continue;
            }
            if let Some(ended) = self.end_of(order.id, user, order.life).await {
                return ended;
            }
            if self.kernel.clock.now() >= moved + STALL_PATIENCE {
                return Error::new(
                    ErrorKind::TimedOut,
                    format!("no node offers object {} any more", order.id),
                );
            }
        }
    }

    /// Gives the replica on this node the role of an order. Returns whether this node has a replica.
    pub(super) fn assume(self: &Rc<Self>, order: &Order) -> Result<bool, Error> {
        if order.role.stays() {
            self.ensure_stays()?;
        }
        let Some(replica) = self.store.objects.borrow().get(&order.id).cloned() else { return Ok(false) };
        if replica.life != order.life {
            let text = format!("node {} holds another object of id {}", self.kernel.node, order.id);
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        self.ensure_not_owned(&replica, order.role)?;
        let before = replica.role();
        let role = match (order.role, before) {
            (Role::Primary, _) | (Role::Kept, Role::Primary) => Role::Primary,
            (Role::Kept, _) => Role::Kept,
            // A kept replica becomes a cached one only by an order with a number of copies. A
            // primary never does.
            (Role::Cached, Role::Kept) if order.copies > 0 => Role::Cached,
            (Role::Cached, as_it_is) => as_it_is,
        };
        if order.copies > 0 {
            replica.set_copies(order.copies);
        }
        if (role, before) == (Role::Cached, Role::Kept) {
            self.keep_no_longer(&replica);
            return Ok(true);
        }
        if order.role == Role::Primary {
            replica.set_heir(false);
        }
        // An unchanged role is published too, because the node that sent the order may have missed the news.
        self.store.set_role(&replica, role);
        if order.role.stays() {
            self.replication.handing.borrow_mut().remove(&order.id);
        }
        if role != before {
            self.note_expiry(&replica);
        }
        Ok(true)
    }

    /// Takes the role of a primary that has gone, by order of a keeper.
    pub(crate) fn inherit(self: &Rc<Self>, heir: &Heir) {
        let replica = self.store.objects.borrow().get(&heir.id).cloned();
        let Some(replica) = replica else {
            // The keeper has missed that the replica left this node.
            return self.store.unpublish(heir.id, Withdrawal::Evicted);
        };
        if replica.life != heir.life {
            return;
        }
        let was_primary = replica.role() == Role::Primary;
        // A replica that was fetched before the number was raised says a smaller one.
        replica.set_copies(replica.copies().max(heir.copies));
        if !was_primary {
            replica.set_heir(true);
        }
        self.store.set_role(&replica, Role::Primary);
        self.note_expiry(&replica);
        if !was_primary {
            self.end_orphan(&replica);
        }
    }

    /// Turns a replica that this node kept into a cached one. Its record is removed from disk, because the
    /// next start of this node would take the record for a primary, whatever has become of the object.
    pub(crate) fn keep_no_longer(&self, replica: &Rc<Replica>) {
        if replica.in_memory() {
            self.store.forget_on_disk(replica);
            self.store.set_role(replica, Role::Cached);
        } else {
            self.leave_to_others(replica);
        }
    }

    /// Drops a replica that this node no longer has to keep. Its keepers are told of the new role first:
    /// if a kept replica made room, they would not look for another node to keep the object.
    pub(crate) fn leave_to_others(&self, replica: &Rc<Replica>) {
        self.store.set_role(replica, Role::Cached);
        if self.store.remove(&replica.id()).is_some() {
            self.store.unpublish(replica.id(), Withdrawal::Evicted);
        }
    }

    /// Has replicas made of objects that too few nodes keep; called regularly.
    pub(crate) fn tend_replicas(self: &Rc<Self>) {
        self.tend_surplus();
        let replication = &self.replication;
        let room = MAX_ORDERS.saturating_sub(replication.orders.get());
        if room == 0 || self.cluster.solo() {
            return;
        }
        let now = self.kernel.clock.now();
        let mine = |id: &ObjectId| self.cluster.keepers(id).first == self.kernel.node;
        let mut table = self.directory.table.borrow_mut();
        let moves = |holder| !stands_still(&self.network, holder);
        let short = table.take_short(now, now + ORDER_PATIENCE, room, mine, moves);
        drop(table);
        for shortage in short {
            replication.orders.set(replication.orders.get() + 1);
            let placement = Rc::clone(self);
            self.kernel.spawn(async move {
                let id = shortage.id;
                let pause = placement.restore_replicas(shortage).await;
                let replication = &placement.replication;
                replication.orders.set(replication.orders.get() - 1);
                let mut table = placement.directory.table.borrow_mut();
                table.look_again(&id, placement.kernel.clock.now() + pause);
            });
        }
    }

    /// Has objects with several primaries keep one of them.
    fn tend_surplus(self: &Rc<Self>) {
        let mine = |id: &ObjectId| self.cluster.keepers(id).first == self.kernel.node;
        let surplus = self.directory.table.borrow_mut().take_surplus(self.kernel.clock.now(), mine);
        for (id, creator, stays) in surplus {
            debug!("object {id} has several primaries; that of node {stays} stays");
            if self.replication.moving.borrow_mut().insert(id) {
                let placement = Rc::clone(self);
                self.kernel.spawn(async move {
                    if let Err(error) = placement.lead_move(id, creator, stays).await {
                        debug!("object {id} still has several primaries: {error}");
                    }
                    placement.replication.moving.borrow_mut().remove(&id);
                });
            }
        }
    }

    /// Has as many nodes keep an object as are to, or as many as can. Returns how long to wait before
    /// another attempt, if there are still too few.
    async fn restore_replicas(self: &Rc<Self>, shortage: Shortage) -> Duration {
        let Shortage { id, life, creator, copies, keeping, cached } = shortage;
        let others = self.cluster.others(&keeping);
        let mut missing = usize::from(copies).min(keeping.len() + others.len()).saturating_sub(keeping.len());
        debug!("object {id} is kept by {} of {copies} nodes; {missing} more are to", keeping.len());
        let holder = keeping.first().copied();
        for node in candidates(&id, others, &cached) {
            if missing == 0 {
                break;
            }
            let concerned: Vec<_> = holder.into_iter().chain([node]).collect();
            // Another node takes the object, or this node does at a later attempt.
            let Ok(_turn) = self.replication.ordered.take(&concerned).await else { continue };
            // The object may have been deleted, or kept elsewhere, while the previous order was under way.
            if !self.directory.table.borrow_mut().lacks(&id, life) {
                break;
            }
            let order = Order { id, life, role: Role::Kept, copies, patient: true, from: None };
            self.replication.counters.borrow_mut().ordered += 1;
            let done = self.network.ask(node, creator, ask::Acquire { order }, ORDER_PATIENCE).await;
            let mut counters = self.replication.counters.borrow_mut();
            match done {
                Ok(_) => {
                    counters.restored += 1;
                    missing -= 1;
                    info!("object {id} is kept by node {node} now, in place of one that has gone");
                }
                // Any other node would find the same holders.
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    counters.failed += 1;
                    warn!("object {id} has too few replicas, and no further one can be made: {error}");
                    return DAMAGED_PAUSE;
                }
                Err(error) if error.kind() == ErrorKind::NotAllowed => {
                    debug!("object {id} has too few replicas, and node {node} keeps none: {error}");
                }
                Err(error) => {
                    counters.failed += 1;
                    warn!("object {id} has too few replicas, and node {node} cannot keep one: {error}");
                }
            }
        }
        RETRY_PAUSE
    }
}

/// Orders nodes by their claim to keep an object: nodes that have a replica come first, each group
/// in the ranking on which all nodes agree.
pub(crate) fn candidates(id: &ObjectId, nodes: Vec<NodeId>, cached: &[NodeId]) -> Vec<NodeId> {
    let (there, not): (Vec<_>, Vec<_>) =
        ranked(id, nodes).into_iter().partition(|node| cached.contains(node));
    [there, not].concat()
}
