//! Events of regions in simulated clusters: every event that a client was told has happened, and a gap tells
//! that events are missing, whatever breaks.

use std::ops::RangeInclusive;
use std::time::Duration;

use plasmon::region::{RegionEvent, Rights};
use plasmon::wire::{Reply, Request};
use plasmon::{ErrorKind, NodeId};

use super::counters::{HOME, SETTLED_TIME, User, end, mapped};
use super::{Simulation, below, percent, span};

/// Seeds of each case.
const SEEDS: RangeInclusive<u64> = 1..=8;
/// Number of changes in a run.
const ACTS: u32 = 30;
/// The first of the users to whom rights are granted.
const FIRST_USER: u32 = 70_000;
const MOVE_US: u64 = 20_000_000;

/// A client that hears what happens to its region.
struct Hearer {
    /// The connection that brings the events.
    connection: User,
    events: Vec<RegionEvent>,
}

impl Hearer {
    fn begin(simulation: &mut Simulation, user: &mut User) -> Self {
        let Ok(Reply::RegionsWatched { key }) = user.ask(simulation, Request::WatchRegions) else {
            panic!("a client of node {} watches its regions", user.host);
        };
        let mut connection = User::connect(simulation, user.host);
        connection.begin_ask(simulation, Request::FollowRegions { key });
        Self { connection, events: Vec::new() }
    }

    fn hear(&mut self) {
        for (_, reply) in self.connection.session.0.borrow_mut().drain(..) {
            match reply {
                Reply::RegionEvents(events) => self.events.extend(events),
                other => panic!("a hearer on node {} was told {other:?}", self.connection.host),
            }
        }
    }

    /// Node of the region, as far as the client was told; `None` if the region has ended.
    fn home(&self, first: NodeId) -> Option<NodeId> {
        let last = self.events.iter().rev().find_map(|event| match event {
            RegionEvent::Moved { home, .. } => Some(Some(*home)),
            RegionEvent::Freed { .. } | RegionEvent::Lost { .. } => Some(None),
            _ => None,
        });
        last.unwrap_or(Some(first))
    }

    fn has_gap(&self) -> bool {
        self.events.iter().any(|event| matches!(event, RegionEvent::Gap { .. }))
    }

    /// The users to whom rights were granted.
    fn granted(&self) -> Vec<u32> {
        let user = |event: &RegionEvent| match event {
            RegionEvent::Granted { user, .. } => *user,
            _ => None,
        };
        self.events.iter().filter_map(user).collect()
    }
}

fn grant(handle: u32, nth: u32) -> Request {
    Request::GrantRegion { handle, user: Some(FIRST_USER + nth), rights: Rights::READ }
}

/// The host on which the region lives.
fn home(simulation: &Simulation) -> Option<usize> {
    let has = |host: &usize| {
        let core = simulation.hosts[*host].core();
        core.is_some_and(|core| core.services.status().regions.regions == 1)
    };
    (0..simulation.hosts.len()).find(has)
}

#[test]
fn all_hear_what_happens_to_a_region_that_moves() {
    for seed in SEEDS {
        let (mut simulation, mut users) = mapped(seed);
        let mut hearers: Vec<_> = users.iter_mut().map(|user| Hearer::begin(&mut simulation, user)).collect();
        let first = simulation.hosts[HOME].id().expect("it runs");
        simulation.network.change_faults(|faults| faults.cut_ppm = 5_000);
        let mut certain = Vec::new();
        for nth in 0..ACTS {
            let user = below(users.len());
            let handle = users[user].handle;
            if percent(30) {
                let node = simulation.hosts[below(users.len())].id().expect("it runs");
                // The move may be refused, because a connection breaks.
                _ = users[user]
                    .ask(&mut simulation, Request::MoveRegion { handle, node, timeout_us: MOVE_US });
            } else if users[user].ask(&mut simulation, grant(handle, nth)).is_ok() {
                certain.push(FIRST_USER + nth);
            }
            if percent(50) {
                simulation.pass(span(Duration::from_millis(500)));
            }
        }
        simulation.mend();
        simulation.pass(SETTLED_TIME);
        let there = home(&simulation).map(|host| simulation.hosts[host].id().expect("it runs"));
        for hearer in &mut hearers {
            hearer.hear();
            let (host, granted) = (hearer.connection.host, hearer.granted());
            assert_eq!(hearer.home(first), there, "seed {seed}: node {host} heard {:?}", hearer.events);
            assert!(granted.is_sorted_by(|one, next| one < next), "seed {seed}: node {host}: {granted:?}");
            let hears_all = certain.iter().all(|user| granted.contains(user));
            assert!(hears_all || hearer.has_gap(), "seed {seed}: node {host}: {:?}", hearer.events);
        }
        let handle = users[1].handle;
        users[1]
            .ask(&mut simulation, Request::FreeRegion { handle, timeout_us: MOVE_US })
            .expect("it is there");
        simulation.pass(SETTLED_TIME);
        for hearer in &mut hearers {
            hearer.hear();
            let last = hearer.events.last();
            assert!(matches!(last, Some(RegionEvent::Freed { .. })), "seed {seed}: {last:?}");
        }
        end(simulation);
    }
}

