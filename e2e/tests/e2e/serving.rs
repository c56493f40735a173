//! Tests of `plasmon serve` without settings: nodes of one host do not get in each other's way, and what a
//! node prints leads others to it.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use plasmon::Client;
use plasmon_e2e::{Cluster, Daemon, Pattern, Refused, SECRET_FILE, binary, eventually, until};
use rustix::process::geteuid;

use crate::support::{MIB, as_user, get, put};

/// Folders in which the nodes of one user keep their files.
struct Home {
    folder: PathBuf,
}

impl Home {
    fn new(cluster: &Cluster, name: &str) -> Self {
        let folder = cluster.folder().join(name);
        for part in ["run", "state"] {
            fs::create_dir_all(folder.join(part)).expect("the folder is ours");
        }
        Self { folder }
    }

    /// Has a command find this home and no other settings.
    fn moves_in(&self, mut command: Command) -> Command {
        command.env("XDG_RUNTIME_DIR", self.folder.join("run"));
        command.env("XDG_STATE_HOME", self.folder.join("state"));
        command.env("PLASMON_CONFIG", "/dev/null").env("PLASMON_MEMORY", "16MiB");
        command.env("PLASMON_EXIT_WITH_PARENT", "true");
        command.env_remove("PLASMON_SOCKET").env_remove(SECRET_FILE).current_dir(&self.folder);
        command
    }

    /// Command `plasmon` with these words, on the first host.
    fn plasmon(&self, cluster: &Cluster, words: &[&str]) -> Command {
        let mut command = self.moves_in(cluster.command(0, &binary()));
        command.args(words);
        command
    }

    /// Starts a node with further words.
    fn serve(&self, cluster: &Cluster, words: &[&str]) -> Result<Daemon, Refused> {
        let command = self.plasmon(cluster, &[&["serve", "--json"], words].concat());
        cluster.launch(0, command)
    }

    /// Output of a command that succeeds.
    fn output(&self, cluster: &Cluster, words: &[&str]) -> String {
        let output = self.plasmon(cluster, words).output().expect("plasmon runs");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("it is text")
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.folder.join("run/plasmon").join(name)
    }

    fn secret(&self) -> PathBuf {
        self.folder.join("state/plasmon/secret")
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).mode() & 0o777
}

fn text(path: &Path) -> &str {
    path.to_str().expect("it is text")
}

#[test]
fn a_second_node_of_a_user_has_a_socket_a_port_and_the_same_secret() {
    let cluster = Cluster::builder().start();
    let home = Home::new(&cluster, "home");
    let mut first = home.serve(&cluster, &[]).expect("it starts");
    let second = home.serve(&cluster, &[]).expect("it does not need what the first has");
    assert_eq!(first.socket(), home.socket("plasmon.sock"));
    assert_eq!(second.socket(), home.socket("plasmon-2.sock"));
    assert_ne!(first.listen(), second.listen());
    for daemon in [&first, &second] {
        assert!(daemon.listen().starts_with("127.0.0.1:"), "{}", daemon.listen());
        assert_eq!(daemon.announced("secret_file"), text(&home.secret()));
        assert_eq!(mode(daemon.socket()), 0o600);
    }
    // Without a word, commands use the first. They use the second by its name.
    let node = |words: &[&str]| {
        let status = home.output(&cluster, &[&["status", "--json"], words].concat());
        let status: serde_json::Value = serde_json::from_str(&status).expect("it is JSON");
        (status["pid"].as_u64(), status["socket"].as_str().map(PathBuf::from))
    };
    assert_eq!(node(&[]), (Some(first.pid().into()), Some(first.socket().to_owned())));
    let named = node(&["--socket", text(second.socket())]);
    assert_eq!(named, (Some(second.pid().into()), Some(second.socket().to_owned())));
    // A socket that was asked for is that one or none.
    let refused = home.serve(&cluster, &["--socket", text(first.socket())]).err().expect("it is in use");
    let process = format!("process {} of user {}", first.pid(), geteuid().as_raw());
    assert!(refused.log.contains(text(first.socket())) && refused.log.contains(&process), "{}", refused.log);

    first.kill();
    let third = home.serve(&cluster, &[]).expect("it starts");
    assert_eq!(third.socket(), home.socket("plasmon.sock"), "what a killed node left is taken again");
}

