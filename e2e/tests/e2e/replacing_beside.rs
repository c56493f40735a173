//! Tests of objects that are replaced beside everything else that is done to them, by many writers at once,
//! in versions that are not there, and in sizes at which something changes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use plasmon::drain::DrainStep;
use plasmon::{Client, CreateOptions, Error, ErrorKind, ObjectId, Version};
use plasmon_e2e::wait::let_pass;
use plasmon_e2e::{Chance, Cluster, PATIENCE, Pattern, eventually};

use crate::replacing::{Watched, clients, number, write, write_with};
use crate::replacing_deaths::{Ends, read_on};
use crate::support::{MIB, get, kind};

/// Reads an object at every node while `work` is done: it is always there, and never an older one.
fn with_readers<T>(at: &[Client], watched: &Watched, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = Ends(&over);
        let (over, one) = (&over, std::slice::from_ref(watched));
        at.iter().for_each(|client| _ = scope.spawn(move || read_on(client, one, false, over)));
        work()
    })
}

/// Replaces an object by objects of these numbers, in turn at the nodes.
fn replace_by(at: &[Client], watched: &Watched, numbers: std::ops::Range<u64>, len: usize) {
    for next in numbers {
        let least = watched.told();
        let options = CreateOptions { replicas: [0, 0, 1, 2][next as usize % 4], ..CreateOptions::default() };
        let writer = &at[next as usize % at.len()];
        write_with(writer, watched.id, next, len, &options, None).expect("replace");
        watched.tell(least, next, "replace");
    }
}

/// Does one of the things that bring an object elsewhere, or keep it here.
fn disturb(client: &Client, id: ObjectId, to: &Client, chance: &mut Chance) {
    let patience = Some(PATIENCE);
    let done: Result<(), Error> = match chance.below(6) {
        0 => client.migrate(id, to.node(), patience).map(drop),
        1 => client.broadcast(id, &[], patience).map(drop),
        2 => client.replicate(id, 1 + chance.below(3) as u16, patience).map(drop),
        3 => client.pin(id, patience).and_then(|()| client.unpin(id)),
        4 => client.evict(u64::MAX).map(drop),
        _ => client.prefetch(&[id], PATIENCE).map(drop),
    };
    // An object that is replaced meanwhile is not moved, and two moves of one object are refused.
    if let Err(error) = done {
        let kinds = [ErrorKind::Busy, ErrorKind::TooFew, ErrorKind::NotFound];
        assert!(kinds.contains(&error.kind()), "{:?}: {error}", error.kind());
    }
}

#[test]
fn an_object_is_replaced_while_it_is_moved_spread_pinned_and_spilled() {
    const TIMES: u64 = 80;
    let cluster = Cluster::builder().nodes(4).args(&["--spill-dir", "spill"]).start();
    let at = clients(&cluster);
    for len in [100, MIB] {
        let (watched, over) = (Watched::new(ObjectId::random(), 0), AtomicBool::new(false));
        write(&at[3], watched.id, 0, len, None).expect("it is a put");
        with_readers(&at, &watched, || {
            thread::scope(|scope| {
                let _ends = Ends(&over);
                for (seed, client) in (0..).zip(&at) {
                    let (over, at, id) = (&over, &at, watched.id);
                    scope.spawn(move || {
                        let mut chance = Chance::of_seed(seed);
                        while !over.load(Ordering::SeqCst) {
                            let to = chance.below(4);
                            disturb(client, id, &at[to], &mut chance);
                        }
                    });
                }
                replace_by(&at, &watched, 1..TIMES, len);
            });
        });
        at.iter().for_each(|client| assert_eq!(number(&get(client, watched.id)), TIMES - 1));
        at[0].delete(&[watched.id]).expect("delete");
    }
    for node in 0..4 {
        let left = || (cluster.status(node).memory.used, cluster.status(node).spill.objects);
        eventually("nothing is left", || left() == (0, 0));
    }
}

