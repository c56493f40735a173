//! Agreement of kernel and mount before the first request.
//!
//! Owns no state. Any thread. Invariant: the mount takes nothing that the kernel did not offer.

use rustix::io::Errno;

use crate::kernel::{InitIn, InitOut, MAJOR, MINOR, OLDEST_MINOR, init};
use crate::reply::Reply;

/// Number of bytes of a block, which is the largest number of bytes of a write.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;
/// Abilities that the mount takes if the kernel offers them. Without DIRECT_IO_ALLOW_MMAP the kernel refuses
/// to map a file that was opened past the page cache so that stores are seen by others, which keeps two hosts
/// from mapping one file.
const WANTED: u64 = init::ASYNC_READ
    | init::POSIX_LOCKS
    | init::FLOCK_LOCKS
    | init::ATOMIC_O_TRUNC
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::AUTO_INVAL_DATA
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::HANDLE_KILLPRIV_V2
    | init::INIT_EXT
    | init::HAS_EXPIRE_ONLY;
/// Largest read-ahead in bytes.
const MAX_READAHEAD_BYTES: u32 = 4 << 20;
/// Largest number of requests for read-ahead and direct access that the kernel sends in the background.
const MAX_BACKGROUND: u16 = 64;
/// Size in bytes of the pages in which the kernel counts the size of requests.
const PAGE_BYTES: usize = 4 << 10;

/// Abilities on which kernel and mount have agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// Minor version of the protocol.
    pub(crate) minor: u32,
    /// Flags of [`init`] that are in effect.
    pub(crate) flags: u64,
}

/// Answers the first request of the kernel. `further` has the second word of flags, which newer kernels send.
/// Returns the abilities that were agreed on. `None` if the kernel will send another first request, or is too
/// old.
pub(crate) fn answer(offer: InitIn, further: u32, reply: Reply) -> Option<Agreed> {
    if offer.major > MAJOR {
        // The kernel asks again with the version in this answer.
        reply.structure(&InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() });
        return None;
    }
    if offer.major < MAJOR || offer.minor < OLDEST_MINOR {
        tracing::error!(
            major = offer.major,
            minor = offer.minor,
            "the kernel's FUSE is too old: Linux 4.20 is needed"
        );
        reply.error(Errno::PROTO);
        return None;
    }
    let agreed = agree(offer, further);
    reply.structure(&told(offer, agreed));
    Some(agreed)
}

fn agree(offer: InitIn, further: u32) -> Agreed {
    let low = u64::from(offer.flags);
    let offered = if low & init::INIT_EXT == 0 { low } else { low | u64::from(further) << 32 };
    Agreed { minor: offer.minor.min(MINOR), flags: offered & WANTED }
}

fn told(offer: InitIn, agreed: Agreed) -> InitOut {
    InitOut {
        major: MAJOR,
        minor: MINOR,
        max_readahead: offer.max_readahead.min(MAX_READAHEAD_BYTES),
        flags: agreed.flags as u32,
        flags2: (agreed.flags >> 32) as u32,
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND / 4 * 3,
        max_write: BLOCK_BYTES as u32,
        time_gran: 1,
        max_pages: (BLOCK_BYTES / PAGE_BYTES) as u16,
        ..InitOut::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(flags: u64) -> InitIn {
        InitIn { major: MAJOR, minor: 45, max_readahead: 128 << 10, flags: flags as u32 }
    }

    #[test]
    fn nothing_is_taken_that_was_not_offered() {
        let agreed = agree(offer(init::ASYNC_READ | 1 << 16), 0);
        assert_eq!(agreed.flags, init::ASYNC_READ, "write-back is not wanted");
        assert_eq!(agreed.minor, MINOR);
    }

    #[test]
    fn further_flags_count_only_if_the_kernel_says_that_it_has_them() {
        let expires = (init::HAS_EXPIRE_ONLY >> 32) as u32;
        assert_eq!(agree(offer(init::ASYNC_READ), expires).flags, init::ASYNC_READ);
        let agreed = agree(offer(init::INIT_EXT), expires);
        assert_eq!(agreed.flags, init::INIT_EXT | init::HAS_EXPIRE_ONLY);
        assert_eq!(told(offer(init::INIT_EXT), agreed).flags2, expires);
    }

    #[test]
    fn requests_are_of_one_block() {
        let told = told(offer(0), agree(offer(0), 0));
        assert_eq!((told.max_write, told.max_pages), (1 << 20, 256));
        assert_eq!(told.max_readahead, 128 << 10);
    }
}
