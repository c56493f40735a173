//! Arguments of `plasmon ls` and `plasmon rm`.
//!
//! Owns no state. Any thread. Invariant: each argument is valid by itself; the command checks how arguments
//! fit together.

use std::time::Duration;

use clap::{ArgGroup, Args as ClapArgs};

use crate::connecting::timeout;
use crate::names::{Which, Whose, name, which};
use crate::object_args::Quiet;
use crate::values::seconds;

/// Arguments of `plasmon ls`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
In a pattern * stands for any text, also with slashes, ? for one character, [abc] for one of these and \
[!abc] for any other; quote it for the shell. KIND is what the value is, as far as the metadata tell of an \
object in memory: Python's do. Without --cluster, objects that are being written, or are deleted and still \
pinned, are listed as well.

With --cluster an object is listed once, with the node of its primary and the number of further nodes \
that hold it. A node that does not answer within 5 s is named on standard error; the rest is printed, and \
the exit code is 4.")]
pub(crate) struct Ls {
    /// Only the objects with this name or id, or with names like this pattern
    #[arg(value_name = "NAME|ID|PATTERN", value_parser = wanted)]
    pub(crate) pattern: Option<String>,
    /// List the objects of every node
    #[arg(long)]
    pub(crate) cluster: bool,
    /// Only objects without a name
    #[arg(long)]
    pub(crate) unnamed: bool,
}

/// Time-out of lists that all nodes of the cluster tell.
#[derive(Debug, ClapArgs)]
pub(crate) struct Patience {
    /// Seconds to wait for the answer of a node
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = timeout)]
    pub(crate) timeout: Duration,
}

/// Arguments of `plasmon rm`.
#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("what").required(true).args(["objects", "unnamed"]))]
#[command(after_help = "\
A pattern stands for all objects of the cluster with such names, as in `plasmon ls --help`; quote it for \
the shell. That it stands for none is no error. Nothing is asked: --dry-run shows what would be deleted. A \
node that does not answer within 5 s is named on standard error, and what it alone holds stays; the exit \
code is 4.

Examples:
  plasmon rm 'tmp/*' --dry-run
  plasmon rm --unnamed --older 1h")]
pub(crate) struct Rm {
    /// Objects to delete
    #[arg(value_name = "NAME|ID|PATTERN", value_parser = which)]
    pub(crate) objects: Vec<Which>,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// Delete all objects without a name
    #[arg(long)]
    pub(crate) unnamed: bool,
    /// Of these, only objects that were sealed at least this long ago, as in 90s, 10m, 1h or 2d
    #[arg(long, value_name = "AGE", value_parser = seconds)]
    pub(crate) older: Option<Duration>,
    /// Print what would be deleted, and delete nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) quiet: Quiet,
}

/// Parses a name, an id or a pattern.
fn wanted(text: &str) -> Result<String, String> {
    if text.parse::<plasmon::ObjectId>().is_ok() { Ok(text.to_owned()) } else { name(text) }
}
