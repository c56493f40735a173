//! Tests of calls amid faults: nodes stop, die and are cut off while clients of others call all the time. No
//! call outlives its time-out, none is run twice, one that was answered was run, and one that says so was
//! not.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::{Client, ErrorKind, Service};
use plasmon_e2e::wait::{ended_in_time, let_pass, patiently};
use plasmon_e2e::{Cluster, PATIENCE, eventually, own_namespaces};

use crate::call_model::CallModel;
use crate::service_steps::nothing_is_left_of;

const NAME: &str = "amid faults";
/// Nodes that serve; the first of them keeps the name at first.
const SERVERS: [usize; 2] = [1, 2];
/// Nodes whose clients call. The first one coordinates.
const CALLERS: [usize; 2] = [0, 3];
const NODES: usize = 4;
/// Number of threads of each server, and of callers on each node.
const THREADS: usize = 3;
/// Time-out of a call.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Sizes in bytes of what travels: in slots, in messages, by reads.
const SIZES: [usize; 3] = [100, 5000, 300_000];

/// State that all threads share.
#[derive(Default)]
struct Ground {
    sockets: Vec<PathBuf>,
    stop: AtomicBool,
    model: CallModel,
}

impl Ground {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Calls until told to stop, by a new connection if the daemon has died.
    fn call(&self, node: usize) {
        let mut service: Option<Service> = None;
        for nth in (0..).take_while(|_| self.goes_on()) {
            let Some(found) = &service else {
                let connected = Client::connect(&self.sockets[node]);
                service = connected.and_then(|client| client.service(NAME, Some(TIMEOUT))).ok();
                continue;
            };
            let began = Instant::now();
            let ended = self.model.call(found, (SIZES[nth % 3], SIZES[nth / 3 % 3]), TIMEOUT);
            ended_in_time("the call", began, TIMEOUT);
            if ended.is_err_and(|error| error.kind() == ErrorKind::Disconnected) {
                service = None;
            }
        }
    }

    /// Waits until calls of some nodes end well again.
    fn mends(&self, callers: &[usize]) {
        for node in callers {
            let mended = patiently(PATIENCE, || {
                let service = Client::connect(&self.sockets[*node])?.service(NAME, Some(TIMEOUT))?;
                self.model.call(&service, (SIZES[2], SIZES[1]), TIMEOUT)
            });
            mended.unwrap_or_else(|error| panic!("node {node}: {:?}: {error}", error.kind()));
        }
    }
}

/// Has clients call all the time while `torment` breaks something; then checks all calls.
fn amid(torment: impl FnOnce(&mut Cluster, &Ground)) {
    let mut cluster = Cluster::builder().nodes(NODES).memory("256MiB").start();
    let sockets = (0..NODES).map(|node| cluster.socket(node)).collect();
    let ground = Ground { sockets, ..Ground::default() };
    thread::scope(|threads| {
        for node in SERVERS {
            let ground = &ground;
            threads.spawn(move || {
                ground.model.serve(&ground.sockets[node], NAME, THREADS, &|| ground.goes_on());
            });
            eventually("it serves", || cluster.status(node).functions.ports == 1);
        }
        for node in CALLERS {
            let ground = &ground;
            (0..THREADS).for_each(|_| drop(threads.spawn(move || ground.call(node))));
        }
        // A panic has to end the threads as well.
        let done = catch_unwind(AssertUnwindSafe(|| {
            ground.mends(&CALLERS);
            torment(&mut cluster, &ground);
            ground.mends(&CALLERS);
        }));
        ground.stop.store(true, Ordering::Relaxed);
        if let Err(panic) = done {
            resume_unwind(panic);
        }
    });
    let well = ground.model.check();
    assert!(well > 100, "{well} calls ended well");
    nothing_is_left_of(&cluster, &(0..NODES).collect::<Vec<_>>());
    for node in 0..NODES {
        eventually("no memory is left", || cluster.status(node).memory.used == 0);
    }
}

/// Breaks something for a while, for less or for more than a lease.
fn for_a_while(span: Duration, cluster: &Cluster, begin: impl Fn(&Cluster), end: impl Fn(&Cluster)) {
    begin(cluster);
    let_pass(span, "the test is about a fault of this length");
    end(cluster);
}

/// Stops nodes, and cuts them off, each for a while: the home, another node of servers, one of callers.
fn faults_of(span: Duration, nodes: &[usize]) {
    amid(|cluster, ground| {
        for node in nodes.iter().copied() {
            for_a_while(span, cluster, |it| it.pause(node), |it| it.resume(node));
            ground.mends(&CALLERS);
            if own_namespaces() {
                for_a_while(span, cluster, |it| it.unplug(node), |it| it.plug(node));
                ground.mends(&CALLERS);
            }
        }
    });
}

#[test]
fn short_faults_delay_calls() {
    faults_of(Duration::from_secs(2), &[1, 2, 3]);
}

#[test]
fn a_home_that_was_away_for_long_serves_again() {
    faults_of(Duration::from_secs(12), &[1]);
}

#[test]
fn callers_that_were_away_for_long_call_again() {
    faults_of(Duration::from_secs(12), &[3]);
}

#[test]
fn packets_that_get_lost_one_way_have_no_call_run_twice() {
    if !own_namespaces() {
        return;
    }
    amid(|cluster, ground| {
        for (from, to) in [(0, 1), (1, 0), (2, 3)] {
            for_a_while(Duration::from_secs(4), cluster, |it| it.lose(from, to), |it| it.carry(from, to));
            ground.mends(&CALLERS);
        }
    });
}

#[test]
fn nodes_that_die_and_come_back_have_no_call_run_twice() {
    amid(|cluster, ground| {
        for node in [1, 3, 2] {
            cluster.kill(node);
            ground.mends(&CALLERS.into_iter().filter(|caller| *caller != node).collect::<Vec<_>>());
            cluster.start_again(node, &[]);
            ground.mends(&CALLERS);
        }
    });
}
