//! The state of the spill directory, and the operations on it. Owns [`Disk`], which is used by the thread
//! that opens the store, and then by the spill thread.
//!
//! Invariants: `files` has exactly the files with live records; no byte of a live record is overwritten;
//! the bytes between live records are dead, padding, or damage found at the start.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use plasmon::ObjectId;
use plasmon::wire::MAX_NAME_BYTES;
use rustix::io::Errno;

use super::append::{Appender, Done, Entry, Failed, Payload, Tail};
use super::directory::{self, Directory};
use super::error::SpillError;
use super::record::{self, FIRST_RECORD_AT, Place, Record, Recovered};
use super::scan::{self, Scan};
use super::store::Item;
use super::usage::Counters;
use crate::memory::PAGE_BYTES;

/// One file that has live records.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) salt: u64,
    /// Offset in bytes at which the file's last record ends.
    end: u64,
    /// The offset and length in bytes of each live record.
    pub(super) live: BTreeMap<u64, u64>,
    live_bytes: u64,
    disk_bytes: u64,
}

/// The spill directory.
pub(super) struct Disk {
    pub(super) directory: Directory,
    pub(super) files: BTreeMap<u32, Contents>,
    /// The file to which records are appended.
    tail: Option<Tail>,
    next_number: u32,
    next_sequence: u64,
    /// The present places of moved records, by the places that the engine knows.
    moved: HashMap<Place, Place>,
    /// The places that the engine knows, by the present places of moved records.
    known: HashMap<Place, Place>,
    /// Files that should be emptied.
    pub(super) sparse: BTreeSet<u32>,
    /// Whether the filesystem can punch holes, as far as this daemon knows.
    punches: bool,
    live_bytes: u64,
    disk_bytes: u64,
    pub(super) buffer: Vec<u8>,
    pub(super) counters: Arc<Counters>,
}

impl Disk {
    /// Opens the directory and finds the objects that a former daemon left.
    pub(super) fn open(path: &Path, counters: Arc<Counters>) -> Result<(Disk, Vec<Recovered>), SpillError> {
        let mut disk = Disk {
            directory: Directory::open(path)?,
            files: BTreeMap::new(),
            tail: None,
            next_number: 0,
            next_sequence: 0,
            moved: HashMap::new(),
            known: HashMap::new(),
            sparse: BTreeSet::new(),
            punches: true,
            live_bytes: 0,
            disk_bytes: 0,
            buffer: Vec::new(),
            counters,
        };
        // Of several records of an id, the one with the highest sequence counts. Of two with one
        // sequence, a whole record comes before one that was cut off.
        let mut newest: HashMap<ObjectId, ((u64, bool), Recovered)> = HashMap::new();
        let mut remains = Vec::new();
        for number in disk.directory.list()? {
            disk.next_number = number.saturating_add(1);
            for (place, record) in disk.adopt(number) {
                disk.next_sequence = disk.next_sequence.max(record.sequence.wrapping_add(1));
                let id = record.head.id;
                let end = disk.files.get(&number).map_or(0, |contents| contents.end);
                let whole = record.len <= end.saturating_sub(place.offset());
                let found = ((record.sequence, whole), Recovered { header: record.head, place });
                match newest.get(&id) {
                    Some((rank, _)) if *rank > found.0 => remains.push(place),
                    _ => remains.extend(newest.insert(id, found).map(|(_, older)| older.place)),
                }
            }
        }
        for place in remains {
            disk.erase(place);
        }
        disk.count_space();
        Ok((disk, newest.into_values().map(|(_, recovered)| recovered).collect()))
    }

