//! The `plasmon` command: run a node, put and get objects, see what a node holds and does.
#![forbid(unsafe_code)]

mod args;
mod calibrate;
mod doctor;
mod explain;
mod failure;
mod objects;
mod output;
mod report;
mod serve;
mod serve_args;
mod watch;

use std::process::ExitCode;

use args::{Args, Command};
use clap::Parser;

fn main() -> ExitCode {
    let Args { socket, json, command } = Args::parse();
    let socket = socket.unwrap_or_else(plasmon::Client::default_socket);
    let done = match command {
        Command::Serve(_) => serve::serve(),
        Command::Put(put) => objects::put(&socket, json, &put),
        Command::Get(get) => objects::get(&socket, json, &get),
        Command::Rm(rm) => objects::rm(&socket, json, &rm),
        Command::Wait(wait) => watch::wait(&socket, json, &wait),
        Command::Ls => report::ls(&socket, json),
        Command::Hash(hash) => objects::hash(&socket, json, &hash),
        Command::Evict(evict) => objects::evict(&socket, json, &evict),
        Command::Subscribe => watch::subscribe(&socket, json),
        Command::Status => report::status(&socket, json),
        Command::Clients => report::clients(&socket, json),
        Command::Locations(located) => explain::locations(&socket, json, &located),
        Command::Prefetch(prefetch) => explain::prefetch(&socket, &prefetch),
        Command::Explain(located) => explain::explain(&socket, json, &located),
        Command::Calibrate(args) => calibrate::calibrate(&socket, json, &args),
        Command::Doctor(args) => doctor::doctor(&socket, json, &args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("plasmon: {failure}");
            failure.exit_code()
        }
    }
}
