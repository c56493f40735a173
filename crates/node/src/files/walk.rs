//! The walk: a mirror that joins is sent the state of a volume piece by piece, while operations go on. Owns
//! [`Walk`]. Engine thread only.
//!
//! First come the sessions, then the inodes in the order of their numbers, then what sessions of users have
//! open, then what is to be deleted. Changes meanwhile are sent only if they belong to what was sent already.
//! The walk sends the rest as it is by then. Invariant: when the walk has ended, and the mirror has applied
//! all changes since, it has the state of the home.

use std::borrow::Cow;
use std::ops::Bound;

use bytes::{Bytes, BytesMut};
use plasmon::ObjectId;
use plasmon::wire::Wire;

use super::change::{Begun, Change, Key, MAX_LISTED, Made};
use super::map::{Piece, Place};
use super::state::{Body, Inode, State};

/// Maximum number of bytes of changes in a frame. A longer change has a frame of its own.
const PART_BYTES: usize = 12 << 10;
/// Number of bytes after which a share of a walk ends.
pub(super) const SHARE_BYTES: usize = 40 << 10;
/// Number of inodes, or sessions, after which a share of a walk ends.
const SHARE_STEPS: usize = 512;

/// Encoded changes, cut into parts that fit frames.
#[derive(Debug, Default)]
pub(super) struct Parts {
    parts: Vec<BytesMut>,
    bytes: usize,
}

impl Parts {
    pub(super) fn push(&mut self, change: &Change) {
        let mut bytes = BytesMut::new();
        <Change as Wire>::put(change, &mut bytes);
        self.bytes += bytes.len();
        match self.parts.last_mut() {
            Some(part) if part.len() + bytes.len() <= PART_BYTES => part.extend_from_slice(&bytes),
            _ => self.parts.push(bytes),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Takes all parts. There is at least one, which may be empty.
    pub(super) fn take(&mut self) -> Vec<Bytes> {
        self.bytes = 0;
        let mut parts: Vec<_> = self.parts.drain(..).map(BytesMut::freeze).collect();
        if parts.is_empty() {
            parts.push(Bytes::new());
        }
        parts
    }
}

/// Position of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cursor {
    /// Sessions below this number were sent.
    Sessions(u32),
    /// Inodes below this number were sent. With a cookie or an offset, the inode was sent as far as that.
    Inodes(u64, Option<u64>),
    /// Opens of sessions below the first number were sent, and of that session the inodes up to the second
    /// number.
    Opens(u32, u64),
    /// Objects to be deleted were sent up to this one.
    Condemned(Option<ObjectId>),
    Done,
}

/// A walk under way.
#[derive(Debug)]
pub(super) struct Walk {
    cursor: Cursor,
    gathered: Parts,
}

impl Walk {
    pub(super) fn new(state: &State) -> Self {
        let mut walk = Self { cursor: Cursor::Sessions(0), gathered: Parts::default() };
        walk.gathered.push(&Change::Terms(state.terms.clone()));
        walk
    }

    /// Whether everything was sent.
    pub(super) fn is_done(&self) -> bool {
        self.cursor == Cursor::Done
    }

    /// Whether a change belongs to a part of the state that was sent.
    fn has(&self, key: Key) -> bool {
        match (self.cursor, key) {
            (_, Key::Whole) | (Cursor::Condemned(_) | Cursor::Done, _) => true,
            (Cursor::Sessions(next), Key::Session(session)) => session < next,
            (Cursor::Inodes(..) | Cursor::Opens(..), Key::Session(_) | Key::NextSession) => true,
            (Cursor::Inodes(next, within), Key::Inode(inode)) => {
                inode < next || (inode == next && within.is_some())
            }
            (Cursor::Opens(..), Key::Inode(_) | Key::NextInode) => true,
            (Cursor::Opens(next, upto), Key::Open(session, inode)) => (session, inode) <= (next, upto),
            (Cursor::Sessions(_), _) | (Cursor::Inodes(..), Key::NextInode | Key::Open(..)) => false,
        }
    }

    /// Notes a change that is about to be applied.
    pub(super) fn note(&mut self, state: &State, change: &Change) {
        if self.has(change.key()) && !self.is_ahead(state, change) {
            self.gathered.push(&filled(state, change));
        }
    }

