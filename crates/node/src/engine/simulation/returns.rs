//! Cases of nodes that are no members for a while, and of nodes that hear late of such changes: what they
//! hold is found, and stays where it was put.

use std::time::Duration;

use plasmon::ObjectId;

use super::cases::cluster;
use super::{REST_TIME, Simulation};
use crate::object::Role;

/// Number of nodes that a case needs.
const MIN_NODES: usize = 4;
/// Number of clusters of each case.
const CLUSTERS: usize = 4;
/// Number of the node that puts.
const PUTTER: usize = 0;
/// Number of the keeper that hears late.
const LATE: usize = 1;
/// An id of which one node is to keep the object.
const ID: usize = 0;
/// Length in bytes of an object.
const LEN_BYTES: usize = 100;
/// Time in which nodes follow a change of members, and tell each other what they hold.
const SETTLED_TIME: Duration = Duration::from_secs(5);
/// Time by which the late keeper hears later.
const LAG: Duration = Duration::from_secs(3);

/// Clusters without disks that have enough nodes, with their seeds.
fn clusters() -> impl Iterator<Item = (u64, Simulation)> {
    let seeds = (1..).filter(|seed: &u64| !seed.is_multiple_of(super::DISK_SEEDS));
    let clusters = seeds.map(|seed| (seed, cluster(seed)));
    clusters.filter(|(_, simulation)| simulation.hosts.len() >= MIN_NODES).take(CLUSTERS)
}

impl Simulation {
    /// Number of the node that comes and goes.
    fn guest(&self) -> usize {
        self.hosts.len() - 1
    }

    /// Has the guest become a member and cease to be one, so that some shards pass to it and back.
    fn come_and_go(&mut self) {
        let guest = self.guest();
        self.join(guest);
        self.pass(Duration::from_millis(300));
        self.expel(guest);
    }

    /// Has a node put objects that all know, while the guest is no member. Returns their ids.
    fn put_without_guest(&mut self) -> Vec<ObjectId> {
        self.expel(self.guest());
        let ids = self.put_lot(PUTTER, LEN_BYTES, 0);
        self.pass(SETTLED_TIME);
        ids
    }

    /// Checks that the keepers know objects, and that these can be deleted when the guest is back. Ends the
    /// case.
    fn close_with_known(mut self, seed: u64, ids: &[ObjectId]) {
        let unknown: Vec<_> = ids.iter().filter(|id| !self.is_known(id)).collect();
        assert!(unknown.is_empty(), "seed {seed}: {} of {} are unknown", unknown.len(), ids.len());
        self.bring_back(self.guest());
        self.pass(REST_TIME);
        self.begin_deletion(ids);
        self.close(seed);
    }

    /// Ends a case, and checks that all promises hold.
    fn close(mut self, seed: u64) {
        let wrong = self.wrong();
        assert!(wrong.is_empty(), "seed {seed}:\n{}\n{}", self.log.join("\n"), wrong.join("\n"));
    }
}

#[test]
fn an_object_stays_where_it_was_put_although_the_node_was_away() {
    for (seed, mut simulation) in clusters() {
        let object = simulation.ids[ID];
        simulation.put(PUTTER, ID, LEN_BYTES);
        simulation.get_anew(1, ID).expect("it is there");
        simulation.expel(PUTTER);
        simulation.pass(SETTLED_TIME);
        let primary = |simulation: &Simulation| {
            let roles = simulation.roles(ID).into_iter();
            roles.filter(|(_, role, _)| *role == Role::Primary).map(|(host, ..)| host).collect::<Vec<_>>()
        };
        assert_eq!(primary(&simulation), [0, 1], "seed {seed}: the one that is away, and its heir");
        simulation.join(PUTTER);
        simulation.pass(REST_TIME);
        assert_eq!(primary(&simulation), [PUTTER], "seed {seed}");
        simulation.hosts[1].kill();
        simulation.coordinator.forget(&mut simulation.hosts, simulation.time.now(), None);
        simulation.pass(SETTLED_TIME);
        assert_eq!(simulation.here(PUTTER, &[object]), 1, "seed {seed}");
        simulation.bring_back(1);
        simulation.close(seed);
    }
}

#[test]
fn what_a_node_holds_is_known_although_it_was_not_told_of_all_views() {
    for (seed, mut simulation) in clusters() {
        let ids = simulation.put_without_guest();
        simulation.coordinator.deaf = Some(PUTTER);
        simulation.come_and_go();
        simulation.pass(SETTLED_TIME);
        simulation.coordinator.catch_up(&mut simulation.hosts, simulation.time.now());
        simulation.pass(SETTLED_TIME);
        simulation.close_with_known(seed, &ids);
    }
}

#[test]
fn a_keeper_that_hears_late_of_views_knows_what_it_was_told_meanwhile() {
    for (seed, mut simulation) in clusters() {
        let mut ids = simulation.put_without_guest();
        simulation.coordinator.late = Some((LATE, LAG));
        simulation.come_and_go();
        ids.extend(simulation.put_lot(PUTTER, LEN_BYTES, 1));
        simulation.pass(LAG + SETTLED_TIME);
        simulation.coordinator.late = None;
        simulation.close_with_known(seed, &ids);
    }
}
