//! Tests of workers with a server that panics.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, spawn, yield_now};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::geteuid;
use tempfile::TempDir;

use super::*;
use crate::mounting::{Manner, mount_at};
use crate::null::{NullServer, OwnBlock};

/// Name whose lookup panics.
const PANICS: &str = "panics";

/// Server without files, which panics where a test wants it.
struct Panicking {
    null: NullServer,
    /// Channel that gets a message when the lookup that panics has begun.
    begun: Sender<()>,
    /// Channel on which the lookup that panics waits for the test.
    go_on: Mutex<Receiver<()>>,
    /// Whether the server panics when a second worker wants a block.
    lacks_blocks: bool,
    has_given: AtomicBool,
}

impl Server for Panicking {
    type Block = OwnBlock;

    fn block(&self) -> OwnBlock {
        assert!(!self.has_given.swap(true, Ordering::Relaxed) || !self.lacks_blocks, "the test wants it");
        self.null.block()
    }

    fn call(&self, header: &InHeader, call: Call<'_>, reply: Reply) {
        if call == Call::Lookup(PANICS.as_bytes()) {
            self.begun.send(()).expect("the test waits");
            self.go_on.lock().recv().expect("the test lives");
            panic!("the test wants it");
        }
        self.null.call(header, call, reply);
    }

    fn write(&self, header: &InHeader, write: WriteIn, block: &mut OwnBlock, reply: Reply) {
        self.null.write(header, write, block, reply);
    }

    fn interrupt(&self, unique: u64) {
        self.null.interrupt(unique);
    }

    fn begin(&self, agreed: Agreed) {
        self.null.begin(agreed);
    }

    fn end(&self) {
        self.null.end();
    }
}

/// Folder that is served by one thread.
struct Served {
    folder: TempDir,
    workers: Arc<Workers<Panicking>>,
    serving: Option<JoinHandle<io::Result<()>>>,
    begun: Receiver<()>,
    go_on: Sender<()>,
}

impl Served {
    /// Mounts a folder. `None` if the test may not mount.
    fn new(lacks_blocks: bool) -> Option<Self> {
        if !geteuid().is_root() || Device::open().is_err() {
            eprintln!("skipped: mounting takes root and /dev/fuse");
            return None;
        }
        let folder = TempDir::new().expect("the folder for temporary files can be written");
        let manner = Manner { source: "test".to_owned(), allow_other: false, read_only: false };
        let device = mount_at(folder.path(), &manner).expect("root may mount");
        let ((begins, begun), (go_on, goes_on)) = (channel(), channel());
        let server = Panicking {
            null: NullServer::new(|_| {}),
            begun: begins,
            go_on: Mutex::new(goes_on),
            lacks_blocks,
            has_given: AtomicBool::new(false),
        };
        let workers = Workers::new(device, Arc::new(server), 1);
        let serves = Arc::clone(&workers);
        let serving = Some(spawn(move || serves.serve()));
        Some(Self { folder, workers, serving, begun, go_on })
    }

    /// Looks a name up as a program does. The thread returns the number of the error.
    fn look(&self, name: &str) -> JoinHandle<Option<i32>> {
        let path = self.folder.path().join(name);
        spawn(move || fs::symlink_metadata(path).err().and_then(|error| error.raw_os_error()))
    }

    /// Waits for the end of serving, and returns its outcome.
    fn ended(&mut self) -> io::Result<()> {
        self.serving.take().expect("it ends once").join().expect("it does not panic")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        abort(self.folder.path());
    }
}

/// Ends a mount at once. Requests that wait get an error.
fn abort(folder: &Path) {
    // The folder may be in use, or be unmounted already.
    let _ = unmount(folder, UnmountFlags::FORCE);
    let _ = unmount(folder, UnmountFlags::DETACH);
}

#[test]
fn requests_are_served_after_a_panic_of_the_only_worker() {
    let Some(mut served) = Served::new(false) else { return };
    let panics = served.look(PANICS);
    served.begun.recv().expect("it is served");
    let waits = served.look("other");
    while served.workers.queue.lock().waiting.is_empty() {
        yield_now();
    }
    served.go_on.send(()).expect("it is served");
    assert_eq!(panics.join().expect("it ends"), Some(Errno::IO.raw_os_error()));
    assert_eq!(waits.join().expect("it ends"), Some(Errno::NOENT.raw_os_error()), "it waited for the worker");
    assert_eq!(served.look("next").join().expect("it ends"), Some(Errno::NOENT.raw_os_error()));
    abort(served.folder.path());
    served.ended().expect("a folder that is unmounted is no error");
}

#[test]
fn a_panic_outside_of_a_request_ends_the_mount() {
    let Some(mut served) = Served::new(true) else { return };
    let error = served.ended().expect_err("its second worker has no block");
    assert!(error.to_string().contains("panicked"), "{error}");
}
