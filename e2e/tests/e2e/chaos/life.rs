//! Life of an id: one put under it. An object's metadata tells its life.

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

    /// Life that an object belongs to. All bytes of the object are checked.
    pub(super) fn of(object: &Object) -> Self {
        let (seed, len) = object.metadata().split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("two words of metadata"));
        let life = Self { seed: word(seed), len: word(len) as usize };
        assert_eq!(object.data().len(), life.len);
        Pattern(life.seed).check(object.data());
        life
    }
}
