//! The part of a status report about files.
//!
//! Owns no state.

use serde::{Deserialize, Serialize};

/// Volumes of files: those about which the node decides, and what its clients are attached to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FilesStatus {
    /// Number of volumes whose home the node is.
    pub volumes: u64,
    /// Number of inodes of these volumes.
    pub inodes: u64,
    /// Number of bytes of their files.
    pub bytes: u64,
    /// Number of bytes of memory that their names, attributes and maps take.
    pub memory: u64,
    /// Number of bytes of memory that these may take.
    pub memory_limit: u64,
    /// Number of sessions of these volumes.
    pub sessions: u64,
    /// Number of bytes of volumes with limits that sessions hold to write, beside what files have.
    pub credit: u64,
    /// Number of bytes of these that sessions did not use while others were refused, and lost, so far.
    pub credit_lapsed: u64,
    /// Number of operations that the node has decided so far.
    pub decided: u64,
    /// Number of volumes of other homes that the node mirrors.
    pub mirrors: u64,
    /// Number of batches of changes of the node's volumes that mirrors were sent.
    pub batches: u64,
    /// Number of bytes of these, counted for each mirror.
    pub batch_bytes: u64,
    /// Number of batches that the node has applied as a mirror.
    pub batches_applied: u64,
    /// Number of answers that wait for mirrors now.
    pub unconfirmed: u64,
    /// Number of objects that no file has any more, and that are not deleted yet.
    pub condemned: u64,
    /// Number of objects of files that the node has had deleted so far.
    pub deleted: u64,
    /// Number of volumes that its clients are attached to.
    pub attached: u64,
    /// Number of operations of its clients so far.
    pub asked: u64,
    /// Numbers of these by kind.
    pub kinds: FileKinds,
    /// Number of these that failed.
    pub failed: u64,
    /// Number of bytes of files that its clients have committed so far.
    pub written_bytes: u64,
    /// Number of bytes of files that its clients have read so far, as they say.
    pub read_bytes: u64,
    /// Number of objects of files that other nodes are taking from the node now.
    pub pulls: u64,
    /// Number of times that a node was asked again to take one, since it had not answered.
    pub pulls_repeated: u64,
    /// Number of objects of files, put on the node, that others took so far, since they were to lie
    /// elsewhere.
    pub placed_elsewhere: u64,
    /// Number of these that no other node took.
    pub placed_in_vain: u64,
    /// Number of objects of files that the node took from others.
    pub placed_here: u64,
    /// Number of messages to sessions of these volumes about what others changed, so far.
    pub told: u64,
    /// Number of these that were waited for and confirmed.
    pub confirmed: u64,
    /// Number of these that were not confirmed in time.
    pub missed: u64,
    /// Number of objects of files, put on the node, that fewer nodes kept than their files say, since there
    /// were not more.
    pub placed_short: u64,
    /// Number of times that nodes had no room for as many copies of an object as its file says: its client
    /// was told.
    pub placed_refused: u64,
    /// Number of blocks of memory that clients with volumes have borrowed, to write into.
    pub blocks: u64,
    /// Number of bytes of these blocks.
    pub block_bytes: u64,
    /// Number of reads of files that objects in the memory of the node served, as clients say.
    pub reads_here: u64,
    /// Number of reads of files for which whole objects were brought to the node, as clients say.
    pub reads_brought: u64,
    /// Number of ranges of objects of other nodes, for clients that read at random, that came in messages.
    pub ranges_asked: u64,
    /// Number of these that were read one-sidedly.
    pub ranges_read: u64,
    /// Number of ranges that the node gave others in messages, or said where they lie.
    pub ranges_given: u64,
}

/// Numbers of operations on files so far, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileKinds {
    /// Names that were looked up, and targets of symbolic links.
    pub lookups: u64,
    /// Attributes that were asked for or set, extended ones and the usage of the volume too.
    pub attributes: u64,
    /// Names that were made, taken or renamed, without those of files that were opened.
    pub names: u64,
    /// Pages of folders.
    pub lists: u64,
    /// Files that were made and opened, or opened, and messages about closes.
    pub opens: u64,
    /// Pages of maps of files.
    pub maps: u64,
    /// Commits, appends, holes, copies by reference, and tidying.
    pub writes: u64,
    /// Locks, unlocks and questions for locks.
    pub locks: u64,
    /// Room that was taken ahead of writes, or given back.
    pub room: u64,
}

impl FileKinds {
    /// Number of operations of all kinds.
    pub fn all(&self) -> u64 {
        let Self { lookups, attributes, names, lists, opens, maps, writes, locks, room } = self;
        lookups + attributes + names + lists + opens + maps + writes + locks + room
    }
}
