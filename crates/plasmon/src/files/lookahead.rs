//! Names that are probably looked up next.
//!
//! Owns the entries that follow the last asked name in folders where one name after the other is looked up,
//! and numbers of the changes of this session. Any thread. A program that looks at all files of a folder, as
//! `git status` does, mostly names them in the order in which they were made, and a round trip to the home
//! takes longer than telling many entries. Pages grow as long as most of a page is used; otherwise they are
//! asked for less often. Invariants: an entry is told once, only as long as it may be kept, and not if this
//! session has changed its name or its inode since the page was asked for; memory is bounded.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;

use super::watch::{BUCKETS, Current, Keep, bucket};
use crate::wire::files::{Attributes, FileKind, FileOperation, Listed};

/// Largest number of folders that are known. With one more, all are forgotten.
const MAX_FOLDERS: usize = 64;
/// Number of names that are found in a folder before the first page of it is asked for.
const FOUND_BEFORE: u32 = 3;
/// Number of entries of the first page.
const FIRST_PAGE: u32 = 16;
const LARGEST_PAGE: u32 = 256;
/// Factor of the entries of the next page if a page was used. If not, factor of the names that are found
/// before the next page.
const GROWTH: u32 = 4;

/// Entries that may be looked up next.
pub(super) struct LookAhead(Mutex<Known>);

struct Known {
    folders: HashMap<u64, Folder>,
    /// Number of the last change of an inode in each bucket.
    changed: [u64; BUCKETS],
    changes: u64,
}

/// Page that is to be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Largest number of entries.
    pub(super) most: u32,
    /// Number of the last change when the page was asked for.
    since: u64,
}

/// Folder in which names are looked up.
struct Folder {
    /// Entries of the last page that were not told yet.
    entries: HashMap<Bytes, Attributes>,
    keep: Keep,
    since: u64,
    /// Number of entries that the last page had; `told` of them were told.
    size: usize,
    told: usize,
    /// Number of names that were found without the page; the next page is asked for after `wanted` of them.
    found: u32,
    wanted: u32,
    /// Largest number of entries of the next page.
    most: u32,
}

impl Default for Folder {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            keep: Keep::none(),
            since: 0,
            size: 0,
            told: 0,
            found: 0,
            wanted: FOUND_BEFORE,
            most: FIRST_PAGE,
        }
    }
}

impl Default for LookAhead {
    fn default() -> Self {
        Self(Mutex::new(Known { folders: HashMap::new(), changed: [0; BUCKETS], changes: 0 }))
    }
}

impl LookAhead {
    /// Notes an operation of this session that is about to be asked, or was answered.
    pub(super) fn note(&self, operation: &FileOperation) {
        let inodes = operation.alters();
        if inodes == [None, None] {
            return;
        }
        let Known { folders, changed, changes } = &mut *self.0.lock();
        *changes += 1;
        inodes.into_iter().flatten().for_each(|inode| changed[bucket(inode)] = *changes);
        for (folder, name) in operation.names().into_iter().flatten() {
            if let Some(of) = folders.get_mut(&folder) {
                of.entries.remove(name);
            }
        }
    }

    /// Takes an entry that came in a page with another one, if there is one of this name.
    pub(super) fn take(&self, current: &Current<'_>, folder: u64, name: &[u8]) -> Option<(Attributes, Keep)> {
        let Known { folders, changed, .. } = &mut *self.0.lock();
        let of = folders.get_mut(&folder)?;
        let attributes = of.entries.remove(name)?;
        let is_old = changed[bucket(attributes.inode)] > of.since;
        if is_old || current.left(of.keep, &[folder, attributes.inode]).is_zero() {
            return None;
        }
        of.told += 1;
        Some((attributes, of.keep))
    }

    /// Notes that a name was found by asking for it alone.
    pub(super) fn note_found(&self, folder: u64) {
        let mut known = self.0.lock();
        if known.folders.len() >= MAX_FOLDERS && !known.folders.contains_key(&folder) {
            known.folders.clear();
        }
        let of = known.folders.entry(folder).or_default();
        of.found = of.found.saturating_add(1);
    }

