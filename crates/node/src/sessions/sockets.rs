//! The sockets of the node's clients: accepting, reading, writing, and sleeping on all of them.
//!
//! Owns the epoll set and the listening socket. Engine thread only. Readiness comes from one epoll set,
//! edge-triggered for clients. A client that was not drained in its turn stays on the list of those to look
//! at. A client that is behind with reading replies is watched for room only until it has caught up;
//! otherwise every reply that it reads would wake the engine. The fabric's descriptor is in the set too,
//! level-triggered, so that one system call sleeps on everything.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plasmon::wire::{Peer, Reply, Request, groups_of, peer_of};
use plasmon::{Error, ErrorKind};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::process::{PidfdFlags, pidfd_open};
use tracing::{debug, info, warn};

use super::client::Client;
use super::connection::{Connection, Farewell, READS, Read};
use super::listener::{ListenError, Listener};
use crate::config::Config;
use crate::sessions::Sessions;

use crate::kernel::ClientKey;
use crate::kernel::seldom::Seldom;
use crate::kernel::waker::Waker;
use crate::service::{Asked, Session};

/// The token of the listening socket in the epoll set.
const LISTENER: u64 = 0;
/// The token of the engine's waker in the epoll set.
const WAKER: u64 = 1;
/// The token of the fabric's descriptor in the epoll set.
const FABRIC: u64 = 2;
/// The first client's key. Tokens of clients are their keys.
pub(crate) const FIRST_CLIENT: ClientKey = ClientKey::new(3).unwrap();
/// The bit in the tokens of clients' bells, beside the key.
const BELL: u64 = 1 << 63;
/// The bit in the tokens of clients' processes, beside the key.
const PROCESS: u64 = 1 << 62;
/// Number of requests of one client served before the others get their turn.
const TURN_REQUESTS: usize = 128;
/// Number of clients accepted before the connected ones get their turn.
const TURN_ACCEPTS: usize = 64;
/// Number of events taken at a time.
const TURN_EVENTS: usize = 256;
/// Time for which accepting rests when the system has no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The epoll set, the listening socket, and the clients to be looked at.
pub(crate) struct Sockets {
    epoll: Rc<OwnedFd>,
    events: Vec<Event>,
    waker: Waker,
    listener: Listener,
    /// Clients with unread input, each once.
    ready: VecDeque<ClientKey>,
    accept_at: Option<Instant>,
    /// Clients that have rung their bells.
    pub(crate) rung: Vec<ClientKey>,
}

