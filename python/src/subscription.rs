//! Subscription to the objects of a node, or of all nodes, for Python.
//!
//! Invariant: no thread waits for the lock of the stream with the GIL, because a thread that waits for an
//! event holds that lock and takes the GIL to check for signals. [`Subscription::close`] does not wait for
//! the lock at all: when the interpreter ends, a thread that holds it may never return.

use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use plasmon::{Error, ErrorKind, Event, NodeId};
use pyo3::prelude::*;

use crate::detached::detached;
use crate::error::{raised, signalled};
use crate::id::ObjectId;
use crate::lock::{lock, taken};
use crate::terms::duration;

/// Row of an event: kind, id (`None` for a gap), data size and metadata size in bytes, number of missed
/// events, name, node.
type Row = (&'static str, Option<ObjectId>, u64, u32, u64, Option<String>, String);

/// Subscription to the objects of a node.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct Subscription {
    /// Stream of events, locked by the thread that waits for one. `None` once closed.
    stream: Mutex<Option<plasmon::Subscription>>,
    /// Socket of the stream, for ending that wait. `None` once closed.
    socket: Mutex<Option<UnixStream>>,
    process: u32,
}

impl Subscription {
    pub(crate) fn new(stream: plasmon::Subscription) -> std::io::Result<Self> {
        let socket = stream.as_fd().try_clone_to_owned()?.into();
        Ok(Self {
            stream: Mutex::new(Some(stream)),
            socket: Mutex::new(Some(socket)),
            process: std::process::id(),
        })
    }
}

#[pymethods]
impl Subscription {
    /// Waits for the next event. Returns `None` if none comes within `timeout` seconds.
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Row>> {
        let timeout = duration(py, timeout)?;
        let event = detached(py, || {
            let mut held = lock(&self.stream);
            let event = match held.as_mut() {
                Some(stream) => stream.next(timeout, Some(&mut signalled)),
                None => Err(closed()),
            };
            if self.is_closed() {
                held.take();
            }
            event
        });
        let event = match event {
            // Another thread closed the subscription while this one waited.
            Err(error) if error.kind() == ErrorKind::Disconnected && self.is_closed() => Err(closed()),
            other => other,
        };
        Ok(event.map_err(|error| raised(py, &error))?.map(row))
    }

    /// Descriptor of the connection, readable when an event may have come.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let socket = lock(&self.socket).as_ref().map(AsRawFd::as_raw_fd);
        socket.ok_or_else(|| raised(py, &closed()))
    }

    #[getter(closed)]
    fn is_closed(&self) -> bool {
        lock(&self.socket).is_none()
    }

    /// Ends the subscription, and with it the wait of another thread.
    fn close(&self) {
        let socket = taken(&self.socket);
        // In a forked child the connection belongs to the parent.
        if let Some(socket) = socket.filter(|_| self.process == std::process::id()) {
            // An error means that the socket is closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        // Otherwise the thread that waits for an event drops the stream.
        if let Ok(mut stream) = self.stream.try_lock() {
            stream.take();
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Disconnected, "this subscription is closed: subscribe again")
}

fn row((node, event): (NodeId, Event)) -> Row {
    let node = node.to_string();
    match event {
        Event::Sealed { id, name, data_len, metadata_len } => {
            ("sealed", Some(ObjectId(id)), data_len, metadata_len, 0, named(name), node)
        }
        Event::Deleted { id, name } => ("deleted", Some(ObjectId(id)), 0, 0, 0, named(name), node),
        Event::Gap { missed } => ("gap", None, 0, 0, missed, None, node),
    }
}

fn named(name: Box<str>) -> Option<String> {
    Some(String::from(name)).filter(|name| !name.is_empty())
}
