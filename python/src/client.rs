//! The connection, for Python: bytes in, buffers out.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use plasmon::{CreateOptions, DeleteOutcome, ErrorKind, ObjectState, Presence, Result};
use pyo3::prelude::*;

use crate::error::{invalid, raised};
use crate::id::{ObjectId, object_id, object_ids};
use crate::memory::{Buffer, Bytes, Creation, OpenCreation};

/// Values of several parts that are no larger are put together and sent in one piece.
const SMALL: usize = 64 << 10;

/// A row of `list`: id, name, state, private, data length, metadata length, pins, age in seconds.
type Row = (ObjectId, Option<String>, &'static str, bool, u64, u32, u32, f64);

/// A connection to the node of this host.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct Client {
    /// `None` once closed. Buffers and creations keep the connection itself.
    client: Mutex<Option<plasmon::Client>>,
    /// What `seal` and `abort` find by id.
    creations: Mutex<HashMap<plasmon::ObjectId, Weak<OpenCreation>>>,
}

#[pymethods]
impl Client {
    #[new]
    fn new(py: Python<'_>, socket: PathBuf, name: &str) -> PyResult<Self> {
        let client = py.detach(|| plasmon::Client::connect_as(&socket, name));
        let client = client.map_err(|error| raised(py, &error))?;
        Ok(Self { client: Mutex::new(Some(client)), creations: Mutex::default() })
    }

    /// Ends the use of the connection; it is closed with the last buffer.
    fn close(&self) {
        lock(&self.client).take();
        lock(&self.creations).clear();
    }

    #[getter]
    fn closed(&self) -> bool {
        lock(&self.client).is_none()
    }

    #[getter]
    fn socket(&self, py: Python<'_>) -> PyResult<OsString> {
        Ok(self.client(py)?.socket().into())
    }

