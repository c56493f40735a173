//! What users may do with each other's objects.

use crate::{Error, ErrorKind, ObjectId};

crate::wire::codes! {
    /// What users other than its creator and root may do with an object.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub enum Rights: u8 {
        /// Read it.
        #[default]
        0 Read,
        /// Nothing: they do not see it. Root does not either.
        1 Private,
        /// All that its creator may: read it, delete it, move it, and say which nodes hold it.
        2 ReadWrite,
    }
}

impl Rights {
    /// Whether its creator alone sees the object.
    pub fn is_private(self) -> bool {
        self == Self::Private
    }

    /// The rights as flags of a new object, which share a number with others: whether it is private, and
    /// whether all may do as its creator.
    pub(crate) fn flags(self) -> (bool, bool) {
        (self == Self::Private, self == Self::ReadWrite)
    }

    /// The rights behind such flags; none if they contradict each other.
    pub(crate) fn from_flags(private: bool, shared: bool) -> Option<Self> {
        match (private, shared) {
            (false, false) => Some(Self::Read),
            (true, false) => Some(Self::Private),
            (false, true) => Some(Self::ReadWrite),
            (true, true) => None,
        }
    }
}

/// The error of a user who wants to change an object that is another's. Its creator is not told if it is
/// private.
pub fn not_allowed(id: ObjectId, creator: Option<u32>, user: u32) -> Error {
    let text = match creator {
        None => format!("object {id} is private to the user who created it, and user {user} is another"),
        Some(creator) => format!(
            "object {id} is user {creator}'s, and user {user} may read it, not change it: its creator or \
             root may; put it with public=\"rw\" to let everybody"
        ),
    };
    Error::new(ErrorKind::NotAllowed, text)
}
