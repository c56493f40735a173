//! Requests of the kernel, read from bytes.
//!
//! Owns no state. Any thread. Invariant: a call that was read has names without zeros and slashes, and as
//! much payload as the call says. The payload of a write is not read here, because it lies in the block where
//! the kernel put it.

use super::flags::opcode;
use super::structure::Reader;
use super::structures::*;

/// Name in a folder, as the kernel sends it.
pub(crate) type Name<'a> = &'a [u8];

/// Request of the kernel without its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call<'a> {
    Init(InitIn, u32),
    Lookup(Name<'a>),
    /// The kernel forgets inodes. The mount keeps nothing of inodes, and ignores this call.
    Forget,
    Getattr(GetattrIn),
    Setattr(SetattrIn),
    Readlink,
    Symlink(Name<'a>, &'a [u8]),
    Mknod(MknodIn, Name<'a>),
    Mkdir(MkdirIn, Name<'a>),
    Unlink(Name<'a>),
    Rmdir(Name<'a>),
    Rename(Rename2In, Name<'a>, Name<'a>),
    /// Number of the inode that gets one more name, and the name.
    Link(u64, Name<'a>),
    Open(OpenIn),
    Read(ReadIn),
    Write(WriteIn),
    Statfs,
    Release(ReleaseIn),
    Fsync(FsyncIn),
    Setxattr(SetxattrIn, &'a [u8], &'a [u8]),
    Getxattr(GetxattrIn, &'a [u8]),
    Listxattr(GetxattrIn),
    Removexattr(&'a [u8]),
    Flush(FlushIn),
    Opendir(OpenIn),
    Readdir(ReadIn),
    ReaddirPlus(ReadIn),
    Releasedir(ReleaseIn),
    Fsyncdir,
    Getlk(LkIn),
    Setlk(LkIn),
    SetlkWait(LkIn),
    Create(CreateIn, Name<'a>),
    /// Number of the request that is to end.
    Interrupt(u64),
    Destroy,
    Fallocate(FallocateIn),
    Lseek(LseekIn),
    CopyFileRange(CopyIn),
    Syncfs,
    Tmpfile(CreateIn),
    /// A request that the mount does not know.
    Unknown,
}

/// Request that is not what its number promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

impl<'a> Call<'a> {
    /// Reads the request with this number from the bytes behind the header, without the payload of a write.
    pub(crate) fn read(number: u32, body: &'a [u8]) -> Result<Self, Malformed> {
        let mut body = Reader::new(body);
        Self::take(number, &mut body).ok_or(Malformed)
    }

    fn take(number: u32, body: &mut Reader<'a>) -> Option<Self> {
        Some(match number {
            opcode::LOOKUP => Self::Lookup(name(body)?),
            opcode::FORGET | opcode::BATCH_FORGET => Self::Forget,
            opcode::GETATTR => Self::Getattr(body.take()?),
            opcode::SETATTR => Self::Setattr(body.take()?),
            opcode::READLINK => Self::Readlink,
            opcode::SYMLINK => Self::Symlink(name(body)?, body.text()?),
            opcode::MKNOD => Self::Mknod(body.take()?, name(body)?),
            opcode::MKDIR => Self::Mkdir(body.take()?, name(body)?),
            opcode::UNLINK => Self::Unlink(name(body)?),
            opcode::RMDIR => Self::Rmdir(name(body)?),
            opcode::RENAME => {
                let newdir = body.take()?;
                Self::Rename(Rename2In { newdir, ..Rename2In::default() }, name(body)?, name(body)?)
            }
            opcode::RENAME2 => Self::Rename(body.take()?, name(body)?, name(body)?),
            opcode::LINK => Self::Link(body.take()?, name(body)?),
            opcode::SETXATTR => {
                let set: SetxattrIn = body.take()?;
                Self::Setxattr(set, body.text()?, body.bytes(set.size as usize)?)
            }
            opcode::GETXATTR => Self::Getxattr(body.take()?, body.text()?),
            opcode::LISTXATTR => Self::Listxattr(body.take()?),
            opcode::REMOVEXATTR => Self::Removexattr(body.text()?),
            _ => return Self::take_of_file(number, body),
        })
    }

    /// Takes a request about a file or a folder as a whole, or about the mount.
    fn take_of_file(number: u32, body: &mut Reader<'a>) -> Option<Self> {
        Some(match number {
            opcode::OPEN => Self::Open(body.take()?),
            opcode::CREATE => Self::Create(body.take()?, name(body)?),
            opcode::TMPFILE => Self::Tmpfile(body.take()?),
            opcode::READ => Self::Read(body.take()?),
            opcode::WRITE => Self::Write(body.take()?),
            opcode::FLUSH => Self::Flush(body.take()?),
            opcode::RELEASE => Self::Release(body.take()?),
            opcode::FSYNC => Self::Fsync(body.take()?),
            opcode::FALLOCATE => Self::Fallocate(body.take()?),
            opcode::LSEEK => Self::Lseek(body.take()?),
            opcode::COPY_FILE_RANGE => Self::CopyFileRange(body.take()?),
            opcode::OPENDIR => Self::Opendir(body.take()?),
            opcode::READDIR => Self::Readdir(body.take()?),
            opcode::READDIRPLUS => Self::ReaddirPlus(body.take()?),
            opcode::RELEASEDIR => Self::Releasedir(body.take()?),
            opcode::FSYNCDIR => Self::Fsyncdir,
            opcode::GETLK => Self::Getlk(body.take()?),
            opcode::SETLK => Self::Setlk(body.take()?),
            opcode::SETLKW => Self::SetlkWait(body.take()?),
            opcode::INTERRUPT => Self::Interrupt(body.take()?),
            opcode::STATFS => Self::Statfs,
            opcode::SYNCFS => Self::Syncfs,
            opcode::DESTROY => Self::Destroy,
            // Kernels without the second word of flags do not send it.
            opcode::INIT => Self::Init(body.take()?, body.take().unwrap_or(0)),
            _ => Self::Unknown,
        })
    }
}

/// Takes a name. `None` for a name that no entry of a folder can have.
fn name<'a>(body: &mut Reader<'a>) -> Option<Name<'a>> {
    body.text().filter(|name| !name.is_empty() && !name.contains(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Structure;

    #[test]
    fn names_end_with_a_zero_and_have_no_slash() {
        assert_eq!(Call::read(opcode::LOOKUP, b"a\0"), Ok(Call::Lookup(b"a")));
        for bad in [&b"a"[..], b"", b"\0", b"a/b\0"] {
            assert_eq!(Call::read(opcode::LOOKUP, bad), Err(Malformed), "{bad:?}");
        }
    }

    #[test]
    fn an_attribute_has_as_many_bytes_as_it_says() {
        let mut body = SetxattrIn { size: 3, flags: 0 }.bytes();
        body.extend_from_slice(b"user.a\0xyz");
        let read = Call::read(opcode::SETXATTR, &body);
        assert_eq!(read, Ok(Call::Setxattr(SetxattrIn { size: 3, flags: 0 }, b"user.a", b"xyz")));
        body.pop();
        assert_eq!(Call::read(opcode::SETXATTR, &body), Err(Malformed));
    }

    #[test]
    fn a_renaming_has_two_names() {
        let mut body = 9_u64.bytes();
        body.extend_from_slice(b"old\0new\0");
        let rename = Rename2In { newdir: 9, ..Rename2In::default() };
        assert_eq!(Call::read(opcode::RENAME, &body), Ok(Call::Rename(rename, b"old", b"new")));
        assert_eq!(Call::read(opcode::RENAME, &body[..12]), Err(Malformed));
    }

    #[test]
    fn a_request_of_no_known_number_is_unknown() {
        assert_eq!(Call::read(4096, b"anything"), Ok(Call::Unknown));
    }
}