    /// Whether a change is of an entry that the mirror does not have yet, in a folder of which it has others.
    /// The walk brings the entry as it is then.
    fn is_ahead(&self, state: &State, change: &Change) -> bool {
        match (self.cursor, change) {
            (Cursor::Inodes(next, Some(upto)), Change::Name { folder, name, .. }) if *folder == next => {
                state.entry(*folder, name).is_some_and(|entry| entry.cookie > upto)
            }
            _ => false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gathered.is_empty()
    }

    /// Takes the changes that have gathered.
    pub(super) fn take(&mut self) -> Vec<Bytes> {
        self.gathered.take()
    }

    /// Goes on with the walk until `share` bytes have gathered.
    pub(super) fn go_on(&mut self, state: &State, share: usize) {
        let mut steps = 0;
        while self.gathered.bytes < share && steps < SHARE_STEPS {
            steps += 1;
            match self.cursor {
                Cursor::Sessions(next) => self.walk_session(state, next),
                Cursor::Inodes(next, within) => self.walk_inode(state, next, within, share),
                Cursor::Opens(next, upto) => self.walk_opens(state, next, upto, share),
                Cursor::Condemned(after) => self.walk_condemned(state, after),
                Cursor::Done => break,
            }
        }
    }

    fn walk_session(&mut self, state: &State, next: u32) {
        let last = Change::PutLast { inode: state.last_inode, session: state.last_session };
        let Some((number, one)) = state.sessions.range(next..).next() else {
            self.gathered.push(&last);
            self.cursor = Cursor::Inodes(0, None);
            return;
        };
        let (session, answered, discarded) = (*number, one.answered, one.discarded);
        let begun = Begun {
            node: one.node,
            secret: one.secret,
            uid: one.uid,
            gid: one.gid,
            groups: one.groups.clone(),
            trusted: one.trusted,
            checked: one.checked,
            read_only: one.read_only,
        };
        self.gathered.push(&Change::PutSession { session, begun, answered, discarded });
        for (number, outcome) in &one.outcomes {
            self.gathered.push(&Change::Note { session, number: *number, outcome: outcome.clone() });
        }
        for (uid, bytes) in &one.credit {
            self.gathered.push(&Change::Credit { session, uid: *uid, bytes: *bytes });
        }
        let ranges: Vec<_> = one.deleted.iter().collect();
        for ranges in ranges.chunks(MAX_LISTED) {
            self.gathered.push(&Change::PutDeleted { session, ranges: ranges.to_vec() });
        }
        self.cursor = Cursor::Sessions(session + 1);
    }

    fn walk_inode(&mut self, state: &State, next: u64, within: Option<u64>, share: usize) {
        let Some((number, inode)) = state.inodes.range(next..).next() else {
            self.gathered.push(&Change::PutLast { inode: state.last_inode, session: state.last_session });
            self.cursor = Cursor::Opens(0, 0);
            return;
        };
        // The inode that was sent in part may have gone.
        let from = within.filter(|_| *number == next);
        if from.is_none() {
            self.begin_inode(state, *number, inode);
        }
        let rest = match &inode.body {
            Body::Folder(folder) => {
                let after = folder.order.range((Bound::Excluded(from.unwrap_or(0)), Bound::Unbounded));
                let entries =
                    after.filter_map(|(cookie, name)| Some((*cookie, name, folder.names.get(name)?)));
                let mut rest = None;
                for (cookie, name, entry) in entries {
                    let (folder, name) = (*number, std::rc::Rc::clone(name));
                    self.gathered.push(&Change::PutEntry { folder, name, inode: entry.inode, cookie });
                    if self.gathered.bytes >= share {
                        rest = Some(cookie);
                        break;
                    }
                }
                rest
            }
            Body::File(map) => {
                let mut rest = None;
                for (offset, piece) in map.within(from.unwrap_or(0)..u64::MAX) {
                    let (inode, piece) = (*number, piece.clone());
                    let end = offset + piece.len;
                    let object = known(state, &piece);
                    self.gathered.push(&Change::PutPiece { inode, offset, piece, object });
                    if self.gathered.bytes >= share {
                        rest = Some(end);
                        break;
                    }
                }
                rest
            }
            Body::Target(_) | Body::Nothing => None,
        };
        self.cursor = match rest {
            Some(at) => Cursor::Inodes(*number, Some(at)),
            None => Cursor::Inodes(number + 1, None),
        };
    }

    /// Sends the parts of an inode beside names and sections.
    fn begin_inode(&mut self, state: &State, number: u64, inode: &Inode) {
        let (made, last_cookie) = match &inode.body {
            Body::File(_) => (Made::File, 0),
            Body::Folder(folder) => (Made::Folder, folder.last_cookie),
            Body::Target(target) => (Made::Target(target.clone()), 0),
            Body::Nothing => (Made::Other, 0),
        };
        let (head, above) = (inode.head, inode.above);
        self.gathered.push(&Change::PutInode { inode: number, head, above, made, last_cookie });
        for (name, value) in inode.xattrs.iter().flat_map(|xattrs| xattrs.iter()) {
            let (name, value) = (name.clone(), Some(value.clone()));
            self.gathered.push(&Change::Xattr { inode: number, name, value });
        }
        for held in state.locks.get(&number).into_iter().flatten() {
            let (session, range) = (held.session, held.range);
            self.gathered.push(&Change::Lock { inode: number, session, range });
        }
    }

    /// Sends the opens of a session, unless it is trusted: mirrors do not have the opens of trusted sessions.
    fn walk_opens(&mut self, state: &State, next: u32, upto: u64, share: usize) {
        let Some((session, one)) = state.sessions.range(next..).next() else {
            self.cursor = Cursor::Condemned(None);
            return;
        };
        let from = if *session == next { upto } else { 0 };
        let opens = one.opens.range((Bound::Excluded(from), Bound::Unbounded));
        for (inode, opens) in opens.take_while(|_| !one.trusted) {
            self.gathered.push(&Change::Open { inode: *inode, session: *session, opens: *opens });
            if self.gathered.bytes >= share {
                self.cursor = Cursor::Opens(*session, *inode);
                return;
            }
        }
        self.cursor = Cursor::Opens(session + 1, 0);
    }

    fn walk_condemned(&mut self, state: &State, after: Option<ObjectId>) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let ids: Vec<_> = state.condemned.range((from, Bound::Unbounded)).take(MAX_LISTED).copied().collect();
        self.cursor = ids.last().map_or(Cursor::Done, |last| Cursor::Condemned(Some(*last)));
        if !ids.is_empty() {
            self.gathered.push(&Change::PutCondemned(ids));
        }
    }
}

/// Returns length and node of the object of a section.
fn known(state: &State, piece: &Piece) -> Option<(u64, plasmon::NodeId)> {
    let Place::Object(id, _) = &piece.place else { return None };
    state.objects.get(id).map(|stored| (stored.len, stored.node))
}

/// Returns a change for a mirror that may not have the other sections of an object: with the object's length
/// and node.
fn filled<'a>(state: &State, change: &'a Change) -> Cow<'a, Change> {
    match change {
        Change::Cover { inode, offset, piece, object: None } => {
            let object = known(state, piece);
            Cow::Owned(Change::Cover { inode: *inode, offset: *offset, piece: piece.clone(), object })
        }
        other => Cow::Borrowed(other),
    }
}

