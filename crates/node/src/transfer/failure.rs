//! Reasons why an attempt to fetch an object fails, and the time without a byte after which it
//! fails. Owns no state. Engine thread only.

use std::time::Duration;

use plasmon::Error;
use plasmon_fabric::FabricError;

/// How long a chunk may take, and how long the next part of an object may stay away.
pub(super) const STALLED: Duration = Duration::from_secs(10);

/// Why an attempt to fetch from a holder failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The holder is the cause. Another holder may succeed.
    #[error("{0}")]
    Holder(String),
    /// The object was deleted meanwhile. There may be another object of its id.
    #[error("it was deleted while it was on its way")]
    Ended,
    /// The bytes that came are not those that were sealed. Another holder may have the right bytes.
    #[error("its bytes have the digest {found:016x}, and had {sealed:016x} when it was sealed")]
    Damaged { sealed: u64, found: u64 },
    /// This node is the cause. No other holder will succeed.
    #[error("{0}")]
    Here(Error),
}

impl Failure {
    /// Makes the failure for a holder that has left the cluster.
    pub(super) fn gone() -> Self {
        Self::Holder("it has left the cluster".into())
    }
}

impl From<FabricError> for Failure {
    fn from(error: FabricError) -> Self {
        Self::Holder(error.to_string())
    }
}
