//! What can go wrong with the arena, and what to do about it.

use std::io;

use bytesize::ByteSize;
use rustix::io::Errno;

use super::zone::Zone;

/// The arena cannot be set up, or a descriptor cannot be given out.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// No memory was asked for.
    #[error("the arena cannot have 0 bytes: give it a size with --memory, such as --memory 4GiB")]
    ZeroCapacity,
    /// The segment size does not suit the page size.
    #[error("segment size {size} is not a positive multiple of {granule} bytes: choose one that is")]
    SegmentSize {
        /// The size asked for, in bytes.
        size: u64,
        /// What it has to be a multiple of, in bytes.
        granule: u64,
    },
    /// The segments would be too many to number.
    #[error("{count} segments of {segment_size} bytes are too many: choose larger segments or less --memory")]
    TooManySegments {
        /// How many there would be.
        count: u64,
        /// Their size in bytes.
        segment_size: u64,
    },
    /// The host has less memory than asked for.
    #[error(
        "an arena of {} ({capacity} bytes) does not fit in the {} ({available} bytes) of memory this host \
         has available: lower --memory or free memory",
        ByteSize(*capacity), ByteSize(*available)
    )]
    NotEnoughMemory {
        /// Bytes asked for, in whole segments.
        capacity: u64,
        /// Bytes available (MemAvailable).
        available: u64,
    },
    /// The control groups of the process allow less memory than that.
    #[error(
        "a node with {} ({capacity} bytes) of memory for objects, and {} beside them, does not fit in the \
         {} ({limit} \
         bytes) that it may have ({file}; {} of it used): raise the limit (--memory of docker, MemoryMax= \
         of systemd, resources.limits.memory of Kubernetes) or lower --memory",
        ByteSize(*capacity), ByteSize(*beside), ByteSize(*limit), ByteSize(*used)
    )]
    NotAllowed {
        /// Bytes asked for, in whole segments.
        capacity: u64,
        /// Bytes that the node needs beside them.
        beside: u64,
        /// Bytes that all processes of the group may have.
        limit: u64,
        /// Bytes that they have.
        used: u64,
        /// The file that has the limit.
        file: String,
    },
    /// Huge pages are required and cannot be had.
    #[error("huge pages are required for the arena but {reason}")]
    HugePages {
        /// Why not, and what to do.
        reason: String,
    },
    /// The memory figures of the host cannot be read.
    #[error("cannot read the host's memory figures from /proc/meminfo (is /proc mounted?): {0}")]
    Meminfo(#[source] io::Error),
    /// The kernel does not keep others from writing into a sealed segment.
    #[error(
        "this kernel does not enforce F_SEAL_FUTURE_WRITE on segments of {pages} pages, so objects would \
         not be protected from clients: use Linux 5.13 or later{}", hint(.source)
    )]
    Unsealable {
        /// Which pages were tried.
        pages: &'static str,
        /// What the kernel said, if it refused the seal rather than ignored it.
        source: io::Error,
    },
    /// No addresses for the arena.
    #[error("cannot reserve {capacity} bytes of addresses for the arena (raise `ulimit -v`): {source}")]
    Reserve {
        /// Bytes asked for.
        capacity: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// A segment cannot be made, sealed or mapped.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// There is no segment of this number.
    #[error("there is no segment {segment}: the arena has {count}, numbered from 0")]
    NoSuchSegment {
        /// The number asked for.
        segment: u32,
        /// How many there are.
        count: u32,
    },
    /// The segment has no zone, so nobody may have a descriptor of it.
    #[error(
        "segment {segment} is not assigned to a zone: ask for descriptors of segments that hold an extent"
    )]
    Unassigned {
        /// The segment.
        segment: u32,
    },
    /// Nobody but the engine may write there.
    #[error("segment {segment} ({zone}) has no writable descriptor to give: ask for a read-only one")]
    NotWritable {
        /// The segment.
        segment: u32,
        /// Its zone.
        zone: Zone,
    },
}

/// An extent cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum AllocError {
    /// It could not fit in an empty arena either.
    #[error(
        "{len} bytes are more than the whole arena ({capacity} bytes): raise --memory or store smaller \
         objects"
    )]
    TooLarge {
        /// Bytes asked for.
        len: u64,
        /// Bytes in the arena.
        capacity: u64,
    },
    /// There is no contiguous run of that length now.
    #[error(
        "no room for {len} bytes: {free_total} are free for this zone, {largest_run} of them in one run; \
         free or evict objects, or raise --memory"
    )]
    Full {
        /// Bytes asked for.
        len: u64,
        /// Bytes the zone could still have, in pieces, without what is left in its slabs.
        free_total: u64,
        /// The largest piece of them.
        largest_run: u64,
    },
    /// A segment could not be prepared for the zone.
    #[error(transparent)]
    Segment(#[from] SegmentError),
}

/// The kernel refused something about a segment.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} segment {segment} of the arena: {source}{}", hint(.source))]
pub struct SegmentError {
    /// The segment.
    pub segment: u32,
    /// What was tried.
    pub action: &'static str,
    /// What the kernel said.
    pub source: io::Error,
}

/// A read or write beyond the end of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {at} do not lie within an extent of {extent} bytes: check offset and length first")]
pub struct OutOfBounds {
    /// Where in the extent.
    pub at: u64,
    /// How many bytes.
    pub len: u64,
    /// Length of the extent.
    pub extent: u64,
}

/// What the user can do about an error of the kernel.
fn hint(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => ": raise the limit of open files (`ulimit -n`), a node needs two per segment",
        Some(Errno::NFILE) => ": raise `sysctl fs.file-max`",
        Some(Errno::NOMEM) => {
            ": lower --memory, or raise `ulimit -v`, `sysctl vm.max_map_count` or the number of huge pages; \
             clients that keep old segments mapped hold their memory"
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            ": check that the daemon may use memfd_create and /proc (container policy, `sysctl \
             vm.memfd_noexec`)"
        }
        _ => "",
    }
}
