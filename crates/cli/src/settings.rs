//! What makes every argument of `plasmon serve` a setting: a variable of the environment, and flags that can
//! be switched off again.
//!
//! Both programs read the command line this way, `plasmon` to check it and show its help, `plasmon-node` to
//! obey it.

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command};

/// The subcommand whose arguments are settings.
pub(crate) const SERVE: &str = "serve";
/// Arguments of it that are about settings, and none themselves.
pub(crate) const NO_SETTINGS: [&str; 4] = ["config", "print-config", "help", "json"];

/// The command line, with the environment as a source of everything that `serve` takes.
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

/// The command line, with flags that take `=false` as well: what a file switches on can be switched off for
/// once.
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

/// The variable that sets an argument.
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
