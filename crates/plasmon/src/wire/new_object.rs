//! Description of a new object and of how it is kept.
//!
//! Owns no state. Any thread.

use bytes::Bytes;

use super::{AtMost, MAX_METADATA_BYTES, MAX_NAME_BYTES};
use crate::{ObjectId, Rights};

crate::wire::record! {
    /// Terms on which an object is kept.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct Terms {
        /// Whether the id was drawn at random for this object, so that no node has to be asked whether it is
        /// taken.
        pub fresh: bool,
        /// Number of nodes that keep the object. 0 and 1 mean its own node alone.
        pub copies: u16,
        /// Time to live in milliseconds, after which the object is deleted everywhere. 0 means without end.
        pub ttl_ms: u64,
        /// Whether the object ends with the connection by which it was created.
        pub owned: bool,
        /// Whether the object is to take the place of what has its id when it is sealed.
        pub replaces: bool,
    }
}

crate::wire::record! {
    /// Description of an object before its data.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct NewObject {
        /// Id of the object.
        pub id: ObjectId,
        /// Rights of other users to the object. A private object lies in its creator's domain.
        pub rights: Rights,
        /// Name behind the id. Empty if there is none.
        pub name: String as AtMost<MAX_NAME_BYTES>,
        /// Metadata of the object.
        pub metadata: Bytes as AtMost<MAX_METADATA_BYTES>,
        /// Terms on which the object is kept.
        pub terms: Terms,
    }
}
