//! Test of all calls at once: what holds for one call at a time holds for many.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use plasmon::{Client, ErrorKind, ObjectId};
use plasmon_e2e::{Chance, Cluster, Pattern, eventually};

use crate::support::{MIB, try_put};

const NODES: usize = 3;
const CLIENTS: u64 = 6;
const STEPS: u64 = 250;

/// Stored objects that are not deleted: the seed and the length of each.
type Stored = Mutex<BTreeMap<ObjectId, (u64, usize)>>;

#[test]
fn clients_of_three_nodes_put_get_and_delete_at_the_same_time() {
    // Little memory: replicas are dropped and puts refused all the time.
    let cluster = Cluster::builder().nodes(NODES).memory("24MiB").start();
    let (stored, seeds) = (Stored::default(), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (client, stored, seeds) = (cluster.client(number as usize % NODES), &stored, &seeds);
            scope.spawn(move || live(&client, stored, seeds, &mut Chance::of_seed(number)));
        }
    });

    // Every object is still what it was, from everywhere.
    let left: Vec<ObjectId> = stored.lock().expect("no panic").keys().copied().collect();
    for node in 0..NODES {
        let client = cluster.client(node);
        left.iter().for_each(|id| look(&client, &stored, *id));
    }
    cluster.client(0).delete(&left).expect("delete");
    for node in 0..NODES {
        eventually("nothing is held any more", || {
            let status = cluster.status(node);
            (status.memory.used, status.objects.pinned, status.transfer.leases) == (0, 0, 0)
        });
    }
}

fn live(client: &Client, stored: &Stored, seeds: &AtomicU64, chance: &mut Chance) {
    for _ in 0..STEPS {
        let any = {
            let stored = stored.lock().expect("no panic");
            let place = chance.below(stored.len().max(1));
            stored.keys().nth(place).copied()
        };
        match (chance.below(10), any) {
            (0..3, _) | (_, None) => {
                let (id, seed) = (ObjectId::random(), seeds.fetch_add(1, Ordering::Relaxed));
                let largest = *chance.pick(&[100, 20_000, 2 * MIB]);
                let len = chance.below(largest);
                match try_put(client, id, Pattern(seed), len) {
                    Ok(()) => drop(stored.lock().expect("no panic").insert(id, (seed, len))),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Full, "{error}"),
                }
            }
            (3, Some(id)) => {
                stored.lock().expect("no panic").remove(&id);
                client.delete(&[id]).expect("delete");
            }
            (_, Some(id)) => look(client, stored, id),
        }
    }
}

/// Gets an object and checks it, unless it was deleted meanwhile or there is no room for it.
fn look(client: &Client, stored: &Stored, id: ObjectId) {
    let known = || stored.lock().expect("no panic").get(&id).copied();
    let Some((seed, len)) = known() else { return };
    loop {
        match client.get(&[id], Some(Duration::from_secs(2))).expect("get").remove(0) {
            Ok(object) => {
                assert_eq!(object.data().len(), len);
                return Pattern(seed).check(object.data());
            }
            Err(error) if error.kind() == ErrorKind::Full => return,
            // A slow machine may take longer; an object that was deleted will never come.
            Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"),
        }
        if known().is_none() {
            return;
        }
    }
}
