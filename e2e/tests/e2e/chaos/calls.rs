//! Services that nodes serve all the time, and that all workers call.
//!
//! A server of each service runs on two nodes, and connects again when its daemon was killed. Which calls may
//! have been run, and how often each was, says the model of calls ([`CallModel`]).

use std::sync::Arc;
use std::time::Duration;

use plasmon::{Client, Error, ErrorKind};
use plasmon_e2e::PATIENCE;
use plasmon_e2e::wait::patiently;

use super::schedule::NODES;
use super::worker::{Ground, Worker};
use crate::call_model::CallModel;

/// Number of services.
pub(super) const SERVICES: usize = 2;
/// Number of threads of a server.
const THREADS: usize = 2;
/// Time to find a service, and for a call that has to end well.
const LIMIT: Duration = Duration::from_secs(5);

/// Name of a service.
fn named(number: usize) -> String {
    format!("chaos {number}")
}

/// Serves what a node serves until the end of the run.
pub(super) fn serve(ground: &Ground, node: usize) {
    let goes_on = || !ground.ends();
    ground.calls_made.serve(&ground.sockets[node], &named(node % SERVICES), THREADS, &goes_on);
}

impl Worker {
    /// Calls a function, with data and a reply of these lengths.
    pub(super) fn call_function(&mut self, number: usize, lens: (usize, usize), patience: Duration) {
        let ground = Arc::clone(&self.ground);
        let name = named(number);
        let find = |client: &Client| client.service(&name, Some(LIMIT));
        let found = self.call("search of a service", LIMIT, find);
        let Ok(service) = found.map_err(|error| explained("search", &error)) else { return };
        let made =
            self.call("call of a function", patience, |_| ground.calls_made.call(&service, lens, patience));
        // The answers are compared with the model when all is calm.
        _ = made.map_err(|error| explained("call", &error));
    }
}

/// Checks that an error may come of faults, or of a full store.
fn explained(what: &str, error: &Error) {
    let fits = [
        ErrorKind::NotFound,
        ErrorKind::Lost,
        ErrorKind::Busy,
        ErrorKind::Full,
        ErrorKind::TimedOut,
        ErrorKind::Disconnected,
        ErrorKind::OutcomeUnknown,
        ErrorKind::Raised,
    ];
    assert!(fits.contains(&error.kind()), "{what}: {:?}: {error}", error.kind());
}

/// Checks that every node can call every service, and that no call was run more often than its caller was
/// told. Returns how many calls ended well.
pub(super) fn look(model: &CallModel, clients: &[Client]) -> usize {
    assert_eq!(clients.len(), NODES);
    for (client, name) in clients.iter().flat_map(|client| (0..SERVICES).map(move |one| (client, named(one))))
    {
        let called = patiently(PATIENCE, || {
            let service = client.service(&name, Some(LIMIT))?;
            model.call(&service, (100, 100), LIMIT)
        });
        called.unwrap_or_else(|error| panic!("service '{name}': {:?}: {error}", error.kind()));
    }
    model.check()
}
