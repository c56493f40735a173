//! Reading an object back. The state is that of `Disk`. Spill thread only.
//!
//! Bytes are not trusted before their checksum is verified. Lengths from the file only ever bound a read into
//! memory of the length that the engine expects. A record's checksum shows that the bytes are those that were
//! written. The digest made at the seal, if there is one, shows that the bytes are those that were sealed.

use std::fs::File;
use std::hash::Hasher as _;
use std::io;

use plasmon::ObjectId;
use twox_hash::xxhash3_64;

use super::CHUNK_BYTES;
use super::directory;
use super::disk::Disk;
use super::error::SpillError;
use super::record::{self, MAX_HEADER_BYTES, Place, Record};
use crate::memory::IoRange;

impl Disk {
    /// Reads an object back, and counts the outcome.
    pub(super) fn read(
        &mut self,
        place: Place,
        id: ObjectId,
        digest: u64,
        into: &IoRange,
    ) -> Result<(), SpillError> {
        let len = into.len() as u64;
        let write = |at: u64, bytes: &[u8]| into.write(at as usize, bytes).map_err(io::Error::other);
        let read = self.read_record(place, id, digest, len, write);
        read.map_err(|fault| self.failed(place, (id, digest), fault))?;
        self.counters.read_back(len);
        Ok(())
    }

    /// Returns the digest that the bytes of an object of `len` bytes have if they are not damaged.
    pub(super) fn promised(
        &mut self,
        place: Place,
        id: ObjectId,
        digest: u64,
        len: u64,
    ) -> Result<u64, SpillError> {
        let promised = self.begin_record(place, id, len, MAX_HEADER_BYTES).and_then(|(_, record)| {
            let promised = record.payload_hash.max(1);
            if digest == 0 || digest == promised { Ok(promised) } else { Err(Fault::Altered(promised)) }
        });
        promised.map_err(|fault| self.failed(place, (id, digest), fault))
    }

    /// Reads `len` bytes of an object of `whole` bytes from `at` on, without their checksum, and counts the
    /// outcome.
    pub(super) fn read_part(
        &mut self,
        place: Place,
        id: ObjectId,
        whole: u64,
        (at, len): (u64, usize),
    ) -> Result<Vec<u8>, SpillError> {
        let mut part = vec![0; len];
        let read = self.begin_record(place, id, whole, MAX_HEADER_BYTES).and_then(|(file, record)| {
            if at.checked_add(len as u64).is_none_or(|end| end > whole) {
                return Err(Fault::Damage("it has no such part"));
            }
            let from = self.present(place).offset() + record::header_len(&record.head) as u64 + at;
            match directory::read_up_to(&file, from, &mut part)? {
                filled if filled == len => Ok(()),
                _ => Err(Fault::Damage(CUT_OFF)),
            }
        });
        read.map_err(|fault| self.failed(place, (id, 0), fault))?;
        self.counters.read_back(len as u64);
        Ok(part)
    }

    /// Makes the error of a read that has failed, and counts it.
    fn failed(&self, place: Place, (id, sealed): (ObjectId, u64), fault: Fault) -> SpillError {
        self.counters.failed(1);
        let place = self.present(place);
        let (file, offset) = (self.directory.file_path(place.file), place.offset());
        match fault {
            Fault::Damage(reason) => SpillError::Damaged { id, file, offset, reason },
            Fault::Altered(found) => SpillError::Altered { id, file, offset, sealed, found },
            Fault::Io(source) => SpillError::Read { id, file, offset, source },
        }
    }

    /// Opens the file of an object of `payload` bytes, and reads the record's beginning into the buffer: at
    /// most `most` bytes, which is room for every header.
    fn begin_record(
        &mut self,
        place: Place,
        id: ObjectId,
        payload: u64,
        most: usize,
    ) -> Result<(File, Record), Fault> {
        let place = self.present(place);
        let offset = place.offset();
        let contents = self.files.get(&place.file).ok_or(Fault::Damage(FORGOTTEN))?;
        let len = *contents.live.get(&offset).ok_or(Fault::Damage(FORGOTTEN))?;
        let file = self.directory.open_file(place.file)?;
        self.buffer.resize(len.min(most as u64) as usize, 0);
        let filled = directory::read_up_to(&file, offset, &mut self.buffer)?;
        let record = record::decode(&self.buffer[..filled], contents.salt, offset);
        let record = record.map_err(|_| Fault::Damage("its record is damaged or cut off"))?;
        let expected = record.live && record.len == len && record.head.id == id;
        if !expected || record.head.payload_len() != Some(payload) {
            return Err(Fault::Damage("another record lies in its place"));
        }
        Ok((file, record))
    }

    /// Reads an object of `len` bytes, and gives its bytes to `take` in their order, each time with their
    /// position. They are the object's only if the result is `Ok`.
    fn read_record(
        &mut self,
        place: Place,
        id: ObjectId,
        digest: u64,
        len: u64,
        take: impl Fn(u64, &[u8]) -> io::Result<()>,
    ) -> Result<(), Fault> {
        let (file, record) = self.begin_record(place, id, len, CHUNK_BYTES)?;
        let offset = self.present(place).offset();
        let header = record::header_len(&record.head);
        let (mut hash, mut done) = (xxhash3_64::Hasher::new(), 0);
        let mut from = header;
        while done < len {
            let left = (len - done).min(CHUNK_BYTES as u64) as usize;
            if done > 0 {
                from = 0;
                self.buffer.resize(left, 0);
                directory::read_up_to(&file, offset + header as u64 + done, &mut self.buffer)?;
            }
            let step = (self.buffer.len() - from).min(left);
            let bytes = &self.buffer[from..from + step];
            hash.write(bytes);
            take(done, bytes)?;
            done += step as u64;
        }
        if hash.finish() != record.payload_hash {
            return Err(Fault::Damage(CUT_OFF));
        }
        // The digest is computed by the same pass over the bytes as the checksum.
        let found = digest_of(&hash);
        if digest != 0 && digest != found {
            return Err(Fault::Altered(found));
        }
        Ok(())
    }
}

/// The digest that clients make of data and metadata. A digest of 0 means that there is none.
fn digest_of(payload: &xxhash3_64::Hasher) -> u64 {
    payload.finish().max(1)
}

const FORGOTTEN: &str = "it was forgotten";
const CUT_OFF: &str = "its bytes are damaged or cut off";

/// Why an object was not read.
enum Fault {
    Damage(&'static str),
    /// The digest of the bytes, which is given here, differs from the digest of the seal.
    Altered(u64),
    Io(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        match error.kind() {
            io::ErrorKind::NotFound => Fault::Damage("its file is gone"),
            _ => Fault::Io(error),
        }
    }
}
