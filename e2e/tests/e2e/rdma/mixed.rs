//! Test of a cluster in which one host has RDMA and the other has none: two guests, the second without a
//! device.

use std::process::Command;

use plasmon::{Client, ObjectId};
use plasmon_e2e::{Daemon, Pattern, binary, eventually};

use super::half::{FIRST, Half};
use super::{SIZES, TCP, VERBS};
use crate::support::{MIB, get, put};

/// Starts a further node on the first guest.
fn another(folder: &std::path::Path, args: &[&str]) -> Result<Daemon, plasmon_e2e::Refused> {
    let mut command = Command::new(binary());
    command.args(["serve", "--json", "--exit-with-parent", "--memory", "64MiB", "--join", FIRST]);
    command.args(["--listen", "10.77.0.1:0"]).arg("--socket").arg(folder.join("another.sock")).args(args);
    Daemon::start(command, folder, "another")
}

#[test]
#[ignore = "needs two guests, one of them without an RDMA device: make test-rdma"]
fn nodes_talk_by_what_both_have_and_say_so() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let half = Half::start(folder.path(), &[]);
    let with_rdma = half.guest == 0;
    let status = half.client.status().expect("the node answers");
    assert_eq!(status.fabric.provider, if with_rdma { VERBS } else { TCP });
    let other = status.cluster.members.iter().find(|member| !member.this).expect("there are two");
    assert_eq!(other.provider, TCP);
    let why = if with_rdma { format!("{VERBS} is here, and not at") } else { format!("{VERBS} is at") };
    assert!(other.reason.starts_with(&why), "{other:?}");
    let log = half.daemon.log();
    assert!(log.contains(&format!("talk over {TCP}: {why}")), "{log}");

    SIZES.into_iter().for_each(|len| half.tell(&len.to_string(), &Pattern(len as u64).bytes(len)));
    for len in SIZES {
        let object = half.hear(&len.to_string());
        Pattern(len as u64).check(object.data());
        let fetched = half.client.explain(object.id()).expect("explain").fetched.expect("it was fetched");
        assert_eq!(fetched.provider, TCP);
        assert!(fetched.provider_why.starts_with(&why), "{fetched:?}");
    }
    if with_rdma {
        others_with_rdma_use_it(&half, folder.path());
    }
    half.part();
}

/// Checks that hosts with RDMA use it in the same cluster as the host that has none.
fn others_with_rdma_use_it(half: &Half, folder: &std::path::Path) {
    let daemon = another(folder, &[]).expect("it starts");
    eventually("all are members", || half.members() == 3);
    let id: ObjectId = put(&Client::connect(daemon.socket()).expect("it serves"), Pattern(1), MIB);
    Pattern(1).check(get(&half.client, id).data());
    let fetched = half.client.explain(id).expect("explain").fetched.expect("it was fetched");
    assert_eq!((fetched.provider.as_str(), fetched.provider_why.as_str()), (VERBS, ""));
    drop(daemon);
    eventually("it is gone", || half.members() == 2);

    // A node that insists on a provider cannot reach all nodes.
    let refused = another(folder, &["--provider", "verbs"]).err().expect("the other guest has no RDMA");
    let last = refused.log.lines().last().unwrap_or_default();
    assert!(last.contains("do not talk to each other") && last.contains("--provider"), "{}", refused.log);
}
