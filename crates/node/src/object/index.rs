//! From id to replica, for ten million of them: a hash table in shards.
//!
//! Engine thread only. One table would move everything it holds each time it doubles, and the engine
//! with it would stand still for a second; each shard moves its share alone. Ids come from clients,
//! so the hash is keyed.

use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use plasmon::ObjectId;

use super::Replica;

/// Sealed objects by id.
pub(super) struct Index {
    shards: Vec<HashTable<Rc<Replica>>>,
    hasher: RandomState,
}

impl Default for Index {
    fn default() -> Self {
        Self { shards: (0..Self::SHARDS).map(|_| HashTable::new()).collect(), hasher: RandomState::new() }
    }
}

impl Index {
    /// How many tables: a power of two.
    pub(super) const SHARDS: usize = 256;

    pub(super) fn get(&self, id: &ObjectId) -> Option<&Rc<Replica>> {
        let hash = self.hasher.hash_one(id);
        self.shards[shard(hash)].find(hash, |replica| replica.id() == *id)
    }

    /// Enters a replica; one of the same id goes.
    pub(super) fn insert(&mut self, replica: Rc<Replica>) {
        let id = replica.id();
        let hash = self.hasher.hash_one(id);
        let hasher = &self.hasher;
        let shard = &mut self.shards[shard(hash)];
        match shard.entry(hash, |held| held.id() == id, |held| hasher.hash_one(held.id())) {
            Entry::Occupied(mut held) => *held.get_mut() = replica,
            Entry::Vacant(place) => {
                place.insert(replica);
            }
        }
    }

    pub(super) fn remove(&mut self, id: &ObjectId) -> Option<Rc<Replica>> {
        let hash = self.hasher.hash_one(id);
        let held = self.shards[shard(hash)].find_entry(hash, |replica| replica.id() == *id).ok()?;
        Some(held.remove().0)
    }

    /// Those of one shard.
    pub(super) fn shard(&self, shard: usize) -> impl Iterator<Item = &Rc<Replica>> {
        self.shards[shard].iter()
    }

    /// All of them, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Rc<Replica>> {
        self.shards.iter().flat_map(HashTable::iter)
    }
}

/// Within a shard the table uses the low bits and the highest seven.
fn shard(hash: u64) -> usize {
    (hash >> 40) as usize % Index::SHARDS
}
