//! Regions as programs see them: rights, options and what a list of regions tells.
//!
//! Owns no state. Any thread. A region is memory with a name that many processes of many hosts read and
//! write. A region lives on one node, its home.
//!
//! ```no_run
//! use plasmon::region::{RegionOptions, Rights};
//!
//! let client = plasmon::Client::connect(plasmon::Socket::find())?;
//! let counter = client.create_region("counter", 8, &RegionOptions::default())?;
//! counter.fetch_add(0, 1)?;
//! // In any process of this user, on any host of the cluster:
//! let same = client.map_region("counter", Rights::READ_WRITE, None)?;
//! assert_eq!(same.fetch_add(0, 1)?, 1);
//! # Ok::<(), plasmon::Error>(())
//! ```

use std::fmt;
use std::time::Duration;

#[cfg(not(loom))]
pub use crate::client::{Awaited, PendingRegion as Pending, Region, RegionEvents, RegionList, View};
use crate::wire::AtMost;
use crate::wire::MAX_NAME_BYTES;
use crate::{NodeId, ObjectId};

crate::wire::record! {
    /// Rights to a region.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct Rights {
        /// Whether the user may read the region, and wait for a change of it.
        pub read: bool,
        /// Whether the user may change bytes of the region.
        pub write: bool,
        /// Whether the user may grant and revoke rights, move the region and free it.
        pub master: bool,
    }
}

impl Rights {
    /// No right. A handle without rights shows that there is a region.
    pub const NONE: Self = Self { read: false, write: false, master: false };
    /// Right to read.
    pub const READ: Self = Self { read: true, ..Self::NONE };
    /// Right to write, without that to read.
    pub const WRITE: Self = Self { write: true, ..Self::NONE };
    /// Right to grant, revoke, move and free, without those to read and to write.
    pub const MASTER: Self = Self { master: true, ..Self::NONE };
    /// Right to read and to write.
    pub const READ_WRITE: Self = Self { write: true, ..Self::READ };
    /// All rights.
    pub const ALL: Self = Self { master: true, ..Self::READ_WRITE };

    /// Whether these rights contain `others`.
    pub fn contain(self, others: Self) -> bool {
        (self.read || !others.read) && (self.write || !others.write) && (self.master || !others.master)
    }

    /// Rights of both: those that `self` or `others` contain.
    #[must_use]
    pub fn with(self, others: Self) -> Self {
        Self {
            read: self.read || others.read,
            write: self.write || others.write,
            master: self.master || others.master,
        }
    }

    /// Rights of these letters: `r`, `w` and `m`, each at most once. `None` for any other text.
    pub fn of_letters(letters: &str) -> Option<Self> {
        let mut rights = Self::NONE;
        for letter in letters.chars() {
            let right = match letter {
                'r' => &mut rights.read,
                'w' => &mut rights.write,
                'm' => &mut rights.master,
                _ => return None,
            };
            if std::mem::replace(right, true) {
                return None;
            }
        }
        Some(rights)
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = [(self.read, "r"), (self.write, "w"), (self.master, "m")];
        let held: String = letters.iter().filter(|(held, _)| *held).map(|(_, letter)| *letter).collect();
        f.pad(if held.is_empty() { "-" } else { &held })
    }
}

/// Users to whom rights are granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Principal {
    /// User of this id, as the nodes know it.
    User(u32),
    /// Every user.
    Everyone,
}

/// Options for making a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionOptions {
    /// Node on which the region is to live. `None` for the node of this host.
    pub node: Option<NodeId>,
    /// Rights of every user. The creator and root have all rights.
    pub public: Rights,
    /// Whether processes of the home may map the region, so that they read and write it without any call.
    pub mappable: bool,
    /// Whether the region ends with the connection that made it.
    pub ephemeral: bool,
    /// Whether a region of this name that is there already, of this user and of this size, is mapped instead.
    pub exist_ok: bool,
    /// Time-out of the call, which includes the wait for room. With `None` the call does not wait for others
    /// to make room.
    pub room: Option<Duration>,
}

impl Default for RegionOptions {
    fn default() -> Self {
        Self {
            node: None,
            public: Rights::NONE,
            mappable: true,
            ephemeral: false,
            exist_ok: false,
            room: None,
        }
    }
}

crate::wire::codes! {
    /// State of a region, as its home or a handle knows it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum RegionState: u8 {
        /// The region is there.
        0 Live,
        /// The region was freed.
        1 Freed,
        /// The region's home has gone, and the region with it.
        2 Lost,
    }
}

