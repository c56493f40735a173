//! Sources of settings: every argument of `plasmon serve` has an environment variable, and its switches can
//! be switched off again.
//!
//! Both programs parse the command line in this way: `plasmon` to check it and to show its help,
//! `plasmon-node` to use it.

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command};

/// Subcommand whose arguments are settings.
pub(crate) const SERVE: &str = "serve";
/// Arguments of the subcommand that are no settings themselves.
pub(crate) const NO_SETTINGS: [&str; 4] = ["config", "print-config", "help", "json"];

/// Adds environment variables to all arguments of `serve`.
pub(crate) fn with_environment(command: Command) -> Command {
    with_switches(command).mut_subcommand(SERVE, |serve| {
        serve.mut_args(|arg| match arg.get_long().map(str::to_owned) {
            Some(long) if long == "config" || is_setting(&long) => {
                arg.env(variable(&long)).hide_env_values(true)
            }
            _ => arg,
        })
    })
}

/// Makes switches take `=false` as well, so that a switch which is on in a file can be switched off once.
pub(crate) fn with_switches(command: Command) -> Command {
    command.mut_subcommand(SERVE, |serve| {
        serve.mut_args(|arg| match arg.get_long() {
            Some(long) if is_setting(long) => switchable(arg),
            _ => arg,
        })
    })
}

fn is_setting(long: &str) -> bool {
    !NO_SETTINGS.contains(&long)
}

/// Environment variable that sets an argument.
pub(crate) fn variable(long: &str) -> String {
    format!("PLASMON_{}", long.to_uppercase().replace('-', "_"))
}

fn switchable(arg: Arg) -> Arg {
    if !matches!(arg.get_action(), ArgAction::SetTrue) {
        return arg;
    }
    arg.action(ArgAction::Set)
        .num_args(0..=1)
        .require_equals(true)
        .value_name("BOOL")
        .value_parser(BoolishValueParser::new())
        .default_missing_value("true")
        .default_value("false")
        .hide_default_value(true)
}
