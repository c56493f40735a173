//! Locking and unlocking for the clients of this node. The state is that of `Locks`. Engine thread only.
//!
//! Invariants: a call that ends without a guard leaves no guard behind, whatever comes later. The home of
//! a guard is told once that the guard has ended. If the home does not hear of that, the lease ends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures::channel::oneshot;
use plasmon::shared::CallResult;
use plasmon::text::printable;
use plasmon::wire::{Locked, SlotResult};
use plasmon::{Error, ErrorKind, NodeId};

use super::Locks;
use super::frames::{SyncFrame, ask};
use super::lock::said_of;
use super::tickets::{Key, State, Ticket};
use crate::guard::Fence;
use crate::kernel::ClientKey;
use crate::net::frame::Frames;
use crate::service::Return;

/// How long a call that does not wait for a lock may take to hear from the home.
const EAGER_PATIENCE: Duration = Duration::from_secs(5);
/// How long a call whose time is over may take to learn who holds the lock. The client waits 250 ms longer.
const LATE_PATIENCE: Duration = Duration::from_millis(100);
/// How long the end of a guard may take to be known at the home.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);

/// A call that waits for a lock. If this value is dropped before the call has the result, the ticket ends.
struct Waiting {
    locks: Rc<Locks>,
    key: Key,
    has_ended: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(ticket) = self.locks.tickets.find(self.key).filter(|_| !self.has_ended) {
            self.locks.let_go(&ticket, false);
        }
    }
}

impl Locks {
    /// Waits for a lock, in a call by slot.
    pub(super) fn lock(
        self: &Rc<Self>,
        client: ClientKey,
        (handle, chosen, shared): (u32, u64, bool),
        timeout_us: u64,
    ) -> Return {
        let named = match self.handles.get(client, handle) {
            Ok(named) => named,
            Err(error) => return Return::Now(Err(error)),
        };
        let (pid, uid) = self.sessions.client(client, |client| (client.pid, client.uid));
        let (sender, granted) = oneshot::channel();
        let key = (client, chosen);
        let ticket = Rc::new(Ticket {
            key,
            number: Cell::new(self.tickets.draw()),
            lock: named,
            shared,
            eager: timeout_us == 0,
            pid,
            uid,
            since: Cell::new(self.now()),
            asked: Cell::new(None),
            again: Cell::new(false),
            renewing: Cell::new(false),
            state: RefCell::new(State::Waits(sender)),
        });
        if let Err(error) = self.tickets.add(Rc::clone(&ticket)) {
            return Return::Now(Err(error));
        }
        self.note_alive(client);
        self.want(&ticket);
        self.begin_keeping();
        let due = match ticket.eager {
            true => Some(self.kernel.clock.now() + EAGER_PATIENCE),
            false => self.sessions.due(timeout_us),
        };
        let waiting = Waiting { locks: Rc::clone(self), key, has_ended: false };
        Return::in_time(async move {
            let mut waiting = waiting;
            let locks = Rc::clone(&waiting.locks);
            match locks.kernel.clock.bounded(due, granted).await {
                Some(Ok(Ok(locked))) => {
                    waiting.has_ended = true;
                    let (values, payload) = locked.packed();
                    CallResult::with(&values, &payload)
                        .ok_or_else(|| Error::new(ErrorKind::Internal, "a token does not fit a slot"))
                }
                Some(Ok(Err(error))) => Err(error),
                Some(Err(_)) => {
                    waiting.has_ended = true;
                    Err(Error::new(ErrorKind::Interrupted, "the call for the lock was withdrawn"))
                }
                None => {
                    waiting.has_ended = true;
                    Err(locks.late(&ticket).await)
                }
            }
        })
    }

