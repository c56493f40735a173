//! Waits for the change of a word of a region. Owns [`Waiters`]. Engine thread only.
//!
//! A wait ends when an operation of this node has changed the word, or when a process that changed it in
//! mapped memory notifies.
//!
//! Invariant: a word is compared in the turn in which an operation changed it. So a value that stays for a
//! moment only ends the wait too.

use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use futures::channel::oneshot;
use plasmon::region::Rights;
use plasmon::text::printable;
use plasmon::{Error, ErrorKind};

use super::region::Region;
use super::words::WORD_BYTES;
use crate::kernel::counted::Counted;

/// Maximum number of waits for words of a region at a time.
const MAX_WAITERS: usize = 4096;

/// Calls that wait for words of a region.
#[derive(Default)]
pub(super) struct Waiters {
    /// Waits by the offset of their word. No list is empty.
    words: BTreeMap<u64, Vec<Waiter>>,
    count: usize,
    /// Number of waits that ever began.
    drawn: u64,
}

struct Waiter {
    number: u64,
    user: u32,
    expected: u64,
    answer: oneshot::Sender<Result<u64, Error>>,
}

impl Waiters {
    /// Ends the waits for words in the range `words` for which `ends` returns an answer, and sends the
    /// answers.
    fn answer(
        &mut self,
        words: impl std::ops::RangeBounds<u64>,
        mut ends: impl FnMut(u64, &Waiter) -> Option<Result<u64, Error>>,
    ) {
        let mut emptied = Vec::new();
        for (offset, waiters) in self.words.range_mut(words) {
            for waiter in std::mem::take(waiters) {
                match ends(*offset, &waiter) {
                    None => waiters.push(waiter),
                    Some(answer) => {
                        self.count -= 1;
                        // The waiting task may have gone.
                        let _ = waiter.answer.send(answer);
                    }
                }
            }
            if waiters.is_empty() {
                emptied.push(*offset);
            }
        }
        emptied.iter().for_each(|offset| _ = self.words.remove(offset));
    }

    fn remove(&mut self, offset: u64, number: u64) {
        let Some(waiters) = self.words.get_mut(&offset) else { return };
        let before = waiters.len();
        waiters.retain(|waiter| waiter.number != number);
        self.count -= before - waiters.len();
        if waiters.is_empty() {
            self.words.remove(&offset);
        }
    }
}

/// A wait under way. Dropping it ends the wait.
struct Waiting {
    region: Rc<Region>,
    offset: u64,
    number: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(waiters) = &mut *self.region.make_rare().waiters.borrow_mut() {
            waiters.remove(self.offset, self.number);
        }
    }
}

impl Region {
    /// Waits until a word has another value than `expected`. Returns the value.
    ///
    /// # Errors
    /// Errors of reading the word; `Busy` if too many calls wait. The wait fails with `Freed` when the region
    /// ends, and with `NotAllowed` when the user may not read the region any more.
    pub(crate) fn wait(
        self: &Rc<Self>,
        user: u32,
        offset: u64,
        expected: u64,
    ) -> Result<impl Future<Output = Result<u64, Error>> + use<>, Error> {
        let memory = self.open(user, Rights::READ)?;
        let value = self.word(&memory, offset)?.load(Ordering::SeqCst);
        let counts = &self.ground.counts;
        counts.waits.set(counts.waits.get() + 1);
        let region = Rc::clone(self);
        let waiting = match value == expected {
            true => Some(self.begin_wait(user, offset, expected)?),
            false => None,
        };
        Ok(async move {
            let Some((_waiting, _counted, answer)) = waiting else { return Ok(value) };
            answer.await.unwrap_or_else(|_| Err(region.gone()))
        })
    }

    fn begin_wait(
        self: &Rc<Self>,
        user: u32,
        offset: u64,
        expected: u64,
    ) -> Result<(Waiting, impl Sized + use<>, oneshot::Receiver<Result<u64, Error>>), Error> {
        let mut waiters = self.make_rare().waiters.borrow_mut();
        let waiters = waiters.get_or_insert_default();
        if waiters.count >= MAX_WAITERS {
            let text = format!(
                "{MAX_WAITERS} calls wait for words of region '{}' already: try again later",
                printable(self.name())
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let (answer, answered) = oneshot::channel();
        let number = waiters.drawn;
        waiters.drawn += 1;
        waiters.count += 1;
        waiters.words.entry(offset).or_default().push(Waiter { number, user, expected, answer });
        let counted = Counted::new(Rc::clone(&self.ground.counts.waiting));
        Ok((Waiting { region: Rc::clone(self), offset, number }, counted, answered))
    }

    /// Ends the waits for words of these bytes, if the words have other values than were expected.
    pub(crate) fn changed(&self, offset: u64, len: u64) {
        let Some(rare) = self.rare() else { return };
        if rare.waiters.borrow().as_ref().is_none_or(|waiters| waiters.count == 0) {
            return;
        }
        let Ok(run) = self.run(0, self.len()) else { return };
        if let Some(waiters) = &mut *rare.waiters.borrow_mut() {
            // A word covers the byte if it begins at most seven bytes before.
            let words = offset.saturating_sub(WORD_BYTES - 1)..offset.saturating_add(len);
            waiters.answer(words, |at, waiter| {
                let value = run.word(at)?.load(Ordering::SeqCst);
                (value != waiter.expected).then_some(Ok(value))
            });
        }
    }

    /// Ends the waits of the users that `whose` selects, with an error.
    pub(super) fn end_waits(&self, whose: impl Fn(u32) -> bool, error: impl Fn() -> Error) {
        let Some(rare) = self.rare() else { return };
        if let Some(waiters) = &mut *rare.waiters.borrow_mut() {
            waiters.answer(.., |_, waiter| whose(waiter.user).then(|| Err(error())));
        }
    }
}
