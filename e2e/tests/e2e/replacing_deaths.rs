//! Tests of nodes that die or hang while objects are replaced: the others agree on one object, and on none
//! that is older than the last of which somebody was told.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use plasmon::{Client, CreateOptions, ErrorKind, ObjectId};
use plasmon_e2e::{Cluster, PATIENCE, eventually, until};

use crate::replacing::{Watched, clients, number, write, write_with};
use crate::support::{LONG_LEASE, MIB, get};

/// Number of ids: enough that every node is the first keeper of some, and the second of others.
pub(crate) const IDS: usize = 18;
/// Number of replacements before a node dies, and after it.
pub(crate) const TURNS: u64 = 60;

fn put_all(client: &Client, replicas: u16) -> Vec<Watched> {
    let options = CreateOptions { replicas, ..CreateOptions::default() };
    let put = |_| {
        let id = ObjectId::random();
        write_with(client, id, 0, 100, &options, None).expect("it is a put");
        Watched::new(id, 0)
    };
    (0..IDS).map(put).collect()
}

/// Replaces objects in turn until `over`. Counts what ended well.
pub(crate) fn replace_on(client: &Client, all: &[Watched], done: &AtomicU64, over: &AtomicBool) {
    for turn in (all.len() as u64..).take_while(|_| !over.load(Ordering::SeqCst)) {
        let (watched, number) = (&all[turn as usize % all.len()], turn / all.len() as u64);
        let (least, len) = (watched.told(), [0, 100, 70_000][number as usize % 3]);
        match write(client, watched.id, number, len, None) {
            Ok(_) => watched.tell(least, number, "replace"),
            Err(error) if error.kind() == ErrorKind::Disconnected => return,
            // A keeper died before it answered, or did not come to the switch in time. The next one has a
            // larger number.
            Err(error) => {
                let is_known = matches!(error.kind(), ErrorKind::OutcomeUnknown | ErrorKind::TimedOut);
                assert!(is_known, "{:?}: {error}", error.kind());
            }
        }
        done.fetch_add(1, Ordering::SeqCst);
    }
}

/// Reads objects in turn until `over`. If `may_be_lost`, their only holder may have died.
pub(crate) fn read_on(client: &Client, all: &[Watched], may_be_lost: bool, over: &AtomicBool) {
    for watched in all.iter().cycle().take_while(|_| !over.load(Ordering::SeqCst)) {
        let least = watched.told();
        match client.get(&[watched.id], Some(PATIENCE)).map(|mut all| all.remove(0)) {
            Ok(Ok(object)) => watched.tell(least, number(&object), "get"),
            Ok(Err(error)) if may_be_lost && error.kind() == ErrorKind::Lost => {}
            Ok(Err(error)) | Err(error) if error.kind() == ErrorKind::Disconnected => return drop(error),
            Ok(Err(error)) | Err(error) => panic!("{:?}: {error}", error.kind()),
        }
    }
}

/// Ends the work of threads when it is dropped, also by a panic.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Kills a node while a client of each node replaces objects of its own, which clients of all nodes read. As
/// many nodes as `replicas` says keep each object: with two, none may be lost.
fn a_node_dies(victim: usize, replicas: u16) {
    let mut cluster = Cluster::builder().nodes(3).args(&["--lease", "1"]).start();
    let at = clients(&cluster);
    let all: Vec<_> = at.iter().map(|client| put_all(client, replicas)).collect();
    let (done, over) = ([0; 3].map(AtomicU64::new), AtomicBool::new(false));
    thread::scope(|scope| {
        let _ends = Ends(&over);
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let (at, all, done, over) = (&at, &all, &done, &over);
                for other in (0..3).filter(|other| *other != writer) {
                    let may_be_lost = other == victim && replicas == 1;
                    scope.spawn(move || read_on(&at[writer], &all[other], may_be_lost, over));
                }
                scope.spawn(move || replace_on(&at[writer], &all[writer], &done[writer], over))
            })
            .collect();
        let count = |node: usize| done[node].load(Ordering::SeqCst);
        let go_on = |nodes: &[usize], before: &[u64]| {
            eventually("all replace", || {
                nodes.iter().all(|node| count(*node) > before[*node] + TURNS || writers[*node].is_finished())
            });
        };
        go_on(&[0, 1, 2], &[0; 3]);
        cluster.kill(victim);
        let before: Vec<_> = (0..3).map(count).collect();
        let alive: Vec<_> = (0..3).filter(|node| *node != victim).collect();
        go_on(&alive, &before);
    });
    let alive: Vec<_> = (0..3).filter(|node| *node != victim).map(|node| &at[node]).collect();
    let all = all.iter().enumerate().flat_map(|(writer, all)| all.iter().map(move |one| (writer, one)));
    for (writer, watched) in all {
        let least = watched.told();
        let look = |client: &Client| {
            let got = client.get(&[watched.id], Some(PATIENCE)).expect("the daemon lives").remove(0);
            match got {
                Ok(object) => Some(number(&object)),
                Err(error) => {
                    let it = (writer, replicas, error.kind());
                    assert_eq!(it, (victim, 1, ErrorKind::Lost), "{error}");
                    None
                }
            }
        };
        let (there, other) = (look(alive[0]), look(alive[1]));
        assert_eq!(there, other, "both say the same");
        assert!(there.is_none_or(|there| there >= least), "{there:?} after {least}");
        write(alive[0], watched.id, 1_000_000, 100, None).expect("replace");
        alive.iter().for_each(|client| assert_eq!(number(&get(client, watched.id)), 1_000_000));
    }
}

