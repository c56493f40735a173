//! Tests of the table: its answers after publications, deletions and changes of members.

use crate::kernel::random::HashSet;

use plasmon::{Protocol, Rights};

use super::ends::TOMBSTONE_LIFETIME;
use super::*;
use crate::net::frame::Withdrawal;
use crate::object::DEEDS;

const A: NodeId = NodeId::from_bytes([1; 16]);
const B: NodeId = NodeId::from_bytes([2; 16]);
const C: NodeId = NodeId::from_bytes([3; 16]);

fn waiter(node: NodeId) -> Waiter {
    Waiter { node, request: 7, user: 0, wish: Wish { protocol: Protocol::Auto, eager_max: 0, push_max: 0 } }
}

/// The ownership of user 7.
fn of_seven(rights: Rights) -> Ownership {
    Ownership { user: 7, rights }
}

fn primary(id: ObjectId, life: u64) -> Holding {
    Holding {
        id,
        standing: Standing::Primary,
        copies: 0,
        life,
        ownership: of_seven(Rights::Read),
        kind: Kind::Object,
    }
}

fn cached(id: ObjectId, life: u64) -> Holding {
    Holding { standing: Standing::Cached, ..primary(id, life) }
}

fn new() -> (Table, ObjectId, Instant) {
    (Table::default(), ObjectId::random(), Instant::now())
}

/// Has all entries of a directory follow the members.
fn follow(directory: &mut Table, kept: bool, alive: &[NodeId], now: Instant) -> Vec<(ObjectId, Waiter)> {
    let mut lost = directory.follow(move |_| kept, alive.iter().copied().collect(), now);
    lost.extend(directory.finish());
    lost
}

/// Begins a deletion for a user, as keeper A. Returns the nodes that have to drop the object, and its lives.
fn begin(directory: &mut Table, id: ObjectId, user: u32) -> Ending {
    directory.begin_end(id, user, A, Instant::now())
}

fn begun(nodes: &[NodeId]) -> Ending {
    Ending::Begun { lives: vec![1], nodes: nodes.to_vec() }
}

/// Ends the deletion of an object's first life: every node has dropped it.
fn end(directory: &mut Table, id: ObjectId, now: Instant) {
    directory.bury(id, 1, now);
    directory.end_over(&id, A, now);
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
    assert_eq!(asked, HashSet::from_iter([A, B]));
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
    let heir = Heir { id, life: 1, copies: 0 };
    assert_eq!(directory.expire(now), vec![]);
    follow(&mut directory, true, &[B, C], now);
    assert_eq!(directory.expire(now), vec![], "a primary may be about to publish itself");
    let now = now + ORPHAN_GRACE;
    assert_eq!(directory.expire(now), vec![(B, heir)]);
    directory.withdrawn(B, id, Withdrawal::Evicted, now);
    assert_eq!(directory.expire(now), vec![(C, heir)], "the heir had gone");
    assert_eq!(directory.expire(now), vec![(C, heir)], "until it says that it is");
    directory.publish(C, primary(id, 1), now);
    assert_eq!(directory.expire(now), vec![]);
}

#[test]
fn news_of_a_former_life_do_not_touch_the_present_one() {
    let (mut directory, id, now) = new();
    directory.publish(A, primary(id, 1), now);
    assert_eq!(begin(&mut directory, id, 0), begun(&[A]));
    end(&mut directory, id, now);
    assert_eq!(begin(&mut directory, id, 0), Ending::Unknown);
    assert!(directory.deleted(&id));
    assert_eq!(directory.publish(B, cached(id, 1), now), Published::Stale, "its fetch was under way");
    assert_eq!(directory.publish(A, primary(id, 1), now), Published::Stale, "it was away for the deletion");
    assert_eq!(directory.publish(A, primary(id, 2), now), Published::Welcome(vec![]));
    directory.bury(id, 1, now);
    assert!(directory.knows(&id, 0), "a late order to bury the former life");
    directory.expire(now + TOMBSTONE_LIFETIME);
    assert_eq!(directory.publish(B, cached(id, 1), now), Published::Stale, "the primary knows better");
    assert_eq!(directory.fetch(id, waiter(C), &[], now), Lookup::Holder(A, vec![]));
}

