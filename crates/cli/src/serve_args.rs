//! The command line of `plasmon serve`, which the daemon reads as well.

mod etcd;

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;
use plasmon::{Protocol, Rights};
use tracing_subscriber::EnvFilter;

use self::etcd::EtcdUrl;

/// Memory for objects when nothing else is said.
pub(crate) const DEFAULT_MEMORY: &str = "4GiB";

/// The least memory that a node can work with, in bytes: a segment for small objects and one for large ones.
pub(crate) const LEAST_MEMORY: u64 = 4 << 20;

/// What `plasmon serve` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Every setting has a flag, a variable of the environment and a key of the configuration file (its flag's \
name), \
and counts in this order; --print-config says what is in force. The log goes to standard error. \
SIGTERM and Ctrl-C stop the node and leave nothing behind but what it spilled.")]
pub(crate) struct Serve {
    /// TOML file of settings [default: plasmon/plasmon.toml in $XDG_CONFIG_HOME or ~/.config, else
    /// /etc/plasmon/plasmon.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the settings in force and where each comes from, and start nothing
    #[arg(long)]
    pub(crate) print_config: bool,
    /// Memory for objects
    #[arg(long, value_name = "SIZE", default_value = DEFAULT_MEMORY, value_parser = memory)]
    pub(crate) memory: u64,
    /// Most bytes that all objects may have together, data and metadata [default: as many as fit in --memory]
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub(crate) capacity: Option<u64>,
    /// When memory is short, move objects to files in this directory, and back when they are asked
    /// for; a node that starts again finds them there [default: new objects wait for
    /// room, and are refused when their time is up]
    #[arg(long, value_name = "DIR")]
    pub(crate) spill_dir: Option<PathBuf>,
    /// Be a cache: when the store is full, drop the least recently used objects instead of refusing; not
    /// together with --spill-dir new ones
    #[arg(long)]
    pub(crate) cache: bool,
    /// Most memory that the objects of one client may take [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub(crate) client_quota: Option<u64>,
    /// Most memory that the objects of one user of this host may take [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub(crate) user_quota: Option<u64>,
    /// Most clients that one user may have connected at a time
    #[arg(long, value_name = "N", default_value = "4096", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_clients: u32,
    /// What other users may do with objects put here that are not private: r (read), or rw (delete and move
    /// them as well)
    #[arg(long, value_name = "r|rw", default_value = "r", value_parser = public)]
    pub(crate) public: Rights,
    /// Who may connect to the socket, as an octal mode
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = mode)]
    pub(crate) socket_mode: u32,
    /// Where other nodes reach this one; port 0 takes a free one [default: 127.0.0.1:4740, or with
    /// --join or --coordinator a free port on the address that leads there]
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    pub(crate) listen: Option<String>,
    /// Join the cluster of this node; without it, the node starts a cluster of its own
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    pub(crate) join: Option<String>,
    /// The cluster's secret: who has it may join. The same file on every node, readable by its owner alone;
    /// `plasmon secret` makes one. Without it, a node can be reached from its own host only
    #[arg(long, env = "PLASMON_SECRET_FILE", value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Certificate (PEM) of this node for its connections to others [default: one made at each start]
    #[arg(long, value_name = "FILE", requires_all = ["secret_file", "tls_key", "tls_ca"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Certificates of the authority that vouches for all nodes
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Be coordinated by etcd (3.4 or later) instead of a first node, as etcd://HOST:PORT,HOST:PORT/PREFIX:
    /// all nodes with the same prefix are a cluster, none is the first, and any may die
    #[arg(long, value_name = "URL", value_parser = etcd::parse, conflicts_with = "join")]
    pub(crate) coordinator: Option<EtcdUrl>,
    /// Certificates (PEM) that vouch for the etcd servers; with it, connections to them are TLS
    #[arg(long, value_name = "FILE", requires = "coordinator")]
    pub(crate) etcd_ca: Option<PathBuf>,
    /// Certificate (PEM) that this node shows to etcd
    #[arg(long, value_name = "FILE", requires_all = ["etcd_key", "etcd_ca"])]
    pub(crate) etcd_cert: Option<PathBuf>,
    /// Key (PEM) of that certificate
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    pub(crate) etcd_key: Option<PathBuf>,
    /// User of etcd, unless the URL names one as etcd://USER@HOST:PORT/PREFIX
    #[arg(long, value_name = "NAME", requires_all = ["coordinator", "etcd_password_file"])]
    pub(crate) etcd_user: Option<String>,
    /// File with the password of that user
    #[arg(long, value_name = "FILE", requires = "coordinator")]
    pub(crate) etcd_password_file: Option<PathBuf>,
    /// Serve metrics and health over HTTP there: /metrics for Prometheus, /healthz, /livez; port 0 takes a
    /// free one [default: not at all]
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    pub(crate) metrics: Option<String>,
    /// What is logged: error, warn, info, debug or trace, or such a word for each module
    #[arg(long, value_name = "FILTER", default_value = "info", value_parser = filter)]
    pub(crate) log: String,
    /// How it is logged: text for people, or a JSON object a line, for programs
    #[arg(long, value_name = "text|json", default_value = "text", value_parser = log_format)]
    pub(crate) log_format: LogFormat,
    /// libfabric provider, such as tcp or verbs [default: the fastest there is]
    #[arg(long, value_name = "NAME")]
    pub(crate) provider: Option<String>,
    /// How to fetch objects from other nodes: auto, socket, send, read or read-register. All but auto are
    /// for measuring what auto is worth
    #[arg(long, value_name = "NAME", default_value_t)]
    pub(crate) protocol: Protocol,
    /// Where `plasmon calibrate` keeps what it measured [default: plasmon/calibration.json in
    /// $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
    /// Do not use huge pages, even if there are enough
    #[arg(long)]
    pub(crate) no_huge_pages: bool,
    /// Do not touch all memory in the background after the start: first writes will be slower
    #[arg(long)]
    pub(crate) no_prefault: bool,
    /// The memory node (NUMA) to run on and to keep objects on: auto takes the network card's, a number that
    /// one, off none; on a host with one memory node all are the same
    #[arg(long, value_name = "auto|N|off", default_value = "auto", value_parser = numa)]
    pub(crate) numa: Numa,
    /// Microseconds to spin before sleeping [default: 50 with four cores or more, else 0]
    #[arg(long, value_name = "US")]
    pub(crate) spin: Option<u64>,
    /// Seconds of silence after which a node is taken for dead; etcd counts whole ones, and not less than 2
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = lease)]
    pub(crate) lease: Duration,
    /// Stop when the process that started this one ends
    #[arg(long)]
    pub(crate) exit_with_parent: bool,
}

