//! Tests of locks whose holder, node or home dies or stands still: nobody else gets the lock while a guard is
//! valid, and somebody gets it after that.

use std::thread;
use std::time::Duration;

use plasmon::region::Rights;
use plasmon::sync::LockOptions;
use plasmon::{Client, ErrorKind, Guard};
use plasmon_e2e::{Cluster, EtcdOptions, PATIENCE, eventually, own_namespaces, until};
use rustix::process::Signal;

use crate::coordinators::agree;
use crate::locks::{attempt, region, row, short_lived, take};
use crate::support::{ClientProcess, LONG_LEASE, kind};

/// Time for which a test tries to get a lock that it cannot get.
const TRY: Duration = Duration::from_millis(500);

/// Takes a lock as soon as it can be had, and checks that the former guard is not valid then.
fn succeed(client: &Client, name: &str, former: &Guard) -> Guard {
    let next = until("the lock passes on", || {
        let taken = attempt(client, name).ok();
        assert!(taken.is_none() || !former.is_valid(), "there are two holders:\n{former:?}\n{taken:?}");
        taken
    });
    assert!(next.token() > former.token(), "{:#x} after {:#x}", next.token(), former.token());
    next
}

#[test]
fn the_lock_of_a_process_that_is_killed_passes_on_at_once() {
    let cluster = Cluster::builder().nodes(3).start();
    region(&cluster, "data");
    for node in 0..3 {
        // With so long a time to live, it is the death that is noticed.
        let holder = ClientProcess::start(&cluster, node, &["guard", "lock", "data", "60000"]);
        let client = cluster.client((node + 1) % 3);
        assert_eq!(kind(attempt(&client, "lock")), ErrorKind::Busy);
        let waiting = thread::spawn(move || take(&client, "lock"));
        eventually("it waits", || row(&cluster, 0, "lock").is_some_and(|row| row.waiting == 1));
        assert!(!waiting.is_finished());
        let told = row(&cluster, node, "lock").expect("it is held");
        assert_eq!(told.holders[0].pid, holder.pid());
        holder.kill();
        let guard = waiting.join().expect("no panic");
        assert!(guard.is_valid() && guard.abandoned());
        drop(guard);
        let client = cluster.client(node);
        assert!(!attempt(&client, "lock").expect("it is free").abandoned(), "the last holder unlocked");
    }
}

#[test]
fn a_process_that_is_stopped_loses_its_lock_and_writes_nothing_afterwards() {
    let cluster = Cluster::builder().nodes(3).start();
    region(&cluster, "data");
    let mut holder = ClientProcess::start(&cluster, 1, &["guard", "lock", "data", "1000"]);
    assert_eq!(holder.ask(), "valid written");
    holder.signal(Signal::STOP);
    let client = cluster.client(2);
    let guard = take(&client, "lock");
    assert!(guard.abandoned());
    let data = client.map_region("data", Rights::READ_WRITE, None).expect("it is there");
    data.write_fenced(8, b"theirs!!", &guard).expect("it holds the lock");
    holder.signal(Signal::CONT);
    assert_eq!(holder.ask(), "lost Fenced");
    let mut bytes = [0; 8];
    data.read(8, &mut bytes).expect("its home lives");
    assert_eq!(&bytes, b"theirs!!");
    assert!(guard.is_valid());
    guard.unlock().expect("it was held");
}

#[test]
fn a_process_that_runs_keeps_its_lock_beyond_its_time_to_live() {
    let cluster = Cluster::builder().nodes(2).start();
    let guard = cluster.client(0).lock("long", &short_lived()).expect("it is free");
    let late = cluster
        .client(1)
        .lock("long", &LockOptions { timeout: Some(4 * short_lived().ttl), ..short_lived() });
    assert_eq!(kind(late), ErrorKind::TimedOut);
    assert!(guard.is_valid());
    guard.unlock().expect("it was held all the time");
}

#[test]
fn the_lock_of_a_node_that_dies_passes_on() {
    let mut cluster = Cluster::builder().nodes(3).args(&["--lease", "2"]).start();
    for killed in [2, 1] {
        let guard = take(&cluster.client(killed), "lock");
        cluster.kill(killed);
        let client = cluster.client(0);
        let next = succeed(&client, "lock", &guard);
        assert!(next.abandoned());
        drop(next);
        drop(guard);
        cluster.start_again(killed, &[]);
        agree(&cluster, &[0, 1, 2]);
    }
}

