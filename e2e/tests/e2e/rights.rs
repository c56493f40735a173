//! Tests of rights: users may read each other's objects, and not decide about them.

use std::time::Duration;

use plasmon::drain::DrainStep;
use plasmon::{Client, CreateOptions, DeleteOutcome, Error, ErrorKind, ObjectId, Presence, Rights};
use plasmon_e2e::{Cluster, Pattern, binary, eventually};
use rustix::process::geteuid;

use crate::support::{MIB, NOBODY, as_user, client_of, get, kind};

/// User id of the owner of the objects.
const OWNER: u32 = NOBODY;
/// User id of another user.
const OTHER: u32 = NOBODY - 1;
/// Sizes in bytes of an object in a message, of one that is read, and of one that its creator writes.
const LENGTHS: [usize; 3] = [100, 20_000, 3 * MIB];
const SOON: Option<Duration> = Some(Duration::from_secs(30));

fn is_root() -> bool {
    let root = geteuid().is_root();
    if !root {
        eprintln!("Only root can be another user: not tested.");
    }
    root
}

fn cluster(nodes: usize, more: &[&str]) -> Cluster {
    Cluster::builder().nodes(nodes).args(&[&["--socket-mode", "0666"], more].concat()).start()
}

fn clients(user: u32, cluster: &Cluster) -> Vec<Client> {
    (0..cluster.nodes()).map(|node| client_of(user, cluster, node)).collect()
}

fn put(client: &Client, len: usize, rights: Rights) -> ObjectId {
    let (id, options) = (ObjectId::random(), CreateOptions { rights, ..CreateOptions::default() });
    client.put(id, &Pattern(len as u64).bytes(len), b"", &options).expect("put");
    id
}

/// Deletes an object. A lease that has not ended yet makes no difference.
fn delete(client: &Client, id: ObjectId) -> DeleteOutcome {
    match client.delete(&[id]).expect("delete")[0] {
        DeleteOutcome::Deferred => DeleteOutcome::Deleted,
        outcome => outcome,
    }
}

/// Results of all calls that a user may not make on another's object.
fn orders(client: &Client, id: ObjectId) -> [Result<plasmon::Spread, Error>; 3] {
    let node = client.node();
    [client.replicate(id, 1, SOON), client.migrate(id, node, SOON), client.broadcast(id, &[node], SOON)]
}

/// Checks that an object can be read on a node and that nothing else is allowed.
fn is_read_only(client: &Client, id: ObjectId) {
    drop(get(client, id));
    client.pin(id, SOON).expect("a pin is for the node that one is at");
    client.unpin(id).expect("unpin");
    client.refresh(&[id]).expect("refresh");
    client.prefetch(&[id], Duration::from_secs(1)).expect("prefetch");
    assert_eq!(delete(client, id), DeleteOutcome::NotAllowed { creator: Some(OWNER) });
    for refused in orders(client, id) {
        let refused = refused.expect_err("it is another's");
        assert_eq!(refused.kind(), ErrorKind::NotAllowed, "{refused}");
        let needed = [id.to_string(), OWNER.to_string(), OTHER.to_string(), "rw".to_owned()];
        assert!(needed.iter().all(|needed| refused.message().contains(needed)), "{refused}");
    }
}

#[test]
fn others_read_an_object_and_do_not_decide_about_it() {
    if !is_root() {
        return;
    }
    for nodes in [1, 2] {
        let cluster = cluster(nodes, &[]);
        let [owners, others, roots] = [OWNER, OTHER, 0].map(|user| clients(user, &cluster));
        for len in LENGTHS {
            for (home, deleting) in (0..nodes).flat_map(|home| [(home, &owners), (home, &roots)]) {
                let id = put(&owners[home], len, Rights::Read);
                // First where it is, then where no replica is.
                for away in 0..nodes {
                    is_read_only(&others[(home + away) % nodes], id);
                }
                assert!(orders(&deleting[nodes - 1 - home], id).iter().all(Result::is_ok));
                assert_eq!(delete(&deleting[nodes - 1 - home], id), DeleteOutcome::Deleted);
                assert_eq!(delete(&deleting[home], id), DeleteOutcome::Absent);
            }
        }
    }
}

#[test]
fn what_was_not_told_to_its_keeper_yet_is_its_creators_as_well() {
    if !is_root() {
        return;
    }
    let cluster = cluster(2, &[]);
    let [owners, others] = [OWNER, OTHER].map(|user| clients(user, &cluster));
    for _ in 0..50 {
        // Each of two keepers decides about some of the objects.
        let id = put(&owners[0], 100, Rights::Read);
        assert_eq!(delete(&others[1], id), DeleteOutcome::NotAllowed { creator: Some(OWNER) });
    }
}

