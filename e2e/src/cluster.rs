//! A cluster of daemons that know each other, and the folder that they live in.
//!
//! Owns the daemons, the etcd servers, the network and the folder. The thread of the test changes the
//! cluster; any thread may ask it. Invariant: nothing of a cluster is left when its [`Cluster`] is dropped,
//! except logs that the test keeps.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::panicking;
use std::time::Duration;

use plasmon::Client;
use plasmon::status::Status;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::clocks::Clocks;
use crate::daemon::{Daemon, Refused, binary};
use crate::etcd::{Etcd, EtcdOptions};
use crate::hang::Watched;
use crate::network::{Network, own_prefix};
use crate::wait::{PATIENCE, eventually};

/// Description of a cluster to start.
#[derive(Debug, Clone)]
pub struct Builder {
    nodes: usize,
    memory: String,
    args: Vec<String>,
    etcd: Option<EtcdOptions>,
    clocks: bool,
    prefault: bool,
}

impl Builder {
    /// Sets the number of nodes. It is 1 by default.
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// Sets the memory of each node. It is "64MiB" by default.
    pub fn memory(mut self, memory: &str) -> Self {
        self.memory = memory.to_owned();
        self
    }

    /// Adds arguments of `plasmon serve`, for every node.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|&arg| arg.to_owned()));
        self
    }

    /// Has etcd coordinate instead of the first node.
    pub fn etcd(mut self, etcd: EtcdOptions) -> Self {
        self.etcd = Some(etcd);
        self
    }

    /// Gives every node a clock of its own, for [`Cluster::jump`].
    pub fn clocks(mut self) -> Self {
        self.clocks = true;
        self
    }

    /// Has the nodes touch their memory when they start, as they do for users. A sixth of the tests' time on
    /// processors would otherwise go into memory that no test looks at.
    pub fn prefault(mut self) -> Self {
        self.prefault = true;
        self
    }

    /// Starts the nodes one after the other and waits until all know all. The nodes end with this process.
    ///
    /// # Panics
    /// Panics when a daemon does not start, with its log.
    pub fn start(mut self) -> Cluster {
        if !self.prefault {
            self.args.push("--no-prefault".to_owned());
        }
        let folder = tempfile::Builder::new().prefix(&own_prefix()).tempdir();
        let folder = folder.expect("the temporary folder is writable");
        let mut network = Network::new();
        let etcd = self.etcd.map(|options| Etcd::start(options, &mut network, folder.path()));
        let mut cluster = Cluster {
            nodes: Vec::new(),
            etcd,
            network,
            memory: self.memory,
            args: self.args,
            clocks: self.clocks.then(Clocks::new),
            launched: AtomicUsize::new(0),
            _watched: Watched::new(folder.path()),
            folder,
            kept_logs: None,
        };
        for _ in 0..self.nodes {
            cluster.add_node();
        }
        cluster
    }
}

/// Daemons that form a cluster. The first daemon is the coordinator, unless etcd coordinates.
pub struct Cluster {
    // The fields are dropped in this order: processes, then the namespaces they ran in, then the folder.
    nodes: Vec<Node>,
    etcd: Option<Etcd>,
    network: Network,
    memory: String,
    args: Vec<String>,
    clocks: Option<Clocks>,
    launched: AtomicUsize,
    kept_logs: Option<PathBuf>,
    _watched: Watched,
    folder: TempDir,
}

/// Host of a cluster, and the last daemon that ran on it.
struct Node {
    address: Ipv4Addr,
    daemon: Daemon,
}

impl Cluster {
    /// Describes a cluster of one node with 64 MiB.
    pub fn builder() -> Builder {
        Builder {
            nodes: 1,
            memory: "64MiB".to_owned(),
            args: Vec::new(),
            etcd: None,
            clocks: false,
            prefault: false,
        }
    }

