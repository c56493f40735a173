//! Locks as a service: their frames, their requests and calls by slot, and their reactions to events. The
//! state is that of `Locks`. Engine thread only.

use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::shared::{CallRequest, CallResult, LEASES};
use plasmon::status::{LocksStatus, Status};
use plasmon::sync::{LockInfo, MAX_TTL, MIN_TTL, lock_id};
use plasmon::wire::{BySlot, Reply, Request, SyncCall, Table, WireError};
use plasmon::{Error, ErrorKind, NodeId};

use super::Locks;
use super::frames::{Numbered, Row, SYNC_FRAMES, SyncFrame, ask};
use super::home::Source;
use super::lock::End;
use super::tickets::Named;
use crate::kernel::ClientKey;
use crate::membership::views::{Change, ViewChange};
use crate::net::frame::{Envelope, Frames, Message};
use crate::service::{Answer, Asked, Return, Service};

/// Number of bytes of rows from which on a page of a list ends.
const PAGE_BYTES: usize = 4 << 10;
/// How long another node may take to list its locks.
const LIST_PATIENCE: Duration = Duration::from_secs(30);
/// How long a home may take to learn which locks are held before it renews leases.
const PREPARING: Duration = Duration::from_secs(4);

impl Service for Locks {
    fn name(&self) -> &'static str {
        "locks and barriers"
    }

    fn frames(&self) -> RangeInclusive<u8> {
        SYNC_FRAMES
    }

    fn requests(&self) -> RangeInclusive<u8> {
        130..=139
    }

    fn calls(&self) -> RangeInclusive<u8> {
        SyncCall::FIRST..=SyncCall::LAST
    }

    fn on_frame(self: Rc<Self>, mut frame: Envelope) -> Result<(), WireError> {
        if !frame.answers && frame.reply_to != frame.from {
            return Err(WireError::Malformed("frame about a lock: its answer is for another node"));
        }
        let message = std::mem::replace(&mut frame.message, Message::Done);
        self.act(frame, SyncFrame::from_message(message)?);
        Ok(())
    }

    fn on_request(self: Rc<Self>, asked: Asked) -> Result<Answer, WireError> {
        let client = asked.session;
        Ok(match asked.request {
            Request::OpenLock { name, public, ttl_ms } => {
                Answer::now(self.open(client, name, public, ttl_ms))
            }
            Request::CloseLock { lock } => {
                self.handles.close(client, lock);
                Answer::now(Ok(Reply::Done))
            }
            Request::OpenLeases => {
                let opened = self.guards.open(client);
                Answer::Now(opened.map(|file| (Reply::Leases { words: LEASES as u32 }, vec![file])))
            }
            Request::OpenBarrier { name, public, parties, timeout_us } => {
                Answer::plain(1, self.open_barrier(client, name, public, parties, timeout_us))
            }
            Request::CloseBarrier { barrier } => Answer::plain(1, self.close_barrier(client, barrier)),
            Request::ListLocks { node, from } => Answer::plain(1, self.list(client, node, from)),
            other => return Err(WireError::Opcode(other.opcode())),
        })
    }

    fn on_call(self: Rc<Self>, client: ClientKey, request: CallRequest) -> Return {
        match SyncCall::decode(request.opcode, request.arguments, &request.payload) {
            Some(SyncCall::Lock { lock, ticket, shared }) => {
                self.lock(client, (lock, ticket, shared), request.timeout_us)
            }
            Some(SyncCall::Unlock { ticket }) => self.unlock((client, ticket)),
            Some(SyncCall::Keep) => {
                self.note_alive(client);
                Return::Now(Ok(CallResult::of(&[])))
            }
            Some(SyncCall::Arrive { barrier, .. }) => self.arrive(client, barrier, request.timeout_us),
            None => Return::unknown(request.opcode),
        }
    }

    fn on_change(self: Rc<Self>, change: &Change) {
        match change {
            Change::View(view) => self.follow(view),
            Change::Records => {}
            Change::FormerLives(lives) => self.home.meet(lives),
            Change::Fenced { .. } => {
                self.home.clear();
                self.barriers.clear();
                self.meetings.break_all("its node is not a member any more");
                self.end_guards("this node is not a member any more");
            }
        }
    }

    fn on_session_end(&self, client: ClientKey) {
        self.end_client(client);
        if let Some(locks) = self.own.upgrade() {
            locks.end_parties(client);
        }
    }

    fn on_tick(self: Rc<Self>, _: Instant) {
        self.home.on_tick();
        self.meetings.forget(self.now());
    }

    fn on_turn_end(self: Rc<Self>) -> bool {
        self.begin_takeover();
        false
    }

    fn report(&self, status: &mut Status) {
        let (held, waiting) = self.tickets.count();
        let (names, abandoned) = self.home.count();
        status.locks = LocksStatus {
            names: names as u64,
            abandoned: abandoned as u64,
            held,
            waiting,
            granted: self.granted.get(),
            lost: self.lost.get(),
            barriers: self.barriers.count(),
            arrived: self.meetings.waiting(),
        };
    }
}

