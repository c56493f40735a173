//! Extents in several places of the arena, mapped side by side: they are as good as contiguous ones.

use plasmon_node::memory::{
    Access, AllocError, Arena, ArenaConfig, ArenaError, Domain, Extent, HugePages, Writer, Zone,
};

const PAGE: u64 = 4096;
const SEGMENT: u64 = 64 << 10;
const ALICE: Zone = Zone { domain: Domain::Private(1000), writer: Writer::Uid(1000) };
const BOB: Zone = Zone { domain: Domain::Private(1001), writer: Writer::Uid(1001) };
/// More places than an extent can have.
const ANY: usize = 1000;

fn arena(segments: u64) -> Arena {
    let config = ArenaConfig {
        capacity: segments * SEGMENT,
        segment_size: Some(SEGMENT),
        huge_pages: HugePages::Never,
        prefault: false,
        near: None,
        huge_allowance: None,
    };
    Arena::new(&config).unwrap()
}

/// Fills an arena with pages of a zone, writes the number of each page into all its bytes, and frees the
/// pages whose number is not a multiple of `step`. Returns the other pages.
fn comb(arena: &mut Arena, zone: Zone, step: usize) -> Vec<Extent> {
    let mut pages = Vec::new();
    while let Ok(page) = arena.allocate(zone, PAGE) {
        page.write(0, &[pages.len() as u8; PAGE as usize]).unwrap();
        pages.push(page);
    }
    let mut number = 0;
    pages.retain(|_| {
        number += 1;
        (number - 1) % step == 0
    });
    pages
}

fn is_untouched(pages: &[Extent], step: usize) -> bool {
    pages.iter().enumerate().all(|(number, page)| {
        let mut bytes = [0; PAGE as usize];
        page.read(0, &mut bytes).unwrap();
        bytes == [(number * step) as u8; PAGE as usize]
    })
}

#[track_caller]
fn expect_full(found: Result<Extent, AllocError>) {
    assert!(matches!(found, Err(AllocError::Full { .. })), "{found:?}");
}

/// Returns bytes that tell their offsets.
fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn all_free_memory_can_be_had_as_one_extent() {
    let mut arena = arena(3);
    let pages = comb(&mut arena, ALICE, 2);
    let free = arena.usage().free;
    assert_eq!(free, 3 * SEGMENT / 2);
    expect_full(arena.allocate(ALICE, PAGE + 1));
    expect_full(arena.allocate_in_places(ALICE, free + 1, ANY));
    let whole = arena.allocate_in_places(ALICE, free - 5, ANY).unwrap();
    assert_eq!((whole.len(), arena.usage().free), (free - 5, 0));
    expect_full(arena.allocate(ALICE, 1));
    let places = whole.places();
    assert_eq!(places.len() as u64, free / PAGE);
    assert_eq!(places.iter().map(|place| place.end - place.start).sum::<u64>(), free - 5);
    // The bytes are contiguous, and lie where the pieces say.
    whole.write(0, &pattern(free - 5)).unwrap();
    whole.write(free - 5, &[1]).unwrap_err();
    let mut found = vec![0; 3 * PAGE as usize];
    whole.read(PAGE - 7, &mut found).unwrap();
    assert!(found == pattern(free)[PAGE as usize - 7..][..found.len()]);
    let mut at = 0;
    for piece in whole.pieces() {
        let part = arena.memory(piece.segment);
        let base = plasmon_fabric::Memory::base(&*part).as_ptr();
        // SAFETY: the piece lies in the segment, which is mapped, and nobody writes.
        let bytes =
            unsafe { std::slice::from_raw_parts(base.add(piece.offset as usize), piece.len as usize) };
        assert!(bytes == &pattern(free)[at..at + bytes.len()], "{piece:?}");
        at += bytes.len();
    }
    assert_eq!(at as u64, free - 5);
    assert!(is_untouched(&pages, 2));
    drop(whole);
    assert_eq!(arena.usage().free, free);
    drop(pages);
    assert_eq!((arena.usage().free, arena.usage().largest_run), (3 * SEGMENT, 3 * SEGMENT));
    arena.allocate(BOB, 3 * SEGMENT).unwrap();
}

#[test]
fn the_longest_places_come_first_and_are_few() {
    let mut arena = arena(4);
    // Runs of 1, 2, 3 … pages, with a page between them.
    let mut runs = Vec::new();
    for pages in 1..=9 {
        runs.push(arena.allocate(ALICE, pages * PAGE).unwrap());
        std::mem::forget(arena.allocate(ALICE, PAGE).unwrap());
    }
    while let Ok(rest) = arena.allocate(ALICE, PAGE) {
        std::mem::forget(rest);
    }
    drop(runs);
    expect_full(arena.allocate_in_places(ALICE, 18 * PAGE, 2));
    assert_eq!(arena.usage().free, 45 * PAGE);
    let two = arena.allocate_in_places(ALICE, 12 * PAGE - 1, 2).unwrap();
    let lens: Vec<_> = two.places().iter().map(|place| place.end - place.start).collect();
    assert_eq!(lens, [9 * PAGE, 3 * PAGE - 1], "the second is the run of three, not a part of a longer one");
    let one = arena.allocate_in_places(ALICE, 8 * PAGE, 1).unwrap();
    assert_eq!(one.places().len(), 1);
    expect_full(arena.allocate_in_places(ALICE, 8 * PAGE, 0));
    let rest = arena.allocate_in_places(ALICE, 25 * PAGE, 6).unwrap();
    assert_eq!((rest.places().len(), arena.usage().free), (6, 0));
}

#[test]
fn whole_segments_join_what_is_free_of_a_zone() {
    let mut arena = arena(5);
    let bob = arena.allocate(BOB, PAGE).unwrap();
    let alice = arena.allocate(ALICE, PAGE).unwrap();
    let far = arena.allocate(BOB, 2 * SEGMENT).unwrap();
    assert_eq!(far.segments().collect::<Vec<_>>(), [2, 3]);
    // Free are the rest of segment 1, and segment 4.
    let free = 2 * SEGMENT - PAGE;
    expect_full(arena.allocate_in_places(ALICE, free + 1, ANY));
    let whole = arena.allocate_in_places(ALICE, free, ANY).unwrap();
    assert_eq!(whole.segments().collect::<Vec<_>>(), [4, 1]);
    assert!(whole.segments().all(|segment| arena.zone(segment) == Some(ALICE)));
    expect_full(arena.allocate_in_places(ALICE, PAGE, ANY));
    drop((whole, alice, far));
    // Segments pass to another zone, with fresh memory.
    let whole = arena.allocate_in_places(BOB, 5 * SEGMENT - PAGE, ANY).unwrap();
    assert_eq!(whole.places().len(), 1);
    drop((whole, bob));
}

#[test]
fn nobody_gets_what_is_the_engines_alone() {
    let mut arena = arena(2);
    let pages = comb(&mut arena, Zone::ENGINE, 3);
    let segment = pages[0].segments().next().unwrap();
    for access in [Access::Read, Access::Write] {
        let refused = arena.descriptor(segment, access);
        assert!(matches!(refused, Err(ArenaError::Hidden { .. })), "{refused:?}");
    }
    let whole = arena.allocate_in_places(Zone::ENGINE, 7 * PAGE, ANY).unwrap();
    whole.write(0, &pattern(7 * PAGE)).unwrap();
    assert!(is_untouched(&pages, 3));
    // The extent outlives its arena.
    drop((arena, pages));
    let mut found = vec![0; 7 * PAGE as usize];
    whole.read(0, &mut found).unwrap();
    assert!(found == pattern(7 * PAGE));
}
