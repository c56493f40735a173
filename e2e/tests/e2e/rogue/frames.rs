//! Frames between nodes, for a member that sends whatever a test wants.
//!
//! The frames are written here by hand, as `docs/design/net.md` describes them. So they can be invalid in
//! ways that the daemon's code does not produce, and the daemon's frames are read by other code than its own.

use bytes::{Buf, BufMut};
use plasmon::ObjectId;

/// Version of the frames.
pub(crate) const VERSION: u8 = 22;
/// Version of the messages to the coordinator.
const MESSAGES: u32 = 7;

/// The number by which a node of these messages, and of frames of a version, asks to join.
pub(crate) fn protocol(frames: u8) -> u32 {
    MESSAGES * 1000 + u32::from(frames)
}

/// The number of [`protocol`], as errors write it.
pub(crate) fn protocol_written(frames: u8) -> String {
    format!("{MESSAGES}.{frames}")
}
/// Class of work that has asked for none.
const CLASS_NORMAL: u8 = 2;
/// Length of a message's header in bytes.
pub(crate) const MESSAGE_HEADER_LEN: usize = 60;
/// Length of the headers of a message and of its first frame in bytes.
pub(crate) const HEADER_LEN: usize = MESSAGE_HEADER_LEN + 56;
/// Largest length of a message in bytes.
pub(crate) const MESSAGE_MAX_BYTES: usize = 16 << 10;

/// Opcodes of frames, from `docs/design/net.md`.
pub(crate) mod opcode {
    pub(crate) const CURRENT: u8 = 27;
    pub(crate) const IS: u8 = 28;
    pub(crate) const GUARD: u8 = 29;
    pub(crate) const FETCH: u8 = 30;
    pub(crate) const EAGER: u8 = 31;
    pub(crate) const OFFER: u8 = 32;
    pub(crate) const RENEW: u8 = 36;
    pub(crate) const RENEWED: u8 = 37;
    pub(crate) const RELEASE: u8 = 38;
    pub(crate) const PUBLISH: u8 = 3;
    pub(crate) const UNPUBLISH: u8 = 4;
    pub(crate) const DROP: u8 = 10;
    pub(crate) const QUERY: u8 = 14;
    pub(crate) const FOUND: u8 = 15;
    pub(crate) const SEGMENT: u8 = 90;
    pub(crate) const REFUSED: u8 = 93;
    pub(crate) const DONE: u8 = 94;
    pub(crate) const PROMOTE: u8 = 64;
    pub(crate) const BURY: u8 = 9;
    pub(crate) const HOLD: u8 = 11;
    pub(crate) const HELD: u8 = 12;
    pub(crate) const REGISTERED: u8 = 33;
    pub(crate) const STREAM: u8 = 34;
    pub(crate) const READY: u8 = 39;
    pub(crate) const PART: u8 = 40;
    pub(crate) const STAMPS: u8 = 91;
    pub(crate) const PROBE: u8 = 43;
    pub(crate) const DIAL: u8 = 35;
    pub(crate) const LOCATE: u8 = 16;
    pub(crate) const LOCATED: u8 = 17;
    pub(crate) const WATCH: u8 = 72;
    pub(crate) const WATCHED: u8 = 73;
    pub(crate) const UNWATCH: u8 = 74;
    pub(crate) const CLAIM: u8 = 18;
    pub(crate) const LEND: u8 = 42;
    pub(crate) const REPORT: u8 = 80;
    pub(crate) const PING: u8 = 82;
    pub(crate) const ENLIST: u8 = 7;
    pub(crate) const ENLISTED: u8 = 8;
    pub(crate) const PUSHED: u8 = 46;
    pub(crate) const WINDOW: u8 = 95;
    pub(crate) const SHUT: u8 = 96;
    /// Highest opcode in use.
    pub(crate) const WITHHOLD: u8 = 65;
    pub(crate) const UNVEIL: u8 = 66;
    pub(crate) const KNOWN: u8 = 67;
    pub(crate) const LAST: u8 = 96;
}

/// Frame, field by field, with the header of a message that has it alone. [`Rogue::frame`] makes a valid one,
/// which is not counted.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) version: u8,
    pub(crate) opcode: u8,
    pub(crate) flags: u16,
    /// Length of the body in the header. `None` for the length that it has.
    pub(crate) body_len: Option<u32>,
    pub(crate) token: u64,
    pub(crate) request: u64,
    pub(crate) from: [u8; 16],
    pub(crate) reply_to: [u8; 16],
    pub(crate) incarnation: u64,
    pub(crate) epoch: u64,
    /// User on whose behalf the frame is.
    pub(crate) user: u32,
    /// Number of the message in its stream; 0 for a message that is not counted.
    pub(crate) number: u64,
    pub(crate) stream: u32,
    /// The last message that has come, and its stream.
    pub(crate) received: (u64, u32),
    pub(crate) body: Vec<u8>,
}

