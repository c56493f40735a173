//! Settings with which a node is started, and their defaults. Owns no state. Any thread.

use std::path::PathBuf;
use std::time::Duration;

use plasmon::{Class, Protocol, Rights, Verify};
use plasmon_fabric::Library;

use crate::memory::Allowance;
use crate::numa::Numa;

/// Settings of a node. Sizes are bytes.
#[derive(Debug, Clone)]
pub struct Config {
    /// Number of bytes of the arena.
    pub memory: u64,
    /// Maximum number of bytes of all objects, data and metadata; `None` for as many as the arena holds.
    pub capacity: Option<u64>,
    /// Path of the unix socket for clients.
    pub socket: PathBuf,
    /// Whether the node serves at another path beside `socket` while another daemon serves at `socket`.
    pub yields_socket: bool,
    /// Mode of the socket: which users of this host may connect.
    pub socket_mode: u32,
    /// The address at which other nodes reach this one, `host:port`; port 0 takes any port. `None` takes
    /// the address that leads to the coordinator, or a free port of loopback without one.
    pub listen: Option<String>,
    /// The cluster to join, as `host:port` of any of its nodes. `None` starts a cluster whose
    /// coordinator is embedded in this node.
    pub join: Option<String>,
    /// The etcd cluster that coordinates the cluster. It excludes `join`.
    pub etcd: Option<EtcdConfig>,
    /// The address at which metrics are served over HTTP, `host:port`; port 0 takes any. `None` serves
    /// none.
    pub metrics: Option<String>,
    /// The file with the cluster's secret. Without one, the node listens for its own host only.
    pub secret_file: Option<PathBuf>,
    /// The certificates for control connections; `None` makes one. Certificates of files need a secret as
    /// well.
    pub tls: Option<TlsConfig>,
    /// The libfabric to load; `None` takes the one beside the program, else that of the host.
    pub libfabric: Option<Library>,
    /// The libfabric provider; `None` chooses the best available one.
    pub provider: Option<String>,
    /// Number of bulk lanes to each peer.
    pub lanes: usize,
    /// How classes of work are kept apart on the way to other nodes.
    pub qos: Qos,
    /// Users that may have work of high and of low class.
    pub classes: Grants,
    /// The limits of the process's control groups; `None` where there is no limit.
    pub allowance: Option<Allowance>,
    /// The huge pages of the host's pool that the control groups of this process allow; `None` if they have
    /// no limit.
    pub huge_allowance: Option<Allowance>,
    /// Whether to use huge pages when the machine has enough of them free.
    pub huge_pages: bool,
    /// Whether to touch all memory in the background after the start.
    pub prefault: bool,
    /// The memory node on which to run, where the host has several.
    pub numa: Numa,
    /// How objects are fetched from other nodes.
    pub protocol: Protocol,
    /// Choice of objects whose bytes are compared with the digest of their seal when they come from other
    /// nodes.
    pub verify: Verify,
    /// How objects come that are short, but do not fit one message.
    pub push: PushBy,
    /// The file in which calibrations are kept; `None` forgets them when the node stops.
    pub calibration: Option<PathBuf>,
    /// How long the engine spins before it sleeps; `None` decides by the number of cores.
    pub spin: Option<Duration>,
    /// How long a node may be silent before the coordinator takes it for dead.
    pub lease: Duration,
    /// How long a node that is told to stop hands over what it keeps before it ends; zero ends at once.
    pub drain_on_stop: Duration,
    /// Absolute path of the directory to which primaries are spilled when memory is needed. `None` refuses
    /// new objects then. It excludes `cache`.
    pub spill_dir: Option<PathBuf>,
    /// Whether a full store drops the least recently used objects, primaries too, instead of refusing new
    /// ones. It excludes `spill_dir`.
    pub cache: bool,
    /// Number of bytes of memory that the objects of one client may take; `None` sets no limit.
    pub client_quota: Option<u64>,
    /// Number of bytes of memory that the objects of one user (uid) may take; `None` sets no limit.
    pub user_quota: Option<u64>,
    /// Maximum number of bytes of memory that all regions may take; `None` for half of what the arena may
    /// hold.
    pub region_memory: Option<u64>,
    /// Number of bytes of memory that names, attributes and maps of files may take; `None` for a twentieth
    /// of `memory`.
    pub files_memory: Option<u64>,
    /// Whether the node may be the home of volumes of files.
    pub files: bool,
    /// Maximum number of regions of one user (uid).
    pub user_regions: u32,
    /// The rights of other users to objects created here that all users may read.
    pub public: Rights,
    /// Maximum number of clients that one user (uid) may have connected at a time.
    pub max_clients: u32,
}

