//! Faults of the chaos on mounts, one at a time, and how each is repaired.
//!
//! The main thread makes faults. Programs read of each node and each mount how often it broke and was whole
//! again: odd while it is broken, so an error of a call is explained if the number was odd or has changed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use plasmon_e2e::wait::let_pass;
use plasmon_e2e::{Chance, Cluster, own_namespaces};

use super::limited::{self, EDQUOT, ENOSPC};
use super::{KEPT, NODES};
use crate::files::{Mounted, kill, mount, plasmon, text};

/// Errors that a program may get when the node of its mount was away: bytes are lost, or have no credit.
const OF_NODES: [i32; 3] = [5, ENOSPC, EDQUOT];
/// Errors that a program may get besides when its mount has died: its connection was cut, or is gone.
const OF_MOUNTS: [i32; 2] = [103, 107];
/// Longest time for which a node stands still or is cut off: more than two leases, after which its sessions
/// have ended.
const LONGEST: Duration = Duration::from_secs(12);

#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    /// A node is killed and starts again.
    Kill(usize),
    /// A node stands still for a while.
    Stop(usize),
    /// The cable of a node's host is pulled for a while: the others and etcd are on the other side.
    Cut(usize),
    /// The server of etcd is killed and starts again.
    Etcd,
    /// The processes of the mounts by a node are killed, and mounted again.
    Unmount(usize),
}

impl Fault {
    /// The fault of a turn. All kinds come in the first turns, beginning with the death of the home.
    pub(super) fn of_turn(turn: usize, home: usize, chance: &mut Chance) -> Self {
        let node = chance.below(NODES);
        match turn % 5 {
            0 if turn == 0 => Self::Kill(home),
            0 => Self::Kill(node),
            1 => Self::Stop(node),
            2 if own_namespaces() => Self::Cut(node),
            2 | 3 => Self::Unmount(node),
            _ => Self::Etcd,
        }
    }

    pub(super) fn concerns(self, home: usize) -> bool {
        matches!(self, Self::Kill(node) | Self::Stop(node) | Self::Cut(node) if node == home)
    }
}

/// Number of times that each node and its mounts broke and were whole again.
#[derive(Default)]
pub(super) struct Breaks {
    nodes: [AtomicUsize; NODES],
    mounts: [AtomicUsize; NODES],
}

impl Breaks {
    /// Counts of breaks, to be compared at the end of a call by a mount.
    pub(super) fn of(&self, node: usize) -> [usize; 2] {
        [&self.nodes, &self.mounts].map(|those| those[node].load(Ordering::SeqCst))
    }

    /// Whether an error of a call by a mount is explained, given what [`Breaks::of`] said before the call.
    pub(super) fn explain(&self, node: usize, before: [usize; 2], errno: Option<i32>) -> bool {
        let now = self.of(node);
        let broke = [0, 1].map(|at| !before[at].is_multiple_of(2) || before[at] != now[at]);
        errno.is_some_and(|errno| {
            (broke[0] || broke[1]) && OF_NODES.contains(&errno) || broke[1] && OF_MOUNTS.contains(&errno)
        })
    }

    /// Notes that a fault begins, or that what it broke is whole again.
    fn count(&self, fault: Fault) {
        match fault {
            Fault::Kill(node) | Fault::Stop(node) | Fault::Cut(node) => &self.nodes[node],
            Fault::Unmount(node) => &self.mounts[node],
            Fault::Etcd => return,
        }
        .fetch_add(1, Ordering::SeqCst);
    }

    /// Breaks something, for a while if it gets whole by itself.
    pub(super) fn begin(
        &self,
        fault: Fault,
        cluster: &mut Cluster,
        mounts: &[[Mounted; NODES]; 2],
        chance: &mut Chance,
    ) {
        self.count(fault);
        match fault {
            Fault::Kill(node) => {
                cluster.kill(node);
                pass(chance, Duration::from_secs(2));
                cluster.start_again(node, &[]);
            }
            Fault::Stop(node) => {
                cluster.pause(node);
                pass(chance, LONGEST);
                cluster.resume(node);
            }
            Fault::Cut(node) => {
                cluster.unplug(node);
                pass(chance, LONGEST);
                cluster.plug(node);
            }
            Fault::Etcd => {
                cluster.kill_etcd(0);
                pass(chance, LONGEST);
                cluster.start_etcd(0);
                cluster.await_etcd(0);
            }
            Fault::Unmount(node) => mounts.iter().for_each(|all| kill(all[node].pid)),
        }
    }

    /// Mounts again what was killed. No program has a call under way: it would make files in a bare folder.
    pub(super) fn repair(&self, fault: Fault, cluster: &Cluster, mounts: &mut [[Mounted; NODES]; 2]) {
        if let Fault::Unmount(node) = fault {
            for (all, name) in mounts.iter_mut().zip([KEPT, limited::NAME]) {
                again(cluster, node, &mut all[node], name);
            }
        }
    }

    /// Notes that what a fault broke is whole again.
    pub(super) fn end(&self, fault: Fault) {
        self.count(fault);
    }
}

/// Mounts a volume again at the folder of a mount that has died.
fn again(cluster: &Cluster, node: usize, mounted: &mut Mounted, name: &str) {
    let output = plasmon(&["umount", "--force", text(mounted.root())]);
    assert!(output.status.success(), "umount: {}", String::from_utf8_lossy(&output.stderr));
    mounted.pid = mount(cluster, node, mounted.root(), &["--volume", name]);
}

fn pass(chance: &mut Chance, longest: Duration) {
    let_pass(chance.span(longest), "how long something is broken is drawn");
}
