//! `plasmon drain`: makes a node move what it keeps to other nodes, and leave.
//!
//! Owns no state. Main thread. Invariant: the drain goes on when the command ends; only `--call-off` ends
//! the drain.

use std::thread;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use plasmon::drain::{DrainStatus, DrainStep};
use plasmon::{Client, Error, ErrorKind, NodeId, Socket, find_nodes};

use crate::connecting::Within;
use crate::failure::Failure;
use crate::object_args::Spreading;
use crate::output::{Progress, counted, json, line, size};

/// Time between two questions for the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Longest time that a node which keeps nothing any more may take to leave.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Arguments of `plasmon drain`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
A draining node refuses new objects, and serves reads as before. When other nodes keep everything, its \
daemon ends with exit code 0. An object that no other node has room for stays, and so does the node; the \
object is offered again each second. Ctrl-C and --timeout end the waiting, not the drain; --call-off \
ends the drain.

The node with the embedded coordinator cannot be drained: stop it last. Only root and the user that the \
node runs as may drain it.")]
pub(crate) struct Drain {
    /// Node, as its host's name or address, or as its id or the beginning of the id [default: this host's
    /// node]
    #[arg(value_name = "NODE|HOST")]
    pub(crate) node: Option<String>,
    /// End the drain: the node stays and accepts objects again. Objects that have moved stay where they are
    #[arg(long)]
    pub(crate) call_off: bool,
    #[command(flatten)]
    pub(crate) spreading: Spreading,
}

/// Drains a node and waits until it has left, or ends the drain.
pub(crate) fn drain(socket: &Socket, as_json: bool, args: &Drain) -> Result<(), Failure> {
    let client = Within::new(args.spreading.timeout).connect(socket, "plasmon drain")?;
    let node = match &args.node {
        Some(wanted) => find_nodes(&client, &[wanted], args.spreading.timeout)?[0],
        None => client.node(),
    };
    if args.call_off {
        client.drain(node, DrainStep::CallOff)?;
        return say(as_json, &DrainStatus::default(), || format!("node {node} stays"));
    }
    let due = args.spreading.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let progress = Progress::bytes("draining", 0, as_json || args.spreading.quiet.quiet);
    let mut status = client.drain(node, DrainStep::Begin)?;
    while !status.finished {
        if due.is_some_and(|due| Instant::now() >= due) {
            return Err(in_vain(node, &status).into());
        }
        if status.is_stuck() {
            return Err(stuck(node, &status).into());
        }
        progress.moving(&doing(&status), status.moved_bytes, status.moved_bytes + status.bytes);
        progress.say(&doing(&status));
        progress.show();
        thread::sleep(PROGRESS_INTERVAL);
        status = client.drain(node, DrainStep::Look).map_err(|error| gone(node, &status, &error))?;
        if !status.draining {
            let text = format!("the drain of node {node} was called off; {}", left(&status));
            return Err(Error::new(ErrorKind::Interrupted, text).into());
        }
    }
    drop(progress);
    await_leave(&client, node)?;
    say(as_json, &status, || {
        let moved = format!("{} objects ({})", status.moved_objects, size(status.moved_bytes));
        format!("node {node} has left; other nodes keep the {moved} that it kept")
    })
}

fn say(as_json: bool, status: &DrainStatus, text: impl FnOnce() -> String) -> Result<(), Failure> {
    match as_json {
        true => json(&serde_json::to_string(status).expect("plain values")),
        false => line(&text()),
    }
}

fn doing(status: &DrainStatus) -> String {
    let trouble = match status.trouble.as_str() {
        "" => String::new(),
        trouble => format!(" ({})", trouble),
    };
    format!("draining, {}{trouble}", left(status))
}

fn left(status: &DrainStatus) -> String {
    let unsealed = match status.unsealed {
        0 => String::new(),
        unsealed => format!(" and {unsealed} that clients are writing"),
    };
    let regions = match status.regions {
        0 => String::new(),
        regions => format!(" and {}", counted(regions, "region")),
    };
    let volumes = match status.volumes {
        0 => String::new(),
        volumes => format!(" and {}", counted(volumes, "volume")),
    };
    format!("{} objects ({}){unsealed}{regions}{volumes} left", status.objects, size(status.bytes))
}

fn in_vain(node: NodeId, status: &DrainStatus) -> Error {
    let trouble = match status.trouble.as_str() {
        "" => String::new(),
        trouble => format!("; the last refusal: {}", trouble),
    };
    let text = format!(
        "node {node} is not drained yet, {}{trouble}. It goes on: `plasmon drain` waits again, \
         `plasmon drain --call-off` ends it",
        left(status)
    );
    Error::new(ErrorKind::TimedOut, text)
}

fn stuck(node: NodeId, status: &DrainStatus) -> Error {
    let some = |named: &[String], all: u64| match all.saturating_sub(named.len() as u64) {
        0 => named.join("; "),
        more if named.is_empty() => format!("{more} of them"),
        more => format!("{}; and {more} more", named.join("; ")),
    };
    let (damaged, regions) = (status.damaged, status.regions);
    let mut stays = Vec::new();
    if damaged > 0 {
        let which = some(&status.damage, damaged);
        stays.push(format!("no node takes objects that are damaged: {which}; delete them (`plasmon rm`)"));
    }
    if regions > 0 {
        let which = some(&status.region_names, regions);
        stays.push(format!(
            "no node takes regions that are ephemeral or have views, or that it has no room for: {which}; \
             free them (`plasmon region free`), or end the programs that use them"
        ));
    }
    if status.volumes > 0 {
        let which = some(&status.volume_names, status.volumes);
        stays.push(format!(
            "no other node can keep the names of volumes of files: {which}; start one, or copy what is \
             needed and remove them (`plasmon volume rm`)"
        ));
    }
    let text = format!(
        "node {node} is not drained, {}. {}. Then the node leaves; `plasmon drain --call-off` ends the drain",
        left(status),
        stays.join(". ")
    );
    Error::new(ErrorKind::Damaged, text)
}

fn gone(node: NodeId, before: &DrainStatus, error: &Error) -> Error {
    let text = format!("node {node} does not answer any more, {} when it last did: {error}", left(before));
    Error::new(error.kind(), text)
}

/// Waits until the node is no member any more.
fn await_leave(client: &Client, node: NodeId) -> Result<(), Failure> {
    let (id, due) = (node.to_string(), Instant::now() + LEAVE_TIMEOUT);
    while Instant::now() < due {
        // If the node of this host leaves, the connection ends.
        match client.status() {
            Err(error) if error.kind() == ErrorKind::Disconnected => return Ok(()),
            Ok(status) if status.cluster.members.iter().all(|member| member.node != id) => return Ok(()),
            _ => thread::sleep(PROGRESS_INTERVAL),
        }
    }
    let text = format!("node {node} keeps nothing any more, but has not left; its log says why");
    Err(Error::new(ErrorKind::TimedOut, text).into())
}
