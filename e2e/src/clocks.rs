//! Clocks that jump: what `skewed_clock.rs` reads, and how daemons come to use it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::daemon::beside_tests;

/// The library.
pub(crate) struct Clocks(PathBuf);

impl Clocks {
    pub(crate) fn new() -> Self {
        let library = beside_tests("examples/libplasmon_e2e_clock.so");
        Self(library.expect("there is no library for clocks: cargo build -p plasmon-e2e --examples"))
    }

    /// Has a daemon use the clock of a node.
    pub(crate) fn preload(&self, command: &mut Command, folder: &Path) {
        command.env("LD_PRELOAD", &self.0).env("PLASMON_E2E_CLOCK", file(folder));
    }

    /// By how many nanoseconds the monotonic clocks of a node and its time of day are ahead.
    pub(crate) fn get(&self, folder: &Path) -> [i64; 2] {
        let bytes = fs::read(file(folder)).expect("it was set");
        [0, 8].map(|at| i64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes")))
    }

    /// Sets that. The file keeps its place: daemons have it mapped.
    pub(crate) fn set(&self, folder: &Path, ahead: [i64; 2]) {
        use std::os::unix::fs::FileExt;
        let open = fs::File::options().write(true).create(true).truncate(false).open(file(folder));
        let written = open.and_then(|file| file.write_all_at(&ahead.map(i64::to_ne_bytes).concat(), 0));
        written.expect("the temporary folder is writable");
    }
}

fn file(folder: &Path) -> PathBuf {
    folder.join("clock")
}
