//! Replacing objects: an object takes the place of another of its id in one step. Owns [`Replacement`].
//! Engine thread only.
//!
//! The first keeper of the object's shard leads the replacement, in the id's turn, in these steps:
//! 1. It *enlists* the second keeper, which sends askers to it from then on, and returns the nodes that it
//!    knows.
//! 2. It has every node that may hold the former life, or come to hold it, *guard* that life ([`guards`]).
//! 3. When all of them have confirmed, it holds askers back and has the second keeper *bury* the former life
//!    and note the successor. Then it does the same: this is the moment of the switch.
//! 4. It answers the node that has the successor ([`writer`]), which publishes it, and orders all others to
//!    drop the former life. The next deletion or replacement of the id waits for that.
//!
//! Before the second keeper is told of the switch, every failure leaves the former object, and lifts the
//! guards. From then on there is no way back. Until the switch the former life is given to whoever asks the
//! first keeper, from then on the successor, so that no node finds none.
//!
//! [`guards`]: super::guards
//! [`writer`]: super::writer

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::join;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::asking::{Asking, Missing};
use super::deletion::{Deletion, NO_LIFE, Orders, Turn};
use super::table::{Given, Table};
use crate::kernel::Kernel;
use crate::kernel::lives::is_later;
use crate::kernel::planted::{Bug, is_planted};
use crate::kernel::random::HashSet;
use crate::membership::Cluster;
use crate::net::frame::{Envelope, Holding, Life, Message, Successor, ask};
use crate::net::members::Incarnation;
use crate::net::network::Network;
use crate::object::Ownership;

/// The pause before looking whether the same replacement, asked for before, is over.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest time that a replacement has until the order to switch.
const LONGEST_TIME: Duration = Duration::from_secs(30);

/// The replacements that this node leads as a first keeper.
pub(crate) struct Replacement {
    pub(super) kernel: Rc<Kernel>,
    pub(super) network: Rc<Network>,
    pub(super) cluster: Rc<Cluster>,
    pub(super) asking: Rc<Asking>,
    table: Rc<RefCell<Table>>,
    deletion: Rc<Deletion>,
    /// Number of turns in which this node has led a replacement.
    turns: Cell<u64>,
    /// The successors of the replacements that this node was asked for and has not answered.
    asked: RefCell<HashSet<u64>>,
}

/// A replacement under way.
struct Walk {
    id: ObjectId,
    /// The life that is to be replaced.
    from: u64,
    successor: Successor,
    /// The incarnation of the node that wrote the successor.
    incarnation: Incarnation,
    user: u32,
    turn: u64,
    due: Instant,
    /// Whether all members are enlisted, asked and told.
    wide: bool,
    /// The lives that end, and the nodes that may hold one of them.
    lives: BTreeSet<u64>,
    nodes: BTreeSet<NodeId>,
    /// The nodes that have confirmed their guard, and the lives that it was of.
    guarded: BTreeSet<NodeId>,
    guarded_lives: BTreeSet<u64>,
    enlisted: BTreeSet<NodeId>,
    /// Whether a keeper may have noted the successor, so that there is no way back.
    is_committed: bool,
}

impl Replacement {
    pub(super) fn new(deletion: &Rc<Deletion>) -> Self {
        Self {
            kernel: Rc::clone(&deletion.kernel),
            network: Rc::clone(&deletion.asking.network),
            cluster: Rc::clone(&deletion.asking.cluster),
            asking: Rc::clone(&deletion.asking),
            table: Rc::clone(&deletion.table),
            deletion: Rc::clone(deletion),
            turns: Cell::default(),
            asked: RefCell::default(),
        }
    }

    /// Puts an object in the place of another, as their first keeper.
    pub(crate) fn on_replace(
        self: &Rc<Self>,
        asked: Envelope,
        holding: Holding,
        (from, others): (u64, Vec<(NodeId, Incarnation)>),
        patience: Duration,
    ) {
        if !self.asking.decides_for(&asked, &[holding.id]) {
            return self.network.answer(&asked, self.asking.not_the_keeper());
        }
        let replacement = Rc::clone(self);
        self.kernel.spawn(async move {
            // A node that lost contact asks again. Its first request may be under way.
            while replacement.asked.borrow().contains(&holding.life) {
                replacement.kernel.clock.sleep(PAUSE).await;
            }
            replacement.asked.borrow_mut().insert(holding.life);
            if is_planted(Bug::ShownBeforeSwitch) {
                replacement.network.answer(&asked, Message::Done);
            }
            let led = replacement.lead(&asked, holding, (from, others), patience).await;
            replacement.asked.borrow_mut().remove(&holding.life);
            let message = match led {
                Ok(()) => Message::Done,
                Err(error) => Message::Refused { error },
            };
            replacement.network.answer(&asked, message);
        });
    }

