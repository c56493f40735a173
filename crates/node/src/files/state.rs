//! The state of a volume: inodes, folders, objects, sessions and locks. Owns [`State`]. Engine thread only.
//!
//! Invariants: only [`apply`](super::apply) writes the state. Numbers of inodes are never used again. What
//! can be derived (references of objects, usage) is updated with each change.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::size_of;
use std::rc::Rc;

use plasmon::wire::files::{
    Attributes, FileKind, FileOutcome, LockRange, PLACE_XATTR, Place, ROOT_INODE, Time, VolumeTerms,
};
use plasmon::wire::record;
use plasmon::{NodeId, ObjectId};

use super::few::Few;
use super::map::Map;
use crate::kernel::random::HashMap;

record! {
    /// Attributes of an inode that cannot be derived.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Head {
        pub(super) kind: FileKind,
        /// The lower 12 bits of `st_mode`.
        pub(super) mode: u16,
        /// Number of nodes that keep the bytes of the inode. 0 for the number in the volume's terms.
        pub(super) copies: u16,
        pub(super) links: u32,
        pub(super) uid: u32,
        pub(super) gid: u32,
        pub(super) device: u32,
        pub(super) size: u64,
        pub(super) accessed: Time,
        pub(super) modified: Time,
        pub(super) changed: Time,
        pub(super) version: u64,
    }
}

/// An entry of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) inode: u64,
    pub(super) cookie: u64,
}

/// Names in a folder. Cookies only grow.
#[derive(Debug, Default)]
pub(super) struct Folder {
    pub(super) names: HashMap<Rc<[u8]>, Entry>,
    pub(super) order: BTreeMap<u64, Rc<[u8]>>,
    pub(super) last_cookie: u64,
}

/// Content of an inode beside its attributes.
#[derive(Debug)]
pub(super) enum Body {
    File(Map),
    Folder(Box<Folder>),
    Target(Box<[u8]>),
    Nothing,
}

/// Extended attributes by name.
pub(super) type Xattrs = Few<Box<[u8]>, Box<[u8]>>;

/// An inode.
#[derive(Debug)]
pub(super) struct Inode {
    pub(super) head: Head,
    /// Folder in which the inode lies. For an inode that is no folder and has links: a folder in which it has
    /// a name, or 0, since the folder of a file with several names may be unknown.
    pub(super) above: u64,
    pub(super) xattrs: Option<Box<Xattrs>>,
    pub(super) body: Body,
}

impl Inode {
    pub(super) fn folder(&self) -> Option<&Folder> {
        if let Body::Folder(folder) = &self.body { Some(folder) } else { None }
    }

    pub(super) fn map(&self) -> Option<&Map> {
        if let Body::File(map) = &self.body { Some(map) } else { None }
    }

    /// Returns the value of the inode's own attribute that says where bytes are to lie.
    pub(super) fn place_value(&self) -> Option<&[u8]> {
        self.xattrs.as_ref()?.get(PLACE_XATTR.as_bytes()).map(|value| &**value)
    }

    /// Returns the place of the inode's bytes, if it has one of its own.
    fn place(&self) -> Option<Place> {
        std::str::from_utf8(self.place_value()?).ok()?.parse().ok()
    }
}

/// An object that sections refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    /// Number of sections that refer to the object.
    pub(super) references: u64,
    pub(super) len: u64,
    /// Node that put the object. The object may have moved since.
    pub(super) node: NodeId,
}

record! {
    /// Opens of one inode by a session.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub(crate) struct Opens {
        pub(super) count: u32,
        /// Whether an open is to write.
        pub(super) writes: bool,
        /// Number of opens that have the right to map the file.
        pub(super) maps: u32,
    }
}

