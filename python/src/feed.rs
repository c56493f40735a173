//! Streams of events, as Python waits for them.
//!
//! One thread at a time waits for an event, and others wait for their turn, no longer than their time-outs.
//!
//! Invariant: no thread waits for the lock of the stream: a thread that waits for an event holds that lock
//! and takes the GIL to check for signals. [`Feed::close`] does not wait for it either: when the interpreter
//! ends, a thread that holds it may never return.

use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use plasmon::{Error, ErrorKind, Result};
use pyo3::prelude::*;

use crate::detached::detached;
use crate::error::raised;
use crate::lock::{lock, taken};
use crate::terms::duration;

/// Time between two checks whether a thread that waits for its turn was interrupted.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Stream of events that comes by a socket of its own.
pub(crate) trait Events: AsFd + Send {
    /// Kind of event that the feed brings.
    type Event: Send;

    /// Waits for the next event.
    fn wait(
        &mut self,
        timeout: Option<Duration>,
        interrupt: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self::Event>>;
}

/// Stream of events that any thread may wait for and close.
pub(crate) struct Feed<S> {
    /// Stream of events, locked by the thread that waits for one. `None` once closed.
    stream: Mutex<Option<S>>,
    /// Whether a thread waits for an event.
    taken: Mutex<bool>,
    /// Notified when it does not any more.
    free: Condvar,
    /// Socket of the stream, for ending that wait. `None` once closed.
    socket: Mutex<Option<UnixStream>>,
    process: u32,
}

impl<S: Events> Feed<S> {
    pub(crate) fn new(stream: S) -> std::io::Result<Self> {
        let socket = stream.as_fd().try_clone_to_owned()?.into();
        Ok(Self {
            stream: Mutex::new(Some(stream)),
            taken: Mutex::default(),
            free: Condvar::new(),
            socket: Mutex::new(Some(socket)),
            process: std::process::id(),
        })
    }

    /// Waits for the next event. Returns `None` if none comes within `timeout` seconds. The wait asks
    /// `interrupt` now and then whether to end.
    pub(crate) fn next(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        interrupt: &mut (dyn FnMut() -> bool + Send),
    ) -> PyResult<Option<S::Event>> {
        let timeout = duration(py, timeout)?;
        let event: Result<Option<S::Event>> = detached(py, || {
            let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
            if !self.take_turn(until, &mut *interrupt)? {
                return Ok(None);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now())).or(timeout);
            let mut held = lock(&self.stream);
            let event = match held.as_mut() {
                Some(stream) => stream.wait(left, interrupt),
                None => Err(closed()),
            };
            if self.is_closed() {
                held.take();
            }
            drop(held);
            *lock(&self.taken) = false;
            self.free.notify_one();
            event
        });
        let event = match event {
            // Another thread closed the stream while this one waited.
            Err(error) if error.kind() == ErrorKind::Disconnected && self.is_closed() => Err(closed()),
            other => other,
        };
        event.map_err(|error| raised(py, &error))
    }

    /// Waits until no other thread waits for an event, and takes its place. Returns `false` if the time is
    /// over before.
    fn take_turn(&self, until: Option<Instant>, interrupt: &mut dyn FnMut() -> bool) -> Result<bool> {
        let mut taken = lock(&self.taken);
        while *taken {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            let nap = left.unwrap_or(CHECK_INTERVAL).min(CHECK_INTERVAL);
            // The check may run code of the program, which may use this feed.
            drop(self.free.wait_timeout(taken, nap));
            if interrupt() {
                return Err(Error::new(ErrorKind::Interrupted, "the wait was interrupted"));
            }
            taken = lock(&self.taken);
        }
        *taken = true;
        Ok(true)
    }

    /// Descriptor of the connection, readable when an event may have come.
    pub(crate) fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let socket = lock(&self.socket).as_ref().map(AsRawFd::as_raw_fd);
        socket.ok_or_else(|| raised(py, &closed()))
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.socket).is_none()
    }

    /// Ends the stream, and with it the wait of another thread.
    pub(crate) fn close(&self) {
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
