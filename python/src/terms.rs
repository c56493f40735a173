//! How a new object is to be kept: one named tuple of Python (`plasmon/_terms.py`), read here.

use std::time::Duration;

use plasmon::{CreateOptions, Rights};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::client::duration;
use crate::error::invalid;

/// How a new object is to be kept, by the attributes of `plasmon._terms.Terms`.
#[derive(FromPyObject)]
pub(crate) struct Terms {
    /// The name behind the id.
    name: Option<String>,
    /// What other users may do with it: "private", "r" or "rw".
    rights: PyBackedStr,
    /// Seconds to wait for room.
    timeout: Option<f64>,
    /// Whether to make a digest.
    digest: bool,
    /// Whether the id was drawn at random for it.
    fresh: bool,
    /// How many nodes are to keep it.
    replicas: i64,
    /// Seconds that it lives.
    ttl: Option<f64>,
}

impl Terms {
    /// The same for the client.
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
        let copies = copies.ok_or_else(|| invalid(py, "there are 1 to 65,535 replicas of an object"))?;
        let room = room(py, self.timeout)?;
        Ok(CreateOptions {
            name: self.name,
            rights,
            room,
            digest: self.digest,
            fresh: self.fresh,
            copies,
            ttl,
        })
    }
}

/// How long to wait for room.
pub(crate) fn room(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Duration>> {
    match timeout {
        None => Ok(None),
        // For ever, as far as calls go.
        Some(_) => Ok(Some(duration(py, timeout)?.unwrap_or(Duration::MAX))),
    }
}
