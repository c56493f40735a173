//! Copies of an object that is to take the place of another, on the other nodes that are to keep it. They are
//! made *ahead*: nodes have them before the switch, so that no single death loses both objects.
//!
//! Owns [`Ahead`], the copies on this node, and [`Copies`], the copies of one object of this node on others.
//! Engine thread only. The node of the writer says where its object lies, and others read it there. A copy is
//! *withheld* ([`writer`](crate::directory::writer)) until its node has heard what became of the object: from
//! the node of the writer, or from the first keeper, which it asks too, since the writer may be gone.
//! Invariants: the writer's object stays in its place until each node that reads it has answered or is no
//! member; otherwise it is never switched to. A copy ends with the incarnation in which its node has made it,
//! and keepers count it only for that incarnation.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::{join_all, select};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};
use tracing::warn;

use super::replication::candidates;
use crate::directory::writer::{Other, Withheld};
use crate::kernel::lives::is_later;
use crate::kernel::random::HashMap;
use crate::memory::Extent;
use crate::net::frame::{Ask, Envelope, Location, Message, ask};
use crate::net::members::Incarnation;
use crate::net::sending::describe_segments;
use crate::net::stands_still;
use crate::object::{Creation, DEEDS, Head, Held, NotSealed, Role, Sealing};
use crate::placement::Placement;
use crate::transfer::{bring_unsealed, locate};

/// The pause before a node is asked again that did not answer, or a copy is looked at that is on its way.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a node may take to answer what it does at once.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Time after which the keeper is first asked what became of a copy. Each further time is twice as long.
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// The longest time before the keeper is asked again.
const LONGEST_LOOK: Duration = Duration::from_secs(2);

/// The copies on this node of objects of other nodes that are to take the place of others, by life.
#[derive(Default)]
pub(super) struct Ahead(RefCell<HashMap<(ObjectId, u64), State>>);

enum State {
    /// The bytes are on their way.
    Coming,
    Here(Box<Copy>),
}

/// A copy on this node.
struct Copy {
    head: Head,
    extent: Extent,
    /// The node that wrote the object.
    writer: Other,
    /// The incarnation of this node that has made the copy.
    made_in: Incarnation,
    _withheld: Withheld,
}

impl Ahead {
    fn is_coming(&self, key: &(ObjectId, u64)) -> bool {
        matches!(self.0.borrow().get(key), Some(State::Coming))
    }

    /// Whether this node is to have a copy of a life.
    fn has(&self, key: &(ObjectId, u64)) -> bool {
        self.0.borrow().contains_key(key)
    }

    /// Takes a copy out that `is_it` finds to be the one.
    fn take_if(&self, key: &(ObjectId, u64), is_it: impl FnOnce(&Copy) -> bool) -> Option<Copy> {
        let is = matches!(self.0.borrow().get(key), Some(State::Here(copy)) if is_it(copy));
        is.then(|| self.take(key)).flatten()
    }

    /// Takes a copy out.
    fn take(&self, key: &(ObjectId, u64)) -> Option<Copy> {
        match self.0.borrow_mut().remove(key)? {
            State::Here(copy) => Some(*copy),
            State::Coming => None,
        }
    }
}

impl Placement {
    /// Number of copies on this node that were made ahead.
    pub(crate) fn copies_ahead(&self) -> usize {
        self.ahead.0.borrow().len()
    }

    /// Brings an object of the sender's, and withholds it.
    pub(crate) fn on_withhold(self: &Rc<Self>, asked: Envelope, head: Head, was: u64, pieces: Vec<Location>) {
        let placement = Rc::clone(self);
        self.kernel.spawn(async move {
            let message = match placement.withhold(&asked, head, was, &pieces).await {
                Ok(()) => Message::Done,
                Err(error) => Message::Refused { error },
            };
            placement.network.answer(&asked, message);
        });
    }

