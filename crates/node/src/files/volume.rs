//! A volume at its home: its state, the operations of its sessions, and the tasks that wait for locks. Owns
//! [`Volume`]. Engine thread only.
//!
//! Invariants: all changes go through [`Volume::commit`], which tells mirrors. An operation that changes
//! something is done once, however often it is asked for under its number. Sessions are
//! [watched](super::watch) for what they keep while there are several. Before a second session is let in,
//! nothing is valid any more that the only one was told to keep.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use plasmon::text::printable;
use plasmon::wire::MAX_IDS;
use plasmon::wire::files::{
    Errno, FileAnswer, FileAsked, FileOperation, FileOutcome, Time, VolumeChange, VolumeInfo, VolumeState,
};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::abuse::Blamed;
use super::answer::{gone_folder, kept};
use super::change::{Begun, Change};
use super::credit::Lapsing;
use super::cut::{Operation, Ran, Run};
use super::decide::{Asking, Decision, Limits, decide, who};
use super::frames::{SessionKey, Wish};
use super::inherited::Inherited;
use super::known::Known;
use super::lingering::{Lingering, lacks_room};
use super::log::Log;
use super::state::{FileSession, State};
use super::watch::{News, Waiting, Watchers, stale_of};
use crate::control::records::VolumeRecord;
use crate::kernel::Kernel;
use crate::kernel::random::random_u64;

/// Maximum number of sessions with a file open that are told of changes of its bytes.
const MAX_OPENERS: usize = 8;
/// Maximum number of outcomes that are kept for a session.
const MAX_OUTCOMES: usize = 1 << 14;
/// Maximum number of outcomes that are kept for a session when there is no memory.
const FEW_OUTCOMES: usize = 1 << 8;
/// Maximum number of sessions of a volume.
const MAX_SESSIONS: usize = 1 << 12;

/// A volume whose home this node is.
pub(super) struct Volume {
    pub(super) kernel: Rc<Kernel>,
    /// Name of the volume. It changes if another volume of the name comes back to a new coordinator.
    pub(super) name: RefCell<String>,
    pub(super) number: u32,
    pub(super) owner: u32,
    pub(super) state: RefCell<State>,
    /// Log of changes that mirrors are sent.
    pub(super) log: Log,
    /// Sessions of a former home that have yet to tell their opens, or to be claimed.
    pub(super) inherited: RefCell<Inherited>,
    /// Whether the coordinator is asked for a change of the record, or another node to join.
    pub(super) is_tended: Cell<bool>,
    /// Whether no other node could join when it was last tried.
    pub(super) nobody_joins: Cell<bool>,
    /// Time until which the only session may keep what it was told.
    pub(super) valid_until: Cell<Instant>,
    /// Number of sessions that are about to come.
    coming: Cell<usize>,
    /// Tasks that wait until a lock may have become free.
    waiting: RefCell<Vec<oneshot::Sender<()>>>,
    /// Time when sessions end whose nodes are away, or that no node has claimed so far.
    orphans: RefCell<BTreeMap<u32, Instant>>,
    /// Whether the volume is being removed.
    pub(super) ends: Cell<bool>,
    /// Whether objects of the volume are being deleted by a task that does not wait for silent nodes.
    pub(super) sweeping: Cell<bool>,
    /// Names and inodes that sessions without trust know.
    known: Known,
    /// Objects that are being deleted.
    pub(super) deleting: RefCell<BTreeSet<ObjectId>>,
    pub(super) operations: Cell<u64>,
    pub(super) watchers: RefCell<Watchers>,
    pub(super) blamed: Blamed,
    pub(super) lapsing: RefCell<Lapsing>,
    pub(super) lingering: RefCell<Lingering>,
    /// Number of bytes for which nodes had room when they were asked last.
    pub(super) room: Cell<Option<u64>>,
    pub(super) room_asked: Cell<Option<Instant>>,
}

