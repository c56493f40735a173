//! The native half of the Python package: `plasmon._internal`.
//!
//! Ids, the connection, and memory behind Python's buffer protocol. What values mean is Python's
//! part (`plasmon/_values.py`), as are the exception types (`plasmon/errors.py`). Calls give up the
//! GIL while they wait or copy.
#![deny(unsafe_code)]

mod client;
mod error;
mod id;
mod looping;
mod memory;
mod subscription;

use pyo3::prelude::*;

/// Native half of plasmon: use the package `plasmon`.
#[pymodule]
mod _internal {
    #[pymodule_export]
    use super::client::Client;
    #[pymodule_export]
    use super::id::ObjectId;
    #[pymodule_export]
    use super::looping::{Cancellation, Loop, Pending};
    #[pymodule_export]
    use super::memory::{Buffer, Creation, Scratch};
    #[pymodule_export]
    use super::subscription::Subscription;
    use super::*;

    /// Path of the socket on which the node of this host listens unless told otherwise.
    #[pyfunction]
    fn default_socket() -> std::ffi::OsString {
        plasmon::Client::default_socket().into()
    }

    /// Path of the socket at which a client finds the node of this host.
    #[pyfunction]
    fn find_socket() -> std::ffi::OsString {
        plasmon::Client::find_socket().into()
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