/// Takes a lock on a node, stops the node, and checks that the guard ends with it. The lease outlasts the
/// stop of the daemon, so only the node can have ended the guard.
fn ends_with_its_node(cluster: &mut Cluster, node: usize) {
    let long_lived = LockOptions { ttl: Duration::from_secs(60), ..short_lived() };
    let guard = cluster.client(node).lock("lock", &long_lived).expect("it is free");
    assert!(guard.is_valid());
    let status = cluster.terminate(node, Signal::TERM);
    assert!(status.success(), "{status}:\n{}", cluster.log(node));
    assert!(!guard.is_valid(), "the guard outlives its node: {guard:?}");
}

#[test]
fn the_guards_of_a_node_that_stops_are_over_before_others_get_the_locks() {
    let mut cluster =
        Cluster::builder().nodes(3).args(&["--lease", "30"]).etcd(EtcdOptions::default()).start();
    ends_with_its_node(&mut cluster, 1);
    drop(take(&cluster.client(2), "lock"));
}

#[test]
fn a_coordinator_that_was_stopped_leaves_no_guards_to_wait_for() {
    let mut cluster = Cluster::builder().nodes(1).start();
    ends_with_its_node(&mut cluster, 0);
    cluster.start_again(0, &[]);
    // Leases of a former life would be waited out for a minute.
    let soon = LockOptions { timeout: Some(Duration::from_secs(30)), ..short_lived() };
    drop(cluster.client(0).lock("lock", &soon).expect("nobody has it"));
}

#[test]
fn a_coordinator_that_is_restarted_while_nobody_holds_a_lock_leaves_no_wait() {
    let mut cluster = Cluster::builder().nodes(3).args(&["--lease", "5"]).start();
    let soon = LockOptions { timeout: Some(Duration::from_secs(30)), ..short_lived() };
    for ends_well in [true, false, true] {
        match ends_well {
            true => drop(cluster.terminate(0, Signal::TERM)),
            // It has given no lease in this life.
            false => cluster.kill(0),
        }
        cluster.start_again(0, &[]);
        agree(&cluster, &[0, 1, 2]);
        assert!(!cluster.log(0).contains("no lock is given for"), "{}", cluster.log(0));
    }
    for node in [0, 2] {
        drop(cluster.client(node).lock("lock", &soon).expect("nobody has it"));
    }
}

#[test]
fn a_coordinator_whose_file_of_leases_is_damaged_or_gone_gives_no_second_guard() {
    type Harm = fn(&std::path::Path);
    let harms: [(&str, Harm); 3] = [
        ("damaged", |file| std::fs::write(file, "{").expect("there is room")),
        ("gone", |file| std::fs::remove_file(file).expect("it is there")),
        ("of which there is no file", |file| {
            std::fs::remove_file(file).expect("it is there");
            std::fs::remove_file(file.with_extension("")).expect("the socket is there");
        }),
    ];
    for (said, harm) in harms {
        let mut cluster = Cluster::builder().nodes(3).args(&["--lease", "5"]).start();
        // Its node does not renew it before the others try.
        let long_lived = LockOptions { ttl: Duration::from_secs(60), ..short_lived() };
        let guard = cluster.client(1).lock("lock", &long_lived).expect("it is free");
        cluster.kill(0);
        harm(&cluster.node_folder(0).join("plasmon.sock.locks"));
        cluster.start_again(0, &[]);
        agree(&cluster, &[0, 1, 2]);
        for node in [2, 0] {
            let taken =
                cluster.client(node).lock("lock", &LockOptions { timeout: Some(TRY), ..short_lived() });
            assert!(guard.is_valid(), "{said}: the lease lasts for a minute");
            let refused = taken.expect_err("it is held");
            assert_eq!(refused.kind(), ErrorKind::TimedOut, "{said}: {refused}");
            assert!(refused.to_string().contains("its former life"), "{said}: {refused}");
            // A barrier has the same home, which waits.
            let opened = cluster.client(node).within(TRY).barrier("barrier", 1);
            let refused = opened.expect_err("its home does not decide yet");
            assert_eq!(refused.kind(), ErrorKind::TimedOut, "{said}: {refused}");
            assert!(refused.to_string().contains("its former life"), "{said}: {refused}");
        }
        let log = cluster.log(0);
        assert!(log.contains(said) && log.contains("no lock is given for"), "{said}:\n{log}");
        guard.unlock().expect("it was held all the time");
    }
}

