//! A node's report as metrics, in the text format of OpenMetrics or the older one of Prometheus. Owns no
//! state; any thread.
//!
//! All series that a node can ever have are there from its start, so that a rate is known from the first
//! event on.
//!
//! Names and units are an interface: `docs/operations.md` lists them all, and a test compares the two.

use std::collections::BTreeMap;
use std::fmt;

use plasmon::UsedProtocol;
use plasmon::status::{
    CallsStatus, ClassStatus, ClassesStatus, ClusterStatus, FabricStatus, FileKinds, FilesStatus,
    FunctionsStatus, LocksStatus, MemoryStatus, ObjectsStatus, ProtocolStatus, RegionsStatus, SlotsStatus,
    SpillStatus, Status, TransferStatus,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeMetric, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

const NS_A_SECOND: f64 = 1e9;
const OPEN_METRICS: &str = "application/openmetrics-text";

/// A text format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// OpenMetrics 1.0, for readers that say that they accept it.
    Open,
    /// Prometheus' own text format 0.0.4, for every other reader.
    Plain,
}

impl Format {
    /// The format for a reader who accepts these types, by RFC 9110.
    pub(super) fn accepted(accept: &str) -> Self {
        let weight = |wanted: &str| {
            let weights = accept.split(',').filter_map(|one| {
                let mut words = one.split(';').map(str::trim);
                words.next().filter(|name| name.eq_ignore_ascii_case(wanted))?;
                let quality = words.find_map(|word| word.strip_prefix("q=")?.parse::<f64>().ok());
                Some(quality.unwrap_or(1.0))
            });
            weights.fold(0.0, f64::max)
        };
        let open = weight(OPEN_METRICS);
        if open > 0.0 && open >= weight("text/plain") { Self::Open } else { Self::Plain }
    }

    /// The content type of the format.
    pub(super) fn content(self) -> &'static str {
        match self {
            Self::Open => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Encodes all metrics of a report.
pub(super) fn text(status: Status, format: Format) -> String {
    let text = open_metrics(status);
    match format {
        Format::Open => text,
        Format::Plain => plain(&text),
    }
}

/// Translates OpenMetrics. The older format has the whole names of counters in comments, and no end.
fn plain(text: &str) -> String {
    let is_counter = |name: &str| text.contains(&format!("# TYPE {name} counter\n"));
    let mut out = String::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(kind), Some(name), Some(rest)) if is_counter(name) => {
                out += &format!("# {kind} {name}_total {rest}\n");
            }
            _ => {
                out += line;
                out.push('\n');
            }
        }
    }
    out
}

fn open_metrics(status: Status) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot(status)));
    let mut out = String::new();
    text::encode(&mut out, &registry).expect("writing to a string does not fail");
    out
}

#[derive(Debug)]
struct Snapshot(Status);

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Status { memory, objects, calls, slots, regions, functions, classes, spill, .. } = &self.0;
        let Status { fabric, transfer, cluster, .. } = &self.0;
        let mut out = Out(encoder);
        self.node(&mut out)?;
        memory_metrics(&mut out, memory)?;
        object_metrics(&mut out, objects)?;
        call_metrics(&mut out, calls)?;
        slot_metrics(&mut out, slots)?;
        region_metrics(&mut out, regions)?;
        service_metrics(&mut out, functions)?;
        lock_metrics(&mut out, &self.0.locks)?;
        file_metrics(&mut out, &self.0.files)?;
        class_metrics(&mut out, classes)?;
        spill_metrics(&mut out, spill)?;
        fabric_metrics(&mut out, fabric)?;
        transfer_metrics(&mut out, transfer)?;
        cluster_metrics(&mut out, cluster)
    }
}

