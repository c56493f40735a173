//! Tests of two guests on one cable, both with an RDMA device, a node in each.
//!
//! The same test runs in both, as one half of it: see [`half`](super::half).

use plasmon::{ObjectId, Protocol};
use plasmon_e2e::Pattern;

use super::half::Half;
use super::protocols::{offer, take};
use super::{SIZES, VERBS, long, packets};

#[test]
#[ignore = "needs two guests: make test-rdma"]
fn objects_of_every_size_cross_the_cable() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let half = Half::start(folder.path(), &[]);
    let before = packets();
    for len in SIZES {
        half.tell(&len.to_string(), &Pattern(len as u64).bytes(len));
    }
    for len in SIZES {
        let object = half.hear(&len.to_string());
        assert_eq!(object.data().len(), len);
        Pattern(len as u64).check(object.data());
    }
    let status = half.client.status().expect("the node answers");
    assert_eq!(status.fabric.provider, VERBS);
    assert!(status.transfer.rendezvous_fetched >= 3, "{:?}", status.transfer);
    assert!(packets() > before, "nothing went through the device");
    half.part();
}

#[test]
#[ignore = "needs two guests: make test-rdma"]
fn every_protocol_brings_every_size_over_the_cable() {
    if !long() {
        return eprintln!("As on one device, and longer: not tested without PLASMON_E2E_LONG.");
    }
    let folder = tempfile::tempdir().expect("a folder can be made");
    let id = |len: usize| ObjectId::from_name(&format!("for every protocol {len}"));
    let (last, others) = Protocol::ALL.split_last().expect("there are some");
    if std::env::var("PLASMON_GUEST").is_ok_and(|guest| guest == "0") {
        let half = Half::start(folder.path(), &[]);
        SIZES.into_iter().for_each(|len| offer(&half.client, id(len), len));
        return half.part();
    }
    let take_all = |protocol: Protocol| {
        let half = Half::start(folder.path(), &["--protocol", protocol.name()]);
        SIZES.into_iter().for_each(|len| take(&half.client, id(len), len, protocol));
        half
    };
    others.iter().for_each(|protocol| drop(take_all(*protocol)));
    take_all(*last).part();
}