#[test]
fn a_publication_that_a_deletion_overtook_leaves_nothing() {
    let (mut directory, id, now) = new();
    directory.publish(A, primary(id, 1), now);
    directory.withdrawn(A, id, Withdrawal::Deleted, now);
    assert_eq!(directory.len(), 0, "deleted, not lost");
    directory.publish(A, cached(id, 1), now);
    directory.withdrawn(A, id, Withdrawal::Evicted, now);
    assert_eq!(directory.fetch(id, waiter(C), &[], now), Lookup::Lost, "nobody deleted it");
}

#[test]
fn a_deletion_reaches_holders_that_are_away() {
    let (mut directory, id, now) = new();
    directory.publish(A, Holding { ownership: of_seven(Rights::Private), ..primary(id, 1) }, now);
    follow(&mut directory, true, &[B, C], now);
    assert_eq!(
        begin(&mut directory, id, 8),
        Ending::NotAllowed(of_seven(Rights::Private)),
        "lost, and still private"
    );
    assert_eq!(begin(&mut directory, id, 7), Ending::Unknown, "there was nothing to delete any more");
    assert_eq!(directory.publish(A, primary(id, 1), now), Published::Stale);
}

#[test]
fn a_private_object_is_its_owners_alone() {
    let (mut directory, id, now) = new();
    directory.publish(A, Holding { ownership: of_seven(Rights::Private), ..primary(id, 1) }, now);
    assert!(directory.knows(&id, 7) && !directory.knows(&id, 8));
    assert_eq!(begin(&mut directory, id, 8), Ending::NotAllowed(of_seven(Rights::Private)));
    assert_eq!(begin(&mut directory, id, 7), begun(&[A]));
}

#[test]
fn what_others_may_read_only_its_creator_and_root_delete() {
    let (mut directory, id, now) = new();
    directory.publish(A, primary(id, 1), now);
    assert!(directory.knows(&id, 8));
    assert_eq!(begin(&mut directory, id, 8), Ending::NotAllowed(of_seven(Rights::Read)));
    assert!(!directory.is_leaving(&id), "a refused deletion holds nobody back");
    for user in [0, 7] {
        assert_eq!(begin(&mut directory, id, user), begun(&[A]), "user {user}");
        directory.end_over(&id, A, now);
    }
    directory.publish(A, Holding { ownership: of_seven(Rights::ReadWrite), ..primary(id, 1) }, now);
    assert_eq!(begin(&mut directory, id, 8), begun(&[A]));
}

#[test]
fn of_two_lives_a_user_deletes_his_own() {
    let (mut directory, id, now) = new();
    directory.publish(A, primary(id, 1), now);
    directory.publish(
        B,
        Holding { ownership: Ownership { user: 8, rights: Rights::Read }, ..primary(id, 2) },
        now,
    );
    assert_eq!(begin(&mut directory, id, 8), Ending::Begun { lives: vec![2], nodes: vec![B] });
}

#[test]
fn whoever_may_come_to_hold_an_object_is_known() {
    let (mut directory, id, now) = new();
    directory.fetch(id, waiter(B), &[], now);
    assert_eq!(directory.publish(A, primary(id, 1), now), Published::Welcome(vec![waiter(B)]), "sent there");
    directory.fetch(id, waiter(C), &[], now);
    assert_eq!(begin(&mut directory, id, 0), begun(&[A, B, C]));
    directory.end_over(&id, A, now);
    // B holds the object now, and later remembers where it was.
    directory.publish(B, cached(id, 1), now);
    directory.withdrawn(C, id, Withdrawal::Evicted, now);
    assert_eq!(begin(&mut directory, id, 0), begun(&[A, B]));
    directory.end_over(&id, A, now);
    directory.withdrawn(B, id, Withdrawal::Remembered, now);
    assert_eq!(begin(&mut directory, id, 0), begun(&[A, B]));
    directory.end_over(&id, A, now);
    directory.withdrawn(B, id, Withdrawal::Evicted, now);
    assert_eq!(begin(&mut directory, id, 0), begun(&[A]));
}

