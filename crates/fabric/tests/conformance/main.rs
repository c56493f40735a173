//! The conformance suite: what every provider has to do, through the public API alone.
//!
//! `PLASMON_TEST_PROVIDERS` names the providers, comma-separated (default `tcp;ofi_rxm`), and
//! `PLASMON_TEST_SOURCE` the address to listen on (default 127.0.0.1). Each test runs once for each
//! provider, on a thread of its own with its own domains. Tests that need a second process start this
//! binary again, as a peer: see `remote`.

mod failures;
mod lifetimes;
mod messages;
mod onesided;
mod remote;
mod sleeping;
mod support;

use libtest_mimic::{Arguments, Failed, Trial};
use plasmon_fabric::Provider;

/// Name of a test, and the test.
type Case = (&'static str, fn(&Provider));

fn main() {
    if remote::is_peer() {
        return remote::serve();
    }
    let names = support::variable("PLASMON_TEST_PROVIDERS", "tcp;ofi_rxm");
    // Here, before there are other threads: the first look-up sets libfabric's environment.
    let listed = plasmon_fabric::candidates(Some(&support::source()));
    assert!(listed.is_ok(), "no look-up at all: {listed:?}");

    let cases: Vec<Case> =
        [messages::CASES, onesided::CASES, failures::CASES, lifetimes::CASES, sleeping::CASES].concat();
    let mut trials = Vec::new();
    for provider in names.split(',') {
        for (name, run) in cases.iter().copied() {
            let provider = provider.to_owned();
            trials.push(Trial::test(format!("{provider}::{name}"), move || {
                let provider = plasmon_fabric::choose(Some(&provider), Some(&support::source()))
                    .map_err(Failed::from)?;
                run(&provider);
                Ok(())
            }));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
