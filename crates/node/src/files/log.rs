//! The log of a home: changes that its mirrors are sent, and what they have confirmed. Owns [`Log`]. Engine
//! thread only.
//!
//! The changes of one turn are a batch. Batches are counted. A follower gets what it is sent once and in
//! order, or is lost. A follower that is silent for two leases of the coordinator is lost too, because only
//! this node may be cut off from it.
//!
//! Invariants: a mirror applies a batch as a whole or not at all. An operation is answered when all mirrors
//! have confirmed the batches that the answer shows, and each has confirmed a message of the last second by
//! the clock of this node, so that no other node has become the home.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures::channel::oneshot;
use plasmon::{Error, ErrorKind, NodeId};

use super::change::Change;
use super::frames::{FileFrame, Position};
use super::state::State;
use super::walk::{Parts, SHARE_BYTES, Walk};
use crate::control::records::VolumeRecord;
use crate::kernel::Kernel;

/// Time for which a confirmation lets the home answer, from when the confirmed message was sent.
const LEASE_TIME: Duration = Duration::from_secs(1);
/// Time from the last confirmation of a mirror until it answers as the new home: longer than [`LEASE_TIME`].
const ANSWERS_AFTER_TIME: Duration = Duration::from_millis(1500);
/// Time from the last confirmation of a mirror until it carries out changes as the new home. Nothing that the
/// former home let sessions keep for a second is valid any more then.
const CHANGES_AFTER_TIME: Duration = Duration::from_millis(2500);
/// Time between two beats while a volume is used.
pub(super) const BEAT_INTERVAL: Duration = Duration::from_millis(250);
/// Time between two beats while an answer waits for one.
const SHORT_BEAT_INTERVAL: Duration = Duration::from_millis(20);
/// Time for which a volume counts as used after an operation.
const USE_TIME: Duration = Duration::from_secs(2);
/// Maximum number of batches of a walk that are sent and not confirmed.
const WALK_WINDOW: u64 = 8;

fn ns(span: Duration) -> u64 {
    span.as_nanos() as u64
}

/// Stage of a node that follows the volume.
#[derive(Debug)]
enum Stage {
    /// The node was a mirror of the former home. It has not confirmed so far that it has what this node has.
    Unknown,
    /// The node is being sent the state.
    Walks(Box<Walk>),
    /// The node was sent the state, with everything up to this batch.
    Joined(u64),
    /// The node is a mirror by the record of the volume.
    InSync,
}

/// A node that follows a volume.
#[derive(Debug)]
struct Follower {
    node: NodeId,
    stage: Stage,
    /// Number of the last batch that the follower has.
    confirmed: u64,
    /// Time when the message was sent that the follower confirmed last.
    confirmed_at: u64,
    /// Time when the oldest message was sent that the follower has not confirmed.
    silent_since: Option<u64>,
    /// Whether the follower has gone, or its state differs from that of this node.
    is_lost: bool,
    /// Whether the follower is to be replaced.
    leaves: bool,
    /// Whether the coordinator was asked to enter the follower into the record.
    is_proposed: bool,
}

impl Follower {
    fn new(node: NodeId, stage: Stage, confirmed: u64) -> Self {
        let (is_lost, leaves, is_proposed) = (false, false, false);
        let silent_since = None;
        Self { node, stage, confirmed, confirmed_at: 0, silent_since, is_lost, leaves, is_proposed }
    }

    fn is_walked(&self) -> bool {
        matches!(self.stage, Stage::Walks(_))
    }
}

/// Change of the record of a volume that its home asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The record gets these mirrors.
    Mirrors(Vec<NodeId>),
    /// The mirror becomes the home, and the record gets these mirrors.
    Home(NodeId, Vec<NodeId>),
    /// A node other than these has to join first.
    More(Vec<NodeId>),
    Nothing,
}

/// Facts, beside the followers, that decide about the next record of a volume.
pub(super) struct Around<'a> {
    pub(super) is_member: &'a dyn Fn(NodeId) -> bool,
    /// Number of nodes that are to have the volume.
    pub(super) copies: usize,
    /// Node on which an embedded coordinator runs.
    pub(super) coordinator: Option<NodeId>,
    /// Whether this node is drained, so that it has to give its volumes away.
    pub(super) drains: bool,
    /// Whether no other node could join when it was last tried.
    pub(super) nobody_joins: bool,
}

