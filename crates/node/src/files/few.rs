//! Maps of few entries: sorted lists, which take the memory of their entries and little more. Owns [`Few`].
//! Any thread.
//!
//! For its first entry a `BTreeMap` takes a node with room for eleven. Invariant: the keys of a list ascend.

use std::borrow::Borrow;

/// Map that is kept in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Few<K, V>(Vec<(K, V)>);

impl<K, V> Default for Few<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> Few<K, V> {
    /// Makes a map of entries whose keys ascend.
    pub(super) fn of(entries: impl Iterator<Item = (K, V)>) -> Self {
        Self(entries.collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the place of a key, or the place at which it belongs.
    fn place<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(other, _)| other.borrow().cmp(key))
    }

    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.place(key).ok().map(|at| &self.0[at].1)
    }

    /// Enters a value, and returns the former one of the key.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                if self.0.len() == self.0.capacity() {
                    // By itself a list makes room for four, and for twice as many after that.
                    self.0.reserve_exact(self.0.len() / 2 + 1);
                }
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    pub(super) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (_, value) = self.0.remove(self.place(key).ok()?);
        self.0.shrink_to(self.0.len() * 2);
        Some(value)
    }

    /// Returns the entries below a key.
    pub(super) fn below(&self, key: &K) -> &[(K, V)] {
        &self.0[..self.place(key).unwrap_or_else(|at| at)]
    }

    /// Returns the entries from a key on.
    pub(super) fn from(&self, key: &K) -> &[(K, V)] {
        &self.0[self.place(key).unwrap_or_else(|at| at)..]
    }

    /// Returns all entries in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Takes all entries out, in their order.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (K, V)> + use<K, V> {
        std::mem::take(&mut self.0).into_iter()
    }
}
