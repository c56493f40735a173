//! Bytes of a file that were written and not committed yet.
//!
//! Owns these bytes. The thread that has the file locked. Writes lie one behind another in a block, whatever
//! their offsets; a full block becomes an object, in the background. A commit names the objects to the home:
//! all of them, or the first ones, which were settled while the writer went on. Invariants: pieces of a
//! block do not overlap in the block; later bytes are committed later, or stand later in a commit; no commit
//! names an object that is not there yet; an object is named by one commit, since its sections may be
//! replaced as soon as they are committed, and the object is deleted then.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::ahead::Ahead;
use super::blocks::{BLOCK_BYTES, Block, Buffer, Stored};
use super::credit::Cover;
use super::placing::{Attempts, Target};
use super::putting::Puts;
use super::{Error, Result};
use crate::wire::files::{
    Errno, MAX_FILE_BYTES, MAX_INLINE_BYTES, MAX_SECTIONS, Section, Source, Time, parts_of,
};
use crate::{NodeId, ObjectId};

/// Size in bytes up to which writes wait in memory of this process, since such objects travel by the ring.
const SMALL_BYTES: usize = 64 << 10;
/// Size in bytes from which a write keeps the block that has its payload, instead of being copied.
pub(super) const LARGE_WRITE_BYTES: usize = 512 << 10;
/// Largest number of bytes that wait for a commit.
const MAX_WAITING_BYTES: u64 = 64 << 20;
/// Number of waiting bytes from which the first of them are settled.
const AHEAD_BYTES: u64 = MAX_WAITING_BYTES / 2;
/// Longest time that bytes wait for a commit.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Bytes of a file that are not committed.
#[derive(Default)]
pub(super) struct Writer {
    open: Option<Open>,
    /// Sections of objects that the home does not know.
    stored: Vec<Section>,
    /// Blocks that are becoming objects of `stored`.
    puts: Puts,
    /// Number of sections of `stored`, from the first on, whose objects lie where they are to lie.
    settled: usize,
    /// Settling of the next sections of `stored`, if it has begun.
    ahead: Option<Arc<Ahead>>,
    /// Time when the settling began whose rest waits for a commit, if the settling is over.
    rest_since: Option<Instant>,
    /// Node on which the last object of `stored` was put.
    put_on: Option<NodeId>,
    /// Number of waiting bytes. Bytes that were written twice count twice.
    bytes: u64,
    /// Range of the file outside of which nothing was written.
    span: Range<u64>,
    first: Option<Instant>,
    last: Time,
    /// Whether setuid and setgid bits go with the commit.
    drops_privileges: bool,
    /// Error by which waiting bytes were lost.
    lost: Option<Error>,
    /// Credit for the waiting bytes, if the volume has limits.
    cover: Option<Cover>,
}

/// Block that is being filled.
struct Open {
    memory: Memory,
    used: usize,
    pieces: Vec<Piece>,
}

enum Memory {
    Own(Vec<u8>),
    Block(Block),
}

/// Range of a file in a block.
struct Piece {
    offset: u64,
    at: u64,
    len: u64,
}

/// Changes to a file that are to be committed.
pub(super) struct Commit {
    pub(super) sections: Vec<Section>,
    pub(super) modified: Time,
    pub(super) drops_privileges: bool,
}

impl Writer {
    /// Whether no bytes wait.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether waiting bytes may lie in a range.
    pub(super) fn touches(&self, range: &Range<u64>) -> bool {
        !self.is_empty() && self.span.start < range.end && range.start < self.span.end
    }

    /// Returns the end of the last waiting byte, and the time of the last write. `None` if no bytes wait.
    pub(super) fn end(&self) -> Option<(u64, Time)> {
        (!self.is_empty()).then_some((self.span.end, self.last))
    }

    /// Whether the commit of the waiting bytes clears setuid and setgid bits.
    pub(super) fn drops_privileges(&self) -> bool {
        self.drops_privileges
    }

