//! Memory that a program writes, behind Python's buffer protocol, and the memory of the program's own values.
//!
//! Invariants: a view holds the Python object that it came from (`PyBuffer_FillInfo` takes a reference), and
//! that object holds the mapping as long as it has views, so no view outlives its memory. A [`Creation`]
//! gives out writable views until it is sealed or aborted, and no views after that.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plasmon::CreationMemory;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::detached::detached;
use crate::error::{invalid, raised, wrong_type};
use crate::given::{given, refused};
use crate::id::ObjectId;
use crate::lock::lock;
use crate::replacing::Version;

/// Object being written. Its data is writable through the buffer protocol until `seal()`.
///
/// A creation used as a context manager is sealed at the end of the block, and aborted if the block raises.
/// Dropping it unsealed aborts it. The initial content of the data is undefined.
///
/// Views that are still held after `seal()` or `abort()` cannot be written: the memory is then read-only for
/// the whole process, and a write through such a view ends the process with a segmentation fault. A read
/// through one may return other objects: get the sealed object instead.
#[pyclass(frozen, weakref, module = "plasmon")]
pub(crate) struct Creation {
    id: plasmon::ObjectId,
    len: usize,
    open: Arc<OpenCreation>,
    views: Mutex<Views>,
}

/// Hold on the memory of a creation, as long as there are views of it. Memory that nobody holds when the
/// object is sealed need not be made read-only.
#[derive(Default)]
struct Views {
    count: usize,
    /// Whether the address was told, which may be used as long as the creation lives.
    told: bool,
    memory: Option<Arc<CreationMemory>>,
}

/// Creation until it is sealed or aborted, by its own methods or through the client.
pub(crate) struct OpenCreation {
    creation: Mutex<Option<plasmon::Creation>>,
    /// Whether the object takes the place of what has its id.
    replaces: bool,
}

impl OpenCreation {
    fn lock(&self) -> MutexGuard<'_, Option<plasmon::Creation>> {
        lock(&self.creation)
    }

    /// Seals the object. Returns its version if it replaces another.
    pub(crate) fn seal(
        &self,
        py: Python<'_>,
        id: plasmon::ObjectId,
        expected: Option<Version>,
    ) -> PyResult<Option<Version>> {
        if !self.replaces {
            if expected.is_some() {
                let message = format!("object {id} is to replace nothing: create(..., replace=True) does");
                return Err(invalid(py, &message));
            }
            return self.finish(py, id, plasmon::Creation::seal).map(|()| None);
        }
        let expected = expected.map(|version| version.0);
        self.finish(py, id, |creation| creation.replace(expected)).map(|version| Some(Version(version)))
    }

    /// Aborts the creation.
    pub(crate) fn abort(&self, py: Python<'_>, id: plasmon::ObjectId) -> PyResult<()> {
        self.finish(py, id, plasmon::Creation::abort)
    }

    /// Ends the creation.
    fn finish<T: Send>(
        &self,
        py: Python<'_>,
        id: plasmon::ObjectId,
        how: impl FnOnce(plasmon::Creation) -> plasmon::Result<T> + Send,
    ) -> PyResult<T> {
        let creation = self.lock().take();
        let creation =
            creation.ok_or_else(|| invalid(py, &format!("object {id} is sealed or aborted already")))?;
        detached(py, || how(creation)).map_err(|error| raised(py, &error))
    }
}

impl Creation {
    pub(crate) fn new(creation: plasmon::Creation, replaces: bool) -> Self {
        let (id, len) = (creation.id(), creation.len());
        let open = Arc::new(OpenCreation { creation: Mutex::new(Some(creation)), replaces });
        Self { id, len, open, views: Mutex::default() }
    }

    pub(crate) fn open(&self) -> &Arc<OpenCreation> {
        &self.open
    }

    /// Notes one more holder of the memory. `None` if the creation is over.
    fn hold(&self, note: impl FnOnce(&mut Views)) -> Option<*mut u8> {
        // The creation is not sealed before the holder is noted.
        let open = self.open.lock();
        let memory = open.as_ref()?.memory();
        let mut views = lock(&self.views);
        note(&mut views);
        Some(views.memory.get_or_insert(memory).as_ptr())
    }
}

