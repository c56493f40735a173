//! Zones: the users that may read a segment, and the one writer. Plain values, usable on any thread.

use std::fmt;

/// The clients that may read a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Domain {
    /// Every client of this host.
    Shared,
    /// Clients of this uid only.
    Private(u32),
    /// No client: the engine gives nobody a descriptor.
    Nobody,
}

/// The one writer of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Writer {
    /// The engine alone (and the fabric on its behalf); the kernel enforces it.
    Engine,
    /// Clients of this uid, which create objects in place.
    Uid(u32),
}

/// A domain and a writer, to which a segment is assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zone {
    /// The clients that read.
    pub domain: Domain,
    /// The writer.
    pub writer: Writer,
}

impl Zone {
    /// The zone of what the engine alone reads and writes.
    pub const ENGINE: Zone = Zone { domain: Domain::Nobody, writer: Writer::Engine };
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.domain {
            Domain::Shared => f.write_str("shared")?,
            Domain::Private(uid) => write!(f, "private to uid {uid}")?,
            Domain::Nobody => f.write_str("shared with nobody")?,
        }
        match self.writer {
            Writer::Engine => f.write_str(", written by the engine"),
            Writer::Uid(uid) => write!(f, ", written by uid {uid}"),
        }
    }
}

/// The kind of access that a descriptor of a segment gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Mapping read-only.
    Read,
    /// Mapping read-write: for clients of the writer's uid only.
    Write,
}