/// Why the node cannot serve clients.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    #[error(transparent)]
    Socket(#[from] ListenError),
    #[error(transparent)]
    Loop(#[from] io::Error),
}

/// The token of a client's bell.
pub(crate) fn bell_token(key: ClientKey) -> u64 {
    key.get() | BELL
}

impl Sockets {
    pub(crate) fn bind(config: &Config) -> Result<Self, BindError> {
        let listener = Listener::bind(&config.socket, config.socket_mode, config.yields_socket)?;
        let epoll = Rc::new(epoll::create(CreateFlags::CLOEXEC).map_err(io::Error::from)?);
        let waker = Waker::new()?;
        let events = Vec::with_capacity(TURN_EVENTS);
        let sockets = Self {
            epoll,
            events,
            waker,
            listener,
            ready: VecDeque::new(),
            accept_at: None,
            rung: Vec::new(),
        };
        sockets.watch(&sockets.listener.socket, LISTENER, EventFlags::IN | EventFlags::ET)?;
        sockets.watch(&sockets.waker, WAKER, EventFlags::IN)?;
        Ok(sockets)
    }

    /// The path of the listening socket.
    pub(crate) fn path(&self) -> &Path {
        self.listener.path()
    }

    /// Whether the socket took the place of one that a killed node had left.
    pub(crate) fn succeeds(&self) -> bool {
        self.listener.succeeds()
    }

    /// Leaves beside the socket the address at which other nodes find this node, if it is the first of its
    /// cluster.
    pub(crate) fn leave_address(&self, address: Option<SocketAddr>) {
        self.listener.leave_address(address);
    }

    /// The set of descriptors on which the engine sleeps.
    pub(crate) fn epoll(&self) -> Rc<OwnedFd> {
        Rc::clone(&self.epoll)
    }

    /// A handle that wakes the engine from another thread.
    pub(crate) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Has the engine sleep on the fabric's descriptor as well from now on.
    pub(crate) fn watch_fabric(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.watch(descriptor, FABRIC, EventFlags::IN)
    }

    fn watch(&self, descriptor: impl AsFd, token: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&*self.epoll, descriptor, EventData::new_u64(token), flags)?)
    }

    /// Whether the last sleep ended without an event of the fabric, so that the fabric has nothing to do.
    pub(crate) fn fabric_is_quiet(&self) -> bool {
        let more = self.events.len() == self.events.capacity();
        !self.events.is_empty() && !more && self.events.iter().all(|event| event.data.u64() != FABRIC)
    }

    /// Waits for something to be ready, for at most `limit`; `None` waits for ever.
    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        let rest = self.accept_at.map(|at| at.saturating_duration_since(Instant::now()));
        let limit = [limit, rest].into_iter().flatten().min();
        let timeout = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs().min(3600) as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        match epoll::wait(&*self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Serves the ready clients once; returns the number of requests. Without `look`, it serves only the
    /// clients that are known to be ready.
    pub(crate) fn turn(&mut self, sessions: &Rc<Sessions>, look: bool) -> io::Result<usize> {
        // Events that ended a sleep are not asked for again, because most of them are told only once.
        if self.events.is_empty() && look {
            self.wait(Some(Duration::ZERO))?;
        }
        let mut work = 0;
        let mut accept = self.accept_at.is_some_and(|at| at <= Instant::now());
        for event in self.events.drain(..) {
            match event.data.u64() {
                LISTENER => accept = true,
                WAKER => self.waker.clear(),
                FABRIC => {}
                bell if bell & BELL != 0 => {
                    work += 1;
                    self.rung.extend(ClientKey::new(bell & !BELL));
                }
                token => {
                    let key = ClientKey::new(token & !PROCESS);
                    if let Some(key) = key.filter(|_| token & PROCESS != 0) {
                        sessions.client_mut(key, |client| client.orphaned = true);
                    }
                    self.ready.extend(key.filter(|key| !self.ready.contains(key)));
                }
            }
        }
        if accept {
            work += self.accept(sessions);
        }
        for _ in 0..self.ready.len() {
            let key = self.ready.pop_front().expect("counted");
            work += self.serve(sessions, key);
        }
        Ok(work)
    }

    /// Whether a client has input that was not looked at.
    pub(crate) fn has_more(&self) -> bool {
        !self.ready.is_empty()
    }

    fn accept(&mut self, sessions: &Rc<Sessions>) -> usize {
        static NOT_LET_IN: Seldom = Seldom::new();
        static NOT_ACCEPTED: Seldom = Seldom::new();
        self.accept_at = None;
        for accepted in 0..TURN_ACCEPTS {
            match self.listener.socket.accept() {
                Ok((stream, _)) => match self.admit(sessions, stream) {
                    // Most new clients have said hello by now, and keep their places by that.
                    Ok(Some(key)) => _ = self.serve(sessions, key),
                    Ok(None) => {}
                    Err(error) => {
                        if let Some(unsaid) = NOT_LET_IN.due() {
                            warn!(unsaid, "a client could not be let in: {error}");
                        }
                    }
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return accepted,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if let Some(unsaid) = NOT_ACCEPTED.due() {
                        warn!(
                            unsaid,
                            "cannot accept clients, and tries again every {ACCEPT_PAUSE:?}: {error}"
                        );
                    }
                    self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
                    return accepted;
                }
            }
        }
        // More connections may wait, of which no further event tells.
        self.accept_at = Some(Instant::now());
        TURN_ACCEPTS
    }

    /// Accepts a client if there is a place for it, or else tells it why there is none.
    fn admit(&self, sessions: &Rc<Sessions>, stream: UnixStream) -> io::Result<Option<ClientKey>> {
        static REFUSED: Seldom = Seldom::new();
        stream.set_nonblocking(true)?;
        let Peer { uid, gid, pid } = peer_of(&stream)?;
        let groups = groups_of(&stream);
        if let Err(error) = sessions.make_place(uid) {
            if let Some(unsaid) = REFUSED.due() {
                warn!(unsaid, "a client was refused: {error}");
            }
            let refused = Connection::new(stream, uid, None, self.epoll());
            refused.send(0, &Reply::Failed { error }, Vec::new());
            refused.ring()?;
            return Ok(None);
        }
        let key = sessions.next_key();
        self.watch(&stream, key.get(), READS)?;
        let shown = pid.map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
        let session = Rc::new(Connection::new(stream, uid, Some(key), self.epoll()));
        let mut client = Client::new(session, shown, sessions.kernel.clock.now());
        (client.gid, client.groups) = (gid, groups);
        // A process that crashes may leave children that hold its connection open without using it. If the
        // process cannot be watched, its pins are freed when the last child ends.
        if let Some(pid) = pid
            && let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
            && self.watch(&process, key.get() | PROCESS, EventFlags::IN | EventFlags::ET).is_ok()
        {
            client.follow(process);
        }
        sessions.clients.borrow_mut().insert(key, client);
        Ok(Some(key))
    }

    /// Serves a client for a turn: sends queued output, reads, and answers, within limits.
    fn serve(&mut self, sessions: &Rc<Sessions>, key: ClientKey) -> usize {
        let Some(connection) = sessions.connection(key) else { return 0 };
        let read = match connection.ring() {
            Err(error) => Err(error.into()),
            Ok(()) if connection.is_behind() => Ok(None),
            Ok(()) => connection.receive().map(Some),
        };
        let (mut requests, mut end) = (0, None);
        // Requests that came before the client left still count.
        while requests < TURN_REQUESTS && !connection.is_behind() {
            let asked = match connection.next() {
                Ok(Some(next)) => {
                    Asked { session: key, number: next.number, request: next.request, file: next.file }
                }
                Ok(None) => break,
                Err(error) => {
                    end = Some((0, Farewell::from(error)));
                    break;
                }
            };
            let number = asked.number;
            let allowed = sessions.may_ask(key, number, &asked.request);
            match allowed.and_then(|()| Ok(sessions.request(asked)?)) {
                Ok(cost) => requests += cost,
                Err(farewell) => {
                    end = Some((number, farewell));
                    break;
                }
            }
        }
        if let Some((request, farewell)) = &end {
            // A client that sent an invalid frame is told so, although it may be gone already.
            let told = Error::new(ErrorKind::Invalid, format!("{farewell}; the connection is closed"));
            sessions.reply(key, *request, &Reply::Failed { error: told });
            let _ = connection.ring();
        }
        let behind = connection.is_behind();
        let heard = behind || (matches!(read, Ok(Some(Read::Drained))) && requests < TURN_REQUESTS);
        match (end, read) {
            (Some((_, farewell)), _) | (None, Err(farewell)) => {
                self.dismiss(sessions, key, &farewell);
                requests + 1
            }
            (None, Ok(_)) if heard && sessions.client(key, |client| client.orphaned) => {
                self.dismiss(sessions, key, &Farewell::Orphaned);
                requests + 1
            }
            (None, Ok(Some(Read::Drained))) if requests < TURN_REQUESTS => requests,
            // An event tells when the socket of a client that is behind takes more.
            (None, Ok(_)) if behind => requests,
            (None, Ok(_)) => {
                self.ready.push_back(key);
                requests + 1
            }
        }
    }

    /// Sends the replies that the turn left queued, and drops the clients that cannot be reached.
    pub(crate) fn flush(&mut self, sessions: &Rc<Sessions>) {
        for key in sessions.take_unsent() {
            if let Some(Err(error)) = sessions.session(key).map(|session| session.ring()) {
                self.dismiss(sessions, key, &Farewell::Socket(error));
            }
        }
    }

    fn dismiss(&mut self, sessions: &Rc<Sessions>, key: ClientKey, why: &Farewell) {
        self.ready.retain(|ready| *ready != key);
        sessions.let_go(key, &why.to_string());
    }
}

