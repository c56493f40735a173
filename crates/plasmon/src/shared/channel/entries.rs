//! Entries of the rings: 64 bytes, eight words each.
//!
//! Owns no state. Any thread. Invariant: an entry that the other side wrote is checked when it is decoded.

use crate::{ObjectId, Rights};

/// Number of words in an entry.
pub(super) const WORDS: usize = 8;

crate::wire::codes! {
    /// Operation that a submission asks for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Operation: u8 {
        /// Create and seal an object of the bytes that come with the submission: name, metadata, data.
        1 Put,
        /// Reserve an object. Name and metadata come with the submission.
        2 Create,
        /// Seal an object that this client created and wrote.
        3 Seal,
    }
}

/// Entry of the submission ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submission {
    /// Operation that the entry asks for.
    pub operation: Operation,
    /// Number that the client chose. The completion repeats it.
    pub token: u64,
    /// Id of the object.
    pub id: ObjectId,
    /// Rights of other users to the object.
    pub rights: Rights,
    /// Whether the id was drawn at random for the object.
    pub fresh: bool,
    /// Size of the name in bytes.
    pub name_len: u16,
    /// Size of the metadata in bytes.
    pub metadata_len: u32,
    /// Size of the data in bytes.
    pub data_len: u64,
    /// Offset of the payload in the data area, in bytes.
    pub payload: u32,
    /// XXH3 of data and metadata. 0 for none.
    pub digest: u64,
}

crate::wire::codes! {
    /// Outcome of a submission.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Outcome: u8 {
        /// The operation was carried out.
        1 Done,
        /// The operation was not carried out: make the same request by the socket.
        2 AskBySocket,
    }
}

/// Entry of the completion ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Number of the submission.
    pub token: u64,
    /// Outcome of the submission.
    pub outcome: Outcome,
    /// Offset at which a created object is to be written, from the start of the arena, in bytes.
    pub offset: u64,
}

/// Error for invalid contents of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The ends of the ring are further apart than the ring is long.
    #[error("the ends of the ring are {0} entries apart")]
    Ends(u64),
    /// An entry has an unknown operation.
    #[error("an entry asks for operation {0}")]
    Operation(u8),
    /// An entry's object has contradictory rights.
    #[error("an entry's object is private and everybody's")]
    Rights,
    /// An entry's payload reaches beyond the end of the data area.
    #[error("an entry's data reaches beyond the data area")]
    Payload,
}

impl Submission {
    pub(super) fn encode(&self) -> [u64; WORDS] {
        let id = self.id.as_bytes();
        let word = |at: usize| u64::from_le_bytes(id[at..at + 8].try_into().expect("eight bytes"));
        let (private, shared) = self.rights.flags();
        let last = u32::from_le_bytes(id[16..].try_into().expect("four bytes"));
        [
            self.operation as u64
                | u64::from(private) << 8
                | u64::from(self.fresh) << 9
                | u64::from(shared) << 10
                | u64::from(self.name_len) << 16
                | u64::from(self.metadata_len) << 32,
            self.token,
            word(0),
            word(8),
            u64::from(last) | u64::from(self.payload) << 32,
            self.data_len,
            self.digest,
            0,
        ]
    }

    pub(super) fn decode(words: [u64; WORDS]) -> Result<Self, Malformed> {
        let mut id = [0; ObjectId::LEN];
        id[..8].copy_from_slice(&words[2].to_le_bytes());
        id[8..16].copy_from_slice(&words[3].to_le_bytes());
        id[16..].copy_from_slice(&words[4].to_le_bytes()[..4]);
        Ok(Self {
            operation: Operation::from_wire(words[0] as u8).ok_or(Malformed::Operation(words[0] as u8))?,
            token: words[1],
            id: ObjectId::from_bytes(id),
            rights: Rights::from_flags(words[0] >> 8 & 1 != 0, words[0] >> 10 & 1 != 0)
                .ok_or(Malformed::Rights)?,
            fresh: words[0] >> 9 & 1 != 0,
            name_len: (words[0] >> 16) as u16,
            metadata_len: (words[0] >> 32) as u32,
            data_len: words[5],
            payload: (words[4] >> 32) as u32,
            digest: words[6],
        })
    }
}

impl Completion {
    pub(super) fn encode(&self) -> [u64; WORDS] {
        [self.token, self.outcome as u64, self.offset, 0, 0, 0, 0, 0]
    }

    /// Decodes a completion. An unknown outcome reads as [`Outcome::AskBySocket`].
    pub(super) fn decode(words: [u64; WORDS]) -> Self {
        let outcome = if words[1] == Outcome::Done as u64 { Outcome::Done } else { Outcome::AskBySocket };
        Self { token: words[0], outcome, offset: words[2] }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    proptest! {
        #[test]
        fn submissions_survive_their_words(
            operation in select(Operation::ALL),
            id in any::<[u8; 20]>(),
            rights in select(Rights::ALL),
            fresh: bool, name_len: u16, metadata_len: u32, payload: u32,
            token: u64, data_len: u64, digest: u64,
        ) {
            let id = ObjectId::from_bytes(id);
            let entry = Submission {
                operation, token, id, rights, fresh, name_len, metadata_len, data_len, payload, digest,
            };
            prop_assert_eq!(Submission::decode(entry.encode()), Ok(entry));
        }

        #[test]
        fn any_words_decode_or_are_refused(words: [u64; WORDS]) {
            if let Ok(entry) = Submission::decode(words) {
                prop_assert_eq!(Submission::decode(entry.encode()), Ok(entry));
            }
            Completion::decode(words);
        }
    }
}
