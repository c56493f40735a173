//! The records of volumes according to etcd.
//!
//! Owns the records of one revision. Control thread. A key has the record of a volume, and no lease: the key
//! outlives the nodes. It changes by a transaction that compares the revision of the key with the one that
//! this node has followed.

use std::collections::BTreeMap;

use etcd_client::{Compare, CompareOp, Event, EventType, KeyValue, Txn, TxnOp};
use plasmon::wire::files::volume_id;
use tracing::warn;

use super::record;
use crate::control::guard::Guard;
use crate::control::records::{Proposal, RecordNews, Records, VolumeRecord};

/// The records of a revision.
pub(super) struct Volumes {
    guard: Guard,
    prefix: String,
    /// For each key, the revision that last changed the key, and the name of the volume.
    keys: BTreeMap<Vec<u8>, (i64, String)>,
    records: Records,
}

impl Volumes {
    /// Makes the table from the keys of a transaction.
    pub(super) fn new<'a>(
        keys: impl IntoIterator<Item = &'a KeyValue>,
        prefix: String,
        guard: Guard,
    ) -> Self {
        let mut volumes = Self { guard, prefix, keys: BTreeMap::new(), records: Records::default() };
        keys.into_iter().for_each(|key| _ = volumes.enter(key));
        volumes
    }

    pub(super) fn records(&self) -> &Records {
        &self.records
    }

    /// The key of a volume of this name.
    fn key_of(&self, name: &str) -> String {
        format!("{}{}", self.prefix, record::hex(volume_id(name).as_bytes()))
    }

    /// Applies an event; returns the change of the record. An event that was applied before changes nothing.
    pub(super) fn apply(&mut self, event: &Event) -> Option<RecordNews> {
        let key = event.kv().filter(|key| key.key().starts_with(self.prefix.as_bytes()))?;
        let known = self.keys.get(key.key()).map_or(0, |(revision, _)| *revision);
        if key.mod_revision() <= known {
            return None;
        }
        match event.event_type() {
            EventType::Put => self.enter(key),
            EventType::Delete => {
                let (_, name) = self.keys.remove(key.key())?;
                let news = RecordNews { name, record: None };
                self.records.follow(news.clone());
                Some(news)
            }
        }
    }

    fn enter(&mut self, key: &KeyValue) -> Option<RecordNews> {
        let text = String::from_utf8_lossy(key.key()).into_owned();
        let decoded = record::decode::<VolumeRecord>(key.value(), &text, self.guard.secret());
        let record = decoded.and_then(|record| {
            let fits = record.is_valid() && self.key_of(&record.name) == text;
            if fits { Ok(record) } else { Err("it is the record of another volume".to_owned()) }
        });
        match record {
            Ok(record) => {
                self.keys.insert(key.key().to_vec(), (key.mod_revision(), record.name.clone()));
                let news = RecordNews { name: record.name.clone(), record: Some(record) };
                self.records.follow(news.clone());
                Some(news)
            }
            Err(reason) => {
                warn!("etcd's key {text} is left out: {reason}");
                None
            }
        }
    }

    /// Returns the transaction that changes a record, if this node has followed the record before the change.
    /// The transaction fails if the key was changed since; in both cases it ends with reading the key.
    pub(super) fn change(&self, proposal: &Proposal) -> Option<Txn> {
        if !self.records.allows(proposal) {
            return None;
        }
        let key = self.key_of(&proposal.record.name);
        let revision = self.keys.get(key.as_bytes()).map_or(0, |(revision, _)| *revision);
        let unchanged = Compare::mod_revision(key.as_str(), CompareOp::Equal, revision);
        let change = if proposal.removes {
            TxnOp::delete(key.as_str(), None)
        } else {
            let written = record::encode(&proposal.record, &key, self.guard.secret());
            TxnOp::put(key.as_str(), written, None)
        };
        let read = || TxnOp::get(key.as_str(), None);
        Some(Txn::new().when([unchanged]).and_then([change, read()]).or_else([read()]))
    }

    /// Returns the record that a transaction has read.
    pub(super) fn read<'a>(&self, keys: impl IntoIterator<Item = &'a KeyValue>) -> Option<VolumeRecord> {
        let key = keys.into_iter().next()?;
        let text = String::from_utf8_lossy(key.key()).into_owned();
        record::decode(key.value(), &text, self.guard.secret()).ok()
    }
}
