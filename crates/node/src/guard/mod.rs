//! Guards: the locks that clients of this node hold, and until when.
//!
//! Owns the guards of all clients of this node. Engine thread only. A client names a guard by its *ticket*,
//! which the client chose. The end of a guard stands in a word that the client reads ([`EngineLeases`]), so a
//! guard ends in time although this node stands still. [`sync`](crate::sync) grants, renews and ends guards;
//! [`region`](crate::region) asks for the token of a guard that a write shows.
//!
//! Invariants: a word belongs to one ticket until the client releases the ticket. A guard that has ended does
//! not begin again. The words of a client that has gone are 0. A node that stops sets all words to 0.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use plasmon::shared::{EngineLeases, LEASES};
use plasmon::{Error, ErrorKind, ObjectId};

use crate::kernel::clock::Clock;
use crate::kernel::random::HashMap;
use crate::kernel::{ClientKey, Kernel};

/// A lock that a client holds, or has held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Guard {
    lock: ObjectId,
    token: u128,
    word: u32,
    /// Time until which the guard is valid, in nanoseconds since the host was booted; 0 if the guard has
    /// ended.
    until: u64,
}

/// Guard that a write shows: the lock, and the token of its guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) lock: ObjectId,
    pub(crate) token: u128,
}

/// The guards of one client.
struct Client {
    words: EngineLeases,
    file: Arc<OwnedFd>,
    guards: HashMap<u64, Guard>,
    /// Words that were used and are free.
    free: Vec<u32>,
    /// The first word that was never used.
    fresh: u32,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.guards.values().for_each(|guard| self.words.set(guard.word, 0));
    }
}

impl Client {
    fn new() -> io::Result<Self> {
        let (words, file) = EngineLeases::new()?;
        Ok(Self { words, file: Arc::new(file), guards: HashMap::default(), free: Vec::new(), fresh: 0 })
    }
}

/// The guards of all clients of this node.
pub(crate) struct Guards {
    clock: Rc<Clock>,
    clients: RefCell<HashMap<ClientKey, Client>>,
}

impl Guards {
    pub(crate) fn new(kernel: &Kernel) -> Self {
        Self { clock: Rc::clone(&kernel.clock), clients: RefCell::default() }
    }

    /// Returns the descriptor of a client's words.
    ///
    /// # Errors
    /// `Full` if the system has no memory or no descriptors.
    pub(crate) fn open(&self, client: ClientKey) -> Result<Arc<OwnedFd>, Error> {
        self.with(client, |guards| Arc::clone(&guards.file))
    }

    fn with<T>(&self, client: ClientKey, act: impl FnOnce(&mut Client) -> T) -> Result<T, Error> {
        let mut clients = self.clients.borrow_mut();
        if let Some(guards) = clients.get_mut(&client) {
            return Ok(act(guards));
        }
        let mut made = Client::new().map_err(|error| {
            let text = format!("this node has no memory for the leases of the client: {error}");
            Error::new(ErrorKind::Full, text)
        })?;
        let value = act(&mut made);
        clients.insert(client, made);
        Ok(value)
    }

    /// Begins a guard, and returns the number of its word.
    ///
    /// # Errors
    /// `Full` if the client has as many guards as it may have.
    pub(crate) fn begin(
        &self,
        client: ClientKey,
        ticket: u64,
        Fence { lock, token }: Fence,
        until: u64,
    ) -> Result<u32, Error> {
        self.with(client, |guards| {
            let word = guards.free.pop().or_else(|| {
                guards.fresh += 1;
                (guards.fresh <= LEASES as u32).then(|| guards.fresh - 1)
            });
            let Some(word) = word else {
                guards.fresh = LEASES as u32;
                let text = format!("this client has {LEASES} guards already: let it unlock some");
                return Err(Error::new(ErrorKind::Full, text));
            };
            guards.guards.insert(ticket, Guard { lock, token, word, until });
            guards.words.set(word, until);
            Ok(word)
        })?
    }

    /// Sets the time until which a guard is valid. The time may be earlier than the one before. 0 ends the
    /// guard for good.
    pub(crate) fn set(&self, client: ClientKey, ticket: u64, until: u64) {
        let mut clients = self.clients.borrow_mut();
        let Some(guards) = clients.get_mut(&client) else { return };
        let Some(guard) = guards.guards.get_mut(&ticket).filter(|guard| guard.until != 0) else { return };
        if guard.until != until {
            guard.until = until;
            guards.words.set(guard.word, until);
        }
    }

    /// Ends a guard that its client does not read any more, and frees its word.
    pub(crate) fn forget(&self, client: ClientKey, ticket: u64) {
        let mut clients = self.clients.borrow_mut();
        let Some(guards) = clients.get_mut(&client) else { return };
        if let Some(guard) = guards.guards.remove(&ticket) {
            guards.words.set(guard.word, 0);
            guards.free.push(guard.word);
        }
    }

