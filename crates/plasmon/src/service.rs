//! Services as programs see them: who may call, what a list of services tells, and the times of a call.
//!
//! Owns no state. Any thread. A service is a name under which processes of any host run functions for others.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use plasmon::service::ServeOptions;
//!
//! let client = plasmon::Client::connect(plasmon::Socket::find())?;
//! let server = client.serve("echo", &["echo"], &ServeOptions::default())?;
//! std::thread::spawn(move || {
//!     while let Ok(Some(call)) = server.receive(None) {
//!         let data = call.data().to_vec();
//!         let _ = call.reply(&data);
//!     }
//! });
//! // In any process of this user, on any host of the cluster:
//! let echo = client.service("echo", None)?;
//! assert_eq!(*echo.call("echo", b"hello", Duration::from_secs(10))?, *b"hello");
//! # Ok::<(), plasmon::Error>(())
//! ```

use std::time::Duration;

#[cfg(not(loom))]
pub use crate::client::{
    AwaitedCall, AwaitedReply, Call, CallData, FunctionReply as Reply, KeptReply, PendingReply, Server,
    Service, ServiceList,
};
use crate::wire::{AtMost, Each, MAX_NAME_BYTES};
use crate::{NodeId, ObjectId};

/// Number of the function for pings, which every server has. This library answers a ping in a thread that
/// receives. Between nodes the function has an empty name.
pub const PING: u16 = u16::MAX;
/// Largest number of functions of a service.
pub const MAX_FUNCTIONS: usize = 256;
/// Largest number of bytes that the names of all functions of a service may have together.
pub const MAX_FUNCTIONS_BYTES: usize = 8 << 10;
/// Largest number of bytes of a call, and of a reply.
pub const MAX_DATA_BYTES: usize = 1 << 30;
/// Largest number of users in a list of those who may call.
pub const MAX_ALLOWED: usize = 64;

crate::wire::table! {
    /// Users who may call the functions of a server, beside its own user and root.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Allow {
        /// Nobody else.
        0 User,
        /// Every user.
        1 Everyone,
        /// Users of these ids, at most [`MAX_ALLOWED`].
        2 Users(users: Vec<u32> as AtMost<MAX_ALLOWED>),
    }
}

#[allow(clippy::derivable_impls, reason = "a table has no attributes of its rows")]
impl Default for Allow {
    fn default() -> Self {
        Self::User
    }
}

impl Allow {
    /// Whether a user may call a server that runs as `owner`.
    pub fn permits(&self, owner: u32, user: u32) -> bool {
        user == owner
            || user == 0
            || match self {
                Self::User => false,
                Self::Everyone => true,
                Self::Users(users) => users.contains(&user),
            }
    }
}

/// Options of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServeOptions {
    /// Users who may call the functions.
    pub allow: Allow,
}

crate::wire::record! {
    /// Row of a list of services.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ServiceInfo {
        /// Name of the service.
        pub name: String as AtMost<MAX_NAME_BYTES>,
        /// Node that keeps the name.
        pub home: NodeId,
        /// User to whom the service belongs.
        pub owner: u32,
        /// Names of the functions, in the order of their numbers.
        pub functions: Vec<String> as Each<AtMost<MAX_NAME_BYTES>, MAX_FUNCTIONS>,
        /// Number of nodes on which processes serve the functions.
        pub nodes: u32,
        /// Time since the name was taken on this home, in milliseconds.
        pub age_ms: u64,
    }
}

/// Origin of a call: its node and its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Node of the caller.
    pub node: NodeId,
    /// User id of the caller, as the caller's node knows it.
    pub user: u32,
}

/// Time of a call, and its parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Time in which the call waited for a thread of a server.
    pub queue: Duration,
    /// Time between the nodes of caller and server in both directions, including the time of their daemons.
    pub wire: Duration,
    /// Time from the moment when a thread of a server had the call until the thread had replied.
    pub function: Duration,
    /// Time of the call as the caller saw it.
    pub total: Duration,
}

/// Id under which the name of a service is claimed and found. No object with a name has the same id.
pub fn service_id(name: &str) -> ObjectId {
    ObjectId::of_kind("service", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_called_by_its_user_by_root_and_by_whom_it_allows() {
        let may = |allow: Allow| [0, 7, 8, 9].map(|user| allow.permits(7, user));
        assert_eq!(may(Allow::User), [true, true, false, false]);
        assert_eq!(may(Allow::Everyone), [true; 4]);
        assert_eq!(may(Allow::Users(vec![9])), [true, true, false, true]);
    }

    #[test]
    fn a_service_has_an_id_of_its_own() {
        assert_ne!(service_id("counter"), ObjectId::from_name("counter"));
        assert_ne!(service_id("counter"), crate::region::region_id("counter"));
    }
}
