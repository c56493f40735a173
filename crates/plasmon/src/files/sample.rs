//! Attributes for tests.

use crate::wire::files::{Attributes, FileKind, Place, Time};

/// Returns the attributes of a file with one name and no bytes, at a version.
pub(super) fn attributes(inode: u64, version: u64) -> Attributes {
    let time = Time::default();
    Attributes {
        inode,
        kind: FileKind::File,
        mode: 0o644,
        links: 1,
        uid: 0,
        gid: 0,
        device: 0,
        size: 0,
        used: 0,
        accessed: time,
        modified: time,
        changed: time,
        version,
        copies: 1,
        place: Place::Local,
    }
}
