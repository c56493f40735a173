//! The engine: one thread that owns all state of a node.
//!
//! Owns the loop, the sockets and the tasks; [`Core`] has the other state. A turn of the loop polls the
//! fabric, takes frames to itself, news of the control thread, timers and the sockets of clients, then runs
//! the tasks that these woke, and at its end sends what has gathered. When a turn brought nothing the engine
//! spins for a bounded while, if there are cores to spare, and then sleeps on all descriptors at once:
//! sockets, control thread and the fabric's completion queue. Invariant: the thread blocks nowhere else.

mod classes;
mod core;
mod overview;
#[cfg(test)]
mod simulation;
mod turn;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use plasmon::NodeId;
use plasmon_fabric::{FabricError, Provider};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, warn};

pub(crate) use self::core::{Core, Host};
use self::turn::Inbox;
use crate::config::Config;
use crate::control::link::LinkWatch;
use crate::control::records::Proposal;
use crate::control::{Control, ControlError, Event, EventSender, Listener as ControlListener};
use crate::kernel::Kernel;
use crate::kernel::clock::Clock;
use crate::kernel::tasks::Tasks;
use crate::kernel::waker::Waker;
use crate::memory::{Arena, ArenaConfig, ArenaError, HugePages};
use crate::net::members::Member;
use crate::net::network::Network;
use crate::numa::{self, NumaError};
use crate::object::{Keeping, Table};
use crate::service::Overlap;
use crate::sessions::Clients;
use crate::sessions::listener::ListenError;
use crate::sessions::places::Places;
use crate::sessions::rings::Rings;
use crate::sessions::sockets::{BindError, Sockets};
use crate::spill::{Recovered, SpillError, SpillStore};
use crate::store::{Readers, Store};
use crate::transfer::Tunings;

/// Interval at which a fabric without a descriptor is polled.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Time for which rings are looked at after the last entry: about what waking costs.
const RING_SPIN: Duration = Duration::from_micros(20);
/// Time for which the engine looks for an answer of another node before it sleeps.
const ANSWER_SPIN: Duration = Duration::from_micros(50);

