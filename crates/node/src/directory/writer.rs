//! The node that puts an object in the place of another. Owns [`Writer`]. Engine thread only.
//!
//! The new object is written beside the former one and *withheld*: it is in no table, so that no client finds
//! it, no keeper is told of it and no disk gets it. The first keeper then decides, and tells this node of the
//! switch. Until that answer comes, requests of other nodes for the new object wait. Invariant: the new
//! object is kept until a keeper has said what became of it, however long that takes: from the switch on it
//! may be the only one.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use futures::future::select;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};
use tracing::warn;

use super::arrivals::{Arrivals, Noted};
use super::claims::Claims;
use super::guards::Guards;
use super::replacement::{Replacement, changed};
use super::table::Table;
use crate::kernel::random::HashMap;
use crate::membership::Cluster;
use crate::net::frame::{Holding, Kind, Standing, ask};
use crate::net::members::Incarnation;
use crate::object::{Conflict, Creation, DEEDS, Held, Replica, Role, Sealing};
use crate::store::Store;

/// The pause before a keeper is asked again, or an id looked at again that is being created.
const PAUSE: Duration = Duration::from_millis(5);
/// How long an answer of the keeper may stay away, beyond the time that it has for the replacement.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// The pause before the table of clients is tried again that had no room.
const TABLE_PAUSE: Duration = Duration::from_millis(200);
/// How long the begin of a creation waits for the keeper to refuse it.
const REFUSAL_PATIENCE: Duration = Duration::from_millis(200);
/// How long a get waits for the keeper to say whether a guarded object is still there.
const KEEPER_PATIENCE: Duration = Duration::from_secs(30);

/// The objects of this node that are to take the place of others.
pub(crate) struct Writer {
    replacement: Rc<Replacement>,
    claims: Rc<Claims>,
    guards: Rc<Guards>,
    cluster: Rc<Cluster>,
    store: Rc<Store>,
    table: Rc<RefCell<Table>>,
    arrivals: Rc<Arrivals>,
    /// The lives of which this node does not know whether they have been switched to.
    withheld: Lives,
    /// Cloned by each replacement that is under way.
    under_way: Rc<()>,
}

/// A life of an object that is withheld until this value is dropped. This node hears meanwhile which lives of
/// the object end.
pub(crate) struct Withheld {
    lives: Lives,
    life: (ObjectId, u64),
    _noted: Noted,
}

impl Drop for Withheld {
    /// Wakes the tasks that wait for the end: their senders are dropped.
    fn drop(&mut self) {
        self.lives.borrow_mut().remove(&self.life);
    }
}

/// Lives of objects, each with the tasks that wait until it is withheld no longer.
type Lives = Rc<RefCell<HashMap<(ObjectId, u64), Vec<oneshot::Sender<()>>>>>;

/// A node that has the object of a writer, and is to keep it, with its incarnation.
pub(crate) type Other = (NodeId, Incarnation);

/// Answer of the first keeper about an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    /// The life that is given now; `None` if there is none.
    pub(crate) life: Option<u64>,
    /// Number of nodes that are to keep the object.
    copies: u16,
    /// The guards that are lifted; `None` while the keeper leads a replacement of the object.
    lifted: Option<(u64, u64)>,
}

impl Told {
    /// Whether the keeper leads no replacement of the object.
    pub(crate) fn is_decided(&self) -> bool {
        self.lifted.is_some()
    }
}

/// The outcome of a request for a switch.
enum Switched {
    Done,
    /// Another object is there, or none. It is not known whether this one was in between if the keeper that
    /// was asked first has gone.
    Changed {
        in_doubt: bool,
    },
}

impl Writer {
    pub(super) fn new(
        replacement: &Rc<Replacement>,
        claims: &Rc<Claims>,
        guards: &Rc<Guards>,
        (store, table, arrivals): (&Rc<Store>, &Rc<RefCell<Table>>, &Rc<Arrivals>),
    ) -> Self {
        Self {
            replacement: Rc::clone(replacement),
            claims: Rc::clone(claims),
            guards: Rc::clone(guards),
            cluster: Rc::clone(&replacement.cluster),
            store: Rc::clone(store),
            table: Rc::clone(table),
            arrivals: Rc::clone(arrivals),
            withheld: Lives::default(),
            under_way: Rc::default(),
        }
    }

    /// Number of objects of this node that clients have written and that are to take the place of others.
    pub(crate) fn under_way(&self) -> usize {
        Rc::strong_count(&self.under_way) - 1
    }

