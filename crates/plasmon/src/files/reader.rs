//! Reading: the parts of a range of a file, in the memory where they lie.
//!
//! Owns no state. Any thread. A plan of a read is made with the file locked; bytes are brought without the
//! lock. Objects stay pinned as long as their parts are held. Invariants: all bytes of a read are of one
//! version of the map; lost bytes are an error, never zeros.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::inode::{Inode, State};
use super::session::{Attached, unexpected};
use super::volume::Shared;
use super::{Error, Result, Volume};
use crate::client::Volumes;
use crate::wire::files::{
    Actor, Errno, FileOperation, FileOutcome, FileReads, MAX_FILE_BYTES, MAX_PEEK_BYTES, Peeking, Section,
    Source,
};
use crate::{ErrorKind, NodeId, Object, ObjectId};

/// Number of bytes that are asked for ahead of reads in order.
const AHEAD_BYTES: u64 = 16 << 20;
/// Time between two attempts to find an object that is not where the map says.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Zeros of a hole, which are given in pieces of this length.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Bytes of a file, in parts.
#[derive(Debug, Clone, Default)]
pub struct Parts(Vec<Part>);

/// Part of a read.
#[derive(Debug, Clone)]
pub enum Part {
    /// Range of an object, which lies in the memory of this host's node.
    Object(Object, Range<usize>),
    /// Bytes of the map itself.
    Bytes(Bytes),
    /// Number of zeros of a hole.
    Hole(usize),
}

/// Target of a seek: data or a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// Bytes that were written.
    Data,
    /// A hole, or the end of the file.
    Hole,
}

impl Parts {
    /// Returns the number of bytes of all parts.
    pub fn len(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the parts in their order.
    pub fn parts(&self) -> &[Part] {
        &self.0
    }

    /// Returns the bytes as slices, in their order.
    pub fn slices(&self) -> Vec<&[u8]> {
        self.0.iter().flat_map(Part::slices).collect()
    }
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Self::Object(_, range) => range.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Hole(len) => *len,
        }
    }

    fn slices(&self) -> Vec<&[u8]> {
        match self {
            Self::Object(object, range) => vec![&object.data()[range.clone()]],
            Self::Bytes(bytes) => vec![bytes],
            Self::Hole(len) => {
                let slice = |at: usize| &ZEROS[..(*len - at).min(ZEROS.len())];
                (0..*len).step_by(ZEROS.len()).map(slice).collect()
            }
        }
    }
}

/// Counts of how reads of objects were served since the node was told last.
#[derive(Default)]
pub(super) struct Reads {
    here: AtomicU64,
    brought: AtomicU64,
    bytes: AtomicU64,
}

impl Reads {
    /// Tells the node of this host the counts, unless they are 0.
    pub(super) fn tell(&self, attached: &Attached) {
        let counts = [&self.here, &self.brought, &self.bytes];
        let [here, brought, bytes] = counts.map(|count| count.swap(0, Ordering::Relaxed));
        if here + brought + bytes > 0 {
            let reads = FileReads { volume: attached.number, here, brought, bytes };
            Volumes::by(&attached.client).count_reads(reads);
        }
    }
}

/// Length and node of an object, as a map tells them.
struct Hint {
    len: u64,
    node: NodeId,
}

/// Part of a read, before its bytes are here.
enum Planned {
    Here(Part),
    /// Range of an object that may be elsewhere, with its hint.
    There(ObjectId, Range<u64>, Hint),
    /// Range of an object that is read alone if the object is elsewhere, with the node of the object.
    Range(ObjectId, Range<u64>, NodeId),
}

impl Planned {
    /// Returns the object of the part, if it may be elsewhere.
    fn object(&self) -> Option<ObjectId> {
        match self {
            Self::Here(_) => None,
            Self::There(id, ..) | Self::Range(id, ..) => Some(*id),
        }
    }
}

