//! Shards: which nodes keep the directory of which objects. Owns no state; any thread.
//!
//! An id falls into one of [`SHARDS`] fixed shards. A shard is kept by the two nodes that score highest for
//! it by rendezvous hashing (Thaler and Ravishankar, 1998). Each node computes the same map from the
//! members of an epoch, once, so that no node has to be asked, and a node's death moves only the shards
//! that it kept.
//!
//! The map of the next epoch is made from the last one: new members are compared with the keepers of every
//! shard, and only shards that lost a keeper are scored for all members. Scoring 10,000 members for every
//! shard would take the engine about a second (`docs/scale.md`).

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
    /// The numbers of the first and the second keeper of every shard.
    keepers: Vec<Numbers>,
}

/// The places of two members among all members.
type Numbers = [u32; 2];

/// Number that stands for a missing second keeper, when there is one member only.
const NONE: u32 = u32::MAX;
/// Number that stands for a member which is not among the other members.
const GONE: u32 = u32::MAX - 1;

impl ShardMap {
    /// The map of a cluster of one node.
    pub(crate) fn alone(node: NodeId) -> Self {
        Self { members: vec![node], keepers: vec![[0, NONE]; SHARDS] }
    }

    /// Makes the map of `members`; `None` if there are none.
    pub(crate) fn new(members: &[NodeId]) -> Option<Self> {
        let members = in_order(members);
        let count = members.len() as u32;
        let keepers = (0..SHARDS).map(|shard| best(shard, &members, 0..count)).collect();
        (count > 0).then_some(Self { keepers, members })
    }

    /// The map of other members. It equals that of [`ShardMap::new`], and costs only the differences.
    pub(crate) fn follow(&self, members: &[NodeId]) -> Option<Self> {
        let members = in_order(members);
        let fresh: Vec<_> =
            (0..members.len() as u32).filter(|number| !self.is_member(members[*number as usize])).collect();
        if 2 * fresh.len() >= members.len() {
            return Self::new(&members);
        }
        let now = self.numbers_among(&members);
        let keepers = self.keepers.iter().enumerate().map(|(shard, old)| {
            let old = old.map(|number| now.of(number));
            if old.contains(&GONE) {
                return best(shard, &members, 0..members.len() as u32);
            }
            if fresh.is_empty() {
                return old;
            }
            let old = old.into_iter().filter(|number| *number != NONE);
            best(shard, &members, old.chain(fresh.iter().copied()))
        });
        Some(Self { keepers: keepers.collect(), members })
    }

    /// Whether this map is the one of `members`.
    pub(crate) fn is_of(&self, members: &[NodeId]) -> bool {
        self.members == in_order(members)
    }

    /// The numbers that the members of this map have among other members.
    fn numbers_among(&self, others: &[NodeId]) -> Renumbered {
        let number = |node| others.binary_search(node).map_or(GONE, |number| number as u32);
        Renumbered(self.members.iter().map(number).chain([NONE]).collect())
    }

