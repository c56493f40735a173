//! Deleting objects everywhere. Engine thread only.
//!
//! The first keeper of an object's shard decides. It sends nobody to the object any more, has the second
//! keeper do the same and say whom it knows (*enlist*), and tells every node that may hold a replica, or come
//! to hold one by what is under way, to *drop* it. Only when all of them have, the lives are *buried* by both
//! keepers, the id is free, and whoever asks learns that the object is gone. Until then it is there for
//! whoever asks whether it is: nobody finds it missing while somebody else can still read it.
//!
//! A node that does not confirm is waited for until it has left the cluster, and as long beyond that as
//! clients of a dead daemon read its table by themselves. Whoever asked for the deletion may not wait for so
//! long: he is told that its outcome is unknown, and who is missing, while the keeper goes on.
//!
//! Both keepers together know everybody: of two that keep a shard one did so before it moved. Since nodes do
//! not follow a view at the same moment, and publish again bit by bit, all members are enlisted for a while
//! after a keeper was replaced.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{join, join_all, select};
use plasmon::{DeleteOutcome, Error, ErrorKind, NodeId, ObjectId};

use super::table::Ending;
use crate::directory::Directory;
use crate::kernel::random::HashMap;
use crate::net::frame::{Ask, Life, MAX_ENTRIES, Withdrawal, ask};
use crate::net::frame::{Envelope, Message};
use crate::object::{Ownership, TABLE_LIFE};

/// How long one answer is waited for, before a node is asked again.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait before that, or before looking whether another deletion of the id is over.
pub(crate) const DELETION_PAUSE: Duration = Duration::from_millis(5);
/// How much longer than a lease, and than clients read a dead daemon's table, a keeper waits before it says
/// that it does not know.
const KEEPER_PATIENCE: Duration = Duration::from_secs(2);
/// How much longer than that those who ask a keeper do.
const ASKER_PATIENCE: Duration = Duration::from_secs(2);
/// How long keepers may take to note who reads an object: longer than a dead one is taken for a living one.
const ENROLMENT_PATIENCE: Duration = Duration::from_secs(30);
/// Objects that a keeper deletes at a time at most.
const MAX_DELETIONS: usize = 1 << 16;
/// Where there is no object. No creation draws it.
const NO_LIFE: u64 = 0;

/// Nodes that have not confirmed yet.
pub(crate) type Missing = Rc<RefCell<BTreeSet<NodeId>>>;

/// Objects that no other deletion may touch while this lives.
struct Turn {
    directory: Rc<Directory>,
    ids: Vec<ObjectId>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut deleting = self.directory.deleting.borrow_mut();
        self.ids.iter().for_each(|id| _ = deleting.remove(id));
    }
}

/// A deletion under way: whom it concerns.
#[derive(Default)]
struct Parting {
    /// Of some objects, the one life that is to end.
    only: HashMap<ObjectId, u64>,
    /// Of each object, the lives that end.
    lives: HashMap<ObjectId, BTreeSet<u64>>,
    /// Of each object, the nodes that may hold it.
    nodes: HashMap<ObjectId, BTreeSet<NodeId>>,
    /// Of each object, the nodes that send nobody to it.
    enlisted: HashMap<ObjectId, BTreeSet<NodeId>>,
    /// Objects of which there is another user's life.
    denied: HashMap<ObjectId, Ownership>,
}

impl Parting {
    fn concerns(&self, id: &ObjectId, life: u64) -> bool {
        self.only.get(id).is_none_or(|only| *only == life)
    }

    fn add(&mut self, id: ObjectId, life: u64, node: NodeId) {
        self.lives.entry(id).or_default().insert(life);
        self.nodes.entry(id).or_default().insert(node);
    }

