//! Tests of other users: they reach a region by the rights that they were given, and by nothing else, on its
//! host and on another.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;

use plasmon::region::{Principal, Region, RegionOptions, Rights};
use plasmon::wire::{NewObject, Receiver, Reply, Request, Terms};
use plasmon::{ErrorKind, NodeId, ObjectId, Rights as ObjectRights};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

use crate::support::{ask, client_of, kind};

/// User id of the owner of the region.
const OWNER: u32 = 61_001;
/// User id of a user who may read the region.
const READER: u32 = 61_002;
/// User id of a user who may do nothing.
const STRANGER: u32 = 61_003;
/// Size in bytes of the region: more than travels in messages.
const LEN: usize = 300_000;

/// Connection of a user without the client library, which keeps descriptors and handles to itself.
struct Raw {
    stream: UnixStream,
    receiver: Receiver,
}

impl Raw {
    fn connect(cluster: &Cluster, user: u32) -> Self {
        let socket = cluster.socket(0);
        let connecting = thread::spawn(move || {
            let uid = Uid::from_raw(user);
            set_thread_res_uid(uid, uid, uid).expect("root may become anybody");
            UnixStream::connect(socket).expect("the socket is open to all")
        });
        let stream = connecting.join().expect("no panic");
        stream.set_read_timeout(Some(PATIENCE)).expect("the time-out is not zero");
        let mut raw = Self { stream, receiver: Receiver::default() };
        raw.ask(&Request::Hello { name: "raw".to_owned() });
        raw.ask(&Request::Channel);
        raw.ask(&Request::Slots);
        raw
    }

    fn ask(&mut self, request: &Request) -> (Reply, Vec<OwnedFd>) {
        ask(&mut self.stream, &mut self.receiver, request)
    }

    fn refused(&mut self, request: &Request) -> Option<ErrorKind> {
        match self.ask(request).0 {
            Reply::Failed { error } => Some(error.kind()),
            _ => None,
        }
    }
}

/// A region of the owner on node 0, which the reader may read.
fn shared(cluster: &Cluster) -> Region {
    fs::set_permissions(cluster.folder(), Permissions::from_mode(0o755)).expect("the folder is ours");
    let owner = client_of(OWNER, cluster, 0);
    let region = owner.create_region("shared", LEN as u64, &RegionOptions::default()).expect("there is room");
    region.write(0, &Pattern(9).bytes(LEN)).expect("write");
    region.grant(Principal::User(READER), Rights::READ).expect("grant");
    assert!(region.is_mapped());
    region
}

fn check(region: &Region) {
    let mut found = vec![0; LEN];
    region.read(0, &mut found).expect("read");
    Pattern(9).check(&found);
}

fn start() -> Option<Cluster> {
    if !geteuid().is_root() {
        eprintln!("Only root can be another user: not tested.");
        return None;
    }
    Some(Cluster::builder().nodes(2).args(&["--socket-mode", "0666"]).start())
}

/// Everything that can be done by a handle.
fn by_handle(handle: u32, node: NodeId) -> Vec<Request> {
    let (user, rights, timeout_us) = (Some(STRANGER), Rights::ALL, 1_000_000);
    let terms = Terms { fresh: true, copies: 1, ttl_ms: 0, owned: false, replaces: false };
    let (id, name, metadata) = (ObjectId::random(), String::new(), Default::default());
    let object = NewObject { id, rights: ObjectRights::Read, name, metadata, terms };
    vec![
        Request::DescribeRegion { handle },
        Request::GrantRegion { handle, user, rights },
        Request::RevokeRegion { handle, user: Some(READER) },
        Request::MoveRegion { handle, node, timeout_us },
        Request::SnapshotRegion { handle, object, room_us: 0 },
        Request::FreeRegion { handle, timeout_us },
    ]
}

#[test]
fn handles_of_other_connections_are_none() {
    let Some(cluster) = start() else { return };
    let region = shared(&cluster);
    let node = cluster.client(1).node();
    // The owner's own other connection has no handle either.
    for user in [STRANGER, OWNER] {
        let mut raw = Raw::connect(&cluster, user);
        for handle in (0..20).chain([u32::MAX]) {
            for request in by_handle(handle, node) {
                let refused = raw.refused(&request);
                assert_eq!(refused, Some(ErrorKind::Invalid), "{request:?} of user {user}");
            }
        }
    }
    check(&region);
    region.free().expect("free");
}

#[test]
fn descriptors_of_other_users_show_no_byte_of_a_region() {
    let Some(cluster) = start() else { return };
    let region = shared(&cluster);
    let mark = &Pattern(9).bytes(LEN)[4096..4096 + 64];
    for user in [READER, STRANGER] {
        let mut raw = Raw::connect(&cluster, user);
        let (name, owner) = ("shared".to_owned(), Some(OWNER));
        let map = Request::MapRegion { name, owner, rights: Rights::READ, timeout_us: 0 };
        let (mapped, descriptors) = raw.ask(&map);
        assert_eq!(descriptors.len(), 0, "user {user}");
        match mapped {
            Reply::RegionMapped { place: None, granted, .. } if user == READER => assert!(granted.is_empty()),
            Reply::Failed { error } if user == STRANGER => assert_eq!(error.kind(), ErrorKind::NotAllowed),
            other => panic!("{other:?}"),
        }
        // Descriptors that a user gets for a region of its own have nothing of the other's.
        let create = Request::CreateRegion {
            name: format!("of {user}"),
            len: LEN as u64,
            node: None,
            public: Rights::NONE,
            mappable: true,
            ephemeral: true,
            exist_ok: false,
            room_us: 0,
        };
        let (_, descriptors) = raw.ask(&create);
        assert!(!descriptors.is_empty(), "user {user}");
        for descriptor in descriptors {
            let mut found = Vec::new();
            File::from(descriptor).read_to_end(&mut found).expect("it may be read");
            assert!(!found.windows(mark.len()).any(|bytes| bytes == mark), "user {user} has its bytes");
        }
    }
    check(&region);
}

