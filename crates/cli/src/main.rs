//! Root of the program `plasmon`: runs a node, puts and gets objects, and shows what a node holds and does.
//!
//! Owns no state. Main thread. `node.rs` is the root of the program `plasmon-node`; both use `serve_args`.
#![deny(unsafe_code)]

mod args;
mod calibrate;
mod cgroup;
mod connecting;
mod demo;
mod doctor;
mod drain;
mod explain;
mod explain_file;
mod failure;
mod list_args;
mod listing;
mod lock;
mod locks;
mod manual;
mod mount;
mod mount_helper;
mod names;
mod object_args;
mod objects;
mod output;
mod overview;
mod ping;
mod placing;
mod python;
mod quoting;
mod region;
mod region_args;
mod region_events;
mod report;
mod secret;
mod secret_file;
mod serve;
mod serve_args;
mod service;
mod settings;
mod status;
mod top;
mod users;
mod values;
mod volume;
mod volume_check;
mod watch;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use args::{Args, Command, StatusOf};
use clap::{CommandFactory, FromArgMatches};
use failure::Failure;
use manual::Completions;
use mount_helper::Asked;
use plasmon::Socket;

fn main() -> ExitCode {
    match mount_helper::asked() {
        Ok(Asked::Command(words)) => command(words),
        Ok(Asked::Mount(words)) => match command(words) {
            well if well == ExitCode::SUCCESS => well,
            _ => ExitCode::from(mount_helper::FAILED),
        },
        Ok(Asked::Remount { folder, read_only, no_exec }) => {
            match mount::remount(Path::new(&folder), read_only, no_exec) {
                Ok(()) => ExitCode::SUCCESS,
                Err(problem) => {
                    output::complain(&problem.to_string());
                    ExitCode::from(mount_helper::FAILED)
                }
            }
        }
        Ok(Asked::Nothing) => ExitCode::SUCCESS,
        Err(problem) => {
            output::complain(&problem);
            ExitCode::from(mount_helper::WRONG)
        }
    }
}

/// Parses a command line and runs its command. `words` begins with the program's name. Returns the exit code.
fn command(words: Vec<OsString>) -> ExitCode {
    let definitions = || settings::with_environment(Args::command());
    let matches = definitions().try_get_matches_from(&words);
    let args = match matches.and_then(|matches| Args::from_arg_matches(&matches)) {
        Ok(args) => args,
        Err(error) => {
            return ended(output::about_arguments(&error), ExitCode::from(error.exit_code() as u8));
        }
    };
    let Args { socket, json, priority, command } = args;
    if !matches!(command, Command::Serve(_)) {
        // The daemon itself reports misspelt variables.
        let found = settings::misspelt(&definitions(), std::env::vars_os().map(|(name, _)| name));
        found.iter().for_each(|one| output::complain(&settings::misspelling(one)));
    }
    let socket = socket.map_or_else(Socket::find, Socket::from);
    let run = || run(&socket, json, command, words.get(1..).unwrap_or_default(), definitions);
    match priority {
        Some(class) => class.during(run),
        None => run(),
    }
}

/// Runs a command. `words` is the command line without the program's name. Returns the exit code.
fn run(
    socket: &Socket,
    json: bool,
    command: Command,
    words: &[OsString],
    definitions: impl Fn() -> clap::Command,
) -> ExitCode {
    let mut well = ExitCode::SUCCESS;
    let done = match command {
        Command::Serve(args) => serve::serve(&args),
        Command::Put(put) => objects::put(socket, json, &put),
        Command::Get(get) => objects::get(socket, json, &get),
        Command::Rm(rm) => listing::rm(socket, json, &rm),
        Command::Wait(wait) => watch::wait(socket, json, &wait),
        Command::Ls(ls) => listing::ls(socket, json, &ls),
        Command::Hash(hash) => objects::hash(socket, json, &hash),
        Command::Evict(evict) => objects::evict(socket, json, &evict),
        Command::Subscribe { cluster } => watch::subscribe(socket, json, cluster),
        Command::Status(StatusOf { cluster: false }) => status::status(socket, json),
        Command::Status(StatusOf { cluster: true }) => overview::status(socket, json),
        Command::Top(args) => top::top(socket, json, &args),
        Command::Clients => report::clients(socket, json),
        Command::Locations(located) => explain::locations(socket, json, &located),
        Command::Replicate(args) => placing::replicate(socket, json, &args),
        Command::Migrate(args) => placing::migrate(socket, json, &args),
        Command::Broadcast(args) => placing::broadcast(socket, json, &args),
        Command::Drain(args) => drain::drain(socket, json, &args),
        Command::Prefetch(prefetch) => explain::prefetch(socket, &prefetch),
        Command::Explain(located) => explain::explain(socket, json, &located),
        Command::Region(command) => region::region(socket, json, &command),
        Command::Mount(args) => mount::mount(socket, json, &args, words),
        Command::Umount(args) => mount::umount(&args),
        Command::Volume(command) => volume::volume(socket, json, &command),
        Command::Services(patience) => service::services(socket, json, &patience),
        Command::Call(args) => service::call(socket, json, &args),
        Command::Lock(args) => lock::lock(socket, &args).map(|code| well = code),
        Command::Locks(patience) => locks::locks(socket, json, &patience),
        Command::Barrier(args) => lock::barrier(socket, json, &args),
        Command::Ping(args) => ping::ping(socket, json, &args),
        Command::Calibrate(args) => calibrate::calibrate(socket, json, &args),
        Command::Demo(args) => demo::demo(json, &args),
        Command::Secret(args) => secret::secret(&args),
        Command::Doctor(args) => doctor::doctor(socket, json, &args),
        Command::Completions(Completions { shell }) => manual::completions(shell, definitions()),
        Command::Man(args) => manual::man(&args, definitions()),
    };
    ended(done, well)
}

/// Prints why the command failed, if it did. Returns the exit code.
fn ended(done: Result<(), Failure>, well: ExitCode) -> ExitCode {
    match done {
        Ok(()) => well,
        Err(failure) => {
            output::complain(&failure.to_string());
            if let Failure::Store(error) = &failure {
                error.lines().skip(1).for_each(output::complain_further);
            }
            failure.exit_code()
        }
    }
}
