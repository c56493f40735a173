//! Requests about names, attributes, extended attributes and folders.
//!
//! Owns the entries of open folders that were listed and not read yet. Any worker. Invariants: an entry that
//! exists from the first to the last page of a listing is listed once, since a listing goes on by cookies;
//! a listing ends, since it has no entries that were made after its first page.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use plasmon::files::{Actor, Current, Entry, Looked, Page, ROOT_INODE, RenameManner, Result};
use rustix::io::Errno;

use super::attributes::{attr_out, dirent_kind, entry_out, no_entry, set_of};
use super::{VolumeServer, actor, errno};
use crate::kernel::{
    Call, Dirent, EntryOut, GetxattrIn, InHeader, OpenOut, ReadIn, SetattrIn, SetxattrIn, StatfsOut,
    Structure, fattr, renames,
};
use crate::reply::Reply;

/// Flag of setxattr: the attribute must not exist.
const XATTR_CREATE: u32 = 1;
/// Flag of setxattr: the attribute must exist.
const XATTR_REPLACE: u32 = 2;
/// Offset behind `.` in a listing.
const SELF_OFFSET: u64 = 1;
/// Offset behind `..` in a listing. The offset behind any other entry is its cookie plus this offset.
const ABOVE_OFFSET: u64 = 2;
/// Number of bytes of the shortest entry of a listing.
const SHORTEST_ENTRY: u32 = 32;
/// Largest number of entries that are asked for at once.
const MAX_ASKED: u32 = 512;
/// Number of bytes of one block of `statfs`.
const STATFS_BYTES: u64 = 4 << 10;

/// Open folder.
#[derive(Default)]
pub(super) struct Listing(Mutex<Listed>);

/// Part of an open folder that was listed.
#[derive(Default)]
struct Listed {
    /// Largest cookie of the listing, which began with the open or with the last rewind.
    upto: Option<u64>,
    /// Page that was listed last.
    kept: Option<Kept>,
}

/// Page of a folder of which entries are left to read.
struct Kept {
    /// Offset at which the page begins.
    from: u64,
    page: Page,
}

impl VolumeServer {
    /// Carries out a request about a name, or about attributes.
    pub(super) fn on_name(&self, header: &InHeader, call: Call<'_>, reply: Reply) {
        let (volume, actor, node) = (&self.volume, &actor(header), header.nodeid);
        match call {
            // Whoever opens a file by a handle (open_by_handle_at, NFS) has no name of it.
            Call::Lookup(b".") => self.entry(reply, node, volume.attributes(actor, node)),
            Call::Lookup(b"..") => self.entry(reply, node, volume.lookup(actor, node, b"..")),
            Call::Lookup(name) => self.look(reply, node, volume.look(actor, node, name)),
            Call::Getattr(_) => self.attributes(reply, volume.attributes(actor, node)),
            Call::Setattr(set) => self.attributes(reply, self.set(actor, node, &set)),
            Call::Readlink => match volume.read_link(actor, node) {
                Ok(target) => reply.parts(&[&target]),
                Err(error) => reply.error(errno(&error)),
            },
            Call::Symlink(name, target) => {
                self.entry(reply, node, volume.make_symlink(actor, node, name, target));
            }
            Call::Mknod(make, name) => {
                let mode = make.mode & !(make.umask & 0o777);
                self.entry(reply, node, volume.make_node(actor, node, name, mode, make.rdev));
            }
            Call::Mkdir(make, name) => {
                let mode = make.mode & !(make.umask & 0o777) & 0o7777;
                self.entry(reply, node, volume.make_folder(actor, node, name, mode));
            }
            Call::Unlink(name) => done(reply, volume.unlink(actor, node, name)),
            Call::Rmdir(name) => done(reply, volume.remove_folder(actor, node, name)),
            Call::Rename(rename, from, to) => {
                let (old, new) = ((node, from), (rename.newdir, to));
                let known = renames::NO_REPLACE | renames::EXCHANGE | renames::WHITEOUT;
                if rename.flags & !known != 0 {
                    return reply.error(Errno::INVAL);
                }
                let has = |flag: u32| rename.flags & flag != 0;
                let manner = RenameManner {
                    no_replace: has(renames::NO_REPLACE),
                    exchange: has(renames::EXCHANGE),
                    whiteout: has(renames::WHITEOUT),
                };
                done(reply, volume.rename_entry(actor, old, new, manner));
            }
            Call::Link(inode, name) => self.entry(reply, node, volume.link(actor, inode, node, name)),
            call => self.on_folder(header, call, reply),
        }
    }

