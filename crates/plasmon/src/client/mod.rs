//! Client of a node daemon: the calls of an application on the daemon of its host.
//!
//! [`Client`] finds objects in shared memory, and makes and deletes them by its rings ([`fast`],
//! [`ringing`]). It makes calls by slot ([`calling`]), turns others into frames ([`connection`]), and extents
//! of the arena into slices ([`mapping`], [`writable`], [`copying`]). Any thread. A call blocks only the
//! thread that makes it. The client has no runtime. Its own threads are one that looks up a host ([`nodes`]),
//! one that keeps locks ([`sync`]), and helpers that copy a large object and end with the copy ([`copying`]).
//! A call ends by the client's own clock ([`due`]), whatever the daemon does, and when the function given to
//! [`Client::interruptible`] says so ([`vigil`]).

mod calling;
mod classes;
mod connection;
mod copies;
mod copying;
mod creation;
mod digest;
mod due;
mod fast;
mod fork;
mod handshake;
mod listing;
mod looping;
mod mapping;
mod nodes;
mod object;
mod paging;
mod pieces;
mod range;
mod reading;
mod region;
mod region_events;
mod regions;
mod replacing;
mod ringing;
mod scratch;
mod service;
mod services;
mod socket;
mod stream;
mod subscription;
mod sync;
mod vigil;
mod volume_stream;
mod volumes;
mod writable;
mod writing;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use connection::{Connection, Ticket, Undo, unexpected};
use due::{ANSWER_TIMEOUT, Due};
use handshake::{Greeted, Until};

pub use calling::Pinged;
pub use connection::{Pending, Turn};
pub use creation::Creation;
pub use listing::ClusterList;
pub use nodes::{find_among, find_nodes};
pub use object::Object;
pub use region::{Awaited, Pending as PendingRegion, Region, View};
pub use region_events::RegionEvents;
pub use regions::RegionList;
pub use scratch::Scratch;
pub use service::{
    Awaited as AwaitedReply, AwaitedCall, Call, Data as CallData, KeptReply, PendingReply,
    Reply as FunctionReply, Server, Service,
};
pub use services::ServiceList;
pub use socket::Socket;
pub use subscription::Subscription;
pub use sync::{AwaitedGuard, AwaitedPassage, Barrier, Guard, Lock, LockList};
pub(crate) use volume_stream::VolumeStream;
pub use volumes::{VolumeList, Volumes, find_place};
pub use writable::CreationMemory;

use crate::wire::{Ask, MAX_IDS, Reply, Request};
use crate::{NodeId, ObjectId, Result, Rights};

/// Options for creating an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CreateOptions {
    /// Name behind the id, for people who list objects. At most 255 bytes.
    pub name: Option<String>,
    /// Rights of users other than the creator and root.
    pub rights: Rights,
    /// Time-out of the call, which includes the wait for room, for other nodes and for replicas. The call
    /// fails with `TimedOut` then. With `None` or zero, the call does not wait for other clients to make
    /// room, but waits for the node itself to make room (spilling, moving), and for every replica.
    pub room: Option<Duration>,
    /// Whether a digest of the object is made, with which [`Object::verify`] compares the bytes at any time.
    pub digest: bool,
    /// Whether the id was drawn at random for this object ([`ObjectId::random`](crate::ObjectId::random)). No
    /// other client creates such an id, so no node is asked. Any other id is first claimed in the cluster: of
    /// two clients that create it at the same time one succeeds, and the other fails with `Exists`.
    pub fresh: bool,
    /// Number of nodes that keep the object; 0 and 1 mean this node alone. The object is sealed before the
    /// other nodes have it, and the call returns when they have it, or when somebody has deleted it
    /// meanwhile. If a node that keeps the object dies, another takes its place.
    pub replicas: u16,
    /// Time to live of the object, after which it is deleted everywhere. With `None` the object lives until
    /// it is deleted.
    pub ttl: Option<Duration>,
    /// Whether the object ends with its client: it is deleted everywhere when the connection ends, by
    /// [`Client::end_owned`], by the end of the process or of its node.
    pub owned: bool,
    /// Whether the object takes the place of what has its id, as by [`Client::replace`], which implies it.
    pub replace: bool,
}