crate::wire::record! {
    /// Row of a list of regions.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RegionInfo {
        /// Name of the region.
        pub name: String as AtMost<MAX_NAME_BYTES>,
        /// Size in bytes.
        pub len: u64,
        /// Node on which the region lives.
        pub home: NodeId,
        /// User who made the region.
        pub owner: u32,
        /// Rights of the user who asks.
        pub rights: Rights,
        /// Rights of every user.
        pub public: Rights,
        /// Whether processes of the owner on the home may map the region.
        pub mappable: bool,
        /// Whether processes of the owner were to map the region and cannot, because the home had no memory
        /// left that they may map. Such processes use the region by calls.
        pub crowded_out: bool,
        /// Number of places of the home's memory in which the region lies.
        pub pieces: u32,
        /// Whether the region ends with the connection that made it.
        pub ephemeral: bool,
        /// Number of handles to the region that clients of the home have.
        pub handles: u32,
        /// Number of other nodes on which clients have handles to the region.
        pub nodes: u32,
        /// Time since the region was made on this home, in milliseconds.
        pub age_ms: u64,
    }
}

crate::wire::table! {
    /// An event of a region to which a client has a handle. `region` is the name of the region, `owner` the
    /// user who made the region.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum RegionEvent {
        /// The region lives on another node.
        1 Moved {
            /// Name of the region.
            region: Box<str> as AtMost<MAX_NAME_BYTES>,
            /// User to whom the region belongs.
            owner: u32,
            /// Node on which the region lives now.
            home: NodeId,
        },
        /// The region was freed.
        2 Freed {
            /// Name of the region.
            region: Box<str> as AtMost<MAX_NAME_BYTES>,
            /// User to whom the region belonged.
            owner: u32,
        },
        /// A user has got rights. This is told to that user, and to masters of the region.
        3 Granted {
            /// Name of the region.
            region: Box<str> as AtMost<MAX_NAME_BYTES>,
            /// User to whom the region belongs.
            owner: u32,
            /// User who has got rights. `None` for every user.
            user: Option<u32>,
            /// Rights that this user has now, or every user.
            rights: Rights,
        },
        /// The rights that were granted to a user were revoked. This is told to that user, and to masters of
        /// the region.
        4 Revoked {
            /// Name of the region.
            region: Box<str> as AtMost<MAX_NAME_BYTES>,
            /// User to whom the region belongs.
            owner: u32,
            /// User whose rights were revoked. `None` for every user.
            user: Option<u32>,
            /// Rights that the user still has, because every user has them.
            rights: Rights,
        },
        /// The region's home has left the cluster, and the region with it.
        5 Lost {
            /// Name of the region.
            region: Box<str> as AtMost<MAX_NAME_BYTES>,
            /// User to whom the region belonged.
            owner: u32,
        },
        /// Events are missing here: the subscriber was too slow, or the node could not hear of changes of
        /// rights while a region moved or its home was out of reach.
        6 Gap {
            /// Number of missing events. 0 if nobody knows.
            missed: u64,
        },
    }
}

/// Id under which the name of a region is claimed and found. No object with a name has the same id.
pub fn region_id(name: &str) -> ObjectId {
    ObjectId::of_kind("region", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_have_letters() {
        for letters in ["r", "w", "rw", "m", "rwm", "rm"] {
            let rights = Rights::of_letters(letters).expect("letters of rights");
            assert_eq!(rights.to_string(), letters);
        }
        assert_eq!(Rights::of_letters(""), Some(Rights::NONE));
        assert_eq!(Rights::NONE.to_string(), "-");
        assert_eq!([Rights::of_letters("rr"), Rights::of_letters("x")], [None, None]);
    }

    #[test]
    fn rights_contain_others() {
        assert!(Rights::ALL.contain(Rights::READ_WRITE) && Rights::READ_WRITE.contain(Rights::READ));
        assert!(!Rights::READ.contain(Rights::READ_WRITE) && Rights::NONE.contain(Rights::NONE));
        assert_eq!(Rights::READ.with(Rights::WRITE), Rights::READ_WRITE);
    }

    #[test]
    fn a_region_has_an_id_of_its_own() {
        assert_ne!(region_id("counter"), ObjectId::from_name("counter"));
        assert_ne!(region_id("counter"), region_id("counters"));
    }
}
