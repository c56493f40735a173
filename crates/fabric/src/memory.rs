//! Registered memory, and the bounds-checked slices of it that operations use.
//!
//! Owns the registrations. Engine thread only. Invariants: a [`Region`] keeps its [`Memory`] mapped
//! and its domain open; a [`Slice`] never reaches outside its region; bytes are only moved by pointer
//! copies, as other processes and the network card may write them at any time, so no Rust reference to
//! them exists.
//!
//! A region knows its domain as a [`Registrar`] only. The state of a domain holds operations, an operation
//! holds a slice, and a slice holds its region: if the region named the domain's type, the modules would
//! depend on each other in a circle. Moving code could not open that circle, as a region has to keep its
//! domain open.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use crate::access::{Access, RemoteRegion};
use crate::error::FabricError;
use crate::names::OpKind;
use crate::registration::Registration;

/// Range of mapped memory that can be registered.
///
/// # Safety
/// `base` and `len` always return the same values. `base..base + len` stays mapped, and valid for
/// reads and writes from any thread, the network card and the kernel, as long as the value lives. No
/// Rust reference to these bytes is used while a region over them exists.
pub unsafe trait Memory: 'static {
    /// Address of the first byte.
    fn base(&self) -> NonNull<u8>;
    /// Length of the memory in bytes.
    fn len(&self) -> usize;
    /// Whether the memory has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Domain that regions are registered with, as the regions see it.
pub(crate) trait Registrar {
    /// Notes that the registration of `len` bytes of `memory` was closed with the result `code`, and keeps
    /// the memory as long as a peer may still use it. The call borrows the domain's state, and may run
    /// foreign code.
    fn unregistered(&self, memory: Rc<dyn Memory>, len: usize, access: Access, code: c_int);
}

/// Registered memory. Dropping the last reference ends the registration; see
/// [`Domain::register`](crate::Domain::register) for when the memory itself is released.
pub struct Region {
    /// Domain of the region, which the region keeps open.
    registrar: Rc<dyn Registrar>,
    /// Registration, closed in `drop`.
    registration: Registration,
    /// Descriptor of the registration.
    descriptor: *mut c_void,
    /// Memory that is registered: `Some` until `drop`.
    memory: Option<Rc<dyn Memory>>,
    base: NonNull<u8>,
    len: usize,
    access: Access,
    remote: RemoteRegion,
}

impl Region {
    /// Takes over the open `registration` of the whole `memory`.
    pub(crate) fn new(
        registrar: Rc<dyn Registrar>,
        registration: Registration,
        memory: Rc<dyn Memory>,
        access: Access,
        remote: RemoteRegion,
    ) -> Rc<Self> {
        let (base, len) = (memory.base(), memory.len());
        let descriptor = registration.descriptor();
        let memory = Some(memory);
        Rc::new(Region { registrar, registration, descriptor, memory, base, len, access, remote })
    }

    /// Returns address, key and length for peers that use the region.
    pub fn remote(&self) -> RemoteRegion {
        self.remote
    }

    /// Returns the length of the region in bytes, which is never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the rights of peers to the region.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Whether the region is registered with the domain at this address.
    pub(crate) fn is_registered_with<T: Registrar>(&self, registrar: *const T) -> bool {
        ptr::addr_eq(Rc::as_ptr(&self.registrar), registrar)
    }

    /// Cuts `len` bytes at `offset` from the region, for an operation. The range has to lie within the
    /// region: otherwise the error is [`FabricError::OutOfBounds`].
    pub fn slice(self: &Rc<Self>, offset: usize, len: usize) -> Result<Slice, FabricError> {
        check_range(OpKind::Slice, offset as u64, len as u64, self.len as u64)?;
        Ok(Slice { region: Rc::clone(self), offset, len, owner: None })
    }

    /// Returns the descriptor by which operations of this process name the region to the provider.
    pub(crate) fn descriptor(&self) -> *mut c_void {
        self.descriptor
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Operations that use the region hold a reference to it, so none is under way.
        let result = self.registration.close();
        if let Some(memory) = self.memory.take() {
            self.registrar.unregistered(memory, self.len, self.access, result);
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is a secret, and stays out of logs.
        f.debug_struct("Region").field("len", &self.len).field("access", &self.access).finish()
    }
}

/// Range of a region, for an operation to fill or to send.
#[derive(Clone)]
pub struct Slice {
    region: Rc<Region>,
    offset: usize,
    len: usize,
    /// Value that is kept alive as long as the slice.
    owner: Option<Rc<dyn Any>>,
}

impl Slice {
    /// Keeps `owner` (for example the allocation that the bytes belong to) alive as long as the slice, and so
    /// until every operation that uses the slice is finished.
    #[must_use]
    pub fn with_owner(mut self, owner: Rc<dyn Any>) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Returns the region that the slice lies in.
    pub fn region(&self) -> &Rc<Region> {
        &self.region
    }

    /// Returns the position of the first byte, counted from the start of the region.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the length of the slice in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Cuts `len` bytes at `offset` from the slice. The new slice has the same owner.
    pub fn slice(&self, offset: usize, len: usize) -> Result<Slice, FabricError> {
        check_range(OpKind::Slice, offset as u64, len as u64, self.len as u64)?;
        let (region, owner) = (Rc::clone(&self.region), self.owner.clone());
        Ok(Slice { region, offset: self.offset + offset, len, owner })
    }

    /// Copies all of `source` to the start of the slice.
    pub fn copy_from_slice(&self, source: &[u8]) -> Result<(), FabricError> {
        check_range(OpKind::Slice, 0, source.len() as u64, self.len as u64)?;
        // SAFETY: the destination lies within the region, whose memory is mapped and referenced by no
        // one in Rust, so the ranges cannot overlap.
        unsafe { self.as_ptr().copy_from_nonoverlapping(source.as_ptr(), source.len()) };
        Ok(())
    }

    /// Fills all of `target` from the start of the slice.
    pub fn copy_to_slice(&self, target: &mut [u8]) -> Result<(), FabricError> {
        check_range(OpKind::Slice, 0, target.len() as u64, self.len as u64)?;
        // SAFETY: the source lies within the region, whose memory is mapped and referenced by no one in
        // Rust, so the ranges cannot overlap.
        unsafe { self.as_ptr().copy_to_nonoverlapping(target.as_mut_ptr(), target.len()) };
        Ok(())
    }

    /// Copies the bytes of the slice to a new vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        // SAFETY: as in `copy_to_slice`; the vector has room for `len` bytes and all are written.
        unsafe {
            self.as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), self.len);
            bytes.set_len(self.len);
        }
        bytes
    }

    /// Returns the address of the first byte. Other processes may write the bytes at any time, so no
    /// reference may be made of the address.
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

/// Checks that `offset..offset + len` lies within `limit` bytes. The check is safe against overflow.
pub(crate) fn check_range(operation: OpKind, offset: u64, len: u64, limit: u64) -> Result<(), FabricError> {
    match offset.checked_add(len) {
        Some(end) if end <= limit => Ok(()),
        _ => Err(FabricError::OutOfBounds { operation, offset, len, limit }),
    }
}
