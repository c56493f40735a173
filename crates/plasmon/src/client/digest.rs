//! The digest of an object.
//!
//! Owns no state. Any thread. Invariant: the digest of the same bytes is the same on every host.

use xxhash_rust::xxh3::Xxh3;

/// Computes XXH3 of an object's data and metadata. The digest is never 0. The data has `len` bytes: `parts`
/// at their offsets, in order and without overlap, and zeros between and behind them.
pub(super) fn digest(parts: &[(usize, &[u8])], len: usize, metadata: &[u8]) -> u64 {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut hash = Xxh3::new();
    let mut at = 0;
    let zeros = |hash: &mut Xxh3, mut count: usize| {
        while count > 0 {
            let some = count.min(ZEROS.len());
            hash.update(&ZEROS[..some]);
            count -= some;
        }
    };
    for (start, part) in parts {
        zeros(&mut hash, start - at);
        hash.update(part);
        at = start + part.len();
    }
    zeros(&mut hash, len - at);
    hash.update(metadata);
    hash.digest().max(1)
}
