//! The networks of a simulation: the one that all hosts are on, and in some seeds a better one beside it.
//!
//! Hosts on both networks talk over the better one, and over the common one while the better one does not get
//! through, as with RDMA and TCP. Each host is an end of its own in each network; a host dies on both.

use std::time::Duration;

use plasmon_fabric::{Faults, MemoryNetwork, Provider};

use super::{percent, weather};
use crate::kernel::random::random_u64;

/// Number of hosts in a hundred that are on the better network, where there is one.
const BETTER_PERCENT: usize = 85;

/// The networks, and which host is on which.
#[derive(Clone)]
pub(super) struct Networks {
    common: MemoryNetwork,
    better: Option<MemoryNetwork>,
    /// Whether connections break by themselves.
    pub(super) breaks: bool,
}

impl Networks {
    /// Makes the networks, with delays and faults of the weather.
    pub(super) fn new(has_better: bool) -> Self {
        let mut breaks = false;
        let mut network = |name| {
            let (seed, faults) = (random_u64(), weather::faults());
            breaks |= faults.cut_ppm > 0;
            MemoryNetwork::named(name, seed, faults)
        };
        let (common, better) = (network("memory"), has_better.then(|| network("better memory")));
        Self { common, better, breaks }
    }

    fn all(&self) -> impl Iterator<Item = &MemoryNetwork> {
        self.better.iter().chain([&self.common])
    }

    /// Whether some hosts have two ways to each other.
    pub(super) fn has_better(&self) -> bool {
        self.better.is_some()
    }

    /// Providers of a host that starts, best first.
    pub(super) fn providers(&self, host: u32) -> Vec<Provider> {
        let better = self.better.iter().filter(|_| percent(BETTER_PERCENT));
        better.chain([&self.common]).map(|network| network.provider(host)).collect()
    }

    /// Changes the delays and faults of all networks.
    pub(super) fn change_faults(&self, change: impl Fn(&mut Faults)) {
        self.all().for_each(|network| network.change_faults(&change));
    }

    /// Moves the time on.
    pub(super) fn advance(&self, now: Duration) {
        self.all().for_each(|network| network.advance(now));
    }

    /// Time at which something arrives next.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.all().filter_map(MemoryNetwork::next_due).min()
    }

    /// Separates two hosts on all networks, or joins them again on all.
    pub(super) fn partition(&self, one: u32, other: u32, separated: bool) {
        self.all().for_each(|network| network.partition(one, other, separated));
    }

    /// Separates two hosts on the better network alone.
    pub(super) fn part_better(&self, one: u32, other: u32) {
        self.better.iter().for_each(|network| network.partition(one, other, true));
    }

    /// Breaks all connections between two hosts.
    pub(super) fn cut(&self, one: u32, other: u32) {
        self.all().for_each(|network| network.cut(one, other));
    }

    /// Has the late writes land now that came by broken connections.
    pub(super) fn land_late_writes(&self) {
        self.all().for_each(MemoryNetwork::land_late_writes);
    }

    /// Kills a host.
    pub(super) fn kill(&self, host: u32) {
        self.all().for_each(|network| network.kill(host));
    }

    /// Digest of everything that has arrived.
    pub(super) fn fingerprint(&self) -> u64 {
        self.all().fold(0, |digest, network| digest.rotate_left(1) ^ network.fingerprint())
    }
}
