//! Errors of the arena, with advice. Plain values.

use std::io;

use bytesize::ByteSize;
use rustix::io::Errno;

use super::zone::Zone;

/// Why the arena cannot be set up, or a descriptor cannot be given out.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// No memory was asked for.
    #[error("the arena cannot have 0 bytes: give it a size with --memory, such as --memory 4GiB")]
    ZeroCapacity,
    /// The segment size does not suit the page size.
    #[error("segment size {size} is not a positive multiple of {granule} bytes: choose one that is")]
    SegmentSize {
        /// The size that was asked for, in bytes.
        size: u64,
        /// Number of bytes of which the size has to be a multiple.
        granule: u64,
    },
    /// There would be more segments than can be numbered.
    #[error("{count} segments of {segment_size} bytes are too many: choose larger segments or less --memory")]
    TooManySegments {
        /// Number of segments that there would be.
        count: u64,
        /// The size of a segment in bytes.
        segment_size: u64,
    },
    /// The host has less memory than asked for.
    #[error(
        "an arena of {} ({capacity} bytes) does not fit in the {} ({available} bytes) of memory this host \
         has available: lower --memory or free memory",
        ByteSize(*capacity), ByteSize(*available)
    )]
    NotEnoughMemory {
        /// Number of bytes that were asked for, in whole segments.
        capacity: u64,
        /// Number of bytes that are available (MemAvailable).
        available: u64,
    },
    /// The control groups of the process allow less memory than the node needs.
    #[error(
        "a node with {} ({capacity} bytes) of memory for objects, and {} beside them, does not fit in the \
         {} ({limit} \
         bytes) that it may have ({file}; {} of it used): raise the limit (--memory of docker, MemoryMax= \
         of systemd, resources.limits.memory of Kubernetes) or lower --memory",
        ByteSize(*capacity), ByteSize(*beside), ByteSize(*limit), ByteSize(*used)
    )]
    NotAllowed {
        /// Number of bytes that were asked for, in whole segments.
        capacity: u64,
        /// Number of bytes that the node needs beside the arena.
        beside: u64,
        /// Maximum number of bytes of all processes of the group.
        limit: u64,
        /// Number of bytes that the group uses.
        used: u64,
        /// The file that has the limit.
        file: String,
    },
    /// Huge pages are required, and the host has not enough of them.
    #[error("huge pages are required for the arena but {reason}")]
    HugePages {
        /// The reason, with advice.
        reason: String,
    },
    /// The host has enough huge pages, and the kernel gives this process none.
    #[error(
        "the kernel gives this process no huge page of the pool ({0}): look at the limits of its control \
         groups (hugetlb.2MB.max)"
    )]
    NoHugePage(#[source] io::Error),
    /// The memory figures of the host cannot be read.
    #[error("cannot read the host's memory figures from /proc/meminfo (is /proc mounted?): {0}")]
    Meminfo(#[source] io::Error),
    /// The kernel does not keep other processes from writing into a sealed segment.
    #[error(
        "this kernel does not enforce F_SEAL_FUTURE_WRITE on segments of {pages} pages, so objects would \
         not be protected from clients: use Linux 5.13 or later{}", hint(.source)
    )]
    Unsealable {
        /// The kind of pages that were tried.
        pages: &'static str,
        /// The kernel's error, if it refused the seal rather than ignored it.
        source: io::Error,
    },
    /// The process has no addresses for the arena.
    #[error("cannot reserve {capacity} bytes of addresses for the arena (raise `ulimit -v`): {source}")]
    Reserve {
        /// Number of bytes that were asked for.
        capacity: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// A segment cannot be made, sealed or mapped.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// There is no segment of this number.
    #[error("there is no segment {segment}: the arena has {count}, numbered from 0")]
    NoSuchSegment {
        /// The number that was asked for.
        segment: u32,
        /// Number of segments that there are.
        count: u32,
    },
    /// The segment has no zone, so no client may have a descriptor of it.
    #[error(
        "segment {segment} is not assigned to a zone: ask for descriptors of segments that hold an extent"
    )]
    Unassigned {
        /// The number of the segment.
        segment: u32,
    },
    /// Only the engine may write to the segment.
    #[error("segment {segment} ({zone}) has no writable descriptor to give: ask for a read-only one")]
    NotWritable {
        /// The number of the segment.
        segment: u32,
        /// The zone of the segment.
        zone: Zone,
    },
    /// The segment is the engine's alone.
    #[error("segment {segment} is the engine's alone: what lies in it is reached by calls")]
    Hidden {
        /// The number of the segment.
        segment: u32,
    },
}

/// Why an extent cannot be allocated.
#[derive(Debug, thiserror::Error)]
pub enum AllocError {
    /// The extent could not fit in an empty arena either.
    #[error(
        "{len} bytes are more than the whole arena ({capacity} bytes): raise --memory or store smaller \
         objects"
    )]
    TooLarge {
        /// Number of bytes that were asked for.
        len: u64,
        /// Number of bytes of the arena.
        capacity: u64,
    },
    /// There is no contiguous run of that length now.
    #[error(
        "no room for {len} bytes: {free_total} are free for this zone, {largest_run} of them in one run; \
         free or evict objects, or raise --memory"
    )]
    Full {
        /// Number of bytes that were asked for.
        len: u64,
        /// Number of bytes that the zone could still have, in pieces, without the free slots of its slabs.
        free_total: u64,
        /// Number of bytes of the largest of these pieces.
        largest_run: u64,
    },
    /// A segment could not be prepared for the zone.
    #[error(transparent)]
    Segment(#[from] SegmentError),
}

/// The kernel refused an operation on a segment.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} segment {segment} of the arena: {source}{}", hint(.source))]
pub struct SegmentError {
    /// The number of the segment.
    pub segment: u32,
    /// The operation.
    pub action: &'static str,
    /// The kernel's error.
    pub source: io::Error,
}

/// A read or write beyond the end of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {at} do not lie within an extent of {extent} bytes: check offset and length first")]
pub struct OutOfBounds {
    /// The offset in the extent.
    pub at: u64,
    /// Number of bytes.
    pub len: u64,
    /// Length of the extent in bytes.
    pub extent: u64,
}

/// Advice for the user about an error of the kernel.
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
