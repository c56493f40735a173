//! Opens of a session at its home: closes that the home was not told of, and opens of a session that began
//! anew.
//!
//! Owns the closes. Any thread. Closes are told in batches, since nobody waits for them, by an operation that
//! is asked again under its number until it is answered. Invariants: the home is told as many closes as it
//! was told opens; a close is told once; no lock on the table of files is held while the home is asked.

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

/// Number of closes from which they are told without waiting for more.
const MANY_CLOSES: usize = 256;

/// Operations that the home has yet to answer.
#[derive(Default)]
struct Telling {
    /// Operation that tells the first closes, if it has begun.
    closes: Option<Lasting>,
    /// Losses of the session that has yet to open these inodes, each as often as it stands here.
    reopens: Option<(u64, Vec<u64>)>,
}

/// Closes of a session.
#[derive(Default)]
pub(super) struct Closes {
    /// Closes that the home was not told of. The lock may be taken with that of the table of files.
    closed: Mutex<Vec<u64>>,
    /// Locked by who tells the home of opens and closes.
    telling: Mutex<Telling>,
    /// Losses of the session after which its files were opened again.
    reopened: AtomicU64,
}

impl Shared {
    pub(super) fn close(&self, inode: u64) {
        let mut inodes = self.inodes.lock();
        let Some(open) = inodes.get(&inode).cloned() else { return };
        let is_last = open.opens.fetch_sub(1, Ordering::Relaxed) == 1;
        if is_last {
            inodes.remove(&inode);
        }
        let mut closed = self.closes.closed.lock();
        closed.push(inode);
        let full = closed.len() >= MANY_CLOSES;
        drop((inodes, closed));
        if is_last {
            // Bytes that could not be committed go with the last open: nobody commits them later.
            self.give_up(&mut open.state.lock());
        }
        if full {
            self.tell_closes();
        }
    }

    /// Tells the home of closes that it was not told of, unless another thread does. What it cannot be told
    /// now it is told later.
    pub(super) fn tell_closes(&self) {
        self.open_again();
        let Some(mut telling) = self.closes.telling.try_lock() else { return };
        if self.closes.reopened.load(Ordering::Acquire) != self.session.losses() {
            return;
        }
        loop {
            let lasting = match telling.closes.take() {
                Some(lasting) => lasting,
                None => {
                    let losses = self.session.losses();
                    let inodes: Vec<u64> =
                        self.closes.closed.lock().iter().take(MAX_CLOSED).copied().collect();
                    if inodes.is_empty() {
                        return;
                    }
                    self.session.begin_lasting(losses, FileOperation::Closed { inodes })
                }
            };
            let told = match lasting.operation() {
                FileOperation::Closed { inodes } => inodes.len(),
                _ => 0,
            };
            let answered = self.session.ask_lasting(&lasting);
            if self.session.losses() != lasting.losses() {
                // They have gone with the session of before.
                return self.session.end_lasting(&lasting);
            }
            if answered.is_err_and(|error| may_be_done(&error)) {
                telling.closes = Some(lasting);
                return;
            }
            self.session.end_lasting(&lasting);
            self.closes.closed.lock().drain(..told);
        }
    }

    /// Opens of the session at its home, as far as they are known: inodes with the numbers of their opens,
    /// and with those of closes that the home may not know of.
    pub(super) fn opens(&self) -> Vec<(u64, u32)> {
        let inodes = self.inodes.lock();
        let open = |(number, inode): (&u64, &Arc<Inode>)| (*number, inode.opens.load(Ordering::Relaxed));
        let mut opens: BTreeMap<u64, u32> = inodes.iter().map(open).collect();
        self.closes.closed.lock().iter().for_each(|inode| *opens.entry(*inode).or_default() += 1);
        opens.into_iter().collect()
    }

    /// Opens the files again after the session began anew, as often as they are open here.
    pub(super) fn open_again(&self) {
        if self.closes.reopened.load(Ordering::Acquire) == self.session.losses() {
            return;
        }
        // Nobody tells of closes meanwhile: those of before are of no open any more, and others come after
        // the opens.
        let until = Instant::now() + self.session.patience();
        // A program that is killed does not wait for the thread that opens them.
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

    /// Opens a file again by the session that has begun anew so often: for writing, if it may. Returns
    /// whether the home has answered.
    fn open_once_more(&self, losses: u64, inode: u64) -> bool {
        let open = |write| {
            let operation = FileOperation::Open { inode, read: true, write, truncate: false };
            self.session.ask_steadily(Some(losses), operation)
        };
        let may_write = !self.session.is_read_only();
        let is_refused = |error: &Error| !may_be_done(error);
        let opened = if may_write { open(true) } else { open(false) };
        match opened {
            // A file that went with its last link meanwhile stays gone: its users see an error.
            Err(error) if is_refused(&error) => open(false).err().is_none_or(|error| is_refused(&error)),
            opened => opened.is_ok(),
        }
    }
}
