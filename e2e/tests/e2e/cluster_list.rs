//! Tests of lists of the whole cluster, and of deletions by pattern.

use std::collections::{HashMap, HashSet};
use std::thread;

use plasmon::{Client, CreateOptions, ErrorKind, Filter, ObjectId, ObjectState, Rights};
use plasmon_e2e::{Cluster, Pattern, eventually};
use rustix::process::geteuid;
use serde_json::Value;

use crate::commands::{failure, json};
use crate::support::{LONG_LEASE, MIB, NOBODY, client_of, get, put};

/// Puts a small object of this name.
fn put_named(client: &Client, name: &str, metadata: &[u8]) -> ObjectId {
    let options = CreateOptions { name: Some(name.into()), ..CreateOptions::default() };
    let id = ObjectId::from_name(name);
    client.put(id, name.as_bytes(), metadata, &options).expect("put");
    id
}

#[test]
fn an_object_is_listed_once_with_all_its_nodes() {
    const MANY: usize = 3000;
    let cluster = Cluster::builder().nodes(3).start();
    let clients: Vec<_> = (0..3).map(|node| cluster.client(node)).collect();
    let mut homes = HashMap::new();
    for (node, client) in clients.iter().enumerate() {
        let ids: Vec<_> = (0..MANY).map(|_| ObjectId::random()).collect();
        for some in ids.chunks(1000) {
            let puts: Vec<_> = some.iter().map(|id| (*id, &b"x"[..], &b""[..])).collect();
            for result in client.put_many(&puts, &CreateOptions::default()).expect("the daemon lives") {
                result.expect("it fits");
            }
        }
        homes.extend(ids.into_iter().map(|id| (id, node)));
    }
    // A name travels with a replica.
    let named = put_named(&clients[1], "tmp/one", br#"PLPY"#);
    drop(get(&clients[2], named));
    drop(get(&clients[0], named));
    let nodes: Vec<_> = clients.iter().map(Client::node).collect();
    let list = clients[0].list_cluster(&Filter::default()).expect("list");
    assert_eq!(list.missing, []);
    assert_eq!(list.objects.len(), 3 * MANY + 1);
    let listed: HashMap<_, _> =
        list.objects.iter().zip(&list.holders).map(|(row, at)| (row.id, at)).collect();
    assert!(homes.iter().all(|(id, home)| *listed[id] == [nodes[*home]]));
    assert_eq!(listed[&named][0], nodes[1]);
    assert_eq!(listed[&named].iter().copied().collect::<HashSet<_>>(), nodes.iter().copied().collect());
    for (pattern, count) in [("tmp/*", 1), ("tmp/one", 1), ("tmp/?", 0), (&*named.to_string(), 1), ("x*", 0)]
    {
        let list = clients[0].list_cluster(&Filter::of(pattern)).expect("list");
        assert_eq!(list.objects.len(), count, "{pattern}");
        assert!(list.objects.iter().all(|row| row.state == ObjectState::Primary));
        // The node that only fetched the object knows its name.
        assert_eq!(clients[2].list_wanted(&Filter::of(pattern)).expect("list").len(), count, "{pattern}");
    }
    let unnamed = Filter { unnamed: true, ..Filter::default() };
    assert_eq!(clients[0].list_cluster(&unnamed).expect("list").objects.len(), 3 * MANY);
}

#[test]
fn rows_of_any_length_come_in_frames_that_fit() {
    const MANY: usize = 300;
    let cluster = Cluster::builder().nodes(2).start();
    let far = cluster.client(1);
    let metadata = [1; 1000];
    let names: HashSet<_> = (0..MANY).map(|at| format!("{at:04}{}", "ß".repeat(120))).collect();
    for name in &names {
        put_named(&far, name, &metadata);
    }
    let list = cluster.client(0).list_cluster(&Filter::of("*")).expect("list");
    let listed: HashSet<_> = list.objects.iter().filter_map(|row| row.name.clone()).collect();
    assert_eq!((listed, list.missing), (names, vec![]));
    assert!(list.objects.iter().all(|row| row.beginning == metadata[..256]));
}

#[test]
fn what_others_keep_for_themselves_is_not_listed() {
    if !geteuid().is_root() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).args(&["--socket-mode", "0666"]).start();
    let options = CreateOptions { rights: Rights::Private, ..CreateOptions::default() };
    cluster.client(1).put(ObjectId::random(), b"secret", b"", &options).expect("put");
    let all = Filter::default();
    assert_eq!(cluster.client(0).list_cluster(&all).expect("list").objects.len(), 1);
    assert_eq!(client_of(NOBODY, &cluster, 0).list_cluster(&all).expect("list").objects, []);
}

