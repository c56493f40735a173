//! News between this node and the homes of names: of its own servers, and of other nodes' servers.
//! Owns [`Handles`]. Engine thread only.
//!
//! Invariant: a node that has ports of a name joins its home, again and again, so that no loss of a message,
//! of a view or of a home lasts. If no node keeps the name, one of the nodes that serve it takes it.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use plasmon::service::service_id;
use plasmon::text::printable;
use plasmon::wire::Reply;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};
use tracing::{debug, warn};

use super::Calls;
use super::frames::{CallFrame, ask};
use super::ports::Served;
use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;
use crate::object::DEEDS;

/// How long another node may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// How long this node tries to join or to take a name, before the server is told why that failed.
const JOIN_PATIENCE: Duration = Duration::from_secs(30);
/// The shortest and the longest pause before a name is tried again, and before a service is looked for again.
const PAUSE: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(200)];
/// How often a home is told again that this node has servers.
const JOIN_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How long the answer of a name's home is used before the home is asked again.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// Maximum number of handles of a client.
const MAX_HANDLES: usize = 1 << 16;

/// A service, as this node knows it for its clients.
pub(super) struct Known {
    pub(super) name: String,
    pub(super) id: ObjectId,
    pub(super) owner: u32,
    pub(super) functions: Vec<String>,
    /// The nodes that have servers.
    pub(super) nodes: RefCell<Vec<NodeId>>,
    asked: Cell<Instant>,
    asking: Cell<bool>,
}

/// The services that clients have handles to.
#[derive(Default)]
pub(super) struct Handles {
    clients: RefCell<HashMap<ClientKey, Own>>,
    known: RefCell<HashMap<ObjectId, Weak<Known>>>,
}

/// The handles of one client.
#[derive(Default)]
struct Own {
    handles: HashMap<u32, Rc<Known>>,
    last: u32,
}

impl Handles {
    /// Returns the service of a client's handle.
    ///
    /// # Errors
    /// `Invalid` if the client has no such handle.
    pub(super) fn get(&self, client: ClientKey, number: u32) -> Result<Rc<Known>, Error> {
        let clients = self.clients.borrow();
        clients.get(&client).and_then(|own| own.handles.get(&number)).cloned().ok_or_else(|| {
            let text = format!("this client has no service under handle {number}: find it first");
            Error::new(ErrorKind::Invalid, text)
        })
    }

    /// Ends a handle.
    pub(super) fn close(&self, client: ClientKey, number: u32) {
        if let Some(own) = self.clients.borrow_mut().get_mut(&client) {
            own.handles.remove(&number);
        }
    }

    /// Makes a handle to a service.
    ///
    /// # Errors
    /// `Busy` if the client has too many handles.
    fn open(&self, client: ClientKey, known: Rc<Known>) -> Result<u32, Error> {
        let mut clients = self.clients.borrow_mut();
        let own = clients.entry(client).or_default();
        if own.handles.len() >= MAX_HANDLES || own.last == u32::MAX {
            let text =
                format!("this client has {MAX_HANDLES} services, or had 2^32: leave some, or connect again");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        own.last += 1;
        own.handles.insert(own.last, known);
        Ok(own.last)
    }

    /// Ends all handles of a client.
    pub(super) fn close_all(&self, client: ClientKey) {
        self.clients.borrow_mut().remove(&client);
    }

    /// Forgets the services to which no client has a handle.
    pub(super) fn tidy(&self) {
        self.known.borrow_mut().retain(|_, known| known.strong_count() > 0);
    }

    /// Takes note of nodes that have gone, and so have no servers.
    pub(super) fn lose(&self, gone: &[NodeId]) {
        for known in self.known.borrow().values().filter_map(Weak::upgrade) {
            known.nodes.borrow_mut().retain(|node| !gone.contains(node));
        }
    }
}

/// Makes the error of a search that a node held up for as long as the caller waits.
fn unanswered(name: &str) -> Error {
    let text = format!(
        "service '{}' was not found within the time-out: the node that knows who serves it does not answer; \
         `plasmon status --cluster` says which nodes are silent",
        printable(name)
    );
    Error::new(ErrorKind::TimedOut, text)
}

impl Calls {
    /// Has this node join the home of a name. Each of several tasks that ask for this at once is
    /// told the outcome.
    pub(super) fn begin_join(self: &Rc<Self>, served: &Rc<Served>) -> oneshot::Receiver<Result<(), Error>> {
        let (sender, told) = oneshot::channel();
        let mut joining = served.joining.borrow_mut();
        if let Some(waiting) = &mut *joining {
            waiting.push(sender);
            return told;
        }
        *joining = Some(vec![sender]);
        drop(joining);
        let (calls, served) = (Rc::clone(self), Rc::clone(served));
        self.kernel.spawn(async move {
            let joined = calls.join(&served).await;
            calls.note_joined(&served, joined);
        });
        told
    }

