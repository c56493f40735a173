//! Comparing what comes from another node with the digest that was made when the object was sealed, while
//! the bytes are in the processor's cache. Owns [`Comparison`]. Engine thread only.
//!
//! A digest is computed over the bytes in their order, and reads end in nearly that order. Bytes that
//! come ahead of others are looked at when the others are there.
//!
//! Invariant: every byte of the object is looked at once, after it has come.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use plasmon::digest::Digest;
use plasmon::transfer::Verify;

use crate::kernel::planted::{Bug, is_planted};
use crate::memory::OutOfBounds;
use crate::object::Head;

/// Number of bytes that are copied out at a time. The copy stays in the first cache of the processor.
const COPIED_BYTES: usize = 8 << 10;
/// Number of bytes that are looked at until other work of the engine gets its turn.
pub(super) const TURN_BYTES: u64 = 1 << 20;

/// Whether a get wants its object compared, whatever the setting of the node says. Gets that share
/// a fetch share this value.
pub(super) type Wanted = Rc<Cell<bool>>;

/// Whether an object is compared when it comes. An object without a digest is not.
pub(super) fn is_compared(head: &Head, setting: Verify, wanted: &Wanted) -> bool {
    !is_planted(Bug::NotCompared) && head.digest != 0 && (setting == Verify::Sealed || wanted.get())
}

/// The comparison of one object.
pub(super) struct Comparison(RefCell<State>);

struct State {
    digest: Digest,
    /// Number of bytes from the beginning that were looked at.
    at: u64,
    /// Positions and lengths of bytes that came ahead of others and were not looked at yet.
    ahead: Vec<(u64, u64)>,
}

impl Comparison {
    /// Begins the comparison of an object of which no byte has come yet.
    pub(super) fn begin() -> Self {
        Self(RefCell::new(State { digest: Digest::new(), at: 0, ahead: Vec::new() }))
    }

    /// Takes note that `len` bytes from `at` on have come. `read` copies them out.
    pub(super) fn came(
        &self,
        at: u64,
        len: u64,
        read: impl Fn(u64, &mut [u8]) -> Result<(), OutOfBounds>,
    ) -> Result<(), OutOfBounds> {
        let mut state = self.0.borrow_mut();
        if at != state.at {
            state.ahead.push((at, len));
            return Ok(());
        }
        state.add(len, &read)?;
        while let Some(next) = state.ahead.iter().position(|(at, _)| *at == state.at) {
            let (_, len) = state.ahead.swap_remove(next);
            state.add(len, &read)?;
        }
        Ok(())
    }

    /// Takes the next bytes, which come in order.
    pub(super) fn add(&self, bytes: &[u8]) {
        let mut state = self.0.borrow_mut();
        state.digest.add(bytes);
        state.at += bytes.len() as u64;
    }

    /// Number of bytes from the beginning that were looked at.
    pub(super) fn at(&self) -> u64 {
        self.0.borrow().at
    }

    /// The digest of the bytes that were looked at.
    pub(super) fn found(&self) -> u64 {
        self.0.borrow().digest.value()
    }
}

impl State {
    fn add(
        &mut self,
        len: u64,
        read: &impl Fn(u64, &mut [u8]) -> Result<(), OutOfBounds>,
    ) -> Result<(), OutOfBounds> {
        let (mut copied, end) = ([0; COPIED_BYTES], self.at + len);
        while self.at < end {
            let some = (end - self.at).min(COPIED_BYTES as u64);
            let bytes = &mut copied[..some as usize];
            read(self.at, bytes)?;
            self.digest.add(bytes);
            self.at += some;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_come_out_of_order_have_the_digest_of_the_whole() {
        let object: Vec<u8> = (0..100_000u32).map(|number| (number % 251) as u8).collect();
        let mut whole = Digest::new();
        whole.add(&object);
        let read = |at: u64, into: &mut [u8]| {
            into.copy_from_slice(&object[at as usize..at as usize + into.len()]);
            Ok(())
        };
        let parts = [(0, 10_000), (10_000, 30_000), (40_000, 5), (40_005, 59_995)];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1]] {
            let comparison = Comparison::begin();
            for (at, len) in order.map(|number| parts[number]) {
                comparison.came(at, len, read).expect("inside the object");
            }
            assert_eq!((comparison.at(), comparison.found()), (100_000, whole.value()));
        }
        let comparison = Comparison::begin();
        object.chunks(7001).for_each(|piece| comparison.add(piece));
        assert_eq!(comparison.found(), whole.value());
    }

    #[test]
    fn bytes_behind_a_hole_are_not_looked_at() {
        let comparison = Comparison::begin();
        comparison.came(10, 5, |_, _| panic!("the first bytes are missing")).expect("noted");
        assert_eq!(comparison.at(), 0);
    }
}