    /// Leads a replacement from its turn on. An error says that nothing was done, unless this node is not the
    /// first keeper any more.
    async fn lead(
        self: &Rc<Self>,
        asked: &Envelope,
        holding: Holding,
        (from, others): (u64, Vec<(NodeId, Incarnation)>),
        patience: Duration,
    ) -> Result<(), Error> {
        let (id, now) = (holding.id, self.kernel.clock.now());
        let due = now + patience.min(LONGEST_TIME);
        let turn = self.kernel.clock.bounded(Some(due), self.deletion.turn_to_delete(&[id])).await.flatten();
        let turn = turn.ok_or_else(|| late(id, "another deletion or replacement of it is not over"))?;
        if self.table.borrow().is_over(&id, holding.life) {
            // The object was there, and has made way for another since.
            return Ok(());
        }
        self.turns.set(self.turns.get() + 1);
        let mut walk = Walk {
            id,
            from,
            successor: Successor { holding, node: asked.reply_to, others },
            incarnation: asked.incarnation,
            user: asked.user,
            turn: self.turns.get(),
            due,
            wide: self.cluster.is_unsettled(&id, now),
            lives: BTreeSet::new(),
            nodes: BTreeSet::new(),
            guarded: BTreeSet::new(),
            guarded_lives: BTreeSet::new(),
            enlisted: BTreeSet::new(),
            is_committed: false,
        };
        let incarnation = self.kernel.incarnation.get();
        let missing = Missing::default();
        self.table.borrow_mut().begin_replacing(id, self.kernel.node, walk.turn, true);
        let walked = self.walk(&mut walk, incarnation, &missing).await;
        self.table.borrow_mut().end_replacing(&id, self.kernel.node);
        match walked {
            Ok(()) => {
                self.have_dropped(turn, &walk);
                Ok(())
            }
            Err(error) => {
                self.have_lifted(turn, &walk);
                Err(error)
            }
        }
    }

    /// Whether this node still decides about an object, as the member that it was.
    fn decides(&self, id: &ObjectId, incarnation: Incarnation) -> bool {
        self.cluster.keepers(id).first == self.kernel.node
            && incarnation == self.kernel.incarnation.get()
            && !self.cluster.fenced()
    }

    /// Goes through the steps of a replacement.
    async fn walk(
        self: &Rc<Self>,
        walk: &mut Walk,
        incarnation: Incarnation,
        missing: &Missing,
    ) -> Result<(), Error> {
        let id = walk.id;
        let deposed = || Error::new(ErrorKind::Busy, "this node is no longer the first keeper of the object");
        loop {
            if !self.decides(&id, incarnation) {
                return Err(deposed());
            }
            let epoch = self.cluster.epoch();
            let due = (!walk.is_committed).then_some(walk.due);
            let steps = async {
                let found = self.find_everybody(walk, missing).await;
                self.judge(walk, found)?;
                self.have_guarded(walk, missing).await;
                Ok(())
            };
            match self.kernel.clock.bounded(due, steps).await {
                Some(judged) => judged?,
                None => return Err(self.not_confirmed(id, missing)),
            }
            if !self.decides(&id, incarnation) {
                return Err(deposed());
            }
            if !self.cluster.kept_since(&id, epoch) {
                // Other keepers may have sent nodes to the object meanwhile. What was confirmed counts no
                // more.
                walk.wide = true;
                walk.guarded.clear();
                continue;
            }
            if !self.note_known(walk) {
                continue;
            }
            if !walk.is_committed && !self.has_writer(walk) {
                let text =
                    format!("node {} with the new object {id} has left the cluster", walk.successor.node);
                return Err(Error::new(ErrorKind::Disconnected, text));
            }
            // From here on nobody is sent to the former object.
            self.table.borrow_mut().give_former(&id, false);
            walk.is_committed = !is_planted(Bug::WayBack);
            let due = (!walk.is_committed).then_some(walk.due);
            if self.kernel.clock.bounded(due, self.have_noted(walk, missing)).await.is_none() {
                return Err(self.not_confirmed(id, missing));
            }
            if !self.decides(&id, incarnation) {
                return Err(deposed());
            }
            if self.cluster.kept_since(&id, epoch) {
                self.switch(walk);
                return Ok(());
            }
            walk.wide = true;
            walk.guarded.clear();
            self.table.borrow_mut().give_former(&id, true);
        }
    }

