//! Tidying: many small sections of a file, which lie side by side, become one.
//!
//! Owns the number of small sections that this session has committed to each file. Any thread. A thread of
//! the background looks at files with many small sections, when they are at rest. The thread reads the bytes
//! of a run of sections, puts them as one object and has the home replace the sections; the home refuses if
//! the file has other sections by then. An append that has no room in the map moves the bytes of the map to
//! an object, and then lies in the map itself, so appends share objects. Invariants: tidying changes only
//! the sections of a file; the background locks no file; no object that a tidy is to name is told to be
//! discarded.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::background::Background;
use super::blocks::BLOCK_BYTES;
use super::inode::State;
use super::session::{Attached, unexpected};
use super::volume::Shared;
use super::{Error, Result};
use crate::wire::files::{
    Actor, Attributes, Errno, FileOperation, FileOutcome, Fingerprint, MAX_INLINE_BYTES, MAX_TIDIED, Section,
    Source,
};
use crate::{ErrorKind, Object, ObjectId};

/// Size in bytes below which a section is a small one.
const SMALL_BYTES: u64 = 64 << 10;
/// Number of committed small sections from which a file at rest is looked at.
const MANY_SECTIONS: u64 = 32;
/// Number of committed small sections from which a file is looked at that is not at rest.
const VERY_MANY_SECTIONS: u64 = 1024;
/// Least number of sections that become one.
const MIN_RUN_SECTIONS: usize = 16;
/// Time without a commit after which a file is at rest.
const REST_TIME: Duration = Duration::from_secs(1);
/// Largest number of files whose small sections are counted.
const MAX_FILES: usize = 4096;
/// Largest number of attempts to tidy a file that others change again and again.
const MAX_TRIES: u32 = 8;
/// Number of sections that are looked at together.
const WINDOW_SECTIONS: usize = 4096;
/// Longest wait for an object that is to be read.
const OBJECT_PATIENCE: Duration = Duration::from_secs(10);

/// Files that may be ragged.
pub(super) struct Tidying {
    files: Mutex<HashMap<u64, Ragged>>,
    /// Lock of the thread that puts an object which a tidy names.
    putting: Mutex<()>,
    /// Lock of the thread that looks at a file.
    looking: Mutex<()>,
    thread: Background,
}

impl Default for Tidying {
    fn default() -> Self {
        let thread = Background::new("plasmon-tidies", 1);
        Self { files: Mutex::default(), putting: Mutex::default(), looking: Mutex::default(), thread }
    }
}

/// Raggedness of a file since it was tidied last.
#[derive(Debug)]
struct Ragged {
    /// Number of sections that make the file ragged.
    sections: u64,
    /// Time when the last ragged section came, or when the file was looked at last.
    last: Instant,
    tries: u32,
}

impl Tidying {
    /// Notes the number of committed sections that make a file ragged.
    pub(super) fn note(&self, inode: u64, sections: u64) {
        if sections == 0 {
            return;
        }
        let (mut files, last) = (self.files.lock(), Instant::now());
        if files.len() == MAX_FILES {
            // Files with few ragged sections are forgotten first, because most of them stay so.
            files.retain(|_, ragged| ragged.sections >= MANY_SECTIONS);
        }
        if files.len() < MAX_FILES || files.contains_key(&inode) {
            let ragged = files.entry(inode).or_insert(Ragged { sections: 0, last, tries: 0 });
            (ragged.sections, ragged.last) = (ragged.sections.saturating_add(sections), last);
        }
    }

    /// Returns a file that is to be looked at, the number of its ragged sections, and whether it is at rest.
    fn next(&self) -> Option<(u64, u64, bool)> {
        let files = self.files.lock();
        files.iter().find_map(|(inode, ragged)| {
            let rests = ragged.last.elapsed() >= REST_TIME;
            let many = if rests { MANY_SECTIONS } else { VERY_MANY_SECTIONS };
            (ragged.sections >= many).then_some((*inode, ragged.sections, rests))
        })
    }

    /// Notes the outcome of a look at a file that had `sections` ragged sections.
    fn looked(&self, inode: u64, sections: u64, looked: &Result<bool>) {
        let mut files = self.files.lock();
        let Some(ragged) = files.get_mut(&inode) else { return };
        ragged.tries = if matches!(looked, Ok(true)) { 0 } else { ragged.tries + 1 };
        let again = match looked {
            Ok(true) => false,
            Ok(false) => ragged.tries < MAX_TRIES,
            Err(_) => false,
        };
        let left = ragged.sections - sections.min(ragged.sections);
        if left == 0 && !again {
            files.remove(&inode);
            return;
        }
        ragged.sections = if again { MANY_SECTIONS.max(left) } else { left };
        ragged.last = Instant::now();
    }

