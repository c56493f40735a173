//! Conversion of errors of the client into exceptions of `plasmon.errors`.
//!
//! Owns the exception of a signal's handler, for each thread.

use std::cell::Cell;

use plasmon::text::printable;
use plasmon::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::detached::{is_deaf, is_ended, stay_if_leaving};
use crate::id::{ObjectId, name_of, object_id};
use crate::replacing::Version;

thread_local! {
    /// Exception that the handler of a signal raised while this thread waited.
    static SIGNAL: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Runs the handlers of pending signals. Returns whether the wait is to end, because a handler raised or
/// because the call was cancelled.
pub(crate) fn signalled() -> bool {
    stay_if_leaving();
    if is_ended() {
        return true;
    }
    if is_deaf() {
        return false;
    }
    // Without an interpreter there are no signals.
    match Python::try_attach(|py| py.check_signals()) {
        None | Some(Ok(())) => false,
        Some(Err(error)) => {
            SIGNAL.set(Some(error));
            true
        }
    }
}

/// Exception of `plasmon.errors` for an error of the client. If a signal ended the call, the exception that
/// its handler raised.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    raised_as(py, error, class_of(error.kind()))
}

/// Exception as `raised` makes it, for a call on a region.
pub(crate) fn raised_of_region(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error.kind() {
        ErrorKind::Lost => "RegionLost",
        kind => class_of(kind),
    };
    raised_as(py, error, class)
}

fn raised_as(py: Python<'_>, error: &Error, class: &'static str) -> PyErr {
    if let Some(signal) = SIGNAL.take() {
        return signal;
    }
    let lines: Vec<_> = error.lines().map(printable).collect();
    let raised = exception(py, class, &lines.join("\n"));
    let value = raised.value(py);
    let set = || {
        if let Some(id) = error.id() {
            value.setattr("id", ObjectId(id))?;
        }
        if let Some(name) = error.name() {
            value.setattr("name", name)?;
        }
        if let (Some(needed), Some(held)) = (error.needed(), error.held()) {
            value.setattr("needed", needed)?;
            value.setattr("held", held)?;
        }
        if let Some(version) = error.version() {
            value.setattr("version", Version(version))?;
        }
        PyResult::Ok(())
    };
    set().err().unwrap_or(raised)
}

/// Exception as `raised` makes it, for a call for the objects that the caller gave. The message names them as
/// the caller did.
pub(crate) fn raised_for(py: Python<'_>, error: Error, given: &Bound<'_, PyAny>) -> PyErr {
    let error = match object_id(given) {
        Ok(id) => error.about(id),
        Err(_) => error,
    };
    let name = error.id().and_then(|id| name_of(given, id));
    raised(py, &name.into_iter().fold(error, |error, name| error.naming(&name)))
}

/// Error of a client that is closed.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Disconnected, "this client is closed: connect again")
}

/// Whether an exception is one of `plasmon.errors`.
pub(crate) fn is_ours(error: &PyErr, py: Python<'_>) -> bool {
    let class = py.import("plasmon.errors").and_then(|errors| errors.getattr("Error"));
    class.is_ok_and(|class| error.matches(py, &class).unwrap_or(false))
}

/// Exception for an invalid argument.
pub(crate) fn invalid(py: Python<'_>, message: &str) -> PyErr {
    exception(py, class_of(ErrorKind::Invalid), &printable(message))
}

/// Exception for an argument of another type.
pub(crate) fn wrong_type(py: Python<'_>, message: &str) -> PyErr {
    exception(py, "WrongType", &printable(message))
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
        ErrorKind::Fenced => "Fenced",
        ErrorKind::Broken => "BarrierBroken",
        ErrorKind::Freed => "RegionFreed",
        ErrorKind::NotHere => "NotHere",
        ErrorKind::Raised => "CallFailed",
        ErrorKind::Conflict => "Conflict",
        _ => "Error",
    }
}

/// Exception of a class with a message that is printable.
fn exception(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let made = || {
        let class = py.import("plasmon.errors")?.getattr(class)?.cast_into::<PyType>()?;
        PyResult::Ok(PyErr::from_type(class, message.to_owned()))
    };
    made().unwrap_or_else(|error| error)
}
