//! Operations on regions, and calls of functions, for event loops: each is begun on the loop's thread and
//! waits for nothing.
//!
//! Owns the operations under way, with the buffers that they fill. The loop's thread. What would wait or take
//! long, because it has to borrow memory or copies much, is not begun: `plasmon.aio` makes it in a thread.

use std::sync::Mutex;
use std::time::Duration;

use plasmon::region::Awaited;
use plasmon::service::AwaitedCall;
use plasmon::wire::Operation;
use plasmon::{Error, Region, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes};

use crate::begun::Word;
use crate::classes::{chosen, during};
use crate::error::{invalid, raised, raised_of_region};
use crate::given::given;
use crate::lock::{lock, taken};
use crate::memory::Bytes;
use crate::region::RegionHandle;
use crate::service::outcome_of;
use crate::sync::GuardHandle;
use crate::terms::duration;

/// Operations of a region, begun for an event loop. Each returns `None` if it is to be made in a thread.
///
/// The arguments are those of the operations of `Region`.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct RegionCalls(Py<RegionHandle>);

/// Operation on a region, or call of a function, that was begun for an event loop.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct AwaitedOperation {
    number: u64,
    /// Operation that was begun. `None` once it has ended.
    begun: Mutex<Option<UnderWay>>,
}

/// An operation that was begun for an event loop.
enum UnderWay {
    Operation(Awaited, Told),
    Call(AwaitedCall),
}

/// Result of an operation.
enum Told {
    Nothing,
    Word,
    Flag,
    Bytes,
    /// Number of bytes that come into the buffer, unless the node puts them there itself.
    Into(Bytes, bool),
    /// Nothing, of an operation that may use the bytes until it has ended.
    Of(Bytes),
}

type Begun = PyResult<Option<AwaitedOperation>>;

#[pymethods]
impl RegionCalls {
    #[new]
    fn new(region: Py<RegionHandle>) -> Self {
        Self(region)
    }

    #[pyo3(signature = (offset = 0, size = None, *, timeout = 30.0))]
    fn read(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] size: Option<usize>,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> Begun {
        let size = size.unwrap_or(self.0.get().size().saturating_sub(offset) as usize);
        self.begin(py, timeout, Told::Bytes, |region, _| region.await_read(offset, size))
    }

    #[pyo3(signature = (buffer, offset = 0, *, timeout = 30.0))]
    fn read_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> Begun {
        let bytes = Bytes::given_to_fill(buffer)?;
        self.begin(py, timeout, Told::Into(bytes, false), |region, told| {
            let Told::Into(bytes, is_there) = told else { return Ok(None) };
            let into = bytes.as_mut_slice();
            match region.await_read_into(offset, into)? {
                Some(begun) => {
                    *is_there = true;
                    Ok(Some(begun))
                }
                None => region.await_read(offset, into.len()),
            }
        })
    }

    #[pyo3(signature = (data, offset = 0, *, timeout = 30.0, fence = None))]
    fn write(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] timeout: f64,
        #[pyo3(from_py_with = given)] fence: Option<Bound<'_, GuardHandle>>,
    ) -> Begun {
        let data = Bytes::given(data)?;
        let guard = fence.map(|fence| fence.get().shown(py)).transpose()?;
        self.begin(py, timeout, Told::Of(data), |region, told| match (told, &guard) {
            (Told::Of(data), None) => region.await_write(offset, data.as_slice()),
            (Told::Of(data), Some(guard)) => region.await_write_fenced(offset, data.as_slice(), guard),
            _ => Ok(None),
        })
    }

    #[pyo3(signature = (value = 0, offset = 0, size = None, *, timeout = 30.0))]
    fn fill(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] value: u8,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] size: Option<u64>,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> Begun {
        let range = self.0.get().range(offset, size);
        let operation = Operation::Fill { offset, len: range.end - range.start, byte: value };
        self.far(py, timeout, Told::Nothing, |region| region.await_operation(operation, &[]))
    }

    #[pyo3(signature = (source, *, source_offset = 0, offset = 0, size = None, timeout = 30.0))]
    fn copy_from(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] source: Bound<'_, RegionHandle>,
        #[pyo3(from_py_with = given)] source_offset: u64,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] size: Option<u64>,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> Begun {
        let source = source.get();
        let range = source.range(source_offset, size);
        let source = source.region(py)?;
        self.far(py, timeout, Told::Nothing, |region| region.await_copy(offset, &source, range))
    }

    #[pyo3(signature = (offset, value = Word(1), *, timeout = 30.0))]
    fn fetch_add(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] value: Word,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> Begun {
        self.operate(py, timeout, Told::Word, Operation::FetchAdd { offset, value: value.0 })
    }

    #[pyo3(signature = (offset, value, *, timeout = 30.0))]
    fn swap(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] value: Word,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> Begun {
        self.operate(py, timeout, Told::Word, Operation::Swap { offset, value: value.0 })
    }

    #[pyo3(signature = (offset, expected, value, *, timeout = 30.0))]
    fn compare_swap(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] expected: Word,
        #[pyo3(from_py_with = given)] value: Word,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> Begun {
        let operation = Operation::CompareSwap { offset, expected: expected.0, value: value.0 };
        self.operate(py, timeout, Told::Word, operation)
    }

    #[pyo3(signature = (offset, *, timeout = 30.0))]
    fn test_and_set(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> Begun {
        self.operate(py, timeout, Told::Flag, Operation::TestAndSet { offset })
    }

    #[pyo3(signature = (offset, expected, *, timeout = 30.0))]
    fn wait(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] expected: Word,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> Begun {
        self.operate(py, timeout, Told::Word, Operation::Wait { offset, expected: expected.0 })
    }

    #[pyo3(signature = (offset, *, timeout = 30.0))]
    fn notify(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] offset: u64,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> Begun {
        self.operate(py, timeout, Told::Nothing, Operation::Notify { offset })
    }
}

