//! Entries of the rings: 64 bytes, eight words each.
//!
//! Owns no state. Any thread. Invariant: an entry that the other side wrote is checked when it is decoded.

use crate::wire::DeleteOutcome;
use crate::{ObjectId, Rights};

/// Number of words in an entry.
pub(super) const WORDS: usize = 8;
/// Largest number of objects that one entry deletes. A completion has two bits for each of them.
pub const MAX_DELETED: usize = 32;

crate::wire::codes! {
    /// Operation that a submission asks for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Operation: u8 {
        /// Create and seal an object of the bytes that come with the submission: name, metadata, data.
        1 Put,
        /// Reserve an object. Name and metadata come with the submission.
        2 Create,
        /// Seal an object that this client created. The data of a small object comes with the submission; the
        /// client has written the data of a large object before.
        3 Seal,
        /// Abort the creation of an object by this client.
        4 Abort,
        /// Delete objects, at most [`MAX_DELETED`], whose ids come with the submission as its data.
        5 Delete,
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
    /// Whether the object ends with its client.
    pub owned: bool,
    /// Whether the client waits in the ring while other nodes are asked. Otherwise an entry for which nodes
    /// have to be asked is refused at once.
    pub patient: bool,
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
    /// Time to live of the object in milliseconds. 0 for no end.
    pub ttl_ms: u64,
}

crate::wire::codes! {
    /// Outcome of a submission.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Outcome: u8 {
        /// The operation was carried out.
        1 Done,
        /// The operation was not carried out. The client makes the same request by the socket.
        2 AskBySocket,
        /// The operation is under way, or has an outcome that no entry can hold (an error, descriptors). The
        /// client collects the outcome by the socket.
        3 Collect,
    }
}

/// Entry of the completion ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Number that the client chose for the submission.
    pub token: u64,
    /// Outcome of the submission.
    pub outcome: Outcome,
    /// Answer to the submission. For a creation: the offset from the start of the arena, in bytes, at which
    /// a large object is to be written. For a deletion: its [`Deleted`]. For an outcome that is to be
    /// collected: the number of the outcome. Otherwise 0.
    pub answer: u64,
}

/// Outcomes of a deletion of at most [`MAX_DELETED`] objects, as a completion has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deleted(pub u64);

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

impl Deleted {
    /// Code of an object for which the client has to ask by the socket.
    const ASK_BY_SOCKET: u64 = 3;

    /// Encodes outcomes in the order of the ids. `None` says that the client has to ask by the socket for an
    /// object.
    pub fn of(outcomes: impl IntoIterator<Item = Option<DeleteOutcome>>) -> Self {
        let code = |outcome| match outcome {
            Some(DeleteOutcome::Absent) => 0,
            Some(DeleteOutcome::Deleted) => 1,
            Some(DeleteOutcome::Deferred) => 2,
            // A refusal names the creator, which the socket tells.
            Some(DeleteOutcome::NotAllowed { .. }) | None => Self::ASK_BY_SOCKET,
        };
        let codes = outcomes.into_iter().take(MAX_DELETED).enumerate();
        Self(codes.fold(0, |word, (at, outcome)| word | code(outcome) << (2 * at)))
    }

    /// Encodes outcomes in the order of the ids. `None` if an outcome has no code.
    pub fn of_all(outcomes: &[DeleteOutcome]) -> Option<Self> {
        let refused = |outcome: &DeleteOutcome| matches!(outcome, DeleteOutcome::NotAllowed { .. });
        (!outcomes.iter().any(refused)).then(|| Self::of(outcomes.iter().copied().map(Some)))
    }

    /// Returns the outcome of the object at a place in the submission, which is below [`MAX_DELETED`]. `None`
    /// if the client has to ask by the socket.
    pub fn outcome(self, at: usize) -> Option<DeleteOutcome> {
        match self.0 >> (2 * at) & 3 {
            0 => Some(DeleteOutcome::Absent),
            1 => Some(DeleteOutcome::Deleted),
            2 => Some(DeleteOutcome::Deferred),
            _ => None,
        }
    }
}