    /// Every life of every object, for every node that may hold it.
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

impl Directory {
    /// Deletes objects on every node: those of these lives, if there are any given.
    ///
    /// # Errors
    /// `OutcomeUnknown` when a keeper does not answer, or does not hear of a node that may still hold one:
    /// some of the objects may still be there.
    pub(crate) async fn delete_in_cluster(
        self: &Rc<Self>,
        ids: &[ObjectId],
        lives: &[u64],
        tenant: u32,
    ) -> Result<Vec<DeleteOutcome>, Error> {
        self.cluster.ensure_member()?;
        let lives: HashMap<_, _> = ids.iter().zip(lives).map(|(id, life)| (*id, *life)).collect();
        let life = |id: ObjectId| (id, lives.get(&id).copied().unwrap_or(NO_LIFE));
        let delete = |ids: Vec<_>| ask::Delete { lives: ids.into_iter().map(life).collect() };
        let patience = self.deletion_patience() + ASKER_PATIENCE;
        let answers = self.ask_first_keepers(ids, tenant, delete, |deleted| deleted.outcomes, patience).await;
        let unknown = |why: String| Error::new(ErrorKind::OutcomeUnknown, why);
        let answers = answers.map_err(|error| match error.kind() {
            ErrorKind::TimedOut | ErrorKind::Disconnected => {
                unknown(format!("whether {} deleted is not known: {error}", name_some(ids, "was", "were")))
            }
            _ => error,
        })?;
        let decide = |(id, (outcome, repeated)): (&ObjectId, (DeleteOutcome, bool))| match (outcome, repeated)
        {
            (DeleteOutcome::Absent, true) => Err(unknown(format!(
                "object {id} is not there any more; whether this call deleted it is not known: the node \
                 that decides about it went before it answered"
            ))),
            (outcome, _) => Ok(outcome),
        };
        ids.iter().zip(answers).map(decide).collect()
    }

    /// How long a keeper waits for those who hold what is deleted.
    fn deletion_patience(&self) -> Duration {
        self.kernel.config.lease + TABLE_LIFE + KEEPER_PATIENCE
    }

    /// Deletes objects as their first keeper.
    pub(crate) fn on_delete(self: &Rc<Self>, asked: Envelope, lives: Vec<(ObjectId, u64)>) {
        let ids: Vec<_> = lives.iter().map(|(id, _)| *id).collect();
        if !self.decides_for(&asked, &ids) {
            return self.network.answer(&asked, self.not_the_keeper());
        }
        let directory = Rc::clone(self);
        self.kernel.spawn(async move {
            let (sender, ended) = oneshot::channel();
            let missing = Missing::default();
            let (deleting, still, tenant, names) =
                (Rc::clone(&directory), Rc::clone(&missing), asked.tenant, name_some(&ids, "is", "are"));
            directory.kernel.spawn(async move {
                let outcomes = deleting.delete_everywhere(&lives, tenant, &still).await;
                // Who asked may have been answered already.
                let _ = sender.send(outcomes);
            });
            let due = directory.kernel.clock.now() + directory.deletion_patience();
            let message = match directory.kernel.clock.bounded(Some(due), ended).await {
                Some(Ok(Some(outcomes))) => Message::Deleted { outcomes },
                Some(_) => {
                    let text = format!(
                        "node {} does not decide about these any more, and has not done with \
                        them",
                        directory.kernel.node
                    );
                    Message::Refused { error: Error::new(ErrorKind::Disconnected, text) }
                }
                None => {
                    let nodes: Vec<_> = missing.borrow().iter().map(ToString::to_string).collect();
                    let who = match nodes.is_empty() {
                        true => "another deletion of the same is not over".to_owned(),
                        false => format!("no word of node {}", nodes.join(", ")),
                    };
                    let text = format!(
                        "{names} being deleted, and what becomes of that is not known yet: {who}; it goes \
                         on when that node answers or has left the cluster"
                    );
                    Message::Refused { error: Error::new(ErrorKind::OutcomeUnknown, text) }
                }
            };
            directory.network.answer(&asked, message);
        });
    }

