//! Costs of an extent beside its bytes: time to take it and to give it back, and heap. This measurement is
//! run by hand: `cargo test --release -p plasmon-node --test memory_cost -- --ignored --nocapture`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use plasmon_node::memory::{Arena, ArenaConfig, Domain, Extent, HugePages, Writer, Zone};

const ENGINE: Zone = Zone { domain: Domain::Shared, writer: Writer::Engine };
const CAPACITY: u64 = 2 << 30;

/// Counts the bytes of this process's heap.
struct Counting;

static HEAP: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HEAP.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Fills an arena with `count` extents, then frees one at random and takes another, again and again.
fn measure(len: u64, count: usize) {
    let huge_pages = HugePages::Never;
    let config = ArenaConfig {
        capacity: CAPACITY,
        segment_size: None,
        huge_pages,
        prefault: false,
        near: None,
        huge_allowance: None,
    };
    let mut arena = Arena::new(&config).unwrap();
    let mut extents: Vec<Extent> = Vec::with_capacity(count);
    let before = HEAP.load(Ordering::Relaxed);
    let start = Instant::now();
    extents.extend((0..count).map(|_| arena.allocate(ENGINE, len).unwrap()));
    let fill = start.elapsed().as_nanos() as f64 / count as f64;
    let heap = (HEAP.load(Ordering::Relaxed) - before) as f64 / count as f64;

    let (mut random, rounds) = (1u64, 2_000_000);
    let start = Instant::now();
    for _ in 0..rounds {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let which = (random >> 33) as usize % count;
        drop(extents.swap_remove(which));
        extents.push(arena.allocate(ENGINE, len).unwrap());
    }
    let exchange = start.elapsed().as_nanos() as f64 / f64::from(rounds);
    let start = Instant::now();
    drop(extents);
    assert_eq!(arena.usage().used, 0);
    let free = start.elapsed().as_nanos() as f64 / count as f64;
    println!(
        "{count} extents of {len} bytes: {fill:.0} ns to take one, {exchange:.0} to give one back and take \
         another, {free:.0} to give back all; {heap:.2} bytes of heap beside the extent's own {}",
        size_of::<Extent>()
    );
}

#[test]
#[ignore = "a measurement, of a release build and by hand"]
fn the_cost_of_an_extent() {
    measure(64, 10_000_000);
    measure(1000, 1_500_000);
    measure(4096, 500_000);
    measure(64 << 10, 30_000);
}
