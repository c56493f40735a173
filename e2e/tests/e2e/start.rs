//! Tests of nodes that cannot start: they tell the reason, and disturb no other node.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use plasmon::Client;
use plasmon_e2e::{
    Cluster, Daemon, Pattern, Refused, SECRET_FILE, binary, eventually, own_namespaces, secret_file, until,
};
use rustix::process::geteuid;

use crate::support::{MIB, as_nobody, get, put};

/// Starts a second daemon on the host of node 0, where it must refuse. Returns its message.
fn refused(cluster: &Cluster, command: Command) -> String {
    match cluster.launch(0, command) {
        Ok(daemon) => panic!("it serves:\n{}", daemon.log()),
        Err(Refused { status, log }) => {
            assert!(status.code().is_some_and(|code| code != 0 && code != 101), "{status}:\n{log}");
            log
        }
    }
}

fn serve(socket: &Path, listen: &str) -> Command {
    let mut command = Command::new(binary());
    command.args(["serve", "--json", "--exit-with-parent", "--memory", "16MiB"]);
    command.arg("--socket").arg(socket).args(["--listen", listen]);
    command
}

#[test]
fn a_file_where_the_socket_should_be_is_kept() {
    let cluster = Cluster::builder().start();
    let path = cluster.folder().join("precious");
    fs::write(&path, "data").expect("the folder is ours");
    let said = refused(&cluster, serve(&path, "127.0.0.1:0"));
    assert!(said.contains(path.to_str().expect("it is text")), "{said}");
    assert_eq!(fs::read_to_string(&path).expect("it is still there"), "data");
}

#[test]
fn the_socket_of_a_living_daemon_is_not_taken() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let id = put(&client, Pattern(1), MIB);
    let said = refused(&cluster, serve(&cluster.socket(0), "127.0.0.1:0"));
    let process = format!("process {} of user", cluster.daemon(0).pid());
    assert!(
        said.contains(cluster.socket(0).to_str().expect("it is text")) && said.contains(&process),
        "{said}"
    );
    // The first daemon still answers, on the old connection and on a new one.
    Pattern(1).check(get(&client, id).data());
    Pattern(1).check(get(&cluster.client(0), id).data());
}

#[test]
fn the_socket_of_a_dead_daemon_is_taken_over() {
    let mut cluster = Cluster::builder().start();
    cluster.kill(0);
    assert!(cluster.socket(0).exists(), "SIGKILL leaves the socket");
    let mut command = cluster.serve(0);
    command.args(["--listen", &format!("{}:0", cluster.address(0))]);
    let daemon = cluster.launch(0, command).expect("it starts");
    assert_eq!(cluster.status(0).pid, daemon.pid());
}

#[test]
fn a_port_in_use_is_named() {
    let cluster = Cluster::builder().start();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = taken.local_addr().expect("it is bound").to_string();
    let socket = cluster.folder().join("other.sock");
    let said = refused(&cluster, serve(&socket, &address));
    assert!(said.contains(&address), "{said}");
    assert!(!socket.exists(), "it left its socket");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let cluster = Cluster::builder().start();
    let folder = cluster.folder().join("read-only");
    fs::create_dir(&folder).expect("the folder is ours");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).expect("it is ours");
    let socket = folder.join("plasmon.sock");
    // Root may write everywhere, so the daemon runs as nobody.
    let command = if geteuid().is_root() {
        let daemon = binary().with_file_name("plasmon-node");
        let mut command = as_nobody(&cluster, &[&binary(), &daemon]);
        command.args(serve(&socket, "127.0.0.1:0").get_args());
        // User nobody may not read the secret.
        command.env_remove(SECRET_FILE);
        command
    } else {
        serve(&socket, "127.0.0.1:0")
    };
    let said = refused(&cluster, command);
    assert!(said.contains(folder.to_str().expect("it is text")), "{said}");
}

#[test]
fn nobody_to_join_is_named() {
    let cluster = Cluster::builder().start();
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        listener.local_addr().expect("it is bound").to_string()
    };
    let socket = cluster.folder().join("other.sock");
    let mut command = serve(&socket, "127.0.0.1:0");
    command.args(["--join", &closed]);
    let said = refused(&cluster, command);
    assert!(said.contains(&closed), "{said}");
    assert!(!socket.exists(), "it left its socket");
}

#[test]
fn words_that_make_no_sense_are_refused() {
    let cluster = Cluster::builder().start();
    let socket = cluster.folder().join("other.sock");
    let cases: [&[&str]; 5] = [
        &["--memory", "lots"],
        &["--memory", "0"],
        &["--listen", "nowhere:port"],
        &["--numa", "near"],
        &["--provider", "carrier-pigeon"],
    ];
    for words in cases {
        let mut command = Command::new(binary());
        command.args(["serve", "--json", "--exit-with-parent"]).arg("--socket").arg(&socket);
        for (option, default) in [("--memory", "16MiB"), ("--listen", "127.0.0.1:0")] {
            if option != words[0] {
                command.args([option, default]);
            }
        }
        command.args(words);
        let said = refused(&cluster, command);
        assert!(said.contains(words[1]), "{words:?}: {said}");
        assert!(!socket.exists(), "{words:?}: it left its socket");
    }
}

