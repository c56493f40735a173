//! Lives: the numbers that tell creations of one id apart, and which of them was later. Engine thread only.
//!
//! Every object that is created has a life, which tells it from an earlier object of the same id, on this
//! node or another. A life has the last 16 bits of an *epoch* and 48 random bits. Two lives of one id are
//! practically never equal, whatever other nodes and earlier starts of this node drew, and nobody can predict
//! one. Random bits are drawn many at a time, so that a put needs no system call for its life.
//!
//! The epoch is the latest of which the node has heard when it creates the object. An id that is taken is
//! created anew only where no member holds it, so after the node that holds it has gone, in a later epoch.
//! Lives of one id that are there at the same time therefore have different epochs, and the later epoch is
//! that of the later creation. Epochs wrap: the order is right for lives that lie less than 32,768 epochs
//! apart. Lives of a cluster that was started again, or of a release before this order, are in any order.
//! With etcd all lives are of epoch 0.
//!
//! An object that takes the place of another gets a *successor* of its life: a life of a later epoch, or else
//! one whose random bits are a little greater, by some 1,000 at most. Two lives that were drawn independently
//! are hardly ever that near to each other, so a life that is less than 2^32 greater than another of its
//! epoch is taken for its successor, and is later. Other lives of one epoch have no order. Nodes that give
//! one life a successor at the same time choose among different numbers, by their places in the view.

use std::cell::{Cell, RefCell};

use plasmon::Version;

use super::random;

/// Number of lives for which the operating system is asked at a time.
const LIVES_AT_A_TIME: usize = 64;
/// Number of bits of a life beside its epoch.
const RANDOM_BITS: u32 = Version::RANDOM_BITS;
/// Number of these bits that are drawn: the upper half of the numbers is left to successors.
const DRAWN_BITS: u32 = RANDOM_BITS - 1;
/// Greatest distance between a life and its direct successor of the same epoch, among fewer nodes.
const STEP: u64 = 1 << 10;
const RANDOM_MASK: u64 = (1 << RANDOM_BITS) - 1;

/// A stock of random bits that were not given out, and the epoch of what is created now.
#[derive(Default)]
pub(crate) struct Lives {
    stock: RefCell<Vec<u64>>,
    epoch: Cell<u64>,
    /// The place of this node among the nodes of its view, and their number.
    place: Cell<(u64, u64)>,
    /// Number of successors that this node has given lives of its epoch.
    steps: Cell<u64>,
}

impl Lives {
    /// Notes that the cluster has come to an epoch, or a later one.
    pub(crate) fn note_epoch(&self, epoch: u64) {
        self.epoch.set(self.epoch.get().max(epoch));
    }

    /// Notes the place of this node among the nodes of its view, and their number.
    pub(crate) fn note_place(&self, place: usize, nodes: usize) {
        self.place.set((place as u64, nodes as u64));
    }

    /// Returns a life for an object that takes the place of one of this life, and is later. No other node of
    /// this view, and no other of the last calls of this node, gives the same.
    pub(crate) fn successor(&self, of: u64) -> u64 {
        let drawn = self.draw();
        if epochs_between(drawn, of) > 0 {
            return drawn;
        }
        let (epoch, random) = (of >> RANDOM_BITS, of & RANDOM_MASK);
        let ((place, nodes), steps) = (self.place.get(), self.steps.get());
        self.steps.set(steps.wrapping_add(1));
        let nodes = nodes.max(1);
        let step = 1 + place + nodes * (steps % (STEP / nodes).max(1));
        epoch << RANDOM_BITS | (random + step) & RANDOM_MASK
    }

    /// Returns a life that was never given out before and is not 0.
    pub(crate) fn draw(&self) -> u64 {
        let mut stock = self.stock.borrow_mut();
        loop {
            match stock.pop().map(|drawn| drawn >> (u64::BITS - DRAWN_BITS)) {
                Some(0) => {}
                Some(random) => return self.epoch.get() << RANDOM_BITS | random,
                None => refill(&mut stock),
            }
        }
    }
}

/// Whether the object of a life was certainly created after that of another life of the same id.
pub(crate) fn is_later(life: u64, than: u64) -> bool {
    Version::from_number(life).is_later(Version::from_number(than))
}

/// Number of epochs from a life to a later one, negative for an earlier one.
fn epochs_between(life: u64, than: u64) -> i16 {
    Version::from_number(life).epochs_since(Version::from_number(than))
}

fn refill(stock: &mut Vec<u64>) {
    let mut bytes = [[0; 8]; LIVES_AT_A_TIME];
    random::fill(bytes.as_flattened_mut());
    stock.extend(bytes.map(u64::from_le_bytes));
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_life_is_drawn_twice_by_any_node() {
        let nodes = [Lives::default(), Lives::default()];
        let drawn = || nodes.iter().flat_map(|lives| (0..10 * LIVES_AT_A_TIME).map(|_| lives.draw()));
        let all: Vec<u64> = drawn().collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        assert!(!all.contains(&0));
    }

    #[test]
    fn a_life_of_a_later_epoch_is_later_also_where_epochs_wrap() {
        let lives = Lives::default();
        let drawn = [7, 8, 40_000, 65_535, 65_536, 65_540].map(|epoch| {
            lives.note_epoch(epoch);
            (epoch, lives.draw())
        });
        for (early, late) in drawn.iter().flat_map(|one| drawn.iter().map(move |other| (one, other))) {
            let is_near = late.0.abs_diff(early.0) < 1 << 15;
            assert!(!is_near || is_later(late.1, early.1) == (late.0 > early.0), "{early:?} {late:?}");
        }
        lives.note_epoch(1);
        let again = lives.draw();
        assert!(epochs_between(drawn[5].1, again) == 0, "an epoch does not go back");
    }

    #[test]
    fn a_life_gets_many_different_successors_from_all_nodes_at_once() {
        for nodes in [1, 3, 7, 1024, 3000] {
            let first = Lives::default().draw();
            let each = (STEP as usize / nodes).max(1);
            let given = (0..nodes).flat_map(|place| {
                let lives = Lives::default();
                lives.note_place(place, nodes);
                (0..each).map(|_| lives.successor(first)).collect::<Vec<_>>()
            });
            let given: HashSet<_> = given.collect();
            assert_eq!(given.len(), nodes * each, "{nodes} nodes");
            assert!(given.iter().all(|life| is_later(*life, first)));
        }
    }

    #[test]
    fn a_successor_is_later_also_within_an_epoch_and_others_are_not() {
        let lives = Lives::default();
        for epoch in [0, 0, 3, 70_000] {
            lives.note_epoch(epoch);
            let first = lives.draw();
            let mut last = first;
            for _ in 0..10_000 {
                let next = lives.successor(last);
                assert!(next != 0 && is_later(next, last) && !is_later(last, next), "{last:x} {next:x}");
                assert!(is_later(next, first), "{first:x} {next:x}");
                last = next;
            }
        }
        let (early, late) = (lives.successor(9), Lives::default());
        assert!(is_later(early, 9), "a later epoch comes before a greater number");
        assert!(
            is_later(late.successor(early), early),
            "a node that is behind in epochs goes on from the life"
        );
        let top = u64::MAX;
        assert!(is_later(late.successor(top), top), "numbers wrap within their epoch");
        let independent = (0..1000).filter(|_| is_later(late.draw(), late.draw())).count();
        assert!(independent < 10, "lives that were drawn have no order: {independent}");
    }
}
