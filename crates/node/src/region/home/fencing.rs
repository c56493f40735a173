//! Fences: a write that shows a guard of a lock is refused if a later guard of the lock has written. Owns
//! [`Fences`]. Engine thread only.
//!
//! The holder of a lock may stand still, lose the lock, and go on. Its late writes would destroy bytes of the
//! next holder. So a region keeps the largest token of each lock whose guards it was shown, and refuses
//! smaller tokens (Kleppmann, How to do distributed locking, 2016).
//!
//! Invariant: bytes that a guard writes come to the region before those of any later guard of the lock, or
//! not at all. A write with a later token waits until earlier writes that take several turns are over. An
//! earlier write ends at its next turn.

use std::cell::RefCell;
use std::rc::Rc;

use futures::channel::oneshot;
use plasmon::text::printable;
use plasmon::{Error, ErrorKind, ObjectId};

use super::region::Region;
use crate::guard::Fence;
use crate::region::frames::MAX_FENCES;

/// Guards of locks that a region was shown.
#[derive(Default)]
pub(super) struct Fences {
    seen: RefCell<Vec<Fence>>,
    /// Fences of the fenced writes under way.
    under_way: RefCell<Vec<Fence>>,
    /// Tasks that wait for the end of a fenced write.
    waiting: RefCell<Vec<oneshot::Sender<()>>>,
}

/// A fenced write under way. Dropping this ends the write.
pub(crate) struct Fenced {
    region: Rc<Region>,
    fence: Fence,
}

impl Drop for Fenced {
    fn drop(&mut self) {
        let fences = self.region.fences();
        let mut under_way = fences.under_way.borrow_mut();
        if let Some(at) = under_way.iter().position(|fence| *fence == self.fence) {
            under_way.swap_remove(at);
        }
        drop(under_way);
        // The waiting task may have gone.
        fences.waiting.take().into_iter().for_each(|waiting| _ = waiting.send(()));
    }
}

impl Fenced {
    /// Refuses to go on with the write if a later guard of the lock has been shown.
    ///
    /// # Errors
    /// `Fenced`.
    pub(crate) fn ensure(&self) -> Result<(), Error> {
        self.region.see(self.fence, true)
    }
}

impl Region {
    /// Begins a write that shows a guard. Waits until writes with earlier guards of the lock are over.
    ///
    /// # Errors
    /// `Fenced` if a later guard was shown; `Full` if guards of too many locks were shown.
    pub(crate) async fn begin_fenced(self: &Rc<Self>, fence: Fence) -> Result<Fenced, Error> {
        self.see(fence, false)?;
        self.fences().under_way.borrow_mut().push(fence);
        let fenced = Fenced { region: Rc::clone(self), fence };
        let earlier = |other: &Fence| other.lock == fence.lock && other.token < fence.token;
        while self.fences().under_way.borrow().iter().any(earlier) {
            let (sender, told) = oneshot::channel();
            self.fences().waiting.borrow_mut().push(sender);
            _ = told.await;
            fenced.ensure()?;
        }
        Ok(fenced)
    }

    /// Begins a write that may show a guard. Returns `None` if there is no guard.
    ///
    /// # Errors
    /// As [`Region::begin_fenced`].
    pub(crate) async fn begin_shown(self: &Rc<Self>, fence: Option<Fence>) -> Result<Option<Fenced>, Error> {
        match fence {
            Some(fence) => Ok(Some(self.begin_fenced(fence).await?)),
            None => Ok(None),
        }
    }

    /// Notes a guard that was shown before its write, or during the write (`amid`).
    fn see(&self, fence: Fence, amid: bool) -> Result<(), Error> {
        let mut seen = self.fences().seen.borrow_mut();
        let has_room = seen.len() < MAX_FENCES;
        let name = printable(self.name());
        match seen.iter_mut().find(|seen| seen.lock == fence.lock) {
            Some(last) if last.token > fence.token => {
                let what = if amid { "some of the bytes were" } else { "nothing was" };
                let text = format!(
                    "a later guard of the lock has written to region '{name}': {what} written; lock again"
                );
                Err(Error::new(ErrorKind::Fenced, text))
            }
            Some(last) => {
                last.token = fence.token;
                Ok(())
            }
            None if !has_room => {
                let text = format!(
                    "region '{name}' was shown guards of {MAX_FENCES} locks already, and keeps no more: use \
                     fewer locks for it"
                );
                Err(Error::new(ErrorKind::Full, text))
            }
            None => {
                seen.push(fence);
                Ok(())
            }
        }
    }

    /// Returns the latest guards that the region was shown, for its next home.
    pub(super) fn shown(&self) -> Vec<(ObjectId, u128)> {
        self.seen_fences()
            .map(|fences| fences.seen.borrow().iter().map(|fence| (fence.lock, fence.token)).collect())
            .unwrap_or_default()
    }

    /// Takes over the guards that the region was shown at its former home.
    pub(super) fn set_shown(&self, shown: Vec<(ObjectId, u128)>) {
        if !shown.is_empty() {
            let fences = shown.into_iter().map(|(lock, token)| Fence { lock, token });
            self.fences().seen.replace(fences.collect());
        }
    }
}
