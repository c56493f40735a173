//! Tests of quotas: no client or user fills the store alone.

use plasmon::{CreateOptions, ErrorKind, ObjectId};
use plasmon_e2e::{Cluster, Pattern, eventually};

use crate::support::{MIB, kind, put, try_put};

#[test]
fn a_client_stays_within_its_quota() {
    let cluster = Cluster::builder().args(&["--client-quota", "10MiB"]).start();
    let (one, other) = (cluster.client(0), cluster.client(0));
    let first = put(&one, Pattern(1), 6 * MIB);
    let refusal = try_put(&one, ObjectId::random(), Pattern(2), 6 * MIB).expect_err("it is over");
    assert_eq!(refusal.kind(), ErrorKind::Full);
    assert!(refusal.message().contains("--client-quota"), "{refusal}");
    put(&other, Pattern(2), 6 * MIB);
    // An aborted creation costs nothing, and what is deleted costs no more.
    drop(one.create(ObjectId::random(), 3 * MIB as u64, b"", &CreateOptions::default()).expect("create"));
    one.delete(&[first]).expect("delete");
    put(&one, Pattern(3), 9 * MIB);
}

#[test]
fn a_user_stays_within_its_quota_with_all_its_clients() {
    let cluster = Cluster::builder().args(&["--user-quota", "10MiB"]).start();
    put(&cluster.client(0), Pattern(1), 6 * MIB);
    let client = cluster.client(0);
    assert_eq!(kind(try_put(&client, ObjectId::random(), Pattern(2), 6 * MIB)), ErrorKind::Full);
    put(&client, Pattern(2), 3 * MIB);
}

#[test]
fn a_client_may_limit_itself() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    client.set_options(Some("modest"), Some(MIB as u64)).expect("options");
    assert_eq!(kind(try_put(&client, ObjectId::random(), Pattern(1), 2 * MIB)), ErrorKind::Full);
    let status = cluster.status(0);
    let modest = status.connections.iter().find(|one| one.name == "modest").expect("it is there");
    assert_eq!(modest.quota, MIB as u64);
    // An option that is not given stays as it is.
    client.set_options(None, None).expect("options");
    client.set_options(Some("still modest"), None).expect("options");
    assert_eq!(kind(try_put(&client, ObjectId::random(), Pattern(1), 2 * MIB)), ErrorKind::Full);
    client.set_options(None, Some(3 * MIB as u64)).expect("options");
    let status = cluster.status(0);
    let modest = status.connections.iter().find(|one| one.name == "still modest").expect("it is there");
    assert_eq!(modest.quota, 3 * MIB as u64);
    assert_eq!(kind(client.set_options(Some(""), None)), ErrorKind::Invalid);
    client.set_options(None, Some(0)).expect("options");
    put(&client, Pattern(2), 4 * MIB);
    put(&client, Pattern(1), 2 * MIB);
}

#[test]
fn a_user_has_no_more_clients_than_it_may() {
    let cluster = Cluster::builder().args(&["--max-clients", "8"]).start();
    // The test harness keeps none of its own.
    let clients: Vec<_> = (0..8).map(|_| cluster.client(0)).collect();
    let refused = plasmon::Client::connect(cluster.socket(0)).expect_err("it is one too many");
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    drop(clients);
    eventually("there is a place again", || plasmon::Client::connect(cluster.socket(0)).is_ok());
}