impl Volume {
    /// Reads at most `len` bytes of an open file from an offset on, fewer at the end of the file.
    ///
    /// # Errors
    /// `Io` if bytes are lost. `NotOpen`, and further errors of Linux.
    pub fn read(&self, inode: u64, offset: u64, len: usize) -> Result<Parts> {
        let open = self.0.inode(inode).ok_or_else(|| Error::new(Errno::NotOpen))?;
        let until = Instant::now() + self.0.session.patience();
        loop {
            let of = self.0.session_of(&open)?;
            let attached = self.0.session.attached();
            let (plan, version) = self.0.plan(inode, &open, offset, len)?;
            let bring = |part: Planned| {
                let object = part.object();
                self.0.bring(&attached, &open, part).map_err(|error| (object, error))
            };
            let (object, error) = match plan.into_iter().map(bring).collect::<std::result::Result<_, _>>() {
                // If the lock was lost meanwhile, others may have changed the file.
                Ok(parts) if of.is_none_or(|losses| losses == self.0.session.losses()) => {
                    let parts = Parts(parts);
                    self.0.reads.bytes.fetch_add(parts.len() as u64, Ordering::Relaxed);
                    return Ok(parts);
                }
                Ok(_) => continue,
                Err(failed) => failed,
            };
            self.0.look_again(inode, &open, version, (object, &error), until)?;
        }
    }

    /// Returns the offset of the next data or of the next hole, at or behind an offset.
    ///
    /// # Errors
    /// `NoData` if there is no such offset before the end of the file.
    pub fn seek(&self, inode: u64, offset: u64, wanted: Seek) -> Result<u64> {
        let open = self.0.inode(inode).ok_or_else(|| Error::new(Errno::NotOpen))?;
        let mut state = self.0.lock(&open)?;
        self.0.commit(inode, &mut state)?;
        if offset >= state.size {
            return Err(Error::new(Errno::NoData));
        }
        let mut at = offset;
        loop {
            // The map is walked by one page at a time.
            self.0.know(inode, &mut state, &(at..at + 1))?;
            let (known, size) = (state.map.end(at).min(state.size), state.size);
            for section in state.map.within(&(at..known)) {
                let start = section.offset.max(at);
                match wanted {
                    Seek::Data => return Ok(start),
                    Seek::Hole if start > at => return Ok(at),
                    Seek::Hole => at = section.offset + section.len,
                }
            }
            match wanted {
                Seek::Hole if at < known || at >= size => return Ok(at.min(size)),
                Seek::Data if known >= size => return Err(Error::new(Errno::NoData)),
                _ => at = at.max(known),
            }
        }
    }
}

impl Shared {
    /// Plans the parts of a read. Returns them with the version of the file.
    fn plan(&self, inode: u64, open: &Inode, offset: u64, len: usize) -> Result<(Vec<Planned>, u64)> {
        let end = offset.saturating_add(len as u64).min(MAX_FILE_BYTES);
        let mut state = self.lock(open)?;
        if state.writer.touches(&(offset..end)) {
            self.commit(inode, &mut state)?;
        }
        // A change that is told from now on makes the answer old again.
        if open.old.swap(false, Ordering::AcqRel) | state.is_old() {
            let (outcome, _) = self.ask(&Actor::default(), FileOperation::GetAttributes { inode })?;
            let FileOutcome::Entry(attributes) = outcome else { return Err(unexpected()) };
            state.learn(&attributes);
        }
        let range = offset..end.min(state.end());
        if !range.is_empty() {
            self.know(inode, &mut state, &range)?;
        }
        // The file may have become shorter by the attributes that were asked for.
        let range = offset..range.end.min(state.end());
        if range.is_empty() {
            return Ok((Vec::new(), state.version));
        }
        let in_order = self.read_ahead(&mut state, &range);
        let state = &mut *state;
        let own = self.session.attached().client.node();
        let (mut plan, mut at) = (Vec::new(), range.start);
        for section in state.map.within(&range) {
            if section.offset > at {
                plan.push(Planned::Here(Part::Hole((section.offset - at) as usize)));
            }
            at = at.max(section.offset);
            let end = section.offset.saturating_add(section.len).min(range.end);
            plan.push(planned(section, at..end)?);
            at = end;
        }
        if at < range.end {
            plan.push(Planned::Here(Part::Hole((range.end - at) as usize)));
        }
        for part in &mut plan {
            let Planned::There(id, range, hint) = part else { continue };
            if let Some(object) = state.pinned(id) {
                *part = Planned::Here(part_of(object, range)?);
            } else if !in_order && hint.node != own && state.peeks.take(id, hint.len, range) {
                *part = Planned::Range(*id, range.clone(), hint.node);
            }
        }
        Ok((plan, state.version))
    }

