//! Deleting objects everywhere. Owns [`Deletion`]. Engine thread only.
//!
//! The first keeper of an object's shard leads the deletion in these steps:
//! 1. It stops sending nodes to the object.
//! 2. It *enlists* the second keeper, which does the same and returns the nodes that it knows.
//! 3. It tells every node that may hold a replica, or come to hold one by a fetch under way, to *drop* it.
//! 4. When all of them have confirmed, both keepers *bury* the lives. The id is then free.
//!
//! Until the last step the object exists for every node that asks, so nobody finds it missing while another
//! client can still read it.
//!
//! The keeper waits for a node that does not confirm until that node has left the cluster, and then
//! for as long as clients of a dead daemon read its table. The node that asked for the deletion may
//! not wait for that long. This node is then told that the outcome is unknown and which nodes are
//! missing, while the keeper goes on.
//!
//! Both keepers together know every node that may hold a replica: when a shard moves, one of its two
//! keepers stays. Nodes do not follow a view at the same moment, and publish again bit by bit. Therefore
//! all members are enlisted for a while after a keeper was replaced.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use futures::future::{join, join_all};
use plasmon::{DeleteOutcome, Error, ErrorKind, NodeId, ObjectId};

use super::arrivals::Arrivals;
use super::asking::{Asking, Missing};
use super::table::{Ending, Table};
use crate::kernel::Kernel;
use crate::kernel::planted::{Bug, is_planted};
use crate::kernel::random::{HashMap, HashSet};
use crate::membership::{Cluster, end_of_tables};
use crate::net::frame::{Ask, Envelope, MAX_ENTRIES, Message, Withdrawal, ask};
use crate::net::network::Network;
use crate::object::{Ownership, TABLE_LIFE};
use crate::store::Store;

/// The pause before looking whether another deletion of the id is over.
const DELETION_PAUSE: Duration = Duration::from_millis(5);
/// How long a keeper waits, beyond a lease and the time for which clients read a dead daemon's table,
/// before it answers that the outcome is unknown.
const KEEPER_PATIENCE: Duration = Duration::from_secs(2);
/// How much longer the node that asked a keeper waits than that keeper.
pub(super) const ASKER_PATIENCE: Duration = Duration::from_secs(2);
/// How long keepers may take to note a reader. This is longer than the time after which a dead
/// keeper is removed.
const ENROLMENT_PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of objects that a keeper deletes at a time.
const MAX_DELETIONS: usize = 1 << 16;
/// The life that stands for "no object". No creation draws it.
pub(super) const NO_LIFE: u64 = 0;

/// The deletions that this node asks for, leads or takes part in.
pub(crate) struct Deletion {
    pub(super) kernel: Rc<Kernel>,
    network: Rc<Network>,
    pub(super) cluster: Rc<Cluster>,
    pub(super) asking: Rc<Asking>,
    pub(super) store: Rc<Store>,
    pub(super) table: Rc<RefCell<Table>>,
    arrivals: Rc<Arrivals>,
    /// Objects that this node deletes as their first keeper.
    deleting: RefCell<HashSet<ObjectId>>,
}

/// Objects that no other deletion or replacement may touch until this value is dropped.
pub(super) struct Turn {
    deletion: Rc<Deletion>,
    ids: Vec<ObjectId>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut deleting = self.deletion.deleting.borrow_mut();
        self.ids.iter().for_each(|id| _ = deleting.remove(id));
    }
}

/// The lives and nodes that a deletion under way concerns.
#[derive(Default)]
struct Parting {
    /// The one life that is to end, for the objects for which the caller names one.
    only: HashMap<ObjectId, u64>,
    /// The lives that end, by object.
    lives: HashMap<ObjectId, BTreeSet<u64>>,
    /// The nodes that may hold a replica, by object.
    nodes: HashMap<ObjectId, BTreeSet<NodeId>>,
    /// The nodes that send nobody to the object any more, by object.
    enlisted: HashMap<ObjectId, BTreeSet<NodeId>>,
    /// Objects of which another user has a life, with the ownership of that life.
    denied: HashMap<ObjectId, Ownership>,
    /// Objects that a former keeper may have deleted for the same request.
    spared: HashSet<ObjectId>,
}

