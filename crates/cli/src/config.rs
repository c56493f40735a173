//! Settings of a node from all sources: flags, the environment, a file, defaults, in this order.
//!
//! Owns the parsed command line of the daemon ([`Settings`]). Main thread. The keys of a file are the long
//! names of the flags, with the values of the flags. The values become defaults of the command line, so that
//! one parser checks all values and one rule decides on precedence. Invariant: an error in the text of a file
//! is reported with its line.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use serde_json::json;
use toml::{Spanned, Value};

use crate::settings::{NO_SETTINGS, SERVE, misspelt, variable, with_environment, with_switches};

/// Path of the host's file of settings.
const SYSTEM: &str = "/etc/plasmon/plasmon.toml";

/// Command line after parsing, with the sources of all its settings.
pub(crate) struct Settings {
    pub(crate) matches: ArgMatches,
    command: Command,
    file: Option<File>,
}

/// File of settings.
struct File {
    path: PathBuf,
    /// Values by the long names of the settings.
    values: BTreeMap<String, String>,
}

/// Reason why a file of settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}:{line}: this is no TOML ({reason}): {text}")]
    Syntax { path: PathBuf, line: usize, reason: String, text: String },
    #[error("{path}:{line}: a value that is text needs quotes: write {key} = {value:?}")]
    Quotes { path: PathBuf, line: usize, key: String, value: String },
    #[error(
        "{path}:{line}: there is no setting {key:?}; the settings are those of `plasmon serve --help`: \
         {known}"
    )]
    Unknown { path: PathBuf, line: usize, key: String, known: String },
    #[error("{path}:{line}: {key} takes one value, such as a text or a number")]
    Shape { path: PathBuf, line: usize, key: String },
    #[error("{path}:{line}: {reason}")]
    Value { path: PathBuf, line: usize, reason: String },
}

impl Settings {
    /// Reads the command line. Ends the program if it asks for help or is invalid.
    ///
    /// # Errors
    /// If the file of settings cannot be used.
    pub(crate) fn read(plain: Command, words: &[OsString]) -> Result<Self, ConfigError> {
        let command = with_environment(plain.clone());
        let first = command.clone().get_matches_from(words);
        let given =
            first.subcommand_matches(SERVE).and_then(|serve| serve.get_one::<PathBuf>("config").cloned());
        let Some(path) = given.or_else(found) else {
            return Ok(Self { matches: first, command, file: None });
        };
        let file = File::read(path, &plain)?;
        let command = file.stand_behind(command);
        let matches = command.clone().get_matches_from(words);
        Ok(Self { matches, command, file: Some(file) })
    }

    /// Variables of the environment that are probably misspelt, as [`misspelt`] finds them.
    pub(crate) fn misspelt(&self) -> Vec<(String, String)> {
        misspelt(&self.command, env::vars_os().map(|(name, _)| name))
    }

    /// Ends the program with an error about a combination of settings.
    pub(crate) fn refuse(mut self, text: &str) -> ! {
        self.command.error(ErrorKind::ArgumentConflict, text).exit()
    }

    /// All settings in force with their sources: as a file of settings, or as JSON.
    pub(crate) fn print(&self, as_json: bool) -> String {
        let (mut text, mut rows) = (String::new(), serde_json::Map::new());
        for (long, value, source) in self.rows() {
            match &value {
                Some(value) => {
                    let literal = Value::String(value.clone());
                    text.push_str(&format!("{long} = {literal}  # {source}\n"));
                }
                None => text.push_str(&format!("# {long} is not set\n")),
            }
            rows.insert(long, json!({ "value": value, "source": source }));
        }
        if as_json { serde_json::Value::Object(rows).to_string() + "\n" } else { text }
    }

    fn rows(&self) -> Vec<(String, Option<String>, String)> {
        let serve = self.command.find_subcommand(SERVE).expect("there is such a command");
        let matches = self.matches.subcommand_matches(SERVE).unwrap_or(&self.matches);
        let mut rows = Vec::new();
        for (id, long) in settings(&self.command, serve) {
            let matches = if matches.try_contains_id(&id).is_ok() { matches } else { &self.matches };
            let value =
                matches.get_raw(&id).and_then(|mut raw| raw.next()).map(|raw| raw.to_string_lossy().into());
            let source = match matches.value_source(&id) {
                Some(ValueSource::CommandLine) => format!("flag --{long}"),
                Some(ValueSource::EnvVariable) => format!("environment {}", variable(&long)),
                _ => match self.file.as_ref().filter(|file| file.values.contains_key(&long)) {
                    Some(file) => format!("file {}", file.path.display()),
                    None => "default".into(),
                },
            };
            rows.push((long, value, source));
        }
        rows
    }
}

