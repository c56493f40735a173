//! Changes of members: a join or a death, the next map of shards, and the messages of holders to keepers.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use plasmon::NodeId;
use plasmon_node::simulation::{Holder, Shards, death_len, join_len, view_len};

use crate::{How, object, timed};

/// Number of shards of a directory.
pub(crate) const SHARDS: usize = 16_384;
/// Smallest number of holders that are gone through, with all of their objects if there are so many.
const HOLDERS: usize = 20;
const SAMPLE: u64 = 2_000_000;

/// Change of the members.
pub(crate) struct Event<'a> {
    before: &'a Shards,
    after: Shards,
    fresh: HashSet<NodeId>,
    members: usize,
    /// Time to make the map from the one before.
    pub(crate) map: Duration,
}

/// Messages of all holders together after a change.
pub(crate) struct Load {
    pub(crate) objects: f64,
    pub(crate) messages: f64,
    pub(crate) bytes: f64,
    pub(crate) busiest_objects: f64,
    pub(crate) busiest_bytes: f64,
    pub(crate) how: How,
}

impl<'a> Event<'a> {
    /// Join of the last of these members.
    pub(crate) fn join(before: &'a Shards, members: &[NodeId]) -> Self {
        Self::new(before, members, members.last().into_iter().copied().collect())
    }

    /// Death of a member that keeps an average number of shards.
    pub(crate) fn death(before: &'a Shards, members: &[NodeId]) -> Self {
        let kept = kept(before, members);
        let mut order: Vec<_> = (1..members.len()).collect();
        order.sort_unstable_by_key(|at| kept[*at]);
        let dead = order[order.len() / 2];
        let others: Vec<_> = members.iter().filter(|node| **node != members[dead]).copied().collect();
        Self::new(before, &others, HashSet::new())
    }

    fn new(before: &'a Shards, members: &[NodeId], fresh: HashSet<NodeId>) -> Self {
        let (after, map) = timed(5, || before.follow(members));
        assert!(after == Shards::new(members), "a map that follows is the one made anew");
        Self { before, after, fresh, members: members.len(), map }
    }

    pub(crate) fn name(&self) -> &'static str {
        if self.fresh.is_empty() { "death" } else { "join" }
    }

    /// Number of bytes that the coordinator sends: all members to a joining node, the change to the others.
    pub(crate) fn told_by_coordinator(&self) -> usize {
        match self.fresh.len() {
            0 => self.members * death_len(),
            joined => joined * view_len(self.members) + (self.members - joined) * join_len(),
        }
    }

    /// Messages of the older nodes to keepers. At most `most` objects of a holder are gone through.
    pub(crate) fn load(&self, objects: u64, members: &[NodeId], most: u64) -> Load {
        let each = objects as f64 / members.len() as f64;
        let taken = (each.ceil() as u64).min(most);
        let scale = each / taken as f64;
        let step = members.len().div_ceil(HOLDERS.max((SAMPLE / taken) as usize));
        let holders: Vec<_> = (0..members.len()).step_by(step).collect();
        let stands_for = members.len() as f64 / holders.len() as f64;
        let (mut load, mut by_keeper) = (Load::none(), HashMap::<NodeId, f64>::new());
        // All holders know the same about their keepers.
        let all = Holder::settled(self.before);
        all.follow(&self.after, &self.fresh);
        for holder in &holders {
            let ids: Vec<_> = (0..taken).map(|number| object(*holder, number)).collect();
            let told = all.tells(&self.after, &ids);
            let all_of_it = scale.max(1.0) * stands_for;
            load.messages += told.messages as f64 * all_of_it;
            load.bytes += told.bytes as f64 * all_of_it;
            for (keeper, count) in told.objects {
                load.objects += count as f64 * all_of_it;
                *by_keeper.entry(keeper).or_default() += count as f64 * all_of_it;
            }
        }
        load.busiest_objects = by_keeper.values().copied().fold(0.0, f64::max);
        let share = if load.objects > 0.0 { load.busiest_objects / load.objects } else { 0.0 };
        load.busiest_bytes = share * load.bytes;
        if scale <= 1.0 && holders.len() == members.len() {
            load.how = How::Counted;
        }
        load
    }
}

impl Load {
    fn none() -> Self {
        let how = How::Sampled;
        Self { objects: 0.0, messages: 0.0, bytes: 0.0, busiest_objects: 0.0, busiest_bytes: 0.0, how }
    }
}

/// Number of shards that each of these members keeps, as first or second keeper.
pub(crate) fn kept(shards: &Shards, members: &[NodeId]) -> Vec<usize> {
    let places: HashMap<_, _> = members.iter().enumerate().map(|(at, node)| (*node, at)).collect();
    let mut kept = vec![0; members.len()];
    for keeper in shards.all().flatten() {
        kept[places[&keeper]] += 1;
    }
    kept
}
