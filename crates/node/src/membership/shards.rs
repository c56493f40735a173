//! Shards: which nodes keep the directory of which objects.
//!
//! An id falls into one of [`SHARDS`] fixed shards. A shard is kept by the two nodes that score highest for
//! it by rendezvous hashing (Thaler and Ravishankar, 1998). Each node computes the same map from the
//! members of an epoch, once, so that no node has to be asked, and a node's death moves only the shards
//! that it kept.
//!
//! The map of the next epoch is made from the last one: new members are compared with the keepers of every
//! shard, and only shards that lost a keeper are scored for all members. Scoring 10,000 members for every
//! shard would take the engine about a second (`docs/scale.md`).

use crate::kernel::random::HashSet;

use plasmon::{NodeId, ObjectId};

/// Number of shards of the directory; it never changes.
pub(crate) const SHARDS: usize = 16_384;

/// The nodes that keep one shard: the node to ask first, and the second keeper where there is one.
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
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShardMap {
    /// The nodes that keep shards or could keep them, in ascending order.
    members: Vec<NodeId>,
    keepers: Vec<Keepers>,
}

impl ShardMap {
    /// The map of a cluster of one node.
    pub(crate) fn alone(node: NodeId) -> Self {
        Self { members: vec![node], keepers: vec![Keepers { first: node, second: None }; SHARDS] }
    }

    /// The map of these members; `None` when there are none.
    pub(crate) fn new(members: &[NodeId]) -> Option<Self> {
        let members = in_order(members);
        let keepers = |members: &[NodeId]| (0..SHARDS).map(|shard| keepers(shard, members)).collect();
        (!members.is_empty()).then(|| Self { keepers: keepers(&members), members })
    }

    /// The map of other members. It equals that of [`ShardMap::new`], and costs only the differences.
    pub(crate) fn follow(&self, members: &[NodeId]) -> Option<Self> {
        let members = in_order(members);
        let now: HashSet<_> = members.iter().collect();
        let before: HashSet<_> = self.members.iter().collect();
        let fresh: Vec<_> = members.iter().filter(|node| !before.contains(node)).copied().collect();
        let gone = self.members.iter().any(|node| !now.contains(node));
        if 2 * fresh.len() >= members.len() {
            return Self::new(&members);
        }
        let keepers = self.keepers.iter().enumerate().map(|(shard, old)| {
            if gone && !old.iter().all(|node| now.contains(&node)) {
                return keepers(shard, &members);
            }
            let mut best = Best::of(shard, old.iter());
            fresh.iter().for_each(|node| best.offer(*node));
            best.keepers()
        });
        Some(Self { keepers: keepers.collect(), members })
    }

    /// Whether a node keeps shards or could keep them.
    pub(crate) fn is_member(&self, node: NodeId) -> bool {
        self.members.binary_search(&node).is_ok()
    }

    /// The keepers of every shard, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Keepers> {
        self.keepers.iter().copied()
    }

    /// The keepers of the directory entry of an object.
    pub(crate) fn keepers(&self, id: &ObjectId) -> Keepers {
        self.keepers[shard_of(id)]
    }
}

fn in_order(members: &[NodeId]) -> Vec<NodeId> {
    let mut members = members.to_vec();
    members.sort_unstable();
    members.dedup();
    members
}

/// The shard of an id. Ids are random or hashes, so their first bytes spread well. A user who chooses ids
/// to crowd a shard burdens that shard alone.
pub(crate) fn shard_of(id: &ObjectId) -> usize {
    let [low, high, ..] = *id.as_bytes();
    usize::from(u16::from_le_bytes([low, high])) % SHARDS
}

fn keepers(shard: usize, members: &[NodeId]) -> Keepers {
    Best::of(shard, members.iter().copied()).keepers()
}

/// Orders nodes by who is to take replicas of an object; every node computes the same order.
pub(crate) fn ranked(id: &ObjectId, mut nodes: Vec<NodeId>) -> Vec<NodeId> {
    let [a, b, c, d, ..] = *id.as_bytes();
    let seed = mix(u32::from_le_bytes([a, b, c, d]).into());
    nodes.sort_unstable_by_key(|node| std::cmp::Reverse((score(seed, *node), *node)));
    nodes
}

/// The two nodes with the highest scores for a shard.
struct Best {
    /// The number of the shard, mixed.
    shard: u64,
    best: [Option<(u64, NodeId)>; 2],
}

