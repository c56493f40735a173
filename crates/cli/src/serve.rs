//! `plasmon serve`: becomes the daemon, `plasmon-node`, which is installed beside this program.

use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::failure::Failure;
use crate::output::{STANDARD_OUTPUT, standard};
use crate::serve_args::Serve;

/// Name of the daemon's program.
const DAEMON: &str = "plasmon-node";

/// Replaces this process by the daemon, with the same arguments. Returns only if that fails.
pub(crate) fn serve(args: &Serve) -> Result<(), Failure> {
    if args.print_config {
        // The daemon would not notice that its output is closed.
        drop(standard().map_err(Failure::file("write", STANDARD_OUTPUT))?);
    }
    let own = env::current_exe().map_err(Failure::file("find", "this program"))?;
    let daemon = own.with_file_name(DAEMON);
    let error = Command::new(&daemon)
        .args(env::args_os().skip(1))
        // libfabric loads libinfinipath, which would handle SIGTERM and SIGINT itself.
        .env("IPATH_NO_BACKTRACE", "1")
        .exec();
    Err(match error.kind() {
        io::ErrorKind::NotFound => Failure::NoDaemon(daemon),
        _ => Failure::File { action: "run", path: daemon, source: error },
    })
}
