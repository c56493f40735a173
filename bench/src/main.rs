//! Worker of the benchmarks: a process with one client of one peer, which times calls.
//!
//! `plasmon-bench plasmon SOCKET` is a Rust program that uses Plasmon, and `plasmon-bench regions SOCKET HOME
//! mapped|called` one that uses regions of the node HOME. `plasmon-bench redis ADDRESS` is one that uses
//! Redis. `plasmon-bench raw -` measures what the machine can do without a store, and `plasmon-bench tcp
//! ADDRESS` what a connection can. All exchange the lines of JSON that `bench/workers/worker.py` describes,
//! on one thread. `plasmon-bench echo KIND` is the answering side of a round trip, which the raw worker
//! starts, and `plasmon-bench tcp-serve ADDRESS` that of a connection.
#![deny(unsafe_code)]

mod echo;
mod raw;
mod redis;
mod region_calls;
mod regions;
mod store;
mod tcp;

use std::process::ExitCode;

use plasmon_bench::protocol::serve;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["plasmon", socket] => store::Plasmon::connect(socket, false).and_then(serve),
        ["plasmon-digest", socket] => store::Plasmon::connect(socket, true).and_then(serve),
        ["regions", socket, home, kind] => regions::Regions::connect(socket, home, kind).and_then(serve),
        ["redis", address] => redis::Redis::connect(address).and_then(serve),
        ["raw", _] => serve(raw::Raw::default()),
        ["echo", kind] => echo::answer(kind),
        ["tcp", address] => tcp::Tcp::connect(address).and_then(serve),
        ["tcp-serve", address] => tcp::answer(address),
        _ => Err("usage: plasmon-bench plasmon SOCKET | plasmon-digest SOCKET | \
                  regions SOCKET HOME mapped|called | redis ADDRESS | raw - | echo KIND | tcp ADDRESS | \
                  tcp-serve ADDRESS"
            .into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plasmon-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