impl Snapshot {
    fn node(&self, out: &mut Out<'_>) -> fmt::Result {
        let status = &self.0;
        let labels = [
            ("node", status.node.as_str()),
            ("host", status.host.as_str()),
            ("version", status.version.as_str()),
            ("provider", status.fabric.provider.as_str()),
        ];
        let mut info =
            out.0.encode_descriptor("plasmon_node_info", "The node; always 1", None, MetricType::Gauge)?;
        ConstGauge::new(1u64).encode(info.encode_family(&labels)?)?;
        out.gauge("plasmon_uptime_seconds", "Time since the start of the node", status.uptime_seconds)?;
        out.gauge(
            "plasmon_unfit",
            "1 if the node does not serve as it should",
            flag(!status.unfit.is_empty()),
        )?;
        let services: Vec<_> = status.services.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        if !services.is_empty() {
            out.counters("plasmon_service", "What further services count", "counter", &services)?;
        }
        out.gauge("plasmon_clients", "Clients connected", real(status.clients))
    }
}

fn memory_metrics(out: &mut Out<'_>, memory: &MemoryStatus) -> fmt::Result {
    out.gauge("plasmon_memory_capacity_bytes", "Memory for objects", real(memory.capacity))?;
    out.gauge("plasmon_memory_used_bytes", "Memory held by objects", real(memory.used))?;
    out.gauge("plasmon_memory_free_bytes", "Memory that is free", real(memory.free))?;
    let largest = "Largest object that fits without making room";
    out.gauge("plasmon_memory_largest_free_bytes", largest, real(memory.largest_free))?;
    out.gauge("plasmon_memory_prefaulted_bytes", "Memory that was pre-faulted", real(memory.prefaulted))?;
    out.gauge("plasmon_memory_huge_bytes", "Memory in huge pages", real(memory.huge))?;
    out.gauge("plasmon_memory_tables_bytes", "Object tables that clients map", real(memory.tables))?;
    out.gauge("plasmon_memory_waiting_objects", "Objects that wait for room", real(memory.waiting))?;
    let moved = "Bytes of objects moved to put free memory together";
    out.counter("plasmon_memory_compacted_bytes", moved, memory.compacted_bytes)
}

fn object_metrics(out: &mut Out<'_>, objects: &ObjectsStatus) -> fmt::Result {
    let by_role =
        |primary, kept, cached| [("primary", real(primary)), ("kept", real(kept)), ("cached", real(cached))];
    let counts = by_role(objects.primary, objects.kept, objects.cached);
    out.gauges("plasmon_objects", "Sealed objects", "role", &counts)?;
    let bytes = by_role(objects.primary_bytes, objects.kept_bytes, objects.cached_bytes);
    out.gauges("plasmon_objects_bytes", "Bytes of sealed objects", "role", &bytes)?;
    out.gauge("plasmon_objects_unsealed", "Objects being created", real(objects.unsealed))?;
    out.gauge("plasmon_objects_pinned", "Objects with at least one pin", real(objects.pinned))?;
    out.gauge("plasmon_objects_pinned_bytes", "Bytes of pinned objects", real(objects.pinned_bytes))?;
    out.gauge("plasmon_objects_doomed", "Objects deleted, but still pinned", real(objects.doomed))?;
    out.gauge("plasmon_objects_doomed_bytes", "Bytes of deleted objects", real(objects.doomed_bytes))?;
    out.counter("plasmon_objects_evicted", "Objects taken out of memory to make room", objects.evicted)
}

fn call_metrics(out: &mut Out<'_>, calls: &CallsStatus) -> fmt::Result {
    let results = [("hit", calls.get_hits), ("miss", calls.get_misses)];
    out.counters(
        "plasmon_gets",
        "Objects that clients asked for, by whether they were here",
        "result",
        &results,
    )?;
    out.counter("plasmon_puts", "Objects that clients have made", calls.puts)?;
    out.counter("plasmon_put_bytes", "Bytes of objects that clients have made", calls.put_bytes)?;
    let classes: Vec<_> = calls
        .timed_gets
        .iter()
        .map(|class| match class.most_ns {
            // OpenMetrics marks the last class by this value.
            u64::MAX => (f64::MAX, class.gets),
            ns => (ns as f64 / NS_A_SECOND, class.gets),
        })
        .collect();
    let help = "Time of gets that need no daemon, one in 1024 of them";
    out.histogram("plasmon_local_get_seconds", help, calls.timed_gets_ns as f64 / NS_A_SECOND, &classes)
}

