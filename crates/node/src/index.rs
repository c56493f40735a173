//! From ids to what is known of the objects, for ten million of them: a hash table in shards.
//!
//! Engine thread only. One table would move everything it holds each time it doubles, and the engine
//! with it would stand still for a second; each shard moves its share alone. Ids come from clients,
//! so the hash is keyed.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use plasmon::ObjectId;

/// What is of one object.
pub(crate) trait Identified {
    /// Its id, always the same.
    fn id(&self) -> ObjectId;
}

/// At most one `T` for each id.
pub(crate) struct Index<T> {
    shards: Vec<HashTable<T>>,
    hasher: RandomState,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| HashTable::new()).collect(), hasher: RandomState::new() }
    }
}

/// How many shards an index has: a power of two.
pub(crate) const SHARDS: usize = 256;

impl<T: Identified> Index<T> {
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(HashTable::len).sum()
    }

    pub(crate) fn get(&self, id: &ObjectId) -> Option<&T> {
        let hash = self.hasher.hash_one(id);
        self.shards[shard(hash)].find(hash, |held| held.id() == *id)
    }

    pub(crate) fn get_mut(&mut self, id: &ObjectId) -> Option<&mut T> {
        let hash = self.hasher.hash_one(id);
        self.shards[shard(hash)].find_mut(hash, |held| held.id() == *id)
    }

    /// Enters what is of an object; what was there of it goes.
    pub(crate) fn insert(&mut self, new: T) {
        match self.entry(&new.id()) {
            Entry::Occupied(mut held) => *held.get_mut() = new,
            Entry::Vacant(place) => {
                place.insert(new);
            }
        }
    }

    /// What is of an object, made if need be.
    pub(crate) fn get_or_insert_with(&mut self, id: &ObjectId, make: impl FnOnce() -> T) -> &mut T {
        self.entry(id).or_insert_with(make).into_mut()
    }

    pub(crate) fn remove(&mut self, id: &ObjectId) -> Option<T> {
        let hash = self.hasher.hash_one(id);
        let held = self.shards[shard(hash)].find_entry(hash, |held| held.id() == *id).ok()?;
        Some(held.remove().0)
    }

    /// Those of one shard.
    pub(crate) fn shard(&self, shard: usize) -> impl Iterator<Item = &T> {
        self.shards[shard].iter()
    }

    /// All of them, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.shards.iter().flat_map(HashTable::iter)
    }

    /// All of them, in no order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.shards.iter_mut().flat_map(HashTable::iter_mut)
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.shards.iter_mut().for_each(|shard| shard.retain(|held| keep(held)));
    }

    fn entry(&mut self, id: &ObjectId) -> Entry<'_, T> {
        let hash = self.hasher.hash_one(id);
        let hasher = &self.hasher;
        self.shards[shard(hash)].entry(hash, |held| held.id() == *id, |held| hasher.hash_one(held.id()))
    }
}

/// Within a shard the table uses the low bits and the highest seven.
fn shard(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}
