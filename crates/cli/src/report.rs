//! `plasmon ls`, `plasmon status` and `plasmon clients`.

use std::path::Path;
use std::time::Duration;

use plasmon::status::{ConnectionStatus, MemberStatus, Status};
use plasmon::{Client, ObjectInfo, ObjectState};
use serde_json::json;

use crate::failure::Failure;
use crate::output::{age, line, plain, size, table};

fn state(state: ObjectState) -> &'static str {
    match state {
        ObjectState::Unsealed => "unsealed",
        ObjectState::Primary => "primary",
        ObjectState::Kept => "kept",
        ObjectState::Cached => "cached",
        ObjectState::Doomed => "deleted",
        ObjectState::Spilled => "spilled",
    }
}

pub(crate) fn ls(socket: &Path, as_json: bool) -> Result<(), Failure> {
    let objects = Client::connect_as(socket, "plasmon ls")?.list()?;
    if as_json {
        let row = |object: &ObjectInfo| {
            json!({
                "id": object.id.to_string(),
                "name": object.name,
                "bytes": object.data_len,
                "metadata_bytes": object.metadata_len,
                "state": state(object.state),
                "private": object.private,
                "pins": object.pins,
                "age_seconds": object.age_ms as f64 / 1000.0,
            })
        };
        line(&objects.iter().map(row).collect::<serde_json::Value>().to_string())?;
        return Ok(());
    }
    let rows: Vec<_> = objects
        .iter()
        .map(|object| {
            [
                object.id.to_string(),
                size(object.data_len),
                state(object.state).to_owned() + if object.private { ", private" } else { "" },
                object.pins.to_string(),
                age(Duration::from_millis(object.age_ms)),
                plain(object.name.as_deref().unwrap_or_default()),
            ]
        })
        .collect();
    table(["ID", "SIZE", "STATE", "PINS", "AGE", "NAME"], &rows)?;
    Ok(())
}

pub(crate) fn status(socket: &Path, as_json: bool) -> Result<(), Failure> {
    let client = Client::connect_as(socket, "plasmon status")?;
    if as_json {
        line(&client.status_json()?)?;
        return Ok(());
    }
    let status = client.status()?;
    let Status { memory, numa, objects, spill, fabric, transfer, cluster, .. } = &status;
    line(&format!(
        "node      {} (plasmon {}, process {}, up {})",
        status.node,
        status.version,
        status.pid,
        age(Duration::from_secs_f64(status.uptime_seconds))
    ))?;
    line(&format!("socket    {}, {} clients", status.socket, status.clients))?;
    let prefault = if memory.prefaulted < memory.capacity {
        format!(", {} pre-faulted", size(memory.prefaulted))
    } else {
        String::new()
    };
    line(&format!(
        "memory    {} of {} used, largest free piece {}, {} in huge pages{prefault}",
        size(memory.used),
        size(memory.capacity),
        size(memory.largest_free),
        size(memory.huge)
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
    line(&format!(
        "objects   {} primary ({}), {} kept for others ({}), {} cached ({}), {} unsealed, {} pinned, {} deleted but pinned, \
         {} evicted",
        objects.primary,
        size(objects.primary_bytes),
        objects.kept,
        size(objects.kept_bytes),
        objects.cached,
        size(objects.cached_bytes),
        objects.unsealed,
        objects.pinned,
        objects.doomed,
        objects.evicted
    ))?;
    if !spill.directory.is_empty() {
        let failed =
            if spill.failures > 0 { format!(", {} failures", spill.failures) } else { String::new() };
        line(&format!(
            "on disk   {} ({}) in {}, {} restored so far{failed}",
            spill.objects,
            size(spill.bytes),
            spill.directory,
            size(spill.restored_bytes)
        ))?;
        if !spill.failing.is_empty() {
            line(&format!("          objects cannot be spilled: {}", spill.failing))?;
        }
    }
    line(&format!(
        "fabric    {} (libfabric {}; {}), {} registered in {} regions",
        fabric.provider,
        fabric.libfabric,
        fabric.reason,
        size(fabric.registered_bytes),
        fabric.regions
    ))?;
    if !["", "ACTIVE"].contains(&fabric.link.as_str()) {
        line(&format!("          the RDMA device has no link: it is {}", fabric.link))?;
    }
    line(&format!(
        "moved     {} messages sent, {} received; {} one-sided reads; {} of objects copied by this node's CPU",
        fabric.messages_sent,
        fabric.messages_received,
        fabric.reads,
        size(transfer.cpu_copied_bytes)
    ))?;
    line(&format!(
        "fetched   {} eager ({}), {} by one-sided reads ({}), {} failed attempts",
        transfer.eager_fetched,
        size(transfer.eager_fetched_bytes),
        transfer.rendezvous_fetched,
        size(transfer.rendezvous_fetched_bytes),
        transfer.fetch_failures
    ))?;
    line(&format!(
        "served    {} eager, {} to one-sided reads, {} leases now",
        transfer.eager_served, transfer.rendezvous_served, transfer.leases
    ))?;
    if !status.unfit.is_empty() {
        line(&format!("unfit     {}", status.unfit))?;
    }
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
            "          this node is no member at the moment: it serves no other node, and its clients only what it \
             holds; it joins again as soon as its coordinator answers",
        )?;
    } else if !cluster.coordinator_connected {
        line("          until the coordinator is back nobody can join, and no further death is noticed")?;
    }
    let copies = &cluster.copies;
    if copies.short + copies.ordered + copies.restoring > 0 {
        line(&format!(
            "copies    {} objects have too few; {} replicas ordered, {} made, {} failed so far; {} being made here",
            copies.short, copies.ordered, copies.restored, copies.failed, copies.restoring
        ))?;
    }
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
    table(["          NODE", "LISTEN", ""], &rows)?;
    Ok(())
}

pub(crate) fn clients(socket: &Path, as_json: bool) -> Result<(), Failure> {
    let status = Client::connect_as(socket, "plasmon clients")?.status()?;
    if as_json {
        let row = |client: &ConnectionStatus| {
            json!({
                "name": client.name,
                "pid": client.pid,
                "uid": client.uid,
                "pins": client.pins,
                "bytes": client.bytes,
                "quota": Some(client.quota).filter(|quota| *quota > 0),
            })
        };
        return line(&status.connections.iter().map(row).collect::<serde_json::Value>().to_string());
    }
    let rows: Vec<_> = status
        .connections
        .iter()
        .map(|client| {
            [
                client.pid.to_string(),
                client.uid.to_string(),
                client.pins.to_string(),
                size(client.bytes),
                if client.quota > 0 { size(client.quota) } else { "-".to_owned() },
                plain(&client.name),
            ]
        })
        .collect();
    table(["PID", "USER", "PINS", "CREATED", "QUOTA", "NAME"], &rows)?;
    let more = status.clients.saturating_sub(rows.len() as u64);
    if more > 0 { line(&format!("and {more} more")) } else { Ok(()) }
}
