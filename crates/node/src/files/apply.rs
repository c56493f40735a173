//! Applying changes: the only writer of the state. Engine thread only.
//!
//! A change of something that is not there changes nothing: it can only come of a change that was decided
//! when it was there, so that it went meanwhile.

use std::collections::BTreeMap;

use plasmon::ObjectId;
use plasmon::wire::files::parts_of;

use super::change::{Change, Made};
use super::map::{Map, Place, References};
use super::ranges;
use super::state::{
    Body, Counters, ENTRY_BYTES, Entry, FileSession, Folder, Held, INODE_BYTES, Inode, LOCK_BYTES,
    OPEN_BYTES, OUTCOME_BYTES, RANGE_BYTES, SECTION_BYTES, State, Stored,
};
use crate::kernel::random::HashMap;

impl State {
    /// Applies a change.
    pub(super) fn apply(&mut self, change: Change) {
        self.changes += 1;
        match change {
            Change::Make { head, made } => {
                self.last_inode += 1;
                let body = match made {
                    Made::File => Body::File(Map::default()),
                    Made::Folder(above) => Body::Folder(Box::new(Folder { above, ..Folder::default() })),
                    Made::Target(target) => Body::Target(target),
                    Made::Other => Body::Nothing,
                };
                if let Body::Target(target) = &body {
                    self.memory += target.len() as u64;
                }
                self.memory += INODE_BYTES;
                self.inodes.insert(self.last_inode, Box::new(Inode { head, xattrs: None, body }));
            }
            Change::Head { inode, head } => self.set_head(inode, head),
            Change::Name { folder, name, inode } => self.set_name(folder, name, inode),
            Change::Above { folder, above } => {
                if let Some(folder) = self.folder_mut(folder) {
                    folder.above = above;
                }
            }
            Change::Cover { inode, offset, piece, object } => {
                if let (Place::Object(id, _), Some((len, node))) = (&piece.place, object) {
                    self.objects.entry(*id).or_insert(Stored { references: 0, len, node });
                    self.condemned.remove(id);
                }
                self.change_map(inode, |map, references| map.cover(offset, piece, references));
            }
            Change::Punch { inode, start, end } => {
                self.change_map(inode, |map, references| map.punch(start..end, references));
            }
            Change::Xattr { inode, name, value } => self.set_xattr(inode, name, value),
            Change::Lock { inode, session, range } => {
                if self.sessions.contains_key(&session) {
                    let held = self.locks.entry(inode).or_default();
                    self.memory -= held.len() as u64 * LOCK_BYTES;
                    ranges::set(held, Held { session, range });
                    self.memory += held.len() as u64 * LOCK_BYTES;
                    if held.is_empty() {
                        self.locks.remove(&inode);
                    }
                }
            }
            Change::Open { inode, session, writes } => self.open(inode, session, writes),
            Change::Close { inode, session } => self.close(inode, session),
            Change::Deleted(ids) => ids.iter().for_each(|id| self.forget_object(id)),
            Change::Terms(terms) => self.terms = terms,
            other => self.apply_to_session(other),
        }
    }

