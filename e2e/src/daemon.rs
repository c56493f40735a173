//! One `plasmon serve` process.
//!
//! Owns the process, and the paths of its output and its log. Any thread. Invariant: the process ends when
//! its [`Daemon`] is dropped.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::wait::until;

/// Daemon that serves. Dropping it kills the process.
pub struct Daemon {
    child: Child,
    log: PathBuf,
    announcement: Value,
}

/// End of a daemon that ended instead of serving.
#[derive(Debug)]
pub struct Refused {
    /// Exit status of the daemon.
    pub status: ExitStatus,
    /// Text that the daemon wrote to stderr.
    pub log: String,
}

/// Path of the `plasmon` binary under test: `PLASMON_BIN`, or else the binary in the tests' own target
/// folder.
pub fn binary() -> PathBuf {
    if let Some(path) = env::var_os("PLASMON_BIN") {
        let path = PathBuf::from(path);
        return path.canonicalize().unwrap_or_else(|error| panic!("PLASMON_BIN={}: {error}", path.display()));
    }
    beside_tests("plasmon")
        .expect("there is no plasmon binary: cargo build -p plasmon-cli, or set PLASMON_BIN")
}

/// Path of a binary of this workspace, in the folder that cargo builds the tests into. Returns `None` if it
/// is not there.
pub(crate) fn beside_tests(name: &str) -> Option<PathBuf> {
    // target/<profile>/deps/<test>
    let test = env::current_exe().ok()?;
    let path = test.parent()?.parent()?.join(name);
    path.exists().then_some(path)
}

/// Environment variable that names the file of the cluster's secret. [`Daemon::start`] sets it unless the
/// command sets or removes it.
pub const SECRET_FILE: &str = "PLASMON_SECRET_FILE";
/// Secret of all clusters of the tests, also in other guests.
pub const SECRET: &str = "what all clusters of tests have in common";

/// Path of a file with [`SECRET`] in `folder`. The file is made unless it is there.
pub fn secret_file(folder: &Path) -> PathBuf {
    let path = folder.join("secret");
    // The file appears whole, readable by its owner alone, and is kept if it is there.
    let mut file = NamedTempFile::new_in(folder).expect("the temporary folder is writable");
    file.write_all(SECRET.as_bytes()).expect("the temporary folder has room");
    match file.persist_noclobber(&path) {
        Err(kept) if kept.error.kind() != io::ErrorKind::AlreadyExists => panic!("{kept}"),
        _ => path,
    }
}

impl Daemon {
    /// Runs `command`, which starts `plasmon serve --json`, with its output in `name.out` and `name.log`
    /// of `folder`, and waits until it serves.
    ///
    /// # Errors
    /// Fails when the daemon ends instead.
    pub fn start(mut command: Command, folder: &Path, name: &str) -> Result<Self, Refused> {
        let (out, log) = (folder.join(format!("{name}.out")), folder.join(format!("{name}.log")));
        let create = |path| File::create(path).expect("the temporary folder is writable");
        if !command.get_envs().any(|(name, _)| name == SECRET_FILE) {
            command.env(SECRET_FILE, secret_file(folder));
        }
        command.stdin(Stdio::null()).stdout(create(&out)).stderr(create(&log));
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));

        let line = until("the daemon serves or ends", || {
            // The end is asked for before the output is read, so that all output of a daemon that ended is
            // seen.
            let ended = child.try_wait().expect("it is our child");
            let text = fs::read_to_string(&out).expect("it was created");
            let line = text.split_once('\n').map(|(line, _)| Ok(line.to_owned()));
            line.or(ended.map(Err))
        });
        match line {
            Ok(line) => {
                let announcement = serde_json::from_str(&line)
                    .unwrap_or_else(|error| panic!("the daemon announced itself as {line:?}: {error}"));
                Ok(Self { child, log, announcement })
            }
            Err(status) => Err(Refused { status, log: read(&log) }),
        }
    }

    /// Process id of the daemon.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Address at which the daemon listens for other nodes.
    pub fn listen(&self) -> &str {
        self.announced("listen")
    }

    /// Path of the daemon's unix socket.
    pub fn socket(&self) -> &Path {
        Path::new(self.announced("socket"))
    }

    /// Log of the daemon so far.
    pub fn log(&self) -> String {
        read(&self.log)
    }

    /// Sends a signal to the daemon.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the daemon has not been waited for");
    }

    /// Kills the daemon with SIGKILL and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
    }

    /// Waits until the daemon ends by itself.
    pub fn wait(&mut self) -> ExitStatus {
        until("the daemon ends", || self.child.try_wait().expect("it is our child"))
    }

    /// Whether the daemon announced a text under `key` when it began to serve.
    pub fn announces(&self, key: &str) -> bool {
        self.announcement.get(key).is_some_and(Value::is_string)
    }

    /// Text that the daemon announced under `key` when it began to serve.
    ///
    /// # Panics
    /// Panics when the daemon announced no such text.
    pub fn announced(&self, key: &str) -> &str {
        let value = self.announcement.get(key).and_then(Value::as_str);
        value.unwrap_or_else(|| panic!("the daemon announced no {key}: {}", self.announcement))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both calls fail when the daemon has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Text of a log. A log that cannot be read is empty.
fn read(log: &Path) -> String {
    fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}
