//! Finding the records in a file that a former daemon left. Owns no state. Runs on the thread that
//! opens the store.
//!
//! Only headers are read, so that opening does not take as long as reading everything. A payload is
//! checked when it is asked for. Between headers, zeros are skipped (holes without reading them), and the
//! scan searches any other bytes for the next header.

use std::fs::File;
use std::io;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::directory::read_up_to;
use super::record::{
    self, FILE_HEADER_BYTES, FILE_HEADERS_AT, FIRST_RECORD_AT, MAX_HEADER_BYTES, Record, UNIT_BYTES,
};
use super::{CHUNK_BYTES, MAX_FILE_BYTES};

/// The result of a scan.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) salt: u64,
    /// Length of the file in bytes.
    pub(super) end: u64,
    /// The live records that lie within the file, with their offsets.
    pub(super) live: Vec<(u64, Record)>,
    /// The live record that is cut off by the end of the file, if there is one. No other record
    /// lies behind it.
    pub(super) cut_off: Option<(u64, Record)>,
    /// Number of stretches that are neither records nor zeros: damage, or writes that were never finished.
    /// The objects to which they belonged are unknown.
    pub(super) damaged: u64,
}

/// Why a file was not scanned.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScanError {
    #[error("it is not a spill file that this version can read")]
    Foreign,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Finds the records of a file.
pub(super) fn scan(file: &File) -> Result<Scan, ScanError> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(ScanError::Foreign);
    }
    let end = metadata.len();
    let mut found = Scan { salt: salt(file)?, end, live: Vec::new(), cut_off: None, damaged: 0 };
    let mut window = Window { file, end, start: 0, bytes: Vec::new() };
    let mut at = FIRST_RECORD_AT;
    // Whether `at` lies in a damaged stretch that is counted already.
    let mut lost = false;
    // No record starts further behind. A longer file has a single object, which begins before that.
    while at < end.min(MAX_FILE_BYTES) {
        let bytes = window.at(at)?;
        match record::decode(bytes, found.salt, at) {
            Ok(record) if record.len > end - at => {
                // Nothing can follow a record that is cut off.
                found.cut_off = record.live.then_some((at, record));
                break;
            }
            Ok(record) => {
                let start = at;
                at += record.len;
                lost = false;
                if record.live {
                    found.live.push((start, record));
                }
            }
            Err(_) => {
                match bytes.chunks(UNIT_BYTES as usize).position(|unit| unit.iter().any(|byte| *byte != 0)) {
                    Some(0) => {
                        found.damaged += u64::from(!lost);
                        lost = true;
                        at += UNIT_BYTES;
                    }
                    Some(zeros) => at += zeros as u64 * UNIT_BYTES,
                    None => {
                        let zeros = bytes.len() as u64;
                        at = window.next_data(at + zeros).next_multiple_of(UNIT_BYTES);
                    }
                }
            }
        }
    }
    Ok(found)
}

/// Reads the salt of a file from a header that is intact.
fn salt(file: &File) -> Result<u64, ScanError> {
    for at in FILE_HEADERS_AT {
        let mut header = [0; FILE_HEADER_BYTES];
        if read_up_to(file, at, &mut header)? == FILE_HEADER_BYTES
            && let Ok(salt) = record::decode_file(&header)
        {
            return Ok(salt);
        }
    }
    Err(ScanError::Foreign)
}

/// A piece of a file in memory. The piece moves along with the scan.
struct Window<'a> {
    file: &'a File,
    end: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// Returns the bytes from `at` on, which is before the end of the file. They are enough for any
    /// header, unless the file ends.
    fn at(&mut self, at: u64) -> io::Result<&[u8]> {
        let wanted = (self.end - at).min(MAX_HEADER_BYTES as u64);
        if at < self.start || at + wanted > self.start + self.bytes.len() as u64 {
            self.bytes.resize((self.end - at).min(CHUNK_BYTES as u64) as usize, 0);
            let filled = read_up_to(self.file, at, &mut self.bytes)?;
            if filled < self.bytes.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.start = at;
        }
        Ok(&self.bytes[(at - self.start) as usize..])
    }

    /// Returns the position of the next byte from `at` on that is not in a hole, as far as the
    /// filesystem tells.
    fn next_data(&self, at: u64) -> u64 {
        match rustix::fs::seek(self.file, SeekFrom::Data(at)) {
            Ok(data) => data.max(at),
            Err(Errno::NXIO) => self.end.max(at),
            Err(_) => at,
        }
    }
}
