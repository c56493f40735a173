//! Memory lent by the node in which a value is written that is to be sent.
//!
//! Owns the memory until it is sent. Any thread. Invariant: nobody gets a view of memory that was sent.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use plasmon::{CreationMemory, Scratch};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::client::Client;
use crate::error::{invalid, raised};
use crate::given::given;
use crate::lock::taken;
use crate::memory::fill;

/// Lent memory, writable through the buffer protocol until it is sent.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct Outgoing {
    memory: Arc<CreationMemory>,
    len: usize,
    /// The memory. `None` once sent.
    lent: Mutex<Option<Scratch>>,
}

impl Outgoing {
    /// Takes the memory, to send it, and the number of its bytes.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<(Scratch, usize)> {
        let lent = taken(&self.lent).ok_or_else(|| invalid(py, "this memory was sent already"))?;
        Ok((lent, self.len))
    }
}

#[pymethods]
impl Outgoing {
    /// Lends `size` bytes.
    #[new]
    fn new(py: Python<'_>, client: &Client, #[pyo3(from_py_with = given)] size: usize) -> PyResult<Self> {
        let lent = client.run(py, |client| client.buffer(size, true, None))?;
        let lent = lent.map_err(|error| raised(py, &error))?;
        Ok(Self { memory: lent.memory(), len: size, lent: Mutex::new(Some(lent)) })
    }

    fn __len__(&self) -> usize {
        self.len
    }

    /// # Safety
    /// Called by Python's buffer protocol, with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        if !this.memory.is_writable() {
            return Err(PyBufferError::new_err("this memory was sent"));
        }
        // SAFETY: `slf` holds the memory, which has `len` bytes at least and which nobody else writes.
        unsafe { fill(&slf, view, this.memory.as_ptr(), this.len, false, flags) }
    }
}
