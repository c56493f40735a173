//! Applying changes: the only writer of the state of a volume. Owns no state. Engine thread only.
//!
//! Invariant: a change of something that is not there changes nothing. Such a change was decided while the
//! thing was there.

use std::collections::BTreeMap;
use std::rc::Rc;

use plasmon::wire::files::parts_of;
use plasmon::{NodeId, ObjectId};

use super::change::{Begun, Change, Made};
use super::map::{Map, Piece, Place, References};
use super::ranges;
use super::state::{
    Body, CREDIT_BYTES, Counters, ENTRY_BYTES, Entry, FOLDER_BYTES, FileSession, Folder, Head, Held,
    INODE_BYTES, Inode, LOCK_BYTES, OBJECT_BYTES, OPEN_BYTES, OUTCOME_BYTES, Opens, RANGE_BYTES,
    SECTION_BYTES, State, Stored,
};

impl State {
    /// Applies a change.
    pub(super) fn apply(&mut self, change: Change) {
        self.changes += 1;
        match change {
            Change::Make { head, above, made } => {
                self.last_inode += 1;
                self.put_inode(self.last_inode, head, above, made);
            }
            Change::Head { inode, head } => self.set_head(inode, head),
            Change::Name { folder, name, inode } => self.set_name(folder, name, inode),
            Change::Above { inode, above } => {
                if let Some(inode) = self.inodes.get_mut(&inode) {
                    inode.above = above;
                }
            }
            Change::Cover { inode, offset, piece, object } => {
                self.know(&piece, object);
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
            Change::Open { inode, session, opens } => self.open(inode, session, opens),
            Change::Close { inode, session, maps } => self.close(inode, session, maps),
            Change::Forget { inode } => self.forget(inode),
            Change::Deleted(ids) => ids.iter().for_each(|id| self.forget_object(id)),
            Change::Terms(terms) => self.terms = terms,
            other => self.apply_to_session(other),
        }
    }

    fn apply_to_session(&mut self, change: Change) {
        match change {
            Change::Begin(begun) => {
                self.last_session = self.last_session.saturating_add(1);
                self.sessions.insert(self.last_session, begin(begun));
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
            Change::Credit { session, uid, bytes } => self.set_credit(session, uid, bytes),
            Change::Discard { session, below } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.discarded = session.discarded.max(below);
                }
            }
            other => self.apply_to_joining(other),
        }
    }