    async fn withhold(
        self: &Rc<Self>,
        asked: &Envelope,
        head: Head,
        was: u64,
        pieces: &[Location],
    ) -> Result<(), Error> {
        let (id, key) = (head.id, (head.id, head.life));
        if self.is_draining() {
            let text = format!("node {} is being drained and takes nothing new", self.kernel.node);
            return Err(Error::new(ErrorKind::NotAllowed, text));
        }
        // The node that asks may not have heard the answer to its first request.
        while self.ahead.is_coming(&key) {
            self.kernel.clock.sleep(PAUSE).await;
        }
        if self.ahead.has(&key) {
            return Ok(());
        }
        let (writer, made_in) = ((asked.from, asked.incarnation), self.kernel.incarnation.get());
        let withheld = self.directory.writer.withhold(id, head.life);
        let is_same =
            |copy: &Copy| (copy.writer, copy.made_in, copy.head.len()) == (writer, made_in, head.len());
        let extent = match self.ahead.take_if(&(id, was), is_same) {
            Some(copy) => copy.extent,
            None => {
                self.ahead.0.borrow_mut().insert(key, State::Coming);
                // The writer may give its object up, or go, meanwhile.
                let is_wanted = || {
                    let is_same = made_in == self.kernel.incarnation.get();
                    is_same && self.ahead.is_coming(&key) && self.cluster.has_sender(asked)
                };
                let mut bringing = pin!(bring_unsealed(&self.transfer, asked.from, &head, pieces));
                let brought = loop {
                    let look = Some(self.kernel.clock.now() + FIRST_LOOK);
                    let brought = self.kernel.clock.bounded(look, bringing.as_mut()).await;
                    if brought.is_some() || !is_wanted() {
                        break brought.filter(|_| is_wanted());
                    }
                };
                self.ahead.0.borrow_mut().remove(&key);
                brought.ok_or_else(|| {
                    let text = format!("node {} needs no copy of object {id} any more", self.kernel.node);
                    Error::new(ErrorKind::NotFound, text)
                })??
            }
        };
        let copy = Copy { head, extent, writer, made_in, _withheld: withheld };
        self.ahead.0.borrow_mut().insert(key, State::Here(Box::new(copy)));
        self.watch(key);
        Ok(())
    }

    /// Hears from the writer's node what became of an object that this node withholds.
    pub(crate) fn on_unveil(self: &Rc<Self>, asked: &Envelope, key: (ObjectId, u64), shows: bool) {
        if shows {
            // The copy stays if it cannot be shown yet.
            self.unveil(&key);
        } else {
            self.ahead.0.borrow_mut().remove(&key);
        }
        self.network.answer(asked, Message::Done);
    }

    /// Shows a copy, since its life was switched to. Returns whether it is withheld no longer.
    fn unveil(self: &Rc<Self>, key: &(ObjectId, u64)) -> bool {
        let (id, life) = *key;
        let (here, is_created) = {
            let objects = self.store.objects.borrow();
            (objects.get(&id).cloned(), objects.creation(&id).is_some())
        };
        if is_created || self.ahead.is_coming(key) {
            return false;
        }
        if self.directory.arrivals.has_ended(&id, life) {
            self.ahead.take(key);
            return true;
        }
        let Some(Copy { head, extent, writer, made_in, _withheld }) = self.ahead.take(key) else {
            return true;
        };
        let replica = match here {
            Some(here) if here.life == life => {
                here.set_copies(head.copies);
                self.store.set_role(&here, Role::Kept);
                here
            }
            Some(here) if is_later(here.life, life) => return true,
            _ => {
                let (bytes, created) = (Held::Memory(extent), self.kernel.clock.unix_ms());
                let sealing = Sealing { head, role: Role::Kept, creator: None, bytes, created };
                let is_guarded = self.directory.guards.covers(&id, life);
                match self.store.supersede(sealing, (is_guarded, false)) {
                    Ok(replica) => replica,
                    Err(NotSealed { error, sealing }) => {
                        warn!(object = %id, %error, "a copy of a new object cannot be shown yet");
                        let Sealing { head, bytes: Held::Memory(extent), .. } = *sealing else { return true };
                        let copy = Copy { head, extent, writer, made_in, _withheld };
                        self.ahead.0.borrow_mut().insert(*key, State::Here(Box::new(copy)));
                        return false;
                    }
                }
            }
        };
        self.note_expiry(&replica);
        true
    }