    /// For every shard, the place at which its first and its second keeper stood in a former map: 0 or 1, or
    /// `None` for nowhere. A keeper for which `is_same` does not hold stood nowhere. A missing second keeper
    /// has a place only if the former map had none either.
    pub(crate) fn former_places<'a>(
        &'a self,
        former: &'a Self,
        is_same: impl Fn(NodeId) -> bool,
    ) -> impl Iterator<Item = [Option<usize>; 2]> + 'a {
        let mut now = former.numbers_among(&self.members);
        for (number, _) in now.0.iter_mut().zip(&former.members).filter(|(_, node)| !is_same(**node)) {
            *number = GONE;
        }
        self.keepers.iter().zip(&former.keepers).map(move |(keepers, before)| {
            let [first, second] = before.map(|number| now.of(number));
            keepers.map(|keeper| match keeper {
                _ if keeper == first => Some(0),
                _ if keeper == second => Some(1),
                _ => None,
            })
        })
    }

    /// Whether shards have a second keeper.
    pub(crate) fn has_seconds(&self) -> bool {
        self.members.len() > 1
    }

    /// For every shard, whether a node keeps it.
    pub(crate) fn kept_by(&self, node: NodeId) -> impl Iterator<Item = bool> {
        let number = self.members.binary_search(&node).map_or(NONE, |number| number as u32);
        self.keepers.iter().map(move |keepers| number != NONE && keepers.contains(&number))
    }

    fn of(&self, [first, second]: Numbers) -> Keepers {
        Keepers { first: self.members[first as usize], second: self.members.get(second as usize).copied() }
    }

    /// Whether a node keeps shards or could keep them.
    pub(crate) fn is_member(&self, node: NodeId) -> bool {
        self.members.binary_search(&node).is_ok()
    }

    /// The keepers of every shard, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Keepers> {
        self.keepers.iter().map(|numbers| self.of(*numbers))
    }

    /// The keepers of the directory entry of an object.
    pub(crate) fn keepers(&self, id: &ObjectId) -> Keepers {
        self.of(self.keepers[shard_of(id)])
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

/// Orders nodes by who is to take replicas of an object; every node computes the same order.
pub(crate) fn ranked(id: &ObjectId, mut nodes: Vec<NodeId>) -> Vec<NodeId> {
    let [a, b, c, d, ..] = *id.as_bytes();
    let seed = mix(u32::from_le_bytes([a, b, c, d]).into());
    nodes.sort_unstable_by_key(|node| std::cmp::Reverse((score(seed, *node), *node)));
    nodes
}

/// Returns the two members with the highest scores for a shard, among the members with the given numbers.
fn best(shard: usize, members: &[NodeId], numbers: impl Iterator<Item = u32>) -> Numbers {
    let shard = mix(shard as u64);
    // Members are in ascending order: of equal scores, the one with the larger id counts.
    let [mut first, mut second] = [(0, NONE); 2];
    for number in numbers {
        let scored = (score(shard, members[number as usize]), number);
        if first.1 == NONE || scored > first {
            (first, second) = (scored, first);
        } else if second.1 == NONE || scored > second {
            second = scored;
        }
    }
    [first.1, second.1]
}

/// Numbers of the members of one map among those of another, and behind them [`NONE`].
struct Renumbered(Vec<u32>);

impl Renumbered {
    /// Returns the number of a member; [`NONE`] for a missing second keeper.
    #[inline]
    fn of(&self, number: u32) -> u32 {
        self.0[(number as usize).min(self.0.len() - 1)]
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
        assert!(alone.iter().all(|keepers| keepers.second.is_none()));
        let pair = ShardMap::new(&members(2)).unwrap();
        assert!(pair.iter().all(|keepers| keepers.second.is_some_and(|second| second != keepers.first)));
    }

    #[test]
    fn the_load_is_even_and_the_order_of_members_is_nothing() {
        let mut nodes = members(8);
        let map = ShardMap::new(&nodes).unwrap();
        for node in &nodes {
            let share = map.iter().filter(|keepers| keepers.first == *node).count();
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
        for (old, new) in before.iter().zip(after.iter()) {
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
            let Keepers { first, second } = map.of(map.keepers[shard]);
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
            let followed = map.follow(&present).unwrap();
            let former = std::mem::replace(&mut map, followed);
            assert!(map == ShardMap::new(&present).unwrap(), "after {joined:?} joined and {died:?} died");
            // One member has the same id, but is another one by `is_same`.
            let other = present[0];
            let places = map.former_places(&former, |node| node != other);
            for ((places, now), before) in places.zip(map.iter()).zip(former.iter()) {
                let before: Vec<_> = before.iter().collect();
                let place = |node| before.iter().position(|before| *before == node && node != other);
                let right: Vec<_> = now.iter().map(place).collect();
                assert_eq!(places[..right.len()], right);
            }
        }
        assert!(map.follow(&[]).is_none());
        let one = map.follow(&all[59..]).unwrap();
        assert_eq!(one, ShardMap::alone(all[59]));
        assert_eq!(one.follow(&all[58..]), ShardMap::new(&all[58..]));
    }
}
