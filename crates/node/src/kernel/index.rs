//! An index from ids to the node's knowledge of objects, for ten million objects: a hash table in shards.
//!
//! Owns the values of an index. Engine thread only. A single table would move all its entries each time it
//! doubles, and the engine would stand still for a second; each shard moves its share alone. Ids come from
//! clients, so the hash is keyed. Invariant: an index has at most one value for each id.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use plasmon::ObjectId;

use super::random::Keyed;

/// An entry of an index.
pub(crate) trait Indexed {
    /// The id of the entry, always the same.
    fn id(&self) -> ObjectId;

    /// The hash that the entry was made of ([`Index::insert_with`]), if it is stored and the id is not.
    fn hash(&self) -> Option<u32> {
        None
    }
}

/// A map with at most one `T` for each id.
pub(crate) struct Index<T> {
    shards: Vec<HashTable<T>>,
    hasher: Keyed,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| HashTable::new()).collect(), hasher: Keyed::default() }
    }
}

/// Number of shards of an index: a power of two.
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

    /// Enters a value made of the id's hash, in place of a former value of the id.
    pub(crate) fn insert_with(&mut self, id: &ObjectId, make: impl FnOnce(u32) -> T) -> &mut T {
        let (entry, hash) = self.entry(id);
        entry.insert(make(hash)).into_mut()
    }

    /// Returns the value of an id, made if there is none.
    pub(crate) fn get_or_insert_with(&mut self, id: &ObjectId, make: impl FnOnce() -> T) -> &mut T {
        self.entry(id).0.or_insert_with(make).into_mut()
    }

    pub(crate) fn remove(&mut self, id: &ObjectId) -> Option<T> {
        let (shard, hash) = self.place(id);
        let held = self.shards[shard].find_entry(spread(hash), |held| held.id() == *id).ok()?;
        Some(held.remove().0)
    }

    /// The shard that an id is in.
    pub(crate) fn shard_of(&self, id: &ObjectId) -> usize {
        self.place(id).0
    }

    /// The values of one shard.
    pub(crate) fn shard(&self, shard: usize) -> impl Iterator<Item = &T> {
        self.shards[shard].iter()
    }

    /// All values, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.shards.iter().flat_map(HashTable::iter)
    }

    /// The values of one shard, to be changed.
    pub(crate) fn shard_mut(&mut self, shard: usize) -> impl Iterator<Item = &mut T> {
        self.shards[shard].iter_mut()
    }

    /// Removes the values of one shard that `keep` refuses.
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

/// Spreads a hash for the table, which looks at the lowest bits and the highest seven.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}
