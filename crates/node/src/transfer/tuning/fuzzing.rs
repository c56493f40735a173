//! The fuzzer's target for a file of calibrations, and its seeds.

use plasmon::transfer::{LargePoint, SmallPoint};

use super::*;

const PROVIDER: &str = "tcp;ofi_rxm";

/// Loads a file; whatever it says, reads stay within bounds, and the file can be written again.
pub(crate) fn file(text: &[u8]) {
    let Ok(calibrations) = parse(text) else { return };
    let hosts: Vec<_> = calibrations.iter().map(|one| one.host.clone()).collect();
    let again = serde_json::to_vec_pretty(&calibrations).expect("they are JSON");
    assert_eq!(parse(&again).expect("our own file").len(), calibrations.len());

    let mut tunings = Tunings::of_provider(calibrations, PROVIDER);
    tunings.eager_max();
    for host in hosts.iter().map(String::as_str).chain(["another"]) {
        let tuning = tunings.of(host, 1);
        for round in 0..2 * READS_A_TRIAL {
            let Plan { chunk, window } = tuning.choose(64 << 20).plan;
            assert!(
                CHUNK_BYTES_RANGE.contains(&chunk) && WINDOW_READS_RANGE.contains(&window),
                "{window} reads of {chunk} bytes"
            );
            tuning.saw(Plan { chunk, window }, 64 << 20, Duration::from_micros(round));
        }
    }
}

/// Returns files of some calibrations, and of none.
pub(crate) fn files() -> Vec<Vec<u8>> {
    let calibration = |provider: &str, host: &str| Calibration {
        provider: provider.to_owned(),
        host: host.to_owned(),
        at_ms: 1 << 40,
        eager_max: 9000,
        push_max: 9000,
        chunk: 1 << 20,
        window: 4,
        small: vec![SmallPoint { bytes: 64, eager_us: 1.5, push_us: 2.0, read_us: 2.5 }],
        large: vec![LargePoint { bytes: 32 << 20, chunk: 1 << 20, window: 4, us: 1e4 }],
    };
    let some = [calibration(PROVIDER, "10.0.0.1"), calibration(PROVIDER, "b"), calibration("verbs", "b")];
    let text = |calibrations: &[Calibration]| serde_json::to_vec(calibrations).expect("they are JSON");
    vec![text(&[]), text(&some[..1]), text(&some), b"[{}]".to_vec(), b"[{\"chunk\": 1e300}]".to_vec()]
}
