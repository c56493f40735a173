//! Sealed objects as values: bytes that are read in place, and behave like `bytes` as far as that takes no
//! copy.
//!
//! Owns the objects' pins. Any thread. Invariant: a buffer, its slices and all views of them hold the object,
//! so none outlives its memory.
#![allow(unsafe_code)]

use std::cmp::Ordering;
use std::ffi::{CString, c_int};
use std::ops::Range;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

use memchr::memmem;
use plasmon::Object;
use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyAttributeError, PyIndexError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PySlice, PyString, PyTuple, PyType};

use crate::detached::detached;
use crate::error::raised;
use crate::id::ObjectId;
use crate::memory::{Bytes, fill};

/// First bytes of the metadata of values that this package has encoded, in any version.
const ENCODED: &[u8] = b"PLPY";
/// Number of bytes that `repr` shows.
const SHOWN_BYTES: usize = 40;

/// Bytes of a sealed object in the shared memory of this host, read in place.
///
/// A buffer is used like `bytes`: `==` and `hash` are those of its bytes, and `decode`, `in`, `find`,
/// `rfind`, `startswith`, `endswith` and slices without a step copy nothing. It has the attributes and
/// methods of a read-only `memoryview` too (`cast`, `nbytes`, `tobytes`), and all other methods of `bytes`,
/// which copy the bytes first. `bytes(buffer)` is a copy, and a pickle of a buffer is one of `bytes`.
///
/// The object stays pinned and unchanged as long as this buffer, a slice or any view of it lives. `id`,
/// `metadata`, `digest` and `verify` of a slice are those of the whole object.
#[pyclass(frozen, sequence, weakref, module = "plasmon")]
pub(crate) struct Buffer {
    object: Object,
    /// Bytes of the object that a slice has; `None` for all. A call gives many buffers, and few are slices.
    part: Option<Box<Range<usize>>>,
    /// Hash of the bytes; 0 until it is asked for.
    hash: AtomicIsize,
}

impl Buffer {
    pub(crate) fn new(object: Object) -> Self {
        Self { object, part: None, hash: AtomicIsize::new(0) }
    }

    fn data(&self) -> &[u8] {
        let data = self.object.data();
        self.part.as_ref().map_or(data, |part| &data[Range::clone(part)])
    }

    /// Bytes between two places as methods of `bytes` take them, and the first place. `None` if the places
    /// are not in this order or not within the data.
    fn within(&self, start: Option<isize>, end: Option<isize>) -> Option<(usize, &[u8])> {
        let len = self.data().len();
        let place = |at: isize| if at < 0 { len.saturating_sub(at.unsigned_abs()) } else { at as usize };
        let (start, end) = (start.map_or(0, place), end.map_or(len, place).min(len));
        (start <= end).then(|| (start, &self.data()[start..end]))
    }

    fn begins_or_ends(
        &self,
        parts: &Bound<'_, PyAny>,
        start: Option<isize>,
        end: Option<isize>,
        fits: fn(&[u8], &[u8]) -> bool,
    ) -> PyResult<bool> {
        let within = self.within(start, end);
        let fits = |part: &Bound<'_, PyAny>| -> PyResult<bool> {
            let part = Bytes::of(part)?;
            Ok(within.is_some_and(|(_, within)| fits(within, part.as_slice())))
        };
        let Ok(parts) = parts.cast::<PyTuple>() else { return fits(parts) };
        for part in parts {
            if fits(&part)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Place of a byte or of bytes between two places, from either end.
    fn place(
        &self,
        part: &Bound<'_, PyAny>,
        (start, end): (Option<isize>, Option<isize>),
        last: bool,
    ) -> PyResult<Option<usize>> {
        let byte = part.extract::<u8>();
        let part = if byte.is_ok() { None } else { Some(Bytes::of(part)?) };
        let Some((start, within)) = self.within(start, end) else { return Ok(None) };
        let found = match (byte, part.as_ref().map_or(&[][..], Bytes::as_slice), last) {
            (Ok(byte), _, false) => memchr::memchr(byte, within),
            (Ok(byte), _, true) => memchr::memrchr(byte, within),
            (Err(_), part, false) => memmem::find(within, part),
            (Err(_), part, true) => memmem::rfind(within, part),
        };
        Ok(found.map(|at| start + at))
    }
}

#[pymethods]
impl Buffer {
    /// Id of the object.
    #[getter]
    fn id(&self) -> ObjectId {
        ObjectId(self.object.id())
    }

