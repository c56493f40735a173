//! Reading an object back. The state is that of `Disk`. Spill thread only.
//!
//! Bytes are not trusted before their checksum is verified. Lengths from the file only ever bound a read into
//! memory of the length that the engine expects. A record's checksum shows that the bytes are those that were
//! written. The digest made at the seal, if there is one, shows that the bytes are those that were sealed.

use std::hash::Hasher as _;
use std::io;

use plasmon::ObjectId;
use twox_hash::xxhash3_64;

use super::CHUNK_BYTES;
use super::directory;
use super::disk::Disk;
use super::error::SpillError;
use super::record::{self, Place};
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
        let place = self.present(place);
        let (file, offset) = (self.directory.file_path(place.file), place.offset());
        let result = self.read_record(place, id, digest, into).map_err(|fault| match fault {
            Fault::Damage(reason) => SpillError::Damaged { id, file, offset, reason },
            Fault::Altered(found) => SpillError::Altered { id, file, offset, sealed: digest, found },
            Fault::Io(source) => SpillError::Read { id, file, offset, source },
        });
        match &result {
            Ok(()) => self.counters.read_back(into.len() as u64),
            Err(_) => self.counters.failed(1),
        }
        result
    }

    fn read_record(&mut self, place: Place, id: ObjectId, digest: u64, into: &IoRange) -> Result<(), Fault> {
        let offset = place.offset();
        let contents = self.files.get(&place.file).ok_or(Fault::Damage(FORGOTTEN))?;
        let len = *contents.live.get(&offset).ok_or(Fault::Damage(FORGOTTEN))?;
        let file = self.directory.open_file(place.file)?;
        // A short record is read whole. Only the beginning of a long record is read here.
        self.buffer.resize(len.min(CHUNK_BYTES as u64) as usize, 0);
        let filled = directory::read_up_to(&file, offset, &mut self.buffer)?;
        let record = record::decode(&self.buffer[..filled], contents.salt, offset);
        let record = record.map_err(|_| Fault::Damage("its record is damaged or cut off"))?;
        let expected = record.live && record.len == len && record.head.id == id;
        if !expected || record.head.payload_len() != Some(into.len() as u64) {
            return Err(Fault::Damage("another record lies in its place"));
        }
        let header = record::header_len(&record.head);
        let (mut hash, mut done) = (xxhash3_64::Hasher::new(), 0);
        let mut from = header;
        while done < into.len() {
            if done > 0 {
                from = 0;
                self.buffer.resize((into.len() - done).min(CHUNK_BYTES), 0);
                directory::read_up_to(&file, offset + (header + done) as u64, &mut self.buffer)?;
            }
            let step = (self.buffer.len() - from).min(into.len() - done);
            let bytes = &self.buffer[from..from + step];
            hash.write(bytes);
            into.write(done, bytes).map_err(io::Error::other)?;
            done += step;
        }
        if hash.finish() != record.payload_hash {
            return Err(Fault::Damage("its bytes are damaged or cut off"));
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
