//! The client: calls of an application on the daemon of its host.
//!
//! [`Client`] finds objects in shared memory and makes small ones there ([`fast`]), turns other calls into
//! frames ([`connection`]) and places in the arena into slices ([`mapping`], [`copying`]). Calls block the
//! thread that makes them and nobody else; there is no thread and no runtime behind them. Calls end by the
//! client's own clock ([`due`]), whatever the daemon does, and when their caller's [`Client::interruptible`]
//! says so.

mod connection;
mod copies;
mod copying;
mod creation;
mod digest;
mod due;
mod fast;
mod fork;
mod handshake;
mod looping;
mod mapping;
mod object;
mod range;
mod reading;
mod scratch;
mod socket;
mod subscription;
mod writing;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use connection::{Connection, Ticket, Undo, unexpected};
use due::{Due, PATIENCE};
use handshake::{Greeted, Until};

pub use connection::{Pending, Turn};
pub use creation::Creation;
pub use mapping::CreationMemory;
pub use object::Object;
pub use scratch::Scratch;
pub use socket::Socket;
pub use subscription::Subscription;

use crate::wire::{Ask, MAX_IDS, Reply, Request};
use crate::{NodeId, ObjectId, Result, Rights};

/// How an object is created.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CreateOptions {
    /// The name behind the id, for people who list objects; at most 255 bytes.
    pub name: Option<String>,
    /// What users other than this one, and root, may do with the object.
    pub rights: Rights,
    /// How long to wait for room, when there is none, and for all else that the call asks of nodes: it ends
    /// as `TimedOut` then. Without it, or with zero, others that could make room are not waited for; what the
    /// node itself does to make some (spilling, moving) is, and so is every replica.
    pub room: Option<Duration>,
    /// Make a digest of the object, to compare its bytes with at any time: [`Object::verify`].
    pub digest: bool,
    /// The id was drawn at random for this object ([`ObjectId::random`](crate::ObjectId::random)): nobody
    /// else creates it, and nobody is asked. Any other id is claimed in the cluster first, so that of two who
    /// create it at the same time one gets it and the other `Exists`.
    pub fresh: bool,
    /// How many nodes are to hold the object and keep it; 0 and 1 for this one alone. It is sealed before the
    /// others have it, and the call returns when they have. Should some of them die, others take it instead.
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
    user: u32,
    interrupt: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// How long to wait for the daemon, where that is not as usual.
    patience: Option<Duration>,
}

impl Client {
    /// Connects to the daemon that listens at `socket`, under the name of this program: at a path, whoever's
    /// it is, or at [`Socket::find`], if it is to be trusted.
    ///
    /// # Errors
    /// `Disconnected` when none listens there; `NotAllowed` when this user may not, and when the socket was
    /// not named and the daemon is a stranger's; `TimedOut` when it has not answered after 10 s; `Invalid`
    /// when the path is too long for a socket.
    pub fn connect(socket: impl Into<Socket>) -> Result<Self> {
        let program = std::env::args_os().next().unwrap_or_default();
        let name = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
        Self::connect_as(socket, &name)
    }

