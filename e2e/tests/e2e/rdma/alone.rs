//! Tests of nodes that share one device of one guest.

use std::fs;

use plasmon::{CreateOptions, ErrorKind, ObjectId};
use plasmon_e2e::{Cluster, Pattern, eventually, until};

use super::{SIZES, cluster, cluster_with, command, long, packets};
use crate::support::{MIB, get, put, try_get};

/// Length in bytes of an object that takes long enough to act while it is read.
const LONG: usize = 16 * MIB;

/// Arguments for messages instead of one-sided reads.
const SEND: [&str; 2] = ["--protocol", "send"];

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn objects_of_every_size_cross_in_both_directions() {
    let cluster = cluster(2);
    for (here, there) in [(0, 1), (1, 0)] {
        let (writer, reader) = (cluster.client(here), cluster.client(there));
        let (before, packets_before) = (cluster.status(there).transfer, packets());
        for len in SIZES {
            let (pattern, metadata) = (Pattern(len as u64), Pattern(7).bytes(100));
            let id = ObjectId::random();
            let options = CreateOptions { digest: true, ..CreateOptions::default() };
            writer.put(id, &pattern.bytes(len), &metadata, &options).expect("put");
            let object = get(&reader, id);
            assert_eq!(object.data().len(), len);
            pattern.check(object.data());
            assert_eq!(object.metadata(), metadata);
            // The bytes that were read are those that the holder's digest is of.
            if len > MIB {
                let digest = command(&cluster, there, &["hash", &id.to_string()]);
                assert_eq!(digest, command(&cluster, here, &["hash", &id.to_string()]));
            }
        }
        // The large ones came by one-sided reads, the device did send them, and no processor copied them.
        let after = cluster.status(there).transfer;
        let large: usize = SIZES.iter().filter(|len| **len > 16 << 10).map(|len| len + 100).sum();
        assert_eq!(after.rendezvous_fetched - before.rendezvous_fetched, 3);
        assert_eq!(after.rendezvous_fetched_bytes - before.rendezvous_fetched_bytes, large as u64);
        assert_eq!(
            after.cpu_copied_bytes - before.cpu_copied_bytes,
            after.eager_fetched_bytes - before.eager_fetched_bytes
        );
        assert!(packets() - packets_before >= (large / 4096) as u64, "too few packets for that many bytes");
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn files_go_in_at_one_node_and_come_out_at_another() {
    let cluster = cluster(2);
    let data = Pattern(1).bytes(3 * MIB + 5);
    fs::write(cluster.folder().join("in"), &data).expect("the folder is ours");
    command(&cluster, 0, &["put", "in", "--name", "file"]);
    assert!(command(&cluster, 1, &["get", "file"]) == data);
    command(&cluster, 1, &["rm", "file"]);
    eventually("its memory is free", || (0..2).all(|node| cluster.status(node).memory.used == 0));
}

/// Fetches a long object from node 1 to node 0, again until `act` ran in the middle of a fetch. Returns the
/// object's id and the result of the fetch.
fn in_the_middle<T>(
    cluster: &mut Cluster,
    act: impl FnOnce(&mut Cluster) -> T,
) -> (ObjectId, T, Result<plasmon::Object, plasmon::Error>) {
    for _ in 0..20 {
        let id = put(&cluster.client(1), Pattern(1), LONG);
        let client = cluster.client(0);
        let fetch = std::thread::spawn(move || try_get(&client, id));
        let reading = until("it is read, or all is over", || {
            let reading =
                cluster.status(1).transfer.leases > 0 && cluster.status(0).memory.used >= LONG as u64;
            reading.then_some(true).or(fetch.is_finished().then_some(false))
        });
        if reading && !fetch.is_finished() {
            let acted = act(cluster);
            return (id, acted, fetch.join().expect("no panic"));
        }
        drop(fetch.join().expect("no panic").expect("nothing was done to it"));
        cluster.client(0).delete(&[id]).expect("delete");
        eventually("its memory is free", || (0..2).all(|node| cluster.status(node).memory.used < MIB as u64));
    }
    panic!("no fetch of {LONG} bytes was seen in its middle");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_read_needs_no_processor_of_the_holder() {
    let mut cluster = cluster(2);
    let (_, (), fetched) = in_the_middle(&mut cluster, |cluster| cluster.pause(1));
    // The holder stands still, and its bytes come all the same.
    let object = fetched.expect("the device serves it");
    Pattern(1).check(object.data());
    cluster.resume(1);
    eventually("the holder lets go", || cluster.status(1).transfer.leases == 0);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_holder_that_is_killed_during_a_read_costs_its_object_and_no_more() {
    the_holder_is_killed(cluster(3));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn so_does_one_that_is_killed_while_it_sends() {
    the_holder_is_killed(cluster_with(3, &SEND));
}

/// Kills node 1 while node 0 gets an object from it.
fn the_holder_is_killed(mut cluster: Cluster) {
    let bystander = put(&cluster.client(2), Pattern(2), MIB);
    let (id, (), fetched) = in_the_middle(&mut cluster, |cluster| cluster.kill(1));
    // The last byte may have come before the end did.
    match fetched {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Lost, "{error}"),
        Ok(object) => Pattern(1).check(object.data()),
    }
    cluster.client(0).delete(&[id]).expect("delete");
    eventually("its memory is free", || cluster.status(0).memory.used < MIB as u64);
    // No other node on the same device is disturbed.
    Pattern(2).check(get(&cluster.client(0), bystander).data());
    let again = put(&cluster.client(0), Pattern(3), 4 * MIB);
    Pattern(3).check(get(&cluster.client(2), again).data());
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_reader_that_is_killed_during_a_read_leaves_nothing_behind() {
    the_reader_is_killed(cluster(3));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn nor_does_one_that_is_killed_while_it_is_sent_to() {
    if !long() {
        return eprintln!("As with reads, and longer: not tested without PLASMON_E2E_LONG.");
    }
    the_reader_is_killed(cluster_with(3, &SEND));
}

/// Kills node 0 while it gets an object from node 1.
fn the_reader_is_killed(mut cluster: Cluster) {
    let (id, (), fetched) = in_the_middle(&mut cluster, |cluster| cluster.kill(0));
    assert_eq!(fetched.expect_err("its node is dead").kind(), ErrorKind::Disconnected);
    // The coordinator died with it, so that it is its lease that ends.
    eventually("the holder lets go", || cluster.status(1).transfer.leases == 0);
    Pattern(1).check(get(&cluster.client(2), id).data());
}
