//! A session: one client, however it is connected. Owns no state. Engine thread only.

use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use plasmon::wire::Reply;

/// The connection of one client.
pub(crate) trait Session: Any {
    /// The user on whose behalf the client asks, as the kernel or the host says.
    fn user(&self) -> u32;

    /// Queues a reply to a request, with the descriptors that the reply announces. [`Session::ring`] sends
    /// it.
    fn send(&self, request: u64, reply: &Reply, descriptors: Vec<Arc<OwnedFd>>);

    /// Sends the client the replies that were queued.
    ///
    /// # Errors
    /// When the client cannot be reached any more. Its session ends.
    fn ring(&self) -> io::Result<()>;

    /// Whether the client takes replies too slowly to be given more work.
    fn is_behind(&self) -> bool {
        false
    }
}
