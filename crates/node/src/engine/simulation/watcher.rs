//! A client of a simulation that has subscribed to the whole cluster: from its events it knows what each node
//! has, whatever happened to the nodes.

use std::rc::Rc;
use std::time::Duration;

use plasmon::wire::{Event, Reply, Request};
use plasmon::{NodeId, ObjectId};

use super::Simulation;
use super::worker::Replies;
use crate::kernel::ClientKey;
use crate::kernel::random::{HashMap, HashSet};
use crate::service::{Asked, Session};
use crate::sessions::client::Client;

/// Longest time until all nodes know that nobody watches any more.
const ENDING_TIME: Duration = Duration::from_secs(3);

/// The watcher and its connection.
#[derive(Default)]
pub(super) struct Watcher {
    host: usize,
    /// Number of the start of the host's node to which the watcher is connected.
    start: u64,
    session: Rc<Replies>,
    key: Option<ClientKey>,
    /// For each node, the objects that the node has according to its events.
    told: HashMap<NodeId, HashSet<ObjectId>>,
    /// Number of gaps that the watcher was told.
    pub(super) gaps: usize,
    /// Descriptions of events that break a promise.
    wrong: Vec<String>,
}

impl Watcher {
    /// Makes a watcher on a host, which connects as soon as the host has a node.
    pub(super) fn on(host: usize) -> Self {
        Self { host, ..Self::default() }
    }

    fn connect(&mut self, simulation: &Simulation) {
        let host = &simulation.hosts[self.host];
        let Some(core) = host.core() else { return };
        (self.start, self.session) = (host.starts, Rc::default());
        self.told.clear();
        let session = core.sessions.next_key();
        self.key = Some(session);
        let client = Client::new(Rc::clone(&self.session) as Rc<dyn Session>, 0, simulation.time.instant());
        core.sessions.clients.borrow_mut().insert(session, client);
        let requests = [Request::Hello { name: "watcher".into() }, Request::Subscribe { cluster: true }];
        for (number, request) in (1..).zip(requests) {
            host.ask(Asked { session, number, request, file: None });
        }
    }

    fn hear(&mut self, simulation: &Simulation) {
        let host = &simulation.hosts[self.host];
        if host.starts != self.start && host.serves() {
            self.connect(simulation);
        }
        loop {
            let reply = self.session.0.borrow_mut().pop_front();
            let Some((_, reply)) = reply else { return };
            match reply {
                Reply::Hello { .. } => {}
                Reply::Events { node, events } => events.into_iter().for_each(|event| self.note(node, event)),
                other => self.wrong.push(format!("the watcher was told {other:?}")),
            }
        }
    }

    fn note(&mut self, node: NodeId, event: Event) {
        let told = self.told.entry(node).or_default();
        match event {
            Event::Sealed { id, .. } => {
                if !told.insert(id) {
                    self.wrong.push(format!("the watcher was told twice that node {node} has {id}"));
                }
            }
            // The former object may have been on other nodes alone, or have gone from this one before.
            Event::Replaced { id, .. } => _ = told.insert(id),
            // An object that went before its first event is not there.
            Event::Deleted { id, .. } => _ = told.remove(&id),
            Event::Gap { missed: 0 } => {
                told.clear();
                self.gaps += 1;
            }
            Event::Gap { missed } => self.wrong.push(format!("the watcher missed {missed} events")),
        }
    }
}

impl Simulation {
    /// Has the watcher take in the events that it was sent.
    pub(super) fn hear_watcher(&mut self) {
        let mut watcher = std::mem::take(&mut self.watcher);
        watcher.hear(self);
        self.watcher = watcher;
    }

    /// Ends the watcher's connection, in the middle of its subscription.
    pub(super) fn end_watcher(&mut self) {
        let host = &self.hosts[self.watcher.host];
        let core = host.core().filter(|_| host.starts == self.watcher.start);
        if let (Some(core), Some(key)) = (core, self.watcher.key.take()) {
            core.sessions.let_go(key, "it has seen enough");
        }
        self.pass(ENDING_TIME);
    }

    /// Checks that the watcher knows what each node has.
    pub(super) fn check_watcher(&mut self) -> Vec<String> {
        let watcher = &mut self.watcher;
        let mut wrong = std::mem::take(&mut watcher.wrong);
        let host = &self.hosts[watcher.host];
        if !host.is_alive() || host.starts != watcher.start {
            return wrong;
        }
        let mut told = watcher.told.clone();
        for host in &self.hosts {
            let Some(core) = host.core() else { continue };
            let told = told.remove(&core.kernel.node).unwrap_or_default();
            let has: HashSet<_> = core.store.objects.borrow().sealed().map(|one| one.id()).collect();
            if told != has {
                wrong.push(format!(
                    "the watcher was told that node {} has {told:?}, not {has:?}",
                    host.number
                ));
            }
        }
        let gone = told.into_iter().filter(|(_, told)| !told.is_empty());
        wrong.extend(gone.map(|(node, told)| format!("the watcher believes that {node} still has {told:?}")));
        wrong
    }
}
