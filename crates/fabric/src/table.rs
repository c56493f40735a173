//! The table of a domain's operations.
//!
//! Owns every [`Operation`] from its creation to its completion, and the context block that the provider
//! writes to meanwhile. Engine thread only. Invariants: a context block never moves and is freed with the
//! table alone, so a provider that reports a completion late touches valid memory; a block is reused only
//! when no completion that names it can be outstanding.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::libfabric::ffi;
use crate::memory::Slice;
use crate::names::{EndpointId, OpKind};
use crate::operation::{Operation, Shared};

/// Block that the provider may use while it works on an operation (FI_CONTEXT2), with the operation's index
/// in the table.
#[repr(C)]
struct ContextBlock {
    /// Memory of the provider. As the provider gets the address of this memory, it is the first field.
    scratch: ffi::fi_context2,
    index: usize,
}

/// Slot of the table, which operations use one after the other.
struct Slot {
    /// Context block of the slot, made by `Box`. The field is a raw pointer, because the provider writes
    /// through copies of it.
    block: NonNull<ContextBlock>,
    operation: Option<Operation>,
}

/// Table of all operations of a domain that are not finished.
#[derive(Default)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots that a closed endpoint has emptied. A last completion that names such a slot may still lie in
    /// the completion queue.
    stale: Vec<usize>,
}

impl Table {
    /// Stores an operation and returns its index.
    pub(crate) fn insert(&mut self, operation: Operation) -> usize {
        if let Some(index) = self.free.pop() {
            self.slots[index].operation = Some(operation);
            return index;
        }
        let index = self.slots.len();
        let block = Box::new(ContextBlock { scratch: ffi::fi_context2::default(), index });
        let block = NonNull::from(Box::leak(block));
        self.slots.push(Slot { block, operation: Some(operation) });
        index
    }

    /// Returns the context of an operation, to be given to the provider.
    pub(crate) fn context(&self, index: usize) -> *mut c_void {
        self.slots[index].block.as_ptr().cast()
    }

    /// Returns the index of the operation whose context the provider reports. `None` for a null context,
    /// which ofi_rxm uses for failures that belong to no operation, and for remote writes.
    ///
    /// # Safety
    /// `context` is null or came from [`Table::context`] of this table.
    pub(crate) unsafe fn index(context: *const c_void) -> Option<usize> {
        let block = context.cast::<ContextBlock>();
        // SAFETY: blocks are freed with the table only; providers write to `scratch` alone.
        (!block.is_null()).then(|| unsafe { (*block).index })
    }

    /// Returns the operation at `index`, if there is one.
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Operation> {
        self.slots.get_mut(index)?.operation.as_mut()
    }

    /// Takes out an operation that the provider is finished with, or has never seen.
    pub(crate) fn remove(&mut self, index: usize) -> Option<Operation> {
        let operation = self.slots.get_mut(index)?.operation.take()?;
        self.free.push(index);
        Some(operation)
    }

    /// Takes out all operations of an endpoint that has been closed.
    pub(crate) fn remove_endpoint(&mut self, endpoint: EndpointId) -> Vec<Operation> {
        let mut removed = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if let Some(operation) = slot.operation.take_if(|it| it.endpoint == endpoint) {
                let reusable = if operation.posted.is_some() { &mut self.stale } else { &mut self.free };
                reusable.push(index);
                removed.push(operation);
            }
        }
        removed
    }

    /// Takes out the operations of an endpoint that the provider has never seen.
    pub(crate) fn remove_queued(&mut self, endpoint: EndpointId) -> Vec<Operation> {
        let mut removed = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let queued = |it: &mut Operation| it.endpoint == endpoint && it.posted.is_none();
            if let Some(operation) = slot.operation.take_if(queued) {
                self.free.push(index);
                removed.push(operation);
            }
        }
        removed
    }

    /// Returns address and buffer of each read of an endpoint that is under way.
    pub(crate) fn posted_reads(&self, endpoint: EndpointId) -> impl Iterator<Item = (u64, &Slice)> {
        let operations = self.slots.iter().filter_map(|slot| slot.operation.as_ref());
        let reads = operations.filter(move |it| it.endpoint == endpoint && it.kind() == OpKind::Read);
        reads.filter_map(|it| Some((it.posted?.address, &it.slice)))
    }

    /// Makes the slots of closed endpoints free, when the completion queue has been seen empty.
    pub(crate) fn queue_is_empty(&mut self) {
        self.free.append(&mut self.stale);
    }

    /// Returns kinds and futures of the operations that `concerned` picks, if the operations have futures.
    pub(crate) fn waiters(&self, concerned: impl Fn(&Operation) -> bool) -> Vec<(OpKind, Rc<Shared>)> {
        let operations = self.slots.iter().filter_map(|slot| slot.operation.as_ref());
        let concerned = operations.filter(|operation| concerned(operation));
        concerned.filter_map(|it| Some((it.kind(), Rc::clone(it.shared.as_ref()?)))).collect()
    }

    /// Returns the number of operations that are queued or under way.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len() - self.stale.len()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        for slot in &self.slots {
            // SAFETY: made by Box; the domain drops its table after the endpoints and the completion
            // queue are closed, so no one else has the pointer.
            drop(unsafe { Box::from_raw(slot.block.as_ptr()) });
        }
    }
}
