//! The announcement that a node prints when it serves: its address, and the commands by which programs and
//! other nodes find it.
//!
//! Owns no state. The main thread prints once, on standard output. Invariant: a shell runs a printed command
//! as it is, on a host that has the files that the command names.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use plasmon_node::Node;
use serde_json::json;

use crate::quoting::quoted;
use crate::serve_args::Serve;

/// Announcement of a node that begins to serve, with the options that it was started with.
pub(crate) struct Announcement<'a> {
    pub(crate) node: &'a Node,
    pub(crate) args: &'a Serve,
    /// File of the cluster's secret.
    pub(crate) secret_file: Option<&'a Path>,
    /// Socket that the node was to serve at.
    pub(crate) wanted: &'a Path,
}

impl Announcement<'_> {
    /// One line for programs.
    pub(crate) fn json(&self) -> String {
        let Self { node, secret_file, .. } = self;
        json!({
            "node": node.id().to_string(),
            "socket": node.socket(),
            "listen": node.listen(),
            "metrics": node.metrics(),
            "secret_file": secret_file,
            "join": self.join(),
            "pid": std::process::id(),
        })
        .to_string()
    }

    /// Lines for people; commands have lines of their own.
    pub(crate) fn text(&self) -> String {
        let (node, socket) = (self.node, self.node.socket());
        let mut text = format!("node {} serves at {}\n", node.id(), socket.display());
        if socket != self.wanted {
            text += &format!(
                "another node serves at {}; programs use this one after:\n    export PLASMON_SOCKET={}\n",
                self.wanted.display(),
                quoted(&socket.to_string_lossy())
            );
        }
        let join = self.join();
        if self.address().is_some_and(|address| address.ip().is_loopback()) {
            text += &format!("other nodes of this host join with:\n    {join}\n");
            text += &self.unreachable();
        } else {
            let copy = if self.secret_file.is_some() { " that have a copy of the secret" } else { "" };
            text += &format!("nodes of other hosts{copy} join with:\n    {join}\n");
        }
        text
    }

    /// Says why other hosts do not reach a node that listens on loopback, and what to do about it.
    fn unreachable(&self) -> String {
        let named = self.args.listen.as_deref().filter(|listen| !is_loopback(listen));
        let own = own_address().map_or_else(|| "ADDRESS".to_owned(), |address| address.to_string());
        match (named, self.args.join.is_some()) {
            (Some(listen), _) => {
                let name = host_of(listen);
                let address = self.address().map_or_else(String::new, |address| address.ip().to_string());
                format!(
                    "other hosts cannot reach this node: on this host the name {name} is {address} (see \
                     /etc/hosts); start it with the address that others know:\n    \
                     plasmon serve --listen {own}\n"
                )
            }
            (None, true) => {
                format!(
                    "other hosts cannot reach this node; for that, start it with --listen {own} as well\n"
                )
            }
            (None, false) => format!(
                "other hosts cannot join; for that, start this node with an address of this host:\n    \
                 plasmon serve --listen {own}\n"
            ),
        }
    }

    /// Command by which another node joins.
    fn join(&self) -> String {
        let Self { args, secret_file, .. } = self;
        let mut words = vec!["plasmon".to_owned(), "serve".to_owned()];
        match &args.coordinator {
            Some(etcd) => {
                words.push("--coordinator".into());
                words.push(format!("etcd://{}{}", etcd.endpoints.join(","), etcd.prefix));
            }
            None => words.extend(["--join".to_owned(), self.reachable()]),
        }
        let user = args.etcd_user.as_ref().or(args.coordinator.as_ref().and_then(|etcd| etcd.user.as_ref()));
        words.extend(user.into_iter().flat_map(|user| ["--etcd-user".to_owned(), user.clone()]));
        let own = |path: &Option<PathBuf>| path.as_deref().map(std::path::absolute).and_then(Result::ok);
        for (flag, file) in [
            ("--secret-file", secret_file.map(Path::to_owned)),
            ("--tls-cert", own(&args.tls_cert)),
            ("--tls-key", own(&args.tls_key)),
            ("--tls-ca", own(&args.tls_ca)),
            ("--etcd-ca", own(&args.etcd_ca)),
            ("--etcd-cert", own(&args.etcd_cert)),
            ("--etcd-key", own(&args.etcd_key)),
            ("--etcd-password-file", own(&args.etcd_password_file)),
        ] {
            words.extend(
                file.into_iter().flat_map(|file| [flag.to_owned(), file.to_string_lossy().into_owned()]),
            );
        }
        words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// Address by which other nodes reach this one: a node that listens on all addresses is reached at that
    /// of its host. The host's name may be one of loopback there, and unknown elsewhere.
    fn reachable(&self) -> String {
        match self.address() {
            Some(address) if address.ip().is_unspecified() => match own_address() {
                Some(own) => SocketAddr::new(own, address.port()).to_string(),
                None => {
                    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
                    format!("{name}:{}", address.port())
                }
            },
            _ => self.node.listen().to_owned(),
        }
    }

    fn address(&self) -> Option<SocketAddr> {
        self.node.listen().parse().ok()
    }
}

/// Whether an address to listen on is named as one of loopback.
pub(crate) fn is_loopback(address: &str) -> bool {
    let host = host_of(address);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The host in an address to listen on.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Address of this host that other hosts reach: that of the route to elsewhere, or else the first one that
/// the kernel has. `None` if all addresses are of loopback.
fn own_address() -> Option<IpAddr> {
    // Connecting a datagram socket sends nothing; it asks the routing table. The addresses are those of no
    // host (RFC 5737, RFC 3849).
    let route = |(any, there)| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((there, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let routes = [("0.0.0.0", "192.0.2.1"), ("::", "2001:db8::1")].into_iter().filter_map(route);
    let table = fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let mut own = routes.chain(local_addresses(&table));
    own.find(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

/// Addresses of a host in the text of its routing table, `/proc/net/fib_trie`: each stands in a line before
/// the one that says that it is local.
fn local_addresses(table: &str) -> impl Iterator<Item = IpAddr> + '_ {
    let pairs = table.lines().zip(table.lines().skip(1));
    pairs
        .filter(|(_, kind)| kind.trim() == "/32 host LOCAL")
        .filter_map(|(address, _)| address.trim().strip_prefix("|-- ")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_host_stand_in_its_routing_table() {
        let table = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 10.0.0.0
        /24 link UNICAST
Local:
     +-- 10.0.0.0/24 2 0 2
        |-- 10.0.0.5
           /32 host LOCAL
        |-- 10.0.0.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
           |-- 127.0.0.1
              /32 host LOCAL
";
        let own = local_addresses(table).map(|address| address.to_string()).collect::<Vec<_>>();
        assert_eq!(own, ["10.0.0.5", "127.0.0.1"]);
    }

    #[test]
    fn a_name_is_no_address_of_loopback() {
        for (address, expected) in
            [("127.0.1.1:0", true), ("[::1]:4740", true), ("localhost:0", true), ("node7:0", false)]
        {
            assert_eq!(is_loopback(address), expected, "{address}");
        }
        assert_eq!(
            [host_of("[fe80::1]:4740"), host_of("node7:0"), host_of("node7")],
            ["fe80::1", "node7", "node7"]
        );
    }
}