    /// Whether as many bytes wait as may, so that some are to be committed before the next write.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= MAX_WAITING_BYTES
    }

    /// Whether bytes have waited for [`MAX_AGE`], and no thread is about to commit them.
    pub(super) fn is_old(&self) -> bool {
        self.ahead.is_none() && self.first.is_some_and(|first| first.elapsed() >= MAX_AGE)
    }

    /// Stores the first `len` bytes of a buffer as a write.
    pub(super) fn write(
        &mut self,
        target: &Target<'_>,
        offset: u64,
        buffer: &mut Buffer,
        len: usize,
        drops_privileges: bool,
    ) -> Result<()> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= MAX_FILE_BYTES);
        let end = end.ok_or_else(|| Error::new(Errno::TooLarge))?;
        if len == 0 {
            return Ok(());
        }
        let whole = if len >= LARGE_WRITE_BYTES { buffer.take(target.blocks, target.attached) } else { None };
        match whole {
            Some(block) => {
                self.store_open(target)?;
                let pieces = vec![Piece { offset, at: 0, len: len as u64 }];
                self.open = Some(Open { memory: Memory::Block(block), used: len, pieces });
            }
            None => {
                let bytes = buffer.bytes().get(..len).ok_or_else(|| Error::new(Errno::Invalid))?;
                self.append(target, offset, bytes)?;
            }
        }
        self.span =
            if self.is_empty() { offset..end } else { self.span.start.min(offset)..self.span.end.max(end) };
        self.bytes += len as u64;
        self.first.get_or_insert_with(Instant::now);
        self.last = now();
        self.drops_privileges |= drops_privileges;
        if self.open.as_ref().is_some_and(|open| open.used == BLOCK_BYTES) {
            self.store_open(target)?;
        }
        Ok(())
    }

    /// Appends bytes to the open block.
    fn append(&mut self, target: &Target<'_>, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.open.as_ref().is_some_and(|open| !open.has_room(offset, bytes.len())) {
            self.store_open(target)?;
        }
        let attempts = Attempts::begin();
        loop {
            let empty = || Open { memory: Memory::Own(Vec::new()), used: 0, pieces: Vec::new() };
            let done = self.open.get_or_insert_with(empty).append(target, offset, bytes);
            if !target.may_have_room(&done, &attempts) {
                return done;
            }
            // Earlier objects make room when they lie elsewhere. If they do not, a commit tells the reason.
            let _ = self.settle(target);
        }
    }

    /// Waits until all stored objects are there, and lie where they are to lie.
    fn settle(&mut self, target: &Target<'_>) -> Result<()> {
        self.await_puts()?;
        // Sections that could not be settled in the background are tried again.
        let _ = self.join_ahead();
        target.settle(&mut self.stored[self.settled..])?;
        self.settled = self.stored.len();
        Ok(())
    }

    /// Waits until all stored objects are there.
    fn await_puts(&mut self) -> Result<()> {
        let waited = self.puts.wait();
        self.note_lost(waited)
    }

    /// Notes the bytes as lost if a block has not become an object.
    fn note_lost(&mut self, put: Result<()>) -> Result<()> {
        put.inspect_err(|error| _ = self.lost.get_or_insert_with(|| error.clone()))
    }

    /// Begins to settle the first objects, if enough bytes wait and no objects are being settled. Returns the
    /// sections of the objects.
    pub(super) fn begin_ahead(&mut self) -> Option<(Arc<Ahead>, Vec<Section>)> {
        if self.ahead.is_some() || self.lost.is_some() || self.bytes < AHEAD_BYTES {
            return None;
        }
        let there = match self.puts.first_open() {
            Some(open) => self.stored.iter().position(|section| object_of(section) == Some(open))?,
            None => self.stored.len(),
        };
        let sections = self.stored.get(self.settled..there).filter(|sections| !sections.is_empty())?.to_vec();
        let ahead = Ahead::begin();
        self.ahead = Some(Arc::clone(&ahead));
        Some((ahead, sections))
    }

    /// Waits until the settling in the background ends, and takes its outcome. `None` if no objects are being
    /// settled, or if no thread has begun; then none will begin.
    pub(super) fn join_ahead(&mut self) -> Option<Result<()>> {
        let ahead = self.ahead.take()?;
        ahead.let_go();
        let take = |sections: Vec<Section>| {
            let end = self.settled + sections.len();
            if let Some(waiting) = self.stored.get_mut(self.settled..end) {
                waiting.clone_from_slice(&sections);
                self.settled = end;
                self.rest_since = Some(ahead.begun());
            }
        };
        ahead.wait().map(|settled| settled.map(take))
    }

    /// Makes an object of the open block. A full block is put in the background. Another one is put here,
    /// because it gives its end back to the node, and this room is to be there before the next block is
    /// taken.
    fn store_open(&mut self, target: &Target<'_>) -> Result<()> {
        let is_full = |open: &Open| open.used == BLOCK_BYTES;
        if !self.open.as_ref().is_some_and(is_full) {
            return self.store_open_here(target);
        }
        self.look_for_losses(target)?;
        let room = self.puts.make_room();
        self.note_lost(room)?;
        if let Some(Open { memory: Memory::Block(block), used, pieces }) = self.open.take() {
            let stored = self.puts.begin(target, block, used);
            self.note_stored(target, &stored, &pieces);
        }
        Ok(())
    }

    /// Makes an object of the open block, and returns when the object is there.
    fn store_open_here(&mut self, target: &Target<'_>) -> Result<()> {
        self.look_for_losses(target)?;
        let Some(open) = &mut self.open else { return Ok(()) };
        // After an error the bytes stay: the next attempt may find room.
        let stored = match &mut open.memory {
            Memory::Own(bytes) => target.put_bytes(bytes)?,
            Memory::Block(block) => {
                let stored = target.blocks.stored(target.attached, open.used);
                match target.put_block(&stored, block) {
                    Err(error) if block.is_lost(target.attached) => {
                        let error = Error::because(Errno::Io, error.to_string());
                        self.open = None;
                        return self.note_lost(Err(error));
                    }
                    put => put.map(|()| stored)?,
                }
            }
        };
        if let Some(open) = self.open.take() {
            self.note_stored(target, &stored, &open.pieces);
        }
        Ok(())
    }

    /// Notes the sections of an object.
    fn note_stored(&mut self, target: &Target<'_>, stored: &Stored, pieces: &[Piece]) {
        let sections = pieces.iter().map(|piece| stored.section(piece.offset, piece.at, piece.len));
        self.stored.extend(sections);
        self.put_on = Some(target.attached.client.node());
    }

    /// Checks for objects that only a former node of this host had, and for objects of a former session,
    /// which cannot be committed.
    ///
    /// # Errors
    /// `Io` if there is such an object.
    pub(super) fn look_for_losses(&mut self, target: &Target<'_>) -> Result<()> {
        let former = self.put_on.filter(|node| *node != target.attached.client.node());
        let was_there =
            |section: &Section| matches!(section.source, Source::Object { node, .. } if Some(node) == former);
        // Other nodes have copies of settled objects.
        let safe = if target.copies > 1 { self.settled } else { 0 };
        let text = if former.is_some() && self.stored[safe..].iter().any(was_there) {
            "the node of this host went away, with bytes that were not committed yet"
        } else if self.stored.iter().any(|section| is_of_another(section, target.attached.session)) {
            "the session began anew, without bytes that were not committed yet"
        } else {
            return Ok(());
        };
        let error = Error::because(Errno::Io, text);
        self.lost.get_or_insert_with(|| error.clone());
        Err(error)
    }

    /// Returns all waiting bytes as a commit in which the bytes themselves lie. `None` if there are too many
    /// bytes or pieces for a commit, or if the file is or becomes larger than what lies in a map.
    pub(super) fn inline(&self, size: u64) -> Option<Commit> {
        let small = self.stored.is_empty() && self.bytes <= MAX_INLINE_BYTES as u64;
        if !small || size.max(self.span.end) > MAX_INLINE_BYTES as u64 {
            return None;
        }
        let Open { memory: Memory::Own(bytes), pieces, .. } = self.open.as_ref()? else { return None };
        if pieces.len() > MAX_SECTIONS {
            return None;
        }
        let bytes = Bytes::copy_from_slice(bytes);
        let section = |piece: &Piece| {
            let at = piece.at as usize..(piece.at + piece.len) as usize;
            Section { offset: piece.offset, len: piece.len, source: Source::Inline(bytes.slice(at)) }
        };
        let sections = pieces.iter().map(section).collect();
        Some(Commit { sections, modified: self.last, drops_privileges: self.drops_privileges })
    }

    /// Makes objects of all waiting bytes, and waits until they lie where they are to lie.
    pub(super) fn store(&mut self, target: &Target<'_>) -> Result<()> {
        self.store_open_here(target)?;
        self.settle(target)
    }

    /// Returns the first part of the settled sections that are not committed, as many as a commit can have
    /// with all sections of an object. `None` if there are none.
    pub(super) fn part(&self) -> Option<Commit> {
        let settled = &self.stored[..self.settled];
        let most = settled.chunks(MAX_SECTIONS).next()?;
        let is_next = |section: &Section| Some(object_of(section)) == settled.get(most.len()).map(object_of);
        let end = most.iter().rposition(|section| !is_next(section)).map_or(most.len(), |last| last + 1);
        let sections = most[..end].to_vec();
        Some(Commit { sections, modified: self.last, drops_privileges: self.drops_privileges })
    }

    /// Forgets a part that is committed, because its objects may be gone before the rest is committed.
    pub(super) fn committed(&mut self, part: &Commit) {
        self.stored.drain(..part.sections.len());
        self.settled = self.settled.saturating_sub(part.sections.len());
        let len: u64 = part.sections.iter().map(|section| section.len).sum();
        self.bytes = self.bytes.saturating_sub(len);
        if self.bytes == 0 {
            return self.clear();
        }
        // Further settled parts follow at once.
        if self.settled > 0 {
            return;
        }
        let rest = self.stored.iter().map(|section| section.offset..section.offset + section.len);
        let open = self.open.iter().flat_map(|open| &open.pieces);
        let rest = rest.chain(open.map(|piece| piece.offset..piece.offset + piece.len));
        let span = rest.reduce(|all, one| all.start.min(one.start)..all.end.max(one.end));
        self.span = span.unwrap_or_default();
        self.first = self.rest_since.take().or(self.first);
    }

    /// Returns the lowest counter of the objects that wait for a commit.
    pub(super) fn first_object(&self) -> Option<u64> {
        let counter = |section: &Section| parts_of(&object_of(section)?).map(|(_, _, counter)| counter);
        self.stored.iter().filter_map(counter).min()
    }

    /// Returns the number of waiting bytes. Bytes that were written twice count twice.
    pub(super) fn waiting(&self) -> u64 {
        self.bytes
    }

    /// Returns the credit for the waiting bytes.
    pub(super) fn cover(&self) -> Option<&Cover> {
        self.cover.as_ref()
    }

    /// Adds the credit of a write that was stored.
    pub(super) fn add_cover(&mut self, more: Option<Cover>) {
        match (&mut self.cover, more) {
            (Some(cover), Some(more)) => cover.join(more),
            (none, more @ Some(_)) => *none = more,
            (_, None) => {}
        }
    }

    /// Returns the number of bytes of credit that a commit uses up, and the user for whose files it was
    /// given.
    pub(super) fn credit(&self, commit: &Commit) -> (u64, u32) {
        let len = commit.sections.iter().map(|section| section.len).sum();
        self.cover.as_ref().map_or((0, 0), |cover| (cover.bytes().min(len), cover.uid()))
    }

    /// Notes that a commit has used up credit.
    pub(super) fn spend(&mut self, credit: u64) {
        if let Some(cover) = &mut self.cover {
            cover.spend(credit);
        }
    }

    /// Takes the error by which waiting bytes were lost, if some were.
    pub(super) fn take_lost(&mut self) -> Option<Error> {
        self.lost.take()
    }

    /// Forgets all waiting bytes, which are committed or lost. No object is made of them afterwards.
    pub(super) fn clear(&mut self) {
        self.puts.cancel();
        self.ahead.iter().for_each(|ahead| ahead.let_go());
        *self = Self::default();
    }
}

