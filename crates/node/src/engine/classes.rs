//! Classes as a service: the measurement of round trips, and the report. Owns no state: `Qos` has it. Engine
//! thread only.

use std::rc::Rc;
use std::time::Duration;

use plasmon::NodeId;
use plasmon::status::Status;

use crate::kernel::{Kernel, class};
use crate::net::frame::ask;
use crate::net::network::Network;
use crate::service::Service;

/// The time between two measurements of a peer's round trip.
const PAUSE: Duration = Duration::from_millis(10);
/// Longest time that a measured answer may take.
const PING_PATIENCE: Duration = Duration::from_secs(1);

/// State that keeps the classes of work apart.
pub(crate) struct Classes {
    pub(crate) kernel: Rc<Kernel>,
    pub(crate) network: Rc<Network>,
}

impl Classes {
    /// Measures the round trips to a peer as long as work of high class is busy with it.
    async fn probe(self: Rc<Self>, node: NodeId) {
        let (clock, network) = (&self.kernel.clock, &self.network);
        loop {
            let asked = clock.now();
            let answered = network.ask(node, 0, ask::Ping, PING_PATIENCE).await;
            let took = clock.now().saturating_duration_since(asked);
            if !network.qos.probed(node, answered.is_ok().then_some(took)) {
                return;
            }
            clock.sleep(PAUSE).await;
        }
    }
}

impl Service for Classes {
    fn name(&self) -> &'static str {
        "classes"
    }

    fn on_turn_end(self: Rc<Self>) -> bool {
        let probes = self.network.qos.take_probes();
        let has_begun = !probes.is_empty();
        for node in probes {
            self.kernel.spawn(class::urgently(Rc::clone(&self).probe(node)));
        }
        has_begun
    }

    fn report(&self, status: &mut Status) {
        status.classes = self.network.qos.status();
    }
}
