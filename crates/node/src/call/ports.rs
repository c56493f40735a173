//! Ports: where calls wait for the threads of a server. Owns [`Port`] and [`Served`]. Engine thread only.
//!
//! A thread *receives* by a call by slot, which is parked at the port until a call comes. So a call is
//! handed out in one turn of the engine, and never lies in memory that other threads could write to.
//!
//! Invariants: a call is in one port, or a thread has it. If a call waits and a thread that may have
//! it is parked, at this port or at another of the service, one such thread was woken. A thread
//! takes the calls of its own port first, and then the calls that wait at the other ports of its
//! service. So no call waits for a process that hangs while another process has free threads. A port
//! that has ended has neither calls nor threads.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use futures::channel::oneshot;
use plasmon::service::{Allow, PING};
use plasmon::text::printable;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::incoming::Incoming;
use crate::kernel::ClientKey;
use crate::kernel::clock::Clock;

/// Maximum number of calls that wait at a port.
pub(super) const MAX_WAITING: usize = 1024;

/// The sender for a task that waits until the home knows of this node.
type Joining = oneshot::Sender<Result<(), Error>>;

/// A service as processes of this node serve it.
pub(super) struct Served {
    pub(super) name: String,
    pub(super) id: ObjectId,
    pub(super) owner: u32,
    pub(super) functions: Vec<String>,
    pub(super) ports: RefCell<Vec<Rc<Port>>>,
    /// The home of the name that knows of this node, and when it last said so.
    pub(super) joined: Cell<Option<(NodeId, Instant)>>,
    /// Joining ports that wait for the home; `None` while the home is not being asked.
    pub(super) joining: RefCell<Option<Vec<Joining>>>,
}

impl Served {
    /// Whether processes of this node serve the service, or are about to.
    pub(super) fn is_wanted(&self) -> bool {
        !self.ports.borrow().is_empty() || self.joined.get().is_some() || self.joining.borrow().is_some()
    }

    /// Returns the number of a function.
    ///
    /// # Errors
    /// `Invalid`, with the names of the functions.
    pub(super) fn function(&self, name: &str) -> Result<u16, Error> {
        if name.is_empty() {
            return Ok(PING);
        }
        let at = self.functions.iter().position(|function| function == name);
        at.map(|at| at as u16).ok_or_else(|| {
            let functions = self.functions.iter().map(|one| printable(one)).collect::<Vec<_>>().join(", ");
            let (name, service) = (printable(name), printable(&self.name));
            let text = format!("service '{service}' has no function '{name}': it has {functions}");
            Error::new(ErrorKind::Invalid, text)
        })
    }

    /// Returns the name of a function, for errors.
    pub(super) fn name_of(&self, function: u16) -> &str {
        self.functions.get(usize::from(function)).map_or("ping", String::as_str)
    }

    /// Returns the port for another call of a user: one with parked threads, or else the one at which the
    /// fewest calls wait. `None` if there are no servers.
    ///
    /// # Errors
    /// `NotAllowed` if no server lets the user call, `Busy` if too many calls wait already.
    pub(super) fn port_for(&self, user: u32, now: Instant) -> Result<Option<Rc<Port>>, Error> {
        let ports = self.ports.borrow();
        if ports.is_empty() {
            return Ok(None);
        }
        let name = printable(&self.name);
        let allowed = ports.iter().filter(|port| port.allow.permits(self.owner, user));
        let Some(port) = allowed.min_by_key(|port| port.load()) else {
            let text = format!("user {user} may not call service '{name}': its servers do not allow it");
            return Err(Error::new(ErrorKind::NotAllowed, text));
        };
        if !port.has_room(now) {
            let text = format!("{MAX_WAITING} calls wait for service '{name}' already; let some of them end");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        Ok(Some(Rc::clone(port)))
    }
}

/// A place at which calls wait for the threads of one client.
pub(super) struct Port {
    pub(super) number: u32,
    pub(super) client: ClientKey,
    pub(super) served: Rc<Served>,
    allow: Allow,
    waiting: RefCell<VecDeque<Rc<Incoming>>>,
    parked: RefCell<VecDeque<oneshot::Sender<()>>>,
    ended: RefCell<Option<Error>>,
}

/// A thread that is parked at a port.
struct Parked<'a> {
    port: &'a Port,
    woken: oneshot::Receiver<()>,
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        // This thread was woken and gives up, so the call is for another thread.
        if matches!(self.woken.try_recv(), Ok(Some(()))) {
            self.port.pass_on();
        }
    }
}

impl Port {
    pub(super) fn new(number: u32, client: ClientKey, served: &Rc<Served>, allow: Allow) -> Rc<Self> {
        Rc::new(Self {
            number,
            client,
            served: Rc::clone(served),
            allow,
            waiting: RefCell::default(),
            parked: RefCell::default(),
            ended: RefCell::default(),
        })
    }

