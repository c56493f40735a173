//! Memory that a provider takes for operations which have ended.
//!
//! A test that measures the memory of its process runs this binary again, for itself alone.

use std::env;
use std::fs;
use std::process::Command;

use plasmon_fabric::{Event, Provider};

use super::Case;
use super::support::{Driver, Node};

pub(crate) const CASES: &[Case] = &[("memory_does_not_grow_with_operations", does_not_grow)];

/// Environment variable of the process that runs nothing but one of these tests.
const ALONE: &str = "PLASMON_TEST_ALONE";

/// Number of bytes of this process that it shares with no other.
fn own() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("the kernel has it");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel counts it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("it is a number") << 10
}

/// Runs a test again, in a process of its own. Returns whether this is that process.
fn is_alone(provider: &Provider, name: &str) -> bool {
    if env::var_os(ALONE).is_some() {
        return true;
    }
    let program = env::current_exe().expect("a test is a program");
    let test = format!("{}::{name}", provider.name());
    let alone = Command::new(program).args([&test, "--exact"]).env(ALONE, "1").output();
    let alone = alone.expect("the program of the tests runs again");
    let output = String::from_utf8_lossy(&alone.stdout);
    assert!(alone.status.success() && output.contains("1 passed"), "{output}");
    false
}

/// Messages come and go, never more than a few at a time.
fn does_not_grow(provider: &Provider) {
    const AT_A_TIME: usize = 32;
    if !is_alone(provider, CASES[0].0) {
        return;
    }
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    let peer = here.small.connect(&there.small.address()).expect("connect");
    let message = here.message(&[7; 8]);
    for _ in 0..AT_A_TIME {
        there.small.receive(there.empty(8)).expect("receive");
    }
    let mut send = |count: usize| {
        for _ in 0..count / AT_A_TIME {
            let sent: Vec<_> = (0..AT_A_TIME).map(|_| here.small.send(peer, message.clone())).collect();
            for _ in 0..AT_A_TIME {
                match driver.until("a message", |events| events.pop_front()) {
                    Event::Received { slice, .. } => there.small.receive(slice).expect("receive"),
                    other => panic!("expected a message, got {other:?}"),
                }
            }
            driver.succeed(&sent);
        }
    };
    send(20_000);
    let before = own();
    send(100_000);
    let more = own().saturating_sub(before);
    assert!(more < 2 << 20, "{more} bytes more after 100,000 messages");
}
