//! The arena through its public face: zones, recycling, descriptors, copies and pre-faulting.

mod wait;

use std::os::fd::{AsFd, OwnedFd};
use std::ptr;

use plasmon_fabric::Memory;
use plasmon_node::memory::{
    Access, AllocError, Arena, ArenaConfig, ArenaError, Domain, Extent, HugePages, Piece, SegmentChange,
    Writer, Zone,
};
use rustix::mm::{MapFlags, ProtFlags};

use wait::eventually;

const SEGMENT: u64 = 64 << 10;
const ENGINE: Zone = Zone { domain: Domain::Shared, writer: Writer::Engine };
const ALICE: Zone = Zone { domain: Domain::Shared, writer: Writer::Uid(1000) };
const BOB: Zone = Zone { domain: Domain::Private(1001), writer: Writer::Uid(1001) };

fn config(segments: u64) -> ArenaConfig {
    let huge_pages = HugePages::Never;
    ArenaConfig {
        capacity: segments * SEGMENT,
        segment_size: Some(SEGMENT),
        huge_pages,
        prefault: false,
        near: None,
        huge_allowance: None,
    }
}

fn segments(extent: &Extent) -> Vec<u32> {
    extent.segments().collect()
}

fn arena(segments: u64) -> Arena {
    Arena::new(&config(segments)).unwrap()
}

fn read(extent: &Extent) -> Vec<u8> {
    let mut bytes = vec![0; extent.len() as usize];
    extent.read(0, &mut bytes).unwrap();
    bytes
}

/// The bytes that a client which maps this descriptor sees at an offset.
fn client_sees(descriptor: impl AsFd, offset: u64, len: usize) -> Vec<u8> {
    let (length, protection) = (SEGMENT as usize, ProtFlags::READ);
    let mut bytes = vec![0; len];
    // SAFETY: a new mapping at an address of the kernel's choice, read by pointer and unmapped.
    unsafe {
        let mapped =
            rustix::mm::mmap(ptr::null_mut(), length, protection, MapFlags::SHARED, descriptor, 0).unwrap();
        ptr::copy_nonoverlapping(mapped.cast::<u8>().add(offset as usize), bytes.as_mut_ptr(), len);
        rustix::mm::munmap(mapped, length).unwrap();
    }
    bytes
}

fn keep(descriptor: impl AsFd) -> OwnedFd {
    descriptor.as_fd().try_clone_to_owned().unwrap()
}

#[test]
fn a_client_sees_what_the_engine_writes() {
    let mut arena = arena(2);
    let extent = arena.allocate(ENGINE, 5000).unwrap();
    extent.write(4990, b"0123456789").unwrap();
    let piece = extent.pieces().next().unwrap();
    let descriptor = arena.descriptor(piece.segment, Access::Read).unwrap();
    assert_eq!(client_sees(descriptor, piece.offset + 4990, 10), b"0123456789");
}

#[test]
fn copies_stay_within_the_extent() {
    let mut arena = arena(1);
    let (extent, neighbour) = (arena.allocate(ENGINE, 100).unwrap(), arena.allocate(ENGINE, 100).unwrap());
    assert_eq!(read(&extent), [0; 100]);
    assert!(extent.write(0, &[1; 100]).is_ok() && extent.write(100, &[]).is_ok());
    for (at, len) in [(0, 101), (100, 1), (101, 0), (u64::MAX, 1), (u64::MAX, 0), (u64::MAX - 100, 101)] {
        let refused = extent.write(at, &vec![2; len]).unwrap_err();
        assert_eq!((refused.at, refused.len, refused.extent), (at, len as u64, 100));
        assert!(extent.read(at, &mut vec![0; len]).is_err());
    }
    assert_eq!((read(&extent), read(&neighbour)), (vec![1; 100], vec![0; 100]));
}

