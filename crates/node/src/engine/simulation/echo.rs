//! A small service: it shows that a subsystem needs no line in any other room but its registration.
//!
//! A client asks its node to have another node say something, the node asks the other node, and the report
//! counts the answers.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use plasmon::status::Status;
use plasmon::wire::{Other, Reply, Request, WireError, page};
use plasmon::{Error, NodeId};

use super::{Simulation, seeded};
use crate::net::frame::{Envelope, Frames, Message, carried};
use crate::net::network::Network;
use crate::service::{Answer, Asked, Overlap, Service, Services};

/// Longest time until another node answers.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

plasmon::wire::table! {
    /// Frames of the service between nodes.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) enum Said in said -> Said in self {
        /// Asks a node to say a text.
        238 Say { text: String } -> Echo,
        /// Says it.
        239 Echo { text: String },
    }
}
carried!(Said);

plasmon::wire::table! {
    /// Requests of clients, and replies to them.
    #[derive(Debug, Clone, PartialEq, Eq)]
    enum Asking {
        /// Asks to have a node say a text.
        240 Have { node: NodeId, text: String },
        /// Brings what the node said.
        241 Heard { text: String },
    }
}

struct Echo {
    network: Rc<Network>,
    answers: Cell<u64>,
}

impl Service for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn frames(&self) -> RangeInclusive<u8> {
        238..=239
    }

    fn requests(&self) -> RangeInclusive<u8> {
        240..=240
    }

    fn on_frame(self: Rc<Self>, frame: Envelope) -> Result<(), WireError> {
        let Said::Say { text } = Said::from_message(frame.message.clone())? else { return Ok(()) };
        self.answers.set(self.answers.get() + 1);
        self.network.answer(&frame, Said::Echo { text });
        Ok(())
    }

    fn on_request(self: Rc<Self>, asked: Asked) -> Result<Answer, WireError> {
        let Request::Other(other) = &asked.request else { return Err(WireError::Opcode(240)) };
        let Asking::Have { node, text } = other.read()? else { return Err(WireError::Opcode(241)) };
        Ok(Answer::plain(1, async move {
            let said::Echo { text } = self.network.ask(node, 0, said::Say { text }, ANSWER_PATIENCE).await?;
            Ok::<_, Error>(Reply::Other(Other::of(&Asking::Heard { text })))
        }))
    }

    fn report(&self, status: &mut Status) {
        status.services.insert("echo.answers".into(), self.answers.get());
    }
}

fn echo(network: &Rc<Network>) -> Rc<dyn Service> {
    Rc::new(Echo { network: Rc::clone(network), answers: Cell::new(0) })
}

#[test]
fn a_further_service_is_asked_by_clients_and_by_nodes() {
    let mut simulation = Simulation::new(1, |network| vec![echo(network)]);
    let node = simulation.hosts[1].id().expect("it runs");
    let asked = Asking::Have { node, text: "anything".into() };
    simulation.with_worker(0, |worker, simulation| {
        worker.ask_further(simulation, Request::Other(Other::of(&asked)));
    });
    simulation.pass(ANSWER_PATIENCE);
    let reply = simulation.workers[0].last_further.take().expect("it was answered");
    let Reply::Other(other) = reply else { panic!("{reply:?}") };
    assert_eq!(other.read(), Ok(Asking::Heard { text: "anything".into() }));
    let counted = |host: usize| simulation.hosts[host].core().expect("it runs").services.status().services;
    assert_eq!((counted(0)["echo.answers"], counted(1)["echo.answers"]), (0, 1));
    drop(simulation);
    seeded::set(None);
}

#[test]
fn the_page_lists_the_services() {
    let simulation = Simulation::new(1, |_| Vec::new());
    let services = simulation.hosts[0].core().expect("it runs").services.page();
    let design = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/service.md");
    page::check(&design, "services", services.trim_end());
    drop(simulation);
    seeded::set(None);
}

#[test]
fn two_services_with_the_same_opcodes_are_refused() {
    let simulation = Simulation::new(1, |_| Vec::new());
    let core = simulation.hosts[0].core().expect("it runs");
    let services = Services::new(&core.kernel, &core.network);
    let twice: Overlap = services.register(vec![echo(&core.network), echo(&core.network)]).unwrap_err();
    let said = "frame 238 belongs to the services \"echo\" and \"echo\": give one of them another range";
    assert_eq!(twice.to_string(), said);
    drop(simulation);
    seeded::set(None);
}

#[test]
fn a_frame_of_no_service_is_counted_against_its_sender() {
    let mut simulation = Simulation::new(1, |_| Vec::new());
    let to = simulation.hosts[1].id().expect("it runs");
    let dropped = |simulation: &Simulation| simulation.hosts[1].core().expect("it runs").network.dropped();
    let before = dropped(&simulation);
    let nonsense = Message::Other(Other { opcode: 250, body: Vec::new().into() });
    simulation.hosts[0].core().expect("it runs").network.tell(to, nonsense);
    simulation.pass(ANSWER_PATIENCE);
    assert_eq!(dropped(&simulation), before + 1);
    drop(simulation);
    seeded::set(None);
}
