//! How operations on a region run: at once if it is mapped here, else without the GIL, until they are over, a
//! signal comes, or the client is closed.
//!
//! Owns no state beside that of [`RegionHandle`]. Any thread. Invariant: no call waits while it has the GIL.

use std::sync::atomic::Ordering;
use std::time::Duration;

use plasmon::{Error, ErrorKind, Region, Result};
use pyo3::prelude::*;

use super::{MAX_HELD_BYTES, RegionHandle};
use crate::begun::{Begun, PendingOperation};
use crate::classes::classed;
use crate::detached::ended_by;
use crate::error::{closed, raised_of_region};
use crate::lock::{cloned, lock};
use crate::terms::duration;

impl RegionHandle {
    pub(crate) fn region(&self, py: Python<'_>) -> PyResult<Region> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(raised_of_region(py, &closed()));
        }
        cloned(&self.region).ok_or_else(|| raised_of_region(py, &given_up(&self.name)))
    }

    /// Makes an operation with the GIL held, if the region is mapped here: it is some loads and stores.
    #[inline]
    pub(super) fn look<T>(&self, operation: impl FnOnce(&Region) -> Result<T>) -> Option<Result<T>> {
        if self.closing.load(Ordering::Relaxed) {
            return None;
        }
        let done = lock(&self.here).as_ref().map(operation)?;
        Some(done).filter(|done| done.as_ref().err().is_none_or(|error| error.kind() != ErrorKind::NotHere))
    }

    /// Makes a call without the GIL. Signals and the end of the client end it where it waits.
    pub(super) fn call<T: Send>(
        &self,
        py: Python<'_>,
        timeout: f64,
        call: impl FnOnce(&Region) -> Result<T> + Send,
    ) -> PyResult<T> {
        let timeout = duration(py, Some(timeout))?.unwrap_or(Duration::MAX);
        let region = self.region(py)?.with_timeout(timeout);
        let result = classed(py, None, || ended_by(&self.closing, || call(&region)))?;
        result.map_err(|error| self.raised(py, &error))
    }

    fn raised(&self, py: Python<'_>, error: &Error) -> PyErr {
        match error.kind() {
            ErrorKind::Interrupted if self.closing.load(Ordering::Relaxed) => raised_of_region(py, &closed()),
            _ => raised_of_region(py, error),
        }
    }

    pub(super) fn read_to(&self, py: Python<'_>, offset: u64, into: &mut [u8], timeout: f64) -> PyResult<()> {
        if into.len() <= MAX_HELD_BYTES
            && let Some(done) = self.look(|region| region.read(offset, &mut *into))
        {
            return done.map_err(|error| raised_of_region(py, &error));
        }
        self.call(py, timeout, |region| region.read(offset, into))
    }

    pub(super) fn word<T: Send>(
        &self,
        py: Python<'_>,
        timeout: f64,
        operation: impl Fn(&Region) -> Result<T> + Sync + Send,
    ) -> PyResult<T> {
        match self.look(&operation) {
            Some(done) => done.map_err(|error| raised_of_region(py, &error)),
            None => self.call(py, timeout, operation),
        }
    }

    pub(crate) fn range(&self, offset: u64, size: Option<u64>) -> std::ops::Range<u64> {
        offset..size.map_or(self.size.max(offset), |size| offset.saturating_add(size))
    }

    pub(super) fn pending(&self, begun: Begun) -> PendingOperation {
        PendingOperation::new(begun, &self.closing)
    }
}

fn given_up(name: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("this handle to region '{name}' is closed: map the region again"))
}
