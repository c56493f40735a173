//! What objects hold.

/// Values repeat themselves after as many bytes: that is quick to make, and no store looks for it.
const BLOCK: usize = 1 << 20;

/// The bytes of every object of a size.
pub fn value(size: usize) -> Vec<u8> {
    let block: Vec<u8> = (0..BLOCK).map(|index| (index.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
    let mut value = block.repeat(size.div_ceil(BLOCK));
    value.truncate(size);
    value
}
