//! Tests of trust: which daemons a client accepts, and where a daemon serves.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use plasmon::{Client, Socket};
use plasmon_e2e::{Cluster, Daemon, Pattern, SECRET_FILE, binary};
use rustix::process::geteuid;

use crate::support::{MIB, as_user, get, put};

const STRANGER: u32 = 61_234;

/// Default folder of the socket for a user without a folder of its own. Dropping it removes the folder.
struct DefaultFolder {
    user: u32,
    path: PathBuf,
}

impl DefaultFolder {
    /// Makes the default folder of a user, owned by another user.
    fn made_by(owner: u32) -> Self {
        let path = |user| PathBuf::from(format!("/tmp/plasmon-{user}"));
        let user = (62_000..65_000).find(|user| fs::create_dir(path(*user)).is_ok()).expect("one is free");
        let folder = Self { user, path: path(user) };
        folder.give_to(owner);
        folder
    }

    fn give_to(&self, owner: u32) {
        fs::set_permissions(&self.path, Permissions::from_mode(0o755)).expect("root may");
        chown(&self.path, Some(owner), None).expect("root may");
    }

    fn socket(&self) -> PathBuf {
        self.path.join("plasmon.sock")
    }
}

impl Drop for DefaultFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Runs `plasmon` as a user, without settings.
fn command(cluster: &Cluster, user: u32, words: &[&str]) -> Command {
    let mut command = as_user(cluster, user, &[&binary(), &binary().with_file_name("plasmon-node")]);
    for variable in ["PLASMON_SOCKET", "XDG_RUNTIME_DIR", SECRET_FILE] {
        command.env_remove(variable);
    }
    command.env("PLASMON_CONFIG", "/dev/null").env("XDG_STATE_HOME", "/nonexistent").current_dir("/");
    command.args(words);
    command
}

