//! `plasmon status`: prints what a node is, holds and does, in lines for people.
//!
//! Owns no state. Main thread.

use std::time::Duration;

use plasmon::Socket;
use plasmon::status::{
    ClassesStatus, ClusterStatus, FabricStatus, FilesStatus, FunctionsStatus, LocksStatus, MemberStatus,
    MemoryStatus, NumaStatus, ObjectsStatus, RegionsStatus, SlotsStatus, SpillStatus, TransferStatus,
};

use crate::connecting::connect;
use crate::failure::Failure;
use crate::output::{self, age, counted, line, pages, size, table};

/// Prints the status of a node, in lines for people or as the node's own JSON.
pub(crate) fn status(socket: &Socket, as_json: bool) -> Result<(), Failure> {
    let client = connect(socket, "plasmon status")?;
    if as_json {
        return output::json(&client.status_json()?);
    }
    let status = client.status()?;
    line(&format!(
        "node      {} (plasmon {}, process {}, up {})",
        status.node,
        status.version,
        status.pid,
        age(Duration::from_secs_f64(status.uptime_seconds))
    ))?;
    line(&format!("socket    {}, {}", status.socket, counted(status.clients, "client")))?;
    tell_slots(&status.slots)?;
    tell_regions(&status.regions)?;
    tell_services(&status.functions)?;
    tell_locks(&status.locks)?;
    tell_files(&status.files)?;
    tell_memory(&status.memory, &status.numa)?;
    tell_objects(&status.objects)?;
    tell_spill(&status.spill)?;
    tell_fabric(&status.fabric, &status.transfer)?;
    tell_classes(&status.classes)?;
    if !status.unfit.is_empty() {
        line(&format!("unfit     {}", status.unfit))?;
    }
    tell_cluster(&status.cluster)?;
    tell_members(&status.cluster)
}

/// Prints the line about calls by slot, once a client has slots.
fn tell_slots(slots: &SlotsStatus) -> Result<(), Failure> {
    if slots.clients == 0 && slots.calls == 0 {
        return Ok(());
    }
    line(&format!(
        "calls     {} so far, {} under way, {} with slots",
        slots.calls,
        slots.under_way,
        counted(slots.clients, "client")
    ))
}

/// Prints the line about regions, once there was one.
fn tell_regions(regions: &RegionsStatus) -> Result<(), Failure> {
    let RegionsStatus { reads, writes, atomics, fills, waits, notifies, .. } = regions;
    let operations = reads + writes + atomics + fills + waits + notifies;
    if regions.regions == 0 && operations == 0 && regions.handles == 0 {
        return Ok(());
    }
    let some = |count: u64, what: &str| if count > 0 { format!(", {count} {what}") } else { String::new() };
    line(&format!(
        "regions   {} ({} of {}{}{}), {} handles, {operations} operations so far, {} waiting",
        regions.regions,
        size(regions.bytes),
        size(regions.limit),
        some(regions.in_pieces, "in pieces"),
        some(regions.crowded_out, "not mappable for want of memory"),
        regions.handles,
        regions.waiting
    ))
}

/// Prints the line about services, once there was one.
fn tell_services(functions: &FunctionsStatus) -> Result<(), Failure> {
    let FunctionsStatus { names, ports, waiting, running, under_way, begun, served, failed, .. } = functions;
    if names + ports + begun + served + failed == 0 {
        return Ok(());
    }
    line(&format!(
        "services  {ports} ports here, {running} calls running and {waiting} waiting, {served} served and \
         {failed} failed so far; {under_way} of {begun} calls of clients under way elsewhere"
    ))
}

/// Prints the line about locks and barriers, once there was one.
fn tell_locks(locks: &LocksStatus) -> Result<(), Failure> {
    let LocksStatus { names, abandoned, held, waiting, granted, lost, barriers, arrived } = locks;
    if names + abandoned + waiting + granted + barriers == 0 {
        return Ok(());
    }
    line(&format!(
        "locks     {held} held by clients and {waiting} waited for, {granted} granted and {lost} lost; \
         {names} locks and {barriers} barriers decided here, and {abandoned} locks that were abandoned, \
         {arrived} calls at a barrier"
    ))
}

