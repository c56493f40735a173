//! A client's connection: bytes in, frames out, and what the client holds.
//!
//! Engine thread only. Dropping a [`Client`] is its end: its pins go, its waiting gets are
//! aborted; its unsealed creations are the table's to drop. Nothing a client does makes the engine
//! wait: output that it does not read stays queued, and above [`MAX_QUEUED_BYTES`] its requests are not read.

use crate::kernel::random::{HashMap, HashSet};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use futures::future::AbortHandle;
use plasmon::ObjectId;
use plasmon::wire::{self, Access, Gathering, Header, Receiver, Reply, Request, TablePart, WireError};

use super::requests::Lent;
use super::rings::Channel;
use crate::kernel::ClientKey;
use crate::object::{FastPins, Pin, Replica};
use crate::store::Readers;

/// Queued output above which requests of the client wait.
const MAX_QUEUED_BYTES: usize = 4 << 20;
/// How long a connection may take to say hello.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes read of one client before the others have their turn.
const TURN_BYTES: usize = 256 << 10;

/// A connected client.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    /// The user on the other side, as the kernel says.
    pub(crate) uid: u32,
    /// The process on the other side when it connected.
    pub(crate) pid: u32,
    /// What it calls itself.
    pub(crate) name: String,
    /// It has said hello.
    pub(crate) greeted: bool,
    connected: Instant,
    /// In the epoll set until the process ends, where the kernel says so.
    process: Option<OwnedFd>,
    /// Its process has ended. A child of it may hold the connection open.
    pub(crate) orphaned: bool,
    /// What it has pinned, by place; one for each time.
    pub(crate) pins: HashMap<u64, Vec<Pin>>,
    /// What it wants to stay in memory, until it says otherwise.
    pub(crate) kept: HashMap<ObjectId, Pin>,
    /// Versions of the segments whose descriptors it has.
    pub(crate) granted: HashMap<(u32, Access), u32>,
    /// Memory it works in, by number.
    pub(crate) lent: HashMap<u64, Lent>,
    pub(crate) next_lent: u64,
    /// Parts of the object tables whose descriptors it has.
    pub(crate) parts: HashSet<TablePart>,
    /// Its page set, once it has asked for one.
    pub(crate) channel: Option<Rc<Channel>>,
    /// Requests that wait.
    pub(crate) waiting: HashMap<u64, AbortHandle>,
    /// What its requests that are not done yet weigh, in objects.
    pub(crate) under_way: usize,
    receiver: Receiver,
    gathering: Gathering,
    out: VecDeque<Outgoing>,
    out_len: usize,
    /// Whether the engine is woken when the socket takes more.
    pub(crate) watched_for_room: bool,
}

/// Bytes to send, with descriptors on the first of them.
struct Outgoing {
    bytes: Bytes,
    descriptors: Vec<Arc<OwnedFd>>,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Farewell {
    #[error("the other side closed the connection")]
    Closed,
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error("a frame does not decode: {0}")]
    Frame(#[from] WireError),
    #[error("the first frame was not a hello")]
    Unannounced,
    #[error("request {0} was made again while it waits")]
    Repeated(u64),
    #[error("its process has ended, and a child of it has the connection")]
    Orphaned,
}

/// A request as it came.
pub(crate) struct Asked {
    pub(crate) number: u64,
    pub(crate) request: Request,
    pub(crate) file: Option<OwnedFd>,
}

/// What a turn of reading brought.
pub(crate) enum Read {
    /// Nothing more until the socket is readable.
    Drained,
    /// More may be there: read again in the next turn.
    More,
}

impl Client {
    pub(crate) fn new(stream: UnixStream, uid: u32, pid: u32, connected: Instant) -> Self {
        Self {
            stream,
            uid,
            pid,
            name: String::new(),
            greeted: false,
            connected,
            process: None,
            orphaned: false,
            pins: HashMap::default(),
            kept: HashMap::default(),
            granted: HashMap::default(),
            lent: HashMap::default(),
            next_lent: 0,
            parts: HashSet::default(),
            channel: None,
            waiting: HashMap::default(),
            under_way: 0,
            receiver: Receiver::with_one_descriptor(),
            gathering: Gathering::default(),
            out: VecDeque::new(),
            out_len: 0,
            watched_for_room: false,
        }
    }

    /// Keeps what tells of the end of its process.
    pub(crate) fn follow(&mut self, process: OwnedFd) {
        self.process = Some(process);
    }

    /// Whether it takes a place without ever having said hello.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        !self.greeted && now.saturating_duration_since(self.connected) > HELLO_PATIENCE
    }

    /// Whether it is too far behind with reading replies to be given more work.
    pub(crate) fn is_behind(&self) -> bool {
        self.out_len > MAX_QUEUED_BYTES
    }

    /// Whether the socket did not take all replies.
    pub(crate) fn waits_for_room(&self) -> bool {
        !self.out.is_empty()
    }

    /// Receives what is there, within the limits of a turn.
    pub(crate) fn receive(&mut self) -> Result<Read, Farewell> {
        let mut received = 0;
        while received < TURN_BYTES {
            match self.receiver.receive(&self.stream) {
                Ok(0) => return Err(Farewell::Closed),
                Ok(bytes) => received += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Read::Drained),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Read::More)
    }

    /// The next whole request, with the descriptor that it comes with.
    pub(crate) fn next(&mut self) -> Result<Option<Asked>, WireError> {
        while let Some((header, body)) = Header::take_frame(&mut self.receiver.buffer)? {
            let files = self.receiver.take_descriptors(header.descriptors.into());
            if files.len() != usize::from(header.descriptors) || self.receiver.has_stray_descriptors() {
                return Err(WireError::Malformed("request: its descriptors"));
            }
            if let Some(request) = self.gathering.take(&header, body)? {
                if request.descriptors() != files.len() {
                    return Err(WireError::Malformed("request: the number of its descriptors"));
                }
                return Ok(Some(Asked { number: header.request, request, file: files.into_iter().next() }));
            }
        }
        Ok(None)
    }

    /// Queues a reply with the descriptors it announces.
    pub(crate) fn reply(&mut self, request: u64, reply: &Reply, descriptors: Vec<Arc<OwnedFd>>) {
        debug_assert_eq!(reply.descriptors(), descriptors.len());
        let mut bytes = BytesMut::new();
        reply.encode(request, &mut bytes);
        self.out_len += bytes.len();
        self.out.push_back(Outgoing { bytes: bytes.freeze(), descriptors });
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while let Some(first) = self.out.front_mut() {
            let descriptors: Vec<_> = first.descriptors.iter().map(AsFd::as_fd).collect();
            match wire::send_with_descriptors(&self.stream, &first.bytes, &descriptors) {
                Ok(sent) => {
                    self.out_len -= sent;
                    first.descriptors.clear();
                    first.bytes.advance(sent);
                    if first.bytes.is_empty() {
                        self.out.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.waiting.values().for_each(AbortHandle::abort);
    }
}

impl Readers for RefCell<HashMap<ClientKey, Client>> {
    fn fast_pins(&self, fast: &mut FastPins) {
        self.borrow().values().for_each(|client| client.fast_pins(fast));
    }

    fn take_accessed(&self, replica: &Replica) -> bool {
        // All of them are asked: each bit is to be cleared.
        self.borrow().values().fold(false, |accessed, client| accessed | client.take_accessed(replica))
    }

    fn describe(&self, client: ClientKey) -> String {
        self.borrow().get(&client).map_or_else(
            || "a client that has gone".into(),
            |client| format!("client {:?} (process {})", client.name, client.pid),
        )
    }
}