    /// Returns the page that is to be asked for instead of a name, if one is.
    pub(super) fn plan(&self, folder: u64) -> Option<Wanted> {
        let mut known = self.0.lock();
        let since = known.changes;
        let of = known.folders.get_mut(&folder)?;
        let (is_page, is_used) = (of.size > 0, of.told * 2 >= of.size);
        match (is_page, is_used) {
            (true, true) => (of.most, of.wanted) = ((of.most * GROWTH).min(LARGEST_PAGE), FOUND_BEFORE),
            _ if of.found < of.wanted => return None,
            (true, false) => (of.most, of.wanted) = (FIRST_PAGE, of.wanted.saturating_mul(GROWTH)),
            (false, _) => {}
        }
        of.entries.clear();
        (of.size, of.told, of.found) = (0, 0, 0);
        Some(Wanted { most: of.most, since })
    }

    /// Stores a page, whose first entry was asked for.
    pub(super) fn fill(&self, folder: u64, wanted: Wanted, entries: Vec<Listed>, keep: Keep) {
        let Known { folders, changed, .. } = &mut *self.0.lock();
        let Some(of) = folders.get_mut(&folder) else { return };
        // Later changes of names remove the entries one by one.
        if changed[bucket(folder)] > wanted.since {
            return;
        }
        (of.size, of.told, of.keep, of.since) = (entries.len(), 1, keep, wanted.since);
        // A file with several names is left out: a change by another name would not be noticed.
        let has_one_name =
            |one: &Listed| one.attributes.links == 1 || one.attributes.kind == FileKind::Folder;
        let others = entries.into_iter().skip(1).filter(has_one_name);
        of.entries = others.map(|one| (one.name, one.attributes)).collect();
    }

    /// Forgets all entries, since the session began anew.
    pub(super) fn clear(&self) {
        self.0.lock().folders.clear();
    }

