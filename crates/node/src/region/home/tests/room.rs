//! Tests of regions among objects: what makes room leaves regions where they are.

use plasmon::wire::Operation;
use plasmon::{ErrorKind, ObjectId};

use super::*;
use plasmon::status::Status;

use crate::memory::{Domain, Extent, Writer, Zone};
use crate::object::{Head, Held, Role, Sealing};

const MIB: u64 = 1 << 20;
const ZONE: Zone = Zone { domain: Domain::Shared, writer: Writer::Engine };
/// Maximum number of turns until it is known that nothing can be moved.
const TURNS_TO_LOOK: usize = 1000;

/// Allocates room for an object, without waiting for others.
fn room(bench: &mut Bench, len: u64) -> Result<Extent, Error> {
    let store = Rc::clone(&bench.store);
    bench.run(async move { store.room(ZONE, len, Duration::ZERO).await })
}

/// Puts an object of this role, a primary or a cached replica.
fn put(bench: &mut Bench, role: Role, len: u64) -> ObjectId {
    let id = ObjectId::random();
    let head = Head {
        id,
        life: 1,
        user: OTHER,
        rights: plasmon::Rights::Read,
        data_len: len,
        metadata_len: 0,
        digest: 0,
        copies: 0,
        expires: 0,
        owned: false,
        name: Box::default(),
    };
    let extent = room(bench, len).unwrap_or_else(|error| panic!("{}", error.message()));
    let sealing = Sealing { head, role, creator: None, bytes: Held::Memory(extent), created: 0 };
    bench.store.seal(sealing).unwrap_or_else(|error| panic!("{error}"));
    id
}

/// Marks words all over a region. Returns a function that says whether the marks are still there.
fn marked(region: &Region) -> impl Fn() -> bool {
    let at = move |step: u64| step * (region.len() - 8) / 7 / 8 * 8;
    (0..8).for_each(|step| {
        let swap = Operation::Swap { offset: at(step), value: region.life() ^ step };
        region.carry_out(OWNER, swap, &[]).unwrap_or_else(|error| panic!("{error}"));
    });
    move || {
        (0..8).all(|step| {
            let read = Operation::Read { offset: at(step), len: 8 };
            let read = region.carry_out(OWNER, read, &[]).unwrap_or_else(|error| panic!("{error}"));
            read.data == (region.life() ^ step).to_ne_bytes()
        })
    }
}

#[test]
fn objects_move_together_around_regions() {
    let mut bench = bench();
    let (small, large) = (bench.make("small", 64), bench.make("large", 3 * MIB));
    let [small, large] = [&small, &large].map(|region| marked(region));
    // Two of the eight segments, of two MiB each, have regions, one of them in part. Objects fill the others.
    let objects: Vec<_> = (0..12).map(|_| put(&mut bench, Role::Primary, MIB)).collect();
    assert!(room(&mut bench, MIB).is_err_and(|error| error.kind() == ErrorKind::Full));
    objects.iter().step_by(2).for_each(|id| drop(bench.store.remove(id)));
    bench.store.reap();
    // Free memory lies in pieces until objects have moved.
    assert_eq!(bench.store.room.compacted.get(), 0);
    drop(room(&mut bench, 4 * MIB).unwrap_or_else(|error| panic!("{}", error.message())));
    assert!(bench.store.room.compacted.get() > 0 && small() && large());
    // A region for which only other regions could make room is refused, however much is free.
    let held = room(&mut bench, 4 * MIB).unwrap_or_else(|error| panic!("{}", error.message()));
    let full = room(&mut bench, 3 * MIB).expect_err("there is no piece");
    assert!(
        full.kind() == ErrorKind::Full && full.message().contains("regions: 3.0 MiB"),
        "{}",
        full.message()
    );
    assert!(small() && large());
    drop(held);
}

