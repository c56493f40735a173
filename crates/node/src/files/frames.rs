//! List of all frames about files, which nodes send on behalf of their clients. Owns no state. Any thread.
//! Invariant: the user of a frame is the user of the client.

use std::ops::RangeInclusive;

use bytes::Bytes;
use plasmon::ObjectId;
use plasmon::wire::files::{
    FileAnswer, FileAsked, MAX_GROUPS, MAX_STALE, NodeCheck, Stale, Time, VolumeChange, VolumeInfo,
    VolumeTerms,
};
use plasmon::wire::{AtMost, MAX_NAME_BYTES, record, table};

use super::state::Opens;
use crate::net::frame::{Location, Order, carried};
use crate::object::{Head, Stamp};

/// Numbers of the frames about files.
pub(super) const FILE_FRAMES: RangeInclusive<u8> = 160..=209;
/// Part of a node's memory that pulls leave free, as a divisor: objects can still come to the node there to
/// be read.
const RESERVED_PART: u64 = 20;
/// Maximum number of objects in a frame.
pub(super) const MAX_OBJECTS: usize = 512;

record! {
    /// Key of a session at the home of its volume.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct SessionKey {
        /// Number of the volume.
        pub(crate) volume: u32,
        pub(crate) session: u32,
        /// Number by which the home knows that the sender has the session.
        pub(crate) secret: u64,
    }
}

record! {
    /// Identity and rights that a new session is to have.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Wish {
        pub(crate) gid: u32,
        pub(crate) groups: Vec<u32> as AtMost<MAX_GROUPS>,
        /// Whether the session may act for other users.
        pub(crate) trusted: bool,
        /// Whether the home checks permissions.
        pub(crate) checked: bool,
        pub(crate) read_only: bool,
        /// Number and secret of an earlier session that is to go on.
        pub(crate) again: Option<(u32, u64)>,
    }
}

record! {
    /// Place of a batch of changes in the log of a volume.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Position {
        /// Number of the volume.
        pub(crate) volume: u32,
        /// Number of the record by which the sender is the home.
        pub(crate) number: u64,
        /// Number of the batch.
        pub(crate) index: u64,
    }
}

record! {
    /// Place of an object in the memory of the sender, valid as long as the stamp has this value.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Lying {
        pub(crate) head: Head,
        pub(crate) pieces: Vec<Location>,
        pub(crate) stamp: Stamp,
    }
}

record! {
    /// Room that a node has for objects of files.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Room {
        /// Whether the node takes objects of files. It takes none in cache mode, without files, while it is
        /// drained, and while it is nearly full and cannot spill.
        pub(crate) takes: bool,
        /// Number of bytes of the node's memory that are free, or that objects take which it may drop.
        pub(crate) free: u64,
        /// Number of bytes that are free on the disk to which the node spills.
        pub(crate) disk: u64,
        /// Number of bytes of the node's memory. 0 if it never takes objects of files.
        pub(crate) capacity: u64,
    }
}

impl Room {
    /// The room of a node that keeps no objects of files.
    pub(super) const NEVER: Self = Self { takes: false, free: 0, disk: 0, capacity: 0 };

    /// Whether the node never keeps objects of files, however much memory is free.
    pub(super) fn is_never(&self) -> bool {
        !self.takes && self.capacity == 0
    }

    /// Whether enough memory is free that objects find room without spilling, and that other objects can
    /// still come to the node to be read.
    pub(super) fn has_memory(&self) -> bool {
        self.capacity > 0 && self.free >= self.capacity / RESERVED_PART
    }
}