/// How the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("write text or json".into()),
    }
}

fn filter(text: &str) -> Result<String, String> {
    match text.parse::<EnvFilter>() {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}; write error, warn, info, debug or trace")),
    }
}

/// Which memory node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numa {
    Auto,
    Node(u32),
    Off,
}

fn numa(text: &str) -> Result<Numa, String> {
    match text {
        "auto" => Ok(Numa::Auto),
        "off" => Ok(Numa::Off),
        number => number.parse().map(Numa::Node).map_err(|_| {
            "write auto, off, or the number of a memory node (`plasmon doctor` lists them)".into()
        }),
    }
}

/// Memory for objects, as much as a node needs at least.
pub(crate) fn memory(text: &str) -> Result<u64, String> {
    match positive_size(text)? {
        little if little < LEAST_MEMORY => Err(format!(
            "a node needs {} at least, since small objects and large ones lie in segments of their own; \
             write a size such as 512MiB or 4GiB",
            ByteSize(LEAST_MEMORY)
        )),
        enough => Ok(enough),
    }
}

/// What other users may do with what they see.
pub(crate) fn public(text: &str) -> Result<Rights, String> {
    match text {
        "r" => Ok(Rights::Read),
        "rw" => Ok(Rights::ReadWrite),
        _ => Err("write r (others read it) or rw (others delete and move it as well)".into()),
    }
}

/// Bytes, at least one.
pub(crate) fn positive_size(text: &str) -> Result<u64, String> {
    match text.parse::<ByteSize>() {
        Ok(size) if size.as_u64() > 0 => Ok(size.as_u64()),
        Ok(_) => Err("a size of 0 holds nothing; write one such as 512MiB or 4GiB".into()),
        Err(error) => Err(format!("{error}; write a size such as 512MiB or 4GiB")),
    }
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "write an octal mode such as 0600 or 0660".into())
}

/// A span in seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "write a number of seconds such as 0.5 or 30".into())
}

fn lease(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        lease if lease < Duration::from_millis(100) => {
            Err("a node that is silent for so short a time may just be busy: take 0.1 or more".into())
        }
        lease => Ok(lease),
    }
}

fn address(text: &str) -> Result<String, String> {
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(_)) => Ok(text.to_owned()),
        _ => Err("write a host and a port, such as 10.0.0.1:4740".into()),
    }
}
