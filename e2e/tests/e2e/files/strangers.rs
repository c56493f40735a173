//! Sessions of users whose word no home takes, when homes and nodes die.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use plasmon::Client;
use plasmon::files::{Actor, AttachOptions, Errno, File, LockKind, OpenOptions, SetAttributes, Volume};
use plasmon_e2e::{Cluster, Pattern, eventually, until};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

use super::mirrors::{create, row};

const BOB: u32 = 1001;
/// Length of the files: they lie in objects.
const LEN: usize = 100_000;
/// Home of the volume at first, and node of the stranger.
const HOME: usize = 1;

/// Four nodes that users may use, with a volume in whose root folder everybody may make files, and the node
/// of its mirror.
fn start() -> Option<(Cluster, usize)> {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return None;
    }
    let cluster = Cluster::builder().nodes(4).memory("64MiB").args(&["--socket-mode", "0666"]).start();
    let mirror = create(&cluster, HOME, &["--shared", "--copies", "3"]);
    let set = SetAttributes { mode: Some(0o1777), ..SetAttributes::default() };
    attach(&cluster.client(0)).set_metadata("/", &set).expect("chmod");
    Some((cluster, mirror))
}

fn attach(client: &Client) -> Volume {
    Volume::attach(client, "main", &AttachOptions::default()).expect("it is shared")
}

type Act = Box<dyn FnOnce(&Volume) + Send>;

/// A user whose word nobody takes, with the volume. Its thread is the user's, so that connections that are
/// made anew are as well.
struct Stranger(Sender<Act>);

impl Stranger {
    fn new(cluster: &Cluster, node: usize) -> Self {
        fs::set_permissions(cluster.folder(), Permissions::from_mode(0o755)).expect("the folder is ours");
        let socket = cluster.socket(node);
        let (acts, asked) = channel::<Act>();
        thread::spawn(move || {
            let uid = Uid::from_raw(BOB);
            set_thread_res_uid(uid, uid, uid).expect("root may become anybody");
            let volume = attach(&Client::connect(socket).expect("the node admits all"));
            asked.iter().for_each(|act| act(&volume));
        });
        Self(acts)
    }

    /// Has the user do something.
    fn run<T: Send + 'static>(&self, act: impl FnOnce(&Volume) -> T + Send + 'static) -> T {
        let (gives, given) = channel();
        let act = move |volume: &Volume| gives.send(act(volume)).expect("it is waited for");
        self.0.send(Box::new(act)).expect("its thread goes on");
        given.recv().expect("its thread goes on")
    }

    /// Has the user make a file and sync it.
    fn make(&self, path: &'static str) -> File {
        self.run(move |volume| {
            let file = volume.open(path, OpenOptions::new().read(true).write(true).create_new(true));
            let file = file.expect("create");
            file.write_at(&Pattern(1).bytes(LEN), 0).expect("write");
            file.sync().expect("sync");
            file
        })
    }
}

/// Reads all of a file that was made by [`Stranger::make`].
fn check(file: &File) {
    let mut read = vec![0; LEN];
    assert_eq!(file.read_at(&mut read, 0).expect("it is open"), LEN);
    assert!(read == Pattern(1).bytes(LEN), "it has other bytes");
}

#[test]
fn a_new_home_lets_strangers_name_what_they_looked_up() {
    let Some((mut cluster, _)) = start() else { return };
    let root = attach(&cluster.client(0));
    root.create_dir("/open", 0o755).expect("mkdir");
    root.create_dir("/hidden", 0o700).expect("mkdir");
    let make = |path| {
        let file = root.open(path, OpenOptions::new().write(true).create_new(true).mode(0o644));
        let file = file.expect("create");
        file.write_at(&Pattern(1).bytes(LEN), 0).expect("write");
        let inode = file.inode();
        file.close().expect("close");
        inode
    };
    let (open, hidden) = (make("/open/file"), make("/hidden/file"));
    let away = cluster.nodes() - 1;
    let bob = Stranger::new(&cluster, away);
    let looked = bob.run(|volume| volume.metadata("/open/file").expect("all may look").inode);
    assert_eq!(looked, open);
    let before = row(&cluster, 0)["home"].clone();
    cluster.kill(HOME);
    bob.run(move |volume| {
        let actor = Actor::default();
        assert_eq!(volume.attributes(&actor, open).expect("it was told of").attributes.size, LEN as u64);
        let opened = volume.open_inode(&actor, open, OpenOptions::new().read(true)).expect("all may read");
        let read = volume.read(open, 0, LEN).expect("all may read");
        assert!(read.slices().concat() == Pattern(1).bytes(LEN), "it has other bytes");
        volume.close(open, &opened.seen).expect("nothing was written");
        let refused = volume.attributes(&actor, hidden).expect_err("nobody has told of it");
        assert_eq!(refused.errno(), Errno::Stale);
    });
    assert_ne!(row(&cluster, 0)["home"], before, "another node is the home");
}

#[test]
fn what_a_stranger_has_open_stays_open_when_home_and_node_die_together() {
    let Some((mut cluster, mirror)) = start() else { return };
    let bob = Stranger::new(&cluster, HOME);
    let (locked, free, unlinked) = (bob.make("/locked"), bob.make("/free"), bob.make("/unlinked"));
    let (locked, mut free, mut unlinked) = bob.run(move |volume| {
        volume.remove_file("/unlinked").expect("unlink");
        locked.lock(LockKind::Exclusive, (0, 0), None).expect("nobody has it");
        (locked, free, unlinked)
    });
    // The second time only the home dies.
    for dies in [HOME, mirror] {
        cluster.kill(dies);
        cluster.start_again(dies, &[]);
        (free, unlinked) = bob.run(move |_| {
            check(&unlinked);
            unlinked.write_at(b"more", LEN as u64).expect("it is open");
            unlinked.sync().expect("it is open");
            free.lock(LockKind::Exclusive, (0, 0), None).expect("nobody has it");
            free.lock(LockKind::Unlocked, (0, 0), None).expect("it is locked");
            (free, unlinked)
        });
        let elsewhere = attach(&cluster.client(0));
        let elsewhere = elsewhere.open("/locked", OpenOptions::new().read(true).write(true)).expect("open");
        let refused = elsewhere.lock(LockKind::Exclusive, (0, 0), Some(Duration::ZERO));
        assert_eq!(refused.expect_err("it stays locked").errno(), Errno::Again);
        until("there is another mirror", || row(&cluster, 0)["mirrors"][0].as_str().map(drop));
    }
    bob.run(move |_| drop((locked, free, unlinked)));
    eventually("what was unlinked goes with its last close", || row(&cluster, 0)["inodes"] == 3);
}