    /// Adds a host with a node that joins the others, waits until all know it, and gives its number.
    ///
    /// # Panics
    /// Panics when the daemon does not start, with its log.
    pub fn add_node(&mut self) -> usize {
        self.add_node_with(&[])
    }

    /// Adds a node as [`Cluster::add_node`] does, with further arguments for this node.
    ///
    /// # Panics
    /// Panics when the daemon does not start, with its log.
    pub fn add_node_with(&mut self, args: &[&str]) -> usize {
        let index = self.nodes.len();
        let address = self.network.add_host();
        fs::create_dir(self.node_folder(index)).expect("the temporary folder is writable");
        self.clocks.iter().for_each(|clocks| clocks.set(&self.node_folder(index), [0, 0]));
        let mut command = self.serve(index);
        command.args(["--listen", &format!("{address}:0")]).args(args);
        command.args(match (&self.etcd, self.nodes.first()) {
            (Some(etcd), _) => etcd.arguments(),
            (None, Some(first)) => vec!["--join".to_owned(), first.daemon.listen().to_owned()],
            (None, None) => Vec::new(),
        });
        let daemon = self.launch(index, command).unwrap_or_else(|refused| {
            panic!("node {index} did not start ({}):\n{}", refused.status, refused.log)
        });
        self.nodes.push(Node { address, daemon });
        for node in 0..=index {
            eventually("every node knows every node", || {
                self.status(node).cluster.members.len() == index + 1
            });
        }
        index
    }

    /// Command `plasmon serve` with the memory and the socket of a node, on its host. It has neither
    /// `--listen` nor `--join`.
    pub fn serve(&self, node: usize) -> Command {
        self.serve_at(node, &self.socket(node))
    }

    /// Command of [`Cluster::serve`] with another socket, for one more daemon on the node's host.
    pub fn serve_at(&self, node: usize, socket: &Path) -> Command {
        let mut command = self.network.command(node, &binary());
        command.args(["serve", "--json", "--exit-with-parent", "--memory", &self.memory]);
        command.env("XDG_STATE_HOME", self.folder.path()).env("PLASMON_CONFIG", "/dev/null");
        command.arg("--socket").arg(socket).args(&self.args);
        self.clocks.iter().for_each(|clocks| clocks.preload(&mut command, &self.node_folder(node)));
        command
            .current_dir(self.node_folder(node))
            .env("TMPDIR", self.node_folder(node))
            .env("NO_COLOR", "1");
        command
    }

    /// Runs a command made by [`Cluster::serve`] and waits until the daemon serves.
    ///
    /// # Errors
    /// Fails when the daemon ends instead.
    pub fn launch(&self, node: usize, command: Command) -> Result<Daemon, Refused> {
        let number = self.launched.fetch_add(1, Ordering::Relaxed);
        Daemon::start(command, self.folder(), &format!("daemon{number}-node{node}"))
    }

    /// Command that runs another program on the host of a node.
    pub fn command(&self, node: usize, program: &Path) -> Command {
        self.network.command(node, program)
    }

    /// Number of hosts of the cluster.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Folder of the whole cluster, with the logs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Folder of a node. It holds the node's socket, and is its working folder and its temporary folder.
    pub fn node_folder(&self, node: usize) -> PathBuf {
        self.folder().join(format!("node{node}"))
    }

    /// Path of a node's unix socket.
    pub fn socket(&self, node: usize) -> PathBuf {
        self.node_folder(node).join("plasmon.sock")
    }

    /// Connects a new client to a node.
    ///
    /// # Panics
    /// Panics when the client cannot connect.
    pub fn client(&self, node: usize) -> Client {
        Client::connect(self.socket(node)).unwrap_or_else(|error| panic!("node {node}: {error}"))
    }

    /// Status of a node, asked by a new client.
    ///
    /// # Panics
    /// Panics when the node does not answer.
    pub fn status(&self, node: usize) -> Status {
        self.client(node).status().unwrap_or_else(|error| panic!("node {node}: {error}"))
    }

