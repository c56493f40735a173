//! Places: the number of clients that a node takes, given the descriptors that its process may have.
//!
//! Owns the limits. Engine thread only. A reserve is kept for the node itself: segments, tables, the ports
//! for other nodes and for health, and connections with other nodes. Clients have the rest, of which clients
//! that have not said hello have only a part. So connected clients are served whoever takes descriptors, and
//! new clients are served or told why not.

use plasmon::{Error, ErrorKind};
use tracing::{debug, warn};

use super::client::Client;
use crate::kernel::ClientKey;
use crate::net::door::STRANGERS;
use crate::sessions::Sessions;

/// Number of descriptors of a client: its socket, its process, its bell, one on its way to the client, and
/// two that the client has sent.
const CLIENT_DESCRIPTORS: u64 = 6;
/// Number of descriptors of a segment.
const SEGMENT_DESCRIPTORS: u64 = 2;
/// Number of descriptors of tables, files, event loops and listeners.
const OTHER_DESCRIPTORS: u64 = 128;
/// The divisor of all descriptors that gives the part for connections with other nodes.
const NODES_DIVISOR: u64 = 16;
/// Number of clients that are taken in any case.
const MIN_CLIENTS: u64 = 8;
/// The divisor of the places that gives the part that one user leaves to others, and the part for clients
/// that have not said hello.
const USER_RESERVE_DIVISOR: usize = 8;
/// Maximum number of clients of one user that have not said hello.
const MAX_SILENT_CLIENTS: usize = 1024;
/// Number of places for a user below which the node logs a warning.
const FEW_CLIENTS: usize = 512;

/// The places for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Places {
    /// Number of places for all users.
    all: usize,
    /// Number of places for one user.
    each: usize,
    /// Number of places for one user's clients that have not said hello.
    silent_each: usize,
    /// Number of places for all clients that have not said hello.
    silent: usize,
    /// The number of clients of one user that the settings allow.
    wanted: usize,
}

impl Places {
    /// Computes the places for a number of descriptors (`None` for any number) and of segments.
    pub(crate) fn new(descriptors: Option<u64>, segments: u32, max_clients: u32) -> Self {
        let all = descriptors.map_or(usize::MAX, |limit| {
            let own = SEGMENT_DESCRIPTORS * u64::from(segments)
                + STRANGERS as u64
                + OTHER_DESCRIPTORS
                + limit / NODES_DIVISOR;
            (limit.saturating_sub(own) / CLIENT_DESCRIPTORS).max(MIN_CLIENTS) as usize
        });
        let wanted = max_clients as usize;
        let silent_each = (all / USER_RESERVE_DIVISOR).min(MAX_SILENT_CLIENTS);
        Self {
            all,
            each: wanted.min(all - all / USER_RESERVE_DIVISOR),
            silent_each,
            silent: 2 * silent_each,
            wanted,
        }
    }

    /// Logs if there are fewer places than the settings want.
    pub(crate) fn tell(&self, descriptors: Option<u64>) {
        let (Some(limit), true) = (descriptors, self.each < self.wanted) else { return };
        let text = format!(
            "with {limit} open files this node takes {} clients, {} of one user, and not the {} of \
             --max-clients: {MORE}",
            self.all, self.each, self.wanted
        );
        if self.each < FEW_CLIENTS { warn!("{text}") } else { debug!("{text}") }
    }
}

/// Advice in messages about too few places.
const MORE: &str = "raise the limit (LimitNOFILE= of a service, `ulimit -Hn` of a shell)";

/// Counts of the connected clients, made for one more client of a user.
#[derive(Default)]
struct Crowd {
    all: usize,
    of_user: usize,
    silent: usize,
    silent_of_user: usize,
    /// The client that has been connected longest without saying hello.
    longest: Option<ClientKey>,
    longest_of_user: Option<ClientKey>,
}

impl Sessions {
    /// Makes a place for one more client of a user; a client that has not said hello may lose its place.
    ///
    /// # Errors
    /// When all places are taken by clients that have said hello.
    pub(crate) fn make_place(&self, uid: u32) -> Result<(), Error> {
        let places = &self.places;
        let crowd = self.crowd(uid);
        let user_is_many = crowd.of_user >= places.each;
        let leaves = if user_is_many || crowd.silent_of_user >= places.silent_each {
            crowd.longest_of_user
        } else if crowd.all >= places.all || crowd.silent >= places.silent {
            crowd.longest
        } else {
            return Ok(());
        };
        if let Some(silent) = leaves {
            self.let_go(silent, "it never said hello, and others want its place");
            return Ok(());
        }
        let more = if user_is_many && places.each == places.wanted {
            "start the node with more --max-clients".to_owned()
        } else {
            format!("{MORE}, since the node may have no more open files")
        };
        let text = if user_is_many {
            format!(
                "user {uid} has {} clients at this node and gets no more: close some, or {more}",
                crowd.of_user
            )
        } else {
            format!("this node has {} clients and takes no more: close some, or {more}", crowd.all)
        };
        Err(Error::new(ErrorKind::Busy, text))
    }

    fn crowd(&self, uid: u32) -> Crowd {
        let mut crowd = Crowd::default();
        let longer = |longest: &mut Option<ClientKey>, key| {
            // Keys grow, so the smallest is the oldest.
            *longest = Some(longest.map_or(key, |before| before.min(key)));
        };
        for (key, client) in &*self.clients.borrow() {
            let Client { uid: user, greeted, .. } = client;
            crowd.all += 1;
            crowd.of_user += usize::from(*user == uid);
            if !greeted {
                crowd.silent += 1;
                longer(&mut crowd.longest, *key);
                if *user == uid {
                    crowd.silent_of_user += 1;
                    longer(&mut crowd.longest_of_user, *key);
                }
            }
        }
        crowd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_what_the_node_leaves() {
        let places = |descriptors, max_clients| {
            let Places { all, each, .. } = Places::new(descriptors, 64, max_clients);
            (all, each)
        };
        assert_eq!(places(Some(1024), 4096), (64, 56));
        assert_eq!(places(Some(32_768), 4096), (5024, 4096));
        assert_eq!(places(Some(1 << 20), 4096).1, 4096);
        assert_eq!(places(None, 4096).1, 4096);
        assert_eq!(places(Some(1 << 20), 1).1, 1);
        // Even without any descriptors, some clients are taken.
        assert_eq!(places(Some(0), 4096), (8, 7));
    }

    #[test]
    fn those_who_say_nothing_have_a_part() {
        for descriptors in [None, Some(0), Some(1024), Some(20_000), Some(u64::MAX)] {
            let places = Places::new(descriptors, 64, 4096);
            assert!((1..=MAX_SILENT_CLIENTS).contains(&places.silent_each), "{places:?}");
            assert!(places.silent <= places.all / 4, "{places:?}");
        }
    }
}