/// Log of a volume, with its followers.
pub(super) struct Log {
    kernel: Rc<Kernel>,
    /// Whether a log of this node has something to send at the end of the turn.
    gathers: Rc<Cell<bool>>,
    volume: u32,
    /// Number of the record.
    number: Cell<u64>,
    tenure: Cell<u64>,
    /// Number of the last batch that was sent.
    index: Cell<u64>,
    gathered: RefCell<Parts>,
    followers: RefCell<Vec<Follower>>,
    /// Tasks that wait until a batch is confirmed, with the number of the batch.
    waiting: RefCell<Vec<(u64, oneshot::Sender<()>)>>,
    /// Time from which this node answers.
    answers_from: Cell<u64>,
    changes_from: Cell<u64>,
    used_at: Cell<u64>,
    sent_at: Cell<u64>,
    wants_beat: Cell<bool>,
    /// Whether this node is not the home any more.
    is_over: Cell<bool>,
    pub(super) batches: Cell<u64>,
    pub(super) bytes: Cell<u64>,
}

impl Log {
    /// Makes the log of a new volume.
    pub(super) fn new(kernel: &Rc<Kernel>, gathers: &Rc<Cell<bool>>, record: &VolumeRecord) -> Self {
        Self {
            kernel: Rc::clone(kernel),
            gathers: Rc::clone(gathers),
            volume: record.volume,
            number: Cell::new(record.number),
            tenure: Cell::new(record.number),
            index: Cell::default(),
            gathered: RefCell::default(),
            followers: RefCell::default(),
            waiting: RefCell::default(),
            answers_from: Cell::default(),
            changes_from: Cell::default(),
            used_at: Cell::default(),
            sent_at: Cell::default(),
            wants_beat: Cell::default(),
            is_over: Cell::default(),
            batches: Cell::default(),
            bytes: Cell::default(),
        }
    }

    /// Turns the log into that of a mirror that has become the home. `index` is the last batch that the
    /// mirror has, `confirmed_at` the time of its last confirmation.
    pub(super) fn taken_over(self, record: &VolumeRecord, index: u64, confirmed_at: u64) -> Self {
        self.index.set(index);
        self.answers_from.set(confirmed_at + ns(ANSWERS_AFTER_TIME));
        self.changes_from.set(confirmed_at + ns(CHANGES_AFTER_TIME));
        let mirrors = record.mirrors.iter().map(|node| Follower::new(*node, Stage::Unknown, index));
        self.followers.borrow_mut().extend(mirrors);
        self.ask_beat();
        self
    }

    /// Time until this node, as the new home, carries out changes.
    pub(super) fn changes_in(&self) -> Duration {
        Duration::from_nanos(self.changes_from.get().saturating_sub(self.now()))
    }

    fn now(&self) -> u64 {
        self.kernel.clock.boot_ns()
    }

    /// Refuses to answer, or to change something if `changes`, while this node may not.
    ///
    /// # Errors
    /// `Disconnected`.
    pub(super) fn ensure_decides(&self, changes: bool) -> Result<(), Error> {
        let from = if changes { &self.changes_from } else { &self.answers_from };
        self.used_at.set(self.now());
        if self.is_over.get() {
            return Err(over());
        }
        if self.now() >= from.get() {
            return Ok(());
        }
        let text = format!("node {} takes the volume over, and goes on with it soon", self.kernel.node);
        Err(Error::new(ErrorKind::Disconnected, text))
    }

    /// Notes a change that is about to be applied.
    pub(super) fn note(&self, state: &State, change: &Change) {
        let mut followers = self.followers.borrow_mut();
        if followers.is_empty() || !change.is_sent(state) {
            return;
        }
        self.gathers.set(true);
        if followers.iter().any(|follower| !follower.is_walked()) {
            self.gathered.borrow_mut().push(change);
        }
        for follower in followers.iter_mut() {
            if let Stage::Walks(walk) = &mut follower.stage {
                walk.note(state, change);
            }
        }
    }

