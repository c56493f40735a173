//! Events that [`Domain::poll`](crate::Domain::poll) reports besides finished operations.
//!
//! Owns the buffers that events carry. Engine thread only. Invariant: every length fits its buffer. All other
//! contents come from a peer unchecked.

use crate::error::FabricError;
use crate::memory::Slice;
use crate::names::EndpointId;

/// Event that a peer caused. The contents come from the peer, and have to be checked before use.
#[derive(Debug)]
pub enum Event {
    /// A message filled a buffer given to [`Endpoint::receive`](crate::Endpoint::receive).
    Received {
        /// Endpoint that the message arrived at.
        endpoint: EndpointId,
        /// The whole buffer, to be read and posted again.
        slice: Slice,
        /// Length of the message in bytes, at most `slice.len()`.
        len: usize,
        /// Immediate value of the sender, if the message carried one.
        immediate: Option<u32>,
    },
    /// A peer wrote to a region of this domain and attached an immediate value. The fabric does not report
    /// which region was written, nor through which endpoint.
    RemoteWrite {
        /// Immediate value of the writer.
        immediate: u32,
        /// Bytes written, as far as the provider reports them. The length is 0 over tcp, where the value
        /// comes in a write of its own.
        len: usize,
    },
    /// A posted buffer is given back without a message.
    ReceiveFailed {
        /// Buffer that was posted.
        slice: Slice,
        /// Reason why no message filled the buffer.
        error: FabricError,
    },
}
