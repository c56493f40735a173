//! Contents of the benchmarks' objects.
//!
//! Owns no state. Any thread.

/// Number of bytes after which values repeat. This makes them quickly, and no store looks for the repetition.
const BLOCK: usize = 1 << 20;

/// Whether memory that was filled with a [`value`] has these bytes from `start` on.
pub fn is_at(start: usize, bytes: &[u8]) -> bool {
    value(start % BLOCK + bytes.len())[start % BLOCK..] == *bytes
}

/// Bytes of every object of a size.
pub fn value(size: usize) -> Vec<u8> {
    let block: Vec<u8> = (0..BLOCK).map(|index| (index.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
    let mut value = block.repeat(size.div_ceil(BLOCK));
    value.truncate(size);
    value
}
