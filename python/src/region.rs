//! Regions, for Python: the native base of `plasmon.Region`, and its views.
//!
//! Owns handles to regions. Any thread. Operations on little mapped memory keep the GIL, because they take
//! less time than to release it; all others are made without. Invariant: no Python code runs, and no call
//! waits, while a handle is locked.
#![allow(unsafe_code)]

mod running;

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plasmon::region::{Principal, RegionInfo, RegionOptions, Rights, View};
use plasmon::{Error, ErrorKind, Region};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::begun::{Begun, PendingOperation, Word};
use crate::client::Client;
use crate::error::{invalid, raised_of_region};
use crate::given::given;
use crate::id::ObjectId;
use crate::lock::{lock, taken};
use crate::memory::{Bytes, fill};
use crate::placing::found;
use crate::sync::GuardHandle;
use crate::terms::{Terms, Text, duration, left, room};

/// Number of bytes that are copied to and from mapped memory without releasing the GIL.
const MAX_HELD_BYTES: usize = 16 << 10;

/// Options of a new region: size, node, rights of every user, whether it may be mapped, whether it ends with
/// the client, and whether it may exist.
type Making = (u64, Option<Text>, Text, bool, bool, bool);
/// Row of a list of regions: name, size, home, owner, the user's rights, those of every user, whether it may
/// be mapped, was to be mapped and cannot, and its number of pieces, whether it ends with its client, handles
/// at home, other nodes with handles, age in seconds.
type Row = (String, u64, String, u32, String, String, (bool, bool, u32), bool, u32, u32, f64);

/// Rows of a list, and the nodes that did not tell theirs, each with the reason.
type Listed = (Vec<Row>, Vec<(String, String)>);

/// Native base of `plasmon.Region`: a handle to a region.
#[pyclass(frozen, subclass, weakref, module = "plasmon._internal")]
pub(crate) struct RegionHandle {
    /// Region. `None` once closed.
    region: Mutex<Option<Region>>,
    /// The region, if it is mapped here, as a handle that makes no calls. `None` also once closed.
    here: Mutex<Option<Region>>,
    name: String,
    size: u64,
    rights: Rights,
    owner: u32,
    /// Whether the client is closed.
    closing: Arc<AtomicBool>,
}

#[pymethods]
impl RegionHandle {
    /// Maps a region, or makes one. `rights` are letters; `owner` is that of the region, if it matters.
    #[new]
    fn new(
        py: Python<'_>,
        client: &Client,
        name: Text,
        rights: Text,
        #[pyo3(from_py_with = given)] owner: Option<u32>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
        #[pyo3(from_py_with = given)] making: Option<Making>,
    ) -> PyResult<Self> {
        let timeout = room(py, timeout)?;
        let letters = |text: &str| {
            Rights::of_letters(text).ok_or_else(|| invalid(py, &format!("no rights are called '{text}'")))
        };
        let rights = letters(&rights)?;
        let made = match making {
            None => client.run(py, |client| client.map_region_of(owner, &name, rights, timeout))?,
            Some((size, node, public, mappable, ephemeral, exist_ok)) => {
                let public = letters(&public)?;
                client.run(py, |client| {
                    let began = Instant::now();
                    let nodes: Vec<_> = node.map(Into::into).into_iter().collect();
                    let node = found(client, &nodes, timeout)?.0.first().copied();
                    let room = left(timeout, began);
                    let options = RegionOptions { node, public, mappable, ephemeral, exist_ok, room };
                    client.create_region(&name, size, &options)
                })?
            }
        };
        let region = made.map_err(|error| raised_of_region(py, &error))?;
        let (size, rights, owner) = (region.len(), region.rights(), region.owner());
        let closing = Arc::clone(&client.closing);
        let here = Mutex::new(region.is_mapped().then(|| region.clone().without_calls()));
        Ok(Self { region: Mutex::new(Some(region)), here, name: name.into(), size, rights, owner, closing })
    }

