//! `plasmon replicate`, `migrate` and `broadcast`: moves and copies objects to nodes.
//!
//! Owns no state. Main thread; another thread asks for the holders while the command waits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use plasmon::{Client, ObjectId, Socket, Spread, find_nodes};

use crate::connecting::Within;
use crate::failure::Failure;
use crate::names::{Which, Whose};
use crate::object_args::{Broadcast, Migrate, Replicate};
use crate::output::{Progress, counted, json, table};

/// Time between two questions for the holders of an object.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Makes several nodes keep an object, and prints the nodes.
pub(crate) fn replicate(socket: &Socket, as_json: bool, args: &Replicate) -> Result<(), Failure> {
    let quiet = as_json || args.spreading.quiet.quiet;
    let within = Within::new(args.spreading.timeout);
    let (client, id) = watched(&within, socket, "plasmon replicate", (&args.object, &args.whose), quiet)?;
    let spread = client.replicate(id, args.copies, within.left()).map_err(args.object.named(id))?;
    show(&client, as_json, &spread)
}

/// Moves an object to another node, and prints the nodes that keep it.
pub(crate) fn migrate(socket: &Socket, as_json: bool, args: &Migrate) -> Result<(), Failure> {
    let quiet = as_json || args.spreading.quiet.quiet;
    let within = Within::new(args.spreading.timeout);
    let (client, id) = watched(&within, socket, "plasmon migrate", (&args.object, &args.whose), quiet)?;
    let nodes = find_nodes(&client, &[&args.node], within.left())?;
    let spread = client.migrate(id, nodes[0], within.left()).map_err(args.object.named(id))?;
    show(&client, as_json, &spread)
}

/// Brings an object to many nodes, and fails if one of them has not got it.
pub(crate) fn broadcast(socket: &Socket, as_json: bool, args: &Broadcast) -> Result<(), Failure> {
    let quiet = as_json || args.spreading.quiet.quiet;
    let within = Within::new(args.spreading.timeout);
    let (client, id) = watched(&within, socket, "plasmon broadcast", (&args.object, &args.whose), quiet)?;
    let nodes = find_nodes(&client, &args.nodes, within.left())?;
    let spread = client.broadcast(id, &nodes, within.left()).map_err(args.object.named(id))?;
    show(&client, as_json, &spread)?;
    match spread.failed.as_slice() {
        [] => Ok(()),
        [first, ..] => Err(Failure::Unreached(format!(
            "the object is missing on {}; node {}: {}",
            counted(spread.failed.len() as u64, "node"),
            first.node,
            first.reason
        ))),
    }
}

/// Connects. Returns the object's id, and a client that shows, while it waits, how many nodes hold the
/// object.
fn watched(
    within: &Within,
    socket: &Socket,
    name: &str,
    (which, whose): (&Which, &Whose),
    quiet: bool,
) -> Result<(Client, ObjectId), Failure> {
    let progress = Progress::waiting(&format!("spreading {}", which.text), quiet);
    let client = within.connect(socket, name)?;
    let id = which.id(&client, whose);
    if !progress.is_wanted() {
        return Ok((client, id));
    }
    let holders = Arc::new(AtomicUsize::new(0));
    let (seen, socket, name) = (Arc::downgrade(&holders), socket.clone(), format!("{name}, progress"));
    // The thread has a client of its own, and ends with the other client. A failure means that no progress is
    // shown.
    thread::spawn(move || {
        let Ok(client) = Client::connect_as(socket, &name) else { return };
        while let (Some(seen), Ok(locations)) = (seen.upgrade(), client.locations(id)) {
            seen.store(locations.len(), Ordering::Relaxed);
            drop(seen);
            thread::sleep(PROGRESS_INTERVAL);
        }
    });
    let (progress, text) = (Mutex::new(progress), which.text.clone());
    let client = client.interruptible(move || {
        let progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.say(&format!(
            "spreading {text}: on {}",
            counted(holders.load(Ordering::Relaxed) as u64, "node")
        ));
        progress.show();
        false
    });
    Ok((client, id))
}

fn show(client: &Client, as_json: bool, spread: &Spread) -> Result<(), Failure> {
    if as_json {
        return json(&serde_json::to_string(spread).expect("plain values"));
    }
    let members = client.status()?.cluster.members;
    let listen = |node: &str| {
        let member = members.iter().find(|member| member.node == node);
        member.map_or_else(String::new, |member| member.listen.clone())
    };
    let held = spread.holders.iter().map(|node| [node.clone(), listen(node), "holds it".to_owned()]);
    let failed = spread.failed.iter().map(|one| [one.node.clone(), listen(&one.node), one.reason.clone()]);
    table(["NODE", "LISTEN", "OBJECT"], &held.chain(failed).collect::<Vec<_>>())
}
