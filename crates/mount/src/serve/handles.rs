//! Opens of files by the kernel, by their handles.
//!
//! Owns what each open was told of failures, whether it has the right to map its file, which owners may have
//! locks of `fcntl` that were set through it, and of which open files the kernel may have pages. Any worker.
//! The kernel tells of the end of a lock neither when an open file description that holds it (F_OFD_SETLK) is
//! closed, nor when its holder dies, but releases the handle then; and it uses the number of such an owner
//! again. Invariants: the locks of an owner end with its close of the file (FLUSH), or with the last handle
//! through which they were set (RELEASE); an owner that has set locks through a later handle keeps them; a
//! file counts as cached from the first request of the page cache for it until its last open has ended.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use plasmon::files::Seen;

/// Opens of a mount.
#[derive(Default)]
pub(super) struct Handles(Mutex<Table>);

#[derive(Default)]
struct Table {
    last: u64,
    opens: HashMap<u64, Open>,
    /// Files that are open, by inode.
    files: HashMap<u64, File>,
    /// Handles through which an owner may have locked a file, by inode and owner.
    lockers: HashMap<(u64, u64), BTreeSet<u64>>,
}

/// File that is open.
#[derive(Default)]
struct File {
    /// Number of its opens.
    opens: usize,
    /// Whether the kernel may have pages of it.
    is_cached: bool,
}

/// Open of a file.
#[derive(Default)]
struct Open {
    inode: u64,
    seen: Seen,
    maps: bool,
    /// Inodes and owners that may have locks through this open.
    locked: BTreeSet<(u64, u64)>,
}

/// Facts about an open that has ended.
#[derive(Default)]
pub(super) struct Ended {
    /// Failures of which the open was told.
    pub(super) seen: Seen,
    /// Whether the open had the right to map the file.
    pub(super) maps: bool,
    /// Owners whose locks end with the open.
    pub(super) owners: Vec<u64>,
}

impl Handles {
    /// Adds an open of a file. Returns its handle.
    pub(super) fn begin(&self, inode: u64, seen: Seen, maps: bool) -> u64 {
        let mut table = self.0.lock();
        table.last += 1;
        let handle = table.last;
        table.opens.insert(handle, Open { inode, seen, maps, ..Open::default() });
        table.files.entry(inode).or_default().opens += 1;
        handle
    }

    /// Notes that the kernel gets pages of a file.
    pub(super) fn cache(&self, inode: u64) {
        if let Some(file) = self.0.lock().files.get_mut(&inode) {
            file.is_cached = true;
        }
    }

    /// Whether the kernel may have pages of a file that it got while the file was open.
    pub(super) fn is_cached(&self, inode: u64) -> bool {
        self.0.lock().files.get(&inode).is_some_and(|file| file.is_cached)
    }

    /// Returns the failures of which an open was told.
    pub(super) fn seen(&self, handle: u64) -> Seen {
        self.0.lock().opens.get(&handle).map(|open| open.seen.clone()).unwrap_or_default()
    }

    /// Notes that an owner may get a lock of a file through an open.
    pub(super) fn lock(&self, handle: u64, inode: u64, owner: u64) {
        let mut table = self.0.lock();
        table.lockers.entry((inode, owner)).or_default().insert(handle);
        if let Some(open) = table.opens.get_mut(&handle) {
            open.locked.insert((inode, owner));
        }
    }

    /// Forgets the locks of an owner that closes a file. Returns whether there may be any.
    pub(super) fn unlock(&self, inode: u64, owner: u64) -> bool {
        let mut table = self.0.lock();
        let Some(handles) = table.lockers.remove(&(inode, owner)) else { return false };
        for handle in handles {
            if let Some(open) = table.opens.get_mut(&handle) {
                open.locked.remove(&(inode, owner));
            }
        }
        true
    }

    /// Forgets an open.
    pub(super) fn end(&self, handle: u64) -> Ended {
        let mut table = self.0.lock();
        let Some(open) = table.opens.remove(&handle) else { return Ended::default() };
        let Open { inode: of, seen, maps, locked } = open;
        if let Some(file) = table.files.get_mut(&of) {
            file.opens -= 1;
            if file.opens == 0 {
                table.files.remove(&of);
            }
        }
        let mut owners = Vec::new();
        for (inode, owner) in locked {
            let Some(handles) = table.lockers.get_mut(&(inode, owner)) else { continue };
            handles.remove(&handle);
            // An owner with another handle has this number again: the lock is of a later open.
            if handles.is_empty() {
                table.lockers.remove(&(inode, owner));
                owners.push(owner);
            }
        }
        Ended { seen, maps, owners }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u64 = 9;

    fn open(handles: &Handles) -> u64 {
        handles.begin(FILE, Seen::default(), false)
    }

    #[test]
    fn locks_end_with_the_open_through_which_they_were_set() {
        let handles = Handles::default();
        let [first, second] = [open(&handles), open(&handles)];
        handles.lock(first, FILE, 7);
        handles.lock(first, FILE, 7);
        handles.lock(second, FILE, 8);
        assert_eq!(handles.end(first).owners, [7]);
        assert!(handles.end(first).owners.is_empty(), "it has ended");
        assert!(!handles.unlock(FILE, 7) && handles.unlock(FILE, 8));
        assert!(handles.end(second).owners.is_empty(), "its owner has closed the file");
    }

    #[test]
    fn a_lock_of_a_later_open_stays() {
        let handles = Handles::default();
        let [first, second] = [open(&handles), open(&handles)];
        // The kernel gives the number of the first owner to the second before it tells that the first ended.
        handles.lock(first, FILE, 7);
        handles.lock(second, FILE, 7);
        assert!(handles.end(first).owners.is_empty());
        assert_eq!(handles.end(second).owners, [7]);
    }

    #[test]
    fn a_file_counts_as_cached_until_its_last_open_has_ended() {
        let handles = Handles::default();
        handles.cache(FILE);
        let [first, second] = [open(&handles), open(&handles)];
        assert!(!handles.is_cached(FILE), "nothing was asked for since it is open");
        handles.cache(FILE);
        handles.end(first);
        handles.end(first);
        assert!(handles.is_cached(FILE) && !handles.is_cached(FILE + 1));
        handles.end(second);
        open(&handles);
        assert!(!handles.is_cached(FILE), "the next open drops pages of other versions");
    }
}