impl Open {
    /// Whether bytes for an offset of the file can be appended, so that one commit can name all pieces.
    fn has_room(&self, offset: u64, len: usize) -> bool {
        let goes_on = self.pieces.last().is_some_and(|last| last.offset + last.len == offset);
        self.used + len <= BLOCK_BYTES && (goes_on || self.pieces.len() < MAX_SECTIONS)
    }

    fn append(&mut self, target: &Target<'_>, offset: u64, bytes: &[u8]) -> Result<()> {
        let used = self.used;
        if let Memory::Own(own) = &mut self.memory
            && used + bytes.len() > SMALL_BYTES
        {
            let mut block = target.take()?;
            block.room(0..used)?.copy_from_slice(own);
            self.memory = Memory::Block(block);
        }
        match &mut self.memory {
            Memory::Own(own) => own.extend_from_slice(bytes),
            Memory::Block(block) => block.room(used..used + bytes.len())?.copy_from_slice(bytes),
        }
        let (at, len) = (used as u64, bytes.len() as u64);
        self.used += bytes.len();
        match self.pieces.last_mut() {
            Some(last) if last.offset + last.len == offset => last.len += len,
            _ => self.pieces.push(Piece { offset, at, len }),
        }
        Ok(())
    }
}

/// Returns the object in which a section lies, if it lies in one.
fn object_of(section: &Section) -> Option<ObjectId> {
    match &section.source {
        Source::Object { id, .. } => Some(*id),
        Source::Inline(_) => None,
    }
}