#[pymethods]
impl Creation {
    /// Id of the object.
    #[getter]
    fn id(&self) -> ObjectId {
        ObjectId(self.id)
    }

    /// Address of the data in this process.
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<usize> {
        // Memory that is held after the seal keeps its address.
        let held = {
            let mut views = lock(&self.views);
            views.told |= views.memory.is_some();
            views.memory.as_ref().map(|memory| memory.as_ptr())
        };
        let address = held.or_else(|| self.hold(|views| views.told = true));
        let address = address.ok_or_else(|| invalid(py, &format!("object {} is sealed or aborted", self.id)));
        address.map(|address| address as usize)
    }

    /// Makes the object immutable and visible to all. An object that was created with `replace=True` takes
    /// the place of what has its id: if `expected` is given, only of that version. Returns its version then.
    ///
    /// Raises `InvalidArgument` if the object is sealed or aborted already, and what `Client.put` raises.
    #[pyo3(signature = (expected = None))]
    fn seal(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] expected: Option<Version>,
    ) -> PyResult<Option<Version>> {
        self.open.seal(py, self.id, expected)
    }

    /// Aborts the creation. Its id is free again.
    ///
    /// Raises `InvalidArgument` if the object is sealed or aborted already.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.open.abort(py, self.id)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Seals the object at the end of a block, or aborts it if the block raised. Does nothing if the block
    /// did either.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let open = self.open.lock().is_some();
        match (open, kind.is_none()) {
            (true, true) => self.seal(py, None).map(drop),
            (true, false) => self.abort(py),
            (false, _) => Ok(()),
        }
    }

    fn __len__(&self) -> usize {
        self.len
    }

    fn __repr__(&self) -> String {
        let state = if self.open.lock().is_some() { "open" } else { "finished" };
        format!("<plasmon.Creation of {} bytes, object {}, {state}>", self.len, self.id)
    }

    /// # Safety
    /// Called by Python's buffer protocol, with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let Some(data) = this.hold(|views| views.count += 1) else {
            let message = format!("object {} is sealed or aborted: get it to read it", this.id);
            return Err(PyBufferError::new_err(message));
        };
        // SAFETY: `slf` holds the memory until its views are gone. No slice of it is in use, because this
        // crate never asks for one.
        let filled = unsafe { fill(&slf, view, data, this.len, false, flags) };
        if filled.is_err() {
            this.let_go();
        }
        filled
    }

    /// # Safety
    /// Called by Python's buffer protocol, with a view that `__getbuffer__` has filled.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.let_go();
    }
}

impl Creation {
    /// Notes that a view is gone, and with the last one lets go of the memory.
    fn let_go(&self) {
        let mut views = lock(&self.views);
        views.count -= 1;
        let held = if views.count == 0 && !views.told { views.memory.take() } else { None };
        drop(views);
        drop(held);
    }
}

/// Scratch memory, writable through the buffer protocol: lent by the node, or the program's own.
///
/// `Client.get_into` receives objects directly into it, into slices of it and into arrays over it.
/// `Client.put_from` makes an object of memory lent by the node without a copy. The memory goes back to the
/// node with its last view.
#[pyclass(frozen, weakref, module = "plasmon")]
pub(crate) struct Scratch {
    memory: Arc<CreationMemory>,
    held: Arc<HeldScratch>,
}

/// Scratch that lives as long as its Python object. The client finds it by its address.
pub(crate) struct HeldScratch(Mutex<plasmon::Scratch>);

impl HeldScratch {
    pub(crate) fn lock(&self) -> MutexGuard<'_, plasmon::Scratch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scratch {
    pub(crate) fn new(scratch: plasmon::Scratch) -> Self {
        Self { memory: scratch.memory(), held: Arc::new(HeldScratch(Mutex::new(scratch))) }
    }

    pub(crate) fn held(&self) -> &Arc<HeldScratch> {
        &self.held
    }
}

#[pymethods]
impl Scratch {
    /// Address of the memory in this process.
    #[getter]
    pub(crate) fn address(&self) -> usize {
        self.memory.as_ptr() as usize
    }

    fn __len__(&self) -> usize {
        self.memory.len()
    }

    fn __repr__(&self) -> String {
        let state = if self.memory.is_writable() { "open" } else { "given up" };
        format!("<plasmon.Scratch of {} bytes, {state}>", self.__len__())
    }

