//! Tests of a small limit of locked memory: RDMA locks the whole arena, so that the node cannot start.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use plasmon_e2e::{Cluster, Daemon, Refused, SECRET, SECRET_FILE, binary};
use serde_json::Value;

use super::{VERBS, cluster};
use crate::support::as_nobody;

/// Command `plasmon` with these words, run as nobody (root is exempt) with a limit of locked memory in bytes.
fn limited(cluster: &Cluster, limit: u64, words: &[&str]) -> Command {
    let nobody = as_nobody(cluster, &[&binary(), &binary().with_file_name("plasmon-node")]);
    let mut command = Command::new("prlimit");
    command.arg(format!("--memlock={limit}:{limit}")).arg(nobody.get_program()).args(nobody.get_args());
    command.args(words);
    command
}

/// Starts a node of 64 MiB with a limit of locked memory in bytes.
fn start(cluster: &Cluster, limit: u64, provider: &str) -> Result<Daemon, Refused> {
    let socket = std::env::temp_dir().join(format!("nobody-{limit}-{}.sock", &provider[..3]));
    let listen = format!("{}:0", cluster.address(0));
    let mut command =
        limited(cluster, limit, &["serve", "--json", "--exit-with-parent", "--memory", "64MiB"]);
    command.args(["--listen", &listen, "--provider", provider]).arg("--socket").arg(socket);
    // File of the cluster's secret that user nobody owns.
    let secret = std::env::temp_dir().join(format!("nobody-{limit}-{}.secret", &provider[..3]));
    std::fs::write(&secret, SECRET).expect("the folder is ours");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("the file is ours");
    std::os::unix::fs::chown(&secret, Some(65534), None).expect("root may");
    command.env(SECRET_FILE, secret);
    cluster.launch(0, command)
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_node_that_may_lock_too_little_says_what_to_do() {
    let cluster = cluster(1);
    // Not even the fabric's own buffers; those, but not the arena; nearly all of it.
    for limit in [64 << 10, 48 << 20, 96 << 20] {
        let refused = match start(&cluster, limit, VERBS) {
            Ok(daemon) => panic!("it serves with {limit} bytes:\n{}", daemon.log()),
            Err(refused) => refused,
        };
        let last = refused.log.lines().last().unwrap_or_default();
        assert_eq!(refused.status.code(), Some(1), "{}", refused.log);
        for word in [&limit.to_string(), "ulimit -l unlimited", "LimitMEMLOCK=infinity"] {
            assert!(last.contains(word), "no {word:?} in: {last}");
        }
        // TCP locks nothing.
        start(&cluster, limit, "tcp").expect("it starts");
    }
    start(&cluster, 256 << 20, VERBS).expect("this is enough");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn the_doctor_knows_the_limit() {
    let cluster = cluster(1);
    let words = ["doctor", "--json", "--memory", "64MiB", "--socket", "/nowhere"];
    for (limit, severity) in [(96 << 20, "problem"), (256 << 20, "ok")] {
        let output = limited(&cluster, limit, &words).output().expect("it runs");
        let report: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
        let findings = report["findings"].as_array().expect("it is a list");
        let found = findings.iter().find(|finding| finding["topic"] == "locked_memory");
        assert_eq!(found.expect("it looks at it")["severity"], severity, "{report:#}");
    }
}