#[test]
fn the_daemons_memory_is_not_open_to_other_users() {
    let Some(cluster) = start() else { return };
    let region = shared(&cluster);
    let pid = cluster.daemon(0).pid();
    // Descriptors may be those of what has nothing to read, and would be waited for.
    let script = "for file; do timeout 1 head -c 1 \"$file\" > /dev/null 2>&1 && echo \"$file\"; done; true";
    let opened = |user: u32, files: &[String]| {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]);
        let output = command.args(["sh", "-c", script, "sh"]).args(files).output().expect("it runs");
        String::from_utf8(output.stdout).expect("paths are text")
    };
    let process = format!("/proc/{pid}");
    let descriptors = fs::read_dir(format!("{process}/fd")).expect("root may look").flatten();
    let segments = descriptors.filter(|entry| {
        fs::read_link(entry.path()).is_ok_and(|path| path.to_string_lossy().contains("plasmon-segment"))
    });
    let segments: Vec<_> = segments.map(|entry| entry.path().to_string_lossy().into_owned()).collect();
    assert!(!segments.is_empty());
    let others = ["maps", "mem"].map(|file| format!("{process}/{file}"));
    let files = [&segments[..], &others].concat();
    for user in [OWNER, READER, STRANGER] {
        assert_eq!(opened(user, &files), "", "user {user}");
    }
    assert_eq!(opened(0, &segments).lines().count(), segments.len(), "root may look");
    check(&region);
}

#[test]
fn rights_are_those_of_the_user_on_every_host_and_go_when_they_are_revoked() {
    let Some(cluster) = start() else { return };
    let region = shared(&cluster);
    let readers: Vec<_> = (0..2)
        .map(|node| {
            let stranger = client_of(STRANGER, &cluster, node);
            let map = |rights| stranger.map_region_of(Some(OWNER), "shared", rights, None);
            assert_eq!(kind(map(Rights::READ)), ErrorKind::NotAllowed);
            assert_eq!(stranger.regions().expect("a list"), [], "nor does it see the region");
            let reader = client_of(READER, &cluster, node);
            let map = |rights| reader.map_region_of(Some(OWNER), "shared", rights, None);
            assert_eq!(kind(map(Rights::READ_WRITE)), ErrorKind::NotAllowed);
            let mapped = map(Rights::READ).expect("it may be read");
            assert_eq!((mapped.is_mapped(), kind(mapped.view())), (false, ErrorKind::NotHere));
            assert_eq!(kind(mapped.write(0, &[1])), ErrorKind::NotAllowed);
            assert_eq!(kind(mapped.grant(Principal::Everyone, Rights::READ)), ErrorKind::NotAllowed);
            assert_eq!(kind(mapped.revoke(Principal::User(READER))), ErrorKind::NotAllowed);
            assert_eq!(kind(mapped.move_to(region.home(), PATIENCE)), ErrorKind::NotAllowed);
            check(&mapped);
            mapped
        })
        .collect();
    region.revoke(Principal::User(READER)).expect("revoke");
    for reader in &readers {
        assert_eq!(kind(reader.read(0, &mut [0; 8])), ErrorKind::NotAllowed);
        // A node that knows where the bytes lie is told that it may not read there any more.
        let refused = |error: plasmon::Error| error.kind() == ErrorKind::NotAllowed;
        eventually("it may not be read", || reader.read(0, &mut vec![0; LEN]).is_err_and(refused));
        assert_eq!(kind(reader.info()), ErrorKind::NotAllowed);
        assert_eq!(kind(reader.clone().free()), ErrorKind::NotAllowed);
    }
    check(&region);
}

#[test]
fn who_has_no_right_gets_no_handle_and_hears_nothing() {
    let Some(cluster) = start() else { return };
    let region = shared(&cluster);
    let clients = [0, 1].map(|node| client_of(STRANGER, &cluster, node));
    for client in &clients {
        for rights in [Rights::NONE, Rights::READ] {
            let mapped = client.map_region_of(Some(OWNER), "shared", rights, None);
            assert_eq!(kind(mapped), ErrorKind::NotAllowed);
        }
    }
    assert_eq!(region.info().expect("it is there").nodes, 0, "nodes that map it");
    // A user with all rights may ask for none, and a handle outlives the rights.
    region.grant(Principal::User(STRANGER), Rights::WRITE).expect("grant");
    let handles = clients.each_ref().map(|client| {
        client.map_region_of(Some(OWNER), "shared", Rights::NONE, None).expect("the user may write")
    });
    region.revoke(Principal::User(STRANGER)).expect("revoke");
    for handle in &handles {
        assert_eq!(kind(handle.info()), ErrorKind::NotAllowed);
    }
    check(&region);
}
