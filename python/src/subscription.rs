//! Watching the objects of a node, for Python.
//!
//! Invariant: nobody waits for the stream with the GIL, since whoever waits for an event holds the stream and
//! takes the GIL to look for signals. [`Subscription::close`] does not wait for it at all: when the
//! interpreter ends, a thread that holds it may never come back.

use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plasmon::{Error, ErrorKind, Event};
use pyo3::prelude::*;

use crate::client::duration;
use crate::detached::detached;
use crate::error::{raised, signalled};
use crate::id::ObjectId;

/// Kind, id (none for a gap), data length, metadata length, events missed.
type Row = (&'static str, Option<ObjectId>, u64, u32, u64);

/// Events of a node's objects, in order.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct Subscription {
    /// Locked by whoever waits for an event. `None` once closed.
    stream: Mutex<Option<plasmon::Subscription>>,
    /// The same socket, to end that wait. `None` once closed.
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
    /// The next event, or nothing if none comes within `timeout` seconds.
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
            // By another thread, while this one waited.
            Err(error) if error.kind() == ErrorKind::Disconnected && self.is_closed() => Err(closed()),
            other => other,
        };
        Ok(event.map_err(|error| raised(py, &error))?.map(row))
    }

    /// The descriptor of its connection, readable when there may be an event.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let socket = lock(&self.socket);
        socket.as_ref().map(AsRawFd::as_raw_fd).ok_or_else(|| raised(py, &closed()))
    }

    #[getter(closed)]
    fn is_closed(&self) -> bool {
        lock(&self.socket).is_none()
    }

    /// Ends it, and with it the wait of another thread.
    fn close(&self) {
        let socket = lock(&self.socket).take();
        // In a forked child it is the parent's.
        if let Some(socket) = socket.filter(|_| self.process == std::process::id()) {
            // If it is closed already, all is well.
            let _ = socket.shutdown(Shutdown::Both);
        }
        // Else whoever waits for an event drops it.
        if let Ok(mut stream) = self.stream.try_lock() {
            stream.take();
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Disconnected, "this subscription is closed: subscribe again")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn row(event: Event) -> Row {
    match event {
        Event::Sealed { id, data_len, metadata_len } => {
            ("sealed", Some(ObjectId(id)), data_len, metadata_len, 0)
        }
        Event::Deleted { id } => ("deleted", Some(ObjectId(id)), 0, 0, 0),
        Event::Gap { missed } => ("gap", None, 0, 0, missed),
    }
}