/// Prints the line about files, once there was a volume.
fn tell_files(files: &FilesStatus) -> Result<(), Failure> {
    if files.volumes + files.attached + files.asked == 0 {
        return Ok(());
    }
    line(&format!(
        "files     {} here with {} of {} in {} of {} of memory, {}; {} attached here, {} operations of them",
        counted(files.volumes, "volume"),
        counted(files.inodes, "inode"),
        size(files.bytes),
        size(files.memory),
        size(files.memory_limit),
        counted(files.sessions, "session"),
        files.attached,
        files.asked
    ))?;
    if files.credit + files.credit_lapsed > 0 {
        line(&format!(
            "  credit  {} of volumes with limits held to write, {} not used and taken back",
            size(files.credit),
            size(files.credit_lapsed)
        ))?;
    }
    if files.told > 0 {
        line(&format!(
            "  changes {} told to sessions that watch, {} confirmed in time, {} not",
            files.told, files.confirmed, files.missed
        ))?;
    }
    let placed = files.placed_elsewhere + files.placed_in_vain + files.placed_here + files.placed_short;
    if placed + files.pulls > 0 {
        line(&format!(
            "  objects {} taken by other nodes, {} taken from others, {} stayed in vain; {} under way; on \
             too few nodes {}, without room for copies {}",
            files.placed_elsewhere,
            files.placed_here,
            files.placed_in_vain,
            files.pulls,
            files.placed_short,
            files.placed_refused
        ))?;
    }
    if files.reads_here + files.reads_brought + files.blocks > 0 {
        line(&format!(
            "  reads   {} of objects here, {} of objects that were brought; {} of {} lent to write into",
            files.reads_here,
            files.reads_brought,
            counted(files.blocks, "block"),
            size(files.block_bytes)
        ))?;
    }
    if files.ranges_asked + files.ranges_read + files.ranges_given == 0 {
        return Ok(());
    }
    line(&format!(
        "  ranges  {} asked for and {} read one-sidedly at other nodes, {} given to others",
        files.ranges_asked, files.ranges_read, files.ranges_given
    ))
}

/// Prints the lines about classes, if they are kept apart or once there was work of class high or low.
fn tell_classes(classes: &ClassesStatus) -> Result<(), Failure> {
    let ClassesStatus { qos, low_limit, high, normal, low } = classes;
    if qos == "off" && high.operations + low.operations == 0 {
        return Ok(());
    }
    let limit = match low_limit {
        0 => String::new(),
        limit => format!(", low limited to {} a second", size(*limit)),
    };
    line(&format!("classes   {qos}{limit}"))?;
    for (name, class) in [("high", high), ("normal", normal), ("low", low)] {
        line(&format!(
            "  {name:<7} {} operations, {} sent, {} received, {} waits of {:.3} s in all",
            class.operations,
            size(class.sent_bytes),
            size(class.received_bytes),
            class.waits,
            class.waited_seconds
        ))?;
    }
    Ok(())
}

/// Prints the lines about the arena and the memory node.
fn tell_memory(memory: &MemoryStatus, numa: &NumaStatus) -> Result<(), Failure> {
    let prefault = if memory.prefaulted < memory.capacity {
        format!(", {} pre-faulted", size(memory.prefaulted))
    } else {
        String::new()
    };
    line(&format!(
        "memory    {} of {} used, largest free piece {}, {}{prefault}",
        size(memory.used),
        size(memory.capacity),
        size(memory.largest_free),
        pages(memory)
    ))?;
    if let Some(node) = numa.node {
        let far = if numa.elsewhere > 0 {
            format!("; {} lie on others", size(numa.elsewhere))
        } else {
            String::new()
        };
        line(&format!(
            "numa      memory node {node} of {}, CPUs {} ({}){far}",
            numa.nodes, numa.cpus, numa.reason
        ))?;
    }
    Ok(())
}

/// Prints the line that counts objects.
fn tell_objects(objects: &ObjectsStatus) -> Result<(), Failure> {
    line(&format!(
        "objects   {} primary ({}), {} kept for others ({}), {} cached ({}), {} unsealed, {} pinned ({}), \
         {} deleted but pinned ({}), {} evicted",
        objects.primary,
        size(objects.primary_bytes),
        objects.kept,
        size(objects.kept_bytes),
        objects.cached,
        size(objects.cached_bytes),
        objects.unsealed,
        objects.pinned,
        size(objects.pinned_bytes),
        objects.doomed,
        size(objects.doomed_bytes),
        objects.evicted
    ))
}