/// Whether a section lies in an object that another session has made.
fn is_of_another(section: &Section, session: u32) -> bool {
    let maker = object_of(section).and_then(|id| parts_of(&id)).map(|(_, maker, _)| maker);
    maker.is_some_and(|maker| maker != session)
}

/// Returns the time of the clock of this host.
pub(super) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
}

#[cfg(test)]
mod tests {
    use super::super::ahead::Settling;
    use super::*;
    use crate::wire::files::file_object;

    /// Returns a writer in which `pieces` pieces of one byte wait, none of which touches another.
    fn writer(pieces: u64) -> Writer {
        let memory = Memory::Own(vec![7; pieces as usize]);
        let piece = |at| Piece { offset: 2 * at, at, len: 1 };
        let open = Open { memory, used: pieces as usize, pieces: (0..pieces).map(piece).collect() };
        Writer { open: Some(open), bytes: pieces, span: 0..2 * pieces, ..Writer::default() }
    }

    #[test]
    fn a_commit_names_no_more_pieces_than_it_can() {
        let most = MAX_SECTIONS as u64;
        assert_eq!(writer(most).inline(0).map(|commit| commit.sections.len()), Some(MAX_SECTIONS));
        assert!(writer(most + 1).inline(0).is_none());
    }

    #[test]
    fn what_is_committed_is_not_committed_again() {
        let node = crate::NodeId::from_bytes([1; crate::NodeId::LEN]);
        let section = |number: u64| {
            let source = Source::Object { id: file_object(1, 1, number), at: 0, object_len: 1, node };
            Section { offset: number, len: 1, source }
        };
        let stored = (0..MAX_SECTIONS as u64 + 4).map(section).collect();
        let settled = MAX_SECTIONS + 4;
        let mut writer = Writer { stored, settled, bytes: 100, ..Writer::default() };
        let first = writer.part().expect("sections wait");
        assert_eq!(first.sections.len(), MAX_SECTIONS);
        writer.committed(&first);
        let second = writer.part().expect("the rest waits");
        assert_eq!(second.sections, (96..100).map(section).collect::<Vec<_>>());
        writer.committed(&second);
        assert!(writer.part().is_none());
    }

