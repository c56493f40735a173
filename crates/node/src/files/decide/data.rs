//! Decisions about contents: opening and closing, maps, commits, appends, clones, holes. Owns no state. Any
//! thread.

use std::collections::BTreeMap;
use std::ops::Range;

use plasmon::ObjectId;
use plasmon::wire::files::{
    Errno, FileKind, FileOutcome, Fingerprint, MAX_FILE_BYTES, MAX_INLINE_BYTES, MAX_TIDIED, Section, Source,
    Time, Written, parts_of,
};

use super::credit::Covers;
use super::{Asking, Decided, Decision, Draft, Say};
use crate::files::access::{READ, WRITE, without_privileges};
use crate::files::change::Change;
use crate::files::map::{Map, Piece, Place};
use crate::files::state::{Head, Inode, OBJECT_BYTES, OPEN_BYTES, Opens, SECTION_BYTES};
use crate::object::ROOT;

/// Maximum number of sections that one clone makes. The session repeats the operation for the rest.
const MAX_CLONED_SECTIONS: usize = 256;
/// Maximum number of inodes that a session has open.
pub(in crate::files) const MAX_OPENS: usize = 1 << 20;
/// Number of inodes that a session may have open even if there is no memory.
pub(in crate::files) const FEW_OPENS: usize = 1 << 10;

/// Returns the range of `len` bytes from an offset.
///
/// # Errors
/// `TooLarge` if the range ends behind the end of the longest file.
pub(super) fn range(offset: u64, len: u64) -> Result<Range<u64>, Errno> {
    let end = offset.checked_add(len).filter(|end| *end <= MAX_FILE_BYTES);
    end.map(|end| offset..end).ok_or(Errno::TooLarge)
}

/// Manner in which an inode is opened.
pub(super) struct Manner {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) truncate: bool,
    /// Whether the right to map the file is asked for.
    pub(super) maps: bool,
}

/// Opens an inode.
pub(super) fn open(asking: &Asking<'_>, number: u64, manner: &Manner) -> Decided {
    let Manner { read, write, truncate, maps } = *manner;
    let inode = asking.inode(number)?;
    let session = asking.number;
    let is_findable = inode.head.links > 0 || asking.lingering.has(number);
    if !is_findable && !asking.session.opens.contains_key(&number) {
        return Err(Errno::Stale);
    }
    match inode.head.kind {
        FileKind::Symlink => return Err(Errno::IsLink),
        FileKind::Folder if write || truncate => return Err(Errno::IsFolder),
        _ => {}
    }
    let wanted = if read { READ } else { 0 } | if write || truncate { WRITE } else { 0 };
    asking.who.ensure_may(&inode.head, wanted)?;
    match asking.session.opens.get(&number) {
        Some(opens) if opens.count == u32::MAX => return Err(Errno::Full),
        Some(_) => {}
        None => asking.ensure_opens()?,
    }
    let mut draft = Draft::new(asking);
    let maps = maps && write && inode.head.kind == FileKind::File && asking.may_map(number);
    let opens = Opens { count: 1, writes: write, maps: maps.into() };
    draft.push(Change::Open { inode: number, session, opens });
    if truncate && inode.head.kind == FileKind::File {
        cut(&mut draft, number, 0)?;
        let head = draft.touch(number)?;
        drop_privileges(asking, head);
    }
    Ok(draft.decide(Say::Opened { inode: number, created: false, maps }))
}

/// Clears the setuid and setgid bits of a file whose contents change, unless root changes them.
fn drop_privileges(asking: &Asking<'_>, head: &mut Head) {
    if asking.who.uid != ROOT {
        head.mode = without_privileges(head);
    }
}

/// Ends opens of the session. Inodes that the session does not have open are ignored.
pub(super) fn close(asking: &Asking<'_>, opens: Vec<(u64, bool)>) -> Decided {
    let (session, mut ended) = (asking.number, BTreeMap::<u64, u32>::new());
    let has_it = |(inode, _): &(u64, bool)| {
        let ended = ended.entry(*inode).or_default();
        *ended += 1;
        asking.session.opens.get(inode).is_some_and(|opens| *ended <= opens.count)
    };
    let ends = opens.into_iter().filter(has_it);
    let changes = ends.map(|(inode, maps)| Change::Close { inode, session, maps }).collect();
    Ok(Decision { changes, say: Say::Outcome(FileOutcome::Done) })
}

