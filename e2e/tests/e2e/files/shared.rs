//! Volumes that other users attach to: whose sessions are checked by the home, and which bytes they get.

use std::os::unix::net::UnixStream;
use std::thread;

use plasmon::files::{
    Actor, AttachOptions, Errno, FileKind, OpenOptions, ROOT_INODE, Section, SetAttributes, Source, Volume,
    VolumeChange, VolumeTerms, Volumes,
};
use plasmon::wire::files::{FileAnswer, FileAsked, FileOperation, FileOutcome, Peeking, Written};
use plasmon::wire::{Receiver, Reply, Request};
use plasmon::{Client, ErrorKind};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

use crate::support::{MIB, ask, client_of};

const ALICE: u32 = 1000;
const BOB: u32 = 1001;

fn start() -> Option<Cluster> {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return None;
    }
    Some(Cluster::builder().nodes(2).memory("128MiB").args(&["--socket-mode", "0666"]).start())
}

fn attach(client: &Client) -> plasmon::Result<Volume> {
    Volume::attach(client, "main", &AttachOptions::default())
}

/// Makes the volume `main` of root, in whose root folder everybody may make files.
fn create(cluster: &Cluster, shared: bool) -> Volume {
    let terms = VolumeTerms { shared, ..VolumeTerms::default() };
    Volumes::by(&cluster.client(0)).create("main", None, terms).expect("a volume");
    let volume = attach(&cluster.client(0)).expect("it is root's");
    let set = SetAttributes { mode: Some(0o1777), ..SetAttributes::default() };
    volume.set_metadata("/", &set).expect("chmod");
    volume
}

fn write(volume: &Volume, path: &str, len: usize, mode: u32) {
    let file = volume.open(path, OpenOptions::new().write(true).create_new(true).mode(mode)).expect("create");
    file.write_at(&Pattern(len as u64).bytes(len), 0).expect("write");
    file.close().expect("close");
}

/// Reads all of a file that was written by [`write`].
fn check(volume: &Volume, path: &str, len: usize) {
    let file = volume.open(path, OpenOptions::new().read(true)).expect("open");
    let mut read = vec![0; len + 1];
    assert_eq!(file.read_at(&mut read, 0).expect("read"), len, "{path}");
    assert!(read[..len] == Pattern(len as u64).bytes(len), "{path} has other bytes");
    // At random, too.
    let (at, mut some) = (len / 3, vec![0; 1000.min(len / 2)]);
    assert_eq!(file.read_at(&mut some, at as u64).expect("read"), some.len());
    assert!(some == read[at..at + some.len()]);
}

#[test]
fn a_volume_is_its_owners_until_it_is_shared() {
    let Some(cluster) = start() else { return };
    let _volume = create(&cluster, false);
    let alice = client_of(ALICE, &cluster, 1);
    let error = attach(&alice).expect_err("it is root's");
    assert_eq!(error.kind(), ErrorKind::NotAllowed, "{error}");
    assert!(error.message().contains("--shared"), "{error}");
    let change = VolumeChange { shared: Some(true), ..VolumeChange::default() };
    let refused = Volumes::by(&alice).set("main", change.clone()).expect_err("it is root's");
    assert_eq!(refused.kind(), ErrorKind::NotAllowed);
    Volumes::by(&cluster.client(0)).set("main", change).expect("set");
    assert_eq!(attach(&alice).expect("it is shared").metadata("/").expect("stat").kind, FileKind::Folder);
}

#[test]
fn users_read_each_others_bytes_as_far_as_modes_allow() {
    let Some(cluster) = start() else { return };
    let root = create(&cluster, true);
    // On the home's node and on the other one.
    for (node, suffix) in [(0, "here"), (1, "there")] {
        let alice = attach(&client_of(ALICE, &cluster, node)).expect("it is shared");
        assert!(!alice.is_trusted());
        let bob = attach(&client_of(BOB, &cluster, 1 - node)).expect("it is shared");
        let name = |what: &str| format!("/{what}-{suffix}");
        for (len, what) in [(100, "small"), (60_000, "middle"), (2 * MIB + 333, "large")] {
            write(&alice, &name(what), len, 0o644);
            assert_eq!(alice.metadata(name(what)).expect("stat").uid, ALICE);
            for reader in [&alice, &bob, &root] {
                check(reader, &name(what), len);
            }
            let refused = bob.open(name(what), OpenOptions::new().write(true)).expect_err("it is Alice's");
            assert_eq!(refused.errno(), Errno::NoAccess);
        }
        write(&alice, &name("secret"), MIB, 0o600);
        let refused = bob.open(name("secret"), OpenOptions::new().read(true)).expect_err("it is Alice's");
        assert_eq!(refused.errno(), Errno::NoAccess);
        check(&root, &name("secret"), MIB);
        // All users whom the mode lets read get the bytes that root has written.
        write(&root, &name("roots"), MIB + 1, 0o644);
        check(&bob, &name("roots"), MIB + 1);
        // Without the map there are no bytes, whoever knows the object.
        let sections = root.sections(name("secret")).expect("root may");
        assert!(!sections.is_empty());
        assert_eq!(bob.sections(name("secret")).expect_err("Bob may not").errno(), Errno::NoAccess);
        // Gone by whom it may, with its objects.
        let sticky = bob.remove_file(name("large")).expect_err("the folder is sticky");
        assert_eq!(sticky.errno(), Errno::NotPermitted);
        for what in ["small", "middle", "large", "secret", "roots"] {
            root.remove_file(name(what)).expect("root may");
        }
        eventually("the objects of all users go", || {
            (0..2).all(|node| cluster.status(node).objects.primary_bytes == 0)
        });
    }
}

