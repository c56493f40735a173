//! The network of a cluster: each node in a network namespace of its own, or all nodes on one address.
//!
//! Owns the namespaces. The thread of the test changes the network; any thread may connect through it. A
//! cluster with namespaces has one namespace more, the switch: a bridge into which every host's virtual cable
//! is plugged. Invariant: the machine's own network sees no namespace, so all clusters use the same
//! addresses, and removing the namespaces removes everything.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, id};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::etcd;

/// Beginning of the names of all namespaces and temporary folders of this harness. [`own_prefix`] adds the
/// process to it.
const PREFIX: &str = "plasmon-e2e-";

/// Beginning of the names of all namespaces and temporary folders of this process: its number, and the PID
/// namespace in which the number means something. Runs in different PID namespaces, such as containers, may
/// share folders.
pub(crate) fn own_prefix() -> String {
    format!("{PREFIX}{}-{}-", id(), pid_namespace())
}

/// Number of this process's PID namespace.
fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").expect("Linux has namespaces").ino()
}

/// Network of a cluster.
pub(crate) enum Network {
    /// All nodes are on one address of this machine.
    Together(Ipv4Addr),
    /// Every node is in a namespace of its own: the names of the namespaces begin with `prefix`, and there
    /// are `hosts` for nodes and `others` for further processes.
    Namespaces { prefix: String, hosts: usize, others: usize },
}

/// Address that `PLASMON_E2E_ADDRESS` gives to all nodes. It is the address of an RDMA device, which is in no
/// namespace but the machine's own.
pub(crate) fn common_address() -> Option<Ipv4Addr> {
    let address = env::var("PLASMON_E2E_ADDRESS").ok()?;
    Some(address.parse().unwrap_or_else(|error| panic!("PLASMON_E2E_ADDRESS={address}: {error}")))
}

/// Whether clusters of this process are hosts in network namespaces.
///
/// `PLASMON_E2E_ADDRESS=...` puts all nodes on that address, `PLASMON_E2E_NETNS=0` on loopback, and
/// `PLASMON_E2E_NETNS=1` into namespaces. Otherwise the nodes are in namespaces where the system allows it.
pub fn own_namespaces() -> bool {
    static DECISION: OnceLock<bool> = OnceLock::new();
    *DECISION.get_or_init(|| {
        if common_address().is_some() {
            return false;
        }
        let wish = env::var("PLASMON_E2E_NETNS").ok();
        let decision = match wish.as_deref() {
            Some("0") => false,
            Some(_) => true,
            None => rustix::process::geteuid().is_root() && namespaces_work(),
        };
        remove_stale();
        let place = if decision { "hosts in network namespaces" } else { "processes on loopback" };
        eprintln!("The nodes of these tests are {place}.");
        decision
    })
}

impl Network {
    /// Makes a network without hosts.
    pub(crate) fn new() -> Self {
        static CLUSTERS: AtomicU32 = AtomicU32::new(0);
        if !own_namespaces() {
            return Self::Together(common_address().unwrap_or(Ipv4Addr::LOCALHOST));
        }
        let prefix = format!("{}{}", own_prefix(), CLUSTERS.fetch_add(1, Ordering::Relaxed));
        ip(["netns", "add", &switch(&prefix)]);
        ip(["-n", &switch(&prefix), "link", "add", "bridge", "type", "bridge"]);
        ip(["-n", &switch(&prefix), "link", "set", "bridge", "up"]);
        Self::Namespaces { prefix, hosts: 0, others: 0 }
    }

    /// Adds the next host and gives its address.
    pub(crate) fn add_host(&mut self) -> Ipv4Addr {
        let (prefix, hosts) = match self {
            Self::Together(address) => return *address,
            Self::Namespaces { prefix, hosts, .. } => (prefix, hosts),
        };
        let number = u8::try_from(*hosts + 1).expect("a cluster has few nodes");
        let address = Ipv4Addr::new(10, 231, 0, number);
        plug_in(prefix, &host(prefix, *hosts), &format!("port{hosts}"), address);
        *hosts += 1;
        address
    }

    /// Adds a host that is for no node, and gives its number and its address.
    pub(crate) fn add_other(&mut self) -> (usize, Ipv4Addr) {
        let (prefix, others) = match self {
            Self::Together(address) => return (0, *address),
            Self::Namespaces { prefix, others, .. } => (prefix, others),
        };
        let number = *others;
        *others += 1;
        let last = u8::try_from(200 + number).expect("a cluster has few of them");
        let address = Ipv4Addr::new(10, 231, 0, last);
        plug_in(prefix, &other(prefix, number), &format!("other{number}"), address);
        (number, address)
    }

    /// Command that runs `program` on the host of a node.
    pub(crate) fn command(&self, on: usize, program: &Path) -> Command {
        match self {
            Self::Together(_) => Command::new(program),
            Self::Namespaces { prefix, .. } => run_in(&host(prefix, on), program),
        }
    }

