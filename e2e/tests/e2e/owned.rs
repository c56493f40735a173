//! Tests of objects that are owned by the client that created them.

use plasmon::{Client, CreateOptions, ErrorKind, Filter, ObjectId};
use plasmon_e2e::{Cluster, Pattern, eventually};

use crate::support::{MIB, get, kind};

fn owned() -> CreateOptions {
    CreateOptions { owned: true, ..CreateOptions::default() }
}

/// Puts owned objects that go through the socket and that are written in place, and a plain one.
fn put_all(client: &Client) -> (Vec<ObjectId>, ObjectId) {
    let ids: Vec<_> = (0..3).map(|_| ObjectId::random()).collect();
    client.put(ids[0], b"small", b"", &owned()).expect("put");
    client.put(ids[1], &Pattern(1).bytes(MIB), b"", &owned()).expect("put");
    let mut creation = client.create(ids[2], 3, b"", &owned()).expect("create");
    creation.as_mut_slice().copy_from_slice(b"abc");
    creation.seal().expect("seal");
    let plain = ObjectId::random();
    client.put(plain, b"plain", b"", &CreateOptions::default()).expect("put");
    (ids, plain)
}

fn listed(client: &Client) -> Vec<ObjectId> {
    client.list_cluster(&Filter::default()).expect("list").objects.iter().map(|row| row.id).collect()
}

#[test]
fn an_owned_object_ends_with_its_client_wherever_it_is() {
    let cluster = Cluster::builder().nodes(2).start();
    let (owner, far) = (cluster.client(0), cluster.client(1));
    let (ids, plain) = put_all(&owner);
    let held: Vec<_> = ids.iter().map(|id| get(&far, *id)).collect();
    // An owned object cannot be moved to another node: it stays with its client.
    assert_eq!(kind(owner.migrate(ids[1], far.node(), None)), ErrorKind::Invalid);
    drop(owner);
    eventually("they are deleted everywhere", || listed(&far) == [plain]);
    assert_eq!(held[0].data(), b"small");
    Pattern(1).check(held[1].data());
}

#[test]
fn a_client_may_end_what_it_owns_and_go_on() {
    let cluster = Cluster::builder().nodes(2).start();
    let (owner, far) = (cluster.client(0), cluster.client(1));
    let (ids, plain) = put_all(&owner);
    let held = get(&owner, ids[1]);
    owner.end_owned();
    eventually("they are deleted everywhere", || listed(&far) == [plain]);
    Pattern(1).check(held.data());
    let (again, _) = put_all(&owner);
    assert!(again.iter().all(|id| get(&far, *id).id() == *id));
}

#[test]
fn an_owned_object_ends_with_its_node() {
    let mut cluster = Cluster::builder().nodes(3).start();
    let (owner, far) = (cluster.client(1), cluster.client(2));
    let (ids, plain) = put_all(&owner);
    let kept = ObjectId::random();
    owner.put(kept, b"kept", b"", &CreateOptions { replicas: 2, ..owned() }).expect("put");
    // One copy is kept elsewhere, others are cached; nothing of them outlives the owner.
    ids.iter().chain([&plain, &kept]).for_each(|id| drop(get(&far, *id)));
    cluster.kill(1);
    eventually("what has no owner any more is deleted", || listed(&far) == [plain]);
}

#[test]
fn an_owned_object_on_disk_does_not_outlive_its_daemon() {
    let mut cluster = Cluster::builder().args(&["--spill-dir", "spill"]).start();
    let owner = cluster.client(0);
    let mut plain = Vec::new();
    for number in 0..60 {
        let options = if number % 2 == 0 { owned() } else { CreateOptions::default() };
        let id = ObjectId::random();
        owner.put(id, &Pattern(number).bytes(2 * MIB), b"", &options).expect("put");
        if number % 2 == 1 {
            plain.push(id);
        }
    }
    cluster.kill(0);
    cluster.restart();
    let found = listed(&cluster.client(0));
    assert!(!found.is_empty() && found.iter().all(|id| plain.contains(id)), "{found:?}");
}
