//! Where objects lie: how many nodes keep one ([`copies`]), moving and spreading them ([`placing`]), a node that
//! leaves ([`drain`]), and objects whose time is over ([`expiry`]).
//!
//! Engine thread only.

pub(crate) mod copies;
pub(crate) mod drain;
pub(crate) mod expiry;
pub(crate) mod placing;