#[test]
fn until_all_have_let_go_an_object_is_there_and_cannot_be_had() {
    let (mut directory, id, now) = new();
    directory.publish(A, primary(id, 1), now);
    directory.publish(B, cached(id, 1), now);
    begin(&mut directory, id, 0);
    assert_eq!(directory.fetch(id, waiter(C), &[], now), Lookup::Waiting);
    assert_eq!(directory.publish(C, cached(id, 1), now), Published::Stale);
    directory.withdrawn(A, id, Withdrawal::Deleted, now);
    directory.withdrawn(B, id, Withdrawal::Deleted, now);
    assert!(directory.knows(&id, 0));
    end(&mut directory, id, now);
    assert!(!directory.knows(&id, 0) && directory.len() == 0 && directory.readers.is_empty());
    assert_eq!(directory.publish(A, primary(id, 2), now), Published::Welcome(vec![waiter(C)]));
}

#[test]
fn what_is_made_anew_during_a_deletion_outlives_it() {
    let (mut directory, id, now) = new();
    directory.publish(B, primary(id, 1), now);
    begin(&mut directory, id, 0);
    directory.withdrawn(B, id, Withdrawal::Deleted, now);
    assert_eq!(directory.publish(B, primary(id, 2), now), Published::Welcome(vec![]));
    end(&mut directory, id, now);
    assert_eq!(directory.fetch(id, waiter(C), &[], now), Lookup::Holder(B, vec![]));
}

#[test]
fn a_deletion_is_given_up_with_its_leader() {
    let (mut directory, id, now) = new();
    directory.publish(A, primary(id, 1), now);
    directory.begin_end(id, 0, B, now);
    directory.give_up_ends(|_, leader| leader == B, now);
    assert!(directory.is_leaving(&id));
    directory.give_up_ends(|_, leader| leader == C, now);
    assert_eq!(directory.fetch(id, waiter(C), &[], now), Lookup::Holder(A, vec![]));
}

#[test]
fn waiters_end_by_forgetting_expiry_and_moved_shards() {
    let (mut directory, id, now) = new();
    directory.fetch(id, waiter(B), &[], now);
    directory.forget(&id, B, 7);
    assert!(directory.waiters.is_empty());
    directory.fetch(id, waiter(B), &[], now);
    directory.expire(now + WAITER_LIFETIME);
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
    assert_eq!(directory.follow(|_| true, HashSet::from_iter([B, C]), now), []);
    assert_eq!(directory.fetch(gone, waiter(C), &[], now), Lookup::Lost);
    assert_eq!(directory.fetch(left, waiter(C), &[], now), Lookup::Holder(B, vec![]));
    assert_eq!(directory.holders(&left, 0), [(B, Role::Cached)]);
    assert_eq!(directory.publish(C, primary(again, 2), now), Published::Welcome(vec![]), "A's has gone");
    assert_eq!(directory.expire(now + ORPHAN_GRACE), [], "not all is known yet");
    // A later change leaves all entries in their places.
    assert_eq!(directory.follow(|_| true, HashSet::from_iter([C]), now), [(waited, waiter(C))]);
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
    directory.follow(|_| false, HashSet::from_iter([A]), now);
    let mut before = directory.len();
    while directory.sweep().is_some() {
        assert!(before - directory.len() < 200, "too many at once");
        before = directory.len();
    }
    assert_eq!(before, 0);
}

fn of(copies: u16, standing: Standing, holding: Holding) -> Holding {
    Holding { copies, standing, ..holding }
}

#[test]
fn objects_that_too_few_nodes_keep_are_told_after_a_while_and_not_again_before_it_is_time() {
    let (mut directory, id, now) = new();
    follow(&mut directory, true, &[A, B, C], now);
    directory.publish(A, of(2, Standing::Primary, primary(id, 1)), now);
    directory.publish(C, of(2, Standing::Cached, primary(id, 1)), now);
    assert_eq!(directory.short(), 1);
    assert_eq!(
        directory.take_short(now, now, 9, |_| true, |_| true),
        [],
        "whoever put it is about to make them"
    );
    let (later, again) = (now + SHORTAGE_GRACE, now + 10 * SHORTAGE_GRACE);
    assert_eq!(directory.take_short(later, again, 9, |_| false, |_| true), [], "the other keeper sees to it");
    let shortage = Shortage { id, life: 1, creator: 7, copies: 2, keeping: vec![A], cached: vec![C] };
    assert_eq!(directory.take_short(later, again, 9, |_| true, |_| true), [shortage]);
    assert_eq!(
        directory.take_short(later + SHORTAGE_GRACE, again, 9, |_| true, |_| true),
        [],
        "it is under way"
    );
    assert!(directory.lacks(&id, 1) && !directory.lacks(&id, 2));
    directory.look_again(&id, later);
    assert_eq!(directory.take_short(later, again, 9, |_| true, |_| true).len(), 1, "it was in vain");
    directory.publish(C, of(2, Standing::Kept, primary(id, 1)), later);
    assert_eq!(directory.take_short(again, again, 9, |_| true, |_| true), []);
    assert_eq!(directory.short(), 0);
    assert!(!directory.lacks(&id, 1));
}