/// A session, as its volume knows it.
#[derive(Debug)]
pub(super) struct FileSession {
    pub(super) node: NodeId,
    pub(super) secret: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
    /// Whether the session may act for other users.
    pub(super) trusted: bool,
    /// Whether the home checks permissions.
    pub(super) checked: bool,
    pub(super) read_only: bool,
    pub(super) opens: BTreeMap<u64, Opens>,
    /// Outcomes that the session may ask for again, without maps.
    pub(super) outcomes: BTreeMap<u64, FileOutcome>,
    /// Number of an operation. The session has the outcomes of all operations below it.
    pub(super) answered: u64,
    /// Counter of objects. The session commits no object below it any more.
    pub(super) discarded: u64,
    /// Counters of the session's objects that were deleted. No commit names them again.
    pub(super) deleted: Counters,
    /// Bytes of credit to write files, by the owner of the files.
    pub(super) credit: BTreeMap<u32, u64>,
}

/// Set of numbers, kept as ranges that do not touch: the last number of each by the first.
#[derive(Debug, Default)]
pub(super) struct Counters(BTreeMap<u64, u64>);

impl Counters {
    pub(super) fn contains(&self, number: u64) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, last)| number <= *last)
    }

    pub(super) fn insert(&mut self, number: u64) {
        if self.contains(number) {
            return;
        }
        let before = self.0.range(..number).next_back().filter(|(_, last)| **last + 1 == number);
        let first = before.map_or(number, |(first, _)| *first);
        let after = number.checked_add(1).and_then(|next| self.0.remove(&next));
        self.0.insert(first, after.unwrap_or(number));
    }

    /// Returns the ranges in their order: first and last number of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(first, last)| (*first, *last))
    }

    /// Adds a range that touches no other range.
    pub(super) fn put(&mut self, first: u64, last: u64) {
        self.0.insert(first, last);
    }

    /// Number of ranges.
    pub(super) fn ranges(&self) -> u64 {
        self.0.len() as u64
    }
}

/// A lock that a session holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) session: u32,
    pub(super) range: LockRange,
}

/// State of a volume.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) number: u32,
    pub(super) created: Time,
    pub(super) terms: VolumeTerms,
    pub(super) inodes: BTreeMap<u64, Box<Inode>>,
    pub(super) last_inode: u64,
    /// Inodes without links. They go when no session has them open.
    pub(super) unlinked: BTreeSet<u64>,
    pub(super) objects: HashMap<ObjectId, Stored>,
    /// Objects that no section refers to any more, and that are to be deleted.
    pub(super) condemned: BTreeSet<ObjectId>,
    pub(super) sessions: BTreeMap<u32, FileSession>,
    pub(super) last_session: u32,
    pub(super) locks: HashMap<u64, Vec<Held>>,
    /// Number of opens of each inode in all sessions.
    pub(super) opens: HashMap<u64, u64>,
    /// Number of bytes of all files.
    pub(super) used: u64,
    /// Number of bytes of files, by their owner.
    pub(super) used_by: HashMap<u32, u64>,
    /// Number of bytes of credit of all sessions.
    pub(super) credit: u64,
    /// Number of bytes of credit, by the owner of the files for which it was given.
    pub(super) credit_of: HashMap<u32, u64>,
    /// Number of bytes that lie in maps.
    pub(super) inline: u64,
    /// Number of bytes of memory of names, targets, sections, objects, extended attributes, opens, locks,
    /// outcomes and credit, with their overhead.
    pub(super) memory: u64,
    /// Number of changes that were applied here.
    pub(super) changes: u64,
}

/// Bytes of memory that an inode takes, with its place in the table.
pub(super) const INODE_BYTES: u64 = size_of::<Inode>() as u64 + 40;
/// Bytes of memory that an entry of a folder takes beside its name.
pub(super) const ENTRY_BYTES: u64 = 160;
/// Bytes of memory that a folder takes beside its inode: what its tables of names begin with.
pub(super) const FOLDER_BYTES: u64 = 440;
/// Bytes of memory that a volume takes with one folder that has a short name.
pub(super) const VOLUME_BYTES: u64 = 2 * (INODE_BYTES + FOLDER_BYTES) + ENTRY_BYTES + 16;
/// Bytes of memory that a section takes beside bytes that lie in the map.
pub(super) const SECTION_BYTES: u64 = 96;
/// Bytes of memory that the row of an object takes.
pub(super) const OBJECT_BYTES: u64 = 120;
/// Bytes of memory that an open inode takes, in the tables of session and volume.
pub(super) const OPEN_BYTES: u64 = 96;
/// Bytes of memory that a lock takes.
pub(super) const LOCK_BYTES: u64 = size_of::<Held>() as u64 + 16;
/// Bytes of memory that an outcome takes.
pub(super) const OUTCOME_BYTES: u64 = size_of::<FileOutcome>() as u64 + 32;
/// Bytes of memory that credit for the files of a user takes.
pub(super) const CREDIT_BYTES: u64 = 96;
/// Bytes of memory that a range of numbers takes.
pub(super) const RANGE_BYTES: u64 = 32;

