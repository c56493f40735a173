//! Native part of `plasmon.aio`: calls for an event loop, and calls of threads that can be cancelled.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use plasmon::{Error, ErrorKind, Result, Turn};
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::client::Client;
use crate::detached::ended_by;
use crate::error::{closed, raised, raised_for};
use crate::given::given;
use crate::id::object_ids;
use crate::lock::{cloned, lock, taken};
use crate::terms::duration;

/// Connection for an event loop. Only the loop's thread uses it.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct Loop {
    /// Client of the node. `None` once closed.
    client: Mutex<Option<plasmon::Client>>,
    socket: OwnedFd,
    bell: OwnedFd,
}

#[pymethods]
impl Loop {
    #[new]
    fn new(py: Python<'_>, client: &Client) -> PyResult<Self> {
        let client = client.client(py)?;
        let (socket, bell) = client.watch().map_err(|error| raised(py, &error))?;
        Ok(Self { client: Mutex::new(Some(client)), socket, bell })
    }

    /// Descriptors of the connection and of its bell.
    fn descriptors(&self) -> (i32, i32) {
        (self.socket.as_raw_fd(), self.bell.as_raw_fd())
    }

    /// Objects, if all of them are in this host's memory. The time-out is only checked for validity.
    fn get_here(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<Option<Vec<Buffer>>> {
        let ids = object_ids(ids)?;
        duration(py, timeout)?;
        // No Python code runs while the client is locked.
        let look =
            |client: &plasmon::Client| ids.iter().map(|id| client.get_here(id).map(Buffer::new)).collect();
        let found = lock(&self.client).as_ref().map(look);
        found.ok_or_else(|| raised(py, &closed()))
    }

    /// Begins a get of at most 1,024 objects.
    #[pyo3(signature = (given, timeout, verify = false))]
    fn get(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
        #[pyo3(from_py_with = given)] verify: bool,
    ) -> PyResult<Pending> {
        let (ids, timeout) = (object_ids(given)?, duration(py, timeout)?);
        let client = self.client(py)?;
        let client = if verify { client.verifying() } else { client };
        Pending::new(given, client.begin_get(&ids, timeout))
    }

    /// Begins a wait until `count` of the objects are in this host's memory.
    fn wait(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] count: usize,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let (ids, timeout) = (object_ids(given)?, duration(py, timeout)?);
        Pending::new(given, self.client(py)?.begin_wait(&ids, count, timeout))
    }

    /// Reads what has come. Returns the numbers of the calls that are complete, whether bytes are still to be
    /// sent, and whether the connection has ended.
    fn turn(&self, py: Python<'_>) -> PyResult<(Vec<u64>, bool, bool)> {
        let turn = self.client(py)?.turn().map_err(|error| raised(py, &error))?;
        let Turn { finished, unsent, ended } = turn;
        Ok((finished, unsent, ended))
    }

    /// Closes the connection for new calls.
    fn close(&self) {
        drop(taken(&self.client));
    }
}

impl Loop {
    fn client(&self, py: Python<'_>) -> PyResult<plasmon::Client> {
        cloned(&self.client).ok_or_else(|| raised(py, &closed()))
    }
}

/// Call under way.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct Pending {
    number: u64,
    /// Objects as the caller named them.
    given: Py<PyAny>,
    /// Call of the client. `None` once it has ended.
    call: Mutex<Option<plasmon::Pending>>,
}

impl Pending {
    fn new(given: &Bound<'_, PyAny>, begun: Result<plasmon::Pending>) -> PyResult<Self> {
        let call = begun.map_err(|error| raised_for(given.py(), error, given))?;
        let given = given.clone().unbind();
        Ok(Self { number: call.number(), given, call: Mutex::new(Some(call)) })
    }

    fn take(&self, py: Python<'_>) -> PyResult<plasmon::Pending> {
        let ended = || raised(py, &Error::new(ErrorKind::Invalid, "this call has ended already"));
        taken(&self.call).ok_or_else(ended)
    }
}

#[pymethods]
impl Pending {
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    /// Time in seconds from now on after which the loop asks again, and gives the call up if the answer is 0.
    /// `None` if the call has no end.
    fn patience(&self) -> Option<f64> {
        lock(&self.call).as_mut().and_then(plasmon::Pending::patience).map(|patience| patience.as_secs_f64())
    }

    /// Objects of a get that is complete. Raises the first error among them.
    fn objects(&self, py: Python<'_>) -> PyResult<Vec<Buffer>> {
        let objects = self.take(py)?.objects().and_then(|all| all.into_iter().collect::<Result<Vec<_>>>());
        Ok(objects
            .map_err(|error| raised_for(py, error, self.given.bind(py)))?
            .into_iter()
            .map(Buffer::new)
            .collect())
    }

    /// Objects of a get that is complete, `None` for each that is not in the cluster, and the positions of
    /// those that did not come in time. With `last` the latter are an error. Raises the first other error.
    fn existing(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] last: bool,
    ) -> PyResult<(Vec<Option<Buffer>>, Vec<usize>)> {
        let mut late = Vec::new();
        let mut found = Vec::new();
        for (at, result) in self
            .take(py)?
            .objects()
            .map_err(|error| raised_for(py, error, self.given.bind(py)))?
            .into_iter()
            .enumerate()
        {
            found.push(match result {
                Ok(object) => Some(Buffer::new(object)),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) if error.kind() == ErrorKind::TimedOut && !last => {
                    late.push(at);
                    None
                }
                Err(error) => return Err(raised_for(py, error, self.given.bind(py))),
            });
        }
        Ok((found, late))
    }

    /// Presence of each object of a wait that is complete.
    fn presence(&self, py: Python<'_>) -> PyResult<Vec<bool>> {
        self.take(py)?.presence().map_err(|error| raised_for(py, error, self.given.bind(py)))
    }

    /// Gives the call up, if it has not ended.
    fn cancel(&self) {
        drop(taken(&self.call));
    }
}

/// Handle that cancels a call of another thread.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct Cancellation(Arc<AtomicBool>);

#[pymethods]
impl Cancellation {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    /// Runs `call` on this thread. Its waits end soon after `cancel`.
    fn run(&self, call: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        Ok(ended_by(&self.0, || call.call0())?.unbind())
    }

    fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
