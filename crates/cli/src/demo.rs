//! `plasmon demo`: becomes the demo, which is part of the Python package.
//!
//! Owns no state. Invariant: the demo's nodes are those of this program.

use crate::args::Demo;
use crate::failure::Failure;
use crate::python;

/// Replaces this process by the demo. Returns only if that fails.
pub(crate) fn demo(json: bool, args: &Demo) -> Result<(), Failure> {
    let mut command = python::command("plasmon.demo")?;
    command.args(args.memory.iter().flat_map(|memory| ["--memory", memory]));
    command.args(args.repeat.iter().flat_map(|repeat| ["--repeat".to_owned(), repeat.to_string()]));
    command.args(json.then_some("--json"));
    Err(python::become_it(command))
}
