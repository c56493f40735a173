//! Error type of the client: a kind for programs and a message for people.
//!
//! Owns no state. Any thread. Invariant: every error has a kind and a message.

use std::fmt;

use crate::ObjectId;
use crate::text::printable;

/// Result of a call of the client.
pub type Result<T> = std::result::Result<T, Error>;

crate::wire::codes! {
    /// Kind of an error, for a program to act on. A number that only a newer daemon knows reads as
    /// `Internal`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum ErrorKind: u16 else Internal {
        /// An object of this id exists already or is being created.
        1 Exists,
        /// No object of this id is known.
        2 NotFound,
        /// The call did not finish within its time-out.
        3 TimedOut,
        /// The store has no room: its objects are pinned or have no other replica.
        4 Full,
        /// The object existed, and every node that held it is gone.
        5 Lost,
        /// The object is larger than the whole store.
        6 TooLarge,
        /// An argument or a frame is invalid.
        7 Invalid,
        /// This user lacks a right that the call needs.
        8 NotAllowed,
        /// The client has as many requests under way as the daemon permits.
        9 Busy,
        /// The daemon cannot be reached, its connection broke, or it is leaving the cluster.
        10 Disconnected,
        /// The caller interrupted the call (a signal, Ctrl-C).
        11 Interrupted,
        /// The daemon failed internally; its log says more.
        12 Internal,
        /// The object's bytes are not those that were sealed: the file that it was spilled to is damaged, or
        /// the bytes of every node that holds the object differ from the digest of the seal.
        13 Damaged,
        /// Fewer nodes hold the object than were asked for. The object stays where it is.
        14 TooFew,
        /// The outcome is unknown because a node that decides it does not answer. The change may have
        /// happened, or may happen later.
        15 OutcomeUnknown,
        /// The guard of a lock is not valid any more, or the region has seen a later guard of the same lock.
        16 Fenced,
        /// The barrier is broken: a party died, left, or waited no longer.
        17 Broken,
        /// The region was freed.
        18 Freed,
        /// The region cannot be mapped into memory: it lives on another host, or its home does not let this
        /// user map it. Between nodes: what was asked for is not here, and nothing was done.
        19 NotHere,
        /// The function that was called failed, and its server said why.
        20 Raised,
        /// The object is of another version than was expected. [`Error::version`] is that which is there.
        21 Conflict,
    }
}

/// Error of the client: what happened, to which object, node or path, and what to do about it.
///
/// An error is a pointer, so that results of calls that succeed stay small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Told>);

/// Content of an error.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    kind: ErrorKind,
    message: String,
    id: Option<ObjectId>,
    name: Option<String>,
    amounts: Option<(u64, u64)>,
}

impl Error {
    /// Makes an error of this kind with this message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Told { kind, message: message.into(), id: None, name: None, amounts: None }))
    }

    /// Sets the object that the error is about, unless one is set.
    #[must_use]
    pub fn about(mut self, id: ObjectId) -> Self {
        self.0.id.get_or_insert(id);
        self
    }

    /// Sets the amounts that were needed and held: bytes of a full store, or copies of an object that too few
    /// nodes keep.
    #[must_use]
    pub fn counting(mut self, needed: u64, held: u64) -> Self {
        self.0.amounts = Some((needed, held));
        self
    }

    /// Sets the name that the caller gave for the object, and puts the name beside the id in the message.
    /// Changes nothing if the error is about no object or has a name.
    #[must_use]
    pub fn naming(mut self, name: &str) -> Self {
        if let Some(id) = self.0.id.filter(|_| self.0.name.is_none()) {
            let shown = format!("'{}' ({id})", printable(name));
            self.0.message = self.0.message.replacen(&id.to_string(), &shown, 1);
            self.0.name = Some(name.to_owned());
        }
        self
    }

    /// Puts a description of what failed in front of the message.
    #[must_use]
    pub fn while_doing(mut self, what: &str) -> Self {
        self.0.message = format!("{what}: {}", self.0.message);
        self
    }

    /// Kind of the error, for a program to act on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Object that the error is about, if it is about one.
    pub fn id(&self) -> Option<ObjectId> {
        self.0.id
    }

    /// Name that the caller gave for the object, if one was set.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// Version of the object that is there, if the error is a [`ErrorKind::Conflict`].
    pub fn version(&self) -> Option<crate::Version> {
        let version = self.0.amounts.filter(|_| self.kind() == ErrorKind::Conflict);
        version.map(|(version, _)| crate::Version::from_number(version))
    }

    /// Amount that was needed: bytes if the store is full, copies if too few nodes keep an object.
    pub fn needed(&self) -> Option<u64> {
        self.0.amounts.map(|(needed, _)| needed)
    }

    /// Amount that is held, in the unit of [`Error::needed`].
    pub fn held(&self) -> Option<u64> {
        self.0.amounts.map(|(_, held)| held)
    }

    /// Message of the error, for a person to read. [`Error::lines`] says when it has several lines.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Lines of the message. The message of a full store ([`ErrorKind::Full`]) tells in further lines what
    /// holds the room; any other message is one line. [`fmt::Display`] shows the first line, which stands
    /// alone.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        let has_lines = self.kind() == ErrorKind::Full;
        self.0.message.split(move |char| has_lines && char == '\n')
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.lines().next().unwrap_or_default())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_beside_the_id_once() {
        let id = ObjectId::from_name("flights");
        let error = Error::new(ErrorKind::NotFound, format!("object {id} is not in the cluster"));
        let named = error.clone().about(id).naming("flights").naming("others");
        assert_eq!(named.message(), format!("object 'flights' ({id}) is not in the cluster"));
        assert_eq!((named.id(), named.name()), (Some(id), Some("flights")));
        let unnamed = error.naming("flights");
        assert_eq!((unnamed.id(), unnamed.name()), (None, None));
    }

    #[test]
    fn only_what_a_full_store_holds_is_told_in_lines() {
        let full = Error::new(ErrorKind::Full, "the store is full\n  primary: 1 B");
        assert_eq!(full.lines().collect::<Vec<_>>(), ["the store is full", "  primary: 1 B"]);
        assert_eq!(full.to_string(), "the store is full");
        let other = Error::new(ErrorKind::Invalid, "a\nb");
        assert_eq!((other.lines().count(), other.to_string()), (1, "a\nb".to_owned()));
        let id = ObjectId::from_name("a\nb");
        let named = Error::new(ErrorKind::Full, format!("no room for object {id}")).about(id).naming("a\nb");
        assert_eq!(named.message(), format!("no room for object 'a\\nb' ({id})"));
    }
}