    /// Applies a change that a mirror is sent while it joins.
    fn apply_to_joining(&mut self, change: Change) {
        match change {
            Change::PutInode { inode, head, above, made, last_cookie } => {
                self.forget(inode);
                self.put_inode(inode, head, above, made);
                if let Some(folder) = self.folder_mut(inode) {
                    folder.last_cookie = last_cookie;
                }
            }
            Change::PutEntry { folder, name, inode, cookie } => {
                self.remove_name(folder, &name);
                self.put_entry(folder, name, Entry { inode, cookie });
            }
            Change::PutPiece { inode, offset, piece, object } => {
                self.know(&piece, object);
                self.change_map(inode, |map, references| map.put(offset, piece, references));
            }
            Change::PutSession { session, begun, answered, discarded } => {
                self.end_session(session);
                self.sessions.insert(session, FileSession { answered, discarded, ..begin(begun) });
            }
            Change::PutDeleted { session, ranges } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    let before = session.deleted.ranges();
                    ranges.into_iter().for_each(|(first, last)| session.deleted.put(first, last));
                    self.memory = self.memory - before * RANGE_BYTES + session.deleted.ranges() * RANGE_BYTES;
                }
            }
            Change::PutCondemned(ids) => {
                self.condemned.extend(ids.into_iter().filter(|id| !self.objects.contains_key(id)));
            }
            Change::PutLast { inode, session } => (self.last_inode, self.last_session) = (inode, session),
            other => unreachable!("{other:?} is applied elsewhere"),
        }
    }

    /// Applies changes, and lets inodes go that have neither links nor opens afterwards, except those for
    /// which `keeps` holds. `note` is called with each change before it is applied.
    pub(super) fn carry_out(
        &mut self,
        changes: Vec<Change>,
        keeps: impl Fn(u64) -> bool,
        mut note: impl FnMut(&Self, &Change),
    ) {
        let mut unused = Vec::new();
        for change in changes {
            match &change {
                Change::Head { inode, head } if head.links == 0 => unused.push(*inode),
                Change::Close { inode, .. } => unused.push(*inode),
                Change::End { session } => {
                    let session = self.sessions.get(session).into_iter();
                    unused.extend(session.flat_map(|one| one.opens.keys()));
                }
                _ => {}
            }
            note(self, &change);
            self.apply(change);
        }
        for inode in unused.into_iter().filter(|inode| !keeps(*inode)).collect::<Vec<_>>() {
            if !self.opens.contains_key(&inode) && self.unlinked.contains(&inode) {
                note(self, &Change::Forget { inode });
                self.apply(Change::Forget { inode });
            }
        }
    }

    fn put_inode(&mut self, number: u64, head: Head, above: u64, made: Made) {
        let body = match made {
            Made::File => Body::File(Map::default()),
            Made::Folder => Body::Folder(Box::default()),
            Made::Target(target) => Body::Target(target),
            Made::Other => Body::Nothing,
        };
        self.memory += INODE_BYTES
            + match &body {
                Body::Folder(_) => FOLDER_BYTES,
                Body::Target(target) => target.len() as u64,
                Body::File(_) | Body::Nothing => 0,
            };
        self.inodes.insert(number, Box::new(Inode { head, above, xattrs: None, body }));
        if head.links == 0 {
            self.unlinked.insert(number);
        }
    }

    /// Notes length and node of an object that a section refers to.
    fn know(&mut self, piece: &Piece, object: Option<(u64, NodeId)>) {
        if let (Place::Object(id, _), Some((len, node))) = (&piece.place, object) {
            self.objects.entry(*id).or_insert_with(|| {
                self.memory += OBJECT_BYTES;
                Stored { references: 0, len, node }
            });
            self.condemned.remove(id);
        }
    }

    fn folder_mut(&mut self, number: u64) -> Option<&mut Folder> {
        match &mut self.inodes.get_mut(&number)?.body {
            Body::Folder(folder) => Some(folder),
            _ => None,
        }
    }

    fn set_head(&mut self, number: u64, head: Head) {
        let Some(inode) = self.inodes.get_mut(&number) else { return };
        let (before, used) = (inode.head.uid, inode.map().map_or(0, Map::used));
        inode.head = head;
        if before != head.uid && used > 0 {
            self.charge(before, used, 0);
            self.charge(head.uid, 0, used);
        }
        if head.links == 0 {
            self.unlinked.insert(number);
        } else {
            self.unlinked.remove(&number);
        }
    }

    /// Has a name of a folder stand for an inode, or for none. A name that stays keeps its place in lists, so
    /// that a list under way does not miss it.
    fn set_name(&mut self, number: u64, name: Rc<[u8]>, inode: Option<u64>) {
        let Some(folder) = self.folder_mut(number) else { return };
        let Some(inode) = inode else { return self.remove_name(number, &name) };
        if let Some(entry) = folder.names.get_mut(&name) {
            entry.inode = inode;
            return;
        }
        folder.last_cookie += 1;
        let cookie = folder.last_cookie;
        self.put_entry(number, name, Entry { inode, cookie });
    }

    fn remove_name(&mut self, number: u64, name: &[u8]) {
        let Some(folder) = self.folder_mut(number) else { return };
        let Some(entry) = folder.names.remove(name) else { return };
        folder.order.remove(&entry.cookie);
        if folder.names.capacity() > 64 && folder.names.len() * 8 < folder.names.capacity() {
            folder.names.shrink_to_fit();
        }
        self.memory -= ENTRY_BYTES + name.len() as u64;
    }

    /// Enters a name that a folder does not have.
    fn put_entry(&mut self, number: u64, name: Rc<[u8]>, entry: Entry) {
        let Some(folder) = self.folder_mut(number) else { return };
        let len = name.len() as u64;
        folder.order.insert(entry.cookie, Rc::clone(&name));
        folder.names.insert(name, entry);
        self.memory += ENTRY_BYTES + len;
    }

    /// Moves bytes in the usage of a user: `less` go, `more` come.
    fn charge(&mut self, uid: u32, less: u64, more: u64) {
        let used = self.used_by.entry(uid).or_default();
        *used = (*used + more).saturating_sub(less);
        if *used == 0 {
            self.used_by.remove(&uid);
        }
    }

    /// Sets the credit of a session for the files of a user.
    fn set_credit(&mut self, session: u32, uid: u32, bytes: u64) {
        let Some(session) = self.sessions.get_mut(&session) else { return };
        let before = if bytes > 0 { session.credit.insert(uid, bytes) } else { session.credit.remove(&uid) };
        let of_user = self.credit_of.entry(uid).or_default();
        for sum in [&mut self.credit, &mut *of_user] {
            *sum = sum.saturating_sub(before.unwrap_or_default()).saturating_add(bytes);
        }
        if *of_user == 0 {
            self.credit_of.remove(&uid);
        }
        let rows = |has: bool| u64::from(has) * CREDIT_BYTES;
        self.memory = self.memory - rows(before.is_some()) + rows(bytes > 0);
    }

    /// Changes the sections of a file, and updates usage, memory and references.
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
        // References that come are counted first, so that an object which is split or moved always has one.
        for (id, _) in references.0.iter().filter(|(_, more)| *more) {
            if let Some(object) = self.objects.get_mut(id) {
                object.references += 1;
            }
        }
        for (id, _) in references.0.iter().filter(|(_, more)| !*more) {
            let Some(object) = self.objects.get_mut(id) else { continue };
            object.references = object.references.saturating_sub(1);
            if object.references == 0 {
                self.objects.remove(id);
                self.memory -= OBJECT_BYTES;
                self.condemned.insert(*id);
            }
        }
    }

    /// Forgets an object that was deleted. Its session may not name the object again.
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
            None => xattrs.remove(&*name),
        };
        if xattrs.is_empty() {
            inode.xattrs = None;
        }
        self.memory = self.memory + added - before.map_or(0, |value| size(len, &value));
    }

    fn open(&mut self, inode: u64, session: u32, more: Opens) {
        let known = self.inodes.contains_key(&inode);
        let Some(session) = self.sessions.get_mut(&session).filter(|_| known && more.count > 0) else {
            return;
        };
        let opens = session.opens.entry(inode).or_default();
        if opens.count == 0 {
            self.memory += OPEN_BYTES;
        }
        let before = opens.count;
        opens.count = opens.count.saturating_add(more.count);
        opens.writes |= more.writes;
        opens.maps = opens.maps.saturating_add(more.maps);
        *self.opens.entry(inode).or_default() += u64::from(opens.count - before);
    }

    fn close(&mut self, inode: u64, session: u32, maps: bool) {
        let Some(session) = self.sessions.get_mut(&session) else { return };
        let Some(opens) = session.opens.get_mut(&inode) else { return };
        opens.count -= 1;
        opens.maps = opens.maps.saturating_sub(maps.into());
        if opens.count == 0 {
            session.opens.remove(&inode);
            self.memory -= OPEN_BYTES;
        }
        self.closed(inode, 1);
    }

    /// Notes that an inode was closed `times` times.
    fn closed(&mut self, inode: u64, times: u64) {
        if let Some(count) = self.opens.get_mut(&inode) {
            *count = count.saturating_sub(times);
            if *count == 0 {
                self.opens.remove(&inode);
            }
        }
    }

    fn end_session(&mut self, number: u32) {
        let credit = self.sessions.get(&number).map(|session| session.credit.keys().copied().collect());
        let credit: Vec<_> = credit.unwrap_or_default();
        credit.into_iter().for_each(|uid| self.set_credit(number, uid, 0));
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
        session.opens.iter().for_each(|(inode, opens)| self.closed(*inode, opens.count.into()));
    }

    /// Removes an inode, which has neither links nor opens.
    fn forget(&mut self, number: u64) {
        self.change_map(number, Map::clear);
        let Some(inode) = self.inodes.remove(&number) else { return };
        self.unlinked.remove(&number);
        let locks = self.locks.remove(&number).map_or(0, |held| held.len() as u64);
        self.memory -= INODE_BYTES + locks * LOCK_BYTES;
        match &inode.body {
            Body::Target(target) => self.memory -= target.len() as u64,
            Body::Folder(folder) => {
                let names = folder.names.keys().map(|name| ENTRY_BYTES + name.len() as u64);
                self.memory -= FOLDER_BYTES + names.sum::<u64>();
            }
            Body::File(_) | Body::Nothing => {}
        }
        for (name, value) in inode.xattrs.iter().flat_map(|xattrs| xattrs.iter()) {
            self.memory -= ENTRY_BYTES + (name.len() + value.len()) as u64;
        }
    }
}

/// Draws the number of a new volume: a random number that no known volume has. Ids of objects contain the
/// number, and objects may outlive their volume.
fn begin(begun: Begun) -> FileSession {
    FileSession {
        node: begun.node,
        secret: begun.secret,
        uid: begun.uid,
        gid: begun.gid,
        groups: begun.groups,
        trusted: begun.trusted,
        checked: begun.checked,
        read_only: begun.read_only,
        opens: BTreeMap::new(),
        outcomes: BTreeMap::new(),
        answered: 0,
        discarded: 0,
        deleted: Counters::default(),
        credit: BTreeMap::new(),
    }
}
