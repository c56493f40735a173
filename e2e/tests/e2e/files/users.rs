//! Volumes that ordinary users mount: by `fusermount3`, as the user that the kernel tells the node, and for
//! themselves alone.

use std::fs::{self, File, Permissions};
use std::io::{Error, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use plasmon_e2e::{Cluster, Pattern, binary, eventually};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::ground::Folder;
use super::{Mounted, can_mount, has_ended, text};
use crate::commands::json;
use crate::support::{MIB, as_user};

/// User that every Debian has, as `fusermount3` asks for names: daemon.
const ALICE: u32 = 1;
/// Another user that every Debian has: nobody.
const BOB: u32 = 65534;

/// Makes a device in `$0` that everybody may open, as it is on hosts with udev, and lets only those see it
/// who see the mounts of this thread.
const OPEN_DEVICE: &str = "\
    mount --make-rslave /
    mount -t tmpfs -o size=1m plasmon-e2e $0
    mknod -m 666 $0/fuse c 10 229
    mount --bind $0/fuse /dev/fuse
    umount -l $0";

/// Gives this thread, and what it starts, mounts of its own if users may not open `/dev/fuse` here.
fn open_device() {
    let mode = fs::metadata("/dev/fuse").expect("it is there").mode();
    if mode & 0o666 == 0o666 {
        return;
    }
    // SAFETY: what changes is this thread's view of mounts, and its current folder, which it uses alone.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    assert_eq!(done, 0, "{}", Error::last_os_error());
    let folder = TempDir::new().expect("there is a folder for temporary files");
    super::programs::run(Path::new("/"), "sh", &["-ec", OPEN_DEVICE, text(folder.path())]);
}

/// Runs a test in a thread that may have mounts of its own, on two nodes that users may use.
fn with_users(test: impl FnOnce(&Cluster) + Send) {
    if !can_mount() {
        return;
    }
    if Command::new("fusermount3").arg("--version").output().is_err() {
        eprintln!("skipped: users mount by fusermount3, which is not here");
        return;
    }
    // The ground of all folders is mounted and unmounted where all see it.
    let _ground = Folder::new();
    thread::scope(|scope| {
        let run = || {
            open_device();
            test(&Cluster::builder().nodes(2).memory("128MiB").args(&["--socket-mode", "0666"]).start());
        };
        scope.spawn(run).join().unwrap_or_else(|panic| resume_unwind(panic));
    });
}

/// User with a folder at which a volume is mounted.
struct User<'a> {
    cluster: &'a Cluster,
    uid: u32,
    folder: Folder,
}

impl<'a> User<'a> {
    fn new(cluster: &'a Cluster, uid: u32) -> Self {
        let folder = Folder::new();
        chown(folder.path(), Some(uid), Some(uid)).expect("root gives it away");
        Self { cluster, uid, folder }
    }

    /// Runs `plasmon mount` by a node.
    fn try_mount(&self, node: usize, options: &[&str]) -> Output {
        let mut command = as_user(self.cluster, self.uid, &[&binary()]);
        command.args(["mount", "--json"]).arg("--socket").arg(self.cluster.socket(node));
        command.args(options).arg(self.folder.path()).output().expect("plasmon runs")
    }

    /// Mounts by a node. Returns the process that serves the folder.
    fn mount(&self, node: usize) -> Pid {
        let output = self.try_mount(node, &[]);
        assert!(output.status.success(), "mount: {}", String::from_utf8_lossy(&output.stderr));
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        Pid::from_raw(told["pid"].as_i64().expect("a number") as i32).expect("a process")
    }