#[test]
fn how_many_nodes_are_to_keep_an_object_outlives_each_of_them() {
    let (mut directory, id, now) = new();
    follow(&mut directory, true, &[A, B, C], now);
    directory.publish(A, of(2, Standing::Primary, primary(id, 1)), now);
    directory.publish(B, of(2, Standing::Kept, primary(id, 1)), now);
    directory.publish(C, of(0, Standing::Cached, primary(id, 1)), now);
    assert_eq!(directory.short(), 0);
    follow(&mut directory, true, &[B, C], now);
    // A holder that keeps the object becomes primary before one that may drop it, whatever the ids.
    assert_eq!(directory.expire(now + ORPHAN_GRACE), [(B, Heir { id, life: 1, copies: 2 })]);
    let short = directory.take_short(now + SHORTAGE_GRACE, now + SHORTAGE_GRACE, 9, |_| true, |_| true);
    assert_eq!(
        short.iter().map(|one| (one.copies, one.keeping.as_slice())).collect::<Vec<_>>(),
        [(2, &[B][..])]
    );
    // No more nodes can keep an object than there are members.
    follow(&mut directory, true, &[B], now);
    assert_eq!(
        directory.take_short(now + 2 * SHORTAGE_GRACE, now + SHORTAGE_GRACE, 9, |_| true, |_| true),
        []
    );
}

#[test]
fn how_many_are_to_keep_an_object_is_not_forgotten_by_one_who_was_away() {
    let (mut directory, id, now) = new();
    follow(&mut directory, true, &[A, B, C], now);
    directory.publish(A, of(2, Standing::Primary, primary(id, 1)), now);
    directory.publish(B, of(3, Standing::Kept, primary(id, 1)), now);
    assert_eq!(directory.short(), 1, "A is back with what it had before three were wished");
    // The number survives the nodes that keep the object: a cached holder from before is told of it.
    directory.publish(C, of(0, Standing::Cached, primary(id, 1)), now);
    follow(&mut directory, true, &[C], now);
    assert_eq!(directory.expire(now + ORPHAN_GRACE), [(C, Heir { id, life: 1, copies: 3 })]);
}

#[test]
fn who_keeps_an_object_no_more_is_missed_however_it_left() {
    let (mut directory, id, now) = new();
    follow(&mut directory, true, &[A, B, C], now);
    for node in [A, B] {
        directory.publish(node, of(2, Standing::Primary, primary(id, 1)), now);
    }
    assert!(directory.suffices_without(&id, &[C]) && !directory.suffices_without(&id, &[A]));
    assert!(!directory.suffices_without(&ObjectId::random(), &[]), "nothing is known of it");
    directory.withdrawn(A, id, Withdrawal::Deleted, now);
    assert_eq!(
        directory.take_short(now + SHORTAGE_GRACE, now + 2 * SHORTAGE_GRACE, 9, |_| true, |_| true).len(),
        1
    );

    // A node that made room with its replica is missed as well; another takes its place when the members
    // change.
    let made_room = ObjectId::random();
    for node in [A, B] {
        directory.publish(node, of(2, Standing::Primary, primary(made_room, 1)), now);
    }
    directory.withdrawn(A, made_room, Withdrawal::Evicted, now);
    directory.publish(C, of(2, Standing::Cached, primary(made_room, 1)), now);
    assert_eq!(directory.short(), 2);
    assert_eq!(
        directory.take_short(now + SHORTAGE_GRACE, now + 2 * SHORTAGE_GRACE, 9, |_| true, |_| true),
        []
    );
    follow(&mut directory, true, &[B, C], now);
    let short = directory.take_short(now + SHORTAGE_GRACE, now + 2 * SHORTAGE_GRACE, 9, |_| true, |_| true);
    assert_eq!(short.iter().map(|one| one.id).collect::<Vec<_>>(), [made_room]);
}