    /// Whether a thread is putting an object that a tidy is to name.
    pub(super) fn puts(&self) -> bool {
        self.putting.is_locked()
    }
}

/// Returns the number of sections of a commit that make a file of this size ragged: small sections, and
/// sections over others.
pub(super) fn ragged(sections: &[Section], size: u64) -> u64 {
    let is_ragged = |section: &&Section| {
        matches!(section.source, Source::Object { .. })
            && (section.len < SMALL_BYTES || section.offset < size)
    };
    sections.iter().filter(is_ragged).count() as u64
}

impl Shared {
    /// Has a file tidied by a thread of the background, if a file is to be tidied and none is being tidied.
    pub(super) fn begin_tidying(self: &Arc<Self>) {
        if self.session.is_read_only() || self.tidying.looking.is_locked() {
            return;
        }
        let Some((inode, sections, rests)) = self.tidying.next() else { return };
        let shared = Arc::clone(self);
        // If no thread can be started, the next call tries again.
        let _ = self.tidying.thread.offer(move || {
            let Some(_looking) = shared.tidying.looking.try_lock() else { return };
            let looked = shared.tidy(inode, rests);
            shared.tidying.looked(inode, sections, &looked);
        });
    }

    /// Tidies a file. Returns whether all runs that were found were replaced.
    fn tidy(&self, inode: u64, rests: bool) -> Result<bool> {
        let (mut from, mut all) = (0, true);
        loop {
            let (sections, attributes, next) = self.window(inode, from)?;
            let is_whole = from == 0 && next.is_none();
            // An append changes the last section.
            let seen =
                if rests || next.is_some() { sections.len() } else { sections.len().saturating_sub(1) };
            for run in runs(&sections[..seen], is_whole) {
                if self.is_over(Duration::ZERO) {
                    return Ok(true);
                }
                let _putting = self.tidying.putting.lock();
                match self.tidy_run(&attributes, &sections[run]) {
                    Ok(()) => {}
                    // The file has changed meanwhile.
                    Err(error) if matches!(error.errno(), Errno::Stale | Errno::Again) => all = false,
                    Err(error) => return Err(error),
                }
            }
            match next {
                Some(next) if next > from => from = next,
                _ => return Ok(all),
            }
        }
    }

    /// Returns sections of a file from an offset on, the attributes of the file, and the offset at which the
    /// next sections begin.
    fn window(&self, inode: u64, mut from: u64) -> Result<(Vec<Section>, Attributes, Option<u64>)> {
        let mut sections: Vec<Section> = Vec::new();
        loop {
            let (outcome, _) = self.ask(&Actor::default(), FileOperation::Map { inode, from })?;
            let FileOutcome::Map { attributes, map } = outcome else { return Err(unexpected()) };
            let end = sections.last().map_or(0, |last| last.offset + last.len);
            sections.extend(map.sections.into_iter().filter(|section| section.offset >= end));
            match map.next {
                Some(next) if next > from && sections.len() < WINDOW_SECTIONS => from = next,
                next => return Ok((sections, attributes, next)),
            }
        }
    }

    /// Replaces adjacent sections by one section.
    ///
    /// # Errors
    /// `Stale` if the file has other sections in the range by now.
    fn tidy_run(&self, attributes: &Attributes, run: &[Section]) -> Result<()> {
        let attached = self.session.attached();
        let Some(offset) = run.first().map(|first| first.offset) else { return Ok(()) };
        let bytes = bytes_of(&attached, run)?;
        let target = self.target(&attached, &attributes.place, (attributes.copies, None));
        let mut made = [target.put_bytes(&bytes)?.section(offset, 0, bytes.len() as u64)];
        let settled = target.settle(&mut made);
        let [section] = made;
        let inode = attributes.inode;
        let operation = FileOperation::Tidy { inode, replaces: Fingerprint::of(run), section };
        let tidied = settled.and_then(|()| self.session.ask_steadily(None, operation));
        // After a failure no commit will name the object.
        let (outcome, _) = tidied.inspect_err(|_| self.blocks.note_left())?;
        let FileOutcome::Entry(attributes) = outcome else { return Err(unexpected()) };
        // If the file is locked, its next read finds out.
        if let Some(open) = self.inode(inode)
            && let Some(mut state) = open.state.try_lock()
        {
            state.learn(&attributes);
        }
        Ok(())
    }

