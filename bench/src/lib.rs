//! What the workers of the benchmarks have in common: the harness's requests, the loops that time, and
//! memory.
//!
//! The programs are `plasmon-bench`, and `plasmon-bench-fabric`, which is apart because loading libfabric
//! takes its time and no client of Plasmon does it.
#![deny(unsafe_code)]

pub mod content;
pub mod memory;
pub mod protocol;

use std::error::Error;

/// Whatever ends a request, or the process; people read it in the harness's log.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;
