//! Files of the kernel under `/proc` and `/sys`, which have a few known forms.
//!
//! Owns no state. Main thread. Invariant: a file that is missing or has another form reads as `None`, never
//! as an error, because kernels and containers differ.

use std::fs;
use std::path::PathBuf;

/// Files of a host, seen from its root directory or from a copy of it.
#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
}

impl Files {
    /// Files of this host.
    pub(super) fn of_this_host() -> Self {
        Self::under("/")
    }

    /// Files of a host whose root directory is `root`.
    pub(super) fn under(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Path of a file of the host.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Text of a file, without blanks around it.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_owned())
    }

    /// Number that is the whole content of a file.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Names in a directory, in order. Empty if there is no such directory.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

/// Value of the line `key: value` in a text such as `/proc/self/status`.
pub(super) fn value_of<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(key)?.strip_prefix(':');
    text.lines().find_map(value).map(str::trim)
}

/// Size in bytes of a line of `/proc/meminfo`, which has KiB.
pub(super) fn meminfo(text: &str, key: &str) -> Option<u64> {
    value_of(text, key)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Choice in brackets, as in `always [never]`.
pub(super) fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(choice, _)| choice)
}

/// Hard limit in a line of `/proc/self/limits`; `u64::MAX` if it is unlimited.
pub(super) fn hard_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().nth(1)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// Number of numbers in a list such as `0-3,8`.
pub(super) fn count_of_list(list: &str) -> Option<u64> {
    list.split(',').filter(|range| !range.is_empty()).try_fold(0, |sum: u64, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_keys_are_read() {
        let text = "MemTotal:       24731708 kB\nMemAvailable:   2048 kB\nHugePages_Total:       5\n";
        assert_eq!(meminfo(text, "MemAvailable"), Some(2 << 20));
        assert_eq!(meminfo(text, "Mem"), None, "a key is a whole word");
        assert_eq!(meminfo(text, "HugePages_Total"), None, "a count is no size");
        assert_eq!(meminfo("MemTotal: 99999999999999999999 kB", "MemTotal"), None);
        assert_eq!(value_of("CapEff:\t000001fffeffffff\n", "CapEff"), Some("000001fffeffffff"));
    }

    #[test]
    fn choices_are_read() {
        assert_eq!(chosen("always within_size advise [never] deny force"), Some("never"));
        assert_eq!(chosen("[always] madvise never"), Some("always"));
        assert_eq!(chosen("never"), None);
    }

    #[test]
    fn limits_are_read() {
        let limits = "\
Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max open files            1024                 20000                files     
Max locked memory         8388608              unlimited            bytes     ";
        assert_eq!(hard_limit(limits, "Max open files"), Some(20000));
        assert_eq!(hard_limit(limits, "Max locked memory"), Some(u64::MAX));
        assert_eq!(hard_limit(limits, "Max wishes"), None);
    }

    #[test]
    fn lists_are_counted() {
        for (list, count) in [("0", 1), ("0-1", 2), ("0-3,8,10-11", 7), ("", 0)] {
            assert_eq!(count_of_list(list), Some(count), "{list}");
        }
        for list in ["a", "3-1", "0-18446744073709551615"] {
            assert_eq!(count_of_list(list), None, "{list}");
        }
    }
}
