//! The configuration of the arena, checked against the host. Owns no state; used once, at the start.

use super::allowance::Allowance;
use super::error::ArenaError;
use super::system::{self, HUGE_PAGE_BYTES, HugePagePool, PageKind};

/// Number of segments of a large arena. With many more registered regions, NICs slow down.
const DEFAULT_SEGMENTS: u64 = 64;
/// Minimum number of bytes of a segment.
const MIN_SEGMENT_BYTES: u64 = HUGE_PAGE_BYTES;

/// The size of the arena, and the kind of its pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaConfig {
    /// Number of bytes for objects; rounded up to whole segments.
    pub capacity: u64,
    /// Number of bytes of a segment; by default a 64th of the capacity, at least 2 MiB.
    pub segment_size: Option<u64>,
    /// Whether to use huge pages.
    pub huge_pages: HugePages,
    /// Whether to allocate pages in the background at the start, rather than at first use.
    pub prefault: bool,
    /// The NUMA node on which the memory is to be; `None` leaves it to the kernel.
    pub near: Option<u32>,
    /// The huge pages that the control groups of the process allow; `None` if they have no limit.
    pub huge_allowance: Option<Allowance>,
}

/// Whether the arena uses huge pages (of 2 MiB).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HugePages {
    /// Huge pages of the pool, if enough of them are free for the whole arena. Otherwise transparent ones,
    /// for which the kernel is asked page by page, and which it may refuse. Segments that other users write
    /// are never of the pool.
    Auto,
    /// No huge pages.
    Never,
    /// Huge pages of the pool. Without enough of them the start fails.
    Require,
}

/// The arena to build, checked against the host: it fits in memory, so its size fits a `usize`.
pub(super) struct Plan {
    pub(super) segment_size: usize,
    pub(super) count: usize,
    pub(super) pages: PageKind,
    pub(super) prefault: bool,
    pub(super) near: Option<u32>,
    /// Whether to ask the kernel for huge pages where the pool gives none.
    pub(super) transparent: bool,
    /// Whether control groups limit the huge pages of this process. The kernel then ends a process that
    /// touches a page beyond the limit.
    pub(super) limited: bool,
    may_use_base_pages: bool,
}

impl Plan {
    /// Decides on sizes and pages.
    pub(super) fn new(config: &ArenaConfig) -> Result<Plan, ArenaError> {
        if config.capacity == 0 {
            return Err(ArenaError::ZeroCapacity);
        }
        let segment_size = config.segment_size.unwrap_or_else(|| default_segment_size(config.capacity));
        let granule = PageKind::Base.granule();
        if segment_size == 0 || !segment_size.is_multiple_of(granule) {
            return Err(ArenaError::SegmentSize { size: segment_size, granule });
        }
        let count = config.capacity.div_ceil(segment_size);
        let capacity = count.saturating_mul(segment_size);
        let pages = choose_pages(config, segment_size, capacity)?;
        if pages == PageKind::Base {
            check_available(capacity)?;
        }
        match (usize::try_from(segment_size), u32::try_from(count)) {
            (Ok(segment_size), Ok(count)) => Ok(Plan {
                segment_size,
                count: count as usize,
                pages,
                prefault: config.prefault,
                near: config.near,
                transparent: config.huge_pages != HugePages::Never,
                limited: config.huge_allowance.is_some(),
                may_use_base_pages: config.huge_pages != HugePages::Require,
            }),
            _ => Err(ArenaError::TooManySegments { count, segment_size }),
        }
    }

    /// Number of bytes of all segments.
    pub(super) fn capacity(&self) -> u64 {
        self.segment_size as u64 * self.count as u64
    }

    /// Returns the arena to build instead after `error`, or `error` itself if there is no alternative.
    /// Another process may have taken the huge pages since they were counted.
    pub(super) fn with_base_pages(self, error: ArenaError) -> Result<Plan, ArenaError> {
        if self.pages == PageKind::Base || !self.may_use_base_pages {
            return Err(error);
        }
        tracing::warn!(%error, "no huge pages of the pool for the arena after all");
        check_available(self.capacity())?;
        Ok(Plan { pages: PageKind::Base, ..self })
    }
}

