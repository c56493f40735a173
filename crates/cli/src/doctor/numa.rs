//! Check of memory nodes (NUMA): those of the host, those of its network cards, and that of the node.
//!
//! Owns no state. Main thread.

use std::fs;

use super::Case;
use super::files::{meminfo, value_of};
use super::finding::Finding;
use super::pages::{POOL, pages};
use crate::output::size;

const NODES: &str = "/sys/devices/system/node";
const TOPIC: &str = "numa";
const WHY: &str = "The card's accesses to another memory node cross the link between the processors, which \
                   has a higher latency and a lower bandwidth.";

/// Checks whether the node is bound to the memory node of its network card.
pub(super) fn check(case: &Case) -> Option<Finding> {
    let nodes = nodes(case)?;
    if nodes.len() < 2 {
        return Some(Finding::ok(TOPIC, "one memory node, so there is nothing to bind the node to"));
    }
    let cards = cards(case);
    let mut found = format!("{} memory nodes: {}", nodes.len(), nodes.join(", "));
    if !cards.is_empty() {
        let places: Vec<_> = cards.iter().map(|(card, node)| format!("{card} is at node{node}")).collect();
        found = format!("{found}; {}", places.join(", "));
    }
    Some(match &case.node {
        Some(_) => running(case, found),
        None => planned(case, found, &cards),
    })
}

/// Finding about a running node.
fn running(case: &Case, found: String) -> Finding {
    let Some((node, numa)) = case.node.as_ref().map(|node| (node, &node.numa)) else {
        return Finding::ok(TOPIC, found);
    };
    let interface = &node.fabric.interface;
    match (numa.node, numa.card) {
        (Some(bound), near) if near.is_none_or(|near| near == bound) => {
            let found = match near {
                Some(_) => format!("{found}; the node is bound to node{bound}, where {interface} is"),
                None => format!("{found}; the node is bound to node{bound}"),
            };
            match numa.elsewhere {
                0 => Finding::ok(TOPIC, found),
                far => {
                    Finding::advice(TOPIC, format!("{found}, but {} of its memory are not", size(far)), WHY)
                        .mend(
                            "free memory there, or give the store less, and start the node again",
                            case.serve_near(),
                        )
                }
            }
        }
        (Some(bound), Some(near)) => {
            let found =
                format!("{found}; the node is bound to node{bound}, and {interface} is at node{near}");
            Finding::advice(TOPIC, found, WHY).mend(case.restart(), case.serve_near())
        }
        (None, Some(near)) if confined_to(case, near) => {
            Finding::ok(TOPIC, format!("{found}; the node is confined to node{near}, where {interface} is"))
        }
        (None, Some(near)) => {
            let found = format!(
                "{found}; the node is not bound to node{near}, where {interface} is ({})",
                numa.reason
            );
            Finding::advice(TOPIC, found, WHY).mend(case.restart(), case.serve_near())
        }
        (_, None) => Finding::ok(TOPIC, format!("{found}; the node is not bound ({})", numa.reason)),
    }
}

/// Whether the running node may use the memory of no other memory node than `node`.
fn confined_to(case: &Case, node: u32) -> bool {
    let (process, is_node) = case.process();
    let status = case.files.text(&format!("{process}/status"));
    let allowed = status.as_deref().and_then(|status| value_of(status, "Mems_allowed_list"));
    is_node && allowed == Some(node.to_string().as_str())
}

/// Finding if no node runs: whether the card's memory node has enough huge pages for a node bound there.
fn planned(case: &Case, found: String, cards: &[(String, u64)]) -> Finding {
    // A node would choose an RDMA device.
    let rdma = case.files.names("/sys/class/infiniband");
    let Some((card, near)) = cards.iter().find(|(card, _)| rdma.contains(card)) else {
        let why =
            "A node binds itself to the memory node of the network card it talks through (--numa auto).";
        return Finding::ok(TOPIC, found).because(why);
    };
    let found = format!("{found}; a node that talks through {card} binds itself to node{near} (--numa auto)");
    let pool = |name| case.files.number(&format!("{NODES}/node{near}/{POOL}/{name}")).unwrap_or(0);
    let anywhere = case.files.number(&format!("/sys/kernel/mm/{POOL}/nr_hugepages")).unwrap_or(0);
    let needed = pages(case.memory);
    let Some(missing) = needed.checked_sub(pool("free_hugepages")).filter(|some| anywhere > 0 && *some > 0)
    else {
        return Finding::ok(TOPIC, found);
    };
    let why = "Huge pages are reserved, but not enough of them on the card's memory node: the node would not \
               use the pool.";
    let file = format!("{NODES}/node{near}/{POOL}/nr_hugepages");
    let total = pool("nr_hugepages") + missing;
    Finding::advice(TOPIC, found, why)
        .mend("huge pages there, until the next boot", case.shell.write(&total.to_string(), &file))
}

/// Description of the memory nodes.
fn nodes(case: &Case) -> Option<Vec<String>> {
    case.files.text(&format!("{NODES}/online"))?;
    let is_node =
        |name: &String| name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok());
    let mut names: Vec<_> = case.files.names(NODES).into_iter().filter(is_node).collect();
    names.sort_by_key(|name| (name.len(), name.clone()));
    Some(names.iter().map(|name| describe(case, name)).collect())
}

fn describe(case: &Case, name: &str) -> String {
    let mut parts = Vec::new();
    match case.files.text(&format!("{NODES}/{name}/cpulist")) {
        Some(cpus) if !cpus.is_empty() => parts.push(format!("CPUs {cpus}")),
        _ => parts.push("no CPUs".to_owned()),
    }
    // Lines such as `Node 0 MemTotal:  24731708 kB`
    let text = case.files.text(&format!("{NODES}/{name}/meminfo")).unwrap_or_default();
    let text: String =
        text.lines().filter_map(|line| line.splitn(3, ' ').nth(2)).map(|line| format!("{line}\n")).collect();
    if let (Some(total), Some(free)) = (meminfo(&text, "MemTotal"), meminfo(&text, "MemFree")) {
        parts.push(format!("{} of memory, {} free", size(total), size(free)));
    }
    if let Some(pages @ 1..) = case.files.number(&format!("{NODES}/{name}/{POOL}/free_hugepages")) {
        parts.push(format!("{pages} free huge pages"));
    }
    format!("{name} ({})", parts.join("; "))
}

/// Network cards whose memory node is known.
fn cards(case: &Case) -> Vec<(String, u64)> {
    let of = |class: &str| {
        let card = |name: String| Some((name.clone(), place(case, &format!("{class}/{name}/device"))?));
        case.files.names(class).into_iter().filter_map(card).collect::<Vec<_>>()
    };
    [of("/sys/class/infiniband"), of("/sys/class/net")].concat()
}

/// Memory node of a device, or of the bus below which it is: a virtio card is below a PCI device.
fn place(case: &Case, device: &str) -> Option<u64> {
    let root = case.files.path("/sys").canonicalize().ok()?;
    let device = case.files.path(device).canonicalize().ok()?;
    let above = device.ancestors().take_while(|folder| folder.starts_with(&root));
    // The number is -1 if the firmware does not tell.
    above.filter_map(|folder| fs::read_to_string(folder.join("numa_node")).ok()?.trim().parse().ok()).next()
}
