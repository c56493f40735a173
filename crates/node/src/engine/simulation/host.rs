//! One node of a simulation: the daemon's core, with its clock, disk, networks and coordinator replaced.

use std::cell::Cell;
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use futures::{FutureExt, StreamExt};
use plasmon::NodeId;
use plasmon::drain::DrainStep;
use rustix::event::epoll::{self, CreateFlags};
use tempfile::TempDir;

use super::clocks::Clocks;
use super::networks::Networks;
use super::{MAX_TURNS, Setup, Time, below, percent, span};
use crate::config::Config;
use crate::control::Event;
use crate::control::records::Proposal;
use crate::engine::turn::Inbox;
use crate::engine::{Core, Host as HostParts, keeping};
use crate::kernel::Kernel;
use crate::kernel::clock::Clock;
use crate::kernel::tasks::Tasks;
use crate::kernel::waker::Waker;
use crate::memory::{Arena, ArenaConfig, HugePages};
use crate::net::members::Member;
use crate::net::network::Network;
use crate::numa::Binding;
use crate::object::Table;
use crate::service::{Asked, Service};
use crate::sessions::Clients;
use crate::sessions::places::Places;
use crate::spill::{Recovered, SpillStore, SteppedDisk};
use crate::store::{Readers, Store};
use crate::transfer::Tunings;

/// Maximum number of bulk lanes of a node.
const MAX_LANES: usize = 3;
/// Number of bytes of a node's memory for objects.
const MEMORY_BYTES: u64 = 14 << 20;
/// Number of bytes of a node's memory on a host with a disk: so few that the node often has to use the disk.
const SMALL_MEMORY_BYTES: u64 = 5 << 19;
/// Longest time that a request to a disk takes.
const MAX_DISK_TIME: Duration = Duration::from_millis(10);
/// Number of writes in a hundred that find the disk full.
const FULL_DISK_PERCENT: usize = 10;
/// The time of day when a simulation begins, since 1970.
const UNIX_START: Duration = Duration::from_secs(1_800_000_000);

/// Services that a node has beside its own.
pub(super) type Further = fn(&Rc<Network>) -> Vec<Rc<dyn Service>>;

/// A host with a node on it.
pub(super) struct Host {
    pub(super) number: u32,
    time: Time,
    pub(super) clocks: Clocks,
    network: Networks,
    further: Further,
    setup: Setup,
    /// The host's disk, which outlives its nodes.
    disk: Option<TempDir>,
    node: Option<Node>,
    /// Whether the coordinator has expelled the node, which may not know it yet.
    pub(super) is_expelled: bool,
    /// Time until which the node takes no turn.
    stalled_until: Duration,
    /// Number of times that the host's node was started.
    pub(super) starts: u64,
    /// Whether the node took a turn since [`Host::take_turned`] was last called.
    has_turned: bool,
}

/// A node that runs.
struct Node {
    core: Rc<Core>,
    disk: Option<Disk>,
    tasks: Tasks,
    inbox: Inbox,
    /// Events of the coordinator, each with the time at which it arrives.
    events: VecDeque<(Duration, Event)>,
    /// Proposals of the node to the coordinator.
    proposals: UnboundedReceiver<Proposal>,
    /// Time of the next turn if nothing comes before, as the last turn or request left it.
    next_turn: Cell<Duration>,
}

/// A node's use of its host's disk.
struct Disk {
    thread: SteppedDisk,
    /// Time at which the request under way is done.
    done_at: Option<Duration>,
    room: Room,
    /// Objects of the host's former node, which this node takes over when it is a member.
    recovered: Vec<Recovered>,
}

/// Whether a disk has room for what is written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// It is drawn for each write.
    Drawn,
    Always,
    Never,
}

impl Disk {
    /// Goes on with the requests.
    fn run(&mut self, now: Duration) {
        if self.done_at.take_if(|at| *at <= now).is_some() {
            let is_full = match self.room {
                Room::Drawn => percent(FULL_DISK_PERCENT),
                Room::Always => false,
                Room::Never => true,
            };
            self.thread.step(is_full);
        }
        if self.done_at.is_none() && self.thread.has_work() {
            self.done_at = Some(now + span(MAX_DISK_TIME));
        }
    }
}