    #[test]
    fn an_object_is_named_by_one_commit() {
        // As many as a commit names, or fewer.
        for pieces in [1, 7, 40, 50, MAX_SECTIONS as u64] {
            let piece = |number: u64| Section { offset: number, ..whole(number / pieces, 1) };
            let stored: Vec<_> = (0..5 * pieces).map(piece).collect();
            let settled = stored.len();
            let mut writer = Writer { stored, settled, bytes: 1 << 40, ..Writer::default() };
            let mut named = Vec::new();
            while let Some(part) = writer.part() {
                assert!(part.sections.len() <= MAX_SECTIONS);
                let mut objects: Vec<_> = part.sections.iter().map(object_of).collect();
                objects.dedup();
                named.extend(objects);
                writer.committed(&part);
            }
            assert_eq!(named, (0..5).map(|number| object_of(&whole(number, 1))).collect::<Vec<_>>());
        }
        let full = Open { memory: Memory::Own(Vec::new()), used: 0, pieces: Vec::new() };
        assert!(full.has_room(7, BLOCK_BYTES) && !full.has_room(7, BLOCK_BYTES + 1));
        let Writer { open: Some(full), .. } = writer(MAX_SECTIONS as u64) else { panic!("it is open") };
        let end = 2 * MAX_SECTIONS as u64 - 1;
        assert!(full.has_room(end, 9) && !full.has_room(end + 1, 9), "the last piece alone may grow");
    }

