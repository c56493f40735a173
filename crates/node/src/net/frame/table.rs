//! The one list of frames between nodes: number, body and answer of each. The encoding, the inputs of tests
//! and of the fuzzer, and the list in `docs/design/net.md` follow from it. Owns no state.

use std::ops::RangeInclusive;

use bytes::Bytes;
use plasmon::drain::DrainStep;
use plasmon::wire::{AtMost, Each, record, table};
use plasmon::{DeleteOutcome, Error, Event, Filter, NodeId, ObjectId, ObjectInfo};
use plasmon_fabric::RemoteRegion;

use super::*;
use crate::object::{Role, Stamp};

record! {
    impl for RemoteRegion as Region { base: u64, key: u64, len: u64 }
}

/// Longest name of a provider in bytes.
const MAX_PROVIDER_BYTES: usize = 64;
/// Numbers of the frames of the directory.
pub(crate) const DIRECTORY_FRAMES: RangeInclusive<u8> = 1..=29;
/// Numbers of the frames of transfers.
pub(crate) const TRANSFER_FRAMES: RangeInclusive<u8> = 30..=59;
/// Numbers of the frames of placement.
pub(crate) const PLACEMENT_FRAMES: RangeInclusive<u8> = 60..=69;
/// Numbers of the frames by which nodes tell each other's clients of their objects.
pub(crate) const OBJECTS_FRAMES: RangeInclusive<u8> = 70..=79;
/// Numbers of the frames by which nodes report to each other.
pub(crate) const OVERVIEW_FRAMES: RangeInclusive<u8> = 80..=89;

