//! Command line of `plasmon serve`, which the daemon parses as well.
//!
//! Owns no state. Any thread. Invariant: each argument is valid by itself. The parser checks which options go
//! together; the daemon checks what the parser cannot (`--cache` with `--spill-dir`).

mod classes;
mod etcd;

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;
use plasmon::{Protocol, Rights, Verify};
use plasmon_node::{Grants, Library, PushBy, Qos};
use tracing_subscriber::EnvFilter;

use self::etcd::EtcdUrl;
use crate::values::{positive_size, public, seconds};

/// Default size of the memory for objects.
pub(crate) const DEFAULT_MEMORY: &str = "4GiB";

/// Smallest memory in bytes that a node can work with: a segment for small objects and one for large ones.
pub(crate) const LEAST_MEMORY_BYTES: u64 = 4 << 20;

/// Arguments of `plasmon serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Every setting has a flag, an environment variable and a key of the configuration file (the flag's name), \
which take precedence in this order; --print-config prints the settings in force. The log goes to standard \
error. SIGTERM and Ctrl-C stop the node, which leaves nothing behind except spilled objects and the secret \
that it made. The node prints the command by which others join it. If another daemon of this user serves at \
the default socket, the node takes plasmon-2.sock beside it, and so on, and prints it; a socket that was \
named and is in use is an error.")]
pub(crate) struct Serve {
    /// TOML file with settings [default: plasmon/plasmon.toml in $XDG_CONFIG_HOME or ~/.config, else
    /// /etc/plasmon/plasmon.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the settings in force and the source of each, and start nothing
    #[arg(long)]
    pub(crate) print_config: bool,
    /// Memory for objects
    #[arg(long, value_name = "SIZE", default_value = DEFAULT_MEMORY, value_parser = memory)]
    pub(crate) memory: u64,
    /// Limit for the bytes of all objects, data and metadata [default: as many as fit in --memory]
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub(crate) capacity: Option<u64>,
    /// When memory is short, write objects to files in this directory, and read them back when they are
    /// needed; a restarted node finds them there. The directory is made if the one above it exists and is not
    /// one for mounted disks, such as /mnt [default: new objects wait for room, and are refused at
    /// their time-out]
    #[arg(long, value_name = "DIR")]
    pub(crate) spill_dir: Option<PathBuf>,
    /// Use this node as a cache: when memory is short, drop the objects that were not read for longest, even
    /// the only copies; not together with --spill-dir [default: objects stay until they are deleted]
    #[arg(long)]
    pub(crate) cache: bool,
    /// Limit for the memory of one client's objects [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub(crate) client_quota: Option<u64>,
    /// Limit for the memory of the objects of one user of this host [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub(crate) user_quota: Option<u64>,
    /// Limit for the memory of all regions [default: half of the memory for objects]
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub(crate) region_memory: Option<u64>,
    /// Limit for the memory of names, attributes and maps of files [default: 5% of --memory]
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub(crate) files_memory: Option<u64>,
    /// Do not let this node decide about volumes of files
    #[arg(long)]
    pub(crate) no_files: bool,
    /// Largest number of regions that one user may have on this node
    #[arg(long, value_name = "N", default_value_t = 1 << 16)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) user_regions: u32,
    /// Largest number of clients that one user may have connected at a time
    #[arg(long, value_name = "N", default_value = "4096", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_clients: u32,
    /// Rights of other users to objects put here that are not private: r (read), or rw (delete and move as
    /// well)
    #[arg(long, value_name = "r|rw", default_value = "r", value_parser = public)]
    pub(crate) public: Rights,
    /// Mode of the socket, in octal: which users may connect
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = mode)]
    pub(crate) socket_mode: u32,
    /// Address at which other nodes reach this one; without a port, or with port 0, a free one [default: a
    /// free port of 127.0.0.1, which no other host reaches, or with --join or --coordinator a free port on
    /// the address that leads there]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = listen)]
    pub(crate) listen: Option<String>,
    /// Join the cluster of this node; without it, the node starts a new cluster
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    pub(crate) join: Option<String>,
    /// File with the cluster's secret, which `plasmon secret` makes. Any node with the secret may join. The
    /// file is the same on every node, and only its owner may read it [default: for the first node of a
    /// cluster plasmon/secret in $XDG_STATE_HOME or ~/.local/state, which is made if it does not exist; for
    /// others, and where --listen names an address of loopback, none: without a secret, a node can be reached
    /// from its own host only]
    #[arg(long, env = "PLASMON_SECRET_FILE", value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Certificate (PEM) of this node for its connections to others [default: one made at each start]
    #[arg(long, value_name = "FILE", requires_all = ["secret_file", "tls_key", "tls_ca"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Key (PEM) of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Certificates (PEM) of the authority that signed the certificates of all nodes
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Use etcd (3.4 or later) as the coordinator instead of the first node, as
    /// etcd://HOST:PORT,HOST:PORT/PREFIX: all nodes with the same prefix are a cluster, and any of them may
    /// die
    #[arg(long, value_name = "URL", value_parser = etcd::parse, conflicts_with = "join")]
    pub(crate) coordinator: Option<EtcdUrl>,
    /// Certificates (PEM) of the authority that signed those of the etcd servers; connections to them use TLS
    /// then
    #[arg(long, value_name = "FILE", requires = "coordinator")]
    pub(crate) etcd_ca: Option<PathBuf>,
    /// Certificate (PEM) of this node for its connections to etcd
    #[arg(long, value_name = "FILE", requires_all = ["etcd_key", "etcd_ca"])]
    pub(crate) etcd_cert: Option<PathBuf>,
    /// Key (PEM) of the certificate for etcd
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    pub(crate) etcd_key: Option<PathBuf>,
    /// User of etcd, unless the URL names one as etcd://USER@HOST:PORT/PREFIX
    #[arg(long, value_name = "NAME", requires_all = ["coordinator", "etcd_password_file"])]
    pub(crate) etcd_user: Option<String>,
    /// File with the password of the user of etcd
    #[arg(long, value_name = "FILE", requires = "coordinator")]
    pub(crate) etcd_password_file: Option<PathBuf>,
    /// Serve metrics and health over HTTP at this address: /metrics for Prometheus, /healthz, /livez; port 0
    /// takes a free one [default: not at all]
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    pub(crate) metrics: Option<String>,
    /// Filter of the log: error, warn, info, debug or trace, or one of them for each module
    #[arg(long, value_name = "FILTER", default_value = "info", value_parser = filter)]
    pub(crate) log: String,
    /// Format of the log: text for people, or a JSON object a line for programs
    #[arg(long, value_name = "text|json", default_value = "text", value_parser = log_format)]
    pub(crate) log_format: LogFormat,
    /// libfabric: bundled, system, or the path of its file [default: bundled if it was installed with this
    /// program, else system]
    #[arg(long, value_name = "NAME|FILE", value_parser = libfabric)]
    pub(crate) libfabric: Option<Library>,
    /// libfabric provider, such as tcp or verbs [default: the fastest available]
    #[arg(long, value_name = "NAME")]
    pub(crate) provider: Option<String>,
    /// Connections to each other node for one-sided reads, 1 to 16. With several, the first is for reads of
    /// less than 64 KiB, which then wait for no long ones, and long reads take turns on the others: useful
    /// where the network gives one connection less than all of its bandwidth
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) lanes: u8,
    /// How classes of work (see --priority of the commands) are kept apart on the way to other nodes: off by
    /// their order alone; separate by connections of their own, with 6, 2 and 2 reads under way for high,
    /// normal and low; priority by limiting low work while high work is busy
    #[arg(long, value_name = "off|separate|priority", default_value = "off", value_parser = classes::qos)]
    pub(crate) qos: Qos,
    /// Which users of this host may have work of class high, and of class low: names or numbers of users,
    /// or * for all, as high=root,alice;low=*. A class that is left out stays as by default; normal is
    /// everybody's [default: high=root and the user of the node;low=*]
    #[arg(long, value_name = "CLASS=USERS;...", value_parser = classes::grants)]
    pub(crate) classes: Option<Grants>,
    /// Protocol for fetching objects from other nodes: auto, socket, send, read or read-register. All but
    /// auto are for measurements
    #[arg(long, value_name = "NAME", default_value_t)]
    pub(crate) protocol: Protocol,
    /// When objects from other nodes are compared with their digest: sealed compares every object that has
    /// one; off compares only when a get asks
    #[arg(long, value_name = "sealed|off", default_value_t)]
    pub(crate) verify: Verify,
    /// How objects of up to 256 KiB come from other nodes in one round trip: write by one-sided writes to
    /// memory of this node; messages without such writes; auto as write if the provider survives the death of
    /// a writer, else as messages
    #[arg(long, value_name = "auto|messages|write", default_value = "auto", value_parser = push)]
    pub(crate) push: PushBy,
    /// File in which `plasmon calibrate` keeps its measurements [default: plasmon/calibration.json in
    /// $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
    /// Do not use huge pages, even if there are enough
    #[arg(long)]
    pub(crate) no_huge_pages: bool,
    /// Do not pre-fault the memory in the background after the start; first writes will be slower
    #[arg(long)]
    pub(crate) no_prefault: bool,
    /// Memory node (NUMA) for threads and objects: auto takes that of the network card, a number that node,
    /// off none; on a host with one memory node all are the same
    #[arg(long, value_name = "auto|N|off", default_value = "auto", value_parser = numa)]
    pub(crate) numa: Numa,
    /// Microseconds to spin before sleeping [default: 50 with four cores or more, else 0]
    #[arg(long, value_name = "US")]
    pub(crate) spin: Option<u64>,
    /// Seconds of silence after which a node counts as dead; with etcd at least 2, in whole seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = lease)]
    pub(crate) lease: Duration,
    /// Seconds in which a node that is told to stop (SIGTERM, Ctrl-C) hands over what it keeps to other nodes
    /// before it ends, as `plasmon drain` does; 0 ends it at once, and so does a second signal
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    pub(crate) drain_on_stop: Duration,
    /// Stop when the process that started this one ends
    #[arg(long)]
    pub(crate) exit_with_parent: bool,
}

