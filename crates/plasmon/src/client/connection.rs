//! Connection to the daemon, which any number of threads share. Owns the socket, the requests under way, and
//! what the daemon gave this client: memory, tables, slots, leases. A connection has no thread of its own.
//!
//! A caller queues its frame and sends what the socket takes. Then it waits, and one of the waiting callers
//! *leads*: it reads the socket and delivers every reply to the caller that it belongs to. When the leader's
//! own reply has come, it wakes another caller, who leads next. So a blocked `get` delays no other call.
//!
//! Invariants:
//! - No thread sleeps with the state locked, and no foreign code (an interrupt check) runs under the lock.
//! - Whenever a thread sleeps, another leads or has been woken to lead.
//! - The leader applies descriptors in the order of arrival, whichever request the reply is for.
//! - A reply that no caller waits for any more is undone: its pins are released, its creation is aborted
//!   ([`state`]).
//! - A forked child sends nothing and locks nothing.
//!
//! Event loops wait as [`pending`] describes.

mod looking;
mod pending;
mod state;
mod ticket;

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Buf;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::looking::Looking;
pub use self::pending::{Pending, Turn};
use self::state::State;
pub(super) use self::state::Undo;
pub(super) use self::ticket::Ticket;
use super::Question;
use super::due::{Due, IMMEDIATE_TIMEOUT};
use super::fast::Fast;
use super::fork::Process;
use super::mapping::Arena;
use super::pieces::Pieces;
use super::socket::Socket;
use super::sync::Holds;
use crate::shared::{ClientCalls, ClientLeases, Stray, WaitStats};
use crate::wire::{Header, Receiver, Reply, Request, Table, send_with_descriptors};
use crate::{Error, ErrorKind, ObjectId, Result};

/// Time between two checks whether a waiting call was interrupted.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Longest time that the release of a pin waits for a daemon that does not read its socket. Calls that end by
/// their time-outs release what they had taken.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(100);

/// Function that a waiting call asks again and again. `true` ends the call.
pub(super) type Interrupt<'a> = &'a mut dyn FnMut() -> bool;

/// Scratches of a connection by the address of their first byte: length in bytes and number.
type Scratches = BTreeMap<usize, (usize, u64)>;

/// Connection to the daemon after the handshake.
pub(super) struct Connection {
    socket: UnixStream,
    at: Socket,
    /// User id of the daemon, as the kernel tells it.
    owner: u32,
    process: Process,
    arena: Arc<Arena>,
    fast: Option<Fast>,
    /// Slots by which this client makes calls, once it has asked for them.
    slots: OnceLock<Arc<ClientCalls>>,
    /// Whether the connection has ended. Tables, channel and slots are not used after that.
    ended: AtomicBool,
    state: Mutex<State>,
    scratches: Mutex<Scratches>,
    /// Memory lent by the daemon, through which bytes of regions travel.
    pub(super) pieces: Pieces,
    /// Guards of locks, and waits for them.
    pub(super) holds: Holds,
    looking: Looking,
    /// Receiver of frames and descriptors. Only the leader locks it.
    receiver: Mutex<Receiver>,
}

