//! Owners of libfabric's objects.
//!
//! Owns one open object for each [`Handle`]. Engine thread only. Invariant: an object is closed exactly
//! once, by [`Handle::close`] or by the drop of its handle. A struct that holds several handles declares
//! them in the order in which they are to be closed.

use std::ptr::{self, NonNull};

use super::ffi;
use crate::error::FabricError;

/// Open libfabric object, which is closed when the handle is dropped.
pub(crate) struct Handle<T>(NonNull<T>);

impl<T> Handle<T> {
    /// Opens an object with `open`, which calls libfabric's function named `call`.
    pub(crate) fn open(
        call: &str,
        open: impl FnOnce(&mut *mut T) -> std::ffi::c_int,
    ) -> Result<Self, FabricError> {
        let mut pointer = ptr::null_mut();
        let code = open(&mut pointer);
        match NonNull::new(pointer) {
            Some(pointer) if code == 0 => Ok(Handle(pointer)),
            _ => Err(FabricError::call(call, code)),
        }
    }

    /// Returns the address of the object, for calls of libfabric.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// Returns the base object of the object: every `fid_*` structure begins with one.
    pub(crate) fn fid(&self) -> *mut ffi::fid {
        self.0.as_ptr().cast()
    }

    /// Closes the object now. Returns true if libfabric closed it.
    pub(crate) fn close(self) -> bool {
        // SAFETY: open, and forgotten right here.
        let code = unsafe { ffi::fi_close(self.fid()) };
        std::mem::forget(self);
        if code != 0 {
            tracing::error!(error = %FabricError::call("fi_close", code), "a fabric object stays open");
        }
        code == 0
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: open, and never used again.
        let code = unsafe { ffi::fi_close(self.fid()) };
        if code != 0 {
            tracing::error!(error = %FabricError::call("fi_close", code), "a fabric object stays open");
        }
    }
}
