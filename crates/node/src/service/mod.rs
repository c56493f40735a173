//! The seam: what a subsystem of the node is, and how frames, requests and events reach it.
//!
//! Owns the list of [`Service`]s and the last report. Engine thread only. A subsystem is a service. The
//! engine registers all services once, in one place, lowest floor first; events reach them in that order.
//!
//! Invariants: each service has its own ranges of frames, requests and calls; overlap is an error at the
//! start. No service touches the state of another. This room knows no service: it stands below all of them,
//! so that a service can reach the others' reports without an import that points up.

mod calls;
mod reports;
mod session;

use std::cell::RefCell;
use std::future::Future;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plasmon::shared::CallRequest;
use plasmon::status::Status;
use plasmon::wire::{Reply, Request, Table, WireError};
use plasmon::{Error, NodeId};

pub(crate) use self::calls::Return;
use self::reports::Recent;
pub(crate) use self::session::Session;
use crate::kernel::{ClientKey, Kernel, class};
use crate::membership::views::Change;
use crate::net::frame::Envelope;
use crate::net::network::Network;

/// The range of a service that has no frames, no requests or no calls.
pub(crate) const NONE: RangeInclusive<u8> = RangeInclusive::new(1, 0);

/// One concern of a node, driven by the engine thread. No method waits: a method that has to wait spawns a
/// task.
pub(crate) trait Service {
    /// The name of the service, for logs, errors and reports.
    fn name(&self) -> &'static str;

    /// Opcodes of this service's frames between nodes, the answers included.
    fn frames(&self) -> RangeInclusive<u8> {
        NONE
    }

    /// Opcodes of the clients' requests that this service answers.
    fn requests(&self) -> RangeInclusive<u8> {
        NONE
    }

    /// Opcodes of the calls by slot that this service carries out.
    fn calls(&self) -> RangeInclusive<u8> {
        NONE
    }

    /// Acts on a member's frame, or on an answer for which nobody waits any more.
    ///
    /// # Errors
    /// When no member sends such a frame: the sender is blamed for the frame.
    fn on_frame(self: Rc<Self>, frame: Envelope) -> Result<(), WireError> {
        Err(WireError::Opcode(frame.message.opcode()))
    }

    /// Answers a client's request, or begins the task that will answer.
    ///
    /// # Errors
    /// When no client sends such a request: the connection ends.
    fn on_request(self: Rc<Self>, asked: Asked) -> Result<Answer, WireError> {
        Err(WireError::Opcode(asked.request.opcode()))
    }

    /// Carries out a client's call by slot, or begins the task that will.
    fn on_call(self: Rc<Self>, _: ClientKey, request: CallRequest) -> Return {
        Return::unknown(request.opcode)
    }

    /// Follows a change of the members. For members that have gone, [`Service::on_gone`] was called before.
    fn on_change(self: Rc<Self>, _: &Change) {}

    /// Gives up what concerns peers that are gone, or were cut off.
    fn on_gone(&self, _: &[NodeId]) {}

    /// Gives up what a session had that has ended.
    fn on_session_end(&self, _: ClientKey) {}

    /// Takes note of a peer's write, by the number that came with the write and the number of bytes. `false`
    /// if the write was not into memory of this service.
    fn on_remote_write(&self, _: u32, _: usize) -> bool {
        false
    }

    /// Does the work that depends on time. The engine calls this once a second.
    fn on_tick(self: Rc<Self>, _: Instant) {}

    /// Finishes a turn of the engine, by sending what has gathered. Returns whether there is more to do at
    /// once.
    fn on_turn_end(self: Rc<Self>) -> bool {
        false
    }

    /// Longest time that the engine may sleep before the end of the next turn, beside timers.
    fn due(&self) -> Option<Duration> {
        None
    }

    /// Enters this service's part of the report.
    fn report(&self, _: &mut Status) {}

    /// Reason why this service keeps the node from serving as it should; `None` if there is none.
    fn unfit(&self) -> Option<String> {
        None
    }
}

/// A client's request.
pub(crate) struct Asked {
    /// The session of the client.
    pub(crate) session: ClientKey,
    /// The number of the request, which its answer bears.
    pub(crate) number: u64,
    pub(crate) request: Request,
    /// The descriptor that came with the request.
    pub(crate) file: Option<OwnedFd>,
}

