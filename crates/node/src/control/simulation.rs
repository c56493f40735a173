//! The interface of the control messages for the simulation of large clusters. Owns no state; any thread.

use super::messages::FromCoordinator;
use crate::net::members::{Change, Member};

/// Returns the text by which the coordinator tells a joining node its members.
pub(crate) fn members_text(members: Vec<Member>) -> Vec<u8> {
    text(&FromCoordinator::More(members))
}

/// Returns the text by which the coordinator tells the other nodes a change.
pub(crate) fn change_text(change: Change) -> Vec<u8> {
    text(&FromCoordinator::Changed(change))
}

fn text(message: &FromCoordinator) -> Vec<u8> {
    serde_json::to_vec(message).expect("a message is JSON")
}