    /// Moves bytes that lie in the map of a file to an object, so that further bytes can lie in the map.
    /// Returns whether there were such bytes.
    pub(super) fn gather(&self, inode: u64, state: &State) -> bool {
        let places = [state.size.saturating_sub(MAX_INLINE_BYTES as u64), 0];
        let gathered = places.iter().find_map(|from| {
            let (outcome, _) = self.ask(&Actor::default(), FileOperation::Map { inode, from: *from }).ok()?;
            let FileOutcome::Map { attributes, map } = outcome else { return None };
            let is_inline = |section: &&Section| matches!(section.source, Source::Inline(_));
            let inline = map.sections.iter().find(is_inline)?;
            Some(match self.tidy_run(&attributes, std::slice::from_ref(inline)) {
                Ok(()) => true,
                // Others have changed the file, and perhaps moved these bytes.
                Err(error) => error.errno() == Errno::Stale,
            })
        });
        if gathered == Some(true) {
            self.tidying.note(inode, 1);
        }
        gathered.unwrap_or(false)
    }
}

/// Returns the bytes of sections, one behind the other.
fn bytes_of(attached: &Attached, run: &[Section]) -> Result<Vec<u8>> {
    let len: u64 = run.iter().map(|section| section.len).sum();
    let mut all = Vec::with_capacity((len as usize).min(BLOCK_BYTES));
    let mut last: Option<Object> = None;
    for section in run {
        match &section.source {
            Source::Inline(bytes) => all.extend_from_slice(bytes),
            Source::Object { id, at, .. } => {
                let object = match last.take().filter(|object| object.id() == *id) {
                    Some(object) => object,
                    None => brought(attached, *id)?,
                };
                let range = usize::try_from(*at).ok().zip(usize::try_from(section.len).ok());
                let part = range.and_then(|(at, len)| object.data().get(at..at.checked_add(len)?));
                let short = || Error::because(Errno::Io, "an object is shorter than its file says");
                all.extend_from_slice(part.ok_or_else(short)?);
                last = Some(object);
            }
        }
    }
    Ok(all)
}

/// Brings an object to this host.
///
/// # Errors
/// `Stale` if the object is gone, because the file has another object by now.
fn brought(attached: &Attached, id: ObjectId) -> Result<Object> {
    if let Some(object) = attached.client.get_here(&id) {
        return Ok(object);
    }
    let got = attached.steady.get(&[id], Some(OBJECT_PATIENCE)).map(|mut got| got.pop());
    let got = got.map_err(|error| Error::of_client(&error))?;
    let none = || Err(crate::Error::new(ErrorKind::NotFound, "no result"));
    got.unwrap_or_else(none).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::TimedOut => Error::new(Errno::Stale),
        _ => Error::of_client(&error),
    })
}

/// Returns runs of sections, each of which is to become one section, in their order: many small sections, and
/// sections of objects whose bytes are mostly in no file any more. The latter are only known if the sections
/// are all sections of the file.
fn runs(sections: &[Section], are_all: bool) -> Vec<Range<usize>> {
    let mut live: HashMap<ObjectId, u64> = HashMap::new();
    for section in sections.iter().filter(|_| are_all) {
        if let Source::Object { id, .. } = &section.source {
            *live.entry(*id).or_default() += section.len;
        }
    }
    let is_dead = |at: usize| match &sections[at].source {
        Source::Object { id, object_len, .. } if *object_len >= SMALL_BYTES => {
            live.get(id).is_some_and(|live| live.saturating_mul(2) < *object_len)
        }
        _ => false,
    };
    let (mut runs, mut at) = (Vec::new(), 0);
    while at < sections.len() {
        if sections[at].len < SMALL_BYTES {
            let mut end = grown(sections, at, |_| true);
            while sections[end - 1].len >= SMALL_BYTES {
                end -= 1;
            }
            if end - at >= MIN_RUN_SECTIONS {
                runs.push(at..end);
                at = end;
                continue;
            }
        }
        let dead = if is_dead(at) { grown(sections, at, is_dead) } else { at };
        if dead > at {
            runs.push(at..dead);
        }
        at = dead.max(at + 1);
    }
    runs
}

