//! Registered memory: what the fabric may touch, and the bounds-checked pieces of it that operations
//! use.
//!
//! Owns the registrations. Engine thread only. Invariants: a [`Region`] keeps its [`Memory`] mapped
//! and its domain open; a [`Slice`] never reaches outside its region; bytes are only moved by pointer
//! copies, as other processes and the network card may write them at any time, so no Rust reference to
//! them exists.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::domain::Domain;
use crate::error::FabricError;
use crate::ffi;
use crate::operation::OpKind;

/// A range of mapped memory that can be registered.
///
/// # Safety
/// `base` and `len` always return the same values. `base..base + len` stays mapped, and valid for
/// reads and writes from any thread, the network card and the kernel, as long as the value lives. No
/// Rust reference to these bytes is used while a region over them exists.
pub unsafe trait Memory: 'static {
    /// The first byte.
    fn base(&self) -> NonNull<u8>;
    /// Number of bytes.
    fn len(&self) -> usize;
    /// Whether there are no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What peers may do to a region. Our own operations may always use it, with one exception: see
/// [`Endpoint::send`](crate::Endpoint::send).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Peers that know the key may read.
    pub remote_read: bool,
    /// Peers that know the key may write.
    pub remote_write: bool,
}

impl Access {
    /// Only our own operations.
    pub const LOCAL: Access = Access { remote_read: false, remote_write: false };
    /// Peers may read.
    pub const REMOTE_READ: Access = Access { remote_read: true, remote_write: false };
    /// Peers may write.
    pub const REMOTE_WRITE: Access = Access { remote_read: false, remote_write: true };
    /// Peers may read and write.
    pub const REMOTE_READ_WRITE: Access = Access { remote_read: true, remote_write: true };

    pub(crate) fn is_remote(self) -> bool {
        self.remote_read || self.remote_write
    }

    /// libfabric's flags. `rendezvous`: the provider lets a receiver read long messages from the
    /// sender's region, so memory that may be sent is memory that anyone with its key may read.
    pub(crate) fn flags(self, rendezvous: bool) -> u64 {
        let mut flags = ffi::PLASMON_RECV | ffi::PLASMON_READ | ffi::PLASMON_WRITE;
        if self.remote_read || !rendezvous {
            flags |= ffi::PLASMON_SEND;
        }
        if self.remote_read {
            flags |= ffi::PLASMON_REMOTE_READ;
        }
        if self.remote_write {
            flags |= ffi::PLASMON_REMOTE_WRITE;
        }
        flags
    }
}

/// What a peer needs to address a region: give it to those who may use it, and to no one else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteRegion {
    /// Address of the first byte: 0, or a virtual address where the provider wants those.
    pub base: u64,
    /// The key; random where the provider lets us choose it.
    pub key: u64,
    /// Number of bytes.
    pub len: u64,
}

/// A registered piece of memory. Dropping the last reference ends the registration; see
/// [`Domain::register`] for when the memory itself is let go.
pub struct Region {
    domain: Domain,
    /// Closed in `drop`.
    mr: NonNull<ffi::fid_mr>,
    /// `Some` until `drop`.
    memory: Option<Rc<dyn Memory>>,
    base: NonNull<u8>,
    len: usize,
    access: Access,
    remote: RemoteRegion,
}

impl Region {
    /// Takes over an open registration of the whole `memory`.
    pub(crate) fn new(
        domain: Domain,
        mr: NonNull<ffi::fid_mr>,
        memory: Rc<dyn Memory>,
        access: Access,
        remote: RemoteRegion,
    ) -> Rc<Self> {
        let (base, len) = (memory.base(), memory.len());
        Rc::new(Region { domain, mr, memory: Some(memory), base, len, access, remote })
    }

    /// What peers need to address this region.
    pub fn remote(&self) -> RemoteRegion {
        self.remote
    }

