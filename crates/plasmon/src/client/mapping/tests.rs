//! Tests of the mappings of segments: what a client accepts from a daemon, and what it keeps.

use std::os::fd::AsFd;

use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::*;

const SEGMENT: usize = 4 << 20;

/// Makes a segment as the daemon does: its size is fixed.
fn segment(len: usize) -> OwnedFd {
    let memory = memfd_create("segment", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, len as u64).unwrap();
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    memory
}

fn granted(segment: u32, version: u32, access: Access) -> Granted {
    Granted { segment, version, access }
}

fn again(descriptor: &OwnedFd) -> OwnedFd {
    descriptor.as_fd().try_clone_to_owned().unwrap()
}

/// Makes an arena of three segments, the last two granted for reading and writing.
fn arena() -> Arc<Arena> {
    let arena = Arena::reserve(SEGMENT as u64, 3).unwrap();
    for number in [1, 2] {
        let memory = segment(SEGMENT);
        arena.grant(granted(number, 1, Access::Read), again(&memory)).unwrap();
        arena.grant(granted(number, 1, Access::Write), memory).unwrap();
    }
    Arc::new(arena)
}

#[test]
fn what_is_written_over_two_segments_is_read_as_one_slice() {
    let arena = arena();
    // Neither start nor end is at the border of a page.
    let span = Span { offset: (2 * SEGMENT - 5000) as u64, data_len: 9001, metadata_len: 7, digest: 0 };
    let data: Vec<u8> = (0..9001).map(|n| (n % 251) as u8).collect();

    let mut writable = arena.writable(span).unwrap();
    writable.bytes_mut().copy_from_slice(&data);
    writable.freeze().unwrap();

    let view = arena.view(span).unwrap();
    assert_eq!(view.data(), data);
    assert_eq!(view.metadata(), [0; 7]);
    assert!(arena.view(span).unwrap().data().as_ptr() == view.data().as_ptr());
}

#[test]
fn frozen_memory_outlives_its_handle_and_cannot_be_written_through_it() {
    let arena = arena();
    let span = Span { offset: SEGMENT as u64, data_len: 100, metadata_len: 0, digest: 0 };
    let mut writable = arena.writable(span).unwrap();
    assert!(writable.memory().is_writable());
    writable.bytes_mut().fill(3);
    writable.freeze().unwrap();
    assert!(writable.bytes_mut().is_empty());

    let memory = Arc::clone(writable.memory());
    drop(writable);
    assert!(!memory.is_writable());
    assert_eq!(memory.len(), 100);
    // SAFETY: the holder keeps the memory mapped, and no thread writes to it.
    assert_eq!(unsafe { slice::from_raw_parts(memory.as_ptr(), 100) }, [3; 100]);
    assert_eq!(access_of(memory.as_ptr()), "r--s");
}

/// Access that the kernel allows at an address: the second field of its line in /proc/self/maps.
fn access_of(address: *const u8) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let parse = |text| usize::from_str_radix(text, 16).unwrap();
    let line = maps.lines().find(|line| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        (parse(start)..parse(end)).contains(&(address as usize))
    });
    line.unwrap().split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn views_are_read_only_and_the_rest_of_the_arena_is_no_memory() {
    let arena = arena();
    let view = arena.view(Span { offset: SEGMENT as u64, data_len: 1, metadata_len: 0, digest: 0 }).unwrap();
    assert_eq!(access_of(view.data().as_ptr()), "r--s");
    assert_eq!(access_of(arena.range.at(0)), "---p");
}

#[test]
fn a_new_version_replaces_the_old_one() {
    let arena = arena();
    let span = Span { offset: SEGMENT as u64, data_len: 4, metadata_len: 0, digest: 0 };
    let mut old = arena.writable(span).unwrap();
    old.bytes_mut().copy_from_slice(b"old!");
    assert_eq!(arena.view(span).unwrap().data(), b"old!");

    let memory = segment(SEGMENT);
    arena.grant(granted(1, 2, Access::Read), again(&memory)).unwrap();
    assert_eq!(arena.view(span).unwrap().data(), [0; 4]);
    arena.grant(granted(1, 2, Access::Write), memory).unwrap();
    arena.writable(span).unwrap().bytes_mut().copy_from_slice(b"new!");
    assert_eq!(arena.view(span).unwrap().data(), b"new!");
    assert_eq!(old.bytes(), b"old!", "a creation keeps the memory it has");
}

