//! An endpoint at libfabric, with the addresses of its peers.
//!
//! Owns the endpoint and its address vector. Engine thread only. Invariant: an endpoint is closed before its
//! address vector. The vector is not shared with other endpoints, because forgetting an address closes the
//! connections to this address of every endpoint that uses the vector.

use std::ffi::c_void;
use std::ptr;

use super::ffi;
use super::handle::Handle;
use super::info::Info;
use crate::error::FabricError;
use crate::operation::{Completion, Immediate, Operation, Request};
use crate::provider::Provider;

/// Length in bytes that no fabric address exceeds.
const LONGEST_ADDRESS_BYTES: usize = 1024;

/// Endpoint at libfabric.
pub(crate) struct Port {
    // The handles are closed in this order.
    /// Endpoint at libfabric.
    ep: Handle<ffi::fid_ep>,
    /// Address vector: the addresses of the endpoint's peers.
    addresses: Handle<ffi::fid_av>,
}

impl Port {
    /// Opens an endpoint of `domain`, which was opened with `info`. Completions of the endpoint go to
    /// `queue`. Returns the endpoint with its fabric address.
    pub(super) fn open(
        domain: &Handle<ffi::fid_domain>,
        queue: &Handle<ffi::fid_cq>,
        info: &Info,
        provider: &Provider,
    ) -> Result<(Self, Vec<u8>), FabricError> {
        let mut attributes = ffi::fi_av_attr { type_: ffi::fi_av_type_FI_AV_TABLE, ..Default::default() };
        // SAFETY: the domain is open; the attributes are only read.
        let addresses = Handle::open("fi_av_open", |av| unsafe {
            ffi::fi_av_open(domain.as_ptr(), &mut attributes, av, ptr::null_mut())
        })?;
        // SAFETY: the domain is open and `info` is the one it was opened with.
        let ep = Handle::open("fi_endpoint", |ep| unsafe {
            ffi::fi_endpoint(domain.as_ptr(), info.as_ptr(), ep, ptr::null_mut())
        })?;
        let check = |call, code: i32| match code {
            0 => Ok(()),
            code => Err(provider.memory_error(call, code)),
        };
        // SAFETY: all three objects are open; the queue outlives the endpoint, which holds the domain,
        // and so does the address vector, which is closed after it.
        unsafe {
            let flags = ffi::PLASMON_TRANSMIT | ffi::PLASMON_RECV;
            check("fi_ep_bind", ffi::fi_ep_bind(ep.as_ptr(), addresses.fid(), 0))?;
            check("fi_ep_bind", ffi::fi_ep_bind(ep.as_ptr(), queue.fid(), flags))?;
            check("fi_enable", ffi::fi_enable(ep.as_ptr()))?;
        }
        let mut address = vec![0; LONGEST_ADDRESS_BYTES];
        let mut len = address.len();
        // SAFETY: the buffer has `len` bytes; libfabric stores the address's length.
        let code = unsafe { ffi::fi_getname(ep.fid(), address.as_mut_ptr().cast(), &mut len) };
        check("fi_getname", code)?;
        address.truncate(len);
        Ok((Port { ep, addresses }, address))
    }

    /// Enters the fabric address `name` in the address vector and returns the entry. The error is libfabric's
    /// negative code, or 0 if the provider does not take the address. `name` has the length of the
    /// endpoint's own address.
    pub(crate) fn insert_address(&self, name: &[u8]) -> Result<u64, i32> {
        let mut entry = u64::MAX;
        // SAFETY: the vector is open; the name has the length of our own, which is what the provider's format
        // takes; one entry is stored.
        let inserted = unsafe {
            let vector = self.addresses.as_ptr();
            ffi::fi_av_insert(vector, name.as_ptr().cast(), 1, &mut entry, 0, ptr::null_mut())
        };
        if inserted == 1 && entry != u64::MAX { Ok(entry) } else { Err(inserted.min(0)) }
    }

    /// Removes an entry of the address vector, which closes the connections to the address. An entry is
    /// removed once for each insertion.
    pub(crate) fn remove_address(&self, mut address: u64) {
        // SAFETY: the vector is open and the entry is one of its own, removed once for each insertion: its
        // number went with the peer's state.
        let code = unsafe { ffi::fi_av_remove(self.addresses.as_ptr(), &mut address, 1, 0) };
        if code != 0 {
            tracing::warn!(error = %FabricError::call("fi_av_remove", code), "forgetting a peer");
        }
    }

    /// Closes the endpoint, then its address vector. Returns true if the provider touches none of the
    /// endpoint's buffers from now on.
    pub(crate) fn close(self) -> bool {
        let Port { ep, addresses } = self;
        if !ep.close() {
            std::mem::forget(addresses);
            return false;
        }
        true
    }

    /// Hands an operation to the provider. `target` is the peer's entry of the address vector. The error is
    /// libfabric's negative code.
    ///
    /// # Safety
    /// `context` is the operation's block, and both stay where they are until the completion arrives or the
    /// endpoint is closed.
    pub(crate) unsafe fn post(
        &self,
        operation: &Operation,
        target: u64,
        context: *mut c_void,
    ) -> Result<(), i64> {
        let endpoint = self.ep.as_ptr();
        let (buffer, len) = (operation.slice.as_ptr().cast::<c_void>(), operation.slice.len());
        let mut descriptor = operation.slice.region().descriptor();
        // SAFETY: the endpoint is open; the caller vouches for operation and context; the slice lies within a
        // registered region that it keeps alive; the structures built here are only read during the call.
        let code = unsafe {
            match operation.request {
                Request::Receive => ffi::fi_recv(endpoint, buffer, len, descriptor, target, context),
                Request::Send => ffi::fi_send(endpoint, buffer, len, descriptor, target, context),
                Request::Read { address, key } => {
                    ffi::fi_read(endpoint, buffer, len, descriptor, target, address, key, context)
                }
                Request::Write { address, key, immediate, completion } => {
                    let local = ffi::iovec { iov_base: buffer, iov_len: len };
                    let remote = ffi::fi_rma_iov { addr: address, len, key };
                    let message = ffi::fi_msg_rma {
                        msg_iov: &local,
                        desc: &mut descriptor,
                        iov_count: 1,
                        addr: target,
                        rma_iov: &remote,
                        rma_iov_count: 1,
                        context,
                        data: match immediate {
                            Immediate::With(value) => value.into(),
                            Immediate::None | Immediate::After(_) => 0,
                        },
                    };
                    // By default a write completes when its bytes were handed to the network. With the second
                    // flag it completes when the peer's side has the data.
                    let mut flags = ffi::PLASMON_COMPLETION;
                    if completion == Completion::Acknowledged {
                        flags |= ffi::PLASMON_TRANSMIT_COMPLETE;
                    }
                    if let Immediate::With(_) = immediate {
                        flags |= ffi::PLASMON_REMOTE_CQ_DATA;
                    }
                    ffi::fi_writemsg(endpoint, &message, flags)
                }
            }
        };
        if code == 0 { Ok(()) } else { Err(code as i64) }
    }
}