    fn note_joined(&self, served: &Rc<Served>, joined: Result<NodeId, Error>) {
        let waiting = served.joining.take().unwrap_or_default();
        served.joined.set(joined.as_ref().ok().map(|home| (*home, self.kernel.clock.now())));
        if let Err(error) = &joined {
            let name = printable(&served.name);
            if matches!(error.kind(), ErrorKind::NotAllowed | ErrorKind::Invalid) {
                // Another user has the name by now, or with other functions.
                let ports = served.ports.borrow().clone();
                if !ports.is_empty() {
                    warn!("the servers of service '{name}' on this node are closed: {error}");
                }
                ports.iter().for_each(|port| self.close(port, error.clone()));
                self.serving.forget(served);
            } else {
                debug!("service '{name}' is not known to its home: {error}");
            }
        }
        for sender in waiting {
            // The waiting task may have gone.
            _ = sender.send(joined.as_ref().map(|_| ()).map_err(Clone::clone));
        }
    }

    async fn join(self: &Rc<Self>, served: &Served) -> Result<NodeId, Error> {
        let due = self.kernel.clock.now() + JOIN_PATIENCE;
        let [mut pause, longest] = PAUSE;
        loop {
            match self.try_join(served).await {
                Err(error) => {
                    let is_final =
                        matches!(error.kind(), ErrorKind::NotAllowed | ErrorKind::Invalid | ErrorKind::Full);
                    if is_final || self.kernel.clock.now() + pause >= due {
                        return Err(error);
                    }
                }
                home => return home,
            }
            self.kernel.clock.sleep(pause).await;
            pause = longest.min(pause * 2);
        }
    }