/// Returns the sections of a file from an offset.
pub(super) fn map(asking: &Asking<'_>, number: u64, from: u64) -> Decided {
    let (inode, _) = asking.file(number)?;
    asking.ensure_may_read(number, inode)?;
    Ok(Decision::only(Say::Map { inode: number, from }))
}

/// Gives a file another size.
pub(super) fn cut(draft: &mut Draft<'_>, number: u64, size: u64) -> Result<(), Errno> {
    if size > MAX_FILE_BYTES {
        return Err(Errno::TooLarge);
    }
    let (inode, _) = draft.asking.file(number)?;
    if size < inode.head.size {
        draft.push(Change::Punch { inode: number, start: size, end: u64::MAX });
    }
    draft.head(number)?.size = size;
    Ok(())
}

impl Asking<'_> {
    /// Whether the session may get the right to map a file: no other session has it.
    fn may_map(&self, number: u64) -> bool {
        let own = self.session.opens.get(&number).map_or(0, |opens| opens.count.into());
        let is_alone = || self.state.opens.get(&number).is_none_or(|all| *all <= own);
        let others = || self.state.sessions.iter().filter(|(session, _)| **session != self.number);
        let is_mapped =
            || others().any(|(_, other)| other.opens.get(&number).is_some_and(|one| one.maps > 0));
        self.state.terms.shared_maps || !self.are_untold && (is_alone() || !is_mapped())
    }

    /// Refuses to open another inode if the session has too many open.
    pub(super) fn ensure_opens(&self) -> Result<(), Errno> {
        match self.session.opens.len() {
            MAX_OPENS.. => Err(Errno::Full),
            FEW_OPENS.. => self.ensure_memory(OPEN_BYTES),
            _ => Ok(()),
        }
    }

    /// Refuses to change the contents of a file, unless the session has opened the file to write, or its user
    /// may write it.
    pub(super) fn ensure_may_write(&self, number: u64) -> Result<&Map, Errno> {
        let (inode, map) = self.file(number)?;
        if !self.session.opens.get(&number).is_some_and(|opens| opens.writes) {
            self.who.ensure_may(&inode.head, WRITE)?;
        }
        Ok(map)
    }

    /// Refuses to tell the map of a file, unless a trusted session has opened the file, or the user may read
    /// it. A session without trust may have opened the file to write only.
    fn ensure_may_read(&self, number: u64, inode: &Inode) -> Result<(), Errno> {
        if self.session.trusted && self.session.opens.contains_key(&number) {
            return Ok(());
        }
        self.who.ensure_may(&inode.head, READ)
    }

    /// Checks the object or the bytes of a section that a session names. An object has to be of the session
    /// itself, or in files of the volume. A session without trust may name only objects that it may: it could
    /// read bytes of others by naming them in a file of its own.
    fn piece(&self, section: &Section) -> Result<(Piece, Option<(u64, plasmon::NodeId)>), Errno> {
        let len = section.len;
        range(section.offset, len)?;
        if len == 0 {
            return Err(Errno::Invalid);
        }
        match &section.source {
            Source::Inline(bytes) if bytes.len() as u64 == len => {
                Ok((Piece { len, place: Place::Inline(bytes[..].into()) }, None))
            }
            Source::Inline(_) => Err(Errno::Invalid),
            Source::Object { id, at, object_len, node } => {
                let end = at.checked_add(len).filter(|_| *object_len <= MAX_FILE_BYTES);
                let whole = end.is_some_and(|end| end <= *object_len);
                let piece = Piece { len, place: Place::Object(*id, *at) };
                match self.state.objects.get(id) {
                    // An earlier section of the operation may take away the last reference to the object.
                    Some(known) if whole && known.len == *object_len && self.may_name(id) => {
                        Ok((piece, Some((known.len, known.node))))
                    }
                    None if whole && self.is_own(id) => Ok((piece, Some((*object_len, *node)))),
                    _ => Err(Errno::NotPermitted),
                }
            }
        }
    }

    /// Whether a session may name an object that is in files of the volume.
    fn may_name(&self, id: &ObjectId) -> bool {
        self.session.trusted || parts_of(id).is_some_and(|(_, session, _)| session == self.number)
    }

    /// Whether the session itself makes objects with this id, and the object was not deleted and is not being
    /// deleted.
    fn is_own(&self, id: &ObjectId) -> bool {
        let own = |(volume, session, counter)| {
            let is_own = (volume, session) == (self.state.number, self.number);
            is_own && counter >= self.session.discarded && !self.session.deleted.contains(counter)
        };
        parts_of(id).is_some_and(own) && !self.state.condemned.contains(id)
    }

    /// Whether `more` bytes may come into the map of a file beside the `stays` bytes that stay there.
    fn has_inline_room(&self, map: &Map, stays: u64, more: u64) -> bool {
        let others = self.state.inline.saturating_sub(map.inline());
        more == 0
            || (stays + more <= MAX_INLINE_BYTES as u64 && others + stays + more <= self.limits.memory / 2)
    }
}

