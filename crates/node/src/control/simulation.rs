//! What the simulation of large clusters asks of the control messages.

use super::messages::FromCoordinator;
use crate::net::members::{Change, Member};

/// What the coordinator tells a node that joins, as far as members are concerned.
pub(crate) fn members_text(members: Vec<Member>) -> Vec<u8> {
    text(&FromCoordinator::More(members))
}

/// What it tells the others.
pub(crate) fn change_text(change: Change) -> Vec<u8> {
    text(&FromCoordinator::Changed(change))
}

fn text(message: &FromCoordinator) -> Vec<u8> {
    serde_json::to_vec(message).expect("a message is JSON")
}