#[test]
fn nodes_that_start_at_once_all_serve() {
    const NODES: usize = 5;
    let cluster = Cluster::builder().start();
    let home = Home::new(&cluster, "home");
    let nodes: Vec<_> = std::thread::scope(|scope| {
        let start = || scope.spawn(|| home.serve(&cluster, &[]).expect("it starts"));
        let starts: Vec<_> = std::iter::repeat_with(start).take(NODES).collect();
        starts.into_iter().map(|start| start.join().expect("it starts")).collect()
    });
    let sockets: BTreeSet<_> = nodes.iter().map(Daemon::socket).collect();
    assert_eq!(sockets.len(), NODES);
    assert!(sockets.contains(&*home.socket("plasmon.sock")));
    for node in &nodes {
        let status = Client::connect(node.socket()).and_then(|client| client.status()).expect("it serves");
        assert_eq!(status.pid, node.pid());
    }
    // All of them took one secret, also those that found none when they began.
    let listen = nodes[0].listen();
    let words = ["--join", listen, "--secret-file", nodes[NODES - 1].announced("secret_file")];
    home.serve(&cluster, &words).expect("it may join");
}

/// Process that prints for people, and the lines that it has printed.
struct Told {
    child: Child,
    out: PathBuf,
}

impl Told {
    fn start(cluster: &Cluster, name: &str, mut command: Command) -> Self {
        let out = cluster.folder().join(format!("{name}.out"));
        let log = cluster.folder().join(format!("{name}.log"));
        let create = |path| fs::File::create(path).expect("the folder is ours");
        command.stdin(Stdio::null()).stdout(create(&out)).stderr(create(&log));
        Self { child: command.spawn().expect("it runs"), out }
    }

