//! Changes: the effects of operations on the state of a volume. Owns no state. Any thread.
//!
//! A home sends changes to mirrors in this encoding. Opens and closes of trusted sessions are not sent,
//! because such a session itself tells a new home what it has open. Invariant: nothing but changes alters the
//! state of a volume.

use std::rc::Rc;

use bytes::Bytes;
use plasmon::wire::body::Reader;
use plasmon::wire::files::{
    FileOutcome, LockRange, MAX_ENTRY_NAME_BYTES, MAX_FILE_BYTES, MAX_GROUPS, MAX_SENT_NAME_BYTES,
    MAX_TARGET_BYTES, MAX_XATTR_BYTES, VolumeTerms,
};
use plasmon::wire::{AtMost, Each, Wire, WireError, record, table};
use plasmon::{NodeId, ObjectId};

use super::map::{Piece, Place};
use super::state::{Head, Opens, State};

/// Maximum number of objects, or of ranges of numbers, in one change.
pub(super) const MAX_LISTED: usize = 256;
/// Limit of the numbers of inodes, and of cookies: all are smaller.
const MAX_NUMBER: u64 = 1 << 62;

table! {
    /// The kind of a new inode, with what that kind has.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) enum Made {
        /// A file without bytes.
        0 File,
        /// An empty folder.
        1 Folder,
        /// A symbolic link.
        2 Target(target: Box<[u8]> as AtMost<MAX_TARGET_BYTES>),
        /// A node without contents.
        3 Other,
    }
}

record! {
    /// Facts about a session at its beginning.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Begun {
        pub(super) node: NodeId,
        pub(super) secret: u64,
        pub(super) uid: u32,
        pub(super) gid: u32,
        pub(super) groups: Vec<u32> as AtMost<MAX_GROUPS>,
        pub(super) trusted: bool,
        pub(super) checked: bool,
        pub(super) read_only: bool,
    }
}

table! {
    /// A change of the state of a volume.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) enum Change {
        /// The next inode is made, in a folder or in none (0).
        0 Make { head: Head, above: u64, made: Made },
        /// An inode has these attributes.
        1 Head { inode: u64, head: Head },
        /// A name stands for an inode, or for none.
        2 Name { folder: u64, name: Rc<[u8]> as AtMost<MAX_ENTRY_NAME_BYTES>, inode: Option<u64> },
        /// An inode lies in another folder. Of what has several names, it may not be known where (0).
        3 Above { inode: u64, above: u64 },
        /// A section lies over what a file had there. The change says size and node of an object, unless
        /// another section refers to it all the while.
        4 Cover { inode: u64, offset: u64, piece: Piece, object: Option<(u64, NodeId)> },
        /// A file has a hole.
        5 Punch { inode: u64, start: u64, end: u64 },
        /// An extended attribute has a value, or is none.
        6 Xattr {
            inode: u64,
            name: Box<[u8]> as AtMost<MAX_SENT_NAME_BYTES>,
            value: Option<Box<[u8]>> as Each<AtMost<MAX_XATTR_BYTES>>,
        },
        /// A session has locked a range, or unlocked it.
        7 Lock { inode: u64, session: u32, range: LockRange },
        /// A session has opened an inode, so many times.
        8 Open { inode: u64, session: u32, opens: Opens },
        /// A session has closed an inode once.
        9 Close { inode: u64, session: u32, maps: bool },
        /// An inode that has neither links nor opens goes.
        10 Forget { inode: u64 },
        /// The next session begins.
        11 Begin(begun: Begun),
        /// A session goes on by another node.
        12 Move { session: u32, node: NodeId },
        /// A session ends.
        13 End { session: u32 },
        /// An operation of a session has this outcome.
        14 Note { session: u32, number: u64, outcome: FileOutcome },
        /// A session has all outcomes below a number.
        15 Answered { session: u32, number: u64 },
        /// The holders of these objects have deleted them. No session names them again.
        16 Deleted(ids: Vec<ObjectId> as AtMost<MAX_LISTED>),
        /// The volume has other terms.
        17 Terms(terms: VolumeTerms),
        /// A session commits no objects with counters below this one any more, unless a file has them.
        18 Discard { session: u32, below: u64 },
        /// A session has so much credit to write files of a user.
        19 Credit { session: u32, uid: u32, bytes: u64 },
        /// The mirror that joins has this inode, which is all that it has of it.
        20 PutInode { inode: u64, head: Head, above: u64, made: Made, last_cookie: u64 },
        /// The mirror that joins has this entry of a folder.
        21 PutEntry { folder: u64, name: Rc<[u8]> as AtMost<MAX_ENTRY_NAME_BYTES>, inode: u64, cookie: u64 },
        /// The mirror that joins has this section of a file.
        22 PutPiece { inode: u64, offset: u64, piece: Piece, object: Option<(u64, NodeId)> },
        /// The mirror that joins has this session.
        23 PutSession { session: u32, begun: Begun, answered: u64, discarded: u64 },
        /// The objects of a session with counters in these ranges were deleted.
        24 PutDeleted { session: u32, ranges: Vec<(u64, u64)> as AtMost<MAX_LISTED> },
        /// No file has these objects, which are to be deleted.
        25 PutCondemned(ids: Vec<ObjectId> as AtMost<MAX_LISTED>),
        /// The last inode and the last session have these numbers.
        26 PutLast { inode: u64, session: u32 },
    }
}