impl Parting {
    fn concerns(&self, id: &ObjectId, life: u64) -> bool {
        self.only.get(id).is_none_or(|only| *only == life)
    }

    fn add(&mut self, id: ObjectId, life: u64, node: NodeId) {
        self.lives.entry(id).or_default().insert(life);
        self.nodes.entry(id).or_default().insert(node);
    }

    /// Returns orders for every node that may hold an object to drop every life of it.
    fn drops(&self) -> Orders {
        let mut orders = Orders::default();
        for (id, nodes) in &self.nodes {
            for node in nodes {
                self.lives[id].iter().for_each(|life| orders.add(*node, *id, *life));
            }
        }
        orders
    }
}

impl Deletion {
    pub(super) fn new(
        asking: &Rc<Asking>,
        store: &Rc<Store>,
        table: &Rc<RefCell<Table>>,
        arrivals: &Rc<Arrivals>,
    ) -> Self {
        Self {
            kernel: Rc::clone(&asking.kernel),
            network: Rc::clone(&asking.network),
            cluster: Rc::clone(&asking.cluster),
            asking: Rc::clone(asking),
            store: Rc::clone(store),
            table: Rc::clone(table),
            arrivals: Rc::clone(arrivals),
            deleting: RefCell::default(),
        }
    }

    /// Returns the time until which clients of dead daemons may read an object that no living node holds;
    /// `None` if no client can any more. A later death of a node that did not hold the object does not
    /// move this time, so members that die one after the other delay nobody for ever.
    pub(crate) fn readable_until(&self, id: &ObjectId, now: Instant) -> Option<Instant> {
        let end = if self.is_under_way(id) {
            self.cluster.tables_of_the_dead()
        } else {
            let (dead, mut directory) = (self.cluster.dead.borrow(), self.table.borrow_mut());
            let died = directory.last_holders(id).filter_map(|holder| dead.get(&holder).copied());
            died.max().map(end_of_tables)
        };
        end.filter(|end| now < *end)
    }

    /// Whether this node deletes an object as its first keeper.
    pub(crate) fn is_under_way(&self, id: &ObjectId) -> bool {
        self.deleting.borrow().contains(id)
    }

    /// How long a keeper waits for the nodes that may hold the objects before it answers that the
    /// outcome is unknown.
    pub(super) fn deletion_patience(&self) -> Duration {
        self.kernel.config.lease + TABLE_LIFE + KEEPER_PATIENCE
    }

    /// Deletes objects as their first keeper. `ago` says how long ago a former keeper was asked, if
    /// one was: it may have deleted the objects.
    pub(crate) fn on_delete(
        self: &Rc<Self>,
        asked: Envelope,
        lives: Vec<(ObjectId, u64)>,
        ago: Option<Duration>,
    ) {
        let ids: Vec<_> = lives.iter().map(|(id, _)| *id).collect();
        if !self.asking.decides_for(&asked, &ids) {
            return self.network.answer(&asked, self.asking.not_the_keeper());
        }
        let deletion = Rc::clone(self);
        self.kernel.spawn(async move {
            let (sender, ended) = oneshot::channel();
            let missing = Missing::default();
            let (deleting, still, user, names) =
                (Rc::clone(&deletion), Rc::clone(&missing), asked.user, name_some(&ids, "is", "are"));
            deletion.kernel.spawn(async move {
                let outcomes = deleting.delete_everywhere(&lives, user, ago, &still).await;
                // The asker may have been answered already.
                let _ = sender.send(outcomes);
            });
            let due = deletion.kernel.clock.now() + deletion.deletion_patience();
            let message = match deletion.kernel.clock.bounded(Some(due), ended).await {
                Some(Ok(Some(outcomes))) => Message::Deleted { outcomes },
                Some(_) => {
                    let text = format!(
                        "node {} is no longer the first keeper of these objects, and has not finished \
                         their deletion",
                        deletion.kernel.node
                    );
                    Message::Refused { error: Error::new(ErrorKind::Disconnected, text) }
                }
                None => {
                    let nodes: Vec<_> = missing.borrow().iter().map(ToString::to_string).collect();
                    let who = match nodes.is_empty() {
                        true => "another deletion of these objects is not over".to_owned(),
                        false => format!("no answer of node {}", nodes.join(", ")),
                    };
                    let text = format!(
                        "{names} being deleted, and the outcome is not known yet: {who}; the deletion goes \
                         on when that node answers or has left the cluster"
                    );
                    Message::Refused { error: Error::new(ErrorKind::OutcomeUnknown, text) }
                }
            };
            deletion.network.answer(&asked, message);
        });
    }