    /// Command that the node prints below a line with `words`.
    fn command_below(&self, words: &str) -> String {
        until("the node prints a command", || {
            let text = fs::read_to_string(&self.out).expect("it was created");
            let below = text.split_once(words)?.1.split_once('\n')?.1;
            Some(below.split_once('\n')?.0.trim().to_owned())
        })
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_commands_that_a_node_prints_do_what_it_says() {
    let cluster = Cluster::builder().start();
    // A shell has to get the path as one word.
    let home = Home::new(&cluster, "a user's home");
    let shell = |line: &str| {
        let mut path = binary().parent().expect("it is in a folder").as_os_str().to_owned();
        path.push(":/usr/sbin:/usr/bin:/sbin:/bin");
        let mut command = home.moves_in(cluster.command(0, Path::new("/bin/sh")));
        command.env("PATH", path).args(["-c", line]);
        command
    };
    let first = Told::start(&cluster, "first", home.plasmon(&cluster, &["serve"]));
    let join = first.command_below("other nodes of this host join with");
    assert!(join.contains("--secret-file") && join.contains("127.0.0.1:"), "{join}");
    let secret = fs::read_to_string(home.secret()).expect("it was made");
    let printed = fs::read_to_string(&first.out).expect("it was created");
    assert!(!printed.contains(secret.trim()), "the secret itself was printed");

    let second = Told::start(&cluster, "second", shell(&format!("exec {join}")));
    let export = second.command_below("programs use this one after");
    let client = Client::connect(home.socket("plasmon.sock")).expect("it serves");
    let members = || client.status().expect("it serves").cluster.members.len();
    eventually("the second has joined the first", || members() == 2);
    let id = put(&client, Pattern(1), MIB);
    let from_second = shell(&format!("{export} && exec plasmon get {id}")).output().expect("it runs");
    assert!(from_second.stdout == Pattern(1).bytes(MIB), "{}", String::from_utf8_lossy(&from_second.stderr));
    // Any member leads others into the cluster.
    let join = second.command_below("other nodes of this host join with");
    let _third = Told::start(&cluster, "third", shell(&format!("exec {join}")));
    eventually("the third has joined, too", || members() == 3);
}

#[test]
fn a_node_for_other_hosts_needs_its_address_alone() {
    let cluster = Cluster::builder().nodes(2).start();
    let home = Home::new(&cluster, "home");
    let address = cluster.address(0).to_string();
    let first = home.serve(&cluster, &["--listen", &address]).expect("it takes a free port");
    assert!(first.listen().starts_with(&format!("{address}:")), "{}", first.listen());
    let join = first.announced("join").to_owned();
    let (on_loopback, listen) = (address.starts_with("127."), first.listen());
    // A node at a named address of loopback has no secret, and is for its host alone.
    assert_eq!(first.announces("secret_file"), !on_loopback);
    let secret =
        if on_loopback { String::new() } else { format!(" --secret-file {}", home.secret().display()) };
    assert_eq!(join, format!("plasmon serve --join {listen}{secret}"));
    // The second host sees the same files, so that it has a copy of the secret.
    let mut words = join.split(' ').skip(1);
    let mut command = home.moves_in(cluster.command(1, &binary()));
    command.args(words.by_ref()).arg("--json");
    let second = cluster.launch(0, command).expect("it joins");
    let client = Client::connect(first.socket()).expect("it serves");
    eventually("both are members", || client.status().expect("it serves").cluster.members.len() == 2);
    let id = put(&client, Pattern(2), MIB);
    let other = Client::connect(second.socket()).expect("it serves");
    Pattern(2).check(get(&other, id).data());
}

#[test]
fn the_secret_that_a_node_makes_is_its_users_alone() {
    let cluster = Cluster::builder().start();
    let home = Home::new(&cluster, "home");
    drop(home.serve(&cluster, &[]).expect("it starts"));
    let made = fs::read_to_string(home.secret()).expect("it was made");
    assert_eq!((mode(&home.secret()), made.trim().len()), (0o600, 64));
    assert_eq!(mode(home.secret().parent().expect("it is in a folder")), 0o700);
    drop(home.serve(&cluster, &[]).expect("it starts again"));
    assert_eq!(fs::read_to_string(home.secret()).expect("it is there"), made, "the second start keeps it");

    let refused = || home.serve(&cluster, &[]).err().expect("the secret cannot be used").log;
    fs::set_permissions(home.secret(), Permissions::from_mode(0o644)).expect("it is ours");
    let log = refused();
    assert!(log.contains(&format!("chmod 0600 {}", home.secret().display())), "{log}");
    fs::set_permissions(home.secret(), Permissions::from_mode(0o600)).expect("it is ours");
    if geteuid().is_root() {
        chown(home.secret(), Some(61_234), None).expect("root may");
        let log = refused();
        assert!(log.contains("user 61234's") && log.contains("--secret-file"), "{log}");
    }
    let mut nowhere = home.plasmon(&cluster, &["serve", "--json"]);
    nowhere.env_remove("XDG_STATE_HOME").env_remove("HOME");
    let log = cluster.launch(0, nowhere).err().expect("there is no place for the secret").log;
    assert!(log.contains("XDG_STATE_HOME") && log.contains("--listen 127.0.0.1"), "{log}");
    let mut nowhere = home.plasmon(&cluster, &["serve", "--json", "--listen", "127.0.0.1"]);
    nowhere.env_remove("XDG_STATE_HOME").env_remove("HOME");
    let daemon = cluster.launch(0, nowhere).expect("it does what the message said");
    assert!(!daemon.announces("secret_file"));
}

#[test]
fn two_users_of_a_host_each_have_a_node() {
    if !geteuid().is_root() {
        return eprintln!("Only root can be another user: not tested.");
    }
    let cluster = Cluster::builder().start();
    let programs = [binary(), binary().with_file_name("plasmon-node")];
    let nodes = [61_301_u32, 61_302].map(|user| {
        let home = Home::new(&cluster, &format!("home-{user}"));
        for path in ["", "run", "state"] {
            chown(home.folder.join(path), Some(user), Some(user)).expect("root may");
        }
        let mut command = home.moves_in(as_user(&cluster, user, &[&programs[0], &programs[1]]));
        command.args(["serve", "--json"]);
        let daemon = cluster.launch(0, command).expect("another user's node is in nobody's way");
        assert_eq!(fs::metadata(home.secret()).expect("it was made").uid(), user);
        assert_eq!(mode(&home.secret()), 0o600);
        let ls = home.moves_in(as_user(&cluster, user, &[&programs[0]])).arg("status").output();
        assert!(ls.expect("it runs").status.success(), "user {user} finds no node");
        (daemon, home)
    });
    let [(one, _), (other, other_home)] = &nodes;
    assert_ne!(one.listen(), other.listen());
    assert_ne!(one.announced("secret_file"), other.announced("secret_file"));
    // The one user can neither read the other's secret nor join with his own.
    let mut stranger = other_home.moves_in(as_user(&cluster, 61_302, &[&programs[0], &programs[1]]));
    let own = other.announced("secret_file");
    stranger.args(["serve", "--json", "--join", one.listen(), "--secret-file", own]);
    let log = cluster.launch(0, stranger).err().expect("it has another secret").log;
    assert!(log.contains("has another secret than this node"), "{log}");
}
