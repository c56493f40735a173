//! What the directory says of what it was told.

use std::collections::HashSet;

use plasmon::Protocol;

use super::*;

const A: NodeId = NodeId::from_bytes([1; 16]);
const B: NodeId = NodeId::from_bytes([2; 16]);
const C: NodeId = NodeId::from_bytes([3; 16]);

fn waiter(node: NodeId) -> Waiter {
    Waiter { node, request: 7, tenant: 0, wish: Wish { protocol: Protocol::Auto, eager_max: 0 } }
}

fn primary(id: ObjectId, life: u64) -> Holding {
    Holding { id, role: Role::Primary, copies: 0, life, owner: None }
}

fn cached(id: ObjectId, life: u64) -> Holding {
    Holding { role: Role::Cached, ..primary(id, life) }
}

fn new() -> (Directory, ObjectId, Instant) {
    (Directory::default(), ObjectId::random(), Instant::now())
}

/// Has all of a directory follow the members.
fn follow(directory: &mut Directory, kept: bool, alive: &[NodeId], now: Instant) -> Vec<(ObjectId, Waiter)> {
    let mut lost = directory.follow(move |_| kept, alive.iter().copied().collect(), now);
    lost.extend(directory.finish());
    lost
}

fn forgotten() -> Deletion {
    Deletion::Forgotten { holders: vec![(A, 1)], lives: vec![1] }
}

#[test]
fn a_waiter_is_told_by_the_publication() {
    let (mut directory, id, now) = new();
    assert_eq!(directory.fetch(id, waiter(B), &[], now), Lookup::Waiting);
    let again = Waiter { request: 8, ..waiter(B) };
    assert_eq!(directory.fetch(id, again, &[], now), Lookup::Waiting, "asking again adds nobody");
    assert_eq!(directory.publish(A, primary(id, 1), now), Published::Welcome(vec![again]));
    assert_eq!(directory.fetch(id, waiter(B), &[], now), Lookup::Holder(A, vec![]));
    assert_eq!(directory.fetch(id, waiter(B), &[A], now), Lookup::Waiting, "its only holder failed it");
    assert_eq!(directory.publish(C, cached(id, 1), now), Published::Welcome(vec![waiter(B)]));
}