fn slot_metrics(out: &mut Out<'_>, slots: &SlotsStatus) -> fmt::Result {
    out.counter("plasmon_slot_calls", "Calls that clients have made by slot", slots.calls)?;
    let under_way = real(slots.under_way);
    out.gauge("plasmon_slot_calls_under_way", "Calls by slot without a result yet", under_way)
}

fn region_metrics(out: &mut Out<'_>, regions: &RegionsStatus) -> fmt::Result {
    out.gauge("plasmon_regions", "Regions that live on the node", real(regions.regions))?;
    out.gauge("plasmon_regions_bytes", "Memory that regions take", real(regions.bytes))?;
    out.gauge("plasmon_regions_limit_bytes", "Memory that regions may take", real(regions.limit))?;
    let user_limit = real(regions.user_limit);
    out.gauge("plasmon_regions_user_limit", "Regions that one user may have on the node", user_limit)?;
    out.gauge("plasmon_regions_in_pieces", "Regions in several pieces of memory", real(regions.in_pieces))?;
    let crowded_out = real(regions.crowded_out);
    out.gauge("plasmon_regions_crowded_out", "Regions that should be mappable and are not", crowded_out)?;
    out.gauge("plasmon_region_handles", "Handles of clients to regions", real(regions.handles))?;
    out.gauge("plasmon_region_mappings", "Mappings of other nodes' regions", real(regions.mappings))?;
    let kinds = [
        ("read", regions.reads),
        ("write", regions.writes),
        ("atomic", regions.atomics),
        ("fill", regions.fills),
        ("wait", regions.waits),
        ("notify", regions.notifies),
    ];
    out.counters("plasmon_region_operations", "Operations on regions by the node", "kind", &kinds)?;
    out.gauge("plasmon_region_waiting", "Calls that wait for a change of a region", real(regions.waiting))
}

fn service_metrics(out: &mut Out<'_>, services: &FunctionsStatus) -> fmt::Result {
    out.gauge("plasmon_services", "Names of services that the node keeps", real(services.names))?;
    out.gauge("plasmon_service_ports", "Ports at which processes serve", real(services.ports))?;
    out.gauge("plasmon_calls_waiting", "Calls that wait for a thread of a server", real(services.waiting))?;
    out.gauge("plasmon_calls_running", "Calls that threads of servers have", real(services.running))?;
    out.gauge("plasmon_calls_under_way", "Calls under way at other nodes", real(services.under_way))?;
    out.counter("plasmon_calls_begun", "Calls of functions that clients have begun", services.begun)?;
    let ended = [("served", services.served), ("failed", services.failed)];
    out.counters("plasmon_calls_ended", "Calls that ended in processes of the node", "how", &ended)?;
    let bodies = [("written", services.bodies_written), ("read", services.bodies_read)];
    out.counters("plasmon_call_bodies", "Long bodies of calls that came from other nodes", "how", &bodies)
}

fn lock_metrics(out: &mut Out<'_>, locks: &LocksStatus) -> fmt::Result {
    out.gauge("plasmon_locks", "Locks about which the node decides", real(locks.names))?;
    out.gauge(
        "plasmon_locks_abandoned",
        "Locks whose last holder died or lost them, and that nobody wants",
        real(locks.abandoned),
    )?;
    out.gauge("plasmon_locks_held", "Guards that clients of the node have", real(locks.held))?;
    out.gauge("plasmon_locks_waiting", "Calls that wait for a lock", real(locks.waiting))?;
    out.counter("plasmon_locks_granted", "Guards that clients were given", locks.granted)?;
    out.counter("plasmon_locks_lost", "Guards that ended before they were unlocked", locks.lost)?;
    out.gauge("plasmon_barriers", "Barriers about which the node decides", real(locks.barriers))?;
    out.gauge("plasmon_barriers_arrived", "Calls that wait at a barrier", real(locks.arrived))
}

