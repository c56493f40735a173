//! The client: calls of an application on the daemon of its host.
//!
//! [`Client`] turns calls into frames ([`connection`]) and places in the arena into slices
//! ([`mapping`]). Calls block the thread that makes them and nobody else; there is no thread and no
//! runtime behind them. Every call ends: with a time-out of its own (`get`), or when the daemon has
//! been silent for [`PATIENCE`].

mod connection;
mod creation;
mod handshake;
mod mapping;
mod object;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use connection::{Connection, Interrupt, Ticket, Undo, unexpected};
use handshake::Greeted;
use mapping::Writable;

pub use creation::Creation;
pub use mapping::CreationMemory;
pub use object::Object;

use crate::status::Status;
use crate::wire::{
    DeleteOutcome, MAX_IDS, MAX_METADATA, MAX_NAME, NewObject, ObjectInfo, Placement, Presence, Reply,
    Request,
};
use crate::{Error, ErrorKind, NodeId, ObjectId, Result};

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

    /// Where the daemon of this host listens unless told otherwise: `$PLASMON_SOCKET`, else
    /// `plasmon/plasmon.sock` in `$XDG_RUNTIME_DIR`, else in `/run` for root, else
    /// `/tmp/plasmon-<uid>/plasmon.sock`.
    pub fn default_socket() -> PathBuf {
        handshake::default_socket()
    }

    /// Stores an object: copies `data` and `metadata`, and makes it visible to all.
    ///
    /// # Errors
    /// `Exists` when the id is taken, `Full` or `TooLarge` when there is no room, `Invalid` for
    /// more than 64 KiB of metadata or a name of more than 255 bytes.
    pub fn put(&self, id: ObjectId, data: &[u8], metadata: &[u8], options: &CreateOptions) -> Result<()> {
        if data.len().saturating_add(metadata.len()) > self.inline_max {
            let mut creation = self.create(id, data.len() as u64, metadata, options)?;
            creation.as_mut_slice().copy_from_slice(data);
            return creation.seal();
        }
        let object = self.new_object(id, metadata, options)?;
        let data = Bytes::copy_from_slice(data);
        done(self.call(&Request::Put { object, digest: 0, room_us: 0, data }, Undo::Nothing)?)
    }

    /// Starts an object of `data_len` bytes, to be written in place and sealed.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn create(
        &self,
        id: ObjectId,
        data_len: u64,
        metadata: &[u8],
        options: &CreateOptions,
    ) -> Result<Creation> {
        let object = self.new_object(id, metadata, options)?;
        let request = Request::Create { object, data_len, room_us: 0 };
        let Reply::Created { placement, .. } = self.call(&request, Undo::Abort(id))? else {
            return Err(self.connection.fail(unexpected("something else than a creation")));
        };
        let inline = placement == Placement::Inline;
        let memory = match placement {
            Placement::Mapped(span) if span.data_len == data_len => self.connection.arena().writable(span),
            Placement::Inline if data_len <= self.inline_max as u64 => Writable::anonymous(data_len as usize),
            _ => Err(unexpected("a place of another size")),
        };
        let memory = memory.inspect_err(|_| self.connection.send_and_forget(&Request::Abort { id }))?;
        Ok(Creation::new(Arc::clone(&self.connection), id, memory, inline))
    }

    /// Waits until the objects are sealed, wherever that is, and brings them to this host: one
    /// result an id, in order. Without a time-out it waits for ever; a time-out of zero takes
    /// only what is on this node.
    ///
    /// # Errors
    /// For one object, among the results: `TimedOut` (`NotFound` if it had no time), `Lost`, `NotAllowed`,
    /// `Full` and others. For the call: `Disconnected`; `TimedOut` when the daemon itself is silent 10 s
    /// after the time-out.
    pub fn get(&self, ids: &[ObjectId], timeout: Option<Duration>) -> Result<Vec<Result<Object>>> {
        self.get_all(ids, timeout, None)
    }

    /// Waits as [`Client::get`] does, and asks `interrupt` about every 50 ms whether to go on; it
    /// runs on the calling thread.
    ///
    /// # Errors
    /// As [`Client::get`], and `Interrupted` once `interrupt` returned `true`.
    pub fn get_interruptible(
        &self,
        ids: &[ObjectId],
        timeout: Option<Duration>,
        interrupt: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Result<Object>>> {
        self.get_all(ids, timeout, Some(interrupt))
    }

    fn get_all(
        &self,
        ids: &[ObjectId],
        timeout: Option<Duration>,
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<Vec<Result<Object>>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout.checked_add(GRACE)?));
        let timeout_us = timeout.map_or(u64::MAX, |timeout| {
            u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX).min(u64::MAX - 1)
        });
        // All at once, so that they share the time.
        let requests: Vec<(&[ObjectId], Ticket<'_>)> = ids
            .chunks(MAX_IDS)
            .map(|ids| {
                let request = Request::Get { timeout_us, ids: ids.to_vec() };
                Ok((ids, self.connection.send(&request, Undo::Release)?))
            })
            .collect::<Result<_>>()?;
        let mut results = Vec::with_capacity(ids.len());
        for (ids, ticket) in requests {
            let interrupt = interrupt.as_mut().map(|interrupt| &mut **interrupt as Interrupt<'_>);
            let objects = match ticket.wait(deadline, interrupt)? {
                Reply::Got { objects, .. } if objects.len() == ids.len() => objects,
                _ => return Err(self.connection.fail(unexpected("something else than these objects"))),
            };
            for (id, object) in ids.iter().zip(objects) {
                results.push(match object {
                    Ok(span) => {
                        let view = self.connection.arena().view(span);
                        let view = view.map_err(|error| self.connection.fail(error))?;
                        Ok(Object::new(Arc::clone(&self.connection), *id, view))
                    }
                    Err(error) => Err(error),
                });
            }
        }
        Ok(results)
    }

    /// Where the objects are: one answer an id, in order.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent.
    pub fn contains(&self, ids: &[ObjectId]) -> Result<Vec<Presence>> {
        self.by_chunks(
            ids,
            |ids| Request::Contains { ids },
            |reply| match reply {
                Reply::Contains(presence) => Some(presence),
                _ => None,
            },
        )
    }

    /// Removes objects from every node: one outcome an id, in order. Whoever holds one keeps it.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent or another node does not answer: some
    /// of the objects may still be there.
    pub fn delete(&self, ids: &[ObjectId]) -> Result<Vec<DeleteOutcome>> {
        self.by_chunks(
            ids,
            |ids| Request::Delete { ids },
            |reply| match reply {
                Reply::Deleted(outcomes) => Some(outcomes),
                _ => None,
            },
        )
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

    /// The objects on this node that this user may see.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent.
    pub fn list(&self) -> Result<Vec<ObjectInfo>> {
        let frames = self.connection.send(&Request::List, Undo::Nothing)?.wait_all(patience(), None)?;
        let mut rows = Vec::new();
        for frame in frames {
            match frame {
                Reply::List { objects, .. } => rows.extend(objects),
                _ => return Err(self.connection.fail(unexpected("something else than a list"))),
            }
        }
        Ok(rows)
    }

    /// The state of the node.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent; `Internal` when its report cannot
    /// be read.
    pub fn status(&self) -> Result<Status> {
        serde_json::from_str(&self.status_json()?).map_err(|error| {
            Error::new(
                ErrorKind::Internal,
                format!("the daemon's report cannot be read: {error}. Install the same release of both"),
            )
        })
    }

    /// The state of the node as the daemon wrote it: JSON, perhaps with fields of a newer release.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent.
    pub fn status_json(&self) -> Result<String> {
        match self.call(&Request::Status, Undo::Nothing)? {
            Reply::Status(json) => Ok(json),
            _ => Err(self.connection.fail(unexpected("something else than its state"))),
        }
    }

    /// The node this client talks to.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The path of the daemon's socket.
    pub fn socket(&self) -> &Path {
        self.connection.path()
    }

    fn call(&self, request: &Request, undo: Undo) -> Result<Reply> {
        self.connection.call(request, undo, patience())
    }

    /// Checks what the frames can carry of a creation.
    fn new_object(&self, id: ObjectId, metadata: &[u8], options: &CreateOptions) -> Result<NewObject> {
        let name = options.name.clone().unwrap_or_default();
        for (what, len, max) in [("metadata", metadata.len(), MAX_METADATA), ("a name", name.len(), MAX_NAME)]
        {
            if len > max {
                let message =
                    format!("{what} of {len} bytes is over the limit of {max}: put the rest into the data");
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        }
        Ok(NewObject { id, private: options.private, name, metadata: Bytes::copy_from_slice(metadata) })
    }
}

impl From<Greeted> for Client {
    fn from(greeted: Greeted) -> Self {
        let Greeted { connection, node, inline_max } = greeted;
        Self { connection: Arc::new(connection), node, inline_max }
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
