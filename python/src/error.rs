//! Errors of the client as exceptions of `plasmon.errors`.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plasmon::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyType;

thread_local! {
    /// What the handler of a signal raised while this thread waited.
    static SIGNAL: Cell<Option<PyErr>> = const { Cell::new(None) };
    /// What ends the call that this thread makes for somebody else.
    static CANCELLED: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Has calls of this thread end once that is set; returns what did before.
pub(crate) fn cancel_by(flag: Option<Arc<AtomicBool>>) -> Option<Arc<AtomicBool>> {
    CANCELLED.replace(flag)
}

/// Runs the handlers of signals that came; says whether the wait is to end, because one raised or whoever wanted it
/// does so no more.
pub(crate) fn signalled() -> bool {
    if CANCELLED.with_borrow(|flag| flag.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))) {
        return true;
    }
    match Python::attach(|py| py.check_signals()) {
        Ok(()) => false,
        Err(error) => {
            SIGNAL.set(Some(error));
            true
        }
    }
}

/// The exception of `plasmon.errors` that stands for an error of the client; where a signal ended the
/// call, what its handler raised.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    if let Some(signal) = SIGNAL.take() {
        return signal;
    }
    exception(py, class_of(error.kind()), error.message())
}

/// An exception for an argument that makes no sense.
pub(crate) fn invalid(py: Python<'_>, message: &str) -> PyErr {
    exception(py, class_of(ErrorKind::Invalid), message)
}

fn class_of(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Exists => "ObjectExists",
        ErrorKind::NotFound => "ObjectNotFound",
        ErrorKind::TimedOut => "TimedOut",
        ErrorKind::Full => "StoreFull",
        ErrorKind::Lost => "ObjectLost",
        ErrorKind::Damaged => "ObjectDamaged",
        ErrorKind::TooLarge => "ObjectTooLarge",
        ErrorKind::Invalid => "InvalidArgument",
        ErrorKind::NotAllowed => "NotAllowed",
        ErrorKind::Busy => "Busy",
        ErrorKind::TooFew => "TooFewReplicas",
        ErrorKind::Disconnected => "Disconnected",
        _ => "Error",
    }
}

fn exception(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let made = || {
        let class = py.import("plasmon.errors")?.getattr(class)?.cast_into::<PyType>()?;
        PyResult::Ok(PyErr::from_type(class, message.to_owned()))
    };
    made().unwrap_or_else(|error| error)
}
