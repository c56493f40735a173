//! One client of one peer, as a process of its own: does what it is told, and says how long each call took.
//!
//! `plasmon-bench plasmon SOCKET` is a Rust program that uses Plasmon; `plasmon-bench raw -` does what
//! the machine can do without any store. Both speak the lines of JSON that `bench/workers/worker.py`
//! describes. One thread; `plasmon-bench echo KIND` is the other side of a round trip, which the raw
//! worker starts.
#![deny(unsafe_code)]

mod echo;
mod memory;
mod protocol;
mod raw;
mod store;

use std::error::Error;
use std::io::{BufRead, Write, stdin, stdout};
use std::process::ExitCode;

use protocol::{Answer, Peer, Request};

/// Whatever ends a request, or the process; people read it in the harness's log.
type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["plasmon", socket] => store::Plasmon::connect(socket).and_then(serve),
        ["raw", _] => serve(raw::Raw::default()),
        ["echo", kind] => echo::answer(kind),
        _ => Err("usage: plasmon-bench plasmon SOCKET | raw - | echo KIND".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plasmon-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Answers requests until standard input ends.
fn serve(mut peer: impl Peer) -> Result<()> {
    let mut answers = stdout().lock();
    writeln!(answers, "{}", serde_json::to_string(&peer.greeting())?)?;
    for line in stdin().lock().lines() {
        let answer = serde_json::from_str::<Request>(&line?)
            .map_err(Into::into)
            .and_then(|request| protocol::answer(&mut peer, request))
            .unwrap_or_else(|error| Answer::Failed { error: error.to_string() });
        writeln!(answers, "{}", serde_json::to_string(&answer)?)?;
    }
    Ok(())
}
