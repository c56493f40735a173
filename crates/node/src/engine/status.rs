//! The state report. Engine thread only; walks the table, so it is for people and scrapers. Who asks often is given
//! one that is a moment old.

use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::overview::Summary;
use plasmon::status::{
    ClusterStatus, ConnectionStatus, FabricStatus, MemberStatus, MemoryStatus, ObjectsStatus, SpillStatus,
    Status, TransferStatus,
};

use super::Core;
use crate::control::monitor::Question;
use crate::kernel::ClientKey;
use crate::memory::PageKind;
use crate::object::FastPins;
use crate::sessions::client::Client;

/// Clients that a report names.
const MAX_NAMED_CLIENTS: usize = 1000;

/// How old a report may be that others and scrapers get.
const REPORT_LIFETIME: Duration = Duration::from_millis(250);
/// Characters of what is wrong, so that a summary fits a frame.
const MAX_UNFIT_CHARS: usize = 300;

/// The last report made for those who ask often.
pub(crate) struct Recent {
    made: Instant,
    status: Rc<Status>,
}

impl Core {
    /// The report as JSON.
    pub(crate) fn status_json(&self) -> String {
        serde_json::to_string(&self.status()).expect("a report of plain values is JSON")
    }

    /// A report that is at most a moment old: however many ask, the table is walked a few times a second.
    fn recent_status(&self) -> Rc<Status> {
        let now = self.kernel.clock.now();
        if let Some(recent) = &*self.recent.borrow()
            && now.duration_since(recent.made) < REPORT_LIFETIME
        {
            return Rc::clone(&recent.status);
        }
        let status = Rc::new(self.status());
        self.recent.replace(Some(Recent { made: now, status: Rc::clone(&status) }));
        status
    }

    /// This node in a few numbers.
    pub(crate) fn summary(&self) -> Summary {
        Summary::from(&*self.recent_status())
    }

    /// The same, for another node.
    pub(crate) fn summary_json(&self) -> Vec<u8> {
        serde_json::to_vec(&self.summary()).expect("a summary of plain values is JSON")
    }

    /// Answers whoever watches over this node.
    pub(crate) fn answer_monitor(&self, question: Question) {
        // Who asked may have hung up.
        match question {
            Question::Status(answer) => drop(answer.send(Box::new(Status::clone(&self.recent_status())))),
            Question::Health(answer) => drop(answer.send(self.unfit())),
        }
    }

    /// Why this node does not serve as it should; nothing if it does.
    fn unfit(&self) -> Option<String> {
        let coordinator = self.kernel.config.coordinator();
        let text = if self.cluster.fenced() {
            format!(
                "this node is no member of its cluster any more (coordinator: {coordinator}): it serves no other node, \
                 and its clients only what it holds, until it is one again"
            )
        } else if !self.cluster.connected() {
            format!(
                "the coordinator ({coordinator}) does not answer: this node serves what it knows of, and learns of no \
                 node that comes or goes"
            )
        } else if self.is_draining() {
            "it is being drained: it takes nothing new, and leaves when other nodes have what it holds".into()
        } else {
            return None;
        };
        Some(text.chars().take(MAX_UNFIT_CHARS).collect())
    }

    fn status(&self) -> Status {
        Status {
            node: self.kernel.node.to_string(),
            incarnation: self.kernel.incarnation.get(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_seconds: self.kernel.clock.now().duration_since(self.kernel.started).as_secs_f64(),
            socket: self.kernel.config.socket.display().to_string(),
            listen: self.kernel.listen.clone(),
            unfit: self.unfit().unwrap_or_default(),
            clients: self.clients.borrow().len() as u64,
            memory: self.memory_status(),
            numa: self.numa.status(self.store.arena.borrow_mut().usage().elsewhere),
            objects: self.objects_status(),
            spill: self.spill_status(),
            connections: self.connections(),
            fabric: self.fabric_status(),
            transfer: self.transfer_status(),
            cluster: self.cluster_status(),
        }
    }

    fn memory_status(&self) -> MemoryStatus {
        let mut arena = self.store.arena.borrow_mut();
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
            huge: usage.huge + usage.transparent,
            segment_size: arena.segment_size(),
            segments: arena.segment_count(),
            tables: self.store.objects.borrow().shared.memory(),
            waiting: self.store.room.waiting(),
            compacted_bytes: self.store.room.compacted.get(),
        }
    }