    /// Ends the wait of a call that did not get a lock in time. Returns the error, which says who has the
    /// lock.
    async fn late(self: &Rc<Self>, ticket: &Ticket) -> Error {
        let name = printable(&ticket.lock.name);
        let what = ticket.numbered();
        let home = self.places.home(&what.lock);
        let is_heard = ticket.asked.get().is_some_and(|(asked, ..)| asked == home);
        self.close(ticket);
        let release = ask::Release { what, lost: false, taken: false };
        let why = match self.network.ask(home, ticket.uid, release, LATE_PATIENCE).await {
            Ok(ask::Released { waits_ms: waits @ 1.., .. }) => format!(
                "node {home}, which decides about it, gives no lock for another {} s, until the leases of \
                 its former life are over",
                waits.div_ceil(1000)
            ),
            Ok(ask::Released { holder, held, .. }) => said_of((holder, held), (self.kernel.node, ticket.pid)),
            Err(_) if is_heard => format!(
                "node {home}, which decides about it, has not given it; `plasmon locks` says who holds it"
            ),
            Err(_) => format!("node {home}, which decides about it, is away"),
        };
        Error::new(ErrorKind::TimedOut, format!("lock '{name}' was not had in time: {why}"))
    }

    /// Asks the home that a lock has in the present view for the lock.
    pub(super) fn want(&self, ticket: &Ticket) {
        if self.cluster.fenced() {
            return;
        }
        let (now, home) = (self.now(), self.places.home(&ticket.lock.id));
        let (eager, again) = (ticket.eager, ticket.again.get());
        let want = SyncFrame::Want { row: ticket.row(now), at_ns: now, eager, again };
        if self.send(home, 0, ticket.uid, want) {
            ticket.asked.set(Some((home, self.cluster.epoch(), now)));
        }
    }

    fn send(&self, to: NodeId, request: u64, user: u32, frame: SyncFrame) -> bool {
        let own = self.kernel.node;
        self.network.send(to, self.network.envelope(request, own, user, frame.into_message()))
    }

    /// Takes a grant that a home made in the view of an epoch.
    pub(super) fn take_grant(
        self: &Rc<Self>,
        (from, epoch): (NodeId, u64),
        number: u64,
        at_ns: u64,
        (token, abandoned): (u128, bool),
    ) {
        let Some(ticket) = self.tickets.get(number) else {
            // No call waits any more, and the home has been told so.
            return;
        };
        let is_home =
            self.places.home(&ticket.lock.id) == from && self.places.moved(&ticket.lock.id) <= epoch;
        if !is_home || !ticket.waits() || self.cluster.fenced() {
            return;
        }
        let now = self.now();
        let renewed = at_ns.min(now);
        let State::Waits(sender) = ticket.state.replace(State::Holds { token, renewed }) else { return };
        ticket.since.set(now);
        let until = self.lease_end(&ticket, now);
        if until <= now {
            // The grant took too long to come, so the lock has to be asked for again. This grant may come
            // a second time, which another number makes void.
            self.tell_end(&ticket, false, false);
            self.tickets.renumber(&ticket);
            ticket.state.replace(State::Waits(sender));
            self.want(&ticket);
            return;
        }
        let (client, chosen) = ticket.key;
        let lock = ticket.lock.id;
        let begun = self.guards.begin(client, chosen, Fence { lock, token }, until);
        let told = match begun {
            Ok(word) => sender.send(Ok(Locked { word, abandoned, token })),
            Err(error) => {
                self.give_back(&ticket);
                _ = sender.send(Err(error));
                return;
            }
        };
        self.granted.set(self.granted.get() + 1);
        if told.is_err() {
            // The call is over, and its guard ends with it.
            self.give_back(&ticket);
        }
    }

    /// Takes the refusal of a home.
    pub(super) fn take_refusal(&self, from: NodeId, number: u64, error: Error) {
        let Some(ticket) = self.tickets.get(number).filter(|ticket| ticket.waits()) else { return };
        if self.places.home(&ticket.lock.id) != from {
            return;
        }
        if error.kind() == ErrorKind::NotHere {
            // One of the two nodes does not follow the present view yet, so the home is asked again.
            ticket.asked.set(None);
            return;
        }
        if let State::Waits(sender) = ticket.state.replace(State::Ended) {
            self.tickets.remove(&ticket);
            _ = sender.send(Err(error));
        }
    }

