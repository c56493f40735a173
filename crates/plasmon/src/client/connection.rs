//! One connection shared by many threads, without a thread of its own.
//!
//! A caller queues its frame and sends what the socket takes. Then it waits, and one of those who
//! wait *leads*: it reads the socket and hands every reply to the one it belongs to. When the
//! leader's own reply has come, it wakes another, who leads on. So a blocked `get` holds up nobody.
//!
//! Invariants:
//! - Nobody sleeps with the state locked, and no foreign code (an interrupt check) runs under it.
//! - Whenever somebody sleeps, somebody else leads or has been woken to.
//! - Descriptors are applied by the leader in the order of arrival, whoever the reply is for.
//! - A reply nobody waits for any more is undone: its pins are released, its creation aborted ([`state`]).
//! - In a forked child nothing is sent and nothing locked.
//!
//! Event loops wait elsewhere: [`pending`].

mod pending;
mod state;

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Buf;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use self::pending::{Pending, Turn};
use self::state::State;
pub(super) use self::state::Undo;
use super::Question;
use super::fast::Fast;
use super::fork::Process;
use super::mapping::Arena;
use super::socket::Socket;
use crate::wire::{Header, Receiver, Reply, Request, Table, send_with_descriptors};
use crate::{Error, ErrorKind, ObjectId, Result};

/// How often a wait looks whether it was interrupted.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// How long a release may wait for a daemon that does not read.
const RELEASE_PATIENCE: Duration = Duration::from_secs(1);

/// Asked while a call waits; `true` ends the wait.
pub(super) type Interrupt<'a> = &'a mut dyn FnMut() -> bool;

/// Memory to work in, by its first address: its length and its number.
type Scratches = BTreeMap<usize, (usize, u64)>;

/// A connection after its handshake.
pub(super) struct Connection {
    socket: UnixStream,
    at: Socket,
    /// The user whose daemon it is.
    owner: u32,
    process: Process,
    arena: Arc<Arena>,
    fast: Option<Fast>,
    /// The connection has ended: what is shared is of no more use.
    ended: AtomicBool,
    state: Mutex<State>,
    scratches: Mutex<Scratches>,
    /// Locked by the leader only.
    receiver: Mutex<Receiver>,
}

impl Connection {
    /// Takes over a non-blocking socket after the handshake, with what was received beyond it.
    pub(super) fn new(
        socket: UnixStream,
        at: Socket,
        owner: u32,
        arena: Arc<Arena>,
        fast: Option<Fast>,
        receiver: Receiver,
    ) -> Self {
        let (state, receiver) = (Mutex::new(State::default()), Mutex::new(receiver));
        let ended = AtomicBool::new(false);
        let scratches = Mutex::default();
        let process = Process::this();
        Self { socket, at, owner, process, arena, fast, ended, state, scratches, receiver }
    }

    /// What this client shares with the daemon, if it does, and if this is the process that does.
    #[inline]
    pub(super) fn fast(&self) -> Option<&Fast> {
        let of_use = !self.ended.load(Ordering::Relaxed) && self.process.is_this();
        self.fast.as_ref().filter(|_| of_use)
    }

    /// As [`Connection::fast`], also after the connection has ended: to take pins back.
    pub(super) fn fast_of_this_process(&self) -> Option<&Fast> {
        self.fast.as_ref().filter(|_| self.process.is_this())
    }

    /// Whether the daemon still holds its end.
    pub(super) fn is_alive(&self) -> bool {
        let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
        !self.poll(PollFlags::RDHUP, Some(Duration::ZERO)).intersects(gone)
    }

    pub(super) fn at(&self) -> &Socket {
        &self.at
    }

    pub(super) fn path(&self) -> &Path {
        self.at.path()
    }

    pub(super) fn owner(&self) -> u32 {
        self.owner
    }

