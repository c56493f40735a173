//! NUMA: keeping the node's threads and memory on the memory node of its network card.
//!
//! Owns no state. [`bind`] runs once, on the engine's thread, before the arena is made and other threads
//! start. These threads inherit the CPUs and the memory node, so copies to disk and pre-faulting happen near
//! the arena as well. [`memory`](crate::memory) binds the arena's own memory. On a host with one memory node
//! nothing is done.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use plasmon::status::NumaStatus;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tracing::{debug, warn};

use crate::memory::policy;

/// The choice of the memory node on which to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numa {
    /// The network card's memory node, if there are several and the card's is known.
    Auto,
    /// The memory node of this number.
    Node(u32),
    /// No binding: the kernel decides.
    Off,
}

/// Why the node cannot be bound to the memory node that it is asked to use.
#[derive(Debug, thiserror::Error)]
pub enum NumaError {
    /// The host has no such memory node.
    #[error("this host has no memory node {node}; it has {}: name one of them, or choose --numa auto or \
        --numa off", .there.join(", "))]
    NoSuchNode {
        /// The number of the memory node that was asked for.
        node: u32,
        /// The memory nodes of the host, with their CPUs.
        there: Vec<String>,
    },
    /// The process may use none of the memory node's CPUs.
    #[error(
        "this process may use CPUs {usable}, and memory node {node} has {cpus}: widen its affinity \
         (taskset, numactl, the cpuset of its container), or choose --numa off"
    )]
    NoCpu {
        /// The number of the memory node.
        node: u32,
        /// The memory node's CPUs.
        cpus: String,
        /// The CPUs that the process may use.
        usable: String,
    },
    /// The kernel refuses the binding.
    #[error(
        "cannot bind to memory node {node}: {source}; a container may have to allow it (the memory nodes of \
         its cpuset, CAP_SYS_NICE), else choose --numa off"
    )]
    Refused {
        /// The number of the memory node.
        node: u32,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The place where the node runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct Binding {
    /// Number of memory nodes of the host.
    nodes: usize,
    /// The memory node to which the node is bound.
    pub(crate) node: Option<u32>,
    /// The memory node of the network card, if it is known.
    card: Option<u32>,
    /// The CPUs that the node's threads may use, if they are bound.
    cpus: String,
    /// The reason for the choice.
    reason: String,
}

impl Binding {
    /// Returns the binding for the report. `elsewhere` is the report's number of the same name.
    pub(crate) fn status(&self, elsewhere: u64) -> NumaStatus {
        NumaStatus {
            nodes: self.nodes as u32,
            node: self.node,
            card: self.card,
            cpus: self.cpus.clone(),
            reason: self.reason.clone(),
            elsewhere,
        }
    }
}

/// Binds this thread, and the threads and memory that it will start and touch, as `choice` says. `interface`
/// is the network interface or the RDMA device by which the node talks.
///
/// # Errors
/// When a memory node that was named cannot be used. With *auto*, the node runs unbound in that case and logs
/// the reason.
pub(crate) fn bind(choice: Numa, interface: &str) -> Result<Binding, NumaError> {
    let sys = Path::new("/sys");
    let topology = Topology::read(sys);
    let card = card_node(sys, interface);
    let (node, reason) = decide(choice, &topology, interface, card)?;
    let free = Binding { nodes: topology.0.len(), node: None, card, cpus: String::new(), reason };
    let Some(node) = node else {
        debug!("not bound to a memory node: {}", free.reason);
        return Ok(free);
    };
    match apply(node) {
        Ok(cpus) => {
            debug!("bound to memory node {} and its CPUs {cpus}: {}", node.number, free.reason);
            Ok(Binding { node: Some(node.number), cpus, ..free })
        }
        Err(error) if choice == Numa::Auto => {
            warn!(
                "not bound to a memory node, so transfers will cross from one processor to another: {error}"
            );
            Ok(Binding { reason: error.to_string(), ..free })
        }
        Err(error) => Err(error),
    }
}

/// A memory node of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MemoryNode {
    number: u32,
    /// The memory node's CPUs; none for one that has memory alone.
    cpus: Vec<usize>,
}

/// All memory nodes, in order. A kernel without NUMA has one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Topology(Vec<MemoryNode>);

impl Topology {
    /// Reads the memory nodes of a host from its `sysfs`, which is mounted at `sys`.
    fn read(sys: &Path) -> Self {
        let folder = sys.join("devices/system/node");
        let list = |path: PathBuf| fs::read_to_string(path).ok().and_then(|text| numbers(text.trim()));
        let online = list(folder.join("online")).unwrap_or_default();
        let mut nodes: Vec<_> = online
            .into_iter()
            .map(|number| MemoryNode {
                number: number as u32,
                cpus: list(folder.join(format!("node{number}/cpulist"))).unwrap_or_default(),
            })
            .collect();
        if nodes.is_empty() {
            nodes.push(MemoryNode { number: 0, cpus: Vec::new() });
        }
        Self(nodes)
    }
}