#[cfg(test)]
mod tests {
    use plasmon::wire::Draw;
    use plasmon::wire::files::{ROOT_INODE, Time, VolumeTerms};

    use super::*;
    use crate::files::state::Opens;

    #[test]
    fn what_many_sessions_have_open_is_sent_in_shares() {
        const SESSIONS: u32 = 300;
        let mut state = State::new(1, VolumeTerms::default(), 0, 0, Time::default());
        let head = state.inodes[&ROOT_INODE].head;
        for _ in 0..50 {
            state.apply(Change::Make { head, above: ROOT_INODE, made: Made::Other });
        }
        for session in 1..=SESSIONS {
            let trusted = session % 3 == 0;
            state.apply(Change::Begin(Begun { trusted, ..Begun::draw(&mut Draw::new(1)) }));
            let opens = Opens { count: session, writes: false, maps: 0 };
            state.apply(Change::Open { inode: ROOT_INODE, session, opens });
        }
        for inode in ROOT_INODE + 1..=state.last_inode {
            state.apply(Change::Open { inode, session: 1, opens: Opens { count: 9, writes: true, maps: 0 } });
        }
        let (mut walk, mut opened) = (Walk::new(&state), Vec::new());
        while !walk.is_done() {
            walk.go_on(&state, 1);
            let parts = walk.take();
            let changes: Vec<_> =
                parts.into_iter().flat_map(|part| Change::read_all(part).expect("it is ours")).collect();
            assert!(changes.len() <= 2, "a share ends where it is full: {changes:?}");
            opened.extend(changes.into_iter().filter_map(|change| match change {
                Change::Open { inode, session, opens } => Some((session, inode, opens.count)),
                _ => None,
            }));
        }
        let users = (1..=SESSIONS).filter(|session| session % 3 != 0);
        let mut expected: Vec<_> = users.map(|session| (session, ROOT_INODE, session)).collect();
        expected.extend((ROOT_INODE + 1..=state.last_inode).map(|inode| (1, inode, 9)));
        expected.sort_unstable();
        assert_eq!(opened, expected);
    }
}