#[test]
fn a_move_ends_when_its_object_is_replaced() {
    let cluster = Cluster::builder().nodes(3).start();
    let (at, mut chance) = (clients(&cluster), Chance::of_seed(1));
    let mut ended = 0;
    for turn in 0..300 {
        let id = ObjectId::random();
        write(&at[turn % 3], id, 0, 100, None).expect("it is a put");
        let moved = thread::scope(|scope| {
            let moving = scope.spawn(|| at[2].migrate(id, at[(turn + 1) % 3].node(), Some(PATIENCE)));
            let_pass(Duration::from_micros(chance.below(3000) as u64), "the move is to be under way");
            write(&at[(turn + 2) % 3], id, 1, 100, None).expect("replace");
            moving.join().expect("no panic")
        });
        if let Err(error) = moved {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            ended += 1;
        }
        assert_eq!(number(&get(&at[0], id)), 1);
    }
    assert!(ended > 0, "no move met a replacement");
}

#[test]
fn an_object_is_replaced_while_its_node_is_drained() {
    let mut cluster = Cluster::builder().nodes(4).start();
    let at = clients(&cluster);
    for (drained, len) in [(3, 100), (2, MIB)] {
        let watched = Watched::new(ObjectId::random(), 0);
        write(&at[drained], watched.id, 0, len, None).expect("it is a put");
        let others = &at[..drained];
        with_readers(others, &watched, || {
            replace_by(&at[..=drained], &watched, 1..20, len);
            // Its last writer has the object.
            let mut next = 20;
            write(&at[drained], watched.id, next, len, None).expect("replace");
            at[drained].drain(at[drained].node(), DrainStep::Begin).expect("it can be drained");
            let refused = write(&at[drained], watched.id, 99_999, len, None);
            assert_eq!(kind(refused), ErrorKind::Disconnected, "it takes nothing new");
            while others[0].status().expect("status").cluster.members.len() > drained {
                next += 1;
                replace_by(others, &watched, next..next + 1, len);
            }
        });
        assert!(cluster.wait(drained).success());
        let last = watched.told();
        others.iter().for_each(|client| assert_eq!(number(&get(client, watched.id)), last));
    }
}

#[test]
fn an_expiry_or_the_end_of_an_owner_ends_its_own_object_and_no_other() {
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let (at, span) = (clients(&cluster), Duration::from_millis(40));
        let short = CreateOptions { ttl: Some(span), ..CreateOptions::default() };
        let owned = CreateOptions { owned: true, ..CreateOptions::default() };
        let replaced = thread::scope(|scope| {
            let replacing = (0..24_u32).map(|turn| {
                let (at, short, owned, cluster) = (&at, &short, &owned, &cluster);
                scope.spawn(move || {
                    let [expires, ends] = [(); 2].map(|()| ObjectId::random());
                    let (first, second) = (turn as usize % nodes, turn as usize / 2 % nodes);
                    let owner = cluster.client(first);
                    write_with(&owner, ends, 1, 100, owned, None).expect("it is a put");
                    write_with(&at[first], expires, 1, 100, short, None).expect("it is a put");
                    let_pass(span * (turn % 12) / 8, "it is to be replaced before, while and after it ends");
                    let leaving = thread::spawn(move || drop(owner));
                    write(&at[second], ends, 2, 100, None).expect("replace");
                    write(&at[second], expires, 2, 100, None).expect("replace");
                    leaving.join().expect("no panic");
                    [expires, ends]
                })
            });
            let replacing: Vec<_> = replacing.collect();
            replacing.into_iter().flat_map(|one| one.join().expect("nothing is wrong")).collect::<Vec<_>>()
        });
        let_pass(2 * span, "what would end the new objects has to be over");
        for id in replaced {
            at.iter().for_each(|client| assert_eq!(number(&get(client, id)), 2));
        }
    }
}

