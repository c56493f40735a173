//! Tests of every protocol over verbs, with the counters of its costs: the CPU that copied, the registrations
//! of memory, and the work of the holder.

use std::time::Duration;

use plasmon::status::{ProtocolStatus, Status};
use plasmon::{Client, CreateOptions, ObjectId, Protocol};
use plasmon_e2e::wait::let_pass;
use plasmon_e2e::{Cluster, Pattern, eventually};

use super::{SIZES, VERBS, cluster};
use crate::support::{MIB, get, grown, has_served, put};

/// Size in bytes of the metadata of every object.
const METADATA: usize = 100;

/// Name of the protocol that moves an object of `len` bytes on a node with this setting.
fn mover(protocol: Protocol, len: usize) -> &'static str {
    match protocol {
        Protocol::Auto if len + METADATA <= 48 << 10 => "eager",
        Protocol::Auto => "read",
        protocol => protocol.name(),
    }
}

/// Puts an object of this length under an id that others get.
pub(super) fn offer(client: &Client, id: ObjectId, len: usize) {
    let (data, metadata) = (Pattern(len as u64).bytes(len), Pattern(7).bytes(METADATA));
    client.put(id, &data, &metadata, &CreateOptions::default()).expect("put");
}

/// Gets an object that was offered, on a node of this protocol. Checks every byte, and the node's
/// explanation.
pub(super) fn take(client: &Client, id: ObjectId, len: usize, protocol: Protocol) {
    let object = get(client, id);
    assert_eq!(object.data().len(), len);
    Pattern(len as u64).check(object.data());
    assert_eq!(object.metadata(), Pattern(7).bytes(METADATA));
    let explained = client.explain(id).expect("explain").fetched.expect("it was fetched");
    let provider = if protocol == Protocol::Socket { "socket" } else { VERBS };
    assert_eq!(
        (explained.protocol.as_str(), explained.provider.as_str(), explained.bytes),
        (mover(protocol, len), provider, (len + METADATA) as u64),
        "{explained:?}"
    );
}

/// Counters of a protocol in a status.
fn of(status: &Status, mover: &str) -> ProtocolStatus {
    status.transfer.protocols.get(mover).cloned().unwrap_or_default()
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn every_protocol_brings_every_size_and_costs_what_it_says() {
    let mut cluster = cluster(1);
    let holder = cluster.client(0);
    for protocol in Protocol::ALL.iter().copied() {
        let node = cluster.add_node_with(&["--protocol", protocol.name()]);
        let reader = cluster.client(node);
        // Memory that only a first transfer registers is not counted: blocks of messages, segments for a
        // user.
        let first = ObjectId::random();
        offer(&holder, first, 2 * MIB);
        take(&reader, first, 2 * MIB, protocol);

        let before = [cluster.status(0), cluster.status(node)];
        for len in SIZES {
            let id = ObjectId::random();
            offer(&holder, id, len);
            take(&reader, id, len, protocol);
        }
        costs(&cluster, node, protocol, &before);
    }
}

/// Compares the counters of node 0, the holder, and of the reader after all sizes were fetched once.
fn costs(cluster: &Cluster, node: usize, protocol: Protocol, before: &[Status; 2]) {
    let mut movers: Vec<_> = SIZES.map(|len| mover(protocol, len)).into();
    movers.dedup();
    for name in movers {
        let sizes = SIZES.into_iter().filter(|len| mover(protocol, *len) == name);
        let bytes: usize = sizes.clone().map(|len| len + METADATA).sum();
        let (objects, bytes) = (sizes.count() as u64, bytes as u64);
        let copied = if ["read", "read-register"].contains(&name) { 0 } else { bytes };
        let counted = |at: usize| grown(&of(&before[at], name), &of(&cluster.status([0, node][at]), name));
        let here = counted(1);
        assert_eq!((here.fetched, here.fetched_bytes, here.copied_bytes), (objects, bytes, copied), "{name}");
        eventually("so it is with the holder", || has_served(&counted(0), &here));

        let registered = [counted(0).registrations, here.registrations];
        if name == "read-register" {
            // One on either side, and one more for every segment that an object reaches into.
            assert!(registered.iter().all(|made| *made >= objects), "{registered:?}");
        } else {
            assert_eq!(registered, [0, 0], "{name}");
        }
    }
    if protocol == Protocol::Read {
        let made = |status: &Status| status.fabric.registrations;
        assert_eq!([made(&cluster.status(0)), made(&cluster.status(node))], before.each_ref().map(made));
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn registering_for_a_transfer_takes_one_region_on_either_side() {
    let cluster = super::cluster_with(2, &["--protocol", "read-register"]);
    let count = |node: usize| cluster.status(node).fabric;
    let status = |node: usize| of(&cluster.status(node), "read-register");
    let (holder, reader) = (cluster.client(0), cluster.client(1));
    // Blocks for messages that a first transfer takes are kept.
    let first = ObjectId::random();
    offer(&holder, first, 1);
    take(&reader, first, 1, Protocol::ReadRegister);
    let undone = |node: usize| cluster.status(node).transfer.leases == 0;
    eventually("its registration is undone", || undone(0) && undone(1));
    // Within one segment.
    for len in [1, 4095, 64 << 10] {
        let id = ObjectId::random();
        offer(&holder, id, len);
        let (before, served) = ([count(0), count(1)], status(0).served);
        take(&reader, id, len, Protocol::ReadRegister);
        let explained = reader.explain(id).expect("explain").fetched.expect("it was fetched");
        assert_eq!((explained.registrations, explained.copied_bytes), (1, 0), "{len} bytes");
        let served = status(0).served - served;
        assert!(served >= 1, "{len} bytes");
        for (node, (before, made)) in before.iter().zip([served, 1]).enumerate() {
            assert_eq!(count(node).registrations, before.registrations + made, "{len} bytes");
            eventually("it is undone", || count(node).regions == before.regions);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_cached_place_is_read_without_the_holder() {
    const LEN: usize = 256 << 10;
    let cluster = cluster(3);
    let reader = cluster.client(2);
    let events = || {
        let fabric = cluster.status(1).fabric;
        (fabric.messages_received, fabric.messages_sent, fabric.completions)
    };
    // The holder may also keep the directory's entry of the object, and is told then that there is a replica
    // now: that is the keeper's work, which other objects spare it. A probe of connections may fall into the
    // time of one, too.
    let untouched = (0..200).any(|seed| {
        let id = put(&cluster.client(1), Pattern(seed), LEN);
        drop(get(&reader, id));
        reader.evict(u64::MAX).expect("evict");
        eventually("no lease is left", || cluster.status(1).transfer.leases == 0);
        let_pass(Duration::from_millis(200), "what the holder was told is acknowledged within 50 ms");
        let before = events();
        Pattern(seed).check(get(&reader, id).data());
        let explained = reader.explain(id).expect("explain").fetched.expect("it was fetched");
        assert_eq!((explained.protocol.as_str(), explained.copied_bytes), ("read-first", 0));
        assert!(explained.reads > 0, "{explained:?}");
        let_pass(Duration::from_millis(100), "what is told afterwards is told soon, or not at all");
        events() == before
    });
    assert!(untouched, "every read took something of the holder's processor");

    // The read succeeds also while the holder stands still.
    let id = put(&cluster.client(1), Pattern(99), LEN);
    drop(get(&reader, id));
    reader.evict(u64::MAX).expect("evict");
    eventually("no lease is left", || cluster.status(1).transfer.leases == 0);
    cluster.pause(1);
    let object = get(&reader, id);
    cluster.resume(1);
    Pattern(99).check(object.data());
}