    /// Makes a range of the map known.
    fn know(&self, inode: u64, state: &mut State, range: &Range<u64>) -> Result<()> {
        while let Some(from) = state.map.missing(range) {
            let (outcome, _) = self.ask(&Actor::default(), FileOperation::Map { inode, from })?;
            let FileOutcome::Map { attributes, map } = outcome else { return Err(unexpected()) };
            if map.next.is_some_and(|next| next <= from) {
                return Err(unexpected());
            }
            state.learn_map(&attributes, from, map);
        }
        Ok(())
    }

    /// Brings a part to this host.
    fn bring(&self, attached: &Attached, open: &Inode, part: Planned) -> crate::Result<Part> {
        let (id, range, alone, node) = match part {
            Planned::Here(part) => {
                self.reads.here.fetch_add(matches!(part, Part::Object(..)).into(), Ordering::Relaxed);
                return Ok(part);
            }
            Planned::There(id, range, hint) => (id, range, None, hint.node),
            Planned::Range(id, range, node) => (id, range, Some(node), node),
        };
        let here = attached.client.get_here(&id);
        if here.is_none()
            && let Some(node) = alone
            && let Ok(bytes) = peeked(attached, id, &range, node)
        {
            return Ok(Part::Bytes(bytes));
        }
        let object = match here {
            Some(object) => {
                self.reads.here.fetch_add(1, Ordering::Relaxed);
                object
            }
            None => {
                let got = attached.client.get(&[id], Some(Duration::ZERO))?.pop();
                match got.unwrap_or_else(|| Err(crate::Error::new(ErrorKind::NotFound, "no result"))) {
                    Ok(object) => {
                        self.reads.brought.fetch_add(1, Ordering::Relaxed);
                        object
                    }
                    // The object may belong to another user.
                    Err(error) if attached.info.terms.shared => {
                        let alone = ranges(attached, id, &range, node).map(Part::Bytes);
                        return alone.map_err(|alone| why(error, alone));
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        // If the file cannot be locked, the object is not kept pinned.
        if let Ok(mut state) = self.lock(open) {
            state.pin(&object, attached.generation);
        }
        part_of(object, &range).map_err(|_| {
            let text = format!("object {id} is shorter than its file says");
            crate::Error::new(ErrorKind::Damaged, text)
        })
    }

    /// Decides after an error whether the bytes are looked for again, since the map may be old or the object
    /// on its way.
    fn look_again(
        &self,
        inode: u64,
        open: &Arc<Inode>,
        version: u64,
        (object, error): (Option<ObjectId>, &crate::Error),
        until: Instant,
    ) -> Result<()> {
        let waits = match error.kind() {
            ErrorKind::NotFound | ErrorKind::Lost => true,
            ErrorKind::TimedOut | ErrorKind::Disconnected | ErrorKind::Busy => true,
            _ => return Err(Error::of_client(error)),
        };
        let mut state = self.lock(open)?;
        state.map.clear();
        self.know(inode, &mut state, &(0..1))?;
        let same = state.version == version;
        drop(state);
        // A lost object does not come back, but another version may have other objects.
        if same && (error.kind() == ErrorKind::Lost || !waits || Instant::now() >= until) {
            return Err(Error::of_client(error));
        }
        if same && let Some(object) = object {
            let attached = self.session.attached();
            let kept = Volumes::by(&attached.client).look_after(attached.number, &[object], 0);
            if kept.is_ok_and(|kept| kept.iter().any(|kept| kept.lost)) {
                let text = format!("the bytes are lost: every node that had object {object} is gone");
                return Err(Error::because(Errno::Io, text));
            }
        }
        if same {
            thread::sleep(RETRY_INTERVAL);
        }
        Ok(())
    }

    /// Asks for objects of other nodes that lie ahead, if the read is in order. Returns whether it is.
    fn read_ahead(&self, state: &mut State, range: &Range<u64>) -> bool {
        let in_order = range.start == state.next_read;
        state.next_read = range.end;
        if !in_order {
            state.ahead = range.end;
            return false;
        }
        let goal = range.end.saturating_add(AHEAD_BYTES).min(state.map.end(range.end));
        // Half of the distance is asked for at a time, so that not every read asks.
        if state.ahead.saturating_add(AHEAD_BYTES / 2) > goal && goal < state.size {
            return true;
        }
        let from = state.ahead.max(range.end);
        if from >= goal {
            return true;
        }
        let attached = self.session.attached();
        let own = attached.client.node();
        let mut ids: Vec<ObjectId> = Vec::new();
        for section in state.map.within(&(from..goal)) {
            if let Source::Object { id, node, .. } = &section.source
                && *node != own
                && ids.last() != Some(id)
                && attached.client.get_here(id).is_none()
            {
                ids.push(*id);
            }
        }
        state.ahead = goal;
        if !ids.is_empty() {
            // An error is ignored: the node may be bringing too much already.
            let _ = attached.client.prefetch(&ids, Duration::ZERO);
        }
        true
    }
}

/// Reads a range of an object alone.
fn peeked(attached: &Attached, id: ObjectId, range: &Range<u64>, node: NodeId) -> crate::Result<Bytes> {
    let short = || crate::Error::new(ErrorKind::Invalid, format!("object {id} has no range {range:?}"));
    let len = u32::try_from(range.end - range.start).map_err(|_| short())?;
    let peek = Peeking { volume: attached.number, id, node, at: range.start, len };
    let bytes = Volumes::by(&attached.client).peek(peek)?;
    if bytes.len() == len as usize { Ok(bytes) } else { Err(short()) }
}

/// Reads a range of an object alone, in pieces.
fn ranges(attached: &Attached, id: ObjectId, range: &Range<u64>, node: NodeId) -> crate::Result<Bytes> {
    let mut all = BytesMut::new();
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min(at + MAX_PEEK_BYTES as u64);
        all.extend_from_slice(&peeked(attached, id, &(at..end), node)?);
        at = end;
    }
    Ok(all.freeze())
}

/// Returns the reason why an object can be neither brought nor read by ranges. Objects of other users are
/// read by ranges alone. The node may have forgotten a range of which the map told; then the map is asked
/// for again.
fn why(brought: crate::Error, alone: crate::Error) -> crate::Error {
    if brought.kind() == ErrorKind::NotAllowed { alone } else { brought }
}

/// Plans a range of a file that lies in a section.
fn planned(section: &Section, range: Range<u64>) -> Result<Planned> {
    let damaged = || Error::because(Errno::Io, "the map of the file names bytes that no object has");
    let from = range.start - section.offset;
    let len = range.end - range.start;
    match &section.source {
        Source::Inline(bytes) => {
            let end = from.checked_add(len).filter(|end| *end <= bytes.len() as u64).ok_or_else(damaged)?;
            Ok(Planned::Here(Part::Bytes(bytes.slice(from as usize..end as usize))))
        }
        Source::Object { id, at, object_len, node } => {
            let start = at.checked_add(from).ok_or_else(damaged)?;
            let end = start.checked_add(len).filter(|end| end <= object_len).ok_or_else(damaged)?;
            Ok(Planned::There(*id, start..end, Hint { len: *object_len, node: *node }))
        }
    }
}

/// Returns the part of a read for a range of an object that is on this host.
fn part_of(object: Object, range: &Range<u64>) -> Result<Part> {
    let fits = range.end <= object.data().len() as u64;
    if !fits {
        return Err(Error::because(Errno::Io, "an object is shorter than its file says"));
    }
    Ok(Part::Object(object, range.start as usize..range.end as usize))
}
