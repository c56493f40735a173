//! Tests of fenced writes at a region's home. Each test has a node of its own. Any thread.

use plasmon::sync::lock_id;
use plasmon::{ErrorKind, ObjectId};

use super::*;
use crate::guard::Fence;
use crate::region::frames::MAX_FENCES;

fn lock(name: &str) -> ObjectId {
    lock_id(None, name)
}

fn fence(token: u128) -> Fence {
    Fence { lock: lock("a"), token }
}

impl Bench {
    /// Begins a fenced write. Returns the kind of the error if the write is refused.
    fn shown(&mut self, region: &Rc<Region>, fence: Fence) -> Result<crate::region::home::Fenced, ErrorKind> {
        let region = Rc::clone(region);
        self.run(async move { region.begin_fenced(fence).await.map_err(|error| error.kind()) })
    }
}

#[test]
fn a_region_that_was_shown_a_later_guard_refuses_earlier_ones() {
    let mut bench = bench();
    let region = bench.make("counter", 64);
    for token in [5, 5, 7] {
        bench.shown(&region, fence(token)).expect("none is later");
    }
    assert_eq!(bench.shown(&region, fence(6)).err(), Some(ErrorKind::Fenced));
    let other = Fence { lock: lock("b"), token: 1 };
    bench.shown(&region, other).expect("it is another lock's");
    assert_eq!(region.parted().shown, [(lock("a"), 7), (lock("b"), 1)]);
}

#[test]
fn a_later_write_waits_until_the_earlier_one_has_ended() {
    let mut bench = bench();
    let region = bench.make("counter", 64);
    let first = bench.shown(&region, fence(5)).expect("none is later");
    assert_eq!(first.ensure(), Ok(()));
    let later = Rc::clone(&region);
    let mut later = bench.begin(async move { later.begin_fenced(fence(6)).await.is_ok() });
    bench.turn();
    assert_eq!(later.try_recv(), Ok(None), "the first is under way");
    assert_eq!(first.ensure().expect_err("a later one waits").kind(), ErrorKind::Fenced);
    drop(first);
    assert!(bench.end(later));
}

#[test]
fn guards_of_too_many_locks_are_refused() {
    let mut bench = bench();
    let region = bench.make("counter", 64);
    for number in 0..MAX_FENCES {
        let one = Fence { lock: lock(&number.to_string()), token: 1 };
        bench.shown(&region, one).expect("there is room");
    }
    assert_eq!(bench.shown(&region, fence(1)).err(), Some(ErrorKind::Full));
}
