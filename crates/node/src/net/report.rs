//! The network's part of the report: fabrics and peers. Owns no state. Engine thread only.

use plasmon::status::{FabricStatus, Status};

use super::network::Network;

impl Network {
    /// Enters the network's state into a report.
    pub(crate) fn report(&self, status: &mut Status) {
        status.fabric = self.fabric_status();
        status.transfer.frames_dropped += self.dropped();
    }

    fn fabric_status(&self) -> FabricStatus {
        let (best, stats) = (self.best(), self.stats());
        let (major, minor) = plasmon_fabric::version();
        FabricStatus {
            provider: best.name().into(),
            interface: best.domain().into(),
            reason: best.reason().into(),
            link: self.link(),
            libfabric: format!("{major}.{minor}"),
            library: plasmon_fabric::library().map(|path| path.display().to_string()).unwrap_or_default(),
            registrations: stats.registrations,
            regions: stats.regions,
            registered_bytes: stats.registered_bytes,
            bulk_lanes: self.fabrics[0].bulk().len() as u64,
            messages_sent: stats.sends,
            messages_received: stats.received,
            messages_repeated: self.repeated(),
            reads: stats.reads,
            completions: stats.completed + stats.failed,
            in_flight: stats.in_flight,
            pools: self.pools(),
        }
    }
}
