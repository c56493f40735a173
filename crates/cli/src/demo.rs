//! `plasmon demo`: becomes the demo, which is part of the Python package.
//!
//! Owns no state. Main thread. The demo's nodes run the program that `PLASMON_BIN` names, or else this one.

use clap::Args as ClapArgs;

use crate::failure::Failure;
use crate::python;

/// Arguments of `plasmon demo`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
It runs in the Python that has the package plasmon: the one beside this program, else python3. On its first \
run it downloads the flights (9 MB), and NumPy and PyArrow where they are missing, into plasmon/demo in \
$XDG_CACHE_HOME or ~/.cache. Ctrl-C ends it and its nodes.")]
pub(crate) struct Demo {
    /// Memory of each node [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Number of times to measure each operation after its first [default: 30]
    #[arg(long, value_name = "N")]
    repeat: Option<u32>,
}

/// Replaces this process by the demo. Returns only if that fails.
pub(crate) fn demo(json: bool, args: &Demo) -> Result<(), Failure> {
    let mut command = python::command("plasmon.demo")?;
    command.args(args.memory.iter().flat_map(|memory| ["--memory", memory]));
    command.args(args.repeat.iter().flat_map(|repeat| ["--repeat".to_owned(), repeat.to_string()]));
    command.args(json.then_some("--json"));
    Err(python::become_it(command))
}