#[test]
fn a_node_that_does_not_answer_is_named() {
    let cluster = Cluster::builder().nodes(2).args(&LONG_LEASE).start();
    let (near, far) = (cluster.client(0), cluster.client(1));
    put_named(&near, "tmp/near", b"");
    put_named(&far, "tmp/far", b"");
    let silent = far.node();
    cluster.pause(1);
    // Both lists begin before the node that hangs has left the view.
    let (list, (code, message)) = thread::scope(|scope| {
        let told = scope.spawn(|| failure(&cluster, 0, &["ls", "--cluster"]));
        let list = near.list_cluster(&Filter::of("tmp/*")).expect("list");
        (list, told.join().expect("the command fails as it should"))
    });
    assert_eq!(list.objects.iter().filter_map(|row| row.name.as_deref()).collect::<Vec<_>>(), ["tmp/near"]);
    assert_eq!(list.missing.len(), 1);
    assert_eq!(list.missing[0].0, silent);
    assert!(matches!(list.missing[0].1.kind(), ErrorKind::TimedOut | ErrorKind::Disconnected));
    assert!(code == 4 && message.contains(&silent.to_string()), "{code}: {message}");
    cluster.resume(1);
    eventually("it answers again", || {
        near.list_cluster(&Filter::of("tmp/*")).expect("list").objects.len() == 2
    });
}

#[test]
fn the_command_deletes_what_a_pattern_stands_for() {
    let cluster = Cluster::builder().nodes(2).start();
    let (near, far) = (cluster.client(0), cluster.client(1));
    for (number, client) in [&near, &far].into_iter().enumerate() {
        put_named(client, &format!("tmp/{number}"), b"");
        put_named(client, &format!("keep/{number}"), b"");
        put(client, Pattern(1), MIB);
    }
    let names = |words: &[&str]| -> HashSet<String> {
        let rows = json(&cluster, 0, words);
        let name = |row: &Value| row["name"].as_str().or(row["object"].as_str()).unwrap_or("").to_owned();
        rows.as_array().expect("a list").iter().map(name).collect()
    };
    let tmp = HashSet::from(["tmp/0".to_owned(), "tmp/1".to_owned()]);
    assert_eq!(names(&["ls", "tmp/*", "--cluster"]), tmp);
    assert_eq!(names(&["rm", "tmp/*", "--dry-run"]), tmp);
    assert_eq!(names(&["rm", "tmp/*", "--older", "1h"]), HashSet::new());
    assert_eq!(names(&["rm", "tmp/*"]), tmp);
    assert_eq!(names(&["rm", "tmp/*"]), HashSet::new());
    assert_eq!(names(&["rm", "tmp/*", "--private"]), HashSet::new());
    assert_eq!(json(&cluster, 1, &["rm", "--unnamed", "--older", "0s"]).as_array().map(Vec::len), Some(2));
    assert_eq!(names(&["ls", "--cluster"]), HashSet::from(["keep/0".to_owned(), "keep/1".to_owned()]));
    assert_eq!(failure(&cluster, 0, &["rm", "tmp/0"]).0, 3);
    assert_eq!(failure(&cluster, 0, &["rm"]).0, 2);
}
