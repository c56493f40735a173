//! `plasmon demo`: becomes the demo, which is part of the Python package.
//!
//! Owns no state. Invariant: the demo's nodes are those of this program.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::args::Demo;
use crate::failure::Failure;

/// Variable that names the program of the nodes to the Python package.
const PROGRAM: &str = "PLASMON_BIN";
/// Exits well if this Python has the demo.
const HAS_DEMO: &str =
    "import importlib.util as u, sys; sys.exit(not (u.find_spec('plasmon') and u.find_spec('plasmon.demo')))";

/// Replaces this process by the demo. Returns only if that fails.
pub(crate) fn demo(json: bool, args: &Demo) -> Result<(), Failure> {
    let own = env::current_exe().map_err(Failure::file("find", "this program"))?;
    let candidates = pythons(&own);
    let Some(python) = candidates.iter().find(|python| has_demo(python)) else {
        let looked = candidates.iter().map(|python| python.display().to_string()).collect::<Vec<_>>();
        return Err(Failure::NoPython(looked.join(", ")));
    };
    let mut command = Command::new(python);
    command.args(["-m", "plasmon.demo"]);
    command.args(args.memory.iter().flat_map(|memory| ["--memory", memory]));
    command.args(args.repeat.iter().flat_map(|repeat| ["--repeat".to_owned(), repeat.to_string()]));
    command.args(json.then_some("--json"));
    if env::var_os(PROGRAM).is_none() {
        command.env(PROGRAM, own);
    }
    Err(Failure::file("run", python)(command.exec()))
}

/// Pythons that may have the package: that of the environment in which this program was called, that beside
/// the program itself, and that of the `PATH`.
fn pythons(own: &Path) -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = |name: &Path| env::split_paths(&path).map(|folder| folder.join(name)).find(|at| at.exists());
    let called = env::args_os().next().map(PathBuf::from);
    let called =
        called.and_then(|called| if called.components().count() > 1 { Some(called) } else { found(&called) });
    let mut pythons = Vec::new();
    for program in called.as_deref().into_iter().chain([own]) {
        let beside = program.with_file_name("python");
        if beside.exists() && !pythons.contains(&beside) {
            pythons.push(beside);
        }
    }
    pythons.push("python3".into());
    pythons
}

fn has_demo(python: &Path) -> bool {
    let mut command = Command::new(python);
    command.args(["-c", HAS_DEMO]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
