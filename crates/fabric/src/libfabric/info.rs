//! libfabric's description of a provider on one of its interfaces.
//!
//! Owns one `fi_info` for each [`Info`], which stays on the thread that made it. Invariant: every attribute
//! of an `Info` that [`usable`] has passed is there, so that the accessors read no null pointer.

use std::ptr::NonNull;

use super::ffi;
use crate::error::string;

/// Owner of an `fi_info`, which is freed when the owner is dropped.
pub(crate) struct Info(NonNull<ffi::fi_info>);

/// Names that libfabric gives: of a provider, of its network, and of its device or interface.
pub(super) type Names = (String, String, String);

impl Info {
    /// Takes over the result of fi_dupinfo, fi_getinfo or fi_allocinfo. Returns `None` for a null pointer.
    ///
    /// # Safety
    /// `info` is null or an `fi_info` that nobody else frees.
    pub(super) unsafe fn own(info: *mut ffi::fi_info) -> Option<Self> {
        NonNull::new(info).map(Info)
    }

    /// Copies an entry of libfabric's list, if this crate can work with it.
    pub(super) fn copy(entry: &ffi::fi_info) -> Option<(Self, Names)> {
        if !usable(entry) {
            return None;
        }
        // SAFETY: `entry` is one of a list that fi_getinfo returned; the copy is ours.
        let info = unsafe { Info::own(ffi::fi_dupinfo(entry)) }?;
        // SAFETY: `usable` has checked both attributes; their names are null or terminated strings.
        let names = unsafe {
            let (fabric, domain) = (&*entry.fabric_attr, &*entry.domain_attr);
            (string(fabric.prov_name)?, string(fabric.name)?, string(domain.name)?)
        };
        Some((info, names))
    }

    /// Returns the address of the description, for calls of libfabric.
    pub(crate) fn as_ptr(&self) -> *mut ffi::fi_info {
        self.0.as_ptr()
    }

    /// Returns the attributes that libfabric gives the provider's endpoints.
    pub(crate) fn endpoint(&self) -> &ffi::fi_ep_attr {
        // SAFETY: fi_getinfo fills every attribute; `usable` has checked that this one is not null.
        unsafe { &*(*self.as_ptr()).ep_attr }
    }

    /// Returns the attributes that libfabric gives the provider's domains.
    pub(crate) fn domain(&self) -> &ffi::fi_domain_attr {
        // SAFETY: fi_getinfo fills every attribute; `usable` has checked that this one is not null.
        unsafe { &*(*self.as_ptr()).domain_attr }
    }

    /// Returns the attributes that libfabric gives the sending side of the provider's endpoints.
    pub(crate) fn transmit(&self) -> &ffi::fi_tx_attr {
        // SAFETY: fi_getinfo fills every attribute; `usable` has checked that this one is not null.
        unsafe { &*(*self.as_ptr()).tx_attr }
    }

    /// Whether operations of this process need the registration of the memory that they use.
    pub(crate) fn uses_local_regions(&self) -> bool {
        self.domain().mr_mode & ffi::PLASMON_MR_LOCAL != 0
    }

    /// Returns the fault of a peer's `address`, which is as long as `own`, the address of one of the
    /// provider's endpoints. `None` if there is no fault.
    pub(crate) fn address_fault(&self, own: &[u8], address: &[u8]) -> Option<&'static str> {
        // SAFETY: the provider's entry is complete and immutable.
        let format = unsafe { (*self.as_ptr()).addr_format };
        let socket = [ffi::PLASMON_SOCKADDR, ffi::PLASMON_SOCKADDR_IN, ffi::PLASMON_SOCKADDR_IN6];
        if !socket.contains(&format) || address.len() < 8 {
            return None;
        }
        // A socket address has the family, the port, and the host from byte 4 (IPv4) or 8 (IPv6).
        let host = match address.len() {
            len if len >= 24 => &address[8..24],
            _ => &address[4..8],
        };
        if address[..2] != own[..2] {
            return Some("another address family");
        }
        if address[2..4] == [0, 0] || host.iter().all(|byte| *byte == 0) {
            return Some("no port or no host in it");
        }
        None
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: made by fi_dupinfo, fi_getinfo or fi_allocinfo, and freed only here.
        unsafe { ffi::fi_freeinfo(self.0.as_ptr()) };
    }
}

/// Whether this crate can work with an entry of libfabric's list. All attributes have to be there, keys have
/// to fit 64 bits, and the entry may ask for no mode or registration style that this crate does not
/// implement.
fn usable(entry: &ffi::fi_info) -> bool {
    // SAFETY: libfabric's attribute pointers are null or valid as long as the entry.
    let (Some(domain), Some(_), Some(_), Some(_)) = (unsafe {
        (
            entry.domain_attr.as_ref(),
            entry.fabric_attr.as_ref(),
            entry.ep_attr.as_ref(),
            entry.tx_attr.as_ref(),
        )
    }) else {
        return false;
    };
    entry.mode & !ffi::PLASMON_MODES == 0
        && domain.mr_mode & !ffi::PLASMON_MR_MODES == 0
        && domain.mr_key_size <= size_of::<u64>()
}
