//! Calls of functions by tonic, gRPC in Rust: the server, and a worker whose calls are timed.
//!
//! `plasmon-bench-tonic serve ADDRESS` answers calls until it is killed, and prints a line when it serves.
//! `plasmon-bench-tonic call ADDRESS` is a worker, which exchanges the lines of JSON that
//! `bench/workers/worker.py` describes. Messages are bytes as they are, without Protocol Buffers. The worker
//! has one thread, which runs its connection as well while it waits; all wait in the kernel.
#![deny(unsafe_code)]

mod service;
mod worker;

use std::error::Error;
use std::process::ExitCode;

/// Result of a request or of the process. The error is shown in the harness's log.
type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => service::answer(address),
        ["call", address] => worker::serve(address),
        _ => Err("usage: plasmon-bench-tonic serve ADDRESS | call ADDRESS".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plasmon-bench-tonic: {error}");
            ExitCode::FAILURE
        }
    }
}