    /// Enlists the second keeper, or every member, and finds the nodes that may hold a life. Returns the
    /// lives that members say they hold, with their ownership.
    async fn find_everybody(self: &Rc<Self>, walk: &mut Walk, missing: &Missing) -> Vec<Given> {
        let (mut orders, id) = (Orders::default(), walk.id);
        let keepers: Vec<_> = match walk.wide {
            true => self.cluster.others(&[self.kernel.node]),
            false => self.deletion.other_keepers(&id).collect(),
        };
        keepers.iter().for_each(|keeper| orders.add(*keeper, id, walk.from));
        walk.enlisted.extend(keepers);
        let is_known = self.table.borrow_mut().given(&id).is_some();
        let searched: &[_] = if walk.wide || !is_known { &[id] } else { &[] };
        let enlisting = self.deletion.enlist(orders, (walk.user, Some(walk.turn)), missing);
        let holding = self.asking.lives_on(self.cluster.others(&[]), searched, (walk.user, true), missing);
        let ((complete, enlisted), held) = join(enlisting, holding).await;
        for (_, life, node) in enlisted.into_iter().filter(|(of, ..)| *of == id) {
            walk.lives.insert(life);
            walk.nodes.insert(node);
        }
        walk.nodes.extend(held.iter().map(|(_, _, node)| *node));
        if walk.wide || !complete {
            walk.nodes.extend(self.cluster.others(&[]));
        }
        // Replicas of this node, and of the one that writes, may not have been published yet.
        walk.nodes.extend([self.kernel.node, walk.successor.node]);
        held.into_iter().map(|(_, life, _)| given_of(life)).collect()
    }

    /// Looks whether the object is the one that is to be replaced, and whether the user may do that.
    fn judge(&self, walk: &mut Walk, found: Vec<Given>) -> Result<(), Error> {
        let (id, to) = (walk.id, walk.successor.holding.life);
        let mut table = self.table.borrow_mut();
        let known = table.given(&id).into_iter().chain(found);
        let known: Vec<_> = known.filter(|one| !table.is_over(&id, one.life)).collect();
        let latest =
            known.iter().copied().reduce(|best, one| if is_later(one.life, best.life) { one } else { best });
        walk.lives.extend(known.iter().map(|one| one.life));
        walk.lives.insert(walk.from);
        walk.lives.retain(|life| *life != NO_LIFE && *life != to && !table.is_over(&id, *life));
        drop(table);
        if walk.is_committed || latest.is_some_and(|latest| latest.life == to) {
            return Ok(());
        }
        let Some(latest) = latest else {
            return Err(Error::new(ErrorKind::NotFound, format!("object {id} is not there to be replaced")));
        };
        latest.ownership.ensure_may_replace(id, walk.user)?;
        let is_changed = latest.life != walk.from && !is_planted(Bug::ExpectedOnceCompared);
        if is_changed || walk.lives.iter().any(|life| is_later(*life, to)) {
            return Err(changed(id, latest.life));
        }
        Ok(())
    }

    /// Has every node guard the lives that has not confirmed that.
    async fn have_guarded(self: &Rc<Self>, walk: &mut Walk, missing: &Missing) {
        if walk.guarded_lives != walk.lives {
            walk.guarded.clear();
            walk.guarded_lives.clone_from(&walk.lives);
        }
        let mut nodes: Vec<_> = walk.nodes.difference(&walk.guarded).copied().collect();
        walk.guarded.extend(&nodes);
        if is_planted(Bug::GuardNotAwaited) {
            nodes.pop();
        }
        let lives: Vec<_> = walk.lives.iter().copied().collect();
        let order = ask::Guard { id: walk.id, lives, turn: walk.turn, lifts: false };
        let asked = nodes.iter().map(|node| self.asking.ask_until_gone(*node, 0, order.clone(), missing));
        futures::future::join_all(asked).await;
        // Clients of a daemon that has died read its table for a while.
        if let Some(end) = self.cluster.tables_of_the_dead() {
            self.kernel.clock.until(end).await;
        }
    }

    /// Notes what this keeper knows by now. Returns whether all nodes that may hold a life have confirmed.
    fn note_known(&self, walk: &mut Walk) -> bool {
        let (held, readers) = self.table.borrow_mut().may_hold(&walk.id);
        let to = walk.successor.holding.life;
        let table = self.table.borrow();
        for (life, node) in
            held.into_iter().filter(|(life, _)| *life != to && !table.is_over(&walk.id, *life))
        {
            walk.lives.insert(life);
            walk.nodes.insert(node);
        }
        walk.nodes.extend(readers);
        walk.lives == walk.guarded_lives && walk.nodes.is_subset(&walk.guarded)
    }