#[test]
fn cached_objects_make_way_for_a_region_but_not_in_vain() {
    let mut bench = bench_with(|config| config.region_memory = Some(MEMORY_BYTES));
    let region = bench.make("a", 8 * MIB);
    let is_marked = marked(&region);
    let cached: Vec<_> = (0..8).map(|_| put(&mut bench, Role::Cached, MIB)).collect();
    let here =
        |bench: &Bench| cached.iter().filter(|id| bench.store.objects.borrow().get(id).is_some()).count();
    assert_eq!((here(&bench), is_marked()), (8, true));
    // All cached objects together would not make room for this region.
    assert_eq!(failed(bench.try_make(wanted("b", 8 * MIB + 1), OWNER)), ErrorKind::Full);
    assert_eq!(here(&bench), 8);
    bench.make("b", 4 * MIB);
    assert!(here(&bench) < 8 && is_marked());
}

/// Fills the memory of a node with regions of one user, of `len` bytes each, and frees every other one.
/// Returns those that are left.
fn comb(bench: &mut Bench, len: u64, mappable: bool) -> Vec<Rc<Region>> {
    let one = |name: &str| Wanted { mappable, ..wanted(name, len) };
    let mut all = Vec::new();
    while let Ok(region) = bench.try_make(one(&format!("comb {}", all.len())), OWNER) {
        all.push(region);
    }
    let (kept, freed): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(nth, _)| nth % 2 == 0);
    for (_, region) in freed {
        bench.free(&region, OWNER).expect("the owner may");
    }
    kept.into_iter().map(|(_, region)| region).collect()
}

/// Makes a node whose regions may have all memory.
fn roomy() -> Bench {
    bench_with(|config| config.region_memory = Some(MEMORY_BYTES))
}

#[test]
fn a_region_lies_in_pieces_where_there_is_no_room_in_one() {
    let mut bench = roomy();
    let kept = comb(&mut bench, MIB / 2, true);
    let marks: Vec<_> = kept.iter().map(|region| marked(region)).collect();
    let free = MEMORY_BYTES / 2;
    assert_eq!(bench.store.regions.bytes(), free);
    assert_eq!(failed(bench.try_make(wanted("more", free + 1), OWNER)), ErrorKind::Full);
    assert_eq!((bench.store.regions.bytes(), bench.store.regions.in_pieces()), (free, 0));
    let region = bench.make("pieces", free - 3);
    let is_marked = marked(&region);
    let info = region.info(OWNER);
    assert_eq!((info.pieces, info.mappable, info.crowded_out), (16, true, false));
    assert_eq!((bench.store.regions.bytes(), bench.store.regions.in_pieces()), (2 * free - 3, 1));
    // All bytes are zero but for the marks, and words and bytes cross from piece to piece.
    let read = |offset, len| {
        let read = region.carry_out(OWNER, Operation::Read { offset, len }, &[]);
        read.unwrap_or_else(|error| panic!("{error}")).data
    };
    assert!(read(8, MIB / 4).iter().all(|byte| *byte == 0));
    for edge in (1..16).map(|nth| nth * MIB / 2) {
        let data: Vec<u8> = (0..100).map(|at| (edge / MIB) as u8 ^ at).collect();
        let write = Operation::Write { offset: edge - 51 };
        region.carry_out(OWNER, write, &data).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(read(edge - 51, 100), data);
        let add = Operation::FetchAdd { offset: edge, value: 1 };
        let before = region.carry_out(OWNER, add, &[]).unwrap_or_else(|error| panic!("{error}")).value;
        assert_eq!(before.to_ne_bytes(), data[51..59]);
    }
    assert!(is_marked() && marks.iter().all(|is_marked| is_marked()));
    let place = region.place(OWNER).expect("the owner may");
    assert_eq!((place.pieces.len(), place.pieces.iter().map(|piece| piece.1).sum()), (16, free - 3));
    assert!(place.segments.is_sorted_by(|one, next| one < next));
    // A region that was made in pieces leaves all of its memory.
    bench.free(&region, OWNER).expect("the owner may");
    assert_eq!((bench.store.regions.bytes(), bench.store.regions.in_pieces()), (free, 0));
    for region in &kept {
        bench.free(region, OWNER).expect("the owner may");
    }
    assert!(!bench.store.regions.lie_in(0..u32::MAX));
    assert_eq!(bench.make("whole", MEMORY_BYTES).info(OWNER).pieces, 1);
}