    /// Has every node let go of objects, and forgets them; nothing if this node does not decide about them
    /// any more.
    async fn delete_everywhere(
        self: &Rc<Self>,
        lives: &[(ObjectId, u64)],
        tenant: u32,
        missing: &Missing,
    ) -> Option<Vec<DeleteOutcome>> {
        let ids: &[ObjectId] = &lives.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        let _turn = self.turn_to_delete(ids).await?;
        let incarnation = self.kernel.incarnation.get();
        let decides = |directory: &Self| {
            let first = |id: &ObjectId| directory.cluster.keepers(id).first == directory.kernel.node;
            incarnation == directory.kernel.incarnation.get()
                && !directory.cluster.fenced()
                && ids.iter().all(first)
        };
        let only = lives.iter().filter(|(_, life)| *life != NO_LIFE).copied().collect();
        let mut parting = Parting { only, ..Parting::default() };
        self.begin_deletion(ids, tenant, &mut parting);
        let asked: Vec<_> = ids.iter().filter(|id| !parting.denied.contains_key(id)).copied().collect();
        let now = self.kernel.clock.now();
        let mut wide = ids.iter().any(|id| self.cluster.is_unsettled(id, now));
        let due = now + 2 * self.deletion_patience();
        while decides(self) {
            let (epoch, known) = (self.cluster.epoch(), parting.lives.len());
            let finding = self.find_everybody(&asked, tenant, &mut parting, wide, missing);
            if self.kernel.clock.bounded(Some(due), finding).await.is_none() {
                // Nothing was dropped yet, and a member that lives is not to be reached.
                self.end_deletion(&parting, false);
                return None;
            }
            if known == parting.lives.len() && ids.iter().all(|id| self.cluster.kept_since(id, epoch)) {
                self.have_dropped(&parting, missing).await;
            }
            // The second keeper is to know of what was found only now, before anybody drops it; and if the
            // members changed, others may have sent somebody to it meanwhile.
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

    /// Sends askers again to what is still there.
    fn end_deletion(&self, parting: &Parting, buried: bool) {
        let mut orders = Orders::default();
        // Where nothing was to end, nobody is held back; but by one whose life is another.
        let held_back = |id: &ObjectId| match parting.lives.contains_key(id) {
            true => !buried,
            false => parting.only.contains_key(id),
        };
        for (id, nodes) in parting.enlisted.iter().filter(|(id, _)| held_back(id)) {
            nodes.iter().for_each(|node| orders.add(*node, *id, NO_LIFE));
        }
        for (node, order) in orders.messages(|lives| Message::Bury { lives }) {
            self.network.tell(node, order);
        }
        let (mut table, now) = (self.table.borrow_mut(), self.kernel.clock.now());
        parting.lives.keys().for_each(|id| table.end_over(id, self.kernel.node, now));
    }

    /// Waits until no other deletion of these is under way: of two, one finds an object and the other none.
    /// Gives up when whoever asked has been answered.
    async fn turn_to_delete(self: &Rc<Self>, ids: &[ObjectId]) -> Option<Turn> {
        let (deleting, due) = (&self.deleting, self.kernel.clock.now() + self.deletion_patience());
        while deleting.borrow().len() > MAX_DELETIONS || ids.iter().any(|id| deleting.borrow().contains(id)) {
            if self.kernel.clock.now() >= due {
                return None;
            }
            self.kernel.clock.sleep(DELETION_PAUSE).await;
        }
        deleting.borrow_mut().extend(ids);
        Some(Turn { directory: Rc::clone(self), ids: ids.to_vec() })
    }

    /// Sends nobody to objects any more that this user may delete, and notes who may hold them.
    fn begin_deletion(&self, ids: &[ObjectId], tenant: u32, parting: &mut Parting) {
        for id in ids {
            if let Some(only) = parting.only.get(id)
                && !self.table.borrow_mut().has_life(id, *only)
            {
                continue;
            }
            match self.table.borrow_mut().begin_end(*id, tenant, self.kernel.node, self.kernel.clock.now()) {
                Ending::NotAllowed(ownership) => _ = parting.denied.insert(*id, ownership),
                Ending::Unknown => {}
                Ending::Begun { lives, nodes } => {
                    for life in lives {
                        // A replica of this node's own may not have been published yet.
                        nodes
                            .iter()
                            .chain([&self.kernel.node])
                            .for_each(|node| parting.add(*id, life, *node));
                    }
                }
            }
        }
    }

    /// Sends nobody to objects any more, here and at the second keeper, and finds out who may hold them.
    async fn find_everybody(
        self: &Rc<Self>,
        ids: &[ObjectId],
        tenant: u32,
        parting: &mut Parting,
        wide: bool,
        missing: &Missing,
    ) {
        let searched: Vec<_> = match wide {
            true => ids.to_vec(),
            // A node may have sealed one whose publication is still on its way.
            false => ids.iter().filter(|id| !parting.lives.contains_key(id)).copied().collect(),
        };
        let orders = self.to_enlist(ids, parting, wide);
        let enlisting = self.enlist(orders, tenant, missing);
        let ((complete, enlisted), held) =
            join(enlisting, self.lives_on(self.cluster.others(&[]), &searched, tenant, missing)).await;
        let (held, denied): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|(_, life, _)| life.ownership.may_change(tenant));
        parting.denied.extend(denied.into_iter().map(|(id, life, _)| (id, life.ownership)));
        let held = held.into_iter().map(|(id, life, node)| (id, life.life, node));
        for (id, life, node) in enlisted.into_iter().chain(held) {
            // Peers may say what they like.
            if !parting.concerns(&id, life) || !parting.enlisted.contains_key(&id) {
                continue;
            }
            parting.add(id, life, node);
            self.table.borrow_mut().end_too(id, life, self.kernel.node);
        }
        // Somebody may have been sent to what was not known a moment ago.
        self.begin_deletion(ids, tenant, parting);
        if wide || !complete {
            let members = self.cluster.others(&[]);
            parting.nodes.values_mut().for_each(|nodes| nodes.extend(&members));
        }
    }

    /// Has everybody let go.
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
        self.order_until_gone(burials, |lives| ask::Bury { lives }, missing).await;
        let (mut table, now) = (self.table.borrow_mut(), self.kernel.clock.now());
        for (id, lives) in &parting.lives {
            lives.iter().for_each(|life| table.bury(*id, *life, now));
        }
    }