/// Sections that come to a file, with the credit for them.
pub(super) struct Put<'a> {
    pub(super) sections: &'a [Section],
    pub(super) modified: Option<Time>,
    pub(super) drops_privileges: bool,
    /// Credit that is used up.
    pub(super) credit: Covers,
}

/// Puts sections over what a file has. Returns false if their bytes have no room in the map itself.
fn put_over(draft: &mut Draft<'_>, number: u64, put: &Put<'_>) -> Result<bool, Errno> {
    let Put { sections, modified, drops_privileges, credit } = *put;
    let asking = draft.asking;
    let map = asking.ensure_may_write(number)?;
    let (mut more, mut inline, mut end, mut gone_inline) = (0_u64, 0, 0, 0);
    let (mut changes, mut lens) = (Vec::with_capacity(sections.len()), BTreeMap::new());
    for section in sections {
        let (piece, object) = asking.piece(section)?;
        if let (Place::Object(id, _), Some((len, _))) = (&piece.place, object)
            && *lens.entry(*id).or_insert(len) != len
        {
            return Err(Errno::NotPermitted);
        }
        let covered = range(section.offset, section.len)?;
        let (there, there_inline) = map.in_range(covered.clone());
        more = section.len.saturating_sub(there).saturating_add(more);
        gone_inline += there_inline;
        if matches!(piece.place, Place::Inline(_)) {
            inline += section.len;
        }
        end = end.max(covered.end);
        changes.push(Change::Cover { inode: number, offset: section.offset, piece, object });
    }
    if !asking.has_inline_room(map, map.inline().saturating_sub(gone_inline), inline) {
        return Ok(false);
    }
    let owner = asking.inode(number)?.head.uid;
    let credit = asking.use_credit(owner, credit, more)?;
    asking.ensure_memory(sections.len() as u64 * (SECTION_BYTES + OBJECT_BYTES) + inline)?;
    draft.changes.extend(changes.into_iter().chain(credit));
    let head = draft.touch(number)?;
    head.size = head.size.max(end);
    head.modified = modified.filter(|time| time.nanos < 1_000_000_000).unwrap_or(head.modified);
    // The clock of the host that wrote may be ahead of the clock here.
    head.changed = head.changed.max(head.modified);
    if drops_privileges {
        head.mode = without_privileges(head);
    }
    Ok(true)
}

/// Commits sections: puts them over what a file has there.
pub(super) fn commit(asking: &Asking<'_>, number: u64, put: &Put<'_>) -> Decided {
    let mut draft = Draft::new(asking);
    if !put_over(&mut draft, number, put)? {
        return Ok(Decision::tells(FileOutcome::NoRoomInline));
    }
    Ok(draft.decide(Say::Entry(number)))
}

/// Appends bytes to a file.
pub(super) fn append(
    asking: &Asking<'_>,
    number: u64,
    written: Written,
    drops_privileges: bool,
    credit: Covers,
) -> Decided {
    let (inode, _) = asking.file(number)?;
    let offset = inode.head.size;
    let mut sections = match written {
        Written::Bytes(bytes) if bytes.is_empty() => Vec::new(),
        Written::Bytes(bytes) => {
            vec![Section { offset: 0, len: bytes.len() as u64, source: Source::Inline(bytes) }]
        }
        Written::Sections(sections) => sections,
    };
    for section in &mut sections {
        section.offset = range(section.offset, offset)?.end;
    }
    let mut draft = Draft::new(asking);
    let put = Put { sections: &sections, modified: None, drops_privileges, credit };
    if !put_over(&mut draft, number, &put)? {
        return Ok(Decision::tells(FileOutcome::NoRoomInline));
    }
    Ok(draft.decide(Say::Appended { inode: number, offset }))
}

