//! Ownership of objects: the creator, and the rights of others. Owns no state. Any thread. Invariant: every
//! check of rights in the cluster uses the functions of this module.

use plasmon::wire::files::parts_of;
use plasmon::wire::record;
use plasmon::{DeleteOutcome, Error, ErrorKind, ObjectId, Rights, not_allowed};

/// The user that may change every object that it sees.
pub(crate) const ROOT: u32 = 0;
/// The user to whom the deeds of regions and services belong, and in whose name the cluster gives orders
/// about objects of files. The kernel gives this number to no process.
pub(crate) const DEEDS: u32 = u32::MAX;

record! {
    /// The owner of an object and the rights of others.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Ownership {
        /// The rights of users other than the creator.
        pub(crate) rights: Rights,
        /// The user who created the object.
        pub(crate) user: u32,
    }
}

impl Ownership {
    /// Whether a user may see the object.
    pub(crate) fn visible_to(self, user: u32) -> bool {
        !self.rights.is_private() || self.user == user || user == DEEDS
    }

    /// Whether a user may see the object of this id. [`DEEDS`] sees private objects of files, whose homes
    /// check rights. It sees no other private object, so such an object never blocks the name of a region or
    /// a volume.
    pub(crate) fn seen_by(self, id: &ObjectId, user: u32) -> bool {
        let is_others = user == DEEDS && self.user != DEEDS && self.rights.is_private();
        if is_others { parts_of(id).is_some() } else { self.visible_to(user) }
    }

    /// Whether a user may delete the object, and decide which nodes hold it.
    pub(crate) fn may_change(self, user: u32) -> bool {
        let any = user == ROOT || user == DEEDS || self.rights == Rights::ReadWrite;
        self.visible_to(user) && (self.user == user || any)
    }

    /// The outcome of a deletion by a user who may not delete the object.
    pub(crate) fn refusal(self) -> DeleteOutcome {
        DeleteOutcome::NotAllowed { creator: self.told() }
    }

    /// Refuses a user who may not change the object.
    ///
    /// # Errors
    /// `NotAllowed`, when the user may not.
    pub(crate) fn ensure_may_change(self, id: ObjectId, user: u32) -> Result<(), Error> {
        if self.may_change(user) { Ok(()) } else { Err(not_allowed(id, self.told(), user)) }
    }

    /// Refuses a user who may not put another object in the place of this one.
    ///
    /// # Errors
    /// `Exists` for the deed of a region or a service, `NotAllowed` when the user may not.
    pub(crate) fn ensure_may_replace(self, id: ObjectId, user: u32) -> Result<(), Error> {
        self.ensure_may_know(id, user)?;
        self.ensure_may_change(id, user)
    }

    /// Refuses a user who wants to replace the object, and who may not even know its version.
    ///
    /// # Errors
    /// As [`Ownership::ensure_may_replace`].
    pub(crate) fn ensure_may_know(self, id: ObjectId, user: u32) -> Result<(), Error> {
        match self.user {
            DEEDS => {
                let text = format!("object {id} exists already: it is the name of a region or a service");
                Err(Error::new(ErrorKind::Exists, text).about(id))
            }
            _ if self.visible_to(user) => Ok(()),
            _ => Err(not_visible(id, user)),
        }
    }

    /// The creator, if other users may know it.
    fn told(self) -> Option<u32> {
        (!self.rights.is_private()).then_some(self.user)
    }
}

/// The error for a user who asks for another user's private object.
pub(crate) fn not_visible(id: ObjectId, user: u32) -> Error {
    not_allowed(id, None, user)
}

#[cfg(test)]
mod tests {
    use plasmon::wire::files::file_object;

    use super::*;

    #[test]
    fn the_cluster_sees_private_objects_of_files_alone() {
        let private = Ownership { user: 7, rights: Rights::Private };
        let (file, other) = (file_object(1, 2, 3), ObjectId::from_bytes([7; ObjectId::LEN]));
        assert_eq!([&file, &other].map(|id| private.seen_by(id, DEEDS)), [true, false]);
        assert_eq!([7, 8, ROOT].map(|user| private.seen_by(&file, user)), [true, false, false]);
        let deed = Ownership { user: DEEDS, rights: Rights::Private };
        assert!(deed.seen_by(&other, DEEDS) && !deed.seen_by(&other, ROOT));
    }

    #[test]
    fn its_creator_root_and_where_it_is_wished_everybody_change_an_object() {
        let may = |rights| [7, 8, ROOT].map(|user| Ownership { user: 7, rights }.may_change(user));
        assert_eq!(may(Rights::Read), [true, false, true]);
        assert_eq!(may(Rights::ReadWrite), [true, true, true]);
        // A user cannot change an object that it does not see.
        assert_eq!(may(Rights::Private), [true, false, false]);
    }
}
