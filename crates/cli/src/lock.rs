//! `plasmon lock` and `plasmon barrier`: runs a command while it holds a lock, and waits for other parties.
//!
//! Owns the child process of `plasmon lock`. The main thread waits for the child; another thread receives
//! signals. Invariant: the child gets SIGTERM within [`LOOK_INTERVAL`] after the client knows that the lock
//! is lost, and SIGKILL after the grace.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{io::IsTerminal, thread};

use clap::Args as ClapArgs;
use plasmon::sync::{Barrier, Guard, LockOptions, MAX_PARTIES, MAX_TTL, MIN_TTL};
use plasmon::text::printable;
use plasmon::{Error, ErrorKind, Socket};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde_json::json;
use signal_hook::consts::signal::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::connecting::Within;
use crate::failure::Failure;
use crate::names::name;
use crate::output::{self, line};
use crate::values::seconds;

/// Time between two looks at the guard.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Environment variable in which the command finds the token of its guard.
const TOKEN: &str = "PLASMON_TOKEN";
/// Signals that are passed on to the command. A terminal sends the first two to the command itself.
const PASSED_ON: [i32; 6] = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];
/// Exit code for a command that cannot be run, as shells have it.
const CANNOT_RUN: u8 = 126;
/// Exit code for a command that does not exist, as shells have it.
const NO_SUCH_COMMAND: u8 = 127;

/// Arguments of `plasmon lock`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
One process of the cluster holds the lock at a time; with --shared several do, as long as all of them share \
it. Those who wait get it in the order of asking. The lock is free when COMMAND has ended, or when this \
process dies.

COMMAND finds the token of its guard in $PLASMON_TOKEN, a decimal number of up to 128 bits that is larger \
than that of every holder before. The store of the protected data can refuse a token smaller than one it has \
seen. So a late write of a host that was suspended and lost the lock is refused.

If the lock is lost, because this process was stopped or the node was cut off for longer than the time to \
live, COMMAND gets SIGTERM, and SIGKILL after the grace. If this process dies, COMMAND gets SIGTERM. \
Processes that COMMAND has started are its own to end. Signals that this process gets are passed on to \
COMMAND; what a terminal sends reaches it by itself.

Exit codes:
  the code of COMMAND, or 128 and the number of the signal that ended it
  4   the lock was not free within the time-out
  12  the lock was lost while COMMAND ran
  126 COMMAND cannot be run
  127 there is no such command")]
pub(crate) struct LockArgs {
    /// Name of the lock
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
    /// Time to live of the lease, such as 30s: after so long the lock passes on if this process is stopped,
    /// or its host cut off. A process that runs keeps the lock for as long as it takes
    #[arg(long, value_name = "SECONDS", default_value = "10s", value_parser = time_to_live)]
    ttl: Duration,
    /// Time to wait for the lock, such as 5s; 0 does not wait [default: without limit]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Share the lock with others that also pass --shared
    #[arg(long)]
    shared: bool,
    /// Take everybody's lock of this name [default: this user's]
    #[arg(long)]
    public: bool,
    /// Time between SIGTERM and SIGKILL for a command that lost the lock
    #[arg(long, value_name = "SECONDS", default_value = "5s", value_parser = seconds)]
    grace: Duration,
    /// Command to run, with its arguments
    #[arg(value_name = "COMMAND", last = true, required = true, num_args = 1..)]
    command: Vec<std::ffi::OsString>,
}

/// Arguments of `plasmon barrier`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Waits until as many parties have arrived as the barrier has, on any hosts. Prints the place of this one \
among them: each gets another, from 0. Exit code 12 if a party died, left or waited no longer, which the \
message says; 4 if not all arrived within the time-out.")]
pub(crate) struct BarrierArgs {
    /// Name of the barrier
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
    /// Number of parties; all of them say the same
    #[arg(value_name = "PARTIES", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_PARTIES)))]
    parties: u32,
    /// Time to wait, such as 30s [default: without limit]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Use everybody's barrier of this name [default: this user's]
    #[arg(long)]
    public: bool,
}

/// Takes a lock, runs a command, and returns the exit code.
pub(crate) fn lock(socket: &Socket, args: &LockArgs) -> Result<ExitCode, Failure> {
    let LockArgs { name, ttl, timeout, shared, public, grace, command } = args;
    let within = Within::new(*timeout);
    // The time-out is that of the wait for the lock, and not that of unlocking.
    let client = within.reach(socket, "plasmon lock")?;
    let options = LockOptions { ttl: *ttl, shared: *shared, public: *public, timeout: within.left() };
    let guard = client.lock(name, &options).map_err(|error| match error.kind() {
        ErrorKind::Busy => Error::new(ErrorKind::TimedOut, error.message()),
        _ => error,
    })?;
    // From here on a signal ends the command, and the lock with it.
    let signals = Signals::new(PASSED_ON.into_iter().chain([SIGCHLD]));
    let signals = received(signals.map_err(Failure::file("receive", "signals"))?);
    let (program, arguments) = command.split_first().ok_or(Failure::NoCommand)?;
    let mut to_run = Command::new(program);
    to_run.args(arguments).env(TOKEN, guard.token().to_string());
    end_with_this_process(&mut to_run);
    let child = to_run.spawn().map_err(|source| {
        let code = if source.kind() == io::ErrorKind::NotFound { NO_SUCH_COMMAND } else { CANNOT_RUN };
        Failure::Command { command: program.to_string_lossy().into_owned(), source, code }
    })?;
    let mut running = Running { child, guard, grace: *grace, lost: None, killed: false };
    let status = running.wait(&signals).map_err(Failure::file("wait for", program))?;
    let Running { guard, lost, .. } = running;
    let held = lost.is_none() && guard.is_valid();
    let unlocked = unlock(guard, if held { *ttl } else { Duration::ZERO }, &signals);
    if !held || unlocked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Fenced) {
        let text = format!("lock '{}' was lost while the command ran", printable(name));
        return Err(Error::new(ErrorKind::Fenced, text).into());
    }
    if let Err(error) = unlocked {
        output::complain(&format!(
            "lock '{}' was held until the command ended, and is free when its lease is over, since it could \
             not be unlocked: {error}",
            printable(name)
        ));
    }
    Ok(ExitCode::from(code_of(status)))
}