#[test]
fn an_extent_may_span_segments() {
    let mut arena = arena(4);
    let small = arena.allocate(ENGINE, 5000).unwrap();
    let large = arena.allocate(ENGINE, 2 * SEGMENT).unwrap();
    assert_eq!((large.offset(), segments(&large)), (8192, vec![0, 1, 2]));
    let pieces: Vec<Piece> = large.pieces().collect();
    let expected = [(0, 8192, SEGMENT - 8192), (1, 0, SEGMENT), (2, 0, 8192)];
    assert_eq!(pieces, expected.map(|(segment, offset, len)| Piece { segment, offset, len }));
    let bytes: Vec<u8> = (0..2 * SEGMENT).map(|at| (at % 251) as u8).collect();
    large.write(0, &bytes).unwrap();
    assert!(read(&large) == bytes);
    let mut at = 0;
    for piece in pieces {
        let descriptor = arena.descriptor(piece.segment, Access::Read).unwrap();
        let seen = client_sees(descriptor, piece.offset, piece.len as usize);
        assert!(seen == bytes[at..at + piece.len as usize], "{piece:?}");
        at += piece.len as usize;
    }
    assert!(read(&small) == [0; 5000]);
}

#[test]
fn an_empty_extent_still_has_a_place_of_its_own() {
    let mut arena = arena(1);
    let (first, second) = (arena.allocate(ENGINE, 0).unwrap(), arena.allocate(ENGINE, 0).unwrap());
    assert_ne!(first.offset(), second.offset());
    assert_eq!(segments(&first), [0]);
    assert_eq!(first.pieces().collect::<Vec<_>>(), [Piece { segment: 0, offset: first.offset(), len: 0 }]);
    assert!(first.is_empty() && first.write(0, &[1]).is_err());
}

#[test]
fn a_recycled_segment_is_new_and_the_old_one_is_dead() {
    for (old, new) in [(ENGINE, ALICE), (ALICE, BOB), (ALICE, ENGINE)] {
        let mut arena = arena(1);
        let extent = arena.allocate(old, SEGMENT).unwrap();
        let secret = vec![7; SEGMENT as usize];
        extent.write(0, &secret).unwrap();
        let stale = keep(arena.descriptor(0, Access::Read).unwrap());
        let assigned = |version, zone| SegmentChange::Assigned { segment: 0, version, zone };
        assert_eq!(arena.take_changes(), [assigned(1, old)]);
        assert_eq!((arena.version(0), arena.zone(0)), (1, Some(old)));

        assert!(matches!(
            arena.allocate(new, 1),
            Err(AllocError::Full { len: 1, free_total: 0, largest_run: 0 })
        ));
        drop(extent);
        let extent = arena.allocate(new, SEGMENT).unwrap();
        assert_eq!(
            arena.take_changes(),
            [SegmentChange::Recycled { segment: 0, version: 1 }, assigned(2, new)]
        );
        assert_eq!((arena.version(0), arena.zone(0)), (2, Some(new)));
        assert!(read(&extent) == vec![0; SEGMENT as usize], "nothing of the old zone's bytes is left");

        extent.write(0, &[9; 100]).unwrap();
        assert_eq!(client_sees(arena.descriptor(0, Access::Read).unwrap(), 0, 100), [9; 100]);
        let blocks = rustix::fs::fstat(&stale).unwrap().st_blocks;
        let seen = client_sees(stale.as_fd(), 0, SEGMENT as usize);
        if old == ALICE {
            assert_eq!(blocks, 0, "its memory is back, although we hold it");
            assert!(seen.iter().all(|byte| *byte == 0));
        } else {
            assert!(seen == secret, "the seal forbids emptying it, and nothing new is in it");
        }
    }
}

#[test]
fn a_zone_keeps_its_own_segments_and_takes_unassigned_ones_first() {
    let mut arena = arena(3);
    let alice = arena.allocate(ALICE, 4096).unwrap();
    drop(alice);
    let _bob = arena.allocate(BOB, SEGMENT).unwrap();
    let alice = arena.allocate(ALICE, 4096).unwrap();
    let _engine = arena.allocate(ENGINE, 100).unwrap();
    let zones: Vec<_> = (0..3).map(|segment| arena.zone(segment)).collect();
    assert_eq!(zones, [Some(ALICE), Some(BOB), Some(ENGINE)]);
    assert!((0..3).all(|segment| arena.version(segment) == 1), "nothing had to be recycled");
    let usage = arena.usage();
    let of =
        |zone| usage.zones.iter().find(|usage| usage.zone == zone).map(|usage| (usage.segments, usage.used));
    assert_eq!((of(ALICE), of(BOB), of(ENGINE)), (Some((1, 4096)), Some((1, SEGMENT)), Some((1, 128))));
    assert_eq!((usage.used, usage.free), (4096 + SEGMENT + 128, 3 * SEGMENT - 4096 - SEGMENT - 128));
    drop(alice);
    assert_eq!(arena.usage().zones.len(), 3, "an idle zone keeps its segments until they are needed");
    let _more = arena.allocate(BOB, SEGMENT).unwrap();
    assert_eq!((arena.zone(0), arena.version(0)), (Some(BOB), 2));
    assert_eq!(arena.usage().zones.len(), 2);
}

