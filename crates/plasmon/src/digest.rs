//! Digest of an object: XXH3 of its data and metadata.
//!
//! Owns no state. Any thread. Invariant: the digest of the same bytes is the same on every host.

use std::hash::Hasher;

use twox_hash::xxhash3_64;

/// Digest of an object that is computed while its bytes are read, in their order: the data, and behind it the
/// metadata.
#[derive(Default)]
pub struct Digest(xxhash3_64::Hasher);

impl Digest {
    /// Begins the digest of an object, of which no byte was added yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next bytes of the object.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// Digest of all bytes that were added. It is never 0, which stands for no digest.
    pub fn value(&self) -> u64 {
        self.0.finish().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_every_release() {
        let of = |bytes: &[u8]| {
            let mut digest = Digest::new();
            digest.add(bytes);
            digest.value()
        };
        // Objects on disk have digests, and nodes of other releases compare digests.
        assert_eq!(of(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(of(b"plasmon"), 0xee42_06b7_534e_ce95);
        let long: Vec<u8> = (0..100_000u32).map(|number| (number % 251) as u8).collect();
        assert_eq!(of(&long), 0x42c2_3aee_ad96_750d);
    }

    #[test]
    fn bytes_may_be_added_in_parts() {
        let bytes: Vec<u8> = (0..70_000u32).map(|number| (number % 253) as u8).collect();
        let mut whole = Digest::new();
        whole.add(&bytes);
        for part in [1, 63, 64, 65, 1023, 1024, 4096, 65_535] {
            let mut digest = Digest::new();
            bytes.chunks(part).for_each(|part| digest.add(part));
            assert_eq!(digest.value(), whole.value(), "parts of {part} bytes");
        }
    }
}
