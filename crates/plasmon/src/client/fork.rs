//! Whether this process is a fork of the one that made something.
//!
//! A page of memory that the kernel empties in a forked child: asking it costs a load, where asking for
//! the process's id costs a system call.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::param::page_size;

/// The page, for the life of the process; nothing where the kernel does not empty it.
struct Page(Option<NonNull<c_void>>);

// SAFETY: the page is never unmapped, and accessed by atomics alone.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

static PAGE: OnceLock<Page> = OnceLock::new();

/// The process that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    /// Written in the page by this process and its like, but not by its children.
    mark: u32,
    id: u32,
}

impl Process {
    /// This one.
    pub(super) fn this() -> Self {
        let id = std::process::id();
        if let Some(word) = word() {
            // A child begins with an empty page, and writes its own id.
            let _ = word.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed);
        }
        Self { mark: id, id }
    }

    /// Whether it is still this one.
    #[inline]
    pub(super) fn is_this(&self) -> bool {
        match word() {
            Some(word) => word.load(Ordering::Relaxed) == self.mark,
            None => std::process::id() == self.id,
        }
    }

    /// Its id.
    pub(super) fn id(&self) -> u32 {
        self.id
    }
}

#[inline]
fn word() -> Option<&'static AtomicU32> {
    let page = PAGE.get_or_init(|| Page(make())).0?;
    // SAFETY: mapped for ever, aligned, and accessed by atomics alone.
    Some(unsafe { page.cast::<AtomicU32>().as_ref() })
}

fn make() -> Option<NonNull<c_void>> {
    let (len, access) = (page_size(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the page is this function's; from now on a fork finds it empty.
    unsafe { madvise(page, len, Advice::LinuxWipeOnFork) }.ok()?;
    NonNull::new(page)
}
