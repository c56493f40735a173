//! Requests about locks.
//!
//! Owns no state; the waits are the server's, and its [handles](super::handles) know who may have locks. Any
//! worker, and a thread for each wait, so that waits keep no worker. A worker gets a lock that is free, and
//! refuses one that nobody waits for. Invariant: before a lock is answered, the kernel drops pages of the
//! file that others have changed.

use std::sync::Arc;
use std::thread;

use plasmon::files::{LockKind, LockRange};
use rustix::io::Errno;

use super::{VolumeServer, errno};
use crate::kernel::{Call, FileLock, InHeader, LkIn, locks};
use crate::reply::Reply;
use crate::running::{Wait, was_interrupted};

/// Largest number of calls that wait for a lock, each on a thread of its own. Further calls get ENOLCK.
const MAX_WAITS: usize = 512;

impl VolumeServer {
    /// Carries out a request about a lock.
    pub(super) fn on_lock(&self, header: &InHeader, call: Call<'_>, reply: Reply) {
        let node = header.nodeid;
        match call {
            Call::Getlk(lock) => match range_of(&lock).map(|range| self.volume.test_lock(node, range)) {
                None => reply.error(Errno::INVAL),
                Some(Err(error)) => reply.error(errno(&error)),
                Some(Ok(other)) => reply.structure(&told(&lock, other)),
            },
            Call::Setlk(lock) | Call::SetlkWait(lock) => {
                let Some(range) = range_of(&lock) else { return reply.error(Errno::INVAL) };
                // The wait is noted first, because an interruption may come before the wait begins.
                let over = matches!(call, Call::SetlkWait(_)).then(|| self.waiting(header));
                if !range.flock {
                    // The owner is noted first, because the home may lock the range although the call fails.
                    self.handles.lock(lock.fh, node, range.owner);
                }
                let result = self.volume.lock(node, range, || false);
                let busy = matches!(&result, Err(error) if errno(error) == Errno::AGAIN);
                match over {
                    Some(_) if busy && self.waits.lock().len() > MAX_WAITS => {
                        self.waits.lock().remove(&header.unique);
                        return reply.error(Errno::NOLCK);
                    }
                    Some(over) if busy => return self.wait(header.unique, node, range, over, reply),
                    Some(_) => drop(self.waits.lock().remove(&header.unique)),
                    None => {}
                }
                match result {
                    Ok(entry) => self.pages.answer(&entry, reply),
                    Err(error) => reply.error(errno(&error)),
                }
            }
            _ => reply.error(Errno::NOSYS),
        }
    }

    /// Notes a wait for a lock in the table, so that an interruption finds it.
    fn waiting(&self, header: &InHeader) -> Wait {
        let wait = Wait::of(header.unique, header.pid);
        self.waits.lock().insert(header.unique, wait.clone());
        // An interruption from before is not lost: the worker's place has it.
        if was_interrupted() {
            wait.end();
        }
        wait
    }

    /// Waits for a lock on a thread of its own, until the wait is over.
    fn wait(&self, unique: u64, node: u64, range: LockRange, waiting: Wait, reply: Reply) {
        let (volume, waits, pages) = (self.volume.clone(), Arc::clone(&self.waits), self.pages.clone());
        let wait = move || {
            waiting.enter();
            let result = volume.lock(node, range, || !waiting.is_over());
            waits.lock().remove(&unique);
            match result {
                Ok(entry) => pages.answer(&entry, reply),
                // The wait was ended by a signal, or with the mount.
                Err(error) if errno(&error) == Errno::AGAIN => reply.error(Errno::INTR),
                Err(error) => reply.error(errno(&error)),
            }
        };
        if let Err(error) = thread::Builder::new().name("lock".to_owned()).spawn(wait) {
            // The reply went with the thread, and said EIO.
            tracing::warn!(%error, "no thread can be started to wait for a lock");
            self.waits.lock().remove(&unique);
        }
    }
}

/// Returns the range and owner of a lock. `None` for an unknown kind, or an end before the start.
fn range_of(lock: &LkIn) -> Option<LockRange> {
    let kind = match lock.lk.kind {
        locks::READ => LockKind::Shared,
        locks::WRITE => LockKind::Exclusive,
        locks::UNLOCK => LockKind::Unlocked,
        _ => return None,
    };
    let flock = lock.lk_flags & locks::FLOCK != 0;
    let (start, end) = if flock { (0, u64::MAX) } else { (lock.lk.start, lock.lk.end) };
    (start <= end).then_some(LockRange { owner: lock.owner, pid: lock.lk.pid, start, end, kind, flock })
}

/// Returns the answer to GETLK: the lock that is in the way, or that none is.
fn told(asked: &LkIn, other: Option<LockRange>) -> FileLock {
    match other {
        None => FileLock { kind: locks::UNLOCK, ..asked.lk },
        Some(other) => FileLock {
            start: other.start,
            end: other.end,
            kind: if other.kind == LockKind::Shared { locks::READ } else { locks::WRITE },
            pid: other.pid,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_flock_is_of_the_whole_file() {
        let lk = FileLock { start: 5, end: 9, kind: locks::WRITE, pid: 3 };
        let lock = LkIn { owner: 7, lk, ..LkIn::default() };
        let range = range_of(&lock).expect("a lock");
        assert_eq!((range.start, range.end, range.kind, range.flock), (5, 9, LockKind::Exclusive, false));
        let range = range_of(&LkIn { lk_flags: locks::FLOCK, ..lock }).expect("a lock");
        assert_eq!((range.start, range.end, range.flock), (0, u64::MAX, true));
        assert_eq!(range_of(&LkIn { lk: FileLock { kind: 3, ..lk }, ..lock }), None);
        assert_eq!(range_of(&LkIn { lk: FileLock { start: 10, ..lk }, ..lock }), None);
    }

    #[test]
    fn who_is_in_the_way_is_told() {
        let lk = FileLock { start: 5, end: 9, kind: locks::WRITE, pid: 3 };
        let asked = LkIn { owner: 7, lk, ..LkIn::default() };
        assert_eq!(told(&asked, None).kind, locks::UNLOCK);
        let other = LockRange { owner: 1, pid: 8, start: 0, end: 6, kind: LockKind::Shared, flock: false };
        let shown = FileLock { start: 0, end: 6, kind: locks::READ, pid: 8 };
        assert_eq!(told(&asked, Some(other)), shown);
    }
}