    /// Notes that this node has a life of an object that is given to nobody until it is known whether it was
    /// switched to.
    pub(crate) fn withhold(&self, id: ObjectId, life: u64) -> Withheld {
        self.withheld.borrow_mut().entry((id, life)).or_default();
        let noted = Noted::begin(&self.arrivals, id);
        Withheld { lives: Rc::clone(&self.withheld), life: (id, life), _noted: noted }
    }

    /// Whether this node has a life of an object and does not know yet whether it was switched to.
    pub(crate) fn withholds(&self, id: &ObjectId, life: u64) -> bool {
        self.withheld.borrow().contains_key(&(*id, life))
    }

    /// Waits until this node does not withhold a life of an object.
    pub(crate) async fn until_known(&self, id: ObjectId, life: u64) {
        let (sender, ended) = oneshot::channel();
        match self.withheld.borrow_mut().get_mut(&(id, life)) {
            Some(waiting) => waiting.push(sender),
            None => return,
        }
        // The sender is dropped with the life.
        let _ = ended.await;
    }

    /// The lives of these objects of which this node does not know yet whether they were switched to.
    pub(super) fn doubtful(&self, ids: &[ObjectId]) -> Vec<(ObjectId, u64)> {
        self.withheld.borrow().keys().filter(|(id, _)| ids.contains(id)).copied().collect()
    }

    /// Refuses a user who may not replace an object, as far as that is known soon.
    ///
    /// # Errors
    /// `NotAllowed` when the user may not, `Exists` for the name of a region or a service.
    pub(crate) async fn ensure_may_replace(&self, id: ObjectId, user: u32) -> Result<(), Error> {
        let is_refusal = |error: &Error| matches!(error.kind(), ErrorKind::NotAllowed | ErrorKind::Exists);
        if self.cluster.solo() {
            let here = self.store.objects.borrow().get(&id).map(|one| one.ownership());
            return here.map_or(Ok(()), |here| here.ensure_may_replace(id, user));
        }
        let due = self.replacement.kernel.clock.now() + REFUSAL_PATIENCE;
        match self.current(id, (user, true), Some(due)).await {
            Err(error) if is_refusal(&error) => Err(error),
            // The keeper decides when the object is sealed.
            _ => Ok(()),
        }
    }

    /// Asks the first keeper which life of an object is given now, and with `replaces` whether the user may
    /// replace it.
    ///
    /// # Errors
    /// `TimedOut` when no keeper answers. `NotAllowed` when the user may not know or replace the object.
    pub(crate) async fn current(
        &self,
        id: ObjectId,
        (user, replaces): (u32, bool),
        due: Option<Instant>,
    ) -> Result<Told, Error> {
        let left = due.map(|due| due.saturating_duration_since(self.replacement.kernel.clock.now()));
        let patience = left.unwrap_or(KEEPER_PATIENCE).min(KEEPER_PATIENCE);
        let question = |_, _| ask::Current { id, replaces };
        let told = |ask::Is { life, copies, lifted }| vec![Told { life, copies, lifted }];
        let ids = [id];
        let asked = self.replacement.asking.ask_first_keepers(&ids, user, question, told, patience);
        let told = asked.await?.first().map(|(told, _)| *told);
        let told = told.ok_or_else(|| Error::new(ErrorKind::Internal, "no answer for one object"))?;
        self.guards.heard(&id, told.life, told.lifted);
        Ok(told)
    }

    /// Asks about guards that stand for long, or whose keeper has gone; called regularly.
    pub(crate) fn tend(self: &Rc<Self>, now: Instant) {
        if self.cluster.fenced() {
            return;
        }
        for id in self.guards.take_doubtful(now) {
            let writer = Rc::clone(self);
            self.replacement.kernel.spawn(async move {
                let due = Some(writer.replacement.kernel.clock.now() + ANSWER_PATIENCE);
                let here = writer.store.objects.borrow().get(&id).map(|one| one.ownership().user);
                // The next look asks again.
                let _ = writer.current(id, (here.unwrap_or(DEEDS), false), due).await;
            });
        }
    }

