//! Tests of regions among objects: what makes room leaves regions where they are.

use plasmon::wire::Operation;
use plasmon::{ErrorKind, ObjectId};

use super::*;
use crate::memory::{Domain, Extent, Writer, Zone};
use crate::object::{Head, Held, Role, Sealing};

const MIB: u64 = 1 << 20;
const ZONE: Zone = Zone { domain: Domain::Shared, writer: Writer::Engine };

/// Room for an object, without waiting for others.
fn room(bench: &mut Bench, len: u64) -> Result<Extent, Error> {
    let store = Rc::clone(&bench.store);
    bench.run(async move { store.room(ZONE, len, Duration::ZERO).await })
}

/// Puts a primary, or a cached replica.
fn put(bench: &mut Bench, role: Role, len: u64) -> ObjectId {
    let id = ObjectId::random();
    let head = Head {
        id,
        life: 1,
        tenant: OTHER,
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

/// Marks words all over a region; returns what says whether they are still marked.
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
    // Of the eight segments of two MiB regions have two, one of them in part. Objects fill the others.
    let objects: Vec<_> = (0..12).map(|_| put(&mut bench, Role::Primary, MIB)).collect();
    assert!(room(&mut bench, MIB).is_err_and(|error| error.kind() == ErrorKind::Full));
    objects.iter().step_by(2).for_each(|id| drop(bench.store.remove(id)));
    bench.store.reap();
    // Free memory lies in pieces until objects have moved.
    assert_eq!(bench.store.room.compacted.get(), 0);
    drop(room(&mut bench, 4 * MIB).unwrap_or_else(|error| panic!("{}", error.message())));
    assert!(bench.store.room.compacted.get() > 0 && small() && large());
    // What only regions could make room for is refused, however much is free.
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
    // All of them together would not make room for this one.
    assert_eq!(failed(bench.try_make(wanted("b", 8 * MIB + 1), OWNER)), ErrorKind::Full);
    assert_eq!(here(&bench), 8);
    bench.make("b", 4 * MIB);
    assert!(here(&bench) < 8 && is_marked());
}