    /// Message of a mount that is refused.
    fn refused(&self, options: &[&str]) -> String {
        let output = self.try_mount(0, options);
        assert!(!output.status.success(), "it is mounted");
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").expect("the kernel tells");
        assert!(!mounts.contains(text(self.folder.path())), "it is mounted all the same");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Starts a script of the shell as this user, in the folder.
    fn start(&self, script: &str) -> Child {
        let shell = Path::new("/bin/sh");
        let mut command = as_user(self.cluster, self.uid, &[shell]);
        // Root may not even enter the folder.
        command.args(["-ec", &format!("cd \"$0\" && {script}")]).arg(self.folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("sh runs")
    }

    /// Runs a script of the shell as this user, in the folder. Gives what it printed, or its last words.
    fn run(&self, script: &str, input: &[u8]) -> Result<Vec<u8>, String> {
        let mut child = self.start(script);
        let written = child.stdin.take().expect("it is a pipe").write_all(input);
        let output = child.wait_with_output().expect("it is our child");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            return Err(said);
        }
        written.expect("it reads all");
        Ok(output.stdout)
    }

    /// Asserts that a script fails, and why.
    #[track_caller]
    fn fails(&self, script: &str, why: &str) {
        let said = self.run(script, b"").expect_err("it is forbidden");
        assert!(said.contains(why), "{script}: {said}");
    }

    fn unmount(&self, pid: Pid) {
        let mut command = as_user(self.cluster, self.uid, &[&binary()]);
        let output = command.arg("umount").arg(self.folder.path()).output().expect("plasmon runs");
        assert!(output.status.success(), "umount: {}", String::from_utf8_lossy(&output.stderr));
        eventually("the mount's process ends", || has_ended(pid));
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        // After `unmount` nothing is mounted, which the command says.
        let _ = super::plasmon(&["umount", "--force", text(self.folder.path())]);
    }
}

#[test]
fn users_mount_a_shared_volume_and_get_what_modes_allow() {
    with_users(get_what_modes_allow);
}

fn get_what_modes_allow(cluster: &Cluster) {
    json(cluster, 0, &["volume", "create", "main", "--shared"]);
    let root = Mounted::with(cluster, 0, &["--allow-other"]);
    fs::set_permissions(root.root(), Permissions::from_mode(0o1777)).expect("chmod");
    let (alice, bob) = (User::new(cluster, ALICE), User::new(cluster, BOB));
    let mounts = [alice.mount(1), bob.mount(0)];
    for (len, name) in [(100, "small"), (60_000, "middle"), (2 * MIB + 333, "large")] {
        let data = Pattern(len as u64).bytes(len);
        alice
            .run(&format!("umask 022; cat > {name}; umask 077; cat {name} > {name}-secret"), &data)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        for (who, read) in [
            ("alice", alice.run(&format!("cat {name}-secret"), b"")),
            ("bob", bob.run(&format!("cat {name}"), b"")),
        ] {
            assert!(read.unwrap_or_else(|error| panic!("{who}: {error}")) == data, "{who}: {name}");
        }
        bob.fails(&format!("cat {name}-secret"), "Permission denied");
        bob.fails(&format!("echo more >> {name}"), "Permission denied");
        bob.fails(&format!("rm -f {name}"), "Operation not permitted");
        bob.fails(&format!("chmod 666 {name}-secret"), "Operation not permitted");
        // A mount of root's for all gives the same, as the kernel checks modes there.
        assert!(fs::read(root.path(&format!("{name}-secret"))).expect("root reads all") == data);
        let told = fs::metadata(root.path(name)).expect("stat");
        assert_eq!((told.uid(), told.gid(), told.mode() & 0o777), (ALICE, ALICE, 0o644));
    }
    // Each such mount is its user's alone, and root's folders are none of theirs.
    let error = fs::read_dir(alice.folder.path()).expect_err("it is Alice's alone");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    fs::create_dir(root.path("roots")).expect("mkdir");
    alice.fails("touch roots/file", "Permission denied");
    alice.run("mkdir own && echo note > own/note && mv small own/", b"").expect("what is hers she changes");
    assert_eq!(bob.run("cat own/note", b"").expect("it is open to all"), b"note\n");
    alice.unmount(mounts[0]);
    bob.unmount(mounts[1]);
    assert_eq!(fs::read_dir(alice.folder.path()).expect("nothing is mounted").count(), 0);
    root.unmount();
}

#[test]
fn a_user_reads_a_file_of_others_with_many_holes_after_the_node_was_started_again() {
    with_users(read_holes_after_the_node_was_started_again);
}

fn read_holes_after_the_node_was_started_again(cluster: &Cluster) {
    // More ranges of one object than a page of the map tells.
    const PIECE: usize = 4096;
    const LEN: usize = 400 * PIECE;
    json(cluster, 0, &["volume", "create", "main", "--shared"]);
    let root = Mounted::with(cluster, 0, &["--allow-other"]);
    let bob = User::new(cluster, BOB);
    bob.mount(1);
    let mut data = Pattern(3).bytes(LEN);
    fs::write(root.path("file"), &data).expect("write");
    let file = File::options().write(true).open(root.path("file")).expect("open");
    for at in (0..LEN).step_by(2 * PIECE) {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, hole, at as u64, PIECE as u64).expect("fallocate");
        data[at..at + PIECE].fill(0);
    }
    file.sync_all().expect("fsync");
    // The kernel keeps nothing of what is read in this way, and the mount the map while the file is open.
    let read = format!("read go; dd if=file iflag=fullblock,direct bs={LEN} status=none");
    let mut shell = bob.start(&format!("exec 3< file; {read}; {read}"));
    let (mut asks, mut tells) = (shell.stdin.take().expect("a pipe"), shell.stdout.take().expect("a pipe"));
    let mut reads = |when: &str| {
        asks.write_all(b"go\n").expect("it reads");
        let mut read = vec![0; LEN];
        tells.read_exact(&mut read).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert!(read == data, "{when}");
    };
    reads("at first");
    let daemon = cluster.daemon(1);
    daemon.signal(Signal::KILL);
    eventually("the daemon is gone", || has_ended(Pid::from_raw(daemon.pid() as i32).expect("a process")));
    let mut command = cluster.serve(1);
    command.args(["--listen", &format!("{}:0", cluster.address(1)), "--join", cluster.daemon(0).listen()]);
    let _daemon = cluster.launch(1, command).expect("it starts again");
    reads("after the node was started again");
    assert!(shell.wait().expect("it is our child").success());
}

#[test]
fn users_mount_neither_for_others_nor_what_is_not_shared() {
    with_users(mount_neither_for_others_nor_what_is_not_shared);
}

fn mount_neither_for_others_nor_what_is_not_shared(cluster: &Cluster) {
    json(cluster, 0, &["volume", "create", "main", "--shared"]);
    json(cluster, 0, &["volume", "create", "roots"]);
    let alice = User::new(cluster, ALICE);
    let said = alice.refused(&["--allow-other"]);
    assert!(said.contains("--allow-other"), "{said}");
    let said = alice.refused(&["--volume", "roots"]);
    assert!(said.contains("--shared"), "{said}");
    // Her own volume is hers alone, too.
    let pid = alice.mount(0);
    alice.unmount(pid);
    let roots = alice.cluster.folder().join("roots-folder");
    fs::create_dir(&roots).expect("the folder is ours");
    let mut command = as_user(cluster, ALICE, &[&binary()]);
    command.args(["mount"]).arg("--socket").arg(cluster.socket(0)).arg(&roots);
    let output = command.output().expect("plasmon runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("fusermount3"), "she may not write there: {said}");
}