    /// Connects as [`Client::connect`] does, under a name of the caller's choice: the daemon shows
    /// it to people, cut to 255 bytes.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_as(socket: impl Into<Socket>, name: &str) -> Result<Self> {
        Self::connect_with(socket, name, None, None)
    }

    /// Connects as [`Client::connect_as`] does, within `timeout` instead of 10 s. `interrupt` is asked about
    /// every 50 ms whether to end.
    ///
    /// # Errors
    /// As [`Client::connect`]; `Interrupted` once `interrupt` returned `true`.
    pub fn connect_with(
        socket: impl Into<Socket>,
        name: &str,
        timeout: Option<Duration>,
        interrupt: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<Self> {
        handshake::connect_to(&socket.into(), name, Until::new(timeout, interrupt)).map(Self::from)
    }

    /// The same connection, and calls that wait for the daemon ask `interrupt` about every 50 ms whether to
    /// end; it runs on the thread that waits. The call fails with `Interrupted` then, and what it asked for
    /// may still happen.
    #[must_use]
    pub fn interruptible(self, interrupt: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { interrupt: Some(Arc::new(interrupt)), ..self }
    }

    /// The same connection, and calls that take no time-out, or none was given to that make objects, wait so
    /// long for each answer of the daemon instead of a minute.
    #[must_use]
    pub fn within(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    fn by_chunks<Q: Question, T>(
        &self,
        ids: &[ObjectId],
        question: impl Fn(Vec<ObjectId>) -> Q,
        told: impl Fn(Q::Answer) -> Vec<T>,
    ) -> Result<Vec<T>> {
        let mut answers = Vec::with_capacity(ids.len());
        for ids in ids.chunks(MAX_IDS) {
            let some = told(self.ask(question(ids.to_vec()), Undo::Nothing)?);
            answers.extend(self.connection.one_each(ids, some)?);
        }
        Ok(answers)
    }

    /// The node this client talks to.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The user that this client is to the node, who owns what it puts: the effective one of the process when
    /// it connected, as the node's user namespace has it.
    pub fn user(&self) -> u32 {
        self.user
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
        let mut interrupt = || self.interrupt.as_ref().is_some_and(|interrupt| interrupt());
        Subscription::open(self.connection.at(), name, Until::new(self.patience, Some(&mut interrupt)))
    }

    /// The user whose daemon it is, by the kernel's word: it gives out every byte that this client reads.
    pub fn owner(&self) -> u32 {
        self.connection.owner()
    }

    /// Whether that user is root, this one, or the one to whom root gave `/run/plasmon`: others are taken for
    /// their word only because somebody named their socket.
    pub fn is_trusted(&self) -> bool {
        socket::is_trusted(self.owner())
    }

    /// The path of the daemon's socket.
    pub fn socket(&self) -> &Path {
        self.connection.path()
    }

    fn ask<Q: Question>(&self, question: Q, undo: Undo) -> Result<Q::Answer> {
        self.ask_until(question, undo, self.due_of_answer())
    }

    fn ask_until<Q: Question>(&self, question: Q, undo: Undo, due: Due) -> Result<Q::Answer> {
        self.answer_to::<Q>(self.connection.send(&question.into(), undo)?, due)
    }

    /// Waits for the only reply to a request, at most until it is due.
    fn answer_to<Q: Question>(&self, ticket: Ticket<'_>, due: Due) -> Result<Q::Answer> {
        let reply = self.finish_all(ticket, due)?.pop().ok_or_else(|| unexpected("nothing"))?;
        self.connection.only::<Q>(reply)
    }

    /// Waits for all frames of the reply to a request, at most until it is due.
    fn finish_all(&self, ticket: Ticket<'_>, due: Due) -> Result<Vec<Reply>> {
        match &self.interrupt {
            Some(interrupt) => ticket.wait_all(due, Some(&mut || interrupt())),
            None => ticket.wait_all(due, None),
        }
    }
}

impl CreateOptions {
    /// How long the call may take, if that was said.
    fn timeout(&self) -> Option<Duration> {
        self.room.filter(|room| !room.is_zero())
    }
}

impl Client {
    /// The end of a call that waits for the daemon's answer alone and begins now.
    fn due_of_answer(&self) -> Due {
        due::due(Some(self.patience.unwrap_or(PATIENCE)))
    }

    /// The end of a call that makes an object and begins now.
    fn due_of_creation(&self, options: &CreateOptions) -> Due {
        options.timeout().map_or_else(|| self.due_of_answer(), |timeout| due::due(Some(timeout)))
    }

    /// The end of a call that brings objects here and begins now.
    fn due_of_get(&self, ids: &[ObjectId], timeout: Option<Duration>) -> Due {
        let at_once = timeout.is_some_and(|timeout| timeout.is_zero());
        match at_once && ids.iter().any(|id| self.may_be_on_disk(id)) {
            true => self.due_of_answer(),
            false => due::due(timeout),
        }
    }

    /// Whether an object has to be read from this node's disk, as far as this client can see.
    fn may_be_on_disk(&self, id: &ObjectId) -> bool {
        self.connection.fast().is_some_and(|fast| fast.may_be_spilled(id))
    }
}

impl From<Greeted> for Client {
    fn from(greeted: Greeted) -> Self {
        let Greeted { connection, node, inline_max, capacity, user } = greeted;
        let connection = Arc::new(connection);
        Self { connection, node, inline_max, capacity, user, interrupt: None, patience: None }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("socket", &self.socket()).field("node", &self.node).finish()
    }
}

/// A request that has one kind of reply.
trait Question: Ask<Table = Request, Answers = Reply> {}

impl<Q: Ask<Table = Request, Answers = Reply>> Question for Q {}