impl Locks {
    /// Makes a handle to a lock.
    fn open(&self, client: ClientKey, name: String, public: bool, ttl_ms: u32) -> Result<Reply, Error> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if name.is_empty() {
            return invalid("a lock needs a name".to_owned());
        }
        let ttl = Duration::from_millis(ttl_ms.into());
        if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
            return invalid(format!("a time to live of {ttl:?} is not between {MIN_TTL:?} and {MAX_TTL:?}"));
        }
        let owner = (!public).then(|| self.sessions.client(client, |client| client.uid));
        let named = Named { id: lock_id(owner, &name), name, owner, ttl_ms };
        Ok(Reply::LockOpened { lock: self.handles.open(client, named)? })
    }

    /// Lists the locks and barriers whose home a node is.
    async fn list(self: Rc<Self>, client: ClientKey, node: NodeId, from: u64) -> Result<Reply, Error> {
        let user = self.sessions.client(client, |client| client.uid);
        let (locks, next) = if node == self.kernel.node {
            self.page(from, user)
        } else {
            let ask::Listed { locks, next } =
                self.network.ask(node, user, ask::List { from }, LIST_PATIENCE).await?;
            (locks, next)
        };
        Ok(Reply::Locks { locks, next })
    }

    /// Returns a page of the locks and barriers of this home that a user may know.
    fn page(&self, from: u64, user: u32) -> (Vec<LockInfo>, Option<u64>) {
        let mut rows = self.home.rows(user);
        rows.extend(self.barriers.rows(self.kernel.node, user));
        rows.sort_unstable_by_key(|(id, _)| *id);
        let (mut page, mut bytes) = (Vec::new(), 0);
        for (at, (_, row)) in rows.into_iter().enumerate().skip(usize::try_from(from).unwrap_or(usize::MAX)) {
            if bytes > PAGE_BYTES {
                return (page, Some(at as u64));
            }
            bytes += row.name.len() + 64 * (row.holders.len() + 1);
            page.push(row);
        }
        (page, None)
    }

    /// Ends all guards of this node's clients.
    fn end_guards(&self, why: &str) {
        for ticket in self.tickets.all() {
            ticket.asked.set(None);
            ticket.again.set(true);
            if ticket.until().is_some() {
                self.lose(&ticket, why);
            }
        }
    }

    /// Follows a view: homes may have changed, and calls that wait ask the new homes.
    fn follow(self: &Rc<Self>, view: &ViewChange) {
        self.places.follow(view);
        let coordinated = self.places.is_coordinated();
        if view.begins && self.cluster.coordinator.get() == Some(self.kernel.node) {
            self.home.life.borrow_mut().begin(self.kernel.node, self.now());
        }
        if view.begins && !coordinated {
            self.end_guards("this node is a new member");
            self.home.takeover.reset();
            self.barriers.clear();
        }
        if !view.gone.is_empty() {
            self.home.takeover.has_lost.set(true);
        }
        self.home.follow(view, self.cluster.epoch());
        let epoch = self.cluster.epoch();
        self.follow_barriers(view, epoch);
        self.gather_again(|id| {
            view.begins || !view.remembers(self.places.home(id)) || self.places.moved(id) == epoch
        });
        for ticket in self.tickets.all().iter().filter(|ticket| ticket.waits()) {
            let home = self.places.home(&ticket.lock.id);
            let knows = |(asked, epoch, _): (NodeId, u64, u64)| {
                asked == home && epoch >= self.places.moved(&ticket.lock.id)
            };
            if view.begins || !view.remembers(home) || !ticket.asked.get().is_some_and(knows) {
                ticket.again.set(true);
                ticket.asked.set(None);
                self.want(ticket);
            }
        }
    }

    /// Acts on a frame of a member. `asked` is the envelope, without the frame.
    fn act(self: &Rc<Self>, asked: Envelope, frame: SyncFrame) {
        let from = asked.from;
        match frame {
            SyncFrame::Want { row, at_ns, eager, again } => {
                let number = row.number;
                let source = Source { node: from, at_ns };
                if let Err(error) = self.home.want(&source, row, eager, again) {
                    self.network.tell(from, SyncFrame::Refused { number, error }.into_message());
                }
            }
            SyncFrame::Granted { number, at_ns, token, abandoned } => {
                self.take_grant((from, asked.epoch), number, at_ns, (token, abandoned));
            }
            SyncFrame::Refused { number, error } => self.take_refusal(from, number, error),
            SyncFrame::Release { what, lost, taken } => {
                let end = match (lost, taken) {
                    (true, _) => End::Lost,
                    (false, true) => End::Unlocked,
                    (false, false) => End::Untaken,
                };
                self.home.release(from, what, end);
                if asked.request != 0 {
                    self.network.answer(&asked, SyncFrame::from(self.home.released(&what.lock)));
                }
            }
            SyncFrame::Keep { at_ns, guards, waits } => {
                self.kernel.spawn(Rc::clone(self).hear(asked, at_ns, guards, waits));
            }
            SyncFrame::Tell { epoch, from: at, after } => {
                let locks = Rc::clone(self);
                self.kernel.spawn(async move {
                    let told =
                        locks.tell(from, ask::Tell { epoch, from: at, after }).await.map(SyncFrame::from);
                    locks.answer(&asked, told);
                });
            }
            SyncFrame::List { from } => {
                let (locks, next) = self.page(from, asked.user);
                self.network.answer(&asked, SyncFrame::Listed { locks, next });
            }
            SyncFrame::Gather { row, opening } => {
                let locks = Rc::clone(self);
                self.kernel.spawn(async move {
                    let joined = locks.on_gather(&asked, row, opening).await.map(SyncFrame::from);
                    locks.answer(&asked, joined);
                });
            }
            SyncFrame::Passed { barrier, life, generation, first, count } => {
                let told = ask::Passed { barrier, life, generation, first, count };
                self.take_passed((from, asked.epoch), &barrier, told);
            }
            SyncFrame::Broken { barrier, life, why } => {
                self.take_broken((from, asked.epoch), &barrier, life, why);
            }
            // Answers that nobody waits for any more.
            SyncFrame::Released { .. }
            | SyncFrame::Kept { .. }
            | SyncFrame::Told { .. }
            | SyncFrame::Joined { .. }
            | SyncFrame::Listed { .. } => {}
        }
    }

    fn answer(&self, asked: &Envelope, answer: Result<SyncFrame, Error>) {
        match answer {
            Ok(answer) => self.network.answer(asked, answer),
            Err(error) => self.network.answer(asked, Message::Refused { error }),
        }
    }

    /// Renews the leases of a node, as their home, and answers which guards and waits are unknown.
    async fn hear(self: Rc<Self>, asked: Envelope, at_ns: u64, guards: Vec<Row>, waits: Vec<Numbered>) {
        let heard = self.hear_all(asked.from, at_ns, &guards, &waits).await;
        self.answer(&asked, heard.map(|unknown| SyncFrame::Kept { unknown }));
    }

    async fn hear_all(
        self: &Rc<Self>,
        node: NodeId,
        at_ns: u64,
        guards: &[Row],
        waits: &[Numbered],
    ) -> Result<Vec<u64>, Error> {
        let due = self.kernel.clock.now() + PREPARING;
        for row in guards {
            let id = lock_id(row.owner, &row.name);
            self.home.ensure_here(&id)?;
            self.home.note_lease(u64::from(row.ttl_ms) * 1_000_000)?;
            if self.places.is_coordinated() {
                continue;
            }
            let prepared = self.kernel.clock.bounded(Some(due), self.prepared(&id)).await;
            prepared.unwrap_or_else(|| {
                let text = format!("node {} does not know yet what is held", self.kernel.node);
                Err(Error::new(ErrorKind::TimedOut, text))
            })?;
        }
        // The view may have changed while this node waited.
        for id in guards.iter().map(|row| lock_id(row.owner, &row.name)) {
            self.home.ensure_here(&id)?;
            if !self.places.is_coordinated() && !self.home.is_ready(&id) {
                return Err(Error::new(ErrorKind::NotHere, "the home of the lock has changed meanwhile"));
            }
        }
        for wait in waits {
            self.home.ensure_here(&wait.lock)?;
        }
        let source = Source { node, at_ns };
        let lost = guards.iter().filter(|row| !self.home.keep_guard(&source, row)).map(|row| row.number);
        let late = waits.iter().filter(|wait| !self.home.keep_wait(&source, **wait)).map(|wait| wait.number);
        Ok(lost.chain(late).collect())
    }
}
