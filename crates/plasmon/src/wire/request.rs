//! Requests of a client: the table of requests. Owns no state. Any thread.

use bytes::Bytes;

use super::files::{
    FileAsked, FileReads, MAX_SETTLED, MAX_TOLD_OPENS, Peeking, Settling, VolumeChange, VolumeTerms,
};
use super::reply::{Reply, replies};
use super::{AtMost, Each, MAX_NAME_BYTES, NewObject, Replacing, SealingOver};
use crate::drain::DrainStep;
use crate::region::Rights as RegionRights;
use crate::service::{Allow, MAX_FUNCTIONS};
use crate::shared::{ARGUMENTS, PAYLOAD_LEN};
use crate::{Class, Filter, NodeId, ObjectId};

crate::wire::table! {
    /// Request of a client. It is answered unless its row names no reply.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Request in requests -> Reply in replies {
        /// Opens a connection, as its first frame.
        1 Hello {
            /// Name of the program, for logs and error messages.
            name: String as AtMost<MAX_NAME_BYTES>,
        } -> Hello,
        /// Creates and seals an object of at most the daemon's `inline_max` bytes.
        2 Put {
            /// Description of the object.
            object: NewObject,
            /// XXH3 of data and metadata. 0 for none.
            digest: u64,
            /// Longest wait in microseconds for others to make room, beside what the node itself does.
            room_us: u64,
            /// Data of the object.
            data: Bytes,
        } -> Done,
        /// Reserves an object. The reply says where its data is to be written.
        3 Create {
            /// Description of the object.
            object: NewObject,
            /// Size of the data in bytes.
            data_len: u64,
            /// Bytes of metadata that the creator writes behind the data itself: 0, or more than
            /// `MAX_METADATA_BYTES`, and then `object` has none.
            metadata_len: u32,
            /// Longest wait in microseconds for others to make room.
            room_us: u64,
        } -> Created,
        /// Makes a created object immutable and visible to all.
        4 Seal {
            /// Id of the object.
            id: ObjectId,
            /// XXH3 of data and metadata. 0 for none.
            digest: u64,
            /// Whole data if the reply to `Create` was `Inline`, else empty.
            data: Bytes,
        } -> Done,
        /// Creates an object of at most the daemon's `inline_max` bytes in the place of what has its id.
        35 Replace(replacing: Replacing) -> Replaced,
        /// Puts a created object that replaces in the place of what has its id.
        36 SealOver(over: SealingOver) -> Replaced,
        /// Asks for the version of an object that this client has pinned, by its `Span::offset`.
        37 Version(offset: u64) -> Replaced,
        /// Aborts the creation of an object.
        5 Abort {
            /// Id of the object.
            id: ObjectId,
        } -> Done,
        /// Waits until all objects are sealed, brings them here, and pins them for this client.
        6 Get {
            /// Time-out in microseconds. `u64::MAX` waits without limit.
            timeout_us: u64,
            /// Whether what comes from another node is compared with the digest of its seal in any case.
            verify: bool,
            /// Ids of the objects.
            ids: Vec<ObjectId>,
        } -> Got,
        /// Takes back one pin of each object. A pin is named by its place, not by the id, because an id that
        /// was deleted and created anew may be pinned in both its lives.
        7 Release {
            /// `Span::offset` of the objects, as `Got` gave them. At most `MAX_IDS`.
            offsets: Vec<u64>,
        },
        /// Asks where objects are.
        8 Contains {
            /// Ids of the objects.
            ids: Vec<ObjectId>,
        } -> Contains,
        /// Deletes objects on every node. The memory of a pinned object is freed with its last pin.
        9 Delete {
            /// Ids of the objects.
            ids: Vec<ObjectId>,
        } -> Deleted,
        /// Lists the objects on this node.
        10 List {
            /// Objects that are wanted.
            filter: Filter,
        } -> List,
        /// Asks for the status report of this node.
        11 Status -> Status,
        /// Cancels a request, which is then answered as interrupted.
        12 Cancel {
            /// Request id of the cancelled request.
            request: u64,
        },
        /// Waits as `Get` does, until `count` of the objects are on this node, and pins nothing. It takes
        /// several frames for more than `MAX_IDS` objects.
        13 Wait {
            /// Time-out in microseconds. `u64::MAX` waits without limit.
            timeout_us: u64,
            /// Number of objects to wait for.
            count: u32,
            /// Ids of the objects, at most `MAX_WAIT_IDS`.
            ids: Vec<ObjectId>,
        } -> Waited,
        /// Evicts least recently used objects from memory: cached replicas and spilled objects, in cache mode
        /// any.
        14 Evict {
            /// Number of bytes to free.
            bytes: u64,
        } -> Evicted,
        /// Marks objects as just used.
        15 Refresh {
            /// Ids of the objects.
            ids: Vec<ObjectId>,
        } -> Done,
        /// Changes options of this client. An option that is none stays as it is.
        16 Options {
            /// Name of the client, which is not empty.
            name: Option<String> as Each<AtMost<MAX_NAME_BYTES>>,
            /// Largest size in bytes of all objects created on this connection. 0 for no limit of its own.
            quota: Option<u64>,
            /// Class of what the client asks for from now on, where a call has none of its own.
            class: Option<Class>,
        } -> Done,
        /// Subscribes to the events of this node's objects, beginning with those that are there, until the
        /// connection ends. It is the last request on its connection.
        17 Subscribe {
            /// Whether to the events of all other nodes as well.
            cluster: bool,
        } -> Events,
        /// Asks for memory shared with this client: a page set of its own, and the object tables that it may
        /// read.
        18 Channel -> Channel,
        /// Asks for the parts of the object tables that this client does not have yet.
        19 Tables -> Tables,
        /// Asks how an object came to this node.
        20 Explain {
            /// Id of the object.
            id: ObjectId,
        } -> Report,
        /// Asks which nodes hold an object.
        21 Locations {
            /// Id of the object.
            id: ObjectId,
        } -> Report,
        /// Begins to bring objects to this node. It is answered at once.
        22 Prefetch {
            /// Longest wait in microseconds for objects that do not exist yet.
            timeout_us: u64,
            /// Ids of the objects.
            ids: Vec<ObjectId>,
        } -> Done,
        /// Measures the best transfer parameters towards another node, and uses them from then on.
        23 Calibrate {
            /// Id of the other node.
            peer: NodeId,
        } -> Report,
        /// Asks for memory of the arena, which does not belong to an object yet.
        24 Lend {
            /// Size of the memory in bytes.
            len: u64,
            /// Whether objects put from the memory are private.
            private: bool,
            /// Longest wait in microseconds for others to make room.
            room_us: u64,
        } -> Lent,
        /// Registers memory of the client, whose descriptor travels with the frame.
        25 Adopt {
            /// Size of the memory in bytes, which is that of the file.
            len: u64,
        } -> Lent,
        /// Gives back lent or adopted memory.
        26 GiveBack {
            /// Number of the memory.
            buffer: u64,
        },
        /// Brings an object's data into lent or adopted memory, without a replica on this node.
        27 GetInto {
            /// Time-out in microseconds. `u64::MAX` waits without limit.
            timeout_us: u64,
            /// Id of the object.
            id: ObjectId,
            /// Number of the memory.
            buffer: u64,
            /// Offset in the memory at which the data begins, in bytes.
            at: u64,
            /// Number of bytes that may be written there.
            room: u64,
            /// As in `Get`.
            verify: bool,
        } -> Landed,
        /// Makes an object of lent memory: its first bytes become the data, without a copy.
        28 PutFrom {
            /// Description of the object.
            object: NewObject,
            /// XXH3 of data and metadata. 0 for none.
            digest: u64,
            /// Number of the memory.
            buffer: u64,
            /// Size of the data in bytes.
            data_len: u64,
        } -> Done,
        /// Makes several nodes keep an object.
        29 Replicate {
            /// Time-out in microseconds. `u64::MAX` waits without limit.
            timeout_us: u64,
            /// Id of the object.
            id: ObjectId,
            /// Number of nodes. This node need not be one of them.
            copies: u16,
            /// Whether this completes the put of an object that so many nodes are to keep. Another object
            /// that has the id by now is left alone, and the first is not found.
            put: bool,
        } -> Report,
        /// Makes another node the primary of an object.
        30 Migrate {
            /// Time-out in microseconds. `u64::MAX` waits without limit.
            timeout_us: u64,
            /// Id of the object.
            id: ObjectId,
            /// Id of the new primary's node.
            node: NodeId,
        } -> Report,
        /// Brings an object to nodes, which pass on to each other what they have received.
        31 Broadcast {
            /// Time-out in microseconds. `u64::MAX` waits without limit.
            timeout_us: u64,
            /// Id of the object.
            id: ObjectId,
            /// Ids of the nodes, at most `MAX_IDS`. Empty for all nodes.
            nodes: Vec<NodeId>,
        } -> Report,
        /// Brings an object to this node and keeps it in memory here until `Unpin`, or until the connection
        /// ends.
        32 Pin {
            /// Time-out in microseconds. `u64::MAX` waits without limit.
            timeout_us: u64,
            /// Id of the object.
            id: ObjectId,
        } -> Done,
        /// Ends the effect of `Pin`, however many times the object was pinned.
        33 Unpin {
            /// Id of the object.
            id: ObjectId,
        } -> Done,
        /// Controls the drain of a node, which moves what it keeps to other nodes and then leaves.
        34 Drain {
            /// Id of the node.
            node: NodeId,
            /// Step of the drain.
            step: DrainStep,
        } -> Report,
        /// Brings objects here that exist, and pins them for this client. An object that its first keeper
        /// does not know is not found; if the keeper does not say so within a second, the object timed out.
        39 Seek {
            /// Longest time in microseconds that bringing an object takes. `u64::MAX` for no limit.
            timeout_us: u64,
            /// As in `Get`.
            verify: bool,
            /// Ids of the objects.
            ids: Vec<ObjectId>,
        } -> Got,
        /// Asks for an overview of every node of the cluster.
        40 Overview -> Report,
        /// Asks which nodes are in the cluster.
        41 Members -> Members,
        /// Asks for a page of the list of a node's sealed objects.
        42 Page {
            /// Id of the node.
            node: NodeId,
            /// Objects that are wanted.
            filter: Filter,
            /// Place in the node's table at which the page begins: 0, or what the page before said.
            from: u64,
        } -> Page,
        /// Ends the objects that this connection owns.
        43 EndOwned -> Done,
        /// Asks for the outcome of a put, a creation or a deletion that began in the ring and was not
        /// answered there. It is answered once, as the same request of the socket is.
        44 Collect {
            /// Number of the outcome, as the ring's completion told it.
            number: u64,
        } -> Done | Created | Deleted,
        /// Asks for the slots of this client, by which it makes calls. Their bell is that of its channel.
        45 Slots -> Slots,
        /// Makes a call as a slot does, for an event loop that watches the socket.
        46 Call {
            /// Number of the operation.
            operation: u8,
            /// Class of the operation. None for that of the client.
            class: Option<Class>,
            /// Longest time in microseconds until the answer. `u64::MAX` for no limit.
            timeout_us: u64,
            /// Arguments of the operation. Those at the end that are left out are 0.
            arguments: Vec<u64> as AtMost<ARGUMENTS>,
            /// Bytes that the operation needs.
            payload: Bytes as AtMost<PAYLOAD_LEN>,
        } -> Called,
        /// Makes a region, of zeros, and a handle to it with all rights.
        100 CreateRegion {
            /// Name of the region.
            name: String as AtMost<MAX_NAME_BYTES>,
            /// Size in bytes.
            len: u64,
            /// Node on which the region is to live. None for this one.
            node: Option<NodeId>,
            /// Rights of every user.
            public: RegionRights,
            /// Whether processes of the home may map the region.
            mappable: bool,
            /// Whether the region ends with this connection.
            ephemeral: bool,
            /// Whether a region of this name, user and size is mapped instead, if it is there already.
            exist_ok: bool,
            /// Longest wait in microseconds for others to make room.
            room_us: u64,
        } -> RegionMapped,
        /// Makes a handle to a region with these rights, or fails if the user lacks one of them.
        101 MapRegion {
            /// Name of the region.
            name: String as AtMost<MAX_NAME_BYTES>,
            /// User to whom the region belongs. None for the client's own user or root.
            owner: Option<u32>,
            /// Rights that are wanted.
            rights: RegionRights,
            /// Longest wait in microseconds for the region to be made.
            timeout_us: u64,
        } -> RegionMapped,
        /// Ends a handle.
        102 UnmapRegion {
            /// Number of the handle on this connection.
            handle: u32,
        },
        /// Frees a region: its name and, once nobody has it mapped, its memory.
        103 FreeRegion {
            /// Number of a handle to it.
            handle: u32,
            /// Time-out in microseconds.
            timeout_us: u64,
        } -> Done,
        /// Gives a user rights to a region beside those that the user has.
        104 GrantRegion {
            /// Number of a handle to it.
            handle: u32,
            /// User id. None for every user.
            user: Option<u32>,
            /// Rights that the user gets.
            rights: RegionRights,
        } -> Done,
        /// Takes all rights to a region from a user.
        105 RevokeRegion {
            /// Number of a handle to it.
            handle: u32,
            /// User id. None for what every user has.
            user: Option<u32>,
        } -> Done,
        /// Asks for a page of the list of the regions that live on a node and that the user may see.
        106 ListRegions {
            /// Id of the node.
            node: NodeId,
            /// Place at which the page begins: 0, or what the page before said.
            from: u64,
        } -> Regions,
        /// Asks what a region is like now.
        107 DescribeRegion {
            /// Number of a handle to it.
            handle: u32,
        } -> Region,
        /// Makes an object of the bytes of a region, which nobody changes meanwhile. The object lies on the
        /// region's home.
        108 SnapshotRegion {
            /// Number of a handle to it.
            handle: u32,
            /// Description of the object.
            object: NewObject,
            /// Longest wait in microseconds for others to make room.
            room_us: u64,
        } -> Done,
        /// Moves a region to another node.
        109 MoveRegion {
            /// Number of a handle to it.
            handle: u32,
            /// Id of the node.
            node: NodeId,
            /// Time-out in microseconds.
            timeout_us: u64,
        } -> Done,
        /// Makes a port, at which calls of a service come to this connection.
        110 Serve {
            /// Name of the service.
            name: String as AtMost<MAX_NAME_BYTES>,
            /// Names of the functions. A function is called by its place in this list.
            functions: Vec<String> as Each<AtMost<MAX_NAME_BYTES>, MAX_FUNCTIONS>,
            /// Users who may call.
            allow: Allow,
        } -> Serving,
        /// Ends a port. Calls that wait there go to other ports of the service.
        111 Unserve {
            /// Number of the port on this connection.
            port: u32,
        },
        /// Makes a handle to a service, which functions are called by.
        112 FindService {
            /// Name of the service.
            name: String as AtMost<MAX_NAME_BYTES>,
            /// User to whom the service belongs. None for the client's own user or root.
            owner: Option<u32>,
            /// Longest wait in microseconds for a server to come.
            timeout_us: u64,
        } -> ServiceFound,
        /// Ends a handle to a service.
        113 LeaveService {
            /// Number of the handle on this connection.
            service: u32,
        },
        /// Asks for a page of the list of the services whose names a node keeps.
        114 ListServices {
            /// Id of the node.
            node: NodeId,
            /// Place at which the page begins: 0, or what the page before said.
            from: u64,
        } -> Services,
        /// Says that a call that was received will have no answer.
        115 DropCall {
            /// Number of the call.
            number: u64,
        },
        /// Begins to gather the events of all regions to which this connection has handles, or will have.
        120 WatchRegions -> RegionsWatched,
        /// Has the events told that another connection of the same user has begun to gather, until one of
        /// the two connections ends.
        121 FollowRegions {
            /// Number that the other connection was given.
            key: u64,
        } -> RegionEvents,
        /// Makes a handle to a lock, which is there as soon as somebody names it.
        130 OpenLock {
            /// Name of the lock.
            name: String as AtMost<MAX_NAME_BYTES>,
            /// Whether it is everybody's, instead of the client's own user's.
            public: bool,
            /// Time to live of the lease of a guard in milliseconds.
            ttl_ms: u32,
        } -> LockOpened,
        /// Ends a handle to a lock. Guards of the lock stay.
        131 CloseLock {
            /// Number of the handle on this connection.
            lock: u32,
        } -> Done,
        /// Asks for a page of the list of the locks and barriers about which a node decides.
        132 ListLocks {
            /// Id of the node.
            node: NodeId,
            /// Place at which the page begins: 0, or what the page before said.
            from: u64,
        } -> Locks,
        /// Asks for the memory that says until when the leases of this connection are valid.
        133 OpenLeases -> Leases,
        /// Makes a handle to a barrier. The client is one of its parties until the handle ends.
        134 OpenBarrier {
            /// Name of the barrier.
            name: String as AtMost<MAX_NAME_BYTES>,
            /// Whether it is everybody's, instead of the client's own user's.
            public: bool,
            /// Number of parties.
            parties: u32,
            /// Time-out in microseconds. `u64::MAX` waits without limit.
            timeout_us: u64,
        } -> BarrierOpened,
        /// Ends a handle to a barrier. That breaks the barrier for those who wait.
        135 CloseBarrier {
            /// Number of the handle on this connection.
            barrier: u32,
        } -> Done,
        /// Attaches to a volume: makes a session at its home, or goes on with one.
        150 AttachVolume {
            /// Name of the volume.
            name: String as AtMost<MAX_NAME_BYTES>,
            /// Whether the volume is created if there is none of the name.
            create: bool,
            /// Whether the session only reads.
            read_only: bool,
            /// Whether the home looks at permissions. It always does for sessions that are not trusted.
            checked: bool,
            /// Number and secret of the session that goes on. None for a new one.
            again: Option<(u32, u64)>,
        } -> VolumeAttached,
        /// Has an operation carried out.
        151 OnFile {
            /// Number of the attached volume on this connection.
            volume: u32,
            /// Operation with its number.
            asked: FileAsked,
        } -> FileDone,
        /// Has this connection told what others change of what a session may have kept, until one of the
        /// two connections ends. The session is one that a client of this node and of the same user has.
        /// The first answer says nothing but that this has begun.
        152 WatchVolume {
            /// Number of the volume, as all nodes know it.
            volume: u32,
            /// Number of the session.
            session: u32,
            /// Secret of the session.
            secret: u64,
        } -> VolumeStale,
        /// Says that nothing is kept any more of what a message of the watch on this connection named.
        153 ConfirmStale {
            /// Number of the message.
            number: u64,
        },
        /// Ends a session: its opens and locks go.
        154 DetachVolume {
            /// Number of the attached volume on this connection.
            volume: u32,
        } -> Done,
        /// Has objects that the client has put for an attached volume lie where they are to; waits for that.
        155 Settle(settling: Settling) -> Settled,
        /// Creates a volume.
        156 CreateVolume {
            /// Name of the volume.
            name: String as AtMost<MAX_NAME_BYTES>,
            /// Node that is to decide about it. None for this one.
            home: Option<NodeId>,
            /// Terms on which it is kept.
            terms: VolumeTerms,
        } -> Volume,
        /// Asks for a page of the list of the volumes whose home a node is.
        157 ListVolumes {
            /// Id of the node.
            node: NodeId,
            /// Place at which the page begins: 0, or what the page before said.
            from: u64,
        } -> Volumes,
        /// Changes the terms of a volume.
        158 SetVolume {
            /// Name of the volume.
            name: String as AtMost<MAX_NAME_BYTES>,
            /// Changes.
            change: VolumeChange,
        } -> Volume,
        /// Removes a volume with all its files. It is refused while sessions are attached.
        159 RemoveVolume {
            /// Name of the volume.
            name: String as AtMost<MAX_NAME_BYTES>,
            /// Whether the volume is one that no node has any more, and is to be forgotten.
            lost: bool,
        } -> Done,
        /// Tells what a session that goes on has open: its node may be another than before, and the home as
        /// well. Other operations of the session wait at a new home until all is told.
        164 TellOpened {
            /// Number of the attached volume on this connection.
            volume: u32,
            /// Inodes, each with the number of its opens, and of those that have the right to map the file.
            opens: Vec<(u64, u32, u32)> as AtMost<MAX_TOLD_OPENS>,
            /// Whether more of them follow.
            more: bool,
        } -> Done,
        /// Tells how reads of an attached volume were served since the last time.
        165 CountReads(reads: FileReads),
        /// Begins what `Settle` waits for.
        166 BeginSettling(settling: Settling),
        /// Asks for a range of an object of another node, of an attached volume, without bringing the object.
        167 Peek(peeking: Peeking) -> Peeked,
        /// Has a node look through what it has of an attached volume.
        168 CheckVolume {
            /// Number of the attached volume on this connection.
            volume: u32,
            /// Id of the node.
            node: NodeId,
            /// Whether objects are deleted that no file has.
            sweep: bool,
        } -> VolumeChecked,
        /// Asks how many nodes keep objects of an attached volume.
        169 LookAfter {
            /// Number of the attached volume on this connection.
            volume: u32,
            /// Ids of the objects.
            ids: Vec<ObjectId> as AtMost<MAX_SETTLED>,
            /// Number of nodes that are made to keep each of them that fewer keep. 0 for no more than do.
            copies: u16,
        } -> LookedAfter,
    }
    others Other
}
