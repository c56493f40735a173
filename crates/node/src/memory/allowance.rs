//! The memory that the control groups of the process allow. A node that needs more does not start; otherwise
//! the kernel would end the node while its memory is touched. Huge pages of the host's pool have a limit of
//! their own; a node that needs more of them takes base pages. Owns no state; used at the start.

use bytesize::ByteSize;
use tracing::warn;

use super::error::ArenaError;
use super::system::PageKind;

/// Number of bytes that a node has beside its arena while it serves little: its program's own memory, tables,
/// and buffers of libfabric, which come with the first peer. Measured with peers over TCP and an arena of
/// 64 MiB (RssAnon): 40 MiB without a peer, 74 MiB with one or with four. The rest is what the kernel counts
/// for the process besides.
pub const BESIDE_BYTES: u64 = 80 << 20;
/// The divisor of the arena that gives the minimum size of page tables and records of objects.
const RECORDS_DIVISOR: u64 = 256;
/// Number of bytes left for clients and their requests below which memory is tight.
pub const SPARE_BYTES: u64 = 192 << 20;

/// The memory that the control groups of the process allow, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowance {
    /// Maximum number of bytes of all processes of the group.
    pub limit: u64,
    /// Number of bytes that the groups use now and that cannot be reclaimed.
    pub used: u64,
    /// The file that has the limit.
    pub file: String,
}

impl Allowance {
    /// Compares the limit with the needs of an arena of `capacity` bytes, and warns where memory is tight.
    ///
    /// # Errors
    /// When the limit is too low.
    pub(crate) fn check(&self, capacity: u64, pages: PageKind) -> Result<(), ArenaError> {
        // Pages of the host's pool count in no group.
        let arena = if pages == PageKind::Huge { 0 } else { capacity };
        let beside = BESIDE_BYTES + capacity / RECORDS_DIVISOR;
        let room = self.limit.saturating_sub(self.used);
        let needed = arena.saturating_add(beside);
        let Self { limit, used, file } = self;
        if needed > room {
            let (limit, used, file) = (*limit, *used, file.clone());
            return Err(ArenaError::NotAllowed { capacity, beside, limit, used, file });
        }
        if needed + SPARE_BYTES > room {
            warn!(
                "memory is tight: {} of objects and at least {} beside them have to fit in {} ({file}, {} \
                 of it used): \
                 clients and what they ask for take some more, and beyond the limit the kernel ends the \
                 node; raise the limit or lower --memory",
                ByteSize(capacity),
                ByteSize(beside),
                ByteSize(*limit),
                ByteSize(*used)
            );
        }
        Ok(())
    }
}

impl Allowance {
    /// Reason why an arena of `capacity` bytes cannot have huge pages of the pool, if this is their limit;
    /// `None` if it can.
    pub(super) fn huge_shortage(&self, capacity: u64) -> Option<String> {
        let Self { limit, used, file } = self;
        let room = limit.saturating_sub(*used);
        (capacity > room).then(|| {
            format!(
                "{} in huge pages are needed, and the control group of this process allows {} ({file}, {} of \
                 it used): raise the limit (resources.limits hugepages-2Mi of Kubernetes), or lower --memory",
                ByteSize(capacity),
                ByteSize(*limit),
                ByteSize(*used)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn huge_pages_have_a_limit_of_their_own() {
        let shortage =
            |limit, used| Allowance { limit, used, file: "hugetlb.2MB.max".into() }.huge_shortage(4 * GIB);
        assert_eq!([shortage(4 * GIB, 0), shortage(5 * GIB, GIB)], [None, None]);
        for (limit, used) in [(0, 0), (4 * GIB, 1), (GIB, 2 * GIB)] {
            let text = shortage(limit, used).expect("that is too little");
            assert!(text.contains("hugetlb.2MB.max") && text.contains("4.0 GiB"), "{text}");
        }
    }

    #[test]
    fn an_arena_has_to_fit_with_what_is_beside_it() {
        let fits = |limit, used, pages| {
            Allowance { limit, used, file: "memory.max".into() }.check(4 * GIB, pages).is_ok()
        };
        assert!(fits(5 * GIB, 0, PageKind::Base));
        assert!(!fits(4 * GIB, 0, PageKind::Base));
        assert!(!fits(5 * GIB, GIB, PageKind::Base));
        assert!(!fits(5 * GIB, 6 * GIB, PageKind::Base));
        assert!(fits(GIB, 0, PageKind::Huge));
        assert!(!fits(BESIDE_BYTES, 0, PageKind::Huge));
    }
}
