//! Counts of the operations of this node's clients, by kind, and of the bytes that they write. Owns
//! [`Kinds`]. Engine thread only.
//!
//! Invariant: each operation that was answered counts once, for one kind.

use std::cell::Cell;

use plasmon::status::FileKinds;
use plasmon::wire::files::{FileOperation, FileOutcome, Section, Written};

/// Numbers of operations that clients have asked for so far, by kind.
#[derive(Default)]
pub(super) struct Kinds {
    counts: Cell<FileKinds>,
    written_bytes: Cell<u64>,
}

impl Kinds {
    /// Counts an operation that was answered.
    pub(super) fn note(&self, operation: &FileOperation, outcome: &FileOutcome) {
        let mut counts = self.counts.get();
        *count_of(&mut counts, operation) += 1;
        self.counts.set(counts);
        if !matches!(outcome, FileOutcome::Failed(_) | FileOutcome::NoRoomInline) {
            let written = self.written_bytes.get().saturating_add(bytes_of(operation));
            self.written_bytes.set(written);
        }
    }

    /// Returns the counts so far.
    pub(super) fn counts(&self) -> FileKinds {
        self.counts.get()
    }

    /// Number of bytes that were written so far.
    pub(super) fn written_bytes(&self) -> u64 {
        self.written_bytes.get()
    }
}

/// Returns the count for operations of this kind.
fn count_of<'a>(counts: &'a mut FileKinds, operation: &FileOperation) -> &'a mut u64 {
    use FileOperation as O;
    match operation {
        O::Lookup { .. } | O::ReadLink { .. } => &mut counts.lookups,
        O::GetAttributes { .. } | O::SetAttributes { .. } | O::Usage => &mut counts.attributes,
        O::GetXattr { .. } | O::SetXattr { .. } | O::ListXattrs { .. } | O::RemoveXattr { .. } => {
            &mut counts.attributes
        }
        O::MakeFolder { .. } | O::MakeNode { .. } | O::MakeSymlink { .. } | O::Link { .. } => {
            &mut counts.names
        }
        O::Unlink { .. } | O::RemoveFolder { .. } | O::Rename { .. } => &mut counts.names,
        O::List { .. } | O::LookAhead { .. } | O::ListUnnamed { .. } => &mut counts.lists,
        O::Create { .. } | O::Open { .. } | O::Closed { .. } => &mut counts.opens,
        O::Map { .. } => &mut counts.maps,
        O::Commit { .. } | O::Append { .. } | O::Clone { .. } | O::Punch { .. } | O::Tidy { .. } => {
            &mut counts.writes
        }
        O::Lock { .. } | O::TestLock { .. } => &mut counts.locks,
        O::Discard { .. } | O::Reserve { .. } | O::GiveBack { .. } | O::MakeRoom => &mut counts.room,
    }
}

/// Number of bytes that an operation writes.
fn bytes_of(operation: &FileOperation) -> u64 {
    let sum = |sections: &[Section]| sections.iter().fold(0, |sum: u64, one| sum.saturating_add(one.len));
    match operation {
        FileOperation::Commit { sections, .. } => sum(sections),
        FileOperation::Append { written: Written::Sections(sections), .. } => sum(sections),
        FileOperation::Append { written: Written::Bytes(bytes), .. } => bytes.len() as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use plasmon::wire::files::Errno;

    use super::*;

    #[test]
    fn operations_count_by_kind_and_bytes_when_they_are_written() {
        let kinds = Kinds::default();
        let written = Written::Bytes(Bytes::from_static(b"a line"));
        let append =
            FileOperation::Append { inode: 2, written, drops_privileges: false, credit: 0, credit_of: 0 };
        kinds.note(&append, &FileOutcome::Done);
        kinds.note(&append, &FileOutcome::Failed(Errno::Full));
        kinds.note(&FileOperation::Usage, &FileOutcome::Done);
        let counts = FileKinds { writes: 2, attributes: 1, ..FileKinds::default() };
        assert_eq!((kinds.counts(), kinds.written_bytes()), (counts, 6));
    }
}