/// Why a node cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The memory cannot be had.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// The memory node cannot be had.
    #[error(transparent)]
    Numa(#[from] NumaError),
    /// The network cannot be opened.
    #[error("cannot open the fabric: {0}")]
    Fabric(#[from] FabricError),
    /// The unix socket cannot be had.
    #[error(transparent)]
    Socket(#[from] ListenError),
    /// Two subsystems claim the same messages.
    #[error(transparent)]
    Services(#[from] Overlap),
    /// The spill directory cannot be used.
    #[error(transparent)]
    Spill(#[from] SpillError),
    /// The cluster cannot be joined.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// SIGTERM or an interrupt came before the node served.
    #[error("stopped by {0} before the node was a member")]
    Stopped(&'static str),
    /// The system refuses something the loop needs.
    #[error("the engine's loop failed: {0}")]
    Loop(#[from] io::Error),
}

impl From<BindError> for NodeError {
    fn from(error: BindError) -> Self {
        match error {
            BindError::Socket(error) => Self::Socket(error),
            BindError::Loop(error) => Self::Loop(error),
        }
    }
}

/// A node that serves.
pub struct Node {
    // The fields are in the order of their end: the cluster is told, clients are let go, then state goes.
    control: Control,
    metrics: Option<SocketAddr>,
    _link: Option<LinkWatch>,
    sockets: Sockets,
    rings: Rings,
    tasks: Tasks,
    core: Rc<Core>,
    events: mpsc::Receiver<Event>,
    spin: Duration,
}

impl Node {
    /// Binds, opens and registers everything, and joins the cluster.
    ///
    /// # Errors
    /// With the obstacle and what to do about it, or [`NodeError::Stopped`]. Nothing is left behind then.
    pub fn start(mut config: Config) -> Result<Self, NodeError> {
        raise_limits();
        let descriptors = getrlimit(Resource::Nofile).current;
        let listener = ControlListener::bind(&config)?;
        let address = listener.address();
        let sockets = Sockets::bind(&config)?;
        config.socket = sockets.path().to_owned();
        let is_first = config.join.is_none() && config.etcd.is_none();
        sockets.leave_address(is_first.then_some(address));
        let source = source_of(&address);
        let provider = choose_provider(&config, &address, source.as_deref())?;
        // The thread is bound before there is memory to be placed, and before other threads start, which
        // inherit the binding.
        let numa = numa::bind(config.numa, provider.domain())?;
        let mut arena = Arena::new(&arena_config(&config, numa.node))?;
        if let Some(allowance) = &config.allowance {
            allowance.check(arena.capacity(), arena.page_kind())?;
        }
        config.capacity.into_iter().for_each(|bytes| arena.limit(bytes));
        let places = Places::new(descriptors, arena.segment_count(), config.max_clients);
        places.tell(descriptors);
        let objects = Table::new(keeping(&config), arena.home());
        let mut providers = vec![provider];
        if config.provider.is_none() {
            providers.extend(plasmon_fabric::second(&providers[0], source.as_deref())?);
        }
        let tasks = Tasks::new();
        let kernel = Rc::new(Kernel::new(config, address.to_string(), Clock::system(), &tasks));
        let network = Rc::new(Network::open(&kernel, &providers, &arena, objects.stamps.borrow().memory())?);
        for descriptor in network.wait_descriptors() {
            sockets.watch_fabric(descriptor)?;
        }
        let (spill, recovered) = open_spill(&kernel.config, sockets.waker())?;
        let clients = Clients::default();
        let readers = Rc::clone(&clients) as Rc<dyn Readers>;
        let store = Rc::new(Store::new(&kernel, &network, arena, objects, spill, readers));
        let (proposals, proposed) = unbounded();
        let host = Host {
            numa,
            places,
            tunings: Tunings::load(kernel.config.calibration.as_deref(), providers[0].name()),
            waker: sockets.waker(),
            epoll: sockets.epoll(),
            succeeds: sockets.succeeds(),
            proposals,
        };
        let core = Rc::new(Core::compose(&store, clients, host, Vec::new())?);
        let member = Member {
            node: kernel.node,
            incarnation: kernel.incarnation.get(),
            listen: kernel.listen.clone(),
            fabrics: core.network.reach(),
            token: core.network.token(),
        };
        Self::join(core, tasks, sockets, (listener, member, proposed), recovered)
    }

    /// Joins the cluster with all that is open, and takes over what a former daemon left on disk.
    fn join(
        core: Rc<Core>,
        tasks: Tasks,
        sockets: Sockets,
        (listener, member, proposed): (ControlListener, Member, UnboundedReceiver<Proposal>),
        recovered: Vec<Recovered>,
    ) -> Result<Self, NodeError> {
        let metrics = listener.metrics();
        if core.kernel.config.secret_file.is_none() {
            debug!("without a secret, this node can be reached from its own host only");
        }
        let (sender, events) = mpsc::channel();
        let events_out = EventSender::new(sender, sockets.waker());
        let rdma = Some(core.network.best()).filter(|best| best.is_rdma());
        let link = rdma.and_then(|best| LinkWatch::start(best.domain(), events_out.clone()));
        let validity = core.cluster.validity();
        let control = listener.start(&core.kernel.config, member, events_out, proposed, validity)?;
        let spin = core.kernel.config.spin.unwrap_or_else(default_spin);
        let mut node = Self {
            control,
            metrics,
            _link: link,
            sockets,
            rings: Rings::new(cores()),
            tasks,
            core,
            events,
            spin,
        };
        node.core.sessions.share_segments();
        node.await_membership()?;
        node.core.recover(recovered);
        node.core.kernel.spawn(Rc::clone(&node.core).tick());
        Ok(node)
    }

    /// The node's id.
    pub fn id(&self) -> NodeId {
        self.core.kernel.node
    }

    /// The path of the unix socket at which the node serves.
    pub fn socket(&self) -> &Path {
        &self.core.kernel.config.socket
    }

    /// The address of the control connection, `host:port`, with the port that was taken.
    pub fn listen(&self) -> &str {
        &self.core.kernel.listen
    }

    /// The address where metrics are served, `host:port`, with the port that was taken.
    pub fn metrics(&self) -> Option<String> {
        self.metrics.map(|address| address.to_string())
    }

    /// Serves until SIGTERM, an interrupt, the end of a drain, or an event that ends the node.
    ///
    /// # Errors
    /// When the node cannot go on.
    pub fn run(mut self) -> Result<(), NodeError> {
        let ended = self.turns();
        let Self { control, sockets, mut tasks, core, .. } = self;
        // Another node may give a lock to somebody else as soon as it hears of the end.
        core.guards.end();
        // Other nodes hear of the end first, so that no node starts to read objects that are about to go.
        drop(control);
        drop(sockets);
        core.sessions.clients.borrow_mut().clear();
        tasks.run_until_stalled();
        core.services.clear();
        ended
    }

    /// Waits for the first view: without a view, the node does not even know itself.
    fn await_membership(&mut self) -> Result<(), NodeError> {
        loop {
            match self.events.recv() {
                Ok(Event::Failed(error)) => return Err(error.into()),
                Ok(Event::Stop(why)) => return Err(NodeError::Stopped(why)),
                Err(mpsc::RecvError) => {
                    return Err(io::Error::other("the control thread has ended").into());
                }
                Ok(event @ (Event::Link { .. } | Event::Asked(_))) => self.core.on_event(event),
                Ok(event) => {
                    self.core.on_event(event);
                    return Ok(());
                }
            }
        }
    }

    fn turns(&mut self) -> Result<(), NodeError> {
        let mut inbox = Inbox::default();
        let mut idle_since = None;
        let (mut asleep, mut looked) = (false, true);
        loop {
            // Polling the fabric takes several system calls, and a client that has woken the engine does not
            // wait for them.
            let is_quiet = std::mem::take(&mut asleep) && self.sockets.fabric_is_quiet();
            let mut work = self.core.begin_turn(&mut inbox, is_quiet)?;
            // A client whose answer has come does not wait for a look at the other sockets either; the next
            // turn looks.
            looked = work == 0 || !looked;
            for event in self.events.try_iter() {
                work += 1;
                match event {
                    Event::Stop(why) if self.core.placement.stop(why) => return Ok(()),
                    Event::Stop(_) => {}
                    Event::Failed(error) => return Err(error.into()),
                    event => self.core.on_event(event),
                }
            }
            work += self.core.kernel.clock.fire();
            work += self.sockets.turn(&self.core.sessions, looked)?;
            work += self.rings.turn(&self.core.requests.creations, &mut self.sockets.rung);
            self.tasks.run_until_stalled();
            if self.core.placement.is_drained() {
                return Ok(());
            }
            work += self.core.end_turn();
            self.sockets.flush(&self.core.sessions);
            let more = self.core.has_more() || self.tasks.are_woken() || self.sockets.has_more();
            let (spin, answer_spin) = (self.spin.max(self.ring_spin()), self.answer_spin());
            if work > 0 || more {
                idle_since = None;
                // Without time to spend, the engine sleeps: that finds out whether there is more, and costs
                // less.
                if more || self.rings.may_have_more() || spin.max(answer_spin) > Duration::ZERO {
                    continue;
                }
            }
            let idle = idle_since.get_or_insert_with(Instant::now).elapsed();
            if idle < spin {
                std::hint::spin_loop();
            } else if idle < answer_spin {
                // Other processes that need this core get it.
                std::thread::yield_now();
            } else if !self.rings.rest(&self.core.sessions) {
                asleep = self.sleep()?;
                idle_since = None;
            }
        }
    }

    /// Time to look at rings before going to sleep: none where the clients need the cores.
    fn ring_spin(&self) -> Duration {
        if self.rings.may_spin() { RING_SPIN } else { Duration::ZERO }
    }

    /// Time to look for answers of other nodes before going to sleep: about the time that an answer takes,
    /// and longer than waking up would take.
    fn answer_spin(&self) -> Duration {
        if self.core.network.asks() || self.core.transfer.moves() { ANSWER_SPIN } else { Duration::ZERO }
    }

    /// Sleeps until a socket, the fabric, the control thread or a timer has something. `false` if there was
    /// no time for a sleep.
    fn sleep(&mut self) -> io::Result<bool> {
        let network = &self.core.network;
        if !network.try_wait() {
            return Ok(false);
        }
        let interval = network.must_be_polled().then_some(POLL_INTERVAL);
        self.sockets.wait([self.core.due(), interval].into_iter().flatten().min())?;
        Ok(!network.must_be_polled())
    }
}

/// Returns the fabric provider for a control address, from the local address `source`, and logs the reason.
fn choose_provider(
    config: &Config,
    address: &SocketAddr,
    source: Option<&str>,
) -> Result<Provider, FabricError> {
    plasmon_fabric::load(config.libfabric.as_ref())?;
    let provider = plasmon_fabric::choose(config.provider.as_deref(), source)?;
    let (name, reason) = (provider.name(), provider.reason());
    // A node that is for its own host alone has no use for RDMA.
    let unused = !provider.is_rdma() && !address.ip().is_loopback() && !plasmon_fabric::devices().is_empty();
    if unused && config.provider.is_none() {
        warn!("fabric provider {name}: {reason}; `plasmon doctor` says what is in the way");
    } else {
        debug!("fabric provider {name}: {reason}");
    }
    Ok(provider)
}

/// Treatment of primaries when memory is short, by the configuration.
fn keeping(config: &Config) -> Keeping {
    match (&config.spill_dir, config.cache) {
        (Some(_), _) => Keeping::Disk,
        (None, true) => Keeping::Cache,
        (None, false) => Keeping::Memory,
    }
}

/// Opens the store of spilled objects, if the node has one. Returns the objects that a former daemon left
/// there too.
fn open_spill(config: &Config, waker: Waker) -> Result<(Option<SpillStore>, Vec<Recovered>), SpillError> {
    let Some(directory) = &config.spill_dir else { return Ok((None, Vec::new())) };
    let (store, recovered) = SpillStore::open(directory, move || waker.wake())?;
    Ok((Some(store), recovered))
}

fn arena_config(config: &Config, near: Option<u32>) -> ArenaConfig {
    ArenaConfig {
        capacity: config.memory,
        segment_size: None,
        huge_pages: if config.huge_pages { HugePages::Auto } else { HugePages::Never },
        prefault: config.prefault,
        near,
        huge_allowance: config.huge_allowance.clone(),
    }
}

/// Returns the local address to which the fabric binds, so that it uses the interface of the cluster.
fn source_of(address: &SocketAddr) -> Option<String> {
    (!address.ip().is_unspecified()).then(|| address.ip().to_string())
}

/// Raises the limits of descriptors and of locked memory as far as this user may: every client and every
/// segment takes a descriptor, and RDMA locks the arena.
fn raise_limits() {
    for (resource, name) in [(Resource::Nofile, "open files"), (Resource::Memlock, "locked memory")] {
        let limit = getrlimit(resource);
        if let Err(error) = setrlimit(resource, Rlimit { current: limit.maximum, ..limit }) {
            warn!("cannot raise the limit of {name}: {error}");
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the default time of spinning: none where two nodes would leave no core to their clients.
fn default_spin() -> Duration {
    if cores() >= 4 { Duration::from_micros(50) } else { Duration::ZERO }
}
