//! Conversion between attributes as the kernel has them and as the home has them.
//!
//! Owns no state. Any thread. Invariant: attributes that the kernel does not set stay as they are.

use std::time::Duration;

use plasmon::files::{Attributes, Change, Entry, FileKind, SetAttributes, Time};

use crate::kernel::{Attr, AttrOut, EntryOut, SetattrIn, fattr};

/// Number of bytes that programs are advised to read or write at once (`st_blksize`).
const ADVISED_BYTES: u32 = 128 << 10;
/// Number of bytes of one block of `st_blocks`.
const COUNTED_BYTES: u64 = 512;

/// Returns attributes in the kernel's form.
pub(super) fn attr(attributes: &Attributes) -> Attr {
    let seconds = |time: Time| time.seconds as u64;
    Attr {
        ino: attributes.inode,
        size: attributes.size,
        blocks: attributes.used.div_ceil(COUNTED_BYTES),
        atime: seconds(attributes.accessed),
        mtime: seconds(attributes.modified),
        ctime: seconds(attributes.changed),
        atimensec: attributes.accessed.nanos,
        mtimensec: attributes.modified.nanos,
        ctimensec: attributes.changed.nanos,
        mode: attributes.kind.mode_bits() | attributes.mode & 0o7777,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.device,
        blksize: ADVISED_BYTES,
        flags: 0,
    }
}

/// Returns the answer that a name stands for an inode. The kernel may keep the answer for `kept`.
pub(super) fn entry_out(attributes: &Attributes, kept: Duration) -> EntryOut {
    EntryOut {
        nodeid: attributes.inode,
        // Inode numbers are never used again, so all have one generation.
        generation: 0,
        entry_valid: kept.as_secs(),
        attr_valid: kept.as_secs(),
        entry_valid_nsec: kept.subsec_nanos(),
        attr_valid_nsec: kept.subsec_nanos(),
        attr: attr(attributes),
    }
}

/// Returns the answer that a name stands for nothing. The kernel may keep the answer for `kept`.
pub(super) fn no_entry(kept: Duration) -> EntryOut {
    EntryOut { entry_valid: kept.as_secs(), entry_valid_nsec: kept.subsec_nanos(), ..EntryOut::default() }
}

/// Returns the answer with attributes of an inode. The kernel may keep them for `kept`.
pub(super) fn attr_out(entry: &Entry, kept: Duration) -> AttrOut {
    AttrOut {
        attr_valid: kept.as_secs(),
        attr_valid_nsec: kept.subsec_nanos(),
        spare: 0,
        attr: attr(&entry.attributes),
    }
}

/// Returns the `d_type` of an entry of a folder.
pub(super) fn dirent_kind(kind: FileKind) -> u32 {
    kind.mode_bits() >> 12
}

/// Returns the attributes that a SETATTR request sets.
pub(super) fn set_of(set: &SetattrIn) -> SetAttributes {
    let has = |flag: u32| set.valid & flag != 0;
    let change = |now, to, seconds: u64, nanos: u32| {
        if has(now) {
            Change::Now
        } else if has(to) {
            Change::To(Time { seconds: seconds as i64, nanos: nanos.min(999_999_999) })
        } else {
            Change::Keep
        }
    };
    SetAttributes {
        mode: has(fattr::MODE).then_some(set.mode & 0o7777),
        uid: has(fattr::UID).then_some(set.uid),
        gid: has(fattr::GID).then_some(set.gid),
        size: has(fattr::SIZE).then_some(set.size),
        accessed: change(fattr::ATIME_NOW, fattr::ATIME, set.atime, set.atimensec),
        modified: change(fattr::MTIME_NOW, fattr::MTIME, set.mtime, set.mtimensec),
        drops_privileges: has(fattr::KILL_SUIDGID),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_valid_is_set() {
        let set = SetattrIn { mode: 0o104_755, size: 9, mtime: u64::MAX, ..SetattrIn::default() };
        assert_eq!(set_of(&set), SetAttributes::default());
        let chosen = SetattrIn { valid: fattr::MODE | fattr::MTIME | fattr::ATIME_NOW | fattr::ATIME, ..set };
        let told = set_of(&chosen);
        assert_eq!((told.mode, told.size, told.accessed), (Some(0o4755), None, Change::Now));
        assert_eq!(told.modified, Change::To(Time { seconds: -1, nanos: 0 }));
    }

    #[test]
    fn kinds_are_those_of_folders() {
        assert_eq!(dirent_kind(FileKind::Folder), 4);
        assert_eq!(dirent_kind(FileKind::File), 8);
        assert_eq!(dirent_kind(FileKind::Symlink), 10);
    }
}
