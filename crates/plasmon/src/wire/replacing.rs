//! What a client says of an object that is to take the place of another.
//!
//! Owns no state. Any thread.

use bytes::Bytes;

use super::NewObject;
use crate::ObjectId;

crate::wire::record! {
    /// An object that is created in the place of what has its id.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Replacing {
        /// Description of the object.
        pub object: NewObject,
        /// Version that is to be replaced, and no other. None for whatever is there, or nothing.
        pub expected: Option<u64>,
        /// XXH3 of data and metadata. 0 for none.
        pub digest: u64,
        /// Time-out in microseconds. 0 for the longest time that the daemon waits for other nodes.
        pub timeout_us: u64,
        /// Data of the object.
        pub data: Bytes,
    }
}

crate::wire::record! {
    /// Seal of a created object that takes the place of what has its id.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SealingOver {
        /// Id of the object.
        pub id: ObjectId,
        /// Version that is to be replaced, and no other. None for whatever is there, or nothing.
        pub expected: Option<u64>,
        /// XXH3 of data and metadata. 0 for none.
        pub digest: u64,
        /// Time-out in microseconds. 0 for the longest time that the daemon waits for other nodes.
        pub timeout_us: u64,
        /// Whole data if the reply to `Create` was `Inline`, else empty.
        pub data: Bytes,
    }
}
