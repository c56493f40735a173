//! Calls that serve functions, find services and list them.
//!
//! Owns no state. Any thread. All of these calls go by the socket. Functions are called and answered by slot
//! ([`service`](super::service)).

use std::time::Duration;

use super::Client;
use super::calling::Calls;
use super::connection::Undo;
use super::due::due;
use super::paging::pages;
use super::reading::microseconds;
use super::service::{PendingReply, Reply, Server, Service};
use crate::service::{Allow, MAX_ALLOWED, MAX_FUNCTIONS, ServeOptions, ServiceInfo};
use crate::wire::{MAX_NAME_BYTES, requests};
use crate::{Error, ErrorKind, NodeId, Result};

/// Number of calls of a multicast that are under way at a time: a part of the slots of a client.
const MAX_CAST: usize = 64;

/// List of the services of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceList {
    /// Services by their names.
    pub services: Vec<ServiceInfo>,
    /// Nodes that did not tell all their names, each with the reason: the list lacks what they keep.
    pub missing: Vec<(NodeId, Error)>,
}

impl Client {
    /// Serves functions under a name: calls of them come to this process, whose threads
    /// [receive](Server::receive) them. Several processes, on any hosts, may serve the same functions under
    /// one name, which belongs to the user who serves it first.
    ///
    /// # Errors
    /// `NotAllowed` if the name belongs to another user. `Invalid` if others serve other functions under it,
    /// and for names of 0 or more than 255 bytes, no functions or more than 256. `Busy` for more than 4,096
    /// servers of this connection. `TimedOut` or `Disconnected` if the nodes that decide about the name do
    /// not answer.
    pub fn serve(&self, name: &str, functions: &[&str], options: &ServeOptions) -> Result<Server> {
        check_name("a service", name)?;
        check(functions, &options.allow)?;
        let due = self.due_of_answer();
        Calls(self).slots(due)?;
        let serve = requests::Serve {
            name: name.to_owned(),
            functions: functions.iter().map(|function| (*function).to_owned()).collect(),
            allow: options.allow.clone(),
        };
        let serving = self.ask_until(serve, Undo::Unserve, due)?;
        Ok(Server::new(self, name, serving.port))
    }

    /// Finds a service of this user or of root. With a time-out, the call waits so long for a server to come.
    ///
    /// # Errors
    /// `NotFound` if nobody serves it, and nobody came in time. `NotAllowed` if it belongs to another user.
    /// `Disconnected`, or `TimedOut` if a node does not answer.
    pub fn service(&self, name: &str, timeout: Option<Duration>) -> Result<Service> {
        Service::find(self, None, name, timeout)
    }

    /// Calls the same function of several services, up to 64 at the same time. Returns one result a service,
    /// in order.
    ///
    /// # Errors
    /// `Interrupted`. The error of a service is among the results, in the place of the service.
    pub fn multicast(
        &self,
        to: &[Service],
        function: &str,
        data: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Result<Reply>>> {
        let mut replies = Vec::with_capacity(to.len());
        for some in to.chunks(MAX_CAST) {
            let limits = (timeout, due(Some(timeout)));
            let begun: Vec<Result<PendingReply>> =
                some.iter().map(|service| service.begin_until(function, data, limits)).collect();
            for reply in begun.into_iter().map(|begun| begun.and_then(PendingReply::wait)) {
                match reply {
                    Err(error) if error.kind() == crate::ErrorKind::Interrupted => return Err(error),
                    reply => replies.push(reply),
                }
            }
        }
        Ok(replies)
    }
}

impl Service {
    /// Finds a service as [`Client::service`] does, but only one that belongs to the user `owner`, if that is
    /// given. So no other user can offer a service of this name in its place.
    ///
    /// # Errors
    /// As [`Client::service`].
    pub fn find(client: &Client, owner: Option<u32>, name: &str, timeout: Option<Duration>) -> Result<Self> {
        check_name("a service", name)?;
        let timeout = timeout.filter(|timeout| !timeout.is_zero());
        let due = timeout.map_or_else(|| client.due_of_answer(), |timeout| due(Some(timeout)));
        Calls(client).slots(due)?;
        let timeout_us = timeout.map_or(0, |timeout| microseconds(Some(timeout)));
        let find = requests::FindService { name: name.to_owned(), owner, timeout_us };
        let found = client.ask_until(find, Undo::Leave, due)?;
        Ok(Self::new(client, name, found))
    }
}

impl ServiceList {
    /// Lists the services of the cluster by their names, and the nodes that do not answer.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` if the daemon does not answer.
    pub fn of(client: &Client) -> Result<Self> {
        let ask = |node, from| requests::ListServices { node, from };
        let (mut services, missing) = pages(client, ask, |page| (page.services, page.next))?;
        services.sort_unstable_by(|one, other| (&one.name, one.home).cmp(&(&other.name, other.home)));
        Ok(Self { services, missing })
    }
}

/// Refuses what no frame has room for. The daemon checks the rest.
fn check(functions: &[&str], allow: &Allow) -> Result<()> {
    let text = match allow {
        Allow::Users(users) if users.len() > MAX_ALLOWED => {
            format!("at most {MAX_ALLOWED} users can be allowed to call, and these are {}", users.len())
        }
        _ if functions.len() > MAX_FUNCTIONS => {
            format!("a service has at most {MAX_FUNCTIONS} functions, and these are {}", functions.len())
        }
        _ => return functions.iter().try_for_each(|function| check_name("a function", function)),
    };
    Err(Error::new(ErrorKind::Invalid, text))
}

fn check_name(what: &str, name: &str) -> Result<()> {
    if (1..=MAX_NAME_BYTES).contains(&name.len()) {
        return Ok(());
    }
    let text = format!("the name of {what} has 1 to {MAX_NAME_BYTES} bytes, and this one has {}", name.len());
    Err(Error::new(ErrorKind::Invalid, text))
}