#[test]
fn what_was_granted_in_another_version_cannot_be_written() {
    let arena = arena();
    let over_both = Span { offset: 2 * SEGMENT as u64 - 1, data_len: 2, metadata_len: 0, digest: 0 };
    assert!(arena.may_write(over_both, |_| 1).unwrap());
    assert!(!arena.may_write(over_both, |segment| segment).unwrap(), "segment 2 has version 2 by now");
    arena.grant(granted(2, 2, Access::Write), segment(SEGMENT)).unwrap();
    assert!(arena.may_write(over_both, |segment| segment).unwrap());

    let never_granted = Span { offset: 0, data_len: 1, metadata_len: 0, digest: 0 };
    assert!(!arena.may_write(never_granted, |_| 1).unwrap());
    assert!(arena.may_write(Span { offset: 4 * SEGMENT as u64, ..over_both }, |_| 1).is_err(), "outside");
}

#[test]
fn spans_outside_what_was_granted_are_refused() {
    let arena = arena();
    let end = 3 * SEGMENT as u64;
    for (offset, data_len, metadata_len) in [
        (end, 1, 0),
        (end - 1, 1, 1),
        (end - 1, 2, 0),
        (u64::MAX, 1, 1),
        (0, u64::MAX, 1),
        (SEGMENT as u64 - 1, 1, 1),
        (0, 1, 0),
    ] {
        let span = Span { offset, data_len, metadata_len, digest: 0 };
        assert!(arena.view(span).is_err(), "{span:?} can be read");
    }
    assert!(arena.writable(Span { offset: 5, data_len: 1, metadata_len: 0, digest: 0 }).is_err());
    assert!(arena.writable(Span { offset: end - 1, data_len: 2, metadata_len: 0, digest: 0 }).is_err());
    let empty = Span { offset: end, data_len: 0, metadata_len: 0, digest: 0 };
    assert!(arena.view(empty).unwrap().data().is_empty());
    assert!(arena.writable(empty).unwrap().bytes_mut().is_empty());
}

#[test]
fn descriptors_that_could_fault_later_are_refused() {
    let arena = arena();
    let error = arena.grant(granted(0, 1, Access::Read), segment(SEGMENT - 4096)).unwrap_err();
    assert!(error.to_string().contains("instead of"), "{error}");
    assert!(arena.grant(granted(3, 1, Access::Read), segment(SEGMENT)).is_err(), "no such segment");

    let unsealed = memfd_create("segment", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&unsealed, SEGMENT as u64).unwrap();
    assert!(arena.grant(granted(0, 1, Access::Write), unsealed).is_err(), "it can shrink");
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    assert!(arena.grant(granted(0, 1, Access::Read), reader).is_err(), "no memory at all");
}

#[test]
fn arenas_that_make_no_sense_are_refused() {
    for (segment_size, segments) in [(0, 1), (4096, 0), (4097, 1), (2 << 40, 64), (4096, 65), (u64::MAX, 2)] {
        assert!(Arena::reserve(segment_size, segments).is_err(), "{segments} of {segment_size}");
    }
}

#[test]
fn addresses_are_aligned_as_the_arena_is() {
    let arena = Arena::reserve(SEGMENT as u64, 2).unwrap();
    assert!((arena.range.at(0) as usize).is_multiple_of(SEGMENT));
    let range = Range::reserve(8192, SEGMENT + 4096, SEGMENT).unwrap();
    assert_eq!(range.at(0) as usize % SEGMENT, 4096);
}

/// Creation of a whole number of pages in the second segment, filled with a byte.
fn filled(arena: &Arc<Arena>, page: usize, pages: usize, byte: u8) -> Writable {
    let mut creation = arena.creation(pages_at(page, pages)).unwrap();
    creation.bytes_mut().fill(byte);
    creation
}

fn pages_at(page: usize, pages: usize) -> Span {
    let (offset, data_len) = (SEGMENT + page * page_size(), pages * page_size());
    Span { offset: offset as u64, data_len: data_len as u64, metadata_len: 0, digest: 0 }
}

