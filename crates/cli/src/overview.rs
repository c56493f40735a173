//! `plasmon status --cluster`: a line for every node, as text or JSON. `plasmon top` draws the same lines.
//!
//! Owns no state. Main thread.

use std::time::Duration;

use plasmon::Socket;
use plasmon::overview::{NodeOverview, Overview, Summary};
use plasmon::text::printable;

use crate::connecting::connect;
use crate::failure::Failure;
use crate::output::{age, counted, json, line, size, table};

/// Headings of a node's cells.
pub(crate) const HEADINGS: [&str; 9] =
    ["NODE", "LISTEN", "MEMORY", "PRIMARY", "CACHED", "REGIONS", "FETCHED", "SERVED", "CLIENTS"];

/// Prints the nodes of the cluster.
pub(crate) fn status(socket: &Socket, as_json: bool) -> Result<(), Failure> {
    let client = connect(socket, "plasmon status")?;
    if as_json {
        return json(&client.overview_json()?);
    }
    print(&client.overview()?)
}

/// Prints an overview for people.
pub(crate) fn print(overview: &Overview) -> Result<(), Failure> {
    line(&heading(overview))?;
    let rows: Vec<_> = overview
        .nodes
        .iter()
        .map(|node| {
            let [name, listen, memory, primary, cached, regions, fetched, served, clients] = cells(node);
            [name, listen, memory, primary, cached, regions, fetched, served, clients, note(node)]
        })
        .collect();
    let [a, b, c, d, e, f, g, h, i] = HEADINGS;
    table([a, b, c, d, e, f, g, h, i, ""], &rows)?;
    if overview.left_out > 0 { line(&format!("and {} more", overview.left_out)) } else { Ok(()) }
}

/// Summary of the cluster in a line.
pub(crate) fn heading(overview: &Overview) -> String {
    let silent = overview.nodes.iter().filter(|node| node.summary.is_none()).count();
    let silent = if silent > 0 { format!(", {silent} of them silent") } else { String::new() };
    let lost = if overview.coordinator_connected { "" } else { ", which does not answer" };
    format!(
        "{}{silent}, epoch {}, coordinator {}{lost}",
        counted(overview.nodes.len() as u64 + overview.left_out, "node"),
        overview.epoch,
        printable(&overview.coordinator)
    )
}

/// Cells of a node: what it is and what it holds.
pub(crate) fn cells(node: &NodeOverview) -> [String; 9] {
    let name = node.node.chars().take(8).collect();
    let listen = printable(&node.listen).into_owned();
    let Some(summary) = &node.summary else {
        let [memory, primary, cached, regions, fetched, served, clients] = ["-"; 7].map(str::to_owned);
        return [name, listen, memory, primary, cached, regions, fetched, served, clients];
    };
    let Summary { memory_bytes, memory_used_bytes, .. } = summary;
    let count = |objects: u64, bytes: u64| format!("{objects} ({})", size(bytes));
    [
        name,
        listen,
        format!("{} of {}", size(*memory_used_bytes), size(*memory_bytes)),
        count(summary.primary_objects, summary.primary_bytes),
        count(summary.cached_objects, summary.cached_bytes),
        count(summary.regions, summary.region_bytes),
        count(summary.fetched_objects, summary.fetched_bytes),
        count(summary.served_objects, summary.served_bytes),
        summary.clients.to_string(),
    ]
}

/// Note on a node, which follows its cells.
pub(crate) fn note(node: &NodeOverview) -> String {
    let here = if node.this { "this node; " } else { "" };
    match &node.summary {
        None => format!("no answer: {}", printable(&node.failure)),
        Some(summary) if !summary.unfit.is_empty() => format!("{here}{}", printable(&summary.unfit)),
        Some(summary) => {
            let spilled = if summary.spilled_objects > 0 {
                format!("; {} on disk", size(summary.spilled_bytes))
            } else {
                String::new()
            };
            let (in_pieces, out) = (summary.regions_in_pieces, summary.regions_crowded_out);
            let pieces = if in_pieces > 0 {
                format!("; {} in pieces", counted(in_pieces, "region"))
            } else {
                String::new()
            };
            let crowded =
                if out > 0 { format!("; {} crowded out", counted(out, "region")) } else { String::new() };
            let up = age(Duration::from_secs_f64(summary.uptime_seconds.max(0.0)));
            format!("{here}up {up}{spilled}{pieces}{crowded}")
        }
    }
}
