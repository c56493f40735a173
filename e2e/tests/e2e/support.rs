//! Helpers of several test modules.

use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::{self, JoinHandle};

use bytes::BytesMut;
use plasmon::status::ProtocolStatus;
use plasmon::wire::{Draw, Header, Receiver, Reply, Request};
use plasmon::{Client, CreateOptions, Error, ErrorKind, Object, ObjectId};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually, until};
use rustix::process::{Pid, Resource, Rlimit, Signal, Uid, geteuid, getrlimit, kill_process, setrlimit};
use rustix::thread::set_thread_res_uid;
use tempfile::TempDir;

/// Bytes in a mebibyte.
pub(crate) const MIB: usize = 1 << 20;

/// Arguments for nodes that remain members while a test has one of them stopped or cut off.
pub(crate) const LONG_LEASE: [&str; 2] = ["--lease", "60"];

/// Makes a request by a socket, and returns the reply with its descriptors.
pub(crate) fn ask(
    stream: &mut UnixStream,
    receiver: &mut Receiver,
    request: &Request,
) -> (Reply, Vec<OwnedFd>) {
    let mut out = BytesMut::new();
    request.encode(1, &mut out);
    stream.write_all(&out).expect("the daemon reads");
    loop {
        let frame = Header::take_frame(&mut receiver.buffer).expect("the daemon's frames are whole");
        if let Some((header, body)) = frame {
            let descriptors = receiver.take_descriptors(header.descriptors.into());
            return (Reply::decode(&header, body).expect("they make sense"), descriptors);
        }
        match receiver.receive(&*stream) {
            // Other tests have signals.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            received => assert_ne!(received.expect("the daemon answers"), 0, "it hung up"),
        }
    }
}

/// Puts an object of a pattern and returns its id.
pub(crate) fn put(client: &Client, pattern: Pattern, len: usize) -> ObjectId {
    let id = ObjectId::random();
    let options = CreateOptions { fresh: true, ..CreateOptions::default() };
    create(client, id, pattern, len, &options).unwrap_or_else(|error| panic!("put of {len} bytes: {error}"));
    id
}

/// Creates, fills and seals an object of a pattern.
pub(crate) fn try_put(client: &Client, id: ObjectId, pattern: Pattern, len: usize) -> Result<(), Error> {
    create(client, id, pattern, len, &CreateOptions::default())
}

fn create(
    client: &Client,
    id: ObjectId,
    pattern: Pattern,
    len: usize,
    options: &CreateOptions,
) -> Result<(), Error> {
    let mut creation = client.create(id, len as u64, b"", options)?;
    pattern.fill(creation.as_mut_slice());
    creation.seal()
}

/// Gets one object, with no time limit.
pub(crate) fn get(client: &Client, id: ObjectId) -> Object {
    try_get(client, id).unwrap_or_else(|error| panic!("get: {:?}: {error}", error.kind()))
}

/// Object that is in the memory or on the disk of this node, if it is.
pub(crate) fn here(client: &Client, id: ObjectId) -> Option<Object> {
    client.get_local(&[id]).expect("the daemon lives").remove(0).ok()
}

/// Gets one object, or the error of that object.
pub(crate) fn try_get(client: &Client, id: ObjectId) -> Result<Object, Error> {
    let mut objects = client.get(&[id], Some(PATIENCE))?;
    assert_eq!(objects.len(), 1, "one result an id");
    objects.remove(0)
}

/// Kind of the error of a result that must be an error.
#[track_caller]
pub(crate) fn kind<T>(result: Result<T, Error>) -> ErrorKind {
    match result {
        Ok(_) => panic!("it should have failed"),
        Err(error) => {
            assert!(!error.message().is_empty(), "{:?} without a message", error.kind());
            error.kind()
        }
    }
}

/// Number of times that a fetch must be seen unfinished before it counts as stopped. Emptying the sockets'
/// buffers takes far fewer.
const LOOKS: usize = 200;

/// Fetch that stands still in the middle, because its holder is paused.
pub(crate) struct Standing {
    /// Thread of the get.
    pub(crate) fetch: JoinHandle<Result<Object, Error>>,
    pub(crate) id: ObjectId,
    /// Number of the paused holder that serves the fetch.
    pub(crate) holder: usize,
}