impl Best {
    fn of(shard: usize, members: impl Iterator<Item = NodeId>) -> Self {
        let mut best = Self { shard: mix(shard as u64), best: [None, None] };
        members.for_each(|node| best.offer(node));
        best
    }

    fn offer(&mut self, node: NodeId) {
        let scored = Some((score(self.shard, node), node));
        if scored > self.best[0] {
            self.best = [scored, self.best[0]];
        } else if scored > self.best[1] {
            self.best[1] = scored;
        }
    }

    fn keepers(self) -> Keepers {
        let [Some((_, first)), second] = self.best else {
            unreachable!("a shard map has members");
        };
        Keepers { first, second: second.map(|(_, node)| node) }
    }
}

/// The score of a node for a shard: node id and mixed shard through the finaliser of SplitMix64.
fn score(shard: u64, node: NodeId) -> u64 {
    let (low, high) = node.as_bytes().split_at(8);
    let half = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().expect("half of an id"));
    mix(mix(half(low) ^ shard) ^ half(high))
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
        assert!(alone.keepers.iter().all(|keepers| keepers.second.is_none()));
        let pair = ShardMap::new(&members(2)).unwrap();
        assert!(
            pair.keepers.iter().all(|keepers| keepers.second.is_some_and(|second| second != keepers.first))
        );
    }

    #[test]
    fn the_load_is_even_and_the_order_of_members_is_nothing() {
        let mut nodes = members(8);
        let map = ShardMap::new(&nodes).unwrap();
        for node in &nodes {
            let share = map.keepers.iter().filter(|keepers| keepers.first == *node).count();
            assert!((SHARDS / 8 * 9 / 10..SHARDS / 8 * 11 / 10).contains(&share), "{share}");
        }
        nodes.reverse();
        assert_eq!(map, ShardMap::new(&nodes).unwrap());
    }

    #[test]
    fn a_death_moves_only_what_the_dead_kept_and_the_second_takes_over() {
        let nodes = members(6);
        let before = ShardMap::new(&nodes).unwrap();
        let after = ShardMap::new(&nodes[1..]).unwrap();
        for (old, new) in before.keepers.iter().zip(&after.keepers) {
            if !old.contains(nodes[0]) {
                assert_eq!(old, new);
            } else if old.first == nodes[0] {
                assert_eq!(Some(new.first), old.second);
            } else {
                assert_eq!(new.first, old.first);
            }
        }
    }

    #[test]
    fn the_keepers_of_known_members_stay_what_they_are() {
        // Nodes of two releases have to agree.
        let map = ShardMap::new(&members(7)).unwrap();
        let numbers = [0, 1, 2, 8191, 16_383].map(|shard| {
            let Keepers { first, second } = map.keepers[shard];
            (first.as_bytes()[0], second.expect("there are seven").as_bytes()[0])
        });
        assert_eq!(numbers, [(6, 5), (1, 0), (6, 4), (6, 2), (2, 0)]);
    }

    #[test]
    fn a_map_that_follows_is_the_one_made_anew() {
        let all: Vec<_> = (0..60).map(|_| NodeId::random()).collect();
        let mut present: Vec<_> = all[..20].to_vec();
        let mut map = ShardMap::new(&present).unwrap();
        // The steps are joins, deaths, several of both at once, a nearly complete replacement, and back to
        // one and two.
        let steps: [(&[usize], &[usize]); 9] = [
            (&[20], &[]),
            (&[], &[3]),
            (&[21, 22], &[5, 7, 9]),
            (&[], &[]),
            (&[3], &[20]),
            (&[30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49], &[1]),
            (&[], &[30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49]),
            (&[50], &[0, 2, 4, 6, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 21, 22]),
            (&[51], &[50]),
        ];
        for (joined, died) in steps {
            present.retain(|node| !died.iter().any(|dead| all[*dead] == *node));
            present.extend(joined.iter().map(|new| all[*new]));
            map = map.follow(&present).unwrap();
            assert!(map == ShardMap::new(&present).unwrap(), "after {joined:?} joined and {died:?} died");
        }
        assert!(map.follow(&[]).is_none());
        let one = map.follow(&all[59..]).unwrap();
        assert_eq!(one, ShardMap::alone(all[59]));
        assert_eq!(one.follow(&all[58..]), ShardMap::new(&all[58..]));
    }
}
