//! Control work on a thread of its own, with tokio: membership, signals, and the HTTP service of [`monitor`].
//!
//! Owns the thread and the control port. The engine never waits for this thread: news reach the engine as
//! [`Event`]s through a channel, with a wake of its poll. A [`member::Coordinator`] decides who the members
//! are: the one that the first node embeds ([`embedded`], with the [`registry`] behind it), or [`etcd`].
//! Every node listens on its control address. Other nodes join at the node with the embedded coordinator, and
//! any other node tells them where that is.

mod admission;
mod embedded;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod guard;
pub(crate) mod link;
mod member;
mod messages;
pub(crate) mod monitor;
pub(crate) mod records;
mod registry;
pub(crate) mod secret;
pub(crate) mod simulation;
pub(crate) mod validity;

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use futures::channel::mpsc::UnboundedReceiver;
use plasmon::NodeId;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{debug, warn};

pub(crate) use self::guard::GuardError;

use self::embedded::{Following, Leading};
#[cfg(feature = "etcd")]
use self::etcd::Etcd;
use self::guard::{Guard, Turned};
use self::member::Outside;
use self::messages::FromCoordinator;
use self::monitor::Question;
use self::records::{Proposal, Proposed, RecordNews, Records};
use self::registry::Registry;
use self::secret::Secret;
use self::validity::Validity;
use crate::config::Config;
use crate::kernel::seldom::Seldom;
use crate::kernel::waker::Waker;
use crate::net::door::{CONTROL, Door, Place};
use crate::net::members::{Incarnation, Member, View};

/// News for the engine.
#[derive(Debug)]
pub(crate) enum Event {
    /// This node is a member, as this incarnation. The engine's former knowledge of the other nodes is void.
    Joined {
        incarnation: Incarnation,
        view: View,
        /// The node in which the coordinator is embedded, if it is embedded.
        coordinator: Option<NodeId>,
        /// The records of all volumes.
        records: Records,
    },
    /// The members changed.
    View {
        view: View,
        /// Whether there were views between this one and the last, of which nobody told this node.
        skips: bool,
    },
    /// Records of volumes changed.
    Records(Vec<RecordNews>),
    /// Members join the coordinator in this node that have followed these coordinators' nodes before. Views
    /// with these members come later.
    FormerLives(Vec<NodeId>),
    /// The coordinator has looked at a proposal of this node.
    Proposed(Proposed),
    /// The coordinator has begun or ceased to answer; this node stays a member.
    Answers(bool),
    /// The coordinator does not answer; its node is to be taken for dead.
    CoordinatorLost,
    /// This node is not a member any more.
    Expelled,
    /// The state of the RDMA device's link, at the start or after a change.
    Link { device: String, state: String },
    /// A question from the monitoring of this node.
    Asked(Question),
    /// The node is to stop, for this reason.
    Stop(&'static str),
    /// Control ended with an error: the node cannot go on.
    Failed(ControlError),
}

/// Why a node cannot be part of its cluster.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The node cannot listen on its address.
    #[error(
        "cannot listen on {address}: {source}; choose another with --listen HOST:PORT (port 0 takes a free \
         one)"
    )]
    Listen {
        /// The address that was asked for.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The node cannot listen on the address for metrics.
    #[error(
        "cannot serve metrics at {address}: {source}; choose another with --metrics HOST:PORT (port 0 takes \
         a free one)"
    )]
    Metrics {
        /// The address that was asked for.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// No node answers at the address of the cluster.
    #[error(
        "cannot join the cluster at {join}: {reason}; is its first node running, and reachable from here?"
    )]
    Unreachable {
        /// The address that was asked for.
        join: String,
        /// The last reason.
        reason: String,
    },
    /// A node of the cluster answers, and the coordinator does not.
    #[error(
        "cannot join the cluster through {asked}: the node there answers, but the cluster's coordinator at \
         {coordinator}, which alone admits nodes, does not ({reason}); start the cluster's first node again \
         with `plasmon serve --listen {coordinator}` and the cluster's secret, or see whether this host \
         reaches that address"
    )]
    Headless {
        /// The address that was asked for.
        asked: String,
        /// The address of the coordinator, as the node there names it.
        coordinator: String,
        /// The last reason.
        reason: String,
    },
    /// etcd does not answer, or gives a faulty answer.
    #[error(
        "cannot join the cluster at {place}: {reason}; is etcd running, and reachable from here? `etcdctl \
         endpoint health` asks it"
    )]
    Etcd {
        /// The place of etcd that was asked for.
        place: String,
        /// The last reason.
        reason: String,
    },
    /// This program has no client of etcd.
    #[error(
        "cannot join the cluster at {place}: this plasmon was built without etcd's client; install one that \
         has it \
         (`cargo build -p plasmon-cli`, without --no-default-features), or name a node of a cluster with \
         --join HOST:PORT"
    )]
    NoEtcd {
        /// The place of etcd that was asked for.
        place: String,
    },
    /// The cluster does not take this node.
    #[error("the cluster {join} refused this node: {reason}")]
    Refused {
        /// The place of the cluster.
        join: String,
        /// The coordinator's reason.
        reason: String,
    },
    /// The secret or the certificates cannot be used.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// Other hosts could reach a node that admits every connection.
    #[error(
        "will not listen on {address}: without a secret a node can be reached from its own host only, since \
         every process that reaches it can join and read and write every shared object; make a secret \
         with `plasmon secret FILE`, copy the file to every host, and start every node with \
         --secret-file FILE"
    )]
    Unguarded {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// The name to listen on is an address that no other host reaches, and the cluster is on other hosts.
    #[error(
        "will not join the cluster at {join} from {address}: on this host the name {name} is that address \
         (see /etc/hosts), and no other host reaches it; name the address that others know with --listen, \
         such as --listen {own}"
    )]
    Loopback {
        /// The name that was to be listened on.
        name: String,
        /// The address that the name has on this host.
        address: SocketAddr,
        /// The place of the cluster.
        join: String,
        /// The address of this host that leads there.
        own: IpAddr,
    },
    /// The system does not let this node handle a signal.
    #[error("cannot handle SIGTERM and SIGINT: {0}; without them the node could not be stopped cleanly")]
    Signals(io::Error),
    /// The control thread cannot be started.
    #[error("cannot start the control thread: {0}")]
    Thread(io::Error),
}