/// Format of the log.
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

fn libfabric(text: &str) -> Result<Library, String> {
    match text {
        "bundled" => Ok(Library::Bundled),
        "system" => Ok(Library::System),
        path if path.contains('/') => Ok(Library::File(path.into())),
        _ => Err("write bundled, system, or the path of a file such as /opt/lib/libfabric.so.1".into()),
    }
}

fn filter(text: &str) -> Result<String, String> {
    match text.parse::<EnvFilter>() {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}; write error, warn, info, debug or trace")),
    }
}

/// Choice of the memory node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numa {
    Auto,
    Node(u32),
    Off,
}

fn push(text: &str) -> Result<PushBy, String> {
    match text {
        "auto" => Ok(PushBy::Auto),
        "messages" => Ok(PushBy::Messages),
        "write" => Ok(PushBy::Write),
        _ => Err("give auto, messages or write".to_owned()),
    }
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

/// Parses the memory for objects, which is at least what a node needs.
pub(crate) fn memory(text: &str) -> Result<u64, String> {
    match positive_size(text)? {
        little if little < LEAST_MEMORY_BYTES => Err(format!(
            "a node needs at least {}, since small and large objects lie in separate segments; write a size \
             such as 512MiB or 4GiB",
            ByteSize(LEAST_MEMORY_BYTES)
        )),
        enough => Ok(enough),
    }
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "write an octal mode such as 0600 or 0660".into())
}

