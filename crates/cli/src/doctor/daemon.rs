//! Asking the node of this host what it uses.

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use plasmon::status::Status;
use plasmon::{Error, ErrorKind, Socket};
use serde_json::{Value, json};

use super::finding::Finding;
use crate::connecting::connect;
use crate::output::size;

/// A node that is well answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// What came of it.
pub(super) enum Answer {
    /// What the node says of itself.
    Status(Box<Status>),
    /// There is no socket at this path.
    Nobody(PathBuf),
    /// The node at this path was silent.
    Silent(PathBuf),
    /// Why there is no answer.
    Failed(Error),
}

impl Answer {
    pub(super) fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(status) => Some(status),
            _ => None,
        }
    }
}

/// Asks the node that listens at `socket`.
pub(super) fn ask(socket: &Socket) -> Answer {
    let path = socket.path();
    if !path.exists() {
        return Answer::Nobody(path.to_owned());
    }
    let (tell, told) = mpsc::channel();
    let socket = socket.clone();
    // A client waits for far longer than it takes; its thread ends with this process.
    thread::spawn(move || {
        let status = connect(&socket, "plasmon doctor").and_then(|client| client.status());
        // Nobody listens any more after the time.
        let _ = tell.send(status);
    });
    match told.recv_timeout(PATIENCE) {
        Ok(Ok(status)) => Answer::Status(Box::new(status)),
        Ok(Err(error)) => Answer::Failed(error),
        Err(_) => Answer::Silent(path.to_owned()),
    }
}

/// What a program wants to know of the node.
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
        "spill_dir": Some(&status.spill.directory).filter(|directory| !directory.is_empty()),
    })
}

/// Judges the node itself.
pub(super) fn check(answer: &Answer) -> Vec<Finding> {
    const TOPIC: &str = "node";
    let status = match answer {
        Answer::Status(status) => status,
        Answer::Nobody(path) => {
            let text = format!("none runs at {}: this is about the host alone", path.display());
            return vec![Finding::ok(TOPIC, text)];
        }
        Answer::Silent(path) => {
            let found =
                format!("the one at {} does not answer within {} s", path.display(), PATIENCE.as_secs());
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
                _ => "So this is about the host alone.",
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
        "process {} has {} of {} pages, {faulted}, and talks over {} ({})",
        status.pid,
        size(memory.capacity),
        memory.pages,
        status.fabric.provider,
        status.fabric.reason
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
