//! How objects move between nodes, and what is told about it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

crate::wire::codes! {
    /// How a node fetches objects from others. All but [`Protocol::Auto`] are for measuring: each is correct
    /// alone, and none is the best for every size.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Protocol: u8 {
        /// The cheapest for the object's size and the fabric: inside a message, or by one-sided reads.
        #[default]
        0 Auto,
        /// What Plasma did: a request over TCP, and the object in pieces of 4 KiB through a socket.
        1 Socket,
        /// Messages only, through registered blocks, however many it takes.
        2 Send,
        /// One-sided reads from arena to arena, however small the object.
        3 Read,
        /// The same, with memory registered for each transfer on both sides.
        4 ReadRegister,
    }
}

impl Protocol {
    /// Its name, as on the command line.
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
            format!("no such protocol; there are {}", names.join(", "))
        })
    }
}

/// How an object came to a node, and what took how long. Times are microseconds, sizes bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanation {
    /// The object, 40 hexadecimal digits.
    pub id: String,
    /// "primary", "kept" or "cached" if this node holds it, "absent" if not.
    pub here: String,
    /// How it was last fetched, if it was.
    pub fetched: Option<Fetched>,
    /// How far it has come, if it is on its way and larger than a mebibyte.
    pub arriving: Option<Arriving>,
}

/// A node that holds an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// 32 hexadecimal digits.
    pub node: String,
    /// "primary", "kept" or "cached".
    pub role: String,
}

/// Where an object is after it was replicated, moved or broadcast.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spread {
    /// The nodes that hold it now, 32 hexadecimal digits each: of a broadcast those that it was for, else
    /// those that keep it.
    pub holders: Vec<String>,
    /// The nodes that were to, and do not.
    pub failed: Vec<Unreached>,
}

/// A node that an object was not brought to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unreached {
    /// 32 hexadecimal digits.
    pub node: String,
    /// Why not.
    pub reason: String,
}

/// A fetch that goes on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Arriving {
    /// The nodes it comes from, 32 hexadecimal digits each, as far as they have answered.
    pub holders: Vec<String>,
    /// libfabric's name of the provider, or "socket".
    pub provider: String,
    /// What moves the bytes.
    pub protocol: String,
    /// Data and metadata.
    pub bytes: u64,
    /// Of these, here already.
    pub arrived_bytes: u64,
    /// Since it was asked for.
    pub us: f64,
}

/// A fetch that came to its end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fetched {
    /// When it ended, in milliseconds since 1970.
    pub at_ms: u64,
    /// The nodes it came from, 32 hexadecimal digits each.
    pub holders: Vec<String>,
    /// libfabric's name of the provider, or "socket".
    pub provider: String,
    /// Why it is not a better one; empty if it is the best that either node has.
    pub provider_why: String,
    /// What moved the bytes: "eager", "read", "read-first", "striped-read", "relayed-read", "send",
    /// "read-register" or "socket".
    pub protocol: String,
    /// Why so.
    pub why: String,
    /// Data and metadata.
    pub bytes: u64,
    /// Of these, copied by the CPU of this node: in user space, or in system calls with "socket".
    pub copied_bytes: u64,
    /// Registrations of memory made for it on this node.
    pub registrations: u64,
    /// One-sided reads made for it.
    pub reads: u64,
    /// Where the bytes went: "replica", whose data clients copy if they want it elsewhere, or "given", memory
    /// that a client gave for it: it is nowhere else.
    pub into: String,
    /// Holders that were asked in vain before.
    pub failures: u64,
    /// Until somebody who has it answered: directory, holder, and the way.
    pub lookup_us: f64,
    /// Until there was memory for it here.
    pub allocate_us: f64,
    /// Until the last byte was there.
    pub move_us: f64,
    /// Until it was sealed, and its waiters woken. The directory learns of it after.
    pub seal_us: f64,
    /// All of it.
    pub total_us: f64,
}

/// What was measured between a node and a peer, and what follows from it. Kept by the node, by provider and
/// the peer's host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Calibration {
    /// libfabric's name of the provider.
    pub provider: String,
    /// The peer's host, as it listens.
    pub host: String,
    /// When it was measured, in milliseconds since 1970.
    pub at_ms: u64,
    /// Objects come inside a message up to so many bytes (data and metadata).
    pub eager_max: u32,
    /// Bytes of one read of a large object.
    pub chunk: u64,
    /// Such reads under way at a time.
    pub window: u32,
    /// Small objects: inside a message against a read.
    pub small: Vec<SmallPoint>,
    /// A large object, in chunks and windows.
    pub large: Vec<LargePoint>,
}

/// Medians for a small object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SmallPoint {
    /// Its bytes.
    pub bytes: u64,
    /// Asked for and come inside a message.
    pub eager_us: f64,
    /// Asked for, offered, and read.
    pub read_us: f64,
}

/// The median for a large object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LargePoint {
    /// Its bytes.
    pub bytes: u64,
    /// Bytes of one read.
    pub chunk: u64,
    /// Reads under way at a time.
    pub window: u32,
    /// Until the last byte was there.
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
