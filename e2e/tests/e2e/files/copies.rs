//! Tests of the copies of the bytes of files: as many nodes keep them as were promised before anybody is
//! told, or the program is told that there is no room.

use plasmon::files::{AttachOptions, Errno, OpenOptions, Volume, VolumeTerms, Volumes};
use plasmon::{CreateOptions, ErrorKind, ObjectId};
use plasmon_e2e::{Cluster, Pattern, eventually};

use crate::support::MIB;

/// Home of the volume.
const HOME: usize = 0;
/// Node whose clients write.
const WRITER: usize = 1;
const OTHER: usize = 2;

/// Makes the volume `main`, whose bytes so many nodes keep.
fn create(cluster: &Cluster, copies: u16) {
    let terms = VolumeTerms { copies, ..VolumeTerms::default() };
    Volumes::by(&cluster.client(HOME)).create("main", None, terms).expect("a volume");
}

fn attach(cluster: &Cluster, node: usize) -> Volume {
    Volume::attach(&cluster.client(node), "main", &AttachOptions::default()).expect("it is there")
}

/// Fills a node with objects of a user, which stay there.
fn fill(cluster: &Cluster, node: usize) -> Vec<ObjectId> {
    let (client, data) = (cluster.client(node), vec![7; MIB]);
    let mut ids = Vec::new();
    loop {
        let id = ObjectId::random();
        match client.put(id, &data, &[], &CreateOptions::default()) {
            Ok(()) => ids.push(id),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                return ids;
            }
        }
    }
}

#[test]
fn bytes_for_whose_copies_nodes_have_no_room_are_not_acknowledged() {
    let mut cluster = Cluster::builder().nodes(3).memory("64MiB").start();
    create(&cluster, 2);
    let volume = attach(&cluster, WRITER);
    let file = volume.open("/file", OpenOptions::new().write(true).create(true)).expect("create");
    let full = [fill(&cluster, HOME), fill(&cluster, OTHER)];
    let data = Pattern(5).bytes(2 * MIB + 77);
    file.write_at(&data, 0).expect("write");
    let error = file.sync().expect_err("one node has the bytes alone");
    assert_eq!(error.errno(), Errno::Full, "{error}");
    assert!(error.to_string().contains("kept by 1 of 2 nodes"), "{error}");
    assert_eq!(attach(&cluster, HOME).metadata("/file").expect("stat").size, 0, "nothing was committed");
    assert!(cluster.status(WRITER).files.placed_refused > 0);
    // The bytes still wait: they are stored when there is room.
    cluster.client(OTHER).delete(&full[1]).expect("delete");
    eventually("there is room", || file.sync().is_ok());
    cluster.client(HOME).delete(&full[0]).expect("delete");
    drop((file, volume));
    cluster.kill(WRITER);
    let file = attach(&cluster, HOME).open("/file", OpenOptions::new().read(true)).expect("open");
    let mut read = vec![0; data.len()];
    assert_eq!(file.read_at(&mut read, 0).expect("read"), data.len());
    assert!(read == data);
}

#[test]
fn with_fewer_nodes_bytes_are_kept_by_as_many_as_there_are() {
    let mut cluster = Cluster::builder().nodes(1).memory("64MiB").start();
    create(&cluster, 2);
    let volume = attach(&cluster, HOME);
    let file = volume.open("/file", OpenOptions::new().write(true).create(true)).expect("create");
    let data = Pattern(6).bytes(3 * MIB);
    file.write_at(&data, 0).expect("write");
    file.sync().expect("there is no other node");
    assert!(cluster.status(HOME).files.placed_short > 0);
    let other = cluster.add_node();
    eventually("another node keeps them too", || {
        cluster.status(other).objects.kept_bytes >= data.len() as u64
    });
}

#[test]
fn a_cache_is_no_node_that_keeps_bytes_of_files() {
    let mut cluster = Cluster::builder().nodes(2).memory("64MiB").start();
    let cache = cluster.add_node_with(&["--cache"]);
    create(&cluster, 3);
    let volume = attach(&cluster, WRITER);
    let file = volume.open("/file", OpenOptions::new().write(true).create(true)).expect("create");
    let data = Pattern(8).bytes(MIB);
    file.write_at(&data, 0).expect("write");
    file.sync().expect("two nodes may keep them");
    let files = cluster.status(WRITER).files;
    assert!(files.placed_short > 0 && files.placed_refused == 0, "{files:?}");
    assert!(cluster.status(HOME).objects.kept_bytes >= data.len() as u64);
    assert_eq!(cluster.status(cache).objects.kept_bytes, 0);
}

#[test]
fn a_write_fails_soon_when_all_nodes_are_full() {
    let cluster = Cluster::builder().nodes(2).memory("64MiB").start();
    create(&cluster, 1);
    let volume = attach(&cluster, WRITER);
    let file = volume.open("/file", OpenOptions::new().write(true).create(true)).expect("create");
    let full = [fill(&cluster, HOME), fill(&cluster, WRITER)];
    let data = Pattern(9).bytes(MIB);
    let written = (0..64).map(|at| file.write_at(&data, at * MIB as u64)).find(Result::is_err);
    let error = written.expect("it does not fit").expect_err("just seen");
    assert_eq!(error.errno(), Errno::Full, "{error}");
    cluster.client(WRITER).delete(&full[1]).expect("delete");
    file.write_at(&data, 0).expect("there is room");
    file.sync().expect("sync");
}

#[test]
fn bytes_that_are_lost_are_errors_and_never_zeros() {
    let mut cluster = Cluster::builder().nodes(3).memory("64MiB").start();
    create(&cluster, 1);
    let data = Pattern(4).bytes(MIB);
    for (node, at) in [(WRITER, 0), (HOME, MIB), (WRITER, 2 * MIB)] {
        let volume = attach(&cluster, node);
        let file = volume.open("/file", OpenOptions::new().write(true).create(true)).expect("open");
        file.write_at(&data, at as u64).expect("write");
        file.close().expect("close");
    }
    cluster.kill(WRITER);
    let file = attach(&cluster, OTHER).open("/file", OpenOptions::new().read(true)).expect("open");
    let read = |at: usize| {
        let mut bytes = vec![0xa5; 4096];
        file.read_at(&mut bytes, at as u64).map(|len| bytes[..len].to_vec()).map_err(|error| error.errno())
    };
    eventually("the node is no member", || cluster.status(HOME).cluster.members.len() == 2);
    for at in [0, MIB - 4096, 2 * MIB, 3 * MIB - 4096, MIB - 1] {
        assert_eq!(read(at), Err(Errno::Io), "at {at}");
    }
    assert_eq!(read(MIB + 5), Ok(data[5..5 + 4096].to_vec()));
}
