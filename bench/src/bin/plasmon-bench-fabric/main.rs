//! Measurements of the fabric without any store: one-sided reads and writes by one process of memory that
//! another has registered, and messages between the two.
//!
//! `plasmon-bench-fabric serve PROVIDER ADDRESS` registers memory, prints in a line how to reach it, and
//! polls the provider to serve them until it is killed. `plasmon-bench-fabric read PROVIDER ADDRESS
//! GREETING` is a worker, which exchanges the lines of JSON that `bench/workers/worker.py` describes. The
//! address is that of the interface. `plasmon-bench-fabric registration PROVIDER ADDRESS` measures the cost
//! of registering memory. Each has one thread, which either polls or sleeps in the kernel: polling is as fast
//! as the provider can be, sleeping is what a daemon does on a host with few cores.
#![deny(unsafe_code)]

mod node;
mod reader;
mod registration;
mod server;

use std::process::ExitCode;

use plasmon_bench::protocol::serve;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", provider, address] => server::run(provider, address),
        ["read", provider, address, greeting] => {
            reader::Reader::connect(provider, address, greeting).and_then(serve)
        }
        ["registration", provider, address] => registration::run(provider, address),
        _ => Err("usage: plasmon-bench-fabric serve PROVIDER ADDRESS | read PROVIDER ADDRESS GREETING \
                 | registration PROVIDER ADDRESS"
            .into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plasmon-bench-fabric: {error}");
            ExitCode::FAILURE
        }
    }
}
