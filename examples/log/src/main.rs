//! The `plasmon-log` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    plasmon_log::command::main()
}