fn file_metrics(out: &mut Out<'_>, files: &FilesStatus) -> fmt::Result {
    out.gauge("plasmon_volumes", "Volumes of files whose home the node is", real(files.volumes))?;
    out.gauge("plasmon_inodes", "Inodes of these volumes", real(files.inodes))?;
    out.gauge("plasmon_files_bytes", "Bytes of the files of these volumes", real(files.bytes))?;
    let memory = [("used", real(files.memory)), ("limit", real(files.memory_limit))];
    out.gauges("plasmon_files_memory_bytes", "Memory for names, attributes and maps", "what", &memory)?;
    out.gauge("plasmon_file_sessions", "Sessions of these volumes", real(files.sessions))?;
    out.gauge("plasmon_file_credit_bytes", "Room that these hold to write", real(files.credit))?;
    out.counter("plasmon_file_credit_lapsed_bytes", "Room that they lost unused", files.credit_lapsed)?;
    out.counter("plasmon_file_operations_decided", "Operations that the home decided", files.decided)?;
    let FileKinds { lookups, attributes, names, lists, opens, maps, writes, locks, room } = files.kinds;
    let kinds = [
        ("lookup", lookups),
        ("attributes", attributes),
        ("name", names),
        ("list", lists),
        ("open", opens),
        ("map", maps),
        ("write", writes),
        ("lock", locks),
        ("room", room),
    ];
    out.counters("plasmon_file_operations", "Operations on files of clients", "kind", &kinds)?;
    let bytes = [("read", files.read_bytes), ("written", files.written_bytes)];
    out.counters("plasmon_file_bytes", "Bytes of files that clients read and wrote", "how", &bytes)?;
    out.counter("plasmon_file_operations_failed", "Operations on files that failed", files.failed)?;
    out.gauge(
        "plasmon_volumes_mirrored",
        "Volumes of other homes that the node mirrors",
        real(files.mirrors),
    )?;
    out.counter("plasmon_file_batches", "Batches of changes that mirrors were sent", files.batches)?;
    out.counter("plasmon_file_batch_bytes", "Bytes of these, for each mirror", files.batch_bytes)?;
    out.counter("plasmon_file_batches_applied", "Batches that the node applied", files.batches_applied)?;
    out.gauge("plasmon_file_answers_unconfirmed", "Answers that wait for mirrors", real(files.unconfirmed))?;
    out.gauge("plasmon_file_objects_condemned", "Objects of files to be deleted", real(files.condemned))?;
    out.counter("plasmon_file_objects_deleted", "Objects of files that were deleted", files.deleted)?;
    out.gauge("plasmon_file_pulls", "Objects of files that other nodes are taking", real(files.pulls))?;
    out.counter("plasmon_file_pulls_repeated", "Pulls that were sent again", files.pulls_repeated)?;
    let placed = [
        ("elsewhere", files.placed_elsewhere),
        ("in vain", files.placed_in_vain),
        ("here", files.placed_here),
        ("too few", files.placed_short),
        ("refused", files.placed_refused),
    ];
    out.counters(
        "plasmon_file_objects_placed",
        "Objects of files brought to their places",
        "where",
        &placed,
    )?;
    let changes = [("told", files.told), ("confirmed", files.confirmed), ("missed", files.missed)];
    out.counters("plasmon_file_changes", "Changes told to sessions that watch", "what", &changes)?;
    out.gauge("plasmon_file_block_bytes", "Memory lent to clients to write files", real(files.block_bytes))?;
    let reads = [("here", files.reads_here), ("brought", files.reads_brought)];
    out.counters("plasmon_file_reads", "Reads of objects of files by clients", "how", &reads)?;
    let ranges = [("asked", files.ranges_asked), ("read", files.ranges_read), ("given", files.ranges_given)];
    out.counters("plasmon_file_ranges", "Ranges of objects that were read at random", "how", &ranges)
}