/// Copies a range of a file by referring to the same objects.
pub(super) fn clone(
    asking: &Asking<'_>,
    (source, source_offset): (u64, u64),
    (number, offset): (u64, u64),
    len: u64,
) -> Decided {
    let (from, source_map) = asking.file(source)?;
    asking.ensure_may_read(source, from)?;
    let map = asking.ensure_may_write(number)?;
    let end = range(source_offset, len)?.end.min(from.head.size);
    let len = end.saturating_sub(source_offset);
    let target = range(offset, len)?;
    if source == number && source_offset < target.end && offset < source_offset + len {
        return Err(Errno::Invalid);
    }
    let (mut pieces, mut done) = (Vec::new(), len);
    for (at, piece) in source_map.within(source_offset..source_offset + len) {
        if pieces.len() == MAX_CLONED_SECTIONS {
            done = at - source_offset;
            break;
        }
        let part = at.max(source_offset)..(at + piece.len).min(end);
        pieces.push((part.start - source_offset, piece.part(part.start - at..part.end - at)));
    }
    let covered = offset..offset + done;
    let (there, there_inline) = map.in_range(covered.clone());
    let (used, inline) = source_map.in_range(source_offset..source_offset + done);
    if !asking.has_inline_room(map, map.inline().saturating_sub(there_inline), inline) {
        return Ok(Decision::tells(FileOutcome::NoRoomInline));
    }
    asking.ensure_room(asking.inode(number)?.head.uid, used.saturating_sub(there))?;
    asking.ensure_memory(pieces.len() as u64 * SECTION_BYTES + inline)?;
    let mut draft = Draft::new(asking);
    if done > 0 {
        draft.push(Change::Punch { inode: number, start: covered.start, end: covered.end });
        for (at, piece) in pieces {
            draft.push(Change::Cover { inode: number, offset: offset + at, piece, object: None });
        }
        let head = draft.touch(number)?;
        head.size = head.size.max(covered.end);
        drop_privileges(asking, head);
    }
    Ok(draft.decide(Say::Cloned { inode: number, len: done }))
}

/// Makes a hole in a file.
pub(super) fn punch(asking: &Asking<'_>, number: u64, offset: u64, len: u64, extend: bool) -> Decided {
    asking.ensure_may_write(number)?;
    let hole = range(offset, len)?;
    // A hole cuts at most one section in two.
    asking.ensure_memory(SECTION_BYTES)?;
    let mut draft = Draft::new(asking);
    draft.push(Change::Punch { inode: number, start: hole.start, end: hole.end });
    let head = draft.touch(number)?;
    if extend {
        head.size = head.size.max(hole.end);
    }
    drop_privileges(asking, head);
    Ok(draft.decide(Say::Entry(number)))
}

/// Notes that a session commits no object with a counter below `below` any more.
pub(super) fn discard(asking: &Asking<'_>, below: u64) -> Decision {
    let changes = vec![Change::Discard { session: asking.number, below }];
    Decision { changes, say: Say::Outcome(FileOutcome::Done) }
}

/// Replaces the sections of a range by one section with the same bytes, if they are those that the session
/// has read. Nothing else of the file changes, so this needs no room, and memory for one section less.
pub(super) fn tidy(asking: &Asking<'_>, number: u64, replaces: u64, section: &Section) -> Decided {
    let map = asking.ensure_may_write(number)?;
    let covered = range(section.offset, section.len)?;
    let mut found = Fingerprint::default();
    for (count, (offset, piece)) in map.within(covered.clone()).enumerate() {
        match &piece.place {
            _ if count == MAX_TIDIED => return Err(Errno::TooMany),
            Place::Object(id, at) => found.object(offset, piece.len, id, *at),
            Place::Inline(bytes) => found.bytes(offset, bytes),
        }
    }
    let (there, _) = map.in_range(covered);
    if found.finish() != replaces || there != section.len {
        return Err(Errno::Stale);
    }
    let (piece, object) = asking.piece(section)?;
    if matches!(piece.place, Place::Inline(_)) {
        return Err(Errno::Invalid);
    }
    let mut draft = Draft::new(asking);
    draft.push(Change::Cover { inode: number, offset: section.offset, piece, object });
    // Only the sections differ, so the times of the file stay.
    let changed = asking.inode(number)?.head.changed;
    draft.head(number)?.changed = changed;
    Ok(draft.decide(Say::Entry(number)))
}