    #[test]
    fn objects_of_a_session_are_its_own() {
        assert!(!is_of_another(&whole(3, 1), 1) && is_of_another(&whole(3, 1), 2));
    }

    const MIB: u64 = 1 << 20;

    /// Returns a section of one MiB in an object of its own, on a node.
    fn whole(number: u64, node: u8) -> Section {
        let node = crate::NodeId::from_bytes([node; crate::NodeId::LEN]);
        let source = Source::Object { id: file_object(1, 1, number), at: 0, object_len: MIB, node };
        Section { offset: number * MIB, len: MIB, source }
    }

    #[test]
    fn the_first_half_is_settled_and_committed_while_more_is_written() {
        let begun = Instant::now();
        let mut writer =
            Writer { stored: (0..31).map(|number| whole(number, 1)).collect(), ..Writer::default() };
        (writer.bytes, writer.span, writer.first) = (31 * MIB, 0..31 * MIB, Some(begun));
        assert!(writer.begin_ahead().is_none() && writer.join_ahead().is_none(), "too little waits");
        writer.stored.push(whole(31, 1));
        (writer.bytes, writer.span) = (32 * MIB, 0..32 * MIB);
        let (ahead, sections) = writer.begin_ahead().expect("half of what may wait");
        assert_eq!(sections, writer.stored);
        assert!(writer.begin_ahead().is_none(), "one at a time");
        // The first part is settled on another node while more is written.
        writer.stored.push(whole(32, 1));
        (writer.bytes, writer.span) = (33 * MIB, 0..33 * MIB);
        assert!(writer.part().is_none(), "nothing is settled yet");
        assert!(ahead.run());
        Settling::new(&ahead).end(Ok((0..32).map(|number| whole(number, 2)).collect()));
        assert_eq!(writer.join_ahead(), Some(Ok(())));
        let part = writer.part().expect("it is settled");
        assert_eq!(part.sections, (0..32).map(|number| whole(number, 2)).collect::<Vec<_>>());
        writer.committed(&part);
        assert!(writer.part().is_none(), "the rest is not");
        assert_eq!((writer.waiting(), writer.end().map(|(end, _)| end)), (MIB, Some(33 * MIB)));
        assert!(!writer.touches(&(0..32 * MIB)) && writer.touches(&(0..33 * MIB)));
        assert!(writer.first > Some(begun), "what waits was written after the settling began");
        assert_eq!(writer.stored, [whole(32, 1)]);
    }

    #[test]
    fn what_failed_to_settle_waits_for_another_attempt() {
        let stored: Vec<_> = (0..40).map(|number| whole(number, 1)).collect();
        let mut writer = Writer { stored: stored.clone(), bytes: 40 * MIB, ..Writer::default() };
        let (ahead, _) = writer.begin_ahead().expect("enough waits");
        assert!(ahead.run());
        Settling::new(&ahead).end(Err(Error::new(Errno::Full)));
        assert_eq!(writer.join_ahead(), Some(Err(Error::new(Errno::Full))));
        assert!(writer.part().is_none());
        assert_eq!((&writer.stored, writer.waiting()), (&stored, 40 * MIB));
        assert!(writer.begin_ahead().is_some());
    }
}
