//! Operations on regions and calls of services that were begun, for Python, and the words that they take.
//!
//! Owns the operations under way. Any thread. Invariant: no thread waits for an operation with the GIL, or
//! with its lock.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use plasmon::region::Pending;
use plasmon::service::{PendingReply, Reply};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyType};

use crate::detached::{detached, ended_by};
use crate::error::{invalid, raised_of_region};
use crate::lock::{lock, taken};

/// Operation on a region, or call of a service, that was begun. `result` waits for it.
///
/// Up to 256 operations of a client are under way at a time. Dropping this gives the result up; a change goes
/// on.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct PendingOperation {
    /// Operation. `None` once its result was taken.
    begun: Mutex<Option<Begun>>,
    closing: Arc<AtomicBool>,
}

/// Operation of a kind.
pub(crate) enum Begun {
    Read(Pending<Vec<u8>>),
    Write(Pending<()>),
    Add(Pending<u64>),
    Call(Box<PendingReply>),
}

/// Result of an operation.
enum Told {
    Bytes(Vec<u8>),
    Reply(Reply),
    Nothing,
    Word(u64),
}

impl PendingOperation {
    pub(crate) fn new(begun: Begun, closing: &Arc<AtomicBool>) -> Self {
        Self { begun: Mutex::new(Some(begun)), closing: Arc::clone(closing) }
    }
}

#[pymethods]
impl PendingOperation {
    /// Type of operations with such a result, for annotations.
    #[classmethod]
    fn __class_getitem__<'py>(class: &Bound<'py, PyType>, _result: &Bound<'py, PyAny>) -> Bound<'py, PyType> {
        class.clone()
    }

    /// Waits for the result, and returns it. It can be taken once.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let Some(begun) = taken(&self.begun) else {
            return Err(invalid(py, "the result of this operation was taken already"));
        };
        let told = detached(py, || {
            ended_by(&self.closing, || match begun {
                Begun::Read(begun) => begun.wait().map(Told::Bytes),
                Begun::Write(begun) => begun.wait().map(|()| Told::Nothing),
                Begun::Add(begun) => begun.wait().map(Told::Word),
                Begun::Call(begun) => begun.wait().map(Told::Reply),
            })
        });
        match told.map_err(|error| raised_of_region(py, &error))? {
            Told::Bytes(bytes) => Ok(PyBytes::new(py, &bytes).into_any()),
            Told::Reply(reply) => Ok(PyBytes::new(py, &reply).into_any()),
            Told::Nothing => Ok(py.None().into_bound(py)),
            Told::Word(word) => Ok(word.into_pyobject(py)?.into_any()),
        }
    }

    /// Whether the result has come, so that `result` returns at once.
    fn done(&self) -> bool {
        match &*lock(&self.begun) {
            Some(Begun::Read(begun)) => begun.is_over(),
            Some(Begun::Write(begun)) => begun.is_over(),
            Some(Begun::Add(begun)) => begun.is_over(),
            Some(Begun::Call(begun)) => begun.is_over(),
            None => true,
        }
    }
}

/// Word of 64 bits, from an int that may be negative.
pub(crate) struct Word(pub(crate) u64);

impl<'py> FromPyObject<'_, 'py> for Word {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match given.extract::<u64>() {
            Ok(word) => Ok(Self(word)),
            Err(error) => match given.extract::<i64>() {
                Ok(word) => Ok(Self(word.cast_unsigned())),
                Err(_) if given.is_instance_of::<PyInt>() => {
                    Err(invalid(given.py(), "a word has 64 bits: write a number from -2**63 to 2**64 - 1"))
                }
                Err(_) => Err(error),
            },
        }
    }
}