/// A reply with the descriptors that it announces, or the error that the client is told.
pub(crate) type Outcome = Result<(Reply, Vec<Arc<OwnedFd>>), Error>;

/// Answer to a request, or the task that finds it.
#[expect(clippy::large_enum_variant, reason = "it is made and taken in one turn, and none is kept")]
pub(crate) enum Answer {
    /// The answer is there.
    Now(Outcome),
    /// A task finds the answer. The task ends with its session, and counts as `weight` simple requests until
    /// then.
    Later {
        /// Number of simple requests that weigh as much as the task.
        weight: usize,
        /// The task.
        task: Pin<Box<dyn Future<Output = Outcome>>>,
    },
    /// The service answers by itself, or there is no answer.
    Silent,
}

impl Answer {
    /// Returns an answer without descriptors that is there already.
    pub(crate) fn now(reply: Result<Reply, Error>) -> Self {
        Self::Now(reply.map(|reply| (reply, Vec::new())))
    }

    /// Returns the answer of a task that weighs as much as `weight` simple requests.
    pub(crate) fn later(weight: usize, task: impl Future<Output = Outcome> + 'static) -> Self {
        Self::Later { weight, task: Box::pin(task) }
    }

    /// Returns the answer of a task that weighs as much as `weight` simple requests. The answer has no
    /// descriptors.
    pub(crate) fn plain(weight: usize, task: impl Future<Output = Result<Reply, Error>> + 'static) -> Self {
        Self::later(weight, async move { Ok((task.await?, Vec::new())) })
    }
}

/// Two services that both claim an opcode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {opcode} belongs to the services {one:?} and {other:?}: give one of them another range")]
pub struct Overlap {
    kind: &'static str,
    opcode: u8,
    one: &'static str,
    other: &'static str,
}

/// All services of a node, and the service of each opcode.
pub(crate) struct Services {
    kernel: Rc<Kernel>,
    network: Rc<Network>,
    registered: RefCell<Rc<Registered>>,
    recent: RefCell<Option<Recent>>,
}

/// Services, lowest floor first, and for each opcode the place of its service in the list.
struct Registered {
    services: Vec<Rc<dyn Service>>,
    frames: [Option<u8>; 256],
    requests: [Option<u8>; 256],
    calls: [Option<u8>; 256],
}

impl Registered {
    fn none() -> Self {
        Self { services: Vec::new(), frames: [None; 256], requests: [None; 256], calls: [None; 256] }
    }
}

impl Services {
    /// Makes the list of a node's services, which is empty.
    pub(crate) fn new(kernel: &Rc<Kernel>, network: &Rc<Network>) -> Self {
        Self {
            kernel: Rc::clone(kernel),
            network: Rc::clone(network),
            registered: RefCell::new(Rc::new(Registered::none())),
            recent: RefCell::default(),
        }
    }

    /// Registers all services, lowest floor first.
    ///
    /// # Errors
    /// When two of them claim one opcode.
    pub(crate) fn register(&self, services: Vec<Rc<dyn Service>>) -> Result<(), Overlap> {
        let frames = places(&services, "frame", |service| service.frames())?;
        let requests = places(&services, "request", |service| service.requests())?;
        let calls = places(&services, "call", |service| service.calls())?;
        self.registered.replace(Rc::new(Registered { services, frames, requests, calls }));
        Ok(())
    }

    /// Drops all services, at the end of the node.
    pub(crate) fn clear(&self) {
        let services = self.registered.replace(Rc::new(Registered::none()));
        drop(services);
    }

    fn registered(&self) -> Rc<Registered> {
        Rc::clone(&self.registered.borrow())
    }

    /// Hands a frame to its service.
    pub(crate) fn on_frame(&self, frame: Envelope) {
        let (from, incarnation, opcode) = (frame.from, frame.incarnation, frame.message.opcode());
        let registered = self.registered();
        let acted = match registered.frames[usize::from(opcode)] {
            _ if frame.is_misdirected() => {
                Err(WireError::Malformed("frame whose answer is for another node"))
            }
            Some(at) => {
                let service = Rc::clone(&registered.services[usize::from(at)]);
                class::within(frame.class, || service.on_frame(frame))
            }
            // An answer without an opcode of a service, for which nobody waits any more.
            None if frame.is_answer() => Ok(()),
            None => Err(WireError::Opcode(opcode)),
        };
        if let Err(error) = acted {
            self.network.drop_frame(&error.to_string());
            self.network.blame(from, incarnation, self.kernel.clock.now());
        }
    }

