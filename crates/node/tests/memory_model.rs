//! Random allocations, frees and clearings across zones, compared with a simple model: a list of live
//! extents.

use std::collections::HashMap;
use std::ops::Range;

use plasmon_node::memory::{
    AllocError, Arena, ArenaConfig, Clearing, Domain, Extent, HugePages, SegmentChange, Writer, Zone,
};
use proptest::prelude::*;

const SEGMENT: u64 = 128 << 10;
const SEGMENTS: u64 = 8;
const PAGE: u64 = 4096;
/// Greatest length of a small extent, which lies in a slab.
const SMALL: u64 = 3584;
/// Greatest distance to which a small extent's slab reaches.
const SLAB: u64 = 64 << 10;

const ZONES: [Zone; 4] = [
    Zone { domain: Domain::Shared, writer: Writer::Engine },
    Zone { domain: Domain::Shared, writer: Writer::Uid(1000) },
    Zone { domain: Domain::Private(1000), writer: Writer::Engine },
    Zone { domain: Domain::Private(1001), writer: Writer::Uid(1001) },
];

#[derive(Debug, Clone)]
enum Step {
    Allocate {
        zone: usize,
        len: u64,
    },
    /// Drop one of the live extents.
    Free {
        which: usize,
    },
    /// Drop all extents of a zone.
    Empty {
        zone: usize,
    },
    /// Withhold the cheapest window for that many bytes, unless there is one already.
    Begin {
        len: u64,
    },
    /// Move the extents of the window out, and let a zone have the window.
    End {
        zone: usize,
    },
}

fn steps(len: impl Strategy<Value = u64> + 'static) -> impl Strategy<Value = Vec<Step>> {
    let allocate = (0..ZONES.len(), len).prop_map(|(zone, len)| Step::Allocate { zone, len });
    let free = any::<usize>().prop_map(|which| Step::Free { which });
    let empty = (0..ZONES.len()).prop_map(|zone| Step::Empty { zone });
    let begin = (1..=4 * SEGMENT).prop_map(|len| Step::Begin { len });
    let end = (0..ZONES.len()).prop_map(|zone| Step::End { zone });
    prop::collection::vec(prop_oneof![24 => allocate, 16 => free, 2 => empty, 3 => begin, 3 => end], 1..150)
}

fn large() -> impl Strategy<Value = u64> {
    prop_oneof![6 => SMALL + 1..40_000, 3 => SMALL + 1..3 * SEGMENT, 1 => SMALL + 1..=SEGMENTS * SEGMENT]
}

fn any_length() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..=SMALL, 4 => large()]
}

struct Live {
    extent: Extent,
    zone: Zone,
    /// The value of its first and last bytes.
    mark: u8,
}

struct Model {
    arena: Arena,
    live: Vec<Live>,
    /// The zone of each segment, as the arena's changes tell it.
    zones: HashMap<u32, Zone>,
    versions: HashMap<u32, u32>,
    marks: u8,
    /// The window that is being cleared, and the number of bytes that it is for.
    clearing: Option<(Clearing, u64)>,
}

impl Model {
    fn new() -> Model {
        let arena = Arena::new(&ArenaConfig {
            capacity: SEGMENTS * SEGMENT,
            segment_size: Some(SEGMENT),
            huge_pages: HugePages::Never,
            prefault: true,
            near: None,
            huge_allowance: None,
        });
        Model {
            arena: arena.unwrap(),
            live: vec![],
            zones: HashMap::new(),
            versions: HashMap::new(),
            marks: 0,
            clearing: None,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Allocate { zone, len } => self.allocate(ZONES[zone], len),
            Step::Free { which } if !self.live.is_empty() => {
                let live = self.live.swap_remove(which % self.live.len());
                check_marks(&live);
            }
            Step::Free { .. } => {}
            Step::Empty { zone } => self.live.retain(|live| {
                check_marks(live);
                live.zone != ZONES[zone]
            }),
            Step::Begin { len } => self.begin(len),
            Step::End { zone } => self.end(ZONES[zone]),
        }
        let used: u64 = self.live.iter().map(|live| taken(&live.extent).1).sum();
        let usage = self.arena.usage();
        assert!(usage.used >= used, "{usage:?} with {used} in live extents");
        assert_eq!(usage.used + usage.free, usage.capacity);
        assert_eq!(usage.zones.iter().map(|zone| zone.used).sum::<u64>(), usage.used);
    }

