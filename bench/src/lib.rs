//! Shared parts of the benchmarks' workers: the harness's requests, the loops that time calls, and memory.
//!
//! The programs are `plasmon-bench`, and `plasmon-bench-fabric`, which is separate because loading libfabric
//! takes time and no client of Plasmon loads it.
#![deny(unsafe_code)]

pub mod content;
pub mod memory;
pub mod protocol;

use std::error::Error;

/// Result of a request or of the process. The error is shown in the harness's log.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;