/// Connection of a user, by which it asks whatever it likes.
struct Raw {
    stream: UnixStream,
    receiver: Receiver,
}

impl Raw {
    fn connect(uid: u32, cluster: &Cluster, node: usize) -> Self {
        let socket = cluster.socket(node);
        let connecting = thread::spawn(move || {
            let uid = Uid::from_raw(uid);
            set_thread_res_uid(uid, uid, uid).expect("root may become anybody");
            UnixStream::connect(socket).expect("the socket is open to all")
        });
        let stream = connecting.join().expect("no panic");
        stream.set_read_timeout(Some(PATIENCE)).expect("the time-out is not zero");
        let mut raw = Self { stream, receiver: Receiver::default() };
        raw.ask(&Request::Hello { name: "raw".to_owned() });
        raw
    }

    fn ask(&mut self, request: &Request) -> Reply {
        ask(&mut self.stream, &mut self.receiver, request).0
    }

    /// Attaches to the volume `main`, as a session that is not trusted. Returns the number of the volume.
    fn attach(&mut self) -> u32 {
        let attach = Request::AttachVolume {
            name: "main".to_owned(),
            create: false,
            read_only: false,
            checked: false,
            again: None,
        };
        let Reply::VolumeAttached { volume, trusted, .. } = self.ask(&attach) else {
            panic!("the volume is shared")
        };
        assert!(!trusted);
        volume
    }

    /// Has an operation carried out.
    fn operate(&mut self, volume: u32, number: u64, operation: FileOperation) -> FileOutcome {
        let asked = FileAsked { number, answered: number, actor: Actor::default(), operation };
        match self.ask(&Request::OnFile { volume, asked }) {
            Reply::FileDone(FileAnswer { outcome, .. }) => outcome,
            other => panic!("{other:?}"),
        }
    }

    /// Makes a file in the root folder. Returns its inode.
    fn create(&mut self, volume: u32, number: u64, name: &str) -> u64 {
        let name = bytes::Bytes::copy_from_slice(name.as_bytes());
        let create =
            FileOperation::Create { folder: ROOT_INODE, name, mode: 0o600, exclusive: true, maps: false };
        match self.operate(volume, number, create) {
            FileOutcome::Opened { attributes, .. } => attributes.inode,
            other => panic!("{other:?}"),
        }
    }