    /// Seals an object, in the place of what has its id. With `expected`, only in the place of that life.
    /// `copy` has other nodes bring the object before it is switched to, and returns them. Returns the life
    /// that the object got, and the replica unless it has made way for another already.
    ///
    /// # Errors
    /// `Conflict` when another life is there than was expected, and `NotFound` when none is. `TimedOut`, and
    /// the errors of `copy`: the former object stays. `OutcomeUnknown` when the keeper that was asked has
    /// gone.
    pub(crate) async fn replace(
        &self,
        mut creation: Creation,
        expected: Option<u64>,
        due: Instant,
        mut copy: impl AsyncFnMut(&Creation) -> Result<Vec<Other>, Error>,
    ) -> Result<(u64, Option<Rc<Replica>>), Error> {
        let (id, user) = (creation.head.id, creation.head.user);
        let asked_copies = creation.head.copies;
        let _under_way = Rc::clone(&self.under_way);
        loop {
            let now = self.replacement.kernel.clock.now();
            if self.cluster.solo() {
                if asked_copies > 1 && self.store.objects.borrow().get(&id).is_some() {
                    copy(&creation).await?;
                }
                match self.replace_alone(creation, expected)? {
                    Ok(replica) => return Ok((replica.life, Some(replica))),
                    Err(again) => creation = again,
                }
            } else {
                let told = self.current(id, (user, true), Some(due)).await?;
                match (told.life, expected) {
                    (None, Some(_)) => return Err(absent(id)),
                    (None, None) => {
                        creation.head.copies = asked_copies;
                        match self.put(creation, due).await? {
                            Ok(replica) => return Ok((replica.life, Some(replica))),
                            Err(again) => creation = again,
                        }
                    }
                    (Some(is), Some(expected)) if is != expected => return Err(changed(id, is)),
                    (Some(from), _) => {
                        creation.head.life = self.replacement.kernel.lives.successor(from);
                        // As many nodes keep the object as kept the former one.
                        creation.head.copies = if asked_copies == 0 { told.copies } else { asked_copies };
                        let _withheld = self.withhold(id, creation.head.life);
                        let others = copy(&creation).await?;
                        match self.ask_to_switch(&creation, (from, others), due).await? {
                            Switched::Done => return self.switched(creation, from).await,
                            Switched::Changed { in_doubt: true } => return Err(in_doubt(id)),
                            Switched::Changed { in_doubt: false } => {}
                        }
                    }
                }
            }
            if now >= due {
                let text =
                    format!("object {id} was not replaced in time, and stays as it was: others replace it");
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
            self.replacement.kernel.clock.sleep(PAUSE).await;
        }
    }

    /// Asks the first keeper for the switch, until it has decided.
    async fn ask_to_switch(
        &self,
        creation: &Creation,
        (from, others): (u64, Vec<Other>),
        due: Instant,
    ) -> Result<Switched, Error> {
        let head = &creation.head;
        let holding = Holding {
            id: head.id,
            standing: Standing::Primary,
            copies: head.copies,
            life: head.life,
            ownership: head.ownership(),
            kind: Kind::Object,
        };
        let clock = &self.replacement.kernel.clock;
        let incarnation = self.replacement.kernel.incarnation.get();
        let mut in_doubt = false;
        loop {
            let left = due.saturating_duration_since(clock.now());
            // A keeper that went may have had the switch noted. The next one needs time to say so.
            let left = if in_doubt { left.max(ANSWER_PATIENCE) } else { left };
            // The others drop their copies when this node is no member. The keepers have new ones made.
            let are_kept = incarnation == self.replacement.kernel.incarnation.get();
            let others = if are_kept { others.clone() } else { Vec::new() };
            let patience_us = left.as_micros() as u64;
            let question = ask::Replace { holding, from, others, patience_us };
            let keeper = self.cluster.keepers(&head.id).first;
            let next_view = self.cluster.next_view();
            if !self.cluster.fenced() {
                let network = &self.replacement.network;
                match network.ask(keeper, head.user, question, left + ANSWER_PATIENCE).await {
                    Ok(ask::Done) => return Ok(Switched::Done),
                    Err(error) => match error.kind() {
                        ErrorKind::Conflict | ErrorKind::NotFound => {
                            return Ok(Switched::Changed { in_doubt });
                        }
                        // The keeper is not the first, or not any more.
                        ErrorKind::Busy => {}
                        ErrorKind::Disconnected | ErrorKind::Internal => in_doubt = true,
                        // The keeper says this of the replacement: it is no silence.
                        ErrorKind::TimedOut if error.id().is_some() && !in_doubt => return Err(error),
                        ErrorKind::TimedOut => in_doubt = true,
                        _ => return Err(error),
                    },
                }
            }
            select(next_view, std::pin::pin!(clock.sleep(PAUSE))).await;
        }
    }

    /// Shows the new object to everybody, since it was switched to. While there is no room for it in the
    /// table of clients, this waits: there is no way back.
    async fn switched(&self, creation: Creation, from: u64) -> Result<(u64, Option<Rc<Replica>>), Error> {
        let (id, life, client) = (creation.head.id, creation.head.life, creation.client);
        self.arrivals.end_life(&id, from);
        let mut sealing = self.sealing(creation);
        loop {
            if self.arrivals.has_ended(&id, life) {
                // Another has taken its place already, or it was deleted.
                let is_former = self.store.objects.borrow().get(&id).is_some_and(|one| one.life == from);
                if is_former {
                    self.store.remove(&id);
                }
                self.store.quotas.borrow_mut().forget(&sealing.head, client);
                return Ok((life, None));
            }
            match self.store.supersede(sealing, (self.guards.covers(&id, life), true)) {
                Ok(replica) => return Ok((life, Some(replica))),
                Err(not) => {
                    warn!(object = %id, error = %not.error, "a new object cannot be shown yet");
                    sealing = *not.sealing;
                    self.replacement.kernel.clock.sleep(TABLE_PAUSE).await;
                }
            }
        }
    }

    /// The new object as a primary of this node.
    fn sealing(&self, Creation { head, extent, client, .. }: Creation) -> Sealing {
        let (bytes, created) = (Held::Memory(extent), self.replacement.kernel.clock.unix_ms());
        Sealing { head, role: Role::Primary, creator: Some(client), bytes, created }
    }

    /// Seals the new object, which replaces another or not, in the place of the replica that is here, if
    /// there is one.
    fn seal(&self, creation: Creation, replaces: bool) -> Result<Rc<Replica>, Error> {
        self.store.supersede(self.sealing(creation), (false, replaces)).map_err(|not| not.error)
    }

    /// Puts the object, since there is none of its id. Returns the creation if there is one by now.
    async fn put(
        &self,
        mut creation: Creation,
        due: Instant,
    ) -> Result<Result<Rc<Replica>, Creation>, Error> {
        let (id, user) = (creation.head.id, creation.head.user);
        let left = due.saturating_duration_since(self.replacement.kernel.clock.now());
        let claim = match self.claims.claim(id, user, left.max(PAUSE)).await {
            Ok(claim) => claim,
            Err(error) if error.kind() == ErrorKind::Exists => return Ok(Err(creation)),
            Err(error) => return Err(error),
        };
        match self.claims.ascertain(claim, user, left.max(PAUSE)).await {
            Ok(claim) if self.store.objects.borrow().conflict(&id).is_none() => {
                creation.head.life = self.replacement.kernel.lives.draw();
                let replica = self.seal(creation, false)?;
                claim.fulfil();
                Ok(Ok(replica))
            }
            Ok(_) => Ok(Err(creation)),
            Err(error) if error.kind() == ErrorKind::Exists => Ok(Err(creation)),
            Err(error) => Err(error),
        }
    }

    /// Replaces an object on a node that decides alone. Returns the creation while the id is being created.
    fn replace_alone(
        &self,
        mut creation: Creation,
        expected: Option<u64>,
    ) -> Result<Result<Rc<Replica>, Creation>, Error> {
        let id = creation.head.id;
        let former = self.store.objects.borrow().get(&id).cloned();
        if let Some(former) = former {
            former.ownership().ensure_may_replace(id, creation.head.user)?;
            if expected.is_some_and(|expected| expected != former.life) {
                return Err(changed(id, former.life));
            }
            creation.head.life = self.replacement.kernel.lives.successor(former.life);
            if creation.head.copies == 0 {
                creation.head.copies = former.copies();
            }
            let replica = self.seal(creation, true)?;
            self.table.borrow_mut().bury(id, former.life, self.replacement.kernel.clock.now());
            return Ok(Ok(replica));
        }
        if expected.is_some() {
            return Err(absent(id));
        }
        if matches!(self.store.objects.borrow().conflict(&id), Some(Conflict::Creating { .. })) {
            return Ok(Err(creation));
        }
        creation.head.life = self.replacement.kernel.lives.draw();
        self.seal(creation, false).map(Ok)
    }
}

fn absent(id: ObjectId) -> Error {
    let text = format!("object {id} is not there, so that it is not the version that was expected");
    Error::new(ErrorKind::NotFound, text).about(id)
}

fn in_doubt(id: ObjectId) -> Error {
    let text = format!(
        "it is not known whether object {id} was replaced by this call: the keeper that decides about it \
         left before it answered, and another object, or none, is there now"
    );
    Error::new(ErrorKind::OutcomeUnknown, text).about(id)
}
