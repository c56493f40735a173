//! Who may see a segment and who may write it. Plain values, usable on any thread.

use std::fmt;

/// Whose clients may read a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Domain {
    /// Every client of this host.
    Shared,
    /// Clients of this uid only.
    Private(u32),
}

/// Who, besides nobody, writes into a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Writer {
    /// The engine alone (and the fabric on its behalf); enforced by the kernel.
    Engine,
    /// Clients of this uid, which create objects in place.
    Uid(u32),
}

/// A domain and a writer: what a segment is assigned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zone {
    /// Who reads.
    pub domain: Domain,
    /// Who writes.
    pub writer: Writer,
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.domain {
            Domain::Shared => f.write_str("shared")?,
            Domain::Private(uid) => write!(f, "private to uid {uid}")?,
        }
        match self.writer {
            Writer::Engine => f.write_str(", written by the engine"),
            Writer::Uid(uid) => write!(f, ", written by uid {uid}"),
        }
    }
}

/// What a descriptor of a segment allows its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Map it read-only.
    Read,
    /// Map it read-write: for clients of the writer's uid only.
    Write,
}
