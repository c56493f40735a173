//! Replies to requests of the kernel.
//!
//! Owns the duty to answer one request. Any thread. Invariant: each request that wants an answer gets exactly
//! one, because a reply that is dropped unanswered says EIO.

use rustix::io::Errno;

use crate::device::Device;
use crate::kernel::Structure;

/// Reply to one request, which can be given once.
pub(crate) struct Reply {
    device: Device,
    /// Number of the request. `None` once the request is answered, and if it wants no answer.
    unique: Option<u64>,
}

impl Reply {
    /// Returns the reply to the request with this number that was read from `device`.
    pub(crate) fn new(device: Device, unique: u64) -> Self {
        Self { device, unique: Some(unique) }
    }

    /// Answers that the request failed.
    pub(crate) fn error(mut self, error: Errno) {
        self.send(error.raw_os_error(), &[]);
    }

    /// Answers that the request succeeded, without further bytes.
    pub(crate) fn done(mut self) {
        self.send(0, &[]);
    }

    /// Answers with a structure.
    pub(crate) fn structure(mut self, structure: &impl Structure) {
        self.send(0, &[&structure.bytes()]);
    }

    /// Answers with bytes in several parts.
    pub(crate) fn parts(mut self, parts: &[&[u8]]) {
        self.send(0, parts);
    }

    /// Answers with the result of an operation, which `encode` turns into a structure, or with its error.
    pub(crate) fn result<T, S: Structure>(self, result: Result<T, Errno>, encode: impl FnOnce(T) -> S) {
        match result {
            Ok(value) => self.structure(&encode(value)),
            Err(error) => self.error(error),
        }
    }

    /// Answers with success, or with the error of an operation.
    pub(crate) fn outcome(self, result: Result<(), Errno>) {
        match result {
            Ok(()) => self.done(),
            Err(error) => self.error(error),
        }
    }

    /// Gives no answer, since the request wants none.
    pub(crate) fn none(mut self) {
        self.unique = None;
    }

    fn send(&mut self, error: i32, parts: &[&[u8]]) {
        let Some(unique) = self.unique.take() else { return };
        let sent = self.device.reply(unique, error, parts);
        // ENOENT: the program that asked was killed. ENODEV: the folder is not mounted any more.
        let gone =
            |error: &std::io::Error| matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NODEV));
        if let Err(error) = sent.as_ref()
            && !gone(error)
        {
            tracing::warn!(%error, "the kernel refused a reply");
            // The reply may have been longer than the request allows: the program gets an error.
            let _ = self.device.reply(unique, Errno::IO.raw_os_error(), &[]);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(Errno::IO.raw_os_error(), &[]);
    }
}
