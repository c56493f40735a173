//! The notifier and the dropper: two threads of a mount that have the kernel forget what others have changed.
//!
//! Owns both threads. The notifier serves messages about changes, the dropper files of which a program got a
//! lock. A worker never notifies: a notification may need the kernel's lock of a folder or of a page, and a
//! request that waits for a worker may hold this lock. So both threads may wait for a worker, but no worker
//! waits for them, and the home does not wait for the notifier for long. Invariants: when a message is
//! confirmed, the kernel keeps nothing that the message named, unless the kernel refused the notification;
//! when a lock is answered, the kernel keeps no old bytes of the file; when a direct write is answered, it
//! keeps none of what was written over.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use plasmon::files::{MAX_FILE_BYTES, Stale, Watcher};
use rustix::io::Errno;

use crate::device::Device;
use crate::kernel::{InvalEntry, InvalInode, Structure, init, notify};
use crate::negotiation::Agreed;

/// Handle of the dropper, the thread that has the kernel drop pages before requests are answered.
#[derive(Clone)]
pub(crate) struct Dropper(Sender<(InvalInode, Then)>);

/// Action that follows when the kernel has dropped the pages of a file.
type Then = Box<dyn FnOnce() + Send>;

impl Dropper {
    /// Starts the dropper's thread, which ends with the last clone of the handle.
    pub(crate) fn start(device: Device) -> io::Result<Self> {
        let (sender, asked) = channel::<(InvalInode, Then)>();
        let run = move || {
            for (pages, then) in asked {
                // A file that the kernel does not know has no pages.
                let _ = device.notify(notify::INVAL_INODE, &[&pages.bytes()]);
                then();
            }
        };
        thread::Builder::new().name("dropper".to_owned()).spawn(run)?;
        Ok(Self(sender))
    }

    /// Has the kernel drop the pages of a file, and calls `then` afterwards.
    pub(crate) fn drop_pages(&self, inode: u64, then: impl FnOnce() + Send + 'static) {
        self.drop_range(inode, (0, MAX_FILE_BYTES), then);
    }

    /// Has the kernel drop the pages of a range of a file, and calls `then` afterwards.
    pub(crate) fn drop_range(
        &self,
        inode: u64,
        (start, end): (u64, u64),
        then: impl FnOnce() + Send + 'static,
    ) {
        // If a panic has ended the thread, a reply within `then` is dropped and says EIO.
        let _ = self.0.send((range(inode, start, end), Box::new(then)));
    }
}

/// State of the notifier: the thread that tells the kernel which names, attributes and bytes are old.
pub(crate) struct Notifier {
    device: Device,
    /// Whether the kernel lets names expire instead of dropping them.
    expires: bool,
}

impl Notifier {
    /// Starts the notifier's thread, which ends with the session.
    pub(crate) fn start(device: Device, agreed: Agreed, watcher: Watcher) {
        let notifier = Self { device, expires: agreed.flags & init::HAS_EXPIRE_ONLY != 0 };
        let run = move || watcher.run(|stale| notifier.tell(stale));
        if let Err(error) = thread::Builder::new().name("notifier".to_owned()).spawn(run) {
            tracing::warn!(%error, "no thread can be started that hears of changes: nothing is kept");
        }
    }

    fn tell(&self, stale: &Stale) {
        let told = match stale {
            Stale::Attributes { inode } => self.inode(InvalInode { ino: *inode, off: -1, len: 0 }),
            Stale::Bytes { inode, start, end } => self.inode(range(*inode, *start, *end)),
            // The kernel hands written bytes over at once, so it keeps none that wait.
            Stale::Waiting { .. } | Stale::Mapped { .. } => Ok(()),
            Stale::Name { folder, name, is_folder } => {
                // A folder may be the current folder of a program, so the name expires and stays a path to
                // the folder meanwhile. Any other name is dropped, so that no lookup under way prolongs it.
                let flags = if *is_folder && self.expires { notify::EXPIRE_ONLY } else { 0 };
                let entry = InvalEntry { parent: *folder, namelen: name.len() as u32, flags };
                self.device.notify(notify::INVAL_ENTRY, &[&entry.bytes(), name, b"\0"])
            }
        };
        if let Err(error) = told
            && !is_unknown(&error)
        {
            tracing::debug!(?stale, %error, "the kernel was told of a change in vain");
        }
    }

    fn inode(&self, inode: InvalInode) -> io::Result<()> {
        self.device.notify(notify::INVAL_INODE, &[&inode.bytes()])
    }
}

/// Returns the notification that a range of bytes is old. A length of 0 means up to the end of the file.
fn range(ino: u64, start: u64, end: u64) -> InvalInode {
    let len = if end >= MAX_FILE_BYTES { 0 } else { end.saturating_sub(start) as i64 };
    InvalInode { ino, off: start.min(MAX_FILE_BYTES) as i64, len }
}

/// Whether an error says that the kernel keeps nothing of what it was notified, or that the mount has ended.
fn is_unknown(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::NOTCONN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_up_to_the_end_has_no_length() {
        assert_eq!(range(7, 4096, 8192), InvalInode { ino: 7, off: 4096, len: 4096 });
        assert_eq!(range(7, 10, MAX_FILE_BYTES), InvalInode { ino: 7, off: 10, len: 0 });
    }
}
