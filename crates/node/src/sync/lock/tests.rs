//! Tests of locks at their home, without a node around them.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

fn node(number: u8) -> NodeId {
    NodeId::from_bytes([number; 16])
}

fn claim(at: u8, number: u64, shared: bool, now: u64) -> Claim {
    Claim {
        node: node(at),
        number,
        shared,
        ttl_ns: 1000 * MS,
        pid: 1,
        uid: 2,
        since: now,
        heard: now,
        at_ns: now,
        eager: false,
        token: 0,
        follows: None,
    }
}

fn lock() -> Lock {
    Lock::new("a".to_owned(), None, 2)
}

/// A lock, and the tokens that it has granted.
struct Bench {
    lock: Lock,
    tokens: u128,
    now: u64,
}

impl Bench {
    fn new() -> Self {
        Self { lock: lock(), tokens: 0, now: 1_000_000 * MS }
    }

    fn want(&mut self, at: u8, number: u64, shared: bool) {
        assert_eq!(self.lock.want(claim(at, number, shared, self.now), false), Ok(None));
    }

    fn release(&mut self, node: NodeId, number: u64, end: End) -> bool {
        self.lock.release(node, number, end, self.now)
    }

    /// Returns the numbers of the calls that are given the lock.
    fn advance(&mut self) -> Vec<u64> {
        let said = self.lock.advance(self.now, || {
            self.tokens += 1;
            self.tokens
        });
        let granted = said.into_iter().map(|said| match said {
            Said::Granted { number, .. } => number,
            Said::Refused { .. } => panic!("nobody is eager"),
        });
        granted.collect()
    }
}

#[test]
fn one_after_the_other_gets_it() {
    let mut bench = Bench::new();
    for number in 1..=3 {
        bench.want(number as u8, number, false);
    }
    assert_eq!(bench.advance(), [1]);
    assert!(bench.advance().is_empty());
    assert!(!bench.release(node(1), 2, End::Unlocked), "it is another node's");
    assert!(bench.release(node(1), 1, End::Unlocked));
    assert_eq!(bench.advance(), [2]);
    assert!(bench.release(node(3), 3, End::Unlocked), "a wait is withdrawn");
    assert!(bench.release(node(2), 2, End::Unlocked));
    assert!(bench.advance().is_empty());
    assert!(bench.lock.is_idle());
}

#[test]
fn readers_share_it_and_a_writer_that_waits_stops_later_ones() {
    let mut bench = Bench::new();
    bench.want(1, 1, true);
    bench.want(2, 2, true);
    assert_eq!(bench.advance(), [1, 2]);
    bench.want(3, 3, false);
    bench.want(4, 4, true);
    assert!(bench.advance().is_empty());
    bench.release(node(1), 1, End::Unlocked);
    assert!(bench.advance().is_empty());
    bench.release(node(2), 2, End::Unlocked);
    assert_eq!(bench.advance(), [3]);
    bench.release(node(3), 3, End::Unlocked);
    assert_eq!(bench.advance(), [4]);
}

#[test]
fn a_host_hands_over_within_itself_for_a_while() {
    let mut bench = Bench::new();
    bench.want(1, 1, false);
    bench.want(2, 2, false);
    for number in 10..30 {
        bench.want(1, number, false);
    }
    let mut order: Vec<u64> = Vec::new();
    for _ in 0..11 {
        let granted = bench.advance();
        let at = if granted == [2] { 2 } else { 1 };
        order.extend(&granted);
        bench.release(node(at), granted[0], End::Unlocked);
    }
    assert_eq!(order, [1, 10, 11, 12, 13, 14, 15, 16, 17, 2, 18]);
    // After some time it is the turn of other nodes.
    bench.want(2, 3, false);
    let granted = bench.advance();
    assert_eq!(granted, [19]);
    bench.release(node(1), 19, End::Unlocked);
    bench.now += 6 * MS;
    bench.want(3, 4, false);
    for _ in 20..30 {
        let granted = bench.advance();
        bench.release(node(1), granted[0], End::Unlocked);
    }
    assert_eq!(bench.advance(), [3]);
}

#[test]
fn who_does_not_wait_is_refused() {
    let mut bench = Bench::new();
    bench.want(1, 1, false);
    bench.advance();
    let eager = Claim { eager: true, ..claim(2, 2, false, bench.now) };
    bench.lock.want(eager, false).expect("room");
    let said = bench.lock.advance(bench.now, || 9);
    let [Said::Refused { number: 2, error, .. }] = &said[..] else { panic!("{said:?}") };
    assert_eq!(error.kind(), ErrorKind::Busy);
    bench.release(node(1), 1, End::Unlocked);
    assert!(bench.lock.is_idle());
}

