//! Check of the spill directory.
//!
//! Owns no state. Main thread.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{statfs, statvfs};

use super::Case;
use super::finding::Finding;
use crate::output::size;

const TOPIC: &str = "spill_directory";
/// Topic of files of a node that does not run.
const LEFT: &str = "spill_files";
/// Extension of the files, and name of the file that a node locks beside them.
const EXTENSION: &str = "spill";
const LOCK: &str = "lock";
/// Number of bytes of a block in which the system counts the disk space of files.
const BLOCK_BYTES: u64 = 512;
/// Maximum number of files that a finding names.
const MAX_NAMED: usize = 8;
/// Type of a tmpfs in the result of `statfs`.
const TMPFS: u64 = 0x0102_1994;

/// Checks the spill directory, and names files there that no node has.
pub(super) fn check(case: &Case) -> Vec<Finding> {
    let left = case.spill.as_deref().and_then(|directory| left_behind(case, directory));
    directory(case).into_iter().chain(left).collect()
}

/// Names the files of a node that has ended, or was killed, and that no other node has taken over.
fn left_behind(case: &Case, directory: &Path) -> Option<Finding> {
    let is_nodes = |node: &plasmon::status::Status| Path::new(&node.spill.directory) == directory;
    if case.node.as_ref().is_some_and(is_nodes) || is_locked(case, &directory.join(LOCK)) {
        return None;
    }
    let entries = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    let spilled = entries.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
    let bytes = |path: &PathBuf| Some(fs::symlink_metadata(path).ok()?.blocks() * BLOCK_BYTES);
    let mut files: Vec<(PathBuf, u64)> =
        spilled.filter_map(|path| Some((path.clone(), bytes(&path)?))).collect();
    files.sort();
    if files.is_empty() {
        return None;
    }
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut named: Vec<_> = files
        .iter()
        .take(MAX_NAMED)
        .map(|(path, bytes)| format!("{} ({})", name(path), size(*bytes)))
        .collect();
    if files.len() > MAX_NAMED {
        named.push(format!("{} more", files.len() - MAX_NAMED));
    }
    let found = format!(
        "{} has {} of a node that does not run: {}",
        directory.display(),
        size(files.iter().map(|(_, bytes)| bytes).sum()),
        named.join(", ")
    );
    let why =
        "A node that is started with this directory has their objects again. Until then they take disk.";
    let remove = format!("rm {}/*.{EXTENSION}", directory.display());
    let finding =
        Finding::advice(LEFT, found, why).mend("start a node that takes them over", case.serve(case.memory));
    Some(finding.mend("or remove them, if nobody needs what is in them", remove))
}

/// Whether a process has locked a file.
fn is_locked(case: &Case, file: &Path) -> bool {
    let Ok(found) = fs::metadata(file) else { return false };
    let locks = case.files.text("/proc/locks").unwrap_or_default();
    let of_file = format!(":{}", found.ino());
    locks.lines().any(|line| line.split_whitespace().any(|word| word.ends_with(&of_file)))
}

/// Checks the directory itself.
fn directory(case: &Case) -> Vec<Finding> {
    let Some(directory) = &case.spill else {
        let text = "none: when memory is short, new objects wait for room, and are refused at their time-out";
        return vec![Finding::ok(TOPIC, text)];
    };
    let failures = case.node.as_ref().map_or(0, |node| node.spill.failures);
    if failures > 0 {
        let failing = case.node.as_ref().map_or("", |node| &node.spill.failing);
        let now = if failing.is_empty() { String::new() } else { format!("; now: {failing}") };
        let found = format!("{failures} reads or writes in {} failed{now}", directory.display());
        let why = "An object that cannot be written stays in memory. A get of an object that cannot be read \
                   back fails.";
        return vec![
            Finding::problem(TOPIC, found, why)
                .mend("see what the kernel says of the disk", case.shell.root("dmesg --level=err,warn")),
        ];
    }
    // The node makes a missing directory in one that exists.
    let Some(place) = directory.ancestors().take(2).find(|place| place.exists()) else {
        let found = format!("{} does not exist, nor does the directory above it", directory.display());
        let why = "A node does not start with it: a disk may not be mounted, or the path be wrong.";
        let make = format!("mkdir -p -m 700 {}", directory.display());
        return vec![Finding::problem(TOPIC, found, why).mend("make it, if its disk is mounted", make)];
    };
    match (statfs(place), statvfs(place)) {
        (Ok(kind), Ok(room)) => {
            let free = room.f_bavail.saturating_mul(room.f_frsize);
            vec![judge(case, directory, kind.f_type as u64 == TMPFS, free)]
        }
        (Err(error), _) | (_, Err(error)) => {
            let found = format!("{} cannot be looked at: {error}", directory.display());
            let why = "A node that cannot use its spill directory does not start.";
            vec![
                Finding::problem(TOPIC, found, why)
                    .mend("see who may", format!("ls -ld {}", place.display())),
            ]
        }
    }
}

fn judge(case: &Case, directory: &Path, in_memory: bool, free: u64) -> Finding {
    let found = format!("{} has {} free", directory.display(), size(free));
    let elsewhere = "name one on another disk; what is in this one stays there";
    let command = format!("plasmon serve --memory {}MiB --spill-dir DIRECTORY", case.memory >> 20);
    if in_memory {
        let found = format!("{} is in memory itself (tmpfs)", directory.display());
        let why = "Objects put there take as much memory as before.";
        return Finding::problem(TOPIC, found, why).mend(elsewhere, command);
    }
    let why = "When the disk is full too, new objects are refused.";
    match free {
        // The disk has less room than one round of spilling may write.
        free if free < case.memory / 64 => Finding::problem(TOPIC, found, why).mend(elsewhere, command),
        free if free < case.memory => {
            let why = format!("{why} As much as the store's {} is a good start.", size(case.memory));
            Finding::advice(TOPIC, found, why).mend(elsewhere, command)
        }
        _ => Finding::ok(TOPIC, found),
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::Files;
    use super::super::finding::Severity;
    use super::super::shell::Shell;
    use super::*;

    #[test]
    fn a_directory_needs_room_on_a_disk() {
        let case = Case {
            files: Files::under("/nowhere"),
            shell: Shell { root: true },
            memory: 64 << 30,
            spill: None,
            node: None,
        };
        let judge = |in_memory, free| judge(&case, Path::new("/spill"), in_memory, free).severity;
        assert_eq!(judge(false, 65 << 30), Severity::Ok);
        assert_eq!(judge(false, 2 << 30), Severity::Advice);
        assert_eq!(judge(false, 1 << 20), Severity::Problem);
        assert_eq!(judge(true, 65 << 30), Severity::Problem);
    }
}
