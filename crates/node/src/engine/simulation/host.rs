//! One node of a simulation: the daemon's core, with what it has of its host replaced.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use plasmon::NodeId;
use plasmon::drain::DrainStep;
use plasmon_fabric::MemoryNetwork;
use rustix::event::epoll::{self, CreateFlags};

use super::{MAX_TURNS, Time};
use crate::config::Config;
use crate::control::Event;
use crate::engine::turn::Inbox;
use crate::engine::{Core, Host as HostParts};
use crate::kernel::Kernel;
use crate::kernel::clock::Clock;
use crate::kernel::tasks::Tasks;
use crate::kernel::waker::Waker;
use crate::memory::{Arena, ArenaConfig, HugePages};
use crate::net::members::Member;
use crate::net::network::Network;
use crate::numa::Binding;
use crate::object::{Keeping, Table};
use crate::service::{Asked, Service};
use crate::sessions::Clients;
use crate::sessions::places::Places;
use crate::store::{Readers, Store};
use crate::transfer::Tunings;

/// Bytes of a node's memory for objects.
const MEMORY_BYTES: u64 = 14 << 20;
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
    tasks: Tasks,
    inbox: Inbox,
    /// What the coordinator has said, and when it arrives.
    events: VecDeque<(Duration, Event)>,
    /// When the next turn is due if nothing comes before, as the last turn or request left it.
    next_turn: Cell<Duration>,
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
        let tasks = Tasks::new();
        let core = Rc::new(compose(&self.time, &self.network, self.number, &tasks, self.further));
        core.kernel.spawn(Rc::clone(&core).tick());
        let (inbox, events, next_turn) = (Inbox::default(), VecDeque::new(), Cell::default());
        self.node = Some(Node { core, tasks, inbox, events, next_turn });
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

    /// Makes a client's request, which a turn of the node follows. A host without a node takes none.
    pub(super) fn ask(&self, asked: Asked) {
        if let Some(node) = &self.node {
            node.next_turn.set(Duration::ZERO);
            node.core.sessions.request(asked).expect("a client of this release asks it");
        }
    }

    /// Has the node hand over what it keeps, and end.
    pub(super) fn drain(&self) {
        if let Some(node) = &self.node {
            node.next_turn.set(Duration::ZERO);
            // A node that has no other to hand over to stays.
            _ = node.core.placement.drain_here(DrainStep::Begin, 0);
        }
    }

    /// Delivers an event of the coordinator after those that were sent before it.
    pub(super) fn send(&mut self, event: Event, at: Duration) {
        if let Some(node) = &mut self.node {
            let at = node.events.back().map_or(at, |(last, _)| at.max(*last));
            node.events.push_back((at, event));
        }
    }

    /// When the node's next turn is due; the network may bring something earlier.
    pub(super) fn due(&self, now: Duration) -> Option<Duration> {
        let node = self.node.as_ref()?;
        Some(node.due(now).max(self.stalled_until))
    }

    /// Takes turns as long as one is due; says whether the node has left the cluster.
    pub(super) fn run(&mut self, now: Duration) -> bool {
        let Some(node) = self.node.as_mut().filter(|_| self.stalled_until <= now) else { return false };
        for _ in 0..MAX_TURNS {
            if node.due(now) > now {
                break;
            }
            node.turn(now);
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
    /// When the next turn is due.
    fn due(&self, now: Duration) -> Duration {
        if self.tasks.are_woken() || self.core.has_more() || self.core.network.has_arrivals() {
            return now;
        }
        let event = self.events.front().map_or(Duration::MAX, |(at, _)| *at);
        self.next_turn.get().min(event)
    }

    /// One turn of the engine.
    fn turn(&mut self, now: Duration) {
        self.core.begin_turn(&mut self.inbox, false).expect("the memory network does not break");
        while let Some((_, event)) = self.events.pop_front_if(|(at, _)| *at <= now) {
            self.core.on_event(event);
        }
        self.core.kernel.clock.fire();
        self.tasks.run_until_stalled();
        let more = self.core.end_turn() > 0;
        let span = if more { Some(Duration::ZERO) } else { self.core.due() };
        self.next_turn.set(span.map_or(Duration::MAX, |span| now + span));
    }

    fn end(self) {
        self.core.sessions.clients.borrow_mut().clear();
        self.core.services.clear();
        // Tasks hold the core: they go first.
        drop(self.tasks);
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
fn compose(time: &Time, network: &MemoryNetwork, number: u32, tasks: &Tasks, further: Further) -> Core {
    let config = Config { prefault: false, huge_pages: false, ..Config::new(MEMORY_BYTES, "simulated") };
    let shared = time.clone();
    let clock = Clock::with_source(move || shared.instant(), UNIX_START + time.now());
    let kernel = Rc::new(Kernel::new(config, format!("10.0.0.{number}:1"), clock, tasks));
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
