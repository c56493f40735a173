//! Clocks that jump: writes the file that the library of `skewed_clock.rs` reads, and has daemons load the
//! library.
//!
//! Owns the path of the library. Any thread. Invariant: the file of a node's clock is never replaced, because
//! daemons have it mapped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::daemon::beside_tests;

/// Library by which daemons get clocks that jump.
pub(crate) struct Clocks(PathBuf);

impl Clocks {
    /// Finds the library beside the tests.
    pub(crate) fn new() -> Self {
        let library = beside_tests("examples/libplasmon_e2e_clock.so");
        Self(library.expect("there is no library for clocks: cargo build -p plasmon-e2e --examples"))
    }

    /// Has the daemon that `command` starts use the clock of the node with this folder.
    pub(crate) fn preload(&self, command: &mut Command, folder: &Path) {
        command.env("LD_PRELOAD", &self.0).env("PLASMON_E2E_CLOCK", file(folder));
    }

    /// Nanoseconds by which a node's monotonic clocks and its time of day are ahead.
    pub(crate) fn get(&self, folder: &Path) -> [i64; 2] {
        let bytes = fs::read(file(folder)).expect("it was set");
        [0, 8].map(|at| i64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes")))
    }

    /// Sets the nanoseconds by which a node's monotonic clocks and its time of day are ahead.
    pub(crate) fn set(&self, folder: &Path, ahead: [i64; 2]) {
        use std::os::unix::fs::FileExt;
        let open = fs::File::options().write(true).create(true).truncate(false).open(file(folder));
        let written = open.and_then(|file| file.write_all_at(&ahead.map(i64::to_ne_bytes).concat(), 0));
        written.expect("the temporary folder is writable");
    }
}

/// File of the clock of the node with this folder.
fn file(folder: &Path) -> PathBuf {
    folder.join("clock")
}
