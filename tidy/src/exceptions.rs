//! Lists of what still breaks a rule. They only shrink.
//!
//! A line of a list is a path, the item in it if the rule has items, and how many findings are borne there if
//! that is more than one: `crates/a/src/b.rs: name x 3`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::Finding;

type Key = (String, String);

/// The list of one rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Exceptions(BTreeMap<Key, usize>);

/// Judgement of a list about findings.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Findings where the list bears fewer.
    pub refused: Vec<Finding>,
    /// Lines of the list that bear more than is found, with what to do.
    pub unneeded: Vec<String>,
}

impl Exceptions {
    /// The list that `content` holds.
    ///
    /// # Panics
    /// When a line of it is not what a line of a list is.
    #[must_use]
    pub fn parse(content: &str) -> Exceptions {
        let lines = content.lines().filter(|line| !line.is_empty());
        Exceptions(
            lines.map(|line| entry(line).unwrap_or_else(|| panic!("not an exception: {line}"))).collect(),
        )
    }

    /// Makes the list that bears these findings and no more.
    #[must_use]
    pub fn of(findings: &[Finding]) -> Exceptions {
        Exceptions(count(findings))
    }

    /// Number of findings that the list bears.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.values().sum()
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The list as a file.
    #[must_use]
    pub fn content(&self) -> String {
        let mut content = String::new();
        for ((path, item), count) in &self.0 {
            content.push_str(path);
            if !item.is_empty() {
                let _ = write!(content, ": {item}");
            }
            if *count > 1 {
                let _ = write!(content, " x {count}");
            }
            content.push('\n');
        }
        content
    }

    /// Compares the list with what was found.
    #[must_use]
    pub fn judge(&self, findings: &[Finding]) -> Verdict {
        let found = count(findings);
        let key = |finding: &Finding| (finding.path.clone(), finding.item.clone());
        let borne = |key: &Key| self.0.get(key).copied().unwrap_or(0);
        let refused = findings.iter().filter(|finding| found[&key(finding)] > borne(&key(finding)));
        let mut refused: Vec<_> = refused.cloned().collect();
        refused.sort();
        let mut unneeded = Vec::new();
        for (key, borne) in &self.0 {
            let (path, item) = key;
            let found = found.get(key).copied().unwrap_or(0);
            if found < *borne {
                unneeded.push(format!("{path} {item}: the list bears {borne}, and there are {found}"));
            }
        }
        Verdict { refused, unneeded }
    }
}

fn entry(line: &str) -> Option<(Key, usize)> {
    let (rest, count) = match line.rsplit_once(" x ") {
        Some((rest, count)) => (rest, count.parse().ok().filter(|count| *count > 1)?),
        None => (line, 1),
    };
    let (path, item) = rest.split_once(": ").unwrap_or((rest, ""));
    Some(((path.to_owned(), item.to_owned()), count))
}

fn count(findings: &[Finding]) -> BTreeMap<Key, usize> {
    let mut counts = BTreeMap::new();
    for finding in findings {
        *counts.entry((finding.path.clone(), finding.item.clone())).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(path: &str, line: usize, item: &str) -> Finding {
        Finding { path: path.to_owned(), line, item: item.to_owned(), advice: String::new() }
    }

    #[test]
    fn a_list_bears_what_it_says_and_no_more() {
        let list = Exceptions::parse("a.rs x 2\nb.rs: run\n");
        let two = [finding("a.rs", 1, ""), finding("a.rs", 7, ""), finding("b.rs", 3, "run")];
        assert_eq!(list.judge(&two), Verdict { refused: vec![], unneeded: vec![] });
        let other = [two[0].clone(), two[1].clone(), finding("a.rs", 9, ""), finding("b.rs", 3, "walk")];
        let verdict = list.judge(&other);
        assert_eq!(verdict.refused.len(), 4, "which of three is new is not known");
        assert_eq!(verdict.unneeded, ["b.rs run: the list bears 1, and there are 0"]);
        assert_eq!(list.judge(&[]).unneeded.len(), 2);
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let findings = [finding("a.rs", 1, ""), finding("a.rs", 7, ""), finding("b.rs", 3, "run")];
        let list = Exceptions::of(&findings);
        assert_eq!(list.content(), "a.rs x 2\nb.rs: run\n");
        assert_eq!(Exceptions::parse(&list.content()), list);
        assert_eq!(list.len(), 3);
    }
}
