//! From ids to what is known of the objects, for ten million of them: a hash table in shards.
//!
//! Engine thread only. One table would move everything it holds each time it doubles, and the engine
//! with it would stand still for a second; each shard moves its share alone. Ids come from clients,
//! so the hash is keyed.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use plasmon::ObjectId;

use super::random::Keyed;

/// What is of one object.
pub(crate) trait Indexed {
    /// Its id, always the same.
    fn id(&self) -> ObjectId;

    /// The hash that it was made of ([`Index::insert_with`]), if that is at hand and the id is not.
    fn hash(&self) -> Option<u32> {
        None
    }
}

/// At most one `T` for each id.
pub(crate) struct Index<T> {
    shards: Vec<HashTable<T>>,
    hasher: Keyed,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| HashTable::new()).collect(), hasher: Keyed::default() }
    }
}

/// How many shards an index has: a power of two.
pub(crate) const SHARDS: usize = 256;

impl<T: Indexed> Index<T> {
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(HashTable::len).sum()
    }

    pub(crate) fn get(&self, id: &ObjectId) -> Option<&T> {
        let (shard, hash) = self.place(id);
        self.shards[shard].find(spread(hash), |held| held.id() == *id)
    }

    pub(crate) fn get_mut(&mut self, id: &ObjectId) -> Option<&mut T> {
        let (shard, hash) = self.place(id);
        self.shards[shard].find_mut(spread(hash), |held| held.id() == *id)
    }

    /// Enters what is of an object, made of the id's hash; what was there of it goes.
    pub(crate) fn insert_with(&mut self, id: &ObjectId, make: impl FnOnce(u32) -> T) -> &mut T {
        let (entry, hash) = self.entry(id);
        entry.insert(make(hash)).into_mut()
    }

    /// What is of an object, made if need be.
    pub(crate) fn get_or_insert_with(&mut self, id: &ObjectId, make: impl FnOnce() -> T) -> &mut T {
        self.entry(id).0.or_insert_with(make).into_mut()
    }

    pub(crate) fn remove(&mut self, id: &ObjectId) -> Option<T> {
        let (shard, hash) = self.place(id);
        let held = self.shards[shard].find_entry(spread(hash), |held| held.id() == *id).ok()?;
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

    /// Those of one shard.
    pub(crate) fn shard_mut(&mut self, shard: usize) -> impl Iterator<Item = &mut T> {
        self.shards[shard].iter_mut()
    }

    /// Takes those of one shard out that are not to stay.
    pub(crate) fn retain_in(&mut self, shard: usize, mut keep: impl FnMut(&T) -> bool) {
        self.shards[shard].retain(|held| keep(held));
    }

    /// The place of an id, and its hash.
    fn entry(&mut self, id: &ObjectId) -> (Entry<'_, T>, u32) {
        let (shard, hash) = self.place(id);
        let hasher = &self.hasher;
        let again = |held: &T| spread(held.hash().unwrap_or_else(|| place(hasher, &held.id()).1));
        (self.shards[shard].entry(spread(hash), |held| held.id() == *id, again), hash)
    }

    fn place(&self, id: &ObjectId) -> (usize, u32) {
        place(&self.hasher, id)
    }
}

/// The shard of an id, and its hash there.
fn place(hasher: &Keyed, id: &ObjectId) -> (usize, u32) {
    let hash = hasher.hash_one(id);
    ((hash >> 32) as usize % SHARDS, hash as u32)
}

/// A table looks at the lowest bits and the highest seven.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}
