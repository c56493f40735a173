//! Tests of membership that hold for both coordinators: a first node, or etcd.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use plasmon::ErrorKind;
use plasmon::status::Status;
use plasmon_e2e::{Builder, Cluster, EtcdOptions, PATIENCE, Pattern, eventually, own_namespaces, until};
use rustix::process::Signal;

use crate::support::{MIB, get, here, kind, put, try_get};

/// Coordinator of the cluster.
#[derive(Clone, Copy)]
pub(crate) enum By {
    Node,
    Etcd,
}

impl By {
    pub(crate) fn cluster(self, nodes: usize) -> Builder {
        self.cluster_with(nodes, "2")
    }

    fn cluster_with(self, nodes: usize, lease: &str) -> Builder {
        let builder = Cluster::builder().nodes(nodes).args(&["--lease", lease]);
        match self {
            Self::Node => builder,
            Self::Etcd => builder.etcd(EtcdOptions::default()),
        }
    }
}

macro_rules! for_both {
    ($($name:ident),+ $(,)?) => {
        mod node {
            $(#[test] fn $name() { super::$name(super::By::Node); })+
        }
        mod etcd {
            $(#[test] fn $name() { super::$name(super::By::Etcd); })+
        }
    };
}
pub(crate) use for_both;

for_both!(
    all_follow_the_same_views,
    a_node_that_stops_is_missed_at_once,
    a_dead_nodes_objects_are_lost_and_no_others,
    a_node_that_was_stopped_is_a_member_again,
    a_node_whose_cable_was_out_is_a_member_again,
    a_deletion_reaches_what_was_away,
    gets_of_living_objects_never_fail_while_nodes_come_and_go,
);

/// Members as a node sees them.
fn members(status: &Status) -> BTreeSet<(String, u64)> {
    status.cluster.members.iter().map(|member| (member.node.clone(), member.incarnation)).collect()
}

/// Waits until these nodes, and no others, are members for each other, in the same epoch. Returns the epoch.
pub(crate) fn agree(cluster: &Cluster, nodes: &[usize]) -> u64 {
    until("they agree on who is there", || {
        let reports: Vec<_> = nodes.iter().map(|&node| cluster.status(node)).collect();
        let own: BTreeSet<_> =
            reports.iter().map(|report| (report.node.clone(), report.incarnation)).collect();
        let epoch = reports[0].cluster.epoch;
        let same = |report: &Status| members(report) == own && report.cluster.epoch == epoch;
        reports.iter().all(same).then_some(epoch)
    })
}

fn all_follow_the_same_views(by: By) {
    let mut cluster = by.cluster(3).start();
    let first = agree(&cluster, &[0, 1, 2]);
    cluster.add_node();
    let second = agree(&cluster, &[0, 1, 2, 3]);
    assert!(second > first, "{first}, then {second}");
    cluster.kill(3);
    assert!(agree(&cluster, &[0, 1, 2]) > second);
    for node in 0..3 {
        // A node that had no time for as long as its lease has lost its coordinator, and has come back.
        let status = until("it is connected", || {
            let status = cluster.status(node).cluster;
            (status.coordinator_connected && !status.fenced).then_some(status)
        });
        assert!(status.fencings <= status.coordinator_losses, "{status:?}");
        assert_eq!(status.coordinator_kind, if matches!(by, By::Node) { "embedded" } else { "etcd" });
        assert_eq!(status.coordinator_endpoints.len(), 1);
    }
}

fn a_node_that_stops_is_missed_at_once(by: By) {
    // Within no lease that a test would wait for.
    let mut cluster = by.cluster_with(2, "600").start();
    assert!(cluster.terminate(1, Signal::TERM).success());
    agree(&cluster, &[0]);
}

fn a_dead_nodes_objects_are_lost_and_no_others(by: By) {
    let mut cluster = by.cluster(3).start();
    let kept: Vec<_> =
        (0..50).map(|seed| put(&cluster.client(seed as usize % 2), Pattern(seed), 3000)).collect();
    let gone: Vec<_> = (0..50).map(|seed| put(&cluster.client(2), Pattern(seed), 3000)).collect();
    let waiting = cluster.client(0);
    let waits = {
        let id = gone[0];
        cluster.pause(2);
        thread::spawn(move || try_get(&waiting, id))
    };
    cluster.kill(2);
    assert_eq!(kind(waits.join().expect("no panic")), ErrorKind::Lost);
    agree(&cluster, &[0, 1]);
    for (seed, id) in kept.into_iter().enumerate() {
        for node in 0..2 {
            Pattern(seed as u64).check(get(&cluster.client(node), id).data());
        }
    }
    for id in gone {
        assert_eq!(kind(try_get(&cluster.client(1), id)), ErrorKind::Lost);
    }
}

fn a_node_that_was_stopped_is_a_member_again(by: By) {
    let cluster = by.cluster(3).start();
    let (own, others) = (put(&cluster.client(2), Pattern(1), MIB), put(&cluster.client(0), Pattern(2), MIB));
    let before = cluster.status(2);
    cluster.pause(2);
    agree(&cluster, &[0, 1]);
    cluster.resume(2);
    agree(&cluster, &[0, 1, 2]);
    let after = cluster.status(2);
    assert_eq!(after.node, before.node);
    assert!(after.incarnation > before.incarnation, "a new life of the same node");
    assert_eq!(after.cluster.coordinator_losses, 1);
    // Until the node has published the object again, the answer is that it is lost.
    let object = until("its object is found", || try_get(&cluster.client(1), own).ok());
    Pattern(1).check(object.data());
    Pattern(2).check(get(&cluster.client(2), others).data());
}

fn a_node_whose_cable_was_out_is_a_member_again(by: By) {
    if !own_namespaces() {
        return eprintln!("There are no cables on loopback: not tested.");
    }
    let cluster = by.cluster(3).start();
    let (own, others) = (put(&cluster.client(2), Pattern(1), MIB), put(&cluster.client(0), Pattern(2), MIB));
    let all = agree(&cluster, &[0, 1, 2]);
    cluster.unplug(2);
    let two = agree(&cluster, &[0, 1]);
    assert!(two > all);
    eventually("it knows that its coordinator is away", || !cluster.status(2).cluster.coordinator_connected);
    match by {
        // The node still holds its objects.
        By::Node => Pattern(1).check(get(&cluster.client(2), own).data()),
        // The object may have been deleted meanwhile, and the node knows that it would not have heard of it.
        By::Etcd => eventually("it gives nobody what it has", || here(&cluster.client(2), own).is_none()),
    }
    assert!(cluster.status(2).cluster.epoch <= all, "nobody makes epochs without a coordinator");
    cluster.plug(2);
    assert!(agree(&cluster, &[0, 1, 2]) > two);
    let object = until("its object is found", || try_get(&cluster.client(1), own).ok());
    Pattern(1).check(object.data());
    Pattern(2).check(get(&cluster.client(2), others).data());
}

fn a_deletion_reaches_what_was_away(by: By) {
    let cluster = by.cluster(3).start();
    let id = put(&cluster.client(0), Pattern(1), MIB);
    Pattern(1).check(get(&cluster.client(2), id).data());
    cluster.pause(2);
    agree(&cluster, &[0, 1]);
    cluster.client(1).delete(&[id]).expect("delete");
    cluster.resume(2);
    agree(&cluster, &[0, 1, 2]);
    eventually("its replica is gone", || cluster.status(2).memory.used == 0);
}

/// Two nodes hold objects and live; others join, are killed and are stopped. All living nodes can get the
/// objects.
fn gets_of_living_objects_never_fail_while_nodes_come_and_go(by: By) {
    const OBJECTS: u64 = 200;
    let mut cluster = by.cluster(3).memory("48MiB").start();
    let ids: Vec<_> =
        (0..OBJECTS).map(|seed| put(&cluster.client(seed as usize % 2), Pattern(seed), 2000)).collect();
    let (over, gets) = (AtomicBool::new(false), AtomicUsize::new(0));
    let readers: Vec<_> = (0..2).map(|node| (node, cluster.client(node))).collect();
    thread::scope(|scope| {
        for (node, client) in &readers {
            let (over, gets, ids) = (&over, &gets, &ids);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    // Cached replicas go, so that what the other one holds is fetched again.
                    client.evict(u64::MAX).expect("evict");
                    for (seed, id) in ids.iter().enumerate() {
                        let object = client.get(&[*id], Some(PATIENCE)).expect("get").remove(0);
                        let object = object.unwrap_or_else(|error| {
                            over.store(true, Ordering::Relaxed);
                            panic!("object {seed} on node {node}: {:?}: {error}", error.kind())
                        });
                        Pattern(seed as u64).check(object.data());
                        gets.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        for round in 0..4 {
            let newest = cluster.nodes() - 1;
            match round % 2 {
                0 => cluster.kill(newest),
                _ => {
                    cluster.pause(newest);
                    agree(&cluster, &[0, 1]);
                    cluster.kill(newest);
                }
            }
            agree(&cluster, &[0, 1]);
            cluster.start_again(newest, &[]);
            agree(&cluster, &[0, 1, newest]);
            let before = gets.load(Ordering::Relaxed);
            eventually("gets go on", || {
                over.load(Ordering::Relaxed) || gets.load(Ordering::Relaxed) > before + 2 * OBJECTS as usize
            });
        }
        over.store(true, Ordering::Relaxed);
    });
    for node in 0..2 {
        eventually("the directory is healed", || {
            let status = cluster.status(node).cluster;
            !status.healing && status.directory_entries > 0
        });
    }
}

/// Tests of the embedded coordinator: its node may die, and come back.
mod embedded {
    use super::*;

    #[test]
    fn members_find_a_coordinator_that_comes_back() {
        let mut cluster = By::Node.cluster(3).start();
        let id = put(&cluster.client(1), Pattern(1), MIB);
        let before = agree(&cluster, &[0, 1, 2]);
        cluster.kill(0);
        for node in [1, 2] {
            eventually("they know that it is gone", || !cluster.status(node).cluster.coordinator_connected);
            assert!(!cluster.status(node).cluster.fenced, "what needs no coordinator goes on");
        }
        cluster.start_again(0, &[]);
        let after = agree(&cluster, &[0, 1, 2]);
        assert!(after > before, "epochs grow although the coordinator is a new one: {before}, then {after}");
        let object = until("the object is found", || try_get(&cluster.client(0), id).ok());
        Pattern(1).check(object.data());
        cluster.add_node();
        agree(&cluster, &[0, 1, 2, 3]);
    }

    #[test]
    fn who_joins_through_a_member_learns_that_the_coordinator_is_away() {
        let mut cluster = By::Node.cluster(2).start();
        let id = put(&cluster.client(0), Pattern(1), 10);
        cluster.kill(0);
        eventually("it knows that it is gone", || !cluster.status(1).cluster.coordinator_connected);
        let (first, member) = (cluster.listen(0).to_string(), cluster.listen(1).to_string());
        let mut command = cluster.serve_at(1, &cluster.node_folder(1).join("other.sock"));
        command.args(["--listen", &format!("{}:0", cluster.address(1)), "--join", &member]);
        let Err(refused) = cluster.launch(1, command) else { panic!("it joined a cluster without a head") };
        assert_eq!(refused.status.code(), Some(1), "{}", refused.log);
        let said = [
            format!("cannot join the cluster through {member}: the node there answers"),
            format!("the cluster's coordinator at {first}"),
            format!("plasmon serve --listen {first}"),
        ];
        said.iter().for_each(|said| assert!(refused.log.contains(said), "no {said:?} in {}", refused.log));
        // The member names the coordinator to its own clients as well.
        assert_eq!(cluster.status(1).cluster.coordinator, first);
        let waited = cluster.client(1).get(&[id], Some(Duration::from_millis(50))).expect("get").remove(0);
        let error = waited.expect_err("its holder is gone");
        assert!(error.kind() == ErrorKind::Lost || error.message().contains(&said[2]), "{error}");
    }

    #[test]
    fn of_two_halves_one_alone_makes_views() {
        if !own_namespaces() {
            return eprintln!("There are no cables on loopback: not tested.");
        }
        let cluster = By::Node.cluster(3).start();
        let ids: Vec<_> = (0..3).map(|node| put(&cluster.client(node), Pattern(node as u64), MIB)).collect();
        let before = agree(&cluster, &[0, 1, 2]);
        cluster.unplug(0);
        let alone = agree(&cluster, &[0]);
        assert!(alone > before);
        for node in [1, 2] {
            // Each of the two nodes takes the coordinator's node for dead in its time.
            eventually("the others know", || cluster.status(node).cluster.members.len() == 2);
            let status = cluster.status(node).cluster;
            assert!(!status.coordinator_connected);
            assert_eq!(status.epoch, before, "they make no view of their own");
        }
        Pattern(2).check(get(&cluster.client(1), ids[2]).data());
        cluster.plug(0);
        assert!(agree(&cluster, &[0, 1, 2]) > alone);
        for (seed, id) in ids.iter().enumerate() {
            for node in 0..3 {
                let object = until("the object is found", || try_get(&cluster.client(node), *id).ok());
                Pattern(seed as u64).check(object.data());
            }
        }
    }
}