#[test]
fn everybody_decides_about_what_was_put_for_everybody() {
    if !is_root() {
        return;
    }
    for (more, rights) in [(&[][..], Rights::ReadWrite), (&["--public", "rw"], Rights::Read)] {
        for nodes in [1, 2] {
            let cluster = cluster(nodes, more);
            let [owners, others] = [OWNER, OTHER].map(|user| clients(user, &cluster));
            for len in LENGTHS {
                for home in 0..nodes {
                    let id = put(&owners[home], len, rights);
                    let row = owners[home].list().expect("list").into_iter().find(|row| row.id == id);
                    assert_eq!(row.expect("it is there").rights, Rights::ReadWrite);
                    assert!(orders(&others[nodes - 1 - home], id).iter().all(Result::is_ok));
                    assert_eq!(delete(&others[nodes - 1 - home], id), DeleteOutcome::Deleted);
                }
            }
            // A private object stays private.
            let id = put(&owners[0], 100, Rights::Private);
            assert_eq!(delete(&others[0], id), DeleteOutcome::NotAllowed { creator: None });
        }
    }
}

#[test]
fn a_small_object_of_a_ring_and_one_of_memory_that_was_lent_are_their_creators() {
    if !is_root() {
        return;
    }
    let cluster = cluster(1, &[]);
    let [owner, other] = [OWNER, OTHER].map(|user| client_of(user, &cluster, 0));
    for (rights, outcome) in [
        (Rights::Read, DeleteOutcome::NotAllowed { creator: Some(OWNER) }),
        (Rights::ReadWrite, DeleteOutcome::Deleted),
    ] {
        let options = CreateOptions { rights, fresh: true, ..CreateOptions::default() };
        let ids = [(); 3].map(|()| ObjectId::random());
        let small: Vec<_> = ids[..2].iter().map(|id| (*id, &b"data"[..], &b""[..])).collect();
        owner.put_many(&small, &options).expect("put").into_iter().for_each(|put| put.expect("put"));
        let mut scratch = owner.buffer(MIB, false, None).expect("buffer");
        assert!(owner.put_from(ids[2], &mut scratch, MIB, b"", &options).expect("put"), "nothing is copied");
        assert_eq!(other.delete(&ids).expect("delete"), [outcome; 3]);
    }
}

#[test]
fn an_object_on_disk_is_its_creators_also_after_a_restart() {
    if !is_root() {
        return;
    }
    let mut cluster = cluster(1, &["--spill-dir", "spill"]);
    let ids = [Rights::Read, Rights::Private, Rights::ReadWrite].map(|rights| {
        let owner = client_of(OWNER, &cluster, 0);
        put(&owner, 2 * MIB, rights)
    });
    for round in 0..2 {
        let [owner, other] = [OWNER, OTHER].map(|user| client_of(user, &cluster, 0));
        // Others need the memory.
        eventually("all are on disk", || {
            put(&owner, 20 * MIB, Rights::Read);
            let states = owner.list().expect("list").into_iter().filter(|row| ids.contains(&row.id));
            states.filter(|row| row.state == plasmon::ObjectState::Spilled).count() == ids.len()
        });
        let told = |creator| DeleteOutcome::NotAllowed { creator };
        assert_eq!(other.delete(&ids[..2]).expect("delete"), [told(Some(OWNER)), told(None)], "{round}");
        if round == 0 {
            drop((owner, other));
            cluster.kill(0);
            cluster.restart();
        } else {
            assert_eq!(delete(&other, ids[2]), DeleteOutcome::Deleted);
            assert_eq!(owner.delete(&ids[..2]).expect("delete"), [DeleteOutcome::Deleted; 2]);
        }
    }
}

#[test]
fn what_the_cluster_does_by_itself_it_does_to_everybodys_objects() {
    if !is_root() {
        return;
    }
    let mut cluster = cluster(3, &[]);
    let [owners, others] = [OWNER, OTHER].map(|user| clients(user, &cluster));
    for rights in [Rights::Read, Rights::Private] {
        let ttl = Some(Duration::from_millis(1));
        let id = ObjectId::random();
        let options = CreateOptions { rights, ttl, ..CreateOptions::default() };
        owners[0].put(id, b"data", b"", &options).expect("put");
        eventually("its time is over", || owners[1].contains(&[id]).expect("contains") == [Presence::Absent]);
    }
    let options = CreateOptions { replicas: 2, ..CreateOptions::default() };
    let [drained, kept] = [2, 1].map(|node| {
        let id = ObjectId::random();
        owners[node].put(id, &Pattern(1).bytes(MIB), b"", &options).expect("put");
        id
    });
    cluster.client(0).drain(owners[2].node(), DrainStep::Begin).expect("drain");
    cluster.wait(2);
    let keep = |node: &Client, id| {
        let there = node.locations(id).expect("locations");
        there.iter().filter(|one| one.role != "cached").count()
    };
    for id in [drained, kept] {
        eventually("two nodes keep it again", || keep(&owners[0], id) == 2);
        for node in [0, 1] {
            is_read_only(&others[node], id);
        }
        assert_eq!(delete(&owners[0], id), DeleteOutcome::Deleted);
        assert_eq!(
            kind(owners[1].get(&[id], Some(Duration::ZERO)).expect("get").remove(0)),
            ErrorKind::NotFound
        );
    }
}

