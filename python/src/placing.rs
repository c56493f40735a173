//! Nodes that calls about the place of objects name, and those that they return.
//!
//! Owns no state. Any thread, without the GIL.

use std::time::{Duration, Instant};

use plasmon::{NodeId, Result};

use crate::terms::left;

/// Nodes that hold an object, and nodes that do not, with the reason.
pub(crate) type Spread = (Vec<String>, Vec<(String, String)>);

/// Nodes of a report.
pub(crate) fn spread(spread: plasmon::Spread) -> Spread {
    let failed = spread.failed.into_iter().map(|one| (one.node, one.reason));
    (spread.holders, failed.collect())
}

/// Nodes that the caller named, and what is left of the time-out.
pub(crate) fn found(
    client: &plasmon::Client,
    wanted: &[String],
    timeout: Option<Duration>,
) -> Result<(Vec<NodeId>, Option<Duration>)> {
    let began = Instant::now();
    Ok((plasmon::find_nodes(client, wanted, timeout)?, left(timeout, began)))
}
