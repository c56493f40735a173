//! Who is at the other end of a unix socket, by the kernel's word.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

/// The process at the other end: of a client's connection the one that called `listen`, of a daemon's the one
/// that connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its user. One that this user namespace does not have reads as the kernel's overflow uid, 65534.
    pub uid: u32,
    /// Its id; nothing for a process that this pid namespace does not have.
    pub pid: Option<rustix::process::Pid>,
}

/// The peer of a connected unix socket.
///
/// # Errors
/// When the descriptor is no such socket.
pub fn peer_of(socket: impl AsFd) -> io::Result<Peer> {
    // Not by rustix, whose credentials have no place for a process without an id here.
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
        0 => Ok(Peer { uid: found.uid, pid: rustix::process::Pid::from_raw(found.pid) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let this = Peer { uid: rustix::process::geteuid().as_raw(), pid: Some(rustix::process::getpid()) };
        assert_eq!(peer_of(&one).unwrap(), this);
        assert!(peer_of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
