//! Real etcd servers, each on a host of its own.
//!
//! Owns the server processes and their folders. The thread of the test. Invariant: the servers end when their
//! [`Etcd`] is dropped.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::network::{Network, own_prefix};
use crate::wait::eventually;

/// Name and password of the nodes' etcd user.
const USER: [&str; 2] = ["node", "a password of nodes"];
/// Name and password of etcd's root user, without which etcd has no users.
const ROOT: &str = "root:another password";

/// Kind of etcd cluster to start.
#[derive(Debug, Clone, Copy)]
pub struct EtcdOptions {
    /// Number of servers.
    pub servers: usize,
    /// Whether clients' connections use TLS, with certificates at both ends.
    pub tls: bool,
    /// Whether nodes need a user and a password.
    pub users: bool,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self { servers: 1, tls: false, users: false }
    }
}

/// Folder for the servers' data. It is memory: an etcd whose disk is busy with other things keeps no lease in
/// time, and tests kill servers, never the machine.
pub(crate) const DATA: &str = "/dev/shm";

/// Longest time that etcdctl waits for an answer, in its own syntax. Its default is five seconds.
const CONTROL_TIME_OUT: &str = "60s";

/// Cluster of etcd servers. Dropping it kills the servers.
pub struct Etcd {
    options: EtcdOptions,
    servers: Vec<Server>,
    /// Folder of certificates and logs.
    folder: PathBuf,
    /// Folder of the servers' data.
    data: TempDir,
}

/// Server of an etcd cluster.
struct Server {
    host: usize,
    address: Ipv4Addr,
    /// Ports for clients and for the other servers.
    ports: [u16; 2],
    /// Process of the server, while it runs.
    child: Option<Child>,
}

impl Etcd {
    /// Starts the servers, with their certificates and logs in `folder`, and waits until they answer.
    pub(crate) fn start(options: EtcdOptions, network: &mut Network, folder: &Path) -> Self {
        let server = |_| {
            let (host, address) = network.add_other();
            // Ports that are free on this machine are free in a new namespace as well.
            let free = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").expect("there are ports"));
            let ports = free.map(|listener| listener.local_addr().expect("it is bound").port());
            Server { host, address, ports, child: None }
        };
        let servers = (0..options.servers).map(server).collect();
        let data = tempfile::Builder::new().prefix(&own_prefix()).tempdir_in(DATA);
        let data = data.expect("there is room in memory");
        let mut etcd = Self { options, servers, folder: folder.join("etcd"), data };
        fs::create_dir(&etcd.folder).expect("the temporary folder is writable");
        if options.tls {
            etcd.make_certificates();
        }
        (0..options.servers).for_each(|server| etcd.launch(network, server));
        (0..options.servers).for_each(|server| etcd.await_health(network, server));
        if options.users {
            etcd.make_users(network);
        }
        etcd
    }

