//! Memory limits of the control groups of a process, of version 1 and 2: for all memory but huge pages of the
//! host's pool, and for these.
//!
//! The daemon checks its own limits before it takes memory, and `plasmon doctor` those of a node. A process
//! is in one group of each hierarchy. `/proc/<pid>/cgroup` has the path of the group from the hierarchy's
//! root; `/proc/<pid>/mountinfo` has the visible part of the hierarchy and where it is mounted. The limit of
//! a group holds for all groups below it. Owns no state. Any thread.

use std::path::Path;

/// Version of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    First,
    Second,
}

impl Version {
    /// Type of the filesystem.
    fn kind(self) -> &'static str {
        match self {
            Self::First => "cgroup",
            Self::Second => "cgroup2",
        }
    }
}

/// Limits, each with the file of what is used of it, or with none if `memory.stat` tells that.
type Limits = &'static [(&'static str, Option<&'static str>)];

/// Controller that limits memory, with the names of its files in both versions.
struct Controller {
    name: &'static str,
    limits: fn(Version) -> Limits,
}

const MEMORY: Controller = Controller {
    name: "memory",
    limits: |version| match version {
        Version::First => &[("memory.limit_in_bytes", None)],
        Version::Second => &[("memory.max", None)],
    },
};
/// Huge pages of 2 MiB: those that are used, and those that are reserved for mappings.
const HUGE_PAGES: Controller = Controller {
    name: "hugetlb",
    limits: |version| match version {
        Version::First => &[
            ("hugetlb.2MB.limit_in_bytes", Some("hugetlb.2MB.usage_in_bytes")),
            ("hugetlb.2MB.rsvd.limit_in_bytes", Some("hugetlb.2MB.rsvd.usage_in_bytes")),
        ],
        Version::Second => &[
            ("hugetlb.2MB.max", Some("hugetlb.2MB.current")),
            ("hugetlb.2MB.rsvd.max", Some("hugetlb.2MB.rsvd.current")),
        ],
    },
};

/// Limit in bytes from which on there is none: version 1 has no word for that.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// Memory that a group allows, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// Limit for the memory of all processes of the group.
    pub(crate) limit: u64,
    /// Memory that the processes use and that cannot be reclaimed.
    pub(crate) used: u64,
    /// File that has the limit.
    pub(crate) file: String,
}

/// Allowance of the group with the least room, among those of a process (such as `/proc/self`). `None` if
/// none has a limit. `read` returns the text of a file of the host.
pub(crate) fn allowance(read: impl Fn(&str) -> Option<String>, process: &str) -> Option<Allowance> {
    allowance_by(&MEMORY, read, process)
}

/// Allowance of huge pages, as [`allowance`] returns that of other memory.
pub(crate) fn huge_allowance(read: impl Fn(&str) -> Option<String>, process: &str) -> Option<Allowance> {
    allowance_by(&HUGE_PAGES, read, process)
}

fn allowance_by(
    controller: &Controller,
    read: impl Fn(&str) -> Option<String>,
    process: &str,
) -> Option<Allowance> {
    let groups = read(&format!("{process}/cgroup"))?;
    let mounts = read(&format!("{process}/mountinfo"))?;
    let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
    let of_limit = |version: Version, folder: &str, (limit, used): (&str, Option<&str>)| {
        let folder = folder.trim_end_matches('/');
        let file = format!("{folder}/{limit}");
        let limit = number(&file).filter(|limit| *limit < UNLIMITED_BYTES)?;
        let used = match used {
            Some(used) => number(&format!("{folder}/{used}")).unwrap_or(0),
            None => kept(version, &read(&format!("{folder}/memory.stat")).unwrap_or_default()),
        };
        Some(Allowance { limit, used, file })
    };
    let folders = folders(controller, &groups, &mounts);
    let limits = folders.iter().flat_map(|(version, folder)| {
        (controller.limits)(*version).iter().filter_map(|limit| of_limit(*version, folder, *limit))
    });
    limits.min_by_key(|allowance| allowance.limit.saturating_sub(allowance.used))
}

/// Memory in bytes that cannot be reclaimed, of a group and of all below it, by its `memory.stat`.
fn kept(version: Version, stat: &str) -> u64 {
    let keys = match version {
        Version::First => ["total_rss", "total_shmem"],
        Version::Second => ["anon", "shmem"],
    };
    keys.iter().filter_map(|key| value(stat, key)).sum()
}