    /// Daemon of a node.
    pub fn daemon(&self, node: usize) -> &Daemon {
        &self.nodes[node].daemon
    }

    /// Address at which a node accepts control connections.
    pub fn listen(&self, node: usize) -> SocketAddr {
        self.daemon(node).listen().parse().expect("the daemon announces a numeric address")
    }

    /// Address of a node's host.
    pub fn address(&self, node: usize) -> Ipv4Addr {
        self.nodes[node].address
    }

    /// Connects to the control port of a node, from its own host.
    ///
    /// # Panics
    /// Panics when it cannot connect.
    pub fn connect(&self, node: usize) -> TcpStream {
        self.connect_to(node, self.listen(node).port())
    }

    /// Connects to another port of a node, from its own host.
    ///
    /// # Panics
    /// Panics when it cannot connect.
    pub fn connect_to(&self, node: usize, port: u16) -> TcpStream {
        let address = (self.address(node), port).into();
        let stream = self.network.connect(node, address, PATIENCE).expect("the node listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("the time-out is not zero");
        stream
    }

    /// Kills a node with SIGKILL and waits until the process is gone.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].daemon.kill();
    }

    /// Starts the only node of a cluster again, after its daemon has ended.
    ///
    /// # Panics
    /// Panics when the daemon does not start, with its log.
    pub fn restart(&mut self) {
        self.start_again(0, &[]);
    }

    /// Starts a node again, after its daemon has ended, with further arguments. The first node starts at the
    /// address where the others look for it; any other node joins.
    ///
    /// # Panics
    /// Panics when the daemon does not start, with its log.
    pub fn start_again(&mut self, node: usize, args: &[&str]) {
        let mut command = self.serve(node);
        command.args(args);
        let first = self.nodes[0].daemon.listen();
        match (node, self.nodes.len()) {
            _ if self.etcd.is_some() => {
                let listen = format!("{}:0", self.nodes[node].address);
                command.args(["--listen", &listen]).args(self.etcd_arguments())
            }
            (0, 1) => command.args(["--listen", &format!("{}:0", self.nodes[0].address)]),
            (0, _) => command.args(["--listen", first]),
            _ => {
                let listen = format!("{}:0", self.nodes[node].address);
                command.args(["--listen", &listen, "--join", first])
            }
        };
        self.nodes[node].daemon = self.launch(node, command).unwrap_or_else(|refused| {
            panic!("node {node} did not start again ({}):\n{}", refused.status, refused.log)
        });
    }

    /// Stops a node by SIGSTOP, as if its machine hung.
    pub fn pause(&self, node: usize) {
        self.daemon(node).signal(Signal::STOP);
    }

    /// Lets a node go on that [`Cluster::pause`] stopped.
    pub fn resume(&self, node: usize) {
        self.daemon(node).signal(Signal::CONT);
    }

    /// Has the clocks of a node jump: the monotonic clocks by `ahead`, and the time of day by `day` seconds.
    ///
    /// # Panics
    /// Panics when the nodes have no clocks of their own: see [`Builder::clocks`].
    pub fn jump(&self, node: usize, ahead: Duration, day: i64) {
        let (clocks, folder) =
            (self.clocks.as_ref().expect("it has a clock of its own"), self.node_folder(node));
        let [before, day_before] = clocks.get(&folder);
        clocks.set(&folder, [before + ahead.as_nanos() as i64, day_before + day * 1_000_000_000]);
    }

    /// Pulls the network cable of a node's host. Processes on the host still reach each other.
    ///
    /// # Panics
    /// Panics when the nodes are processes on loopback: see [`own_namespaces`](crate::own_namespaces).
    pub fn unplug(&self, node: usize) {
        self.network.plug(node, false);
    }