#[test]
fn the_least_memory_is_named_and_enough() {
    const LEAST: &str = "4.0 MiB";
    let cluster = Cluster::builder().start();
    let socket = cluster.folder().join("other.sock");
    let with = |memory: &str| {
        let mut command = Command::new(binary());
        command.args(["serve", "--json", "--exit-with-parent", "--listen", "127.0.0.1:0"]);
        command.args(["--memory", memory]).arg("--socket").arg(&socket);
        command
    };
    for little in ["1", "3MiB"] {
        let said = refused(&cluster, with(little));
        assert!(said.contains(LEAST), "{little}: {said}");
    }
    let daemon = Daemon::start(with(&LEAST.replace(' ', "")), cluster.folder(), "other").expect("it starts");
    let client = Client::connect(daemon.socket()).expect("it serves");
    let ids = [100, MIB, 200].map(|len| put(&client, Pattern(len as u64), len));
    for id in ids {
        get(&client, id);
    }
}

#[test]
fn two_daemons_of_one_host_are_two_nodes() {
    let cluster = Cluster::builder().start();
    let socket = cluster.folder().join("other.sock");
    let other = Daemon::start(serve(&socket, "127.0.0.1:0"), cluster.folder(), "other").expect("it starts");
    let mode = fs::metadata(&socket).expect("it is there").mode() & 0o777;
    assert_eq!(mode & 0o007, 0, "mode {mode:o}: others may connect though nobody said so");
    drop(other);
    eventually("the first is alone and well", || cluster.status(0).cluster.members.len() == 1);
}

#[test]
fn a_path_that_is_too_long_for_a_socket_is_refused_with_its_source() {
    let cluster = Cluster::builder().start();
    let folder = cluster.folder().join("a".repeat(120));
    let path = folder.join("plasmon.sock");
    let named = refused(&cluster, serve(&path, "127.0.0.1:0"));
    assert!(named.contains("at most 107") && named.contains("--socket"), "{named}");
    let mut command = Command::new(binary());
    command.args(["serve", "--json", "--exit-with-parent", "--memory", "16MiB", "--listen", "127.0.0.1:0"]);
    command.env("PLASMON_SOCKET", &path);
    let by_variable = refused(&cluster, command);
    assert!(by_variable.contains("at most 107"), "{by_variable}");
    assert!(by_variable.contains("PLASMON_SOCKET names it"), "{by_variable}");
    let error = Client::connect(&path).expect_err("no socket has such a path");
    assert!(error.message().contains("at most 107"), "{error}");
    assert!(!folder.exists(), "a folder was made in vain");
}

/// Starts a daemon on the host of a node whose own name, `plasmon-host`, is 127.0.1.1 there. Returns what it
/// prints, and what it logs if it ends instead of serving.
fn said_on_such_a_host(cluster: &Cluster, node: usize, listen: &str, further: &[&str]) -> (String, String) {
    const OWN_HOSTS: &str = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    let file = |name: &str| cluster.folder().join(name);
    fs::write(file("hosts"), "127.0.0.1 localhost\n127.0.1.1 plasmon-host\n").expect("the folder is ours");
    let mut command = cluster.command(node, Path::new("unshare"));
    command.args(["-m", "sh", "-c", OWN_HOSTS]).arg(file("hosts")).arg(binary());
    command.args(["serve", "--memory", "16MiB", "--listen", listen]).args(further);
    command.arg("--socket").arg(file("own-name.sock")).env("PLASMON_CONFIG", "/dev/null");
    command.env(SECRET_FILE, secret_file(cluster.folder()));
    command.stdin(Stdio::null());
    command.stdout(File::create(file("out")).expect("the folder is ours"));
    command.stderr(File::create(file("err")).expect("the folder is ours"));
    let read = |name: &str| fs::read_to_string(file(name)).unwrap_or_default();
    let mut child = command.spawn().expect("unshare runs");
    until("the daemon serves or ends", || {
        let ended = child.try_wait().expect("it is our child").is_some();
        (ended || read("out").contains("serve --listen") || read("out").contains("--join")).then_some(())
    });
    // The text is written at once.
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
    (read("out"), read("err"))
}

#[test]
fn a_host_whose_name_is_an_address_of_loopback_says_so() {
    if !own_namespaces() {
        return eprintln!("skipped: all hosts are this one");
    }
    let cluster = Cluster::builder().nodes(2).start();
    let (out, _) = said_on_such_a_host(&cluster, 1, "plasmon-host", &[]);
    let own = cluster.address(1).to_string();
    assert!(out.contains("plasmon-host is 127.0.1.1 (see /etc/hosts)"), "{out}");
    assert!(out.contains(&format!("plasmon serve --listen {own}")), "{out}");
    let first = cluster.listen(0).to_string();
    let (_, err) = said_on_such_a_host(&cluster, 1, "plasmon-host:0", &["--join", &first]);
    assert!(err.contains("plasmon-host is that address") && err.contains("/etc/hosts"), "{err}");
    assert!(err.contains(&format!("--listen {own}")), "{err}");
    assert_eq!(cluster.status(0).cluster.members.len(), 2);
}

#[test]
fn a_node_that_listens_everywhere_prints_an_address_that_works_elsewhere() {
    if !own_namespaces() {
        return eprintln!("skipped: all hosts are this one");
    }
    let cluster = Cluster::builder().nodes(2).start();
    let mut command = cluster.serve_at(0, &cluster.folder().join("everywhere.sock"));
    command.args(["--listen", "0.0.0.0"]);
    let first = cluster.launch(0, command).expect("it starts");
    let join = first.announced("join").to_owned();
    let place =
        join.split_whitespace().skip_while(|word| *word != "--join").nth(1).expect("it has an address");
    assert!(place.starts_with(&format!("{}:", cluster.address(0))), "{join}");
    let mut command = cluster.serve_at(1, &cluster.folder().join("elsewhere.sock"));
    command.args(["--join", place]);
    let second = cluster.launch(1, command).expect("it joins from another host");
    let client = Client::connect(second.socket()).expect("it serves");
    assert_eq!(client.status().expect("status").cluster.members.len(), 2);
}