    fn objects_status(&self) -> ObjectsStatus {
        let objects = self.store.objects.borrow();
        let census = objects.census(&self.store.scan_pins());
        ObjectsStatus {
            primary: census.primary,
            primary_bytes: census.primary_bytes,
            kept: census.kept,
            kept_bytes: census.kept_bytes,
            cached: census.cached,
            cached_bytes: census.cached_bytes,
            unsealed: census.unsealed,
            pinned: census.pinned,
            doomed: census.doomed,
            evicted: objects.evicted(),
        }
    }

    fn spill_status(&self) -> SpillStatus {
        let (Some(store), Some(directory)) = (self.store.spill_store(), &self.kernel.config.spill_dir) else {
            return SpillStatus::default();
        };
        let usage = store.usage();
        let census = self.store.objects.borrow().census(&FastPins::default());
        SpillStatus {
            directory: directory.display().to_string(),
            objects: census.spilled,
            bytes: census.spilled_bytes,
            files: usage.files,
            disk_bytes: usage.disk_bytes,
            written_bytes: usage.written,
            restored_bytes: usage.read,
            failures: usage.failures,
            unreadable: usage.unreadable,
            failing: self.store.spill_failure().unwrap_or_default(),
        }
    }

    fn connections(&self) -> Vec<ConnectionStatus> {
        let quotas = self.store.quotas.borrow();
        let connection = |(key, client): (&ClientKey, &Client)| {
            let (bytes, quota) = quotas.of_client(*key);
            let counted: usize = client.pins.values().map(Vec::len).sum();
            ConnectionStatus {
                name: client.name.clone(),
                pid: client.pid,
                uid: client.uid,
                pins: (counted + client.kept.len()) as u64 + client.count_fast_pins(),
                bytes,
                quota: quota.unwrap_or(0),
            }
        };
        self.clients.borrow().iter().take(MAX_NAMED_CLIENTS).map(connection).collect()
    }

    fn fabric_status(&self) -> FabricStatus {
        let (best, stats) = (self.network.best(), self.network.stats());
        let (major, minor) = plasmon_fabric::version();
        FabricStatus {
            provider: best.name().into(),
            interface: best.domain().into(),
            reason: best.reason().into(),
            link: self.network.link(),
            libfabric: format!("{major}.{minor}"),
            registrations: stats.registrations,
            regions: stats.regions,
            registered_bytes: stats.registered_bytes,
            messages_sent: stats.sends,
            messages_received: stats.received,
            reads: stats.reads,
            completions: stats.completed + stats.failed,
            in_flight: stats.in_flight,
            pools: self.network.pools(),
        }
    }

    fn transfer_status(&self) -> TransferStatus {
        let mut status = self.transfer.status();
        status.frames_dropped += self.network.dropped();
        status
    }

    pub(crate) fn cluster_status(&self) -> ClusterStatus {
        let view = self.cluster.view();
        let members = view.members.iter().map(|member| {
            let (provider, why) = self.network.provider(member.node);
            MemberStatus {
                node: member.node.to_string(),
                incarnation: member.incarnation,
                listen: member.listen.clone(),
                this: member.node == self.kernel.node,
                connected: member.node == self.kernel.node || self.network.connected(member.node),
                cut_off: self.network.is_cut_off(member.node),
                provider: provider.name().to_owned(),
                reason: why.unwrap_or_default(),
            }
        });
        ClusterStatus {
            epoch: view.epoch,
            coordinator: self.kernel.config.coordinator(),
            coordinator_kind: if self.kernel.config.etcd.is_some() { "etcd" } else { "embedded" }.into(),
            coordinator_endpoints: match (&self.kernel.config.etcd, &self.kernel.config.join) {
                (Some(etcd), _) => etcd.endpoints.clone(),
                (None, Some(join)) => vec![join.clone()],
                (None, None) => vec![self.kernel.listen.clone()],
            },
            coordinator_connected: self.cluster.connected(),
            coordinator_losses: self.cluster.losses(),
            fenced: self.cluster.fenced(),
            fencings: self.cluster.fencings(),
            healing: self.repairs(),
            members: members.collect(),
            directory_entries: self.cluster.directory_entries() as u64,
            copies: self.copies_status(),
        }
    }
}
