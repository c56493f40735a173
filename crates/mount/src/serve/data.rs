//! Requests about the bytes of files.
//!
//! Owns the version of each file whose pages the kernel may cache. Any worker; the dropper notes versions
//! too. A [handle](super::handles) of the kernel stands for an open, and the session owns what is known of
//! the file. Invariants: an open that only writes, that appends, or that is to write without the right to map
//! the file, bypasses the page cache, and the kernel refuses to map it so that stores are seen by others; the
//! kernel keeps pages over an open only if they are of the opened version.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use plasmon::files::{Buffer, Entry, OpenOptions, Opened, Seek, SetAttributes, WriteManner};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::attributes::entry_out;
use super::handles::Ended;
use super::{VolumeServer, actor, errno};
use crate::kernel::{
    Call, CopyIn, CreateIn, FallocateIn, InHeader, LseekIn, Name, OpenIn, OpenOut, ReadIn, Structure,
    WriteIn, WriteOut, fopen, locks, reads, writes,
};
use crate::notify::Dropper;
use crate::reply::Reply;

/// Largest number of files of which the versions of pages are known.
const MAX_PAGES_KNOWN: usize = 64 << 10;
/// `whence` of a seek to the next data.
const SEEK_DATA: u32 = 3;
/// `whence` of a seek to the next hole.
const SEEK_HOLE: u32 = 4;
/// Flag of `fallocate`: the file does not become longer.
const KEEP_SIZE: u32 = 1;
/// Flag of `fallocate`: the range becomes a hole.
const PUNCH_HOLE: u32 = 2;
/// Flag of `fallocate`: the range reads as zeros afterwards.
const ZERO_RANGE: u32 = 16;
/// Largest number of bytes that one request copies.
const MAX_COPY_BYTES: u64 = 1 << 30;

/// Versions of the files whose pages the kernel may cache. Clones share one table.
#[derive(Clone)]
pub(super) struct Pages {
    known: Arc<Mutex<HashMap<u64, u64>>>,
    dropper: Dropper,
}

impl Pages {
    pub(super) fn new(dropper: Dropper) -> Self {
        Self { known: Arc::default(), dropper }
    }

    /// Notes that a version of a file is opened. Returns whether the kernel may keep the pages of the file.
    fn open(&self, inode: u64, version: u64) -> bool {
        let mut known = self.known.lock();
        if known.len() >= MAX_PAGES_KNOWN {
            known.clear();
        }
        known.insert(inode, version) == Some(version)
    }

    /// Calls `then` once the kernel has no pages of a range, which was written past its page cache.
    fn drop_range(&self, inode: u64, range: (u64, u64), then: impl FnOnce() + Send + 'static) {
        self.dropper.drop_range(inode, range, then);
    }

    /// Answers a lock request once the kernel has no pages of the file from other versions than that of
    /// `entry`.
    pub(super) fn answer(&self, entry: &Entry, reply: Reply) {
        let (inode, version) = (entry.attributes.inode, entry.attributes.version);
        if self.known.lock().get(&inode) == Some(&version) {
            return reply.done();
        }
        let known = Arc::clone(&self.known);
        self.dropper.drop_pages(inode, move || {
            known.lock().insert(inode, version);
            reply.done();
        });
    }
}

impl VolumeServer {
    /// Carries out a request about the bytes of a file.
    pub(super) fn on_data(&self, header: &InHeader, call: Call<'_>, reply: Reply) {
        let node = header.nodeid;
        match call {
            Call::Open(open) => self.open(header, open, reply),
            Call::Create(create, name) => self.create(header, create, name, reply),
            Call::Tmpfile(create) => self.create(header, create, b"", reply),
            Call::Read(read) => self.read(node, read, reply),
            Call::Flush(flush) => {
                // A program that inherited a descriptor closes it and ignores errors, so another close or
                // fsync of this open still tells of a failure.
                let flushed = self.volume.flush_and_look(node, &self.handles.seen(flush.fh));
                if self.handles.unlock(node, flush.lock_owner) {
                    self.volume.end_locks(node, flush.lock_owner, false);
                }
                reply.outcome(flushed.map_err(|error| errno(&error)));
            }
            Call::Fsync(sync) => {
                let flushed = self.volume.flush(node, &self.handles.seen(sync.fh));
                reply.outcome(flushed.map_err(|error| errno(&error)));
            }
            Call::Release(release) => {
                let Ended { seen, maps, owners } = self.handles.end(release.fh);
                if release.release_flags & locks::RELEASE_FLOCK != 0 {
                    self.volume.end_locks(node, release.lock_owner, true);
                }
                owners.iter().for_each(|owner| self.volume.end_locks(node, *owner, false));
                self.handles.unlocked(node, &owners);
                if let Err(error) = self.volume.release(node, &seen, maps) {
                    tracing::warn!(inode = node, %error, "bytes that nobody synced were lost");
                }
                reply.done();
            }
            Call::Fallocate(allocate) => self.allocate(header, allocate, reply),
            Call::Lseek(seek) => self.seek(node, seek, reply),
            Call::CopyFileRange(copy) => self.copy(header, copy, reply),
            Call::Syncfs | Call::Destroy => reply.done(),
            _ => reply.error(Errno::NOSYS),
        }
    }

