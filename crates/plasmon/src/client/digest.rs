//! Digest of an object whose data lies in parts.
//!
//! Owns no state. Any thread. Invariant: the digest of the same bytes is the same on every host.

use crate::digest::Digest;

/// Computes XXH3 of an object's data and metadata. The digest is never 0. The data has `len` bytes: `parts`
/// at their offsets, in order and without overlap, and zeros between and behind them.
pub(super) fn digest(parts: &[(usize, &[u8])], len: usize, metadata: &[u8]) -> u64 {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut digest = Digest::new();
    let mut at = 0;
    let zeros = |digest: &mut Digest, mut count: usize| {
        while count > 0 {
            let some = count.min(ZEROS.len());
            digest.add(&ZEROS[..some]);
            count -= some;
        }
    };
    for (start, part) in parts {
        zeros(&mut digest, start - at);
        digest.add(part);
        at = start + part.len();
    }
    zeros(&mut digest, len - at);
    digest.add(metadata);
    digest.value()
}