impl State {
    /// Makes a volume with an empty root folder, which belongs to a user.
    pub(super) fn new(number: u32, terms: VolumeTerms, uid: u32, gid: u32, now: Time) -> Self {
        let head = Head {
            kind: FileKind::Folder,
            mode: 0o755,
            copies: 0,
            links: 2,
            uid,
            gid,
            device: 0,
            size: 0,
            accessed: now,
            modified: now,
            changed: now,
            version: 1,
        };
        let body = Body::Folder(Box::default());
        let root = Inode { head, above: ROOT_INODE, xattrs: None, body };
        let inodes = BTreeMap::from([(ROOT_INODE, Box::new(root))]);
        Self {
            number,
            terms,
            inodes,
            last_inode: ROOT_INODE,
            unlinked: BTreeSet::new(),
            created: now,
            objects: HashMap::default(),
            condemned: BTreeSet::new(),
            sessions: BTreeMap::new(),
            last_session: 0,
            locks: HashMap::default(),
            opens: HashMap::default(),
            used: 0,
            used_by: HashMap::default(),
            credit: 0,
            credit_of: HashMap::default(),
            inline: 0,
            memory: INODE_BYTES + FOLDER_BYTES,
            changes: 0,
        }
    }

    /// Makes the state of a volume of which nothing is known so far.
    pub(super) fn unknown(number: u32, created: Time) -> Self {
        let mut state = Self::new(number, VolumeTerms::default(), 0, 0, created);
        state.inodes.clear();
        (state.last_inode, state.memory) = (0, 0);
        state
    }

    pub(super) fn inode(&self, number: u64) -> Option<&Inode> {
        self.inodes.get(&number).map(|inode| &**inode)
    }

    /// Returns the entry of a name in a folder.
    pub(super) fn entry(&self, folder: u64, name: &[u8]) -> Option<Entry> {
        self.inode(folder)?.folder()?.names.get(name).copied()
    }

    /// Returns the attributes of an inode, as sessions see them.
    pub(super) fn attributes(&self, number: u64) -> Option<Attributes> {
        let inode = self.inode(number)?;
        let head = &inode.head;
        let size = match &inode.body {
            Body::Folder(folder) => folder.names.len() as u64,
            Body::Target(target) => target.len() as u64,
            Body::File(_) | Body::Nothing => head.size,
        };
        Some(Attributes {
            inode: number,
            kind: head.kind,
            mode: head.mode.into(),
            links: head.links,
            uid: head.uid,
            gid: head.gid,
            device: head.device,
            size,
            used: inode.map().map_or(0, Map::used),
            accessed: head.accessed,
            modified: head.modified,
            changed: head.changed,
            version: head.version,
            copies: if head.copies > 0 { head.copies } else { self.terms.copies.max(1) },
            place: inode.place().unwrap_or_else(|| self.terms.place.clone()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use plasmon::wire::Draw;

    use super::Counters;

    #[test]
    fn numbers_are_kept_as_ranges_that_do_not_touch() {
        for seed in 0..100 {
            let mut draw = Draw::new(seed);
            let (mut counters, mut model) = (Counters::default(), BTreeSet::new());
            for _ in 0..60 {
                let number = draw.below(64) as u64;
                counters.insert(number);
                model.insert(number);
                for number in 0..66 {
                    assert_eq!(counters.contains(number), model.contains(&number), "seed {seed}");
                }
                let ranges = model.iter().filter(|number| !model.contains(&(**number + 1))).count();
                assert_eq!(counters.ranges(), ranges as u64, "seed {seed}");
            }
        }
    }
}
