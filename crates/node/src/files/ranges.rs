//! Locks of ranges of a file: which locks exclude each other. Owns no state. Any thread.
//!
//! Locks of `flock` and of `fcntl` are independent. An owner is a number of a session. Invariant: the ranges
//! of one owner and sort do not overlap.

use plasmon::wire::files::{LockKind, LockRange};

use super::state::Held;

fn is_same_owner(one: &Held, other: &Held) -> bool {
    one.session == other.session
        && one.range.owner == other.range.owner
        && one.range.flock == other.range.flock
}

fn overlap(one: &LockRange, other: &LockRange) -> bool {
    one.start <= other.end && other.start <= one.end
}

/// Returns a lock that excludes the wanted one.
pub(super) fn in_the_way<'a>(held: &'a [Held], wanted: &Held) -> Option<&'a Held> {
    let excludes =
        |one: &Held| wanted.range.kind == LockKind::Exclusive || one.range.kind == LockKind::Exclusive;
    let wants = wanted.range.kind != LockKind::Unlocked;
    held.iter().find(|one| {
        wants
            && one.range.flock == wanted.range.flock
            && !is_same_owner(one, wanted)
            && overlap(&one.range, &wanted.range)
            && excludes(one)
    })
}

/// Sets the lock of an owner for a range, or removes it. Other locks of the owner lose that range.
pub(super) fn set(held: &mut Vec<Held>, wanted: Held) {
    let (start, end) = (wanted.range.start, wanted.range.end);
    let mut rest = Vec::new();
    held.retain(|one| {
        let touched = is_same_owner(one, &wanted) && overlap(&one.range, &wanted.range);
        if touched {
            if one.range.start < start {
                rest.push(Held { range: LockRange { end: start - 1, ..one.range }, ..*one });
            }
            if one.range.end > end {
                rest.push(Held { range: LockRange { start: end + 1, ..one.range }, ..*one });
            }
        }
        !touched
    });
    held.extend(rest);
    if wanted.range.kind != LockKind::Unlocked {
        held.push(wanted);
        join(held, &wanted);
    }
}

/// Joins the last range with ranges of the same owner and kind that touch it.
fn join(held: &mut Vec<Held>, wanted: &Held) {
    let Some(mut whole) = held.pop() else { return };
    held.retain(|one| {
        let range = &one.range;
        let touches = range.start <= whole.range.end.saturating_add(1)
            && whole.range.start <= range.end.saturating_add(1);
        let joins = is_same_owner(one, wanted) && range.kind == wanted.range.kind && touches;
        if joins {
            whole.range.start = whole.range.start.min(range.start);
            whole.range.end = whole.range.end.max(range.end);
        }
        !joins
    });
    held.push(whole);
}

#[cfg(test)]
mod tests {
    use plasmon::wire::Draw;

    use super::*;

    fn held(session: u32, owner: u64, start: u64, end: u64, kind: LockKind) -> Held {
        let range = LockRange { owner, pid: 1, start, end, kind, flock: false };
        Held { session, range }
    }

    #[test]
    fn ranges_are_split_and_joined_as_bytes_are_locked() {
        const LEN: u64 = 24;
        for seed in 0..400 {
            let mut draw = Draw::new(seed);
            let (mut all, mut model) = (Vec::new(), [[None; LEN as usize]; 3]);
            for _ in 0..30 {
                let owner = draw.below(3);
                let start = draw.below(LEN as usize) as u64;
                let end = start + draw.below((LEN - start) as usize) as u64;
                let kind = draw.one(LockKind::ALL);
                let wanted = held(1, owner as u64, start, end, kind);
                let blocks = (start..=end).any(|at| {
                    (0..3).any(|other| {
                        let there: Option<LockKind> = model[other][at as usize];
                        let both = there == Some(LockKind::Exclusive) || kind == LockKind::Exclusive;
                        other != owner && there.is_some() && both && kind != LockKind::Unlocked
                    })
                });
                assert_eq!(in_the_way(&all, &wanted).is_some(), blocks, "seed {seed}");
                if blocks {
                    continue;
                }
                set(&mut all, wanted);
                let now = (kind != LockKind::Unlocked).then_some(kind);
                model[owner][start as usize..=end as usize].fill(now);
                for (owner, bytes) in model.iter().enumerate() {
                    for (at, kind) in bytes.iter().enumerate() {
                        let covers = |one: &&Held| {
                            one.range.owner == owner as u64
                                && (one.range.start..=one.range.end).contains(&(at as u64))
                        };
                        let there: Vec<_> = all.iter().filter(covers).collect();
                        assert!(there.len() <= 1, "ranges of an owner overlap");
                        assert_eq!(there.first().map(|one| one.range.kind), *kind, "seed {seed}");
                    }
                }
            }
            all.iter().for_each(|one| assert!(one.range.start <= one.range.end));
        }
    }

    #[test]
    fn ranges_reach_to_the_end_of_all_files() {
        let mut all = Vec::new();
        set(&mut all, held(1, 1, 0, u64::MAX, LockKind::Exclusive));
        set(&mut all, held(1, 1, 5, u64::MAX, LockKind::Unlocked));
        assert_eq!(all, [held(1, 1, 0, 4, LockKind::Exclusive)]);
        assert_eq!(in_the_way(&all, &held(2, 1, 5, u64::MAX, LockKind::Exclusive)), None);
        assert!(in_the_way(&all, &held(2, 1, 4, 4, LockKind::Shared)).is_some());
    }

    #[test]
    fn the_two_sorts_of_locks_know_nothing_of_each_other() {
        let ranged = held(1, 1, 0, 10, LockKind::Exclusive);
        let whole = Held { range: LockRange { flock: true, ..ranged.range }, session: 2 };
        assert_eq!(in_the_way(&[ranged], &whole), None);
    }
}