/// Sends events to the engine and wakes it.
#[derive(Clone)]
pub(crate) struct EventSender {
    channel: mpsc::Sender<Event>,
    waker: Waker,
}

impl EventSender {
    pub(crate) fn new(channel: mpsc::Sender<Event>, waker: Waker) -> Self {
        Self { channel, waker }
    }

    pub(crate) fn send(&self, event: Event) {
        // An engine that has gone needs no news.
        if self.channel.send(event).is_ok() {
            self.waker.wake();
        }
    }
}

/// The bound control address. It is bound before anything else, so that a taken port is known at once.
pub(crate) struct Listener {
    runtime: tokio::runtime::Runtime,
    signals: Signals,
    listener: TcpListener,
    address: SocketAddr,
    monitor: Option<monitor::Listener>,
    guard: Guard,
}

impl Listener {
    /// Binds the addresses of the configuration. SIGTERM and SIGINT are handled from before the first socket
    /// is bound, so a signal during the start stops the node as soon as the control thread runs.
    ///
    /// # Errors
    /// When the address does not resolve or is taken, when the cluster to join has no address, or when
    /// other hosts could connect and there is no secret or it cannot be used.
    pub(crate) fn bind(config: &Config) -> Result<Self, ControlError> {
        if !cfg!(feature = "etcd")
            && let Some(etcd) = &config.etcd
        {
            return Err(ControlError::NoEtcd { place: etcd.place() });
        }
        let secret = config.secret_file.as_deref().map(Secret::read).transpose().map_err(GuardError::from)?;
        let guard = Guard::new(secret, config.tls.as_ref())?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ControlError::Thread)?;
        let signals = {
            let _runtime = runtime.enter();
            Signals::handle().map_err(ControlError::Signals)?
        };
        let address = listen_address(config)?;
        let error = |source| ControlError::Listen { address: address.clone(), source };
        let listener = runtime.block_on(TcpListener::bind(&address)).map_err(error)?;
        let address = listener.local_addr().map_err(error)?;
        if guard.secret().is_none() && !address.ip().is_loopback() {
            return Err(ControlError::Unguarded { address });
        }
        ensure_reached(config, address)?;
        let monitor = match &config.metrics {
            Some(address) => Some(runtime.block_on(monitor::Listener::bind(address))?),
            None => None,
        };
        Ok(Self { runtime, signals, listener, address, monitor, guard })
    }

    /// The address, with the port that was taken.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address at which metrics are served, with the port that was taken.
    pub(crate) fn metrics(&self) -> Option<SocketAddr> {
        self.monitor.as_ref().map(monitor::Listener::address)
    }

    /// Starts the thread: it joins, keeps the membership, and passes signals on.
    pub(crate) fn start(
        self,
        config: &Config,
        member: Member,
        events: EventSender,
        proposals: UnboundedReceiver<Proposal>,
        #[cfg_attr(
            not(feature = "etcd"),
            allow(unused_variables, reason = "memberships by etcd alone have an end")
        )]
        validity: Arc<Validity>,
    ) -> Result<Control, ControlError> {
        let (stop, stopped) = watch::channel(false);
        let (etcd, join, lease) = (config.etcd.clone(), config.join.clone(), config.lease);
        let thread = std::thread::Builder::new()
            .name("plasmon-control".into())
            .spawn(move || {
                let Self { runtime, signals, listener, monitor, guard, .. } = self;
                runtime.block_on(async {
                    tokio::spawn(signals.pass_on(events.clone()));
                    if let Some(monitor) = monitor {
                        tokio::spawn(monitor.serve(events.clone()));
                    }
                    let out = Outside { events: events.clone(), proposals, stop: stopped };
                    let ended = match (etcd, join) {
                        #[cfg(feature = "etcd")]
                        (Some(etcd), _) => {
                            let place = etcd.place();
                            let etcd = Etcd::new(etcd, guard.clone(), lease, validity);
                            beside(refuse(listener, guard, &place), member::run(etcd, member, out)).await
                        }
                        (_, Some(join)) => follow(listener, guard, join, member, out).await,
                        (_, None) => lead(listener, guard, member, lease, out).await,
                    };
                    if let Err(error) = ended {
                        events.send(Event::Failed(error));
                    }
                });
            })
            .map_err(ControlError::Thread)?;
        Ok(Control { stop, thread: Some(thread) })
    }
}

