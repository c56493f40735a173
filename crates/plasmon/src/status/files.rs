//! Part of a status report about files.
//!
//! Owns no state. Any thread.

use serde::{Deserialize, Serialize};

/// Volumes of files: the volumes about which the node decides, and the volumes that its clients are attached
/// to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FilesStatus {
    /// Number of volumes whose home the node is.
    pub volumes: u64,
    /// Number of inodes of the volumes whose home the node is.
    pub inodes: u64,
    /// Number of bytes of the files of the volumes whose home the node is.
    pub bytes: u64,
    /// Number of bytes of memory that names, attributes and maps of files take.
    pub memory: u64,
    /// Largest number of bytes of memory that names, attributes and maps of files may take.
    pub memory_limit: u64,
    /// Number of sessions of the volumes whose home the node is.
    pub sessions: u64,
    /// Number of bytes that sessions may still write to volumes with limits: room that was taken ahead of
    /// writes (credit).
    pub credit: u64,
    /// Number of bytes of credit so far that sessions lost, because they did not use them while others were
    /// refused room.
    pub credit_lapsed: u64,
    /// Number of operations that the node has decided so far.
    pub decided: u64,
    /// Number of volumes of other homes that the node mirrors.
    pub mirrors: u64,
    /// Number of batches of changes of the node's volumes that mirrors were sent.
    pub batches: u64,
    /// Number of bytes of the batches that mirrors were sent, counted for each mirror.
    pub batch_bytes: u64,
    /// Number of batches that the node has applied as a mirror.
    pub batches_applied: u64,
    /// Number of answers that wait for mirrors now.
    pub unconfirmed: u64,
    /// Number of objects that no file has any more, and that are not deleted yet.
    pub condemned: u64,
    /// Number of objects of files that the node has had deleted so far.
    pub deleted: u64,
    /// Number of volumes that clients of the node are attached to.
    pub attached: u64,
    /// Number of operations on files of the node's clients so far.
    pub asked: u64,
    /// Numbers of the operations of the node's clients by kind.
    pub kinds: FileKinds,
    /// Number of operations of the node's clients that failed so far.
    pub failed: u64,
    /// Number of bytes of files that the node's clients have committed so far.
    pub written_bytes: u64,
    /// Number of bytes of files that the node's clients have read so far, as the clients say.
    pub read_bytes: u64,
    /// Number of objects of files that other nodes are taking from the node now.
    pub pulls: u64,
    /// Number of times that another node was asked again to take an object of a file, since it had not
    /// answered.
    pub pulls_repeated: u64,
    /// Number of objects of files so far that were put on the node, were to lie elsewhere, and were taken by
    /// another node.
    pub placed_elsewhere: u64,
    /// Number of objects of files so far that were put on the node, were to lie elsewhere, and were taken by
    /// no node.
    pub placed_in_vain: u64,
    /// Number of objects of files that the node took from others.
    pub placed_here: u64,
    /// Number of messages so far to sessions of the node's volumes about what others changed.
    pub told: u64,
    /// Number of messages about changes so far that were waited for and confirmed.
    pub confirmed: u64,
    /// Number of messages about changes so far that were not confirmed in time.
    pub missed: u64,
    /// Number of objects of files so far that were put on the node and are kept by fewer nodes than their
    /// files say, since there were not more nodes.
    pub placed_short: u64,
    /// Number of times that nodes had no room for as many copies of an object as its file says. The client
    /// got an error.
    pub placed_refused: u64,
    /// Number of blocks of memory that clients with volumes have borrowed, to write into.
    pub blocks: u64,
    /// Number of bytes of the blocks that clients with volumes have borrowed.
    pub block_bytes: u64,
    /// Number of reads of files that objects in the memory of the node served, as clients say.
    pub reads_here: u64,
    /// Number of reads of files for which whole objects were brought to the node, as clients say.
    pub reads_brought: u64,
    /// Number of ranges of objects of other nodes, for clients that read at random, that came in messages.
    pub ranges_asked: u64,
    /// Number of ranges of objects of other nodes that the node read one-sidedly.
    pub ranges_read: u64,
    /// Number of ranges of its objects that the node sent to others in messages, or whose place it told them.
    pub ranges_given: u64,
}

/// Numbers of operations on files so far, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileKinds {
    /// Number of lookups of names, and of questions for targets of symbolic links.
    pub lookups: u64,
    /// Number of questions for attributes and changes of attributes, including extended attributes and the
    /// usage of the volume.
    pub attributes: u64,
    /// Number of names that were made, removed or renamed, without names of files that were opened.
    pub names: u64,
    /// Number of questions for pages of folders.
    pub lists: u64,
    /// Number of opens of files, including new files, and of messages about closes.
    pub opens: u64,
    /// Number of questions for pages of maps of files.
    pub maps: u64,
    /// Number of commits, appends, holes, copies by reference, and replacements of sections by tidying.
    pub writes: u64,
    /// Number of locks, unlocks and questions for locks.
    pub locks: u64,
    /// Number of times that room was taken ahead of writes, or given back.
    pub room: u64,
}

impl FileKinds {
    /// Returns the number of operations of all kinds.
    pub fn all(&self) -> u64 {
        let Self { lookups, attributes, names, lists, opens, maps, writes, locks, room } = self;
        lookups + attributes + names + lists + opens + maps + writes + locks + room
    }
}