    /// Has every node drop objects, and buries their lives. Returns `None` if this node no longer
    /// decides about the objects.
    async fn delete_everywhere(
        self: &Rc<Self>,
        lives: &[(ObjectId, u64)],
        user: u32,
        ago: Option<Duration>,
        missing: &Missing,
    ) -> Option<Vec<DeleteOutcome>> {
        let since = ago.and_then(|ago| self.kernel.clock.now().checked_sub(ago));
        let ids: &[ObjectId] = &lives.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        let _turn = self.turn_to_delete(ids).await?;
        let incarnation = self.kernel.incarnation.get();
        let decides = |deletion: &Self| {
            let first = |id: &ObjectId| deletion.cluster.keepers(id).first == deletion.kernel.node;
            incarnation == deletion.kernel.incarnation.get()
                && !deletion.cluster.fenced()
                && ids.iter().all(first)
        };
        let only = lives.iter().filter(|(_, life)| *life != NO_LIFE).copied().collect();
        let mut parting = Parting { only, ..Parting::default() };
        parting.spared = self.ended_since(ids, since);
        let left: Vec<_> = ids.iter().filter(|id| !parting.spared.contains(id)).copied().collect();
        self.begin_deletion(&left, user, &mut parting);
        let asked: Vec<_> = left.into_iter().filter(|id| !parting.denied.contains_key(id)).collect();
        let now = self.kernel.clock.now();
        let mut wide = ids.iter().any(|id| self.cluster.is_unsettled(id, now));
        let due = now + 2 * self.deletion_patience();
        while decides(self) {
            let (epoch, known) = (self.cluster.epoch(), parting.lives.len());
            let finding = self.find_everybody(&asked, user, &mut parting, wide, missing);
            if self.kernel.clock.bounded(Some(due), finding).await.is_none() {
                // Nothing was dropped yet, and a living member cannot be reached.
                self.end_deletion(&parting, false);
                return None;
            }
            if known == parting.lives.len() && ids.iter().all(|id| self.cluster.kept_since(id, epoch)) {
                self.have_dropped(&parting, missing).await;
            }
            // The second keeper has to know the lives that were found only now, before any node drops
            // them. If the members changed, other keepers may have sent nodes to the objects meanwhile.
            let changed = !ids.iter().all(|id| self.cluster.kept_since(id, epoch));
            if known == parting.lives.len() && !changed {
                break;
            }
            wide |= changed;
        }
        let decided = decides(self);
        if decided {
            self.bury_everywhere(&parting, missing).await;
        }
        self.end_deletion(&parting, decided);
        let outcome = |id: &ObjectId| match parting.denied.get(id) {
            _ if parting.lives.contains_key(id) => DeleteOutcome::Deleted,
            Some(ownership) => ownership.refusal(),
            None => DeleteOutcome::Absent,
        };
        (decided && decides(self)).then(|| ids.iter().map(outcome).collect())
    }

    /// Ends a deletion in the directory, which then sends askers to the objects that remain again.
    fn end_deletion(&self, parting: &Parting, buried: bool) {
        let mut orders = Orders::default();
        // Without a life to end, only a deletion that names another life holds askers back.
        let held_back = |id: &ObjectId| match parting.lives.contains_key(id) {
            true => !buried,
            false => parting.only.contains_key(id),
        };
        for (id, nodes) in parting.enlisted.iter().filter(|(id, _)| held_back(id)) {
            nodes.iter().for_each(|node| orders.add(*node, *id, NO_LIFE));
        }
        for (node, order) in orders.messages(bury_message) {
            self.network.tell(node, order);
        }
        let (mut table, now) = (self.table.borrow_mut(), self.kernel.clock.now());
        parting.lives.keys().for_each(|id| table.end_over(id, self.kernel.node, now));
    }