#[test]
fn a_kept_replica_of_a_former_life_is_stale() {
    let (mut directory, id, now) = new();
    directory.publish(A, primary(id, 2), now);
    assert_eq!(directory.publish(B, of(2, Standing::Kept, primary(id, 1)), now), Published::Stale);
}

#[test]
fn of_two_lives_of_one_epoch_that_come_back_the_first_keeper_drops_that_of_which_it_hears_later() {
    let (mut directory, id, now) = new();
    // Lives that were drawn are far apart: near ones are successors of each other.
    let [one, other, anew] = [1, 1 << 40, 1 << 41];
    directory.publish(A, primary(id, one), now);
    directory.note_returned(A, &id);
    let [first, second] = [true, false];
    assert!(!directory.is_replaced(A, &primary(id, one), first), "it is told once more");
    assert!(
        !directory.is_replaced(B, &of(2, Standing::Kept, primary(id, one)), first),
        "it is of the same life"
    );
    assert!(directory.is_replaced(B, &primary(id, other), first));
    assert!(!directory.is_replaced(B, &primary(id, other), second), "or both keepers might drop one each");
    // An object that was created anew stays, and both keepers know it.
    directory.publish(A, primary(id, anew), now);
    assert!(directory.is_replaced(B, &primary(id, other), second));
}

#[test]
fn of_two_lives_that_come_back_both_keepers_keep_that_of_the_later_epoch() {
    let [former, later] = [7 << 48 | 9, 8 << 48 | 3];
    for is_first in [true, false] {
        let (mut directory, id, now) = new();
        directory.publish(A, primary(id, former), now);
        directory.note_returned(A, &id);
        assert!(!directory.is_replaced(B, &primary(id, later), is_first));
        let displaced = directory.displace_returned(B, &primary(id, later), true, now);
        assert_eq!(displaced, Some((A, former)));
        directory.publish(B, primary(id, later), now);
        directory.note_returned(B, &id);
        assert!(directory.is_replaced(A, &primary(id, former), is_first));
        assert_eq!(directory.displace_returned(A, &primary(id, former), true, now), None);

        // The later life is lost, or has ended: the former does not come back for it.
        follow(&mut directory, true, &[A, C], now);
        assert!(directory.is_replaced(A, &primary(id, former), is_first));
        directory.bury(id, later, now);
        assert!(directory.is_replaced(A, &primary(id, former), is_first));
        assert!(!directory.is_replaced(A, &primary(id, 9 << 48), is_first));
    }
}

#[test]
fn of_two_regions_of_a_name_the_later_stays() {
    let ownership = Ownership { user: DEEDS, rights: Rights::Private };
    let deed = |id, life| Holding { kind: Kind::Deed, ownership, ..primary(id, life) };
    let [former, later] = [7 << 48 | 9, 8 << 48 | 3];
    for is_first in [true, false] {
        let (mut directory, id, now) = new();
        directory.publish(A, deed(id, former), now);
        assert_eq!(directory.judge_rival(A, &deed(id, former), is_first, now), (false, None));
        assert_eq!(directory.judge_rival(B, &deed(id, former), is_first, now), (false, None), "it has moved");
        let rival = Some((A, former));
        assert_eq!(directory.judge_rival(B, &deed(id, later), is_first, now), (false, rival));
        directory.publish(B, deed(id, later), now);
        assert_eq!(directory.judge_rival(A, &deed(id, former), is_first, now), (true, None));
        // Without an order the first keeper decides, so that not both go.
        assert_eq!(directory.judge_rival(A, &deed(id, later + (1 << 40)), is_first, now), (is_first, None));
        let object = primary(id, former);
        assert_eq!(directory.judge_rival(A, &object, is_first, now), (false, None));
    }
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
    directory.expire(now + LOSS_MEMORY - Duration::from_secs(1));
    assert_eq!(directory.fetch(id, waiter(C), &[], now), Lookup::Lost);
    directory.expire(now + LOSS_MEMORY);
    assert_eq!(directory.len(), 1, "what was found again is not forgotten");
    assert_eq!(directory.fetch(found, waiter(C), &[], now), Lookup::Holder(B, vec![]));
}

