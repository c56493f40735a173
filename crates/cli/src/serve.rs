//! `plasmon serve`: becomes the daemon, `plasmon-node`, which is installed together with this program.
//!
//! Owns no state. Main thread. Invariant: the daemon gets the arguments of this process unchanged.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;
use crate::output::{STANDARD_OUTPUT, standard};
use crate::serve_args::Serve;

/// Places of the daemon's program, from the directory of this one: a build has both in one directory, a
/// Python package has the daemon and its libraries in a directory of their own.
const PLACES: [&str; 2] = ["plasmon-node", "../libexec/plasmon/plasmon-node"];

/// Replaces this process by the daemon, with the same arguments. Returns only if that fails.
pub(crate) fn serve(args: &Serve) -> Result<(), Failure> {
    if args.print_config {
        // The daemon would not notice that its output is closed.
        drop(standard().map_err(Failure::file("write", STANDARD_OUTPUT))?);
    }
    let own = env::current_exe().map_err(Failure::file("find", "this program"))?;
    let daemon = daemon(&own).ok_or_else(|| Failure::NoDaemon(own.with_file_name(PLACES[0])))?;
    let error = Command::new(&daemon)
        .args(env::args_os().skip(1))
        // libfabric loads libinfinipath, which would handle SIGTERM and SIGINT itself.
        .env("IPATH_NO_BACKTRACE", "1")
        .exec();
    Err(Failure::File { action: "run", path: daemon, source: error })
}

/// Value of a setting that a node would have which is started here without options. `None` if it has none, or
/// if the settings cannot be read.
pub(crate) fn setting(name: &str) -> Option<String> {
    let daemon = daemon(&env::current_exe().ok()?)?;
    let printed = Command::new(daemon).args(["serve", "--print-config", "--json"]).output().ok()?;
    let settings: serde_json::Value = serde_json::from_slice(&printed.stdout).ok()?;
    settings[name]["value"].as_str().map(str::to_owned)
}

/// Path of the daemon's program for the command `own`.
fn daemon(own: &Path) -> Option<PathBuf> {
    PLACES.iter().map(|place| own.with_file_name(place)).find(|path| path.exists())
}
