//! A session: one client, however it is connected. Engine thread only.

use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use plasmon::wire::Reply;

/// The connection of one client.
pub(crate) trait Session: Any {
    /// The user on whose behalf the client asks, as the kernel or the host says.
    fn user(&self) -> u32;

    /// Queues a reply to a request, with the descriptors that it announces. The client has it after
    /// [`Session::ring`].
    fn send(&self, request: u64, reply: &Reply, descriptors: Vec<Arc<OwnedFd>>);

    /// Has the client take what was queued.
    ///
    /// # Errors
    /// When the client cannot be reached any more; its session ends.
    fn ring(&self) -> io::Result<()>;

    /// Whether the client is too far behind with taking replies to be given more work.
    fn is_behind(&self) -> bool {
        false
    }
}