#[test]
fn objects_are_replaced_while_a_node_dies() {
    a_node_dies(2, 1);
}

#[test]
fn objects_are_replaced_while_the_coordinator_dies() {
    a_node_dies(0, 1);
}

#[test]
fn what_two_nodes_keep_is_never_lost_when_one_dies_while_it_is_replaced() {
    a_node_dies(1, 2);
}

#[test]
fn what_too_few_nodes_can_keep_is_not_replaced() {
    for nodes in [1, 2] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let (at, id) = (clients(&cluster), ObjectId::random());
        write(&at[0], id, 1, 100, None).expect("it is a put");
        let options = CreateOptions { replicas: nodes as u16 + 1, ..CreateOptions::default() };
        for len in [100, 3 * MIB] {
            let refused = write_with(&at[0], id, 2, len, &options, None).expect_err("too few nodes");
            assert_eq!(refused.kind(), ErrorKind::TooFew, "{refused}");
            at.iter().for_each(|client| assert_eq!(number(&get(client, id)), 1));
        }
        write(&at[0], id, 3, 100, None).expect("replace");
        at.iter().for_each(|client| assert_eq!(number(&get(client, id)), 3));
    }
}

#[test]
fn an_object_that_others_keep_too_is_replaced_while_their_node_dies() {
    let mut cluster = Cluster::builder().nodes(4).args(&["--lease", "1"]).start();
    let at = clients(&cluster);
    let all = put_all(&at[0], 1);
    for (turn, watched) in all.iter().enumerate() {
        at[0].replicate(watched.id, 2 + turn as u16 % 3, Some(PATIENCE)).expect("replicate");
        at.iter().for_each(|client| assert_eq!(number(&get(client, watched.id)), 0));
    }
    // The first number is written at node 1, the next at node 2: both have no replica of their own to lose.
    thread::scope(|scope| {
        let replacing: Vec<_> = [1, 2]
            .map(|writer: u64| {
                let (client, all) = (&at[writer as usize], &all);
                scope.spawn(move || {
                    all.iter().map(|one| write(client, one.id, writer, 70_000, None)).collect::<Vec<_>>()
                })
            })
            .into();
        cluster.kill(3);
        for results in replacing.into_iter().map(|one| one.join().expect("nothing is wrong")) {
            for result in results {
                let known = result.map_or_else(|error| error.kind() == ErrorKind::OutcomeUnknown, |_| true);
                assert!(known, "nobody that is needed has died");
            }
        }
    });
    for watched in &all {
        let there: Vec<_> = at[..3].iter().map(|client| number(&get(client, watched.id))).collect();
        assert!(there.iter().all(|one| *one == there[0]), "all say the same: {there:?}");
    }
}

#[test]
fn a_holder_that_hangs_holds_up_the_writer_and_nobody_else() {
    let cluster = Cluster::builder().nodes(3).args(&LONG_LEASE).start();
    let at = clients(&cluster);
    let all = put_all(&at[0], 1);
    all.iter().for_each(|one| at.iter().for_each(|client| assert_eq!(number(&get(client, one.id)), 0)));
    cluster.pause(2);
    thread::scope(|scope| {
        let writers: Vec<_> = all
            .iter()
            .map(|one| {
                let client = cluster.client(1);
                scope.spawn(move || write(&client, one.id, 1, 100, None))
            })
            .collect();
        // Whoever asks a keeper that hangs waits for it. It is the first keeper of about every third object.
        let (mut read, ids) = (0, all.iter().map(|one| one.id).collect::<Vec<_>>());
        for got in at[..2].iter().flat_map(|one| one.get(&ids, Some(Duration::from_secs(1))).expect("get")) {
            match got {
                Ok(object) => {
                    assert_eq!(number(&object), 0, "a node that may still give it has not confirmed");
                    read += 1;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"),
            }
        }
        assert!(read >= IDS / 2, "only {read} of {} reads did not wait", 2 * IDS);
        assert!(
            writers.iter().all(|writer| !writer.is_finished()),
            "a node that may give the old one is waited for"
        );
        cluster.resume(2);
        writers.into_iter().for_each(|one| _ = one.join().expect("no panic").expect("all have confirmed"));
    });
    all.iter().for_each(|one| at.iter().for_each(|client| assert_eq!(number(&get(client, one.id)), 1)));
}

#[test]
fn a_replacement_goes_on_when_a_holder_that_hangs_has_left() {
    let cluster = Cluster::builder().nodes(3).args(&["--lease", "1"]).start();
    let at = clients(&cluster);
    let all = put_all(&at[0], 1);
    all.iter().for_each(|one| at.iter().for_each(|client| assert_eq!(number(&get(client, one.id)), 0)));
    cluster.pause(2);
    for one in &all {
        match write(&at[1], one.id, 1, 100, None) {
            Ok(_) => at[..2].iter().for_each(|client| assert_eq!(number(&get(client, one.id)), 1)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}"),
        }
    }
    assert_eq!(cluster.status(0).cluster.members.len(), 2);
    let there: Vec<_> = all.iter().map(|one| number(&get(&at[0], one.id))).collect();
    cluster.resume(2);
    for (one, there) in all.iter().zip(there) {
        until("the node that hung gives what the others give", || {
            let got = at[2].get(&[one.id], Some(PATIENCE)).expect("the daemon lives").remove(0);
            got.ok().filter(|object| number(object) == there)
        });
        assert_eq!(number(&get(&at[1], one.id)), there);
    }
}