    /// What second keepers are told of a deletion, or every node, if not all know who those are.
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

    /// Has the second keepers send nobody to objects any more; says whom they know to hold them, and whether
    /// those are all.
    async fn enlist(
        self: &Rc<Self>,
        orders: Orders,
        tenant: u32,
        missing: &Missing,
    ) -> (bool, Vec<(ObjectId, u64, NodeId)>) {
        let orders = orders.messages(|lives| ask::Enlist { lives });
        let asked = orders.map(|(keeper, order)| self.ask_until_gone(keeper, tenant, order, missing));
        let (mut complete, mut known) = (true, Vec::new());
        for answer in join_all(asked).await.into_iter().flatten() {
            complete &= answer.complete;
            known.extend(answer.lives);
        }
        (complete, known)
    }

    /// Which lives of objects these nodes hold that a user may see: waits for each until it answers or has
    /// gone.
    pub(crate) async fn lives_on(
        self: &Rc<Self>,
        nodes: Vec<NodeId>,
        ids: &[ObjectId],
        tenant: u32,
        missing: &Missing,
    ) -> Vec<(ObjectId, Life, NodeId)> {
        if ids.is_empty() {
            return Vec::new();
        }
        let hold = ask::Hold { ids: ids.to_vec() };
        let asked = nodes.iter().map(|node| self.ask_until_gone(*node, tenant, hold.clone(), missing));
        let mut found = Vec::new();
        for (node, held) in nodes.iter().zip(join_all(asked).await) {
            let lives = ids.iter().zip(held.map_or_else(Vec::new, |held| held.lives));
            found.extend(lives.filter_map(|(id, life)| Some((*id, life?, *node))));
        }
        found
    }

    /// Gives orders until each was carried out, or its node is no member any more.
    async fn order_until_gone<Q: Ask + Clone>(
        self: &Rc<Self>,
        orders: Orders,
        order: impl Fn(Vec<(ObjectId, u64)>) -> Q,
        missing: &Missing,
    ) {
        let given = orders.messages(order).map(|(node, order)| self.ask_until_gone(node, 0, order, missing));
        join_all(given).await;
    }

    /// Asks a node again and again, until it answers or is no member any more.
    async fn ask_until_gone<Q: Ask + Clone>(
        self: &Rc<Self>,
        node: NodeId,
        tenant: u32,
        question: Q,
        missing: &Missing,
    ) -> Option<Q::Answer> {
        missing.borrow_mut().insert(node);
        let mut pause = DELETION_PAUSE;
        let answer = loop {
            if !self.cluster.is_member(node) {
                break None;
            }
            let next_view = self.cluster.next_view();
            match self.network.ask(node, tenant, question.clone(), ANSWER_PATIENCE).await {
                Ok(answer) => break Some(answer),
                Err(_) => _ = select(next_view, std::pin::pin!(self.kernel.clock.sleep(pause))).await,
            }
            pause = (2 * pause).min(ANSWER_PATIENCE);
        };
        missing.borrow_mut().remove(&node);
        answer
    }

