//! Opens of files by the kernel, by their handles.
//!
//! Owns what each open was told of failures, whether it has the right to map its file, and which owners may
//! have locks of `fcntl` that were set through it. Any worker. The kernel tells of the end of a lock neither
//! when an open file description that holds it (F_OFD_SETLK) is closed, nor when its holder dies, but
//! releases the handle then; and it uses the number of such an owner again. Invariants: the locks of an owner
//! end with its close of the file (FLUSH), or with the last handle through which they were set (RELEASE); an
//! owner that has set locks through a later handle keeps them.

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
    /// Handles through which an owner may have locked a file, by inode and owner.
    lockers: HashMap<(u64, u64), BTreeSet<u64>>,
}

/// Open of a file.
#[derive(Default)]
struct Open {
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
    /// Adds an open. Returns its handle.
    pub(super) fn begin(&self, seen: Seen, maps: bool) -> u64 {
        let mut table = self.0.lock();
        table.last += 1;
        let handle = table.last;
        table.opens.insert(handle, Open { seen, maps, ..Open::default() });
        handle
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
        let Some(Open { seen, maps, locked }) = table.opens.remove(&handle) else { return Ended::default() };
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
        handles.begin(Seen::default(), false)
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
}
