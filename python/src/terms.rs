//! Terms on which a new object is kept: a named tuple of Python (`plasmon/_terms.py`), read here.

use std::time::Duration;

use plasmon::{CreateOptions, Rights};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::error::{invalid, raised};

/// Terms on which a new object is kept, with the attributes of `plasmon._terms.Terms`.
#[derive(FromPyObject)]
pub(crate) struct Terms {
    /// Name behind the id.
    name: Option<String>,
    /// Rights of other users: "private", "r" or "rw".
    rights: PyBackedStr,
    /// Time-out in seconds, which includes the wait for room.
    timeout: Option<f64>,
    /// Whether a digest is made.
    digest: bool,
    /// Whether the id was drawn at random for the object.
    fresh: bool,
    /// Number of nodes that keep the object.
    replicas: i64,
    /// Time to live in seconds.
    ttl: Option<f64>,
    /// Whether the object ends with its client.
    owned: bool,
}

impl Terms {
    /// Terms as options of the client.
    pub(crate) fn options(self, py: Python<'_>) -> PyResult<CreateOptions> {
        let rights = match &*self.rights {
            "private" => Rights::Private,
            "rw" => Rights::ReadWrite,
            _ => Rights::Read,
        };
        let ttl = match self.ttl {
            Some(seconds) if seconds.is_nan() || seconds <= 0.0 => {
                return Err(invalid(py, "an object lives for more than 0 seconds, or for ever"));
            }
            ttl => duration(py, ttl)?,
        };
        let copies = u16::try_from(self.replicas).ok().filter(|copies| *copies > 0);
        let copies = copies.ok_or_else(|| invalid(py, "an object has 1 to 65,535 replicas"))?;
        let room = room(py, self.timeout)?;
        Ok(CreateOptions {
            name: self.name,
            rights,
            room,
            digest: self.digest,
            fresh: self.fresh,
            copies,
            ttl,
            owned: self.owned,
        })
    }
}

/// Time-out of a call that makes an object. `None` and 0 do not wait for others to make room.
pub(crate) fn room(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Duration>> {
    match timeout {
        None => Ok(None),
        // The longest duration stands for no limit.
        Some(_) => Ok(Some(duration(py, timeout)?.unwrap_or(Duration::MAX))),
    }
}

/// Time-out of so many seconds. `None` and infinity mean no limit.
pub(crate) fn duration(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Duration>> {
    let seconds = timeout.unwrap_or(f64::INFINITY);
    plasmon::timeout(seconds).map_err(|error| raised(py, &error))
}
