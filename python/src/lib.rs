//! Native module of the Python package, `plasmon._internal`.
//!
//! It has the ids, the connection, and memory behind Python's buffer protocol. The encoding of values
//! (`plasmon/_values.py`) and the exception types (`plasmon/errors.py`) are in Python. Calls release the GIL
//! while they wait or copy.
#![deny(unsafe_code)]

mod awaited;
mod begun;
mod buffer;
mod classes;
mod client;
mod connecting;
mod detached;
mod error;
mod feed;
mod given;
mod id;
mod listing;
mod lock;
mod looping;
mod memory;
mod outgoing;
mod parts;
mod placing;
mod region;
mod region_events;
mod replacing;
mod service;
mod subscription;
mod sync;
mod terms;

use pyo3::prelude::*;
use pyo3::types::PyString;

/// Native module of plasmon. Use the package `plasmon`.
#[pymodule]
mod _internal {
    #[pymodule_export]
    use super::awaited::{AwaitedOperation, RegionCalls};
    #[pymodule_export]
    use super::begun::PendingOperation;
    #[pymodule_export]
    use super::buffer::Buffer;
    #[pymodule_export]
    use super::client::Client;
    #[pymodule_export]
    use super::id::{Named, ObjectId};
    #[pymodule_export]
    use super::looping::{Cancellation, Loop, Pending};
    #[pymodule_export]
    use super::memory::{Creation, Scratch};
    #[pymodule_export]
    use super::outgoing::Outgoing;
    #[pymodule_export]
    use super::region::{RegionHandle, regions};
    #[pymodule_export]
    use super::region_events::RegionEvents;
    #[pymodule_export]
    use super::replacing::Version;
    #[pymodule_export]
    use super::service::{KeptReply, ReceivedCall, ServerHandle, ServiceHandle, multicast};
    #[pymodule_export]
    use super::subscription::Subscription;
    #[pymodule_export]
    use super::sync::{AwaitedSync, BarrierHandle, GuardHandle, LockHandle};
    use super::*;

    /// Path of the socket at which the node of this host listens by default.
    #[pyfunction]
    fn default_socket() -> std::ffi::OsString {
        plasmon::Socket::default().path().into()
    }

    /// Escapes every character of a text that controls a terminal or misleads its reader. Line feeds stay.
    #[pyfunction]
    fn printable(text: &Bound<'_, PyString>) -> String {
        plasmon::text::printable_lines(&text.to_string_lossy()).into_owned()
    }

    /// Address of the first byte of a contiguous buffer in this process.
    #[pyfunction]
    fn address_of(memory: &Bound<'_, PyAny>) -> PyResult<usize> {
        Ok(super::memory::Bytes::of(memory)?.address())
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::detached::init(module)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