#[test]
fn creations_that_nobody_holds_are_mapped_once_and_never_protected() {
    let arena = arena();
    let mut one = filled(&arena, 0, 2, 1);
    let address = one.memory().as_ptr();
    one.freeze().unwrap();
    assert!(one.bytes_mut().is_empty());
    assert_eq!(access_of(address), "rw-s");
    drop(one);
    let next = filled(&arena, 0, 3, 2);
    assert_eq!(next.memory().as_ptr(), address);
    arena.write(pages_at(3, 1), &[(0, &[3])]).unwrap();
    // SAFETY: the arena keeps its range, and no thread writes there.
    assert_eq!(unsafe { *address.add(3 * page_size()) }, 3, "puts are copied into the same mapping");
}

#[test]
fn what_is_held_after_the_seal_is_read_only_until_it_is_let_go() {
    let arena = arena();
    let (mut before, mut creation) = (filled(&arena, 1, 1, 1), filled(&arena, 2, 2, 2));
    let memory = Arc::clone(creation.memory());
    creation.freeze().unwrap();
    drop(creation);
    assert_eq!(access_of(memory.as_ptr()), "r--s");
    before.bytes_mut().fill(3);
    assert_eq!(access_of(memory.as_ptr().wrapping_sub(1)), "rw-s", "others are written on");

    // The object is deleted, and others come to lie there.
    let whole = pages_at(0, 8);
    arena.write(whole, &[(1, &[7; 4]), (8 * page_size() - 1, &[9])]).unwrap();
    let mut expected = vec![0; 8 * page_size()];
    expected[1..5].fill(7);
    expected[8 * page_size() - 1] = 9;
    assert_eq!(arena.view(whole).unwrap().data(), expected);
    let mut apart = filled(&arena, 3, 5, 5);
    let other = Arc::clone(apart.memory());
    apart.freeze().unwrap();
    drop(apart);
    assert_eq!([access_of(memory.as_ptr()), access_of(other.as_ptr())], ["r--s", "r--s"]);
    assert!(arena.view(pages_at(3, 5)).unwrap().data().iter().all(|byte| *byte == 5));

    let (address, outside) = (memory.as_ptr(), filled(&arena, 2, 1, 6).memory().as_ptr());
    assert_ne!(address, outside);
    drop((memory, other));
    assert_eq!(access_of(address), "rw-s");
    assert_eq!(filled(&arena, 2, 1, 6).memory().as_ptr(), address);
}

#[test]
fn what_is_held_stays_read_only_in_a_new_version_of_its_segment() {
    let arena = arena();
    let mut creation = filled(&arena, 2, 2, 2);
    let memory = Arc::clone(creation.memory());
    creation.freeze().unwrap();
    drop(creation);
    let renewed = segment(SEGMENT);
    arena.grant(granted(1, 2, Access::Read), again(&renewed)).unwrap();
    arena.grant(granted(1, 2, Access::Write), renewed).unwrap();

    let next = filled(&arena, 4, 1, 4);
    assert_eq!(arena.view(pages_at(4, 1)).unwrap().data()[0], 4);
    assert_eq!(access_of(memory.as_ptr()), "r--s");
    assert_eq!(access_of(next.memory().as_ptr()), "rw-s");
    assert_eq!(access_of(memory.as_ptr().wrapping_sub(1)), "rw-s");
    let address = memory.as_ptr();
    drop(memory);
    assert_eq!(access_of(address), "rw-s");
}

#[test]
fn memory_of_small_creations_is_used_again_unless_it_is_held() {
    let arena = arena();
    let mut small = Writable::spare(&arena, 100).unwrap();
    let address = small.memory().as_ptr();
    small.bytes_mut().fill(1);
    small.freeze().unwrap();
    drop(small);
    let mut again = Writable::spare(&arena, 64 << 10).unwrap();
    assert_eq!(again.memory().as_ptr(), address);
    let memory = Arc::clone(again.memory());
    again.freeze().unwrap();
    drop(again);
    assert_eq!(access_of(address), "r--p");
    let other = Writable::spare(&arena, 1).unwrap();
    assert_ne!(other.memory().as_ptr(), address);
    drop(memory);
    assert_ne!(Writable::spare(&arena, 1).unwrap().memory().as_ptr(), other.memory().as_ptr());
}
