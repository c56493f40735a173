//! Waking the engine from another thread. Owns an eventfd, which is in the engine's epoll set. Any thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// A handle that wakes the engine. Any thread may hold one.
#[derive(Clone)]
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(descriptor)))
    }

    /// Ends the engine's sleep, or the next sleep of an engine that is awake.
    pub(crate) fn wake(&self) {
        // The write fails only when the count is full, and then the engine is being woken already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Forgets the wakes so far.
    pub(crate) fn clear(&self) {
        // The read fails only when there is nothing to forget.
        let _ = rustix::io::read(&*self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