    fn begin(&mut self, len: u64) {
        if self.clearing.is_some() {
            return;
        }
        let clearings = self.arena.clearings(len);
        assert!(clearings.is_sorted_by_key(|clearing| clearing.used));
        for Clearing { segments, used } in &clearings {
            assert!(segments.len() as u64 * SEGMENT >= len && u64::from(segments.end) <= SEGMENTS);
            assert!(*used >= self.live.iter().map(|live| inside(&live.extent, segments)).sum());
        }
        if let Some(clearing) = clearings.into_iter().next() {
            self.arena.begin_clearing(&clearing);
            self.clearing = Some((clearing, len));
        }
    }

    /// Moves each extent of the window to its domain's engine-written zone, as the engine does.
    fn end(&mut self, zone: Zone) {
        let Some((clearing, len)) = self.clearing.clone() else { return };
        let lies_inside = |live: &Live| inside(&live.extent, &clearing.segments) > 0;
        let moved = loop {
            let Some(which) = self.live.iter().position(lies_inside) else { break true };
            let Live { extent, zone, .. } = &self.live[which];
            let before = self.live.len();
            self.allocate(Zone { writer: Writer::Engine, ..*zone }, extent.len());
            if self.live.len() == before {
                break false;
            }
            check_marks(&self.live.swap_remove(which));
        };
        self.clearing = None;
        self.arena.end_clearing();
        if moved {
            let before = self.live.len();
            self.allocate(zone, len);
            assert_eq!(self.live.len(), before + 1, "no room for {len} bytes in {clearing:?}");
        }
    }

