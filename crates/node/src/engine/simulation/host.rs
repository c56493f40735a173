//! One node of a simulation: the daemon's core, with what it has of its host replaced.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use futures::executor::LocalPool;
use plasmon::NodeId;
use plasmon_fabric::MemoryNetwork;
use rustix::event::epoll::{self, CreateFlags};

use super::{MAX_TURNS, Time};
use crate::config::Config;
use crate::control::Event;
use crate::engine::turn::Inbox;
use crate::engine::{Core, Host as HostParts};
use crate::kernel::Kernel;
use crate::kernel::clock::Clock;
use crate::kernel::waker::Waker;
use crate::memory::{Arena, ArenaConfig, HugePages};
use crate::net::members::Member;
use crate::net::network::Network;
use crate::numa::Binding;
use crate::object::{Keeping, Table};
use crate::service::Service;
use crate::sessions::Clients;
use crate::sessions::places::Places;
use crate::store::{Readers, Store};
use crate::transfer::Tunings;

/// Bytes of a node's memory for objects.
const MEMORY_BYTES: u64 = 16 << 20;
/// The time of day when a simulation begins, since 1970.
const UNIX_START: Duration = Duration::from_secs(1_800_000_000);

/// Services that a node has beside its own.
pub(super) type Further = fn(&Rc<Network>) -> Vec<Rc<dyn Service>>;

/// A host with a node on it.
pub(super) struct Host {
    pub(super) number: u32,
    time: Time,
    network: MemoryNetwork,
    further: Further,
    node: Option<Node>,
    /// The coordinator has expelled the node, which may not know it yet.
    pub(super) is_expelled: bool,
    /// Until when the node takes no turn.
    stalled_until: Duration,
    /// How often the host's node was started.
    pub(super) starts: u64,
}

/// A node that runs.
struct Node {
    core: Rc<Core>,
    pool: LocalPool,
    inbox: Inbox,
    /// What the coordinator has said, and when it arrives.
    events: VecDeque<(Duration, Event)>,
}

impl Host {
    /// A host with a node that is no member yet.
    pub(super) fn start(number: u32, time: &Time, network: &MemoryNetwork, further: Further) -> Self {
        let mut host = Self {
            number,
            time: time.clone(),
            network: network.clone(),
            further,
            node: None,
            is_expelled: false,
            stalled_until: Duration::ZERO,
            starts: 0,
        };
        host.start_again();
        host
    }

    /// Starts a node on a host that has none.
    pub(super) fn start_again(&mut self) {
        self.starts += 1;
        let pool = LocalPool::new();
        let core = Rc::new(compose(&self.time, &self.network, self.number, &pool, self.further));
        core.kernel.spawn(Rc::clone(&core).tick());
        self.node = Some(Node { core, pool, inbox: Inbox::default(), events: VecDeque::new() });
        self.is_expelled = false;
        self.stalled_until = Duration::ZERO;
    }

    /// Kills the node: nothing of it is left.
    pub(super) fn kill(&mut self) {
        self.network.kill(self.number);
        if let Some(node) = self.node.take() {
            node.end();
        }
    }

    /// Whether the host has a node.
    pub(super) fn is_alive(&self) -> bool {
        self.node.is_some()
    }

    /// Whether the node takes clients: it has been a member.
    pub(super) fn serves(&self) -> bool {
        self.core().is_some_and(|core| core.cluster.epoch() > 0)
    }

    /// The node's core; none if the host has no node.
    pub(super) fn core(&self) -> Option<&Rc<Core>> {
        self.node.as_ref().map(|node| &node.core)
    }

    /// Whether the node knows that it is no member.
    pub(super) fn is_fenced(&self) -> bool {
        self.core().is_some_and(|core| core.cluster.fenced())
    }

    /// The node as a member.
    pub(super) fn member(&self) -> Option<Member> {
        let core = self.core()?;
        Some(Member {
            node: core.kernel.node,
            incarnation: core.kernel.incarnation.get(),
            listen: core.kernel.listen.clone(),
            fabrics: core.network.reach(),
            token: core.network.token(),
        })
    }

    /// The id of the node.
    pub(super) fn id(&self) -> Option<NodeId> {
        Some(self.core()?.kernel.node)
    }

