//! Opens of a session at its home: closes that the home was not told yet, and opens after a session began
//! anew.
//!
//! Owns the closes. Any thread. Closes are told in batches, since no caller waits for them, by an operation
//! that is asked again under its number until it is answered. Invariants: the home is told as many closes as
//! opens; a close is told once; no lock on the table of files is held while the home is asked.

use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::Error;
use super::credit::may_be_done;
use super::inode::Inode;
use super::session::Lasting;
use super::volume::Shared;
use crate::wire::files::{FileOperation, MAX_CLOSED};

/// Number of closes from which closes are told without waiting for more.
const MANY_CLOSES: usize = 256;

/// Operations that the home has yet to answer.
#[derive(Default)]
struct Telling {
    /// Operation that tells the first closes, if the operation has begun.
    closes: Option<Lasting>,
    /// Inodes that are to be opened again, and the number of losses of the session that is to open them.
    reopens: Option<(u64, Vec<u64>)>,
}

/// Closes of a session.
#[derive(Default)]
pub(super) struct Closes {
    /// Closes that the home was not told of. The lock may be taken while the table of files is locked.
    closed: Mutex<Vec<(u64, bool)>>,
    /// Operations under way. Locked by the thread that tells the home of opens and closes.
    telling: Mutex<Telling>,
    /// Number of losses of the session after which its files were opened again last.
    reopened: AtomicU64,
}

impl Closes {
    /// Notes a close of which the home is to be told.
    pub(super) fn note(&self, inode: u64) {
        self.closed.lock().push((inode, false));
    }
}

impl Shared {
    /// Ends an open of a file, which has the right to map the file or not.
    pub(super) fn close(&self, inode: u64, maps: bool) {
        let mut inodes = self.inodes.lock();
        let Some(open) = inodes.get(&inode).cloned() else { return };
        let is_last = open.opens.fetch_sub(1, Ordering::Relaxed) == 1;
        if is_last {
            inodes.remove(&inode);
        }
        // Whoever sees that the right has ended finds the close here.
        let mut closed = self.closes.closed.lock();
        let maps = maps && open.right.end(self.session.losses());
        closed.push((inode, maps));
        let full = closed.len() >= MANY_CLOSES;
        drop((inodes, closed));
        if is_last {
            // Bytes that could not be committed are given up with the last open.
            self.give_up(&mut open.state.lock());
        }
        if full {
            self.tell_closes();
        }
    }

    /// Tells the home of closes that it was not told of, unless another thread does. Closes that cannot be
    /// told now are told later.
    pub(super) fn tell_closes(&self) {
        self.open_again();
        if let Some(mut telling) = self.closes.telling.try_lock() {
            self.tell(&mut telling);
        }
    }

    /// Tells the home of all closes so far, since closed files may have room that is needed. Returns whether
    /// there was one.
    pub(super) fn tell_all_closes(&self) -> bool {
        self.open_again();
        let until = Instant::now() + self.session.patience();
        self.session.lock(&self.closes.telling, until).is_ok_and(|mut telling| self.tell(&mut telling))
    }

    /// Tells the home of closes, until it knows all or does not answer. Returns whether there was one.
    fn tell(&self, telling: &mut Telling) -> bool {
        if self.closes.reopened.load(Ordering::Acquire) != self.session.losses() {
            return false;
        }
        let mut any = false;
        loop {
            let lasting = match telling.closes.take() {
                Some(lasting) => lasting,
                None => {
                    let losses = self.session.losses();
                    let opens: Vec<_> = self.closes.closed.lock().iter().take(MAX_CLOSED).copied().collect();
                    if opens.is_empty() {
                        return any;
                    }
                    self.session.begin_lasting(losses, FileOperation::Closed { opens })
                }
            };
            let told = match lasting.operation() {
                FileOperation::Closed { opens } => opens.len(),
                _ => 0,
            };
            let answered = self.session.ask_lasting(&lasting);
            if self.session.losses() != lasting.losses() {
                // The opens ended with the former session.
                self.session.end_lasting(&lasting);
                return any;
            }
            if answered.is_err_and(|error| may_be_done(&error)) {
                telling.closes = Some(lasting);
                return any;
            }
            self.session.end_lasting(&lasting);
            self.closes.closed.lock().drain(..told);
            any = true;
        }
    }

    /// Returns the opens of the session at its home, as far as they are known: each inode with the number of
    /// its opens, and of those that have the right to map the file. Closes that the home may not know count.
    pub(super) fn opens(&self) -> Vec<(u64, u32, u32)> {
        let (inodes, losses) = (self.inodes.lock(), self.session.losses());
        let open = |(number, inode): (&u64, &Arc<Inode>)| {
            (*number, (inode.opens.load(Ordering::Relaxed), inode.right.opens(losses)))
        };
        let mut opens: BTreeMap<u64, (u32, u32)> = inodes.iter().map(open).collect();
        self.open_folders.at_home().iter().for_each(|inode| opens.entry(*inode).or_default().0 += 1);
        for (inode, maps) in self.closes.closed.lock().iter() {
            let (count, mapping) = opens.entry(*inode).or_default();
            *count += 1;
            *mapping += u32::from(*maps);
        }
        opens.into_iter().map(|(inode, (count, maps))| (inode, count, maps)).collect()
    }

    /// Opens all open files again at the home after the session began anew.
    pub(super) fn open_again(&self) {
        if self.closes.reopened.load(Ordering::Acquire) == self.session.losses() {
            return;
        }
        // No thread tells of closes meanwhile: former closes have no open any more, and new ones come after
        // the opens.
        let until = Instant::now() + self.session.patience();
        // A program that is killed does not wait for another thread that opens the files.
        let Ok(mut telling) = self.session.lock(&self.closes.telling, until) else { return };
        let losses = self.session.losses();
        if self.closes.reopened.load(Ordering::Acquire) == losses {
            return;
        }
        if telling.reopens.as_ref().is_none_or(|(of, _)| *of != losses) {
            if let Some(lasting) = telling.closes.take() {
                self.session.end_lasting(&lasting);
            }
            self.folders.clear();
            self.session.ahead().clear();
            self.open_folders.begin_again();
            let opens = |inode: &Arc<Inode>| inode.opens.load(Ordering::Relaxed) as usize;
            let inodes = self.inodes.lock();
            self.closes.closed.lock().clear();
            let open = inodes.iter().flat_map(|(number, inode)| iter::repeat_n(*number, opens(inode)));
            telling.reopens = Some((losses, open.collect()));
        }
        // Inodes that cannot be opened now are opened before the next operation.
        let Some((_, left)) = &mut telling.reopens else { return };
        while let Some(inode) = left.last() {
            if Instant::now() >= until || !self.open_once_more(losses, *inode) {
                return;
            }
            left.pop();
        }
        telling.reopens = None;
        self.closes.reopened.store(losses, Ordering::Release);
    }

    /// Opens a file again by the session that has begun anew `losses` times, for writing if that is allowed.
    /// Returns whether the home has answered.
    fn open_once_more(&self, losses: u64, inode: u64) -> bool {
        let open = |write| {
            let operation = FileOperation::Open { inode, read: true, write, truncate: false, maps: false };
            self.session.ask_steadily(Some(losses), operation)
        };
        let may_write = !self.session.is_read_only();
        let is_refused = |error: &Error| !may_be_done(error);
        let opened = if may_write { open(true) } else { open(false) };
        match opened {
            // A file that was removed meanwhile stays gone, and its users see an error.
            Err(error) if is_refused(&error) => open(false).err().is_none_or(|error| is_refused(&error)),
            opened => opened.is_ok(),
        }
    }
}