    fn allocate(&mut self, zone: Zone, len: u64) {
        let possible = self.largest_run(zone);
        match self.arena.allocate(zone, len) {
            Ok(extent) => self.admit(zone, len, extent),
            Err(AllocError::Full { len: refused, largest_run, .. }) => {
                assert_eq!(refused, len);
                assert!(len.max(1) > possible, "{len} bytes refused with a run of {possible}");
                assert!(largest_run >= possible && largest_run < len.max(1));
                self.follow_changes();
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn admit(&mut self, zone: Zone, len: u64, extent: Extent) {
        self.follow_changes();
        assert_eq!(extent.len(), len);
        let (offset, taken_bytes) = taken(&extent);
        assert!(offset % if len > SMALL { PAGE } else { 64 } == 0, "{extent:?}");
        assert!(offset + taken_bytes <= self.arena.capacity());
        for live in &self.live {
            let (other, bytes) = taken(&live.extent);
            assert!(
                offset + taken_bytes <= other || other + bytes <= offset,
                "{extent:?} on {:?}",
                live.extent
            );
        }
        if let Some((clearing, _)) = &self.clearing {
            assert_eq!(inside(&extent, &clearing.segments), 0, "{extent:?} in {clearing:?}");
        }
        for segment in extent.segments() {
            assert_eq!((self.zones.get(&segment), self.arena.zone(segment)), (Some(&zone), Some(zone)));
        }
        assert!(len > SMALL || extent.segments().count() == 1);
        let mut at = offset;
        for (piece, segment) in extent.pieces().zip(extent.segments()) {
            assert_eq!((piece.segment, u64::from(segment) * SEGMENT + piece.offset), (segment, at));
            at += piece.len;
        }
        assert_eq!(at, offset + len);
        self.marks = self.marks.wrapping_add(1);
        let live = Live { extent, zone, mark: self.marks };
        for at in ends(len) {
            live.extent.write(at, &[live.mark]).unwrap();
        }
        self.live.push(live);
    }

    /// Checks that a segment changes its zone only while no extent lies in the segment.
    fn follow_changes(&mut self) {
        for change in self.arena.take_changes() {
            match change {
                SegmentChange::Recycled { segment, version } => {
                    assert_eq!(version, *self.versions.get(&segment).unwrap_or(&1));
                    assert!(self.zones.remove(&segment).is_some());
                    let withheld = self.clearing.as_ref().map(|(clearing, _)| &clearing.segments);
                    assert!(withheld.is_none_or(|segments| !segments.contains(&segment)));
                    assert!(self.live.iter().all(|live| !live.extent.segments().any(|one| one == segment)));
                    self.versions.insert(segment, version + 1);
                }
                SegmentChange::Assigned { segment, version, zone } => {
                    assert_eq!(version, *self.versions.get(&segment).unwrap_or(&1));
                    assert_eq!(self.zones.insert(segment, zone), None);
                }
            }
        }
    }

    /// Length of the longest run that is certainly free for a zone: pages far from any live extent, in
    /// segments that belong to the zone or are empty.
    fn largest_run(&self, zone: Zone) -> u64 {
        let capacity = SEGMENTS * SEGMENT;
        let mut possible = vec![true; (capacity / PAGE) as usize];
        let mut block = |range: Range<u64>| {
            let pages = (range.start / PAGE) as usize..range.end.min(capacity).div_ceil(PAGE) as usize;
            possible[pages].fill(false);
        };
        if let Some((clearing, _)) = &self.clearing {
            block(u64::from(clearing.segments.start) * SEGMENT..u64::from(clearing.segments.end) * SEGMENT);
        }
        for live in &self.live {
            let (offset, bytes) = taken(&live.extent);
            let range = if live.extent.len() > SMALL {
                offset..offset + bytes
            } else {
                offset.saturating_sub(SLAB)..offset + SLAB
            };
            if live.zone != zone {
                let first = range.start / SEGMENT * SEGMENT;
                block(first..range.end.next_multiple_of(SEGMENT));
            } else {
                block(range);
            }
        }
        possible.split(|possible| !possible).map(|run| run.len() as u64 * PAGE).max().unwrap_or(0)
    }
}

/// Number of bytes of some segments that certainly belong to an extent.
fn inside(extent: &Extent, segments: &Range<u32>) -> u64 {
    let (offset, bytes) = taken(extent);
    let (start, end) = (u64::from(segments.start) * SEGMENT, u64::from(segments.end) * SEGMENT);
    (offset + bytes).min(end).saturating_sub(offset.max(start))
}

/// Start of an extent, and the number of bytes that certainly belong to it.
fn taken(extent: &Extent) -> (u64, u64) {
    let granule = if extent.len() > SMALL { PAGE } else { 64 };
    (extent.offset(), extent.len().max(1).next_multiple_of(granule))
}

fn ends(len: u64) -> impl Iterator<Item = u64> {
    [0, len.saturating_sub(1)].into_iter().filter(move |at| *at < len)
}

fn check_marks(live: &Live) {
    for at in ends(live.extent.len()) {
        let mut byte = [0];
        live.extent.read(at, &mut byte).unwrap();
        assert_eq!(byte, [live.mark], "{:?} at {at}", live.extent);
    }
}

fn run(steps: &[Step]) {
    let mut model = Model::new();
    for step in steps {
        model.step(step);
    }
    model.live.drain(..).for_each(|live| check_marks(&live));
    model.end(ZONES[0]);
    model.live.clear();
    let usage = model.arena.usage();
    let capacity = usage.capacity;
    assert_eq!((usage.used, usage.free, usage.largest_run), (0, capacity, capacity));
    for zone in ZONES {
        model.allocate(zone, capacity);
        assert_eq!(model.live.len(), 1, "every zone can have all of an empty arena");
        model.live.clear();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// With large extents alone the model knows exactly what is free.
    #[test]
    fn large_extents_never_overlap_and_always_find_a_run(steps in steps(large())) {
        run(&steps);
    }

    #[test]
    fn extents_of_all_sizes_never_overlap_and_find_a_run(steps in steps(any_length())) {
        run(&steps);
    }
}
