//! Tickets: what the clients of this node hold and wait for. Owns [`Tickets`]. Engine thread only.
//!
//! A client chooses a ticket for each call that waits for a lock. The guard that the call gets
//! keeps the ticket until the client unlocks it. This node draws a number for the ticket, by which
//! the home knows the call and the guard.
//!
//! Invariants: a grant is taken from the present home of the lock alone, and only if the lock has had no
//! other home since the grant was made. A ticket that has ended stays until the client has let go of it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures::channel::oneshot;
use plasmon::wire::Locked;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::frames::{Numbered, Row};
use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;

/// Maximum number of tickets of a client.
pub(super) const MAX_TICKETS: usize = 1 << 16;

/// A client and the ticket that it chose.
pub(super) type Key = (ClientKey, u64);

/// A lock as a client has named it.
pub(super) struct Named {
    pub(super) id: ObjectId,
    pub(super) name: String,
    pub(super) owner: Option<u32>,
    pub(super) ttl_ms: u32,
}

impl Named {
    pub(super) fn ttl_ns(&self) -> u64 {
        u64::from(self.ttl_ms) * 1_000_000
    }
}

/// State of a ticket.
pub(super) enum State {
    /// The call waits.
    Waits(oneshot::Sender<Result<Locked, Error>>),
    /// The client has a guard.
    Holds {
        token: u128,
        /// Time of the last request to the home that renewed the lease.
        renewed: u64,
    },
    /// The guard has ended, and the client has not let go of it yet.
    Ended,
}

/// A client's call that waits for a lock, and its guard afterwards.
pub(super) struct Ticket {
    pub(super) key: Key,
    pub(super) number: Cell<u64>,
    pub(super) lock: Rc<Named>,
    pub(super) shared: bool,
    /// Whether the call is refused if it has to wait.
    pub(super) eager: bool,
    pub(super) pid: u32,
    pub(super) uid: u32,
    /// Time since which the call waits, or since which its guard is held.
    pub(super) since: Cell<u64>,
    /// The home that was asked last, the epoch of the view then, and the time when the home was
    /// last told of the wait.
    pub(super) asked: Cell<Option<(NodeId, u64, u64)>>,
    /// Whether a home that was asked is not the home any more.
    pub(super) again: Cell<bool>,
    /// Whether a home is being asked to renew the lease.
    pub(super) renewing: Cell<bool>,
    pub(super) state: RefCell<State>,
}

impl Ticket {
    pub(super) fn waits(&self) -> bool {
        matches!(*self.state.borrow(), State::Waits(_))
    }

    /// Returns the time until which the lease is valid: nine tenths of its time to live after its last
    /// renewal, because clocks do not run alike. `None` if the client has no guard.
    pub(super) fn until(&self) -> Option<u64> {
        match *self.state.borrow() {
            State::Holds { renewed, .. } => Some(renewed + self.lock.ttl_ns() / 10 * 9),
            _ => None,
        }
    }

    pub(super) fn numbered(&self) -> Numbered {
        Numbered { lock: self.lock.id, number: self.number.get() }
    }

    /// Returns the ticket as homes are told of it.
    pub(super) fn row(&self, now: u64) -> Row {
        let token = match *self.state.borrow() {
            State::Holds { token, .. } => token,
            _ => 0,
        };
        Row {
            number: self.number.get(),
            name: self.lock.name.clone(),
            owner: self.lock.owner,
            shared: self.shared,
            ttl_ms: self.lock.ttl_ms,
            pid: self.pid,
            uid: self.uid,
            token,
            age_ns: now.saturating_sub(self.since.get()),
        }
    }
}

/// The tickets of all clients.
#[derive(Default)]
pub(super) struct Tickets {
    by_number: RefCell<HashMap<u64, Rc<Ticket>>>,
    by_key: RefCell<HashMap<ClientKey, HashMap<u64, u64>>>,
    drawn: Cell<u64>,
}

impl Tickets {
    /// Draws a number that no ticket has had.
    pub(super) fn draw(&self) -> u64 {
        let number = self.drawn.get() + 1;
        self.drawn.set(number);
        number
    }

