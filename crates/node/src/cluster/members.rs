//! Who is in the cluster: what nodes tell each other through the coordinator.

use plasmon::NodeId;
use serde::{Deserialize, Serialize};

/// Grows at every start of a node, and whenever it joins anew: what peers knew of it before is void.
pub(crate) type Incarnation = u64;

/// A node as the coordinator presents it to the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Its id.
    #[serde(with = "as_text")]
    pub(crate) node: NodeId,
    /// Its incarnation.
    pub(crate) incarnation: Incarnation,
    /// `host:port` of its control connection.
    pub(crate) listen: String,
    /// How it can be reached, best first: of any two members, one way at least is the same.
    pub(crate) fabrics: Vec<Reach>,
    /// What frames sent to it must carry.
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
    /// Fabric address of the lane for one-sided reads.
    pub(crate) bulk_address: Vec<u8>,
}

impl Reach {
    /// Whether two nodes that have these can talk by them.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        (&self.provider, self.protocol) == (&other.provider, other.protocol)
    }
}

impl Member {
    /// Whether two nodes can talk to each other.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.fabrics.iter().any(|mine| other.fabrics.iter().any(|theirs| mine.meets(theirs)))
    }

    /// Its providers, for people.
    pub(crate) fn providers(&self) -> String {
        let names: Vec<_> = self.fabrics.iter().map(|reach| reach.provider.as_str()).collect();
        names.join(" and ")
    }
}

/// The members of one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct View {
    /// Grows with every change.
    pub(crate) epoch: u64,
    /// In the order they joined.
    pub(crate) members: Vec<Member>,
}

mod as_text {
    use plasmon::NodeId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(node: &NodeId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(node)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NodeId, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