    /// Notes that there was no page, because the name is not there or the folder may not be listed.
    pub(super) fn note_missing(&self, folder: u64) {
        if let Some(of) = self.0.lock().folders.get_mut(&folder) {
            of.wanted = of.wanted.saturating_mul(GROWTH);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::sample::attributes;
    use super::super::watch::Told;
    use super::*;
    use crate::wire::files::Stale;

    const FOLDER: u64 = 7;

    /// Returns entries whose names and inodes follow from these numbers.
    fn entries(numbers: std::ops::Range<u64>) -> Vec<Listed> {
        let listed = |number: u64| {
            let name = Bytes::from(number.to_string());
            Listed { name, cookie: number, attributes: attributes(number, 1) }
        };
        numbers.map(listed).collect()
    }

    #[derive(Default)]
    struct Bench {
        ahead: LookAhead,
        told: Told,
    }

    impl Bench {
        fn keep(&self, seconds: u64) -> Keep {
            Told::keep(self.told.last(), Instant::now(), Duration::from_secs(seconds))
        }

        /// Finds `count` names alone. Returns the page that is to be asked for afterwards.
        fn find(&self, count: u32) -> Wanted {
            for _ in 0..count {
                assert_eq!(self.ahead.plan(FOLDER), None);
                self.ahead.note_found(FOLDER);
            }
            self.ahead.plan(FOLDER).expect("enough names were found")
        }

        /// Stores a page of these entries, the first of which was asked for.
        fn page(&self, wanted: Wanted, numbers: std::ops::Range<u64>) {
            self.ahead.fill(FOLDER, wanted, entries(numbers), self.keep(3600));
        }

        fn take(&self, number: u64) -> Option<u64> {
            let taken = self.ahead.take(&self.told.current(), FOLDER, number.to_string().as_bytes());
            taken.map(|(attributes, _)| attributes.inode)
        }
    }

    #[test]
    fn entries_are_told_once() {
        let bench = Bench::default();
        let wanted = bench.find(FOUND_BEFORE);
        assert_eq!(wanted.most, FIRST_PAGE);
        bench.page(wanted, 10..14);
        assert_eq!(bench.take(10), None, "it was asked for");
        assert_eq!((bench.take(12), bench.take(12), bench.take(14)), (Some(12), None, None));
        assert!(bench.ahead.take(&bench.told.current(), FOLDER + 1, b"11").is_none());
    }

    #[test]
    fn pages_grow_while_they_are_used() {
        let bench = Bench::default();
        let mut most = Vec::new();
        let mut wanted = bench.find(FOUND_BEFORE);
        for _ in 0..4 {
            most.push(wanted.most);
            bench.page(wanted, 0..4);
            assert_eq!(bench.take(1), Some(1), "two of four are told");
            wanted = bench.find(0);
        }
        assert_eq!(most, [FIRST_PAGE, 64, LARGEST_PAGE, LARGEST_PAGE]);
    }

    #[test]
    fn pages_that_are_not_used_are_asked_for_less_often() {
        let bench = Bench::default();
        bench.page(bench.find(FOUND_BEFORE), 0..16);
        bench.page(bench.find(FOUND_BEFORE), 0..16);
        let wanted = bench.find(FOUND_BEFORE * GROWTH);
        assert_eq!(wanted.most, FIRST_PAGE);
        bench.ahead.note_missing(FOLDER);
        for _ in 0..FOUND_BEFORE * GROWTH * GROWTH {
            bench.ahead.note_found(FOLDER);
        }
        assert_eq!(bench.ahead.plan(FOLDER), None);
    }

    #[test]
    fn what_others_change_is_not_told() {
        let bench = Bench::default();
        bench.page(bench.find(FOUND_BEFORE), 10..20);
        bench.told.note(&[Stale::Attributes { inode: 12 }]);
        assert_eq!((bench.take(12), bench.take(13)), (None, Some(13)));
        bench.told.note(&[Stale::Name { folder: FOLDER, name: "14".into(), is_folder: false }]);
        assert_eq!(bench.take(15), None, "another name of the folder");
    }

    #[test]
    fn what_this_session_changes_is_not_told() {
        let bench = Bench::default();
        let wanted = bench.find(FOUND_BEFORE);
        let punch = |inode| FileOperation::Punch { inode, offset: 0, len: 1, extend: false };
        bench.ahead.note(&punch(11));
        bench.page(wanted, 10..20);
        assert_eq!(
            (bench.take(11), bench.take(12)),
            (None, Some(12)),
            "it changed after the page was asked for"
        );
        bench.ahead.note(&FileOperation::GetAttributes { inode: 13 });
        assert_eq!(bench.take(13), Some(13));
        let unlink = |number: u64| FileOperation::Unlink { folder: FOLDER, name: number.to_string().into() };
        bench.ahead.note(&unlink(15));
        assert_eq!((bench.take(14), bench.take(15)), (Some(14), None));
        bench.ahead.note_found(FOLDER);
        let wanted = bench.find(FOUND_BEFORE - 1);
        bench.ahead.note(&unlink(24));
        bench.page(wanted, 20..26);
        assert_eq!(bench.take(21), None, "it may have been asked for before the name went");
    }

    #[test]
    fn nothing_is_told_that_is_over_or_has_further_names() {
        let bench = Bench::default();
        let mut page = entries(10..13);
        page[1].attributes.links = 2;
        bench.ahead.fill(FOLDER, bench.find(FOUND_BEFORE), page, bench.keep(3600));
        assert_eq!((bench.take(11), bench.take(12)), (None, Some(12)));
        bench.ahead.fill(FOLDER, bench.find(0), entries(10..13), bench.keep(0));
        assert_eq!(bench.take(11), None);
    }

    #[test]
    fn few_folders_are_known() {
        let bench = Bench::default();
        bench.page(bench.find(FOUND_BEFORE), 10..20);
        (100..100 + MAX_FOLDERS as u64).for_each(|folder| bench.ahead.note_found(folder));
        assert_eq!(bench.take(11), None);
        assert!(bench.ahead.0.lock().folders.len() <= MAX_FOLDERS);
    }
}
