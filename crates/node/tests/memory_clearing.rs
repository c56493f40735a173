//! Clearings: free memory that lies in pieces can be had as a whole once the engine has moved the extents
//! between the pieces.

use plasmon_node::memory::{
    AllocError, Arena, ArenaConfig, Clearing, Domain, Extent, HugePages, Writer, Zone,
};

const SEGMENT: u64 = 256 << 10;
const SLAB: u64 = 64 << 10;
const ENGINE: Zone = Zone { domain: Domain::Shared, writer: Writer::Engine };
const ALICE: Zone = Zone { domain: Domain::Shared, writer: Writer::Uid(1000) };
const BOB: Zone = Zone { domain: Domain::Private(1001), writer: Writer::Uid(1001) };

fn segments(extent: &Extent) -> Vec<u32> {
    extent.segments().collect()
}

fn arena(segments: u64) -> Arena {
    let (capacity, segment_size) = (segments * SEGMENT, Some(SEGMENT));
    let config = ArenaConfig {
        capacity,
        segment_size,
        huge_pages: HugePages::Never,
        prefault: false,
        near: None,
        huge_allowance: None,
    };
    Arena::new(&config).unwrap()
}

fn lies_in(extent: &Extent, clearing: &Clearing) -> bool {
    extent.segments().any(|segment| clearing.segments.contains(&segment))
}

/// Moves all that lies in the window to engine-written segments, as the engine does.
fn move_out(arena: &mut Arena, objects: &mut [Extent], clearing: &Clearing) {
    for object in objects.iter_mut().filter(|object| lies_in(object, clearing)) {
        let zone = Zone { writer: Writer::Engine, ..arena.zone(object.segments().next().unwrap()).unwrap() };
        *object = arena.allocate(zone, object.len()).unwrap();
        assert!(!lies_in(object, clearing), "{object:?} was moved into {clearing:?}");
    }
}

#[track_caller]
fn expect_full(arena: &mut Arena, zone: Zone, len: u64) {
    let refused = arena.allocate(zone, len);
    assert!(matches!(refused, Err(AllocError::Full { .. })), "{refused:?}");
}

/// One small object is left in every segment, which nobody but the engine may write.
#[test]
fn a_large_creation_fits_between_small_objects() {
    let mut arena = arena(8);
    let mut small: Vec<Extent> = Vec::new();
    while let Ok(extent) = arena.allocate(ENGINE, 64) {
        small.push(extent);
    }
    let mut seen = [false; 8];
    small.retain(|extent| !std::mem::replace(&mut seen[extent.segments().next().unwrap() as usize], true));
    assert!(seen.iter().all(|seen| *seen) && small.len() == 8);
    assert_eq!(arena.usage().free, 8 * SEGMENT - 8 * 64);
    expect_full(&mut arena, ALICE, 5 * SEGMENT + 1);

    let clearings = arena.clearings(5 * SEGMENT + 1);
    assert_eq!(clearings.first(), Some(&Clearing { segments: 0..6, used: 6 * 64 }));
    arena.begin_clearing(&clearings[0]);
    move_out(&mut arena, &mut small, &clearings[0]);
    arena.end_clearing();
    let large = arena.allocate(ALICE, 5 * SEGMENT + 1).unwrap();
    assert_eq!(segments(&large), Vec::from_iter(clearings[0].segments.clone()));
}

/// Every page belongs to a slab, and nearly every slot is free.
#[test]
fn free_slots_count_as_free() {
    let mut arena = arena(4);
    let mut objects: Vec<Extent> = Vec::new();
    while let Ok(extent) = arena.allocate(ENGINE, 1000) {
        objects.push(extent);
    }
    let mut number = 0;
    objects.retain(|_| {
        number += 1;
        number % 8 == 0
    });
    expect_full(&mut arena, ENGINE, 2 * SEGMENT);
    let clearing = arena.clearings(2 * SEGMENT).swap_remove(0);
    arena.begin_clearing(&clearing);
    move_out(&mut arena, &mut objects, &clearing);
    arena.end_clearing();
    assert_eq!(segments(&arena.allocate(ENGINE, 2 * SEGMENT).unwrap()), Vec::from_iter(clearing.segments));
}