/// Begins to get a big object on node 0 and pauses the holder that serves it, in the middle.
///
/// `prepare` puts an object of `len` bytes at its holder. If the fetch was too fast to be stopped, another
/// object is tried.
pub(crate) fn stop_a_fetch(
    cluster: &Cluster,
    holders: &[usize],
    len: usize,
    prepare: impl Fn(&Cluster) -> ObjectId,
) -> Standing {
    let fetched = || cluster.status(0).transfer.protocols.values().map(|count| count.fetched).sum::<u64>();
    for _ in 0..20 {
        let (id, before) = (prepare(cluster), fetched());
        let client = cluster.client(0);
        let fetch = thread::spawn(move || try_get(&client, id));
        // Room was made for the object: the first bytes are on their way.
        let begun = || cluster.status(0).memory.used >= len as u64;
        let serving = until("a holder serves, or all is over", || {
            let serving = holders.iter().copied().find(|&holder| cluster.status(holder).transfer.leases > 0);
            serving.filter(|_| begun()).map(Some).or(fetch.is_finished().then_some(None))
        });
        if let Some(holder) = serving {
            cluster.pause(holder);
            if (0..LOOKS).all(|_| fetched() == before) {
                return Standing { fetch, id, holder };
            }
            cluster.resume(holder);
        }
        drop(fetch.join().expect("no panic").expect("nobody died"));
        cluster.client(0).delete(&[id]).expect("delete");
        for node in [&[0], holders].concat() {
            eventually("its memory is free", || cluster.status(node).memory.used < len as u64);
        }
    }
    panic!("no fetch of {len} bytes could be stopped in its middle");
}

/// Client in a process of its own.
pub(crate) struct ClientProcess {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl ClientProcess {
    /// Starts the client with its orders (see the binary), and waits until they are carried out.
    pub(crate) fn start(cluster: &Cluster, node: usize, todo: &[&str]) -> Self {
        let mut command = cluster.command(node, Path::new(env!("CARGO_BIN_EXE_plasmon-e2e-client")));
        command.arg(cluster.socket(node)).args(todo);
        Self::spawn(command)
    }

    /// Runs the command of a client and waits until it is ready.
    pub(crate) fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let out = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut client = Self { child, out };
        assert_eq!(client.line(), "ready", "the client ended early");
        client
    }

    /// The client's line about its guards, of which it has one (see the binary).
    pub(crate) fn ask(&mut self) -> String {
        let stdin = self.child.stdin.as_mut().expect("it is a pipe");
        stdin.write_all(b"?\n").expect("the client reads");
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("the client's output is text");
        line.trim_end().to_owned()
    }

    /// Process id of the client.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the client.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it is our child");
    }

    /// Kills the client with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
    }
}

/// User id of nobody.
pub(crate) const NOBODY: u32 = 65534;

/// Client of a node that another user runs. The node must admit that user.
pub(crate) fn client_of(uid: u32, cluster: &Cluster, node: usize) -> Client {
    connected_as(uid, cluster, node, |client| client)
}

/// Connects as another user, and returns what that user's thread makes of the client. The node must admit
/// that user.
pub(crate) fn connected_as<T: Send + 'static>(
    uid: u32,
    cluster: &Cluster,
    node: usize,
    make: impl FnOnce(Client) -> T + Send + 'static,
) -> T {
    fs::set_permissions(cluster.folder(), Permissions::from_mode(0o755)).expect("the folder is ours");
    let socket = cluster.socket(node);
    // The user belongs to the thread alone, and ends with it.
    let connecting = thread::spawn(move || {
        let uid = Uid::from_raw(uid);
        set_thread_res_uid(uid, uid, uid).expect("root may become anybody");
        make(Client::connect(socket).unwrap_or_else(|error| panic!("{uid:?}: {error}")))
    });
    connecting.join().expect("connecting does not panic")
}

/// Copies a program, such that it can be run at once.
///
/// A process of its own copies it: a copy that this process wrote could still be open in a child of another
/// test, which was forked meanwhile, and then the kernel refuses to run it (`ETXTBSY`).
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().expect("the system has cp");
    assert!(copied.success(), "{} was not copied to {}: {copied}", from.display(), to.display());
}

/// Command that runs the first of some programs as nobody, because root cannot be refused anything.
pub(crate) fn as_nobody(cluster: &Cluster, programs: &[&Path]) -> Command {
    as_user(cluster, NOBODY, programs)
}

/// Command that runs the first of some programs as a user, who has a group of the same number.
///
/// The programs are copied to a folder that the user can reach.
pub(crate) fn as_user(cluster: &Cluster, user: u32, programs: &[&Path]) -> Command {
    fs::set_permissions(cluster.folder(), Permissions::from_mode(0o755)).expect("the folder is ours");
    let copy = |program: &&Path| {
        let own = cluster.folder().join(program.file_name().expect("a program has a name"));
        if !own.exists() {
            copy_program(program, &own);
        }
        own
    };
    let copies: Vec<_> = programs.iter().map(copy).collect();
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]).arg(&copies[0]);
    command
}