    /// Returns the number of calls that wait here, minus the number of parked threads.
    fn load(&self) -> isize {
        self.parked.borrow_mut().retain(|parked| !parked.is_canceled());
        self.waiting.borrow().len() as isize - self.parked.borrow().len() as isize
    }

    /// Number of calls that wait.
    pub(super) fn count(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Whether another call may wait. If too many wait, drops those that need no answer any more.
    fn has_room(&self, now: Instant) -> bool {
        if self.count() >= MAX_WAITING {
            self.drop_late(now);
        }
        self.count() < MAX_WAITING
    }

    /// Drops the calls whose time is over, or whose callers have gone.
    pub(super) fn drop_late(&self, now: Instant) {
        let all = self.waiting.take();
        let (waiting, late): (VecDeque<_>, VecDeque<_>) =
            all.into_iter().partition(|call| is_wanted(call, now));
        self.waiting.replace(waiting);
        late.iter().for_each(|call| call.refuse_late());
    }

    /// Adds a call behind the others.
    pub(super) fn enter(&self, call: Rc<Incoming>) {
        if call.body.bytes().is_some() {
            call.accept();
        }
        self.waiting.borrow_mut().push_back(call);
        self.wake();
    }

    /// Puts back a call that a thread took and could not be given.
    pub(super) fn put_back(&self, call: Rc<Incoming>) {
        self.waiting.borrow_mut().push_front(call);
        self.wake();
    }

    /// Wakes a thread if a call waits: a thread of this port, or else one of another port that may
    /// have the call.
    fn wake(&self) {
        if self.waiting.borrow().is_empty() || self.wake_own() {
            return;
        }
        let ports = self.served.ports.borrow();
        let waiting = self.waiting.borrow();
        let parked = ports.iter().filter(|port| !port.parked.borrow().is_empty());
        let mut may_have = parked.filter(|port| waiting.iter().any(|call| port.may_have(call)));
        may_have.any(|port| port.wake_own());
    }

    /// Wakes a thread of this port; `false` if none is parked.
    fn wake_own(&self) -> bool {
        let mut parked = self.parked.borrow_mut();
        std::iter::from_fn(|| parked.pop_front()).any(|thread| thread.send(()).is_ok())
    }

    /// Wakes threads for the calls that wait at all ports of the service, because a woken thread takes none.
    fn pass_on(&self) {
        self.served.ports.borrow().iter().for_each(|port| port.wake());
    }

    /// Whether the threads of this port may have a call.
    fn may_have(&self, call: &Incoming) -> bool {
        self.allow.permits(self.served.owner, call.user)
    }

    /// Takes the next call for a thread of this port.
    fn take(&self) -> Option<Rc<Incoming>> {
        let own = self.waiting.borrow_mut().pop_front();
        own.or_else(|| self.served.ports.borrow().iter().find_map(|port| port.hand_to(self)))
    }

    /// Takes the first call that waits here and that another port of the service may have.
    fn hand_to(&self, other: &Self) -> Option<Rc<Incoming>> {
        let mut waiting = self.waiting.borrow_mut();
        let at = waiting.iter().position(|call| other.may_have(call))?;
        waiting.remove(at)
    }

    /// Waits for a call. Calls that are not wanted any more are passed over.
    ///
    /// # Errors
    /// The error of the port, once the port has ended.
    pub(super) async fn next(&self, clock: &Clock) -> Result<Rc<Incoming>, Error> {
        loop {
            if let Some(error) = &*self.ended.borrow() {
                return Err(error.clone());
            }
            let now = clock.now();
            while let Some(call) = self.take() {
                if is_wanted(&call, now) {
                    return Ok(call);
                }
                call.refuse_late();
            }
            let (sender, woken) = oneshot::channel();
            self.parked.borrow_mut().push_back(sender);
            let mut parked = Parked { port: self, woken };
            // A dropped sender means that the port has ended.
            _ = (&mut parked.woken).await;
        }
    }

    /// Ends the port: parked threads fail with the error `why`. Returns the calls that wait.
    pub(super) fn end(&self, why: Error) -> VecDeque<Rc<Incoming>> {
        self.ended.borrow_mut().get_or_insert(why);
        let parked = self.parked.take();
        drop(parked);
        let waiting = self.waiting.take();
        // A thread of this port that was woken for a call at another port does not come.
        self.pass_on();
        waiting
    }
}

fn is_wanted(call: &Incoming, now: Instant) -> bool {
    now < call.due && !call.caller_gone()
}

#[cfg(test)]
mod tests;