/// Decides to which memory node to bind, and why; `None` for no binding.
fn decide<'a>(
    choice: Numa,
    topology: &'a Topology,
    interface: &str,
    card: Option<u32>,
) -> Result<(Option<&'a MemoryNode>, String), NumaError> {
    let nodes = &topology.0;
    let named = |number| nodes.iter().find(|node| node.number == number);
    let chosen = match choice {
        Numa::Off => return Ok((None, "--numa off".to_owned())),
        Numa::Node(number) => {
            let tell = |node: &MemoryNode| match list(&node.cpus) {
                cpus if cpus.is_empty() => format!("{} (no CPUs)", node.number),
                cpus => format!("{} (CPUs {cpus})", node.number),
            };
            let missing = || NumaError::NoSuchNode { node: number, there: nodes.iter().map(tell).collect() };
            Some((named(number).ok_or_else(missing)?, format!("--numa {number}")))
        }
        Numa::Auto => None,
    };
    if nodes.len() < 2 {
        return Ok((None, "the host has one memory node".to_owned()));
    }
    if let Some((node, reason)) = chosen {
        return Ok((Some(node), reason));
    }
    Ok(match card {
        None => (None, format!("the memory node of {interface} is unknown; --numa N chooses one")),
        Some(number) => match named(number) {
            Some(node) => (Some(node), format!("{interface} is there")),
            None => (None, format!("{interface} is at memory node {number}, which is not online")),
        },
    })
}

/// The memory node of a network interface or an RDMA device.
fn card_node(sys: &Path, interface: &str) -> Option<u32> {
    // libfabric marks verbs devices by a suffix, as in mlx5_0-xrc.
    let device = interface.split('-').next().unwrap_or(interface);
    let folders = [("class/net", interface), ("class/infiniband", interface), ("class/infiniband", device)];
    let found = folders.into_iter().find_map(|(class, name)| device_node(sys, &sys.join(class).join(name)));
    // Soft-RoCE has no device of its own, only the interface that it uses.
    found.or_else(|| device_node(sys, &sys.join("class/net").join(ethernet_of(sys, device)?)))
}

/// The network interface of an RDMA device, if it has one.
fn ethernet_of(sys: &Path, device: &str) -> Option<String> {
    let ports = fs::read_dir(sys.join("class/infiniband").join(device).join("ports")).ok()?.flatten();
    let name = |port: PathBuf| fs::read_to_string(port.join("gid_attrs/ndevs/0")).ok();
    let name = ports.filter_map(|port| name(port.path())).next()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Returns the memory node of the network card or RDMA device in the folder `card`. `None` if the host does
/// not tell, or if the cards below a bond, a bridge or a VLAN are not all at one memory node.
fn device_node(sys: &Path, card: &Path) -> Option<u32> {
    if let Ok(device) = card.join("device").canonicalize() {
        let sys = sys.canonicalize().ok()?;
        // A virtio card is below the PCI device that knows its memory node.
        let above = device.ancestors().take_while(|folder| folder.starts_with(&sys));
        let told = above.filter_map(|folder| fs::read_to_string(folder.join("numa_node")).ok());
        // The value is -1 where the firmware does not tell.
        return told.filter_map(|text| text.trim().parse::<u32>().ok()).next();
    }
    // The interface is a bond, a bridge or a VLAN: the interfaces below it decide.
    let entries = fs::read_dir(card).ok()?.flatten().map(|entry| entry.path());
    let mut lower: Vec<_> = entries
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("lower_")))
        .collect();
    lower.sort();
    let mut nodes = lower.iter().filter_map(|path| device_node(sys, path));
    let first = nodes.next()?;
    // No memory node is near cards at several memory nodes.
    nodes.all(|node| node == first).then_some(first)
}

/// Binds this thread to a memory node, and returns the CPUs that the thread may use from now on.
fn apply(node: &MemoryNode) -> Result<String, NumaError> {
    let refused = |source: io::Error| NumaError::Refused { node: node.number, source };
    let usable = sched_getaffinity(None).map_err(|error| refused(error.into()))?;
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| usable.is_set(*cpu)).collect();
    // If a memory node has no CPUs of its own, its neighbours' CPUs are used.
    let cpus = match node.cpus.as_slice() {
        [] => usable.clone(),
        own => usable.iter().copied().filter(|cpu| own.contains(cpu)).collect(),
    };
    if cpus.is_empty() {
        return Err(NumaError::NoCpu { node: node.number, cpus: list(&node.cpus), usable: list(&usable) });
    }
    policy::prefer_node(node.number).map_err(refused)?;
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).map_err(|error| refused(error.into()))?;
    Ok(list(&cpus))
}

/// Parses the numbers of a list such as `0-3,8`.
fn numbers(list: &str) -> Option<Vec<usize>> {
    // The limit is more than any kernel counts.
    const MAX_NUMBER: usize = 1 << 16;
    let mut numbers = Vec::new();
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last >= MAX_NUMBER {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Formats numbers in order as a list such as `0-3,8`.
fn list(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let runs: Vec<_> = runs
        .map(|run| match run {
            [one] => one.to_string(),
            run => format!("{}-{}", run[0], run[run.len() - 1]),
        })
        .collect();
    runs.join(",")
}

#[cfg(test)]
mod tests;
