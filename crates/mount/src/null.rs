//! A file system that keeps no bytes, for measuring the kernel and the transport.
//!
//! Owns the names and sizes of files in one folder. Any worker. Written bytes are forgotten, and every read
//! gives the bytes of one block. Invariant: names and sizes are those that programs made.

use std::collections::{BTreeMap, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::kernel::{
    Attr, AttrOut, Call, Dirent, EntryOut, InHeader, OpenOut, ReadIn, StatfsOut, Structure, WriteIn,
    WriteOut, fattr, fopen,
};
use crate::negotiation::{Agreed, BLOCK_BYTES};
use crate::reply::Reply;
use crate::worker::{Block, Server};

/// Inode of the folder.
const ROOT: u64 = 1;
/// Time in seconds for which the kernel keeps names and attributes, as it does of volumes.
const KEPT_SECONDS: u64 = 1;
/// Mode of the folder.
const FOLDER: u32 = 0o040_755;
/// Mode of every file.
const FILE: u32 = 0o100_644;

/// Names and sizes of the files of the folder.
#[derive(Default)]
struct Files {
    names: BTreeMap<Vec<u8>, u64>,
    sizes: HashMap<u64, u64>,
    last: u64,
}

/// Server of files without bytes.
pub(crate) struct NullServer {
    files: Mutex<Files>,
    bytes: Vec<u8>,
    begin: Box<dyn Fn(Agreed) + Send + Sync>,
    since: u64,
}

/// Memory of this process into which requests are read.
pub(crate) struct OwnBlock(Vec<u8>);

impl Block for OwnBlock {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl NullServer {
    /// Returns a server of an empty folder. `begin` is called once the kernel has begun.
    pub(crate) fn new(begin: impl Fn(Agreed) + Send + Sync + 'static) -> Self {
        let files = Files { last: ROOT, ..Files::default() };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { files: Mutex::new(files), bytes: vec![0x5a; BLOCK_BYTES], begin: Box::new(begin), since }
    }

    fn attr(&self, ino: u64, size: u64) -> Attr {
        let (mode, nlink) = if ino == ROOT { (FOLDER, 2) } else { (FILE, 1) };
        let (time, blocks) = (self.since, size.div_ceil(512));
        let attr = Attr { ino, size, blocks, mode, nlink, blksize: 4 << 10, ..Attr::default() };
        Attr { atime: time, mtime: time, ctime: time, ..attr }
    }

    fn entry(&self, ino: u64, size: u64) -> EntryOut {
        let attr = self.attr(ino, size);
        EntryOut {
            nodeid: ino,
            entry_valid: KEPT_SECONDS,
            attr_valid: KEPT_SECONDS,
            attr,
            ..EntryOut::default()
        }
    }

    /// Returns the attributes of an inode, or ESTALE if there is no such inode.
    fn attributes(&self, ino: u64) -> Result<AttrOut, Errno> {
        let size = match ino {
            ROOT => 0,
            ino => *self.files.lock().sizes.get(&ino).ok_or(Errno::STALE)?,
        };
        Ok(AttrOut { attr_valid: KEPT_SECONDS, attr: self.attr(ino, size), ..AttrOut::default() })
    }

    fn lookup(&self, name: &[u8]) -> Result<EntryOut, Errno> {
        let files = self.files.lock();
        let ino = *files.names.get(name).ok_or(Errno::NOENT)?;
        Ok(self.entry(ino, files.sizes.get(&ino).copied().unwrap_or(0)))
    }

    fn create(&self, name: &[u8]) -> EntryOut {
        let mut files = self.files.lock();
        files.last += 1;
        let made = files.last;
        let ino = *files.names.entry(name.to_vec()).or_insert(made);
        files.sizes.insert(ino, 0);
        self.entry(ino, 0)
    }

    fn unlink(&self, name: &[u8]) -> Result<(), Errno> {
        let mut files = self.files.lock();
        let ino = files.names.remove(name).ok_or(Errno::NOENT)?;
        files.sizes.remove(&ino);
        Ok(())
    }

    fn read(&self, ino: u64, read: ReadIn, reply: Reply) {
        let size = self.files.lock().sizes.get(&ino).copied().unwrap_or(0);
        let left = size.saturating_sub(read.offset).min(read.size.into()) as usize;
        reply.parts(&[&self.bytes[..left.min(self.bytes.len())]]);
    }

    fn list(&self, read: ReadIn, plus: bool, reply: Reply) {
        let files = self.files.lock();
        let mut bytes = Vec::new();
        for (at, (name, ino)) in files.names.iter().enumerate().skip(read.offset as usize) {
            let head = if plus { EntryOut::LEN } else { 0 };
            let len = (head + Dirent::LEN + name.len()).next_multiple_of(8);
            if bytes.len() + len > read.size as usize {
                break;
            }
            let end = bytes.len() + len;
            let off = at as u64 + 1;
            if plus {
                // An inode number of 0 says that the entry comes without attributes.
                EntryOut::default().put(&mut bytes);
            }
            Dirent { ino: *ino, off, namelen: name.len() as u32, kind: 8 }.put(&mut bytes);
            bytes.extend_from_slice(name);
            bytes.resize(end, 0);
        }
        drop(files);
        reply.parts(&[&bytes]);
    }
}

impl Server for NullServer {
    type Block = OwnBlock;

    fn block(&self) -> OwnBlock {
        OwnBlock(vec![0; BLOCK_BYTES])
    }

    fn call(&self, header: &InHeader, call: Call<'_>, reply: Reply) {
        let opened = OpenOut { fh: 0, open_flags: fopen::KEEP_CACHE, spare: 0 };
        match call {
            Call::Lookup(name) => reply.result(self.lookup(name), |entry| entry),
            Call::Getattr(_) => reply.result(self.attributes(header.nodeid), |out| out),
            Call::Setattr(set) => {
                if set.valid & fattr::SIZE != 0
                    && let Some(size) = self.files.lock().sizes.get_mut(&header.nodeid)
                {
                    *size = set.size;
                }
                reply.result(self.attributes(header.nodeid), |out| out);
            }
            Call::Create(_, name) => {
                let entry = self.create(name);
                reply.parts(&[&entry.bytes(), &opened.bytes()]);
            }
            Call::Mknod(_, name) => reply.structure(&self.create(name)),
            Call::Unlink(name) => reply.outcome(self.unlink(name)),
            Call::Open(open) => {
                let direct = open.flags & 3 == 1;
                let flags = if direct { fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES } else { 0 };
                reply.structure(&OpenOut { open_flags: opened.open_flags | flags, ..opened });
            }
            Call::Opendir(_) => reply.structure(&OpenOut::default()),
            Call::Read(read) => self.read(header.nodeid, read, reply),
            Call::Readdir(read) => self.list(read, false, reply),
            Call::ReaddirPlus(read) => self.list(read, true, reply),
            Call::Flush(_)
            | Call::Release(_)
            | Call::Releasedir(_)
            | Call::Fsync(_)
            | Call::Fsyncdir
            | Call::Destroy => reply.done(),
            Call::Statfs => {
                reply.structure(&StatfsOut { bsize: 4 << 10, namelen: 255, ..StatfsOut::default() })
            }
            _ => reply.error(Errno::NOSYS),
        }
    }

    fn write(&self, header: &InHeader, write: WriteIn, _block: &mut OwnBlock, reply: Reply) {
        let end = write.offset.saturating_add(write.size.into());
        if let Some(size) = self.files.lock().sizes.get_mut(&header.nodeid) {
            *size = end.max(*size);
        }
        reply.structure(&WriteOut { size: write.size, spare: 0 });
    }

    fn interrupt(&self, _unique: u64) {}

    fn begin(&self, agreed: Agreed) {
        (self.begin)(agreed);
    }

    fn end(&self) {}
}