/// What a reader has seen one after the other.
fn seen(client: &Client, id: ObjectId, over: &AtomicBool) -> Vec<(u64, Version)> {
    let mut seen: Vec<(u64, Version)> = Vec::new();
    while !over.load(Ordering::SeqCst) {
        let got = client.get_versioned(&[id], Some(PATIENCE)).expect("the daemon lives").remove(0);
        let (object, version) = got.expect("it is there all the time");
        let told = (number(&object), version);
        if seen.last() != Some(&told) {
            assert!(!seen.contains(&told), "{told:?} was there before, and another one since: {seen:?}");
            seen.push(told);
        }
    }
    seen
}

/// Puts an object in the place of another, however many others do at the same time. What was not replaced in
/// time stays as it was.
fn write_at_last(client: &Client, id: ObjectId, number: u64) -> Version {
    loop {
        match write(client, id, number, 10, None) {
            Ok(version) => return version,
            Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"),
        }
    }
}

#[test]
fn fifty_writers_at_once_have_one_order_and_each_version_is_there_once() {
    const WRITERS: u64 = 50;
    const TIMES: u64 = 3;
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let (at, id) = (clients(&cluster), ObjectId::random());
        let first = write(&at[0], id, 0, 100, None).expect("it is a put");
        let (begin, over) = (Barrier::new(WRITERS as usize), AtomicBool::new(false));
        let (versions, orders) = thread::scope(|scope| {
            let ends = Ends(&over);
            let readers: Vec<_> = at.iter().map(|client| scope.spawn(|| seen(client, id, &over))).collect();
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (client, begin) = (cluster.client(writer as usize % nodes), &begin);
                    scope.spawn(move || {
                        begin.wait();
                        let numbers = (0..TIMES).map(|turn| 1 + writer * TIMES + turn);
                        numbers.map(|number| (number, write_at_last(&client, id, number))).collect::<Vec<_>>()
                    })
                })
                .collect();
            let written = writers.into_iter().flat_map(|one| one.join().expect("nothing is wrong"));
            let mut versions: HashMap<u64, Version> = written.collect();
            versions.insert(0, first);
            drop(ends);
            let orders: Vec<_> =
                readers.into_iter().map(|one| one.join().expect("nothing is wrong")).collect();
            (versions, orders)
        });
        let different: BTreeSet<_> = versions.values().map(|version| version.number()).collect();
        assert_eq!(different.len() as u64, WRITERS * TIMES + 1, "each version is there once");
        let (last, version) = at[0]
            .get_versioned(&[id], None)
            .expect("the daemon lives")
            .remove(0)
            .map(|(object, version)| (number(&object), version))
            .expect("it is there");
        assert_eq!(versions[&last], version);
        let told = orders.iter().flatten();
        told.for_each(|(number, version)| assert_eq!(versions[number], *version, "number {number}"));
        for (one, other) in orders.iter().flat_map(|one| orders.iter().map(move |other| (one, other))) {
            let places = one.iter().filter_map(|told| other.iter().position(|also| also == told));
            assert!(places.is_sorted(), "two readers saw different orders: {one:?}, {other:?}");
        }
    }
}

#[test]
fn threads_of_one_client_compare_and_set_what_they_write_in_place() {
    const THREADS: usize = 4;
    const TIMES: u64 = 20;
    for nodes in [1, 2] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let (client, id) = (cluster.client(nodes - 1), ObjectId::random());
        write(&cluster.client(0), id, 0, 100_000, None).expect("it is a put");
        let increment = || loop {
            let got = client.get_versioned(&[id], Some(PATIENCE)).expect("the daemon lives").remove(0);
            let (object, version) = got.expect("it is there all the time");
            match write(&client, id, number(&object) + 1, 100_000, Some(version)) {
                Ok(_) => break,
                // Another thread was first, or is writing one now.
                Err(error) => {
                    let kinds = [ErrorKind::Conflict, ErrorKind::Exists];
                    assert!(kinds.contains(&error.kind()), "{:?}: {error}", error.kind());
                }
            }
        };
        thread::scope(|scope| {
            (0..THREADS).for_each(|_| _ = scope.spawn(|| (0..TIMES).for_each(|_| increment())));
        });
        assert_eq!(number(&get(&client, id)), THREADS as u64 * TIMES);
    }
}

