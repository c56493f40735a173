//! How calls of a client run: without the GIL, until they are over, a signal comes, or the client is closed.
//!
//! Owns no state beside that of [`Client`]. Any thread. Invariant: no call waits while it has the GIL.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use plasmon::{CreateOptions, ErrorKind, Result};
use pyo3::prelude::*;

use super::Client;
use crate::detached::{detached, ended_by};
use crate::error::{closed, invalid, raised, raised_for};
use crate::lock::{cloned, lock};
use crate::memory::{OpenCreation, Scratch};
use crate::terms::Terms;

impl Client {
    pub(crate) fn client(&self, py: Python<'_>) -> PyResult<plasmon::Client> {
        cloned(&self.client).ok_or_else(|| raised(py, &closed()))
    }

    /// Looks for objects in memory with the GIL and the lock held, because that takes less time than to
    /// release the GIL or to clone the client. `look` must not run Python code, which might give the GIL to
    /// another thread that waits for the lock.
    pub(super) fn look<T>(&self, py: Python<'_>, look: impl FnOnce(&plasmon::Client) -> T) -> PyResult<T> {
        let found = lock(&self.client).as_ref().map(look);
        found.ok_or_else(|| raised(py, &closed()))
    }

    /// Makes a call of the client without the GIL. Signals end the call where it waits, and so does `close`.
    pub(super) fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&plasmon::Client) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.run(py, call)?.map_err(|error| raised(py, &error))
    }

    /// Makes a call as `call` does, for objects that the caller gave.
    pub(super) fn call_for<T: Send>(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyAny>,
        call: impl FnOnce(&plasmon::Client) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.run(py, call)?.map_err(|error| raised_for(py, error, given))
    }

    /// Makes a call as `call` does, for a new object.
    pub(super) fn call_for_new<T: Send>(
        &self,
        py: Python<'_>,
        id: plasmon::ObjectId,
        options: &plasmon::CreateOptions,
        call: impl FnOnce(&plasmon::Client) -> Result<T> + Send,
    ) -> PyResult<T> {
        let named = |error: plasmon::Error| match &options.name {
            Some(name) => error.about(id).naming(name),
            None => error.about(id),
        };
        self.run(py, call)?.map_err(|error| raised(py, &named(error)))
    }

    pub(crate) fn run<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&plasmon::Client) -> Result<T> + Send,
    ) -> PyResult<Result<T>> {
        let client = self.client(py)?;
        let result = detached(py, || ended_by(&self.closing, || call(&client)));
        Ok(result.map_err(|error| match error.kind() {
            ErrorKind::Interrupted if self.closing.load(Ordering::Relaxed) => closed(),
            _ => error,
        }))
    }

    /// Options of a new object.
    pub(super) fn options(&self, py: Python<'_>, terms: Terms) -> PyResult<CreateOptions> {
        let options = terms.options(py)?;
        if options.owned {
            self.owns.store(true, Ordering::Relaxed);
        }
        Ok(options)
    }

    pub(super) fn keep(&self, scratch: plasmon::Scratch) -> Scratch {
        let scratch = Scratch::new(scratch);
        let mut scratches = lock(&self.scratches);
        scratches.retain(|_, held| held.strong_count() > 0);
        scratches.insert(scratch.address(), Arc::downgrade(scratch.held()));
        scratch
    }

    pub(super) fn creation(&self, py: Python<'_>, id: plasmon::ObjectId) -> PyResult<Arc<OpenCreation>> {
        self.client(py)?;
        let found = lock(&self.creations).remove(&id).and_then(|open| open.upgrade());
        found.ok_or_else(|| invalid(py, &format!("this client is not creating object {id}")))
    }
}