    /// Metadata of the object, as a copy.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.object.metadata())
    }

    /// Address of the first byte in this process.
    #[getter]
    fn address(&self) -> usize {
        self.data().as_ptr() as usize
    }

    /// Address of the first byte of the whole object in this process.
    #[getter]
    fn _origin(&self) -> usize {
        self.object.data().as_ptr() as usize
    }

    /// Whether the object is a value that this package encoded, and no plain bytes.
    #[getter]
    fn _encoded(&self) -> bool {
        self.object.metadata().starts_with(ENCODED)
    }

    /// Digest of data and metadata, 8 bytes of XXH3: the one made when the object was sealed; if none was
    /// made, it is computed now.
    fn digest<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let digest = match self.object.digest() {
            Some(digest) => digest,
            None => detached(py, || self.object.verify()).map_err(|error| raised(py, &error))?,
        };
        Ok(PyBytes::new(py, &digest.to_le_bytes()))
    }

    /// Compares the bytes with the digest made when the object was sealed, if one was made.
    ///
    /// Raises `ObjectDamaged` if the digests differ.
    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.object.verify()).map(drop).map_err(|error| raised(py, &error))
    }

    /// Text that the bytes encode, as `bytes.decode`.
    #[pyo3(signature = (encoding = "utf-8", errors = "strict"))]
    fn decode<'py>(slf: &Bound<'py, Self>, encoding: &str, errors: &str) -> PyResult<Bound<'py, PyString>> {
        let (encoding, errors) = (CString::new(encoding)?, CString::new(errors)?);
        PyString::from_encoded_object(slf, Some(&encoding), Some(&errors))
    }

    /// Whether the bytes begin with a prefix, or with one of a tuple of prefixes, as `bytes.startswith`.
    #[pyo3(signature = (prefix, start = None, end = None, /))]
    fn startswith(
        &self,
        prefix: &Bound<'_, PyAny>,
        start: Option<isize>,
        end: Option<isize>,
    ) -> PyResult<bool> {
        self.begins_or_ends(prefix, start, end, <[u8]>::starts_with)
    }

    /// Whether the bytes end with a suffix, or with one of a tuple of suffixes, as `bytes.endswith`.
    #[pyo3(signature = (suffix, start = None, end = None, /))]
    fn endswith(
        &self,
        suffix: &Bound<'_, PyAny>,
        start: Option<isize>,
        end: Option<isize>,
    ) -> PyResult<bool> {
        self.begins_or_ends(suffix, start, end, <[u8]>::ends_with)
    }

    /// First place of a byte or of bytes, or -1, as `bytes.find`.
    #[pyo3(signature = (sub, start = None, end = None, /))]
    fn find(&self, sub: &Bound<'_, PyAny>, start: Option<isize>, end: Option<isize>) -> PyResult<isize> {
        Ok(self.place(sub, (start, end), false)?.map_or(-1, |at| at as isize))
    }

    /// Last place of a byte or of bytes, or -1, as `bytes.rfind`.
    #[pyo3(signature = (sub, start = None, end = None, /))]
    fn rfind(&self, sub: &Bound<'_, PyAny>, start: Option<isize>, end: Option<isize>) -> PyResult<isize> {
        Ok(self.place(sub, (start, end), true)?.map_or(-1, |at| at as isize))
    }

    fn __contains__(&self, part: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.place(part, (None, None), false)?.is_some())
    }

    fn __len__(&self) -> usize {
        self.data().len()
    }

    fn __getitem__<'py>(slf: &Bound<'py, Self>, at: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let data = this.data();
        if let Ok(slice) = at.cast::<PySlice>() {
            let slice = slice.indices(data.len() as isize)?;
            if slice.step == 1 {
                let start = this.part.as_ref().map_or(0, |part| part.start) + slice.start as usize;
                let part = Some(Box::new(start..start + slice.slicelength));
                return Ok(Bound::new(py, Self { part, ..Self::new(this.object.clone()) })?.into_any());
            }
            let place = |number| (slice.start + number as isize * slice.step) as usize;
            let some: Vec<u8> = (0..slice.slicelength).map(|number| data[place(number)]).collect();
            return Ok(PyBytes::new(py, &some).into_any());
        }
        let at: isize = at.extract().map_err(|error| {
            let message = format!("a place in a buffer is a number or a slice: {error}");
            PyTypeError::new_err(message)
        })?;
        let place = if at < 0 { at.checked_add_unsigned(data.len()) } else { Some(at) };
        let byte = place.and_then(|at| data.get(usize::try_from(at).ok()?));
        let byte = byte.ok_or_else(|| PyIndexError::new_err("the buffer has no such byte"))?;
        Ok(byte.into_pyobject(py)?.into_any())
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyMemoryView::from(slf)?.try_iter()?.into_any())
    }

    fn __concat__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        PyBytes::new(slf.py(), b"").call_method1("join", ((slf, other),))
    }

    fn __richcmp__<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
        operation: CompareOp,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let compared = |other: &[u8]| -> PyResult<Bound<'py, PyAny>> {
            let data = this.data();
            let order = match operation {
                // Bytes of other sizes are not looked at.
                CompareOp::Eq | CompareOp::Ne if data.len() != other.len() => Ordering::Less,
                _ => data.cmp(other),
            };
            Ok(operation.matches(order).into_pyobject(py)?.to_owned().into_any())
        };
        if let Ok(other) = other.cast::<Self>() {
            return compared(other.get().data());
        }
        if let Ok(other) = other.cast::<PyBytes>() {
            return compared(other.as_bytes());
        }
        match (Bytes::of(other), operation) {
            (Ok(other), _) => compared(other.as_slice()),
            (Err(_), CompareOp::Eq | CompareOp::Ne) => {
                PyMemoryView::from(slf)?.rich_compare(other, operation)
            }
            (Err(_), _) => Ok(py.NotImplemented().into_bound(py)),
        }
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        let known = self.hash.load(Relaxed);
        if known != 0 {
            return Ok(known);
        }
        let data = self.data();
        let len = data.len() as ffi::Py_ssize_t;
        // SAFETY: the view is dropped before `self`, which holds the data, and is read-only. A view of
        // `self` would ask for its hash.
        let view = unsafe {
            let view = ffi::PyMemoryView_FromMemory(data.as_ptr().cast_mut().cast(), len, ffi::PyBUF_READ);
            Bound::from_owned_ptr_or_err(py, view)?
        };
        let hash = view.hash()?;
        self.hash.store(hash, Relaxed);
        Ok(hash)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let data = self.data();
        let shown = PyBytes::new(py, &data[..data.len().min(SHOWN_BYTES)]).repr()?;
        Ok(match data.len() {
            0..=SHOWN_BYTES => format!("<plasmon.Buffer {shown}>"),
            len => format!("<plasmon.Buffer {shown}... of {len} bytes>"),
        })
    }

    fn __reduce_ex__<'py>(
        slf: &Bound<'py, Self>,
        protocol: u32,
    ) -> PyResult<(Bound<'py, PyType>, (Bound<'py, PyAny>,))> {
        let py = slf.py();
        let data = if protocol < 5 {
            PyBytes::new(py, slf.get().data()).into_any()
        } else {
            py.import("pickle")?.getattr("PickleBuffer")?.call1((slf,))?
        };
        Ok((py.get_type::<PyBytes>(), (data,)))
    }

    /// Other attributes: those of `bytes`, of a copy; else those of `memoryview`.
    fn __getattr__<'py>(slf: &Bound<'py, Self>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let text = name.to_string_lossy();
        if !text.starts_with('_') && py.get_type::<PyBytes>().hasattr(name)? {
            return PyBytes::new(py, slf.get().data()).getattr(name);
        }
        if text.starts_with('_') || !py.get_type::<PyMemoryView>().hasattr(name)? {
            return Err(PyAttributeError::new_err(format!("a plasmon.Buffer has no attribute '{text}'")));
        }
        PyMemoryView::from(slf)?.getattr(name)
    }

    /// # Safety
    /// Called by Python's buffer protocol, with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let data = slf.get().data();
        // SAFETY: `slf` holds the object, and with it the data. The view is read-only.
        unsafe { fill(&slf, view, data.as_ptr().cast_mut(), data.len(), true, flags) }
    }
}