    /// Waits until no other deletion or replacement of these objects is under way. Of two deletions, one then
    /// finds an object and the other does not. Returns `None` when the asker has been answered meanwhile.
    pub(super) async fn turn_to_delete(self: &Rc<Self>, ids: &[ObjectId]) -> Option<Turn> {
        let (deleting, due) = (&self.deleting, self.kernel.clock.now() + self.deletion_patience());
        while deleting.borrow().len() > MAX_DELETIONS || ids.iter().any(|id| deleting.borrow().contains(id)) {
            if self.kernel.clock.now() >= due {
                return None;
            }
            self.kernel.clock.sleep(DELETION_PAUSE).await;
        }
        deleting.borrow_mut().extend(ids);
        Some(Turn { deletion: Rc::clone(self), ids: ids.to_vec() })
    }

    /// Returns the objects of which a life has ended since a time, as far as this keeper remembers.
    fn ended_since(&self, ids: &[ObjectId], since: Option<Instant>) -> HashSet<ObjectId> {
        let Some(since) = since else { return HashSet::default() };
        let table = self.table.borrow();
        ids.iter().filter(|id| table.has_ended_since(id, since)).copied().collect()
    }

    /// Stops sending nodes to the objects that this user may delete. Notes in `parting` the nodes
    /// that may hold those objects.
    fn begin_deletion(&self, ids: &[ObjectId], user: u32, parting: &mut Parting) {
        for id in ids {
            if let Some(only) = parting.only.get(id)
                && !self.table.borrow_mut().has_life(id, *only)
            {
                continue;
            }
            match self.table.borrow_mut().begin_end(*id, user, self.kernel.node, self.kernel.clock.now()) {
                Ending::NotAllowed(ownership) => _ = parting.denied.insert(*id, ownership),
                Ending::Unknown => {}
                Ending::Begun { lives, nodes } => {
                    for life in lives {
                        // A replica of this node may not have been published yet.
                        nodes
                            .iter()
                            .chain([&self.kernel.node])
                            .for_each(|node| parting.add(*id, life, *node));
                    }
                }
            }
        }
    }

