//! Which nodes keep the directory of which objects.
//!
//! An id falls into one of [`SHARDS`] fixed shards; a shard lives on the two nodes that score
//! highest for it by rendezvous hashing (Thaler and Ravishankar, 1998). Each node computes the same
//! map from the members of an epoch, once, so that nobody has to be asked, and a node's death moves
//! only the shards it kept.

use plasmon::{NodeId, ObjectId};

/// Shards of the directory, for ever.
pub(crate) const SHARDS: usize = 16_384;

/// The nodes that keep one shard: the one to ask first, and the second copy where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keepers {
    pub(crate) first: NodeId,
    pub(crate) second: Option<NodeId>,
}

impl Keepers {
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        self.first == node || self.second == Some(node)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = NodeId> {
        std::iter::once(self.first).chain(self.second)
    }
}

/// The keepers of every shard in one epoch.
pub(crate) struct ShardMap(Vec<Keepers>);

impl ShardMap {
    /// The map of a cluster of one.
    pub(crate) fn alone(node: NodeId) -> Self {
        Self(vec![Keepers { first: node, second: None }; SHARDS])
    }

    /// The map of these members; `None` when there are none.
    pub(crate) fn new(members: &[NodeId]) -> Option<Self> {
        (!members.is_empty()).then(|| Self((0..SHARDS).map(|shard| keepers(shard, members)).collect()))
    }

    /// The keepers of every shard, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Keepers> {
        self.0.iter().copied()
    }

    /// Who keeps the directory entry of this object.
    pub(crate) fn keepers(&self, id: &ObjectId) -> Keepers {
        self.0[shard_of(id)]
    }
}

/// The shard of an id. Ids are random or hashes, so that their first bytes spread well; ids chosen
/// by a user who wants to crowd a shard burden that shard alone.
pub(crate) fn shard_of(id: &ObjectId) -> usize {
    let [low, high, ..] = *id.as_bytes();
    usize::from(u16::from_le_bytes([low, high])) % SHARDS
}

fn keepers(shard: usize, members: &[NodeId]) -> Keepers {
    let mut best: [Option<(u64, NodeId)>; 2] = [None, None];
    for &node in members {
        let scored = Some((score(shard, node), node));
        if scored > best[0] {
            best = [scored, best[0]];
        } else if scored > best[1] {
            best[1] = scored;
        }
    }
    let [Some((_, first)), second] = best else {
        unreachable!("a shard map has members");
    };
    Keepers { first, second: second.map(|(_, node)| node) }
}

/// Nodes in the order in which they are to take replicas of an object: every node comes to the same.
pub(crate) fn ranked(id: &ObjectId, mut nodes: Vec<NodeId>) -> Vec<NodeId> {
    let [a, b, c, d, ..] = *id.as_bytes();
    let seed = u32::from_le_bytes([a, b, c, d]) as usize;
    nodes.sort_unstable_by_key(|node| std::cmp::Reverse((score(seed, *node), *node)));
    nodes
}

/// How much a node wants a shard: node id and shard through the finaliser of SplitMix64.
fn score(shard: usize, node: NodeId) -> u64 {
    let (low, high) = node.as_bytes().split_at(8);
    let half = |bytes: &[u8]| bytes.iter().rev().fold(0, |word: u64, byte| word << 8 | u64::from(*byte));
    mix(mix(half(low) ^ mix(shard as u64)) ^ half(high))
}

fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(count: u8) -> Vec<NodeId> {
        (0..count).map(|number| NodeId::from_bytes([number; 16])).collect()
    }

    #[test]
    fn one_node_keeps_all_and_two_keep_two_copies() {
        assert!(ShardMap::new(&[]).is_none());
        let alone = ShardMap::new(&members(1)).unwrap();
        assert!(alone.0.iter().all(|keepers| keepers.second.is_none()));
        let pair = ShardMap::new(&members(2)).unwrap();
        assert!(pair.0.iter().all(|keepers| keepers.second.is_some_and(|second| second != keepers.first)));
    }

    #[test]
    fn the_load_is_even_and_the_order_of_members_is_nothing() {
        let mut nodes = members(8);
        let map = ShardMap::new(&nodes).unwrap();
        for node in &nodes {
            let share = map.0.iter().filter(|keepers| keepers.first == *node).count();
            assert!((SHARDS / 8 * 9 / 10..SHARDS / 8 * 11 / 10).contains(&share), "{share}");
        }
        nodes.reverse();
        assert_eq!(map.0, ShardMap::new(&nodes).unwrap().0);
    }

    #[test]
    fn a_death_moves_only_what_the_dead_kept_and_the_second_takes_over() {
        let nodes = members(6);
        let before = ShardMap::new(&nodes).unwrap();
        let after = ShardMap::new(&nodes[1..]).unwrap();
        for (old, new) in before.0.iter().zip(&after.0) {
            if !old.contains(nodes[0]) {
                assert_eq!(old, new);
            } else if old.first == nodes[0] {
                assert_eq!(Some(new.first), old.second);
            } else {
                assert_eq!(new.first, old.first);
            }
        }
    }
}