impl Frame {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.header();
        out.put_slice(&[self.opcode, CLASS_NORMAL]);
        out.put_u16_le(self.flags);
        out.put_u32_le(self.body_len.unwrap_or(self.body.len() as u32));
        out.put_u64_le(self.request);
        out.put_slice(&self.reply_to);
        out.put_u64_le(self.epoch);
        out.put_u64_le(u64::MAX);
        out.put_u32_le(self.user);
        out.put_u32_le(0);
        assert_eq!(out.len(), HEADER_LEN);
        out.put_slice(&self.body);
        out
    }

    /// Header of the message: a message without frames.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = vec![self.version, 0, 0, 0];
        out.put_u32_le(self.stream);
        out.put_u64_le(self.token);
        out.put_slice(&self.from);
        out.put_u64_le(self.incarnation);
        out.put_u64_le(self.number);
        out.put_u64_le(self.received.0);
        out.put_u32_le(self.received.1);
        assert_eq!(out.len(), MESSAGE_HEADER_LEN);
        out
    }
}

/// Message of another member.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) from: [u8; 16],
    pub(crate) stream: u32,
    pub(crate) number: u64,
    pub(crate) frames: Vec<Frame>,
}

impl Message {
    pub(crate) fn decode(message: &[u8]) -> Self {
        let (mut header, mut rest) = message.split_at(MESSAGE_HEADER_LEN);
        let version = header.get_u8();
        header.advance(3);
        let (stream, token, from) = (header.get_u32_le(), header.get_u64_le(), node(&mut header));
        let (incarnation, number) = (header.get_u64_le(), header.get_u64_le());
        let received = (header.get_u64_le(), header.get_u32_le());
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let (opcode, _, flags) = (rest.get_u8(), rest.get_u8(), rest.get_u16_le());
            let (body_len, request, reply_to) = (rest.get_u32_le(), rest.get_u64_le(), node(&mut rest));
            let epoch = rest.get_u64_le();
            rest.advance(8);
            let user = rest.get_u32_le();
            rest.advance(4);
            let (body, behind) = rest.split_at(body_len as usize);
            let (body_len, body) = (Some(body_len), body.to_vec());
            rest = behind;
            #[rustfmt::skip]
            frames.push(Frame {
                version, opcode, flags, body_len, token, request, from, reply_to, incarnation, epoch, user,
                number, stream, received, body,
            });
        }
        Self { from, stream, number, frames }
    }
}

fn node(bytes: &mut &[u8]) -> [u8; 16] {
    let mut node = [0; 16];
    bytes.copy_to_slice(&mut node);
    node
}

/// Description of an object by its holder: data without metadata, shared, of user 0.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) id: ObjectId,
    pub(crate) life: u64,
    pub(crate) len: u64,
}

impl Head {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_slice(self.id.as_bytes());
        out.put_u64_le(self.life);
        out.put_u32_le(0);
        out.put_u8(0);
        out.put_u64_le(self.len);
        out.put_u32_le(0);
        out.put_u64_le(0);
        out.put_u16_le(0);
        out.put_u64_le(0);
        out.put_u8(0);
        out.put_u32_le(0);
    }
}

/// Valid bodies of frames with given contents.
pub(crate) mod body {
    use super::*;

