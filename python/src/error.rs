//! Errors of the client as exceptions of `plasmon.errors`.

use std::cell::Cell;

use plasmon::text::printable;
use plasmon::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::detached::{is_ended, stay_if_leaving};

thread_local! {
    /// What the handler of a signal raised while this thread waited.
    static SIGNAL: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Runs the handlers of signals that came; says whether the wait is to end, because one raised or whoever
/// wanted it does so no more.
pub(crate) fn signalled() -> bool {
    stay_if_leaving();
    if is_ended() {
        return true;
    }
    // Without an interpreter there is nothing to come back to, and no signal.
    match Python::try_attach(|py| py.check_signals()) {
        None | Some(Ok(())) => false,
        Some(Err(error)) => {
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

/// The error of a client that is closed.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Disconnected, "this client is closed: connect again")
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
        ErrorKind::OutcomeUnknown => "OutcomeUnknown",
        ErrorKind::Disconnected => "Disconnected",
        _ => "Error",
    }
}

fn exception(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let made = || {
        let class = py.import("plasmon.errors")?.getattr(class)?.cast_into::<PyType>()?;
        PyResult::Ok(PyErr::from_type(class, printable(message).into_owned()))
    };
    made().unwrap_or_else(|error| error)
}
