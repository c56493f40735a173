//! NUMA: keeping the node's threads and memory on the memory node of its network card.
//!
//! [`bind`] runs once, on the engine's thread, before it makes the arena and starts other threads: those
//! inherit where they run and where their memory is to be, so that copies to disk and pre-faulting happen
//! near the arena as well. The arena's own memory is bound by [`memory`](crate::memory). On a host with one
//! memory node nothing is done.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use plasmon::status::NumaStatus;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tracing::{info, warn};

use crate::memory::policy;

/// Which memory node to be on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numa {
    /// The network card's, if there are several and it tells where it is.
    Auto,
    /// This one.
    Node(u32),
    /// Wherever the kernel likes.
    Off,
}

/// The node cannot be where it is asked to be.
#[derive(Debug, thiserror::Error)]
pub enum NumaError {
    /// The host has no such memory node.
    #[error("this host has no memory node {node}; it has {}: name one of them, or choose --numa auto or \
        --numa off", .there.join(", "))]
    NoSuchNode {
        /// The number asked for.
        node: u32,
        /// Those there are, with their CPUs.
        there: Vec<String>,
    },
    /// The process is kept away from all of its CPUs.
    #[error(
        "this process may use CPUs {usable}, and memory node {node} has {cpus}: widen its affinity \
         (taskset, numactl, the cpuset of its container), or choose --numa off"
    )]
    NoCpu {
        /// The memory node.
        node: u32,
        /// Its CPUs.
        cpus: String,
        /// Those that may be used.
        usable: String,
    },
    /// The kernel refuses.
    #[error(
        "cannot bind to memory node {node}: {source}; a container may have to allow it (the memory nodes of \
         its cpuset, CAP_SYS_NICE), else choose --numa off"
    )]
    Refused {
        /// The memory node.
        node: u32,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Where the node is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct Binding {
    /// Memory nodes of the host.
    nodes: usize,
    /// The one it is bound to.
    pub(crate) node: Option<u32>,
    /// The one that its card is at, if that is known.
    card: Option<u32>,
    /// The CPUs its threads may use, if they are bound.
    cpus: String,
    /// Why.
    reason: String,
}

impl Binding {
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

/// Binds this thread, and what it will start and touch, as chosen. `interface` is the network interface or
/// the RDMA device that the node talks through.
///
/// # Errors
/// When a memory node that was named is not to be had. *auto* does without then, and the log says why.
pub(crate) fn bind(choice: Numa, interface: &str) -> Result<Binding, NumaError> {
    let sys = Path::new("/sys");
    let topology = Topology::read(sys);
    let card = card_node(sys, interface);
    let (node, reason) = decide(choice, &topology, interface, card)?;
    let free = Binding { nodes: topology.0.len(), node: None, card, cpus: String::new(), reason };
    let Some(node) = node else {
        info!("not bound to a memory node: {}", free.reason);
        return Ok(free);
    };
    match apply(node) {
        Ok(cpus) => {
            info!("bound to memory node {} and its CPUs {cpus}: {}", node.number, free.reason);
            Ok(Binding { node: Some(node.number), cpus, ..free })
        }
        Err(error) if choice == Numa::Auto => {
            warn!("transfers will cross from one processor to another: {error}");
            Ok(Binding { reason: error.to_string(), ..free })
        }
        Err(error) => Err(error),
    }
}

/// A memory node of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MemoryNode {
    number: u32,
    /// Its CPUs, none for one that is memory alone.
    cpus: Vec<usize>,
}

/// All memory nodes, in order. A kernel that knows nothing of them has one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Topology(Vec<MemoryNode>);

impl Topology {
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

/// What to bind to, and why, or why not.
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
        None => (None, format!("{interface} does not tell which memory node it is at; --numa N chooses one")),
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
    // Soft-RoCE has no device of its own, but the interface that it is on.
    found.or_else(|| device_node(sys, &sys.join("class/net").join(ethernet_of(sys, device)?)))
}

/// The network interface of an RDMA device, if it has one.
fn ethernet_of(sys: &Path, device: &str) -> Option<String> {
    let ports = fs::read_dir(sys.join("class/infiniband").join(device).join("ports")).ok()?.flatten();
    let name = |port: PathBuf| fs::read_to_string(port.join("gid_attrs/ndevs/0")).ok();
    let name = ports.filter_map(|port| name(port.path())).next()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

fn device_node(sys: &Path, card: &Path) -> Option<u32> {
    if let Ok(device) = card.join("device").canonicalize() {
        let sys = sys.canonicalize().ok()?;
        // A virtio card hangs below the PCI device that tells.
        let above = device.ancestors().take_while(|folder| folder.starts_with(&sys));
        let told = above.filter_map(|folder| fs::read_to_string(folder.join("numa_node")).ok());
        // -1 where the firmware says nothing.
        return told.filter_map(|text| text.trim().parse::<u32>().ok()).next();
    }
    // A bond, a bridge or a VLAN: what is below it.
    let entries = fs::read_dir(card).ok()?.flatten().map(|entry| entry.path());
    let mut lower: Vec<_> = entries
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("lower_")))
        .collect();
    lower.sort();
    let mut nodes = lower.iter().filter_map(|path| device_node(sys, path));
    let first = nodes.next()?;
    // With cards at several nodes there is no near one.
    nodes.all(|node| node == first).then_some(first)
}

/// Binds this thread; says to which CPUs.
fn apply(node: &MemoryNode) -> Result<String, NumaError> {
    let refused = |source: io::Error| NumaError::Refused { node: node.number, source };
    let usable = sched_getaffinity(None).map_err(|error| refused(error.into()))?;
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| usable.is_set(*cpu)).collect();
    // Where a node is memory alone, its neighbours' CPUs have to do.
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

/// The numbers of a list such as `0-3,8`.
fn numbers(list: &str) -> Option<Vec<usize>> {
    // More than any kernel counts.
    const MOST: usize = 1 << 16;
    let mut numbers = Vec::new();
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last >= MOST {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Numbers in order as a list such as `0-3,8`.
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
