//! Check of the node itself, which is asked for its status.
//!
//! Owns no state. Another thread asks the node, so that the main thread waits at most [`ANSWER_TIMEOUT`].

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use plasmon::status::Status;
use plasmon::{Error, ErrorKind, Socket};
use serde_json::{Value, json};

use super::finding::Finding;
use crate::connecting::connect;
use crate::output::{pages, size};

/// Longest wait for the node's answer. A healthy node answers within milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Answer of the node.
pub(super) enum Answer {
    /// Status report of the node.
    Status(Box<Status>),
    /// There is no socket at this path.
    Nobody(PathBuf),
    /// The node at this path did not answer.
    Silent(PathBuf),
    /// Asking failed with this error.
    Failed(Error),
}

impl Answer {
    /// Status of the node, if the node answered.
    pub(super) fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(status) => Some(status),
            _ => None,
        }
    }
}

/// Asks the node that listens at `socket` for its status.
pub(super) fn ask(socket: &Socket) -> Answer {
    let path = socket.path();
    if !path.exists() {
        return Answer::Nobody(path.to_owned());
    }
    let (tell, told) = mpsc::channel();
    let socket = socket.clone();
    // The client may wait far longer than the limit. Its thread ends with this process.
    thread::spawn(move || {
        let status = connect(&socket, "plasmon doctor").and_then(|client| client.status());
        // An error means that the limit is over and no thread waits.
        let _ = tell.send(status);
    });
    match told.recv_timeout(ANSWER_TIMEOUT) {
        Ok(Ok(status)) => Answer::Status(Box::new(status)),
        Ok(Err(error)) => Answer::Failed(error),
        Err(_) => Answer::Silent(path.to_owned()),
    }
}

/// Summary of the node's status for programs.
pub(super) fn summary(status: &Status) -> Value {
    json!({
        "node": status.node,
        "version": status.version,
        "pid": status.pid,
        "capacity": status.memory.capacity,
        "prefaulted": status.memory.prefaulted,
        "pages": status.memory.pages,
        "provider": status.fabric.provider,
        "reason": status.fabric.reason,
        "libfabric": status.fabric.libfabric,
        "library": status.fabric.library,
        "spill_dir": Some(&status.spill.directory).filter(|directory| !directory.is_empty()),
    })
}

/// Checks the node itself.
pub(super) fn check(answer: &Answer) -> Vec<Finding> {
    const TOPIC: &str = "node";
    let status = match answer {
        Answer::Status(status) => status,
        Answer::Nobody(path) => {
            let text = format!("no node runs at {}: only the host was checked", path.display());
            return vec![Finding::ok(TOPIC, text)];
        }
        Answer::Silent(path) => {
            let found = format!(
                "the one at {} does not answer within {} s",
                path.display(),
                ANSWER_TIMEOUT.as_secs()
            );
            let why = "It is stopped, or far too busy: a node answers within milliseconds.";
            return vec![
                Finding::problem(TOPIC, found, why)
                    .mend("see which processes hold it", "ps -C plasmon-node -o pid,stat,pcpu,args"),
            ];
        }
        Answer::Failed(error) => {
            let why = match error.kind() {
                ErrorKind::Disconnected => {
                    "A node that was killed leaves its socket behind; the next one replaces it."
                }
                _ => "Only the host was checked.",
            };
            return vec![Finding::advice(TOPIC, error.message(), why)];
        }
    };
    let memory = &status.memory;
    let faulted = match memory.prefaulted {
        all if all >= memory.capacity => "all pre-faulted".to_owned(),
        some => format!("{} pre-faulted so far", size(some)),
    };
    let found = format!(
        "process {} has {} of memory ({}), {faulted}, and talks over {} ({}) by libfabric {} of {}",
        status.pid,
        size(memory.capacity),
        pages(memory),
        status.fabric.provider,
        status.fabric.reason,
        status.fabric.libfabric,
        status.fabric.library
    );
    let own = env!("CARGO_PKG_VERSION");
    let node = if status.version == own {
        Finding::ok(TOPIC, found)
    } else {
        let why = format!("It is plasmon {}, and this command is {own}: restart the node.", status.version);
        Finding::advice(TOPIC, found, why)
    };
    vec![node]
}
