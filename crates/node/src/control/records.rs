//! Records of volumes: which nodes decide about a volume and keep its names. Plain data; any thread. The
//! owner of the table is the coordinator.
//!
//! Invariants: there is one record for each name. A record changes from its number to the next one alone, so
//! of two nodes that want to change the same record only the first does. All nodes follow the changes in the
//! order in which the coordinator made them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plasmon::NodeId;
use plasmon::wire::MAX_NAME_BYTES;
use serde::{Deserialize, Serialize};

use crate::net::members::{as_text, as_texts};

/// Maximum number of volumes of a cluster.
pub(crate) const MAX_RECORDS: usize = 1 << 12;
/// Maximum number of mirrors of a volume.
pub(crate) const MAX_MIRRORS: usize = 7;

/// Minimum time in which members come back to a coordinator that has begun anew.
const MIN_SETTLING_TIME: Duration = Duration::from_secs(10);

/// Time in which members come back, with the records of their volumes, to a coordinator that has begun anew.
pub(crate) fn settling_time(lease: Duration) -> Duration {
    lease.saturating_mul(2).max(MIN_SETTLING_TIME)
}

/// The record of a volume: its home and its mirrors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeRecord {
    /// The name of the volume, of which there is one record.
    pub(crate) name: String,
    /// The number of the volume, which no other volume has.
    pub(crate) volume: u32,
    /// The user to whom the volume belongs.
    pub(crate) owner: u32,
    /// The number of the record: 1, and one more with each change.
    pub(crate) number: u64,
    /// The node that decides about the volume.
    #[serde(with = "as_text")]
    pub(crate) home: NodeId,
    /// The nodes that have confirmed everything of which anybody was told that it is done.
    #[serde(with = "as_texts")]
    pub(crate) mirrors: Vec<NodeId>,
}

impl VolumeRecord {
    /// Whether all fields are in range.
    pub(crate) fn is_valid(&self) -> bool {
        let is_distinct = |at: usize, node: &NodeId| *node != self.home && !self.mirrors[..at].contains(node);
        (1..=MAX_NAME_BYTES).contains(&self.name.len())
            && self.volume != 0
            && (1..u64::MAX).contains(&self.number)
            && self.mirrors.len() <= MAX_MIRRORS
            && self.mirrors.iter().enumerate().all(|(at, node)| is_distinct(at, node))
    }

    /// Whether a node is the home or a mirror.
    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.home == node || self.mirrors.contains(&node)
    }

    /// Returns the record under a name that tells the volume from another volume of its name.
    pub(crate) fn apart(&self) -> Self {
        let suffix = format!(".{}", self.volume);
        let mut name = self.name.clone();
        while name.len() + suffix.len() > MAX_NAME_BYTES {
            name.pop();
        }
        Self { name: name + &suffix, ..self.clone() }
    }

    /// Returns the next record of the volume, with the given nodes.
    pub(crate) fn next(&self, home: NodeId, mirrors: Vec<NodeId>) -> Self {
        Self { number: self.number + 1, home, mirrors, ..self.clone() }
    }
}

/// A change of the table that a node asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Proposal {
    /// The number by which the node that asks knows the answer.
    pub(crate) ask: u64,
    /// The record after the change.
    pub(crate) record: VolumeRecord,
    /// Whether the volume is removed instead. The record still has the number behind the last one.
    pub(crate) removes: bool,
}

/// The answer to a proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Proposed {
    /// The number of the proposal.
    pub(crate) ask: u64,
    /// The record of that name after the proposal, or the reason why the coordinator did not look at the
    /// proposal.
    pub(crate) outcome: Result<Option<VolumeRecord>, String>,
}

/// A piece of news of the table: the record of a name, or that the name has none any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordNews {
    pub(crate) name: String,
    pub(crate) record: Option<VolumeRecord>,
}

/// The records of all volumes, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Records {
    by_name: BTreeMap<String, Arc<VolumeRecord>>,
}

impl Records {
    /// The record of a name.
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<VolumeRecord>> {
        self.by_name.get(name)
    }

    /// The record of a volume of this number.
    pub(crate) fn of_volume(&self, volume: u32) -> Option<&Arc<VolumeRecord>> {
        self.iter().find(|record| record.volume == volume)
    }

