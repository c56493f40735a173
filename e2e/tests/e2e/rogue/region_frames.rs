//! Frames about regions, for a member that sends whatever a test wants: written by hand, as
//! `docs/design/region.md` describes them.

use bytes::{Buf, BufMut};
use plasmon::ObjectId;

/// Opcodes of frames about regions.
pub(crate) mod opcode {
    pub(crate) const MAP: u8 = 100;
    pub(crate) const MAPPED: u8 = 101;
    pub(crate) const MAKE: u8 = 102;
    pub(crate) const LEAVE: u8 = 103;
    pub(crate) const ACCESS: u8 = 104;
    pub(crate) const ACCESSED: u8 = 105;
    pub(crate) const LOCATE: u8 = 106;
    pub(crate) const LOCATED: u8 = 107;
    pub(crate) const PULL: u8 = 108;
    pub(crate) const COPY: u8 = 109;
    pub(crate) const FREE: u8 = 110;
    pub(crate) const GOVERN: u8 = 111;
    pub(crate) const CHANGED: u8 = 112;
    pub(crate) const DESCRIBE: u8 = 113;
    pub(crate) const LIST: u8 = 115;
    pub(crate) const LISTED: u8 = 116;
    pub(crate) const GONE: u8 = 117;
    pub(crate) const MADE: u8 = 118;
    pub(crate) const GOVERNED: u8 = 119;
    pub(crate) const SNAPSHOT: u8 = 120;
    pub(crate) const MOVE: u8 = 121;
    pub(crate) const HALT: u8 = 122;
    pub(crate) const TAKE: u8 = 123;
    pub(crate) const ADOPT: u8 = 124;
    pub(crate) const DEPARTED: u8 = 125;
}

/// Place of a region at its home, and the region's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Desk {
    pub(crate) number: u32,
    pub(crate) life: u64,
}

/// Operation on bytes, as the body of an *access* has it.
pub(crate) mod operation {
    use super::*;

    fn of(number: u8, arguments: &[u64]) -> Vec<u8> {
        let mut out = vec![number];
        arguments.iter().for_each(|argument| out.put_u64_le(*argument));
        out
    }

    pub(crate) fn read(offset: u64, len: u64) -> Vec<u8> {
        of(0, &[offset, len])
    }

    pub(crate) fn write(offset: u64) -> Vec<u8> {
        of(1, &[offset])
    }

    pub(crate) fn add(offset: u64, value: u64) -> Vec<u8> {
        of(2, &[offset, value])
    }

    pub(crate) fn swap(offset: u64, value: u64) -> Vec<u8> {
        of(3, &[offset, value])
    }

    pub(crate) fn fill(offset: u64, len: u64, byte: u8) -> Vec<u8> {
        [of(6, &[offset, len]), vec![byte]].concat()
    }

    pub(crate) fn wait(offset: u64, expected: u64) -> Vec<u8> {
        of(7, &[offset, expected])
    }

    pub(crate) fn notify(offset: u64) -> Vec<u8> {
        of(8, &[offset])
    }
}

/// Segment, version, offset and length of bytes in the memory of a node.
pub(crate) type Piece = (u32, u32, u64, u64);

/// Region that goes to another home.
#[derive(Debug, Clone)]
pub(crate) struct Moved<'a> {
    pub(crate) name: &'a str,
    pub(crate) len: u64,
    pub(crate) owner: u32,
    /// Rights of everybody: to read, to write, to govern.
    pub(crate) public: [u8; 3],
    /// Number of users to whom rights were granted.
    pub(crate) granted: u32,
}

/// Bodies of frames with given contents.
pub(crate) mod body {
    use super::*;

    /// Fence of a write that shows no guard.
    const NO_FENCE: [u8; 1] = [0];