    /// Number of bytes; never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// What peers may do to it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The domain it is registered with.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// A piece of it for an operation; [`FabricError::OutOfBounds`] unless it lies within.
    pub fn slice(self: &Rc<Self>, offset: usize, len: usize) -> Result<Slice, FabricError> {
        check_range(OpKind::Slice, offset as u64, len as u64, self.len as u64)?;
        Ok(Slice { region: Rc::clone(self), offset, len, owner: None })
    }

    /// The provider's descriptor for local use.
    pub(crate) fn descriptor(&self) -> *mut std::ffi::c_void {
        // SAFETY: the registration is open until `drop`.
        unsafe { ffi::fi_mr_desc(self.mr.as_ptr()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: open, and closed only here. Operations that use the region hold a reference to it,
        // so none is under way.
        let result = unsafe { ffi::fi_close(&raw mut (*self.mr.as_ptr()).fid) };
        if let Some(memory) = self.memory.take() {
            self.domain.unregistered(memory, self.len, self.access, result);
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is a secret: it stays out of logs.
        f.debug_struct("Region").field("len", &self.len).field("access", &self.access).finish()
    }
}

/// A piece of a region, for an operation to fill or to send.
#[derive(Clone)]
pub struct Slice {
    region: Rc<Region>,
    offset: usize,
    len: usize,
    owner: Option<Rc<dyn Any>>,
}

impl Slice {
    /// Keeps `owner` (say, the allocation these bytes belong to) alive as long as this slice, and so
    /// until an operation that uses it is finished.
    #[must_use]
    pub fn with_owner(mut self, owner: Rc<dyn Any>) -> Self {
        self.owner = Some(owner);
        self
    }

    /// The region it lies in.
    pub fn region(&self) -> &Rc<Region> {
        &self.region
    }

    /// First byte, counted from the start of the region.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A piece of this piece, with the same owner.
    pub fn slice(&self, offset: usize, len: usize) -> Result<Slice, FabricError> {
        check_range(OpKind::Slice, offset as u64, len as u64, self.len as u64)?;
        let (region, owner) = (Rc::clone(&self.region), self.owner.clone());
        Ok(Slice { region, offset: self.offset + offset, len, owner })
    }

    /// Copies `source` to the start of the slice.
    pub fn copy_from_slice(&self, source: &[u8]) -> Result<(), FabricError> {
        check_range(OpKind::Slice, 0, source.len() as u64, self.len as u64)?;
        // SAFETY: the destination lies within the region, whose memory is mapped and referenced by no
        // one in Rust, so the ranges cannot overlap.
        unsafe { self.as_ptr().copy_from_nonoverlapping(source.as_ptr(), source.len()) };
        Ok(())
    }

    /// Fills `target` from the start of the slice.
    pub fn copy_to_slice(&self, target: &mut [u8]) -> Result<(), FabricError> {
        check_range(OpKind::Slice, 0, target.len() as u64, self.len as u64)?;
        // SAFETY: as in `copy_from_slice`, the other way round.
        unsafe { self.as_ptr().copy_to_nonoverlapping(target.as_mut_ptr(), target.len()) };
        Ok(())
    }

    /// A copy of its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        // SAFETY: as in `copy_to_slice`; the vector has room for `len` bytes and all are written.
        unsafe {
            self.as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), self.len);
            bytes.set_len(self.len);
        }
        bytes
    }

    /// The first byte. Others may write these bytes at any time: do not make a reference of it.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: offset <= region length, checked when the slice was made.
        unsafe { self.region.base.as_ptr().add(self.offset) }
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slice").field("offset", &self.offset).field("len", &self.len).finish()
    }
}

/// Whether `offset..offset + len` lies within `limit` bytes; safe against overflow.
pub(crate) fn check_range(operation: OpKind, offset: u64, len: u64, limit: u64) -> Result<(), FabricError> {
    match offset.checked_add(len) {
        Some(end) if end <= limit => Ok(()),
        _ => Err(FabricError::OutOfBounds { operation, offset, len, limit }),
    }
}