/// Folders of all groups of a controller in which a process is.
fn folders(controller: &Controller, groups: &str, mounts: &str) -> Vec<(Version, String)> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let version = match controllers {
            "" => Version::Second,
            all if all.split(',').any(|one| one == controller.name) => Version::First,
            _ => continue,
        };
        let mounted = mounts.lines().filter_map(|line| Mount::parse(line, version, controller));
        for Mount { root, point } in mounted {
            // A group outside the mounted part belongs to a namespace whose root is that part.
            let below = Path::new(path).strip_prefix(&root).unwrap_or(Path::new(""));
            let all = below.ancestors().filter_map(Path::to_str);
            found.extend(all.map(|group| (version, format!("{point}/{group}"))));
        }
    }
    found
}

/// Mounted part of a hierarchy.
struct Mount {
    /// Path of the part in the hierarchy.
    root: String,
    /// Path at which the part is mounted.
    point: String,
}

impl Mount {
    /// Parses a line of `mountinfo`. `None` if its hierarchy does not have the controller.
    fn parse(line: &str, version: Version, controller: &Controller) -> Option<Self> {
        let (mount, filesystem) = line.split_once(" - ")?;
        let (mut mount, mut filesystem) = (mount.split(' ').skip(3), filesystem.split(' '));
        let (root, point) = (mount.next()?, mount.next()?);
        let (kind, options) = (filesystem.next()?, filesystem.nth(1)?);
        let limits = version == Version::Second || options.split(',').any(|one| one == controller.name);
        (kind == version.kind() && limits)
            .then(|| Self { root: unescape(root), point: unescape(point).trim_end_matches('/').to_owned() })
    }
}

/// Decodes a path: the kernel writes blanks and backslashes as a backslash and three octal digits.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut path = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code.filter(u8::is_ascii) {
            Some(code) => {
                path.push(code.into());
                path.push_str(&part[3..]);
            }
            None => {
                path.push('\\');
                path.push_str(part);
            }
        }
    }
    path
}

