//! Files by their paths, as `std::fs` has them.
//!
//! Owns the opens of files. Any thread. A path begins at the root of the volume, with or without a slash.
//! Invariant: each [`File`] is one open, which ends when the [`File`] is closed or dropped.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};
use std::vec;

use super::blocks::BLOCK_BYTES;
use super::{Error, Opened, RenameManner, Result, Seen, Volume, WriteManner};
use crate::wire::files::{
    Actor, Attributes, Errno, FileKind, LockKind, LockRange, ROOT_INODE, SetAttributes,
};

/// Largest number of symbolic links on the way to a file.
const MAX_LINKS_FOLLOWED: u32 = 40;
/// Permissions of a new file, if nothing else is said.
const DEFAULT_MODE: u32 = 0o644;
/// Number of entries that are asked for at a time.
const LISTED_AT_ONCE: u32 = 512;

/// Options for opening a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    exclusive: bool,
    maps: bool,
    mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Returns options with nothing set.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            exclusive: false,
            maps: false,
            mode: DEFAULT_MODE,
        }
    }

    /// Sets whether the file is read.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// Sets whether the file is written.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// Sets whether writes go to the end of the file.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// Sets whether the open cuts the file to no bytes.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Sets whether the file is made if it does not exist.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Sets whether the file is made, and must not exist yet.
    pub fn create_new(&mut self, exclusive: bool) -> &mut Self {
        self.exclusive = exclusive;
        self
    }

    /// Sets whether the open asks for the right to map the file, so that stores are seen by others. A mount
    /// does so.
    pub fn maps(&mut self, maps: bool) -> &mut Self {
        self.maps = maps;
        self
    }

    /// Sets the permissions of a file that is made.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    pub(super) fn reads(&self) -> bool {
        self.read
    }

    pub(super) fn writes(&self) -> bool {
        self.write || self.append
    }

    pub(super) fn truncates(&self) -> bool {
        self.truncate
    }

    pub(super) fn maps_file(&self) -> bool {
        self.maps
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.exclusive
    }
}

/// File of a volume that is open.
#[derive(Debug)]
pub struct File {
    volume: Volume,
    inode: u64,
    append: bool,
    seen: Seen,
    closed: bool,
}

/// Entry of a folder.
#[derive(Debug, Clone)]
pub struct DirEntry {
    /// Name of the entry.
    pub name: Vec<u8>,
    /// Attributes of the inode that the entry stands for.
    pub attributes: Attributes,
}

/// Entries of a folder, which come in pages.
#[derive(Debug)]
pub struct ReadDir {
    volume: Volume,
    folder: u64,
    page: vec::IntoIter<crate::wire::files::Listed>,
    /// Cookie behind which the next page begins, and the largest cookie of the list, which the first page
    /// tells. `None` if there is no further page.
    next: Option<(u64, Option<u64>)>,
}

impl Volume {
    /// Opens a file.
    ///
    /// # Errors
    /// Errors of `open(2)`, with the path.
    pub fn open(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        let path = path.as_ref().as_os_str().as_bytes();
        let opened = self.open_path(path, options).map_err(|error| error.at(path))?;
        let inode = opened.entry.attributes.inode;
        let (append, seen) = (options.append, opened.seen);
        Ok(File { volume: self.clone(), inode, append, seen, closed: false })
    }

    fn open_path(&self, path: &[u8], options: &OpenOptions) -> Result<Opened> {
        let actor = self.actor();
        if options.create || options.exclusive {
            let (folder, name) = self.parent(path)?;
            // An existing link is followed, and nothing is made.
            let there = if options.exclusive { None } else { self.find_in(folder, name, true).ok() };
            if there.is_none() {
                return self.create(&actor, folder, name, options.mode, options);
            }
        }
        let found = self.find(path)?;
        self.open_inode(&actor, found.inode, options)
    }