impl Sessions {
    /// Reads a client's state; returns the default when the client has gone.
    pub(crate) fn client<T: Default>(&self, key: ClientKey, look: impl FnOnce(&Client) -> T) -> T {
        self.clients.borrow().get(&key).map(look).unwrap_or_default()
    }

    /// Changes a client's state; `None` when the client has gone.
    pub(crate) fn client_mut<T>(&self, key: ClientKey, change: impl FnOnce(&mut Client) -> T) -> Option<T> {
        self.clients.borrow_mut().get_mut(&key).map(change)
    }

    /// Returns a number for a new client.
    pub(crate) fn next_key(&self) -> ClientKey {
        let key = self.next_client.get();
        self.next_client.set(key.saturating_add(1));
        key
    }

    /// The session of a client; `None` when it has gone.
    pub(crate) fn session(&self, key: ClientKey) -> Option<Rc<dyn Session>> {
        Some(Rc::clone(&self.clients.borrow().get(&key)?.session))
    }

    /// The socket of a client, if it is connected by one.
    fn connection(&self, key: ClientKey) -> Option<Rc<Connection>> {
        let session: Rc<dyn Any> = self.session(key)?;
        session.downcast().ok()
    }

    /// Whether a client may ask: it has said hello, or says it now, and no other request of the number waits.
    fn may_ask(&self, key: ClientKey, request: u64, asked: &Request) -> Result<(), Farewell> {
        if !matches!(asked, Request::Hello { .. }) && !self.client(key, |client| client.greeted) {
            return Err(Farewell::Unannounced);
        }
        if self.client(key, |client| client.waiting.contains_key(&request)) {
            return Err(Farewell::Repeated(request));
        }
        Ok(())
    }