    /// Stops sending nodes to objects, here and at the second keeper. Finds the nodes that may hold
    /// these objects.
    async fn find_everybody(
        self: &Rc<Self>,
        ids: &[ObjectId],
        user: u32,
        parting: &mut Parting,
        wide: bool,
        missing: &Missing,
    ) {
        let searched: Vec<_> = match wide {
            true => ids.to_vec(),
            // A node may have sealed an object whose publication is still on its way.
            false => ids.iter().filter(|id| !parting.lives.contains_key(id)).copied().collect(),
        };
        let orders = self.to_enlist(ids, parting, wide);
        let enlisting = self.enlist(orders, (user, None), missing);
        let ((complete, enlisted), held) =
            join(enlisting, self.asking.lives_on(self.cluster.others(&[]), &searched, (user, true), missing))
                .await;
        let (held, denied): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|(_, life, _)| life.ownership.may_change(user));
        parting.denied.extend(denied.into_iter().map(|(id, life, _)| (id, life.ownership)));
        let held = held.into_iter().map(|(id, life, node)| (id, life.life, node));
        for (id, life, node) in enlisted.into_iter().chain(held) {
            // The answers of peers are not trusted.
            if !parting.concerns(&id, life) || !parting.enlisted.contains_key(&id) {
                continue;
            }
            parting.add(id, life, node);
            self.table.borrow_mut().end_too(id, life, self.kernel.node);
        }
        // While this keeper waited, it may have sent a node to an object that it did not know before.
        self.begin_deletion(ids, user, parting);
        if wide || !complete {
            let members = self.cluster.others(&[]);
            parting.nodes.values_mut().for_each(|nodes| nodes.extend(&members));
        }
    }

    /// Has every node that may hold the objects drop them.
    async fn have_dropped(self: &Rc<Self>, parting: &Parting, missing: &Missing) {
        self.order_until_gone(parting.drops(), |lives| ask::Drop { lives }, missing).await;
        // Clients of a daemon that has died read its table for a while.
        if let Some(end) = self.cluster.tables_of_the_dead() {
            self.kernel.clock.until(end).await;
        }
    }

    /// Has the keepers remember that these lives have ended.
    async fn bury_everywhere(self: &Rc<Self>, parting: &Parting, missing: &Missing) {
        let mut burials = Orders::default();
        for (id, lives) in &parting.lives {
            let keepers: BTreeSet<_> =
                self.other_keepers(id).chain(parting.enlisted[id].iter().copied()).collect();
            for keeper in keepers {
                lives.iter().for_each(|life| burials.add(keeper, *id, *life));
            }
        }
        self.order_until_gone(burials, |lives| ask::Bury { lives, successor: None }, missing).await;
        let (mut table, now) = (self.table.borrow_mut(), self.kernel.clock.now());
        for (id, lives) in &parting.lives {
            lives.iter().for_each(|life| table.bury(*id, *life, now));
        }
    }

    /// Returns the orders by which second keepers learn of a deletion; with `wide`, every node gets them.
    fn to_enlist(&self, ids: &[ObjectId], parting: &mut Parting, wide: bool) -> Orders {
        let (mut orders, members) = (Orders::default(), self.cluster.others(&[self.kernel.node]));
        for id in ids {
            let keepers: Vec<_> = match wide {
                true => members.clone(),
                false => self.other_keepers(id).collect(),
            };
            parting.enlisted.entry(*id).or_default().extend(&keepers);
            for keeper in keepers {
                match parting.lives.get(id) {
                    Some(lives) => lives.iter().for_each(|life| orders.add(keeper, *id, *life)),
                    None => orders.add(keeper, *id, NO_LIFE),
                }
            }
        }
        orders
    }

    /// Has the second keepers stop sending nodes to objects. Returns whether they listed all lives that
    /// they know, and the lives with the nodes that may hold them.
    pub(super) async fn enlist(
        self: &Rc<Self>,
        orders: Orders,
        (user, turn): (u32, Option<u64>),
        missing: &Missing,
    ) -> (bool, Vec<(ObjectId, u64, NodeId)>) {
        let orders = orders.messages(|lives| ask::Enlist { lives, turn });
        let asked = orders.map(|(keeper, order)| self.asking.ask_until_gone(keeper, user, order, missing));
        let (mut complete, mut known) = (true, Vec::new());
        for answer in join_all(asked).await.into_iter().flatten() {
            complete &= answer.complete;
            known.extend(answer.lives);
        }
        (complete, known)
    }

    /// Sends orders until each is carried out or its node is not a member any more.
    pub(super) async fn order_until_gone<Q: Ask + Clone>(
        self: &Rc<Self>,
        orders: Orders,
        order: impl Fn(Vec<(ObjectId, u64)>) -> Q,
        missing: &Missing,
    ) {
        let given =
            orders.messages(order).map(|(node, order)| self.asking.ask_until_gone(node, 0, order, missing));
        join_all(given).await;
    }

    /// Stops, as the second keeper, sending nodes to objects that the first keeper deletes.
    pub(crate) fn on_enlist(&self, asked: &Envelope, lives: &[(ObjectId, u64)], turn: Option<u64>) {
        let (mut table, now) = (self.table.borrow_mut(), self.kernel.clock.now());
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for (id, life) in lives {
            if asked.from != self.cluster.keepers(id).first && asked.epoch <= self.cluster.epoch() {
                drop(table);
                return self.network.answer(asked, self.asking.not_the_keeper());
            }
            if let Some(turn) = turn {
                table.begin_replacing(*id, asked.from, turn, is_planted(Bug::SecondKeeperAnswers));
                let (held, readers) = table.may_hold(id);
                others.extend(held.iter().map(|(life, node)| (*id, *life, *node)));
                let known = held.first().map_or(*life, |(life, _)| *life);
                others.extend(readers.iter().map(|node| (*id, known, *node)));
                continue;
            }
            if *life != NO_LIFE {
                // The publication of the object may be on the way.
                table.end_too(*id, *life, asked.from);
            }
            if let Ending::Begun { lives, nodes } = table.begin_end(*id, asked.user, asked.from, now) {
                for life in lives {
                    own.push((*id, life, self.kernel.node));
                    others.extend(nodes.iter().map(|node| (*id, life, *node)));
                }
            }
        }
        drop(table);
        let complete = own.len() + others.len() <= MAX_ENTRIES;
        own.extend(others);
        own.truncate(MAX_ENTRIES);
        self.network.answer(asked, Message::Enlisted { complete, lives: own });
    }

    /// Remembers, as the second keeper, that lives have ended, or that a deletion is given up.
    pub(crate) fn on_bury(&self, asked: &Envelope, lives: &[(ObjectId, u64)]) {
        let (mut table, now) = (self.table.borrow_mut(), self.kernel.clock.now());
        for (id, life) in lives {
            if *life != NO_LIFE {
                table.bury(*id, *life, now);
            }
            table.end_over(id, asked.from, now);
            table.end_replacing(id, asked.from);
        }
        drop(table);
        self.network.answer(asked, Message::Done);
    }

    /// Drops replicas by order of a keeper, and has fetches under way make none.
    pub(crate) fn on_drop(&self, asked: &Envelope, lives: &[(ObjectId, u64)]) {
        for (id, life) in lives {
            self.arrivals.end_life(id, *life);
            let held = self.store.objects.borrow().get(id).is_some_and(|replica| replica.life == *life);
            if held {
                self.store.remove(id);
                self.store.unpublish(*id, Withdrawal::Deleted);
            }
        }
        self.network.answer(asked, Message::Done);
    }

    /// Tells the keepers that this node is about to get an object by order of another node. The
    /// directory is not asked for the object.
    ///
    /// # Errors
    /// When no keeper answers.
    pub(crate) async fn enroll(self: &Rc<Self>, id: ObjectId) -> Result<(), Error> {
        self.asking
            .ask_first_keepers(&[id], 0, |_, _| ask::Enroll { id }, |ask::Done| vec![()], ENROLMENT_PATIENCE)
            .await
            .map(drop)
    }

    /// Takes note that a node is about to get an object.
    pub(crate) fn on_enroll(&self, asked: &Envelope, id: ObjectId) {
        let mut table = self.table.borrow_mut();
        let message = match table.is_leaving(&id) {
            true => {
                let text = format!("object {id} is being deleted");
                Message::Refused { error: Error::new(ErrorKind::NotFound, text) }
            }
            false if table.holds_back(&id) => self.asking.not_the_keeper(),
            false => {
                table.note_reader(id, asked.from);
                Message::Done
            }
        };
        drop(table);
        self.network.answer(asked, message);
    }

    /// Tells the keepers of a new view which objects this node is about to get.
    pub(crate) fn enroll_again(&self) {
        for id in self.arrivals.bringing() {
            for keeper in self.cluster.keepers(&id).iter() {
                self.network.tell(keeper, Message::Enroll { id });
            }
        }
    }

    /// The keepers of an object other than this node. These are both keepers if this node is none,
    /// because a node that follows another view may ask this one all the same.
    pub(super) fn other_keepers(&self, id: &ObjectId) -> impl Iterator<Item = NodeId> {
        self.cluster.keepers(id).iter().filter(|keeper| *keeper != self.kernel.node)
    }
}

