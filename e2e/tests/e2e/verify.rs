//! Tests of the comparison of what comes from another node with the digest of its seal.

use plasmon::status::Status;
use plasmon::wire::{NewObject, Placement, Reply, Request, Terms};
use plasmon::{Client, CreateOptions, Error, ErrorKind, Object, ObjectId, Protocol, Rights};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually};

use crate::commands::{failure, json};
use crate::raw::Raw;
use crate::support::{MIB, get, kind};

/// Sizes in bytes of objects: in one message, in several, in one read, in many.
const SIZES: [usize; 4] = [100, 20_000, 300_000, 3 * MIB + 5];

fn compared(status: &Status) -> (u64, u64) {
    (status.transfer.compared, status.transfer.damaged)
}

fn try_get(client: &Client, id: ObjectId) -> Result<Object, Error> {
    client.get(&[id], Some(PATIENCE)).expect("the call succeeds").remove(0)
}

/// Puts an object with its digest.
fn put(client: &Client, data: &[u8], metadata: &[u8]) -> ObjectId {
    let (id, options) = (ObjectId::random(), CreateOptions { digest: true, ..Default::default() });
    client.put(id, data, metadata, &options).expect("put");
    id
}

/// Puts an object of zeros, with a digest that is not that of its bytes: to all others, it is damaged.
fn put_damaged(cluster: &Cluster, node: usize, len: usize, metadata: &[u8]) -> ObjectId {
    let (id, mut client) = (ObjectId::random(), Raw::connect(cluster, node));
    let object = NewObject {
        id,
        rights: Rights::default(),
        name: String::new(),
        metadata: metadata.to_vec().into(),
        terms: Terms { fresh: true, copies: 1, ttl_ms: 0, owned: false, replaces: false },
    };
    client.send(1, &Request::Create { object, data_len: len as u64, metadata_len: 0, room_us: 0 });
    let data = match client.next() {
        Some((1, Reply::Created { placement: Placement::Inline, .. })) => vec![0; len],
        Some((1, Reply::Created { .. })) => Vec::new(),
        other => panic!("{other:?}"),
    };
    client.send(2, &Request::Seal { id, digest: 7, data: data.into() });
    assert!(matches!(client.next(), Some((2, Reply::Done))));
    id
}

fn nothing_is_left(cluster: &Cluster, reader: &Client, memory: u64) {
    eventually("no lease is left", || cluster.status(0).transfer.leases == 0);
    eventually("no memory is lost", || {
        reader.evict(u64::MAX).expect("evict");
        cluster.status(1).memory.used == memory
    });
}

#[test]
fn every_protocol_compares_what_it_brings() {
    for protocol in Protocol::ALL {
        let args = ["--protocol", protocol.name(), "--verify", "sealed"];
        let cluster = Cluster::builder().nodes(2).memory("128MiB").args(&args).start();
        let (holder, reader) = (cluster.client(0), cluster.client(1));
        let metadata = Pattern(9).bytes(777);
        let mut expected = (0, 0);
        for (seed, len) in SIZES.into_iter().enumerate() {
            let data = Pattern(seed as u64).bytes(len);
            let (id, into) = (put(&holder, &data, &metadata), put(&holder, &data, &metadata));
            let object = get(&reader, id);
            assert!(object.data() == data && object.metadata() == metadata, "{protocol}, {len} bytes");
            drop(object);
            let mut buffer = reader.buffer(len + 100, false, None).expect("buffer");
            let there = reader.get_into(into, buffer.as_mut_slice(), Some(PATIENCE)).expect("get into");
            assert!(there == len && buffer.as_mut_slice()[..len] == data, "{protocol}, {len} bytes");
            drop(buffer);
            expected.0 += 2;
            assert_eq!(compared(&cluster.status(1)), expected, "{protocol}, {len} bytes");
        }
        reader.evict(u64::MAX).expect("evict");
        for len in SIZES {
            let ids = [(); 2].map(|()| put_damaged(&cluster, 0, len, &metadata));
            let told = try_get(&reader, ids[0]).expect_err("its bytes are others");
            assert_eq!(told.kind(), ErrorKind::Damaged, "{protocol}, {len} bytes: {told}");
            assert!(told.message().contains(&holder.node().to_string()), "{told}");
            let mut buffer = reader.buffer(len, false, None).expect("buffer");
            let told = reader.get_into(ids[1], buffer.as_mut_slice(), Some(PATIENCE));
            assert_eq!(kind(told), ErrorKind::Damaged, "{protocol}, {len} bytes");
        }
        let status = cluster.status(1);
        assert!(status.transfer.damaged >= 2 * SIZES.len() as u64, "{protocol}");
        assert!(cluster.log(1).contains("a damaged object came"), "{protocol}");
        nothing_is_left(&cluster, &reader, 0);
    }
}