impl Submission {
    /// Returns a submission that asks for an operation on an object, with no payload and no terms.
    pub fn of(operation: Operation, id: ObjectId) -> Self {
        Self {
            operation,
            token: 0,
            id,
            rights: Rights::default(),
            fresh: false,
            owned: false,
            patient: false,
            name_len: 0,
            metadata_len: 0,
            data_len: 0,
            payload: 0,
            digest: 0,
            ttl_ms: 0,
        }
    }

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
                | u64::from(self.owned) << 11
                | u64::from(self.patient) << 12
                | u64::from(self.name_len) << 16
                | u64::from(self.metadata_len) << 32,
            self.token,
            word(0),
            word(8),
            u64::from(last) | u64::from(self.payload) << 32,
            self.data_len,
            self.digest,
            self.ttl_ms,
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
            owned: words[0] >> 11 & 1 != 0,
            patient: words[0] >> 12 & 1 != 0,
            name_len: (words[0] >> 16) as u16,
            metadata_len: (words[0] >> 32) as u32,
            data_len: words[5],
            payload: (words[4] >> 32) as u32,
            digest: words[6],
            ttl_ms: words[7],
        })
    }
}

impl Completion {
    pub(super) fn encode(&self) -> [u64; WORDS] {
        [self.token, self.outcome as u64, self.answer, 0, 0, 0, 0, 0]
    }

    /// Decodes a completion. An unknown outcome reads as [`Outcome::AskBySocket`].
    pub(super) fn decode(words: [u64; WORDS]) -> Self {
        let outcome = u8::try_from(words[1]).ok().and_then(Outcome::from_wire);
        Self { token: words[0], outcome: outcome.unwrap_or(Outcome::AskBySocket), answer: words[2] }
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
            fresh: bool, owned: bool, patient: bool, name_len: u16, metadata_len: u32, payload: u32,
            token: u64, data_len: u64, digest: u64, ttl_ms: u64,
        ) {
            let id = ObjectId::from_bytes(id);
            let entry = Submission {
                operation, token, id, rights, fresh, owned, patient, name_len, metadata_len, data_len,
                payload, digest, ttl_ms,
            };
            prop_assert_eq!(Submission::decode(entry.encode()), Ok(entry));
        }

        #[test]
        fn completions_survive_their_words(outcome in select(Outcome::ALL), token: u64, answer: u64) {
            let entry = Completion { token, outcome, answer };
            prop_assert_eq!(Completion::decode(entry.encode()), entry);
        }

        #[test]
        fn outcomes_survive_their_word(codes in proptest::collection::vec(0..4, 0..=MAX_DELETED)) {
            let outcomes: Vec<_> = codes.iter().map(|code| match code {
                0 => Some(DeleteOutcome::Absent),
                1 => Some(DeleteOutcome::Deleted),
                2 => Some(DeleteOutcome::Deferred),
                _ => None,
            }).collect();
            let deleted = Deleted::of(outcomes.iter().copied());
            let read: Vec<_> = (0..outcomes.len()).map(|at| deleted.outcome(at)).collect();
            prop_assert_eq!(read, outcomes);
        }

        #[test]
        fn any_words_decode_or_are_refused(words: [u64; WORDS]) {
            if let Ok(entry) = Submission::decode(words) {
                prop_assert_eq!(Submission::decode(entry.encode()), Ok(entry));
            }
            Completion::decode(words);
        }
    }

    #[test]
    fn a_refused_deletion_is_asked_for_by_the_socket() {
        let refused = DeleteOutcome::NotAllowed { creator: Some(7) };
        let deleted = Deleted::of([Some(refused), Some(DeleteOutcome::Deleted)]);
        assert_eq!(deleted.outcome(0), None);
        assert_eq!(deleted.outcome(1), Some(DeleteOutcome::Deleted));
        assert_eq!(Deleted::of_all(&[DeleteOutcome::Deleted, refused]), None);
        assert_eq!(
            Deleted::of_all(&[DeleteOutcome::Deferred]).map(|all| all.outcome(0)),
            Some(Some(DeleteOutcome::Deferred))
        );
    }
}
