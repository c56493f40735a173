//! Faults and their repair, in the main thread.

use std::time::{Duration, Instant};

use plasmon::Protocol;
use plasmon_e2e::wait::let_pass_unless;
use plasmon_e2e::{Chance, Cluster, EtcdOptions, own_namespaces};

use super::model::Model;
use super::schedule::{Coordinator, Fault, NODES, SERVERS, Trouble};
use super::worker::Ground;
use crate::support::SmallDisk;

/// Size in MiB of a host's disk for spilled objects.
pub(super) const DISK_MIB: u64 = 192;

/// Hosts with their present faults.
pub(super) struct Faults {
    // In this order they are dropped: daemons, then the disks that they write to.
    pub(super) cluster: Cluster,
    disks: Vec<Option<SmallDisk>>,
    chance: Chance,
    down: Vec<usize>,
    stopped: Vec<usize>,
    unplugged: Vec<usize>,
    /// Ways on which packets are lost, once for each fault that causes it.
    lost: Vec<(usize, usize)>,
    coordinator: Coordinator,
    /// Servers of etcd that were killed, once for each fault that causes it.
    silent: Vec<usize>,
}

impl Faults {
    /// Starts hosts, each with a small disk.
    pub(super) fn new(seed: u64, coordinator: Coordinator) -> Self {
        let mut builder = Cluster::builder().nodes(0).memory("48MiB").clocks();
        if coordinator == Coordinator::Etcd {
            builder = builder.etcd(EtcdOptions { servers: SERVERS, ..EtcdOptions::default() });
        }
        let cluster = builder.start();
        let disks = (0..NODES).map(|_| SmallDisk::new(DISK_MIB)).collect();
        let none = Vec::new;
        let (chance, lost) = (Chance::of_seed(seed), Vec::new());
        let mut faults = Self {
            cluster,
            disks,
            chance,
            down: none(),
            stopped: none(),
            unplugged: none(),
            lost,
            coordinator,
            silent: none(),
        };
        for node in 0..NODES {
            let args = faults.arguments(node);
            faults.cluster.add_node_with(&args.iter().map(String::as_str).collect::<Vec<_>>());
        }
        faults
    }

    /// Tells the model which daemons run.
    pub(super) fn introduce(&self, model: &Model) {
        (0..NODES).for_each(|node| model.is_called(node, &self.cluster.status(node).node));
    }

    fn arguments(&self, node: usize) -> Vec<String> {
        let folder = match &self.disks[node] {
            Some(disk) => format!("{}/spill", disk.path()),
            None => "spill".to_owned(),
        };
        vec!["--spill-dir".to_owned(), folder]
    }

    /// Makes the faults of a round, each at its time, and repairs all of them at the end. Calls `look` all
    /// the time.
    pub(super) fn round(&mut self, ground: &Ground, troubles: &[Trouble], look: &dyn Fn()) {
        let start = Instant::now();
        let begins = troubles.iter().map(|trouble| (trouble.begins, &trouble.fault, true));
        let ends = troubles.iter().map(|trouble| (trouble.ends, &trouble.fault, false));
        let mut times: Vec<_> = begins.chain(ends).collect();
        times.sort_by_key(|(at, ..)| *at);
        for (at, fault, begins) in times {
            rest(start + at, look);
            if begins {
                ground.note(&format!("BREAKS {fault:?}"));
                ground.breaks(fault);
                self.begin(ground, fault);
            } else {
                ground.note(&format!("MENDS {fault:?}"));
                self.end(ground, fault);
            }
        }
        self.mend(ground);
    }

    fn begin(&mut self, ground: &Ground, fault: &Fault) {
        match fault {
            Fault::Kill(node) => {
                ground.model.begins_or_ends(*node);
                self.cluster.kill(*node);
                self.down.push(*node);
            }
            Fault::Stop(node) => {
                self.cluster.pause(*node);
                self.stopped.push(*node);
            }
            Fault::FullDisk(node) => self.disks[*node].iter().for_each(SmallDisk::shrink),
            Fault::Jump(node, ahead, day) => {
                self.cluster.jump(*node, Duration::from_millis(*ahead), *day);
            }
            Fault::KillEtcd(servers) => {
                for server in servers {
                    self.cluster.kill_etcd(*server);
                    self.silent.push(*server);
                }
            }
            _ if !own_namespaces() => {}
            Fault::Unplug(node) => {
                self.cluster.unplug(*node);
                self.unplugged.push(*node);
            }
            Fault::Part(_) | Fault::OneWay(..) => {
                for (from, to) in ways(fault) {
                    if !self.lost.contains(&(from, to)) {
                        self.cluster.lose(from, to);
                    }
                    self.lost.push((from, to));
                }
            }
        }
    }