    /// # Safety
    /// Called by Python's buffer protocol, with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = &slf.get().memory;
        if !memory.is_writable() {
            return Err(PyBufferError::new_err(
                "this scratch was given up for an object: get the object to read it",
            ));
        }
        // SAFETY: `slf` holds the memory. Slices of it are in use only while the client stores it or writes
        // to it, with the program's own view of it held.
        unsafe { fill(&slf, view, memory.as_ptr(), memory.len(), false, flags) }
    }
}

/// Fills in a view of bytes that `owner` keeps in place.
///
/// # Safety
/// `view` is a view to fill. `owner` keeps the bytes mapped, also for writing unless `read_only`.
pub(crate) unsafe fn fill<T>(
    owner: &Bound<'_, T>,
    view: *mut ffi::Py_buffer,
    data: *mut u8,
    len: usize,
    read_only: bool,
    flags: c_int,
) -> PyResult<()> {
    let data = data.cast::<c_void>();
    // No slice is longer than isize::MAX.
    let len = len as ffi::Py_ssize_t;
    // SAFETY: the caller answers for view and data. The view takes a reference to the owner. A request for a
    // writable view of read-only bytes raises BufferError.
    let outcome =
        unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), data, len, c_int::from(read_only), flags) };
    if outcome == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}

/// Copies a descriptor, given by its number.
pub(crate) fn descriptor(py: Python<'_>, number: i32) -> PyResult<OwnedFd> {
    if number < 0 {
        return Err(invalid(py, &format!("{number} is not a descriptor")));
    }
    // SAFETY: the descriptor is only copied, which fails if it is not open.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    file.try_clone_to_owned().map_err(|error| invalid(py, &format!("descriptor {number}: {error}")))
}

/// Buffer of bytes over the memory of an object, whose elements may be of any type.
pub(crate) fn flat<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let view = PyMemoryView::from(object)?;
    if view.getattr("nbytes")?.eq(0)? {
        return Ok(PyBytes::new(object.py(), &[]).into_any());
    }
    view.call_method1("cast", ("B",))
}

/// Bytes of another Python object, held in place through the buffer protocol.
pub(crate) struct Bytes(PyBuffer<u8>);

impl Bytes {
    /// Bytes of an object that has a contiguous buffer of them.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(wrong_type(object.py(), "the bytes are not contiguous"));
        }
        Ok(Self(buffer))
    }

    /// Bytes of an object that has a contiguous, writable buffer of them.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let bytes = Self::of(object)?;
        if bytes.0.readonly() {
            return Err(wrong_type(object.py(), "the memory that is to receive bytes cannot be written"));
        }
        Ok(bytes)
    }

    /// Bytes of an argument, an object with a buffer whose elements may be of any type.
    pub(crate) fn given(argument: &Bound<'_, PyAny>) -> PyResult<Self> {
        let bytes = Self::of(argument).or_else(|_| Self::of(&flat(argument)?));
        bytes.map_err(|error| refused(argument, error))
    }

    /// Bytes for writing of an argument, an object with a buffer whose elements may be of any type.
    pub(crate) fn given_to_fill(argument: &Bound<'_, PyAny>) -> PyResult<Self> {
        let bytes = Self::writable(argument).or_else(|_| Self::writable(&flat(argument)?));
        bytes.map_err(|error| refused(argument, error))
    }

    /// Address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.0.buf_ptr() as usize
    }

    /// Bytes for writing. The program is trusted not to use them meanwhile, as for reading.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        if self.0.len_bytes() == 0 {
            return &mut [];
        }
        // SAFETY: the buffer is contiguous, writable if it came from `writable`, and stays in place as long
        // as `self` holds it.
        unsafe { slice::from_raw_parts_mut(self.0.buf_ptr().cast::<u8>(), self.0.len_bytes()) }
    }

    /// Bytes for reading. As for all code that reads buffers without the GIL, the program is trusted not to
    /// write to them meanwhile from another thread. If it does, the stored bytes are a mixture of both.
    pub(crate) fn as_slice(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous and stays in place as long as `self` holds it.
        unsafe { slice::from_raw_parts(self.0.buf_ptr().cast::<u8>(), self.0.len_bytes()) }
    }
}
