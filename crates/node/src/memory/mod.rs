//! The arena: the memory of a node in which its objects live.
//!
//! This module owns one contiguous range of addresses cut in equal *segments* (each one sealed memfd), and
//! the allocator that hands out *extents* of it. It runs on the engine thread; the only other thread
//! pre-faults pages in the background (`prefault`).
//!
//! Invariants:
//! - Every segment belongs to at most one [`Zone`] at a time: a domain that may read it and one
//!   writer. An extent lies in segments of its own zone only.
//! - Seals and mode are in place before the first descriptor of a segment leaves: it can neither
//!   shrink nor grow, its mode is 0400, and in an engine-written segment the kernel refuses every
//!   writable mapping but the engine's own, made before the seal.
//! - A segment that passes to another zone is destroyed and replaced by a fresh memfd at the same place
//!   with a higher version. A client that still holds the old descriptor sees old bytes only.
//! - In an arena of huge pages, segments that another uid writes are of base pages: the writer of a huge
//!   page could take it away, and kill the engine by that.
//! - All bookkeeping lives on this process's heap, never in shared memory.
//!
//! The memory of a replaced segment returns to the system once the last client unmaps it. An engine-written
//! segment cannot be emptied earlier: its seal forbids punching holes, to the engine as well.
//!
//! Read in this order: `zone`, `config`, `arena`, `extent`, `io`, then `memfd`, `mapping`, `prefault`,
//! and the allocator: `pages`, `slabs`, `placement`.

mod allowance;
mod arena;
mod blocks;
mod config;
mod error;
mod extent;
mod foreign;
mod heap;
mod io;
mod mapping;
mod memfd;
mod pages;
mod placement;
pub(crate) mod policy;
mod prefault;
mod slabs;
mod system;
mod usage;
mod zone;

pub use allowance::{Allowance, BESIDE_BYTES, SPARE_BYTES};
pub use arena::{Arena, Clearing};
pub(crate) use blocks::BlockMemory;
pub use config::{ArenaConfig, HugePages};
pub use error::{AllocError, ArenaError, OutOfBounds, SegmentError};
pub(crate) use extent::Home;
pub use extent::{Extent, Piece, Run};
pub(crate) use foreign::ForeignMemory;
pub(crate) use heap::Heap;
#[cfg(all(test, target_env = "gnu"))]
pub(crate) use heap::taken;
pub use io::IoRange;
pub use mapping::SegmentMemory;
pub use system::PageKind;
pub use usage::{SegmentChange, Usage, ZoneUsage};
pub use zone::{Access, Domain, Writer, Zone};

/// Granule of large extents, in bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;
