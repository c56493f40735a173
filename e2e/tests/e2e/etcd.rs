//! Tests of etcd as the coordinator: it may lose servers, be away and come back, and ask for credentials.

use std::fs;
use std::thread;
use std::time::Duration;

use plasmon::{CreateOptions, ErrorKind, ObjectId};
use plasmon_e2e::wait::let_pass;
use plasmon_e2e::{Cluster, EtcdOptions, Pattern, Refused, eventually, until};
use rustix::process::Signal;

use crate::coordinators::agree;
use crate::support::{MIB, get, kind, put, try_get};

/// Lease in seconds of nodes whose etcd loses a server.
const LEASE: &str = "6";
/// Time in which a lease of [`LEASE`] ends unless it is renewed.
const LONGER_THAN_THE_LEASE: Duration = Duration::from_secs(7);

fn cluster(nodes: usize, lease: &str, etcd: EtcdOptions) -> Cluster {
    Cluster::builder().nodes(nodes).args(&["--lease", lease]).etcd(etcd).start()
}

/// Checks that every node stayed a member all the time. Nodes must outlast an election of etcd's leader,
/// during which no server may answer.
fn all_stayed_members(cluster: &Cluster) {
    for node in 0..cluster.nodes() {
        eventually("etcd answers", || cluster.status(node).cluster.coordinator_connected);
        assert_eq!(cluster.status(node).cluster.fencings, 0, "node {node}:\n{}", cluster.log(node));
    }
}

/// Message of a daemon that is not admitted.
fn refused(cluster: &Cluster, arguments: &[String]) -> String {
    let mut command = cluster.serve_at(0, &cluster.folder().join("refused.sock"));
    command.args(["--listen", &format!("{}:0", cluster.address(0))]).args(arguments);
    match cluster.launch(0, command) {
        Ok(daemon) => panic!("it serves:\n{}", daemon.log()),
        Err(Refused { status, log }) => {
            assert!(status.code().is_some_and(|code| code != 0 && code != 101), "{status}:\n{log}");
            log
        }
    }
}

#[test]
fn of_three_servers_any_may_die() {
    let mut cluster = cluster(3, LEASE, EtcdOptions { servers: 3, ..EtcdOptions::default() });
    let id = put(&cluster.client(1), Pattern(1), MIB);
    let mut epoch = agree(&cluster, &[0, 1, 2]);
    for server in 0..3 {
        // One of the rounds takes the leader.
        cluster.kill_etcd(server);
        let_pass(
            LONGER_THAN_THE_LEASE,
            "members do not say when they last renewed it, only when they did not",
        );
        all_stayed_members(&cluster);
        assert_eq!(agree(&cluster, &[0, 1, 2]), epoch, "there is nothing to follow");
        cluster.kill(2);
        let without = agree(&cluster, &[0, 1]);
        assert!(without > epoch, "a death is noticed by two servers as by three");
        cluster.start_again(2, &[]);
        epoch = agree(&cluster, &[0, 1, 2]);
        Pattern(1).check(get(&cluster.client(2), id).data());
        cluster.start_etcd(server);
        cluster.await_etcd(server);
    }
}

#[test]
fn of_three_servers_one_may_hang() {
    // The stopped server stays stopped: a leader of etcd 3.4 that goes on after a while ends leases that are
    // none of its business any more.
    for server in 0..3 {
        let cluster = cluster(2, LEASE, EtcdOptions { servers: 3, ..EtcdOptions::default() });
        let epoch = agree(&cluster, &[0, 1]);
        cluster.signal_etcd(server, Signal::STOP);
        let_pass(
            LONGER_THAN_THE_LEASE,
            "members do not say when they last renewed it, only when they did not",
        );
        all_stayed_members(&cluster);
        assert_eq!(agree(&cluster, &[0, 1]), epoch);
    }
}

#[test]
fn etcd_may_be_away_for_less_than_a_lease() {
    let mut cluster = cluster(2, "60", EtcdOptions::default());
    let id = put(&cluster.client(1), Pattern(1), MIB);
    let epoch = agree(&cluster, &[0, 1]);
    cluster.kill_etcd(0);
    eventually("they know it", || (0..2).all(|node| !cluster.status(node).cluster.coordinator_connected));
    // Between the two nothing has changed.
    Pattern(1).check(get(&cluster.client(0), id).data());
    let second = put(&cluster.client(0), Pattern(2), MIB);
    Pattern(2).check(get(&cluster.client(1), second).data());
    cluster.start_etcd(0);
    eventually("they know it", || (0..2).all(|node| cluster.status(node).cluster.coordinator_connected));
    for node in 0..2 {
        let status = cluster.status(node).cluster;
        assert_eq!((status.fencings, status.coordinator_losses), (0, 1), "{}", cluster.log(node));
    }
    assert_eq!(agree(&cluster, &[0, 1]), epoch);
    cluster.add_node();
    assert!(agree(&cluster, &[0, 1, 2]) > epoch);
}

