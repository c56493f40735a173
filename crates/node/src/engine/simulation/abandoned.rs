//! Abandoned locks of simulated nodes: the next home of a lock knows that the last holder died, however many
//! such locks there are.

use std::time::Duration;

use plasmon::wire::{BySlot, Locked, Reply, Request, SlotResult, SyncCall};

use super::Simulation;
use super::counters::{SETTLED_TIME, User};

/// Number of locks. Half of them get another home, and are more than two pages of a former home's answer.
const LOCKS: u64 = 1200;
const TTL: Duration = Duration::from_secs(60);
const CALL_PATIENCE: Duration = Duration::from_secs(20);
const SEED: u64 = 1;

/// Opens all locks.
fn open(simulation: &mut Simulation, user: &mut User) -> Vec<u32> {
    for number in 0..LOCKS {
        let (name, ttl_ms) = (format!("lock {number}"), TTL.as_millis() as u32);
        user.begin_ask(simulation, Request::OpenLock { name, public: false, ttl_ms });
    }
    simulation.pass(Duration::from_millis(1));
    let opened = std::mem::take(&mut *user.session.0.borrow_mut());
    let handles = opened.into_iter().map(|(_, reply)| match reply {
        Reply::LockOpened { lock } => lock,
        other => panic!("{other:?}"),
    });
    handles.collect()
}

/// Takes all locks. Returns how many of them were abandoned.
fn take(simulation: &mut Simulation, user: &mut User) -> usize {
    let handles = open(simulation, user);
    let call = |(ticket, lock)| {
        let lock = SyncCall::Lock { lock, ticket, shared: false };
        user.call(simulation, lock.encode(), CALL_PATIENCE)
    };
    let taken: Vec<_> = (1..).zip(handles).map(call).collect();
    simulation.pass(CALL_PATIENCE);
    let locked = taken.iter().map(|taken| {
        let done = taken.get().expect("it ends").as_ref().expect("the lock is free");
        Locked::of_values(done.values, &done.payload).expect("a lock has a token")
    });
    locked.filter(|locked| locked.abandoned).count()
}

/// Ends a client.
fn end(simulation: &Simulation, user: &User) {
    let core = simulation.hosts[user.host].core().expect("it runs");
    core.services.on_session_end(user.key);
}

#[test]
fn the_next_home_of_many_locks_knows_which_are_abandoned() {
    let mut simulation = Simulation::new(SEED, |_| Vec::new());
    simulation.pass(SETTLED_TIME);
    // The first node is the only one, so it is the home of all locks.
    for host in 1..simulation.hosts.len() {
        simulation.hosts[host].kill();
        simulation.coordinator.forget(&mut simulation.hosts, simulation.time.now(), None);
    }
    simulation.pass(SETTLED_TIME);
    let mut holder = User::connect(&simulation, 0);
    assert_eq!(take(&mut simulation, &mut holder), 0);
    end(&simulation, &holder);
    simulation.pass(SETTLED_TIME);
    let counts = |simulation: &Simulation, host: usize| {
        let locks = simulation.hosts[host].core().expect("it runs").services.status().locks;
        (locks.names, locks.abandoned)
    };
    assert_eq!(counts(&simulation, 0), (0, LOCKS), "none of them takes the place of one that is held");
    simulation.bring_back(1);
    simulation.pass(SETTLED_TIME);
    let mut next = User::connect(&simulation, 1);
    assert_eq!(take(&mut simulation, &mut next), LOCKS as usize);
    let kept: u64 = [0, 1].map(|host| counts(&simulation, host).1).iter().sum();
    assert_eq!(kept, 0, "the next holders know");
}