#[test]
fn a_version_that_is_not_there_is_a_conflict_whatever_it_is() {
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let (at, id, other) = (clients(&cluster), ObjectId::random(), ObjectId::random());
        let deleted = write(&at[0], id, 0, 10, None).expect("it is a put");
        at[0].delete(&[id]).expect("delete");
        let mut gone: Vec<_> = (1..25)
            .map(|next| write(&at[next as usize % nodes], id, next, 10, None).expect("replace"))
            .collect();
        let present = gone.pop().expect("there are many");
        let foreign = write(&at[nodes - 1], other, 1, 10, None).expect("it is a put");
        let garbage = [0, 1, u64::MAX, present.number() ^ 1, present.number().swap_bytes()];
        let mut wrong: Vec<_> = garbage.map(Version::from_number).into();
        wrong.extend([deleted, foreign].into_iter().chain(gone));
        for (turn, version) in wrong.into_iter().enumerate() {
            for len in [10, 70_000] {
                let error =
                    write(&at[turn % nodes], id, 99, len, Some(version)).expect_err("it is not there");
                assert_eq!((error.kind(), error.version()), (ErrorKind::Conflict, Some(present)), "{error}");
            }
        }
        at.iter().for_each(|client| assert_eq!(number(&get(client, id)), 24));
        write(&at[0], id, 25, 10, Some(present)).expect("it is there");
        at[0].delete(&[id]).expect("delete");
        for version in [present, foreign, Version::from_number(0)] {
            assert_eq!(kind(write(&at[0], id, 99, 10, Some(version))), ErrorKind::NotFound);
        }
        assert_eq!(number(&get(&at[0], other)), 1);
    }
}

#[test]
fn objects_of_every_size_take_the_place_of_others() {
    const INLINE: usize = 64 << 10;
    for nodes in [1, 2] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let (at, id) = (clients(&cluster), ObjectId::random());
        // The metadata has eight bytes, and lies behind the data.
        let sizes = [0, 1, 4095, INLINE - 9, INLINE - 8, INLINE - 7, INLINE - 1, INLINE, INLINE + 1, 9 * MIB];
        let all = sizes.iter().flat_map(|before| sizes.iter().map(move |after| (*before, *after)));
        for (turn, (before, after)) in (0..).zip(all) {
            let writer = &at[turn as usize % nodes];
            write(writer, id, 2 * turn, before, None).expect("replace");
            let replaces = CreateOptions { replace: true, ..CreateOptions::default() };
            let next = 2 * turn + 1;
            let mut creation =
                writer.create(id, after as u64, &next.to_le_bytes(), &replaces).expect("it fits");
            Pattern(next).fill(creation.as_mut_slice());
            creation.seal().expect("seal");
            for client in &at {
                let object = get(client, id);
                assert_eq!((number(&object), object.data().len()), (next, after), "after {before} bytes");
            }
        }
        let last = number(&get(&at[0], id));
        for client in &at {
            assert_eq!(kind(write(client, id, 1, 65 * MIB, None)), ErrorKind::TooLarge);
        }
        // Beside what its node has it does not fit.
        let holder = &at[(sizes.len() * sizes.len() - 1) % nodes];
        assert_eq!(kind(write(holder, id, 1, 60 * MIB, None)), ErrorKind::Full);
        at.iter().for_each(|client| assert_eq!(number(&get(client, id)), last));
        at[0].delete(&[id]).expect("delete");
        for node in 0..nodes {
            eventually("nothing is left", || cluster.status(node).memory.used == 0);
        }
    }
}
