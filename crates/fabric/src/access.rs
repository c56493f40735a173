//! Rights of peers to a region, and the description by which a peer uses one.
//!
//! Owns plain values only. Any thread may hold them. Invariant: neither type names a transport, so that
//! every transport can depend on them.

/// Rights of peers to a region. Operations of this process may always use the region, with one exception that
/// [`Endpoint::send`](crate::Endpoint::send) names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Whether peers that know the key may read the region.
    pub remote_read: bool,
    /// Whether peers that know the key may write to the region.
    pub remote_write: bool,
}

impl Access {
    /// Rights of a region that only operations of this process use.
    pub const LOCAL: Access = Access { remote_read: false, remote_write: false };
    /// Rights of a region that peers may read.
    pub const REMOTE_READ: Access = Access { remote_read: true, remote_write: false };
    /// Rights of a region that peers may write to.
    pub const REMOTE_WRITE: Access = Access { remote_read: false, remote_write: true };
    /// Rights of a region that peers may read and write to.
    pub const REMOTE_READ_WRITE: Access = Access { remote_read: true, remote_write: true };

    /// Whether peers may do anything to the region.
    pub(crate) fn is_remote(self) -> bool {
        self.remote_read || self.remote_write
    }
}

/// Address, key and length of a region, by which a peer can use the region. A peer that may not use the
/// region must not get them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteRegion {
    /// Address of the first byte: a virtual address if the provider uses virtual addresses, otherwise 0.
    pub base: u64,
    /// Key of the region. The key is random if the provider lets this crate choose it.
    pub key: u64,
    /// Length of the region in bytes.
    pub len: u64,
}
