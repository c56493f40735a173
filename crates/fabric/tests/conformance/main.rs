//! The conformance suite: what every provider has to do, through the public API alone.
//!
//! `PLASMON_TEST_PROVIDERS` names the providers, comma-separated (default `tcp;ofi_rxm,memory,memory-rough`),
//! and `PLASMON_TEST_SOURCE` the address to listen on (default 127.0.0.1). `memory` is a quiet
//! [`MemoryNetwork`], and `memory-rough` one with faults. Each test runs once for each provider, on a thread
//! of its own with its own domains. Tests that need a second process start this binary again, as a peer: see
//! `remote`. What memory networks alone can do is tested in `networks`.

mod failures;
mod lifetimes;
mod memory;
mod messages;
mod networks;
mod onesided;
mod remote;
mod sleeping;
mod support;
mod wait;
mod writes;

use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use plasmon_fabric::{Faults, MemoryNetwork, Provider};

/// Name of a test, and the test.
type Case = (&'static str, fn(&Provider));

fn main() {
    if remote::is_peer() {
        return remote::serve();
    }
    let names = support::variable("PLASMON_TEST_PROVIDERS", "tcp;ofi_rxm,memory,memory-rough");
    // Here, before there are other threads: the first look-up sets libfabric's environment.
    let listed = plasmon_fabric::candidates(Some(&support::source()));
    assert!(listed.is_ok(), "no look-up at all: {listed:?}");

    let everywhere =
        [messages::CASES, onesided::CASES, writes::CASES, failures::CASES, lifetimes::CASES].concat();
    let of_libfabric = [failures::OF_LIBFABRIC, memory::CASES, sleeping::CASES].concat();
    let mut trials = Vec::new();
    for provider in names.split(',') {
        let more = if in_memory(provider).is_none() { of_libfabric.as_slice() } else { &[] };
        for (name, run) in everywhere.iter().chain(more).copied() {
            let provider = provider.to_owned();
            trials.push(Trial::test(format!("{provider}::{name}"), move || {
                let provider = match in_memory(&provider) {
                    Some(network) => network.provider(0),
                    None => plasmon_fabric::choose(Some(&provider), Some(&support::source()))
                        .map_err(Failed::from)?,
                };
                run(&provider);
                Ok(())
            }));
        }
    }
    if names.split(',').any(|name| in_memory(name).is_some()) {
        for (name, run) in networks::CASES.iter().copied() {
            trials.push(Trial::test(format!("networks::{name}"), move || {
                run();
                Ok(())
            }));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Memory network that `name` stands for: one that is quiet, or one that does all that a network may do
/// without losing a connection.
fn in_memory(name: &str) -> Option<MemoryNetwork> {
    let faults = match name {
        "memory" => Faults::default(),
        "memory-rough" => Faults {
            delay_min: Duration::ZERO,
            delay_max: Duration::from_millis(1),
            split_reads: true,
            early_send_ppm: 500_000,
            ..Faults::default()
        },
        _ => return None,
    };
    Some(MemoryNetwork::new(1, faults))
}
