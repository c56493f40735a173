//! The structures of requests and replies, as `linux/fuse.h` has them.
//!
//! Owns no state. Any thread. A field `spare` pads or is unused. Invariant: the lengths are those of the
//! kernel, which the tests compare.

use super::structure::{Reader, Structure, structures};

structures! {
    /// Head of every request.
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, extensions: u16,
        spare: u16,
    }
    /// Head of every reply and notification.
    OutHeader { len: u32, error: i32, unique: u64 }
    /// Attributes of an inode.
    Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    /// Answer to a lookup, and to whatever makes a name.
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    /// Answer with attributes.
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, spare: u32, attr: Attr }
    /// Offer of the kernel when it begins.
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    /// Answer of the mount to the offer.
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16,
        flags2: u32, spare0: u32, spare1: u64, spare2: u64, spare3: u64,
    }
    /// Question for attributes.
    GetattrIn { flags: u32, spare: u32, fh: u64 }
    /// Change of attributes.
    SetattrIn {
        valid: u32, spare0: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, spare1: u32, uid: u32, gid: u32,
        spare2: u32,
    }
    /// Making a fifo, socket, device or file.
    MknodIn { mode: u32, rdev: u32, umask: u32, spare: u32 }
    /// Making a folder.
    MkdirIn { mode: u32, umask: u32 }
    /// Renaming with flags.
    Rename2In { newdir: u64, flags: u32, spare: u32 }
    /// Opening.
    OpenIn { flags: u32, open_flags: u32 }
    /// Making a file and opening it.
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// Answer to opening.
    OpenOut { fh: u64, open_flags: u32, spare: u32 }
    /// The last close of a handle.
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// One close of a descriptor.
    FlushIn { fh: u64, unused: u32, spare: u32, lock_owner: u64 }
    /// Reading a file or a folder.
    ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, spare: u32 }
    /// Writing.
    WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, spare: u32 }
    /// Answer to writing and to copying.
    WriteOut { size: u32, spare: u32 }
    /// State of the file system.
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        spare0: u32, spare1: u64, spare2: u64, spare3: u64,
    }
    /// Synchronization.
    FsyncIn { fh: u64, flags: u32, spare: u32 }
    /// Setting an extended attribute, as kernels ask that were not told of the extended structure.
    SetxattrIn { size: u32, flags: u32 }
    /// Reading extended attributes, and the answer that tells a size alone.
    GetxattrIn { size: u32, spare: u32 }
    /// A lock.
    LkIn { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, spare: u32 }
    /// Range and kind of a lock.
    FileLock { start: u64, end: u64, kind: u32, pid: u32 }
    /// Space of a file.
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, spare: u32 }
    /// Looking for data or holes.
    LseekIn { fh: u64, offset: u64, whence: u32, spare: u32 }
    /// Copying between files.
    CopyIn { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 }
    /// Head of an entry of a folder, before its name.
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32 }
    /// Notification: the pages of an inode are old.
    InvalInode { ino: u64, off: i64, len: i64 }
    /// Notification: a name in a folder is old. The name and a zero follow.
    InvalEntry { parent: u64, namelen: u32, flags: u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_the_kernel() {
        let lengths = [
            (InHeader::LEN, 40),
            (OutHeader::LEN, 16),
            (Attr::LEN, 88),
            (EntryOut::LEN, 128),
            (AttrOut::LEN, 104),
            (InitOut::LEN, 64),
            (SetattrIn::LEN, 88),
            (ReadIn::LEN, 40),
            (WriteIn::LEN, 40),
            (StatfsOut::LEN, 80),
            (LkIn::LEN, 48),
            (CopyIn::LEN, 56),
            (Dirent::LEN, 24),
            (FallocateIn::LEN, 32),
            (InvalInode::LEN, 24),
            (InvalEntry::LEN, 16),
        ];
        for (place, (ours, kernels)) in lengths.into_iter().enumerate() {
            assert_eq!(ours, kernels, "structure {place} of the list");
        }
    }

    #[test]
    fn a_structure_that_is_cut_is_none() {
        let header = InHeader { len: 40, opcode: 3, unique: 7, nodeid: 1, ..InHeader::default() };
        let bytes = header.bytes();
        assert_eq!(Reader::new(&bytes).take(), Some(header));
        for len in 0..bytes.len() {
            assert_eq!(Reader::new(&bytes[..len]).take::<InHeader>(), None, "{len} bytes");
        }
    }
}