    /// Size in bytes.
    #[getter]
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Rights of the handle: "r", "rw", or with `w` alone "w".
    #[getter]
    fn mode(&self) -> &'static str {
        match (self.rights.read, self.rights.write) {
            (true, true) => "rw",
            (true, false) => "r",
            (false, true) => "w",
            (false, false) => "",
        }
    }

    /// User id of the region's owner.
    #[getter]
    fn owner(&self) -> u32 {
        self.owner
    }

    /// Id of the node on which the region lives, as this handle last heard.
    #[getter]
    fn home(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.region(py)?.home().to_string())
    }

    /// Whether the region's bytes are mapped in this process.
    #[getter]
    fn local(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.region(py)?.is_mapped())
    }

    /// Whether `close` was called, or the client is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.closing.load(Ordering::Relaxed) || lock(&self.region).is_none()
    }

    /// Gives the handle up. The region stays. Views stay valid.
    fn close(&self) {
        drop(taken(&self.here));
        drop(taken(&self.region));
    }

    /// Reads bytes.
    ///
    /// An aligned word of 8 bytes is read as a whole; more bytes may have parts of several writes.
    ///
    /// Args:
    ///     offset: Offset of the first byte.
    ///     size: Number of bytes; by default all up to the end.
    ///     timeout: Time in seconds that the call may take.
    ///
    /// Raises:
    ///     InvalidArgument: The bytes are out of bounds.
    ///     RegionFreed, RegionLost: The region is no more.
    #[pyo3(signature = (offset = 0, size = None, *, timeout = 30.0))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] size: Option<usize>,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let size = size.unwrap_or(self.size.saturating_sub(offset) as usize);
        if offset.checked_add(size as u64).is_none_or(|end| end > self.size) {
            // The error is the region's. No memory is taken for bytes that there are not.
            let region = self.region(py)?;
            return Err(raised_of_region(py, &beyond(&region, offset, size as u64)));
        }
        PyBytes::new_with(py, size, |into| self.read_to(py, offset, into, timeout))
    }

    /// Reads bytes into a buffer, as many as it has. Returns their number.
    ///
    /// The bytes are received without a copy if the buffer lies in memory of `Client.buffer`.
    ///
    /// Args:
    ///     buffer: Writable buffer.
    ///     offset: Offset of the first byte.
    ///     timeout: Time in seconds that the call may take.
    #[pyo3(signature = (buffer, offset = 0, *, timeout = 30.0))]
    fn read_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<usize> {
        let mut bytes = Bytes::given_to_fill(buffer)?;
        let into = bytes.as_mut_slice();
        self.read_to(py, offset, into, timeout)?;
        Ok(into.len())
    }

    /// Writes bytes. When the call returns, they are in the region's memory.
    ///
    /// An aligned word of 8 bytes is written as a whole. Other writers may come between the parts of more
    /// bytes.
    ///
    /// Args:
    ///     data: Bytes to write.
    ///     offset: Offset of the first byte.
    ///     timeout: Time in seconds that the call may take.
    ///     fence: Guard of a lock: nothing is written if the lock is lost, or if the region has seen a later
    ///         guard of it.
    ///
    /// Raises:
    ///     OutcomeUnknown: The bytes may have been written, or in part, or may be later.
    ///     Fenced: The guard is not valid any more, or was followed by another one.
    #[pyo3(signature = (data, offset = 0, *, timeout = 30.0, fence = None))]
    fn write(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] timeout: f64,
        #[pyo3(from_py_with = given)] fence: Option<Bound<'_, GuardHandle>>,
    ) -> PyResult<()> {
        let data = Bytes::given(data)?;
        let bytes = data.as_slice();
        if let Some(fence) = fence {
            let guard = fence.get().shown(py)?;
            return self.call(py, timeout, |region| region.write_fenced(offset, bytes, &guard));
        }
        match (bytes.len() <= MAX_HELD_BYTES).then(|| self.look(|region| region.write(offset, bytes))) {
            Some(Some(done)) => done.map_err(|error| raised_of_region(py, &error)),
            _ => self.call(py, timeout, |region| region.write(offset, bytes)),
        }
    }

    /// Sets bytes to a value.
    ///
    /// Args:
    ///     value: Value of each byte.
    ///     offset: Offset of the first byte.
    ///     size: Number of bytes; by default all up to the end.
    ///     timeout: Time in seconds that the call may take.
    #[pyo3(signature = (value = 0, offset = 0, size = None, *, timeout = 30.0))]
    fn fill(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] value: u8,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] size: Option<u64>,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<()> {
        let range = self.range(offset, size);
        self.call(py, timeout, |region| region.fill(range, value))
    }

    /// Copies bytes of another region, or of this one, as `memmove` does.
    ///
    /// The bytes do not pass through this host, unless one of the regions lives here.
    ///
    /// Args:
    ///     source: Region to copy from, of the same client.
    ///     source_offset: Offset of the first byte there.
    ///     offset: Offset of the first byte here.
    ///     size: Number of bytes; by default all up to the end of the source.
    ///     timeout: Time in seconds that the call may take.
    #[pyo3(signature = (source, *, source_offset = 0, offset = 0, size = None, timeout = 30.0))]
    fn copy_from(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] source: Bound<'_, Self>,
        #[pyo3(from_py_with = given)] source_offset: u64,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] size: Option<u64>,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<()> {
        let source = source.get();
        let range = source.range(source_offset, size);
        let source = source.region(py)?;
        self.call(py, timeout, |region| region.copy_from(offset, &source, range))
    }

    /// Adds to a word of 64 bits, and returns what it was before. The sum wraps.
    ///
    /// Args:
    ///     offset: Offset of the word, a multiple of 8.
    ///     value: Number to add; a negative one is subtracted.
    ///     timeout: Time in seconds that the call may take.
    ///
    /// Raises:
    ///     OutcomeUnknown: The word may have been changed, or may be later.
    #[pyo3(signature = (offset, value = Word(1), *, timeout = 30.0))]
    fn fetch_add(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] value: Word,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<u64> {
        self.word(py, timeout, |region| region.fetch_add(offset, value.0))
    }

    /// Replaces a word of 64 bits, and returns what it was before.
    ///
    /// Args:
    ///     offset: Offset of the word, a multiple of 8.
    ///     value: Value that the word gets.
    ///     timeout: Time in seconds that the call may take.
    #[pyo3(signature = (offset, value, *, timeout = 30.0))]
    fn swap(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] value: Word,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<u64> {
        self.word(py, timeout, |region| region.swap(offset, value.0))
    }

    /// Replaces a word of 64 bits if it is what is expected, and returns what it was before.
    ///
    /// Args:
    ///     offset: Offset of the word, a multiple of 8.
    ///     expected: Value that is expected. The word was replaced if this is returned.
    ///     value: Value that the word gets.
    ///     timeout: Time in seconds that the call may take.
    #[pyo3(signature = (offset, expected, value, *, timeout = 30.0))]
    fn compare_swap(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] expected: Word,
        #[pyo3(from_py_with = given)] value: Word,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<u64> {
        self.word(py, timeout, |region| region.compare_swap(offset, expected.0, value.0))
    }

    /// Sets a word of 64 bits to 1, and returns whether it was set already.
    ///
    /// Args:
    ///     offset: Offset of the word, a multiple of 8.
    ///     timeout: Time in seconds that the call may take.
    #[pyo3(signature = (offset, *, timeout = 30.0))]
    fn test_and_set(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<bool> {
        self.word(py, timeout, |region| region.test_and_set(offset))
    }

    /// Bytes of the region in the memory of this process, writable unless the mode is "r".
    ///
    /// Other threads, processes and hosts read and write them as well. A change does not wake those who
    /// `wait` for it: `notify` does that.
    ///
    /// Raises:
    ///     NotHere: The region lives on another host, or cannot be mapped by this user.
    fn view<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        let view = self.region(py)?.view().map_err(|error| raised_of_region(py, &error))?;
        PyMemoryView::from(Bound::new(py, RegionMemory(view))?.as_any())
    }

    /// Waits until a word is another than was expected, and returns it.
    ///
    /// Args:
    ///     offset: Offset of the word, a multiple of 8.
    ///     expected: Value that is expected.
    ///     timeout: Time in seconds to wait.
    ///
    /// Raises:
    ///     TimedOut: The word was not changed in time.
    #[pyo3(signature = (offset, expected, *, timeout = 30.0))]
    fn wait(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] expected: Word,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<u64> {
        let limit = duration(py, Some(timeout))?.unwrap_or(Duration::MAX);
        self.call(py, timeout, |region| region.wait(offset, expected.0, limit))
    }

    /// Wakes those who wait for a change of a word, after it was changed through a view or an array.
    ///
    /// Args:
    ///     offset: Offset of the word, a multiple of 8.
    ///     timeout: Time in seconds that the call may take.
    #[pyo3(signature = (offset, *, timeout = 30.0))]
    fn notify(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<()> {
        self.call(py, timeout, |region| region.notify(offset))
    }

    /// Begins to read at most 256 KiB. The result is `bytes`.
    ///
    /// Args:
    ///     offset: Offset of the first byte.
    ///     size: Number of bytes.
    ///     timeout: Time in seconds that the operation may take.
    #[pyo3(signature = (offset, size, *, timeout = 30.0))]
    fn begin_read(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] size: usize,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<PendingOperation> {
        let begun = self.call(py, timeout, |region| region.begin_read(offset, size))?;
        Ok(self.pending(Begun::Read(begun)))
    }

    /// Begins to write a copy of at most 256 KiB. The result is `None`.
    ///
    /// Args:
    ///     data: Bytes to write.
    ///     offset: Offset of the first byte.
    ///     timeout: Time in seconds that the operation may take.
    #[pyo3(signature = (data, offset = 0, *, timeout = 30.0))]
    fn begin_write(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<PendingOperation> {
        let data = Bytes::given(data)?;
        let bytes = data.as_slice();
        let begun = self.call(py, timeout, |region| region.begin_write(offset, bytes))?;
        Ok(self.pending(Begun::Write(begun)))
    }

    /// Begins to add to a word of 64 bits. The result is what the word was before.
    ///
    /// Args:
    ///     offset: Offset of the word, a multiple of 8.
    ///     value: Number to add; a negative one is subtracted.
    ///     timeout: Time in seconds that the operation may take.
    #[pyo3(signature = (offset, value = Word(1), *, timeout = 30.0))]
    fn begin_fetch_add(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] value: Word,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<PendingOperation> {
        let begun = self.call(py, timeout, |region| region.begin_fetch_add(offset, value.0))?;
        Ok(self.pending(Begun::Add(begun)))
    }

    /// Waits until all operations that were begun on this handle are over.
    ///
    /// Later operations, anywhere, find the bytes that these have written. The results raise the errors.
    fn fence(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, f64::INFINITY, Region::fence)
    }

    /// Gives rights to a user, or to every user.
    fn give(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] user: Option<u32>,
        rights: Text,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<()> {
        let rights = Rights::of_letters(&rights).unwrap_or(Rights::NONE);
        self.call(py, timeout, |region| region.grant(principal(user), rights))
    }

    /// Takes all rights from a user, or those of every user.
    fn withdraw(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] user: Option<u32>,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<()> {
        self.call(py, timeout, |region| region.revoke(principal(user)))
    }

    /// Moves the region to another node.
    fn move_to(
        &self,
        py: Python<'_>,
        client: &Client,
        node: Text,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<()> {
        let limit = duration(py, Some(timeout))?;
        let client = client.client(py)?;
        self.call(py, timeout, |region| {
            let (nodes, left) = found(&client, &[node.into()], limit)?;
            region.move_to(nodes[0], left.unwrap_or(Duration::MAX))
        })
    }

    /// Makes an object of the region's bytes.
    fn copy_to(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] id: ObjectId,
        #[pyo3(from_py_with = given)] terms: Terms,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<ObjectId> {
        let options = terms.options(py)?;
        self.call(py, timeout, |region| region.snapshot(id.0, &options)).map(ObjectId)
    }

    /// Row of a list for the region as it is now.
    fn describe(&self, py: Python<'_>, #[pyo3(from_py_with = given)] timeout: f64) -> PyResult<Row> {
        self.call(py, timeout, Region::info).map(row)
    }

    /// Frees the region: its name, and its memory when nobody has it mapped any more.
    ///
    /// Args:
    ///     timeout: Time in seconds that the call may take.
    ///
    /// Raises:
    ///     NotAllowed: This user has not the rights of a master.
    #[pyo3(signature = (*, timeout = 30.0))]
    fn free(&self, py: Python<'_>, #[pyo3(from_py_with = given)] timeout: f64) -> PyResult<()> {
        self.call(py, timeout, |region| region.clone().free())
    }
}

