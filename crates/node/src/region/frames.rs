//! List of all frames about regions, which nodes send on behalf of their clients. Owns no state. Any thread.
//! The user of a frame is the user who asks.
//!
//! A *desk* is the place of a region in the list of its home, and its *life* tells the region from others
//! that had the place before. Invariant: neither is a secret that gives rights. The home refuses a frame
//! whose user lacks the right, and a desk of a region that has gone.

use std::ops::RangeInclusive;

use bytes::Bytes;
use plasmon::region::{RegionInfo, Rights};
use plasmon::wire::{AtMost, Each, MAX_NAME_BYTES, NewObject, Operation, record, table};
use plasmon::{NodeId, ObjectId};

use super::home::Region;
use crate::guard::Fence;
use crate::net::frame::{Location, carried};

/// Numbers of the frames about regions.
pub(super) const REGION_FRAMES: RangeInclusive<u8> = 100..=129;
/// Maximum number of bytes that travel with an operation or its outcome. Reads of the fabric carry more.
pub(super) const CARRIED_MAX_BYTES: u64 = 8 << 10;
/// Maximum number of locks whose guards a region keeps in mind.
pub(super) const MAX_FENCES: usize = 64;

record! {
    /// Place of a region at its home, with the life of the region.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub(crate) struct Desk {
        pub(crate) number: u32,
        pub(crate) life: u64,
    }
}

record! {
    /// Description of a region that goes to another home. The bytes of the region are no part of it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Moved {
        pub(crate) name: String as AtMost<MAX_NAME_BYTES>,
        pub(crate) len: u64,
        pub(crate) owner: u32,
        pub(crate) public: Rights,
        pub(crate) mappable: bool,
        /// Rights of single users.
        pub(crate) granted: Vec<(u32, Rights)>,
        /// Number of changes of the region's rights.
        pub(crate) changes: u16,
        /// Locks whose guards writes have shown, with the largest tokens.
        pub(crate) shown: Vec<(ObjectId, u128)> as AtMost<MAX_FENCES>,
    }
}

record! {
    impl for Fence as Shown { lock: ObjectId, token: u128 }
}

record! {
    /// A change of the rights to a region.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct RightsChange {
        /// Number of changes of the region's rights, with this one. The number wraps.
        pub(crate) number: u16,
        /// User whose rights have changed. `None` if the rights of everybody have.
        pub(crate) user: Option<u32>,
        /// Whether rights were granted. Otherwise they were revoked.
        pub(crate) is_grant: bool,
        /// Rights that the user has now.
        pub(crate) rights: Rights,
        /// Masters beside the owner and root. They are told of the change as well.
        pub(crate) masters: Vec<u32>,
    }
}

impl Desk {
    /// Returns the desk of a region of this node.
    pub(super) fn of(region: &Region) -> Self {
        Self { number: region.desk(), life: region.life() }
    }
}

table! {
    /// A frame about regions.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) enum RegionFrame in ask -> RegionFrame in self {
        /// Asks the home of a region for a mapping with these rights. The region has to belong to `owner`, or
        /// else to the user or to root.
        100 Map { id: ObjectId, owner: Option<u32>, rights: Rights } -> Mapped,
        /// Gives a mapping, which the home counts until the receiver *leaves* it.
        101 Mapped { desk: Desk, len: u64, owner: u32, changes: u16 },
        /// Makes a region on the receiver, and maps it with all rights.
        102 Make {
            name: String as AtMost<MAX_NAME_BYTES>,
            len: u64,
            public: Rights,
            mappable: bool,
            ephemeral: bool,
            exist_ok: bool,
            room_us: u64,
        } -> Made,
        /// Gives up mappings of a region: the sender does not reach its memory any more.
        103 Leave { desk: Desk, count: u32 },
        /// Has an operation carried out, with the bytes that it writes. A write may show a guard.
        104 Access {
            desk: Desk,
            operation: Operation,
            data: Bytes,
            fence: Option<Fence> as Each<Shown>,
        } -> Accessed,
        /// Says what an operation returned, with the bytes that it read.
        105 Accessed { value: u64, data: Bytes },
        /// Asks where the bytes of a region lie, to read them there.
        106 Locate { desk: Desk } -> Located,
        /// Says where they lie until the receiver leaves the mapping.
        107 Located { pieces: Vec<Location> },
        /// Has bytes of a region written that the receiver reads in the sender's memory.
        108 Pull {
            desk: Desk,
            offset: u64,
            from: Vec<Location>,
            fence: Option<Fence> as Each<Shown>,
        } -> Changed,
        /// Has bytes of a region written that the receiver copies from another region.
        109 Copy {
            desk: Desk,
            offset: u64,
            len: u64,
            source: ObjectId,
            life: u64,
            owner: u32,
            source_offset: u64,
        } -> Changed,
        /// Frees a region.
        110 Free { desk: Desk } -> Changed,
        /// Gives a user rights to a region, or takes all of them if there are none.
        111 Govern { desk: Desk, user: Option<u32>, rights: Rights } -> Changed,
        /// Says that a change was made.
        112 Changed,
        /// Asks what a region is like.
        113 Describe { desk: Desk } -> Described,
        /// Says it.
        114 Described { info: RegionInfo },
        /// Asks for the page of the receiver's regions that begins at a place: 0, or what the page before
        /// said.
        115 List { from: u64 } -> Listed,
        /// Answers a *list*, with the place at which the next page begins, if there is one.
        116 Listed { regions: Vec<RegionInfo>, next: Option<u64> },
        /// Answers a *make* as a *mapped* does. A region that was there already is not new.
        118 Made { desk: Desk, len: u64, owner: u32, changes: u16, is_new: bool },
        /// Has an object made of a region's bytes, which nobody changes meanwhile.
        120 Snapshot { desk: Desk, object: NewObject, room_us: u64 } -> Changed,
        /// Has a region moved to another node, within so many microseconds.
        121 Move { desk: Desk, to: NodeId, timeout_us: u64 } -> Changed,
        /// Has the receiver read the memory of a region no more. It answers when no read is under way.
        122 Halt { desk: Desk } -> Changed,
        /// Has the receiver read a region into memory of its own. It serves nobody until it *adopts* it.
        123 Take { id: ObjectId, life: u64, region: Moved, pieces: Vec<Location> } -> Changed,
        /// Makes the receiver the home of a region that it has taken.
        124 Adopt { id: ObjectId, life: u64 } -> Changed,
        /// Tells those who map a region that its rights have changed. If some were revoked, where its bytes
        /// lie is to be asked again.
        119 Governed { desk: Desk, change: RightsChange },
        /// Tells those who map a region that it lives on another node now.
        125 Departed { desk: Desk, to: NodeId },
        /// Tells those who map a region that it has gone. The receiver *leaves* its mappings.
        117 Gone { desk: Desk },
    }
}
carried!(RegionFrame, Self::Access { .. } | Self::Accessed { .. } | Self::Pull { .. } | Self::Copy { .. });

#[cfg(test)]
mod tests {
    use std::path::Path;

    use plasmon::wire::{Table, page};

    use super::*;
    use crate::net::frame::Frames;

    #[test]
    fn every_frame_survives_the_wire_and_has_a_number_of_regions() {
        for frame in RegionFrame::draw_all(50, 1) {
            assert!(REGION_FRAMES.contains(&frame.opcode()));
            assert_eq!(RegionFrame::from_message(frame.clone().into_message()), Ok(frame));
        }
    }

    #[test]
    fn the_page_lists_the_frames() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/region.md");
        page::check(&path, "region frames", &page::rows(RegionFrame::ROWS, RegionFrame::ROWS));
    }
}
