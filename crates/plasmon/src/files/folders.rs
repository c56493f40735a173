//! Folders that this session changes, as far as the session knows them without asking.
//!
//! Owns the attributes of folders as answers to operations of the session tell them, and the possible names
//! in folders that the session has made. Any thread. The kernel asks for the attributes of a folder after
//! each change, and for a name before making it; both questions are answered here. Invariants: attributes
//! that others have changed are forgotten when that is told; names are known only as long as every version
//! of the folder is a change of this session.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use parking_lot::Mutex;

use super::watch::{Current, Keep};
use crate::wire::files::{Attributes, FileKind, FileOperation, FileOutcome, Stale};

/// Largest number of folders that are known. With one more, folders that may not be kept any more are
/// forgotten, or all.
const MAX_FOLDERS: usize = 512;
/// Largest number of names of a folder that are known.
const MAX_NAMES: usize = 1 << 14;
/// Largest number of changes of a folder whose answers came before the answer to an earlier change.
const MAX_AHEAD: usize = 64;

/// Folders that a session has changed.
#[derive(Default)]
pub(super) struct Folders {
    hasher: RandomState,
    known: Mutex<HashMap<u64, Folder>>,
}

/// Attributes and names of a folder, as far as they are known.
struct Folder {
    /// Latest attributes that were told, and how long they may be kept.
    attributes: Attributes,
    keep: Keep,
    names: Option<Names>,
}

/// Names of a folder of which all changes are this session's.
struct Names {
    /// Hashes of all names that may be in the folder. A removed name stays, so the home is asked about it.
    hashes: BTreeSet<u64>,
    /// Version up to which all changes are known, and how long it may be taken for the last version.
    version: u64,
    keep: Keep,
    /// Later versions that changes of this session have made.
    ahead: BTreeMap<u64, Keep>,
}

impl Names {
    /// Notes that a change of this session has made a version.
    fn advance(&mut self, version: u64, keep: Keep) {
        self.ahead.insert(version, keep);
        while let Some(keep) = self.ahead.remove(&(self.version + 1)) {
            self.version += 1;
            self.keep = keep;
        }
    }

    /// Whether the known names may be incomplete for good.
    fn is_broken(&self, current: &Current<'_>, folder: u64) -> bool {
        let waits = !self.ahead.is_empty();
        let over = current.left(self.keep, &[folder]).is_zero();
        self.ahead.len() > MAX_AHEAD || self.hashes.len() > MAX_NAMES || (waits && over)
    }
}

impl Folders {
    /// Notes an operation that is about to be asked. A name that the operation may make counts as possible.
    pub(super) fn begin(&self, operation: &FileOperation) {
        use FileOperation as O;
        let (folder, name) = match operation {
            O::Create { folder, name, .. }
            | O::MakeFolder { folder, name, .. }
            | O::MakeNode { folder, name, .. }
            | O::MakeSymlink { folder, name, .. }
            | O::Link { folder, name, .. } => (folder, name),
            O::Rename { folder, name, to_folder, to_name, exchange, whiteout, .. } => {
                if *exchange || *whiteout {
                    self.note(*folder, name);
                }
                (to_folder, to_name)
            }
            _ => return,
        };
        self.note(*folder, name);
    }

    fn note(&self, folder: u64, name: &[u8]) {
        if let Some(Folder { names: Some(names), .. }) = self.known.lock().get_mut(&folder) {
            names.hashes.insert(self.hasher.hash_one(name));
        }
    }

    /// Stores what an answer tells about folders.
    pub(super) fn learn(
        &self,
        current: &Current<'_>,
        operation: &FileOperation,
        (outcome, keep): (&FileOutcome, Keep),
        (folders, folders_keep): (&[Attributes], Keep),
    ) {
        use FileOperation as O;
        // A file that was there before changes nothing.
        let changes = !matches!(outcome, FileOutcome::Opened { created: false, .. });
        for folder in folders {
            self.learn_folder(current, folder, folders_keep, changes);
        }
        match (operation, outcome) {
            (O::MakeFolder { .. }, FileOutcome::Entry(made)) => self.learn_made(current, made, keep),
            (O::SetAttributes { .. }, FileOutcome::Entry(set)) if set.kind == FileKind::Folder => {
                self.learn_folder(current, set, keep, true);
            }
            (O::SetXattr { inode, .. } | O::RemoveXattr { inode, .. }, _) => {
                self.known.lock().remove(inode);
            }
            _ => {}
        }
    }

