//! The seam: what a subsystem of the node is, and how frames, requests and events reach it.
//!
//! Engine thread only. A subsystem is a [`Service`]. The engine registers all services once, in one place,
//! lowest floor first; events reach them in that order. A service has a range of frames and a range of
//! requests of its own; overlap is an error at the start. What a service owns, no other service touches.
//!
//! This room knows no service. It stands below all of them, so that a service can reach the others' reports
//! without an import that points up.

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

/// The range of a service that has no frames, or no requests.
pub(crate) const NONE: RangeInclusive<u8> = RangeInclusive::new(1, 0);

/// One concern of a node, driven by the engine thread. Nothing in it waits: what has to wait is spawned.
pub(crate) trait Service {
    /// The name of the service, for logs, errors and reports.
    fn name(&self) -> &'static str;

    /// Opcodes of the frames between nodes that are this service's. Its answers are among them.
    fn frames(&self) -> RangeInclusive<u8> {
        NONE
    }

    /// Opcodes of the requests of clients that are this service's.
    fn requests(&self) -> RangeInclusive<u8> {
        NONE
    }

    /// Opcodes of the calls by slot that are this service's.
    fn calls(&self) -> RangeInclusive<u8> {
        NONE
    }

    /// Acts on a member's frame, or on an answer that nobody waits for any more.
    ///
    /// # Errors
    /// When no member sends such a frame; it is counted against the sender.
    fn on_frame(self: Rc<Self>, frame: Envelope) -> Result<(), WireError> {
        Err(WireError::Opcode(frame.message.opcode()))
    }

    /// Answers a client's request, or begins what will.
    ///
    /// # Errors
    /// When no client sends such a request; the connection ends.
    fn on_request(self: Rc<Self>, asked: Asked) -> Result<Answer, WireError> {
        Err(WireError::Opcode(asked.request.opcode()))
    }

    /// Carries out a client's call by slot, or begins what will.
    fn on_call(self: Rc<Self>, _: ClientKey, request: CallRequest) -> Return {
        Return::unknown(request.opcode)
    }

    /// Follows a change of the members. [`Service::on_gone`] was told before of those who have gone.
    fn on_change(self: Rc<Self>, _: &Change) {}

    /// Lets go of what concerns peers that are gone, or were cut off.
    fn on_gone(&self, _: &[NodeId]) {}

    /// Lets go of what a session had, which has ended.
    fn on_session_end(&self, _: ClientKey) {}

    /// Takes note of a peer's write, of the number that came with it and its length in bytes; `false` if it
    /// was not into memory of this service.
    fn on_remote_write(&self, _: u32, _: usize) -> bool {
        false
    }

    /// Looks after what depends on time; called once a second.
    fn on_tick(self: Rc<Self>, _: Instant) {}

    /// Finishes a turn of the engine: what has gathered leaves. Says whether there is more to do at once.
    fn on_turn_end(self: Rc<Self>) -> bool {
        false
    }

    /// The longest the engine may sleep before the next turn's end, beside timers.
    fn due(&self) -> Option<Duration> {
        None
    }

    /// Enters this service's part of the report.
    fn report(&self, _: &mut Status) {}

    /// Why this service keeps the node from serving as it should; nothing if it does not.
    fn unfit(&self) -> Option<String> {
        None
    }
}

/// A client's request.
pub(crate) struct Asked {
    /// The session that it came from.
    pub(crate) session: ClientKey,
    /// The number that its answer bears.
    pub(crate) number: u64,
    pub(crate) request: Request,
    /// The descriptor that came with it.
    pub(crate) file: Option<OwnedFd>,
}

/// A reply with the descriptors it announces, or why there is none.
pub(crate) type Outcome = Result<(Reply, Vec<Arc<OwnedFd>>), Error>;

/// Answer to a request, or the task that finds it.
#[expect(clippy::large_enum_variant, reason = "it is made and taken in one turn, and none is kept")]
pub(crate) enum Answer {
    /// The answer is there.
    Now(Outcome),
    /// A task finds the answer. It ends with its session, and counts as so many simple requests until then.
    Later {
        /// How many simple requests the task weighs.
        weight: usize,
        /// The task.
        task: Pin<Box<dyn Future<Output = Outcome>>>,
    },
    /// The service answers by itself, or there is no answer.
    Silent,
}

impl Answer {
    /// An answer without descriptors, now.
    pub(crate) fn now(reply: Result<Reply, Error>) -> Self {
        Self::Now(reply.map(|reply| (reply, Vec::new())))
    }

    /// The answer of a task that weighs as much as so many simple requests.
    pub(crate) fn later(weight: usize, task: impl Future<Output = Outcome> + 'static) -> Self {
        Self::Later { weight, task: Box::pin(task) }
    }

    /// The answer without descriptors of a task that weighs as much as so many simple requests.
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

/// All services of a node, and which opcodes are whose.
pub(crate) struct Services {
    kernel: Rc<Kernel>,
    network: Rc<Network>,
    registered: RefCell<Rc<Registered>>,
    recent: RefCell<Option<Recent>>,
}

/// Services, lowest floor first, with the place of each opcode's service in the list.
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
    /// A node without services.
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

    /// Lets go of all services, at the end of the node.
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
            // An answer of every service's, that nobody waits for any more.
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
            Change::Records => &[],
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

    /// Tells the service that a peer's write into this node's memory was for.
    pub(crate) fn on_remote_write(&self, immediate: u32, len: usize) {
        let registered = self.registered();
        if !registered.services.iter().any(|service| service.on_remote_write(immediate, len)) {
            self.network.drop_frame("an unexpected remote write");
        }
    }

    /// Has all services look after what depends on time.
    pub(crate) fn on_tick(&self, now: Instant) {
        self.each(|service| service.on_tick(now));
    }

    /// Has all services finish a turn; says whether one has more to do at once.
    pub(crate) fn on_turn_end(&self) -> bool {
        let mut more = false;
        self.each(|service| more |= service.on_turn_end());
        more
    }

    /// The longest the engine may sleep, as far as services are concerned.
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

/// For each opcode, the place of its service in the list.
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
