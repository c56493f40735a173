//! Writing a batch: records one behind the other, and small ones gathered to one write. Owns no state: it
//! writes with the buffer and the file of `Disk`. Spill thread only.
//!
//! Invariant: no record is valid in a file before all of its bytes are written. A batch that fails is
//! taken back, unless that fails as well, which is logged. A record that is written in several steps gets
//! its header last, so that a daemon that dies meanwhile leaves zeros in place of the header.

use std::fs::File;
use std::hash::Hasher as _;
use std::io;
use std::os::unix::fs::FileExt;

use twox_hash::{XxHash3_64, xxhash3_64};

use super::directory::Directory;
use super::record::{self, FIRST_RECORD_AT, Header, UNIT_BYTES};
use super::{ALIGN_FROM_BYTES, CHUNK_BYTES, MAX_FILE_BYTES, OWN_FILE_BYTES};
use crate::memory::{IoRange, PAGE_BYTES};

/// The bytes of an object.
pub(super) enum Payload<'a> {
    Arena(&'a IoRange),
    Heap(&'a [u8]),
}

impl Payload<'_> {
    fn copy(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        match self {
            Payload::Arena(range) => range.read(at, into).map_err(io::Error::other),
            Payload::Heap(bytes) => {
                into.copy_from_slice(&bytes[at..at + into.len()]);
                Ok(())
            }
        }
    }
}

/// A record to be written. The payload is as long as the header says.
pub(super) struct Entry<'a> {
    pub(super) head: &'a Header,
    pub(super) sequence: u64,
    pub(super) payload: Payload<'a>,
}

/// A record that was written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    pub(super) file: u32,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) number: u32,
    pub(super) salt: u64,
    pub(super) file: File,
    /// The offset in bytes at which the next record may start.
    pub(super) end: u64,
    /// Length of the file in bytes before the batch; 0 if the batch made the file.
    before: u64,
}

/// A batch that was written.
pub(super) struct Done {
    /// The records, in the order of the batch.
    pub(super) written: Vec<Written>,
    /// All files to which the batch was written.
    pub(super) files: Vec<Tail>,
    /// The file to which the next batch is appended.
    pub(super) current: Option<usize>,
}

/// The failure of a batch, and the file to which the next batch is appended.
pub(super) struct Failed {
    pub(super) source: io::Error,
    pub(super) tail: Option<Tail>,
}

/// The parts of a disk that write a batch to its directory.
pub(super) struct Appender<'a> {
    pub(super) directory: &'a Directory,
    /// The number of the next file.
    pub(super) next_number: &'a mut u32,
    /// The buffer for gathering records.
    pub(super) buffer: &'a mut Vec<u8>,
}

impl Appender<'_> {
    /// Writes all entries, beginning behind `tail`, or none of them.
    pub(super) fn write<'e>(
        self,
        tail: Option<Tail>,
        entries: impl Iterator<Item = Entry<'e>>,
    ) -> Result<Done, Failed> {
        self.buffer.clear();
        let files: Vec<Tail> = tail.into_iter().map(|tail| Tail { before: tail.end, ..tail }).collect();
        let current = files.first().map(|_| 0);
        let mut batch = Batch { appender: self, files, current, written: Vec::new() };
        match batch.write(entries) {
            Ok(()) => Ok(Done { written: batch.written, files: batch.files, current: batch.current }),
            Err(source) => Err(Failed { source, tail: batch.take_back() }),
        }
    }
}

/// A batch under way. The buffer holds the records gathered for the end of the current file.
struct Batch<'a> {
    appender: Appender<'a>,
    files: Vec<Tail>,
    current: Option<usize>,
    written: Vec<Written>,
}

