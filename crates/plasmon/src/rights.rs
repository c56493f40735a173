//! Rights of users to each other's objects. Owns no state. Any thread.

use crate::{Error, ErrorKind, ObjectId};

crate::wire::codes! {
    /// Rights of users other than the creator and root to an object.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub enum Rights: u8 {
        /// Other users may read the object.
        #[default]
        0 Read,
        /// Other users may do nothing and do not see the object, root included.
        1 Private,
        /// Other users may do everything that the creator may: read, delete and move it, and choose the nodes
        /// that keep it.
        2 ReadWrite,
    }
}

impl Rights {
    /// Whether only the object's creator sees the object.
    pub fn is_private(self) -> bool {
        self == Self::Private
    }

    /// Rights as two flags of a new object in the wire format: whether the object is private, and whether all
    /// users have the creator's rights.
    pub(crate) fn flags(self) -> (bool, bool) {
        (self == Self::Private, self == Self::ReadWrite)
    }

    /// Rights that two flags stand for. `None` if the flags contradict each other.
    pub(crate) fn from_flags(private: bool, shared: bool) -> Option<Self> {
        match (private, shared) {
            (false, false) => Some(Self::Read),
            (true, false) => Some(Self::Private),
            (false, true) => Some(Self::ReadWrite),
            (true, true) => None,
        }
    }
}

/// Makes the error for a user who tries to change another user's object. The error of a private object does
/// not name the creator.
pub fn not_allowed(id: ObjectId, creator: Option<u32>, user: u32) -> Error {
    let text = match creator {
        None => format!("object {id} is private to its creator, and user {user} is not its creator"),
        Some(creator) => format!(
            "object {id} is user {creator}'s, and user {user} may read but not change it: its creator \
             or root may; put it with public=\"rw\" to let every user change it"
        ),
    };
    Error::new(ErrorKind::NotAllowed, text)
}