#[test]
fn holders_take_turns() {
    let (mut directory, id, now) = new();
    directory.publish(A, primary(id, 1), now);
    directory.publish(B, cached(id, 1), now);
    let asked: HashSet<_> = (0..2)
        .map(|_| match directory.fetch(id, waiter(C), &[], now) {
            Lookup::Holder(node, _) => node,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(asked, HashSet::from([A, B]));
    assert_eq!(directory.fetch(id, waiter(A), &[], now), Lookup::Holder(B, vec![]), "never itself");
}

#[test]
fn the_death_of_the_last_holder_is_a_loss() {
    let (mut directory, id, now) = new();
    directory.publish(A, primary(id, 1), now);
    assert_eq!(directory.fetch(id, waiter(C), &[A], now), Lookup::Waiting);
    assert_eq!(follow(&mut directory, true, &[B, C], now), vec![(id, waiter(C))]);
    assert_eq!(directory.fetch(id, waiter(C), &[], now), Lookup::Lost);
    assert!(!directory.knows(&id, 0));
    assert_eq!(directory.publish(C, primary(id, 1), now), Published::Welcome(vec![]), "found again");
    assert!(directory.knows(&id, 0));
}

#[test]
fn an_object_without_a_primary_gets_one_however_it_lost_it() {
    let (mut directory, id, now) = new();
    directory.publish(A, primary(id, 1), now);
    directory.publish(B, cached(id, 1), now);
    directory.publish(C, cached(id, 1), now);
    assert_eq!(directory.expire(now), vec![]);
    follow(&mut directory, true, &[B, C], now);
    assert_eq!(directory.expire(now), vec![], "a primary may be about to publish itself");
    let now = now + ORPHAN;
    assert_eq!(directory.expire(now), vec![(B, id)]);
    directory.evicted(B, &id, now);
    assert_eq!(directory.expire(now), vec![(C, id)], "the heir had gone");
    assert_eq!(directory.expire(now), vec![(C, id)], "until it says that it is");
    directory.publish(C, primary(id, 1), now);
    assert_eq!(directory.expire(now), vec![]);
}

#[test]
fn news_of_a_former_life_do_not_touch_the_present_one() {
    let (mut directory, id, now) = new();
    directory.publish(A, primary(id, 1), now);
    assert_eq!(directory.delete(id, 0, now), forgotten());
    assert_eq!(directory.delete(id, 0, now), Deletion::Unknown);
    assert!(directory.deleted(&id));
    assert_eq!(directory.publish(B, cached(id, 1), now), Published::Stale, "its fetch was under way");
    assert_eq!(directory.publish(A, primary(id, 1), now), Published::Stale, "it was away for the deletion");
    assert_eq!(directory.publish(A, primary(id, 2), now), Published::Welcome(vec![]));
    directory.bury(id, 1, now);
    assert!(directory.knows(&id, 0), "a late order to bury the former life");
    directory.expire(now + TOMBSTONE);
    assert_eq!(directory.publish(B, cached(id, 1), now), Published::Stale, "the primary knows better");
    assert_eq!(directory.fetch(id, waiter(C), &[], now), Lookup::Holder(A, vec![]));
}

#[test]
fn a_publication_that_a_deletion_overtook_leaves_nothing() {
    let (mut directory, id, now) = new();
    assert_eq!(directory.delete(id, 0, now), Deletion::Unknown);
    directory.publish(A, primary(id, 1), now);
    directory.dropped(A, id, 0, now);
    assert_eq!(directory.len(), 0, "deleted, not lost");
    directory.publish(A, cached(id, 1), now);
    directory.evicted(A, &id, now);
    assert_eq!(directory.fetch(id, waiter(C), &[], now), Lookup::Lost, "nobody deleted it");
}

#[test]
fn a_deletion_reaches_holders_that_are_away() {
    let (mut directory, id, now) = new();
    directory.publish(A, Holding { owner: Some(7), ..primary(id, 1) }, now);
    follow(&mut directory, true, &[B, C], now);
    assert_eq!(directory.delete(id, 8, now), Deletion::NotAllowed, "lost, and still private");
    assert_eq!(directory.delete(id, 7, now), Deletion::Forgotten { holders: vec![], lives: vec![1] });
    assert_eq!(directory.publish(A, primary(id, 1), now), Published::Stale);
}

#[test]
fn a_private_object_is_its_owners_alone() {
    let (mut directory, id, now) = new();
    directory.publish(A, Holding { owner: Some(7), ..primary(id, 1) }, now);
    assert!(directory.knows(&id, 7) && !directory.knows(&id, 8));
    assert_eq!(directory.delete(id, 8, now), Deletion::NotAllowed);
    assert_eq!(directory.delete(id, 7, now), forgotten());
}

#[test]
fn waiters_end_by_forgetting_expiry_and_moved_shards() {
    let (mut directory, id, now) = new();
    directory.fetch(id, waiter(B), &[], now);
    directory.forget(&id, B, 7);
    assert!(directory.waiters.is_empty());
    directory.fetch(id, waiter(B), &[], now);
    directory.expire(now + WAITER);
    assert!(directory.waiters.is_empty());
    directory.fetch(id, waiter(B), &[], now);
    directory.publish(A, primary(ObjectId::random(), 1), now);
    follow(&mut directory, false, &[A, B, C], now);
    assert!(directory.waiters.is_empty() && directory.len() == 0);
}

#[test]
fn whoever_asks_before_all_entries_have_followed_hears_nothing_of_the_dead() {
    let (mut directory, _, now) = new();
    let (gone, left, again, waited) =
        (ObjectId::random(), ObjectId::random(), ObjectId::random(), ObjectId::random());
    for id in [gone, left, again, waited] {
        directory.publish(A, primary(id, 1), now);
    }
    directory.publish(B, cached(left, 1), now);
    directory.fetch(waited, waiter(C), &[A], now);
    assert_eq!(directory.follow(|_| true, HashSet::from([B, C]), now), []);
    assert_eq!(directory.fetch(gone, waiter(C), &[], now), Lookup::Lost);
    assert_eq!(directory.fetch(left, waiter(C), &[], now), Lookup::Holder(B, vec![]));
    assert_eq!(directory.holders(&left, 0), [(B, Role::Cached)]);
    assert_eq!(directory.publish(C, primary(again, 2), now), Published::Welcome(vec![]), "A's has gone");
    assert_eq!(directory.expire(now + ORPHAN), [], "not all is known yet");
    // A later change finds them all where they should be.
    assert_eq!(directory.follow(|_| true, HashSet::from([C]), now), [(waited, waiter(C))]);
    assert_eq!(directory.fetch(left, waiter(C), &[], now), Lookup::Lost);
    assert_eq!(directory.finish(), []);
    assert_eq!(directory.fetch(again, waiter(B), &[], now), Lookup::Holder(C, vec![]));
    assert_eq!(directory.len(), 4);
}

#[test]
fn what_is_kept_elsewhere_leaves_a_share_at_a_time() {
    let (mut directory, _, now) = new();
    for _ in 0..10_000 {
        directory.publish(A, primary(ObjectId::random(), 1), now);
    }
    directory.follow(|_| false, HashSet::from([A]), now);
    let mut before = directory.len();
    while directory.sweep().is_some() {
        assert!(before - directory.len() < 200, "too many at once");
        before = directory.len();
    }
    assert_eq!(before, 0);
}

fn of(copies: u16, role: Role, holding: Holding) -> Holding {
    Holding { copies, role, ..holding }
}

#[test]
fn objects_that_too_few_nodes_keep_are_told_after_a_while_and_not_again_before_it_is_time() {
    let (mut directory, id, now) = new();
    follow(&mut directory, true, &[A, B, C], now);
    directory.publish(A, of(2, Role::Primary, primary(id, 1)), now);
    directory.publish(C, of(2, Role::Cached, primary(id, 1)), now);
    assert_eq!(directory.short(), 1);
    assert_eq!(directory.take_short(now, now, 9, |_| true), [], "whoever put it is about to make them");
    let (later, again) = (now + SHORT, now + 10 * SHORT);
    assert_eq!(directory.take_short(later, again, 9, |_| false), [], "the other keeper sees to it");
    let shortage = Shortage { id, life: 1, owner: None, copies: 2, keeping: vec![A], cached: vec![C] };
    assert_eq!(directory.take_short(later, again, 9, |_| true), [shortage]);
    assert_eq!(directory.take_short(later + SHORT, again, 9, |_| true), [], "it is under way");
    directory.look_again(&id, later);
    assert_eq!(directory.take_short(later, again, 9, |_| true).len(), 1, "it was in vain");
    directory.publish(C, of(2, Role::Kept, primary(id, 1)), later);
    assert_eq!(directory.take_short(again, again, 9, |_| true), []);
    assert_eq!(directory.short(), 0);
}

#[test]
fn how_many_nodes_are_to_keep_an_object_outlives_each_of_them() {
    let (mut directory, id, now) = new();
    follow(&mut directory, true, &[A, B, C], now);
    directory.publish(A, of(2, Role::Primary, primary(id, 1)), now);
    directory.publish(B, of(2, Role::Kept, primary(id, 1)), now);
    directory.publish(C, of(0, Role::Cached, primary(id, 1)), now);
    assert_eq!(directory.short(), 0);
    follow(&mut directory, true, &[B, C], now);
    // What is kept takes the role before what may be dropped, whatever the ids.
    assert_eq!(directory.expire(now + ORPHAN), [(B, id)]);
    let short = directory.take_short(now + SHORT, now + SHORT, 9, |_| true);
    assert_eq!(
        short.iter().map(|one| (one.copies, one.keeping.as_slice())).collect::<Vec<_>>(),
        [(2, &[B][..])]
    );
    // Nor can more keep it than there are.
    follow(&mut directory, true, &[B], now);
    assert_eq!(directory.take_short(now + 2 * SHORT, now + SHORT, 9, |_| true), []);
}

#[test]
fn a_kept_replica_of_a_former_life_is_stale() {
    let (mut directory, id, now) = new();
    directory.publish(A, primary(id, 2), now);
    assert_eq!(directory.publish(B, of(2, Role::Kept, primary(id, 1)), now), Published::Stale);
}

#[test]
fn what_is_lost_is_remembered_for_its_time_and_not_for_ever() {
    let (mut directory, id, now) = new();
    let found = ObjectId::random();
    for id in [id, found] {
        directory.publish(A, primary(id, 1), now);
    }
    follow(&mut directory, true, &[B, C], now);
    directory.publish(B, primary(found, 1), now);
    directory.expire(now + LOST - Duration::from_secs(1));
    assert_eq!(directory.fetch(id, waiter(C), &[], now), Lookup::Lost);
    directory.expire(now + LOST);
    assert_eq!(directory.len(), 1, "what was found again is not forgotten");
    assert_eq!(directory.fetch(found, waiter(C), &[], now), Lookup::Holder(B, vec![]));
}

#[test]
fn of_many_lost_objects_the_oldest_are_forgotten() {
    let (mut directory, id, now) = new();
    directory.publish(A, primary(id, 1), now);
    directory.evicted(A, &id, now);
    for number in 0..LOST_KEPT as u32 {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        directory.publish(B, primary(ObjectId::from_bytes(bytes), 1), now);
    }
    follow(&mut directory, true, &[A, C], now);
    directory.expire(now);
    assert_eq!(directory.len(), LOST_KEPT);
    assert_eq!(directory.fetch(id, waiter(C), &[], now), Lookup::Waiting);
}

#[test]
fn the_other_keeper_has_what_is_lost_forgotten_for_those_who_may_know_of_it() {
    let (mut directory, id, now) = new();
    let private = Holding { owner: Some(7), ..primary(id, 1) };
    directory.publish(A, private, now);
    // A holder that lives is not forgotten.
    directory.dropped(B, id, 7, now);
    assert!(directory.knows(&id, 7));
    follow(&mut directory, true, &[B, C], now);
    directory.dropped(B, id, 8, now);
    assert_eq!(directory.fetch(id, Waiter { tenant: 7, ..waiter(B) }, &[], now), Lookup::Lost);
    directory.dropped(B, id, 7, now);
    assert_eq!(directory.len(), 0);
}