#[test]
fn a_get_may_ask_for_the_comparison() {
    let cluster = Cluster::builder().nodes(2).memory("128MiB").args(&["--verify", "off"]).start();
    let (holder, reader) = (cluster.client(0), cluster.client(1));
    let verifying = reader.clone().verifying();
    for len in SIZES {
        let id = put_damaged(&cluster, 0, len, b"");
        assert_eq!(kind(try_get(&verifying, id)), ErrorKind::Damaged, "{len} bytes");
        let before = cluster.status(1);
        assert_eq!(try_get(&reader, id).expect("it is not compared").data().len(), len);
        assert_eq!(compared(&cluster.status(1)), compared(&before));
        // The object is on this node now, where the client itself compares it.
        assert_eq!(kind(try_get(&verifying, id)), ErrorKind::Damaged, "{len} bytes");
        let mut into = vec![0; len];
        assert_eq!(kind(verifying.get_into(id, &mut into, Some(PATIENCE))), ErrorKind::Damaged);
        let data = Pattern(len as u64).bytes(len);
        let id = put(&holder, &data, b"metadata");
        assert!(try_get(&verifying, id).expect("its bytes are right").data() == data);
        let without = ObjectId::random();
        holder.put(without, &data, b"", &CreateOptions::default()).expect("put");
        assert!(try_get(&verifying, without).expect("there is no digest").data() == data);
    }
    let (compared, damaged) = compared(&cluster.status(1));
    assert_eq!((compared, damaged), (2 * SIZES.len() as u64, SIZES.len() as u64));
}

#[test]
fn what_is_kept_for_others_is_compared_too() {
    let cluster = Cluster::builder().nodes(3).memory("128MiB").args(&["--verify", "sealed"]).start();
    for len in SIZES {
        let data = Pattern(len as u64).bytes(len);
        let id = put(&cluster.client(0), &data, b"");
        cluster.client(0).replicate(id, 3, Some(PATIENCE)).expect("replicate");
        eventually("all are known", || cluster.client(0).locations(id).expect("locations").len() == 3);
        let id = put_damaged(&cluster, 0, len, b"");
        let told = cluster.client(0).replicate(id, 2, Some(PATIENCE));
        assert_eq!(kind(told), ErrorKind::TooFew, "{len} bytes");
        assert_eq!(cluster.client(0).locations(id).expect("locations").len(), 1);
    }
}

#[test]
fn a_drain_ends_with_the_names_of_damaged_objects() {
    let mut cluster = Cluster::builder().nodes(3).memory("128MiB").args(&["--verify", "sealed"]).start();
    let (client, drained) = (cluster.client(1), cluster.client(1).node());
    let right: Vec<_> = SIZES.map(|len| (put(&client, &Pattern(len as u64).bytes(len), b""), len)).into();
    let damaged = SIZES.map(|len| put_damaged(&cluster, 1, len, b""));
    let (code, message) = failure(&cluster, 0, &["drain", &drained.to_string()]);
    assert_eq!(code, 9, "{message}");
    for id in damaged {
        assert!(message.contains(&format!("object {id} is damaged")) && message.contains("rm"), "{message}");
        // The bytes of a damaged object can still be read there.
        assert!(try_get(&client, id).expect("it is here").data().iter().all(|byte| *byte == 0));
    }
    for (id, len) in right {
        assert!(
            try_get(&cluster.client(0), id).expect("it has moved").data() == Pattern(len as u64).bytes(len)
        );
    }
    client.delete(&damaged).expect("delete");
    assert!(cluster.wait(1).success(), "nothing is left");
}

#[test]
fn a_damaged_object_that_another_node_keeps_too_is_left_to_that_one() {
    let mut cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let (client, drained) = (cluster.client(1), cluster.client(1).node());
    let ids = SIZES.map(|len| put_damaged(&cluster, 1, len, b""));
    for id in ids {
        client.replicate(id, 2, Some(PATIENCE)).expect("nobody compares it");
    }
    cluster.add_node_with(&["--verify", "sealed"]);
    json(&cluster, 0, &["drain", &drained.to_string()]);
    assert!(cluster.wait(1).success());
    for (id, len) in ids.into_iter().zip(SIZES) {
        assert_eq!(try_get(&cluster.client(0), id).expect("it is there").data().len(), len);
    }
}