    pub(crate) fn ids(ids: &[ObjectId]) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32_le(ids.len() as u32);
        ids.iter().for_each(|id| out.put_slice(id.as_bytes()));
        out
    }

    /// Fetch of the last stage: from the asker to a holder that it knows.
    pub(crate) fn fetch(id: ObjectId, protocol: u8) -> Vec<u8> {
        let mut out = id.as_bytes().to_vec();
        // Any life.
        out.put_u64_le(0);
        out.put_slice(&[1, protocol]);
        out.put_u32_le(u32::MAX);
        out.put_u32_le(0);
        out.put_u32_le(0);
        out
    }

    /// Fetch of the last stage of an object that is to be written to the asker's window.
    pub(crate) fn fetch_pushed(id: ObjectId) -> Vec<u8> {
        let mut out = id.as_bytes().to_vec();
        out.put_u64_le(0);
        out.put_slice(&[1, 0]);
        out.put_u32_le(0);
        out.put_u32_le(u32::MAX);
        out.put_u32_le(0);
        out
    }

    /// Answer that says that an object was written to a window, and not where else it lies.
    pub(crate) fn pushed(head: &Head, window: u64, first: u32, mark: u128) -> Vec<u8> {
        let mut out = Vec::new();
        head.put(&mut out);
        out.put_u64_le(window);
        out.put_u32_le(first);
        out.put_u128_le(mark);
        out.put_u32_le(0);
        out.put_u8(0);
        out
    }

    pub(crate) fn publish(heads: &[Head]) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32_le(heads.len() as u32);
        for head in heads {
            out.put_slice(head.id.as_bytes());
            out.put_u8(0);
            out.put_u16_le(0);
            out.put_u64_le(head.life);
            out.put_u8(0);
            out.put_u32_le(0);
            out.put_u8(0);
        }
        out
    }

    pub(crate) fn lives(lives: &[(ObjectId, u64)]) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32_le(lives.len() as u32);
        for (id, life) in lives {
            out.put_slice(id.as_bytes());
            out.put_u64_le(*life);
        }
        out
    }

    /// Lives that have ended without a successor, or are about to end outside of a turn.
    pub(crate) fn ends(ended: &[(ObjectId, u64)]) -> Vec<u8> {
        [lives(ended), vec![0]].concat()
    }

    /// An object that the receiver is to withhold, and that lies nowhere.
    pub(crate) fn withhold(head: &Head) -> Vec<u8> {
        let mut body = Vec::new();
        head.put(&mut body);
        [body, words(&[0]), vec![0; 4]].concat()
    }

    /// Lives of an object that are to be guarded in a turn.
    pub(crate) fn guard(id: ObjectId, lives: &[u64], turn: u64) -> Vec<u8> {
        let mut out = id.as_bytes().to_vec();
        out.put_u32_le(lives.len() as u32);
        lives.iter().for_each(|life| out.put_u64_le(*life));
        out.put_u64_le(turn);
        out.put_u8(0);
        out
    }

    /// Objects with the life of each, whose replicas two nodes are to keep.
    pub(crate) fn heirs(heirs: &[(ObjectId, u64)]) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32_le(heirs.len() as u32);
        for (id, life) in heirs {
            out.put_slice(id.as_bytes());
            out.put_u64_le(*life);
            out.put_u16_le(2);
        }
        out
    }

    pub(crate) fn eager(head: &Head, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        head.put(&mut out);
        out.put_u32_le(bytes.len() as u32);
        out.put_slice(bytes);
        out
    }

    /// Offer of an object. A piece is segment, version, offset and length. The stamp is slot and value, and
    /// none if both are 0.
    pub(crate) fn offer(
        head: &Head,
        lease_ms: u32,
        pieces: &[(u32, u32, u64, u64)],
        stamp: (u32, u64),
        others: &[[u8; 16]],
    ) -> Vec<u8> {
        let mut out = Vec::new();
        head.put(&mut out);
        out.put_u32_le(lease_ms);
        out.put_u32_le(pieces.len() as u32);
        for (segment, version, offset, len) in pieces {
            out.put_u32_le(*segment);
            out.put_u32_le(*version);
            out.put_u64_le(*offset);
            out.put_u64_le(*len);
        }
        match stamp {
            (0, 0) => out.put_u8(0),
            (slot, value) => {
                out.put_u8(1);
                out.put_u32_le(slot);
                out.put_u64_le(value);
            }
        }
        out.put_u32_le(others.len() as u32);
        others.iter().for_each(|node| out.put_slice(node));
        out
    }

    pub(crate) fn registered(head: &Head, lease_ms: u32, regions: &[(u64, u64, u64)]) -> Vec<u8> {
        let mut out = stream(head, lease_ms);
        out.put_u32_le(regions.len() as u32);
        for (base, key, len) in regions {
            out.put_slice(&words(&[*base, *key, *len]));
        }
        out
    }

    pub(crate) fn stream(head: &Head, lease_ms: u32) -> Vec<u8> {
        let mut out = Vec::new();
        head.put(&mut out);
        out.put_u32_le(lease_ms);
        out
    }

    /// Answer that the object can be received at this port.
    pub(crate) fn dial(head: &Head, lease_ms: u32, port: u16) -> Vec<u8> {
        let mut out = stream(head, lease_ms);
        out.put_u16_le(port);
        out.put_slice(&[5; 16]);
        out
    }

    pub(crate) fn part(request: u64, at: u64, bytes: &[u8]) -> Vec<u8> {
        let mut out = words(&[request, at]);
        out.put_u32_le(bytes.len() as u32);
        out.put_slice(bytes);
        out
    }

    pub(crate) fn segment(
        provider: &str,
        segment: u32,
        version: u32,
        (base, key, len): (u64, u64, u64),
    ) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32_le(segment);
        out.put_u32_le(version);
        out.put_slice(&stamps(provider, &[base, key, len]));
        out
    }

    pub(crate) fn stamps(provider: &str, region: &[u64]) -> Vec<u8> {
        let mut out = words(region);
        out.put_u32_le(provider.len() as u32);
        out.put_slice(provider.as_bytes());
        out
    }

    pub(crate) fn watch(feed: u64, begins: bool, most: u32) -> Vec<u8> {
        let mut out = words(&[feed]);
        out.put_u8(begins.into());
        out.put_u32_le(most);
        out
    }

    pub(crate) fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}