/// The running control thread. Dropping it leaves the cluster and ends the thread.
pub(crate) struct Control {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            warn!("the control thread panicked");
        }
    }
}

/// Returns the address of this host that leads to another place, and the address of that place.
fn route_to(place: &str) -> io::Result<(IpAddr, IpAddr)> {
    let to = place.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    // Connecting a datagram socket sends nothing; it asks the routing table.
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    Ok((socket.local_addr()?.ip(), to.ip()))
}

/// Refuses a name to listen on that is an address of loopback on this host, if the cluster is on another
/// host. An address of loopback that was named as such is taken.
fn ensure_reached(config: &Config, address: SocketAddr) -> Result<(), ControlError> {
    let (Some(listen), Some(join)) = (&config.listen, &config.join) else { return Ok(()) };
    let name = listen.rsplit_once(':').map_or(listen.as_str(), |(name, _)| name);
    let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    match route_to(join) {
        Ok((own, there)) if address.ip().is_loopback() && !is_address && own != there => {
            Err(ControlError::Loopback { name: name.to_owned(), address, join: join.clone(), own })
        }
        _ => Ok(()),
    }
}

/// The address to listen on: the given one, or the one that leads to the cluster, or the default.
fn listen_address(config: &Config) -> Result<String, ControlError> {
    let route = |to: &str| route_to(to).map(|(own, _)| SocketAddr::new(own, 0).to_string());
    match (&config.listen, &config.etcd, &config.join) {
        (Some(address), ..) => Ok(address.clone()),
        (None, None, None) => Ok(crate::config::DEFAULT_LISTEN.to_owned()),
        (None, Some(etcd), _) => {
            let mut routes = etcd.endpoints.iter().map(|endpoint| route(endpoint));
            // Any of the addresses is enough. If none is, the last error is reported.
            let found =
                routes.by_ref().find(Result::is_ok).or_else(|| etcd.endpoints.last().map(|at| route(at)));
            let reason =
                |error: io::Error| ControlError::Etcd { place: etcd.place(), reason: error.to_string() };
            found.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into())).map_err(reason)
        }
        (None, None, Some(join)) => route(join)
            .map_err(|error| ControlError::Unreachable { join: join.clone(), reason: error.to_string() }),
    }
}

