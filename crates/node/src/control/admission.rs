//! The check whether a node can be a member beside others, the same for every coordinator.

use super::messages::PROTOCOL;
use crate::net::members::Member;

/// Checks that a node can be a member beside these; the error says why not. A former incarnation of the
/// node is no obstacle.
pub(crate) fn check<'a>(
    protocol: u32,
    member: &Member,
    others: impl IntoIterator<Item = &'a Member>,
) -> Result<(), String> {
    if protocol != PROTOCOL {
        return Err(other_protocol("it", protocol, "this cluster", PROTOCOL));
    }
    for other in others {
        if other.node == member.node {
            if other.incarnation >= member.incarnation {
                return Err(format!("node {} is a member already", member.node));
            }
        } else if !member.meets(other) {
            return Err(format!(
                "it can be reached by {} and the member at {} by {}, which do not talk to each other; \
                 without --provider a node has TCP as well as RDMA",
                member.providers(),
                other.listen,
                other.providers()
            ));
        }
    }
    Ok(())
}

/// The message about two releases that do not understand each other.
pub(crate) fn other_protocol(one: &str, version: u32, other: &str, others: u32) -> String {
    format!(
        "{one} speaks version {version} of the cluster protocol, {other} {others}: run the same release on \
         every node"
    )
}
