//! Test of `plasmon doctor` on a host with a RoCE device.

use serde_json::Value;

use super::{VERBS, cluster, command};
use crate::support::{get, put};

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn the_doctor_finds_the_device_and_that_it_is_used() {
    let cluster = cluster(2);
    let id = put(&cluster.client(0), plasmon_e2e::Pattern(1), 100_000);
    drop(get(&cluster.client(1), id));
    // `doctor` exits with 1 if there is a problem, which would be one of this test's.
    let report: Value = serde_json::from_slice(&command(&cluster, 1, &["doctor", "--json"])).expect("JSON");
    let finding = |topic: &str| {
        let findings = report["findings"].as_array().expect("it is a list");
        let found = findings.iter().find(|finding| finding["topic"] == topic);
        found.unwrap_or_else(|| panic!("nothing on {topic}: {report:#}"))
    };
    let says = |topic: &str, severity: &str, words: &[&str]| {
        let finding = finding(topic);
        let found = finding["found"].as_str().expect("it is text");
        assert!(
            finding["severity"] == severity && words.iter().all(|word| found.contains(word)),
            "{finding:#}"
        );
    };
    says("rdma", "ok", &["rxe0 port 1 is ACTIVE", "Ethernet"]);
    says("rdma_access", "ok", &["/dev/infiniband/uverbs0"]);
    says("rdma_address", "ok", &["10.77.0.1 (RoCE v2)"]);
    says("rdma_mtu", "advice", &["carry 1024 bytes", "MTU 1500 of eth0"]);
    says("locked_memory", "ok", &[]);
    says("provider", "ok", &[VERBS]);
    assert_eq!(report["node"]["provider"], VERBS);
}