/// Runs control on the first node, in which the coordinator is embedded.
async fn lead(
    listener: TcpListener,
    guard: Guard,
    member: Member,
    lease: Duration,
    outside: Outside,
) -> Result<(), ControlError> {
    let registry = Registry::new(member.clone(), lease);
    let leading = Leading::new(member.node, &registry);
    let admit = accept(listener, |stream, peer, place| {
        tokio::spawn(Arc::clone(&registry).serve(guard.clone(), stream, peer, place));
    });
    beside(admit, member::run(leading, member, outside)).await
}

/// Runs control on any other node: a member that knows where the coordinator is.
async fn follow(
    listener: TcpListener,
    guard: Guard,
    join: String,
    member: Member,
    outside: Outside,
) -> Result<(), ControlError> {
    let (found, coordinator) = watch::channel(join.clone());
    let own = guard.clone();
    let redirect = accept(listener, |stream, _, place| {
        let to = coordinator.borrow().clone();
        tokio::spawn(dismiss(own.clone(), stream, place, FromCoordinator::Redirect(to)));
    });
    beside(redirect, member::run(Following::new(guard, join, found), member, outside)).await
}

/// Tells every node that connects that this cluster is joined through etcd.
#[cfg(feature = "etcd")]
async fn refuse(listener: TcpListener, guard: Guard, place: &str) {
    let reason = format!("it is joined through etcd: plasmon serve --coordinator {place}");
    accept(listener, |stream, _, place| {
        tokio::spawn(dismiss(guard.clone(), stream, place, FromCoordinator::Refused(reason.clone())));
    })
    .await
}

/// Runs a future that never ends until the other one has ended.
async fn beside<T>(for_ever: impl Future<Output = ()>, ending: impl Future<Output = T>) -> T {
    let mut ending = std::pin::pin!(ending);
    tokio::select! {
        ended = &mut ending => ended,
        () = for_ever => ending.await,
    }
}

/// Accepts connections for ever. Each of them begins with a place in the door.
async fn accept(listener: TcpListener, mut take: impl FnMut(TcpStream, SocketAddr, Place)) {
    static TURNED_AWAY: Seldom = Seldom::new();
    let door = Door::new(CONTROL);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => match door.enter(peer.ip()) {
                Some(place) => take(stream, peer, place),
                None => {
                    if let Some(unsaid) = TURNED_AWAY.due() {
                        warn!(%peer, unsaid, "turned away: too many others have connected that have proved \
                            nothing yet");
                    }
                }
            },
            Err(error) => refused_connection(error).await,
        }
    }
}

/// Sends one message on a connection, and closes it.
async fn dismiss(guard: Guard, stream: TcpStream, mut place: Place, answer: FromCoordinator) {
    let tell = async {
        let mut wire = guard.accept(stream).await?;
        wire.send(&answer).await.map_err(Turned::from)
    };
    match place.hold(tell).await {
        Ok(Ok(())) => {}
        Ok(Err(turned)) => debug!("a connection was not told where the coordinator is: {turned}"),
        Err(displaced) => debug!("a connection was not told where the coordinator is: {displaced}"),
    }
}

/// Handles a failed accept. The usual reason is too many open files: the task waits a little instead of
/// spinning.
async fn refused_connection(error: io::Error) {
    static TOLD: Seldom = Seldom::new();
    if let Some(unsaid) = TOLD.due() {
        warn!(unsaid, "cannot accept a control connection: {error}");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// The signals that stop a node. From [`Signals::handle`] on they do not end the process by themselves.
/// Signals that come before [`Signals::pass_on`] runs are kept for it.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Handles SIGTERM and SIGINT; called within the runtime that will pass them on.
    fn handle() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Turns SIGTERM and SIGINT into [`Event::Stop`].
    async fn pass_on(mut self, events: EventSender) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => events.send(Event::Stop("SIGTERM")),
                _ = self.interrupt.recv() => events.send(Event::Stop("interrupt")),
            }
        }
    }
}
