//! What [`Domain::poll`](crate::Domain::poll) reports besides finished operations.

use crate::endpoint::EndpointId;
use crate::error::FabricError;
use crate::memory::Slice;

/// Something that a peer caused. Its contents are the peer's word: check them before use.
#[derive(Debug)]
pub enum Event {
    /// A message filled a buffer given to [`Endpoint::receive`](crate::Endpoint::receive).
    Received {
        /// Where it arrived.
        endpoint: EndpointId,
        /// The whole buffer, to be read and posted again.
        slice: Slice,
        /// Bytes of the message, at most `slice.len()`.
        len: usize,
        /// The sender's immediate value, if it sent one.
        immediate: Option<u32>,
    },
    /// A peer wrote to one of our regions and attached an immediate value. Which region, and which
    /// endpoint it came through, the fabric does not tell.
    RemoteWrite {
        /// The writer's value.
        immediate: u32,
        /// Bytes written, as far as the provider reports them: 0 over tcp, where the value comes in a
        /// write of its own.
        len: usize,
    },
    /// A posted buffer is given back without a message.
    ReceiveFailed {
        /// The buffer.
        slice: Slice,
        /// Why.
        error: FabricError,
    },
}
