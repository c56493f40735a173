//! Opens of files by the kernel, by their handles.
//!
//! Owns what each open was told of failures, whether it has the right to map its file, which owners may have
//! locks of `fcntl` that were set through it, and of which open files the kernel may have pages. Any worker.
//! The kernel tells of the end of a lock neither when an open file description that holds it (F_OFD_SETLK) is
//! closed, nor when its holder dies, but releases the handle then; and it uses the number of such an owner
//! again. Invariants: the locks of an owner end with its close of the file (FLUSH), or with the last handle
//! through which they were set (RELEASE); an owner that has set locks through a later handle keeps them; a
//! lock is set only when those of an earlier owner of the same number have ended; a file counts as cached
//! from the first request of the page cache for it until its last open has ended.

use std::collections::{BTreeSet, HashMap, HashSet};

use parking_lot::{Condvar, Mutex};
use plasmon::files::Seen;

/// Opens of a mount.
#[derive(Default)]
pub(super) struct Handles {
    table: Mutex<Table>,
    /// Notified when locks of an owner have ended.
    ended: Condvar,
}

#[derive(Default)]
struct Table {
    last: u64,
    opens: HashMap<u64, Open>,
    /// Files that are open, by inode.
    files: HashMap<u64, File>,
    /// Handles through which an owner may have locked a file, by inode and owner.
    lockers: HashMap<(u64, u64), BTreeSet<u64>>,
    /// Inodes and owners whose locks are about to end with the last handle.
    ending: HashSet<(u64, u64)>,
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
        let mut table = self.table.lock();
        table.last += 1;
        let handle = table.last;
        table.opens.insert(handle, Open { inode, seen, maps, ..Open::default() });
        table.files.entry(inode).or_default().opens += 1;
        handle
    }

    /// Notes that the kernel gets pages of a file.
    pub(super) fn cache(&self, inode: u64) {
        if let Some(file) = self.table.lock().files.get_mut(&inode) {
            file.is_cached = true;
        }
    }

    /// Whether the kernel may have pages of a file that it got while the file was open.
    pub(super) fn is_cached(&self, inode: u64) -> bool {
        self.table.lock().files.get(&inode).is_some_and(|file| file.is_cached)
    }

    /// Returns the failures of which an open was told.
    pub(super) fn seen(&self, handle: u64) -> Seen {
        self.table.lock().opens.get(&handle).map(|open| open.seen.clone()).unwrap_or_default()
    }

    /// Notes that an owner may get a lock of a file through an open. Waits for the end of locks that an owner
    /// of this number had through handles that have ended.
    pub(super) fn lock(&self, handle: u64, inode: u64, owner: u64) {
        let mut table = self.table.lock();
        self.ended.wait_while(&mut table, |table| table.ending.contains(&(inode, owner)));
        table.lockers.entry((inode, owner)).or_default().insert(handle);
        if let Some(open) = table.opens.get_mut(&handle) {
            open.locked.insert((inode, owner));
        }
    }

    /// Forgets the locks of an owner that closes a file. Returns whether there may be any.
    pub(super) fn unlock(&self, inode: u64, owner: u64) -> bool {
        let mut table = self.table.lock();
        let Some(handles) = table.lockers.remove(&(inode, owner)) else { return false };
        for handle in handles {
            if let Some(open) = table.opens.get_mut(&handle) {
                open.locked.remove(&(inode, owner));
            }
        }
        true
    }

    /// Forgets an open. When the locks that end with it have ended, [`Self::unlocked`] is to be called.
    pub(super) fn end(&self, handle: u64) -> Ended {
        let mut table = self.table.lock();
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
                table.ending.insert((inode, owner));
                owners.push(owner);
            }
        }
        Ended { seen, maps, owners }
    }

    /// Notes that the locks of owners have ended with their last handle.
    pub(super) fn unlocked(&self, inode: u64, owners: &[u64]) {
        if !owners.is_empty() {
            let mut table = self.table.lock();
            owners.iter().for_each(|owner| _ = table.ending.remove(&(inode, *owner)));
            self.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

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
    fn a_lock_waits_until_those_of_an_owner_of_this_number_have_ended() {
        let handles = Handles::default();
        let [first, second] = [open(&handles), open(&handles)];
        handles.lock(first, FILE, 7);
        let Ended { owners, .. } = handles.end(first);
        handles.lock(second, FILE, 8);
        let (told, is_locked) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                handles.lock(second, FILE, 7);
                told.send(()).expect("it is awaited");
            });
            thread::yield_now();
            assert!(is_locked.try_recv().is_err(), "the lock of before may still end it");
            handles.unlocked(FILE, &owners);
            is_locked.recv().expect("it goes on");
        });
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