impl Volume {
    pub(super) fn new(kernel: &Rc<Kernel>, record: &VolumeRecord, state: State, log: Log) -> Self {
        let now = kernel.clock.now();
        Self {
            kernel: Rc::clone(kernel),
            name: RefCell::new(record.name.clone()),
            number: record.volume,
            owner: record.owner,
            state: RefCell::new(state),
            log,
            inherited: RefCell::default(),
            is_tended: Cell::default(),
            nobody_joins: Cell::default(),
            valid_until: Cell::new(now),
            coming: Cell::default(),
            waiting: RefCell::default(),
            orphans: RefCell::default(),
            ends: Cell::default(),
            sweeping: Cell::default(),
            known: Known::default(),
            deleting: RefCell::default(),
            operations: Cell::default(),
            watchers: RefCell::new(Watchers::new(now)),
            blamed: Blamed::default(),
            lapsing: RefCell::new(Lapsing::new(now)),
            lingering: RefCell::default(),
            room: Cell::default(),
            room_asked: Cell::default(),
        }
    }

    /// Returns the time of this node, for inodes.
    pub(super) fn time(kernel: &Kernel) -> Time {
        let since = Duration::from_nanos(kernel.clock.unix_ns());
        Time { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() }
    }

    pub(super) fn info(&self, mirrors: Vec<NodeId>) -> VolumeInfo {
        let (used, inodes) = self.counts();
        let known = self.state.borrow();
        let (now, created) = (Self::time(&self.kernel), known.created);
        let ms = |time: Time| time.seconds * 1000 + i64::from(time.nanos / 1_000_000);
        VolumeInfo {
            name: self.name.borrow().clone(),
            number: self.number,
            owner: self.owner,
            home: self.kernel.node,
            mirrors,
            joining: self.log.joining(),
            state: VolumeState::Served,
            terms: known.terms.clone(),
            used,
            inodes,
            sessions: known.sessions.len() as u32,
            memory: known.memory,
            age_ms: u64::try_from(ms(now) - ms(created)).unwrap_or(0),
        }
    }

    /// Changes the terms of the volume.
    pub(super) fn set(&self, change: VolumeChange) {
        let mut state = self.state.borrow_mut();
        let mut terms = state.terms.clone();
        terms.capacity = change.capacity.unwrap_or(terms.capacity);
        terms.inodes = change.inodes.unwrap_or(terms.inodes);
        terms.user_quota = change.user_quota.unwrap_or(terms.user_quota);
        terms.copies = change.copies.unwrap_or(terms.copies).max(1);
        terms.metadata_copies = change.metadata_copies.unwrap_or(terms.metadata_copies);
        terms.place = change.place.unwrap_or(terms.place);
        terms.shared = change.shared.unwrap_or(terms.shared);
        terms.shared_maps = change.shared_maps.unwrap_or(terms.shared_maps);
        self.commit(&mut state, vec![Change::Terms(terms)]);
    }

    /// Lets credit lapse that sessions do not use, if a turn is over.
    pub(super) fn lapse(&self, now: Instant) {
        let mut state = self.state.borrow_mut();
        let lapsed = self.lapsing.borrow_mut().turn(now, &state);
        self.commit(&mut state, lapsed);
    }

    /// Waits until answers may show all changes so far.
    ///
    /// # Errors
    /// `Disconnected` if this node is not the home any more.
    pub(super) async fn settled(&self) -> Result<(), Error> {
        self.log.settled(self.log.last()).await
    }

    /// Ends the log and wakes all tasks that wait, because this node is not the home any more.
    pub(super) fn depose(&self) {
        self.log.end();
        self.wake();
    }