fn default_segment_size(capacity: u64) -> u64 {
    capacity.div_ceil(DEFAULT_SEGMENTS).max(MIN_SEGMENT_BYTES).next_multiple_of(HUGE_PAGE_BYTES)
}

fn choose_pages(config: &ArenaConfig, segment_size: u64, capacity: u64) -> Result<PageKind, ArenaError> {
    let wish = config.huge_pages;
    if wish == HugePages::Never {
        return Ok(PageKind::Base);
    }
    let shortage = if segment_size.is_multiple_of(HUGE_PAGE_BYTES) {
        HugePagePool::read(config.near).shortage(capacity)
    } else {
        Some(format!("segments of {segment_size} bytes are not made of them: choose a multiple of 2 MiB"))
    };
    let forbidden = || config.huge_allowance.as_ref().and_then(|allowance| allowance.huge_shortage(capacity));
    match (shortage, wish) {
        (Some(reason), HugePages::Require) => Err(ArenaError::HugePages { reason }),
        (Some(reason), _) => {
            tracing::debug!(%reason, "no huge pages of the pool");
            Ok(PageKind::Base)
        }
        (None, _) => match (forbidden(), wish) {
            (None, _) => Ok(PageKind::Huge),
            (Some(reason), HugePages::Require) => Err(ArenaError::HugePages { reason }),
            (Some(reason), _) => {
                tracing::warn!(%reason, "base pages, although the pool has enough huge pages");
                Ok(PageKind::Base)
            }
        },
    }
}

fn check_available(capacity: u64) -> Result<(), ArenaError> {
    let available = system::available_memory().map_err(ArenaError::Meminfo)?;
    if capacity > available {
        return Err(ArenaError::NotEnoughMemory { capacity, available });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(capacity: u64, segment_size: Option<u64>) -> ArenaConfig {
        let (huge_pages, prefault, near, huge_allowance) = (HugePages::Never, false, None, None);
        ArenaConfig { capacity, segment_size, huge_pages, prefault, near, huge_allowance }
    }

    #[test]
    fn segments_are_a_64th_but_never_tiny() {
        const MIB: u64 = 1 << 20;
        for (capacity, expected) in [
            (1, 2 * MIB),
            (128 * MIB, 2 * MIB),
            (128 * MIB + 1, 4 * MIB),
            (6 << 30, 96 * MIB),
            (64 << 30, 1 << 30),
            (1 << 40, 16 << 30),
        ] {
            assert_eq!(default_segment_size(capacity), expected, "for {capacity}");
        }
    }

    #[test]
    fn capacity_is_rounded_up_to_whole_segments() {
        let plan = Plan::new(&config((4 << 20) + 1, None)).unwrap();
        assert_eq!((plan.segment_size, plan.count, plan.capacity()), (2 << 20, 3, 6 << 20));
        let plan = Plan::new(&config(1, Some(64 << 10))).unwrap();
        assert_eq!(plan.capacity(), 64 << 10);
    }

    #[test]
    fn nonsense_is_refused_with_advice() {
        let refusal =
            |capacity, segment_size| Plan::new(&config(capacity, segment_size)).err().unwrap().to_string();
        assert!(refusal(0, None).contains("--memory"));
        assert!(refusal(1 << 20, Some(0)).contains("multiple of"));
        assert!(refusal(1 << 20, Some(5000)).contains("multiple of"));
        for capacity in [1 << 50, u64::MAX] {
            let message = refusal(capacity, None);
            let available = format!("{} bytes", capacity.div_ceil(1 << 30).saturating_mul(1 << 30));
            assert!(message.contains(&available) && message.contains("--memory"), "{message}");
        }
        let unaligned = ArenaConfig { huge_pages: HugePages::Require, ..config(1 << 20, Some(64 << 10)) };
        let message = Plan::new(&unaligned).err().unwrap().to_string();
        assert!(message.contains("2 MiB"), "{message}");
    }
}
