//! The log of a home: what its mirrors are sent, and what they have confirmed. Engine thread only.
//!
//! The changes of one turn are a batch, which a mirror applies as a whole or not at all. Batches
//! are counted. Nobody is answered before all mirrors have confirmed the batches that the answer is made
//! of, and each of them something that was sent within the last second, by the clock of this node: so no
//! other node has become the home. What one follower is sent arrives once and in order, or the follower is
//! lost. One that is silent for two leases of the coordinator is lost too: this node may not reach it,
//! although others do.

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

/// How long a confirmation lets the home answer, from when that was sent which was confirmed.
const LEASE_TIME: Duration = Duration::from_secs(1);
/// How long after its own last confirmation a mirror answers as the new home: longer than a lease.
const ANSWERS_AFTER_TIME: Duration = Duration::from_millis(1500);
/// How long after its own last confirmation a mirror carries out changes as the new home. By then nothing is
/// valid any more that the former home let sessions keep for a second.
const CHANGES_AFTER_TIME: Duration = Duration::from_millis(2500);
/// Time between two beats while a volume is used.
pub(super) const BEAT_INTERVAL: Duration = Duration::from_millis(250);
/// Time between two beats if somebody waits for one.
const SHORT_BEAT_INTERVAL: Duration = Duration::from_millis(20);
/// How long after an operation a volume counts as used.
const USE_TIME: Duration = Duration::from_secs(2);
/// Maximum number of batches of a walk that are not confirmed.
const WALK_WINDOW: u64 = 8;

fn ns(span: Duration) -> u64 {
    span.as_nanos() as u64
}

/// How far a node is that follows.
#[derive(Debug)]
enum Stage {
    /// The node was a mirror of the former home. It has yet to say that it has what this node has.
    Unknown,
    /// The node is being sent what it lacks.
    Walks(Box<Walk>),
    /// The node was sent everything up to this batch.
    Joined(u64),
    /// The node is a mirror by the record of the volume.
    InSync,
}

/// A node that follows the volume.
#[derive(Debug)]
struct Follower {
    node: NodeId,
    stage: Stage,
    /// Number of the last batch that the follower has.
    confirmed: u64,
    /// Time at which the message was sent that the follower confirmed last.
    confirmed_at: u64,
    /// Time at which the oldest message was sent that the follower has not confirmed.
    silent_since: Option<u64>,
    /// Whether the follower is gone, or differs from this node.
    is_lost: bool,
    /// Whether the follower is to be replaced.
    leaves: bool,
    /// Whether the coordinator was asked to enter it into the record.
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

/// Change of the record of a volume that this node asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// These nodes are to be the mirrors.
    Mirrors(Vec<NodeId>),
    /// This mirror is to be the home, and these nodes the mirrors.
    Home(NodeId, Vec<NodeId>),
    /// A node other than these is to join.
    More(Vec<NodeId>),
    Nothing,
}

/// Facts beside the followers on which the next record of a volume depends.
pub(super) struct Around<'a> {
    pub(super) is_member: &'a dyn Fn(NodeId) -> bool,
    /// Number of nodes that are to have the volume.
    pub(super) copies: usize,
    /// The node of an embedded coordinator.
    pub(super) coordinator: Option<NodeId>,
    /// Whether this node is to have volumes no longer.
    pub(super) drains: bool,
    /// Whether no other node can join.
    pub(super) nobody_joins: bool,
}

/// The log of a volume, and its followers.
pub(super) struct Log {
    kernel: Rc<Kernel>,
    /// Whether a log of this node has something to send at the end of the turn.
    gathers: Rc<Cell<bool>>,
    volume: u32,
    /// The number of the record, and that by which this node became the home.
    number: Cell<u64>,
    tenure: Cell<u64>,
    /// Number of the last batch that was sent.
    index: Cell<u64>,
    gathered: RefCell<Parts>,
    followers: RefCell<Vec<Follower>>,
    /// Tasks that wait until a batch of this number is confirmed.
    waiting: RefCell<Vec<(u64, oneshot::Sender<()>)>>,
    /// From when on this node answers, and changes something.
    answers_from: Cell<u64>,
    changes_from: Cell<u64>,
    used_at: Cell<u64>,
    sent_at: Cell<u64>,
    wants_beat: Cell<bool>,
    /// Whether this node is the home no more.
    is_over: Cell<bool>,
    pub(super) batches: Cell<u64>,
    pub(super) bytes: Cell<u64>,
}

impl Log {
    /// The log of a new volume.
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

    /// The log of a mirror that has become the home, which had the batches up to one and confirmed something
    /// last at a time.
    pub(super) fn taken_over(self, record: &VolumeRecord, index: u64, confirmed_at: u64) -> Self {
        self.index.set(index);
        self.answers_from.set(confirmed_at + ns(ANSWERS_AFTER_TIME));
        self.changes_from.set(confirmed_at + ns(CHANGES_AFTER_TIME));
        let mirrors = record.mirrors.iter().map(|node| Follower::new(*node, Stage::Unknown, index));
        self.followers.borrow_mut().extend(mirrors);
        self.ask_beat();
        self
    }

    /// How long this node changes nothing yet, as the new home.
    pub(super) fn changes_in(&self) -> Duration {
        Duration::from_nanos(self.changes_from.get().saturating_sub(self.now()))
    }

    fn now(&self) -> u64 {
        self.kernel.clock.boot_ns()
    }

    /// Refuses while this node may not decide.
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

    /// The batch with all that was changed so far.
    pub(super) fn last(&self) -> u64 {
        self.index.get() + u64::from(!self.gathered.borrow().is_empty())
    }

    /// Whether what has changed up to a batch may be told.
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

    /// Waits until what has changed up to a batch may be told.
    ///
    /// # Errors
    /// `Disconnected` if this node is the home no more.
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
            // Where the log has gone, the loop finds that it is over.
            _ = confirmed.await;
        }
        Ok(())
    }

    /// A future that ends when a batch may be confirmed.
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

    /// Asks for a beat if the volume is used; called at each interval. Says whether it has followers.
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

    /// Ends the log: this node is the home no more.
    pub(super) fn end(&self) {
        self.is_over.set(true);
        self.followers.borrow_mut().clear();
        self.gathered.borrow_mut().take();
        self.wake(true);
    }

    /// Sends what has gathered, and beats.
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

    /// Notes what a follower has confirmed.
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

    /// Notes that nodes are gone, or were cut off: what they were sent may not have come.
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

    /// Begins to bring a node the state.
    pub(super) fn join(&self, node: NodeId, state: &State) {
        let stage = Stage::Walks(Box::new(Walk::new(state)));
        self.followers.borrow_mut().push(Follower::new(node, stage, self.index.get()));
        self.gathers.set(true);
    }

    /// The number of the record.
    pub(super) fn number(&self) -> u64 {
        self.number.get()
    }

    /// Follows a record by which this node is the home.
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

    /// Counts followers as lost that were silent for so long, and forgets those that the record cannot have.
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

    /// Record of the volume that this home wants next.
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
            // The death of the coordinator's node is one that only its return mends.
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

    /// Notes which nodes the coordinator was asked to enter.
    pub(super) fn propose(&self, mirrors: &[NodeId]) {
        for follower in self.followers.borrow_mut().iter_mut() {
            follower.is_proposed |= mirrors.contains(&follower.node);
        }
    }

    /// Nodes that follow and do not stand in the record yet.
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

/// The error of a home that is none any more.
fn over() -> Error {
    Error::new(ErrorKind::Disconnected, "another node has become the home of the volume")
}