    pub(crate) fn desk(desk: Desk) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32_le(desk.number);
        out.put_u64_le(desk.life);
        out
    }

    /// Desk, and further fields.
    pub(crate) fn about(desk: Desk, fields: &[&[u8]]) -> Vec<u8> {
        [self::desk(desk), fields.concat()].concat()
    }

    pub(crate) fn map(id: ObjectId, rights: [u8; 3]) -> Vec<u8> {
        [&id.as_bytes()[..], &[0], &rights].concat()
    }

    pub(crate) fn mapped(desk: Desk, len: u64, owner: u32) -> Vec<u8> {
        let changes = 0u16;
        about(desk, &[&len.to_le_bytes(), &owner.to_le_bytes(), &changes.to_le_bytes()])
    }

    pub(crate) fn made(desk: Desk, len: u64, owner: u32) -> Vec<u8> {
        [mapped(desk, len, owner), vec![1]].concat()
    }

    pub(crate) fn leave(desk: Desk, count: u32) -> Vec<u8> {
        about(desk, &[&count.to_le_bytes()])
    }

    pub(crate) fn access(desk: Desk, operation: &[u8], data: &[u8]) -> Vec<u8> {
        about(desk, &[operation, &text(data), &NO_FENCE])
    }

    pub(crate) fn accessed(value: u64, data: &[u8]) -> Vec<u8> {
        [&value.to_le_bytes()[..], &text(data)].concat()
    }

    pub(crate) fn pieces(pieces: &[Piece]) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32_le(pieces.len() as u32);
        for (segment, version, offset, len) in pieces {
            out.put_u32_le(*segment);
            out.put_u32_le(*version);
            out.put_u64_le(*offset);
            out.put_u64_le(*len);
        }
        out
    }

    pub(crate) fn pull(desk: Desk, offset: u64, from: &[Piece]) -> Vec<u8> {
        about(desk, &[&offset.to_le_bytes(), &pieces(from), &NO_FENCE])
    }

    pub(crate) fn copy(desk: Desk, [offset, len]: [u64; 2], source: ObjectId, life: u64) -> Vec<u8> {
        let (mut out, owner) = (about(desk, &[&offset.to_le_bytes(), &len.to_le_bytes()]), 0u32);
        out.put_slice(source.as_bytes());
        out.put_u64_le(life);
        out.put_u32_le(owner);
        out.put_u64_le(0);
        out
    }

    pub(crate) fn govern(desk: Desk, user: u32, rights: [u8; 3]) -> Vec<u8> {
        about(desk, &[&[1], &user.to_le_bytes(), &rights])
    }

    /// Says that rights of everybody were revoked.
    pub(crate) fn governed(desk: Desk) -> Vec<u8> {
        let (number, masters) = (1u16, 0u32);
        about(desk, &[&number.to_le_bytes(), &[0], &[0], &[0; 3], &masters.to_le_bytes()])
    }

    /// Says that a region lives on another node.
    pub(crate) fn departed(desk: Desk, to: &[u8; 16]) -> Vec<u8> {
        about(desk, &[to])
    }

    pub(crate) fn relocate(desk: Desk, to: &[u8; 16]) -> Vec<u8> {
        about(desk, &[to, &1_000_000u64.to_le_bytes()])
    }

    pub(crate) fn take(id: ObjectId, life: u64, moved: &Moved<'_>, from: &[Piece]) -> Vec<u8> {
        let mut out = adopt(id, life);
        out.put_slice(&text(moved.name.as_bytes()));
        out.put_u64_le(moved.len);
        out.put_u32_le(moved.owner);
        out.put_slice(&moved.public);
        out.put_u8(1);
        out.put_u32_le(moved.granted);
        for user in 0..moved.granted {
            out.put_u32_le(100_000 + user);
            out.put_slice(&[1, 0, 0]);
        }
        // Number of changes of the rights.
        out.put_u16_le(0);
        // Number of locks whose guards were shown.
        out.put_u32_le(0);
        out.put_slice(&pieces(from));
        out
    }

    pub(crate) fn adopt(id: ObjectId, life: u64) -> Vec<u8> {
        [&id.as_bytes()[..], &life.to_le_bytes()].concat()
    }

    fn text(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat()
    }
}

/// Desk in the body of a *mapped*, or of a frame that a home gets.
pub(crate) fn desk_of(mut body: &[u8]) -> Desk {
    Desk { number: body.get_u32_le(), life: body.get_u64_le() }
}