/// Mapped bytes of a region behind the buffer protocol.
#[pyclass(frozen, module = "plasmon._internal")]
struct RegionMemory(View);

#[pymethods]
impl RegionMemory {
    /// # Safety
    /// Called by Python's buffer protocol, with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().0;
        // SAFETY: `slf` holds the view, which keeps the bytes mapped, for writing if it says so.
        unsafe { fill(&slf, view, bytes.as_ptr(), bytes.len(), !bytes.is_writable(), flags) }
    }
}

/// Rows of the regions that this user may see, and the nodes that did not tell theirs, each with the reason.
#[pyfunction]
pub(crate) fn regions(py: Python<'_>, client: &Client) -> PyResult<Listed> {
    let list =
        client.run(py, plasmon::Client::list_regions)?.map_err(|error| raised_of_region(py, &error))?;
    let missing = list.missing.into_iter().map(|(node, error)| (node.to_string(), error.to_string()));
    Ok((list.regions.into_iter().map(row).collect(), missing.collect()))
}

fn row(info: RegionInfo) -> Row {
    let letters = |rights: Rights| rights.to_string().replace('-', "");
    (
        info.name,
        info.len,
        info.home.to_string(),
        info.owner,
        letters(info.rights),
        letters(info.public),
        (info.mappable, info.crowded_out, info.pieces),
        info.ephemeral,
        info.handles,
        info.nodes,
        Duration::from_millis(info.age_ms).as_secs_f64(),
    )
}

fn principal(user: Option<u32>) -> Principal {
    user.map_or(Principal::Everyone, Principal::User)
}

fn beyond(region: &Region, offset: u64, size: u64) -> Error {
    let (name, len) = (region.name(), region.len());
    let text = format!("{size} bytes at offset {offset} are out of bounds: region '{name}' has {len} bytes");
    Error::new(ErrorKind::Invalid, text)
}