#[test]
fn without_etcd_nodes_fence_themselves_and_join_again_when_it_is_back() {
    let mut cluster = cluster(3, "2", EtcdOptions::default());
    let ids: Vec<_> = (0..3).map(|node| put(&cluster.client(node), Pattern(node as u64), MIB)).collect();
    Pattern(1).check(get(&cluster.client(0), ids[1]).data());
    let waiting = cluster.client(0);
    let later = ObjectId::random();
    let waits = thread::spawn(move || try_get(&waiting, later));
    cluster.kill_etcd(0);
    eventually("all are fenced", || (0..3).all(|node| cluster.status(node).cluster.fenced));
    for node in 0..3 {
        let (client, status) = (cluster.client(node), cluster.status(node));
        assert_eq!(status.cluster.fencings, 1);
        assert_eq!(status.cluster.directory_entries, 0, "it keeps no directory");
        assert_eq!(status.cluster.members.len(), 1, "it knows nobody but itself");
        // Nothing is served, neither as there nor as gone: what is here may have been deleted by others.
        for id in [ids[node], ids[(node + 2) % 3]] {
            let error = client.get(&[id], Some(Duration::from_millis(300))).expect("get").remove(0);
            let Err(error) = error else { panic!("it may have been deleted") };
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            assert!(error.message().contains("not a member of its cluster"), "{error}");
        }
        assert_eq!(kind(client.delete(&[ids[node]])), ErrorKind::Disconnected);
        assert_eq!(kind(client.contains(&[ids[node]])), ErrorKind::Disconnected);
        assert_eq!(kind(client.contains(&[ObjectId::random()])), ErrorKind::Disconnected);
    }
    // New objects may be made, and are known to all as soon as that is possible.
    let new = put(&cluster.client(1), Pattern(9), MIB);
    // The waiting get knows the id, and no other client may create it.
    let fresh = CreateOptions { fresh: true, ..CreateOptions::default() };
    let mut creation = cluster.client(2).create(later, 10, b"", &fresh).expect("create");
    creation.as_mut_slice().fill(7);
    creation.seal().expect("seal");

    cluster.start_etcd(0);
    agree(&cluster, &[0, 1, 2]);
    assert_eq!(waits.join().expect("no panic").expect("it waited all the while").data(), [7; 10]);
    for node in 0..3 {
        assert!(!cluster.status(node).cluster.fenced);
        Pattern(9).check(get(&cluster.client(node), new).data());
        for (seed, id) in ids.iter().enumerate() {
            Pattern(seed as u64).check(get(&cluster.client(node), *id).data());
        }
    }
    cluster.client(0).delete(&ids).expect("delete");
}

#[test]
fn a_node_that_is_taken_out_by_hand_joins_again() {
    let cluster = cluster(2, "30", EtcdOptions::default());
    let id = put(&cluster.client(1), Pattern(1), MIB);
    let before = cluster.status(1);
    cluster.etcdctl(&["del", &format!("/plasmon/members/{}", before.node)]);
    eventually("it was fenced", || cluster.status(1).cluster.fencings == 1);
    agree(&cluster, &[0, 1]);
    assert!(cluster.status(1).incarnation > before.incarnation);
    let object = until("its object is found", || try_get(&cluster.client(0), id).ok());
    Pattern(1).check(object.data());
}

#[test]
fn who_missed_what_etcd_has_forgotten_follows_all_the_same() {
    let mut cluster = cluster(2, "60", EtcdOptions::default());
    agree(&cluster, &[0, 1]);
    cluster.pause(1);
    // Others come meanwhile, and etcd forgets how.
    let mut command = cluster.serve_at(0, &cluster.folder().join("third.sock"));
    command.args(["--listen", &format!("{}:0", cluster.address(0))]).args(cluster.etcd_arguments());
    let mut third = cluster.launch(0, command).expect("it starts");
    eventually("it is a member", || cluster.status(0).cluster.members.len() == 3);
    let (node, epoch) = (cluster.status(0), cluster.status(0).cluster.epoch);
    cluster.etcdctl(&["put", "/something/else", "1"]);
    cluster.etcdctl(&["compact", &(epoch + 1).to_string()]);
    cluster.kill_etcd(0);
    cluster.start_etcd(0);
    cluster.resume(1);
    eventually("it follows", || cluster.status(1).cluster.members.len() == 3);
    eventually("both follow the same", || cluster.status(0).cluster.epoch == cluster.status(1).cluster.epoch);
    assert_eq!(cluster.status(1).cluster.fencings, 0, "{}", cluster.log(1));
    assert_eq!(cluster.status(0).incarnation, node.incarnation);
    third.signal(Signal::TERM);
    assert!(third.wait().success());
    agree(&cluster, &[0, 1]);
}

