//! The members according to etcd, revision by revision.
//!
//! Owns the members of one revision. Control thread. A view's epoch is the revision of the last change below
//! the prefix, which is the same for every node. A transaction that writes there tells the revision exactly,
//! and from then on the watch does.

use std::collections::BTreeMap;

use etcd_client::{Event, EventType, KeyValue};
use plasmon::NodeId;
use tracing::warn;

use super::record;
use crate::control::guard::Guard;
use crate::net::members::{Incarnation, Member, View};

/// The members of a revision.
pub(super) struct Roster {
    guard: Guard,
    /// The members by key, with the revision that made the key.
    members: BTreeMap<Vec<u8>, (i64, Member)>,
    revision: i64,
    /// The revision up to which the watch has told everything.
    seen: i64,
}

impl Roster {
    /// Makes the roster from the records and the revision of a transaction that wrote below the prefix.
    pub(super) fn new<'a>(
        records: impl IntoIterator<Item = &'a KeyValue>,
        revision: i64,
        guard: Guard,
    ) -> Self {
        let mut roster = Self { guard, members: BTreeMap::new(), revision, seen: revision };
        records.into_iter().for_each(|record| roster.enter(record));
        roster
    }

    /// Applies an event of the keys with this prefix; returns whether the members changed. An event that was
    /// applied before changes nothing.
    pub(super) fn apply(&mut self, event: &Event, prefix: &[u8]) -> bool {
        let is_news =
            |record: &&KeyValue| record.mod_revision() > self.seen && record.key().starts_with(prefix);
        let Some(record) = event.kv().filter(is_news) else { return false };
        // Several changes may have one revision, so `seen` moves only afterwards.
        self.revision = self.revision.max(record.mod_revision());
        match event.event_type() {
            EventType::Put => self.enter(record),
            EventType::Delete => {
                self.members.remove(record.key());
            }
        }
        true
    }

    /// Notes that the watch has told everything up to this revision.
    pub(super) fn saw(&mut self, revision: i64) {
        self.seen = self.seen.max(revision);
    }

    /// The revision from which a watch is to go on.
    pub(super) fn next(&self) -> i64 {
        self.seen + 1
    }

    /// Whether this incarnation of a node is a member.
    pub(super) fn has(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.members.values().any(|(_, member)| (member.node, member.incarnation) == (node, incarnation))
    }

    /// The members, in the order they joined.
    pub(super) fn view(&self) -> View {
        let mut members: Vec<_> = self.members.values().collect();
        members.sort_by_key(|(created, member)| (*created, member.node));
        View {
            epoch: u64::try_from(self.revision).unwrap_or(0),
            members: members.into_iter().map(|(_, member)| member.clone()).collect(),
        }
    }

    fn enter(&mut self, record: &KeyValue) {
        let key = String::from_utf8_lossy(record.key());
        match record::decode::<Member>(record.value(), &key, self.guard.secret()) {
            Ok(member) => {
                self.members.insert(record.key().to_vec(), (record.create_revision(), member));
            }
            Err(reason) => {
                // No node of this release can join beside the record; every node leaves it out alike.
                warn!("etcd's key {key} is left out: {reason}");
                self.members.remove(record.key());
            }
        }
    }
}
