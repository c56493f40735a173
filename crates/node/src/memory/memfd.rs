//! The file of a segment: an anonymous one that others may map, with seals that keep them from harming the
//! engine. Owns the descriptors. Engine thread only.
//!
//! Invariants: from birth the file cannot shrink or grow (a client that truncated it would end the engine
//! by SIGBUS), and has mode 0400, so that no other uid re-opens it through /proc with more rights than it
//! was given. After [`Memfd::give_to`] no seal can be added or removed any more.
//!
//! One attack is not prevented: a process with a writable descriptor can punch holes, since the only seals
//! against that forbid writing too. With base pages it merely loses its own bytes (holes read as zeros).
//! With huge pages the page goes back to the host's pool; if another process takes it and the pool is then
//! empty, the engine's next touch of the hole is a SIGBUS. So a user other than the daemon's own gets
//! writable descriptors of base pages only (`arena::segment`).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fchmod, fcntl_add_seals, ftruncate,
    memfd_create, open,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::system::PageKind;
use super::zone::{Domain, Writer, Zone};

/// A memfd, with a second, read-only descriptor once one is needed. Replies that wait to be sent share
/// these descriptors, and take none of their own.
#[derive(Debug)]
pub(super) struct Memfd {
    file: Arc<OwnedFd>,
    read_only: Option<Arc<OwnedFd>>,
    pages: PageKind,
}

impl Memfd {
    /// Makes a new file of `len` zero bytes.
    pub(super) fn new(len: u64, pages: PageKind) -> io::Result<Memfd> {
        let kind = match pages {
            PageKind::Huge => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            PageKind::Base => MemfdFlags::empty(),
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind;
        // The file is never executable, on kernels that support that (6.3).
        let file = match memfd_create("plasmon-segment", flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => memfd_create("plasmon-segment", flags),
            made => made,
        }?;
        ftruncate(&file, len)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        fchmod(&file, Mode::RUSR)?;
        Ok(Memfd { file: Arc::new(file), read_only: None, pages })
    }

    /// The kind of pages of which the file is made.
    pub(super) fn pages(&self) -> PageKind {
        self.pages
    }

    /// Seals the file for its zone, for good. The engine's own mapping must exist by now.
    pub(super) fn give_to(&self, zone: Zone) -> io::Result<()> {
        let seals = match (zone.domain, zone.writer) {
            // Nobody has a descriptor, and the engine maps parts of the file a second time.
            (Domain::Nobody, _) => SealFlags::SEAL,
            (_, Writer::Engine) => SealFlags::FUTURE_WRITE | SealFlags::SEAL,
            // The writer's clients hold a writable descriptor: they must not seal each other out.
            (_, Writer::Uid(_)) => SealFlags::SEAL,
        };
        fcntl_add_seals(&self.file, seals).map_err(io::Error::from)
    }

    /// A descriptor that cannot be mapped writable.
    pub(super) fn read_only(&mut self) -> io::Result<Arc<OwnedFd>> {
        let descriptor = match self.read_only.take() {
            Some(descriptor) => descriptor,
            None => {
                let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                Arc::new(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
            }
        };
        Ok(Arc::clone(self.read_only.insert(descriptor)))
    }

    /// The descriptor with which the file was made.
    pub(super) fn read_write(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Allocates the first `len` bytes of the file. A touch of a page that the kernel does not give would end
    /// the process; this call fails instead.
    pub(super) fn fill(&self, len: u64) -> io::Result<()> {
        fallocate(&self.file, FallocateFlags::empty(), 0, len).map_err(io::Error::from)
    }

    /// Frees the file's memory now, even while clients keep it mapped. The kernel refuses that for an
    /// engine-written file: there the memory becomes free when the last client unmaps it.
    pub(super) fn empty(&self, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, flags, 0, len).map_err(io::Error::from)
    }
}

/// Checks that the kernel gives this process a page of this kind. A page of the pool may be free and still
/// not be for this process, whose control groups may allow none.
pub(super) fn probe_page(pages: PageKind) -> io::Result<()> {
    let len = pages.granule();
    Memfd::new(len, pages)?.fill(len)
}

/// Checks that this kernel keeps others from mapping an engine-written file writable. (Some kernels before
/// 5.13 accept the seal on huge pages and ignore it.)
pub(super) fn probe_seal(len: u64, pages: PageKind) -> io::Result<()> {
    let file = Memfd::new(len, pages)?;
    file.give_to(Zone { domain: Domain::Shared, writer: Writer::Engine })?;
    let length = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    match unsafe { mmap(ptr::null_mut(), length, protection, flags, file.read_write(), 0) } {
        Err(Errno::PERM) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(mapped) => {
            // SAFETY: just mapped, and never used.
            unsafe { munmap(mapped, length) }?;
            Err(io::Error::other("a sealed file could be mapped writable"))
        }
    }
}
