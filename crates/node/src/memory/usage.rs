//! The arena's reports to the engine. Plain values.

use super::zone::Zone;

/// A change of a segment: it came to a zone, or its memory is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentChange {
    /// The segment can hold extents of this zone from now on: the engine registers it.
    Assigned {
        /// The number of the segment.
        segment: u32,
        /// The version of the segment.
        version: u32,
        /// The zone of the segment.
        zone: Zone,
    },
    /// The segment's memory, held by no extent, is gone: the engine deregisters it and lets clients forget
    /// it.
    Recycled {
        /// The number of the segment.
        segment: u32,
        /// The version that has ended.
        version: u32,
    },
}

/// The usage of the arena, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// Number of bytes of the whole arena.
    pub capacity: u64,
    /// Number of bytes that extents take, rounded up to slots and pages.
    pub used: u64,
    /// Number of free bytes. Not all of them are available to every zone: see `largest_run`.
    pub free: u64,
    /// Number of bytes of the longest extent that some zone, or a new one, could get now.
    pub largest_run: u64,
    /// Number of bytes that the pre-fault thread has allocated so far of the segments' present memory.
    pub prefaulted: u64,
    /// Number of pre-faulted bytes that are not on the intended NUMA node.
    pub elsewhere: u64,
    /// Number of bytes in segments of the pool's huge pages.
    pub huge: u64,
    /// Number of bytes in transparent huge pages that the pre-fault thread asked for and got.
    pub transparent: u64,
    /// The usage of every zone that has segments.
    pub zones: Vec<ZoneUsage>,
}

/// The usage of one zone's segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneUsage {
    /// The zone.
    pub zone: Zone,
    /// Number of segments of the zone.
    pub segments: u32,
    /// Number of bytes that the zone's extents take.
    pub used: u64,
}