    fn end(&mut self, ground: &Ground, fault: &Fault) {
        match fault {
            // A daemon that cannot join ends; it is started when it can.
            Fault::Kill(node) if self.can_join(*node) => self.start(ground, *node),
            Fault::Kill(_) => {}
            Fault::Stop(node) => {
                self.cluster.resume(*node);
                self.stopped.retain(|stopped| stopped != node);
            }
            Fault::FullDisk(node) => self.disks[*node].iter().for_each(|disk| disk.grow(DISK_MIB)),
            Fault::Jump(..) => {}
            Fault::KillEtcd(servers) => servers.iter().for_each(|server| self.start_etcd(*server)),
            _ if !own_namespaces() => {}
            Fault::Unplug(node) => {
                self.cluster.plug(*node);
                self.unplugged.retain(|unplugged| unplugged != node);
            }
            Fault::Part(_) | Fault::OneWay(..) => {
                for way in ways(fault) {
                    let at = self.lost.iter().position(|lost| *lost == way).expect("it was begun");
                    self.lost.swap_remove(at);
                    if !self.lost.contains(&way) {
                        self.cluster.carry(way.0, way.1);
                    }
                }
            }
        }
    }

    /// Starts a server of etcd, unless another fault keeps it down.
    fn start_etcd(&mut self, server: usize) {
        let at = self.silent.iter().position(|silent| *silent == server).expect("it was killed");
        self.silent.swap_remove(at);
        if !self.silent.contains(&server) {
            self.cluster.start_etcd(server);
        }
        if self.silent.is_empty() {
            self.cluster.await_etcd(server);
        }
    }

    fn can_join(&self, node: usize) -> bool {
        let reached = self.lost.is_empty() && self.unplugged.is_empty();
        match self.coordinator {
            Coordinator::Embedded => {
                node == 0 || reached && !self.down.contains(&0) && !self.stopped.contains(&0)
            }
            Coordinator::Etcd => reached && self.silent.is_empty(),
        }
    }

    fn start(&mut self, ground: &Ground, node: usize) {
        // Auto is what people use.
        let protocols = [Protocol::Auto, Protocol::Auto, Protocol::Auto, Protocol::Send, Protocol::Read];
        let mut args = self.arguments(node);
        args.extend(["--protocol".to_owned(), self.chance.pick(&protocols).name().to_owned()]);
        self.cluster.start_again(node, &args.iter().map(String::as_str).collect::<Vec<_>>());
        self.down.retain(|down| *down != node);
        ground.model.begins_or_ends(node);
        ground.model.is_called(node, &self.cluster.status(node).node);
        ground.note(&format!("STARTED node {node} with {args:?}"));
    }

    /// Starts nodes that are still down, after all other faults are repaired; the coordinator first.
    fn mend(&mut self, ground: &Ground) {
        assert!(self.lost.is_empty() && self.unplugged.is_empty() && self.stopped.is_empty());
        assert!(self.silent.is_empty());
        self.down.sort_unstable();
        for node in self.down.clone() {
            self.start(ground, node);
        }
    }
}

/// Ways on which a fault loses packets.
fn ways(fault: &Fault) -> Vec<(usize, usize)> {
    let all = (0..NODES).flat_map(|from| (0..NODES).map(move |to| (from, to)));
    match fault {
        Fault::Part(some) => all.filter(|(from, to)| some.contains(from) != some.contains(to)).collect(),
        Fault::OneWay(from, to) => vec![(*from, *to)],
        _ => Vec::new(),
    }
}

/// Calls `look` again and again until the time `until`.
pub(super) fn rest(until: Instant, look: &dyn Fn()) {
    let span = until.saturating_duration_since(Instant::now());
    let_pass_unless(span, "the schedule says how long a fault lasts", || {
        look();
        false
    });
}

#[test]
fn a_daemon_has_the_clock_that_it_is_given() {
    let cluster = Cluster::builder().clocks().start();
    let before = cluster.status(0).uptime_seconds;
    cluster.jump(0, Duration::from_secs(1000), -7200);
    assert!(cluster.status(0).uptime_seconds >= before + 1000.0);
}
