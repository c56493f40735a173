//! Measurements of one keeper's directory on this machine.

use std::collections::HashSet;
use std::fs;
use std::time::Instant;

use plasmon_node::simulation::{Holder, Keeper, Shards};

use crate::{How, node, object, row, spent, timed};

/// Number of members of the cluster in which a directory is measured.
const MEMBERS: usize = 1000;

/// Costs of an entry.
pub(crate) struct Costs {
    /// Memory in bytes.
    pub(crate) entry_bytes: f64,
    /// Time in seconds to take in a publication.
    pub(crate) publish_s: f64,
    find_s: f64,
    /// Time in seconds to check whether an entry is kept here in a new view, and which of its holders live.
    pub(crate) follow_s: f64,
    /// Time in seconds for a holder to find the keepers of an object and whether they are new.
    pub(crate) scan_s: f64,
    /// Time in seconds for a holder to find the keepers that have to be told anything.
    pub(crate) settle_s: f64,
}

impl Costs {
    /// Fills a directory and measures it.
    pub(crate) fn measure(entries: u64) -> Self {
        let members: Vec<_> = (0..MEMBERS).map(node).collect();
        let shards = Shards::new(&members);
        // The entries belong to one keeper's shards, as if each holder had its part of them.
        let (own, asker) = (members[0], node(MEMBERS));
        let kept = (0..).map(|number| (number as usize % MEMBERS, object(number as usize % MEMBERS, number)));
        let kept = kept.filter(|(_, id)| shards.keepers(id).any(|keeper| keeper == own));
        let objects: Vec<_> = kept.take(entries as usize).collect();

        let (mut keeper, now) = (Keeper::default(), Instant::now());
        let before = resident();
        let begun = spent();
        for (holder, id) in &objects {
            assert!(keeper.publish(members[*holder], *id, now), "it is news");
        }
        let published = spent() - begun;
        let used = resident() - before;
        assert_eq!(keeper.len(), objects.len());
        let begun = spent();
        assert!(objects.iter().all(|(_, id)| keeper.finds(asker, *id, now)), "all are found");
        let found = spent() - begun;

        let alive: HashSet<_> = members.iter().copied().collect();
        let ((), followed) = timed(3, || keeper.follow(own, &shards, &alive, now));
        assert_eq!(keeper.len(), objects.len());
        let ids: Vec<_> = objects.iter().map(|(_, id)| *id).collect();
        let holder = Holder::settled(&shards);
        let ((), settled) = timed(5, || holder.follow(&shards, &HashSet::new()));
        let (_, scanned) = timed(3, || holder.tells(&shards, &ids));
        let each = |time: std::time::Duration, count: usize| time.as_secs_f64() / count as f64;
        Self {
            entry_bytes: used as f64 / objects.len() as f64,
            publish_s: each(published, objects.len()),
            find_s: each(found, objects.len()),
            follow_s: each(followed, objects.len()),
            scan_s: each(scanned, ids.len()),
            settle_s: settled.as_secs_f64(),
        }
    }

    pub(crate) fn tell(&self) {
        row(0, 0, "directory of an object, at each keeper", self.entry_bytes, "bytes", How::Measured);
        for (measure, value) in [
            ("a publication taken in", self.publish_s),
            ("a holder found", self.find_s),
            ("an entry looked at for a view", self.follow_s),
            ("an object looked at by its holder", self.scan_s),
            ("the keepers of all shards looked at by a holder", self.settle_s),
        ] {
            row(0, 0, measure, value * 1e9, "ns", How::Measured);
        }
    }
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("it is there");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel counts it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("it is a number") << 10
}