    #[getter]
    fn node(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.client(py)?.node().to_string())
    }

    /// Stores `size` bytes: `parts`, each with the offset it goes to, ascending; zeros between.
    #[allow(clippy::too_many_arguments)]
    fn put(
        &self,
        py: Python<'_>,
        id: &Bound<'_, PyAny>,
        size: usize,
        parts: Vec<(usize, Bound<'_, PyAny>)>,
        metadata: &[u8],
        name: Option<String>,
        private: bool,
    ) -> PyResult<()> {
        let (id, options) = (object_id(id)?, CreateOptions { name, private });
        let parts =
            parts.iter().map(|(at, part)| Ok((*at, Bytes::of(part)?))).collect::<PyResult<Vec<_>>>()?;
        let mut end = 0;
        for (at, part) in &parts {
            let part_end = at.checked_add(part.as_slice().len()).filter(|_| *at >= end);
            end = part_end.ok_or_else(|| invalid(py, "parts of a value overlap"))?;
        }
        if end > size {
            return Err(invalid(py, "parts of a value reach beyond its size"));
        }
        self.call(py, |client| match parts.as_slice() {
            [(0, whole)] if whole.as_slice().len() == size => {
                client.put(id, whole.as_slice(), metadata, &options)
            }
            parts if size <= SMALL => {
                let mut data = vec![0; size];
                copy(parts, &mut data);
                client.put(id, &data, metadata, &options)
            }
            parts => {
                let mut creation = client.create(id, size as u64, metadata, &options)?;
                copy(parts, creation.as_mut_slice());
                creation.seal()
            }
        })
    }

    /// Starts an object of `size` bytes.
    fn create(
        &self,
        py: Python<'_>,
        id: &Bound<'_, PyAny>,
        size: u64,
        metadata: &[u8],
        name: Option<String>,
        private: bool,
    ) -> PyResult<Creation> {
        let (id, options) = (object_id(id)?, CreateOptions { name, private });
        let creation = self.call(py, |client| client.create(id, size, metadata, &options))?;
        let creation = Creation::new(creation);
        let mut creations = lock(&self.creations);
        creations.retain(|_, open| open.strong_count() > 0);
        creations.insert(id, Arc::downgrade(creation.open()));
        Ok(creation)
    }

    /// Seals what this client created under an id.
    fn seal(&self, py: Python<'_>, id: &Bound<'_, PyAny>) -> PyResult<()> {
        let id = object_id(id)?;
        self.creation(py, id)?.finish(py, id, plasmon::Creation::seal)
    }

    /// Aborts what this client created under an id.
    fn abort(&self, py: Python<'_>, id: &Bound<'_, PyAny>) -> PyResult<()> {
        let id = object_id(id)?;
        self.creation(py, id)?.finish(py, id, plasmon::Creation::abort)
    }

    /// Waits for objects, `timeout` seconds or for ever; raises the first error among them.
    fn get(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Vec<Buffer>> {
        let (ids, timeout) = (object_ids(ids)?, duration(py, timeout)?);
        let mut signal = Ok(());
        let objects = self.call_with(py, |client| {
            client.get_interruptible(&ids, timeout, &mut || {
                signal = Python::attach(|py| py.check_signals());
                signal.is_err()
            })
        })?;
        let objects = match objects {
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                return Err(signal.err().unwrap_or_else(|| raised(py, &error)));
            }
            other => other.and_then(|objects| objects.into_iter().collect::<Result<Vec<_>>>()),
        };
        let objects = objects.map_err(|error| raised(py, &error))?;
        Ok(objects.into_iter().map(Buffer).collect())
    }

    /// Whether each object is sealed anywhere in the cluster.
    fn contains(&self, py: Python<'_>, ids: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
        let ids = object_ids(ids)?;
        let presence = self.call(py, |client| client.contains(&ids))?;
        Ok(presence.into_iter().map(|presence| presence != Presence::Absent).collect())
    }

    /// Deletes objects everywhere; says of each whether there was anything to delete.
    fn delete(&self, py: Python<'_>, ids: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
        let ids = object_ids(ids)?;
        let outcomes = self.call(py, |client| {
            let outcomes = client.delete(&ids)?;
            match outcomes.iter().position(|outcome| *outcome == DeleteOutcome::NotAllowed) {
                Some(at) => {
                    let message =
                        format!("object {} is private to another user: it was not deleted", ids[at]);
                    Err(plasmon::Error::new(ErrorKind::NotAllowed, message))
                }
                None => Ok(outcomes),
            }
        })?;
        Ok(outcomes.into_iter().map(|outcome| outcome != DeleteOutcome::Absent).collect())
    }

    /// The objects on this node.
    fn list(&self, py: Python<'_>) -> PyResult<Vec<Row>> {
        let rows = self.call(py, plasmon::Client::list)?;
        let row = |info: plasmon::ObjectInfo| {
            let state = match info.state {
                ObjectState::Unsealed => "unsealed",
                ObjectState::Primary => "primary",
                ObjectState::Cached => "cached",
                ObjectState::Doomed => "doomed",
                ObjectState::Spilled => "spilled",
            };
            let age = Duration::from_millis(info.age_ms).as_secs_f64();
            let sizes = (info.data_len, info.metadata_len);
            (ObjectId(info.id), info.name, state, info.private, sizes.0, sizes.1, info.pins, age)
        };
        Ok(rows.into_iter().map(row).collect())
    }

    /// The state of the node, as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, plasmon::Client::status_json)
    }
}

impl Client {
    fn client(&self, py: Python<'_>) -> PyResult<plasmon::Client> {
        let closed = || {
            let message = "this client is closed: connect again";
            raised(py, &plasmon::Error::new(ErrorKind::Disconnected, message))
        };
        lock(&self.client).clone().ok_or_else(closed)
    }

    /// Calls the client without the GIL.
    fn call_with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&plasmon::Client) -> T + Send,
    ) -> PyResult<T> {
        let client = self.client(py)?;
        Ok(py.detach(|| call(&client)))
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&plasmon::Client) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.call_with(py, call)?.map_err(|error| raised(py, &error))
    }

    fn creation(&self, py: Python<'_>, id: plasmon::ObjectId) -> PyResult<Arc<OpenCreation>> {
        self.client(py)?;
        let found = lock(&self.creations).remove(&id).and_then(|open| open.upgrade());
        found.ok_or_else(|| invalid(py, &format!("this client is not creating object {id}")))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes parts to where they go, and zeros between them.
fn copy(parts: &[(usize, Bytes)], data: &mut [u8]) {
    let mut end = 0;
    for (at, part) in parts {
        let part = part.as_slice();
        data[end..*at].fill(0);
        end = at + part.len();
        data[*at..end].copy_from_slice(part);
    }
    data[end..].fill(0);
}

/// A time-out in seconds; `None` and infinity wait for ever.
fn duration(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Duration>> {
    match timeout {
        None => Ok(None),
        Some(seconds) if seconds >= 0.0 => Ok(Duration::try_from_secs_f64(seconds).ok()),
        Some(_) => Err(invalid(py, "a time-out is a number of seconds, 0 or more")),
    }
}
