//! A client's own memory, mapped here: a file without a name, sealed against shrinking.
//!
//! Owns the mapping, of which each [`IoRange`] has a share. Engine thread, but an [`IoRange`] may be used on
//! any. Invariants: the file keeps its size, and has pages of the base size, which nobody can remove from a
//! mapping so that it faults. So every access inside it is as safe as an access to a segment. Clients write
//! the file at any time: bytes are copied by raw pointer, and no reference to them is formed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};

use super::error::OutOfBounds;
use super::io::IoRange;
use super::mapping::Reservation;
use super::system::HUGE_PAGE_BYTES;

/// A client's own memory.
pub(crate) struct ForeignMemory {
    range: Arc<Reservation>,
    len: usize,
}

/// Why a client's memory is not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForeignError {
    #[error("{0} bytes are not a valid size to register")]
    Size(u64),
    #[error("the file has {found} bytes instead of {told}")]
    OtherSize { found: u64, told: u64 },
    #[error(
        "the file can shrink, which would end a process that reads it: seal it with F_SEAL_SHRINK \
         (memfd_create with MFD_ALLOW_SEALING)"
    )]
    CanShrink,
    #[error(
        "the file has pages of {0} bytes, which its owner can take away: use one with pages of the base size"
    )]
    HugePages(u64),
    #[error("{0}")]
    System(#[from] io::Error),
}

impl ForeignMemory {
    /// Maps a client's file of `len` bytes.
    pub(crate) fn map(file: &OwnedFd, len: u64) -> Result<Self, ForeignError> {
        let stat = fstat(file).map_err(io::Error::from)?;
        if stat.st_size as u64 != len {
            return Err(ForeignError::OtherSize { found: stat.st_size as u64, told: len });
        }
        // Only files in memory have seals.
        let seals = fcntl_get_seals(file).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK) {
            return Err(ForeignError::CanShrink);
        }
        let page = u64::try_from(stat.st_blksize).unwrap_or(0);
        if page >= HUGE_PAGE_BYTES {
            return Err(ForeignError::HugePages(page));
        }
        let size = usize::try_from(len).ok().filter(|len| *len > 0).ok_or(ForeignError::Size(len))?;
        let range = Arc::new(Reservation::new(size, None)?);
        range.map(0, size, file.as_fd())?;
        Ok(Self { range, len: size })
    }

    /// Copies `bytes` into the memory, `at` bytes from its start. Writes nothing if they do not fit.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.io_range(at, bytes.len() as u64)?.write(0, bytes)
    }

    /// A handle for another thread on `len` bytes that lie `at` bytes from the start of the memory. They
    /// stay mapped for as long as the handle lives.
    pub(crate) fn io_range(&self, at: u64, len: u64) -> Result<IoRange, OutOfBounds> {
        match at.checked_add(len) {
            // The memory is mapped, so a range within it has an address.
            Some(end) if end <= self.len as u64 => Ok(IoRange::new(&self.range, at as usize, len as usize)),
            _ => Err(OutOfBounds { at, len, extent: self.len as u64 }),
        }
    }
}

// SAFETY: the values are fixed; the file is mapped, and cannot shrink, as long as the value lives; and nobody
// forms a reference into it.
unsafe impl plasmon_fabric::Memory for ForeignMemory {
    fn base(&self) -> NonNull<u8> {
        self.range.base()
    }

    fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    fn file(len: u64, seals: SealFlags) -> OwnedFd {
        let file = memfd_create("foreign", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        ftruncate(&file, len).expect("truncate");
        fcntl_add_seals(&file, seals).expect("seal");
        file
    }

    #[test]
    fn only_what_cannot_shrink_and_has_its_size_is_taken() {
        let sealed = file(5000, SealFlags::SHRINK);
        let memory = ForeignMemory::map(&sealed, 5000).expect("map");
        memory.write(4990, &[7; 10]).expect("inside");
        memory.write(4991, &[8; 10]).expect_err("outside");
        memory.write(u64::MAX, &[8; 10]).expect_err("far outside");
        let range = memory.io_range(4988, 12).expect("inside");
        let mut bytes = [0; 4];
        range.read(0, &mut bytes).expect("inside");
        assert_eq!(bytes, [0, 0, 7, 7]);
        range.read(10, &mut bytes).expect_err("outside");
        memory.io_range(4988, 13).expect_err("outside");
        let mut end = [0; 12];
        assert_eq!(rustix::io::pread(&sealed, &mut end, 4990).expect("read"), 10);
        assert_eq!(end[..10], [7; 10]);

        assert!(matches!(ForeignMemory::map(&sealed, 4096), Err(ForeignError::OtherSize { .. })));
        assert!(matches!(
            ForeignMemory::map(&file(4096, SealFlags::empty()), 4096),
            Err(ForeignError::CanShrink)
        ));
        assert!(matches!(ForeignMemory::map(&file(0, SealFlags::SHRINK), 0), Err(ForeignError::Size(0))));
        let pipe = rustix::pipe::pipe().expect("pipe").0;
        assert!(ForeignMemory::map(&pipe, 4096).is_err());
    }
}