    /// Carries out a request about a folder, extended attributes or the volume.
    fn on_folder(&self, header: &InHeader, call: Call<'_>, reply: Reply) {
        let (volume, actor, node) = (&self.volume, &actor(header), header.nodeid);
        match call {
            Call::Opendir(_) => {
                let fh = self.next_folder.fetch_add(1, Ordering::Relaxed);
                self.folders.lock().insert(fh, Arc::default());
                volume.open_folder(node);
                reply.structure(&OpenOut { fh, ..OpenOut::default() });
            }
            Call::Releasedir(release) => {
                if self.folders.lock().remove(&release.fh).is_some() {
                    volume.close_folder(node);
                }
                reply.done();
            }
            Call::Fsyncdir => reply.done(),
            Call::Readdir(read) => self.list(actor, node, read, false, reply),
            Call::ReaddirPlus(read) => self.list(actor, node, read, true, reply),
            Call::Getxattr(get, name) => sized(reply, get, volume.xattr(actor, node, name)),
            Call::Listxattr(get) => sized(reply, get, volume.xattrs(actor, node)),
            Call::Setxattr(SetxattrIn { flags, .. }, name, value) => {
                let how = (flags & XATTR_CREATE != 0, flags & XATTR_REPLACE != 0);
                done(reply, volume.set_xattr(actor, node, name, value, how));
            }
            Call::Removexattr(name) => done(reply, volume.remove_xattr(actor, node, name)),
            Call::Statfs => match volume.usage(actor) {
                Ok(usage) => reply.structure(&StatfsOut {
                    blocks: usage.capacity / STATFS_BYTES,
                    bfree: usage.free / STATFS_BYTES,
                    bavail: usage.available / STATFS_BYTES,
                    files: usage.most_inodes,
                    ffree: usage.most_inodes.saturating_sub(usage.inodes),
                    bsize: STATFS_BYTES as u32,
                    namelen: 255,
                    frsize: STATFS_BYTES as u32,
                    ..StatfsOut::default()
                }),
                Err(error) => reply.error(errno(&error)),
            },
            _ => reply.error(Errno::NOSYS),
        }
    }

    fn set(&self, actor: &Actor, node: u64, set: &SetattrIn) -> Result<Entry> {
        let wanted = set_of(set);
        // The home sets the time of change at every change, so setting this time alone needs no operation.
        if set.valid & !(fattr::FH | fattr::CTIME) == 0 {
            return self.volume.attributes(actor, node);
        }
        self.volume.set_attributes(actor, node, &wanted)
    }

    /// Answers with what a name in a folder stands for.
    fn entry(&self, reply: Reply, folder: u64, entry: Result<Entry>) {
        let looked = entry.map(|Entry { attributes, keep }| Looked { attributes: Some(attributes), keep });
        self.look(reply, folder, looked);
    }

    /// Answers with the file, or that there is no such name. The kernel may keep either answer.
    fn look(&self, reply: Reply, folder: u64, looked: Result<Looked>) {
        let Looked { attributes, keep } = match looked {
            Ok(looked) => looked,
            Err(error) => return reply.error(errno(&error)),
        };
        let current = self.volume.current();
        match attributes {
            Some(attributes) => {
                let kept = self.kept(&current, keep, &[folder, attributes.inode]);
                reply.structure(&entry_out(&attributes, kept));
            }
            None => match self.kept(&current, keep, &[folder]) {
                Duration::ZERO => reply.error(Errno::NOENT),
                kept => reply.structure(&no_entry(kept)),
            },
        }
    }

    fn attributes(&self, reply: Reply, entry: Result<Entry>) {
        let entry = entry.map_err(|error| errno(&error));
        let current = self.volume.current();
        reply.result(entry, |entry| {
            attr_out(&entry, self.kept(&current, entry.keep, &[entry.attributes.inode]))
        });
    }

