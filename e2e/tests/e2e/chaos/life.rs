//! What was put under an id at one time. An object says by its metadata which life it is of.

use plasmon::Object;
use plasmon_e2e::Pattern;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) seed: u64,
    pub(super) len: usize,
}

impl Life {
    pub(super) fn data(self) -> Vec<u8> {
        Pattern(self.seed).bytes(self.len)
    }

    pub(super) fn metadata(self) -> Vec<u8> {
        [self.seed.to_le_bytes(), (self.len as u64).to_le_bytes()].concat()
    }

    /// The life that an object says it is of; all its bytes are looked at.
    pub(super) fn of(object: &Object) -> Self {
        let (seed, len) = object.metadata().split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("two words of metadata"));
        let life = Self { seed: word(seed), len: word(len) as usize };
        assert_eq!(object.data().len(), life.len);
        Pattern(life.seed).check(object.data());
        life
    }
}
