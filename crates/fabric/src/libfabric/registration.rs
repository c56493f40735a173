//! Registrations of memory at libfabric.
//!
//! Owns one registration for each [`Registration`]. Engine thread only. Invariants: a key that this crate
//! chooses is random; [`Registration::close`] is called exactly once.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use super::ffi;
use super::handle::Handle;
use super::info::Info;
use crate::access::{Access, RemoteRegion};
use crate::error::FabricError;

/// Number of attempts to find a free random key. One attempt is nearly always enough.
const KEY_ATTEMPTS: usize = 8;

/// Registration at libfabric.
pub(crate) struct Registration(NonNull<ffi::fid_mr>);

/// Reason why memory was not registered.
pub(crate) enum Refusal {
    /// `fi_mr_reg` returned this negative code.
    Code(c_int),
    /// No key could be drawn.
    NoKey(FabricError),
}

impl Registration {
    /// Registers `len` bytes at `base`. `rendezvous` says whether the provider lets receivers read long
    /// messages from the sender's region.
    ///
    /// # Safety
    /// The bytes stay mapped until the registration is closed.
    pub(super) unsafe fn open(
        domain: &Handle<ffi::fid_domain>,
        info: &Info,
        (base, len): (NonNull<u8>, usize),
        access: Access,
        rendezvous: bool,
    ) -> Result<(Self, RemoteRegion), Refusal> {
        let attributes = info.domain();
        let choose_key = attributes.mr_mode & ffi::PLASMON_MR_PROV_KEY == 0;
        let key_mask = match attributes.mr_key_size {
            size @ 1..=7 => (1 << (8 * size)) - 1,
            _ => u64::MAX,
        };
        let mut code = 0;
        for _ in 0..KEY_ATTEMPTS {
            let key = if choose_key { random().map_err(Refusal::NoKey)? & key_mask } else { 0 };
            let mut mr = ptr::null_mut();
            // SAFETY: the domain is open; the caller vouches for the range.
            code = unsafe {
                ffi::fi_mr_reg(
                    domain.as_ptr(),
                    base.as_ptr().cast(),
                    len,
                    flags(access, rendezvous),
                    0,
                    key,
                    0,
                    &mut mr,
                    ptr::null_mut(),
                )
            };
            if let (0, Some(mr)) = (code, NonNull::new(mr)) {
                let virtual_addresses = attributes.mr_mode & ffi::PLASMON_MR_VIRT_ADDR != 0;
                let remote = RemoteRegion {
                    base: if virtual_addresses { base.as_ptr() as u64 } else { 0 },
                    // SAFETY: the registration is open.
                    key: unsafe { ffi::fi_mr_key(mr.as_ptr()) },
                    len: len as u64,
                };
                return Ok((Registration(mr), remote));
            }
            if code != -ffi::PLASMON_ENOKEY {
                break;
            }
        }
        Err(Refusal::Code(code))
    }

    /// Returns the descriptor by which operations of this process name the region.
    pub(crate) fn descriptor(&self) -> *mut c_void {
        // SAFETY: the registration is open until `close`.
        unsafe { ffi::fi_mr_desc(self.0.as_ptr()) }
    }

    /// Ends the registration, and returns libfabric's code. To be called once. The registration is not used
    /// afterwards.
    pub(crate) fn close(&mut self) -> c_int {
        // SAFETY: open, and closed only here. Operations that use the region hold a reference to it, so
        // none is under way.
        unsafe { ffi::fi_close(&raw mut (*self.0.as_ptr()).fid) }
    }
}

/// Returns the flags of libfabric that grant the rights of `access`. With `rendezvous`, the provider lets the
/// receiver of a long message read the message from the sender's region. Anyone with the key may then read
/// memory that may be sent, so only readable regions may be sent.
fn flags(access: Access, rendezvous: bool) -> u64 {
    let mut flags = ffi::PLASMON_RECV | ffi::PLASMON_READ | ffi::PLASMON_WRITE;
    if access.remote_read || !rendezvous {
        flags |= ffi::PLASMON_SEND;
    }
    if access.remote_read {
        flags |= ffi::PLASMON_REMOTE_READ;
    }
    if access.remote_write {
        flags |= ffi::PLASMON_REMOTE_WRITE;
    }
    flags
}

/// Draws a random key for a region.
fn random() -> Result<u64, FabricError> {
    getrandom::u64().map_err(|_| FabricError::call("drawing a random region key", -libc::EIO))
}