    /// Lists entries of a folder from an offset, with attributes or without.
    fn list(&self, actor: &Actor, node: u64, read: ReadIn, plus: bool, reply: Reply) {
        let Some(listing) = self.folders.lock().get(&read.fh).cloned() else {
            return reply.error(Errno::BADF);
        };
        let mut entries = Entries { bytes: Vec::new(), room: read.size as usize, plus };
        match self.fill(actor, node, read, &listing, &mut entries) {
            Ok(_current) => reply.parts(&[&entries.bytes]),
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Fills an answer with entries. The caller holds the returned guard until the answer is sent.
    fn fill(
        &self,
        actor: &Actor,
        node: u64,
        read: ReadIn,
        listing: &Listing,
        out: &mut Entries,
    ) -> Result<Current<'_>> {
        let mut listed = listing.0.lock();
        let Listed { upto, kept } = &mut *listed;
        let mut offset = read.offset;
        if offset == 0 {
            *upto = None;
        }
        if offset == 0 || kept.as_ref().is_none_or(|kept| kept.from != offset) {
            let after = offset.saturating_sub(ABOVE_OFFSET);
            let most = (read.size / SHORTEST_ENTRY).clamp(1, MAX_ASKED);
            let page = self.volume.list(actor, node, (after, *upto), most)?;
            *upto = Some(page.last);
            *kept = Some(Kept { from: offset, page });
        }
        let current = self.volume.current();
        let Some(Kept { from, page }) = kept.as_mut() else { return Ok(current) };
        let above = match page.above {
            // A folder that was removed lies nowhere.
            _ if node == ROOT_INODE => ROOT_INODE,
            0 => node,
            above => above,
        };
        for (name, inode, next) in [(&b"."[..], node, SELF_OFFSET), (b"..", above, ABOVE_OFFSET)] {
            if offset < next {
                if !out.push(name, inode, next, 4, &EntryOut::default()) {
                    *kept = None;
                    return Ok(current);
                }
                offset = next;
            }
        }
        let mut taken = 0;
        for entry in &page.entries {
            let next = entry.cookie.saturating_add(ABOVE_OFFSET);
            // Attributes that are old by now are left out: the kernel asks for them if it needs them.
            let known = match self.kept(&current, page.keep, &[node, entry.attributes.inode]) {
                Duration::ZERO => EntryOut::default(),
                kept => entry_out(&entry.attributes, kept),
            };
            let kind = dirent_kind(entry.attributes.kind);
            if !out.push(&entry.name, entry.attributes.inode, next, kind, &known) {
                break;
            }
            taken += 1;
            offset = next;
        }
        page.entries.drain(..taken);
        *from = offset;
        // The kernel would take an empty page that is not the last one as the end of the folder.
        if page.entries.is_empty() && !page.end {
            *kept = None;
        }
        Ok(current)
    }
}

/// Answer with entries of a folder, in the form that the kernel reads.
struct Entries {
    bytes: Vec<u8>,
    room: usize,
    plus: bool,
}

impl Entries {
    /// Appends an entry. Returns whether there was room.
    fn push(&mut self, name: &[u8], ino: u64, off: u64, kind: u32, out: &EntryOut) -> bool {
        let head = if self.plus { EntryOut::LEN } else { 0 };
        let len = (head + Dirent::LEN + name.len()).next_multiple_of(8);
        if self.bytes.len() + len > self.room {
            return false;
        }
        let end = self.bytes.len() + len;
        if self.plus {
            out.put(&mut self.bytes);
        }
        Dirent { ino, off, namelen: name.len() as u32, kind }.put(&mut self.bytes);
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

fn done(reply: Reply, result: Result<()>) {
    reply.outcome(result.map_err(|error| errno(&error)));
}

/// Answers with bytes, or with their number if the request has no room for any bytes.
fn sized(reply: Reply, get: GetxattrIn, bytes: Result<impl AsRef<[u8]>>) {
    match bytes {
        Err(error) => reply.error(errno(&error)),
        Ok(bytes) => {
            let bytes = bytes.as_ref();
            match get.size as usize {
                0 => reply.structure(&GetxattrIn { size: bytes.len() as u32, spare: 0 }),
                room if room < bytes.len() => reply.error(Errno::RANGE),
                _ => reply.parts(&[bytes]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_to_eight_bytes() {
        let mut entries = Entries { bytes: Vec::new(), room: 64, plus: false };
        assert!(entries.push(b"a", 7, 3, 8, &EntryOut::default()));
        assert_eq!(entries.bytes.len(), 32);
        assert_eq!(&entries.bytes[24..26], b"a\0");
        assert!(entries.push(b"12345678", 8, 4, 8, &EntryOut::default()));
        assert!(!entries.push(b"b", 9, 5, 8, &EntryOut::default()), "there is no room");
        assert_eq!(entries.bytes.len(), 64);
    }
}
