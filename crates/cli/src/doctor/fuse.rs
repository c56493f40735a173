//! Checks of mounts: whether volumes can be mounted on this host, and how large the kernel's requests are.
//!
//! Owns no state. Main thread.

use super::Case;
use super::finding::Finding;

const DEVICE: &str = "/dev/fuse";
/// Program by which users other than root mount, where systems have it.
const HELPERS: [&str; 3] = ["/usr/bin/fusermount3", "/bin/fusermount3", "/usr/local/bin/fusermount3"];
/// File with the settings of fusermount3.
const SETTINGS: &str = "/etc/fuse.conf";
/// Number of pages of 4 KiB in a request of 1 MiB, the largest that a mount asks for.
const PAGES: u64 = 256;
/// Read-ahead in KiB that a mount by root sets for itself.
const READ_AHEAD_KIB: u64 = 4 << 10;
/// Type of the file system of a mounted volume.
const KIND: &str = "fuse.plasmon";

/// Checks the device, the helper program, the largest requests, and the read-ahead of mounted volumes.
pub(super) fn check(case: &Case) -> Vec<Finding> {
    let mut findings = vec![device(case), helper(case)];
    findings.extend(requests(case));
    findings.extend(read_ahead(case));
    findings
}

/// Checks whether the kernel has FUSE.
fn device(case: &Case) -> Finding {
    const TOPIC: &str = "fuse";
    if case.files.path(DEVICE).exists() {
        return Finding::ok(TOPIC, format!("there is {DEVICE}"));
    }
    let why = "`plasmon mount` needs it. In a container it is a device that the container is given: \
               --device /dev/fuse, and CAP_SYS_ADMIN for root.";
    Finding::advice(TOPIC, format!("there is no {DEVICE}: no volume can be mounted"), why)
        .mend("load the kernel's module", case.shell.root("modprobe fuse"))
}

/// Checks whether users other than root can mount.
fn helper(case: &Case) -> Finding {
    const TOPIC: &str = "fuse_helper";
    let Some(path) = HELPERS.into_iter().find(|path| case.files.path(path).exists()) else {
        let found = "there is no fusermount3";
        if case.shell.root {
            return Finding::ok(TOPIC, found).because("Root needs none; other users cannot mount volumes.");
        }
        let why = "Users other than root mount volumes by it.";
        return Finding::advice(TOPIC, found, why)
            .mend("on Debian and its like", case.shell.root("apt-get install -y fuse3"));
    };
    let settings = case.files.text(SETTINGS).unwrap_or_default();
    let shared = settings.lines().any(|line| line.trim() == "user_allow_other");
    let others = if shared { "users may share mounts" } else { "mounts of users are for themselves" };
    Finding::ok(TOPIC, format!("{path}; {others} (user_allow_other in {SETTINGS})"))
}

/// Checks how large requests of the kernel may be.
fn requests(case: &Case) -> Option<Finding> {
    const TOPIC: &str = "fuse_requests";
    let limit = case.files.number("/proc/sys/fs/fuse/max_pages_limit")?;
    let kib = limit.saturating_mul(4);
    let found = format!("fs.fuse.max_pages_limit is {limit}: requests of up to {kib} KiB");
    if limit >= PAGES {
        return Some(Finding::ok(TOPIC, found));
    }
    let why = "A mount asks for requests of 1 MiB, which are the blocks that it stores. Smaller ones cost \
               more of them for the same bytes. A volume that is mounted already keeps what it has.";
    const KEY: &str = "fs.fuse.max_pages_limit";
    Some(
        Finding::advice(TOPIC, found, why)
            .mend("until the next boot", case.shell.sysctl(KEY, PAGES))
            .mend("and at every boot", case.shell.sysctl_for_ever(KEY, PAGES)),
    )
}

/// Checks how far the kernel reads ahead in volumes that are mounted.
fn read_ahead(case: &Case) -> Option<Finding> {
    const TOPIC: &str = "fuse_read_ahead";
    let text = case.files.text("/proc/self/mountinfo")?;
    let file = |device: &str| format!("/sys/class/bdi/{device}/read_ahead_kb");
    let mounted: Vec<(&str, u64)> = text
        .lines()
        .filter_map(device_of_volume)
        .filter_map(|device| Some((device, case.files.number(&file(device))?)))
        .collect();
    let (device, least) = mounted.iter().copied().min_by_key(|(_, kib)| *kib)?;
    let found = format!("{least} KiB or more, in {} mounted", volumes(mounted.len()));
    if least >= READ_AHEAD_KIB {
        return Some(Finding::ok(TOPIC, found));
    }
    let why = "A program that reads in order waits for each step of the read-ahead. A mount by root sets \
               4 MiB itself; one by another user cannot.";
    Some(
        Finding::advice(TOPIC, found, why).mend(
            "until the volume is unmounted",
            case.shell.write(&READ_AHEAD_KIB.to_string(), &file(device)),
        ),
    )
}

/// Number of the device in a line of `mountinfo`, if it is about a volume.
fn device_of_volume(line: &str) -> Option<&str> {
    let (place, kind) = line.split_once(" - ")?;
    (kind.split(' ').next() == Some(KIND)).then(|| place.split(' ').nth(2)).flatten()
}

fn volumes(count: usize) -> String {
    if count == 1 { "the volume that is".to_owned() } else { format!("the {count} volumes that are") }
}