/// Number that follows a key, in a text with a key and a number in each line.
fn value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// The allowance by the texts of files.
    fn allowed(files: &[(&str, &str)]) -> Option<Allowance> {
        let files: HashMap<_, _> = files.iter().copied().collect();
        allowance(|path| files.get(path).map(|text| (*text).to_owned()), "/proc/self")
    }

    const UNIFIED: &str = "\
23 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:14 - proc proc rw
34 24 0:29 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 \
rw,nsdelegate,memory_recursiveprot
";
    const STAT: &str =
        "anon 1073741824\nfile 53687091200\nkernel 1\nshmem 2147483648\nanon_thp 7\nshmem_thp 9\n";

    #[test]
    fn the_second_version_at_any_level() {
        let groups = "0::/system.slice/plasmon.service\n";
        let files = [
            ("/proc/self/cgroup", groups),
            ("/proc/self/mountinfo", UNIFIED),
            ("/sys/fs/cgroup/system.slice/memory.max", "17179869184\n"),
            ("/sys/fs/cgroup/system.slice/memory.stat", STAT),
            ("/sys/fs/cgroup/system.slice/plasmon.service/memory.max", "max\n"),
            ("/sys/fs/cgroup/system.slice/plasmon.service/memory.stat", STAT),
        ];
        let file = "/sys/fs/cgroup/system.slice/memory.max".to_owned();
        assert_eq!(allowed(&files), Some(Allowance { limit: 16 * GIB, used: 3 * GIB, file }));
        // The least room counts, which need not be where the least limit is.
        let own = ("/sys/fs/cgroup/system.slice/plasmon.service/memory.max", "15032385536\n");
        let stat = ("/sys/fs/cgroup/system.slice/plasmon.service/memory.stat", "anon 4096\nshmem 0\n");
        let both = [files[0], files[1], files[2], files[3], own, stat];
        assert_eq!(allowed(&both).map(|allowance| allowance.limit), Some(16 * GIB));
        assert_eq!(allowed(&files[..2]), None);
    }

    #[test]
    fn a_container_of_the_second_version_sees_its_group_as_the_root() {
        let files = [
            ("/proc/self/cgroup", "0::/\n"),
            (
                "/proc/self/mountinfo",
                "2150 2149 0:29 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw\n",
            ),
            ("/sys/fs/cgroup/memory.max", "536870912\n"),
        ];
        let file = "/sys/fs/cgroup/memory.max".to_owned();
        assert_eq!(allowed(&files), Some(Allowance { limit: GIB / 2, used: 0, file }));
    }

    #[test]
    fn the_first_version_is_read_where_it_is_mounted() {
        let mounts = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /cgroups\\040of\\134here/memory rw,relatime master:5 - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
        let groups = "9:name=systemd:/a\n4:memory:/process_api/3483\n1:cpu:/elsewhere\n0::/\n";
        let place = "/cgroups of\\here/memory/process_api";
        let [own, above] = ["/3483", ""].map(|group| format!("{place}{group}/memory.limit_in_bytes"));
        let stat = format!("{place}/memory.stat");
        let mut files = vec![
            ("/proc/self/cgroup", groups),
            ("/proc/self/mountinfo", mounts),
            (own.as_str(), "9223372036854771712\n"),
        ];
        assert_eq!(allowed(&files), None);
        files.push((&above, "2147483648\n"));
        files.push((&stat, "rss 5\nshmem 6\ntotal_rss 1073741824\ntotal_rss_huge 0\ntotal_shmem 4096\n"));
        assert_eq!(
            allowed(&files),
            Some(Allowance { limit: 2 * GIB, used: GIB + 4096, file: above.clone() })
        );
    }

    #[test]
    fn a_container_of_the_first_version_sees_a_part_of_the_hierarchy() {
        let group = "/docker/0123abcd";
        let mounts = format!(
            "700 699 0:32 {group} /sys/fs/cgroup/memory ro,nosuid master:15 - cgroup cgroup rw,memory\n"
        );
        for groups in [format!("8:memory:{group}\n"), "8:cpu,memory:/../elsewhere\n".to_owned()] {
            let files = [
                ("/proc/self/cgroup", groups.as_str()),
                ("/proc/self/mountinfo", mounts.as_str()),
                ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"),
            ];
            assert_eq!(allowed(&files).map(|allowance| allowance.limit), Some(GIB), "{groups}");
        }
    }

    #[test]
    fn huge_pages_have_limits_of_their_own() {
        let allowed = |files: &[(&str, &str)]| {
            let files: HashMap<_, _> = files.iter().copied().collect();
            huge_allowance(|path| files.get(path).map(|text| (*text).to_owned()), "/proc/self")
        };
        // A container of Kubernetes without hugepages-2Mi.
        let mut files = vec![
            ("/proc/self/cgroup", "0::/pod\n"),
            ("/proc/self/mountinfo", UNIFIED),
            ("/sys/fs/cgroup/pod/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/pod/hugetlb.2MB.max", "0\n"),
            ("/sys/fs/cgroup/pod/hugetlb.2MB.current", "0\n"),
            ("/sys/fs/cgroup/pod/hugetlb.2MB.rsvd.max", "max\n"),
        ];
        let file = "/sys/fs/cgroup/pod/hugetlb.2MB.max".to_owned();
        assert_eq!(allowed(&files), Some(Allowance { limit: 0, used: 0, file }));
        files[3].1 = "max\n";
        assert_eq!(allowed(&files), None);
        // What is reserved counts where that has a limit.
        files[5].1 = "4194304\n";
        files.push(("/sys/fs/cgroup/pod/hugetlb.2MB.rsvd.current", "2097152\n"));
        let file = "/sys/fs/cgroup/pod/hugetlb.2MB.rsvd.max".to_owned();
        assert_eq!(allowed(&files), Some(Allowance { limit: 4 << 20, used: 2 << 20, file }));

        let mounts = "36 31 0:33 / /sys/fs/cgroup/hugetlb rw - cgroup cgroup rw,hugetlb\n";
        let limit = "/sys/fs/cgroup/hugetlb/job/hugetlb.2MB.limit_in_bytes";
        let files = [
            ("/proc/self/cgroup", "5:memory:/job\n6:hugetlb:/job\n"),
            ("/proc/self/mountinfo", mounts),
            (limit, "2097152\n"),
            ("/sys/fs/cgroup/hugetlb/hugetlb.2MB.limit_in_bytes", "9223372036852678656\n"),
        ];
        assert_eq!(allowed(&files), Some(Allowance { limit: 2 << 20, used: 0, file: limit.into() }));
    }

    #[test]
    fn other_texts_are_no_limit() {
        for mounts in ["", "-", "1 2 3\n", "1 2 3 4 5 - cgroup2\n", "1 2 3 / / - cgroup2 x\n"] {
            let files = [("/proc/self/cgroup", "0::/\n::\n0\n"), ("/proc/self/mountinfo", mounts)];
            assert_eq!(allowed(&files), None, "{mounts}");
        }
        assert_eq!(unescape("a\\04"), "a\\04");
        assert_eq!(unescape("\\377é\\\\040"), "\\377é\\ ");
    }
}
