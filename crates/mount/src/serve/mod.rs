//! A volume, served to the kernel.
//!
//! Owns the handles of open folders and files, with the owners of `fcntl` locks, and the waits for locks. Any
//! worker, and a thread for each wait for a lock. A node id of the kernel is the number of the inode, so
//! there is no table of inodes. Invariant: the kernel keeps names and attributes no longer than the session
//! and [`Manner::cache`] allow.

mod attributes;
mod data;
mod handles;
mod locks;
mod names;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use plasmon::files::{Actor, Buffer, Current, Keep, Volume};
use rustix::io::Errno;

use self::names::Listing;
use crate::device::Device;
use crate::kernel::{Call, InHeader, WriteIn, opcode};
use crate::negotiation::Agreed;
use crate::notify::{Dropper, Notifier};
use crate::reply::Reply;
use crate::running::Wait;
use crate::worker::{Block, Server};

/// How a volume is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Longest time for which the kernel keeps names and attributes.
    pub(crate) cache: Duration,
    /// Whether no file goes through the page cache.
    pub(crate) direct: bool,
}

/// Server of a volume: carries out the kernel's requests by a session of the volume.
pub(crate) struct VolumeServer {
    volume: Volume,
    device: Device,
    manner: Manner,
    begin: Box<dyn Fn(Agreed) + Send + Sync>,
    folders: Mutex<HashMap<u64, Arc<Listing>>>,
    next_folder: AtomicU64,
    /// Waits for locks, by the numbers of their requests.
    waits: Arc<Mutex<HashMap<u64, Wait>>>,
    /// Versions of the files whose pages the kernel may cache.
    pages: data::Pages,
    handles: handles::Handles,
    /// Files of which it was logged that they cannot be mapped here.
    refused: Mutex<HashSet<u64>>,
}

impl VolumeServer {
    /// Returns the server of a volume for a device. `begin` is called once the kernel has begun.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn new(
        volume: Volume,
        device: Device,
        manner: Manner,
        begin: impl Fn(Agreed) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let pages = data::Pages::new(Dropper::start(device.clone())?);
        Ok(Self {
            volume,
            device,
            manner,
            begin: Box::new(begin),
            folders: Mutex::default(),
            next_folder: AtomicU64::new(1),
            waits: Arc::default(),
            pages,
            handles: handles::Handles::default(),
            refused: Mutex::default(),
        })
    }

    /// Returns the time for which the kernel may keep an answer about these inodes. The caller holds
    /// `current` until the answer is sent.
    fn kept(&self, current: &Current<'_>, keep: Keep, inodes: &[u64]) -> Duration {
        current.left(keep, inodes).min(self.manner.cache)
    }
}

/// Returns the user on whose behalf a request is made.
fn actor(header: &InHeader) -> Actor {
    Actor { uid: header.uid, gid: header.gid, groups: Vec::new() }
}

/// Returns the kernel's number of an error.
fn errno(error: &plasmon::files::Error) -> Errno {
    Errno::from_raw_os_error(error.errno() as i32)
}

impl Block for Buffer {
    fn bytes(&mut self) -> &mut [u8] {
        Self::bytes(self)
    }
}

impl Server for VolumeServer {
    type Block = Buffer;

    fn block(&self) -> Buffer {
        self.volume.buffer_at_hand()
    }

    fn call(&self, header: &InHeader, call: Call<'_>, reply: Reply) {
        match header.opcode {
            opcode::LOOKUP..=opcode::LINK
            | opcode::SETXATTR..=opcode::REMOVEXATTR
            | opcode::RENAME2
            | opcode::OPENDIR..=opcode::FSYNCDIR
            | opcode::READDIRPLUS
            | opcode::STATFS => self.on_name(header, call, reply),
            opcode::GETLK..=opcode::SETLKW => self.on_lock(header, call, reply),
            _ => self.on_data(header, call, reply),
        }
    }

    fn write(&self, header: &InHeader, write: WriteIn, block: &mut Buffer, reply: Reply) {
        self.on_write(header, write, block, reply);
    }

    fn interrupt(&self, unique: u64) {
        if let Some(wait) = self.waits.lock().get(&unique) {
            wait.end();
        }
    }

    fn begin(&self, agreed: Agreed) {
        Notifier::start(self.device.clone(), agreed, self.volume.watcher());
        (self.begin)(agreed);
    }

    fn end(&self) {
        self.waits.lock().values().for_each(Wait::end);
    }
}