/// Has the command get SIGTERM when this process dies, because the lock is free then.
#[allow(unsafe_code)]
fn end_with_this_process(command: &mut Command) {
    let ask = || Ok(set_parent_process_death_signal(Some(Signal::TERM))?);
    // SAFETY: between fork and exec the closure makes one system call, and touches no memory of this process.
    _ = unsafe { command.pre_exec(ask) };
}

/// Unlocks. Waits for the answer at most for `patience`, and until a signal comes. The node also unlocks when
/// this process ends.
fn unlock(guard: Guard, patience: Duration, signals: &Receiver<i32>) -> Result<(), Error> {
    let until = Instant::now() + patience;
    let (sender, unlocked) = channel();
    thread::spawn(move || sender.send(guard.unlock()));
    loop {
        if let Ok(unlocked) = unlocked.recv_timeout(LOOK_INTERVAL) {
            return unlocked;
        }
        if Instant::now() >= until || signals.try_iter().any(|signal| signal != SIGCHLD) {
            return Err(Error::new(ErrorKind::TimedOut, "the node did not answer in time"));
        }
    }
}

/// Waits at a barrier.
pub(crate) fn barrier(socket: &Socket, as_json: bool, args: &BarrierArgs) -> Result<(), Failure> {
    let within = Within::new(args.timeout);
    let client = within.connect(socket, "plasmon barrier")?;
    let index = Barrier::new(&client, &args.name, args.parties, args.public)?.wait(within.left())?;
    if as_json { output::json(&json!({ "index": index }).to_string()) } else { line(&index.to_string()) }
}

/// Command that runs while its lock is held.
struct Running {
    child: Child,
    guard: Guard,
    grace: Duration,
    /// Time when the lock was found to be lost.
    lost: Option<Instant>,
    killed: bool,
}

impl Running {
    /// Waits until the command has ended, passes signals on, and ends the command if the lock is lost.
    fn wait(&mut self, signals: &Receiver<i32>) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            self.look();
            match signals.recv_timeout(LOOK_INTERVAL) {
                Ok(SIGCHLD) | Err(RecvTimeoutError::Timeout) => {}
                Ok(SIGINT | SIGQUIT) if io::stdin().is_terminal() => {}
                Ok(signal) => self.send(Signal::from_named_raw(signal)),
                Err(RecvTimeoutError::Disconnected) => return self.child.wait(),
            }
        }
    }

    /// Sends SIGTERM to the command when the guard has become invalid, and SIGKILL after the grace.
    fn look(&mut self) {
        match self.lost {
            None if !self.guard.is_valid() => {
                output::complain(&format!(
                    "lock '{}' is lost: the command is ended, with SIGKILL in {:?}",
                    printable(self.guard.name()),
                    self.grace
                ));
                self.lost = Some(Instant::now());
                self.send(Some(Signal::TERM));
            }
            Some(since) if !self.killed && since.elapsed() >= self.grace => {
                self.killed = true;
                self.send(Some(Signal::KILL));
            }
            _ => {}
        }
    }

    /// Sends a signal to the child. The child was not waited for yet, so no other process has its process id.
    fn send(&self, signal: Option<Signal>) {
        if let Some((pid, signal)) = Pid::from_raw(self.child.id().cast_signed()).zip(signal) {
            // A child that has ended already is found by the next look.
            let _ = kill_process(pid, signal);
        }
    }
}

/// Signals that this process gets, from a thread that runs until the process ends.
fn received(mut signals: Signals) -> Receiver<i32> {
    let (sender, receiver) = channel();
    thread::spawn(move || signals.forever().try_for_each(|signal| sender.send(signal)));
    receiver
}

/// Exit code for the end of a command, as shells have it.
fn code_of(status: ExitStatus) -> u8 {
    let signal = || status.signal().map(|signal| 128 + signal);
    status.code().or_else(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Parses the time to live of a lease.
fn time_to_live(text: &str) -> Result<Duration, String> {
    let ttl = seconds(text)?;
    if (MIN_TTL..=MAX_TTL).contains(&ttl) {
        return Ok(ttl);
    }
    Err(format!("a lease lives for {} s to {} s", MIN_TTL.as_secs_f64(), MAX_TTL.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_live_within_bounds() {
        assert!(time_to_live("61s").is_err() && time_to_live("99ms").is_err());
        assert_eq!(time_to_live("1m"), Ok(MAX_TTL));
    }

    #[test]
    fn exit_codes_are_those_of_shells() {
        assert_eq!(code_of(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code_of(ExitStatus::from_raw(9)), 137);
    }
}
