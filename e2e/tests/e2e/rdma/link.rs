//! Tests of nodes whose RDMA stops working while they run: two guests, both with a device.

use std::process::Command;
use std::thread;
use std::time::Duration;

use plasmon::status::MemberStatus;
use plasmon::{CreateOptions, ErrorKind, Object, ObjectId};
use plasmon_e2e::wait::let_pass;
use plasmon_e2e::{Pattern, eventually, until};

use super::half::Half;
use super::{TCP, VERBS};
use crate::support::{LONG_LEASE, MIB, try_get};

/// Length in bytes of an object that is still being read when the link goes down.
const LONG: usize = 24 * MIB;

/// Runs a program of the guest, with a time limit, because a command that concerns a device may hang.
fn run(words: &[&str]) {
    let status = Command::new("timeout").arg("20").args(words).status().expect("it starts");
    assert!(status.success(), "{words:?}: {status}");
}

/// Status of the other guest's node as a member.
fn other(half: &Half) -> MemberStatus {
    let members = half.client.status().expect("the node answers").cluster.members;
    members.into_iter().find(|member| !member.this).expect("there are two")
}

/// Makes both nodes fetch an object of the other's, and returns the provider by which it came here.
fn exchange(half: &Half, what: &str) -> (String, String) {
    half.tell(what, &Pattern(5).bytes(100_000));
    let object = until("the other half's comes", || half.try_hear(what));
    Pattern(5).check(object.data());
    let fetched = half.client.explain(object.id()).expect("explain").fetched.expect("it was fetched");
    (fetched.provider, fetched.provider_why)
}

#[test]
#[ignore = "needs two guests: make test-rdma"]
fn a_link_that_goes_down_breaks_reads_and_no_more() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let half = Half::start(folder.path(), &LONG_LEASE);
    let id = ObjectId::from_name("read while the link goes down");
    if half.guest == 0 {
        half.client.put(id, &Pattern(1).bytes(LONG), b"", &CreateOptions::default()).expect("put");
        exchange(&half, "before");
    } else {
        exchange(&half, "before");
        let fetched = read_while_it_goes_down(&half, id);
        // The bytes came when the link was back, or the fetch has failed for a reason.
        match fetched {
            Ok(object) => Pattern(1).check(object.data()),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Lost | ErrorKind::TimedOut), "{error}");
                assert!(!error.message().is_empty());
            }
        }
        let object = until("it is to be had again", || try_get(&half.client, id).ok());
        Pattern(1).check(object.data());
        let log = half.daemon.log();
        for said in ["has no link (it is DOWN)", "has its link again", &format!("falling back to {TCP}")] {
            assert!(log.contains(said), "{log}");
        }
    }
    // Soft-RoCE's connection manager does not survive what it was to send while the link was down: that
    // nothing gets through by RDMA any more is said in the log, and nothing is lost by it.
    exchange(&half, "after");
    let guest = half.guest;
    half.part();
    if guest == 1 {
        run(&["rdma", "link", "del", "rxe0"]);
        add_device();
    }
}

/// Makes this guest's device anew.
fn add_device() {
    run(&["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0"]);
}

#[test]
#[ignore = "needs two guests: make test-rdma"]
fn a_device_that_is_to_be_removed_serves_the_node_to_its_end() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let half = Half::start(folder.path(), &LONG_LEASE);
    exchange(&half, "before");
    // The kernel waits for processes that have the device open, which is the node.
    let removing = (half.guest == 1)
        .then(|| Command::new("rdma").args(["link", "del", "rxe0"]).spawn().expect("it starts"));
    let_pass(Duration::from_secs(2), "on the other guest nothing shows that the device is being removed");
    exchange(&half, "while it is being removed");
    half.part();
    if let Some(mut removing) = removing {
        let ended = until("the device is gone", || removing.try_wait().expect("it is our child"));
        assert!(ended.success(), "{ended}");
        add_device();
    }
}

/// Pulls this guest's link while an object is fetched, and puts it back when the node has noticed.
fn read_while_it_goes_down(half: &Half, id: ObjectId) -> Result<Object, plasmon::Error> {
    let socket = half.daemon.socket().to_owned();
    let fetch = thread::spawn(move || try_get(&plasmon::Client::connect(socket).expect("it serves"), id));
    let memory = || half.client.status().expect("the node answers").memory.used;
    eventually("it is being read", || memory() >= LONG as u64 || fetch.is_finished());
    assert!(!fetch.is_finished(), "it was too fast to be disturbed");
    run(&["ip", "link", "set", "eth0", "down"]);
    let link = || half.client.status().expect("the node answers").fabric.link;
    eventually("the node says so", || link() == "DOWN");
    let_pass(Duration::from_secs(6), "it is longer than an RDMA device tries by itself");
    run(&["ip", "link", "set", "eth0", "up"]);
    eventually("the node says so", || link() == "ACTIVE");
    fetch.join().expect("no panic")
}

#[test]
#[ignore = "needs two guests: make test-rdma"]
fn nodes_fall_back_to_tcp_when_nothing_gets_through_by_rdma() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let half = Half::start(folder.path(), &LONG_LEASE);
    assert_eq!(exchange(&half, "by RDMA"), (VERBS.to_owned(), String::new()));
    // A rule like that of a firewall that knows nothing of RoCE: IP gets through, packets of RoCE do not.
    if half.guest == 1 {
        run(&["ip", "rule", "add", "pref", "10", "table", "local"]);
        run(&["ip", "rule", "del", "pref", "0"]);
        run(&[
            "ip",
            "rule",
            "add",
            "pref",
            "1",
            "iif",
            "eth0",
            "ipproto",
            "udp",
            "dport",
            "4791",
            "blackhole",
        ]);
    }
    eventually("it has fallen back", || other(&half).provider == TCP);
    let (provider, why) = exchange(&half, "by TCP");
    assert_eq!(provider, TCP);
    assert!(why.contains("does not get through, although both nodes have it"), "{why}");
    assert!(half.daemon.log().contains(&format!("falling back to {TCP}")), "{}", half.daemon.log());
    if half.guest == 1 {
        run(&["ip", "rule", "del", "pref", "1"]);
    }
    eventually("it is back", || other(&half).provider == VERBS);
    assert!(half.daemon.log().contains(&format!("is reached by {VERBS} again")), "{}", half.daemon.log());
    exchange(&half, "by RDMA again");
    half.part();
}
