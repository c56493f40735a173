//! Rights to a region: how they are granted, revoked and checked. Owns [`Acl`]. Engine thread only.
//!
//! Invariant: the owner and root have all rights, whatever was granted or revoked.

use plasmon::region::Rights;
use plasmon::text::printable;
use plasmon::{Error, ErrorKind};

use super::own_user;
use super::region::Region;
use crate::object::ROOT;
use crate::region::frames::RightsChange;

/// Maximum number of users to whom rights to a region are granted.
pub(super) const MAX_GRANTS: usize = 64;

/// Rights of single users.
#[derive(Default)]
pub(super) struct Acl(Vec<(u32, Rights)>);

impl Region {
    /// Returns the rights of a user: those of everybody and those that were granted to the user.
    pub(crate) fn rights(&self, user: u32) -> Rights {
        if self.has_all(user) {
            return Rights::ALL;
        }
        self.granted_to(Some(user)).with(self.public.get())
    }

    /// Returns the rights that were granted to single users.
    pub(super) fn granted(&self) -> Vec<(u32, Rights)> {
        let Some(rare) = self.rare() else { return Vec::new() };
        rare.acl.borrow().as_ref().map_or_else(Vec::new, |acl| acl.0.clone())
    }

    /// Sets the rights of single users, as the former home of the region had them.
    pub(super) fn set_granted(&self, granted: Vec<(u32, Rights)>) {
        if !granted.is_empty() {
            self.make_rare().acl.replace(Some(Box::new(Acl(granted))));
        }
    }

    /// Number of changes of the rights so far, which wraps.
    pub(crate) fn changes(&self) -> u16 {
        self.changes.get()
    }

    /// Returns the rights that were granted to a user, or to everybody if there is none.
    fn granted_to(&self, user: Option<u32>) -> Rights {
        let Some(user) = user else { return self.public.get() };
        let Some(rare) = self.rare() else { return Rights::NONE };
        let acl = rare.acl.borrow();
        let granted = acl.iter().flat_map(|acl| &acl.0).find(|(to, _)| *to == user);
        granted.map_or(Rights::NONE, |(_, rights)| *rights)
    }

    /// Grants rights to a user or to everybody, or revokes all of them if `rights` is empty. Returns the
    /// change, if the rights are others now.
    ///
    /// # Errors
    /// Errors of [`Region::grant`] and [`Region::revoke`].
    pub(crate) fn govern(
        &self,
        by: u32,
        user: Option<u32>,
        rights: Rights,
    ) -> Result<Option<RightsChange>, Error> {
        let (before, is_grant) = (self.granted_to(user), rights != Rights::NONE);
        if is_grant {
            self.grant(by, user, rights)?
        } else {
            self.revoke(by, user)?
        }
        if self.granted_to(user) == before {
            return Ok(None);
        }
        self.changes.set(self.changes.get().wrapping_add(1));
        let masters = self.granted().into_iter().filter(|(_, rights)| rights.master);
        Ok(Some(RightsChange {
            number: self.changes(),
            user,
            is_grant,
            rights: user.map_or_else(|| self.public.get(), |user| self.rights(user)),
            masters: masters.map(|(user, _)| user).collect(),
        }))
    }

    fn has_all(&self, user: u32) -> bool {
        user == self.owner() || user == ROOT
    }

    /// Whether a user may know of the region, because the user has some right or the node runs as that user.
    pub(super) fn is_seen_by(&self, user: u32) -> bool {
        user == own_user() || self.rights(user) != Rights::NONE
    }

    /// Refuses a user who may not know of the region.
    ///
    /// # Errors
    /// `NotAllowed`.
    pub(crate) fn ensure_seen(&self, user: u32) -> Result<(), Error> {
        if self.is_seen_by(user) { Ok(()) } else { self.ensure(user, Rights::READ) }
    }

    /// Refuses a user who lacks one of these rights.
    ///
    /// # Errors
    /// `NotAllowed`.
    pub(crate) fn ensure(&self, user: u32, wanted: Rights) -> Result<(), Error> {
        let has = self.rights(user);
        if has.contain(wanted) {
            return Ok(());
        }
        let has = if has == Rights::NONE { "none".to_owned() } else { has.to_string() };
        let text = format!(
            "user {user} may not do that to region '{}': it takes the rights {wanted}, and the user has \
             {has}; user {} or another master of it can grant them",
            printable(self.name()),
            self.owner()
        );
        Err(Error::new(ErrorKind::NotAllowed, text))
    }

    /// Gives a user, or everybody, further rights.
    ///
    /// # Errors
    /// `NotAllowed` if `by` is no master; `Full` with too many grants; `Invalid` for no right, and for the
    /// right of a master to everybody; `Freed` if the region has ended.
    pub(crate) fn grant(&self, by: u32, to: Option<u32>, rights: Rights) -> Result<(), Error> {
        self.ensure_there()?;
        self.ensure(by, Rights::MASTER)?;
        let invalid = |why: &str| {
            let text = format!("cannot grant rights to region '{}': {why}", printable(self.name()));
            Err(Error::new(ErrorKind::Invalid, text))
        };
        match to {
            _ if rights == Rights::NONE => invalid("no right is named"),
            None if rights.master => invalid("everybody cannot be its master; name the user"),
            None => {
                self.public.set(self.public.get().with(rights));
                Ok(())
            }
            Some(user) if self.has_all(user) => Ok(()),
            Some(user) => self.grant_to(user, rights),
        }
    }

    fn grant_to(&self, user: u32, rights: Rights) -> Result<(), Error> {
        let mut acl = self.make_rare().acl.borrow_mut();
        let granted = &mut acl.get_or_insert_default().0;
        if let Some((_, has)) = granted.iter_mut().find(|(to, _)| *to == user) {
            *has = has.with(rights);
            return Ok(());
        }
        if granted.len() >= MAX_GRANTS {
            let text = format!(
                "region '{}' has grants to {MAX_GRANTS} users and takes no more: revoke some, or grant the \
                 rights to everybody",
                printable(self.name())
            );
            return Err(Error::new(ErrorKind::Full, text));
        }
        granted.push((user, rights));
        Ok(())
    }

    /// Takes all rights that were granted to a user, or those that everybody has. A user keeps the rights of
    /// everybody. Ends the waits of users who may not read any more.
    ///
    /// # Errors
    /// `NotAllowed` if `by` is no master, `Invalid` for the owner and root, `Freed` if the region has ended.
    pub(crate) fn revoke(&self, by: u32, from: Option<u32>) -> Result<(), Error> {
        self.ensure_there()?;
        self.ensure(by, Rights::MASTER)?;
        match from {
            None => self.public.set(Rights::NONE),
            Some(user) if self.has_all(user) => {
                let text = format!(
                    "user {user} keeps all rights to region '{}': those of its owner and of root cannot be \
                     revoked",
                    printable(self.name())
                );
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            Some(user) => {
                let mut acl = self.make_rare().acl.borrow_mut();
                acl.iter_mut().for_each(|acl| acl.0.retain(|(to, _)| *to != user));
                if acl.as_ref().is_some_and(|acl| acl.0.is_empty()) {
                    *acl = None;
                }
            }
        }
        let name = printable(self.name());
        let revoked = || {
            let text = format!("the right to read region '{name}' was revoked while the call waited");
            Error::new(ErrorKind::NotAllowed, text)
        };
        self.end_waits(|user| !self.rights(user).read, revoked);
        Ok(())
    }
}