fn lease(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        lease if lease < Duration::from_millis(100) => {
            Err("a busy node may be silent for so short a time: take 0.1 s or more".into())
        }
        lease => Ok(lease),
    }
}

/// Parses an address to listen on. Without a port it gets port 0, which takes a free one.
fn listen(text: &str) -> Result<String, String> {
    if let Ok(bare) = text.parse::<Ipv6Addr>() {
        return Ok(format!("[{bare}]:0"));
    }
    let has_port = text.contains(':') && !text.ends_with(']');
    address(&if has_port { text.to_owned() } else { format!("{text}:0") })
        .map_err(|_| "write a host, or a host and a port, such as 10.0.0.1 or 10.0.0.1:4740".into())
}

/// Parses an address of a host and a port.
fn address(text: &str) -> Result<String, String> {
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(_)) => Ok(text.to_owned()),
        _ => Err("write a host and a port, such as 10.0.0.1:4740".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_to_listen_on_may_lack_the_port() {
        for (text, address) in [
            ("10.0.0.1:4740", "10.0.0.1:4740"),
            ("10.0.0.1", "10.0.0.1:0"),
            ("node7", "node7:0"),
            ("::1", "[::1]:0"),
            ("[::1]", "[::1]:0"),
            ("[::1]:4740", "[::1]:4740"),
        ] {
            assert_eq!(listen(text).as_deref(), Ok(address), "{text}");
        }
        for text in ["", ":4740", "node7:", "node7:port", "10.0.0.1:70000"] {
            assert!(listen(text).is_err(), "{text}");
        }
    }
}