#[test]
fn who_gives_up_making_a_region_in_pieces_leaves_nothing() {
    let mut bench = roomy();
    let kept = comb(&mut bench, MIB / 2, true);
    let (free, home) = (MEMORY_BYTES / 2, Rc::clone(&bench.home));
    let (task, handle) = futures::future::abortable(async move { home.make(wanted("a", free), OWNER).await });
    let begun = bench.begin(task);
    // The home first looks for objects that could be moved.
    for _ in 0..TURNS_TO_LOOK {
        if bench.store.regions.bytes() < MEMORY_BYTES {
            bench.turn();
        }
    }
    assert_eq!(bench.store.regions.bytes(), MEMORY_BYTES);
    handle.abort();
    assert!(bench.end(begun).is_err());
    assert_eq!((bench.store.regions.bytes(), bench.store.regions.in_pieces()), (free, 0));
    assert_eq!(bench.make("a", free).info(OWNER).pieces, 16);
    drop(kept);
}

#[test]
fn a_region_that_waits_for_room_takes_pieces_when_there_are_enough() {
    let mut bench = roomy();
    let zone = Zone { domain: Domain::Private(OWNER), writer: Writer::Uid(OWNER) };
    let mut lent: Vec<_> = std::iter::from_fn(|| bench.store.allocate(zone, MIB / 2).ok()).collect();
    let mut nth = 0;
    lent.retain(|_| {
        nth += 1;
        nth % 2 == 0
    });
    let wanted = Wanted { room: Duration::from_secs(3600), ..wanted("patient", 9 * MIB) };
    let home = Rc::clone(&bench.home);
    let mut begun = bench.begin(async move { home.make(wanted, OWNER).await });
    for _ in 0..100 {
        bench.turn();
    }
    assert!(begun.try_recv().expect("the task is not dropped").is_none());
    // Memory that is lent lies between two pieces, which become one.
    drop((lent.swap_remove(9), lent.swap_remove(3)));
    let made = bench.end(begun).unwrap_or_else(|error| panic!("{error}")).0;
    assert_eq!(made.info(OWNER).pieces, 14);
}

#[test]
fn a_region_without_memory_to_be_mapped_lies_in_the_engines() {
    let mut bench = roomy();
    // All segments are the engine's, and have room in pieces.
    let kept = comb(&mut bench, MIB / 2, false);
    let mark = marked(&kept[0]);
    let small = bench.make("small", MIB / 2);
    let large = bench.make("large", 3 * MIB);
    for (region, pieces) in [(&small, 1), (&large, 6)] {
        let info = region.info(OWNER);
        assert_eq!((info.mappable, info.crowded_out, info.pieces), (false, true, pieces));
        assert_eq!(region.place(OWNER), None);
        assert!(marked(region)() && region.parted().mappable, "another home may have the memory for it");
    }
    assert!(mark() && !kept[0].info(OWNER).crowded_out);
    let mut status = Status::default();
    bench.home.report(&mut status);
    assert_eq!((status.regions.crowded_out, status.regions.in_pieces), (2, 1));
    for region in kept.iter().chain([&small, &large]) {
        bench.free(region, OWNER).expect("the owner may");
    }
    bench.home.report(&mut status);
    assert_eq!((status.regions.crowded_out, status.regions.in_pieces, status.regions.bytes), (0, 0, 0));
    assert!(bench.make("small", MIB).info(OWNER).mappable);
}

#[test]
fn a_user_has_no_more_regions_than_allowed() {
    let mut bench = bench_with(|config| config.user_regions = 2);
    let first = bench.make("a", 64);
    bench.make("b", 64);
    let full = bench.try_make(wanted("c", 64), OWNER).err().expect("two are the most");
    assert!(full.kind() == ErrorKind::Full && full.message().contains("--user-regions"), "{full}");
    let others = bench.try_make(wanted("c", 64), OTHER);
    others.unwrap_or_else(|error| panic!("another user has none: {error}"));
    bench.free(&first, OWNER).expect("the owner may");
    bench.make("a", 64);
    assert_eq!(failed(bench.try_make(wanted("d", 64), OWNER)), ErrorKind::Full);
}