    /// Adds a ticket.
    ///
    /// # Errors
    /// `Invalid` if the client uses this ticket already and has not let go of it; `Full` if the
    /// client has too many.
    pub(super) fn add(&self, ticket: Rc<Ticket>) -> Result<(), Error> {
        let (client, chosen) = ticket.key;
        let mut clients = self.by_key.borrow_mut();
        let tickets = clients.entry(client).or_default();
        if tickets.contains_key(&chosen) {
            let text = format!("ticket {chosen} is in use on this connection: choose another");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if tickets.len() >= MAX_TICKETS {
            let text = format!("this client holds or waits for {MAX_TICKETS} locks already: unlock some");
            return Err(Error::new(ErrorKind::Full, text));
        }
        tickets.insert(chosen, ticket.number.get());
        drop(clients);
        self.by_number.borrow_mut().insert(ticket.number.get(), ticket);
        Ok(())
    }

    pub(super) fn get(&self, number: u64) -> Option<Rc<Ticket>> {
        self.by_number.borrow().get(&number).cloned()
    }

    pub(super) fn find(&self, (client, ticket): Key) -> Option<Rc<Ticket>> {
        let number = *self.by_key.borrow().get(&client)?.get(&ticket)?;
        self.get(number)
    }

    /// Removes a ticket that the client has let go of.
    pub(super) fn remove(&self, ticket: &Ticket) {
        let (client, chosen) = ticket.key;
        let mut clients = self.by_key.borrow_mut();
        if let Some(tickets) = clients.get_mut(&client) {
            tickets.remove(&chosen);
            if tickets.is_empty() {
                clients.remove(&client);
            }
        }
        drop(clients);
        self.by_number.borrow_mut().remove(&ticket.number.get());
    }

    /// Draws another number for a ticket. What a home says under the former number is then void.
    pub(super) fn renumber(&self, ticket: &Rc<Ticket>) {
        let (client, chosen) = ticket.key;
        let former = ticket.number.replace(self.draw());
        let number = ticket.number.get();
        if let Some(tickets) = self.by_key.borrow_mut().get_mut(&client) {
            tickets.insert(chosen, number);
        }
        let mut by_number = self.by_number.borrow_mut();
        by_number.remove(&former);
        by_number.insert(number, Rc::clone(ticket));
    }

    /// The tickets of a client.
    pub(super) fn of_client(&self, client: ClientKey) -> Vec<Rc<Ticket>> {
        let numbers: Vec<_> =
            self.by_key.borrow().get(&client).into_iter().flat_map(|all| all.values().copied()).collect();
        numbers.into_iter().filter_map(|number| self.get(number)).collect()
    }

    /// All tickets, in the order of their numbers.
    pub(super) fn all(&self) -> Vec<Rc<Ticket>> {
        let mut all: Vec<_> = self.by_number.borrow().values().cloned().collect();
        all.sort_unstable_by_key(|ticket| ticket.number.get());
        all
    }

    pub(super) fn are_there(&self) -> bool {
        !self.by_number.borrow().is_empty()
    }

    /// Returns the number of guards and the number of waits.
    pub(super) fn count(&self) -> (u64, u64) {
        let tickets = self.by_number.borrow();
        let held = tickets.values().filter(|ticket| ticket.until().is_some()).count();
        let waiting = tickets.values().filter(|ticket| ticket.waits()).count();
        (held as u64, waiting as u64)
    }

    /// Returns a page of at most `most` guards of some locks, from the number `from` on, and the
    /// number at which the next page begins.
    pub(super) fn guards(
        &self,
        is_meant: impl Fn(&ObjectId) -> bool,
        from: u64,
        most: usize,
    ) -> (Vec<Row>, Option<u64>) {
        let mut rows = Vec::new();
        for ticket in self.all().into_iter().filter(|ticket| ticket.number.get() >= from) {
            if ticket.until().is_none() || !is_meant(&ticket.lock.id) {
                continue;
            }
            if rows.len() == most {
                return (rows, Some(ticket.number.get()));
            }
            rows.push(ticket.row(ticket.since.get()));
        }
        (rows, None)
    }
}