impl Host {
    /// Makes a host with a node that is not a member yet.
    pub(super) fn start(
        number: u32,
        time: &Time,
        network: &Networks,
        (further, setup): (Further, Setup),
    ) -> Self {
        let mut host = Self {
            number,
            time: time.clone(),
            clocks: Clocks::new(time, UNIX_START),
            network: network.clone(),
            further,
            setup,
            disk: setup.has_disks.then(|| TempDir::new().expect("a directory for objects")),
            node: None,
            is_expelled: false,
            stalled_until: Duration::ZERO,
            starts: 0,
            has_turned: false,
        };
        host.start_again();
        host
    }

    /// Starts a node on a host that has none.
    pub(super) fn start_again(&mut self) {
        self.starts += 1;
        let tasks = Tasks::new();
        let (core, disk, proposals) = self.compose(&tasks);
        core.kernel.spawn(Rc::clone(&core).tick());
        let (inbox, events, next_turn) = (Inbox::default(), VecDeque::new(), Cell::default());
        self.node = Some(Node { core, disk, tasks, inbox, events, proposals, next_turn });
        self.clocks.wake();
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

    /// Whether the host's nodes keep objects on a disk.
    pub(super) fn has_disk(&self) -> bool {
        self.disk.is_some()
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

    /// Has the node take no turn for a while, as if its host had no time for the node.
    pub(super) fn stall(&mut self, until: Duration) {
        self.stalled_until = until;
    }

    /// Has the host sleep for a while: as with [`Host::stall`], the node takes no turn, and its timers stand
    /// still.
    pub(super) fn sleep(&mut self, until: Duration) {
        self.clocks.sleep(until);
        self.stall(until);
    }

    /// Has the node take turns again, and has its disk have room.
    pub(super) fn mend(&mut self) {
        self.stalled_until = Duration::ZERO;
        self.clocks.wake();
        self.set_disk_room(Room::Always);
    }

    /// Sets whether the disk of the node has room, if it has a disk.
    pub(super) fn set_disk_room(&mut self, room: Room) {
        let disk = self.node.as_mut().and_then(|node| node.disk.as_mut());
        disk.into_iter().for_each(|disk| disk.room = room);
    }

    /// Makes a client's request, after which a turn of the node is due. A host without a node takes no
    /// request.
    pub(super) fn ask(&self, asked: Asked) {
        if let Some(node) = &self.node {
            node.next_turn.set(Duration::ZERO);
            node.core.sessions.request(asked).expect("a client of this release asks it");
        }
    }

    /// Spawns a task of the node, after which a turn of the node is due. A host without a node does nothing.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        if let Some(node) = &self.node {
            node.next_turn.set(Duration::ZERO);
            node.core.kernel.spawn(task);
        }
    }

