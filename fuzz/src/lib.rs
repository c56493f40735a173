//! Every decoder of bytes that others wrote, as a target of the fuzzer: it must neither panic nor give
//! anything that does not survive being encoded and decoded again.
//!
//! The tests here run each target on its seeds, on what once broke it (`regressions`), and on damaged seeds.
//! `make fuzz` runs libFuzzer on them, which follows what the bytes make the code do.
#![forbid(unsafe_code)]

mod calls;
mod channel;
mod slots;
mod wire;

/// Decoder that the fuzzer feeds.
pub struct Target {
    /// Name of the target, in folders and on the command line.
    pub name: &'static str,
    /// Function that decodes bytes.
    pub run: fn(&[u8]),
    /// Function that makes the bytes with which the fuzzer begins.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [Target; 17] = [
    Target { name: "requests", run: wire::requests, seeds: wire::request_seeds },
    Target { name: "replies", run: wire::replies, seeds: wire::reply_seeds },
    Target { name: "messages", run: plasmon_node::fuzzing::message, seeds: plasmon_node::fuzzing::messages },
    Target {
        name: "regions",
        run: plasmon_node::fuzzing::region_frame,
        seeds: plasmon_node::fuzzing::region_frames,
    },
    Target {
        name: "services",
        run: plasmon_node::fuzzing::call_frame,
        seeds: plasmon_node::fuzzing::call_frames,
    },
    Target {
        name: "locks",
        run: plasmon_node::fuzzing::sync_frame,
        seeds: plasmon_node::fuzzing::sync_frames,
    },
    Target {
        name: "files",
        run: plasmon_node::fuzzing::file_frame,
        seeds: plasmon_node::fuzzing::file_frames,
    },
    Target {
        name: "changes",
        run: plasmon_node::fuzzing::file_changes,
        seeds: plasmon_node::fuzzing::file_batches,
    },
    Target {
        name: "control",
        run: plasmon_node::fuzzing::control_message,
        seeds: plasmon_node::fuzzing::control_messages,
    },
    Target {
        name: "spill",
        run: plasmon_node::fuzzing::spill_file,
        seeds: plasmon_node::fuzzing::spill_files,
    },
    Target {
        name: "data",
        run: plasmon_node::fuzzing::data_frame,
        seeds: plasmon_node::fuzzing::data_frames,
    },
    Target {
        name: "calibration",
        run: plasmon_node::fuzzing::calibration_file,
        seeds: plasmon_node::fuzzing::calibration_files,
    },
    Target { name: "kernel", run: plasmon_mount::examine_request, seeds: plasmon_mount::request_seeds },
    Target { name: "channel", run: channel::page_set, seeds: channel::seeds },
    Target { name: "calls", run: calls::page_set, seeds: calls::seeds },
    Target { name: "slots", run: slots::calls, seeds: slots::call_seeds },
    Target { name: "results", run: slots::results, seeds: slots::result_seeds },
];

/// Finds the target of a name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::Path;

    use plasmon::wire::Draw;

    use super::*;

    /// Number of damaged seeds that a target is given.
    const CASES: usize = 20_000;

    /// Does to bytes what is done to bytes.
    fn damage(chance: &mut Draw, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        const WORDS: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 1 << 31, u32::MAX as u64, u64::MAX];
        let at = chance.below(bytes.len());
        let end = at + chance.below(bytes.len() - at.min(bytes.len())) % 64;
        match chance.below(8) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << chance.below(8),
            1 if !bytes.is_empty() => bytes[at] = chance.below(256) as u8,
            2 => bytes.truncate(at),
            3 => bytes.extend((0..chance.below(40)).map(|byte| byte as u8)),
            4 => drop(bytes.drain(at.min(bytes.len())..end.min(bytes.len()))),
            5 => {
                let word = WORDS[chance.below(WORDS.len())].to_le_bytes();
                let len = [1, 2, 4, 8][chance.below(4)].min(bytes.len() - at.min(bytes.len()));
                bytes[at..at + len].copy_from_slice(&word[..len]);
            }
            6 => {
                let other = &seeds[chance.below(seeds.len())];
                bytes.extend_from_slice(&other[chance.below(other.len())..]);
            }
            _ => {
                let piece = bytes[at.min(bytes.len())..end.min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }

    fn run(target: &Target, bytes: &[u8], what: &str) {
        if catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))).is_err() {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            panic!("{} does not stand {what}: {hex}", target.name);
        }
    }

    #[test]
    fn targets_take_their_seeds_and_what_once_broke_them() {
        for target in &TARGETS {
            run(target, &[], "nothing");
            (target.seeds)().iter().for_each(|seed| run(target, seed, "a seed"));
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(target.name);
            for file in fs::read_dir(folder).into_iter().flatten().flatten() {
                let bytes = fs::read(file.path()).expect("it is a file");
                run(target, &bytes, &file.file_name().to_string_lossy());
            }
        }
    }

    #[test]
    fn targets_stand_damaged_seeds() {
        // The seed is the same on every machine: random inputs are for `make fuzz`.
        let mut chance = Draw::new(7);
        for target in &TARGETS {
            let seeds = (target.seeds)();
            for _ in 0..CASES {
                let mut bytes = seeds[chance.below(seeds.len())].clone();
                for _ in 0..=chance.below(4) {
                    damage(&mut chance, &mut bytes, &seeds);
                }
                run(target, &bytes, "a damaged seed");
            }
        }
    }
}