/// How objects that do not fit one message come in one round trip, with the protocol *auto*.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PushBy {
    /// Objects come by writes, where this node survives the death of a writer in the middle of one; else they
    /// come in messages.
    #[default]
    Auto,
    /// Objects come in messages only.
    Messages,
    /// Objects come by writes, with any provider.
    Write,
}

/// How classes of work are kept apart on the way to other nodes. Frames of higher classes leave first in any
/// case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Qos {
    /// Nothing but the order of frames keeps classes apart.
    #[default]
    Off,
    /// Each class has its own connections, and its own limits of reads and messages under way.
    Separate,
    /// Work of low class is limited while work of high class is busy.
    Priority,
}

impl Qos {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Off, Self::Separate, Self::Priority];

    /// Name of the mode, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Separate => "separate",
            Self::Priority => "priority",
        }
    }
}

/// Users that may have work of high and of low class. Every user may have normal work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grants {
    /// The users whose work may be high.
    pub high: Users,
    /// The users whose work may be low.
    pub low: Users,
}

/// Some users of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Users {
    /// All users of the host.
    Everybody,
    /// The users with these numbers.
    Only(Vec<u32>),
}

impl Default for Grants {
    fn default() -> Self {
        let own = rustix::process::geteuid().as_raw();
        Self { high: Users::Only(vec![0, own]), low: Users::Everybody }
    }
}

impl Grants {
    /// Whether the work of a user may be of a class.
    pub(crate) fn allow(&self, user: u32, class: Class) -> bool {
        let users = match class {
            Class::High => &self.high,
            Class::Normal => return true,
            Class::Low => &self.low,
        };
        match users {
            Users::Everybody => true,
            Users::Only(users) => users.contains(&user),
        }
    }
}

/// The files of certificates for the connections between nodes, in PEM.
#[derive(Debug, Clone)]
pub struct TlsConfig {
    /// This node's own certificate, and those between it and the authority's.
    pub cert: PathBuf,
    /// The key of the node's certificate.
    pub key: PathBuf,
    /// The certificates of the authority that vouches for all nodes.
    pub ca: PathBuf,
}

/// An etcd cluster that coordinates a cluster, with the credentials for its servers.
#[derive(Debug, Clone)]
pub struct EtcdConfig {
    /// The addresses of the servers, `host:port`: at least one.
    pub endpoints: Vec<String>,
    /// The prefix of this cluster's keys, without a slash at the end.
    pub prefix: String,
    /// The name of the user, and the file with the password.
    pub user: Option<(String, PathBuf)>,
    /// The file of the certificates that vouch for the servers; with it, connections use TLS.
    pub ca: Option<PathBuf>,
    /// The files of this node's own certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl EtcdConfig {
    /// The URL of the etcd cluster, without the user.
    pub(crate) fn place(&self) -> String {
        format!("etcd://{}{}", self.endpoints.join(","), self.prefix)
    }
}

/// The default address on which a node listens: a free port that only its own host can reach.
pub(crate) const DEFAULT_LISTEN: &str = "127.0.0.1:0";

/// The default time of silence after which a node is taken for dead.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(5);

/// The default maximum number of regions of one user.
const DEFAULT_USER_REGIONS: u32 = 1 << 16;

/// The default maximum number of clients of one user.
const DEFAULT_MAX_CLIENTS: u32 = 4096;

impl Config {
    /// Makes the settings of a cluster's first node.
    pub fn new(memory: u64, socket: impl Into<PathBuf>) -> Self {
        Self {
            memory,
            capacity: None,
            socket: socket.into(),
            yields_socket: false,
            socket_mode: 0o600,
            listen: None,
            join: None,
            etcd: None,
            metrics: None,
            secret_file: None,
            tls: None,
            libfabric: None,
            provider: None,
            lanes: 1,
            qos: Qos::Off,
            classes: Grants::default(),
            allowance: None,
            huge_allowance: None,
            huge_pages: true,
            prefault: true,
            numa: Numa::Auto,
            protocol: Protocol::Auto,
            verify: Verify::default(),
            push: PushBy::Auto,
            calibration: None,
            spin: None,
            lease: DEFAULT_LEASE,
            drain_on_stop: Duration::ZERO,
            spill_dir: None,
            cache: false,
            client_quota: None,
            user_quota: None,
            region_memory: None,
            files_memory: None,
            files: true,
            user_regions: DEFAULT_USER_REGIONS,
            public: Rights::Read,
            max_clients: DEFAULT_MAX_CLIENTS,
        }
    }

    /// The place of the coordinator, for people.
    pub(crate) fn coordinator(&self) -> String {
        match (&self.etcd, &self.join) {
            (Some(etcd), _) => etcd.place(),
            (None, Some(join)) => join.clone(),
            (None, None) => "embedded".into(),
        }
    }
}