    /// All records, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<VolumeRecord>> {
        self.by_name.values()
    }

    /// Number of records.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Enters news, if they are valid.
    pub(crate) fn follow(&mut self, news: RecordNews) {
        match news.record {
            Some(record) if record.is_valid() && record.name == news.name => {
                self.by_name.insert(news.name, Arc::new(record));
            }
            Some(_) => {}
            None => _ = self.by_name.remove(&news.name),
        }
    }

    /// Makes a change if the table allows it ([`Records::allows`]).
    pub(crate) fn change(&mut self, proposal: &Proposal) {
        if self.allows(proposal) {
            let Proposal { record, removes, .. } = proposal.clone();
            let news = RecordNews { name: record.name.clone(), record: (!removes).then_some(record) };
            self.follow(news);
        }
    }

    /// Whether the table still has the record before a proposal, or has room for a new one.
    pub(crate) fn allows(&self, proposal: &Proposal) -> bool {
        let Proposal { record, removes, .. } = proposal;
        if !record.is_valid() {
            return false;
        }
        match self.get(&record.name) {
            Some(known) => {
                let same = (known.volume, known.owner) == (record.volume, record.owner);
                same && record.number == known.number + 1
            }
            None => {
                let is_fresh = self.of_volume(record.volume).is_none();
                record.number == 1 && !removes && is_fresh && self.len() < MAX_RECORDS
            }
        }
    }

    /// Returns the changes since the table `before`. New names come first, so a volume that gets another name
    /// has the new one before it loses the old one.
    pub(crate) fn since(&self, before: &Self) -> Vec<RecordNews> {
        let fresh = self.by_name.iter().filter(|(name, record)| before.by_name.get(*name) != Some(*record));
        let told = |record: &Arc<VolumeRecord>| Some(VolumeRecord::clone(record));
        let fresh = fresh.map(|(name, record)| RecordNews { name: name.clone(), record: told(record) });
        let (known, fresh): (Vec<_>, Vec<_>) = fresh.partition(|news| before.get(&news.name).is_some());
        let gone = before.by_name.keys().filter(|name| !self.by_name.contains_key(*name));
        let gone = gone.map(|name| RecordNews { name: name.clone(), record: None });
        fresh.into_iter().chain(known).chain(gone).collect()
    }

    /// The records of volumes that a node has.
    pub(crate) fn of(&self, node: NodeId) -> Vec<VolumeRecord> {
        self.iter().filter(|record| record.has(node)).map(|record| VolumeRecord::clone(record)).collect()
    }
}

impl FromIterator<VolumeRecord> for Records {
    fn from_iter<T: IntoIterator<Item = VolumeRecord>>(records: T) -> Self {
        let mut table = Self::default();
        for record in records {
            table.follow(RecordNews { name: record.name.clone(), record: Some(record) });
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 16])
    }

    fn record(name: &str, volume: u32) -> VolumeRecord {
        let (name, mirrors) = (name.to_owned(), vec![node(2)]);
        VolumeRecord { name, volume, owner: 7, number: 1, home: node(1), mirrors }
    }

    fn proposed(record: VolumeRecord, removes: bool) -> Proposal {
        Proposal { ask: 1, record, removes }
    }

    #[test]
    fn of_two_changes_of_one_record_the_first_is_made() {
        let mut table = Records::default();
        let first = record("a", 1);
        table.change(&proposed(first.clone(), false));
        table.change(&proposed(VolumeRecord { home: node(3), ..first.clone() }, false));
        assert_eq!(table.get("a").map(|known| known.home), Some(node(1)));
        let (one, other) = (first.next(node(2), vec![]), first.next(node(3), vec![]));
        table.change(&proposed(one.clone(), false));
        table.change(&proposed(other, true));
        assert_eq!(table.get("a").map(|known| VolumeRecord::clone(known)), Some(one.clone()));
        table.change(&proposed(one.next(node(2), vec![]), true));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn what_is_no_next_record_is_not_made() {
        let mut table = Records::default();
        let first = record("a", 1);
        table.change(&proposed(first.clone(), false));
        let next = first.next(node(2), vec![]);
        let many = (10..10 + MAX_MIRRORS as u8 + 1).map(node).collect();
        for wrong in [
            record("b", 1),
            VolumeRecord { number: 2, ..record("b", 2) },
            VolumeRecord { volume: 2, ..next.clone() },
            VolumeRecord { owner: 0, ..next.clone() },
            VolumeRecord { number: 3, ..next.clone() },
            VolumeRecord { mirrors: vec![node(2)], ..next.clone() },
            VolumeRecord { mirrors: vec![node(3), node(3)], ..next.clone() },
            VolumeRecord { mirrors: many, ..next.clone() },
            VolumeRecord { name: "n".repeat(MAX_NAME_BYTES + 1), ..record("", 3) },
        ] {
            assert!(!table.allows(&proposed(wrong.clone(), false)), "{wrong:?}");
        }
        assert!(table.allows(&proposed(next, false)));
    }

    #[test]
    fn news_make_one_table_of_the_other() {
        let before: Records = [record("a", 1), record("b", 2), record("c", 3)].into_iter().collect();
        let changed = record("b", 2).next(node(2), vec![]);
        let after: Records = [record("a", 1), changed, record("d", 4)].into_iter().collect();
        let news = after.since(&before);
        assert_eq!(news.len(), 3);
        let mut followed = before;
        news.into_iter().for_each(|news| followed.follow(news));
        assert_eq!(followed, after);
        assert_eq!(followed.of(node(2)).len(), 3);
    }
}