    /// Carries out a write, whose payload begins with the buffer.
    pub(super) fn on_write(&self, header: &InHeader, write: WriteIn, buffer: &mut Buffer, reply: Reply) {
        let (node, len) = (header.nodeid, write.size as usize);
        let drops_privileges = write.write_flags & writes::KILL_SUIDGID != 0;
        // O_APPEND is read from each write, because `fcntl` changes it while the file is open.
        let (flags, is_of_cache) = (flags(write.flags), write.write_flags & writes::CACHE != 0);
        let is_direct = write.write_flags & writes::LOCKOWNER != 0;
        if !is_direct {
            self.handles.cache(node);
        }
        let appends = flags.contains(OFlags::APPEND) && !is_of_cache;
        let written = if appends {
            self.volume.append(node, &buffer.bytes()[..len], drops_privileges).map(|_| len)
        } else {
            // If there is no error, the kernel takes all of the pages as written.
            let manner = WriteManner { drops_privileges, whole: is_of_cache };
            self.volume.write(node, write.offset, buffer, len, manner)
        };
        // The kernel itself syncs bytes that go through its page cache.
        let syncs = flags.intersects(OFlags::SYNC | OFlags::DSYNC) && !is_of_cache;
        let written = written.and_then(|len| match syncs {
            true => self.volume.flush(node, &self.handles.seen(write.fh)).map(|()| len),
            false => Ok(len),
        });
        let written = written.map_err(|error| errno(&error));
        let answer = move || reply.result(written, |len| WriteOut { size: len as u32, spare: 0 });
        // The kernel drops pages itself before such a write, and afterwards unless the program goes on
        // meanwhile (`io_submit`): then pages would stay that it got during the write.
        if is_direct && !appends && self.handles.is_cached(node) {
            let end = write.offset.saturating_add(len as u64);
            self.pages.drop_range(node, (write.offset, end), answer);
        } else {
            answer();
        }
        self.volume.renew(buffer, len);
    }

    fn open(&self, header: &InHeader, open: OpenIn, reply: Reply) {
        let options = self.options(open.flags);
        let truncates = flags(open.flags).contains(OFlags::TRUNC);
        let opened = self.volume.open_inode(&actor(header), header.nodeid, &options).and_then(|opened| {
            if truncates && open.open_flags & fopen::KILL_SUIDGID != 0 {
                self.drop_privileges(header)?;
            }
            Ok(opened)
        });
        let opened = opened.map_err(|error| errno(&error));
        reply.result(opened, |opened| self.open_out(open.flags, &opened));
    }

