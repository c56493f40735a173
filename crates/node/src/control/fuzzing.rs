//! The fuzzer's target for control messages and for records of members and volumes, and its seeds. Owns no
//! state.

use plasmon::NodeId;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::etcd;
use super::messages::{FromCoordinator, FromNode, PROTOCOL, parse_node};
use super::records::{Proposal, Proposed, RecordNews, VolumeRecord};
use crate::net::members::{Change, Gone, Member, Reach, View};

/// Decodes bytes as a message of a node, as one of a coordinator, and as a record in etcd.
pub(crate) fn control_message(bytes: &[u8]) {
    again::<FromNode>(bytes);
    if let Some(FromCoordinator::Welcome { coordinator, .. }) = again(bytes) {
        // The parse fails for text that is not a node's id.
        let _ = parse_node(&coordinator);
    }
    if let Ok(member) = etcd::decode::<Member>(bytes, "", None) {
        assert_eq!(etcd::decode(&etcd::encode(&member, "", None), "", None), Ok(member));
    }
    if let Ok(record) = etcd::decode::<VolumeRecord>(bytes, "", None) {
        assert_eq!(etcd::decode(&etcd::encode(&record, "", None), "", None), Ok(record));
    }
}

/// Decodes a value; encoding it and decoding it again must give the same.
fn again<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let message: T = serde_json::from_slice(bytes).ok()?;
    let text = serde_json::to_vec(&message).expect("a message is JSON");
    let same: T = serde_json::from_slice(&text).expect("our own message");
    assert_eq!(serde_json::to_vec(&same).expect("a message is JSON"), text);
    Some(message)
}

/// Returns a message of each kind, and records.
pub(crate) fn control_messages() -> Vec<Vec<u8>> {
    let member = member();
    let of_member = etcd::encode(&member, "", None);
    let node = member.node;
    let view = View { epoch: 3, members: vec![member.clone()] };
    let change = Change {
        before: 3,
        epoch: 4,
        gone: vec![Gone { node, incarnation: 4 }],
        joined: vec![member.clone()],
        skips: true,
    };
    let record = VolumeRecord {
        name: "main".into(),
        volume: 9,
        owner: 1000,
        number: 3,
        home: node,
        mirrors: vec![NodeId::from_bytes([2; 16])],
    };
    let join = FromNode::Join {
        protocol: PROTOCOL,
        member: member.clone(),
        epoch: 9,
        coordinator: Some(node.to_string()),
        records: vec![record.clone()],
    };
    let proposal = Proposal { ask: 4, record: record.clone(), removes: false };
    let of_node = [join, FromNode::Heartbeat, FromNode::Leave, FromNode::Propose(proposal)];
    let of_volume = etcd::encode(&record, "", None);
    let news = [(Some(record.clone()), "main"), (None, "gone")];
    let news = news.map(|(record, name)| RecordNews { name: name.into(), record });
    let of_coordinator = [
        FromCoordinator::Welcome { view, more: 1, coordinator: node.to_string(), lease_ms: 5000, records: 2 },
        FromCoordinator::More(vec![member.clone()]),
        FromCoordinator::Changed(change),
        FromCoordinator::Heartbeat,
        FromCoordinator::Redirect("10.0.0.1:4740".into()),
        FromCoordinator::Refused("no".into()),
        FromCoordinator::Records(news.into()),
        FromCoordinator::Proposed(Proposed { ask: 4, outcome: Ok(Some(record)) }),
        FromCoordinator::Proposed(Proposed { ask: 5, outcome: Err("wait".into()) }),
    ];
    let text = |message: serde_json::Result<Vec<u8>>| message.expect("a message is JSON");
    let of_node = of_node.iter().map(|message| text(serde_json::to_vec(message)));
    let of_coordinator = of_coordinator.iter().map(|message| text(serde_json::to_vec(message)));
    of_node.chain(of_coordinator).chain([of_member, of_volume]).collect()
}

fn member() -> Member {
    Member {
        node: NodeId::from_bytes([1; 16]),
        incarnation: 5,
        listen: "10.0.0.1:4740".into(),
        fabrics: vec![Reach {
            provider: "tcp;ofi_rxm".into(),
            protocol: (1, 2),
            small_address: vec![2, 0, 1, 2, 10, 0, 0, 1],
            bulk_addresses: vec![vec![2, 0, 3, 4, 10, 0, 0, 1]],
        }],
        token: u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// Returns the names of the kinds of a message, as serde lists them in its error for an unknown kind.
    fn kinds<T: DeserializeOwned>() -> BTreeSet<String> {
        let error = serde_json::from_value::<T>(Value::from("nothing")).err().expect("it is no kind");
        let text = error.to_string();
        let (_, kinds) = text.split_once("expected").expect("it lists the kinds");
        kinds.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn there_is_a_seed_of_each_kind() {
        let seeds = control_messages();
        let seeds = seeds.iter().map(|seed| serde_json::from_slice(seed).expect("it is JSON"));
        let seeds: BTreeSet<String> = seeds
            .flat_map(|seed: Value| match seed {
                Value::String(kind) => vec![kind],
                Value::Object(fields) => fields.into_iter().map(|(kind, _)| kind).collect(),
                other => panic!("no message: {other}"),
            })
            .collect();
        let kinds: Vec<_> = kinds::<FromNode>().into_iter().chain(kinds::<FromCoordinator>()).collect();
        assert!(kinds.len() > 10, "{kinds:?}");
        let missing: Vec<_> = kinds.iter().filter(|kind| !seeds.contains(*kind)).collect();
        assert!(missing.is_empty(), "no seed is of {missing:?}");
    }
}