    /// Asks the first keeper what became of a copy, until it is withheld no longer.
    fn watch(self: &Rc<Self>, key: (ObjectId, u64)) {
        let placement = Rc::clone(self);
        self.kernel.spawn(async move {
            let mut look = FIRST_LOOK;
            loop {
                let next_view = placement.cluster.next_view();
                select(next_view, pin!(placement.kernel.clock.sleep(look))).await;
                look = (2 * look).min(LONGEST_LOOK);
                if placement.is_settled(&key).await {
                    return;
                }
            }
        });
    }

    /// Whether a copy is withheld no longer, after the first keeper was asked. If that knows nothing of it,
    /// the writer is asked too, whether it knows what became of its object.
    async fn is_settled(self: &Rc<Self>, key: &(ObjectId, u64)) -> bool {
        let (writer, made_in, user) = match self.ahead.0.borrow().get(key) {
            Some(State::Here(copy)) => (copy.writer, copy.made_in, copy.head.user),
            Some(State::Coming) | None => return true,
        };
        let (id, life) = *key;
        if made_in != self.kernel.incarnation.get() {
            self.ahead.take(key);
            return true;
        }
        if self.cluster.fenced() || self.cluster.withholds() {
            return false;
        }
        // No replacement is begun any more of a writer that has gone, but one may be under way.
        let mut is_over = !self.cluster.has(writer.0, writer.1);
        loop {
            let due = Some(self.kernel.clock.now() + LONGEST_LOOK);
            let Ok(told) = self.directory.writer.current(id, (user, false), due).await else { return false };
            let is = told.life;
            if is == Some(life) {
                return self.unveil(key);
            }
            if is_over && told.is_decided() || is.is_some_and(|is| is_later(is, life)) {
                self.ahead.take(key);
                return true;
            }
            if is_over {
                return false;
            }
            let known = ask::Known { id, life };
            if self.network.ask(writer.0, user, known, LONGEST_LOOK).await.is_err() {
                return false;
            }
            is_over = true;
        }
    }

    /// Answers whether this node knows what became of a life that it has written.
    pub(crate) fn on_known(&self, asked: &Envelope, id: ObjectId, life: u64) {
        let message = match self.directory.writer.withholds(&id, life) {
            true => {
                let text = format!("it is not known yet what becomes of the new object {id}");
                Message::Refused { error: Error::new(ErrorKind::Busy, text) }
            }
            false => Message::Done,
        };
        self.network.answer(asked, message);
    }
}

/// The copies of an object of this node on other nodes, while it is to take the place of another.
pub(crate) struct Copies {
    placement: Rc<Placement>,
    /// Number of nodes that the writer wants to keep the object; 0 if it does not say.
    wish: u16,
    /// The life by which nodes have their copies.
    life: u64,
    others: Vec<Other>,
    /// The nodes that may have a copy, and by which life.
    asked: BTreeSet<(NodeId, u64)>,
}

impl Copies {
    /// Begins with no copy of an object that is to be kept by `wish` nodes.
    pub(crate) fn new(placement: &Rc<Placement>, wish: u16) -> Self {
        Self { placement: Rc::clone(placement), wish, life: 0, others: Vec::new(), asked: BTreeSet::new() }
    }

