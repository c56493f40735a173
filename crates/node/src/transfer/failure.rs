//! Why an attempt to bring an object here fails, and after how long without a byte it does. Plain values.

use std::time::Duration;

use plasmon::Error;
use plasmon_fabric::FabricError;

/// How long a chunk may take, and how long the next part of an object that is sent may stay away.
pub(super) const STALLED: Duration = Duration::from_secs(10);

/// Why an attempt at a holder failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The holder is to blame: another may do better.
    #[error("{0}")]
    Holder(String),
    /// The object was deleted meanwhile: there may be another of its id.
    #[error("it was deleted while it was on its way")]
    Ended,
    /// This node is to blame: no holder will do better.
    #[error("{0}")]
    Here(Error),
}

impl Failure {
    /// The holder has left the cluster.
    pub(super) fn gone() -> Self {
        Self::Holder("it has left the cluster".into())
    }
}

impl From<FabricError> for Failure {
    fn from(error: FabricError) -> Self {
        Self::Holder(error.to_string())
    }
}