    fn apply_to_session(&mut self, change: Change) {
        match change {
            Change::Begin(begun) => {
                self.last_session += 1;
                let session = FileSession {
                    node: begun.node,
                    secret: begun.secret,
                    uid: begun.uid,
                    gid: begun.gid,
                    groups: begun.groups,
                    trusted: begun.trusted,
                    checked: begun.checked,
                    read_only: begun.read_only,
                    opens: HashMap::default(),
                    outcomes: BTreeMap::new(),
                    answered: 0,
                    discarded: 0,
                    deleted: Counters::default(),
                };
                self.sessions.insert(self.last_session, session);
            }
            Change::Move { session, node } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.node = node;
                }
            }
            Change::End { session } => self.end_session(session),
            Change::Note { session, number, outcome } => {
                if let Some(session) = self.sessions.get_mut(&session)
                    && session.outcomes.insert(number, outcome).is_none()
                {
                    self.memory += OUTCOME_BYTES;
                }
            }
            Change::Answered { session, number } => {
                if let Some(session) = self.sessions.get_mut(&session)
                    && number > session.answered
                {
                    session.answered = number;
                    let kept = session.outcomes.split_off(&number);
                    self.memory -= session.outcomes.len() as u64 * OUTCOME_BYTES;
                    session.outcomes = kept;
                }
            }
            Change::Discard { session, below } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.discarded = session.discarded.max(below);
                }
            }
            other => unreachable!("{other:?} is no change of a session"),
        }
    }

    fn folder_mut(&mut self, number: u64) -> Option<&mut Folder> {
        match &mut self.inodes.get_mut(&number)?.body {
            Body::Folder(folder) => Some(folder),
            _ => None,
        }
    }

    fn set_head(&mut self, number: u64, head: super::state::Head) {
        let Some(inode) = self.inodes.get_mut(&number) else { return };
        let (before, used) = (inode.head.uid, inode.map().map_or(0, Map::used));
        inode.head = head;
        if before != head.uid && used > 0 {
            self.charge(before, used, 0);
            self.charge(head.uid, 0, used);
        }
        self.forget_unused(number);
    }

    fn set_name(&mut self, number: u64, name: std::rc::Rc<[u8]>, inode: Option<u64>) {
        let Some(folder) = self.folder_mut(number) else { return };
        let len = name.len() as u64;
        let before = folder.names.remove(&name);
        if let Some(entry) = before {
            folder.order.remove(&entry.cookie);
        }
        if let Some(inode) = inode {
            folder.last_cookie += 1;
            let cookie = folder.last_cookie;
            folder.order.insert(cookie, std::rc::Rc::clone(&name));
            folder.names.insert(name, Entry { inode, cookie });
        } else if folder.names.capacity() > 64 && folder.names.len() * 8 < folder.names.capacity() {
            folder.names.shrink_to_fit();
        }
        match (before, inode) {
            (None, Some(_)) => self.memory += ENTRY_BYTES + len,
            (Some(_), None) => self.memory -= ENTRY_BYTES + len,
            _ => {}
        }
    }

    /// Moves bytes of a user's files.
    fn charge(&mut self, uid: u32, less: u64, more: u64) {
        let used = self.used_by.entry(uid).or_default();
        *used = (*used + more).saturating_sub(less);
        if *used == 0 {
            self.used_by.remove(&uid);
        }
    }

    /// Changes the sections of a file, and what follows from them.
    fn change_map(&mut self, number: u64, change: impl FnOnce(&mut Map, &mut References)) {
        let Some(inode) = self.inodes.get_mut(&number) else { return };
        let (uid, Body::File(map)) = (inode.head.uid, &mut inode.body) else { return };
        let before = (map.used(), map.inline(), map.count() as u64);
        let mut references = References::default();
        change(map, &mut references);
        let after = (map.used(), map.inline(), map.count() as u64);
        self.used = self.used - before.0 + after.0;
        self.inline = self.inline - before.1 + after.1;
        let bytes = |(_, inline, count): (u64, u64, u64)| inline + count * SECTION_BYTES;
        self.memory = self.memory - bytes(before) + bytes(after);
        self.charge(uid, before.0, after.0);
        // First those that come: what is split or moved is referred to all the while.
        for (id, _) in references.0.iter().filter(|(_, more)| *more) {
            if let Some(object) = self.objects.get_mut(id) {
                object.references += 1;
            }
        }
        for (id, _) in references.0.iter().filter(|(_, more)| !*more) {
            let Some(object) = self.objects.get_mut(id) else { continue };
            object.references -= 1;
            if object.references == 0 {
                self.objects.remove(id);
                self.condemned.insert(*id);
            }
        }
    }

    /// Forgets an object that was deleted. Its session, which goes on, cannot name it again.
    fn forget_object(&mut self, id: &ObjectId) {
        self.condemned.remove(id);
        let Some((_, session, counter)) = parts_of(id) else { return };
        let Some(session) = self.sessions.get_mut(&session) else { return };
        let before = session.deleted.ranges() * RANGE_BYTES;
        session.deleted.insert(counter);
        self.memory = self.memory - before + session.deleted.ranges() * RANGE_BYTES;
    }

    fn set_xattr(&mut self, number: u64, name: Box<[u8]>, value: Option<Box<[u8]>>) {
        let Some(inode) = self.inodes.get_mut(&number) else { return };
        let xattrs = inode.xattrs.get_or_insert_default();
        let size = |name: usize, value: &[u8]| ENTRY_BYTES + (name + value.len()) as u64;
        let len = name.len();
        let added = value.as_ref().map_or(0, |value| size(len, value));
        let before = match value {
            Some(value) => xattrs.insert(name, value),
            None => xattrs.remove(&name),
        };
        if xattrs.is_empty() {
            inode.xattrs = None;
        }
        self.memory = self.memory + added - before.map_or(0, |value| size(len, &value));
    }

    fn open(&mut self, inode: u64, session: u32, writes: bool) {
        let Some(session) = self.sessions.get_mut(&session) else { return };
        let opens = session.opens.entry(inode).or_default();
        if opens.count == 0 {
            self.memory += OPEN_BYTES;
        }
        opens.count += 1;
        opens.writes |= writes;
        *self.opens.entry(inode).or_default() += 1;
    }

    fn close(&mut self, inode: u64, session: u32) {
        let Some(session) = self.sessions.get_mut(&session) else { return };
        let Some(opens) = session.opens.get_mut(&inode) else { return };
        opens.count -= 1;
        if opens.count == 0 {
            session.opens.remove(&inode);
            self.memory -= OPEN_BYTES;
        }
        self.closed(inode, 1);
    }

    /// Counts an inode as closed so many times.
    fn closed(&mut self, inode: u64, times: u64) {
        if let Some(count) = self.opens.get_mut(&inode) {
            *count = count.saturating_sub(times);
            if *count == 0 {
                self.opens.remove(&inode);
                self.forget_unused(inode);
            }
        }
    }

    fn end_session(&mut self, number: u32) {
        let Some(session) = self.sessions.remove(&number) else { return };
        self.memory -= session.deleted.ranges() * RANGE_BYTES
            + session.opens.len() as u64 * OPEN_BYTES
            + session.outcomes.len() as u64 * OUTCOME_BYTES;
        self.locks.retain(|_, held| {
            let before = held.len();
            held.retain(|one| one.session != number);
            self.memory -= (before - held.len()) as u64 * LOCK_BYTES;
            !held.is_empty()
        });
        let mut opens: Vec<_> = session.opens.into_iter().collect();
        opens.sort_unstable_by_key(|(inode, _)| *inode);
        opens.iter().for_each(|(inode, opens)| self.closed(*inode, opens.count.into()));
    }

    /// Lets an inode go that has neither links nor opens.
    fn forget_unused(&mut self, number: u64) {
        let is_unused = |inode: &Inode| inode.head.links == 0;
        if self.opens.contains_key(&number) || !self.inode(number).is_some_and(is_unused) {
            return;
        }
        self.change_map(number, Map::clear);
        let Some(inode) = self.inodes.remove(&number) else { return };
        let locks = self.locks.remove(&number).map_or(0, |held| held.len() as u64);
        self.memory -= INODE_BYTES + locks * LOCK_BYTES;
        if let Body::Target(target) = &inode.body {
            self.memory -= target.len() as u64;
        }
        for (name, value) in inode.xattrs.iter().flat_map(|xattrs| xattrs.iter()) {
            self.memory -= ENTRY_BYTES + (name.len() + value.len()) as u64;
        }
    }
}