    /// Puts the network cable of a node's host back.
    ///
    /// # Panics
    /// Panics when the nodes are processes on loopback.
    pub fn plug(&self, node: usize) {
        self.network.plug(node, true);
    }

    /// Kills an etcd server.
    ///
    /// # Panics
    /// Panics when etcd does not coordinate.
    pub fn kill_etcd(&mut self, server: usize) {
        self.etcd.as_mut().expect("etcd coordinates").kill(server);
    }

    /// Starts an etcd server again, with the data that it had on disk. Other servers may be down.
    ///
    /// # Panics
    /// Panics when etcd does not coordinate.
    pub fn start_etcd(&mut self, server: usize) {
        self.etcd.as_mut().expect("etcd coordinates").launch(&self.network, server);
    }

    /// Waits until an etcd server answers. It answers while most of the servers run.
    ///
    /// # Panics
    /// Panics when etcd does not coordinate.
    pub fn await_etcd(&self, server: usize) {
        self.etcd.as_ref().expect("etcd coordinates").await_health(&self.network, server);
    }

    /// Sends a signal to an etcd server.
    ///
    /// # Panics
    /// Panics when etcd does not coordinate.
    pub fn signal_etcd(&self, server: usize, signal: Signal) {
        self.etcd.as_ref().expect("etcd coordinates").signal(server, signal);
    }

    /// Runs etcdctl, and gives its output.
    ///
    /// # Panics
    /// Panics when etcd does not coordinate, or when etcdctl fails.
    pub fn etcdctl(&self, arguments: &[&str]) -> String {
        self.etcd.as_ref().expect("etcd coordinates").ask(&self.network, arguments)
    }

    /// Arguments of `plasmon serve` for a cluster that etcd coordinates.
    ///
    /// # Panics
    /// Panics when etcd does not coordinate.
    pub fn etcd_arguments(&self) -> Vec<String> {
        self.etcd.as_ref().expect("etcd coordinates").arguments()
    }

    /// Has all packets from one node to another get lost. Packets the other way arrive, and neither node is
    /// told.
    ///
    /// # Panics
    /// Panics when the nodes are processes on loopback.
    pub fn lose(&self, from: usize, to: usize) {
        self.network.lose(from, self.address(to), true);
    }

    /// Has packets arrive again that [`Cluster::lose`] had get lost.
    ///
    /// # Panics
    /// Panics when the nodes are processes on loopback, or when no packets got lost that way.
    pub fn carry(&self, from: usize, to: usize) {
        self.network.lose(from, self.address(to), false);
    }

    /// Has the logs of all daemons, also of killed ones, copied to `folder` if the test fails.
    pub fn keep_logs(&mut self, folder: PathBuf) {
        self.kept_logs = Some(folder);
    }

    /// Waits until a node has ended by itself.
    pub fn wait(&mut self, node: usize) -> ExitStatus {
        self.nodes[node].daemon.wait()
    }

    /// Sends a signal to a node, and waits until the node has ended.
    pub fn terminate(&mut self, node: usize, signal: Signal) -> ExitStatus {
        self.daemon(node).signal(signal);
        self.nodes[node].daemon.wait()
    }

    /// Log of a node.
    pub fn log(&self, node: usize) -> String {
        self.daemon(node).log()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if panicking()
            && let Some(kept) = &self.kept_logs
        {
            match copy_logs(self.folder.path(), kept) {
                Ok(()) => eprintln!("The logs are in {}.", kept.display()),
                Err(error) => eprintln!("The logs could not be kept in {}: {error}", kept.display()),
            }
        } else if panicking() {
            for (index, node) in self.nodes.iter().enumerate() {
                eprintln!("--- log of node {index} ---\n{}", node.daemon.log());
            }
            if let Some(etcd) = &self.etcd {
                eprintln!("--- log of etcd ---\n{}", etcd.log(0));
            }
        }
    }
}

/// Copies the logs of a cluster's folder.
fn copy_logs(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "log") {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