    /// Sends nobody to objects that the first keeper deletes.
    pub(crate) fn on_enlist(&self, asked: &Envelope, lives: &[(ObjectId, u64)]) {
        let (mut table, now) = (self.table.borrow_mut(), self.kernel.clock.now());
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for (id, life) in lives {
            if asked.from != self.cluster.keepers(id).first && asked.epoch <= self.cluster.epoch() {
                drop(table);
                return self.network.answer(asked, self.not_the_keeper());
            }
            if *life != NO_LIFE {
                // Its publication may be on the way.
                table.end_too(*id, *life, asked.from);
            }
            if let Ending::Begun { lives, nodes } = table.begin_end(*id, asked.tenant, asked.from, now) {
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

    /// Remembers, as the second keeper, that lives have ended; or that a deletion is given up.
    pub(crate) fn on_bury(&self, asked: &Envelope, lives: &[(ObjectId, u64)]) {
        let (mut table, now) = (self.table.borrow_mut(), self.kernel.clock.now());
        for (id, life) in lives {
            if *life != NO_LIFE {
                table.bury(*id, *life, now);
            }
            table.end_over(id, asked.from, now);
        }
        drop(table);
        self.network.answer(asked, Message::Done);
    }

    /// Drops replicas by order of a keeper, and makes none of what is under way.
    pub(crate) fn on_drop(&self, asked: &Envelope, lives: &[(ObjectId, u64)]) {
        for (id, life) in lives {
            self.end_life(id, *life);
            let held = self.store.objects.borrow().get(id).is_some_and(|replica| replica.life == *life);
            if held {
                self.store.remove(id);
                self.store.unpublish(*id, Withdrawal::Deleted);
            }
        }
        self.network.answer(asked, Message::Done);
    }

    /// Says which lives of objects are here.
    pub(crate) fn on_hold(&self, asked: &Envelope, ids: &[ObjectId]) {
        let lives = ids.iter().map(|id| self.life_here(id, asked.tenant)).collect();
        self.network.answer(asked, Message::Held { lives });
    }

    /// The life of an object on this node, if a user may see it now.
    fn life_here(&self, id: &ObjectId, tenant: u32) -> Option<Life> {
        let objects = self.store.objects.borrow();
        let replica = objects.get(id).filter(|replica| replica.visible_to(tenant))?;
        // It may have been deleted while this node was no member.
        (!self.cluster.withholds()).then(|| Life { life: replica.life, ownership: replica.ownership() })
    }

    /// Has the keepers know that this node brings an object to itself by ways that do not lead past them.
    ///
    /// # Errors
    /// When no keeper answers.
    pub(crate) async fn enroll(self: &Rc<Self>, id: ObjectId) -> Result<(), Error> {
        self.ask_first_keepers(&[id], 0, |_| ask::Enroll { id }, |ask::Done| vec![()], ENROLMENT_PATIENCE)
            .await
            .map(drop)
    }

    /// A node may bring an object to itself.
    pub(crate) fn on_enroll(&self, asked: &Envelope, id: ObjectId) {
        let mut table = self.table.borrow_mut();
        let message = match table.is_leaving(&id) {
            true => {
                let text = format!("object {id} is being deleted");
                Message::Refused { error: Error::new(ErrorKind::NotFound, text) }
            }
            false => {
                table.note_reader(id, asked.from);
                Message::Done
            }
        };
        drop(table);
        self.network.answer(asked, message);
    }

    /// Has the keepers of a new view know what this node is about to bring here.
    pub(crate) fn enroll_again(&self) {
        for id in self.bringing() {
            for keeper in self.cluster.keepers(&id).iter() {
                self.network.tell(keeper, Message::Enroll { id });
            }
        }
    }

    /// Both, where this node is none: it may be asked by one that follows another view.
    fn other_keepers(&self, id: &ObjectId) -> impl Iterator<Item = NodeId> {
        self.cluster.keepers(id).iter().filter(|keeper| *keeper != self.kernel.node)
    }
}

/// Some objects with their verb, for people.
fn name_some(ids: &[ObjectId], one: &str, several: &str) -> String {
    match ids {
        [id] => format!("object {id} {one}"),
        [id, ..] => format!("object {id} and {} more {several}", ids.len() - 1),
        [] => format!("nothing {one}"),
    }
}

/// Lives that nodes are to be told of.
#[derive(Default)]
struct Orders(HashMap<NodeId, Vec<(ObjectId, u64)>>);

impl Orders {
    fn add(&mut self, node: NodeId, id: ObjectId, life: u64) {
        self.0.entry(node).or_default().push((id, life));
    }

    /// As messages that fit a frame.
    fn messages<M>(self, message: impl Fn(Vec<(ObjectId, u64)>) -> M) -> impl Iterator<Item = (NodeId, M)> {
        let lots = self.0.into_iter().flat_map(|(node, lives)| {
            let lots: Vec<_> = lives.chunks(MAX_ENTRIES).map(|lot| (node, lot.to_vec())).collect();
            lots
        });
        lots.map(move |(node, lot)| (node, message(lot)))
    }
}
