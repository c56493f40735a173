//! The `plasmon-log` command, for tests that kill it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    plasmon_log::command::main()
}