    fn create(&self, header: &InHeader, create: CreateIn, name: Name<'_>, reply: Reply) {
        let mut options = self.options(create.flags);
        options.create_new(flags(create.flags).contains(OFlags::EXCL) && !name.is_empty());
        let mode = create.mode & !(create.umask & 0o777) & 0o7777;
        match self.volume.create(&actor(header), header.nodeid, name, mode, &options) {
            Ok(opened) => {
                let Entry { attributes, keep } = &opened.entry;
                let current = self.volume.current();
                let kept = self.kept(&current, *keep, &[header.nodeid, attributes.inode]);
                let entry = entry_out(attributes, kept);
                reply.parts(&[&entry.bytes(), &self.open_out(create.flags, &opened).bytes()]);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Returns the answer to an open with the flags `raw`.
    fn open_out(&self, raw: u32, opened: &Opened) -> OpenOut {
        let flags = flags(raw);
        let appends = flags.contains(OFlags::APPEND);
        let attributes = &opened.entry.attributes;
        let is_cached = match flags & OFlags::RWMODE {
            OFlags::RDONLY => !self.manner.direct && !appends,
            _ => opened.maps,
        };
        if self.may_map(flags) && !opened.maps {
            self.note_refused(attributes.inode);
        }
        let direct = !is_cached;
        let keeps = self.pages.open(attributes.inode, attributes.version);
        let mut open_flags = if keeps { fopen::KEEP_CACHE } else { 0 };
        if direct {
            open_flags |= fopen::DIRECT_IO;
        }
        if direct && !appends {
            open_flags |= fopen::PARALLEL_DIRECT_WRITES;
        }
        OpenOut {
            fh: self.handles.begin(attributes.inode, opened.seen.clone(), opened.maps),
            open_flags,
            spare: 0,
        }
    }

    /// Whether an open with these flags may map its file so that stores are seen by others: it reads and
    /// writes through the page cache. The kernel chooses where bytes that are appended lie in the cache, and
    /// another host may have appended others there.
    fn may_map(&self, flags: OFlags) -> bool {
        let is_both = flags & OFlags::RWMODE == OFlags::RDWR;
        is_both && !flags.contains(OFlags::APPEND) && !self.manner.direct
    }

    /// Returns the options of an open with the flags `raw`.
    fn options(&self, raw: u32) -> OpenOptions {
        let flags = flags(raw);
        let access = flags & OFlags::RWMODE;
        let mut options = OpenOptions::new();
        options
            .read(access != OFlags::WRONLY)
            .write(access != OFlags::RDONLY)
            .append(flags.contains(OFlags::APPEND))
            .truncate(flags.contains(OFlags::TRUNC))
            .maps(self.may_map(flags));
        options
    }

    /// Logs once that a file is opened without the right to map it.
    fn note_refused(&self, inode: u64) {
        let mut refused = self.refused.lock();
        if refused.len() >= MAX_PAGES_KNOWN {
            refused.clear();
        }
        if refused.insert(inode) {
            tracing::info!(
                inode,
                "another mount may map the file, so it is opened to read and write without the page cache, \
                 and mmap with MAP_SHARED gives ENODEV here: `plasmon volume set --shared-maps true` lets \
                 all map it, and lose stores to each other"
            );
        }
    }

    fn drop_privileges(&self, header: &InHeader) -> plasmon::files::Result<()> {
        let set = SetAttributes { drops_privileges: true, ..SetAttributes::default() };
        self.volume.set_attributes(&actor(header), header.nodeid, &set).map(drop)
    }

    fn read(&self, node: u64, read: ReadIn, reply: Reply) {
        if read.read_flags & reads::LOCKOWNER == 0 {
            self.handles.cache(node);
        }
        match self.volume.read(node, read.offset, read.size as usize) {
            Ok(parts) => reply.parts(&parts.slices()),
            Err(error) => {
                tracing::debug!(inode = node, offset = read.offset, %error, "a read failed");
                reply.error(errno(&error));
            }
        }
    }

    fn seek(&self, node: u64, seek: LseekIn, reply: Reply) {
        let wanted = match seek.whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::INVAL),
        };
        let found = self.volume.seek(node, seek.offset, wanted).map_err(|error| errno(&error));
        reply.result(found, |offset| offset);
    }

    fn copy(&self, header: &InHeader, copy: CopyIn, reply: Reply) {
        let (from, to) = ((header.nodeid, copy.off_in), (copy.nodeid_out, copy.off_out));
        let copied = self.volume.clone_range(&actor(header), from, to, copy.len.min(MAX_COPY_BYTES));
        let copied = copied.map_err(|error| errno(&error));
        reply.result(copied, |len| WriteOut { size: len as u32, spare: 0 });
    }

    fn allocate(&self, header: &InHeader, allocate: FallocateIn, reply: Reply) {
        let FallocateIn { offset, length, mode, .. } = allocate;
        let (actor, node, extends) = (&actor(header), header.nodeid, mode & KEEP_SIZE == 0);
        let Some(end) = offset.checked_add(length) else { return reply.error(Errno::FBIG) };
        let outcome = match mode & !KEEP_SIZE {
            PUNCH_HOLE if !extends => self.volume.punch(actor, node, offset, length, false),
            ZERO_RANGE => self.volume.punch(actor, node, offset, length, extends),
            // No room is reserved: bytes get a place when they are written (copy on write).
            0 => self.lengthen(actor, node, if extends { end } else { 0 }),
            _ => return reply.error(Errno::OPNOTSUPP),
        };
        reply.outcome(outcome.map_err(|error| errno(&error)));
    }

    /// Makes a file `len` bytes long, unless it is longer.
    fn lengthen(&self, actor: &plasmon::files::Actor, node: u64, len: u64) -> plasmon::files::Result<()> {
        if self.volume.attributes(actor, node)?.attributes.size >= len {
            return Ok(());
        }
        // The home makes the file longer, but never cuts what another host has appended meanwhile.
        self.volume.punch(actor, node, len, 0, true)
    }
}

fn flags(raw: u32) -> OFlags {
    OFlags::from_bits_retain(raw)
}
