//! Connection to a node, for Python: takes bytes and returns buffers.
//!
//! Owns the client, and finds open creations and scratches. Any thread. Invariant: no call waits while it has
//! the GIL.

mod running;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use plasmon::{ClusterList, DeleteOutcome, ErrorKind, Filter, Presence, Result, not_allowed};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::buffer::Buffer;
use crate::connecting::connected;
use crate::detached::detached;
use crate::error::{invalid, raised, signalled};
use crate::given::given;
use crate::id::{object_id, object_ids};
use crate::listing::{Listed, rows};
use crate::lock::{lock, taken};
use crate::memory::{Bytes, Creation, HeldScratch, OpenCreation, Scratch, descriptor};
use crate::parts::{Parts, held, slices};
use crate::placing::{Spread, found, spread};
use crate::replacing::{Version, get_versioned, store};
use crate::subscription::Subscription;
use crate::terms::{Terms, Text, duration, left, names, room, verifying};

/// Value to store: id, size, pieces and metadata.
type Value<'py> = (Bound<'py, PyAny>, usize, Parts<'py>, Bound<'py, PyBytes>);

/// Connection to the node of this host.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct Client {
    /// Client of the node. `None` once closed. Buffers and creations hold the connection themselves.
    client: Mutex<Option<plasmon::Client>>,
    /// Flag that ends the calls of other threads when the connection is closed.
    pub(crate) closing: Arc<AtomicBool>,
    /// Whether an object was to be owned by this client.
    owns: AtomicBool,
    /// Open creations by their ids, for `seal` and `abort`.
    creations: Mutex<HashMap<plasmon::ObjectId, Weak<OpenCreation>>>,
    /// Scratches by their addresses, for `put_from`.
    scratches: Mutex<HashMap<usize, Weak<HeldScratch>>>,
}