/// The order that ends an enlistment, or has lives remembered as ended.
fn bury_message(lives: Vec<(ObjectId, u64)>) -> Message {
    Message::Bury { lives, successor: None }
}

/// Names some objects with their verb, for people.
pub(super) fn name_some(ids: &[ObjectId], one: &str, several: &str) -> String {
    match ids {
        [id] => format!("object {id} {one}"),
        [id, ..] => format!("object {id} and {} more {several}", ids.len() - 1),
        [] => format!("nothing {one}"),
    }
}

/// The lives that each node is told of.
#[derive(Default)]
pub(super) struct Orders(HashMap<NodeId, Vec<(ObjectId, u64)>>);

impl Orders {
    pub(super) fn add(&mut self, node: NodeId, id: ObjectId, life: u64) {
        self.0.entry(node).or_default().push((id, life));
    }

    /// Splits the orders into messages that fit a frame.
    fn messages<M>(self, message: impl Fn(Vec<(ObjectId, u64)>) -> M) -> impl Iterator<Item = (NodeId, M)> {
        let lots = self.0.into_iter().flat_map(|(node, lives)| {
            let lots: Vec<_> = lives.chunks(MAX_ENTRIES).map(|lot| (node, lot.to_vec())).collect();
            lots
        });
        lots.map(move |(node, lot)| (node, message(lot)))
    }
}
