//! The state report. Engine thread only; walks the table, so it is for people and scrapers.

use plasmon::status::{
    ClusterStatus, FabricStatus, MemberStatus, MemoryStatus, ObjectsStatus, SpillStatus, Status,
    TransferStatus,
};

use super::core::Core;
use crate::memory::PageKind;

impl Core {
    /// The report as JSON.
    pub(super) fn status_json(&self) -> String {
        serde_json::to_string(&self.status()).expect("a report of plain values is JSON")
    }

    fn status(&self) -> Status {
        Status {
            node: self.node.to_string(),
            incarnation: self.incarnation.get(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_seconds: self.clock.now().duration_since(self.started).as_secs_f64(),
            socket: self.config.socket.display().to_string(),
            listen: self.listen.clone(),
            clients: self.clients.borrow().len() as u64,
            memory: self.memory_status(),
            objects: self.objects_status(),
            spill: SpillStatus::default(),
            connections: Vec::new(),
            fabric: self.fabric_status(),
            transfer: TransferStatus { frames_dropped: self.network.dropped(), ..self.transfer.status() },
            cluster: self.cluster_status(),
        }
    }

    fn memory_status(&self) -> MemoryStatus {
        let mut arena = self.arena.borrow_mut();
        let usage = arena.usage();
        MemoryStatus {
            capacity: usage.capacity,
            used: usage.used,
            free: usage.free,
            largest_free: usage.largest_run,
            prefaulted: usage.prefaulted,
            pages: match arena.page_kind() {
                PageKind::Huge => "huge".into(),
                PageKind::Base => "base".into(),
            },
            segment_size: arena.segment_size(),
            segments: arena.segment_count(),
            ..MemoryStatus::default()
        }
    }

    fn objects_status(&self) -> ObjectsStatus {
        let objects = self.objects.borrow();
        let census = objects.census();
        ObjectsStatus {
            primary: census.primary,
            primary_bytes: census.primary_bytes,
            cached: census.cached,
            cached_bytes: census.cached_bytes,
            unsealed: census.unsealed,
            pinned: census.pinned,
            doomed: census.doomed,
            evicted: objects.evicted(),
        }
    }

    fn fabric_status(&self) -> FabricStatus {
        let domain = self.network.domain();
        let stats = domain.stats();
        let (major, minor) = plasmon_fabric::version();
        FabricStatus {
            provider: domain.provider().name().into(),
            reason: domain.provider().reason().into(),
            libfabric: format!("{major}.{minor}"),
            registrations: stats.registrations,
            registered_bytes: stats.registered_bytes,
            in_flight: stats.in_flight,
        }
    }

    fn cluster_status(&self) -> ClusterStatus {
        let view = self.cluster.view();
        let members = view.members.iter().map(|member| MemberStatus {
            node: member.node.to_string(),
            incarnation: member.incarnation,
            listen: member.listen.clone(),
            this: member.node == self.node,
            connected: member.node == self.node || self.network.connected(member.node),
        });
        ClusterStatus {
            epoch: view.epoch,
            coordinator: match &self.config.join {
                None => "embedded".into(),
                Some(join) => join.clone(),
            },
            coordinator_connected: self.cluster.connected(),
            members: members.collect(),
            directory_entries: self.cluster.directory_entries() as u64,
        }
    }
}
