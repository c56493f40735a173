//! Versions of objects, for Python, and calls that replace or tell a version.
//!
//! Owns no state. Any thread.

use std::time::Duration;

use plasmon::{CreateOptions, ErrorKind, ObjectId, Result};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::error::raised;
use crate::terms::Text;

/// Version of an object: which of the objects that its id had one after the other.
///
/// Versions can be compared, hashed and pickled. `str(version)` is a text of 16 digits, of which
/// `Version(text)` makes the same version.
#[pyclass(frozen, eq, hash, module = "plasmon", from_py_object)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Version(pub(crate) plasmon::Version);

#[pymethods]
impl Version {
    #[new]
    fn new(py: Python<'_>, text: Text) -> PyResult<Self> {
        text.parse().map(Self).map_err(|error| raised(py, &error))
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Version('{}')", self.0)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let arguments = (PyString::new(slf.py(), &slf.get().0.to_string()),);
        (slf.get_type(), arguments).into_pyobject(slf.py())
    }
}

/// Stores a value of `size` bytes. If the options say so, in the place of what has its id, or of the version
/// that is expected; returns the version of the new object then.
pub(crate) fn store(
    client: &plasmon::Client,
    id: ObjectId,
    size: usize,
    parts: &[(usize, &[u8])],
    metadata: &[u8],
    options: &CreateOptions,
    expected: Option<plasmon::Version>,
) -> Result<Option<plasmon::Version>> {
    if options.replace {
        client.replace_parts(id, size, parts, metadata, options, expected).map(Some)
    } else {
        client.put_parts(id, size, parts, metadata, options).map(|()| None)
    }
}

/// Waits for objects, each with its version. With `existing` as `Client::get_existing` does: `None` stands
/// for an object that is not in the cluster at the end of the time-out.
pub(crate) fn get_versioned(
    client: &plasmon::Client,
    ids: &[ObjectId],
    timeout: Option<Duration>,
    existing: bool,
) -> Result<Vec<Option<(plasmon::Object, plasmon::Version)>>> {
    let mut timeout = timeout;
    if existing && timeout != Some(Duration::ZERO) {
        // What has come by then, or has gone meanwhile, is told below.
        drop(client.get(ids, timeout)?);
        timeout = Some(Duration::ZERO);
    }
    let one = |result: Result<_>| match result {
        Err(error) if existing && error.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    };
    client.get_versioned(ids, timeout)?.into_iter().map(one).collect()
}