    /// Ends a guard or a wait by its ticket, as the client asks. A guard ends at once, and the
    /// answer comes when the home knows that.
    pub(super) fn unlock(self: &Rc<Self>, key: Key) -> Return {
        let Some(ticket) = self.tickets.find(key) else {
            let text = format!("this connection has no ticket {}: it was unlocked, or withdrawn", key.1);
            return Return::Now(Err(Error::new(ErrorKind::NotFound, text)));
        };
        self.note_alive(key.0);
        let (now, until) = (self.now(), ticket.until());
        let held = until.is_some_and(|_| self.lease_end(&ticket, now) > now);
        if !held {
            let fenced = !ticket.waits();
            self.let_go(&ticket, fenced);
            let name = printable(&ticket.lock.name);
            let text = format!("the lease of lock '{name}' was over: others may have held it meanwhile");
            let done =
                if fenced { Err(Error::new(ErrorKind::Fenced, text)) } else { Ok(CallResult::of(&[])) };
            return Return::Now(done);
        }
        // The guard ends now. Others may get the lock when the home knows that.
        self.guards.forget(key.0, key.1);
        self.tickets.remove(&ticket);
        ticket.state.replace(State::Ended);
        let (locks, home) = (Rc::clone(self), self.places.home(&ticket.lock.id));
        let release = ask::Release { what: ticket.numbered(), lost: false, taken: true };
        Return::in_time(async move {
            // If the home does not answer, its successor asks what is held, or the lease ends.
            _ = locks.network.ask(home, ticket.uid, release, RELEASE_PATIENCE).await;
            Ok(CallResult::of(&[]))
        })
    }

    /// Ends a ticket here, and the guard or the wait that it has. Returns what it had.
    fn close(&self, ticket: &Ticket) -> State {
        let before = ticket.state.replace(State::Ended);
        self.guards.forget(ticket.key.0, ticket.key.1);
        self.tickets.remove(ticket);
        before
    }

    /// Ends a ticket, and the guard or the wait that it has.
    pub(super) fn let_go(&self, ticket: &Ticket, lost: bool) {
        match self.close(ticket) {
            State::Ended => {}
            State::Waits(_) => self.tell_end(ticket, lost, false),
            State::Holds { .. } => self.tell_end(ticket, lost, true),
        }
    }

    /// Ends a guard of which the client has not been told.
    fn give_back(&self, ticket: &Ticket) {
        self.close(ticket);
        self.tell_end(ticket, false, false);
    }

    /// Ends a guard whose lease is over. The ticket of the guard stays until the client lets go of
    /// the ticket.
    pub(super) fn lose(&self, ticket: &Ticket, why: &str) {
        ticket.state.replace(State::Ended);
        self.guards.set(ticket.key.0, ticket.key.1, 0);
        self.lost.set(self.lost.get() + 1);
        let (lock, process) = (printable(&ticket.lock.name), ticket.pid);
        tracing::warn!(%lock, process, why, "a client lost a lock");
        self.tell_end(ticket, true, true);
    }

    /// Tells the home that a guard or a wait has ended, and whether the guard was `taken`.
    fn tell_end(&self, ticket: &Ticket, lost: bool, taken: bool) {
        let what = ticket.numbered();
        self.send(self.places.home(&what.lock), 0, ticket.uid, SyncFrame::Release { what, lost, taken });
    }

    /// Ends the guards and waits of a client that has gone.
    pub(super) fn end_client(&self, client: ClientKey) {
        for ticket in self.tickets.of_client(client) {
            let held = ticket.until().is_some();
            self.lost.set(self.lost.get() + u64::from(held));
            self.let_go(&ticket, held);
        }
        self.guards.forget_all(client);
        self.handles.close_all(client);
        self.alive.borrow_mut().remove(&client);
    }
}
