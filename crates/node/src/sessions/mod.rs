//! Clients of this node: their connections, what they ask, and what they are told.
//!
//! Engine thread only. [`listener`] takes connections and [`sockets`] serves them, [`client`] is one of them, [`places`]
//! says how many may be there, [`rings`] are requests through shared memory, [`requests`] answers each kind, and
//! [`subscriptions`] tells who wants to know what is sealed.

pub(crate) mod client;
pub(crate) mod listener;
pub(crate) mod places;
pub(crate) mod requests;
pub(crate) mod rings;
pub(crate) mod sockets;
pub(crate) mod subscriptions;