#[test]
fn of_many_lost_objects_the_oldest_are_forgotten() {
    let (mut directory, id, now) = new();
    directory.publish(A, primary(id, 1), now);
    directory.withdrawn(A, id, Withdrawal::Evicted, now);
    for number in 0..MAX_LOSSES as u32 {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        directory.publish(B, primary(ObjectId::from_bytes(bytes), 1), now);
    }
    follow(&mut directory, true, &[A, C], now);
    directory.expire(now);
    assert_eq!(directory.len(), MAX_LOSSES);
    assert_eq!(directory.fetch(id, waiter(C), &[], now), Lookup::Waiting);
}

#[test]
fn no_object_takes_the_place_of_a_region() {
    let (mut directory, id, now) = new();
    let ownership = Ownership { user: DEEDS, rights: Rights::Private };
    let deed = Holding { kind: Kind::Deed, ownership, ..primary(id, 1) };
    let later = Holding { ownership: of_seven(Rights::Private), ..primary(id, 2 << 48) };
    directory.publish(A, deed, now);
    assert!(!directory.knows(&id, 7) && directory.holders(&id, 7).is_empty());
    assert_eq!(directory.holders(&id, DEEDS), [(A, Role::Primary)]);
    assert_eq!(directory.displace_objects(&later), []);
    assert_eq!(directory.publish(B, later, now), Published::Stale);
    // Nor does one take the place of a region that comes back.
    directory.note_returned(A, &id);
    assert_eq!(directory.displace_returned(B, &later, false, now), None);
    assert_eq!(directory.displace_objects(&deed), []);
    // A new region is not refused for an object of its id, which goes.
    let (mut directory, _, now) = new();
    directory.publish(B, later, now);
    directory.publish(C, Holding { standing: Standing::Cached, ..later }, now);
    assert!(!directory.knows(&id, DEEDS) && !directory.is_replaced(A, &deed, true));
    assert!(directory.is_replaced(A, &primary(id, 1), true));
    assert_eq!(directory.displace_objects(&deed), [(B, 2 << 48), (C, 2 << 48)]);
    assert_eq!(directory.publish(A, deed, now), Published::Welcome(Vec::new()));
    // Also for one that was lost.
    let (mut directory, _, now) = new();
    directory.publish(B, later, now);
    follow(&mut directory, true, &[A], now);
    assert_eq!(directory.displace_objects(&deed), []);
    assert_eq!(directory.publish(A, deed, now), Published::Welcome(Vec::new()));
}

#[test]
fn replicas_of_an_earlier_life_go_when_the_primary_of_a_later_one_is_known() {
    let (mut directory, id, now) = new();
    let [earlier, later] = [1 << 48, 2 << 48];
    for (node, holding) in [(A, cached(id, earlier)), (B, of(2, Standing::Kept, primary(id, earlier)))] {
        assert_eq!(directory.publish(node, holding, now), Published::Welcome(vec![]));
    }
    assert_eq!(directory.publish(C, primary(id, later), now), Published::Welcome(vec![]));
    assert_eq!(directory.displace_replicas(&primary(id, later), now), [(A, earlier), (B, earlier)]);
    assert_eq!(directory.holders(&id, 0), [(C, Role::Primary)]);
    // One of a later life may have lost its primary.
    let (mut directory, ..) = new();
    directory.publish(A, cached(id, later), now);
    directory.publish(C, primary(id, earlier), now);
    assert_eq!(directory.displace_replicas(&primary(id, earlier), now), []);
}

#[test]
fn an_heir_hands_over_to_a_primary_that_comes_back() {
    let (mut directory, id, now) = new();
    directory.publish(B, Holding { standing: Standing::Heir, ..primary(id, 1) }, now);
    directory.publish(A, primary(id, 1), now);
    assert_eq!(directory.take_surplus(now, |_| true), []);
    assert_eq!(directory.take_surplus(now + Duration::from_secs(10), |_| true), [(id, 7, A)]);
}