    /// Number of the batch that has all changes so far.
    pub(super) fn last(&self) -> u64 {
        self.index.get() + u64::from(!self.gathered.borrow().is_empty())
    }

    /// Whether answers may show the changes up to a batch.
    pub(super) fn is_settled(&self, index: u64) -> bool {
        let now = self.now();
        let confirms = |follower: &Follower| match follower.stage {
            Stage::Walks(_) => true,
            Stage::Unknown => false,
            Stage::Joined(_) | Stage::InSync => {
                follower.confirmed >= index && now < follower.confirmed_at.saturating_add(ns(LEASE_TIME))
            }
        };
        !self.is_over.get() && now >= self.answers_from.get() && self.followers.borrow().iter().all(confirms)
    }

    /// Waits until answers may show the changes up to a batch.
    ///
    /// # Errors
    /// `Disconnected` if this node is not the home any more.
    pub(super) async fn settled(&self, index: u64) -> Result<(), Error> {
        while !self.is_settled(index) {
            if self.is_over.get() {
                return Err(over());
            }
            let early = self.answers_from.get().saturating_sub(self.now());
            if early > 0 {
                self.kernel.clock.sleep(Duration::from_nanos(early)).await;
                continue;
            }
            let confirmed = self.confirmed(index);
            // If the log has ended, the loop returns the error.
            _ = confirmed.await;
        }
        Ok(())
    }

    /// Returns a future that ends when a batch may have been confirmed.
    fn confirmed(&self, index: u64) -> oneshot::Receiver<()> {
        let (sender, confirmed) = oneshot::channel();
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain(|(_, sender)| !sender.is_canceled());
        waiting.push((index, sender));
        self.ask_beat();
        confirmed
    }

    fn ask_beat(&self) {
        self.wants_beat.set(true);
        self.gathers.set(true);
    }

    /// Asks for a beat if the volume is used. Called at each interval. Returns whether there are followers.
    pub(super) fn beat(&self) -> bool {
        let now = self.now();
        let is_used =
            now < self.used_at.get().saturating_add(ns(USE_TIME)) || !self.waiting.borrow().is_empty();
        let followers = self.followers.borrow();
        let is_unsettled = followers.iter().any(|follower| !matches!(follower.stage, Stage::InSync));
        if (is_used || is_unsettled) && now >= self.sent_at.get().saturating_add(ns(BEAT_INTERVAL) / 2) {
            self.ask_beat();
        }
        !followers.is_empty()
    }

    fn wake(&self, all: bool) {
        let mut waiting = self.waiting.borrow_mut();
        let done = |(index, _): &mut (u64, oneshot::Sender<()>)| all || self.is_settled(*index);
        for (_, sender) in waiting.extract_if(.., done) {
            // The waiting task may have gone.
            _ = sender.send(());
        }
    }

    /// Ends the log, because this node is not the home any more.
    pub(super) fn end(&self) {
        self.is_over.set(true);
        self.followers.borrow_mut().clear();
        self.gathered.borrow_mut().take();
        self.wake(true);
    }

