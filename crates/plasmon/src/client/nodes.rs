//! Nodes of the cluster by what people call them: ids, addresses, names of hosts.
//!
//! Owns no state. Any thread. The host's resolver cannot be interrupted, so it runs in a thread of its own,
//! and the call ends when its time is over.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::Client;
use super::connection::{CHECK_INTERVAL, Undo};
use super::due::{ANSWER_TIMEOUT, Due, due};
use super::reading::report;
use crate::status::{MemberStatus, Status};
use crate::wire::{replies, requests};
use crate::{Error, ErrorKind, NodeId, Result};

/// Smallest number of characters of a node's id that stand for it.
const SHORTEST_ID_CHARS: usize = 6;

/// Finds nodes of the cluster of a client, each by its id, the beginning of its id (6 characters or more),
/// the host and port where it listens, or the name or address of a host that has no other node. A whole id is
/// returned without looking whether a node has it. Without a `timeout` the call ends after 60 s.
///
/// # Errors
/// `Invalid` if no node matches, or if several nodes match: the message then has their ids. `TimedOut` if the
/// daemon or the host's resolver does not answer.
pub fn find_nodes<T: AsRef<str>>(
    client: &Client,
    wanted: &[T],
    timeout: Option<Duration>,
) -> Result<Vec<NodeId>> {
    let search = Search { client, due: due(Some(timeout.unwrap_or(ANSWER_TIMEOUT))) };
    let mut members = None;
    let mut find = |wanted: &str| {
        if let Ok(id) = wanted.parse() {
            return Ok(id);
        }
        if members.is_none() {
            members = Some(search.members()?);
        }
        search.find(members.as_deref().unwrap_or_default(), wanted)
    };
    wanted.iter().map(|wanted| find(wanted.as_ref())).collect()
}

/// Finds the node that `wanted` means among `members` of a client's cluster, as [`find_nodes`] does.
///
/// # Errors
/// As [`find_nodes`].
pub fn find_among(client: &Client, members: &[MemberStatus], wanted: &str) -> Result<NodeId> {
    Search { client, due: client.due_of_answer() }.find(members, wanted)
}

/// Search for nodes that ends when it is due, or when the client's calls are interrupted.
struct Search<'a> {
    client: &'a Client,
    due: Due,
}

impl Search<'_> {
    fn members(&self) -> Result<Vec<MemberStatus>> {
        let replies::Status(json) = self.client.ask_until(requests::Status, Undo::Nothing, self.due)?;
        Ok(report::<Status>(&json)?.cluster.members)
    }

    fn find(&self, members: &[MemberStatus], wanted: &str) -> Result<NodeId> {
        let called = |member: &&MemberStatus| {
            member.listen == wanted || (wanted.len() >= SHORTEST_ID_CHARS && member.node.starts_with(wanted))
        };
        let mut found: Vec<_> = members.iter().filter(called).collect();
        if found.is_empty() {
            let (port, addresses) = self.addresses(wanted)?;
            let there = |member: &&MemberStatus| {
                let listen = member.listen.parse::<SocketAddr>().ok();
                let at = |listen: SocketAddr| port.is_none_or(|port| port == listen.port());
                listen.is_some_and(|listen| addresses.contains(&listen.ip()) && at(listen))
            };
            found = members.iter().filter(there).collect();
        }
        match found[..] {
            [] => Err(none(wanted)),
            [member] => member.node.parse().map_err(|_| none(wanted)),
            _ => Err(several(wanted, &found)),
        }
    }

    /// Addresses of `HOST` or `HOST:PORT`, and the port.
    fn addresses(&self, wanted: &str) -> Result<(Option<u16>, Vec<IpAddr>)> {
        if let Ok(address) = wanted.parse() {
            return Ok((None, vec![address]));
        }
        let with_port = wanted.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) = with_port.map_or((wanted, None), |(host, port)| (host, Some(port)));
        Ok((port, self.look_up(host)?))
    }

    /// Looks up the addresses of a host.
    fn look_up(&self, host: &str) -> Result<Vec<IpAddr>> {
        if !is_host_name(host) {
            return Ok(Vec::new());
        }
        let (tell, told) = mpsc::channel();
        let name = host.to_owned();
        let look = move || {
            let found = (name.as_str(), 0).to_socket_addrs().into_iter().flatten();
            // Whoever has asked may have left.
            let _ = tell.send(found.map(|address| address.ip()).collect());
        };
        thread::Builder::new().name("plasmon-resolver".into()).spawn(look).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("host {host} cannot be looked up: no thread: {error}"))
        })?;
        loop {
            let left = self.due.map(|due| due.saturating_duration_since(Instant::now()));
            match told.recv_timeout(left.unwrap_or(CHECK_INTERVAL).min(CHECK_INTERVAL)) {
                Ok(found) => return Ok(found),
                Err(RecvTimeoutError::Disconnected) => return Ok(Vec::new()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.client.interrupt.as_ref().is_some_and(|interrupt| interrupt()) {
                return Err(Error::new(ErrorKind::Interrupted, "the wait was interrupted"));
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Err(late(host));
            }
        }
    }
}

fn none(wanted: &str) -> Error {
    let text = format!("no node of the cluster is {wanted}; `plasmon status` lists them");
    Error::new(ErrorKind::Invalid, text)
}

fn late(host: &str) -> Error {
    let text = format!(
        "the resolver of this host has not found {host} in time: name the node by its address or id, which \
         `plasmon status` shows"
    );
    Error::new(ErrorKind::TimedOut, text)
}

fn several(wanted: &str, found: &[&MemberStatus]) -> Error {
    let ids: Vec<_> = found.iter().map(|member| format!("{} at {}", member.node, member.listen)).collect();
    let text = format!(
        "several nodes are {wanted}: name one with its port, or by its id. They are {}",
        ids.join(", ")
    );
    Error::new(ErrorKind::Invalid, text)
}

/// Whether a text may be the name of a host, which a resolver is asked for.
fn is_host_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}