fn class_metrics(out: &mut Out<'_>, classes: &ClassesStatus) -> fmt::Result {
    let ClassesStatus { low_limit, high, normal, low, .. } = classes;
    out.gauge(
        "plasmon_class_low_limit_bytes",
        "Least bytes a second to which work of class low is limited; 0 for no limit",
        real(*low_limit),
    )?;
    let each = |of: fn(&ClassStatus) -> u64| [("high", of(high)), ("normal", of(normal)), ("low", of(low))];
    let operations = each(|class| class.operations);
    out.counters("plasmon_class_operations", "Requests of clients by class", "class", &operations)?;
    let sent = each(|class| class.sent_bytes);
    out.counters("plasmon_class_sent_bytes", "Bytes sent to other nodes in frames", "class", &sent)?;
    let received = each(|class| class.received_bytes);
    out.counters("plasmon_class_received_bytes", "Bytes from other nodes", "class", &received)?;
    let waits = each(|class| class.waits);
    out.counters("plasmon_class_waits", "Reads that waited for their turn", "class", &waits)?;
    let waited =
        [("high", high), ("normal", normal), ("low", low)].map(|(name, class)| (name, class.waited_seconds));
    out.counters("plasmon_class_waited_seconds", "Time that reads waited", "class", &waited)
}

fn spill_metrics(out: &mut Out<'_>, spill: &SpillStatus) -> fmt::Result {
    out.gauge("plasmon_spill_objects", "Objects on disk, in memory as well or not", real(spill.objects))?;
    out.gauge("plasmon_spill_objects_bytes", "Bytes of objects on disk", real(spill.bytes))?;
    out.gauge("plasmon_spill_files", "Files of spilled objects", real(spill.files))?;
    out.gauge("plasmon_spill_disk_bytes", "Bytes that the files take on disk", real(spill.disk_bytes))?;
    out.gauge("plasmon_spill_failing", "1 if nothing can be spilled", flag(!spill.failing.is_empty()))?;
    out.counter("plasmon_spill_written_bytes", "Bytes written to disk", spill.written_bytes)?;
    out.counter("plasmon_spill_restored_bytes", "Bytes read back from disk", spill.restored_bytes)?;
    out.counter("plasmon_spill_failures", "Writes and reads that failed", spill.failures)
}

fn fabric_metrics(out: &mut Out<'_>, fabric: &FabricStatus) -> fmt::Result {
    out.counter("plasmon_fabric_messages_sent", "Messages sent to other nodes", fabric.messages_sent)?;
    out.counter("plasmon_fabric_messages_received", "Messages from other nodes", fabric.messages_received)?;
    out.counter(
        "plasmon_fabric_messages_repeated",
        "Messages that were sent again",
        fabric.messages_repeated,
    )?;
    out.counter("plasmon_fabric_reads", "One-sided reads made by this node", fabric.reads)?;
    out.counter("plasmon_fabric_completions", "Operations that have ended", fabric.completions)?;
    out.gauge("plasmon_fabric_operations", "Operations under way", real(fabric.in_flight))?;
    out.counter("plasmon_fabric_registrations", "Registrations of memory made", fabric.registrations)?;
    out.gauge("plasmon_fabric_regions", "Regions of memory registered", real(fabric.regions))?;
    out.gauge("plasmon_fabric_registered_bytes", "Memory registered", real(fabric.registered_bytes))
}

