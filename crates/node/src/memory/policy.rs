//! Memory policy: asking the kernel for pages of one NUMA node, and finding out where pages are.
//!
//! Owns no state: the module makes system calls on addresses of the arena. Any thread. A page of the arena is
//! *preferred* on the node: if the node is full, the page comes from another one, which is slower but kills
//! no process. While the pre-fault thread makes pages it *insists* instead, as long as the node has room to
//! spare, so that the kernel drops cached files there rather than take pages of another node. The policy of a
//! segment is that of its file: pages that a client touches first follow it too. (Pages of the pool of huge
//! pages follow the thread that touches them.)

use std::ffi::c_void;
use std::io;
use std::ptr;

use super::mapping::Reservation;
use super::system::HUGE_PAGE_BYTES;

/// Number of words of a mask of memory nodes.
const MASK_WORDS: usize = 16;
/// Number of memory nodes that a mask can name.
const MAX_NODES: u32 = MASK_WORDS as u32 * libc::c_ulong::BITS;
/// Number of bits of a mask, as the kernel counts them: it takes one bit less than it is told.
const MASK_BITS: libc::c_ulong = MAX_NODES as libc::c_ulong + 1;

/// How the kernel chooses the memory node of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Insistence {
    /// The page comes from another node if the node has none.
    Preferred,
    /// The page comes from the node or not at all.
    Bound,
}

impl Insistence {
    fn mode(self) -> libc::c_int {
        match self {
            Self::Preferred => libc::MPOL_PREFERRED,
            Self::Bound => libc::MPOL_BIND,
        }
    }
}

/// Prefers a node for the memory that this thread, and threads that it starts from now on, touch first.
///
/// # Errors
/// When this process may not use the node, or set the policy of its memory.
pub(crate) fn prefer_node(node: u32) -> io::Result<()> {
    let mask = mask(node)?;
    // SAFETY: the mask has as many bits as said; the call reads it, and no memory moves.
    let code =
        unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED, mask.as_ptr(), MASK_BITS) };
    outcome(code)
}

impl Reservation {
    /// Has the pages of a part of the range that are yet to come made on the arena's node.
    pub(super) fn keep_near(
        &self,
        at: usize,
        len: usize,
        node: u32,
        insistence: Insistence,
    ) -> io::Result<()> {
        let (address, mask) = (self.address(at, len)?.as_ptr().cast::<c_void>(), mask(node)?);
        // SAFETY: the range is ours; a policy for pages to come changes no byte, and the mask is as above.
        let code = unsafe {
            libc::syscall(libc::SYS_mbind, address, len, insistence.mode(), mask.as_ptr(), MASK_BITS, 0)
        };
        outcome(code)
    }

    /// Number of bytes of a part of the range that are on other nodes than this one, judged by one page in
    /// every [`HUGE_PAGE_BYTES`].
    pub(super) fn elsewhere(&self, at: usize, len: usize, node: u32) -> io::Result<u64> {
        self.address(at, len)?;
        let step = HUGE_PAGE_BYTES as usize;
        let (mut pages, parts) = (0..len)
            .step_by(step)
            .map(|part| Ok((self.address(at + part, 1)?.as_ptr().cast::<c_void>(), step.min(len - part))))
            .collect::<io::Result<(Vec<_>, Vec<_>)>>()?;
        let mut nodes: Vec<libc::c_int> = vec![-1; pages.len()];
        // SAFETY: both lists have as many entries as said. Without a list of nodes to move to, the call only
        // tells where each page is.
        let code = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                pages.len(),
                pages.as_mut_ptr(),
                ptr::null::<libc::c_int>(),
                nodes.as_mut_ptr(),
                0,
            )
        };
        outcome(code)?;
        // A page that does not exist, or cannot be asked about, has a negative number.
        let far = |found: &libc::c_int| u32::try_from(*found).is_ok_and(|found| found != node);
        Ok(nodes.iter().zip(parts).filter(|(found, _)| far(found)).map(|(_, part)| part as u64).sum())
    }
}

fn mask(node: u32) -> io::Result<[libc::c_ulong; MASK_WORDS]> {
    let mut mask = [0; MASK_WORDS];
    let word = mask.get_mut((node / libc::c_ulong::BITS) as usize).ok_or(io::ErrorKind::InvalidInput)?;
    *word |= 1 << (node % libc::c_ulong::BITS);
    Ok(mask)
}

fn outcome(code: libc::c_long) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_name_one_node() {
        let bits = |node| mask(node).unwrap().iter().map(|word| word.count_ones()).sum::<u32>();
        for node in [0, 1, 63, 64, 1023] {
            assert_eq!(bits(node), 1, "{node}");
        }
        assert_eq!(mask(65).unwrap()[1], 2);
        assert!(mask(1024).is_err());
    }
}
