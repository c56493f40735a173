//! Transfers of objects between nodes: protocols, and reports about transfers. Owns no state. Any thread.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

crate::wire::codes! {
    /// Protocol by which a node fetches objects from others. All but [`Protocol::Auto`] are for measurements:
    /// each is correct alone, but none is the best for every size.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Protocol: u8 {
        /// The cheapest protocol for the object's size and the fabric: inside a message, or by one-sided
        /// reads.
        #[default]
        0 Auto,
        /// As in Plasma: a request over TCP, and the object in pieces of 4 KiB through a socket.
        1 Socket,
        /// Messages only, through registered blocks, however many the object takes.
        2 Send,
        /// One-sided reads from arena to arena, however small the object.
        3 Read,
        /// One-sided reads, with memory registered for each transfer on both sides.
        4 ReadRegister,
    }
}

impl Protocol {
    /// Name of the protocol, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Socket => "socket",
            Self::Send => "send",
            Self::Read => "read",
            Self::ReadRegister => "read-register",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().copied().find(|protocol| protocol.name() == text);
        found.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|protocol| protocol.name()).collect();
            format!("no such protocol; the protocols are {}", names.join(", "))
        })
    }
}

macro_rules! used_protocols {
    ($( $( #[doc = $about:literal] )+ $protocol:ident $name:literal, )+) => {
        /// Protocol by which an object came from another node. A [`Protocol`] is what a node was told to use.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum UsedProtocol {
            $( $( #[doc = $about] )+ $protocol, )+
        }

        impl UsedProtocol {
            /// All protocols by which objects come.
            pub const ALL: &[Self] = &[ $( Self::$protocol, )+ ];

            /// Name of the protocol, as in reports and metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $( Self::$protocol => $name, )+
                }
            }
        }
    };
}

used_protocols! {
    /// The object inside messages, as few as it takes.
    Eager "eager",
    /// One-sided writes by the holder, into memory that the asker keeps for it.
    Push "push",
    /// One-sided reads from the arena of the holder.
    Read "read",
    /// One-sided reads from where the object was before, without a question to the holder.
    ReadFirst "read-first",
    /// One-sided reads from several holders at the same time.
    StripedRead "striped-read",
    /// One-sided reads from a node to which the object is still coming.
    RelayedRead "relayed-read",
    /// Messages only, as [`Protocol::Send`] demands.
    Send "send",
    /// One-sided reads with memory registered for the transfer, as [`Protocol::ReadRegister`] demands.
    ReadRegister "read-register",
    /// Pieces of 4 KiB through a socket, as [`Protocol::Socket`] demands.
    Socket "socket",
}

/// Choice of the objects that a node compares with the digest of their seal when they come from another node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// Objects that were sealed with a digest.
    Sealed,
    /// Objects for which a get asks, and no others.
    #[default]
    Off,
}

impl Verify {
    /// All values.
    pub const ALL: [Self; 2] = [Self::Sealed, Self::Off];

    /// Name of the value, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sealed => "sealed",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Verify {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().copied().find(|verify| verify.name() == text);
        found.ok_or_else(|| "say \"sealed\" or \"off\"".to_owned())
    }
}

/// Explanation of how an object came to a node, with the time of each step. Times are in microseconds, sizes
/// in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanation {
    /// Id of the object, 40 hexadecimal digits.
    pub id: String,
    /// Role of this node's replica: "primary", "kept" or "cached"; "absent" if this node has none.
    pub here: String,
    /// Version of this node's replica, 16 hexadecimal digits. `None` if this node has none.
    pub version: Option<String>,
    /// Last fetch of the object, if it was fetched.
    pub fetched: Option<Fetched>,
    /// Fetch of the object that is under way, if the object is larger than 1 MiB.
    pub arriving: Option<Arriving>,
}

/// Node that holds an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// Id of the node, 32 hexadecimal digits.
    pub node: String,
    /// Role of the node's replica: "primary", "kept" or "cached".
    pub role: String,
}

/// Holders of an object after it was replicated, moved or broadcast.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spread {
    /// Ids of nodes that hold the object now, 32 hexadecimal digits each: after a broadcast those of the
    /// nodes asked for, otherwise the nodes that keep the object.
    pub holders: Vec<String>,
    /// Nodes that should hold the object and do not.
    pub failed: Vec<Unreached>,
}