    /// Ends all guards of a client that has gone.
    pub(crate) fn forget_all(&self, client: ClientKey) {
        self.clients.borrow_mut().remove(&client);
    }

    /// Ends all guards of all clients, because the node ends.
    pub(crate) fn end(&self) {
        self.clients.borrow_mut().clear();
    }

    /// Returns the lock and the token of the guard that a client's write names by its ticket.
    ///
    /// # Errors
    /// `Fenced` if the guard is not valid any more; `NotFound` if the client has no such guard.
    pub(crate) fn show(&self, client: ClientKey, ticket: u64) -> Result<Fence, Error> {
        let clients = self.clients.borrow();
        let guard = clients.get(&client).and_then(|guards| guards.guards.get(&ticket));
        let Some(guard) = guard else {
            let text = "the write shows a guard that this connection does not have: it was unlocked";
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        if self.clock.boot_ns() < guard.until {
            return Ok(Fence { lock: guard.lock, token: guard.token });
        }
        let text = "the lease of the guard is over, and others may hold the lock: nothing was written";
        Err(Error::new(ErrorKind::Fenced, text))
    }

    /// Returns every valid guard with its client, its ticket and its end, for a simulation that looks at all
    /// nodes.
    #[cfg(test)]
    pub(crate) fn valid(&self) -> Vec<((ClientKey, u64), Fence, u64)> {
        let now = self.clock.boot_ns();
        let clients = self.clients.borrow();
        let guards = clients.iter().flat_map(|(client, guards)| {
            guards.guards.iter().map(|(ticket, guard)| ((*client, *ticket), *guard))
        });
        let valid = guards.filter(|(_, guard)| now < guard.until);
        valid.map(|(key, one)| (key, Fence { lock: one.lock, token: one.token }, one.until)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    use plasmon::shared::ClientLeases;
    use plasmon::sync::lock_id;

    use super::*;

    const TICKET: u64 = 5;

    fn guards() -> (Guards, Rc<Cell<Instant>>, ClientKey) {
        let now = Rc::new(Cell::new(Instant::now()));
        let source = Rc::clone(&now);
        let clock = Clock::with_source(move || source.get(), Duration::ZERO);
        (Guards { clock, clients: RefCell::default() }, now, ClientKey::MIN)
    }

    fn fence(token: u128) -> Fence {
        Fence { lock: lock_id(None, "a"), token }
    }

    #[test]
    fn a_guard_is_shown_until_its_time_is_over() {
        let (guards, now, client) = guards();
        assert_eq!(guards.show(client, TICKET).expect_err("none").kind(), ErrorKind::NotFound);
        let until = guards.clock.boot_ns() + 1_000_000_000;
        guards.begin(client, TICKET, fence(7), until).expect("room");
        assert_eq!(guards.show(client, TICKET), Ok(fence(7)));
        now.set(now.get() + Duration::from_secs(1));
        assert_eq!(guards.show(client, TICKET).expect_err("over").kind(), ErrorKind::Fenced);
        guards.set(client, TICKET, until + 1);
        assert_eq!(guards.show(client, TICKET), Ok(fence(7)));
        guards.set(client, TICKET, 0);
        guards.set(client, TICKET, until + 2);
        assert_eq!(guards.show(client, TICKET).expect_err("for good").kind(), ErrorKind::Fenced);
    }

    #[test]
    fn a_word_has_one_ticket_until_the_client_lets_go() {
        let (guards, _, client) = guards();
        let file = guards.open(client).expect("memory");
        let words = ClientLeases::open(&file).expect("a client maps it");
        let begin = |ticket| guards.begin(client, ticket, fence(1), u64::MAX).expect("room");
        let first = begin(1);
        guards.set(client, 1, 0);
        let second = begin(2);
        assert_ne!(first, second, "the client may still look at the first");
        assert!(!words.is_valid(first) && words.is_valid(second));
        guards.forget(client, 1);
        assert_eq!(begin(3), first);
        guards.forget_all(client);
        assert!(!words.is_valid(first) && !words.is_valid(second));
    }

    #[test]
    fn no_guard_outlives_its_node() {
        let (guards, _, client) = guards();
        let file = guards.open(client).expect("memory");
        let words = ClientLeases::open(&file).expect("a client maps it");
        let word = guards.begin(client, TICKET, fence(1), u64::MAX).expect("room");
        assert!(words.is_valid(word));
        guards.end();
        assert!(!words.is_valid(word));
    }

    #[test]
    fn more_guards_than_words_are_refused() {
        let (guards, _, client) = guards();
        for ticket in 0..LEASES as u64 {
            guards.begin(client, ticket, fence(1), 1).expect("room");
        }
        for _ in 0..2 {
            let full = guards.begin(client, u64::MAX, fence(1), 1).expect_err("full");
            assert_eq!(full.kind(), ErrorKind::Full);
        }
        guards.forget(client, 9);
        guards.begin(client, u64::MAX, fence(1), 1).expect("room again");
    }
}
