//! `plasmon replicate`, `migrate` and `broadcast`: where objects are to be.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use plasmon::status::MemberStatus;
use plasmon::{Client, Error, ErrorKind, NodeId, Spread};

use crate::args::{Broadcast, Migrate, Replicate, Which};
use crate::failure::Failure;
use crate::output::{Progress, line, table};

/// The shortest beginning of a node's id that stands for it.
const SHORTEST: usize = 6;
/// How often to ask who holds the object by now.
const LOOK: Duration = Duration::from_millis(200);

pub(crate) fn replicate(socket: &Path, as_json: bool, args: &Replicate) -> Result<(), Failure> {
    let quiet = as_json || args.spreading.quiet.quiet;
    let (copies, timeout) = (args.copies, args.spreading.timeout);
    let client = watched(socket, "plasmon replicate", &args.object, quiet)?;
    let spread = client.replicate(args.object.id, copies, timeout)?;
    show(&client, as_json, &spread)
}

pub(crate) fn migrate(socket: &Path, as_json: bool, args: &Migrate) -> Result<(), Failure> {
    let quiet = as_json || args.spreading.quiet.quiet;
    let client = watched(socket, "plasmon migrate", &args.object, quiet)?;
    let node = node(&client.status()?.cluster.members, &args.node)?;
    let spread = client.migrate(args.object.id, node, args.spreading.timeout)?;
    show(&client, as_json, &spread)
}

pub(crate) fn broadcast(socket: &Path, as_json: bool, args: &Broadcast) -> Result<(), Failure> {
    let quiet = as_json || args.spreading.quiet.quiet;
    let client = watched(socket, "plasmon broadcast", &args.object, quiet)?;
    let members = client.status()?.cluster.members;
    let nodes: Result<Vec<_>, _> = args.nodes.iter().map(|wanted| node(&members, wanted)).collect();
    let spread = client.broadcast(args.object.id, &nodes?, args.spreading.timeout)?;
    show(&client, as_json, &spread)?;
    match spread.failed.as_slice() {
        [] => Ok(()),
        [first, ..] => Err(Failure::Unreached(format!(
            "{} nodes do not hold the object; node {}: {}",
            spread.failed.len(),
            first.node,
            first.reason
        ))),
    }
}

/// A client that shows how many nodes hold an object by now while it waits.
fn watched(socket: &Path, name: &str, which: &Which, quiet: bool) -> Result<Client, Failure> {
    let progress = Progress::waiting(&format!("spreading {}", which.text), quiet);
    let client = Client::connect_as(socket, name)?;
    if !progress.is_wanted() {
        return Ok(client);
    }
    let holders = Arc::new(AtomicUsize::new(0));
    let (seen, socket, name, id) =
        (Arc::downgrade(&holders), socket.to_owned(), format!("{name}, progress"), which.id);
    // By a client of its own, which ends with the other. Whatever fails, there is no progress to be shown.
    thread::spawn(move || {
        let Ok(client) = Client::connect_as(socket, &name) else { return };
        while let (Some(seen), Ok(locations)) = (seen.upgrade(), client.locations(id)) {
            seen.store(locations.len(), Ordering::Relaxed);
            drop(seen);
            thread::sleep(LOOK);
        }
    });
    let (progress, text) = (Mutex::new(progress), which.text.clone());
    Ok(client.interruptible(move || {
        let progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.say(format!("spreading {text}: on {} nodes", holders.load(Ordering::Relaxed)));
        progress.show();
        false
    }))
}

/// The member that is meant.
pub(crate) fn node(members: &[MemberStatus], wanted: &str) -> Result<NodeId, Failure> {
    // Hosts have names, members addresses.
    let address = wanted.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    let (host, port) = address.map_or((wanted, None), |(host, port)| (host, Some(port)));
    let addresses = (host, 0).to_socket_addrs().into_iter().flatten();
    let hosts: Vec<_> = addresses.map(|address| address.ip()).collect();
    let meant = |member: &&MemberStatus| {
        let listen = member.listen.parse::<SocketAddr>().ok();
        let there = listen.is_some_and(|listen| {
            hosts.contains(&listen.ip()) && port.is_none_or(|port| port == listen.port().to_string())
        });
        there || member.listen == wanted || (wanted.len() >= SHORTEST && member.node.starts_with(wanted))
    };
    let mut found = members.iter().filter(meant).filter_map(|member| member.node.parse().ok());
    match (found.next(), found.next()) {
        (Some(node), None) => Ok(node),
        (first, _) => {
            let text = match first {
                Some(_) => format!("several nodes are {wanted}: name one with its port, or by its id"),
                None => format!("no node of the cluster is {wanted}; `plasmon status` lists them"),
            };
            Err(Error::new(ErrorKind::Invalid, text).into())
        }
    }
}

fn show(client: &Client, as_json: bool, spread: &Spread) -> Result<(), Failure> {
    if as_json {
        return line(&serde_json::to_string(spread).expect("plain values"));
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