    pub(super) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Sends a request whose reply the ticket waits for.
    pub(super) fn send(&self, request: &Request, undo: Undo) -> Result<Ticket<'_>> {
        self.check_process()?;
        let mut state = self.lock();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        self.abort_strays(&mut state);
        let number = state.enqueue(request, undo, false);
        self.flush(&mut state);
        Ok(Ticket { connection: self, number })
    }

    /// Aborts what was created through the ring after its caller had given up.
    fn abort_strays(&self, state: &mut State) {
        for id in self.fast().map(Fast::strays).unwrap_or_default() {
            state.enqueue(&Request::Abort { id }, Undo::Nothing, true);
        }
    }

    /// An object is not to be pinned any more.
    pub(super) fn forget_pin(&self, id: &ObjectId) {
        if self.check_process().is_ok() {
            self.lock().pinned.remove(id);
        }
    }

    /// As [`Connection::send`], of a request that a descriptor goes with.
    pub(super) fn send_file(&self, request: &Request, file: &OwnedFd, undo: Undo) -> Result<Ticket<'_>> {
        self.check_process()?;
        let copied = file.try_clone().map_err(|error| {
            Error::new(ErrorKind::Internal, format!("this process cannot copy a descriptor: {error}"))
        })?;
        let mut state = self.lock();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let at = state.sent + state.outbox.len() as u64;
        state.files.push_back((at, copied));
        let number = state.enqueue(request, undo, false);
        self.flush(&mut state);
        Ok(Ticket { connection: self, number })
    }

    /// Memory to work in that these bytes lie in: its number, and where.
    pub(super) fn scratch_of(&self, bytes: &[u8]) -> Option<(u64, u64)> {
        let start = bytes.as_ptr() as usize;
        let scratches = self.scratches();
        let (first, (len, number)) = scratches.range(..=start).next_back()?;
        let at = start - first;
        (at + bytes.len() <= *len && !bytes.is_empty()).then_some((*number, at as u64))
    }

    pub(super) fn scratches(&self) -> MutexGuard<'_, Scratches> {
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request whose reply does not matter. Never blocks for long, never fails.
    pub(super) fn send_and_forget(&self, request: &Request) {
        if self.check_process().is_err() {
            return;
        }
        let mut state = self.lock();
        if state.broken.is_some() {
            return;
        }
        let was_stuck = !state.outbox.is_empty();
        state.enqueue(request, Undo::Nothing, true);
        self.flush(&mut state);
        // Perhaps no call follows that would send the rest. But a daemon that has stopped must not
        // cost every drop a second: only the first to find it stuck waits.
        let deadline = Instant::now() + RELEASE_PATIENCE;
        while !was_stuck && !state.outbox.is_empty() && Instant::now() < deadline {
            drop(state);
            self.poll(PollFlags::OUT, Some(TICK));
            state = self.lock();
            self.flush(&mut state);
        }
    }

    /// An error that says the daemon does not keep to the protocol; the connection ends with it.
    pub(super) fn fail(&self, error: Error) -> Error {
        self.ended.store(true, Ordering::Relaxed);
        self.lock().fail(error.clone());
        error
    }

    /// The reply to a question, unless it is to another.
    pub(super) fn only<Q: Question>(&self, reply: Reply) -> Result<Q::Answer> {
        let other = |other: Reply| {
            let name = other.row().map_or_else(|| other.opcode().to_string(), |row| row.words());
            format!("\"{name}\", which is not what it was asked for")
        };
        Q::Answer::try_from(reply).map_err(|reply| self.fail(unexpected(&other(reply))))
    }

    /// What the daemon said of these objects, unless it is of more or fewer.
    pub(super) fn one_each<T, Id>(&self, ids: &[Id], told: Vec<T>) -> Result<Vec<T>> {
        if told.len() == ids.len() {
            return Ok(told);
        }
        let text = format!("{} objects, and was asked for {}", told.len(), ids.len());
        Err(self.fail(unexpected(&text)))
    }

    pub(super) fn check_process(&self) -> Result<()> {
        check_process(self.process, self.path())
    }

    /// Sends what the socket takes now.
    fn flush(&self, state: &mut State) {
        while !state.outbox.is_empty() && state.broken.is_none() {
            // A descriptor goes with the first byte of what is sent.
            let State { outbox, files, sent, .. } = state;
            let mut next = files.iter().map(|(at, file)| ((at - *sent) as usize, file.as_fd())).peekable();
            let file = next.next_if(|(at, _)| *at == 0).map(|(_, file)| file);
            let end = next.peek().map_or(outbox.len(), |(at, _)| *at);
            match send_with_descriptors(&self.socket, &outbox[..end], file.as_slice()) {
                Ok(count) => {
                    if file.is_some() {
                        files.pop_front();
                    }
                    outbox.advance(count);
                    *sent += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What the daemon said before it hung up is still to be read: the leader reports.
                Err(_) => state.outbox.clear(),
            }
        }
    }

    /// Waits for the socket, and returns what it is ready for.
    fn poll(&self, events: PollFlags, nap: Option<Duration>) -> PollFlags {
        let timeout = nap.and_then(|nap| Timespec::try_from(nap).ok());
        let mut sockets = [PollFd::from_borrowed_fd(self.socket.as_fd(), events)];
        // It fails when a signal comes: the caller looks around and waits again.
        match poll(&mut sockets, timeout.as_ref()) {
            Ok(_) => sockets[0].revents(),
            Err(_) => PollFlags::empty(),
        }
    }

    /// Reads the socket once it is readable, into `arrived`; for the leader alone.
    fn receive(&self, arrived: &mut Vec<(u64, Reply)>) -> Result<()> {
        let mut receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        match receiver.receive(&self.socket) {
            Ok(0) => return Err(disconnected(self.path(), None)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(disconnected(self.path(), Some(&error))),
        }
        while let Some((header, body)) =
            Header::take_frame(&mut receiver.buffer).map_err(|error| malformed(self.path(), &error))?
        {
            let reply = Reply::decode(&header, body).map_err(|error| malformed(self.path(), &error))?;
            let descriptors = receiver.take_descriptors(header.descriptors.into());
            if descriptors.len() < header.descriptors.into() {
                return Err(Error::new(
                    ErrorKind::Disconnected,
                    format!(
                        "descriptors of the node at {} were lost: raise this process's limit of open files \
                         (ulimit -n) and connect again",
                        self.path().display()
                    ),
                ));
            }
            self.take_descriptors(&reply, descriptors)?;
            arrived.push((header.request, reply));
        }
        Ok(())
    }

    /// Takes the descriptors that came with a reply.
    fn take_descriptors(&self, reply: &Reply, descriptors: Vec<OwnedFd>) -> Result<()> {
        match (reply, &self.fast) {
            (
                Reply::Created { granted, .. } | Reply::Got { granted, .. } | Reply::Lent { granted, .. },
                _,
            ) => {
                for (granted, descriptor) in granted.iter().zip(descriptors) {
                    self.arena.grant(*granted, descriptor)?;
                }
            }
            (Reply::Tables { parts }, Some(fast)) => {
                for (part, file) in parts.iter().zip(&descriptors) {
                    fast.add(part, file).map_err(|error| {
                        let what = format!("a part of an object table that cannot be used ({error})");
                        unexpected(&what)
                    })?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// One round of leading: waits for the socket and hands out what came.
    fn lead<'a>(&'a self, mut state: MutexGuard<'a, State>, nap: Option<Duration>) -> MutexGuard<'a, State> {
        state.leading = true;
        let unsent = if state.outbox.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        drop(state);
        let mut arrived = Vec::new();
        let ready = self.poll(PollFlags::IN | unsent, nap);
        let outcome = match ready - PollFlags::OUT {
            nothing if nothing.is_empty() => Ok(()),
            _ => self.receive(&mut arrived),
        };
        let mut state = self.lock();
        state.leading = false;
        for (number, reply) in arrived {
            state.deliver(number, reply);
        }
        if let Err(error) = outcome {
            self.ended.store(true, Ordering::Relaxed);
            state.fail(error);
        }
        self.flush(&mut state);
        state
    }

    /// Nobody waits for this request any more.
    fn give_up(&self, number: u64) {
        if self.check_process().is_err() {
            return;
        }
        let mut state = self.lock();
        if let Some(open) = state.open.get_mut(&number) {
            if open.complete {
                state.undo(number);
            } else {
                open.abandoned = true;
                if !matches!(open.undo, Undo::Nothing) && state.broken.is_none() {
                    state.enqueue(&Request::Cancel { request: number }, Undo::Nothing, true);
                }
            }
            self.flush(&mut state);
        }
        state.hand_over();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            // A forked child may hold the socket open. If it is closed already, all is well.
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }
}

/// A request on its way. Dropped without its reply, the request is given up: what may wait for objects or
/// for room is cancelled, and a reply that comes all the same is undone.
pub(super) struct Ticket<'a> {
    connection: &'a Connection,
    number: u64,
}

impl Ticket<'_> {
    /// Waits for the only reply.
    pub(super) fn wait(self, deadline: Option<Instant>, interrupt: Option<Interrupt<'_>>) -> Result<Reply> {
        let replies = self.wait_all(deadline, interrupt)?;
        replies.into_iter().next_back().ok_or_else(|| unexpected("nothing"))
    }

    /// Waits for all frames of the reply, at most until `deadline`.
    ///
    /// A reply that says the request failed is an error here.
    pub(super) fn wait_all(
        self,
        deadline: Option<Instant>,
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<Vec<Reply>> {
        let started = Instant::now();
        let mut looked = started;
        let connection = self.connection;
        let mut state = connection.lock();
        loop {
            let Some(open) = state.open.get(&self.number) else { return Err(unexpected("nothing")) };
            if open.complete {
                let replies = state.take(self.number);
                return match replies.last() {
                    Some(Reply::Failed { error, .. }) => Err(error.clone()),
                    _ => Ok(replies),
                };
            }
            let wake = Arc::clone(&open.wake);
            if let Some(error) = &state.broken {
                return Err(error.clone());
            }
            let now = Instant::now();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(silent(connection.path(), now - started));
            }
            let tick = interrupt.is_some().then_some(TICK);
            let nap = left.into_iter().chain(tick).min();

            state = if !state.leading {
                connection.lead(state, nap)
            } else if !state.outbox.is_empty() {
                // The leader may not know that there is something to send.
                drop(state);
                connection.poll(PollFlags::OUT, Some(nap.unwrap_or(TICK).min(TICK)));
                let mut state = connection.lock();
                connection.flush(&mut state);
                state
            } else {
                state.set_asleep(self.number, true);
                let mut state = match nap {
                    Some(nap) => wake.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0,
                    None => wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                };
                state.set_asleep(self.number, false);
                state
            };

            if let Some(interrupt) = &mut interrupt
                && looked.elapsed() >= TICK
            {
                state.hand_over();
                drop(state);
                looked = Instant::now();
                if interrupt() {
                    return Err(Error::new(ErrorKind::Interrupted, "the wait was interrupted"));
                }
                state = connection.lock();
            }
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.connection.give_up(self.number);
    }
}

/// Refuses the use of a connection in another process than the one that made it.
pub(super) fn check_process(maker: Process, path: &Path) -> Result<()> {
    if maker.is_this() {
        return Ok(());
    }
    let message = format!(
        "the connection to {} was made in process {} and does not work in process {}: connect again after \
         fork",
        path.display(),
        maker.id(),
        std::process::id()
    );
    Err(Error::new(ErrorKind::Disconnected, message))
}

/// The error for a reply of the wrong kind.
pub(super) fn unexpected(what: &str) -> Error {
    Error::new(
        ErrorKind::Internal,
        format!("the daemon answered with {what}: install the same release of client and daemon"),
    )
}

/// The error for a connection that ended.
pub(super) fn disconnected(path: &Path, error: Option<&io::Error>) -> Error {
    let why = error.map_or_else(|| "the daemon closed it".to_owned(), ToString::to_string);
    let message = format!(
        "the connection to the node at {} ended ({why}): see whether it runs (`plasmon status --socket {}`), \
         then connect again",
        path.display(),
        path.display()
    );
    Error::new(ErrorKind::Disconnected, message)
}

/// The error for bytes that are no frame.
pub(super) fn malformed(path: &Path, error: &crate::wire::WireError) -> Error {
    Error::new(
        ErrorKind::Disconnected,
        format!("the node at {} sent no valid reply: {error}", path.display()),
    )
}

/// The error for a daemon that does not answer.
pub(super) fn silent(path: &Path, waited: Duration) -> Error {
    let message = format!(
        "the node at {} did not answer within {:.1} s; it may be stopped or overloaded: see its log. What \
         was asked may still happen",
        path.display(),
        waited.as_secs_f64()
    );
    Error::new(ErrorKind::TimedOut, message)
}

#[cfg(test)]
mod tests;