    /// Has the node hand over the objects that it keeps, and end.
    pub(super) fn drain(&self) {
        if let Some(node) = &self.node {
            node.next_turn.set(Duration::ZERO);
            // A node without another node to hand over to stays.
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

    /// Takes the proposals of the node to the coordinator.
    pub(super) fn take_proposals(&mut self) -> Vec<Proposal> {
        let node = self.node.as_mut();
        let next = |node: &mut Node| node.proposals.next().now_or_never().flatten();
        node.map_or_else(Vec::new, |node| std::iter::from_fn(|| next(node)).collect())
    }

    /// Time at which the node's next turn is due. The network may bring something earlier.
    pub(super) fn due(&self, now: Duration) -> Option<Duration> {
        let node = self.node.as_ref()?;
        Some(node.due(now).max(self.stalled_until))
    }

    /// Takes turns as long as one is due. Returns whether the node has left the cluster.
    pub(super) fn run(&mut self, now: Duration) -> bool {
        let Some(node) = self.node.as_mut().filter(|_| self.stalled_until <= now) else { return false };
        for _ in 0..MAX_TURNS {
            if node.due(now) > now {
                break;
            }
            node.turn(now);
            self.has_turned = true;
        }
        let has_left = node.core.placement.is_drained();
        if has_left {
            self.kill();
        }
        has_left
    }

    /// Runs the tasks that a client's request has begun, and sends the replies.
    pub(super) fn turn(&mut self, now: Duration) {
        if let Some(node) = &mut self.node {
            node.turn(now);
            self.has_turned = true;
        }
    }

    /// Whether the node took a turn since the last call.
    pub(super) fn take_turned(&mut self) -> bool {
        std::mem::take(&mut self.has_turned)
    }
}

impl Host {
    /// Makes the core of a node on this host.
    fn compose(&self, tasks: &Tasks) -> (Rc<Core>, Option<Disk>, UnboundedReceiver<Proposal>) {
        let (disk, memory) = (
            self.disk.as_ref().map(TempDir::path),
            if self.disk.is_some() { SMALL_MEMORY_BYTES } else { MEMORY_BYTES },
        );
        let config = Config {
            prefault: false,
            huge_pages: false,
            lanes: 1 + below(MAX_LANES),
            verify: self.setup.verify,
            push: self.setup.push,
            qos: self.setup.qos,
            spill_dir: disk.map(Path::to_owned),
            ..Config::new(memory, "simulated")
        };
        let keeping = keeping(&config);
        let (timers, boot) = (self.clocks.clone(), self.clocks.clone());
        let unix = UNIX_START + self.time.now();
        // A simulation is short.
        let boot = move || boot.boot().as_nanos() as u64;
        let clock = Clock::with_boot(move || timers.instant(), unix, boot);
        let kernel = Rc::new(Kernel::new(config, format!("10.0.0.{}:1", self.number), clock, tasks));
        let arena = Arena::new(&ArenaConfig {
            capacity: memory,
            segment_size: None,
            huge_pages: HugePages::Never,
            prefault: false,
            near: None,
            huge_allowance: None,
        });
        let arena = arena.expect("there is memory for a small arena");
        let objects = Table::new(keeping, arena.home());
        let stamps = objects.stamps.borrow().memory().clone();
        let network = Network::open(&kernel, &self.network.providers(self.number), &arena, &stamps);
        let network = Rc::new(network.expect("the memory network has room"));
        let (proposals, proposed) = unbounded();
        let host = HostParts {
            numa: Binding::default(),
            places: Places::new(None, arena.segment_count(), 64),
            tunings: Tunings::load(None, "memory"),
            waker: Waker::new().expect("an eventfd"),
            epoll: Rc::new(epoll::create(CreateFlags::CLOEXEC).expect("an epoll set")),
            succeeds: false,
            proposals,
        };
        let clients = Clients::default();
        let readers = Rc::clone(&clients) as Rc<dyn Readers>;
        let opened = disk.map(|path| SpillStore::open_stepped(path).expect("a directory for objects"));
        let (spill, disk) = opened
            .map(|(spill, thread, recovered)| {
                (spill, Disk { thread, done_at: None, room: Room::Drawn, recovered })
            })
            .unzip();
        let store = Rc::new(Store::new(&kernel, &network, arena, objects, spill, readers));
        let core = Core::compose(&store, clients, host, (self.further)(&network))
            .expect("no two services claim an opcode");
        core.sessions.share_segments();
        (Rc::new(core), disk, proposed)
    }
}

impl Node {
    /// Time at which the next turn is due.
    fn due(&self, now: Duration) -> Duration {
        if self.tasks.are_woken() || self.core.has_more() || self.core.network.has_arrivals() {
            return now;
        }
        let event = self.events.front().map(|(at, _)| *at);
        let disk = self.disk.as_ref().and_then(|disk| disk.done_at);
        [event, disk].into_iter().flatten().fold(self.next_turn.get(), Duration::min)
    }

    /// One turn of the engine.
    fn turn(&mut self, now: Duration) {
        self.run_disk(now);
        self.core.begin_turn(&mut self.inbox, false).expect("the memory network does not break");
        while let Some((_, event)) = self.events.pop_front_if(|(at, _)| *at <= now) {
            self.core.on_event(event);
            self.recover();
        }
        self.core.kernel.clock.fire();
        self.tasks.run_until_stalled();
        let more = self.core.end_turn() > 0;
        let span = if more { Some(Duration::ZERO) } else { self.core.due() };
        self.next_turn.set(span.map_or(Duration::MAX, |span| now + span));
        self.run_disk(now);
    }

    fn run_disk(&mut self, now: Duration) {
        self.disk.iter_mut().for_each(|disk| disk.run(now));
    }

    /// Takes over what the host's former node left on disk.
    fn recover(&mut self) {
        let recovered = self.disk.as_mut().map(|disk| std::mem::take(&mut disk.recovered));
        self.core.recover(recovered.unwrap_or_default());
    }

    fn end(self) {
        self.core.sessions.clients.borrow_mut().clear();
        self.core.services.clear();
        // Tasks hold the core, so they are dropped first.
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
