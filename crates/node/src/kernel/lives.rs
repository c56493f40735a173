//! Lives: the numbers that tell creations of one id apart. Engine thread only.
//!
//! Every object that is created has a life, which tells it from an earlier object of the same id, on this
//! node or another. A life has 64 random bits. Two lives are practically never equal, whatever other nodes
//! and earlier starts of this node drew, and nobody can predict one. Lives are drawn many at a time, so
//! that a put needs no system call for its life.

use std::cell::RefCell;

use super::random;

/// Number of lives that the operating system is asked for at a time.
const LIVES_AT_A_TIME: usize = 64;

/// A stock of lives that were drawn and not given out.
#[derive(Default)]
pub(crate) struct Lives(RefCell<Vec<u64>>);

impl Lives {
    /// Returns a life that was never given out before and is not 0.
    pub(crate) fn draw(&self) -> u64 {
        let mut stock = self.0.borrow_mut();
        loop {
            match stock.pop() {
                Some(0) => {}
                Some(life) => return life,
                None => refill(&mut stock),
            }
        }
    }
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
}