#[test]
fn all_hear_of_the_end_of_a_home() {
    for seed in SEEDS {
        let (mut simulation, mut users) = mapped(seed);
        let mut hearers: Vec<_> =
            users[1..].iter_mut().map(|user| Hearer::begin(&mut simulation, user)).collect();
        let (node, handle) = (simulation.hosts[1].id().expect("it runs"), users[HOME].handle);
        // The home dies at any step of a move, before the move or after it.
        users[HOME].begin_ask(&simulation, Request::MoveRegion { handle, node, timeout_us: MOVE_US });
        simulation.pass(span(Duration::from_millis(8)));
        simulation.hosts[HOME].kill();
        simulation.coordinator.forget(&mut simulation.hosts, simulation.time.now(), None);
        simulation.pass(SETTLED_TIME);
        let is_there = home(&simulation) == Some(1);
        for hearer in &mut hearers {
            hearer.hear();
            let ends: Vec<_> = hearer.events.iter().collect();
            let agrees = match &ends[..] {
                [RegionEvent::Moved { home, .. }] => is_there && *home == node,
                [RegionEvent::Lost { .. }] => !is_there,
                _ => false,
            };
            assert!(agrees, "seed {seed}: with the region there: {is_there}: {ends:?}");
        }
        end(simulation);
    }
}

#[test]
fn a_node_that_was_away_hears_where_the_region_is() {
    for seed in SEEDS {
        let (mut simulation, mut users) = mapped(seed);
        let mut hearer = Hearer::begin(&mut simulation, &mut users[2]);
        simulation.begin_expelling(2);
        simulation.coordinator.remove(&mut simulation.hosts, 2, simulation.time.now());
        simulation.pass(SETTLED_TIME);
        let (node, handle) = (simulation.hosts[1].id().expect("it runs"), users[HOME].handle);
        users[HOME].ask(&mut simulation, grant(handle, 0)).expect("nothing is in its way");
        let moves = Request::MoveRegion { handle, node, timeout_us: MOVE_US };
        users[HOME].ask(&mut simulation, moves).expect("nothing is in its way");
        hearer.hear();
        assert_eq!(hearer.events, [], "seed {seed}: it does not know");
        simulation.bring_back(2);
        simulation.pass(SETTLED_TIME);
        hearer.hear();
        assert!(
            matches!(&hearer.events[..], [RegionEvent::Moved { home, .. }, RegionEvent::Gap { missed: 0 }]
                if *home == node),
            "seed {seed}: {:?}",
            hearer.events
        );
        // The client hears what happens at the new home.
        users[HOME].ask(&mut simulation, grant(handle, 1)).expect("nothing is in its way");
        simulation.pass(SETTLED_TIME);
        hearer.hear();
        assert_eq!(hearer.granted(), [FIRST_USER + 1], "seed {seed}");
        end(simulation);
    }
}

#[test]
fn what_is_not_taken_in_time_is_counted() {
    const CHANGES: u32 = 5_000;
    const MAX_KEPT_EVENTS: usize = 4_096;
    let (mut simulation, mut users) = mapped(1);
    let Ok(Reply::RegionsWatched { key }) = users[1].ask(&mut simulation, Request::WatchRegions) else {
        panic!("a client watches its regions");
    };
    let handle = users[HOME].handle;
    for nth in 0..CHANGES {
        let request = match nth % 2 {
            0 => grant(handle, 0),
            _ => Request::RevokeRegion { handle, user: Some(FIRST_USER) },
        };
        users[HOME].begin_ask(&simulation, request);
        if nth % 100 == 0 {
            simulation.pass(Duration::from_millis(20));
        }
    }
    simulation.pass(SETTLED_TIME);
    let mut other = User::connect(&simulation, 1);
    let wrong = other.ask(&mut simulation, Request::FollowRegions { key: key.wrapping_add(1) });
    assert_eq!(wrong.expect_err("nobody gave it").kind(), ErrorKind::NotFound);
    other.begin_ask(&simulation, Request::FollowRegions { key });
    let mut hearer = Hearer { connection: other, events: Vec::new() };
    simulation.pass(SETTLED_TIME);
    hearer.hear();
    assert_eq!(hearer.events.len(), MAX_KEPT_EVENTS + 1);
    assert_eq!(
        hearer.events[MAX_KEPT_EVENTS],
        RegionEvent::Gap { missed: u64::from(CHANGES) - MAX_KEPT_EVENTS as u64 }
    );
    // From there on the client hears everything again.
    users[HOME].begin_ask(&simulation, grant(handle, 1));
    simulation.pass(SETTLED_TIME);
    hearer.hear();
    assert_eq!(hearer.granted().last(), Some(&(FIRST_USER + 1)));
    // A key is valid on one connection only.
    let mut late = User::connect(&simulation, 1);
    let late = late.ask(&mut simulation, Request::FollowRegions { key });
    assert_eq!(late.expect_err("another has it").kind(), ErrorKind::NotFound);
    end(simulation);
}