#[test]
fn a_coordinator_that_cannot_write_its_file_of_leases_says_so_and_gives_locks_again_later() {
    let cluster = Cluster::builder().nodes(2).start();
    // Nobody can write to a folder, root neither.
    let in_the_way = cluster.node_folder(0).join("plasmon.sock.locks.next");
    std::fs::create_dir(&in_the_way).expect("the name is free");
    for node in [0, 1] {
        let refused = cluster.client(node).lock("lock", &LockOptions::default()).expect_err("it cannot be");
        assert!(refused.to_string().contains("without which no lock is given"), "{refused}");
    }
    std::fs::remove_dir(&in_the_way).expect("it is there");
    drop(take(&cluster.client(1), "lock"));
}

/// Node that decides about a lock.
fn home(cluster: &Cluster, name: &str) -> usize {
    let node = row(cluster, 0, name).expect("it is held").home.to_string();
    (0..cluster.nodes()).find(|at| cluster.status(*at).node == node).expect("it is one of these")
}

#[test]
fn what_is_held_stays_held_when_its_home_dies() {
    // The death is noticed, and another node takes over, well within the time to live.
    let long_lived = LockOptions { ttl: Duration::from_secs(30), ..short_lived() };
    let mut cluster =
        Cluster::builder().nodes(3).args(&["--lease", "2"]).etcd(EtcdOptions::default()).start();
    for name in (0..).map(|nth| format!("lock {nth}")) {
        let guard = cluster.client(0).lock(&name, &long_lived).expect("it is free");
        let home = home(&cluster, &name);
        if home == 0 {
            // The holder's own node would die with it: another name has another home.
            continue;
        }
        cluster.kill(home);
        let others: Vec<_> = (0..3).filter(|node| *node != home).collect();
        agree(&cluster, &others);
        let client = cluster.client(others[1]);
        eventually("the new home knows the holder", || {
            let taken = attempt(&client, &name);
            assert!(taken.is_err() || !guard.is_valid(), "there are two holders");
            row(&cluster, others[1], &name).is_some_and(|row| row.holders.len() == 1)
        });
        assert_eq!(kind(attempt(&client, &name)), ErrorKind::Busy);
        assert!(guard.is_valid(), "it was held all the time");
        guard.unlock().expect("it was held all the time");
        return drop(take(&client, &name));
    }
}

#[test]
fn a_coordinator_that_comes_back_gives_no_second_guard() {
    let mut cluster = Cluster::builder().nodes(3).args(&["--lease", "5"]).start();
    let guard = take(&cluster.client(1), "lock");
    cluster.kill(0);
    let other = cluster.client(2);
    for _ in 0..20 {
        let taken = attempt(&other, "lock");
        assert!(taken.is_err() || !guard.is_valid(), "there are two holders");
    }
    cluster.start_again(0, &[]);
    agree(&cluster, &[0, 1, 2]);
    for node in [0, 2] {
        let taken = attempt(&cluster.client(node), "lock");
        assert!(taken.is_err() || !guard.is_valid(), "there are two holders");
    }
    // Whether it was held all the time or lost, it can be had now.
    drop(guard);
    let client = cluster.client(0);
    drop(take(&client, "lock"));
}

#[test]
fn a_node_that_is_cut_off_loses_its_locks_before_others_get_them() {
    if !own_namespaces() {
        return eprintln!("Cables take network namespaces: not tested.");
    }
    let cluster = Cluster::builder().nodes(3).args(&["--lease", "2"]).etcd(EtcdOptions::default()).start();
    let guard = take(&cluster.client(1), "lock");
    cluster.unplug(1);
    let client = cluster.client(2);
    let next = succeed(&client, "lock", &guard);
    cluster.plug(1);
    agree(&cluster, &[0, 1, 2]);
    assert!(next.is_valid() && !guard.is_valid());
    assert_eq!(kind(guard.unlock()), ErrorKind::Fenced);
    next.unlock().expect("it was held all the time");
}

#[test]
fn a_daemon_that_stands_still_loses_its_locks_before_others_get_them() {
    let cluster = Cluster::builder().nodes(3).args(&LONG_LEASE).start();
    let guard = take(&cluster.client(1), "lock");
    cluster.pause(1);
    let client = cluster.client(2);
    let next = succeed(&client, "lock", &guard);
    cluster.resume(1);
    eventually("its node answers", || cluster.client(1).status().is_ok());
    assert!(!guard.is_valid());
    drop(guard);
    assert!(next.is_valid());
    let options = LockOptions { timeout: Some(PATIENCE), ..short_lived() };
    drop(next);
    drop(cluster.client(1).lock("lock", &options).expect("it is free"));
}