    /// Sends the changes that have gathered, and beats.
    pub(super) fn flush(&self, state: &State, mut send: impl FnMut(NodeId, FileFrame)) {
        let now = self.now();
        let mut followers = self.followers.borrow_mut();
        let at = |index| Position { volume: self.volume, number: self.number.get(), index };
        let beats =
            self.wants_beat.get() && now >= self.sent_at.get().saturating_add(ns(SHORT_BEAT_INTERVAL));
        let is_unknown = followers.iter().any(|follower| matches!(follower.stage, Stage::Unknown));
        if !is_unknown {
            let index = self.index.get();
            for follower in followers.iter_mut() {
                let has_room = index < follower.confirmed + WALK_WINDOW;
                if let Stage::Walks(walk) = &mut follower.stage
                    && has_room
                    && !walk.is_done()
                {
                    walk.go_on(state, SHARE_BYTES);
                }
            }
        }
        let gathered = !self.gathered.borrow().is_empty()
            || followers.iter().any(|one| matches!(&one.stage, Stage::Walks(walk) if !walk.is_empty()));
        if gathered && !is_unknown {
            let index = self.index.get() + 1;
            self.index.set(index);
            self.batches.set(self.batches.get() + 1);
            let shared = self.gathered.borrow_mut().take();
            for follower in followers.iter_mut() {
                let parts = match &mut follower.stage {
                    Stage::Walks(walk) => {
                        let parts = walk.take();
                        if walk.is_done() {
                            follower.stage = Stage::Joined(index);
                        }
                        parts
                    }
                    _ => shared.clone(),
                };
                let count = parts.len();
                for (number, changes) in parts.into_iter().enumerate() {
                    self.bytes.set(self.bytes.get() + changes.len() as u64);
                    let (at, sent, part, last) = (at(index), now, number as u32, number + 1 == count);
                    send(follower.node, FileFrame::Changes { at, sent, part, last, changes });
                }
            }
        } else if beats && !followers.is_empty() {
            for follower in followers.iter() {
                send(follower.node, FileFrame::Beat { at: at(self.index.get()), sent: now });
            }
        } else {
            return;
        }
        followers.iter_mut().for_each(|follower| _ = follower.silent_since.get_or_insert(now));
        self.wants_beat.set(false);
        self.sent_at.set(now);
    }

    /// Notes a confirmation of a follower.
    pub(super) fn confirm(&self, node: NodeId, at: &Position, sent: u64, is_there: bool) {
        let now = self.now();
        let mut followers = self.followers.borrow_mut();
        let Some(follower) = followers.iter_mut().find(|follower| follower.node == node) else { return };
        if at.number < self.tenure.get() || at.number > self.number.get() || sent > now {
            return;
        }
        let index = self.index.get();
        if !is_there || at.index > index || (matches!(follower.stage, Stage::Unknown) && at.index != index) {
            follower.is_lost = true;
            return;
        }
        if let Stage::Unknown = follower.stage {
            follower.stage = Stage::InSync;
        }
        if follower.is_walked() {
            self.gathers.set(true);
        }
        follower.silent_since = (sent < self.sent_at.get()).then_some(now);
        follower.confirmed = follower.confirmed.max(at.index);
        follower.confirmed_at = follower.confirmed_at.max(sent);
        drop(followers);
        self.wake(false);
    }

    /// Notes that nodes have gone, or were cut off, so that messages to them may be lost.
    pub(super) fn lose(&self, gone: &[NodeId]) {
        for follower in self.followers.borrow_mut().iter_mut() {
            follower.is_lost |= gone.contains(&follower.node);
        }
    }

    /// Notes that a follower is to be replaced.
    pub(super) fn let_go(&self, node: NodeId) {
        let mut followers = self.followers.borrow_mut();
        followers.iter_mut().filter(|one| one.node == node).for_each(|one| one.leaves = true);
    }

    /// Begins to send a node the state.
    pub(super) fn join(&self, node: NodeId, state: &State) {
        let stage = Stage::Walks(Box::new(Walk::new(state)));
        self.followers.borrow_mut().push(Follower::new(node, stage, self.index.get()));
        self.gathers.set(true);
    }

    /// The number of the record.
    pub(super) fn number(&self) -> u64 {
        self.number.get()
    }

    /// Follows a new record by which this node is the home.
    pub(super) fn follow(&self, record: &VolumeRecord) {
        if record.number == self.number.get() {
            return;
        }
        self.number.set(record.number);
        self.followers.borrow_mut().retain_mut(|follower| {
            let is_in = record.mirrors.contains(&follower.node);
            if is_in && matches!(follower.stage, Stage::Joined(_)) {
                follower.stage = Stage::InSync;
            }
            follower.is_proposed = false;
            is_in || (!follower.is_lost && matches!(follower.stage, Stage::Walks(_) | Stage::Joined(_)))
        });
        self.ask_beat();
        self.wake(false);
    }

