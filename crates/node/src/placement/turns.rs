//! Turns at other nodes: the limit on the objects that this node has one other node move at a time.
//!
//! Owns [`Turns`]. Engine thread only. A move concerns several nodes: one leads it, one gives the object,
//! one takes it. The move has a turn at each of them. A node *stands still* if nothing that it is sent
//! comes through. Such a node ends none of its moves, whose turns at all other nodes would stay taken. So a
//! move that concerns such a node is not counted at any node, and no further move that concerns it begins.
//!
//! Invariant: each node has at most as many moves as turns, apart from the moves that concern a
//! node that stands still.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::{Error, ErrorKind, NodeId};
use tokio::sync::Notify;

use crate::kernel::clock::Clock;
use crate::kernel::random::{HashMap, HashSet};
use crate::net::stands_still;
use crate::transfer::Transfer;

/// Interval at which nodes are checked for standing still.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The turns at all nodes.
pub(super) struct Turns {
    clock: Rc<Clock>,
    /// Number of turns at each node.
    each: usize,
    /// Returns whether a node stands still.
    is_still: Box<dyn Fn(NodeId) -> bool>,
    moves: Rc<Moves>,
}

/// The moves under way.
#[derive(Default)]
struct Moves {
    nodes: RefCell<HashMap<u64, Vec<NodeId>>>,
    drawn: Cell<u64>,
    /// Result of the last look; `None` when it no longer holds.
    seen: RefCell<Option<Seen>>,
    ended: Notify,
}

/// The nodes that stand still, and the number of moves of each other node.
struct Seen {
    at: Instant,
    still: HashSet<NodeId>,
    moving: HashMap<NodeId, usize>,
}

/// A turn at each of some nodes. The turns end when this value is dropped.
pub(crate) struct Turn {
    moves: Rc<Moves>,
    number: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let nodes = self.moves.nodes.borrow_mut().remove(&self.number).unwrap_or_default();
        let mut seen = self.moves.seen.borrow_mut();
        match seen.as_mut().filter(|seen| seen.still.is_empty()) {
            Some(seen) => seen.count(&nodes, |moving| *moving -= 1),
            None => *seen = None,
        }
        self.moves.ended.notify_waiters();
    }
}

impl Seen {
    fn count(&mut self, nodes: &[NodeId], change: impl Fn(&mut usize)) {
        nodes.iter().for_each(|node| change(self.moving.entry(*node).or_default()));
    }
}

impl Turns {
    /// Makes `each` turns at every member.
    pub(super) fn of(transfer: &Transfer, each: usize) -> Self {
        let network = Rc::clone(&transfer.network);
        Self::new(&transfer.kernel.clock, each, move |node| stands_still(&network, node))
    }

    fn new(clock: &Rc<Clock>, each: usize, is_still: impl Fn(NodeId) -> bool + 'static) -> Self {
        Self { clock: Rc::clone(clock), each, is_still: Box::new(is_still), moves: Rc::default() }
    }

