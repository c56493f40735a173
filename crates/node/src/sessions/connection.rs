//! A client's unix socket: reads requests, and writes replies.
//!
//! Owns the socket, and the bytes that were received or are to be sent. Engine thread only. Invariant: no
//! client makes the engine wait. Output that a client does not read stays queued, and above
//! [`MAX_QUEUED_BYTES`] its requests are not read.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use plasmon::wire::{self, Gathering, Header, Receiver, Reply, Request, WireError};
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::kernel::ClientKey;
use crate::service::Session;

/// Number of bytes of queued output above which the client's requests wait.
const MAX_QUEUED_BYTES: usize = 4 << 20;
/// Number of bytes read from one client before the others get their turn.
const TURN_BYTES: usize = 256 << 10;
/// The events that wake the engine for a client that reads its replies.
pub(super) const READS: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

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

/// A client's socket.
pub(crate) struct Connection {
    stream: UnixStream,
    /// The user of the client, as the kernel says.
    uid: u32,
    /// The client's number, which is its token in the epoll set; `None` if it is refused.
    key: Option<ClientKey>,
    epoll: Rc<OwnedFd>,
    input: RefCell<Input>,
    output: RefCell<Output>,
}

/// Bytes that have been received.
struct Input {
    receiver: Receiver,
    gathering: Gathering,
}

/// Frames that are to be sent.
#[derive(Default)]
struct Output {
    queue: VecDeque<Outgoing>,
    len: usize,
    /// Whether the engine is woken when the socket takes more output.
    watched_for_room: bool,
}

/// Bytes to send. The descriptors go with the first of the bytes.
struct Outgoing {
    bytes: Bytes,
    descriptors: Vec<Arc<OwnedFd>>,
}

/// A request as it came.
pub(crate) struct Incoming {
    pub(crate) number: u64,
    pub(crate) request: Request,
    pub(crate) file: Option<OwnedFd>,
}

/// The outcome of a turn of reading.
pub(crate) enum Read {
    /// The socket has nothing more until it is readable again.
    Drained,
    /// More may be there: read again in the next turn.
    More,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream, uid: u32, key: Option<ClientKey>, epoll: Rc<OwnedFd>) -> Self {
        let input = Input { receiver: Receiver::with_one_descriptor(), gathering: Gathering::default() };
        Self { stream, uid, key, epoll, input: RefCell::new(input), output: RefCell::default() }
    }

    /// Receives what the socket has, within the limits of a turn.
    pub(crate) fn receive(&self) -> Result<Read, Farewell> {
        let mut input = self.input.borrow_mut();
        let mut received = 0;
        while received < TURN_BYTES {
            match input.receiver.receive(&self.stream) {
                Ok(0) => return Err(Farewell::Closed),
                Ok(bytes) => received += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Read::Drained),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Read::More)
    }

    /// The next whole request, with its descriptor.
    pub(crate) fn next(&self) -> Result<Option<Incoming>, WireError> {
        let Input { receiver, gathering } = &mut *self.input.borrow_mut();
        while let Some((header, body)) = Header::take_frame(&mut receiver.buffer)? {
            let files = receiver.take_descriptors(header.descriptors.into());
            if files.len() != usize::from(header.descriptors) || receiver.has_stray_descriptors() {
                return Err(WireError::Malformed("request: its descriptors"));
            }
            if let Some(request) = gathering.take(&header, body)? {
                if request.descriptors() != files.len() {
                    return Err(WireError::Malformed("request: the number of its descriptors"));
                }
                let file = files.into_iter().next();
                return Ok(Some(Incoming { number: header.request, request, file }));
            }
        }
        Ok(None)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Session for Connection {
    fn user(&self) -> u32 {
        self.uid
    }

    fn send(&self, request: u64, reply: &Reply, descriptors: Vec<Arc<OwnedFd>>) {
        debug_assert_eq!(reply.descriptors(), descriptors.len());
        let mut bytes = BytesMut::new();
        reply.encode(request, &mut bytes);
        let mut output = self.output.borrow_mut();
        output.len += bytes.len();
        output.queue.push_back(Outgoing { bytes: bytes.freeze(), descriptors });
    }

    /// Sends what the socket takes, and has it watched for room for the rest.
    fn ring(&self) -> io::Result<()> {
        let mut output = self.output.borrow_mut();
        output.flush(&self.stream)?;
        let waits = !output.queue.is_empty();
        if let Some(key) = self.key.filter(|_| waits != output.watched_for_room) {
            let flags = if waits { READS | EventFlags::OUT } else { READS };
            epoll::modify(&*self.epoll, &self.stream, EventData::new_u64(key.get()), flags)?;
            output.watched_for_room = waits;
        }
        Ok(())
    }

    fn is_behind(&self) -> bool {
        self.output.borrow().len > MAX_QUEUED_BYTES
    }
}

impl Output {
    /// Sends what the socket takes.
    fn flush(&mut self, stream: &UnixStream) -> io::Result<()> {
        while let Some(first) = self.queue.front_mut() {
            let descriptors: Vec<_> = first.descriptors.iter().map(AsFd::as_fd).collect();
            match wire::send_with_descriptors(stream, &first.bytes, &descriptors) {
                Ok(sent) => {
                    self.len -= sent;
                    first.descriptors.clear();
                    first.bytes.advance(sent);
                    if first.bytes.is_empty() {
                        self.queue.pop_front();
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
