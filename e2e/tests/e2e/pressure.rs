//! Tests of a node with small limits of the system, and of clients that exhaust them.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use plasmon::{Client, ErrorKind, ObjectId};
use plasmon_e2e::{Cluster, Daemon, Pattern, Refused, binary, eventually};
use serde_json::Value;

use crate::operations::{ask, port};
use crate::support::{MIB, get, put, try_put};

/// Number of files that the process of a node may have open in these tests.
const FILES: u64 = 1024;

/// Command that another program runs.
fn by(words: &[&str], command: &Command) -> Command {
    let mut outer = Command::new(words[0]);
    outer.args(&words[1..]).arg(command.get_program()).args(command.get_args());
    outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.get_current_dir().map(|folder| outer.current_dir(folder));
    outer
}

/// Further node on the host of the first, which may have few files open.
struct Limited<'a> {
    cluster: &'a Cluster,
    daemon: Daemon,
}

impl<'a> Limited<'a> {
    fn start(cluster: &'a Cluster) -> Self {
        let serve = cluster.serve_at(0, &cluster.node_folder(0).join("limited.sock"));
        let mut command = by(&["prlimit", &format!("--nofile={FILES}:{FILES}")], &serve);
        let address = format!("{}:0", cluster.address(0));
        command.args(["--listen", &address, "--metrics", &address]);
        Self { cluster, daemon: cluster.launch(0, command).expect("it serves") }
    }

    fn connect(&self) -> Client {
        Client::connect(self.daemon.socket()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Checks that the node serves connected and new clients, requests for its health, and other nodes.
    fn check(&self, client: &Client) {
        let large = put(client, Pattern(1), 24 * MIB);
        Pattern(1).check(get(client, large).data());
        let stream = self.cluster.connect_to(0, port(&self.daemon));
        assert_eq!(ask(stream, "GET /livez").0, 200);
        let mut command = self.cluster.serve_at(0, &self.cluster.node_folder(0).join("joins.sock"));
        command.args(["--listen", &format!("{}:0", self.cluster.address(0)), "--join", self.daemon.listen()]);
        let joined = self.cluster.launch(0, command);
        let joined = joined.unwrap_or_else(|refused| panic!("it did not join: {}", refused.log));
        let elsewhere = Client::connect(joined.socket()).expect("it serves");
        Pattern(1).check(get(&elsewhere, large).data());
        client.delete(&[large]).expect("delete");
    }

    /// Number of complaints about clients in the log.
    fn complaints(&self) -> usize {
        let log = self.daemon.log();
        log.lines().filter(|line| line.contains(" WARN ") && line.contains("client")).count()
    }
}

#[test]
fn connections_that_never_say_hello_take_nothing_from_others() {
    const SILENT: usize = 2000;
    let cluster = Cluster::builder().start();
    let node = Limited::start(&cluster);
    let complaints = node.complaints();
    let client = node.connect();
    let silent: Vec<_> =
        (0..SILENT).map(|_| UnixStream::connect(node.daemon.socket()).expect("it listens")).collect();
    node.check(&client);
    // The last client waits behind all others.
    let late = node.connect();
    put(&late, Pattern(2), MIB);
    assert!(node.complaints() <= complaints + 3, "{}", node.daemon.log());
    eventually("they are let go", || client.status().expect("it serves").clients == 2);
    drop(silent);
}

#[test]
fn clients_are_no_more_than_open_files_allow_and_the_rest_is_told() {
    let cluster = Cluster::builder().start();
    let node = Limited::start(&cluster);
    assert!(node.daemon.log().contains("LimitNOFILE="), "it did not say that it takes few");
    let complaints = node.complaints();
    let client = node.connect();
    let mut crowd = Vec::new();
    let refusal = loop {
        match Client::connect(node.daemon.socket()) {
            Ok(client) => crowd.push(client),
            Err(error) => break error,
        }
        assert!(crowd.len() < FILES as usize, "more than there are descriptors");
    };
    assert_eq!(refusal.kind(), ErrorKind::Busy, "{refusal}");
    assert!(refusal.message().contains("LimitNOFILE="), "{refusal}");
    for _ in 0..200 {
        Client::connect(node.daemon.socket()).map(drop).expect_err("there is no place");
    }
    assert!(node.complaints() <= complaints + 3, "{}", node.daemon.log());
    // Each client of the crowd can have all it needs, without keeping others out.
    for member in &crowd {
        try_put(member, ObjectId::random(), Pattern(3), MIB / 8).expect("it is connected");
    }
    node.check(&client);
    drop(crowd);
    eventually("there are places", || Client::connect(node.daemon.socket()).is_ok());
}

/// Control group with one below it, in which processes run. Dropping it removes both.
struct Group {
    folder: PathBuf,
    limit: &'static str,
}

impl Group {
    /// Makes a group with a limit of `bytes`. `None` if this process may not.
    fn new(bytes: u64) -> Option<Self> {
        static GROUPS: AtomicU32 = AtomicU32::new(0);
        let name = format!("plasmon-e2e-{}-{}", std::process::id(), GROUPS.fetch_add(1, Ordering::Relaxed));
        for (hierarchy, limit) in hierarchies() {
            let group = Self { folder: hierarchy.join(&name), limit };
            let made = fs::create_dir(&group.folder)
                .and_then(|()| fs::write(group.folder.join(limit), bytes.to_string()))
                // In the second version, the group below has to have what the limit needs.
                .and_then(|()| match limit {
                    "memory.max" => fs::write(group.folder.join("cgroup.subtree_control"), "+memory"),
                    _ => Ok(()),
                })
                .and_then(|()| fs::create_dir(group.below()));
            match made {
                Ok(()) => return Some(group),
                Err(error) => eprintln!("no control group at {}: {error}", group.folder.display()),
            }
        }
        eprintln!("This process cannot make control groups that limit memory: not tested.");
        None
    }

    fn below(&self) -> PathBuf {
        self.folder.join("below")
    }

    /// Command that runs in the lower group.
    fn run(&self, command: &Command) -> Command {
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.below().display());
        by(&["sh", "-c", &enter, "sh"], command)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Processes that have ended are gone from it a moment later.
        let gone = |folder: &Path| !folder.exists() || fs::remove_dir(folder).is_ok();
        eventually("the group is empty", || gone(&self.below()) && gone(&self.folder));
    }
}

/// Mount points of the hierarchies of control groups that limit memory, with the names of their limit files.
fn hierarchies() -> Vec<(PathBuf, &'static str)> {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("/proc is mounted");
    let hierarchy = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        let (point, kind, options) = (PathBuf::from(words[1]), words[2], words[3]);
        match kind {
            "cgroup" if options.split(',').any(|option| option == "memory") => {
                Some((point, "memory.limit_in_bytes"))
            }
            "cgroup2" => {
                let controllers = fs::read_to_string(point.join("cgroup.controllers")).unwrap_or_default();
                // A controller that is not passed on to lower groups yet is passed on, if this process may.
                let memory = controllers.split_whitespace().any(|one| one == "memory");
                let given = memory && fs::write(point.join("cgroup.subtree_control"), "+memory").is_ok();
                given.then_some((point, "memory.max"))
            }
            _ => None,
        }
    };
    mounts.lines().filter_map(hierarchy).collect()
}

