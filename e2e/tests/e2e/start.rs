//! Tests of nodes that cannot start: they tell the reason, and disturb no other node.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use plasmon::Client;
use plasmon_e2e::{Cluster, Daemon, Pattern, Refused, SECRET_FILE, binary, eventually};
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
