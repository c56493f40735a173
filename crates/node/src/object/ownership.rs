//! Whose an object is, and what others may do with it: one rule for every node and every order.

use plasmon::wire::record;
use plasmon::{DeleteOutcome, Error, ObjectId, Rights, not_allowed};

/// The user whose orders are obeyed as if each object were its own, as long as it sees the object.
const ROOT: u32 = 0;

record! {
    /// Whose an object is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Ownership {
        /// What others may do with it.
        pub(crate) rights: Rights,
        /// The user who created it.
        pub(crate) user: u32,
    }
}

impl Ownership {
    /// Whether a user may see it.
    pub(crate) fn visible_to(self, user: u32) -> bool {
        !self.rights.is_private() || self.user == user
    }

    /// Whether a user may delete it, and say which nodes hold it.
    pub(crate) fn may_change(self, user: u32) -> bool {
        self.visible_to(user) && (self.user == user || user == ROOT || self.rights == Rights::ReadWrite)
    }

    /// The outcome of a deletion by a user who may not.
    pub(crate) fn refusal(self) -> DeleteOutcome {
        DeleteOutcome::NotAllowed { creator: self.told() }
    }

    /// Refuses a user who may not change the object.
    ///
    /// # Errors
    /// `NotAllowed`, for that user.
    pub(crate) fn ensure_may_change(self, id: ObjectId, user: u32) -> Result<(), Error> {
        if self.may_change(user) { Ok(()) } else { Err(not_allowed(id, self.told(), user)) }
    }

    /// Its creator, where others may know.
    fn told(self) -> Option<u32> {
        (!self.rights.is_private()).then_some(self.user)
    }
}

/// What a user is told of another user's private object.
pub(crate) fn not_visible(id: ObjectId, tenant: u32) -> Error {
    not_allowed(id, None, tenant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_creator_root_and_where_it_is_wished_everybody_change_an_object() {
        let may = |rights| [7, 8, ROOT].map(|user| Ownership { user: 7, rights }.may_change(user));
        assert_eq!(may(Rights::Read), [true, false, true]);
        assert_eq!(may(Rights::ReadWrite), [true, true, true]);
        // Nobody changes what he does not see.
        assert_eq!(may(Rights::Private), [true, false, false]);
    }
}