    /// Has an operation carried out that fails.
    fn refused(&mut self, volume: u32, number: u64, operation: FileOperation) -> Errno {
        match self.operate(volume, number, operation) {
            FileOutcome::Failed(errno) => errno,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn who_knows_an_object_gets_no_byte_of_it_that_its_file_forbids() {
    let Some(cluster) = start() else { return };
    let root = create(&cluster, true);
    let alice = attach(&client_of(ALICE, &cluster, 0)).expect("it is shared");
    write(&alice, "/secret", MIB, 0o600);
    let secret = root.metadata("/secret").expect("stat").inode;
    let sections = root.sections("/secret").expect("root may");
    let Some(Section { source: Source::Object { id, node, .. }, .. }) = sections.first() else {
        panic!("{sections:?}");
    };
    for at in 0..2 {
        let mut bob = Raw::connect(BOB, &cluster, at);
        let volume = bob.attach();
        let peek = Request::Peek(Peeking { volume, id: *id, node: *node, at: 0, len: 100 });
        let Reply::Failed { error } = bob.ask(&peek) else { panic!("it reads what it must not") };
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        let got = bob.ask(&Request::Get { timeout_us: 0, verify: false, ids: vec![*id] });
        assert!(matches!(&got, Reply::Got { objects, .. } if objects.iter().all(Result::is_err)), "{got:?}");
        let copies = Request::LookAfter { volume, ids: vec![*id], copies: 2 };
        assert!(matches!(bob.ask(&copies), Reply::Failed { error } if error.kind() == ErrorKind::NotAllowed));
        // Bob gets no byte by the number of the inode, which he could list, nor by a file of his own.
        let map = FileOperation::Map { inode: secret, from: 0 };
        assert_eq!(bob.refused(volume, 1, map.clone()), Errno::NoAccess);
        let inode = bob.create(volume, 2, &format!("bobs-{at}"));
        let commit = FileOperation::Commit {
            inode,
            sections: sections.clone(),
            modified: None,
            drops_privileges: false,
            credit: 0,
            credit_of: 0,
        };
        assert_eq!(bob.refused(volume, 3, commit), Errno::NotPermitted);
        eventually("the home names who tried it", || {
            let log = cluster.log(0);
            let named = log.lines().filter(|line| line.contains("names objects for a file that are not"));
            named.filter(|line| line.contains(&format!("uid={BOB}")) && line.contains("'main'")).count() > at
        });
        let lookup = FileOperation::Lookup { folder: ROOT_INODE, name: "secret".into() };
        let asked = FileAsked { number: 4, answered: 4, actor: Actor::default(), operation: lookup };
        assert!(matches!(bob.ask(&Request::OnFile { volume, asked }), Reply::FileDone(_)));
        assert_eq!(bob.refused(volume, 5, map), Errno::NoAccess);
    }
}

#[test]
fn quotas_count_the_files_of_each_user() {
    let Some(cluster) = start() else { return };
    let root = create(&cluster, true);
    let change = VolumeChange { user_quota: Some(2 * MIB as u64), ..VolumeChange::default() };
    Volumes::by(&cluster.client(0)).set("main", change).expect("set");
    let [alice, bob] = [ALICE, BOB].map(|uid| attach(&client_of(uid, &cluster, 1)).expect("it is shared"));
    write(&alice, "/alices", 2 * MIB - 5, 0o644);
    let file = alice.open("/more", OpenOptions::new().write(true).create(true)).expect("create");
    let refused = file.write_at(&[1; 100], 0).expect_err("it is more than Alice may have");
    assert_eq!(refused.errno(), Errno::OverQuota);
    file.sync().expect("nothing waits");
    write(&bob, "/bobs", 2 * MIB - 5, 0o644);
    // A file that is given away counts for who has it then.
    let set = SetAttributes { uid: Some(7), ..SetAttributes::default() };
    let given = bob.set_metadata("/bobs", &set).expect_err("root alone gives files away");
    assert_eq!(given.errno(), Errno::NotPermitted);
    let inode = root.metadata("/alices").expect("stat").inode;
    root.set_attributes(&Actor::default(), inode, &set).expect("chown");
    file.write_at(&[1; 100], 0).expect("Alice has room now");
    file.sync().expect("it has room");
}

#[test]
fn who_takes_credit_and_uses_none_keeps_others_from_writing_for_a_while_alone() {
    let Some(cluster) = start() else { return };
    let root = create(&cluster, true);
    let change = VolumeChange { capacity: Some(8 * MIB as u64), ..VolumeChange::default() };
    Volumes::by(&cluster.client(0)).set("main", change).expect("set");
    let mut bob = Raw::connect(BOB, &cluster, 1);
    let volume = bob.attach();
    let inode = bob.create(volume, 1, "bobs");
    let roots = root.metadata("/").expect("stat").inode;
    let reserve = |inode, bytes| FileOperation::Reserve { inode, bytes, patient: false };
    assert_eq!(bob.refused(volume, 2, reserve(roots, 1)), Errno::IsFolder);
    assert_eq!(bob.refused(volume, 2, reserve(inode, u64::MAX)), Errno::TooLarge);
    let given = bob.operate(volume, 2, reserve(inode, 8 * MIB as u64));
    assert_eq!(given, FileOutcome::Reserved { uid: BOB, bytes: 8 * MIB as u64 });
    assert_eq!(bob.refused(volume, 3, reserve(inode, 1)), Errno::Full);
    let append = |credit, credit_of| {
        let written = Written::Bytes(vec![1; 4096].into());
        FileOperation::Append { inode, written, drops_privileges: false, credit, credit_of }
    };
    assert_eq!(
        bob.refused(volume, 3, append(0, BOB)),
        Errno::Full,
        "what does not use credit needs free room"
    );
    assert_eq!(bob.refused(volume, 3, append(u64::MAX, ALICE)), Errno::Full, "he has no credit of hers");
    assert!(matches!(bob.operate(volume, 3, append(u64::MAX, BOB)), FileOutcome::Appended { .. }));
    let given = bob.operate(volume, 4, reserve(inode, 8 * MIB as u64 - 4096));
    assert_eq!(given, FileOutcome::Reserved { uid: BOB, bytes: 8 * MIB as u64 - 4096 }, "it used up all");
    let alice = attach(&client_of(ALICE, &cluster, 0)).expect("it is shared");
    let file = alice.open("/alices", OpenOptions::new().write(true).create(true)).expect("create");
    let refused = file.write_at(&[1; 100], 0).expect_err("Bob holds all of it");
    assert_eq!(refused.errno(), Errno::Full);
    eventually("what Bob does not use has lapsed", || file.write_at(&vec![2; 5 * MIB], 0).is_ok());
    file.sync().expect("it has room");
    drop(bob);
}