    /// Arguments of `plasmon serve` for this etcd.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let endpoints: Vec<_> =
            self.servers.iter().map(|one| format!("{}:{}", one.address, one.ports[0])).collect();
        let mut arguments =
            vec!["--coordinator".to_owned(), format!("etcd://{}/plasmon", endpoints.join(","))];
        let mut file = |flag: &str, name: &str| {
            arguments.extend([flag.to_owned(), self.folder.join(name).display().to_string()]);
        };
        if self.options.tls {
            file("--etcd-ca", "ca.pem");
            file("--etcd-cert", "node.pem");
            file("--etcd-key", "node.key");
        }
        if self.options.users {
            let password = self.folder.join("password");
            fs::write(&password, format!("{}\n", USER[1])).expect("the temporary folder is writable");
            file("--etcd-password-file", "password");
            arguments.extend(["--etcd-user".to_owned(), USER[0].to_owned()]);
        }
        arguments
    }

    /// Kills a server, if it runs, and waits until it is gone.
    pub(crate) fn kill(&mut self, server: usize) {
        if let Some(mut child) = self.servers[server].child.take() {
            child.kill().expect("it is our child");
            child.wait().expect("it is our child");
        }
    }

    /// Sends a signal to a server.
    pub(crate) fn signal(&self, server: usize, signal: Signal) {
        let child = self.servers[server].child.as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).expect("it has not been waited for");
    }

    /// Starts a server, with the data that it had.
    pub(crate) fn launch(&mut self, network: &Network, server: usize) {
        let url = |address, port| format!("http://{address}:{port}");
        let peer = |(number, one): (usize, &Server)| format!("s{number}={}", url(one.address, one.ports[1]));
        let peers = self.servers.iter().enumerate().map(peer).collect::<Vec<_>>().join(",");
        let one = &self.servers[server];
        let clients = format!("{}://{}:{}", self.scheme(), one.address, one.ports[0]);
        let others = url(one.address, one.ports[1]);
        let mut command = network.command_on_other(one.host, Path::new("etcd"));
        command.args(["--name", &format!("s{server}"), "--initial-cluster", &peers]);
        command.arg("--data-dir").arg(self.data.path().join(format!("s{server}")));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &others, "--initial-advertise-peer-urls", &others]);
        if self.options.tls {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(self.folder.join("ca.pem"));
            command.arg("--cert-file").arg(self.folder.join("server.pem"));
            command.arg("--key-file").arg(self.folder.join("server.key"));
        }
        let log = self.folder.join(format!("s{server}.log"));
        let log =
            File::options().create(true).append(true).open(log).expect("the temporary folder is writable");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a descriptor")).stderr(log);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}; scripts/setup.sh installs etcd"));
        self.servers[server].child = Some(child);
    }

    /// Waits until a server answers. It answers while most of the servers run.
    pub(crate) fn await_health(&self, network: &Network, server: usize) {
        eventually("etcd answers", || {
            let mut health = self.control(network, server, self.options.users.then_some(ROOT));
            health.args(["endpoint", "health"]).output().is_ok_and(|output| output.status.success())
                || self.no_users_yet(network, server)
        });
    }

    /// Whether a server answers without a user, as it does before users are made.
    fn no_users_yet(&self, network: &Network, server: usize) -> bool {
        let mut health = self.control(network, server, None);
        self.options.users
            && health.args(["endpoint", "health"]).output().is_ok_and(|output| output.status.success())
    }

    /// Runs etcdctl as etcd's root user, and gives its output.
    pub(crate) fn ask(&self, network: &Network, arguments: &[&str]) -> String {
        let mut command = self.control(network, 0, self.options.users.then_some(ROOT));
        let output = command.args(arguments).output().unwrap_or_else(|error| panic!("etcdctl: {error}"));
        assert!(
            output.status.success(),
            "etcdctl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Command that runs etcdctl against a server.
    fn control(&self, network: &Network, server: usize, user: Option<&str>) -> Command {
        let one = &self.servers[server];
        let mut command = network.command_on_other(one.host, Path::new("etcdctl"));
        command.env("ETCDCTL_API", "3").stdin(Stdio::null());
        command.args(["--command-timeout", CONTROL_TIME_OUT]);
        command.args(["--endpoints", &format!("{}://{}:{}", self.scheme(), one.address, one.ports[0])]);
        if self.options.tls {
            command.arg("--cacert").arg(self.folder.join("ca.pem"));
            command.arg("--cert").arg(self.folder.join("node.pem"));
            command.arg("--key").arg(self.folder.join("node.key"));
        }
        if let Some(user) = user {
            command.args(["--user", user]);
        }
        command
    }

    /// Makes the users of etcd, and has etcd ask for them.
    fn make_users(&self, network: &Network) {
        let [name, password] = USER;
        let run = |arguments: &[&str]| {
            let output = self.control(network, 0, None).args(arguments).output().expect("etcdctl is there");
            assert!(
                output.status.success(),
                "etcdctl {arguments:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        };
        run(&["user", "add", ROOT]);
        run(&["user", "grant-role", "root", "root"]);
        run(&["role", "add", "nodes"]);
        run(&["role", "grant-permission", "nodes", "--prefix=true", "readwrite", "/plasmon/"]);
        run(&["user", "add", &format!("{name}:{password}")]);
        run(&["user", "grant-role", name, "nodes"]);
        run(&["auth", "enable"]);
    }

    /// Writes the certificates: of an authority, and those that it signed, of the servers and of the nodes.
    fn make_certificates(&self) {
        let write = |name: &str, text: String| {
            fs::write(self.folder.join(name), text).expect("the temporary folder is writable");
        };
        let key = || KeyPair::generate().expect("there are random numbers");
        let mut authority = CertificateParams::new(Vec::new()).expect("no names");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = key();
        write("ca.pem", authority.self_signed(&authority_key).expect("it can be signed").pem());
        let issuer = Issuer::new(authority, authority_key);
        let addresses: Vec<_> = self.servers.iter().map(|one| one.address.to_string()).collect();
        for (name, names) in [("server", addresses), ("node", vec!["node".to_owned()])] {
            let key = key();
            let params = CertificateParams::new(names).expect("addresses and plain names");
            write(&format!("{name}.pem"), params.signed_by(&key, &issuer).expect("it can be signed").pem());
            write(&format!("{name}.key"), key.serialize_pem());
        }
    }

    /// Scheme of the servers' URLs for clients.
    fn scheme(&self) -> &'static str {
        if self.options.tls { "https" } else { "http" }
    }

    /// Log of a server.
    pub(crate) fn log(&self, server: usize) -> String {
        fs::read_to_string(self.folder.join(format!("s{server}.log"))).unwrap_or_default()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        (0..self.servers.len()).for_each(|server| self.kill(server));
    }
}
