//! Jobs of guests, and the folder through which each guest is told its job.
//!
//! Owns no state. Any thread. Invariant: every word of a job comes through the guest's shell unchanged.

use std::env;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::GuestError;

/// Beginnings of the names of environment variables that are passed on to guests.
const PASSED_ON: [&str; 4] = ["PLASMON_", "FI_", "RUST_", "NO_COLOR"];

/// Program to run in every guest. In a guest, `PLASMON_GUEST` is the guest's number and `PLASMON_E2E_ADDRESS`
/// is its address. The first guest is 10.77.0.1, the second 10.77.0.2.
#[derive(Debug, Clone)]
pub struct Job {
    /// Path of the program on the host.
    pub program: PathBuf,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Number of guests. They are on one cable.
    pub guests: usize,
    /// Whether each guest has an RDMA device. Guests beyond the end of the list have one.
    pub rdma: Vec<bool>,
    /// Memory of each guest in bytes.
    pub memory: u64,
    /// Number of memory nodes (NUMA) of each guest. With several, each node has a core and its share of the
    /// memory, and the network card is at the last node.
    pub memory_nodes: usize,
    /// Time that all guests may take, boot included.
    pub limit: Duration,
}

impl Job {
    /// Makes the job of a program without arguments in one guest.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            guests: 1,
            rdma: Vec::new(),
            memory: 2 << 30,
            memory_nodes: 1,
            limit: Duration::from_secs(300),
        }
    }

    /// Writes the files that tell guest `number` its job to `folder`.
    pub(super) fn write(&self, folder: &Path, number: usize) -> Result<(), GuestError> {
        let address = Ipv4Addr::new(10, 77, 0, u8::try_from(number + 1).expect("there are few guests"));
        let rdma = if self.rdma.get(number).copied().unwrap_or(true) { "yes" } else { "no" };
        let settings = format!("NAME=guest{number}\nADDRESS={address}\nRDMA={rdma}\n");

        let mut run =
            String::from("export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n");
        let passed_on = |name: &String| PASSED_ON.iter().any(|start| name.starts_with(start));
        for (name, value) in env::vars().filter(|(name, _)| passed_on(name)) {
            run.push_str(&format!("export {name}={}\n", quoted(&value)));
        }
        run.push_str(&format!("export PLASMON_GUEST={number} PLASMON_E2E_ADDRESS={address}\n"));
        if let Ok(here) = env::current_dir() {
            run.push_str(&format!("cd {}\n", quoted(&here.to_string_lossy())));
        }
        let program = self.program.to_string_lossy();
        let words = [program.as_ref()].into_iter().chain(self.args.iter().map(String::as_str));
        let words: Vec<_> = words.map(quoted).collect();
        run.push_str(&format!("exec {}\n", words.join(" ")));

        for (name, text) in [("settings", settings), ("run", run)] {
            let path = folder.join(name);
            fs::write(&path, text).map_err(GuestError::file("write", &path))?;
        }
        Ok(())
    }
}

/// Exit code that a guest has left in its folder. Returns `None` if there is none.
pub(super) fn status(folder: &Path) -> Option<i32> {
    fs::read_to_string(folder.join("status")).ok()?.trim().parse().ok()
}

/// Quotes a word so that a shell takes it as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn words_come_through_a_shell() {
        for word in ["", "plain", "two words", "it's", "$HOME `x` \"y\" \\ * ;", "line\nline"] {
            let output = Command::new("sh").args(["-c", &format!("printf %s {}", quoted(word))]).output();
            assert_eq!(output.expect("there is a shell").stdout, word.as_bytes());
        }
    }

    #[test]
    fn a_status_is_a_number() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        assert_eq!(status(folder.path()), None);
        fs::write(folder.path().join("status"), "101\n").expect("write");
        assert_eq!(status(folder.path()), Some(101));
    }
}