impl Batch<'_> {
    fn write<'e>(&mut self, entries: impl Iterator<Item = Entry<'e>>) -> io::Result<()> {
        for entry in entries {
            let len = record::record_len(entry.head).ok_or(io::ErrorKind::FileTooLarge)?;
            let at = self.room(len)?;
            let tail = &mut self.files[at];
            if len > CHUNK_BYTES as u64 {
                stream(tail, self.appender.buffer, &entry)?;
            } else {
                gather(tail, self.appender.buffer, &entry, len)?;
            }
            self.written.push(Written { file: tail.number, offset: tail.end, len });
            tail.end += len;
        }
        self.flush()
    }

    /// Chooses the file that takes a record of `len` bytes at its end. Afterwards the buffer is empty if
    /// the record is too long for it, or does not come right behind the gathered records.
    fn room(&mut self, len: u64) -> io::Result<usize> {
        if len >= ALIGN_FROM_BYTES || self.appender.buffer.len() as u64 + len > CHUNK_BYTES as u64 {
            self.flush()?;
        }
        if len > OWN_FILE_BYTES {
            return self.create();
        }
        let fits = |tail: &Tail| tail.end.next_multiple_of(PAGE_BYTES) + len <= MAX_FILE_BYTES;
        let at = match self.current {
            Some(at) if fits(&self.files[at]) => at,
            _ => {
                self.flush()?;
                let made = self.create()?;
                *self.current.insert(made)
            }
        };
        if len >= ALIGN_FROM_BYTES {
            let tail = &mut self.files[at];
            tail.end = tail.end.next_multiple_of(PAGE_BYTES);
        }
        Ok(at)
    }

    fn create(&mut self) -> io::Result<usize> {
        let number = *self.appender.next_number;
        let next = number.checked_add(1).ok_or_else(|| io::Error::other("no file number is left"))?;
        let mut salt = [0; 8];
        getrandom::fill(&mut salt).map_err(io::Error::from)?;
        let salt = u64::from_le_bytes(salt);
        // A failure uses up the number too, because it may leave a file behind.
        *self.appender.next_number = next;
        let file = self.appender.directory.create_file(number, salt)?;
        self.files.push(Tail { number, salt, file, end: FIRST_RECORD_AT, before: 0 });
        Ok(self.files.len() - 1)
    }

    /// Writes the gathered records.
    fn flush(&mut self) -> io::Result<()> {
        if let Some(at) = self.current {
            let tail = &self.files[at];
            tail.file.write_all_at(self.appender.buffer, tail.end - self.appender.buffer.len() as u64)?;
        }
        self.appender.buffer.clear();
        Ok(())
    }

    /// Removes what the batch wrote, and returns the file that was there before.
    fn take_back(self) -> Option<Tail> {
        let mut former = None;
        for mut tail in self.files {
            let undone = match tail.before {
                0 => self.appender.directory.unlink(tail.number),
                before => tail.file.set_len(before),
            };
            match undone {
                Ok(()) if tail.before > 0 => {
                    tail.end = tail.before;
                    former = Some(tail);
                }
                Ok(()) => {}
                Err(error) => {
                    let file = self.appender.directory.file_path(tail.number);
                    tracing::warn!(%error, file = %file.display(), "cannot take back a part of a batch");
                }
            }
        }
        former
    }
}

/// Adds a record to the buffer.
fn gather(tail: &Tail, buffer: &mut Vec<u8>, entry: &Entry<'_>, len: u64) -> io::Result<()> {
    let start = buffer.len();
    let header = start + record::header_len(entry.head);
    let end = start + len as usize;
    buffer.resize(end, 0);
    let payload_len = entry.head.payload_len().unwrap_or_default() as usize;
    let payload = &mut buffer[header..header + payload_len];
    entry.payload.copy(0, payload)?;
    let hash = XxHash3_64::oneshot(payload);
    record::encode(&mut buffer[start..header], entry.head, entry.sequence, hash, tail.salt, tail.end);
    Ok(())
}

/// Writes a record in several steps, the header last.
fn stream(tail: &Tail, buffer: &mut Vec<u8>, entry: &Entry<'_>) -> io::Result<()> {
    let header_len = record::header_len(entry.head);
    let payload_len = entry.head.payload_len().unwrap_or_default() as usize;
    let mut hash = xxhash3_64::Hasher::new();
    let mut done = 0;
    while done < payload_len {
        let step = (payload_len - done).min(CHUNK_BYTES);
        // The buffer includes the padding, which only the last step writes.
        buffer.clear();
        buffer.resize(step.next_multiple_of(UNIT_BYTES as usize), 0);
        entry.payload.copy(done, &mut buffer[..step])?;
        hash.write(&buffer[..step]);
        tail.file.write_all_at(buffer, tail.end + (header_len + done) as u64)?;
        done += step;
    }
    buffer.clear();
    buffer.resize(header_len, 0);
    record::encode(buffer, entry.head, entry.sequence, hash.finish(), tail.salt, tail.end);
    tail.file.write_all_at(buffer, tail.end)?;
    buffer.clear();
    Ok(())
}
