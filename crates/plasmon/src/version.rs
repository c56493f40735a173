//! Version of an object: which of the objects that an id had one after the other. Owns no state. Any thread.

use std::fmt;
use std::str::FromStr;

use crate::{Error, ErrorKind};

/// Distance below which the greater of two versions of an epoch is a successor of the other. It is wide
/// enough for eight million successors in one epoch, and two versions that were drawn are so near once in
/// 16,384 times.
const LINE: u64 = 1 << 32;
const RANDOM_MASK: u64 = (1 << Version::RANDOM_BITS) - 1;

/// Version of an object. Each object that is put under an id, or replaces another there, has its own.
/// Versions can be compared for equality only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Version(u64);

impl Version {
    /// Number of bits of a version beside the epoch of its object.
    #[doc(hidden)]
    pub const RANDOM_BITS: u32 = 48;

    /// Makes a version of the number by which requests carry it.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number by which requests carry the version.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Whether the object of this version was certainly made after that of another version of its id. The
    /// node's `kernel::lives` says why.
    #[doc(hidden)]
    pub fn is_later(self, than: Self) -> bool {
        let ahead = (self.0 & RANDOM_MASK).wrapping_sub(than.0 & RANDOM_MASK) & RANDOM_MASK;
        match self.epochs_since(than) {
            0 => (1..LINE).contains(&ahead),
            epochs => epochs > 0,
        }
    }

    /// Number of epochs from another version to this one, negative if this one is of an earlier epoch.
    #[doc(hidden)]
    pub fn epochs_since(self, other: Self) -> i16 {
        let epoch = |version: Self| (version.0 >> Self::RANDOM_BITS) as u16;
        epoch(self).wrapping_sub(epoch(other)) as i16
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Version {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = if text.len() == 16 { u64::from_str_radix(text, 16).ok() } else { None };
        number.map(Self).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, format!("'{text}' is no version: it has 16 hexadecimal digits"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_as_it_is_shown() {
        for number in [0, 1, u64::MAX, 1 << 47] {
            let version = Version::from_number(number);
            assert_eq!(version.to_string().parse(), Ok(version));
        }
        for wrong in ["", "12", "x000000000000000", "00000000000000000"] {
            assert_eq!(wrong.parse::<Version>().map_err(|error| error.kind()), Err(ErrorKind::Invalid));
        }
    }
}
