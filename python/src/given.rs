//! Arguments as callers give them: what cannot be taken is an exception of `plasmon.errors`.
//!
//! Owns no state. Any thread, with the GIL. Python's own exceptions for a value of another type, a number out
//! of range, or a text with lone surrogates say nothing to who catches `plasmon.Error`.

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyBufferError, PyOverflowError, PyTypeError, PyUnicodeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyString};

use crate::error::{invalid, is_ours, wrong_type};

/// Longest description of an argument in a message, in characters.
const SHOWN_CHARS: usize = 60;

/// Takes an argument, for `#[pyo3(from_py_with = given)]`.
pub(crate) fn given<'py, T: FromPyObjectOwned<'py>>(argument: &Bound<'py, PyAny>) -> PyResult<T> {
    argument.extract().map_err(|error| refused(argument, Into::<PyErr>::into(error)))
}

/// Exception of `plasmon.errors` for an argument that could not be taken. Other exceptions stay: code of the
/// program raised them.
pub(crate) fn refused(argument: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = argument.py();
    if is_ours(&error, py) {
        return error;
    }
    let shown = shown(argument);
    if error.is_instance_of::<PyUnicodeError>(py) {
        invalid(py, &format!("the text {shown} has lone surrogates, which UTF-8 has not"))
    } else if error.is_instance_of::<PyOverflowError>(py) {
        invalid(py, &format!("{shown} is out of range for this argument"))
    } else if error.is_instance_of::<PyValueError>(py) || error.is_instance_of::<PyBufferError>(py) {
        invalid(py, &format!("{shown} cannot be taken: {}", error.value(py)))
    } else if error.is_instance_of::<PyTypeError>(py) {
        wrong_type(py, &format!("{shown} cannot be taken: {}", error.value(py)))
    } else {
        error
    }
}

/// Argument as a message shows it: its type, and its value if that is a short number or text.
fn shown(argument: &Bound<'_, PyAny>) -> String {
    let is_plain = argument.is_none()
        || argument.is_instance_of::<PyInt>()
        || argument.is_instance_of::<PyFloat>()
        || argument.is_instance_of::<PyString>();
    let whole = if is_plain { argument.repr().ok() } else { None };
    let whole = whole.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    match whole.char_indices().nth(SHOWN_CHARS) {
        None if !whole.is_empty() => whole,
        _ => {
            let kind = argument.get_type().name().map_or_else(|_| String::new(), |name| name.to_string());
            format!("an argument of type {kind}")
        }
    }
}