    fn learn_folder(&self, current: &Current<'_>, attributes: &Attributes, keep: Keep, changes: bool) {
        let mut known = self.known.lock();
        make_room(&mut known, current);
        let (inode, version) = (attributes.inode, attributes.version);
        let folder = known.entry(inode).or_insert_with(|| Folder {
            attributes: attributes.clone(),
            keep,
            names: None,
        });
        if version >= folder.attributes.version {
            folder.attributes = attributes.clone();
            folder.keep = keep;
        }
        let Some(names) = &mut folder.names else { return };
        if version == names.version {
            names.keep = keep;
        } else if version > names.version && changes {
            names.advance(version, keep);
        }
        if names.is_broken(current, inode) {
            folder.names = None;
        }
    }

    /// Stores a folder that was made, which has no names.
    fn learn_made(&self, current: &Current<'_>, attributes: &Attributes, keep: Keep) {
        let mut known = self.known.lock();
        make_room(&mut known, current);
        let version = attributes.version;
        let names = Names { hashes: BTreeSet::new(), version, keep, ahead: BTreeMap::new() };
        let folder = Folder { attributes: attributes.clone(), keep, names: Some(names) };
        // Another thread may have used the folder already.
        known.entry(attributes.inode).or_insert(folder);
    }

    /// Returns the attributes of a folder, if they are those of its last change.
    pub(super) fn attributes(&self, current: &Current<'_>, inode: u64) -> Option<(Attributes, Keep)> {
        let known = self.known.lock();
        let folder = known.get(&inode).filter(|folder| !current.left(folder.keep, &[inode]).is_zero())?;
        Some((folder.attributes.clone(), folder.keep))
    }

    /// Whether a folder certainly does not have a name.
    pub(super) fn lacks(&self, current: &Current<'_>, folder: u64, name: &[u8]) -> bool {
        // The home tells what is wrong with any other name.
        if name.is_empty()
            || name.len() > crate::wire::files::MAX_ENTRY_NAME_BYTES
            || matches!(name, b"." | b"..")
        {
            return false;
        }
        let known = self.known.lock();
        let Some(Folder { names: Some(names), .. }) = known.get(&folder) else { return false };
        !current.left(names.keep, &[folder]).is_zero() && !names.hashes.contains(&self.hasher.hash_one(name))
    }

    /// Forgets the folders that others have changed.
    pub(super) fn forget(&self, stale: &[Stale]) {
        let mut known = self.known.lock();
        for one in stale {
            if let Stale::Attributes { inode } | Stale::Name { folder: inode, .. } = one {
                known.remove(inode);
            }
        }
    }

    /// Forgets everything, since the session began anew.
    pub(super) fn clear(&self) {
        self.known.lock().clear();
    }
}