#[test]
fn what_does_not_fit_is_refused_with_figures() {
    let mut arena = arena(2);
    let capacity = 2 * SEGMENT;
    for len in [capacity + 1, u64::MAX] {
        let refused = arena.allocate(ENGINE, len).unwrap_err();
        assert!(matches!(refused, AllocError::TooLarge { len: l, capacity: c } if (l, c) == (len, capacity)));
    }
    let hold = arena.allocate(ENGINE, capacity - 8192).unwrap();
    let refused = arena.allocate(ENGINE, 8193).unwrap_err();
    let expected = AllocError::Full { len: 8193, free_total: 8192, largest_run: 8192 };
    assert_eq!(refused.to_string(), expected.to_string());
    assert_eq!(arena.usage().largest_run, 8192);
    drop(hold);
    assert_eq!(arena.usage().largest_run, capacity);
    assert_eq!(segments(&arena.allocate(ENGINE, capacity).unwrap()), [0, 1]);
}

#[test]
fn small_extents_find_the_last_page() {
    let mut arena = arena(1);
    let _hold = arena.allocate(ENGINE, SEGMENT - 4096).unwrap();
    let small: Vec<Extent> = (0..64).map(|_| arena.allocate(ENGINE, 64).unwrap()).collect();
    assert!(matches!(arena.allocate(ENGINE, 64), Err(AllocError::Full { .. })));
    drop(small);
    assert!(arena.allocate(ENGINE, 4096).is_ok(), "an empty slab gives its page back");
}

#[test]
fn an_extent_outlives_its_arena() {
    let mut arena = arena(2);
    let (extent, memory) = (arena.allocate(ENGINE, SEGMENT + 1).unwrap(), arena.memory(0));
    extent.write(0, b"still here").unwrap();
    drop(arena);
    assert_eq!(&read(&extent)[..10], b"still here");
    drop(extent);
    let mut first = [0; 10];
    // SAFETY: ten bytes of a mapped segment, whose handle we hold.
    unsafe { ptr::copy_nonoverlapping(memory.base().as_ptr(), first.as_mut_ptr(), 10) };
    assert_eq!((&first, memory.len() as u64), (b"still here", SEGMENT));
}

#[test]
fn descriptors_are_for_assigned_segments() {
    let mut arena = arena(2);
    assert!(matches!(arena.descriptor(0, Access::Read), Err(ArenaError::Unassigned { segment: 0 })));
    assert!(matches!(
        arena.descriptor(2, Access::Read),
        Err(ArenaError::NoSuchSegment { segment: 2, count: 2 })
    ));
    let _extent = arena.allocate(BOB, 1).unwrap();
    assert!(arena.descriptor(0, Access::Read).is_ok() && arena.descriptor(0, Access::Write).is_ok());
    assert!(matches!(arena.descriptor(1, Access::Write), Err(ArenaError::Unassigned { segment: 1 })));
}

#[test]
fn segments_lie_side_by_side_in_memory() {
    let arena = arena(3);
    let base = |segment| arena.memory(segment).base().as_ptr().addr();
    assert_eq!(base(1) - base(0), SEGMENT as usize);
    assert_eq!(base(2) - base(1), SEGMENT as usize);
    assert_eq!(base(0) % (2 << 20), 0);
}

#[test]
fn memory_is_allocated_in_the_background() {
    const LARGE: u64 = 6 << 20;
    let allocated = |arena: &mut Arena, segment| {
        let descriptor = arena.descriptor(segment, Access::Read).unwrap();
        rustix::fs::fstat(descriptor).unwrap().st_blocks as u64 * 512
    };
    let wait = |arena: &mut Arena| {
        eventually("its memory is there", || arena.usage().prefaulted >= arena.capacity());
        assert_eq!(arena.usage().prefaulted, arena.capacity());
    };
    let huge_pages = HugePages::Never;
    let config = ArenaConfig {
        capacity: 2 * LARGE,
        segment_size: Some(LARGE),
        huge_pages,
        prefault: true,
        near: None,
        huge_allowance: None,
    };
    let mut arena = Arena::new(&config).unwrap();
    wait(&mut arena);
    drop((arena.allocate(ENGINE, 1).unwrap(), arena.allocate(ALICE, 1).unwrap()));
    assert_eq!((allocated(&mut arena, 0), allocated(&mut arena, 1)), (LARGE, LARGE));

    drop(arena.allocate(BOB, 1).unwrap());
    assert_eq!(arena.version(0), 2);
    wait(&mut arena);
    assert_eq!(allocated(&mut arena, 0), LARGE, "a recycled segment too");
}

