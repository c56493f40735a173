//! The announcement that a node prints when it serves: its address, and the commands by which programs and
//! other nodes find it.
//!
//! Owns no state. The main thread prints once, on standard output. Invariant: a shell runs a printed command
//! as it is, on a host that has the files that the command names.

use std::net::{IpAddr, SocketAddr};
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
            text += match self.args.join {
                Some(_) => {
                    "other hosts cannot reach this node; for that, start it with --listen HOST as well\n"
                }
                None => {
                    "other hosts cannot join; for that, start this node with an address of this host:\n    \
                     plasmon serve --listen HOST\n"
                }
            };
        } else {
            let copy = if self.secret_file.is_some() { " that have a copy of the secret" } else { "" };
            text += &format!("nodes of other hosts{copy} join with:\n    {join}\n");
        }
        text
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

    /// Address by which other nodes reach this one: a node that listens on all addresses is reached by the
    /// name of its host.
    fn reachable(&self) -> String {
        match self.address() {
            Some(address) if address.ip().is_unspecified() => {
                let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
                format!("{name}:{}", address.port())
            }
            _ => self.node.listen().to_owned(),
        }
    }

    fn address(&self) -> Option<SocketAddr> {
        self.node.listen().parse().ok()
    }
}

/// Whether an address to listen on is named as one of loopback.
pub(crate) fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let ip: Option<IpAddr> = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
    host == "localhost" || ip.is_some_and(|ip| ip.is_loopback())
}