#[pymethods]
impl Client {
    /// Connects as [`connected`] does. `priority` is the class of the client's work.
    #[new]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = given)] socket: Option<PathBuf>,
        name: Text,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
        priority: Text,
    ) -> PyResult<Self> {
        let class = priority.parse().map_err(|why: String| invalid(py, &why))?;
        let timeout =
            timeout.map(|_| duration(py, timeout)).transpose()?.map(|it| it.unwrap_or(Duration::MAX));
        let client = detached(py, || connected(socket, &name, timeout, class));
        let client = client.map_err(|error| raised(py, &error))?.interruptible(signalled);
        Ok(Self {
            client: Mutex::new(Some(client)),
            closing: Arc::default(),
            owns: AtomicBool::new(false),
            creations: Mutex::default(),
            scratches: Mutex::default(),
        })
    }

    /// Closes the connection for new calls, and ends those under way in other threads. The connection itself
    /// ends with its last buffer.
    fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        if let Some(client) = taken(&self.client)
            && self.owns.load(Ordering::Relaxed)
        {
            // The connection may last longer than this, since buffers hold it.
            client.end_owned();
        }
        lock(&self.creations).clear();
        lock(&self.scratches).clear();
    }

    #[getter]
    fn closed(&self) -> bool {
        lock(&self.client).is_none()
    }

    #[getter]
    fn socket(&self, py: Python<'_>) -> PyResult<OsString> {
        Ok(self.client(py)?.socket().into())
    }

    /// User id of the node.
    #[getter]
    fn owner(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.client(py)?.owner())
    }

    /// User id of this client as the node knows it.
    #[getter]
    fn user(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.client(py)?.user())
    }

    #[getter]
    fn node(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.client(py)?.node().to_string())
    }

    /// Stores `size` bytes: `parts`, each with its offset, ascending, and zeros between them. Returns the
    /// version of an object that replaces another.
    fn put(
        &self,
        py: Python<'_>,
        id: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] size: usize,
        #[pyo3(from_py_with = given)] parts: Parts<'_>,
        #[pyo3(from_py_with = given)] metadata: PyBackedBytes,
        #[pyo3(from_py_with = given)] terms: Terms,
    ) -> PyResult<Option<Version>> {
        let expected = terms.expected();
        let (id, options) = (object_id(id)?, self.options(py, terms)?);
        let parts = held(&parts)?;
        let version = self.call_for_new(py, id, &options, |client| {
            store(client, id, size, &slices(&parts), &metadata, &options, expected)
        })?;
        Ok(version.map(Version))
    }

    /// Stores values, each given as id, size, parts and metadata. Small values share requests, unless they
    /// replace. Raises the first error after all values were tried.
    fn put_many(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] values: Vec<Value<'_>>,
        #[pyo3(from_py_with = given)] terms: Terms,
    ) -> PyResult<()> {
        let mut options = self.options(py, terms)?;
        let values = values
            .iter()
            .map(|(id, size, parts, metadata)| Ok((object_id(id)?, *size, held(parts)?, metadata.as_bytes())))
            .collect::<PyResult<Vec<_>>>()?;
        self.call(py, |client| {
            let mut whole = Vec::with_capacity(values.len());
            let mut results = Vec::new();
            let (began, room) = (Instant::now(), options.room.filter(|room| !room.is_zero()));
            for (id, size, parts, metadata) in &values {
                match parts.as_slice() {
                    [] if *size == 0 && !options.replace => whole.push((*id, &[][..], *metadata)),
                    [(0, data)] if data.as_slice().len() == *size && !options.replace => {
                        whole.push((*id, data.as_slice(), *metadata))
                    }
                    parts => {
                        options.room = left(room, began);
                        results.push(client.put_parts(*id, *size, &slices(parts), metadata, &options));
                        // No further value is tried after the time-out.
                        if room.is_some_and(|room| began.elapsed() >= room) {
                            return results.into_iter().collect();
                        }
                    }
                }
            }
            options.room = left(room, began);
            results.extend(client.put_many(&whole, &options)?);
            results.into_iter().collect()
        })
    }

    /// Creates an object of `size` bytes, which the caller writes in place.
    fn create(
        &self,
        py: Python<'_>,
        id: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] size: u64,
        #[pyo3(from_py_with = given)] metadata: PyBackedBytes,
        #[pyo3(from_py_with = given)] terms: Terms,
    ) -> PyResult<Creation> {
        let (id, options) = (object_id(id)?, self.options(py, terms)?);
        let creation =
            self.call_for_new(py, id, &options, |client| client.create(id, size, &metadata, &options))?;
        let creation = Creation::new(creation, options.replace);
        let mut creations = lock(&self.creations);
        creations.retain(|_, open| open.strong_count() > 0);
        creations.insert(id, Arc::downgrade(creation.open()));
        Ok(creation)
    }

    /// Lends memory of the node.
    fn buffer(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] size: usize,
        #[pyo3(from_py_with = given)] private: bool,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<Scratch> {
        let room = room(py, timeout)?;
        let scratch = self.call(py, |client| client.buffer(size, private, room))?;
        Ok(self.keep(scratch))
    }

    /// Registers a file in memory with the node.
    fn register(&self, py: Python<'_>, #[pyo3(from_py_with = given)] file: i32) -> PyResult<Scratch> {
        let file = descriptor(py, file)?;
        Ok(self.keep(self.call(py, |client| client.register(file))?))
    }

    /// Copies an object's data into memory of the caller. Returns the size of the data in bytes.
    fn get_into(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyAny>,
        into: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
        #[pyo3(from_py_with = given)] verify: bool,
    ) -> PyResult<usize> {
        let (id, mut into, timeout) =
            (object_id(given)?, Bytes::given_to_fill(into)?, duration(py, timeout)?);
        self.call_for(py, given, |client| {
            verifying(client, verify).get_into(id, into.as_mut_slice(), timeout)
        })
    }

    /// Stores the bytes at the start of a scratch, and gives the scratch up. Returns `None` if the bytes are
    /// in no scratch.
    fn put_from(
        &self,
        py: Python<'_>,
        id: &Bound<'_, PyAny>,
        from: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] metadata: PyBackedBytes,
        #[pyo3(from_py_with = given)] terms: Terms,
    ) -> PyResult<Option<bool>> {
        let expected = terms.expected();
        let (id, options) = (object_id(id)?, self.options(py, terms)?);
        let (address, len) = {
            let from = Bytes::of(from)?;
            (from.address(), from.as_slice().len())
        };
        let Some(held) = lock(&self.scratches).get(&address).and_then(Weak::upgrade) else {
            return Ok(None);
        };
        self.call_for_new(py, id, &options, |client| {
            let mut scratch = held.lock();
            if options.replace {
                return scratch.replace(id, len, &metadata, &options, expected).map(|_| false);
            }
            client.put_from(id, &mut scratch, len, &metadata, &options)
        })
        .map(Some)
    }

    /// Seals an object that this client is creating. Returns its version if it replaces another.
    fn seal(
        &self,
        py: Python<'_>,
        id: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] expected: Option<Version>,
    ) -> PyResult<Option<Version>> {
        let id = object_id(id)?;
        self.creation(py, id)?.seal(py, id, expected)
    }

    /// Aborts the creation of an object by this client.
    fn abort(&self, py: Python<'_>, id: &Bound<'_, PyAny>) -> PyResult<()> {
        let id = object_id(id)?;
        self.creation(py, id)?.abort(py, id)
    }

    /// Waits for objects, for `timeout` seconds or without limit. Raises the first error among them.
    #[pyo3(signature = (given, timeout, verify = false))]
    fn get(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
        #[pyo3(from_py_with = given)] verify: bool,
    ) -> PyResult<Vec<Buffer>> {
        let (ids, timeout) = (object_ids(given)?, duration(py, timeout)?);
        let look =
            |client: &plasmon::Client| ids.iter().map(|id| client.get_here(id).map(Buffer::new)).collect();
        if !verify && let Some(here) = self.look(py, look)? {
            return Ok(here);
        }
        let objects = self.call_for(py, given, |client| {
            verifying(client, verify).get(&ids, timeout)?.into_iter().collect::<Result<Vec<_>>>()
        })?;
        Ok(objects.into_iter().map(Buffer::new).collect())
    }

    /// Waits for objects as `get` does. Returns `None` for each object that is not in the cluster at the end
    /// of the time-out.
    #[pyo3(signature = (given, timeout, verify = false))]
    fn get_existing(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
        #[pyo3(from_py_with = given)] verify: bool,
    ) -> PyResult<Vec<Option<Buffer>>> {
        let (ids, timeout) = (object_ids(given)?, duration(py, timeout)?);
        let look = |client: &plasmon::Client| {
            ids.iter().map(|id| client.get_here(id).map(|here| Some(Buffer::new(here)))).collect()
        };
        if !verify && let Some(here) = self.look(py, look)? {
            return Ok(here);
        }
        let objects = self.call(py, |client| {
            verifying(client, verify).get_existing(&ids, timeout)?.into_iter().collect::<Result<Vec<_>>>()
        })?;
        Ok(objects.into_iter().map(|object| object.map(Buffer::new)).collect())
    }

    /// Object of this node alone, if it is in its memory or on its disk.
    fn get_local(&self, py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<Option<Buffer>> {
        let id = object_id(given)?;
        let found = self.call_for(py, given, |client| match client.get_local(&[id])?.remove(0) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            result => result.map(Some),
        })?;
        Ok(found.map(Buffer::new))
    }

    /// Waits for objects as `get` does, but with a time-out of 0 only for those of this node. Returns `None`
    /// for each object that did not come in time.
    fn get_available(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<Vec<Option<Buffer>>> {
        let (ids, timeout) = (object_ids(given)?, duration(py, timeout)?);
        let objects = self.call_for(py, given, |client| {
            let available = |result: Result<plasmon::Object>| match result {
                Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::NotFound) => Ok(None),
                result => result.map(Some),
            };
            let results = match timeout {
                Some(Duration::ZERO) => client.get_local(&ids),
                timeout => client.get(&ids, timeout),
            };
            results?.into_iter().map(available).collect::<Result<Vec<_>>>()
        })?;
        Ok(objects.into_iter().map(|object| object.map(Buffer::new)).collect())
    }

    /// Waits for one object as `get` does.
    #[pyo3(signature = (given, timeout, verify = false))]
    fn get_one(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
        #[pyo3(from_py_with = given)] verify: bool,
    ) -> PyResult<Buffer> {
        let (id, timeout) = (object_id(given)?, duration(py, timeout)?);
        if !verify && let Some(here) = self.look(py, |client| client.get_here(&id))? {
            return Ok(Buffer::new(here));
        }
        let get = |client: &plasmon::Client| verifying(client, verify).get(&[id], timeout)?.remove(0);
        Ok(Buffer::new(self.call_for(py, given, get)?))
    }

    /// Waits for objects as `get` does, each with its version. With `existing`, returns `None` for each that
    /// is not in the cluster at the end of the time-out.
    fn get_versioned(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
        #[pyo3(from_py_with = given)] verify: bool,
        #[pyo3(from_py_with = given)] existing: bool,
    ) -> PyResult<Vec<Option<(Buffer, Version)>>> {
        let (ids, timeout) = (object_ids(given)?, duration(py, timeout)?);
        let found = self.call_for(py, given, |client| {
            get_versioned(&verifying(client, verify), &ids, timeout, existing)
        })?;
        let versioned = |(object, version)| (Buffer::new(object), Version(version));
        Ok(found.into_iter().map(|one| one.map(versioned)).collect())
    }

    /// Waits until `count` of the objects are in this host's memory. Returns for each whether it is.
    fn wait(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] count: usize,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<Vec<bool>> {
        let (ids, timeout) = (object_ids(given)?, duration(py, timeout)?);
        self.call_for(py, given, |client| client.wait(&ids, count, timeout, Some(&mut signalled)))
    }

    /// Marks objects as just used.
    fn refresh(&self, py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<()> {
        let ids = object_ids(given)?;
        self.call_for(py, given, |client| client.refresh(&ids))
    }

    /// Evicts objects until `bytes` more are free. Returns the number of bytes freed.
    fn evict(&self, py: Python<'_>, #[pyo3(from_py_with = given)] bytes: u64) -> PyResult<u64> {
        self.call(py, |client| client.evict(bytes))
    }

    /// Changes the name and the quota of this client.
    fn set_options(
        &self,
        py: Python<'_>,
        name: Option<Text>,
        #[pyo3(from_py_with = given)] quota: Option<u64>,
    ) -> PyResult<()> {
        self.call(py, |client| client.set_options(name.as_deref(), quota))
    }

    /// Subscribes to the objects of the node.
    fn subscribe(
        &self,
        py: Python<'_>,
        name: Text,
        #[pyo3(from_py_with = given)] cluster: bool,
    ) -> PyResult<Subscription> {
        let subscribe = |client: &plasmon::Client| match cluster {
            true => client.subscribe_cluster(&name),
            false => client.subscribe(&name),
        };
        Ok(Subscription::new(self.call(py, subscribe)?)?)
    }

    /// Size of the node's store in bytes.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.client(py)?.capacity())
    }

    /// Whether each object is sealed on any node of the cluster.
    fn contains(&self, py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
        let ids = object_ids(given)?;
        let look = |client: &plasmon::Client| ids.iter().map(|id| client.presence_here(id)).collect();
        let presence: Vec<_> = match self.look(py, look)? {
            Some(here) => here,
            None => self.call_for(py, given, |client| client.contains(&ids))?,
        };
        Ok(presence.into_iter().map(|presence| presence != Presence::Absent).collect())
    }

    /// Whether one object is sealed on any node of the cluster.
    fn contains_one(&self, py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<bool> {
        let id = object_id(given)?;
        let presence = match self.look(py, |client| client.presence_here(&id))? {
            Some(here) => here,
            None => self.call_for(py, given, |client| client.contains(&[id]))?.remove(0),
        };
        Ok(presence != Presence::Absent)
    }

    /// Deletes objects on every node. Returns for each whether it existed.
    fn delete(&self, py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
        let ids = object_ids(given)?;
        let outcomes = self.call_for(py, given, |client| {
            let outcomes = client.delete(&ids)?;
            let refused = ids.iter().zip(&outcomes).find_map(|(id, outcome)| match outcome {
                DeleteOutcome::NotAllowed { creator } => Some(not_allowed(*id, *creator, client.user())),
                _ => None,
            });
            refused.map_or(Ok(outcomes), Err)
        })?;
        Ok(outcomes.into_iter().map(|outcome| outcome != DeleteOutcome::Absent).collect())
    }

    /// Lists the objects on this node or in the cluster. Returns also the nodes that did not tell theirs,
    /// each with the reason.
    fn list(
        &self,
        py: Python<'_>,
        pattern: Text,
        #[pyo3(from_py_with = given)] cluster: bool,
    ) -> PyResult<Listed> {
        let filter = Filter::of(&pattern);
        let list = self.call(py, |client| match cluster {
            true => client.list_cluster(&filter),
            false => {
                let objects = client.list_wanted(&filter)?;
                let holders = vec![vec![client.node()]; objects.len()];
                Ok(ClusterList { objects, holders, missing: Vec::new() })
            }
        })?;
        Ok(rows(list))
    }

    /// Explains how an object came to this node, as JSON.
    fn explain(&self, py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<String> {
        let id = object_id(given)?;
        self.call_for(py, given, |client| client.explain_json(id))
    }

    /// Lists the nodes that hold an object, with their roles.
    fn locations(&self, py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
        let id = object_id(given)?;
        let locations = self.call_for(py, given, |client| client.locations(id))?;
        Ok(locations.into_iter().map(|one| (one.node, one.role)).collect())
    }

    /// Makes several nodes keep an object.
    fn replicate(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] replicas: u16,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<Spread> {
        let (id, timeout) = (object_id(given)?, duration(py, timeout)?);
        Ok(spread(self.call_for(py, given, |client| client.replicate(id, replicas, timeout))?))
    }

    /// Moves an object to another node.
    fn migrate(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyAny>,
        node: Text,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<Spread> {
        let (id, timeout) = (object_id(given)?, duration(py, timeout)?);
        Ok(spread(self.call_for(py, given, |client| {
            let (nodes, left) = found(client, &[node.into()], timeout)?;
            client.migrate(id, nodes[0], left)
        })?))
    }

    /// Brings an object to `nodes`, or to all nodes.
    fn broadcast(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] nodes: Option<Vec<Text>>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<Spread> {
        let (id, timeout) = (object_id(given)?, duration(py, timeout)?);
        // An empty list would mean all nodes in the frame.
        if nodes.as_ref().is_some_and(Vec::is_empty) {
            return Ok((Vec::new(), Vec::new()));
        }
        Ok(spread(self.call_for(py, given, |client| {
            let (nodes, left) = found(client, &names(nodes), timeout)?;
            client.broadcast(id, &nodes, left)
        })?))
    }

    /// Brings an object to this node and keeps it in memory here.
    fn pin(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<()> {
        let (id, timeout) = (object_id(given)?, duration(py, timeout)?);
        self.call_for(py, given, |client| client.pin(id, timeout))
    }

    /// Ends the effect of `pin`.
    fn unpin(&self, py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<()> {
        let id = object_id(given)?;
        self.call_for(py, given, |client| client.unpin(id))
    }

    /// Begins to bring objects to this node.
    fn prefetch(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<()> {
        let (ids, timeout) = (object_ids(given)?, duration(py, timeout)?.unwrap_or(Duration::MAX));
        self.call_for(py, given, |client| client.prefetch(&ids, timeout))
    }

    /// Status report of the node, as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, plasmon::Client::status_json)
    }
}
