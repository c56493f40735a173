//! Who knows where objects are, and who decides about them: the keepers of their shards.
//!
//! Engine thread only. [`table`] is a keeper's part of the directory; [`news`] tells keepers what this node holds, and
//! [`repair`] tells them again when they have changed; [`early`] holds back what others say of a later view. A keeper
//! decides alone about its objects ([`deciding`]): who may create one ([`claims`]), and when one has ended
//! ([`deletion`]).

pub(crate) mod claims;
pub(crate) mod deciding;
pub(crate) mod deletion;
pub(crate) mod early;
pub(crate) mod news;
pub(crate) mod repair;
#[cfg(feature = "simulation")]
pub(crate) mod simulation;
pub(crate) mod table;