/// Connection to the daemon of this host, for any number of threads. Clones share the connection.
///
/// A client does not work in a forked child, which has to connect again. A child must not touch objects of
/// its parent either: they are pinned only as long as the parent holds them.
#[derive(Clone)]
pub struct Client {
    connection: Arc<Connection>,
    node: NodeId,
    inline_max: usize,
    capacity: u64,
    user: u32,
    interrupt: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// Longest wait for an answer of the daemon, if the caller has set one.
    patience: Option<Duration>,
    /// Whether gets compare objects with the digest of their seal.
    verifies: bool,
}

impl Client {
    /// Connects to the daemon that listens at `socket`, under the name of this program. A daemon at a given
    /// path is accepted whoever runs it. A daemon at [`Socket::find`] must be trusted
    /// ([`Client::is_trusted`]).
    ///
    /// # Errors
    /// `Disconnected` if no daemon listens there. `NotAllowed` if this user may not connect, and if the
    /// socket was not named and the daemon belongs to a user who is not trusted. `TimedOut` if the daemon
    /// does not answer within 10 s. `Invalid` if the path is too long for a socket.
    pub fn connect(socket: impl Into<Socket>) -> Result<Self> {
        let program = std::env::args_os().next().unwrap_or_default();
        let name = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
        Self::connect_as(socket, &name)
    }

    /// Connects as [`Client::connect`] does, under a name of the caller's choice. The daemon shows the name
    /// to people, cut to 255 bytes.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_as(socket: impl Into<Socket>, name: &str) -> Result<Self> {
        Self::connect_with(socket, name, None, None)
    }

    /// Connects as [`Client::connect_as`] does, within `timeout` instead of 10 s. The call asks `interrupt`
    /// about every 50 ms whether to end.
    ///
    /// # Errors
    /// As [`Client::connect`]. `Interrupted` after `interrupt` returned `true`.
    pub fn connect_with(
        socket: impl Into<Socket>,
        name: &str,
        timeout: Option<Duration>,
        interrupt: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<Self> {
        let greeted = handshake::connect_to(&socket.into(), name, Until::new(timeout, interrupt))?;
        classes::classified(Self::from(greeted))
    }

    /// Returns a client on the same connection whose waiting calls ask `interrupt` about every 50 ms whether
    /// to end; servers that wait for calls ask every 250 ms, and all ask at once when a signal comes to their
    /// thread. `interrupt` runs on the waiting thread. When it returns `true`, the call fails with
    /// `Interrupted`; the request may still be carried out.
    #[must_use]
    pub fn interruptible(self, interrupt: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { interrupt: Some(Arc::new(interrupt)), ..self }
    }

    /// Returns a client on the same connection that waits at most for `patience`, instead of 60 s, for each
    /// answer of the daemon. This applies to calls without a time-out parameter, and to calls that create
    /// objects with no time-out set.
    #[must_use]
    pub fn within(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// Returns a client on the same connection whose gets ([`Client::get`], [`Client::get_into`] and those
    /// like them) compare what they bring with the digest that was made at the seal, if one was made. A node
    /// compares what comes from another node before anybody sees it, and tries a further holder if the bytes
    /// differ; with its setting `--verify` it does so for all gets. This client also compares the bytes that
    /// it maps, which reads all of them once more.
    #[must_use]
    pub fn verifying(self) -> Self {
        Self { verifies: true, ..self }
    }

    /// Id of the node that this client is connected to.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// User id of this client as the node knows it, which owns the objects that the client puts: the
    /// effective user id of the process when it connected, in the node's user namespace.
    pub fn user(&self) -> u32 {
        self.user
    }

    /// Size of the node's store in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Subscribes to the objects of the node, on a separate connection.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn subscribe(&self, name: &str) -> Result<Subscription> {
        Subscription::open(self, name, false)
    }

    /// Subscribes to the objects of all nodes, on a separate connection. The events of each node come in
    /// order; there is no order between nodes.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn subscribe_cluster(&self, name: &str) -> Result<Subscription> {
        Subscription::open(self, name, true)
    }

    /// Ends the objects that were created on this connection as owned: they are deleted everywhere, soon
    /// after this call. They end with the connection in any case, which lasts as long as its last object.
    pub fn end_owned(&self) {
        self.connection.send_and_forget(&Request::EndOwned);
    }

    /// User id of the daemon, as the kernel tells it. The daemon provides every byte that this client reads.
    pub fn owner(&self) -> u32 {
        self.connection.owner()
    }

    /// Whether the daemon's user is trusted: root, this user, or the user to whom root gave `/run/plasmon`. A
    /// daemon of another user is accepted only at a named socket.
    pub fn is_trusted(&self) -> bool {
        socket::is_trusted(self.owner())
    }

    /// Path of the daemon's socket.
    pub fn socket(&self) -> &Path {
        self.connection.path()
    }

    fn ask<Q: Question>(&self, question: Q, undo: Undo) -> Result<Q::Answer> {
        self.ask_until(question, undo, self.due_of_answer())
    }

    fn ask_until<Q: Question>(&self, question: Q, undo: Undo, due: Due) -> Result<Q::Answer> {
        self.answer_to::<Q>(self.connection.send(&question.into(), undo)?, due)
    }

    /// Waits for the only reply to a request, at most until `due`.
    fn answer_to<Q: Question>(&self, ticket: Ticket<'_>, due: Due) -> Result<Q::Answer> {
        let reply = finish_all(self, ticket, due)?.pop().ok_or_else(|| unexpected("no reply"))?;
        self.connection.only::<Q>(reply)
    }
}

