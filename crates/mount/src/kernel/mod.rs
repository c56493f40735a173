//! The kernel's protocol: structures, numbers and flags of FUSE, and the requests that they make up.
//!
//! Owns no state. Any thread. The structures are those of `linux/fuse.h`, version 7. Whatever the kernel
//! sends is read with checked bounds, so that no byte stops the mount. Invariant: a structure that is read
//! has all of its bytes.

mod call;
mod flags;
mod structure;
mod structures;

pub(crate) use call::{Call, Name};
pub(crate) use flags::{fattr, fopen, init, locks, notify, opcode, reads, renames, writes};
pub(crate) use structure::{Reader, Structure};
pub(crate) use structures::*;

/// Major version of the protocol that the mount speaks.
pub(crate) const MAJOR: u32 = 7;
/// Largest minor version that the mount knows.
pub(crate) const MINOR: u32 = 41;
/// Oldest minor version that the mount speaks. Linux 4.20 has this version, with requests of 1 MiB.
pub(crate) const OLDEST_MINOR: u32 = 28;
/// Size in bytes of the part of a request before the payload of a write: both headers.
pub(crate) const WRITE_HEAD: usize = InHeader::LEN + WriteIn::LEN;

/// Returns requests of many kinds with their headers, as seeds for the fuzzer.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let names = b"one\0two\0".to_vec();
    let with = |number: u32, structure: Vec<u8>| {
        let body = [structure, names.clone()].concat();
        let len = (InHeader::LEN + body.len()) as u32;
        let header = InHeader { len, opcode: number, unique: 1, nodeid: 1, ..InHeader::default() };
        [header.bytes(), body].concat()
    };
    vec![
        with(opcode::LOOKUP, Vec::new()),
        with(opcode::SYMLINK, Vec::new()),
        with(opcode::RENAME2, Rename2In::default().bytes()),
        with(opcode::MKNOD, MknodIn::default().bytes()),
        with(opcode::SETXATTR, SetxattrIn { size: 4, flags: 0 }.bytes()),
        with(opcode::SETATTR, SetattrIn::default().bytes()),
        with(opcode::WRITE, WriteIn { size: 8, ..WriteIn::default() }.bytes()),
        with(opcode::SETLKW, LkIn::default().bytes()),
        with(opcode::COPY_FILE_RANGE, CopyIn::default().bytes()),
        with(opcode::INIT, InitIn { major: MAJOR, minor: MINOR, ..InitIn::default() }.bytes()),
    ]
}