fn run(cluster: &Cluster, user: u32, words: &[&str]) -> Output {
    command(cluster, user, words).output().expect("it runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const SERVE: [&str; 8] =
    ["serve", "--json", "--memory", "16MiB", "--listen", "127.0.0.1:0", "--socket-mode", "0666"];

/// Starts a daemon of a user at a socket that admits every user.
fn serve(cluster: &Cluster, user: u32, socket: &Path) -> Result<Daemon, String> {
    let mut command = command(cluster, user, &SERVE);
    command.arg("--exit-with-parent").arg("--socket").arg(socket);
    cluster.launch(0, command).map_err(|refused| refused.log)
}

fn not_root() -> bool {
    if !geteuid().is_root() {
        eprintln!("Only root can be another user: not tested.");
    }
    !geteuid().is_root()
}

#[test]
fn a_strangers_daemon_is_taken_only_if_it_was_named() {
    if not_root() {
        return;
    }
    let cluster = Cluster::builder().start();
    let folder = DefaultFolder::made_by(STRANGER);
    let stranger = serve(&cluster, STRANGER, &folder.socket()).expect("it starts");
    let socket = stranger.socket().to_str().expect("it is text").to_owned();
    let file = cluster.folder().join("file");
    fs::write(&file, "secret").expect("the folder is ours");
    let file = file.to_str().expect("it is text");
    let whose = format!("user {STRANGER}'s");

    for words in [&["put", file][..], &["get", "x", "--timeout", "0"], &["status"], &["subscribe"]] {
        let refused = run(&cluster, folder.user, words);
        assert_eq!(refused.status.code(), Some(1), "{words:?}: {}", said(&refused));
        assert!(said(&refused).contains(&whose) && said(&refused).contains(&socket), "{}", said(&refused));
    }
    let named = Client::connect(&socket).expect("it lets everybody in");
    assert_eq!((named.owner(), named.is_trusted()), (STRANGER, false));
    assert!(named.list().expect("it lives").is_empty(), "it was given what was put");

    // On purpose, and it is said.
    let done = run(&cluster, folder.user, &["put", file, "--socket", &socket]);
    assert!(done.status.success() && said(&done).contains(&whose), "{}", said(&done));
    let mut by_variable = command(&cluster, folder.user, &["ls"]);
    let done = by_variable.env("PLASMON_SOCKET", &socket).output().expect("it runs");
    assert!(done.status.success() && said(&done).contains(&whose), "{}", said(&done));
    // The stranger's own client has nothing to say.
    let done = run(&cluster, STRANGER, &["ls", "--socket", &socket]);
    assert!(done.status.success() && said(&done).is_empty(), "{}", said(&done));
}

#[test]
fn a_daemon_of_root_of_this_user_or_of_the_hosts_is_taken() {
    if not_root() {
        return;
    }
    let cluster = Cluster::builder().start();
    let folder = DefaultFolder::made_by(0);
    for owner in [0, folder.user] {
        folder.give_to(owner);
        let daemon = serve(&cluster, owner, &folder.socket()).expect("it starts");
        let done = run(&cluster, folder.user, &["status"]);
        assert!(done.status.success() && said(&done).is_empty(), "{}", said(&done));
        drop(daemon);
        fs::remove_file(folder.socket()).expect("it was killed");
    }
    // Root gave the folder of the whole host to a user.
    folder.give_to(STRANGER);
    let _daemon = serve(&cluster, STRANGER, &folder.socket()).expect("it starts");
    let status = command(&cluster, folder.user, &["status"]);
    for (owner, taken) in [(STRANGER, true), (STRANGER + 1, false), (0, false)] {
        let mut inside = Command::new("unshare");
        let prepare = format!(
            "mount -t tmpfs -o mode=755 run /run && install -d -o {owner} /run/plasmon && exec \"$@\""
        );
        inside
            .args(["--mount", "sh", "-c", &prepare, "sh"])
            .arg(status.get_program())
            .args(status.get_args());
        inside.env_remove("PLASMON_SOCKET").env_remove("XDG_RUNTIME_DIR");
        let done = inside.output().expect("it runs");
        assert_eq!(done.status.success(), taken, "{owner}: {}", said(&done));
        assert_eq!(said(&done).is_empty(), taken, "{owner}: {}", said(&done));
    }
}

#[test]
fn a_strangers_folder_does_not_hide_the_node_of_the_host() {
    if not_root() {
        return;
    }
    let cluster = Cluster::builder().args(&["--socket-mode", "0666"]).start();
    fs::set_permissions(cluster.folder(), Permissions::from_mode(0o755)).expect("the folder is ours");
    let folder = DefaultFolder::made_by(STRANGER);
    let _stranger = serve(&cluster, STRANGER, &folder.socket()).expect("it starts");
    let status = command(&cluster, folder.user, &["status", "--json"]);
    let mut inside = Command::new("unshare");
    let prepare = "mount -t tmpfs -o mode=755 run /run && mkdir /run/plasmon && \
                   ln -s \"$0\" /run/plasmon/plasmon.sock && exec \"$@\"";
    inside.args(["--mount", "sh", "-c", prepare]).arg(cluster.socket(0));
    inside.arg(status.get_program()).args(status.get_args());
    inside.env_remove("PLASMON_SOCKET").env_remove("XDG_RUNTIME_DIR");
    let done = inside.output().expect("it runs");
    let told = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        done.status.success() && told.contains(cluster.socket(0).to_str().expect("text")),
        "{}",
        said(&done)
    );
}

#[test]
fn no_daemon_serves_in_a_folder_that_a_stranger_made_in_tmp() {
    if not_root() {
        return;
    }
    let cluster = Cluster::builder().start();
    let folder = DefaultFolder::made_by(STRANGER);
    fs::set_permissions(&folder.path, Permissions::from_mode(0o777)).expect("root may");
    for user in [folder.user, 0] {
        let refused = serve(&cluster, user, &folder.socket()).map(drop).expect_err("it is not its own");
        assert!(refused.contains(&format!("user {STRANGER}'s")) && refused.contains("--socket"), "{refused}");
        assert!(!folder.socket().exists());
    }
    chown(&folder.path, Some(folder.user), None).expect("root may");
    let refused = serve(&cluster, folder.user, &folder.socket()).map(drop).expect_err("others may write it");
    assert!(refused.contains("chmod go-w") && refused.contains("777"), "{refused}");
    fs::set_permissions(&folder.path, Permissions::from_mode(0o700)).expect("root may");
    drop(serve(&cluster, folder.user, &folder.socket()).expect("it is its own"));
}

#[test]
fn clients_are_served_whose_process_the_daemon_cannot_see() {
    if not_root() {
        return;
    }
    let cluster = Cluster::builder().start();
    let socket = cluster.folder().join("contained.sock");
    let mut contained = Command::new("unshare");
    contained
        .args(["--pid", "--fork", "--kill-child"])
        .arg(binary())
        .args(SERVE)
        .arg("--socket")
        .arg(&socket);
    contained.env("PLASMON_CONFIG", "/dev/null").env_remove(SECRET_FILE);
    let _daemon = cluster.launch(0, contained).expect("it starts");
    let client = Client::connect(Socket::from(&socket)).expect("it serves");
    let id = put(&client, Pattern(1), MIB);
    Pattern(1).check(get(&client, id).data());
    let clients = client.status().expect("it lives").connections;
    assert_eq!(clients.iter().map(|client| (client.uid, client.pid)).collect::<Vec<_>>(), [(0, 0)]);
}