#[test]
fn what_died_or_is_not_heard_of_leaves_the_lock_abandoned() {
    let mut bench = Bench::new();
    bench.want(1, 1, false);
    bench.want(2, 2, false);
    bench.advance();
    bench.now += 1500 * MS;
    assert_eq!(bench.lock.hear(node(2), 2, 5, bench.now), Heard::Waits);
    assert!(!bench.lock.drop_late(bench.now), "the margin is not over");
    bench.now += 600 * MS;
    assert!(bench.lock.drop_late(bench.now));
    let said = bench.lock.advance(bench.now, || 9);
    let granted = Said::Granted { node: node(2), number: 2, at_ns: 5, token: 9, abandoned: true };
    assert_eq!(said, [granted]);
    // A call that asks again has not heard of the grant, so it is told all of it again.
    let again = Said::Granted { node: node(2), number: 2, at_ns: 7, token: 9, abandoned: true };
    assert_eq!(bench.lock.hear(node(2), 2, 7, bench.now), Heard::Holds(again));
    assert!(bench.lock.drop_nodes(&[node(2)], true, bench.now));
    assert_eq!(bench.lock.abandoned.map(|by| (by.node, by.token, by.at)), Some((node(2), 9, bench.now)));
    assert!(bench.lock.is_idle());
}

#[test]
fn a_grant_that_nobody_took_leaves_the_lock_as_it_was() {
    let mut bench = Bench::new();
    for (number, end) in [(1, End::Lost), (2, End::Untaken), (3, End::Unlocked)] {
        bench.want(number as u8, number, false);
        assert_eq!(bench.advance(), [number]);
        assert!(bench.release(node(number as u8), number, end));
        let by = bench.lock.abandoned.map(|by| by.node);
        assert_eq!(by, (end != End::Unlocked).then_some(node(1)), "after {number}");
    }
}

#[test]
fn who_is_told_of_the_holder_learns_whether_it_is_the_own_process() {
    let mut bench = Bench::new();
    bench.want(1, 1, true);
    bench.advance();
    bench.now += 2500 * MS;
    let held = bench.lock.holder(bench.now);
    assert_eq!(said_of(held.clone(), (node(1), 1)), "this process (1) has held it for 2.5 s");
    let theirs = format!("process 1 of user 2 on node {} has held it for 2.5 s", node(1));
    assert_eq!(said_of(held.clone(), (node(2), 1)), theirs);
    assert_eq!(said_of((held.0, 3), (node(1), 7)), format!("{theirs}, and 2 more share it"));
}

#[test]
fn those_who_waited_at_a_former_home_keep_their_order() {
    let mut bench = Bench::new();
    let again = |at: u8, number, since| Claim { since, ..claim(at, number, false, 0) };
    bench.lock.want(again(1, 1, 30), true).expect("room");
    bench.lock.want(again(2, 2, 10), true).expect("room");
    bench.lock.want(again(3, 3, 20), true).expect("room");
    let mut order: Vec<u64> = Vec::new();
    for _ in 0..3 {
        let granted = bench.advance();
        bench.release(node(granted[0] as u8), granted[0], End::Unlocked);
        order.extend(granted);
    }
    assert_eq!(order, [2, 3, 1]);
}

#[test]
fn too_many_waits_are_refused() {
    let mut bench = Bench::new();
    for number in 0..MAX_WAITING as u64 {
        bench.want(1, number, false);
    }
    let refused = bench.lock.want(claim(2, 1, false, bench.now), false).expect_err("full");
    assert_eq!(refused.kind(), ErrorKind::Full);
    assert_eq!(bench.lock.want(claim(1, 5, false, bench.now), false), Ok(None), "it waits already");
}

proptest! {
    #[test]
    fn one_holds_it_or_all_share_it_and_tokens_grow(
        acts in prop::collection::vec((0u8..4, 0u64..12, any::<bool>(), 0u8..4), 1..200),
    ) {
        let mut bench = Bench::new();
        let mut last = 0;
        for (at, number, shared, act) in acts {
            bench.now += u64::from(at) * 2 * MS;
            match act {
                0 | 1 => _ = bench.lock.want(claim(at, number, shared, bench.now), false),
                2 => _ = bench.release(node(at), number, if shared { End::Lost } else { End::Unlocked }),
                _ => _ = bench.lock.drop_nodes(&[node(at)], shared, bench.now),
            }
            for said in bench.lock.advance(bench.now, || { bench.tokens += 1; bench.tokens }) {
                let Said::Granted { token, .. } = said else { panic!("nobody is eager") };
                prop_assert!(token > last);
                last = token;
            }
            let holders = bench.lock.holders();
            prop_assert!(holders.len() <= 1 || holders.iter().all(|holder| holder.shared));
            prop_assert!(!holders.is_empty() || bench.lock.waiting.is_empty(), "nobody waits for nothing");
        }
    }
}