impl RegionCalls {
    fn begin(
        &self,
        py: Python<'_>,
        timeout: f64,
        mut told: Told,
        begin: impl FnOnce(&Region, &mut Told) -> Result<Option<Awaited>>,
    ) -> Begun {
        let timeout = duration(py, Some(timeout))?.unwrap_or(Duration::MAX);
        let region = self.0.get().region(py)?.with_timeout(timeout);
        let begun = during(chosen(py, None)?, || begin(&region, &mut told));
        let begun = begun.map_err(|error| raised_of_region(py, &error))?;
        Ok(begun.map(|begun| AwaitedOperation {
            number: begun.number(),
            begun: Mutex::new(Some(UnderWay::Operation(begun, told))),
        }))
    }

    fn operate(&self, py: Python<'_>, timeout: f64, told: Told, operation: Operation) -> Begun {
        self.begin(py, timeout, told, |region, _| region.await_operation(operation, &[]).map(Some))
    }

    /// Begins an operation that takes long on a mapped region. Returns `None` if the region is mapped.
    fn far(
        &self,
        py: Python<'_>,
        timeout: f64,
        told: Told,
        begin: impl FnOnce(&Region) -> Result<Awaited>,
    ) -> Begun {
        self.begin(
            py,
            timeout,
            told,
            |region, _| {
                if region.is_mapped() { Ok(None) } else { begin(region).map(Some) }
            },
        )
    }
}

#[pymethods]
impl AwaitedOperation {
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    /// Time in seconds from now on after which the loop asks again, and gives the operation up if the answer
    /// is 0. `None` if it has no end.
    fn patience(&self) -> Option<f64> {
        let patience = match lock(&self.begun).as_mut()? {
            UnderWay::Operation(begun, _) => begun.patience(),
            UnderWay::Call(call) => call.patience(),
        };
        patience.map(|patience| patience.as_secs_f64())
    }

    /// Result of what was begun, whose reply has come: of a call its bytes, or a `KeptReply`.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let of_region = |error: Error| raised_of_region(py, &error);
        let (begun, told) = match self.take(py)? {
            UnderWay::Operation(begun, told) => (begun, told),
            UnderWay::Call(call) => {
                return outcome_of(py, call.result().map_err(|error| raised(py, &error))?);
            }
        };
        Ok(match told {
            Told::Nothing | Told::Of(_) => {
                begun.value().map(|_| py.None().into_bound(py)).map_err(of_region)?
            }
            Told::Word => begun.value().map_err(of_region)?.into_pyobject(py)?.into_any(),
            Told::Flag => PyBool::new(py, begun.value().map_err(of_region)? != 0).to_owned().into_any(),
            Told::Bytes => PyBytes::new(py, &begun.bytes().map_err(of_region)?).into_any(),
            Told::Into(mut buffer, is_there) => {
                let bytes = begun.bytes().map_err(of_region)?;
                let into = buffer.as_mut_slice();
                if !is_there && into.len() == bytes.len() {
                    into.copy_from_slice(&bytes);
                }
                into.len().into_pyobject(py)?.into_any()
            }
        })
    }

    /// Exception that says that the reply has not come in time. The operation is given up.
    fn late(&self, py: Python<'_>) -> PyErr {
        match self.take(py) {
            Ok(UnderWay::Operation(begun, _)) => raised_of_region(py, &begun.late()),
            Ok(UnderWay::Call(call)) => raised(py, &call.late()),
            Err(error) => error,
        }
    }

    /// Gives the operation up, if it has not ended.
    fn cancel(&self) {
        drop(taken(&self.begun));
    }
}

impl AwaitedOperation {
    /// A call of a function.
    pub(crate) fn of_call(call: AwaitedCall) -> Self {
        Self { number: call.number(), begun: Mutex::new(Some(UnderWay::Call(call))) }
    }

    fn take(&self, py: Python<'_>) -> PyResult<UnderWay> {
        taken(&self.begun).ok_or_else(|| invalid(py, "this operation has ended already"))
    }
}
