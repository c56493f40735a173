//! The members of the cluster, as nodes describe themselves through the coordinator. Plain values; any
//! thread.

use crate::kernel::random::HashSet;

use plasmon::NodeId;
use serde::{Deserialize, Serialize};

/// A number that grows at every start of a node and whenever it joins anew. It voids what peers knew of the
/// node before.
pub(crate) type Incarnation = u64;

/// A node as the coordinator presents it to the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// The node's id.
    #[serde(with = "as_text")]
    pub(crate) node: NodeId,
    /// The node's incarnation.
    pub(crate) incarnation: Incarnation,
    /// Address of the node's control connection, `host:port`.
    pub(crate) listen: String,
    /// How the node can be reached, best first. Any two members have at least one way in common.
    pub(crate) fabrics: Vec<Reach>,
    /// The token that frames sent to the node must carry.
    pub(crate) token: u64,
}

/// One way to reach a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reach {
    /// libfabric's name of the provider.
    pub(crate) provider: String,
    /// The provider's protocol and its version.
    pub(crate) protocol: (u32, u32),
    /// Fabric address of the lane for messages.
    pub(crate) small_address: Vec<u8>,
    /// Fabric addresses of the lanes for one-sided operations; never empty.
    pub(crate) bulk_addresses: Vec<Vec<u8>>,
}

impl Reach {
    /// Whether two nodes that have these ways can talk by them.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        (&self.provider, self.protocol) == (&other.provider, other.protocol)
    }
}

impl Member {
    /// Whether two nodes can talk to each other.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.fabrics.iter().any(|mine| other.fabrics.iter().any(|theirs| mine.meets(theirs)))
    }

    /// The node's providers, for people.
    pub(crate) fn providers(&self) -> String {
        let names: Vec<_> = self.fabrics.iter().map(|reach| reach.provider.as_str()).collect();
        names.join(" and ")
    }
}

/// The members of one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct View {
    /// The number of the view, which grows with every change.
    pub(crate) epoch: u64,
    /// The members in the order they joined.
    pub(crate) members: Vec<Member>,
}

/// The difference between two views.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    /// The epoch before the change.
    pub(crate) before: u64,
    /// The epoch after the change.
    pub(crate) epoch: u64,
    /// Incarnations that are not members any more.
    pub(crate) gone: Vec<Gone>,
    /// Incarnations that have become members, in the order they joined.
    pub(crate) joined: Vec<Member>,
    /// Whether there were views between the two.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) skips: bool,
}

/// An incarnation that is not a member any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Gone {
    #[serde(with = "as_text")]
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
}

impl Gone {
    fn of(member: &Member) -> Self {
        Self { node: member.node, incarnation: member.incarnation }
    }
}

impl View {
    /// Returns the change from the view `before` to this one, which is the next.
    pub(crate) fn since(&self, before: &Self) -> Change {
        let of = |view: &Self| view.members.iter().map(Gone::of).collect::<HashSet<_>>();
        let (old, new) = (of(before), of(self));
        let joined = self.members.iter().filter(|member| !old.contains(&Gone::of(member)));
        Change {
            before: before.epoch,
            epoch: self.epoch,
            gone: before.members.iter().map(Gone::of).filter(|gone| !new.contains(gone)).collect(),
            joined: joined.cloned().collect(),
            skips: false,
        }
    }

    /// Applies a change to the view. `false` if the change begins at another view: then the view stays as it
    /// is.
    pub(crate) fn follow(&mut self, change: Change) -> bool {
        if change.before != self.epoch {
            return false;
        }
        let gone: HashSet<_> = change.gone.into_iter().collect();
        self.members.retain(|member| !gone.contains(&Gone::of(member)));
        self.members.extend(change.joined);
        self.epoch = change.epoch;
        true
    }
}

/// A node as text, for serde.
pub(crate) mod as_text {
    use plasmon::NodeId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(node: &NodeId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(node)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NodeId, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Nodes as texts, for serde.
pub(crate) mod as_texts {
    use plasmon::NodeId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(nodes: &[NodeId], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(nodes.iter().map(ToString::to_string))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<NodeId>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member((node, incarnation): (u8, u64)) -> Member {
        let node = NodeId::from_bytes([node; 16]);
        Member { node, incarnation, listen: String::new(), fabrics: Vec::new(), token: 0 }
    }

    /// A view of members in the order in which they joined: later ones have later incarnations.
    fn view(epoch: u64, joined: &[(u8, u64)]) -> View {
        View { epoch, members: joined.iter().copied().map(member).collect() }
    }

    proptest! {
        #[test]
        fn a_change_makes_one_view_of_the_other(
            stay in prop::collection::btree_set(0u8..50, 0..20),
            gone in prop::collection::btree_set(50u8..100, 0..20),
            fresh in prop::collection::btree_set(40u8..150, 0..20),
        ) {
            let before: Vec<_> = stay.iter().chain(&gone).map(|node| (*node, 1)).collect();
            let rejoined = |node: &u8| stay.contains(node) && fresh.contains(node);
            let kept = stay.iter().filter(|node| !rejoined(node)).map(|node| (*node, 1));
            let after: Vec<_> = kept.chain(fresh.iter().map(|node| (*node, 2))).collect();
            let (mut before, after) = (view(7, &before), view(9, &after));
            let change = after.since(&before);
            prop_assert_eq!(change.joined.len(), fresh.len());
            prop_assert!(before.follow(change.clone()));
            prop_assert_eq!(&before, &after);
            prop_assert!(!before.follow(change));
            prop_assert_eq!(before, after);
        }
    }
}
