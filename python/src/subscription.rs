//! Watching the objects of a node, for Python.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};

use plasmon::{ErrorKind, Event};
use pyo3::prelude::*;

use crate::client::duration;
use crate::error::raised;
use crate::id::ObjectId;

/// Kind, id (none for a gap), data length, metadata length, events missed.
type Row = (&'static str, Option<ObjectId>, u64, u32, u64);

/// Events of a node's objects, in order.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct Subscription {
    /// `None` once closed.
    open: Mutex<Option<plasmon::Subscription>>,
}

impl Subscription {
    pub(crate) fn new(subscription: plasmon::Subscription) -> Self {
        Self { open: Mutex::new(Some(subscription)) }
    }

    fn closed(py: Python<'_>) -> PyErr {
        raised(py, &plasmon::Error::new(ErrorKind::Disconnected, "this subscription is closed"))
    }
}

#[pymethods]
impl Subscription {
    /// The next event, or nothing if none comes within `timeout` seconds.
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Row>> {
        let timeout = duration(py, timeout)?;
        let mut signal = Ok(());
        let event = py.detach(|| {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            let interrupt = &mut || {
                signal = Python::attach(|py| py.check_signals());
                signal.is_err()
            };
            open.as_mut().map(|subscription| subscription.next(timeout, Some(interrupt)))
        });
        match event.ok_or_else(|| Self::closed(py))? {
            Ok(event) => Ok(event.map(row)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                Err(signal.err().unwrap_or_else(|| raised(py, &error)))
            }
            Err(error) => Err(raised(py, &error)),
        }
    }

    /// The descriptor of its connection, readable when there may be an event.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let subscription = open.as_ref().ok_or_else(|| Self::closed(py))?;
        Ok(subscription.as_fd().as_raw_fd())
    }

    /// Ends it.
    fn close(&self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
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