    /// Whether the node that has the successor is the member that it was when it asked.
    fn has_writer(&self, walk: &Walk) -> bool {
        self.cluster.has(walk.successor.node, walk.incarnation)
    }

    /// Has the other keepers bury the lives and note the successor.
    async fn have_noted(self: &Rc<Self>, walk: &Walk, missing: &Missing) {
        let lives: Vec<_> = walk.lives.iter().map(|life| (walk.id, *life)).collect();
        let keepers: Vec<_> = self.deletion.other_keepers(&walk.id).collect();
        let order = ask::Bury { lives, successor: Some(walk.successor.clone()) };
        let told =
            keepers.into_iter().map(|keeper| self.asking.ask_until_gone(keeper, 0, order.clone(), missing));
        futures::future::join_all(told).await;
    }

    /// Switches to the successor here, and sends those to it who waited.
    fn switch(&self, walk: &Walk) {
        let lives: Vec<_> = walk.lives.iter().copied().collect();
        self.enter(&lives, &walk.successor, self.has_writer(walk));
    }

    /// Enters a successor in this keeper's table, and sends those to it who waited.
    fn enter(&self, lives: &[u64], successor: &Successor, has_writer: bool) {
        let (writer, holding) = (successor.node, &successor.holding);
        let others = successor
            .others
            .iter()
            .filter(|(node, incarnation)| *node != writer && self.cluster.has(*node, *incarnation));
        let there = has_writer.then_some(writer).into_iter().chain(others.map(|(node, _)| *node));
        let there: Vec<_> = there.collect();
        let waiters = self.table.borrow_mut().switch(lives, successor, &there, self.kernel.clock.now());
        let Some(holder) = there.first().map(|node| (*node, holding.life)) else { return };
        for waiter in waiters.into_iter().filter(|waiter| waiter.node != holder.0) {
            super::finding::forward_to(&self.network, holder, holding.id, waiter, Vec::new());
        }
    }

    /// Notes, as the second keeper, which object is in the place of others from now on.
    pub(crate) fn on_switch(&self, asked: &Envelope, lives: &[(ObjectId, u64)], successor: &Successor) {
        let id = successor.holding.id;
        if asked.epoch <= self.cluster.epoch() && self.cluster.keepers(&id).first != asked.from {
            return self.network.answer(asked, self.asking.not_the_keeper());
        }
        let lives: Vec<_> = lives.iter().filter(|(of, _)| *of == id).map(|(_, life)| *life).collect();
        self.enter(&lives, successor, self.cluster.is_member(successor.node));
        self.network.answer(asked, Message::Done);
    }

    /// Has the nodes drop the former lives. The turn ends when they have.
    fn have_dropped(self: &Rc<Self>, turn: Turn, walk: &Walk) {
        let mut orders = Orders::default();
        // The node that has the successor puts it in the place of its former replica by itself.
        for node in walk.nodes.iter().filter(|node| **node != walk.successor.node) {
            walk.lives.iter().for_each(|life| orders.add(*node, walk.id, *life));
        }
        let (deletion, enlisted) = (Rc::clone(&self.deletion), self.released(walk));
        self.kernel.spawn(async move {
            let missing = Missing::default();
            let release =
                deletion.order_until_gone(enlisted, |lives| ask::Bury { lives, successor: None }, &missing);
            join(release, deletion.order_until_gone(orders, |lives| ask::Drop { lives }, &missing)).await;
            drop(turn);
        });
    }

    /// Has the nodes lift their guards, and the keepers send askers to the object again.
    fn have_lifted(self: &Rc<Self>, turn: Turn, walk: &Walk) {
        let (asking, deletion, enlisted) =
            (Rc::clone(&self.asking), Rc::clone(&self.deletion), self.released(walk));
        let order = ask::Guard { id: walk.id, lives: Vec::new(), turn: walk.turn, lifts: true };
        let (nodes, is_committed) = (walk.nodes.clone(), walk.is_committed);
        self.kernel.spawn(async move {
            let missing = Missing::default();
            let release =
                deletion.order_until_gone(enlisted, |lives| ask::Bury { lives, successor: None }, &missing);
            let lifts = nodes.iter().map(|node| asking.ask_until_gone(*node, 0, order.clone(), &missing));
            let release = async {
                release.await;
                drop(turn);
            };
            // The guards of the next replacement have another turn, so that these orders do not touch them.
            // If the second keeper may have switched, guards stand until their nodes ask.
            if is_committed {
                return release.await;
            }
            join(release, futures::future::join_all(lifts)).await;
        });
    }

