//! Nodes find each other.

use std::collections::BTreeSet;

use plasmon_e2e::{Cluster, Pattern};

use crate::support::{get, put};

#[test]
fn a_node_alone_is_its_own_cluster() {
    let cluster = Cluster::builder().start();
    let status = cluster.status(0);
    assert_eq!(status.pid, cluster.daemon(0).pid());
    assert_eq!(status.listen, cluster.daemon(0).listen());
    assert_eq!(status.cluster.members.len(), 1);
    assert!(status.cluster.members[0].this);
    assert!(!status.fabric.provider.is_empty() && !status.fabric.reason.is_empty(), "{:?}", status.fabric);
}

#[test]
fn two_nodes_agree_on_who_is_there() {
    agree(2);
}

#[test]
fn three_nodes_agree_on_who_is_there() {
    agree(3);
}

fn agree(nodes: usize) {
    let cluster = Cluster::builder().nodes(nodes).start();
    let reports: Vec<_> = (0..nodes).map(|node| cluster.status(node)).collect();
    let own: BTreeSet<_> =
        reports.iter().map(|report| (report.node.clone(), report.listen.clone())).collect();
    assert_eq!(own.len(), nodes, "nodes share an id or an address: {own:?}");
    for report in &reports {
        assert_eq!(report.cluster.epoch, reports[0].cluster.epoch);
        let seen = report.cluster.members.iter().map(|member| (member.node.clone(), member.listen.clone()));
        assert_eq!(seen.collect::<BTreeSet<_>>(), own);
        let this = report.cluster.members.iter().filter(|member| member.this).map(|member| &member.node);
        assert_eq!(this.collect::<Vec<_>>(), [&report.node]);
    }
}

#[test]
fn a_node_that_joins_late_finds_what_was_there() {
    let mut cluster = Cluster::builder().nodes(2).start();
    let objects: Vec<_> = (0..20)
        .map(|number| {
            let len = 1000 * number as usize;
            (put(&cluster.client(number as usize % 2), Pattern(number), len), Pattern(number), len)
        })
        .collect();
    let late = cluster.add_node();
    let client = cluster.client(late);
    for (id, pattern, len) in objects {
        let object = get(&client, id);
        assert_eq!(object.data().len(), len);
        pattern.check(object.data());
    }
}