    /// Has the node take no turn for a while, as if its host had no time for it.
    pub(super) fn stall(&mut self, until: Duration) {
        self.stalled_until = until;
    }

    /// Has the node take turns again.
    pub(super) fn wake(&mut self) {
        self.stalled_until = Duration::ZERO;
    }

    /// Delivers an event of the coordinator after those that were sent before it.
    pub(super) fn send(&mut self, event: Event, at: Duration) {
        if let Some(node) = &mut self.node {
            let at = node.events.back().map_or(at, |(last, _)| at.max(*last));
            node.events.push_back((at, event));
        }
    }

    /// When the node has something to do next, beside what the network brings.
    pub(super) fn due(&self, now: Duration) -> Option<Duration> {
        let node = self.node.as_ref()?;
        let event = node.events.front().map(|(at, _)| *at);
        let core = &node.core;
        let spans = [core.kernel.clock.next(), core.services.due()].into_iter().flatten();
        let at_once = core.network.talks_to_itself().then_some(now);
        let due = spans.map(|span| now + span).chain(event).chain(at_once).min()?;
        Some(due.max(self.stalled_until))
    }

    /// Takes turns until nothing more happens at this time; says whether the node has left the cluster.
    pub(super) fn run(&mut self, now: Duration) -> bool {
        let Some(node) = self.node.as_mut().filter(|_| self.stalled_until <= now) else { return false };
        for _ in 0..MAX_TURNS {
            if node.turn(now) == 0 && !node.core.network.talks_to_itself() {
                break;
            }
        }
        let has_left = node.core.placement.is_drained();
        if has_left {
            self.kill();
        }
        has_left
    }

    /// Runs what a client's request has begun, and sends what it has to say.
    pub(super) fn turn(&mut self, now: Duration) {
        if let Some(node) = &mut self.node {
            node.turn(now);
        }
    }
}

impl Node {
    /// One turn of the engine; gives the number of things that happened.
    fn turn(&mut self, now: Duration) -> usize {
        let mut work =
            self.core.begin_turn(&mut self.inbox, false).expect("the memory network does not break");
        while let Some((_, event)) = self.events.pop_front_if(|(at, _)| *at <= now) {
            work += 1;
            self.core.on_event(event);
        }
        work += self.core.kernel.clock.fire();
        self.pool.run_until_stalled();
        work + self.core.end_turn()
    }

    fn end(self) {
        self.core.sessions.clients.borrow_mut().clear();
        self.core.services.clear();
        // Tasks hold the core: they go first.
        drop(self.pool);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.end();
        }
    }
}

/// A node's core on a host of the memory network.
fn compose(time: &Time, network: &MemoryNetwork, number: u32, pool: &LocalPool, further: Further) -> Core {
    let config = Config { prefault: false, huge_pages: false, ..Config::new(MEMORY_BYTES, "simulated") };
    let shared = time.clone();
    let clock = Clock::with_source(move || shared.instant(), UNIX_START + time.now());
    let kernel = Rc::new(Kernel::new(config, format!("10.0.0.{number}:1"), clock, pool));
    let arena = Arena::new(&ArenaConfig {
        capacity: MEMORY_BYTES,
        segment_size: None,
        huge_pages: HugePages::Never,
        prefault: false,
        near: None,
    });
    let arena = arena.expect("there is memory for a small arena");
    let objects = Table::new(Keeping::Memory, arena.home());
    let stamps = objects.stamps.borrow().memory().clone();
    let network = Network::open(&kernel, &[network.provider(number)], &arena, &stamps);
    let network = Rc::new(network.expect("the memory network has room"));
    let host = HostParts {
        numa: Binding::default(),
        places: Places::new(None, arena.segment_count(), 64),
        tunings: Tunings::load(None, "memory"),
        waker: Waker::new().expect("an eventfd"),
        epoll: Rc::new(epoll::create(CreateFlags::CLOEXEC).expect("an epoll set")),
    };
    let clients = Clients::default();
    let readers = Rc::clone(&clients) as Rc<dyn Readers>;
    let store = Rc::new(Store::new(&kernel, &network, arena, objects, None, readers));
    let core =
        Core::compose(&store, clients, host, further(&network)).expect("no two services claim an opcode");
    core.sessions.share_segments();
    core
}
