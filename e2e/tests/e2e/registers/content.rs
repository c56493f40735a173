//! Contents of objects that tell the put that they belong to, and that are checked as a whole.

use plasmon::Object;
use plasmon_e2e::linear::Value;
use plasmon_e2e::{Chance, Pattern};

use crate::support::MIB;

/// Size in bytes of the value in front of the data. Data is longer, or empty.
const HEAD: usize = 8;

/// Size in bytes of the largest object that fits the memory of a worker.
pub(super) const LANDING: usize = MIB + HEAD;

/// Draws the length of an object: empty, inside a message, read from the arena, and sometimes from several
/// nodes at once.
pub(super) fn len(chance: &mut Chance) -> usize {
    match chance.below(100) {
        0..6 => 0,
        6..40 => HEAD + chance.below(200),
        40..58 => HEAD + chance.below(64 << 10),
        58..78 => (64 << 10) + 1,
        78..99 => MIB + chance.below(HEAD + 1),
        _ => 17 * MIB + chance.below(3 * MIB),
    }
}

/// Data and metadata of a value.
pub(super) fn bytes(value: Value, len: usize) -> (Vec<u8>, Vec<u8>) {
    let head = word(value).to_le_bytes();
    let mut data = vec![0; len];
    if let Some((front, rest)) = data.split_at_mut_checked(HEAD) {
        front.copy_from_slice(&head);
        Pattern(word(value)).fill(rest);
    }
    (data, [head, (len as u64).to_le_bytes()].concat())
}

/// Value that an object has. All bytes of the object are checked.
pub(super) fn of_object(object: &Object) -> Value {
    let (value, len) = object.metadata().split_at(HEAD);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("two words of metadata"));
    assert_eq!(object.data().len() as u64, word(len), "the data is as long as its metadata says");
    let value = from_word(word(value));
    if let Some(said) = of_data(object.data()) {
        assert_eq!(said, value, "data and metadata are of one put");
    }
    value
}

/// Value that data has. All its bytes are checked. `None` for empty data, which does not tell.
pub(super) fn of_data(data: &[u8]) -> Option<Value> {
    let (head, rest) = data.split_at_checked(HEAD)?;
    let word = u64::from_le_bytes(head.try_into().expect("they are eight"));
    Pattern(word).check(rest);
    Some(from_word(word))
}

fn word(value: Value) -> u64 {
    u64::from(value.writer) << 32 | u64::from(value.number)
}

fn from_word(word: u64) -> Value {
    Value { writer: (word >> 32) as u32, number: word as u32 }
}