    /// Hands a request to its service.
    ///
    /// # Errors
    /// When no client sends such a request.
    pub(crate) fn on_request(&self, asked: Asked) -> Result<Answer, WireError> {
        let registered = self.registered();
        let opcode = asked.request.opcode();
        match registered.requests[usize::from(opcode)] {
            Some(at) => Rc::clone(&registered.services[usize::from(at)]).on_request(asked),
            None => Err(WireError::Opcode(opcode)),
        }
    }

    /// Hands a call by slot to its service.
    pub(crate) fn on_call(&self, session: ClientKey, request: CallRequest) -> Return {
        let registered = self.registered();
        match registered.calls[usize::from(request.opcode)] {
            Some(at) => Rc::clone(&registered.services[usize::from(at)]).on_call(session, request),
            None => Return::unknown(request.opcode),
        }
    }

    /// Tells all services of a change of the members.
    pub(crate) fn on_change(&self, change: &Change) {
        self.on_gone(match change {
            Change::View(view) => view.gone.as_slice(),
            Change::Records | Change::FormerLives(_) => &[],
            Change::Fenced { gone } => gone,
        });
        self.each(|service| service.on_change(change));
    }

    /// Tells all services of peers that are gone, or were cut off.
    pub(crate) fn on_gone(&self, gone: &[NodeId]) {
        if !gone.is_empty() {
            self.each(|service| service.on_gone(gone));
        }
    }

    /// Tells all services of the end of a session.
    pub(crate) fn on_session_end(&self, session: ClientKey) {
        self.each(|service| service.on_session_end(session));
    }

    /// Tells the services of a peer's write into this node's memory, until one says that the memory is its
    /// own.
    pub(crate) fn on_remote_write(&self, immediate: u32, len: usize) {
        let registered = self.registered();
        if !registered.services.iter().any(|service| service.on_remote_write(immediate, len)) {
            self.network.drop_frame("an unexpected remote write");
        }
    }

    /// Has all services do the work that depends on time.
    pub(crate) fn on_tick(&self, now: Instant) {
        self.each(|service| service.on_tick(now));
    }

    /// Has all services finish a turn. Returns whether one of them has more to do at once.
    pub(crate) fn on_turn_end(&self) -> bool {
        let mut more = false;
        self.each(|service| more |= service.on_turn_end());
        more
    }

    /// Longest time that the engine may sleep, as far as services are concerned.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.registered().services.iter().filter_map(|service| service.due()).min()
    }

    /// Table in Markdown of the services, lowest floor first, and of the numbers that are each one's.
    #[cfg(test)]
    pub(crate) fn page(&self) -> String {
        let words = |range: RangeInclusive<u8>| match range.is_empty() {
            true => String::new(),
            false => format!("{} to {}", range.start(), range.end()),
        };
        let row = |service: &Rc<dyn Service>| {
            let [frames, requests, calls] =
                [service.frames(), service.requests(), service.calls()].map(words);
            format!("| {} | {frames} | {requests} | {calls} |\n", service.name())
        };
        let rows: String = self.registered().services.iter().map(row).collect();
        format!("| service | frames | requests | calls |\n|---|---|---|---|\n{rows}")
    }

    fn each(&self, mut act: impl FnMut(Rc<dyn Service>)) {
        self.registered().services.iter().for_each(|service| act(Rc::clone(service)));
    }
}

/// Returns for each opcode the place of its service in the list.
fn places(
    services: &[Rc<dyn Service>],
    kind: &'static str,
    range: impl Fn(&Rc<dyn Service>) -> RangeInclusive<u8>,
) -> Result<[Option<u8>; 256], Overlap> {
    let mut places: [Option<u8>; 256] = [None; 256];
    for (at, service) in services.iter().enumerate() {
        for opcode in range(service) {
            if let Some(before) = places[usize::from(opcode)].replace(at as u8) {
                let (one, other) = (services[usize::from(before)].name(), service.name());
                return Err(Overlap { kind, opcode, one, other });
            }
        }
    }
    Ok(places)
}