#[test]
fn a_node_that_does_not_fit_in_its_control_group_does_not_start() {
    const ROOM: u64 = 160 << 20;
    let Some(group) = Group::new(ROOM) else { return };
    let cluster = Cluster::builder().start();
    // Not on a host of its own, which would have another /sys, without the hierarchies of control groups.
    let start = |memory: &str| {
        let mut serve = Command::new(binary());
        serve.args(["serve", "--json", "--exit-with-parent", "--listen", "127.0.0.1:0", "--memory", memory]);
        serve.arg("--socket").arg(cluster.folder().join("grouped.sock"));
        serve.env("XDG_STATE_HOME", cluster.folder()).env("PLASMON_CONFIG", "/dev/null");
        cluster.launch(0, group.run(&serve))
    };
    for memory in ["128MiB", "1GiB"] {
        let Err(Refused { status, log }) = start(memory) else { panic!("it serves {memory}") };
        assert_eq!(status.code(), Some(1), "{log}");
        let last = log.lines().last().unwrap_or_default();
        let file = group.folder.join(group.limit).display().to_string();
        for word in ["--memory", "MemoryMax=", &ROOM.to_string(), &file] {
            assert!(last.contains(word), "no {word:?} in: {last}");
        }
    }
    // A node that fits serves all that it has, and says that little is left.
    let daemon = start("64MiB").expect("it fits");
    assert!(daemon.log().contains("memory is tight"), "{}", daemon.log());
    let client = Client::connect(daemon.socket()).expect("it serves");
    let ids: Vec<_> = (0..14).map(|seed| put(&client, Pattern(seed), 4 * MIB)).collect();
    for (seed, id) in (0..).zip(ids) {
        Pattern(seed).check(get(&client, id).data());
    }
    drop(daemon);

    let mut doctor = Command::new(binary());
    doctor.args(["doctor", "--json", "--memory", "128MiB", "--socket", "/nowhere"]);
    let report = group.run(&doctor).output().expect("it runs").stdout;
    let report: Value = serde_json::from_slice(&report).expect("it is JSON");
    let findings = report["findings"].as_array().expect("a list");
    let severity = |topic| findings.iter().find(|one| one["topic"] == topic).map(|one| &one["severity"]);
    assert_eq!(severity("container_memory"), Some(&"problem".into()), "{report}");
}