#[test]
fn segments_ask_for_pages_of_their_memory_node() {
    if !std::path::Path::new("/proc/self/numa_maps").exists() {
        eprintln!("this kernel knows no memory nodes: there is nothing to ask for");
        return;
    }
    // Of a size that no other test's segments have.
    const ODD: u64 = 10 << 20;
    let policies = |arena: &Arena| {
        let base = arena.memory(0).base().as_ptr().addr();
        let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
        let ours = |segment: u32| format!("{:x} ", base + segment as usize * ODD as usize);
        let line = |segment| maps.lines().find_map(|line| line.strip_prefix(&ours(segment))).unwrap();
        [0, 1].map(|segment| line(segment).split(' ').next().unwrap().to_owned())
    };
    for (near, expected) in [(None, "default"), (Some(0), "prefer:0")] {
        let config = ArenaConfig {
            capacity: 2 * ODD,
            segment_size: Some(ODD),
            huge_pages: HugePages::Auto,
            huge_allowance: None,
            prefault: true,
            near,
        };
        let mut arena = Arena::new(&config).unwrap();
        for zone in [ALICE, BOB] {
            eventually("its memory is there", || arena.usage().prefaulted >= arena.capacity());
            // The thread drops its own policy before it is idle.
            eventually("the policy is as it was", || policies(&arena) == [expected; 2]);
            assert_eq!(arena.usage().elsewhere, 0);
            // Recycled segments as well.
            drop(arena.allocate(zone, arena.capacity()).unwrap());
        }
    }
    let nowhere = ArenaConfig {
        capacity: ODD,
        segment_size: Some(ODD),
        huge_pages: HugePages::Never,
        huge_allowance: None,
        prefault: false,
        near: Some(1023),
    };
    assert!(Arena::new(&nowhere).unwrap_err().to_string().contains("segment 0"));
}

#[test]
fn an_arena_can_go_while_it_is_being_populated_and_recycled() {
    let huge_pages = HugePages::Never;
    let config = ArenaConfig {
        capacity: 64 << 20,
        segment_size: Some(2 << 20),
        huge_pages,
        prefault: true,
        near: None,
        huge_allowance: None,
    };
    for rounds in 0..20 {
        let mut arena = Arena::new(&config).unwrap();
        for round in 0..rounds {
            let zone = if round % 2 == 0 { ENGINE } else { ALICE };
            let extent = arena.allocate(zone, arena.capacity()).unwrap();
            extent.write(extent.len() - 4, b"last").unwrap();
            assert!(arena.usage().prefaulted <= arena.capacity());
        }
    }
}

#[test]
fn a_limit_counts_bytes_and_not_pages() {
    let mut arena = arena(4);
    arena.limit(10_000);
    assert_eq!(arena.capacity(), 10_000);
    let refused = arena.allocate(ALICE, 10_001);
    assert!(matches!(refused, Err(AllocError::TooLarge { len: 10_001, capacity: 10_000 })), "{refused:?}");
    for zone in [ALICE, ENGINE, BOB] {
        let whole = arena.allocate(zone, 10_000).unwrap();
        assert!(matches!(arena.allocate(zone, 1), Err(AllocError::Full { free_total: 0, .. })));
        drop(whole);
    }
    let parts: Vec<_> = (0..100).map(|_| arena.allocate(ENGINE, 99).unwrap()).collect();
    assert!(matches!(arena.allocate(BOB, 101), Err(AllocError::Full { free_total: 100, .. })));
    let rest = arena.allocate(BOB, 100).unwrap();
    drop(parts);
    arena.allocate(ALICE, 9_900).unwrap();
    drop(rest);
    arena.allocate(ALICE, 10_000).unwrap();
    assert_eq!(arena.usage().capacity, 10_000);
}
