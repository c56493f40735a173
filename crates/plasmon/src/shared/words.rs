//! Memory shared between processes, as atomic words. All `unsafe` of [`shared`](super) is here, except for
//! the payloads of rings.
//!
//! A [`Words`] owns a mapping, read-only or writable, that lives as long as the value. Any thread. Invariant:
//! all access to words is by atomics, so there is no data race in this process, whatever the other side does.
//! Under loom the words are loom's, in ordinary memory, so that the protocol code can be model-checked.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(super) use in_memory::Words;
#[cfg(not(loom))]
pub(super) use mapped::Words;

#[cfg(not(loom))]
mod mapped {
    use std::ffi::c_void;
    use std::io;
    use std::ops::Range;
    use std::os::fd::{AsFd, AsRawFd, OwnedFd};
    use std::ptr::{self, NonNull};
    use std::sync::atomic::{AtomicU32, AtomicU64};

    use rustix::fs::{
        MemfdFlags, Mode, OFlags, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
        memfd_create, open,
    };
    use rustix::io::Errno;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

    const HUGE_PAGE_BYTES: usize = 2 << 20;

    /// Mapping of shared words.
    pub(in crate::shared) struct Words {
        base: NonNull<c_void>,
        len: usize,
    }

    // SAFETY: the mapping is plain memory at a fixed place, accessed by atomics only, or by the raw
    // copies of rings, which bounds-check and race with nobody in this process.
    unsafe impl Send for Words {}
    // SAFETY: the mapping is plain memory at a fixed place, accessed by atomics and the copies of rings only.
    unsafe impl Sync for Words {}

    impl Words {
        /// Makes `len` bytes that only this process can map writable, and a descriptor for reading them.
        pub(in crate::shared) fn for_readers(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
            let file = memfd(name, len)?;
            let words = Self::mapped(&file, len, ProtFlags::READ | ProtFlags::WRITE)?;
            fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let read_only = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            Ok((words, read_only))
        }

        /// Makes `len` bytes that the holder of the descriptor may write as well.
        pub(in crate::shared) fn for_writers(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
            let file = memfd(name, len)?;
            fcntl_add_seals(&file, SealFlags::SEAL)?;
            let words = Self::mapped(&file, len, ProtFlags::READ | ProtFlags::WRITE)?;
            Ok((words, file))
        }

