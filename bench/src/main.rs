//! Worker of the benchmarks: a process with one client of one peer, which times calls.
//!
//! `plasmon-bench plasmon SOCKET` is a Rust program that uses Plasmon, and `plasmon-bench regions SOCKET
//! HOME mapped|called` one that uses regions of the node HOME. `plasmon-bench calls SOCKET HOME` serves
//! functions at the node HOME and calls them, and `plasmon-bench locks SOCKET OTHERS` uses locks, beside
//! threads that use other nodes. `plasmon-bench redis ADDRESS` is one that uses Redis, `plasmon-bench etcd
//! ADDRESS` one that uses locks of etcd. `plasmon-bench queue ADDRESS` calls through lists of Redis, and
//! `plasmon-bench queue-serve ADDRESS` answers.
//! `plasmon-bench raw -` measures what the machine can do without a store, and `plasmon-bench tcp ADDRESS`
//! what a connection can. All exchange the lines of JSON that `bench/workers/worker.py` describes, on one
//! thread. `plasmon-bench echo KIND` is the answering side of a round trip, which the raw worker starts, and
//! `plasmon-bench tcp-serve ADDRESS` that of a connection. `plasmon-bench log`
//! and `xadd` print how fast several writers append, and `plasmon-bench classes SOCKET HOME SECONDS` what
//! classes of work get beside each other; they exchange nothing. `plasmon-bench files` uses files of whatever
//! file system, by requests of its own.
#![deny(unsafe_code)]

mod calls;
mod classes;
mod echo;
mod etcd;
mod files;
mod locks;
mod log;
mod pace;
mod queue;
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
        ["calls", socket, home] => calls::Calls::connect(socket, home).and_then(serve),
        ["locks", socket, others] => locks::Locks::connect(socket, others).and_then(serve),
        ["etcd", address] => etcd::Etcd::connect(address).and_then(serve),
        ["redis", address] => redis::Redis::connect(address).and_then(serve),
        ["queue", address] => queue::Queue::connect(address).and_then(serve),
        ["queue-serve", address] => queue::answer(address),
        ["raw", _] => serve(raw::Raw::default()),
        ["echo", kind] => echo::answer(kind),
        ["log", sockets, homes, writers, window, group, seconds] => {
            log::log(sockets, homes, [writers, window, group, seconds])
        }
        ["xadd", address, writers, pipeline, seconds] => log::xadd(address, [writers, pipeline, seconds]),
        ["files"] => files::serve(),
        ["tcp", address] => tcp::Tcp::connect(address).and_then(serve),
        ["tcp-serve", address] => tcp::answer(address),
        ["classes", socket, home, seconds] => {
            classes::measure(socket, home, seconds).map_err(|error| -> Box<dyn std::error::Error> { error })
        }
        _ => Err("usage: plasmon-bench plasmon SOCKET | plasmon-digest SOCKET | \
                  regions SOCKET HOME mapped|called | calls SOCKET HOME | locks SOCKET OTHERS | \
                  etcd ADDRESS | redis ADDRESS | queue ADDRESS | queue-serve ADDRESS | raw - | \
                  echo KIND | files | tcp ADDRESS | tcp-serve ADDRESS | \
                  log SOCKETS HOMES WRITERS WINDOW GROUP SECONDS | xadd ADDRESS WRITERS PIPELINE SECONDS | \
                  classes SOCKET HOME SECONDS"
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
