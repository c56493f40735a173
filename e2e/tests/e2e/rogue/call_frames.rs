//! Frames about services, for a member that sends whatever a test wants: written by hand, as
//! `docs/design/call.md` describes them.

use bytes::{Buf, BufMut};
use plasmon::ObjectId;

use super::region_frames::{Piece, body::pieces};

/// Opcodes of frames about services.
pub(crate) mod opcode {
    pub(crate) const JOIN: u8 = 130;
    pub(crate) const JOINED: u8 = 131;
    pub(crate) const PART: u8 = 132;
    pub(crate) const SEEK: u8 = 133;
    pub(crate) const CALL: u8 = 135;
    pub(crate) const RETURNED: u8 = 136;
    pub(crate) const GIVE_UP: u8 = 137;
    pub(crate) const TAKEN: u8 = 138;
    pub(crate) const LIST: u8 = 139;
    pub(crate) const LISTED: u8 = 140;
}

/// Says that bytes were not written to a window.
const NOT_WRITTEN: u8 = 0;

/// Call of a function.
#[derive(Debug, Clone)]
pub(crate) struct Called<'a> {
    pub(crate) call: u64,
    pub(crate) id: ObjectId,
    pub(crate) owner: u32,
    pub(crate) function: &'a str,
    pub(crate) left_us: u64,
    pub(crate) data: Vec<u8>,
    pub(crate) pieces: Vec<Piece>,
}

impl Called<'_> {
    pub(crate) fn body(&self) -> Vec<u8> {
        let mut out = self.call.to_le_bytes().to_vec();
        out.put_slice(self.id.as_bytes());
        out.put_u32_le(self.owner);
        out.put_slice(&text(self.function.as_bytes()));
        out.put_u64_le(self.left_us);
        // A reply is wanted.
        out.put_u8(0);
        out.put_slice(&text(&self.data));
        out.put_slice(&pieces(&self.pieces));
        out.put_u8(NOT_WRITTEN);
        out
    }
}

/// Bytes and places in the body of a *returned*, and the number under which they are lent.
pub(crate) fn returned(data: &[u8], at: &[Piece], lent: u64) -> Vec<u8> {
    let mut out = text(data);
    out.put_slice(&pieces(at));
    out.put_u8(NOT_WRITTEN);
    [lent, 1, 1].into_iter().for_each(|word| out.put_u64_le(word));
    out
}

/// Bytes in the body of a *returned*.
pub(crate) fn data_of(mut body: &[u8]) -> Vec<u8> {
    let len = body.get_u32_le() as usize;
    body[..len].to_vec()
}

/// Body of a *join*.
pub(crate) fn join(id: ObjectId, owner: u32, functions: &[&str]) -> Vec<u8> {
    let mut out = id.as_bytes().to_vec();
    out.put_u32_le(owner);
    out.put_u32_le(functions.len() as u32);
    functions.iter().for_each(|function| out.put_slice(&text(function.as_bytes())));
    out
}

/// Body of a *seek* of whatever owner.
pub(crate) fn seek(id: ObjectId) -> Vec<u8> {
    [id.as_bytes(), &[0][..]].concat()
}

fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat()
}