impl File {
    fn read(path: PathBuf, plain: &Command) -> Result<Self, ConfigError> {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) => return Err(ConfigError::Read { path, source }),
        };
        let table: BTreeMap<Spanned<String>, Spanned<Value>> = match toml::from_str(&text) {
            Ok(table) => table,
            Err(error) => return Err(not_toml(path, &text, &error)),
        };
        let serve = plain.find_subcommand(SERVE).expect("there is such a command");
        let known: Vec<_> = settings(plain, serve).into_iter().map(|(_, long)| long).collect();
        let mut values = BTreeMap::new();
        for (key, value) in table {
            let line = text[..key.span().start].matches('\n').count() + 1;
            let (key, value) = (key.into_inner(), value.into_inner());
            if !known.contains(&key) {
                return Err(ConfigError::Unknown { path, line, key, known: known.join(", ") });
            }
            let value = match value {
                Value::String(text) => text,
                Value::Integer(number) => number.to_string(),
                Value::Float(number) => number.to_string(),
                Value::Boolean(set) => set.to_string(),
                _ => return Err(ConfigError::Shape { path, line, key }),
            };
            check(plain, &path, line, &key, &value)?;
            values.insert(key, value);
        }
        Ok(Self { path, values })
    }

    /// Makes the values defaults of the command line.
    fn stand_behind(&self, command: Command) -> Command {
        let set = |arg: Arg| {
            let value = arg.get_long().and_then(|long| self.values.get(long)).cloned();
            match value {
                Some(value) => arg.default_value(value),
                None => arg,
            }
        };
        command.mut_args(set).mut_subcommand(SERVE, |serve| serve.mut_args(set))
    }
}

/// Error about a file that is not TOML, with the line. Mostly, quotes are missing.
fn not_toml(path: PathBuf, text: &str, error: &toml::de::Error) -> ConfigError {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
    let found = text.lines().nth(line - 1).unwrap_or_default().trim();
    let bare = found.split_once('=').map(|(key, value)| {
        (key.trim().to_owned(), value.split('#').next().unwrap_or_default().trim().to_owned())
    });
    match bare {
        Some((key, value))
            if toml::from_str::<toml::Table>(found).is_err()
                && !value.is_empty()
                && !value.contains(['"', '\'', '[', '{'])
                && key.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter)) =>
        {
            ConfigError::Quotes { path, line, key, value }
        }
        _ => ConfigError::Syntax { path, line, reason: error.message().to_owned(), text: found.to_owned() },
    }
}

/// Checks a value of a setting by the parser of the command line.
fn check(plain: &Command, path: &Path, line: usize, key: &str, value: &str) -> Result<(), ConfigError> {
    let words = ["plasmon-node", SERVE, &format!("--{key}={value}")].map(OsString::from);
    // The environment is left out, because its values are not those of the file.
    let command = with_switches(plain.clone());
    match command.try_get_matches_from(words) {
        Ok(_) => Ok(()),
        Err(error) => {
            let text = error.to_string();
            let reason = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            Err(ConfigError::Value { path: path.to_owned(), line, reason })
        }
    }
}

/// Id and long name of every setting: the arguments of `serve`, and the socket.
fn settings(command: &Command, serve: &Command) -> Vec<(String, String)> {
    let socket = command.get_arguments().filter(|arg| arg.get_long() == Some("socket"));
    let all = socket.chain(serve.get_arguments());
    let named = all.filter_map(|arg| Some((arg.get_id().to_string(), arg.get_long()?.to_owned())));
    let mut settings: Vec<_> = named.filter(|(_, long)| !NO_SETTINGS.contains(&long.as_str())).collect();
    settings.dedup();
    settings
}

/// File of settings at a default path, if there is one.
fn found() -> Option<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || Some(variable("HOME")?.join(".config"));
    let own = variable("XDG_CONFIG_HOME").or_else(home).map(|folder| folder.join("plasmon/plasmon.toml"));
    own.into_iter().chain([PathBuf::from(SYSTEM)]).find(|path| path.exists())
}