/// Node that an object could not be brought to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unreached {
    /// Id of the node, 32 hexadecimal digits.
    pub node: String,
    /// Reason why the object could not be brought to the node.
    pub reason: String,
}

/// Fetch of an object that is under way.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Arriving {
    /// Ids of the nodes that the object comes from, 32 hexadecimal digits each, as far as they have answered.
    pub holders: Vec<String>,
    /// libfabric's name of the provider, or "socket".
    pub provider: String,
    /// Protocol that moves the bytes.
    pub protocol: String,
    /// Size of the object in bytes, data and metadata.
    pub bytes: u64,
    /// Bytes of the object that have arrived.
    pub arrived_bytes: u64,
    /// Time since the object was asked for, in microseconds.
    pub us: f64,
}

/// Fetch of an object that is complete.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fetched {
    /// End of the fetch, in milliseconds since 1970.
    pub at_ms: u64,
    /// Ids of the nodes that the object came from, 32 hexadecimal digits each.
    pub holders: Vec<String>,
    /// libfabric's name of the provider, or "socket".
    pub provider: String,
    /// Reason why no better provider was used. Empty if it is the best that either node has.
    pub provider_why: String,
    /// Name of the [`UsedProtocol`] that moved the bytes.
    pub protocol: String,
    /// Reason for the choice of the protocol.
    pub why: String,
    /// Size of the object in bytes, data and metadata.
    pub bytes: u64,
    /// Bytes of the object that this node's CPU copied: in user space, or in system calls with "socket".
    pub copied_bytes: u64,
    /// Number of registrations of memory that this node made for the fetch.
    pub registrations: u64,
    /// Number of one-sided reads made for the fetch.
    pub reads: u64,
    /// Destination of the bytes: "replica", whose data clients copy if they want it elsewhere, or "given",
    /// memory that a client gave for the object. The latter leaves no replica on this node.
    pub into: String,
    /// Number of holders that failed to provide the object before.
    pub failures: u64,
    /// Time until a holder answered, in microseconds: the directory, the holder and the way.
    pub lookup_us: f64,
    /// Time until this node had memory for the object, from the answer on, in microseconds.
    pub allocate_us: f64,
    /// Time until the last byte had arrived, from the allocation on, in microseconds.
    pub move_us: f64,
    /// Time until the object was sealed and its waiters woken, from the last byte on, in microseconds. The
    /// directory learns of the replica after that.
    pub seal_us: f64,
    /// Time of the whole fetch, in microseconds.
    pub total_us: f64,
}

/// Measurements between a node and a peer, and the transfer parameters that follow from them. The node keeps
/// them by provider and the peer's host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Calibration {
    /// libfabric's name of the provider.
    pub provider: String,
    /// Host of the peer, as in its listening address.
    pub host: String,
    /// Time of the measurement, in milliseconds since 1970.
    pub at_ms: u64,
    /// Size in bytes (data and metadata) of the largest object that is sent in messages.
    pub eager_max: u32,
    /// Size in bytes (data and metadata) of the largest object that its holder writes to this node's memory,
    /// if it does not fit one message.
    pub push_max: u32,
    /// Size in bytes of one read of a large object.
    pub chunk: u64,
    /// Number of reads of a large object that are under way at a time.
    pub window: u32,
    /// Measurements of small objects: in messages against a read.
    pub small: Vec<SmallPoint>,
    /// Measurements of a large object, by size and number of reads.
    pub large: Vec<LargePoint>,
}

/// Medians measured for one size of a small object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SmallPoint {
    /// Size of the object in bytes.
    pub bytes: u64,
    /// Time until the object had come in messages, from the request on, in microseconds.
    pub eager_us: f64,
    /// Time until the object had been written to this node's memory and copied, from the request on, in
    /// microseconds. 0 if it was not measured.
    pub push_us: f64,
    /// Time until the object had been offered and read, from the request on, in microseconds.
    pub read_us: f64,
}

/// Median measured for a large object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LargePoint {
    /// Size of the object in bytes.
    pub bytes: u64,
    /// Size in bytes of one read.
    pub chunk: u64,
    /// Number of reads under way at a time.
    pub window: u32,
    /// Time until the last byte had arrived, in microseconds.
    pub us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_have_names() {
        for protocol in Protocol::ALL.iter().copied() {
            assert_eq!(protocol.to_string().parse(), Ok(protocol));
        }
        assert!("rdma".parse::<Protocol>().unwrap_err().contains("read-register"));
    }
}