    /// Returns the attributes of the inode that a path leads to.
    ///
    /// # Errors
    /// Errors of `stat(2)`, with the path.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        let path = path.as_ref().as_os_str().as_bytes();
        self.find(path).map_err(|error| error.at(path))
    }

    /// Sets attributes of the inode that a path leads to.
    ///
    /// # Errors
    /// Errors of Linux, with the path.
    pub fn set_metadata(&self, path: impl AsRef<Path>, set: &SetAttributes) -> Result<Attributes> {
        let path = path.as_ref().as_os_str().as_bytes();
        let set = |found: Attributes| self.set_attributes(&self.actor(), found.inode, set);
        self.find(path).and_then(set).map(|entry| entry.attributes).map_err(|error| error.at(path))
    }

    /// Makes a folder.
    ///
    /// # Errors
    /// Errors of `mkdir(2)`, with the path.
    pub fn create_dir(&self, path: impl AsRef<Path>, mode: u32) -> Result<Attributes> {
        let make = |(folder, name): (u64, &[u8])| self.make_folder(&self.actor(), folder, name, mode);
        self.in_parent(path.as_ref(), make).map(|entry| entry.attributes)
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// Errors of `rmdir(2)`, with the path.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.in_parent(path.as_ref(), |(folder, name)| self.remove_folder(&self.actor(), folder, name))
    }

    /// Removes a name of an inode that is no folder.
    ///
    /// # Errors
    /// Errors of `unlink(2)`, with the path.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.in_parent(path.as_ref(), |(folder, name)| self.unlink(&self.actor(), folder, name))
    }

    /// Renames in one step. An entry that has the new name is replaced, unless `no_replace` is set.
    ///
    /// # Errors
    /// Errors of `rename(2)`, with the path.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, no_replace: bool) -> Result<()> {
        let to = to.as_ref().as_os_str().as_bytes();
        self.in_parent(from.as_ref(), |old| {
            let new = self.parent(to)?;
            let manner = RenameManner { no_replace, ..RenameManner::default() };
            self.rename_entry(&self.actor(), old, new, manner)
        })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// Errors of `symlink(2)`, with the path.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<Attributes> {
        let target = target.as_ref().as_os_str().as_bytes();
        let link = |(folder, name): (u64, &[u8])| self.make_symlink(&self.actor(), folder, name, target);
        self.in_parent(path.as_ref(), link).map(|entry| entry.attributes)
    }

    /// Returns the entries of a folder. Entries that are made or removed meanwhile may be among them or not.
    ///
    /// # Errors
    /// Errors of `opendir(3)`, with the path.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref().as_os_str().as_bytes();
        let found = self.find(path).map_err(|error| error.at(path))?;
        if found.kind != FileKind::Folder {
            return Err(Error::new(Errno::NotFolder).at(path));
        }
        let (page, next) = (Vec::new().into_iter(), Some((0, None)));
        Ok(ReadDir { volume: self.clone(), folder: found.inode, page, next })
    }

    /// Returns the user of this session, on whose behalf operations by path are made.
    pub(super) fn actor(&self) -> Actor {
        let gid = rustix::process::getegid().as_raw();
        Actor { uid: self.0.session.attached().client.user(), gid, groups: Vec::new() }
    }

    fn in_parent<T>(&self, path: &Path, act: impl FnOnce((u64, &[u8])) -> Result<T>) -> Result<T> {
        let path = path.as_os_str().as_bytes();
        self.parent(path).and_then(act).map_err(|error| error.at(path))
    }

    /// Returns the folder of a path's last name, and this name.
    fn parent<'a>(&self, path: &'a [u8]) -> Result<(u64, &'a [u8])> {
        let mut names: Vec<&[u8]> = names(path).collect();
        let last = names.pop().ok_or_else(|| Error::new(Errno::Exists))?;
        let mut links = MAX_LINKS_FOLLOWED;
        let folder = self.walk(ROOT_INODE, names.into_iter(), true, &mut links)?;
        Ok((folder.map_or(ROOT_INODE, |found| found.inode), last))
    }

    /// Returns the attributes of the inode that a path leads to.
    fn find(&self, path: &[u8]) -> Result<Attributes> {
        let mut links = MAX_LINKS_FOLLOWED;
        match self.walk(ROOT_INODE, names(path), true, &mut links)? {
            Some(found) => Ok(found),
            None => self.attributes(&self.actor(), ROOT_INODE).map(|entry| entry.attributes),
        }
    }

    /// Returns the attributes of the inode that a name in a folder leads to.
    fn find_in(&self, folder: u64, name: &[u8], follow: bool) -> Result<Attributes> {
        let mut links = MAX_LINKS_FOLLOWED;
        let found = self.walk(folder, std::iter::once(name), follow, &mut links)?;
        found.ok_or_else(|| Error::new(Errno::NotFound))
    }

    /// Walks from a folder along names. Returns `None` if there are no names.
    fn walk<'a>(
        &self,
        mut folder: u64,
        names: impl Iterator<Item = &'a [u8]>,
        follow: bool,
        links: &mut u32,
    ) -> Result<Option<Attributes>> {
        let actor = self.actor();
        let mut found = None;
        for name in names {
            let mut entry = self.lookup(&actor, folder, name)?.attributes;
            if entry.kind == FileKind::Symlink && follow {
                entry = self.follow(folder, entry.inode, links)?;
            }
            folder = entry.inode;
            found = Some(entry);
        }
        Ok(found)
    }

    /// Returns the attributes of the inode that a symbolic link in a folder leads to.
    fn follow(&self, folder: u64, link: u64, links: &mut u32) -> Result<Attributes> {
        *links = links.checked_sub(1).ok_or_else(|| Error::new(Errno::IsLink))?;
        let target = self.read_link(&self.actor(), link)?;
        let start = if target.starts_with(b"/") { ROOT_INODE } else { folder };
        match self.walk(start, names(&target), true, links)? {
            Some(found) => Ok(found),
            None => self.attributes(&self.actor(), start).map(|entry| entry.attributes),
        }
    }
}

/// Returns the names of a path.
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

