//! Credentials of the process at the other end of a unix socket, as the kernel tells them. Owns no state. Any
//! thread.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

/// Largest number of groups of a process that are found.
const MAX_PEER_GROUPS: usize = 256;

/// Process at the other end of a unix socket: for a client the process that called `listen`, for a daemon the
/// process that connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Group id of the process.
    pub gid: u32,
    /// User id of the process. A user outside this user namespace has the kernel's overflow uid, 65534.
    pub uid: u32,
    /// Process id. `None` for a process outside this pid namespace.
    pub pid: Option<rustix::process::Pid>,
}

/// Finds the peer of a connected unix socket.
///
/// # Errors
/// If the descriptor is no connected unix socket.
pub fn peer_of(socket: impl AsFd) -> io::Result<Peer> {
    // rustix is not used, because its credentials cannot describe a process without an id here.
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which are `found`'s, and any bytes make a `ucred`.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    match failed {
        0 => Ok(Peer { uid: found.uid, gid: found.gid, pid: rustix::process::Pid::from_raw(found.pid) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the further groups that the peer of a connected unix socket had when it connected. Empty if the
/// kernel does not tell them.
pub fn groups_of(socket: impl AsFd) -> Vec<u32> {
    let mut groups: Vec<libc::gid_t> = vec![0; MAX_PEER_GROUPS];
    let mut len = size_of_val(groups.as_slice()) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which are those of `groups`, and says how many.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    groups.truncate(if failed == 0 { len as usize / size_of::<libc::gid_t>() } else { 0 });
    groups
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let this = Peer { uid, gid, pid: Some(rustix::process::getpid()) };
        assert_eq!(peer_of(&one).unwrap(), this);
        let mut groups: Vec<_> =
            rustix::process::getgroups().unwrap().iter().map(|group| group.as_raw()).collect();
        let mut told = groups_of(&one);
        groups.sort_unstable();
        told.sort_unstable();
        assert_eq!(told, groups);
        assert!(peer_of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