/// Makes room for one more folder.
fn make_room(known: &mut HashMap<u64, Folder>, current: &Current<'_>) {
    if known.len() < MAX_FOLDERS {
        return;
    }
    known.retain(|inode, folder| current.left(folder.keep, &[*inode]) > Duration::ZERO);
    if known.len() >= MAX_FOLDERS {
        known.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use bytes::Bytes;

    use super::super::sample;
    use super::super::watch::Told;
    use super::*;

    const FOLDER: u64 = 7;

    fn attributes(version: u64) -> Attributes {
        Attributes { kind: FileKind::Folder, ..sample::attributes(FOLDER, version) }
    }

    struct Known {
        folders: Folders,
        told: Told,
    }

    impl Known {
        /// Folder that was made just now.
        fn made() -> Self {
            let known = Self { folders: Folders::default(), told: Told::default() };
            let make = FileOperation::MakeFolder { folder: 1, name: Bytes::from_static(b"d"), mode: 0o755 };
            let (made, keep) = (FileOutcome::Entry(attributes(1)), known.keep(3600));
            known.folders.learn(&known.told.current(), &make, (&made, keep), (&[], keep));
            known
        }

        fn keep(&self, seconds: u64) -> Keep {
            Told::keep(self.told.last(), Instant::now(), Duration::from_secs(seconds))
        }

        fn lacks(&self, name: &str) -> bool {
            self.folders.lacks(&self.told.current(), FOLDER, name.as_bytes())
        }

        fn begin(&self, name: &'static str) -> FileOperation {
            let make = FileOperation::MakeFolder { folder: FOLDER, name: name.into(), mode: 0o755 };
            self.folders.begin(&make);
            make
        }

        /// Takes in the answer to an operation that has made a version of the folder.
        fn end(&self, operation: &FileOperation, version: u64, keep: Keep) {
            let outcome = FileOutcome::Done;
            let folders = [attributes(version)];
            self.folders.learn(&self.told.current(), operation, (&outcome, keep), (&folders, keep));
        }
    }

    #[test]
    fn a_folder_that_was_made_has_the_names_that_were_made_in_it() {
        let known = Known::made();
        assert!(known.lacks("a") && known.lacks("b"));
        assert!(!known.lacks("") && !known.lacks("..") && !known.lacks(&"n".repeat(256)));
        let a = known.begin("a");
        assert!(!known.lacks("a"), "it may be there before the answer is");
        known.end(&a, 2, known.keep(3600));
        assert!(!known.lacks("a") && known.lacks("b"));
        let (told, _) = known.folders.attributes(&known.told.current(), FOLDER).expect("they are known");
        assert_eq!(told.version, 2);
    }

    #[test]
    fn answers_may_come_in_another_order() {
        let known = Known::made();
        let (a, b) = (known.begin("a"), known.begin("b"));
        known.end(&b, 3, known.keep(3600));
        assert!(known.lacks("c"), "nobody was told of another's change");
        known.end(&a, 2, known.keep(3600));
        assert!(known.lacks("c") && !known.lacks("a") && !known.lacks("b"));
        let told = known.folders.attributes(&known.told.current(), FOLDER);
        assert_eq!(told.map(|(attributes, _)| attributes.version), Some(3), "the latest");
    }

    #[test]
    fn names_are_not_known_when_others_have_changed_the_folder() {
        let known = Known::made();
        let stale = [Stale::Attributes { inode: FOLDER }];
        known.told.note(&stale);
        known.folders.forget(&stale);
        assert!(!known.lacks("b"));
        assert!(known.folders.attributes(&known.told.current(), FOLDER).is_none());
        known.end(&known.begin("a"), 3, known.keep(3600));
        assert!(!known.lacks("b"), "the other's name may be any");
        assert!(known.folders.attributes(&known.told.current(), FOLDER).is_some());
    }

    #[test]
    fn a_version_of_others_shows_when_nobody_was_told() {
        let known = Known::made();
        // The entries known before are void; the next own change made the version after the next.
        let a = known.begin("a");
        known.end(&a, 2, known.keep(0));
        assert!(!known.lacks("b"), "it may not be kept any more");
        known.end(&known.begin("c"), 3, known.keep(3600));
        assert!(known.lacks("b"), "all changes are known");
        known.end(&known.begin("d"), 4, known.keep(0));
        known.end(&known.begin("e"), 6, known.keep(3600));
        assert!(!known.lacks("b"), "version 5 is another's");
        known.end(&known.begin("f"), 7, known.keep(3600));
        assert!(!known.lacks("b"));
    }

    #[test]
    fn many_names_are_not_known() {
        let known = Known::made();
        (0..=MAX_NAMES).for_each(|name| known.folders.note(FOLDER, name.to_string().as_bytes()));
        known.end(&known.begin("a"), 2, known.keep(3600));
        assert!(!known.lacks("b"));
    }
}