table! {
    /// A frame about files.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) enum FileFrame in ask -> FileFrame in self {
        /// Has the home of a volume carry out an operation of a session, which is told what others change if
        /// it *follows*.
        160 Operate { key: SessionKey, follows: bool, asked: FileAsked } -> Operated,
        /// Says what came of it.
        161 Operated { answer: FileAnswer },
        /// Makes a session at the home of a volume, or has one go on by the sender.
        162 Attach { name: String as AtMost<MAX_NAME_BYTES>, wish: Wish } -> Attached,
        /// Gives a session.
        163 Attached { key: SessionKey, fresh: bool, info: VolumeInfo },
        /// Ends a session.
        164 Detach { key: SessionKey } -> Ended,
        /// Says that something has ended, or is not there.
        165 Ended,
        /// Has the receiver become the home of a new volume.
        166 Create { name: String as AtMost<MAX_NAME_BYTES>, terms: VolumeTerms } -> Described,
        /// Changes the terms of a volume.
        167 Set { name: String as AtMost<MAX_NAME_BYTES>, change: VolumeChange } -> Described,
        /// Says what a volume is like.
        168 Described { info: VolumeInfo },
        /// Removes a volume.
        169 Remove { name: String as AtMost<MAX_NAME_BYTES> } -> Ended,
        /// Asks for the page of the receiver's volumes that begins at a place: 0, or what the page before
        /// said.
        170 List { from: u64 } -> Listed,
        /// Answers a *list*, with the place at which the next page begins, if there is one.
        171 Listed { volumes: Vec<VolumeInfo>, next: Option<u64> },
        /// Asks which of these objects no file of a volume has, and none will have: those of sessions that
        /// have ended.
        172 Sweep { volume: u32, ids: Vec<ObjectId> as AtMost<MAX_OBJECTS> } -> Swept,
        /// Says it. They are to be deleted.
        173 Swept { ids: Vec<ObjectId> as AtMost<MAX_OBJECTS> },
        /// Tells that a session of a volume of the sender has ended: the receiver may have objects of it.
        174 SessionEnded { volume: u32 },
        /// Tells a session of the receiver's what it must not keep any more, as the home says.
        190 Told { volume: u32, session: u32, number: u64, stale: Vec<Stale> as AtMost<MAX_STALE> },
        /// Says that a session keeps nothing more of what a *told* named.
        191 Confirmed { key: SessionKey, number: u64 },
        /// Tells a mirror what operations have changed since the batch before. The parts of a batch come one
        /// after the other, counted from 0; the batch counts when the last has come and none is missing.
        180 Changes { at: Position, sent: u64, part: u32, last: bool, changes: Bytes },
        /// Asks a mirror whether it has all batches up to this one.
        181 Beat { at: Position, sent: u64 },
        /// Tells the home which batches the sender has, as the answer to what was sent at a time of the
        /// home's clock, or that it does not have the volume.
        182 Applied { at: Position, sent: u64, is_there: bool },
        /// Has the receiver become a mirror of a volume of the sender, of which it has nothing yet.
        183 Join { volume: u32, number: u64, created: Time } -> Ended,
        /// Tells a new home that the sender has a session, and what that has open if it is trusted, in
        /// several parts if need be, which are counted from 0. A telling with a higher number takes the place
        /// of an earlier one of the sender.
        184 TellOpens {
            key: SessionKey,
            telling: u64,
            part: u32,
            opens: Vec<(u64, Opens)> as AtMost<MAX_OBJECTS>,
            more: bool,
        } -> Ended,
        /// Tells the home that the sender is to be its mirror no longer.
        185 LetGo { volume: u32 },
        /// Has the receiver take an object of the sender's in this role, and read it where it lies.
        200 Pull { order: Order, lying: Option<Lying> } -> HasRoom,
        /// Asks how much room the receiver has for objects of files.
        201 AskRoom -> HasRoom,
        /// Says how much room the sender has for objects of files; to a *pull*, that it has the object.
        202 HasRoom { room: Room },
        /// Asks a holder for a range of an object of a file.
        203 Peek { id: ObjectId, at: u64, len: u32 } -> Peeked,
        /// Brings it, unless it is too long, and says where the object lies.
        204 Peeked { lying: Lying, bytes: Bytes },
        /// Tells of objects that no file has any more, and whose deletion waits for nodes that do not answer.
        /// The receiver may drop them.
        205 Condemned { ids: Vec<ObjectId> as AtMost<MAX_OBJECTS> },
        /// Has the receiver look through what it has of a volume, and delete what no file has if it is to
        /// sweep.
        206 Check { volume: u32, sweep: bool } -> Checked,
        /// Says what it has.
        207 Checked { checked: NodeCheck },
        /// Tells that nothing of a session below a counter will be committed any more: the receiver may have
        /// objects of it.
        208 Discarded { volume: u32, session: u32, below: u64 },
    }
}
carried!(FileFrame);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use plasmon::wire::{Table, page};

    use super::*;
    use crate::net::frame::Frames;

    #[test]
    fn every_frame_survives_the_wire_and_has_a_number_of_files() {
        for frame in FileFrame::draw_all(50, 1) {
            assert!(FILE_FRAMES.contains(&frame.opcode()));
            assert_eq!(FileFrame::from_message(frame.clone().into_message()), Ok(frame));
        }
    }

    #[test]
    fn the_page_lists_the_frames() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/files.md");
        page::check(&path, "file frames", &page::rows(FileFrame::ROWS, FileFrame::ROWS));
    }
}
