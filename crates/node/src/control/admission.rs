//! The check whether a node can be a member beside others, the same for every coordinator. Owns no state; any
//! thread.

use super::messages::{PROTOCOL, written};
use crate::net::members::Member;

/// Checks that a node can be a member beside `others`; the error says why not. A former incarnation of the
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
        "{one} speaks version {} of the cluster protocol, {other} {}: run the same release on every node",
        written(version),
        written(others)
    )
}

#[cfg(test)]
mod tests {
    use plasmon::NodeId;

    use super::*;
    use crate::net::frame::VERSION;
    use crate::net::members::Reach;

    #[test]
    fn a_node_of_other_frames_or_of_an_old_release_is_told_both_versions() {
        let reach = Reach {
            provider: "tcp".into(),
            protocol: (1, 2),
            small_address: vec![1],
            bulk_addresses: vec![vec![2]],
        };
        let node = NodeId::from_bytes([1; 16]);
        let member = Member { node, incarnation: 5, listen: "a:1".into(), fabrics: vec![reach], token: 1 };
        check(PROTOCOL, &member, []).unwrap();
        let frames = u32::from(VERSION);
        let ours = format!(".{frames}: run the same release");
        for (protocol, theirs) in [(PROTOCOL - 1, format!(".{} of", frames - 1)), (5, " 5 of".into())] {
            let said = check(protocol, &member, []).unwrap_err();
            assert!(said.contains(&theirs) && said.contains(&ours), "{said}");
        }
    }
}