/// Prints the lines about the spill directory, if there is one.
fn tell_spill(spill: &SpillStatus) -> Result<(), Failure> {
    if spill.directory.is_empty() {
        return Ok(());
    }
    let failed = if spill.failures > 0 { format!(", {} failures", spill.failures) } else { String::new() };
    line(&format!(
        "on disk   {} ({}) in {}, {} restored so far{failed}",
        spill.objects,
        size(spill.bytes),
        spill.directory,
        size(spill.restored_bytes)
    ))?;
    if spill.unreadable > 0 {
        line(&format!(
            "          {} damaged records were found at the start; their objects are lost and unknown",
            spill.unreadable
        ))?;
    }
    if !spill.failing.is_empty() {
        line(&format!("          objects cannot be spilled: {}", spill.failing))?;
    }
    Ok(())
}

/// Prints the lines about the fabric and what went over it.
fn tell_fabric(fabric: &FabricStatus, transfer: &TransferStatus) -> Result<(), Failure> {
    line(&format!(
        "fabric    {} (libfabric {} of {}; {}), {} registered in {} regions",
        fabric.provider,
        fabric.libfabric,
        fabric.library,
        fabric.reason,
        size(fabric.registered_bytes),
        fabric.regions
    ))?;
    if !["", "ACTIVE"].contains(&fabric.link.as_str()) {
        line(&format!("          the RDMA device has no link: it is {}", fabric.link))?;
    }
    line(&format!(
        "moved     {} messages sent, {} received; {} one-sided reads; {} of objects copied by this node's \
         CPU",
        fabric.messages_sent,
        fabric.messages_received,
        fabric.reads,
        size(transfer.cpu_copied_bytes)
    ))?;
    line(&format!(
        "fetched   {} eager ({}), {} pushed ({}), {} by one-sided reads ({}), {} compared with their \
         digests, {} damaged, {} failed attempts",
        transfer.eager_fetched,
        size(transfer.eager_fetched_bytes),
        transfer.pushed_fetched,
        size(transfer.pushed_fetched_bytes),
        transfer.rendezvous_fetched,
        size(transfer.rendezvous_fetched_bytes),
        transfer.compared,
        transfer.damaged,
        transfer.fetch_failures
    ))?;
    line(&format!(
        "served    {} eager, {} to one-sided reads, {} leases now",
        transfer.eager_served, transfer.rendezvous_served, transfer.leases
    ))
}

/// Prints the lines about the coordinator, and about replicas if any are missing.
fn tell_cluster(cluster: &ClusterStatus) -> Result<(), Failure> {
    let coordinator = match cluster.coordinator_kind.as_str() {
        "etcd" => cluster.coordinator.clone(),
        _ if cluster.coordinator == "embedded" => "in this node".into(),
        _ => format!("in the node at {}", cluster.coordinator),
    };
    let lost = if cluster.coordinator_connected { "" } else { ", which does not answer" };
    let losses = match cluster.coordinator_losses {
        0 => String::new(),
        times => format!(" (lost {times} times so far)"),
    };
    line(&format!(
        "cluster   epoch {}, coordinator {coordinator}{lost}{losses}, {} directory entries here{}",
        cluster.epoch,
        cluster.directory_entries,
        if cluster.healing { ", others are being told what is here" } else { "" }
    ))?;
    if cluster.fenced {
        line(
            "          this node is no member at the moment: it serves no other node, and its clients only \
             what it holds; it joins again as soon as its coordinator answers",
        )?;
    } else if !cluster.coordinator_connected {
        let back = match cluster.coordinator_kind.as_str() {
            "etcd" => String::new(),
            _ => format!("; start it again with `plasmon serve --listen {}`", cluster.coordinator),
        };
        line(&format!("          without the coordinator no node can join, and no death is detected{back}"))?;
    }
    let copies = &cluster.copies;
    if copies.short + copies.ordered + copies.restoring > 0 {
        line(&format!(
            "replicas  {} objects have too few; {} ordered, {} made, {} failed so far; {} being made here",
            copies.short, copies.ordered, copies.restored, copies.failed, copies.restoring
        ))?;
    }
    Ok(())
}

/// Prints a line for each member.
fn tell_members(cluster: &ClusterStatus) -> Result<(), Failure> {
    let rows: Vec<_> = cluster
        .members
        .iter()
        .map(|member| {
            let note = match member {
                MemberStatus { this: true, .. } => "this node".to_owned(),
                MemberStatus { cut_off: true, .. } => "cut off: see the log".to_owned(),
                MemberStatus { connected: true, provider, .. } => format!("connected by {provider}"),
                _ => "not yet used".to_owned(),
            };
            let why = if member.reason.is_empty() { String::new() } else { format!("; {}", member.reason) };
            [format!("          {}", member.node), member.listen.clone(), note + &why]
        })
        .collect();
    table(["          NODE", "LISTEN", ""], &rows)
}