        /// Maps memory of another process, after checking that no access can fault.
        pub(in crate::shared) fn open(file: &OwnedFd, write: bool) -> io::Result<Self> {
            let len = fstat(file)?.st_size;
            let seals = fcntl_get_seals(file)?;
            let len = usize::try_from(len).ok().filter(|len| *len >= 4096 && len.is_power_of_two());
            let (Some(len), true) = (len, seals.contains(SealFlags::SHRINK)) else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "shared memory of a wrong shape"));
            };
            let access = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
            let words = Self::mapped(file, len, access)?;
            if write {
                // SAFETY: the range is this mapping's. A forked child that touched it would fault, rather
                // than write in its parent's name.
                unsafe { madvise(words.base.as_ptr(), len, Advice::LinuxDontFork) }?;
            }
            Ok(words)
        }

        fn mapped(file: impl AsFd, len: usize, access: ProtFlags) -> io::Result<Self> {
            if len < HUGE_PAGE_BYTES {
                // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
                let base = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) }?;
                let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
                return Ok(Self { base, len });
            }
            // The kernel maps huge pages only at aligned addresses.
            let (whole, flags) = (len + HUGE_PAGE_BYTES, MapFlags::PRIVATE | MapFlags::NORESERVE);
            // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
            let start = unsafe { mmap_anonymous(ptr::null_mut(), whole, ProtFlags::empty(), flags) }?;
            let before = start.cast::<u8>().align_offset(HUGE_PAGE_BYTES);
            // SAFETY: all three pieces lie in the range that was just reserved, where nothing is.
            unsafe {
                let base = start.cast::<u8>().add(before);
                let mapped = mmap(base.cast(), len, access, MapFlags::SHARED | MapFlags::FIXED, file, 0);
                let base = match mapped {
                    Ok(base) => NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?,
                    Err(error) => {
                        let _ = munmap(start, whole);
                        return Err(error.into());
                    }
                };
                if before > 0 {
                    munmap(start, before)?;
                }
                if before < HUGE_PAGE_BYTES {
                    munmap(base.as_ptr().cast::<u8>().add(len).cast(), HUGE_PAGE_BYTES - before)?;
                }
                Ok(Self { base, len })
            }
        }

        /// Asks for huge pages behind the pieces of 2 MiB that begin among these bytes, which are about to be
        /// used. Where the kernel provides none (before Linux 6.1, or if memory is fragmented), the first
        /// touch brings base pages.
        pub(in crate::shared) fn expect(&self, bytes: Range<usize>) {
            let pieces = (bytes.start.next_multiple_of(HUGE_PAGE_BYTES)..bytes.end).step_by(HUGE_PAGE_BYTES);
            for at in pieces.take_while(|at| at + HUGE_PAGE_BYTES <= self.len) {
                // SAFETY: inside the mapping; neither advice changes a visible byte. The kernel ignores a
                // piece without pages, so one page of it has to be present.
                unsafe {
                    let piece = self.base.as_ptr().cast::<u8>().add(at).cast::<c_void>();
                    if madvise(piece, 4096, Advice::LinuxPopulateWrite).is_ok() {
                        libc::madvise(piece, HUGE_PAGE_BYTES, libc::MADV_COLLAPSE);
                    }
                }
            }
        }

        /// Returns the size of the mapping in bytes.
        pub(in crate::shared) fn len(&self) -> usize {
            self.len
        }

        /// Returns the word at an index.
        ///
        /// # Panics
        /// If the index is beyond the end.
        #[inline]
        pub(in crate::shared) fn at(&self, index: usize) -> &AtomicU64 {
            assert!(index < self.len / 8, "word {index} of {}", self.len / 8);
            // SAFETY: inside the mapping, aligned, and valid as long as `self` lives. A read-only mapping is
            // only loaded from.
            unsafe { &*self.base.as_ptr().cast::<AtomicU64>().add(index) }
        }

        /// Returns the low half of a word, for a futex.
        #[inline]
        pub(in crate::shared) fn low_half(&self, index: usize) -> &AtomicU32 {
            const { assert!(cfg!(target_endian = "little")) };
            // SAFETY: the first half of a word that `at` has checked.
            unsafe { &*ptr::from_ref(self.at(index)).cast::<AtomicU32>() }
        }

        /// Copies bytes into the mapping. Returns `false` if the bytes would reach beyond the end.
        pub(in crate::shared) fn copy_in(&self, at: usize, bytes: &[u8]) -> bool {
            let inside = at.checked_add(bytes.len()).is_some_and(|end| end <= self.len);
            if inside {
                // SAFETY: inside the mapping, which is writable where this is called. The other side reads
                // only after it is told; if it reads earlier, only it is harmed by torn bytes.
                unsafe {
                    let to = self.base.as_ptr().cast::<u8>().add(at);
                    ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
                }
            }
            inside
        }

        /// Copies bytes out of the mapping. Returns `false` if the bytes would lie beyond the end.
        pub(in crate::shared) fn copy_out(&self, at: usize, into: &mut [u8]) -> bool {
            let inside = at.checked_add(into.len()).is_some_and(|end| end <= self.len);
            if inside {
                // SAFETY: inside the mapping. The other side may write meanwhile, but any bytes are valid
                // here, and the copy is checked afterwards.
                unsafe {
                    let from = self.base.as_ptr().cast::<u8>().add(at);
                    ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len());
                }
            }
            inside
        }
    }

    impl Drop for Words {
        fn drop(&mut self) {
            // SAFETY: `mapped` mapped this range with this length, and no borrow of it outlives it. The call
            // cannot fail for a whole mapping; if it does, the addresses stay reserved.
            let _ = unsafe { munmap(self.base.as_ptr(), self.len) };
        }
    }

    /// Makes a file in memory that can neither shrink nor grow, and that no other user can re-open through
    /// /proc.
    fn memfd(name: &str, len: usize) -> io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // The file is never executable, if the kernel supports that (6.3).
        let file = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => memfd_create(name, flags),
            made => made,
        }?;
        ftruncate(&file, len as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        fchmod(&file, Mode::RUSR)?;
        Ok(file)
    }
}

#[cfg(loom)]
mod in_memory {
    use std::collections::HashMap;

    use super::AtomicU64;

    /// Words in ordinary memory. Only the words that a model touches exist, because each costs the model
    /// time.
    pub(in crate::shared) struct Words(HashMap<usize, AtomicU64>);

    impl Words {
        pub(in crate::shared) fn in_memory(indices: impl IntoIterator<Item = usize>) -> Self {
            Self(indices.into_iter().map(|index| (index, AtomicU64::new(0))).collect())
        }

        pub(in crate::shared) fn at(&self, index: usize) -> &AtomicU64 {
            &self.0[&index]
        }

        pub(in crate::shared) fn expect(&self, _bytes: std::ops::Range<usize>) {}
    }
}