#[test]
fn the_window_is_withheld_until_the_end() {
    let mut arena = arena(2);
    let large = arena.allocate(ENGINE, SEGMENT / 2).unwrap();
    let small: Vec<Extent> = (0..100).map(|_| arena.allocate(ENGINE, 64).unwrap()).collect();
    let clearing = Clearing { segments: 0..1, used: SEGMENT / 2 + 100 * 64 };
    assert_eq!(arena.clearings(2 * SEGMENT), [], "that much is not free");
    assert_eq!(arena.clearings(SEGMENT + 1), [], "what lies there has nowhere to go");
    assert_eq!(arena.clearings(SEGMENT), std::slice::from_ref(&clearing));

    arena.begin_clearing(&clearing);
    let mut others = vec![arena.allocate(ENGINE, 64).unwrap()];
    drop((large, small));
    others.push(arena.allocate(ENGINE, 64).unwrap());
    others.push(arena.allocate(ENGINE, SEGMENT / 2).unwrap());
    assert!(others.iter().all(|extent| segments(extent) == [1]), "{others:?}");
    expect_full(&mut arena, ENGINE, SEGMENT);
    expect_full(&mut arena, ALICE, 64);
    arena.end_clearing();
    assert_eq!(segments(&arena.allocate(ALICE, SEGMENT).unwrap()), [0]);
}

/// A clearing that was given up leaves everything as it was.
#[test]
fn what_was_given_up_is_available_again() {
    let mut arena = arena(3);
    let pinned = arena.allocate(ENGINE, 64).unwrap();
    let clearing = Clearing { segments: 0..1, used: 64 };
    let before = arena.usage();
    arena.begin_clearing(&clearing);
    arena.end_clearing();
    assert_eq!(arena.usage(), before);
    let slot = arena.allocate(ENGINE, 64).unwrap();
    assert_eq!(slot.offset(), pinned.offset() + 64, "the same slab serves again");
    assert_eq!(segments(&arena.allocate(ENGINE, SEGMENT - SLAB).unwrap()), [0]);
}

#[test]
fn windows_are_proposed_only_if_their_objects_can_go_elsewhere() {
    // Half of each segment is free, but the engine has no segment that could take what it moves.
    let mut arena = arena(2);
    let (alice, bob) =
        (arena.allocate(ALICE, SEGMENT / 2).unwrap(), arena.allocate(BOB, SEGMENT / 2).unwrap());
    assert_eq!(arena.clearings(SEGMENT), []);
    drop(alice);
    assert_eq!(arena.clearings(SEGMENT), [Clearing { segments: 1..2, used: SEGMENT / 2 }]);
    drop(bob);
    assert_eq!(arena.clearings(SEGMENT), [], "nothing need be moved");
}

#[test]
fn what_a_user_writes_goes_to_other_segments_of_that_user() {
    // The engine has no segment, and nothing is wholly free.
    let mut arena = arena(3);
    let mut halves: Vec<_> = (0..6).map(|_| arena.allocate(ALICE, SEGMENT / 2).unwrap()).collect();
    halves.retain(|half| half.offset() != 0 && half.offset() != SEGMENT);
    expect_full(&mut arena, ENGINE, SEGMENT);
    let clearing = |segment| Clearing { segments: segment..segment + 1, used: SEGMENT / 2 };
    assert_eq!(arena.clearings(SEGMENT)[..2], [clearing(0), clearing(1)]);
    arena.begin_clearing(&clearing(0));
    let half = halves.iter_mut().find(|half| lies_in(half, &clearing(0))).unwrap();
    *half = arena.allocate(ALICE, SEGMENT / 2).unwrap();
    assert!(!lies_in(half, &clearing(0)));
    arena.end_clearing();
    assert_eq!(segments(&arena.allocate(ENGINE, SEGMENT).unwrap()), [0]);
}

/// A slab that reached into the next segment would keep that from being cleared.
#[test]
fn small_objects_of_one_segment_hold_no_page_of_another() {
    let mut arena = arena(2);
    let first = arena.allocate(ENGINE, SEGMENT - SLAB / 2).unwrap();
    let rest = arena.allocate(ENGINE, SEGMENT).unwrap();
    assert_eq!(segments(&rest), [0, 1]);
    let last = arena.allocate(ENGINE, SLAB / 2).unwrap();
    drop(rest);
    let small: Vec<Extent> = (0..SLAB / 64).map(|_| arena.allocate(ENGINE, 64).unwrap()).collect();
    drop((first, last));
    let (low, high): (Vec<_>, Vec<_>) =
        small.into_iter().partition(|extent| extent.segments().next().unwrap() == 0);
    assert!(!low.is_empty() && !high.is_empty());
    drop(low);
    assert_eq!(segments(&arena.allocate(BOB, SEGMENT).unwrap()), [0]);
}