/// Size in bytes of a daemon's memory, without the memory that it shares with its clients.
pub(crate) fn own_memory(cluster: &Cluster, node: usize) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", cluster.daemon(node).pid()));
    let status = status.expect("the daemon lives");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel counts it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("it is a number") << 10
}

/// Number of descriptors that a daemon has open, without those of segments, some of which are made when they
/// are first needed.
pub(crate) fn descriptors(cluster: &Cluster, node: usize) -> usize {
    let folder = format!("/proc/{}/fd", cluster.daemon(node).pid());
    let open = fs::read_dir(folder).expect("the daemon lives").flatten();
    let segment = |target: &Path| target.to_string_lossy().starts_with("/memfd:plasmon-segment");
    open.filter_map(|entry| fs::read_link(entry.path()).ok()).filter(|target| !segment(target)).count()
}

/// Allows this process, and the daemons that it starts, so many descriptors. Returns whether the system
/// allows that.
pub(crate) fn may_open(descriptors: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < descriptors) {
        eprintln!("This user may open {:?} files, {descriptors} are needed: not tested.", limit.maximum);
        return false;
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("no more than is allowed");
    true
}

/// Disk of few MiB, in memory.
pub(crate) struct SmallDisk(TempDir);

impl SmallDisk {
    /// Makes a disk. `None` if this process may not.
    pub(crate) fn new(mib: u64) -> Option<Self> {
        if !geteuid().is_root() {
            eprintln!("Only root can make a small disk: not tested.");
            return None;
        }
        let disk = Self(tempfile::tempdir().expect("the temporary folder is writable"));
        run(&["mount", "-t", "tmpfs", "-o", &format!("size={mib}m"), "plasmon-e2e", disk.path()]);
        Some(disk)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.path().to_str().expect("it is text")
    }

    /// Makes the disk larger.
    pub(crate) fn grow(&self, mib: u64) {
        run(&["mount", "-o", &format!("remount,size={mib}m"), self.path()]);
    }

    /// Makes the disk as small as its contents.
    pub(crate) fn shrink(&self) {
        until("the disk is as small as what is on it", || {
            let disk = rustix::fs::statvfs(self.path()).expect("it is mounted");
            let used = ((disk.f_blocks - disk.f_bfree) * disk.f_frsize).max(disk.f_frsize);
            // More may have been written meanwhile.
            let mut mount = Command::new("mount");
            mount.args(["-o", &format!("remount,size={used}"), self.path()]).stderr(Stdio::null());
            mount.status().expect("it runs").success().then_some(())
        });
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run(&["umount", "--lazy", self.path()]);
    }
}

fn run(words: &[&str]) {
    assert!(Command::new(words[0]).args(&words[1..]).status().expect("it runs").success(), "{words:?}");
}

/// Growth of a node's counters of a protocol since `before`.
pub(crate) fn grown(before: &ProtocolStatus, now: &ProtocolStatus) -> ProtocolStatus {
    ProtocolStatus {
        fetched: now.fetched - before.fetched,
        fetched_bytes: now.fetched_bytes - before.fetched_bytes,
        served: now.served - before.served,
        served_bytes: now.served_bytes - before.served_bytes,
        copied_bytes: now.copied_bytes - before.copied_bytes,
        registrations: now.registrations - before.registrations,
        reads: now.reads - before.reads,
    }
}

/// Whether a holder's counters of a protocol fit those of `here`, the only node that fetched by it. A reader
/// without an answer after 50 ms asks the other keeper too, so a holder may serve an object twice, the second
/// time in part. A holder that serves by a socket counts a little later.
pub(crate) fn has_served(there: &ProtocolStatus, here: &ProtocolStatus) -> bool {
    let copied = if here.copied_bytes == 0 { 0..=0 } else { here.fetched_bytes..=there.served_bytes };
    there.served >= here.fetched
        && there.served_bytes >= here.fetched_bytes
        && copied.contains(&there.copied_bytes)
}

/// The first and the second keeper of an object among members, by rendezvous hashing.
pub(crate) fn keepers(members: impl Iterator<Item = String>, id: &ObjectId) -> [String; 2] {
    let mix = |word: u64| Draw::new(word).word();
    let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let shard = u64::from(u16::from_le_bytes([id.as_bytes()[0], id.as_bytes()[1]]) % (1 << 14));
    let mut nodes: Vec<_> = members.collect();
    nodes.sort_by_key(|node| {
        let node = bytes(node);
        std::cmp::Reverse(mix(mix(half(&node[..8]) ^ mix(shard)) ^ half(&node[8..])))
    });
    nodes.truncate(2);
    nodes.try_into().expect("there are two nodes at least")
}

/// Bytes that hexadecimal digits stand for.
pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(digits).collect()
}
