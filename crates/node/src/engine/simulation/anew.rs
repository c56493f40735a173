//! Regions of simulated nodes whose coordinator begins anew: all nodes become members again, one after the
//! other, and none of them was fenced in the meantime.

use std::ops::RangeInclusive;
use std::time::Duration;

use plasmon::region::Rights;
use plasmon::wire::{Operation, Reply, Request};

use super::counters::{HOME, SETTLED_TIME, end, left, mapped};
use super::{Simulation, below, percent, span};

/// Seeds of each case.
const SEEDS: RangeInclusive<u64> = 1..=10;
/// Longest time between two nodes that become members again.
const BETWEEN_TIME: Duration = Duration::from_secs(1);
/// Time after which memory is free again that a node may read which has gone.
const HELD_TIME: Duration = Duration::from_secs(90);

/// Has these hosts become members of a coordinator that begins anew, and does something between any two.
fn begin_anew(simulation: &mut Simulation, mut hosts: Vec<usize>, mut between: impl FnMut(&mut Simulation)) {
    simulation.coordinator.begin_anew();
    while !hosts.is_empty() {
        between(simulation);
        let host = hosts.swap_remove(below(hosts.len()));
        simulation.join(host);
        simulation.pass(span(BETWEEN_TIME));
    }
}

#[test]
fn the_memory_of_a_freed_region_returns_whatever_was_left_meanwhile() {
    for seed in SEEDS {
        let (mut simulation, mut users) = mapped(seed);
        let hosts: Vec<_> = (0..users.len()).collect();
        let mut mapping: Vec<_> = users.iter().skip(2).map(|user| (user.host, user.handle)).collect();
        begin_anew(&mut simulation, hosts, |simulation| {
            if let Some((host, handle)) = mapping.pop() {
                users[host].begin_ask(simulation, Request::UnmapRegion { handle });
            }
        });
        simulation.pass(SETTLED_TIME);
        let add = users[1].begin(&simulation, Operation::FetchAdd { offset: 8, value: 1 });
        simulation.pass(SETTLED_TIME);
        let value = add.get().expect("it ends").as_ref().map(|result| result.values[0]);
        assert_eq!(value, Ok(0), "seed {seed}: a handle of before");
        let free = Request::FreeRegion { handle: users[HOME].handle, timeout_us: 20_000_000 };
        users[HOME].ask(&mut simulation, free).expect("a master frees it");
        simulation.pass(HELD_TIME);
        assert_eq!(left(&simulation, HOME), (0, 0), "seed {seed}");
        end(simulation);
    }
}

#[test]
fn an_ephemeral_region_ends_with_its_client_and_not_before() {
    for seed in SEEDS {
        let (mut simulation, mut users) = mapped(seed);
        let create = Request::CreateRegion {
            name: "ephemeral".to_owned(),
            len: 1000,
            node: simulation.hosts[HOME].id(),
            public: Rights::NONE,
            mappable: percent(50),
            ephemeral: true,
            exist_ok: false,
            room_us: 0,
        };
        let Ok(Reply::RegionMapped { handle, .. }) = users[1].ask(&mut simulation, create) else {
            panic!("seed {seed}: the name is free");
        };
        users[1].handle = handle;
        let dies = percent(50);
        if dies {
            simulation.hosts[1].kill();
        }
        let hosts = (0..users.len()).filter(|host| !dies || *host != 1).collect();
        begin_anew(&mut simulation, hosts, |_| {});
        if !dies {
            simulation.pass(HELD_TIME);
            assert_eq!(left(&simulation, HOME).0, 2, "seed {seed}");
            let add = users[1].begin(&simulation, Operation::FetchAdd { offset: 8, value: 1 });
            simulation.pass(SETTLED_TIME);
            let value = add.get().expect("it ends").as_ref().map(|result| result.values[0]);
            assert_eq!(value, Ok(0), "seed {seed}");
            let core = simulation.hosts[1].core().expect("it runs");
            core.services.on_session_end(users[1].key);
        }
        simulation.pass(HELD_TIME);
        assert_eq!(left(&simulation, HOME).0, 1, "seed {seed}: its client has died: {dies}");
        end(simulation);
    }
}

#[test]
fn an_ephemeral_region_ends_with_a_node_that_died_before_it_was_made() {
    for seed in SEEDS {
        let (mut simulation, mut users) = mapped(seed);
        let (made, dying) = (left(&simulation, HOME).0, 1);
        // The home asks whether the name is free. The answer comes after the death of the node that asks.
        let until = simulation.time.now() + span(Duration::from_millis(500));
        for host in (0..simulation.hosts.len()).filter(|host| ![HOME, dying].contains(host)) {
            simulation.hosts[host].stall(until);
        }
        for number in 0..20 {
            let create = Request::CreateRegion {
                name: format!("ephemeral {number}"),
                len: 1000,
                node: simulation.hosts[HOME].id(),
                public: Rights::NONE,
                mappable: percent(50),
                ephemeral: true,
                exist_ok: false,
                room_us: 20_000_000,
            };
            users[dying].begin_ask(&simulation, create);
        }
        simulation.pass(span(Duration::from_millis(100)));
        simulation.hosts[dying].kill();
        let Simulation { hosts, coordinator, time, .. } = &mut simulation;
        coordinator.forget(hosts, time.now(), None);
        simulation.pass(HELD_TIME);
        assert_eq!(left(&simulation, HOME).0, made, "seed {seed}");
        end(simulation);
    }
}