    /// Has as many other nodes bring an object as are to keep it beside this one, or as there are if the
    /// writer does not say how many. Returns them.
    ///
    /// # Errors
    /// `TooFew` if fewer can keep it, `TimedOut` when they do not have it at `due`.
    pub(crate) async fn bring(&mut self, creation: &Creation, due: Instant) -> Result<Vec<Other>, Error> {
        let placement = Rc::clone(&self.placement);
        let (head, cluster) = (&creation.head, &placement.cluster);
        let members = cluster.view.borrow().members.len();
        let copies = usize::from(head.copies.max(1));
        let wanted = if self.wish == 0 { copies.min(members) } else { copies } - 1;
        let was = std::mem::replace(&mut self.life, head.life);
        let had: Vec<_> = self.others.drain(..).map(|(node, _)| node).collect();
        let known: Vec<_> = had.iter().copied().chain([placement.kernel.node]).collect();
        let mut further = candidates(&head.id, cluster.others(&known), &[]);
        further.sort_by_key(|node| stands_still(&placement.network, *node));
        let mut left = had.into_iter().chain(further);
        let mut failed = Vec::new();
        let pieces = locate(&placement.store, &creation.extent);
        let question = ask::Withhold { head: head.clone(), was, pieces: pieces.clone() };
        while self.others.len() < wanted {
            let next: Vec<_> = left.by_ref().take(wanted - self.others.len()).collect();
            if next.is_empty() {
                return Err(too_few(head.id, copies, self.others.len() + 1, &failed));
            }
            self.asked.extend(next.iter().map(|node| (*node, head.life)));
            let asked = next
                .iter()
                .map(|node| ask_member(&placement, *node, head.user, (question.clone(), &pieces), Some(due)));
            for (node, done) in next.iter().zip(join_all(asked).await) {
                match done {
                    Ok(incarnation) => {
                        self.asked.retain(|(has, life)| has != node || *life == head.life);
                        self.others.push((*node, incarnation));
                    }
                    Err(error) if error.kind() == ErrorKind::TimedOut => return Err(late(head.id, *node)),
                    Err(error) => failed.push((*node, error)),
                }
            }
        }
        Ok(self.others.clone())
    }

    /// Tells the nodes which life is there in the end, if it is one of this object; they drop other copies.
    pub(crate) fn end(self, id: ObjectId, shown: Option<u64>) {
        for (node, life) in self.asked {
            let placement = Rc::clone(&self.placement);
            let order = ask::Unveil { id, life, shows: shown == Some(life) };
            self.placement.kernel.spawn(async move {
                // A node that is no member any more drops its copies by itself.
                let _ = ask_member(&placement, node, DEEDS, (order, &[]), None).await;
            });
        }
    }
}

/// Asks a member until it answers, is another one, or `due` has come. It may read the pieces of this node's
/// memory that the question names. Returns the incarnation that answered.
///
/// # Errors
/// Those of the answer; `Disconnected` when the node is no member, and `TimedOut` at `due`.
async fn ask_member<Q: Ask + Clone>(
    placement: &Rc<Placement>,
    node: NodeId,
    user: u32,
    (question, pieces): (Q, &[Location]),
    due: Option<Instant>,
) -> Result<Incarnation, Error> {
    let (cluster, clock) = (&placement.cluster, &placement.kernel.clock);
    let gone = || Error::new(ErrorKind::Disconnected, format!("node {node} has left the cluster"));
    let incarnation = cluster.incarnation(node).ok_or_else(gone)?;
    while cluster.has(node, incarnation) {
        let left = due.map(|due| due.saturating_duration_since(clock.now()));
        if left == Some(Duration::ZERO) {
            return Err(Error::new(ErrorKind::TimedOut, format!("node {node} did not answer in time")));
        }
        let next_view = cluster.next_view();
        let patience = left.unwrap_or(ANSWER_PATIENCE);
        describe_segments(&placement.network, node, pieces);
        match placement.network.ask(node, user, question.clone(), patience).await {
            Ok(_) if cluster.has(node, incarnation) => return Ok(incarnation),
            Ok(_) => {}
            Err(error) => match error.kind() {
                ErrorKind::Disconnected | ErrorKind::TimedOut => {
                    _ = select(next_view, pin!(clock.sleep(PAUSE))).await;
                }
                _ => return Err(error),
            },
        }
    }
    Err(gone())
}

fn late(id: ObjectId, node: NodeId) -> Error {
    let text = format!(
        "object {id} was not replaced in time, and stays as it was: node {node}, which is to keep the new \
         one too, does not have it yet"
    );
    Error::new(ErrorKind::TimedOut, text).about(id)
}

fn too_few(id: ObjectId, copies: usize, keeping: usize, failed: &[(NodeId, Error)]) -> Error {
    let mut text = format!(
        "object {id} was not replaced, and stays as it was: {keeping} of {copies} nodes can keep the new one"
    );
    for (node, error) in failed.iter().take(3) {
        text += &format!("; node {node}: {error}");
    }
    Error::new(ErrorKind::TooFew, text).about(id).counting(copies as u64, keeping as u64)
}