/// Waits for all frames of the reply to a request, at most until `due`.
fn finish_all(client: &Client, ticket: Ticket<'_>, due: Due) -> Result<Vec<Reply>> {
    match &client.interrupt {
        Some(interrupt) => ticket.wait_all(due, Some(&mut || interrupt())),
        None => ticket.wait_all(due, None),
    }
}

impl CreateOptions {
    /// Time-out of the call, if one is set.
    fn timeout(&self) -> Option<Duration> {
        self.room.filter(|room| !room.is_zero())
    }

    /// End of a call of the client that begins now and creates an object.
    fn due(&self, client: &Client) -> Due {
        self.timeout().map_or_else(|| client.due_of_answer(), |timeout| due::due(Some(timeout)))
    }
}

impl Client {
    /// End of a call that begins now and waits for the daemon's answer alone.
    fn due_of_answer(&self) -> Due {
        due::due(Some(self.patience.unwrap_or(ANSWER_TIMEOUT)))
    }
}

/// Waits for the answer to a question that gets objects, at most for `timeout`.
fn ask_for<Q: Question>(
    client: &Client,
    question: Q,
    undo: Undo,
    timeout: Option<Duration>,
) -> Result<Q::Answer> {
    let longest = longest_of_get(client, timeout);
    let ticket = client.connection.send(&question.into(), undo)?.while_alive(longest);
    client.answer_to::<Q>(ticket, due::due(timeout))
}

/// End of a call that begins now and gets objects, as long as the daemon lives. `None` if the call ends with
/// its time-out.
fn longest_of_get(client: &Client, timeout: Option<Duration>) -> Due {
    timeout.filter(Duration::is_zero).and_then(|_| client.due_of_answer())
}

impl From<Greeted> for Client {
    fn from(greeted: Greeted) -> Self {
        let Greeted { connection, node, inline_max, capacity, user } = greeted;
        let connection = Arc::new(connection);
        Self {
            connection,
            node,
            inline_max,
            capacity,
            user,
            interrupt: None,
            patience: None,
            verifies: false,
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("socket", &self.socket()).field("node", &self.node).finish()
    }
}

/// Asks about ids in chunks that frames have room for, and joins the answers.
fn by_chunks<Q: Question, T>(
    client: &Client,
    ids: &[ObjectId],
    question: impl Fn(Vec<ObjectId>) -> Q,
    told: impl Fn(Q::Answer) -> Vec<T>,
) -> Result<Vec<T>> {
    let mut answers = Vec::with_capacity(ids.len());
    for ids in ids.chunks(MAX_IDS) {
        let some = told(client.ask(question(ids.to_vec()), Undo::Nothing)?);
        answers.extend(client.connection.one_each(ids, some)?);
    }
    Ok(answers)
}

/// Request that has one kind of reply.
trait Question: Ask<Table = Request, Answers = Reply> {}

impl<Q: Ask<Table = Request, Answers = Reply>> Question for Q {}