    /// The orders that end the enlistment of nodes.
    fn released(&self, walk: &Walk) -> Orders {
        let mut orders = Orders::default();
        walk.enlisted.iter().for_each(|node| orders.add(*node, walk.id, NO_LIFE));
        orders
    }

    /// The error of a replacement whose nodes have not all confirmed in time.
    fn not_confirmed(&self, id: ObjectId, missing: &Missing) -> Error {
        let nodes: Vec<_> = missing.borrow().iter().map(ToString::to_string).collect();
        match nodes[..] {
            [] => late(id, "clients of a node that has died may still read its table"),
            _ => late(id, &format!("no answer of node {}", nodes.join(", "))),
        }
    }

    /// Answers, as the first keeper, which life of an object is given. The node that creates the object by
    /// leave of this keeper, `creator`, may have sealed it.
    pub(crate) fn on_current(
        self: &Rc<Self>,
        asked: Envelope,
        (id, replaces): (ObjectId, bool),
        creator: Option<NodeId>,
    ) {
        let now = self.kernel.clock.now();
        let held_back = self.table.borrow().is_leaving(&id) || self.table.borrow().holds_back(&id);
        if held_back || !self.asking.decides_for(&asked, &[id]) {
            return self.network.answer(&asked, self.asking.not_the_keeper());
        }
        let given = self.table.borrow_mut().given(&id);
        // Clients of a dead daemon read the object until then.
        let until = if given.is_none() { self.deletion.readable_until(&id, now) } else { None };
        let searched = match self.cluster.is_unsettled(&id, now) {
            true => self.cluster.others(&[]),
            false => creator.into_iter().filter(|_| given.is_none()).collect(),
        };
        if searched.is_empty() && until.is_none() {
            return self.tell_current((&asked, replaces), &id, given);
        }
        let replacement = Rc::clone(self);
        self.kernel.spawn(async move {
            let missing = Missing::default();
            let due = replacement.kernel.clock.now() + super::asking::QUERY_PATIENCE;
            let ids = [id];
            let held = replacement.asking.lives_on(searched, &ids, (asked.user, true), &missing);
            let held = replacement.kernel.clock.bounded(Some(due), held).await;
            let held_back =
                replacement.table.borrow().is_leaving(&id) || replacement.table.borrow().holds_back(&id);
            let Some(held) = held.filter(|_| !held_back && replacement.asking.decides_for(&asked, &[id]))
            else {
                return replacement.network.answer(&asked, replacement.asking.not_the_keeper());
            };
            let given = {
                let mut table = replacement.table.borrow_mut();
                let known = table.given(&id);
                let found = held.into_iter().map(|(_, life, _)| given_of(life));
                let all = known.into_iter().chain(found).filter(|one| !table.is_over(&id, one.life));
                all.reduce(|best, one| match one.life == best.life {
                    // A replica that was made before the number was raised says a smaller one.
                    true => Given { copies: best.copies.max(one.copies), ..best },
                    false if is_later(one.life, best.life) => one,
                    false => best,
                })
            };
            if let Some(until) = until.filter(|_| given.is_none()) {
                replacement.kernel.clock.until(until).await;
            }
            replacement.tell_current((&asked, replaces), &id, given);
        });
    }

    fn tell_current(&self, (asked, replaces): (&Envelope, bool), id: &ObjectId, given: Option<Given>) {
        let may = |ownership: Ownership| match replaces {
            true => ownership.ensure_may_replace(*id, asked.user),
            false => ownership.ensure_may_know(*id, asked.user),
        };
        if let Some(Err(error)) = given.map(|given| may(given.ownership)) {
            return self.network.answer(asked, Message::Refused { error });
        }
        let is_replaced = self.table.borrow().replaced_by(id).is_some();
        let lifted = (!is_replaced).then(|| (self.cluster.epoch(), self.turns.get()));
        let (life, copies) = (given.map(|given| given.life), given.map_or(0, |given| given.copies));
        self.network.answer(asked, Message::Is { life, copies, lifted });
    }
}

/// What a member holds of an object.
fn given_of(Life { life, ownership, copies }: Life) -> Given {
    Given { life, copies, ownership }
}

/// The error of a replacement that did not come to its switch in time.
fn late(id: ObjectId, why: &str) -> Error {
    let text = format!("object {id} was not replaced in time, and stays as it was: {why}");
    Error::new(ErrorKind::TimedOut, text).about(id)
}

/// The error of a replacement of a life that is not there any more.
pub(super) fn changed(id: ObjectId, is: u64) -> Error {
    let text = format!("object {id} is another one by now, of version {is:016x}");
    Error::new(ErrorKind::Conflict, text).about(id).counting(is, 0)
}