/// Returns the end of the adjacent sections from `at` on that fit a block and for which `is_of` holds. The
/// first section is taken to satisfy `is_of`.
fn grown(sections: &[Section], at: usize, is_of: impl Fn(usize) -> bool) -> usize {
    let (mut end, mut len) = (at + 1, sections[at].len);
    while let Some(next) = sections.get(end) {
        let last = &sections[end - 1];
        let touches = last.offset.saturating_add(last.len) == next.offset;
        len = len.saturating_add(next.len);
        if !touches || len > BLOCK_BYTES as u64 || end - at == MAX_TIDIED || !is_of(end) {
            break;
        }
        end += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;
    use crate::wire::files::file_object;

    const KIB: u64 = 1 << 10;

    /// Returns sections of these objects, section lengths and object lengths, one behind the other.
    fn sections(of: &[(u64, u64, u64)]) -> Vec<Section> {
        let node = NodeId::from_bytes([1; NodeId::LEN]);
        let mut offset = 0;
        let section = |&(number, len, object_len): &(u64, u64, u64)| {
            let source = Source::Object { id: file_object(1, 1, number), at: 0, object_len, node };
            offset += len;
            Section { offset: offset - len, len, source }
        };
        of.iter().map(section).collect()
    }

    #[test]
    fn many_small_sections_side_by_side_become_one() {
        let small = |count| (0..count).map(|number| (number, 100, 100)).collect::<Vec<_>>();
        assert_eq!(runs(&sections(&small(15)), true), []);
        assert_eq!(runs(&sections(&small(40)), false), vec![0..40]);
        // Large ones at the ends stay as they are.
        let large = (99, 1000 * KIB, 1000 * KIB);
        let between = [vec![large], small(20), vec![(98, 900 * KIB, 900 * KIB)]].concat();
        assert_eq!(runs(&sections(&between), true), vec![1..21]);
        let mut hole = sections(&small(40));
        hole[20..].iter_mut().for_each(|section| section.offset += 1);
        assert_eq!(runs(&hole, true), [0..20, 20..40]);
        let blocks: Vec<_> = (0..512).map(|number| (number, 4 * KIB, 4 * KIB)).collect();
        assert_eq!(runs(&sections(&blocks), true), [0..256, 256..512], "no more than a block");
    }

    #[test]
    fn objects_that_are_dead_for_the_most_part_are_replaced() {
        let of = [(1, 100 * KIB, 1024 * KIB), (2, 100 * KIB, 100 * KIB), (3, 40 * KIB, 100 * KIB)];
        assert_eq!(runs(&sections(&of), true), [0..1, 2..3]);
        assert_eq!(runs(&sections(&of), false), [], "the rest of them may lie elsewhere in the file");
        let twice = [(1, 300 * KIB, 1024 * KIB), (2, 100 * KIB, 100 * KIB), (1, 300 * KIB, 1024 * KIB)];
        assert_eq!(runs(&sections(&twice), true), []);
    }

    #[test]
    fn files_at_rest_with_many_small_sections_are_looked_at() {
        let tidying = Tidying::default();
        let age = |time| tidying.files.lock().get_mut(&7).expect("it is known").last -= time;
        tidying.note(7, MANY_SECTIONS - 1);
        age(REST_TIME);
        assert_eq!(tidying.next(), None);
        tidying.note(7, 1);
        assert_eq!(tidying.next(), None, "it is being written");
        age(REST_TIME);
        assert_eq!(tidying.next(), Some((7, MANY_SECTIONS, true)));
        tidying.note(7, 3);
        tidying.looked(7, MANY_SECTIONS, &Ok(true));
        assert_eq!(tidying.files.lock().get(&7).map(|ragged| ragged.sections), Some(3));
        tidying.note(7, VERY_MANY_SECTIONS);
        assert_eq!(tidying.next(), Some((7, VERY_MANY_SECTIONS + 3, false)));
        // Others change it again and again.
        for _ in 0..MAX_TRIES {
            assert!(tidying.files.lock().contains_key(&7));
            tidying.looked(7, VERY_MANY_SECTIONS + 3, &Ok(false));
        }
        assert!(tidying.files.lock().is_empty());
    }

    #[test]
    fn small_sections_and_those_over_others_make_a_file_ragged() {
        let of = [(1, 100, 100), (2, 100 * KIB, 100 * KIB), (3, 1024 * KIB, 1024 * KIB)];
        assert_eq!(ragged(&sections(&of), 0), 1);
        assert_eq!(ragged(&sections(&of), 101), 2);
    }
}
