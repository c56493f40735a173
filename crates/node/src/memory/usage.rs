//! What the arena tells the engine about itself. Plain values.

use super::zone::Zone;

/// A segment came to a zone, or its memory is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentChange {
    /// It can hold extents of this zone from now on: register it.
    Assigned {
        /// The segment.
        segment: u32,
        /// Its version.
        version: u32,
        /// Its zone.
        zone: Zone,
    },
    /// Its memory, held by no extent, is gone: deregister it and let clients forget it.
    Recycled {
        /// The segment.
        segment: u32,
        /// The version that has ended.
        version: u32,
    },
}

/// How the arena is used, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// The whole arena.
    pub capacity: u64,
    /// What extents take up, rounded up to slots and pages.
    pub used: u64,
    /// The rest. Not all of it is there for every zone: see `largest_run`.
    pub free: u64,
    /// The longest extent that some zone, or a new one, could get now.
    pub largest_run: u64,
    /// Allocated ahead of use so far, by the pre-fault thread, of the segments' present memory.
    pub prefaulted: u64,
    /// Bytes of them that are not on the NUMA node that they should be on.
    pub elsewhere: u64,
    /// In segments of the pool's huge pages.
    pub huge: u64,
    /// In transparent huge pages that the pre-fault thread asked for and got.
    pub transparent: u64,
    /// Every zone that has segments.
    pub zones: Vec<ZoneUsage>,
}

/// How one zone uses its segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneUsage {
    /// The zone.
    pub zone: Zone,
    /// How many segments it has.
    pub segments: u32,
    /// What its extents take up, in bytes.
    pub used: u64,
}