/// Part of the state to which a change belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Inode(u64),
    Session(u32),
    /// Opens of an inode by a session: the session, and the inode.
    Open(u32, u64),
    NextInode,
    NextSession,
    Whole,
}

impl Change {
    /// Whether a home sends the change to mirrors. `state` is the state before the change.
    pub(super) fn is_sent(&self, state: &State) -> bool {
        let (Self::Open { session, .. } | Self::Close { session, .. }) = self else { return true };
        state.sessions.get(session).is_some_and(|session| !session.trusted)
    }

    /// Returns the part of the state to which the change belongs.
    pub(super) fn key(&self) -> Key {
        match self {
            Self::Make { .. } => Key::NextInode,
            Self::Head { inode, .. }
            | Self::Cover { inode, .. }
            | Self::Punch { inode, .. }
            | Self::Xattr { inode, .. }
            | Self::Lock { inode, .. }
            | Self::Forget { inode }
            | Self::Above { inode, .. }
            | Self::PutInode { inode, .. }
            | Self::PutPiece { inode, .. } => Key::Inode(*inode),
            Self::Open { inode, session, .. } | Self::Close { inode, session, .. } => {
                Key::Open(*session, *inode)
            }
            Self::Name { folder, .. } | Self::PutEntry { folder, .. } => Key::Inode(*folder),
            Self::Begin(_) => Key::NextSession,
            Self::Move { session, .. }
            | Self::End { session }
            | Self::Note { session, .. }
            | Self::Answered { session, .. }
            | Self::Discard { session, .. }
            | Self::Credit { session, .. }
            | Self::PutSession { session, .. }
            | Self::PutDeleted { session, .. } => Key::Session(*session),
            Self::Deleted(_) | Self::Terms(_) | Self::PutCondemned(_) | Self::PutLast { .. } => Key::Whole,
        }
    }

    /// Whether a home sends such a change: numbers are in range, and the length of a section is that of its
    /// bytes.
    fn is_valid(&self) -> bool {
        let lies = |offset: u64, piece: &Piece| {
            piece.is_valid() && offset.checked_add(piece.len).is_some_and(|end| end <= MAX_FILE_BYTES)
        };
        let in_range = match self {
            Self::Cover { offset, piece, .. } | Self::PutPiece { offset, piece, .. } => lies(*offset, piece),
            Self::Punch { start, end, .. } => start <= end,
            Self::Credit { bytes, .. } => *bytes <= MAX_FILE_BYTES,
            Self::Lock { range, .. } => range.start <= range.end,
            Self::PutInode { last_cookie, .. } => *last_cookie < MAX_NUMBER,
            Self::PutEntry { cookie, .. } => (1..MAX_NUMBER).contains(cookie),
            Self::PutDeleted { ranges, .. } => ranges.iter().all(|(first, last)| first <= last),
            Self::PutLast { inode, session } => *inode < MAX_NUMBER && *session < u32::MAX,
            _ => true,
        };
        let is_numbered = match self.key() {
            Key::Inode(inode) => inode < MAX_NUMBER,
            Key::Session(session) => session < u32::MAX,
            Key::Open(session, inode) => session < u32::MAX && inode < MAX_NUMBER,
            Key::NextInode | Key::NextSession | Key::Whole => true,
        };
        in_range && is_numbered
    }

    /// Decodes changes that a home has sent.
    ///
    /// # Errors
    /// If the bytes are not changes that a home sends.
    pub(super) fn read_all(bytes: Bytes) -> Result<Vec<Self>, WireError> {
        let mut body = Reader::new(bytes, "changes of a volume");
        let mut changes = Vec::new();
        while body.remaining() > 0 {
            let change = <Self as Wire>::take(&mut body)?;
            if !change.is_valid() {
                return Err(body.malformed());
            }
            changes.push(change);
        }
        Ok(changes)
    }
}

impl Piece {
    fn is_valid(&self) -> bool {
        match &self.place {
            Place::Inline(bytes) => self.len > 0 && bytes.len() as u64 == self.len,
            Place::Object(_, at) => {
                self.len > 0 && at.checked_add(self.len).is_some_and(|end| end <= MAX_FILE_BYTES)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use plasmon::wire::Table;
    use plasmon::wire::files::encoded;

    use super::*;

    #[test]
    fn what_a_home_sends_is_read_and_nothing_else() {
        let mut read = 0;
        for change in Change::draw_all(200, 11) {
            let bytes = encoded(&change).freeze();
            match Change::read_all(bytes.clone()) {
                Ok(changes) => {
                    assert!(change.is_valid());
                    assert_eq!(changes, [change]);
                    assert!(Change::read_all(bytes.slice(..bytes.len() - 1)).is_err());
                    read += 1;
                }
                Err(_) => assert!(!change.is_valid(), "{change:?}"),
            }
        }
        assert!(read > 1000, "{read} were read");
        let piece = Piece { len: 4, place: Place::Inline((*b"abc").into()) };
        let wrong = Change::Cover { inode: 1, offset: 0, piece, object: None };
        assert!(Change::read_all(encoded(&wrong).freeze()).is_err());
    }
}
