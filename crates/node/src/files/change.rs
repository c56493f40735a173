//! Changes: what operations did. Nothing else alters the state of a volume. Plain data.

use std::rc::Rc;

use plasmon::wire::files::{FileOutcome, LockRange, VolumeTerms};
use plasmon::{NodeId, ObjectId};

use super::map::Piece;
use super::state::Head;

/// What a new inode is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Made {
    File,
    /// In the folder of this number.
    Folder(u64),
    Target(Box<[u8]>),
    Other,
}

/// What is known of a session when it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Begun {
    pub(super) node: NodeId,
    pub(super) secret: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
    pub(super) trusted: bool,
    pub(super) checked: bool,
    pub(super) read_only: bool,
}

/// A change of the state of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// The next inode is made. It stays without links until it is closed.
    Make { head: Head, made: Made },
    /// An inode has these attributes. Without links and opens it goes.
    Head { inode: u64, head: Head },
    /// A name stands for an inode, or for none.
    Name { folder: u64, name: Rc<[u8]>, inode: Option<u64> },
    /// A folder lies in another.
    Above { folder: u64, above: u64 },
    /// A section lies over what a file had there. The change says size and node of an object, unless another
    /// section refers to it all the while.
    Cover { inode: u64, offset: u64, piece: Piece, object: Option<(u64, NodeId)> },
    /// A file has a hole.
    Punch { inode: u64, start: u64, end: u64 },
    /// An extended attribute has a value, or is none.
    Xattr { inode: u64, name: Box<[u8]>, value: Option<Box<[u8]>> },
    /// A session has locked a range, or unlocked it.
    Lock { inode: u64, session: u32, range: LockRange },
    /// A session has opened an inode.
    Open { inode: u64, session: u32, writes: bool },
    /// A session has closed an inode once.
    Close { inode: u64, session: u32 },
    /// The next session begins.
    Begin(Begun),
    /// A session goes on by another node.
    Move { session: u32, node: NodeId },
    /// A session ends.
    End { session: u32 },
    /// An operation of a session has this outcome.
    Note { session: u32, number: u64, outcome: FileOutcome },
    /// A session has all outcomes below a number.
    Answered { session: u32, number: u64 },
    /// A session commits no object below a counter any more that no file has.
    Discard { session: u32, below: u64 },
    /// The holders of these objects have deleted them. No session names them again.
    Deleted(Vec<ObjectId>),
    /// The volume has other terms.
    Terms(VolumeTerms),
}
