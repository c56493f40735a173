//! Files on nodes that spill: they may be larger than memory, with copies too.

use plasmon::files::{Actor, AttachOptions, OpenOptions, Volume, VolumeTerms, Volumes};
use plasmon_e2e::{Cluster, Pattern, eventually};

use crate::support::MIB;

/// Memory of each node in MiB.
const MEMORY: usize = 64;
/// Length of the file in bytes: more than all nodes have memory for, and so for each of its copies.
const LEN: usize = 130 * MIB;

fn attach(cluster: &Cluster, node: usize) -> Volume {
    Volume::attach(&cluster.client(node), "main", &AttachOptions::default()).expect("it is there")
}

/// Compares the file with what was written, as a node reads it.
fn check(cluster: &Cluster, node: usize) {
    let file = attach(cluster, node).open("/file", OpenOptions::new().read(true)).expect("open");
    let mut piece = vec![0; MIB];
    for at in (0..LEN).step_by(MIB) {
        assert_eq!(file.read_at(&mut piece, at as u64).expect("read"), MIB, "at {at} by node {node}");
        Pattern(at as u64).check(&piece);
    }
}

#[test]
fn a_file_with_copies_is_larger_than_memory() {
    let memory = format!("{MEMORY}MiB");
    let mut cluster = Cluster::builder().nodes(2).memory(&memory).args(&["--spill-dir", "spill"]).start();
    let terms = VolumeTerms { copies: 2, ..VolumeTerms::default() };
    Volumes::by(&cluster.client(0)).create("main", None, terms).expect("a volume");
    let volume = attach(&cluster, 1);
    eventually("the disk counts as room", || {
        volume.usage(&Actor::default()).is_ok_and(|usage| usage.available > LEN as u64)
    });
    let file = volume.open("/file", OpenOptions::new().write(true).create_new(true)).expect("create");
    for at in (0..LEN).step_by(MIB) {
        file.write_at(&Pattern(at as u64).bytes(MIB), at as u64).expect("write");
    }
    file.sync().expect("both nodes have room on disk");
    file.close().expect("close");
    drop(volume);
    for node in [0, 1] {
        let status = cluster.status(node);
        assert!(status.spill.bytes >= (LEN - MEMORY * MIB) as u64, "node {node}: {:?}", status.spill);
        assert_eq!((status.files.placed_short, status.files.placed_refused), (0, 0), "{:?}", status.files);
    }
    [0, 1].iter().for_each(|node| check(&cluster, *node));
    cluster.kill(1);
    check(&cluster, 0);
}
