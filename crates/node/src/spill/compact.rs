//! Compaction of spill files: files with few live bytes are emptied, because their small records
//! hold whole pages of disk.
//!
//! The state is that of `Disk`. Runs on the spill thread when it has nothing else to do. One file is
//! emptied at a time, and less than a quarter of a file, so less than 16 MiB, is moved. A daemon that
//! dies meanwhile leaves records twice, with the same sequence: either of the two will do.

use super::append::{Entry, Payload};
use super::directory::read_up_to;
use super::disk::Disk;
use super::record::{self, Place, Record};

/// A record in memory that is being moved.
struct Moving {
    from: Place,
    record: Record,
    bytes: Vec<u8>,
}

impl Moving {
    fn payload(&self) -> &[u8] {
        let start = record::header_len(&self.record.head);
        &self.bytes[start..start + self.record.head.payload_len().unwrap_or_default() as usize]
    }
}

impl Disk {
    /// Empties one file, if there is a sparse one; returns whether there was.
    pub(super) fn tidy(&mut self) -> bool {
        let Some(number) = self.sparse.pop_first() else { return false };
        let moving = self.load(number);
        let entries = moving.iter().map(|moving| Entry {
            head: &moving.record.head,
            sequence: moving.record.sequence,
            payload: Payload::Heap(moving.payload()),
        });
        match self.append(entries) {
            Ok(places) => {
                for (moving, to) in moving.iter().zip(places) {
                    self.relocate(moving.from, to);
                }
                self.erase_all(number, moving.iter().map(|moving| moving.from));
                // A file that could not be emptied is not tried again.
                self.sparse.remove(&number);
            }
            Err(error) => {
                let file = self.directory.file_path(number);
                tracing::warn!(%error, file = %file.display(), "cannot empty a sparse spill file");
            }
        }
        true
    }

    /// Reads the live records of a file. Damaged records stay where they are, so that a read of
    /// their object reports the damage.
    fn load(&self, number: u32) -> Vec<Moving> {
        let Some(contents) = self.files.get(&number) else { return Vec::new() };
        let Ok(file) = self.directory.open_file(number) else { return Vec::new() };
        let read = |(offset, len): (&u64, &u64)| {
            let mut bytes = vec![0; *len as usize];
            let filled = read_up_to(&file, *offset, &mut bytes).ok()?;
            let record = record::decode(&bytes[..filled], contents.salt, *offset).ok()?;
            let moving = Moving { from: Place::new(number, *offset), record, bytes };
            let intact =
                moving.record.live && moving.record.len == *len && moving.record.holds(moving.payload());
            intact.then_some(moving)
        };
        contents.live.iter().filter_map(read).collect()
    }
}
