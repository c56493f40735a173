//! The client: calls of an application on the daemon of its host.
//!
//! [`Client`] finds objects in shared memory and makes small ones there ([`fast`]), turns other calls into
//! frames ([`connection`]) and places in the arena into slices ([`mapping`], [`copying`]). Calls block the
//! thread that makes them and nobody else; there is no thread and no runtime behind them. Every call ends: with
//! a time-out of its own (`get`), when the daemon has been silent for [`PATIENCE`], or when its caller's
//! [`Client::interruptible`] says so.

mod connection;
mod copies;
mod copying;
mod creation;
mod fast;
mod fork;
mod handshake;
mod looping;
mod mapping;
mod object;
mod reading;
mod scratch;
mod subscription;
mod writing;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use connection::{Connection, Ticket, Undo, unexpected};
use handshake::Greeted;

pub use connection::{Pending, Turn};
pub use creation::Creation;
pub use mapping::CreationMemory;
pub use object::Object;
pub use scratch::Scratch;
pub use subscription::Subscription;

use crate::wire::{MAX_IDS, Reply, Request};
use crate::{NodeId, ObjectId, Result};

/// How long a call waits for the daemon to say anything. Far longer than a live daemon takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// What the daemon gets beyond the time-out of a `get` before the client gives up on its own.
const GRACE: Duration = Duration::from_secs(10);

/// How an object is created.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CreateOptions {
    /// The name behind the id, for people who list objects; at most 255 bytes.
    pub name: Option<String>,
    /// Only this user may see the object.
    pub private: bool,
    /// How long to wait for others to make room, when there is none. What the node itself does to make room
    /// (spilling, moving) is waited for in any case.
    pub room: Option<Duration>,
    /// Make a digest of the object, to compare its bytes with at any time: [`Object::verify`].
    pub digest: bool,
    /// The id was drawn at random for this object ([`ObjectId::random`](crate::ObjectId::random)): nobody else creates
    /// it, and nobody is asked. Any other id is claimed in the cluster first, so that of two who create it at the same
    /// time one gets it and the other `Exists`.
    pub fresh: bool,
    /// How many nodes are to hold the object and keep it; 0 and 1 for this one alone. It is sealed before the others
    /// have it, and the call returns when they have. Should some of them die, others take it instead.
    pub copies: u16,
    /// How long it lives: then it is deleted everywhere. For ever if not given.
    pub ttl: Option<Duration>,
}

/// A connection to the daemon of this host, for any number of threads. Clones share it.
///
/// It does not work in a forked child, which has to connect again. A child must not touch objects
/// of its parent either: they are pinned for as long as the parent holds them, and no longer.
#[derive(Clone)]
pub struct Client {
    connection: Arc<Connection>,
    node: NodeId,
    inline_max: usize,
    capacity: u64,
    interrupt: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl Client {
    /// Connects to the daemon that listens at `socket`, under the name of this program.
    ///
    /// # Errors
    /// `Disconnected` when none listens there, `NotAllowed` when this user may not, `Invalid` when
    /// the path is too long for a socket.
    pub fn connect(socket: impl AsRef<Path>) -> Result<Self> {
        let program = std::env::args_os().next().unwrap_or_default();
        let name = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
        Self::connect_as(socket, &name)
    }

    /// Connects as [`Client::connect`] does, under a name of the caller's choice: the daemon shows
    /// it to people, cut to 255 bytes.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_as(socket: impl AsRef<Path>, name: &str) -> Result<Self> {
        handshake::connect_to(socket.as_ref(), name).map(Self::from)
    }

    /// The same connection, and calls that wait for the daemon ask `interrupt` about every 50 ms whether to end;
    /// it runs on the thread that waits. The call fails with `Interrupted` then, and what it asked for may
    /// still happen.
    #[must_use]
    pub fn interruptible(self, interrupt: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { interrupt: Some(Arc::new(interrupt)), ..self }
    }

    /// Where the daemon of this host listens unless told otherwise: `$PLASMON_SOCKET`, else
    /// `plasmon/plasmon.sock` in `$XDG_RUNTIME_DIR`, else in `/run` for root, else
    /// `/tmp/plasmon-<uid>/plasmon.sock`.
    pub fn default_socket() -> PathBuf {
        handshake::default_socket()
    }

    /// Where a client finds the node of this host unless told otherwise: [`Client::default_socket`], or if nothing
    /// is there and `$PLASMON_SOCKET` not set, `/run/plasmon/plasmon.sock`, where root's node serves everybody.
    pub fn find_socket() -> PathBuf {
        handshake::find_socket()
    }

    fn by_chunks<T>(
        &self,
        ids: &[ObjectId],
        request: impl Fn(Vec<ObjectId>) -> Request,
        answer: impl Fn(Reply) -> Option<Vec<T>>,
    ) -> Result<Vec<T>> {
        let mut answers = Vec::with_capacity(ids.len());
        for ids in ids.chunks(MAX_IDS) {
            match answer(self.call(&request(ids.to_vec()), Undo::Nothing)?) {
                Some(some) if some.len() == ids.len() => answers.extend(some),
                _ => return Err(self.connection.fail(unexpected("something else than asked"))),
            }
        }
        Ok(answers)
    }

    /// The node this client talks to.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Bytes of the node's store.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Watches the objects of the node, on a connection of its own.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn subscribe(&self, name: &str) -> Result<Subscription> {
        Subscription::open(self.socket(), name)
    }

    /// The path of the daemon's socket.
    pub fn socket(&self) -> &Path {
        self.connection.path()
    }

    fn call(&self, request: &Request, undo: Undo) -> Result<Reply> {
        self.finish(self.connection.send(request, undo)?, patience())
    }

    /// Waits for the only reply to a request, at most until `deadline`.
    fn finish(&self, ticket: Ticket<'_>, deadline: Option<Instant>) -> Result<Reply> {
        self.finish_all(ticket, deadline)?.pop().ok_or_else(|| unexpected("nothing"))
    }

    /// Waits for all frames of the reply to a request, at most until `deadline`.
    fn finish_all(&self, ticket: Ticket<'_>, deadline: Option<Instant>) -> Result<Vec<Reply>> {
        match &self.interrupt {
            Some(interrupt) => ticket.wait_all(deadline, Some(&mut || interrupt())),
            None => ticket.wait_all(deadline, None),
        }
    }
}

impl From<Greeted> for Client {
    fn from(greeted: Greeted) -> Self {
        let Greeted { connection, node, inline_max, capacity } = greeted;
        Self { connection: Arc::new(connection), node, inline_max, capacity, interrupt: None }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("socket", &self.socket()).field("node", &self.node).finish()
    }
}

/// The end of a call that starts now.
fn patience() -> Option<Instant> {
    Instant::now().checked_add(PATIENCE)
}

/// Takes the confirmation of a request that gives nothing back.
fn done(reply: Reply) -> Result<()> {
    match reply {
        Reply::Done { .. } => Ok(()),
        _ => Err(unexpected("something else than a confirmation")),
    }
}