    /// Joins the home of a name, or takes the name; returns the home.
    async fn try_join(self: &Rc<Self>, served: &Served) -> Result<NodeId, Error> {
        let Served { name, id, owner, functions, .. } = served;
        let here = self.kernel.node;
        if self.names.keeps(id) {
            return self.names.join(here, id, *owner, functions).map(|()| here);
        }
        for home in self.homes_of(id).await? {
            let question = ask::Join { id: *id, owner: *owner, functions: functions.clone() };
            match self.network.ask(home, *owner, question, ANSWER_PATIENCE).await {
                Ok(ask::Joined) => return Ok(home),
                // A keeper that was away may know of a former home.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.names.take(name, *owner, functions).await.map(|()| here)
    }

    /// Returns the nodes other than this one that may be the home of a name, as far as the keepers
    /// of its id know.
    async fn homes_of(&self, id: &ObjectId) -> Result<Vec<NodeId>, Error> {
        if self.cluster.solo() {
            return Ok(Vec::new());
        }
        match self.directory.holders(*id, DEEDS).await {
            Ok(holders) => {
                Ok(holders.iter().map(|(node, _)| *node).filter(|node| *node != self.kernel.node).collect())
            }
            Err(error) if error.kind() == ErrorKind::Lost => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Tells the home of a name that this node has no servers any more.
    pub(super) fn part(&self, served: &Rc<Served>) {
        match served.joined.take() {
            Some((home, _)) if home == self.kernel.node => self.names.part(&[home], &served.id),
            Some((home, _)) => {
                // A home that has gone knows no servers.
                self.network.tell(home, CallFrame::Part { id: served.id });
            }
            None => {}
        }
        self.serving.forget(served);
    }

    /// Joins again the homes that may not know of this node.
    pub(super) fn join_again(self: &Rc<Self>, now: Instant) {
        for served in self.serving.all() {
            if served.ports.borrow().is_empty() {
                if served.joining.borrow().is_none() {
                    self.part(&served);
                }
                continue;
            }
            let is_known = served.joined.get().is_some_and(|(home, at)| {
                let keeps = home != self.kernel.node || self.names.keeps(&served.id);
                keeps && now.saturating_duration_since(at) < JOIN_AGAIN_AFTER
            });
            if !is_known && served.joining.borrow().is_none() {
                drop(self.begin_join(&served));
            }
        }
    }

    /// Follows the end of nodes. If a home has gone, this node joins another one or becomes the home.
    pub(super) fn rejoin(self: &Rc<Self>, gone: &[NodeId]) {
        for served in self.serving.all() {
            if served.joined.get().is_some_and(|(home, _)| gone.contains(&home)) {
                served.joined.set(None);
            }
        }
        self.join_again(self.kernel.clock.now());
    }

    /// Makes a handle to a service that there is, or will be in time.
    pub(super) async fn find(
        self: Rc<Self>,
        client: ClientKey,
        name: String,
        owner: Option<u32>,
        timeout_us: u64,
    ) -> Result<Reply, Error> {
        let (user, due) = (self.user(client), self.sessions.due(timeout_us));
        // A time-out of 0 does not end the search: the call waits for nodes that are slow to answer, and not
        // for a server to come.
        let last = due.filter(|_| timeout_us > 0);
        let [mut pause, longest] = PAUSE;
        let mut missed = None;
        let known = loop {
            let sought = self.kernel.clock.bounded(last, self.seek(&name, owner, user)).await;
            match sought.unwrap_or_else(|| Err(missed.take().unwrap_or_else(|| unanswered(&name)))) {
                Ok(known) => break known,
                Err(error) => {
                    let is_over = due.is_some_and(|due| self.kernel.clock.now() + pause > due);
                    // A silent keeper of the name, or its silent home, may still answer, or leave
                    // the cluster.
                    let may_come = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::TimedOut);
                    if !may_come || is_over {
                        return Err(error);
                    }
                    missed = Some(error);
                }
            }
            self.kernel.clock.sleep(pause).await;
            pause = longest.min(pause * 2);
        };
        let (owner, functions) = (known.owner, known.functions.clone());
        let service = self.handles.open(client, known)?;
        Ok(Reply::ServiceFound { service, owner, functions })
    }

    /// Finds a service, and notes the answer of its home.
    async fn seek(self: &Rc<Self>, name: &str, owner: Option<u32>, user: u32) -> Result<Rc<Known>, Error> {
        let id = service_id(name);
        let told = self.ask_home(name, owner, user).await?;
        let ask::Sought { owner, functions, nodes } = told;
        let now = self.kernel.clock.now();
        let former = self.handles.known.borrow().get(&id).and_then(Weak::upgrade);
        if let Some(known) = former.filter(|one| one.owner == owner && one.functions == functions) {
            known.nodes.replace(nodes);
            known.asked.set(now);
            return Ok(known);
        }
        let known = Rc::new(Known {
            name: name.to_owned(),
            id,
            owner,
            functions,
            nodes: RefCell::new(nodes),
            asked: Cell::new(now),
            asking: Cell::default(),
        });
        self.handles.known.borrow_mut().insert(id, Rc::downgrade(&known));
        Ok(known)
    }

    async fn ask_home(
        self: &Rc<Self>,
        name: &str,
        owner: Option<u32>,
        user: u32,
    ) -> Result<ask::Sought, Error> {
        let id = service_id(name);
        if self.names.keeps(&id) {
            return self.names.sought(&id, owner, user);
        }
        for home in self.homes_of(&id).await? {
            match self.network.ask(home, user, ask::Seek { id, owner }, ANSWER_PATIENCE).await {
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Disconnected) => {}
                told => return told,
            }
        }
        // A process of this node may have taken the name meanwhile.
        if self.names.keeps(&id) {
            return self.names.sought(&id, owner, user);
        }
        let text = format!("there is no service '{}': no process of the cluster serves it", printable(name));
        Err(Error::new(ErrorKind::NotFound, text))
    }

    /// Asks the home of a service again which nodes have servers.
    ///
    /// # Errors
    /// As [`Calls::find`]. `Invalid` if the service has other functions now.
    pub(super) async fn refresh(self: &Rc<Self>, known: &Rc<Known>) -> Result<(), Error> {
        let told = self.ask_home(&known.name, Some(known.owner), known.owner).await;
        known.asked.set(self.kernel.clock.now());
        let told = told?;
        if told.functions != known.functions {
            let name = printable(&known.name);
            let text = format!("service '{name}' is served with other functions now: find it again");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        known.nodes.replace(told.nodes);
        Ok(())
    }

    /// Has the home of a service asked again if its last answer is old. The last answer is used meanwhile.
    pub(super) fn refresh_soon(self: &Rc<Self>, known: &Rc<Known>) {
        let age = self.kernel.clock.now().saturating_duration_since(known.asked.get());
        if age < KNOWN_FOR || known.asking.replace(true) {
            return;
        }
        let (calls, known) = (Rc::clone(self), Rc::clone(known));
        self.kernel.spawn(async move {
            // If this fails, the last answer is used on, and a call that finds no server asks by itself.
            _ = calls.refresh(&known).await;
            known.asking.set(false);
        });
    }
}
