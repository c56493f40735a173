//! What a node is told at its start.

use std::path::PathBuf;
use std::time::Duration;

use plasmon::{Protocol, Rights};

use crate::memory::Allowance;
use crate::numa::Numa;

/// Settings of a node. Sizes are bytes.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bytes of the arena.
    pub memory: u64,
    /// Most bytes that objects may have together, data and metadata; `None` for as many as the arena holds.
    pub capacity: Option<u64>,
    /// Path of the unix socket for clients.
    pub socket: PathBuf,
    /// Mode of the socket: who on this host may connect.
    pub socket_mode: u32,
    /// Where other nodes reach this one, `host:port`; port 0 takes any. `None` takes the address
    /// that leads to the coordinator, or [`DEFAULT_LISTEN`] without one.
    pub listen: Option<String>,
    /// The cluster to join, as `host:port` of any of its nodes. `None` starts a cluster whose
    /// coordinator is embedded in this node.
    pub join: Option<String>,
    /// The etcd that coordinates the cluster. Not together with `join`.
    pub etcd: Option<EtcdConfig>,
    /// Where metrics are served over HTTP, `host:port`; port 0 takes any. `None` serves none.
    pub metrics: Option<String>,
    /// The file that has the cluster's secret. Without one, the node listens for its own host only.
    pub secret_file: Option<PathBuf>,
    /// Certificates for control connections; `None` makes one. Only with a secret.
    pub tls: Option<TlsConfig>,
    /// libfabric provider; `None` chooses the best there is.
    pub provider: Option<String>,
    /// What the control groups of the process allow; `None` where there is no limit.
    pub allowance: Option<Allowance>,
    /// Use huge pages when the machine has enough of them free.
    pub huge_pages: bool,
    /// Touch all memory in the background after the start.
    pub prefault: bool,
    /// The memory node to be on, where the host has several.
    pub numa: Numa,
    /// How objects are fetched from other nodes.
    pub protocol: Protocol,
    /// Where calibrations are kept; `None` forgets them when the node stops.
    pub calibration: Option<PathBuf>,
    /// How long the engine spins before it sleeps; `None` decides by the number of cores.
    pub spin: Option<Duration>,
    /// How long a node may be silent before the coordinator takes it for dead.
    pub lease: Duration,
    /// Absolute path of the directory that primaries are spilled to when memory is needed. `None`
    /// refuses new objects then. Not together with `cache`.
    pub spill_dir: Option<PathBuf>,
    /// When the store is full, drop the least recently used objects, primaries too, instead of
    /// refusing new ones. Not together with `spill_dir`.
    pub cache: bool,
    /// Bytes of memory that the objects of one client may take; `None` sets no limit.
    pub client_quota: Option<u64>,
    /// Bytes of memory that the objects of one user (uid) may take; `None` sets no limit.
    pub user_quota: Option<u64>,
    /// What others may do with objects created here that are to be read by all.
    pub public: Rights,
    /// Clients that one user (uid) may have connected at a time.
    pub max_clients: u32,
}

/// The files of certificates for the connections between nodes, in PEM.
#[derive(Debug, Clone)]
pub struct TlsConfig {
    /// This node's own certificate, and those between it and the authority's.
    pub cert: PathBuf,
    /// The key of it.
    pub key: PathBuf,
    /// The certificates of the authority that vouches for all nodes.
    pub ca: PathBuf,
}

/// An etcd that coordinates a cluster, and what its servers are to be told.
#[derive(Debug, Clone)]
pub struct EtcdConfig {
    /// `host:port` of its servers: at least one.
    pub endpoints: Vec<String>,
    /// What the keys of this cluster begin with, without a slash at the end.
    pub prefix: String,
    /// The user, and the file that has the password.
    pub user: Option<(String, PathBuf)>,
    /// The file of the certificates that vouch for the servers; with it, connections are TLS.
    pub ca: Option<PathBuf>,
    /// The files of this node's own certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl EtcdConfig {
    /// The URL, without the user.
    pub(crate) fn place(&self) -> String {
        format!("etcd://{}{}", self.endpoints.join(","), self.prefix)
    }
}

/// Where a node listens when nothing else is said: reachable from its own host only.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:4740";

/// Silence after which a node is taken for dead, unless said otherwise.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(5);

/// Clients that one user may have connected, unless said otherwise.
const DEFAULT_MAX_CLIENTS: u32 = 4096;

impl Config {
    /// The settings of a cluster's first node.
    pub fn new(memory: u64, socket: impl Into<PathBuf>) -> Self {
        Self {
            memory,
            capacity: None,
            socket: socket.into(),
            socket_mode: 0o600,
            listen: None,
            join: None,
            etcd: None,
            metrics: None,
            secret_file: None,
            tls: None,
            provider: None,
            allowance: None,
            huge_pages: true,
            prefault: true,
            numa: Numa::Auto,
            protocol: Protocol::Auto,
            calibration: None,
            spin: None,
            lease: DEFAULT_LEASE,
            spill_dir: None,
            cache: false,
            client_quota: None,
            user_quota: None,
            public: Rights::Read,
            max_clients: DEFAULT_MAX_CLIENTS,
        }
    }

    /// Where the coordinator is, for people.
    pub(crate) fn coordinator(&self) -> String {
        match (&self.etcd, &self.join) {
            (Some(etcd), _) => etcd.place(),
            (None, Some(join)) => join.clone(),
            (None, None) => "embedded".into(),
        }
    }
}
