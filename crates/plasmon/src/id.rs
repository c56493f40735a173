//! Ids of objects and nodes.
//!
//! Owns no state. Any thread. Invariant: a name has the same id on every host and in every release.

use std::fmt;
use std::str::FromStr;

/// Hash context of the names of objects that all users share.
const NAME_CONTEXT: &str = "plasmon 2026 object name to object id";

/// Hash context of the names of private objects.
const PRIVATE_NAME_CONTEXT: &str = "plasmon 2026 user and name of a private object to object id";

/// Hash context of names that stand for something else than objects, such as regions.
const KIND_CONTEXT: &str = "plasmon 2026 kind and name to id";

/// Id of an object: 20 bytes, the same on every node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId([u8; ObjectId::LEN]);

impl ObjectId {
    /// Length of an id in bytes.
    pub const LEN: usize = 20;

    /// Makes an id from its bytes.
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Draws a new id of 160 random bits, which no other object has.
    ///
    /// # Panics
    /// If the operating system has no random bytes, which does not happen on Linux after boot.
    pub fn random() -> Self {
        Self(random_bytes())
    }

    /// Id of the object with this name: BLAKE3 of the name in a hash context of its own, cut to 20 bytes. The
    /// same name gives the same id on every host.
    pub fn from_name(name: &str) -> Self {
        Self::cut(blake3::derive_key(NAME_CONTEXT, name.as_bytes()))
    }

    /// Id of a user's private object with this name. Private objects of two users with the same name have
    /// different ids, and neither user learns of the other's object. `user` is the user id that the node
    /// knows ([`Client::user`](crate::Client::user)).
    pub fn from_private_name(name: &str, user: u32) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(PRIVATE_NAME_CONTEXT);
        hasher.update(&user.to_le_bytes()).update(name.as_bytes());
        Self::cut(hasher.finalize().into())
    }

    /// Id for a name of another kind than objects, such as a region.
    pub(crate) fn of_kind(kind: &str, name: &str) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(KIND_CONTEXT);
        hasher.update(kind.as_bytes()).update(&[0]).update(name.as_bytes());
        Self::cut(hasher.finalize().into())
    }

    /// Cuts a hash to the length of an id.
    fn cut(digest: [u8; 32]) -> Self {
        let mut id = [0; Self::LEN];
        id.copy_from_slice(&digest[..Self::LEN]);
        Self(id)
    }

    /// Bytes of the id.
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

/// Id of a node: 128 random bits, drawn when the node starts for the first time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId([u8; NodeId::LEN]);

impl NodeId {
    /// Length of an id in bytes.
    pub const LEN: usize = 16;

    /// Makes an id from its bytes.
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Draws the id of a new node: 128 random bits.
    ///
    /// # Panics
    /// If the operating system has no random bytes, which does not happen on Linux after boot.
    pub fn random() -> Self {
        Self(random_bytes())
    }

    /// Bytes of the id.
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

/// Error for text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {what}: it takes {digits} hexadecimal digits")]
pub struct ParseIdError {
    text: String,
    what: &'static str,
    digits: usize,
}

fn parse_hex<const N: usize>(text: &str, what: &'static str) -> Result<[u8; N], ParseIdError> {
    let error = || ParseIdError { text: text.chars().take(80).collect(), what, digits: 2 * N };
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return Err(error());
    }
    let nibble = |digit: u8| (digit as char).to_digit(16).ok_or_else(error);
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (nibble(pair[0])? << 4 | nibble(pair[1])?) as u8;
    }
    Ok(bytes)
}

macro_rules! hex_text {
    ($type:ident, $what:literal) => {
        impl FromStr for $type {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_hex(text, $what).map(Self)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($type), "({})"), self)
            }
        }
    };
}

hex_text!(ObjectId, "an object id");
hex_text!(NodeId, "a node id");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_their_text() {
        let id = ObjectId::random();
        assert_eq!(id.to_string().parse(), Ok(id));
        let node = NodeId::random();
        assert_eq!(node.to_string().parse(), Ok(node));
    }

    #[test]
    fn wrong_text_is_refused_with_the_length_it_takes() {
        for text in ["", "abc", &"0".repeat(39), &"0".repeat(41), &"g".repeat(40), "é".repeat(20).as_str()] {
            let error = text.parse::<ObjectId>().unwrap_err();
            assert!(error.to_string().contains("40 hexadecimal digits"), "{error}");
        }
    }

    #[test]
    fn a_name_has_one_id() {
        // Ids are stored, so this value never changes.
        assert_eq!(ObjectId::from_name("flights").to_string(), "f0efbf6af180d2b74f72f08bb109cbacf94714f1");
        assert_ne!(ObjectId::from_name("flights"), ObjectId::from_name("flight"));
        let private = ObjectId::from_private_name("flights", 1000);
        assert_eq!(private.to_string(), "8ed81669c6559f6a4a0d9469e7715673bf37c628");
        assert_ne!(private, ObjectId::from_private_name("flights", 1001));
    }
}
