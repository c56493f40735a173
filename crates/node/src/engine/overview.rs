//! The node as a whole as a service: it answers questions of other nodes and monitors, and reports what no
//! other service reports. Owns no state. Engine thread only.

use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use plasmon::shared::{CallRequest, CallResult};
use plasmon::status::Status;
use plasmon::wire::{BySlot, ClusterCall, Reached, SlotResult, Table, WireError};

use crate::control::monitor::Question;
use crate::kernel::ClientKey;
use crate::membership::Cluster;
use crate::net::frame::{Envelope, Message, OVERVIEW_FRAMES, ask};
use crate::numa::Binding;
use crate::service::{Return, Service, Services};
use crate::store::Store;

/// Longest time that a node has to give a sign of life.
const PING_PATIENCE: Duration = Duration::from_secs(60);

/// The report on this node, for other nodes and for monitors.
pub(crate) struct Overview {
    cluster: Rc<Cluster>,
    store: Rc<Store>,
    services: Rc<Services>,
    numa: Binding,
}

impl Overview {
    pub(crate) fn new(
        cluster: &Rc<Cluster>,
        store: &Rc<Store>,
        services: &Rc<Services>,
        numa: Binding,
    ) -> Self {
        Self { cluster: Rc::clone(cluster), store: Rc::clone(store), services: Rc::clone(services), numa }
    }
}

impl Service for Overview {
    fn name(&self) -> &'static str {
        "overview"
    }

    fn frames(&self) -> RangeInclusive<u8> {
        OVERVIEW_FRAMES
    }

    fn calls(&self) -> RangeInclusive<u8> {
        ClusterCall::FIRST..=ClusterCall::LAST
    }

    fn on_call(self: Rc<Self>, _: ClientKey, request: CallRequest) -> Return {
        let call = ClusterCall::decode(request.opcode, request.arguments, &request.payload);
        let Some(ClusterCall::Ping { node }) = call else {
            return Return::unknown(request.opcode);
        };
        let kernel = &self.store.kernel;
        if node == kernel.node {
            return Return::Now(Ok(CallResult::of(&Reached { took: Duration::ZERO }.values())));
        }
        let patience = Duration::from_micros(request.timeout_us).min(PING_PATIENCE);
        let asked = kernel.clock.now();
        Return::later(async move {
            let ask::Pong = self.store.network.ask(node, 0, ask::Ping, patience).await?;
            let took = self.store.kernel.clock.now().duration_since(asked);
            Ok(CallResult::of(&Reached { took }.values()))
        })
    }

    fn on_frame(self: Rc<Self>, frame: Envelope) -> Result<(), WireError> {
        match &frame.message {
            Message::Report => {
                let json = self.services.summary_json().into();
                self.store.network.answer(&frame, Message::Reported { json });
                Ok(())
            }
            Message::Ping => {
                self.store.network.answer(&frame, Message::Pong);
                Ok(())
            }
            // An answer for which nobody waits any more.
            _ if frame.is_answer() => Ok(()),
            other => Err(WireError::Opcode(other.opcode())),
        }
    }

    fn report(&self, status: &mut Status) {
        let kernel = &self.store.kernel;
        status.node = kernel.node.to_string();
        status.incarnation = kernel.incarnation.get();
        status.version = env!("CARGO_PKG_VERSION").into();
        status.pid = std::process::id();
        status.host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        status.uptime_seconds = kernel.clock.now().duration_since(kernel.started).as_secs_f64();
        status.socket = kernel.config.socket.display().to_string();
        status.listen = kernel.listen.clone();
        self.store.report(status);
        status.numa = self.numa.status(self.store.arena.borrow_mut().usage().elsewhere);
        self.store.network.report(status);
        status.cluster = self.cluster.cluster_status();
    }

    fn unfit(&self) -> Option<String> {
        let coordinator = self.store.kernel.config.coordinator();
        Some(if self.cluster.fenced() {
            format!(
                "this node is no member of its cluster any more (coordinator: {coordinator}): it serves no \
                 other node, and its clients only what it holds, until it is one again"
            )
        } else if !self.cluster.connected() {
            format!(
                "the coordinator ({coordinator}) does not answer: this node serves what it knows of, and \
                 learns of no node that comes or goes"
            )
        } else {
            return None;
        })
    }
}

/// Answers a question of the node's HTTP service.
pub(crate) fn answer_monitor(services: &Services, question: Question) {
    // The asking connection may have closed.
    match question {
        Question::Status(answer) => drop(answer.send(Box::new(Status::clone(&services.recent_status())))),
        Question::Health(answer) => drop(answer.send(services.unfit())),
    }
}
