//! Ends a run in which a test hangs, and says where it hangs: a run that somebody else ends would not say
//! that.
//!
//! Owns the list of clusters that tests have now. One thread looks at the list; tests alone change it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::abort;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::wait::let_pass;

/// Longest time that a test may have a cluster. No test is expected to come near it.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Time between two looks at the list.
const PERIOD: Duration = Duration::from_secs(5);

/// Last bytes of each log that are shown.
const LOG_BYTES: usize = 4096;

static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// One cluster that a test has.
struct Entry {
    test: String,
    folder: PathBuf,
    since: Instant,
}

/// Cluster that is looked after until this is dropped.
pub(crate) struct Watched {
    folder: PathBuf,
}

impl Watched {
    /// Looks after a cluster of the calling thread's test, whose logs are below a folder.
    pub(crate) fn new(folder: &Path) -> Self {
        static WATCHMAN: Once = Once::new();
        WATCHMAN.call_once(|| {
            // Tests "at length" are as long as somebody wants.
            if std::env::var_os("PLASMON_E2E_LONG").is_none() {
                thread::spawn(watch);
            }
        });
        let test = thread::current().name().unwrap_or("a thread without a name").to_owned();
        entries().push(Entry { test, folder: folder.to_owned(), since: Instant::now() });
        Self { folder: folder.to_owned() }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        entries().retain(|entry| entry.folder != self.folder);
    }
}

fn entries() -> MutexGuard<'static, Vec<Entry>> {
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process when a test has had its cluster for too long, after it has said which one, and where the
/// threads of the process are.
fn watch() {
    loop {
        let_pass(PERIOD, "clusters have an age, and nothing tells it");
        let entries = entries();
        let Some(entry) = entries.iter().find(|entry| entry.since.elapsed() > LIMIT) else { continue };
        // Output of macros would be kept for the test's own output, which nobody sees.
        let mut out = io::stderr().lock();
        let _ = writeln!(out, "{} has not ended after {LIMIT:?}: it hangs", entry.test);
        let _ = write_threads(&mut out);
        let _ = write_logs(&mut out, &entry.folder);
        abort();
    }
}

/// Writes where each thread of this process waits in the kernel.
fn write_threads(out: &mut impl Write) -> io::Result<()> {
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        let read = |name| fs::read_to_string(task.join(name)).unwrap_or_default();
        writeln!(out, "thread {}: {} {}", read("comm").trim(), read("wchan"), read("syscall").trim())?;
    }
    Ok(())
}

/// Writes the ends of the logs below a folder.
fn write_logs(out: &mut impl Write, folder: &Path) -> io::Result<()> {
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        if path.is_dir() && !path.is_symlink() {
            write_logs(out, &path)?;
        } else if path.extension().is_some_and(|extension| extension == "log") {
            let log = fs::read(&path)?;
            writeln!(out, "--- end of {} ---", path.display())?;
            out.write_all(&log[log.len().saturating_sub(LOG_BYTES)..])?;
        }
    }
    Ok(())
}