    /// Takes over a file of a former daemon and returns its live records.
    fn adopt(&mut self, number: u32) -> Vec<(Place, Record)> {
        let path = self.directory.file_path(number);
        let scanned = self.directory.open_file(number).map_err(scan::ScanError::from).and_then(|file| {
            let found = scan::scan(&file)?;
            Ok((found, directory::disk_bytes(&file)?))
        });
        let (Scan { salt, end, mut live, cut_off, damaged }, disk_bytes) = match scanned {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(
                    %error, file = %path.display(),
                    "a spill file cannot be read and is left alone: its objects are missing until it can be"
                );
                self.counters.failed(1);
                self.counters.found_unreadable(1);
                return Vec::new();
            }
        };
        if damaged > 0 {
            tracing::warn!(
                file = %path.display(), damaged, intact = live.len(),
                "a spill file is damaged, or was being written when the daemon died: the objects in \
                 the damaged places are lost, and their ids are unknown"
            );
            self.counters.failed(damaged);
            self.counters.found_unreadable(damaged);
        }
        if let Some((offset, record)) = &cut_off {
            tracing::warn!(
                file = %path.display(), offset, object = %record.head.id,
                "a spill file was cut off in the middle of an object: gets of this object will fail"
            );
            self.counters.failed(1);
        }
        live.extend(cut_off);
        if live.is_empty() {
            if let Err(error) = self.directory.unlink(number) {
                self.complain(number, &error);
            }
            return Vec::new();
        }
        let mut contents = Contents { salt, end, disk_bytes, ..Contents::default() };
        for (offset, record) in &live {
            contents.live.insert(*offset, record.len);
            contents.live_bytes += record.len;
        }
        self.live_bytes += contents.live_bytes;
        self.disk_bytes += contents.disk_bytes;
        self.files.insert(number, contents);
        self.review(number);
        live.into_iter().map(|(offset, record)| (Place::new(number, offset), record)).collect()
    }

    /// Writes a batch as a whole or not at all.
    pub(super) fn write(&mut self, items: &[Item]) -> Result<Vec<Place>, SpillError> {
        items.iter().try_for_each(check)?;
        let first = self.next_sequence;
        self.next_sequence = first.wrapping_add(items.len() as u64);
        let entries = items.iter().enumerate().map(|(index, item)| Entry {
            head: &item.head,
            sequence: first.wrapping_add(index as u64),
            payload: Payload::Arena(&item.bytes),
        });
        match self.append(entries) {
            Ok(places) => {
                self.counters.wrote(items.iter().map(|item| item.bytes.len() as u64).sum());
                Ok(places)
            }
            Err(source) => {
                self.counters.failed(1);
                let dir = self.directory.path().to_owned();
                let bytes = items.iter().filter_map(|item| record::record_len(&item.head)).sum();
                Err(match Errno::from_io_error(&source) {
                    Some(Errno::NOSPC | Errno::DQUOT) => {
                        SpillError::NoSpace { dir, bytes, free: self.directory.free(), source }
                    }
                    _ => SpillError::Write { dir, bytes, source },
                })
            }
        }
    }

    /// Writes records. Either all of them are live afterwards, or none.
    pub(super) fn append<'e>(&mut self, entries: impl Iterator<Item = Entry<'e>>) -> io::Result<Vec<Place>> {
        let Disk { directory, next_number, buffer, .. } = self;
        let appender = Appender { directory, next_number, buffer };
        let Done { written, mut files, current } = match appender.write(self.tail.take(), entries) {
            Ok(done) => done,
            Err(Failed { source, tail }) => {
                self.tail = tail;
                return Err(source);
            }
        };
        for tail in &files {
            let contents = self.files.entry(tail.number).or_default();
            (contents.salt, contents.end) = (tail.salt, tail.end);
        }
        for record in &written {
            let contents = self.files.entry(record.file).or_default();
            contents.live.insert(record.offset, record.len);
            contents.live_bytes += record.len;
            self.live_bytes += record.len;
        }
        for tail in &files {
            self.measure(tail.number, &tail.file);
        }
        self.tail = current.map(|at| files.swap_remove(at));
        files.iter().for_each(|tail| self.review(tail.number));
        self.count_space();
        Ok(written.iter().map(|record| Place::new(record.file, record.offset)).collect())
    }

    /// Makes the record of an object dead.
    pub(super) fn forget(&mut self, place: Place) {
        let present = match self.moved.remove(&place) {
            Some(present) => {
                self.known.remove(&present);
                present
            }
            None => place,
        };
        self.erase(present);
        self.count_space();
    }

    /// Marks a record as dead on disk, and frees the disk space that can be freed.
    pub(super) fn erase(&mut self, place: Place) {
        let (number, offset) = (place.file, place.offset());
        let Some(contents) = self.files.get_mut(&number) else { return };
        let Some(len) = contents.live.remove(&offset) else { return };
        contents.live_bytes -= len;
        self.live_bytes -= len;
        let erased = if contents.live.is_empty() {
            self.remove(number)
        } else {
            let run = contents.run(offset..offset + len);
            self.bury(number, offset..offset + len, run)
        };
        if let Err(error) = erased {
            self.complain(number, &error);
        }
        self.review(number);
    }

    /// Marks many records of one file as dead on disk.
    pub(super) fn erase_all(&mut self, number: u32, places: impl ExactSizeIterator<Item = Place>) {
        if self.files.get(&number).is_some_and(|contents| contents.live.len() == places.len()) {
            if let Err(error) = self.remove(number) {
                self.complain(number, &error);
            }
        } else {
            places.for_each(|place| self.erase(place));
        }
        self.count_space();
    }

    /// Notes the new place of a record, whose former place the engine keeps.
    pub(super) fn relocate(&mut self, from: Place, to: Place) {
        let known = self.known.remove(&from).unwrap_or(from);
        self.moved.insert(known, to);
        self.known.insert(to, known);
    }

    /// Removes a file with all its records.
    fn remove(&mut self, number: u32) -> io::Result<()> {
        self.tail.take_if(|tail| tail.number == number);
        self.sparse.remove(&number);
        if let Some(contents) = self.files.remove(&number) {
            self.live_bytes -= contents.live_bytes;
            self.disk_bytes -= contents.disk_bytes;
        }
        self.directory.unlink(number)
    }

    /// Erases a record that lies in a run of dead bytes.
    fn bury(&mut self, number: u32, record: Range<u64>, run: Range<u64>) -> io::Result<()> {
        let opened;
        let file = match &self.tail {
            Some(tail) if tail.number == number => &tail.file,
            _ => {
                opened = self.directory.open_file(number)?;
                &opened
            }
        };
        // A scan that comes to a hole expects a record where the zeros end. So the run of dead bytes is
        // zeroed as a whole, as soon as that frees pages that the erasure of its neighbours did not free.
        let freed = run.start.max(record.start / PAGE_BYTES * PAGE_BYTES)
            ..run.end.min(record.end.next_multiple_of(PAGE_BYTES));
        let whole = freed.start.next_multiple_of(PAGE_BYTES) < freed.end / PAGE_BYTES * PAGE_BYTES;
        if whole && self.punches {
            match directory::punch(file, run.start, run.end - run.start) {
                Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
                    let dir = self.directory.path().display();
                    tracing::info!(
                        %dir,
                        "no holes can be punched here, so deletions free disk space only a file at a time"
                    );
                    self.punches = false;
                }
                punched => {
                    punched?;
                    let disk_bytes = directory::disk_bytes(file)?;
                    self.set_disk_bytes(number, disk_bytes);
                    return Ok(());
                }
            }
        }
        file.write_all_at(&record::DEAD.to_le_bytes(), record.start)
    }

    /// The present place of a record.
    pub(super) fn present(&self, place: Place) -> Place {
        self.moved.get(&place).copied().unwrap_or(place)
    }

    /// Marks a file as sparse if it should be emptied.
    fn review(&mut self, number: u32) {
        let current = self.tail.as_ref().is_some_and(|tail| tail.number == number);
        let sparse = |contents: &Contents| !current && contents.live_bytes < contents.disk_bytes / 4;
        if self.files.get(&number).is_some_and(sparse) {
            self.sparse.insert(number);
        }
    }

    fn complain(&self, number: u32, error: &io::Error) {
        // A file that somebody else has removed counts as erased.
        if error.kind() != io::ErrorKind::NotFound {
            let file = self.directory.file_path(number);
            tracing::warn!(%error, file = %file.display(), "cannot erase spilled objects: a restart may \
                bring them back");
            self.counters.failed(1);
        }
    }

    fn measure(&mut self, number: u32, file: &File) {
        match directory::disk_bytes(file) {
            Ok(disk_bytes) => self.set_disk_bytes(number, disk_bytes),
            Err(error) => tracing::debug!(%error, number, "cannot measure a spill file"),
        }
    }

    fn set_disk_bytes(&mut self, number: u32, disk_bytes: u64) {
        if let Some(contents) = self.files.get_mut(&number) {
            self.disk_bytes = self.disk_bytes - contents.disk_bytes + disk_bytes;
            contents.disk_bytes = disk_bytes;
        }
    }

    /// Looks how much of the disk is free, because others use the disk as well.
    pub(super) fn look_at_free(&self) {
        self.counters.set_free(self.directory.free());
    }

    fn count_space(&self) {
        self.look_at_free();
        self.counters.set_space(self.files.len() as u64, self.live_bytes, self.disk_bytes);
    }
}

impl Contents {
    /// The dead bytes around a dead range, up to the nearest live records on both sides.
    fn run(&self, dead: Range<u64>) -> Range<u64> {
        let before = self.live.range(..dead.start).next_back();
        let after = self.live.range(dead.end..).next();
        let start = before.map_or(FIRST_RECORD_AT, |(offset, len)| offset + len);
        start..after.map_or(self.end, |(offset, _)| *offset)
    }
}

fn check(item: &Item) -> Result<(), SpillError> {
    let unfit = |reason| Err(SpillError::Unfit { id: item.head.id, reason });
    if item.head.payload_len() != Some(item.bytes.len() as u64) {
        return unfit("its memory is not as long as its data and metadata");
    }
    if item.head.name.len() > MAX_NAME_BYTES {
        return unfit("its name is too long");
    }
    Ok(())
}