    /// Counts followers as lost that were silent for `silence`, and forgets those that the record cannot
    /// have.
    pub(super) fn forget_lost(&self, silence: Duration) {
        let mut followers = self.followers.borrow_mut();
        let now = self.now();
        for follower in followers.iter_mut() {
            let is_silent = |since: u64| now >= since.saturating_add(ns(silence));
            follower.is_lost |= follower.silent_since.is_some_and(is_silent);
        }
        followers.retain(|one| {
            !one.is_lost || one.is_proposed || !matches!(one.stage, Stage::Walks(_) | Stage::Joined(_))
        });
        drop(followers);
        self.wake(false);
    }

    /// Returns the change of the record that this home wants next.
    pub(super) fn wanted(&self, around: &Around<'_>) -> Wanted {
        let followers = self.followers.borrow();
        let is_lost = |one: &&Follower| one.is_lost || !(around.is_member)(one.node);
        let stays = |one: &&Follower| !is_lost(one) && !one.leaves;
        let in_record = |one: &&Follower| matches!(one.stage, Stage::Unknown | Stage::InSync);
        let in_sync = |one: &&Follower| matches!(one.stage, Stage::InSync);
        let nodes =
            |those: &mut dyn Iterator<Item = &Follower>| those.map(|one| one.node).collect::<Vec<_>>();
        if followers.iter().filter(in_record).any(|one| is_lost(&one))
            || followers.iter().any(|one| one.is_lost)
        {
            return Wanted::Mirrors(nodes(
                &mut followers.iter().filter(in_record).filter(|one| !is_lost(one)),
            ));
        }
        let joined = |one: &&Follower| matches!(one.stage, Stage::Joined(at) if one.confirmed >= at);
        if followers.iter().filter(joined).any(|one| stays(&one)) {
            let all = |one: &&Follower| in_record(one) || (joined(one) && stays(one));
            return Wanted::Mirrors(nodes(&mut followers.iter().filter(all)));
        }
        let staying = followers.iter().filter(in_sync).filter(stays).count();
        let leaves = |one: &&Follower| one.leaves && in_record(one);
        let wanted = around.copies.max(1 + usize::from(around.drains));
        if followers.iter().any(|one| leaves(&one)) && (staying + 1 >= wanted || around.nobody_joins) {
            return Wanted::Mirrors(nodes(&mut followers.iter().filter(in_record).filter(|one| !one.leaves)));
        }
        if let Some(heir) = followers.iter().filter(in_sync).find(|one| around.drains && stays(one)) {
            let others = followers.iter().filter(in_record).filter(|one| one.node != heir.node);
            return Wanted::Home(heir.node, nodes(&mut others.into_iter()));
        }
        if staying + 1 > wanted {
            // Only the return of the coordinator's node mends its death, so a mirror there is the first to
            // go.
            let is_coordinator = |one: &&Follower| around.coordinator == Some(one.node);
            let spare = followers.iter().filter(in_sync).filter(stays).max_by_key(is_coordinator);
            let spare = spare.map(|one| one.node);
            return Wanted::Mirrors(nodes(
                &mut followers.iter().filter(in_record).filter(|one| Some(one.node) != spare),
            ));
        }
        let coming = followers.iter().filter(|one| stays(one) && !in_record(one)).count();
        if staying + 1 < wanted && coming == 0 {
            return Wanted::More(nodes(&mut followers.iter()));
        }
        Wanted::Nothing
    }

    /// Notes the nodes that the coordinator was asked to enter as mirrors.
    pub(super) fn propose(&self, mirrors: &[NodeId]) {
        for follower in self.followers.borrow_mut().iter_mut() {
            follower.is_proposed |= mirrors.contains(&follower.node);
        }
    }

    /// Returns the followers that are not in the record so far.
    pub(super) fn joining(&self) -> Vec<NodeId> {
        let followers = self.followers.borrow();
        let joining = followers.iter().filter(|one| matches!(one.stage, Stage::Walks(_) | Stage::Joined(_)));
        joining.map(|one| one.node).collect()
    }

    /// Number of answers that wait for mirrors.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.borrow().len() as u64
    }
}

/// Makes the error of a node that is not the home any more.
fn over() -> Error {
    Error::new(ErrorKind::Disconnected, "another node has become the home of the volume")
}