    /// Command that runs `program` on one of the further hosts.
    pub(crate) fn command_on_other(&self, on: usize, program: &Path) -> Command {
        match self {
            Self::Together(_) => Command::new(program),
            Self::Namespaces { prefix, .. } => run_in(&other(prefix, on), program),
        }
    }

    /// Pulls a host's cable out of the switch, or puts it back. The host is not told, and packets on the way
    /// are lost.
    ///
    /// # Panics
    /// Panics when the hosts are processes on loopback, which have no cables.
    pub(crate) fn plug(&self, host: usize, plugged: bool) {
        let Self::Namespaces { prefix, .. } = self else { panic!("processes on loopback have no cables") };
        let state = if plugged { "up" } else { "down" };
        ip(["-n", &switch(prefix), "link", "set", &format!("port{host}"), state]);
    }

    /// Has all packets from a host to another get lost, or arrive again. Packets the other way arrive in any
    /// case, and neither host is told. The sender's kernel is given a hardware address of the receiver that
    /// no host has, which needs no packet filter.
    ///
    /// # Panics
    /// Panics when the hosts are processes on loopback, which have no cables.
    pub(crate) fn lose(&self, from: usize, to: Ipv4Addr, lost: bool) {
        let Self::Namespaces { prefix, .. } = self else { panic!("processes on loopback have no cables") };
        let (host, to) = (host(prefix, from), to.to_string());
        if lost {
            let nobody = "02:00:00:00:00:01";
            ip([
                "-n",
                &host,
                "neighbour",
                "replace",
                &to,
                "lladdr",
                nobody,
                "dev",
                "eth0",
                "nud",
                "permanent",
            ]);
        } else {
            ip(["-n", &host, "neighbour", "delete", &to, "dev", "eth0"]);
        }
    }

    /// Connects to `address` as a process on a host would.
    pub(crate) fn connect(
        &self,
        from: usize,
        address: SocketAddr,
        patience: Duration,
    ) -> io::Result<TcpStream> {
        let Self::Namespaces { prefix, .. } = self else {
            return TcpStream::connect_timeout(&address, patience);
        };
        let namespace = File::open(Path::new("/run/netns").join(host(prefix, from)))?;
        // A new thread moves into the namespace and ends there. The stream stays in the namespace when it is
        // used by other threads.
        let connecting = thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            TcpStream::connect_timeout(&address, patience)
        });
        connecting.join().expect("connecting does not panic")
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Self::Namespaces { prefix, hosts, others } = self {
            (0..*hosts).for_each(|number| remove(&host(prefix, number)));
            (0..*others).for_each(|number| remove(&other(prefix, number)));
            remove(&switch(prefix));
        }
    }
}

/// Name of the switch's namespace.
fn switch(prefix: &str) -> String {
    format!("{prefix}-switch")
}

/// Name of the namespace of a node's host.
fn host(prefix: &str, number: usize) -> String {
    format!("{prefix}-host{number}")
}

/// Name of the namespace of a further host.
fn other(prefix: &str, number: usize) -> String {
    format!("{prefix}-other{number}")
}

/// Makes a host with a cable to the switch.
fn plug_in(prefix: &str, host: &str, port: &str, address: Ipv4Addr) {
    let switch = switch(prefix);
    ip(["netns", "add", host]);
    ip(["link", "add", "eth0", "netns", host, "type", "veth", "peer", port, "netns", &switch]);
    ip(["-n", &switch, "link", "set", port, "master", "bridge", "up"]);
    ip(["-n", host, "address", "add", &format!("{address}/24"), "dev", "eth0"]);
    ip(["-n", host, "link", "set", "eth0", "up"]);
    ip(["-n", host, "link", "set", "lo", "up"]);
}

/// Runs its arguments where the kernel's table of symbols is empty. libfabric 1.17 reads all of it twice when
/// a node starts, for memory of GPUs, which takes two thirds of the processor time of the start.
const WITHOUT_SYMBOLS: &str = r#"mount --bind /dev/null /proc/kallsyms; exec "$0" "$@""#;

/// Command that runs a program in a namespace, with mounts of its own. The command replaces itself by the
/// program, so that the child process is the program.
fn run_in(namespace: &str, program: &Path) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, "/bin/sh", "-c", WITHOUT_SYMBOLS]).arg(program);
    command
}

/// Runs the command `ip`, which has to succeed.
fn ip<const N: usize>(args: [&str; N]) {
    try_ip(args).unwrap_or_else(|error| panic!("{error}"));
}

