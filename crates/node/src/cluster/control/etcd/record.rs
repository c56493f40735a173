//! A member as it stands in etcd: JSON, with the version of the cluster protocol ahead of all that depends on it.

use serde::{Deserialize, Serialize};

use crate::cluster::control::admission::other_protocol;
use crate::cluster::control::messages::PROTOCOL;
use crate::cluster::members::Member;

#[derive(Serialize)]
struct Record<'a> {
    protocol: u32,
    member: &'a Member,
}

#[derive(Deserialize)]
struct Version {
    protocol: u32,
}

#[derive(Deserialize)]
struct Contents {
    member: Member,
}

/// The record of a member.
pub(crate) fn encode(member: &Member) -> Vec<u8> {
    serde_json::to_vec(&Record { protocol: PROTOCOL, member }).expect("a member is plain values")
}

/// The member of a record, or what is the matter with it.
pub(crate) fn decode(record: &[u8]) -> Result<Member, String> {
    let damaged = |error| format!("it is no record of a member ({error})");
    let Version { protocol } = serde_json::from_slice(record).map_err(damaged)?;
    if protocol != PROTOCOL {
        return Err(other_protocol("its node", protocol, "this one", PROTOCOL));
    }
    let Contents { member } = serde_json::from_slice(record).map_err(damaged)?;
    Ok(member)
}
