//! Memory that a client has borrowed from this node, or has lent to it.
//!
//! Engine thread only. Owns the memory, and the last get into it. Invariant: memory of the arena counts
//! against the quota of its user until [`Lent::uncount`].

use std::rc::Rc;

use crate::kernel::ClientKey;
use crate::memory::Extent;
use crate::net::registrations::Adopted;
use crate::store::Store;
use crate::transfer::Given;

/// Memory that a client works in.
pub(crate) enum Lent {
    /// Memory of the arena.
    Arena {
        extent: Rc<Extent>,
        /// The user whose quota the memory counts against.
        uid: u32,
        private: bool,
        /// The last get into the memory, which may not be over.
        given: Option<Rc<Given>>,
    },
    /// The client's own memory.
    Own { adopted: Rc<Adopted>, given: Option<Rc<Given>> },
}

impl Lent {
    /// Counts the memory no longer against its client's quotas.
    pub(crate) fn uncount(&self, store: &Store, client: ClientKey) {
        if let Self::Arena { extent, uid, .. } = self {
            store.quotas.borrow_mut().subtract(*uid, client, extent.len());
        }
    }

    pub(super) fn last(&mut self) -> &mut Option<Rc<Given>> {
        match self {
            Self::Arena { given, .. } | Self::Own { given, .. } => given,
        }
    }
}