/// Runs the command `ip`.
fn try_ip<const N: usize>(args: [&str; N]) -> Result<(), String> {
    let failed = |why: &str| format!("ip {} failed: {why}", args.join(" "));
    let output = Command::new("ip").args(args).output().map_err(|error| failed(&error.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(failed(&String::from_utf8_lossy(&output.stderr))) }
}

/// Removes a namespace, if it is there.
fn remove(namespace: &str) {
    // A failure is ignored: a test that fails may leave namespaces that were never finished.
    let _ = Command::new("ip").args(["netns", "delete", namespace]).output();
}

/// Whether a network of namespaces can be made here. Some containers let root make none, or only parts of it.
fn namespaces_work() -> bool {
    let name = format!("{}try", own_prefix());
    let tried = try_ip(["netns", "add", &name])
        .and_then(|()| try_ip(["-n", &name, "link", "add", "bridge", "type", "bridge"]))
        .and_then(|()| try_ip(["-n", &name, "link", "add", "eth0", "type", "veth", "peer", "port0"]))
        .and_then(|()| try_ip(["netns", "exec", &name, "true"]));
    remove(&name);
    if let Err(error) = &tried {
        eprintln!("Network namespaces do not work here: {}", error.trim_end());
    }
    tried.is_ok()
}

/// Whether a namespace or a folder is that of a run that was killed, as far as this process can know.
fn is_stale(name: &OsStr) -> bool {
    let mut parts = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).unwrap_or_default().split('-');
    let mut number = || parts.next()?.parse::<u64>().ok();
    match (number(), number()) {
        (Some(owner), Some(namespace)) => {
            namespace == pid_namespace() && !Path::new(&format!("/proc/{owner}")).exists()
        }
        _ => false,
    }
}

/// Removes the namespaces and temporary folders of runs that were killed.
pub(crate) fn remove_stale() {
    let of_the_dead = |name: OsString| is_stale(&name).then_some(name);
    let names_in = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| of_the_dead(entry.file_name())).collect::<Vec<_>>()
    };
    for name in names_in(Path::new("/run/netns")) {
        remove(&name.to_string_lossy());
    }
    for folder in [env::temp_dir(), etcd::DATA.into()] {
        for name in names_in(&folder) {
            // Another run may be removing it at this moment.
            let _ = fs::remove_dir_all(folder.join(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_left_is_stale_when_its_process_has_ended() {
        let name = |owner: u32, namespace| OsString::from(format!("{PREFIX}{owner}-{namespace}-x"));
        let own = pid_namespace();
        assert_eq!(name(id(), own), OsString::from(own_prefix() + "x"));
        // No process has this number: the kernel's are smaller.
        let ended = u32::MAX;
        assert!(is_stale(&name(ended, own)) && !is_stale(&name(id(), own)));
        assert!(!is_stale(&name(ended, own + 1)), "it may run in another namespace");
        assert!(!is_stale(OsStr::new("others-1-1-x")) && !is_stale(OsStr::new(PREFIX)));
    }

    #[test]
    fn hosts_reach_each_other() {
        let mut network = Network::new();
        let addresses = [network.add_host(), network.add_host()];
        for (from, to) in [(0, 1), (1, 0)] {
            // No process listens, and an existing host refuses the connection.
            let refused = network.connect(from, (addresses[to], 9).into(), Duration::from_secs(60));
            assert_eq!(refused.expect_err("nobody listens").kind(), io::ErrorKind::ConnectionRefused);
        }
    }

    #[test]
    fn what_is_lost_one_way_arrives_the_other_way() {
        let mut network = Network::new();
        let addresses = [network.add_host(), network.add_host()];
        if let Network::Together(_) = network {
            return eprintln!("Processes on loopback have no cables: not tested.");
        }
        let tried = |from: usize, patience| network.connect(from, (addresses[1 - from], 9).into(), patience);
        let patience = Duration::from_millis(300);
        network.lose(0, addresses[1], true);
        // No connection can be made in either direction, and no error tells why.
        for from in [0, 1] {
            let error = tried(from, patience).expect_err("half a way is none");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        }
        // The message of host 1 arrived, but the answer of host 0 was lost.
        let Network::Namespaces { prefix, .. } = &network else { unreachable!("it has namespaces") };
        let seen =
            Command::new("ip").args(["netns", "exec", &host(prefix, 0), "cat", "/proc/net/snmp"]).output();
        let seen = String::from_utf8(seen.expect("cat runs").stdout).expect("it is text");
        let resets =
            seen.lines().rfind(|line| line.starts_with("Tcp:")).and_then(|line| line.split(' ').nth(14));
        assert_ne!(resets, Some("0"), "{seen}");

        network.lose(0, addresses[1], false);
        for from in [0, 1] {
            let refused = tried(from, Duration::from_secs(60)).expect_err("nobody listens");
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        }
    }

    #[test]
    fn nothing_is_left_of_a_network() {
        let mut network = Network::new();
        network.add_host();
        if let Network::Namespaces { prefix, .. } = &network {
            let names = [switch(prefix), host(prefix, 0)].map(|name| Path::new("/run/netns").join(name));
            assert!(names.iter().all(|name| name.exists()));
            drop(network);
            assert!(!names.iter().any(|name| name.exists()));
        }
    }
}