    /// Makes a session of a node, or lets one go on. Returns the key, and whether the session is new. Waits
    /// first until nothing is valid any more that the only session was told to keep.
    ///
    /// # Errors
    /// `Busy` if there are too many sessions, `NotFound` if the volume is being removed.
    pub(super) async fn attach(
        &self,
        node: NodeId,
        uid: u32,
        wish: Wish,
    ) -> Result<(SessionKey, bool), Error> {
        self.log.ensure_decides(true)?;
        if let Some(key) = wish.again.and_then(|again| self.resume(node, (uid, wish.trusted), again)) {
            return Ok((key, false));
        }
        self.coming.set(self.coming.get() + 1);
        let wait = self.valid_until.get().saturating_duration_since(self.kernel.clock.now());
        if !wait.is_zero() {
            self.kernel.clock.sleep(wait).await;
        }
        self.coming.set(self.coming.get() - 1);
        if self.ends.get() {
            let text = format!("volume '{}' is being removed", printable(&self.name.borrow()));
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        self.log.ensure_decides(true)?;
        let mut state = self.state.borrow_mut();
        if state.sessions.len() >= MAX_SESSIONS || state.last_session >= u32::MAX - 1 {
            let text =
                format!("volume '{}' has {MAX_SESSIONS} sessions already", printable(&self.name.borrow()));
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let secret = random_u64();
        let begun = Begun {
            node,
            secret,
            uid,
            gid: wish.gid,
            groups: wish.groups,
            trusted: wish.trusted,
            checked: wish.checked,
            read_only: wish.read_only,
        };
        self.commit(&mut state, vec![Change::Begin(begun)]);
        Ok((SessionKey { volume: self.number, session: state.last_session, secret }, true))
    }

    fn resume(
        &self,
        node: NodeId,
        (uid, trusted): (u32, bool),
        (session, secret): (u32, u64),
    ) -> Option<SessionKey> {
        let mut state = self.state.borrow_mut();
        let known = state.sessions.get(&session)?;
        if known.secret != secret || (known.uid, known.trusted) != (uid, trusted) {
            self.blame_stranger(&state, (node, uid), &SessionKey { volume: self.number, session, secret });
            return None;
        }
        if known.node != node {
            self.commit(&mut state, vec![Change::Move { session, node }]);
        }
        drop(state);
        // A trusted session tells what it has open. The state has the opens of other sessions.
        if trusted {
            self.inherited.borrow_mut().begin_again(session);
        } else {
            self.told(session);
        }
        self.orphans.borrow_mut().remove(&session);
        Some(SessionKey { volume: self.number, session, secret })
    }

    /// Ends a session.
    pub(super) fn end(&self, session: u32) {
        self.known.forget(session);
        self.watchers.borrow_mut().end(session);
        self.blamed.forget(session);
        self.commit(&mut self.state.borrow_mut(), vec![Change::End { session }]);
        self.told(session);
        self.orphans.borrow_mut().remove(&session);
        self.wake();
    }

    /// Ends the sessions whose nodes have been away for too long, or that no node has claimed for as long.
    /// Returns whether there was one. Further such sessions end at `ends`, unless they are claimed or go on
    /// elsewhere before.
    pub(super) fn end_orphans(
        &self,
        is_member: impl Fn(NodeId) -> bool,
        now: Instant,
        ends: Instant,
    ) -> bool {
        let mut orphans = self.orphans.borrow_mut();
        let inherited = self.inherited.borrow();
        for (number, session) in &self.state.borrow().sessions {
            if is_member(session.node) && !inherited.is_unclaimed(*number) {
                orphans.remove(number);
            } else {
                orphans.entry(*number).or_insert(ends);
            }
        }
        let late: Vec<_> = orphans.iter().filter(|(_, ends)| **ends <= now).map(|(one, _)| *one).collect();
        drop((orphans, inherited));
        late.iter().for_each(|session| self.end(*session));
        !late.is_empty()
    }

    /// Forgets which nodes of sessions are away, because it is this node that is away.
    pub(super) fn forget_orphans(&self) {
        self.orphans.borrow_mut().clear();
    }

    /// Whether a node has the session of this key.
    pub(super) fn knows(&self, node: NodeId, key: &SessionKey) -> bool {
        let state = self.state.borrow();
        let session = state.sessions.get(&key.session);
        session.is_some_and(|session| session.secret == key.secret && session.node == node)
    }

    /// Carries an operation out, unless it waits for a lock, or for sessions that write to a file which it
    /// cuts.
    ///
    /// # Errors
    /// `Fenced` if the session has ended, `Invalid` for a number that was used before, `Disconnected` if this
    /// node does not decide now, or does not know so far what the session has open.
    pub(super) fn run(&self, operation: &Operation<'_>, limits: Limits) -> Result<Run, Error> {
        let Operation { key, asked, .. } = operation;
        let number = asked.number;
        let changes = asked.operation.changes();
        self.log.ensure_decides(changes)?;
        if self.inherited.borrow().has_to_tell(key.session) {
            let text = "the new home of the volume does not know yet what the session has open";
            return Err(Error::new(ErrorKind::Disconnected, text));
        }
        let mut state = self.state.borrow_mut();
        ensure_number(state.sessions.get(&key.session).ok_or_else(ended)?, asked)?;
        state.apply(Change::Answered { session: key.session, number: asked.answered });
        if changes {
            let session = state.sessions.get(&key.session).ok_or_else(ended)?;
            if let Some(outcome) = session.outcomes.get(&number).cloned() {
                self.reopen(&mut state, key.session, number, &outcome);
                // Others may have changed since what it tells.
                let limited = Some(state.terms.are_limited());
                let answer = FileAnswer { limited, ..FileAnswer::of(outcome) };
                return Ok(Run::only(answer, self.watchers.borrow().waits(key.session, number)));
            }
            let most = if state.memory > limits.memory { FEW_OUTCOMES } else { MAX_OUTCOMES };
            if session.outcomes.len() >= most {
                let text =
                    "a session has too many operations of which it did not say that it has their outcome";
                return Err(Error::new(ErrorKind::Busy, text));
            }
        }
        self.operations.set(self.operations.get() + 1);
        self.note_free(limits.free);
        if asked.operation == FileOperation::MakeRoom {
            self.forget_lingering(&mut state);
        }
        let gone = gone_folder(&state, &asked.operation);
        // A lock that another one has is refused with the same error as credit that may come.
        let is_lock = matches!(asked.operation, FileOperation::Lock { .. });
        let lacks_room = |errno| !is_lock && lacks_room(errno);
        let decided = match self.decide(&state, operation, limits)? {
            Err(errno) if lacks_room(errno) && self.forget_lingering(&mut state) => {
                self.decide(&state, operation, limits)?
            }
            decided => decided,
        };
        let decision = match decided {
            Ok(decision) => decision,
            Err(Errno::Again) if matches!(asked.operation, FileOperation::Lock { wait: true, .. }) => {
                return Ok(Run::Waits(News::default()));
            }
            Err(errno) => {
                if lacks_room(errno) {
                    self.lapsing.borrow_mut().note_refused();
                }
                self.blame_refused(&state, key.session, &asked.operation, errno);
                let outcome = FileOutcome::Failed(errno);
                return Ok(Run::only(self.answer(&state, operation, (outcome, None), limits), None));
            }
        };
        if let Some(news) = self.before(&state, operation, &decision) {
            return Ok(Run::Waits(news));
        }
        let (news, waiting) = self.tell_of(&state, operation, &decision);
        let outcome = self.carry_out(&mut state, decision, key.session, asked);
        let answer = self.answer(&state, operation, (outcome, gone), limits);
        Ok(Run::Done(Box::new(Ran { answer, waiting, news })))
    }

    /// Decides about an operation.
    fn decide(
        &self,
        state: &State,
        operation: &Operation<'_>,
        limits: Limits,
    ) -> Result<Result<Decision, Errno>, Error> {
        let Operation { key, asked, .. } = operation;
        let session = state.sessions.get(&key.session).ok_or_else(ended)?;
        let asking = Asking {
            state,
            number: key.session,
            session,
            who: who(session, &asked.actor),
            now: Self::time(&self.kernel),
            limits,
            lingering: &self.lingering.borrow(),
            are_untold: self.others_are_untold(key.session),
        };
        let named = self.known.ensure_named(state, key.session, asked);
        Ok(named.and_then(|()| decide(&asking, asked.operation.clone())))
    }

    /// Returns the news of a decision for other sessions, and what its answer waits for.
    fn tell_of(
        &self,
        state: &State,
        operation: &Operation<'_>,
        decision: &Decision,
    ) -> (News, Option<Waiting>) {
        let by = operation.key.session;
        let stale = if self.is_alone(state) { Vec::new() } else { stale_of(state, &decision.changes) };
        if stale.is_empty() {
            return (News::default(), None);
        }
        let openers = |inode| openers(state, by, inode);
        let now = self.kernel.clock.now();
        self.watchers.borrow_mut().change(now, (by, operation.asked.number), stale, openers)
    }

    /// Whether there is one session, and no other is about to come.
    pub(super) fn is_alone(&self, state: &State) -> bool {
        state.sessions.len() == 1 && self.coming.get() == 0
    }

    /// Carries out a decision about an operation of a session.
    fn carry_out(
        &self,
        state: &mut State,
        decision: Decision,
        session: u32,
        asked: &FileAsked,
    ) -> FileOutcome {
        let Decision { changes, say } = decision;
        // A lock operation that waits is tried again after these changes, or fails if its inode was closed.
        let frees = changes.iter().any(|change| match change {
            Change::Lock { .. } => true,
            Change::Close { inode, .. } => state.locks.contains_key(inode),
            _ => false,
        });
        // A trusted session tells a new home its opens itself, so mirrors need not know them.
        let is_sent = changes.iter().any(|change| change.is_sent(state));
        self.commit(state, changes);
        let outcome = self.known.show(state, session, asked, state.tell(say));
        if asked.operation.changes() && outcome != FileOutcome::NoRoomInline {
            let note = Change::Note { session, number: asked.number, outcome: kept(&outcome) };
            if is_sent {
                self.commit(state, vec![Change::Answered { session, number: asked.answered }, note]);
            } else {
                state.apply(note);
            }
        }
        if frees {
            self.wake();
        }
        outcome
    }

    /// Gives other tasks a turn.
    pub(super) async fn pause(&self) {
        self.kernel.clock.sleep(Duration::ZERO).await;
    }

    /// Returns a future that ends when a lock may have become free.
    pub(super) fn freed(&self) -> oneshot::Receiver<()> {
        let (sender, freed) = oneshot::channel();
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain(|sender| !sender.is_canceled());
        waiting.push(sender);
        freed
    }

    pub(super) fn wake(&self) {
        for sender in self.waiting.take() {
            // The waiting task may have gone.
            _ = sender.send(());
        }
    }

    /// Returns all objects that files of the volume have or had.
    pub(super) fn all_objects(&self) -> Vec<ObjectId> {
        let state = self.state.borrow();
        state.objects.keys().chain(&state.condemned).copied().collect()
    }

    /// Takes some of the objects that no file has any more, to delete them. `None` if there are none left.
    pub(super) fn take_condemned(&self) -> Option<Vec<ObjectId>> {
        let (state, mut deleting) = (self.state.borrow(), self.deleting.borrow_mut());
        let left = state.condemned.iter().filter(|id| !deleting.contains(*id));
        let ids: Vec<_> = left.take(MAX_IDS).copied().collect();
        deleting.extend(&ids);
        (!ids.is_empty()).then_some(ids)
    }

    /// Returns the objects that no file has or will have: their sessions have ended, or have discarded them.
    pub(super) fn swept(&self, ids: Vec<ObjectId>) -> Vec<ObjectId> {
        let state = self.state.borrow();
        let is_left = |id: &ObjectId| {
            let Some((volume, session, counter)) = plasmon::wire::files::parts_of(id) else { return false };
            let is_over = state.sessions.get(&session).is_none_or(|session| counter < session.discarded);
            volume == self.number
                && session <= state.last_session
                && is_over
                && !state.objects.contains_key(id)
        };
        ids.into_iter().filter(is_left).collect()
    }
}

/// Returns the sessions other than `by` that have a file open, or none if they are too many to be told.
fn openers(state: &State, by: u32, inode: u64) -> Vec<u32> {
    let own = state.sessions.get(&by).and_then(|session| session.opens.get(&inode));
    let own = own.map_or(0, |opens| opens.count.into());
    if state.opens.get(&inode).is_none_or(|all| *all <= own) {
        return Vec::new();
    }
    let has = |(session, one): (&u32, &FileSession)| {
        (*session != by && one.opens.contains_key(&inode)).then_some(*session)
    };
    let openers: Vec<_> = state.sessions.iter().filter_map(has).take(MAX_OPENERS + 1).collect();
    if openers.len() > MAX_OPENERS { Vec::new() } else { openers }
}

fn ended() -> Error {
    Error::new(ErrorKind::Fenced, "the session has ended: attach to the volume anew")
}

fn ensure_number(session: &FileSession, asked: &FileAsked) -> Result<(), Error> {
    if asked.number == 0 || asked.number < session.answered || asked.answered > asked.number {
        let text = format!("operation {} of a session was answered before", asked.number);
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}