#[test]
fn what_a_node_holds_is_found_although_it_hears_of_several_views_at_once() {
    let mut cluster = cluster(5, "60", EtcdOptions::default());
    for node in [3, 4] {
        cluster.terminate(node, Signal::TERM);
    }
    agree(&cluster, &[0, 1, 2]);
    let holder = cluster.client(0);
    let ids: Vec<_> = (0..300).map(|number| put(&holder, Pattern(number), 100)).collect();
    // While it stands still, some shards pass to two other nodes and back, and these drop their entries.
    cluster.pause(0);
    for node in [3, 4] {
        cluster.start_again(node, &[]);
    }
    let follow = |cluster: &Cluster, count: usize, nodes: &[usize]| {
        eventually("they follow, and tell each other what they hold", || {
            let mut all = nodes.iter().map(|node| cluster.status(*node).cluster);
            all.all(|cluster| cluster.members.len() == count && !cluster.healing)
        });
    };
    follow(&cluster, 5, &[1, 2, 3, 4]);
    for node in [3, 4] {
        cluster.terminate(node, Signal::TERM);
    }
    follow(&cluster, 3, &[1, 2]);
    // A new session brings everything since the last one at once.
    cluster.kill_etcd(0);
    cluster.start_etcd(0);
    cluster.resume(0);
    agree(&cluster, &[0, 1, 2]);
    assert_eq!(cluster.status(0).cluster.fencings, 0, "{}", cluster.log(0));
    let client = cluster.client(1);
    for (number, id) in ids.iter().enumerate() {
        Pattern(number as u64).check(get(&client, *id).data());
    }
}

#[test]
fn nodes_that_do_not_say_who_they_are_are_not_let_in() {
    let cluster = cluster(2, "5", EtcdOptions { servers: 1, tls: true, users: true });
    let id = put(&cluster.client(1), Pattern(1), MIB);
    Pattern(1).check(get(&cluster.client(0), id).data());
    all_stayed_members(&cluster);

    let arguments = cluster.etcd_arguments();
    let without = |flags: &[&str]| {
        let pairs = arguments.chunks(2).filter(|pair| !flags.contains(&pair[0].as_str()));
        pairs.flatten().cloned().collect::<Vec<_>>()
    };
    let said = refused(&cluster, &without(&["--etcd-user", "--etcd-password-file"]));
    assert!(said.contains("--etcd-user"), "{said}");
    let said = refused(&cluster, &without(&["--etcd-password-file"]));
    assert!(said.contains("--etcd-password-file") || said.contains("--etcd-password-file <FILE>"), "{said}");
    let wrong = cluster.folder().join("wrong");
    fs::write(&wrong, "guessed").expect("the folder is ours");
    let mut guessed = without(&["--etcd-password-file"]);
    guessed.extend(["--etcd-password-file".to_owned(), wrong.display().to_string()]);
    let said = refused(&cluster, &guessed);
    assert!(said.contains("invalid user ID or password"), "{said}");
    let mut missing = without(&["--etcd-ca"]);
    missing.extend(["--etcd-ca".to_owned(), "/nowhere/ca.pem".to_owned()]);
    let said = refused(&cluster, &missing);
    assert!(said.contains("/nowhere/ca.pem"), "{said}");
}

#[test]
fn passwords_do_not_belong_into_the_command_line() {
    let cluster = Cluster::builder().start();
    let said = refused(&cluster, &["--coordinator".into(), "etcd://me:secret@127.0.0.1/plasmon".into()]);
    assert!(said.contains("--etcd-password-file"), "{said}");
    let both = ["--coordinator", "etcd://127.0.0.1/plasmon", "--join", "127.0.0.1:4740"].map(str::to_owned);
    let said = refused(&cluster, &both);
    assert!(said.contains("cannot be used with"), "{said}");
}

#[test]
fn what_no_node_of_this_release_wrote_keeps_nodes_out() {
    let cluster = cluster(1, "5", EtcdOptions::default());
    cluster.etcdctl(&["put", "/plasmon/members/another", r#"{"protocol": 1, "member": {"node": 5}}"#]);
    let said = refused(&cluster, &cluster.etcd_arguments());
    assert!(said.contains("run the same release"), "{said}");
    cluster.etcdctl(&["put", "/plasmon/members/another", "nonsense"]);
    let said = refused(&cluster, &cluster.etcd_arguments());
    assert!(said.contains("/plasmon/members/another"), "{said}");
    // A member stays a member.
    assert_eq!(cluster.status(0).cluster.members.len(), 1);
    cluster.etcdctl(&["del", "/plasmon/members/another"]);
    all_stayed_members(&cluster);
}

#[test]
fn whoever_joins_the_wrong_way_is_told_the_right_one() {
    let cluster = cluster(1, "5", EtcdOptions::default());
    let join = ["--join".to_owned(), cluster.listen(0).to_string()];
    let said = refused(&cluster, &join);
    assert!(said.contains("--coordinator etcd://"), "{said}");
}

#[test]
fn a_lease_that_etcd_does_not_give_is_mentioned() {
    let cluster = cluster(1, "0.5", EtcdOptions::default());
    let log = cluster.log(0);
    assert!(log.contains("--lease asks for 500ms"), "{log}");
}