    /// Queues a reply for a client, to be sent at the end of the turn.
    pub(crate) fn reply(&self, key: ClientKey, request: u64, reply: &Reply) {
        self.send_reply(key, request, reply, Vec::new());
    }

    /// Queues a reply with the descriptors that the reply announces.
    pub(crate) fn send_reply(
        &self,
        key: ClientKey,
        request: u64,
        reply: &Reply,
        descriptors: Vec<Arc<OwnedFd>>,
    ) {
        let Some(session) = self.session(key) else { return };
        session.send(request, reply, descriptors);
        let mut unsent = self.unsent.borrow_mut();
        if unsent.last() != Some(&key) {
            unsent.push(key);
        }
    }

    /// Takes the clients that were replied to since the last call.
    fn take_unsent(&self) -> Vec<ClientKey> {
        self.unsent.take()
    }

    /// Ends a connection and frees what its client held. Closing the socket removes it from the epoll set.
    pub(crate) fn let_go(&self, key: ClientKey, why: &str) {
        let Some(client) = self.clients.borrow_mut().remove(&key) else {
            return;
        };
        client.add_counts(&self.counting, self.kernel.clock.now());
        client.lent.values().for_each(|lent| lent.uncount(&self.store, key));
        let given_up = self.store.objects.borrow_mut().end_all(key);
        let unsealed = given_up.len();
        for creation in &given_up {
            self.store.quotas.borrow_mut().forget(&creation.head, key);
            if !creation.replaces {
                self.claims.release(&creation.head.id);
            }
        }
        self.store.quotas.borrow_mut().close(key);
        self.services.on_session_end(key);
        let (name, pid, pins) = (&client.name, client.pid, client.pins.len() + client.kept.len());
        if unsealed > 0 || pins > 0 {
            info!(
                client = name,
                process = pid,
                why,
                pins,
                unsealed,
                "a client has gone, and its pins and memory are freed"
            );
        } else {
            debug!(client = name, process = pid, why, "a client has gone");
        }
    }

    /// Ends connections that have not said hello in time.
    pub(crate) fn dismiss_silent(&self, now: Instant) {
        let silent = |(key, client): (&ClientKey, &Client)| client.is_silent(now).then_some(*key);
        let silent: Vec<_> = self.clients.borrow().iter().filter_map(silent).collect();
        silent.into_iter().for_each(|key| self.let_go(key, "it never said hello"));
    }
}