    /// Waits for a turn at each of these nodes.
    ///
    /// # Errors
    /// `TimedOut` as soon as one of the nodes stands still.
    pub(super) async fn take(&self, nodes: &[NodeId]) -> Result<Turn, Error> {
        loop {
            if let Some(still) = nodes.iter().find(|node| (self.is_still)(**node)) {
                let text = format!("node {still} stands still: it takes no messages");
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
            if let Some(turn) = self.try_take(nodes) {
                return Ok(turn);
            }
            let due = Some(self.clock.now() + LOOK_INTERVAL);
            self.clock.bounded(due, self.moves.ended.notified()).await;
        }
    }

    fn try_take(&self, nodes: &[NodeId]) -> Option<Turn> {
        self.look();
        let moves = &self.moves;
        let mut seen = moves.seen.borrow_mut();
        let seen = seen.as_mut()?;
        let is_free = |node: &NodeId| seen.moving.get(node).is_none_or(|moving| *moving < self.each);
        if !nodes.iter().all(is_free) {
            return None;
        }
        seen.count(nodes, |moving| *moving += 1);
        let number = moves.drawn.get();
        moves.drawn.set(number + 1);
        moves.nodes.borrow_mut().insert(number, nodes.to_vec());
        Some(Turn { moves: Rc::clone(moves), number })
    }

    /// Looks which nodes stand still, and counts the moves of the others, if the last look was long ago.
    fn look(&self) {
        let now = self.clock.now();
        let mut seen = self.moves.seen.borrow_mut();
        if seen.as_ref().is_some_and(|seen| now < seen.at + LOOK_INTERVAL) {
            return;
        }
        let moves = self.moves.nodes.borrow();
        let nodes: HashSet<_> = moves.values().flatten().copied().collect();
        let still: HashSet<_> = nodes.into_iter().filter(|node| (self.is_still)(*node)).collect();
        let mut found = Seen { at: now, still, moving: HashMap::default() };
        for nodes in moves.values().filter(|nodes| !nodes.iter().any(|node| found.still.contains(node))) {
            nodes.iter().for_each(|node| *found.moving.entry(*node).or_default() += 1);
        }
        *seen = Some(found);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const EACH: usize = 2;

    struct Bench {
        turns: Turns,
        clock: Rc<Clock>,
        now: Rc<Cell<Instant>>,
        still: Rc<Cell<Option<NodeId>>>,
    }

    fn bench() -> Bench {
        let (now, still) = (Rc::new(Cell::new(Instant::now())), Rc::<Cell<Option<NodeId>>>::default());
        let (source, stands) = (Rc::clone(&now), Rc::clone(&still));
        let clock = Clock::with_source(move || source.get(), Duration::ZERO);
        let turns = Turns::new(&clock, EACH, move |node| stands.get() == Some(node));
        Bench { turns, clock, now, still }
    }

    impl Bench {
        /// Takes a turn, if that needs no wait.
        fn take(&self, nodes: &[u8]) -> Option<Result<Turn, Error>> {
            let nodes: Vec<_> = nodes.iter().map(|number| node(*number)).collect();
            self.turns.take(&nodes).now_or_never()
        }

        fn pass(&self, time: Duration) {
            self.now.set(self.now.get() + time);
            self.clock.fire();
        }
    }

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 16])
    }

    #[test]
    fn each_node_has_turns_of_its_own() {
        let bench = bench();
        let take = |nodes: &[u8]| bench.take(nodes).map(|turn| turn.expect("nobody stands still"));
        let first = take(&[1, 2]).expect("it is free");
        let second = take(&[1, 3]).expect("it is free");
        assert!(take(&[1]).is_none() && take(&[2, 1]).is_none());
        let third = take(&[2, 3]).expect("they are free");
        assert!(take(&[2]).is_none());
        drop(first);
        let fourth = take(&[1, 2]).expect("both are free again");
        assert!(take(&[1]).is_none() && take(&[3]).is_none());
        drop((second, third, fourth));
        assert!(take(&[1, 2, 3]).is_some());
    }

    #[test]
    fn who_waits_has_the_next_turn() {
        let bench = bench();
        let nodes = [node(1)];
        let mut taken: Vec<_> = (0..EACH).map(|_| bench.take(&[1])).collect();
        let mut waiting = Box::pin(bench.turns.take(&nodes));
        assert!(waiting.as_mut().now_or_never().is_none());
        taken.pop();
        assert!(waiting.as_mut().now_or_never().is_some_and(|turn| turn.is_ok()));
    }

    #[test]
    fn a_node_that_stands_still_keeps_nothing_but_its_own() {
        let bench = bench();
        let hung: Vec<_> = (0..EACH).map(|_| bench.take(&[1, 2])).collect();
        assert!(hung.iter().all(Option::is_some) && bench.take(&[2]).is_none());
        let nodes = [node(1)];
        let mut waiting = Box::pin(bench.turns.take(&nodes));
        assert!(waiting.as_mut().now_or_never().is_none());
        bench.still.set(Some(node(1)));
        bench.pass(LOOK_INTERVAL);
        let told = waiting.as_mut().now_or_never().expect("it is told").err().expect("there is no turn");
        assert!(told.message().contains(&node(1).to_string()), "{told}");
        assert!(bench.take(&[3, 1]).is_some_and(|turn| turn.is_err()));
        // The other node has all its turns for others.
        let others: Vec<_> = (0..EACH).map(|_| bench.take(&[2, 3])).collect();
        assert!(others.iter().all(|turn| turn.as_ref().is_some_and(Result::is_ok)));
        assert!(bench.take(&[2]).is_none());
        drop(others);
        // When the first goes on, its moves count again.
        bench.still.set(None);
        bench.pass(LOOK_INTERVAL);
        assert!(bench.take(&[2]).is_none());
        drop(hung);
        assert!(bench.take(&[1, 2]).is_some());
    }
}
