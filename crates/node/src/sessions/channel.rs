//! The engine's end of what it shares with one client: its ring, its slots and the bell of both.
//!
//! Engine thread only. Owns the page set of the ring, and the slots once the client has asked for them. The
//! bell is in the engine's epoll set as long as the channel lives.

use std::cell::{OnceCell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use plasmon::shared::EngineChannel;
use rustix::event::epoll;

use super::counting::Seen;
use super::outcomes::Outcomes;
use super::slots::Slots;

/// The engine's end of a client's page set.
pub(crate) struct Channel {
    pub(super) pages: EngineChannel,
    /// The entries that wait for other nodes, and their outcomes.
    pub(super) outcomes: Outcomes,
    /// The client's slots, once it has asked for them.
    pub(super) slots: OnceCell<Rc<Slots>>,
    /// The bell, in the epoll set. The client has the bell too, so closing it here does not remove it from
    /// the set.
    pub(super) bell: Arc<OwnedFd>,
    pub(super) epoll: Rc<OwnedFd>,
    /// The client's own counts when they were last added.
    pub(super) seen: RefCell<Seen>,
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.pages.close();
        // The removal fails only for a descriptor that is not in the set.
        let _ = epoll::delete(&*self.epoll, &self.bell);
    }
}

impl Channel {
    /// Tells the client whether the engine looks at its ring and its slots, and whether it may spin.
    pub(super) fn set_attention(&self, looks: bool, spare: bool) {
        self.pages.set_attention(looks, spare);
        if let Some(slots) = self.slots.get() {
            slots.pages.set_attention(looks, spare);
        }
    }

    /// Whether the client has submitted anything that was not taken yet.
    pub(super) fn has_submissions(&self) -> bool {
        let by_slot = |slots: &Rc<Slots>| slots.pages.has_submissions();
        self.pages.has_submissions() || self.slots.get().is_some_and(by_slot)
    }

    /// Whether the client last waited on this core.
    pub(super) fn is_on_core(&self, core: usize) -> bool {
        let by_slot = |slots: &Rc<Slots>| slots.pages.is_on_core(core);
        self.pages.is_on_core(core) || self.slots.get().is_some_and(by_slot)
    }

    /// Copies the payload of an entry, once. `None` if it reaches beyond the data area.
    pub(super) fn copy<'a>(&self, at: u32, len: usize, into: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        into.resize(len, 0);
        self.pages.payload(at, into).ok()?;
        Some(into)
    }
}