impl Connection {
    /// Takes over a non-blocking socket after the handshake, with the bytes that were received after it.
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
        let (slots, looking, pieces) = (OnceLock::new(), Looking::new(), Pieces::default());
        let holds = Holds::default();
        Self {
            socket,
            at,
            owner,
            process,
            arena,
            fast,
            slots,
            ended,
            state,
            scratches,
            pieces,
            holds,
            looking,
            receiver,
        }
    }

    /// Tables and channel that this client shares with the daemon. `None` if there are none, if the
    /// connection has ended, or in a forked child.
    #[inline]
    pub(super) fn fast(&self) -> Option<&Fast> {
        let of_use = !self.ended.load(Ordering::Relaxed) && self.process.is_this();
        self.fast.as_ref().filter(|_| of_use)
    }

    /// Tables and channel as [`Connection::fast`] returns them, and also after the connection has ended. Used
    /// to take pins back.
    pub(super) fn fast_of_this_process(&self) -> Option<&Fast> {
        self.fast.as_ref().filter(|_| self.process.is_this())
    }

    /// Slots by which this client makes calls. `None` if it has not asked for them, if the connection has
    /// ended, or in a forked child.
    pub(super) fn slots(&self) -> Option<&Arc<ClientCalls>> {
        let of_use = !self.ended.load(Ordering::Relaxed) && self.process.is_this();
        self.slots.get().filter(|_| of_use)
    }

    /// Whether mapped memory of the daemon may be used without asking it: the connection has not ended, this
    /// process made it, and the daemon has lately said that it lives.
    #[inline]
    pub(super) fn is_lively(&self) -> bool {
        self.fast().is_some_and(Fast::lives)
    }

    /// Number of calls by slot so far, by how their waits ended.
    pub(super) fn wait_stats(&self) -> WaitStats {
        self.slots.get().map(|slots| slots.stats()).unwrap_or_default()
    }

    /// Whether the daemon still holds its end of the socket.
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

    /// Sends a request. The ticket waits for its reply.
    pub(super) fn send(&self, request: &Request, undo: Undo) -> Result<Ticket<'_>> {
        self.check_process()?;
        let mut state = self.lock();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        self.undo_strays(&mut state);
        let number = state.enqueue(request, undo, false);
        self.flush(&mut state);
        Ok(Ticket { connection: self, number, sent: Instant::now(), longest: None })
    }

    /// Undoes what the ring completed after its caller had given up: aborts creations, and has outcomes
    /// forgotten.
    fn undo_strays(&self, state: &mut State) {
        for stray in self.fast().map(Fast::strays).unwrap_or_default() {
            let (request, undo) = match stray {
                Stray::Creation(id) => (Request::Abort { id }, Undo::Nothing),
                Stray::Outcome(number, created) => {
                    (Request::Collect { number }, created.map_or(Undo::Nothing, Undo::Abort))
                }
            };
            state.enqueue(&request, undo, true);
        }
    }

    /// Notes that no call of `pin` keeps this object pinned any more.
    pub(super) fn forget_pin(&self, id: &ObjectId) {
        if self.check_process().is_ok() {
            self.lock().pinned.remove(id);
        }
    }

    /// Sends a request as [`Connection::send`] does, together with a descriptor.
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
        Ok(Ticket { connection: self, number, sent: Instant::now(), longest: None })
    }

    /// Number of the scratch that contains these bytes, and the offset of the bytes in it. `None` if no
    /// scratch contains them.
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

    /// Sends a request whose reply does not matter. The call never fails and blocks for at most
    /// [`RELEASE_TIMEOUT`].
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
        // Perhaps no later call sends the rest, so this one waits. A stopped daemon must not cost every drop
        // a second: only the first call that finds the socket full waits.
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        while !was_stuck && !state.outbox.is_empty() && Instant::now() < deadline {
            drop(state);
            self.poll(PollFlags::OUT, Some(CHECK_INTERVAL));
            state = self.lock();
            self.flush(&mut state);
        }
    }

    /// Ends the connection after the daemon broke the protocol, and returns `error`, which says how.
    pub(super) fn fail(&self, error: Error) -> Error {
        self.ended.store(true, Ordering::Relaxed);
        self.lock().fail(error.clone());
        error
    }

    /// Answer to the question `Q`. A reply of another kind is an error and ends the connection.
    pub(super) fn only<Q: Question>(&self, reply: Reply) -> Result<Q::Answer> {
        let other = |other: Reply| {
            let name = other.row().map_or_else(|| other.opcode().to_string(), |row| row.words());
            format!("\"{name}\", which does not answer the request")
        };
        Q::Answer::try_from(reply).map_err(|reply| self.fail(unexpected(&other(reply))))
    }

    /// Results for these objects, one each. More or fewer results are an error and end the connection.
    pub(super) fn one_each<T, Id>(&self, ids: &[Id], told: Vec<T>) -> Result<Vec<T>> {
        if told.len() == ids.len() {
            return Ok(told);
        }
        let text = format!("{} results instead of {}", told.len(), ids.len());
        Err(self.fail(unexpected(&text)))
    }

    pub(super) fn check_process(&self) -> Result<()> {
        check_process(self.process, self.path())
    }

    /// Sends what the socket takes without blocking.
    fn flush(&self, state: &mut State) {
        while !state.outbox.is_empty() && state.broken.is_none() {
            // A descriptor is sent with the first byte of its frame.
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
                // The daemon's last message before it hung up may still be unread. The leader reports the
                // failure.
                Err(_) => state.outbox.clear(),
            }
        }
    }

    /// Waits for the socket at most as long as `nap`, and returns the events that it is ready for.
    fn poll(&self, events: PollFlags, nap: Option<Duration>) -> PollFlags {
        let timeout = nap.and_then(|nap| Timespec::try_from(nap).ok());
        let mut sockets = [PollFd::from_borrowed_fd(self.socket.as_fd(), events)];
        // A signal makes poll fail. The caller checks its state and waits again.
        match poll(&mut sockets, timeout.as_ref()) {
            Ok(_) => sockets[0].revents(),
            Err(_) => PollFlags::empty(),
        }
    }

    /// Looks for events of the socket, then sleeps until there are some, at most as long as `nap`.
    fn await_socket(&self, events: PollFlags, nap: Option<Duration>) -> PollFlags {
        let began = Instant::now();
        let mut ready = PollFlags::empty();
        self.looking.look(nap, || {
            ready = self.poll(events, Some(Duration::ZERO));
            !ready.is_empty()
        });
        if ready.is_empty() {
            ready = self.poll(events, nap);
        }
        self.looking.learn(began.elapsed());
        ready
    }

    /// Reads the socket, which is readable, into `arrived`. Only the leader calls it.
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
                Reply::Created { granted, .. }
                | Reply::Got { granted, .. }
                | Reply::Lent { granted, .. }
                | Reply::RegionMapped { granted, .. },
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
            (Reply::Slots, Some(fast)) => {
                let slots = descriptors.first().ok_or_else(|| unexpected("slots without their memory"))?;
                let slots = fast.slots(slots).map_err(|error| {
                    let what = format!("slots that cannot be used ({error})");
                    unexpected(&what)
                })?;
                // The daemon gives a client its slots once.
                let _ = self.slots.set(Arc::new(slots));
            }
            (Reply::Leases { .. }, _) => {
                let leases = descriptors.first().ok_or_else(|| unexpected("leases without their memory"))?;
                let leases = ClientLeases::open(leases).map_err(|error| {
                    let what = format!("leases that cannot be used ({error})");
                    unexpected(&what)
                })?;
                self.holds.take_leases(leases);
            }
            _ => {}
        }
        Ok(())
    }

    /// Leads for one round: waits for the socket at most as long as `nap` and delivers the replies that came.
    fn lead<'a>(&'a self, mut state: MutexGuard<'a, State>, nap: Option<Duration>) -> MutexGuard<'a, State> {
        state.leading = true;
        let unsent = if state.outbox.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        drop(state);
        let mut arrived = Vec::new();
        let ready = self.await_socket(PollFlags::IN | unsent, nap);
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

    /// Later end of a wait whose end has come, if the daemon lives and `longest` is not over.
    pub(super) fn later(&self, longest: Due, now: Instant) -> Due {
        let lives = self.fast().is_some_and(Fast::lives);
        longest.filter(|longest| lives && now < *longest).map(|longest| longest.min(now + IMMEDIATE_TIMEOUT))
    }

    /// Gives up the request `number`: no caller waits for it any more.
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
            // A forked child may hold the socket open. An error means that the socket is closed already.
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }
}

/// Refuses the use of a connection in a process other than its maker.
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

/// Error for a reply of the wrong kind; `what` describes the reply.
pub(super) fn unexpected(what: &str) -> Error {
    Error::new(
        ErrorKind::Internal,
        format!("the daemon answered with {what}: install the same release of client and daemon"),
    )
}

/// Error for a connection that ended, with the reason if it is known.
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

/// Error for received bytes that are no valid frame.
pub(super) fn malformed(path: &Path, error: &crate::wire::WireError) -> Error {
    Error::new(
        ErrorKind::Disconnected,
        format!("the node at {} sent no valid reply: {error}", path.display()),
    )
}

/// Error for a daemon that has not answered for the time `waited`.
pub(super) fn silent(path: &Path, waited: Duration) -> Error {
    let message = format!(
        "the node at {} did not answer within {:.1} s: it, or another that it asks, may be stopped or \
         overloaded; `plasmon status --cluster` says which. The request may still be carried out",
        path.display(),
        waited.as_secs_f64()
    );
    Error::new(ErrorKind::TimedOut, message)
}

#[cfg(test)]
mod tests;