table! {
    /// A frame between nodes. Numbers from 90 on are the network's own, or of every service.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) enum Message in ask -> Message in self {
        /// Asks a keeper for an object, to be sent to `reply_to`. The keeper sends a *fetch* to a holder that
        /// is not among `avoid`, or keeps the request until there is one. `missed` says that the second
        /// keeper asks the first: the object was lost, and a new one may have been created.
        1 Find { id: ObjectId, missed: bool, wish: Wish, avoid: Vec<NodeId> }
            -> Eager | Offer | Registered | Stream | Dial | Pushed,
        /// Withdraws the *find* of the same request id.
        2 Forget { id: ObjectId },
        /// Says which replicas the sender holds.
        3 Publish { holdings: Vec<Holding> },
        /// Says which replicas the sender holds no longer.
        4 Unpublish { how: Withdrawal, ids: Vec<ObjectId> },
        /// Asks the first keeper to delete objects on all nodes, for the user. A life of 0 stands for any
        /// life. If `asked_us` ago another keeper was asked, which may have done so, an object whose life has
        /// ended since then counts as absent.
        5 Delete { lives: Vec<(ObjectId, u64)>, asked_us: Option<u64> } -> Deleted,
        /// Gives the outcome of each object of a *delete*. Every holder has dropped its replicas.
        6 Deleted { outcomes: Vec<DeleteOutcome> },
        /// Orders the second keeper to send no node to objects any more, and to answer which nodes may hold
        /// them. The lives are those that are known to end. A life of 0 stands for none. With `turn` the
        /// objects are replaced in this turn of the first keeper: the receiver sends askers there.
        7 Enlist { lives: Vec<(ObjectId, u64)>, turn: Option<u64> } -> Enlisted,
        /// Answers an *enlist*: the nodes that may hold lives of its objects. If the list is not complete,
        /// there are more.
        8 Enlisted { complete: bool, lives: Vec<(ObjectId, u64, NodeId)> },
        /// Tells the second keeper that a deletion or a replacement is over, and which lives have ended. A
        /// life of 0 stands for none. After a replacement nodes have a successor, which they may not have
        /// published yet.
        9 Bury { lives: Vec<(ObjectId, u64)>, successor: Option<Successor> } -> Done,
        /// Orders the receiver to drop its replicas of these lives, and to make none from fetches under
        /// way.
        10 Drop { lives: Vec<(ObjectId, u64)> } -> Done,
        /// Asks which lives of objects the receiver holds and the user may see.
        /// With `withheld`, also those that the receiver gives nobody yet, since it has come back.
        11 Hold { ids: Vec<ObjectId>, withheld: bool } -> Held,
        /// Says of each object of a *hold* which life is held, if any.
        12 Held { lives: Vec<Option<Life>> },
        /// Tells a keeper that the sender may fetch this object without asking a keeper.
        13 Enroll { id: ObjectId } -> Done,
        /// Asks the first keeper whether objects are on any node.
        14 Query { ids: Vec<ObjectId> } -> Found,
        /// Says of each object of a *query* whether it is on any node.
        15 Found { known: Vec<bool> },
        /// Asks a keeper which nodes hold an object, as far as the user may know.
        16 Locate { id: ObjectId } -> Located,
        /// Says which nodes hold the object of a *locate*, each in which role.
        17 Located { holders: Vec<(NodeId, Role)> },
        /// Asks the first keeper whether the sender may create this id. With `probe` the second keeper is
        /// asked, which notes nothing.
        18 Claim { id: ObjectId, probe: bool } -> Claimed,
        /// Says whether the sender of a *claim* may create the id.
        19 Claimed { verdict: Verdict },
        /// Says which ids the sender creates no longer.
        20 Unclaim { ids: Vec<ObjectId> },
        /// Asks whether the receiver still creates these ids. It says *unclaim* of those that it does not.
        21 Affirm { ids: Vec<ObjectId> },
        /// Says which ids the receiver may not create after all: another node was first.
        22 Taken { ids: Vec<ObjectId> },
        /// Says which replicas the sender still holds, which was no member for a while. An object that was
        /// created anew meanwhile is not replaced by a former one.
        23 Return { holdings: Vec<Holding> },
        /// Says that the sender gives out what it holds, after a *return*.
        24 Serve,
        /// Asks a keeper for short objects, to be sent to `reply_to`. The keeper sends a *fetch short* to
        /// their holders, and says *short* of those of which it knows no holder.
        25 FindShort { ids: Vec<ObjectId> },
        /// Asks the first keeper to put an object of the sender's in the place of the life `from`, within
        /// `patience_us`. The sender, and the `others`, which have the object too and are to keep it, give it
        /// to nobody before the answer. Each of them is named with its incarnation.
        26 Replace { holding: Holding, from: u64, others: Vec<(NodeId, u64)>, patience_us: u64 } -> Done,
        /// Asks the first keeper which life of an object is given now. One who wants to replace it is refused
        /// if the user may not.
        27 Current { id: ObjectId, replaces: bool } -> Is,
        /// Answers a *current*. If no replacement is under way, guards of earlier epochs, and of this one up
        /// to the turn, are lifted.
        28 Is { life: Option<u64>, copies: u16, lifted: Option<(u64, u64)> },
        /// Orders the receiver to give these lives of an object only to who has asked which life is
        /// *current*, also those that come by fetches under way, until it drops them or the guard of this
        /// turn is lifted.
        29 Guard { id: ObjectId, lives: Vec<u64>, turn: u64, lifts: bool } -> Done,
        /// Asks a holder for an object, to be sent to `reply_to` as `wish` says. The nodes `others` hold it
        /// too. A keeper says which life it gives; 0 stands for any.
        30 Fetch { id: ObjectId, life: u64, stage: Stage, wish: Wish, others: Vec<NodeId> }
            -> Eager | Offer | Registered | Stream | Dial | Pushed,
        /// Brings a whole object, or the last piece of one whose other pieces came right before, in *parts*
        /// of the same request.
        31 Eager { head: Head, bytes: Bytes },
        /// Says where an object can be read, for `lease_ms` from the sending of the request on. The bytes are
        /// there as long as the stamp has this value. The nodes `others` hold the object too.
        32 Offer {
            head: Head,
            lease_ms: u32,
            pieces: Vec<Location>,
            stamp: Option<Stamp>,
            others: Vec<NodeId>,
        },
        /// Offers an object through registrations that were made for this transfer.
        33 Registered { head: Head, lease_ms: u32, regions: Vec<RemoteRegion> as Each<Region> },
        /// Offers an object in pieces. They are sent when the asker is *ready*.
        34 Stream { head: Head, lease_ms: u32 },
        /// Offers an object through a socket at this port of the sender's address. A client that shows the
        /// secret may ask for it there as long as the lease stands.
        35 Dial { head: Head, lease_ms: u32, port: u16, secret: u128 },
        /// Extends the lease that came with the answer to the sender's request `lease`.
        36 Renew { lease: u64 } -> Renewed,
        /// Says for how long a lease was extended.
        37 Renewed { lease_ms: u32 },
        /// Gives up the leases that came with the answers to these requests of the sender's.
        38 Release { requests: Vec<u64> },
        /// Says that the sender has memory for the object of this request of its own.
        39 Ready { request: u64 },
        /// Brings a piece of the object of this request of the receiver's, in order.
        40 Part { request: u64, at: u64, bytes: Bytes },
        /// Says how many bytes of an object, from the beginning, the sender has. The receiver reads them
        /// there, by this request of its own.
        41 Passed { request: u64, bytes: u64, state: Passing },
        /// Asks, for measuring, for the loan of so many bytes of memory.
        42 Lend { len: u64 } -> Offer,
        /// Asks, for measuring, for so many bytes of the memory that was lent to the sender's request `of`:
        /// in messages, or by a write if they are to be `pushed`.
        43 Probe { of: u64, len: u64, pushed: bool } -> Eager | Pushed,
        /// Asks a holder for those of the objects that are short, to be sent to `reply_to`.
        44 FetchShort { ids: Vec<ObjectId> },
        /// Brings objects of this request of the receiver's, and says which are not brought so: each is
        /// longer, or not there.
        45 Short { request: u64, objects: Vec<Whole>, missing: Vec<ObjectId> },
        /// Says that a whole object was written to slots of the receiver's `window`, from slot `first` on.
        /// Its last 16 bytes are the mark. The receiver *releases* the slots by the number of its request.
        /// The object lies in the pieces, to be read there later, as long as the stamp has this value.
        46 Pushed {
            head: Head,
            window: u64,
            first: u32,
            mark: u128,
            pieces: Vec<Location>,
            stamp: Option<Stamp>,
        },
        /// Orders the receiver to hold a life of an object in this role. It reads the object from `from`, or
        /// else from any holder.
        60 Acquire { order: Order } -> Done,
        /// Asks the first keeper to make a node the primary of an object.
        61 Migrate { id: ObjectId, to: NodeId } -> Done,
        /// Orders the receiver to have node `to` be the primary of a life in its place. Its own replica is
        /// kept beside that one, or goes. At least `copies` nodes are to keep the object.
        62 HandOver { id: ObjectId, life: u64, to: NodeId, keep: bool, copies: u16 } -> Done,
        /// Has a node begin its drain, say how far that is, or call it off.
        63 Drain { step: DrainStep } -> Reported,
        /// Orders the receiver to make its replicas primaries, each kept by so many nodes: no other primary
        /// is left, or it came back as the primary with a smaller number.
        64 Promote { heirs: Vec<Heir> },
        /// Has the receiver bring an object of the sender's that is to take the place of another, and give it
        /// to nobody until it knows whether it did. It lies in the pieces. The receiver may have its bytes as
        /// the life `was` already; 0 for none.
        65 Withhold { head: Head, was: u64, pieces: Vec<Location> } -> Done,
        /// Says what became of a life that the receiver withholds for the sender: it took the place of
        /// another, or not.
        66 Unveil { id: ObjectId, life: u64, shows: bool } -> Done,
        /// Asks whether the receiver, which wrote a life, knows what became of it. *Busy* if it does not.
        67 Known { id: ObjectId, life: u64 } -> Done,
        /// Asks for the page of the receiver's sealed objects that begins at a place: 0, or what the page
        /// before said.
        70 List { filter: Filter, from: u64 } -> Listed,
        /// Answers a *list*, with the place at which the next page begins, if there is one, and the time
        /// since the node last dropped an object in whose place another node has a successor.
        71 Listed { objects: Vec<ObjectInfo>, next: Option<u64>, succeeded_us: Option<u64> },
        /// Asks for the next events of a feed, at most so many. The receiver answers when there are some, or
        /// after 2 s; at once if none are wanted. A feed `begins` with the receiver's objects that the user
        /// may see. Its number is the sender's.
        72 Watch { feed: u64, begins: bool, most: u32 } -> Watched,
        /// Answers a *watch*.
        73 Watched { events: Vec<Event> },
        /// Ends a feed of the sender's.
        74 Unwatch { feed: u64 },
        /// Asks a node for its part of the overview.
        80 Report -> Reported,
        /// Answers a *report* with the node's summary, and a *drain* with how far that is, as JSON.
        81 Reported { json: Bytes },
        /// Asks a node for a sign of life.
        82 Ping -> Pong,
        /// Gives it.
        83 Pong,
        /// Describes a segment of the sender's arena to those who read from it by a provider.
        90 Segment {
            segment: u32,
            version: u32,
            base: u64,
            key: u64,
            len: u64,
            provider: String as AtMost<MAX_PROVIDER_BYTES>,
        },
        /// Describes the memory that has the stamps of the sender's objects, as a provider reaches it.
        91 Stamps { base: u64, key: u64, len: u64, provider: String as AtMost<MAX_PROVIDER_BYTES> },
        /// Says why a request cannot be served.
        93 Refused { error: Error },
        /// Says that a request was carried out.
        94 Done,
        /// Tells the receiver where it alone may write objects that the sender asks it for: in slots of 64
        /// KiB.
        95 Window {
            window: u64, base: u64, key: u64, len: u64, provider: String as AtMost<MAX_PROVIDER_BYTES>,
        },
        /// Says that the sender writes no more to this window of the receiver's.
        96 Shut { window: u64 },
    }
    others Other
}
