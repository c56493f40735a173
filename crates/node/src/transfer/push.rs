//! *push*: the holder writes the object to a window of its asker's, with the answer behind the write. The
//! object comes in one round trip, with one copy at the asker. Owns [`Pushes`]. Engine thread only.
//!
//! The holder keeps the slots that it wrote to until the asker releases them by the number of its
//! request, as with a lease. The asker copies the bytes to where they belong, and releases the slots in
//! any case: also if no get waits for the object any more.
//!
//! Invariant: bytes are taken only as an answer of the holder for which the window was made, and only if
//! all of them have come. Slots that are not released within the time of a lease are not used again.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use plasmon::NodeId;

use super::failure::Failure;
use super::landing::Landing;
use super::lease::LEASE;
use super::record::Trace;
use super::written::{Come, Written, come, write_to_window};
use crate::directory::news::News;
use crate::kernel::random::HashMap;
use crate::memory::Run;
use crate::net::frame::{Envelope, Location, Message, WindowPlace};
use crate::net::windows::PUSHED_BYTES_MAX;
use crate::object::{Head, Stamp};
use crate::transfer::Transfer;

/// Number of requests whose slots are released before the holder is told at once: half a window of the
/// longest objects. If there are fewer, the holder is told with the next fetch, or some time later.
const RELEASED_AT_ONCE: usize = 4;

/// Writes to windows of peers that the peers have not released yet.
#[derive(Default)]
pub(super) struct Pushes {
    /// Objects that were written and are not released, by the asker and its request.
    under_way: RefCell<HashMap<(NodeId, u64), Pushing>>,
}

/// An object that was written to a window.
struct Pushing {
    written: Written,
    until: Instant,
}

impl Pushes {
    /// Whether an object was pushed for this request already.
    pub(super) fn has(&self, asked: &Envelope) -> bool {
        self.under_way.borrow().contains_key(&(asked.reply_to, asked.request))
    }

    /// Number of objects that were written and are not released.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> usize {
        self.under_way.borrow().len()
    }

    /// Returns a node that has not released the bytes that were written to its window.
    #[cfg(test)]
    pub(super) fn any_owner(&self) -> Option<NodeId> {
        self.under_way.borrow().keys().map(|(owner, _)| *owner).min()
    }

    /// Takes back the slots that their owner no longer needs.
    pub(super) fn release(&self, owner: NodeId, requests: &[u64]) {
        for request in requests {
            let pushing = self.under_way.borrow_mut().remove(&(owner, *request));
            if let Some(pushing) = pushing {
                pushing.written.release();
            }
        }
    }

    /// Gives up the slots whose write has failed, and those whose owner is silent.
    pub(super) fn expire(&self, now: Instant) {
        let over = |pushing: &Pushing| pushing.until <= now || pushing.written.has_failed();
        self.under_way.borrow_mut().retain(|_, pushing| !over(pushing));
    }

    /// Forgets the objects that were pushed to nodes that have gone.
    pub(super) fn forget(&self, gone: &[NodeId]) {
        self.under_way.borrow_mut().retain(|(owner, _), _| !gone.contains(owner));
    }
}

/// An object that has come to a window of this node. When this value is dropped, the object's slots
/// are released.
pub(super) struct Pushed {
    news: Rc<News>,
    come: Option<Come>,
    holder: NodeId,
    request: u64,
}

impl Pushed {
    /// Copies as many bytes to a landing as this keeps.
    pub(super) fn copy_to(&self, landing: &Landing) -> Result<(), Failure> {
        let copied = self.come.as_ref().map_or(Ok(0), |come| come.copy_to(landing))?;
        landing.came(0, copied).map_err(|error| Failure::Holder(error.to_string()))
    }
}

impl Drop for Pushed {
    fn drop(&mut self) {
        drop(self.come.take());
        if self.news.release_soon(self.holder, self.request) >= RELEASED_AT_ONCE {
            self.news.release_now(self.holder);
        }
    }
}

impl Transfer {
    /// Makes the holder's answer to a fetch or a probe: the first bytes of a run, as many as an object with
    /// this head has, are written to the asker's window. `lies` says where the asker may read the object
    /// later. `None` if the asker has no room for the bytes. The write owns `owner` until it is over.
    pub(super) fn push(
        &self,
        asked: &Envelope,
        head: &Head,
        (run, owner): (&Run, Rc<dyn Any>),
        lies: impl FnOnce() -> (Vec<Location>, Option<Stamp>),
    ) -> Option<Message> {
        let written = write_to_window(self, asked.reply_to, (run, head.len()), 0, owner)?;
        let WindowPlace { window, first, mark } = written.place();
        let until = self.kernel.clock.now() + LEASE;
        let key = (asked.reply_to, asked.request);
        self.pushes.under_way.borrow_mut().insert(key, Pushing { written, until });
        let (pieces, stamp) = lies();
        Some(Message::Pushed { head: head.clone(), window, first, mark, pieces, stamp })
    }

    /// Takes over an object that was pushed to this node, whether or not it is still wanted.
    ///
    /// # Errors
    /// When there is no such window or place, or not all bytes have come.
    pub(super) fn pushed(&self, from: NodeId, request: u64, answer: &Message) -> Result<Pushed, Failure> {
        let Message::Pushed { head, window, first, mark, .. } = answer else {
            return Err(Failure::Holder("an answer of the wrong kind".into()));
        };
        let place = WindowPlace { window: *window, first: *first, mark: *mark };
        let come = Some(come(self, from, place, head.len())?);
        Ok(Pushed { news: Rc::clone(&self.directory.news), come, holder: from, request })
    }

    /// Gives back the lease or the slots of an answer that no get takes.
    pub(super) fn decline(&self, answer: &Envelope) {
        if let Message::Pushed { .. } = answer.message {
            // The slots of a push that cannot be taken over are not used again either.
            drop(self.pushed(answer.from, answer.request, &answer.message));
        } else if answer.message.comes_with_a_lease() {
            self.network.tell(answer.from, Message::Release { requests: vec![answer.request] });
        }
    }

    /// Takes an object that was pushed to this node.
    pub(super) async fn take_pushed(
        self: &Rc<Self>,
        head: Head,
        pushed: Pushed,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        if head.id != trace.id || head.len() > u64::from(PUSHED_BYTES_MAX) {
            return Err(Failure::Holder("it sent another object".into()));
        }
        let landing = self.landing(&head, &trace.target, &trace.wanted).await?;
        trace.allocated();
        let len = landing.len();
        pushed.copy_to(&landing)?;
        drop(pushed);
        trace.copied(len);
        trace.moved();
        self.records.count_pushed(len);
        self.land(head, landing, &trace.wanted).await
    }
}
