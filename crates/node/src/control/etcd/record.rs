//! A record in etcd, of a member or of a volume: JSON, with the version of the cluster protocol before all
//! fields that depend on it. Owns no state; any thread.
//!
//! Where the cluster has a secret, the record is sealed with the secret, for its key. So a user who can read
//! or write etcd learns nothing that would let it talk to a node, and cannot add a member.

use std::fmt::Write;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::control::admission::other_protocol;
use crate::control::messages::PROTOCOL;
use crate::control::secret::Secret;

#[derive(Serialize)]
struct Record<'a, T> {
    protocol: u32,
    #[serde(flatten)]
    contents: Written<'a, T>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Written<'a, T> {
    Member(&'a T),
    /// A sealed record, as hexadecimal digits.
    Sealed(String),
}

#[derive(Deserialize)]
struct Version {
    protocol: u32,
}

#[derive(Deserialize)]
struct Whole<T> {
    #[serde(flatten)]
    contents: Contents<T>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Contents<T> {
    Member(T),
    Sealed(String),
}

/// Encodes a record for a key.
pub(crate) fn encode<T: Serialize>(member: &T, key: &str, secret: Option<&Secret>) -> Vec<u8> {
    let contents = match secret {
        None => Written::Member(member),
        Some(secret) => Written::Sealed(hex(&secret.seal(key, &json(member)))),
    };
    json(&Record { protocol: PROTOCOL, contents })
}

/// Decodes the record under a key. The error names the fault of the record.
pub(crate) fn decode<T: DeserializeOwned>(
    record: &[u8],
    key: &str,
    secret: Option<&Secret>,
) -> Result<T, String> {
    let damaged = |error| format!("it is no such record ({error})");
    let Version { protocol } = serde_json::from_slice(record).map_err(damaged)?;
    if protocol != PROTOCOL {
        return Err(other_protocol("its node", protocol, "this one", PROTOCOL));
    }
    let Whole::<T> { contents } = serde_json::from_slice(record).map_err(damaged)?;
    match (contents, secret) {
        (Contents::Member(member), None) => Ok(member),
        (Contents::Sealed(sealed), Some(secret)) => {
            let opened = unhex(&sealed).and_then(|sealed| secret.open(key, &sealed));
            let opened = opened.ok_or("its node has another secret than this one")?;
            serde_json::from_slice(&opened).map_err(damaged)
        }
        (Contents::Sealed(_), None) => {
            Err("its node has a secret, and this node has none: give --secret-file".into())
        }
        (Contents::Member(_), Some(_)) => Err("its node has no secret, and this node has one".into()),
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("a record is plain values")
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).ok());
    digits.map(|two| u8::from_str_radix(two.filter(|two| two.len() == 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use plasmon::NodeId;

    use super::*;
    use crate::net::members::{Member, Reach};

    fn member() -> Member {
        let reach = Reach {
            provider: "tcp".into(),
            protocol: (1, 2),
            small_address: vec![1, 2, 3],
            bulk_addresses: vec![vec![4], vec![5, 6]],
        };
        let node = NodeId::from_bytes([1; 16]);
        Member { node, incarnation: 5, listen: "a:1".into(), fabrics: vec![reach], token: u64::MAX }
    }

    #[test]
    fn a_record_is_read_by_who_has_the_same_secret_or_none_either() {
        let (one, other) = (Secret::new(b"one"), Secret::new(b"other"));
        for (written, read, why) in [
            (None, None, ""),
            (Some(&one), Some(&one), ""),
            (Some(&one), Some(&other), "another secret"),
            (Some(&one), None, "--secret-file"),
            (None, Some(&one), "no secret"),
        ] {
            match decode::<Member>(&encode(&member(), "key", written), "key", read) {
                Ok(read) => assert!(why.is_empty() && read == member()),
                Err(said) => assert!(!why.is_empty() && said.contains(why), "{said}"),
            }
        }
        assert!(decode::<Member>(&encode(&member(), "key", Some(&one)), "other", Some(&one)).is_err());
    }
}
