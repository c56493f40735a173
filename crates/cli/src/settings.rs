//! Sources of settings: every argument of `plasmon serve` has an environment variable, and its switches can
//! be switched off again.
//!
//! Owns no state. Any thread. Invariant: both programs parse the command line in this way: `plasmon` to check
//! it and to show its help, `plasmon-node` to use it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::iter;

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command};

/// Subcommand whose arguments are settings.
pub(crate) const SERVE: &str = "serve";
/// Arguments of the subcommand that are no settings themselves.
pub(crate) const NO_SETTINGS: [&str; 4] = ["config", "print-config", "help", "json"];

/// Names of values that are numbers with or without a unit.
const MEASURES: [&str; 5] = ["SIZE", "BYTES", "OFFSET", "SECONDS", "AGE"];

/// Beginning of the names of all variables.
const PREFIX: &str = "PLASMON_";
/// Length behind the prefix from which two letters of a name may be wrong.
const LONG_NAME: usize = 8;

/// Adds environment variables to all arguments of `serve`, and takes negative numbers as values.
pub(crate) fn with_environment(command: Command) -> Command {
    with_switches(with_negative_numbers(command)).mut_subcommand(SERVE, |serve| {
        serve.mut_args(|arg| match arg.get_long().map(str::to_owned) {
            Some(long) if long == "config" || is_setting(&long) => {
                arg.env(variable(&long)).hide_env_values(true)
            }
            _ => arg,
        })
    })
}

/// Makes all arguments take numbers below zero as values, and measures also with a unit, so that a value is
/// refused for what it is and not as an unknown option.
fn with_negative_numbers(command: Command) -> Command {
    let is_measure = |arg: &Arg| {
        let names = arg.get_value_names().unwrap_or_default();
        names.iter().any(|name| MEASURES.contains(&name.as_str()))
    };
    command
        .mut_args(|arg| match arg.get_action().takes_values() {
            true if is_measure(&arg) => arg.allow_hyphen_values(true),
            true => arg.allow_negative_numbers(true),
            false => arg,
        })
        .mut_subcommands(with_negative_numbers)
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

/// Whether an argument of `serve` with this long name is a setting.
fn is_setting(long: &str) -> bool {
    !NO_SETTINGS.contains(&long)
}

/// Environment variable that sets an argument.
pub(crate) fn variable(long: &str) -> String {
    format!("{PREFIX}{}", long.to_uppercase().replace('-', "_"))
}

/// Variables of `environment` that set nothing although their names are nearly those of arguments, each with
/// the name that was probably meant. Names of other programs' variables are not that near.
pub(crate) fn misspelt(
    command: &Command,
    environment: impl Iterator<Item = OsString>,
) -> Vec<(String, String)> {
    let all = iter::once(command).chain(command.get_subcommands()).flat_map(Command::get_arguments);
    let known: BTreeSet<_> = all.filter_map(|arg| Some(arg.get_env()?.to_str()?.to_owned())).collect();
    let own = environment.filter_map(|name| name.into_string().ok());
    let strange = own.filter(|name| name.starts_with(PREFIX) && !known.contains(name));
    let meant = |name: &str| {
        let near = known.iter().map(|known| (strsim::damerau_levenshtein(name, known), known));
        // A short name with two other letters is another word.
        let allowed = if name.len() - PREFIX.len() < LONG_NAME { 1 } else { 2 };
        near.filter(|(distance, _)| *distance <= allowed).min().map(|(_, known)| known.clone())
    };
    strange.filter_map(|name| meant(&name).map(|meant| (name, meant))).collect()
}

/// Says what [`misspelt`] found about a variable.
pub(crate) fn misspelling((name, meant): &(String, String)) -> String {
    format!("the environment has {name}, which sets nothing: did you mean {meant}?")
}

/// Makes a switch take `=true` and `=false`. Other arguments stay as they are.
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

#[cfg(test)]
mod tests {
    use clap::{Args, Command};

    use super::*;

    #[test]
    fn only_names_near_to_settings_are_told() {
        let command = with_environment(
            Command::new("plasmon").subcommand(crate::serve_args::Serve::augment_args(Command::new(SERVE))),
        );
        let environment = [
            "PLASMON_MEMROY",
            "PLASMON_MEMORY",
            "PLASMON_SPIL_DIRR",
            "PLASMON_BIN",
            "PLASMON_E2E_NETNS",
            "PLASMON_SIMULATE_SECONDS",
            "LASMON_MEMORY",
        ];
        let told = misspelt(&command, environment.into_iter().map(OsString::from));
        let told: Vec<_> = told.iter().map(|(name, meant)| (name.as_str(), meant.as_str())).collect();
        assert_eq!(told, [("PLASMON_MEMROY", "PLASMON_MEMORY"), ("PLASMON_SPIL_DIRR", "PLASMON_SPILL_DIR"),]);
    }
}