/// Runs a command of a user against a node. Returns its output and its exit code.
fn plasmon_of(user: u32, cluster: &Cluster, node: usize, words: &[&str]) -> (String, Option<i32>) {
    let mut command = as_user(cluster, user, &[&binary()]);
    let output =
        command.args(words).arg("--socket").arg(cluster.socket(node)).output().expect("plasmon runs");
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&said).trim().to_owned(), output.status.code())
}

#[test]
fn a_private_name_is_each_users_own_and_everybodys_another() {
    if !is_root() {
        return;
    }
    const NAME: &str = "model";
    for nodes in [1, 2] {
        let cluster = cluster(nodes, &[]);
        let all: Vec<_> = [OWNER, OTHER, 0].iter().map(|user| (*user, clients(*user, &cluster))).collect();
        // Private objects of two users with one name do not disturb each other, in any order, and neither
        // user learns of the other's.
        for first in 0..all.len() {
            let mut ids = vec![ObjectId::from_name(NAME)];
            let public = CreateOptions { name: Some(NAME.to_owned()), ..CreateOptions::default() };
            all[first].1[0].put(ids[0], b"public", b"", &public).expect("put");
            for turn in 0..all.len() {
                let (user, clients) = &all[(first + turn) % all.len()];
                assert_eq!(clients[0].user(), *user);
                let (id, own) = (ObjectId::from_private_name(NAME, *user), user.to_string());
                let private = CreateOptions { rights: Rights::Private, ..public.clone() };
                clients[nodes - 1].put(id, own.as_bytes(), b"", &private).expect("put");
                for client in clients {
                    assert_eq!(get(client, id).data(), own.as_bytes());
                    assert_eq!(get(client, ids[0]).data(), b"public");
                }
                ids.push(id);
            }
            for (user, clients) in &all {
                let own = ObjectId::from_private_name(NAME, *user);
                let named = |row: &plasmon::ObjectInfo| row.id == own || row.id == ids[0];
                assert!(clients.iter().all(|client| client.list().expect("list").iter().all(named)));
                assert_eq!(delete(&clients[0], own), DeleteOutcome::Deleted);
            }
            assert_eq!(delete(&all[first].1[0], ids[0]), DeleteOutcome::Deleted);
        }
    }
}

#[test]
fn commands_find_a_private_object_by_its_name() {
    if !is_root() {
        return;
    }
    let cluster = cluster(2, &[]);
    let file = cluster.folder().join("data");
    for user in [OWNER, OTHER] {
        std::fs::write(&file, user.to_string()).expect("the folder is ours");
        let file = file.to_str().expect("it is text");
        let (said, code) = plasmon_of(user, &cluster, 0, &["put", file, "--name", "mine", "--private"]);
        assert_eq!((said, code), (ObjectId::from_private_name("mine", user).to_string(), Some(0)));
    }
    for user in [OWNER, OTHER] {
        for (node, command) in
            [(0, "get"), (1, "get"), (1, "wait"), (1, "hash"), (1, "explain"), (0, "locations")]
        {
            let (said, code) = plasmon_of(user, &cluster, node, &[command, "mine", "--private"]);
            assert_eq!(code, Some(0), "{command}: {said}");
            assert!(command != "get" || said == user.to_string(), "{said}");
        }
        assert_eq!(plasmon_of(user, &cluster, 0, &["get", "mine", "--timeout", "0"]).1, Some(3));
        assert_eq!(plasmon_of(user, &cluster, 1, &["replicate", "mine", "2", "--private"]).1, Some(0));
        assert_eq!(plasmon_of(user, &cluster, 1, &["rm", "mine"]).1, Some(3));
        assert_eq!(plasmon_of(user, &cluster, 1, &["rm", "mine", "--private"]).1, Some(0));
    }
    // Objects that others may delete, and objects that they may not.
    for (word, code) in [("rw", 0), ("r", 1)] {
        let file = file.to_str().expect("it is text");
        assert_eq!(
            plasmon_of(OWNER, &cluster, 0, &["put", file, "--name", word, "--public", word]).1,
            Some(0)
        );
        let (listed, _) = plasmon_of(OTHER, &cluster, 0, &["ls"]);
        assert_eq!(listed.contains(", rw"), word == "rw", "{listed}");
        let (said, status) = plasmon_of(OTHER, &cluster, 1, &["rm", word]);
        assert_eq!(status, Some(code), "{said}");
        assert!(code == 0 || said.contains(&format!("user {OWNER}'s")), "{said}");
    }
}