impl File {
    /// Returns the number of the file's inode.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Reads into `into` from an offset on. Returns the number of bytes, which is smaller at the end of the
    /// file.
    ///
    /// # Errors
    /// Errors of `pread(2)`.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let parts = self.volume.read(self.inode, offset, into.len())?;
        let mut at = 0;
        for slice in parts.slices() {
            into[at..at + slice.len()].copy_from_slice(slice);
            at += slice.len();
        }
        Ok(at)
    }

    /// Writes bytes at an offset, or at the end if the file was opened to append. Other hosts see the bytes
    /// when they are [synced](File::sync), or about a second later.
    ///
    /// # Errors
    /// Errors of `pwrite(2)`. Without room for all bytes the call fails, and has written a whole number of
    /// MiB; [`Volume::write`] writes as many bytes as there is room for.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        if self.append {
            return self.append(bytes).map(drop);
        }
        let manner = WriteManner { drops_privileges: true, whole: true };
        let mut buffer = self.volume.buffer();
        let mut at = offset;
        let written = bytes.chunks(BLOCK_BYTES).try_for_each(|chunk| {
            buffer.bytes()[..chunk.len()].copy_from_slice(chunk);
            self.volume.write(self.inode, at, &mut buffer, chunk.len(), manner)?;
            at += chunk.len() as u64;
            Ok(())
        });
        self.volume.0.blocks.keep(buffer);
        written
    }

    /// Writes bytes behind the end of the file, at most 1 MiB in one step. Returns the offset of the first
    /// byte.
    ///
    /// # Errors
    /// Errors of `write(2)`.
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        let mut first = None;
        for chunk in bytes.chunks(BLOCK_BYTES) {
            let offset = self.volume.append(self.inode, chunk, true)?;
            first.get_or_insert(offset);
        }
        first.map_or_else(|| self.metadata().map(|attributes| attributes.size), Ok)
    }

    /// Commits written bytes. Returns when as many nodes keep the bytes as the folder says, and all hosts see
    /// them.
    ///
    /// # Errors
    /// Errors of `fsync(2)`.
    pub fn sync(&self) -> Result<()> {
        self.volume.flush(self.inode, &self.seen)
    }

    /// Cuts the file, or makes it longer by a hole.
    ///
    /// # Errors
    /// Errors of `ftruncate(2)`.
    pub fn set_len(&self, len: u64) -> Result<()> {
        let set = SetAttributes { size: Some(len), ..SetAttributes::default() };
        self.volume.set_attributes(&self.volume.actor(), self.inode, &set).map(drop)
    }

    /// Returns the attributes of the file.
    ///
    /// # Errors
    /// Errors of `fstat(2)`.
    pub fn metadata(&self) -> Result<Attributes> {
        self.volume.attributes(&self.volume.actor(), self.inode).map(|entry| entry.attributes)
    }

    /// Locks or unlocks a range of the file, by offset and length, for this process. With a time-out the call
    /// waits for at most this time. As with `fcntl(2)`, all locks of a file end when this process closes the
    /// file or drops a handle of the file.
    ///
    /// # Errors
    /// `Again` if others hold the range.
    pub fn lock(&self, kind: LockKind, (start, len): (u64, u64), timeout: Option<Duration>) -> Result<()> {
        let end = len.checked_sub(1).map_or(u64::MAX, |last| start.saturating_add(last));
        let range = LockRange { owner: owner(), pid: std::process::id(), start, end, kind, flock: false };
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.volume.lock(self.inode, range, || until.is_some_and(|until| Instant::now() < until)).map(drop)
    }

    /// Closes the file.
    ///
    /// # Errors
    /// The reason why written bytes were not kept.
    pub fn close(mut self) -> Result<()> {
        self.closed = true;
        self.end()
    }

    fn end(&self) -> Result<()> {
        let flushed = self.volume.flush(self.inode, &self.seen);
        if self.volume.0.inode(self.inode).is_some_and(|open| open.held.has(owner(), false)) {
            self.volume.end_locks(self.inode, owner(), false);
        }
        flushed.and(self.volume.close(self.inode, &self.seen))
    }
}

/// Returns the owner of the locks of this process.
fn owner() -> u64 {
    std::process::id().into()
}

impl Drop for File {
    fn drop(&mut self) {
        if !self.closed {
            // A caller that needs the error calls `close`.
            let _ = self.end();
        }
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(listed) = self.page.next() {
                return Some(Ok(DirEntry { name: listed.name.to_vec(), attributes: listed.attributes }));
            }
            let from = self.next.take()?;
            match self.volume.list(&self.volume.actor(), self.folder, from, LISTED_AT_ONCE) {
                Ok(page) => {
                    let last = page.entries.last().map(|entry| entry.cookie);
                    let next = last.filter(|last| !page.end && *last > from.0);
                    self.next = next.map(|next| (next, Some(page.last)));
                    self.page = page.entries.into_iter();
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn a_path_begins_at_the_root_with_or_without_a_slash() {
        let names = |path: &'static [u8]| names(path).collect::<Vec<_>>();
        assert_eq!(names(b"/a//b/./c/"), [&b"a"[..], b"b", b"c"]);
        assert_eq!(names(b"a/../b"), [&b"a"[..], b"..", b"b"]);
        assert!(names(b"/").is_empty());
    }
}
