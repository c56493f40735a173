//! What the control groups of the process allow: a node that needs more does not start, rather than be ended
//! by the kernel while its memory is touched.

use bytesize::ByteSize;
use tracing::warn;

use super::error::ArenaError;
use super::system::PageKind;

/// What a node has beside its arena when it begins to serve: its programs' own memory, tables, messages.
const BESIDE: u64 = 64 << 20;
/// The part of the arena that page tables and records of objects take at least.
const PART: u64 = 256;
/// What is left for clients and their requests where it is not tight.
const SPARE: u64 = 192 << 20;

/// The memory that the control groups of the process allow, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowance {
    /// The most that all processes of the group may have.
    pub limit: u64,
    /// Bytes that the groups use now and that cannot be taken from them.
    pub used: u64,
    /// The file that says so.
    pub file: String,
}

impl Allowance {
    /// Compares it with what an arena of so many bytes needs, and warns where it is tight.
    ///
    /// # Errors
    /// When it is not enough.
    pub(crate) fn check(&self, capacity: u64, pages: PageKind) -> Result<(), ArenaError> {
        // Pages of the host's pool are no group's.
        let arena = if pages == PageKind::Huge { 0 } else { capacity };
        let beside = BESIDE + capacity / PART;
        let room = self.limit.saturating_sub(self.used);
        let needed = arena.saturating_add(beside);
        let Self { limit, used, file } = self;
        if needed > room {
            let (limit, used, file) = (*limit, *used, file.clone());
            return Err(ArenaError::NotAllowed { capacity, beside, limit, used, file });
        }
        if needed + SPARE > room {
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

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

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
        assert!(!fits(BESIDE, 0, PageKind::Huge));
    }
}
