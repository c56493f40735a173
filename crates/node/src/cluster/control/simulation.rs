//! What the simulation of large clusters asks of the control messages.

use super::messages::FromCoordinator;
use crate::cluster::members::View;

/// A view as the coordinator sends it.
pub(crate) fn view_text(view: View) -> Vec<u8> {
    serde_json::to_vec(&FromCoordinator::View(view)).expect("a message is JSON")
}