fn transfer_metrics(out: &mut Out<'_>, transfer: &TransferStatus) -> fmt::Result {
    let mut protocols: BTreeMap<&str, &ProtocolStatus> = BTreeMap::new();
    let none = ProtocolStatus::default();
    protocols.extend(UsedProtocol::ALL.iter().map(|protocol| (protocol.name(), &none)));
    protocols.extend(transfer.protocols.iter().map(|(name, protocol)| (name.as_str(), protocol)));
    let each = |what: fn(&ProtocolStatus) -> u64| -> Vec<_> {
        protocols.iter().map(|(name, protocol)| (*name, what(protocol))).collect()
    };
    let name = "protocol";
    out.counters(
        "plasmon_fetched_objects",
        "Objects fetched from other nodes",
        name,
        &each(|one| one.fetched),
    )?;
    out.counters("plasmon_fetched_bytes", "Bytes of fetched objects", name, &each(|one| one.fetched_bytes))?;
    let served = "Objects served to other nodes";
    out.counters("plasmon_served_objects", served, name, &each(|one| one.served))?;
    out.counters("plasmon_served_bytes", "Bytes of served objects", name, &each(|one| one.served_bytes))?;
    out.gauge("plasmon_fetches", "Fetches under way", real(transfer.fetching))?;
    let queued = "Fetches that wait for a place at their holder";
    out.gauge("plasmon_fetches_queued", queued, real(transfer.queued))?;
    out.counter("plasmon_fetch_failures", "Attempts at a holder that failed", transfer.fetch_failures)?;
    let compared = "Objects compared with their digests when they came";
    out.counter("plasmon_compared_objects", compared, transfer.compared)?;
    let damaged = "Objects that came with other bytes than were sealed";
    out.counter("plasmon_damaged_objects", damaged, transfer.damaged)?;
    out.gauge("plasmon_leases", "Objects pinned for other nodes", real(transfer.leases))?;
    out.counter("plasmon_frames_dropped", "Frames dropped", transfer.frames_dropped)?;
    let copied = "Bytes of objects copied by this daemon's processor";
    out.counter("plasmon_copied_bytes", copied, transfer.cpu_copied_bytes)
}

fn cluster_metrics(out: &mut Out<'_>, cluster: &ClusterStatus) -> fmt::Result {
    out.gauge("plasmon_cluster_epoch", "Membership epoch", real(cluster.epoch))?;
    out.gauge("plasmon_cluster_members", "Nodes of the cluster", real(cluster.members.len() as u64))?;
    let connected = flag(cluster.coordinator_connected);
    out.gauge("plasmon_cluster_coordinator_connected", "1 if the coordinator answers", connected)?;
    let fenced = "1 if the node has lost its membership";
    out.gauge("plasmon_cluster_fenced", fenced, flag(cluster.fenced))?;
    let copies = &cluster.copies;
    let short = "Objects of this node's part of the directory that have fewer replicas than asked for";
    out.gauge("plasmon_replicas_short_objects", short, real(copies.short))?;
    out.counter("plasmon_replicas_ordered", "Replicas ordered to restore objects", copies.ordered)?;
    out.counter("plasmon_replicas_restored", "Ordered replicas that were made", copies.restored)?;
    out.counter("plasmon_replicas_failed", "Ordered replicas that were not made", copies.failed)?;
    out.counter("plasmon_objects_expired", "Objects deleted at the end of their time", copies.expired)?;
    let entries = "Objects that this node's part of the directory knows";
    out.gauge("plasmon_directory_entries", entries, real(cluster.directory_entries))
}

/// The receiver of metrics. The format appends `_total` to the names of counters.
struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    fn gauges(&mut self, name: &str, help: &str, label: &str, values: &[(&str, f64)]) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        values.iter().try_for_each(|(which, value)| {
            ConstGauge::new(*value).encode(metric.encode_family(&[(label, *which)])?)
        })
    }

    /// Writes a histogram of classes with their upper bounds, lowest first.
    fn histogram(&mut self, name: &str, help: &str, sum: f64, classes: &[(f64, u64)]) -> fmt::Result {
        let count = classes.iter().map(|(_, count)| count).sum();
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        metric.encode_histogram::<NoLabelSet>(sum, count, classes, None)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)
    }

    fn counters<N: EncodeCounterValue + Copy>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: &[(&str, N)],
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        values.iter().try_for_each(|(which, value)| {
            ConstCounter::new(*value).encode(metric.encode_family(&[(label, *which)])?)
        })
    }
}

/// Converts a count to a real number, which is exact up to 2^53.
fn real(value: u64) -> f64 {
    value as f64
}

fn flag(set: bool) -> f64 {
    f64::from(u8::from(set))
}

#[cfg(test)]
mod tests;
