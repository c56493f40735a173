//! Detection of forks: whether this process is a forked child of the one that made a value.
//!
//! Owns one page of memory, which the kernel empties in a forked child. Any thread. Looking at the page costs
//! a load, whereas asking for the process id costs a system call.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::param::page_size;

/// Page that is empty in a forked child. It is mapped as long as the process lives. `None` if the kernel does
/// not empty pages.
struct Page(Option<NonNull<c_void>>);

// SAFETY: the page is never unmapped, and is accessed by atomics alone.
unsafe impl Send for Page {}
// SAFETY: the page is never unmapped, and is accessed by atomics alone.
unsafe impl Sync for Page {}

static PAGE: OnceLock<Page> = OnceLock::new();

/// Process that made a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    /// Number in the page of that process. A forked child has another number there.
    mark: u32,
    id: u32,
}

impl Process {
    /// This process.
    pub(super) fn this() -> Self {
        let id = std::process::id();
        if let Some(word) = word() {
            // A child begins with an empty page and writes its own id.
            let _ = word.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed);
        }
        Self { mark: id, id }
    }

    /// Whether this is still the process that made the value.
    #[inline]
    pub(super) fn is_this(&self) -> bool {
        match word() {
            Some(word) => word.load(Ordering::Relaxed) == self.mark,
            None => std::process::id() == self.id,
        }
    }

    /// Id of the process.
    pub(super) fn id(&self) -> u32 {
        self.id
    }
}

#[inline]
fn word() -> Option<&'static AtomicU32> {
    let page = PAGE.get_or_init(|| Page(make())).0?;
    // SAFETY: the page is mapped for ever, aligned, and accessed by atomics alone.
    Some(unsafe { page.cast::<AtomicU32>().as_ref() })
}

fn make() -> Option<NonNull<c_void>> {
    let (len, access) = (page_size(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the page belongs to this function. After the call a forked child finds it empty.
    unsafe { madvise(page, len, Advice::LinuxWipeOnFork) }.ok()?;
    NonNull::new(page)
}
