//! Filters of lists: which objects a list has, by name or id.
//!
//! Owns no state. Any thread. The client makes a filter, and the node that holds the objects applies it.

use crate::ObjectId;
use crate::wire::{AtMost, MAX_NAME_BYTES};

crate::wire::record! {
    /// Filter of a list of objects. The default lets every object pass.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Filter {
        /// Name or pattern of names by the rules of `fnmatch`: `*` stands for any text, also with slashes,
        /// `?` for one character, `[abc]` for one of the listed characters, `[!abc]` for any other character.
        /// 40 hexadecimal digits are an id. Empty for all objects.
        pub pattern: String as AtMost<MAX_NAME_BYTES>,
        /// Whether only objects without a name pass.
        pub unnamed: bool,
    }
}

impl Filter {
    /// Makes the filter of a pattern.
    pub fn of(pattern: &str) -> Self {
        Self { pattern: pattern.to_owned(), unnamed: false }
    }

    /// Whether a text is a pattern of many names, not one name. A bracket that is not closed stands for
    /// itself.
    pub fn is_pattern(text: &str) -> bool {
        let has_set = text.find('[').is_some_and(|at| text[at..].contains(']'));
        has_set || text.contains(['*', '?'])
    }

    /// Prepares the filter for many objects.
    pub fn prepare(&self) -> Prepared {
        let wanted = match self.pattern.as_str() {
            "" => Wanted::All,
            text if Self::is_pattern(text) => Wanted::Like(text.chars().collect()),
            text => text.parse().map_or_else(|_| Wanted::Name(text.to_owned()), Wanted::Id),
        };
        Prepared { wanted, unnamed: self.unnamed }
    }
}

/// Filter that was prepared for looking at many objects.
#[derive(Debug)]
pub struct Prepared {
    wanted: Wanted,
    unnamed: bool,
}

#[derive(Debug)]
enum Wanted {
    All,
    Id(ObjectId),
    Name(String),
    Like(Vec<char>),
}

impl Prepared {
    /// Whether an object passes the filter. `name` is empty for an object without a name.
    pub fn admits(&self, id: impl FnOnce() -> ObjectId, name: &str) -> bool {
        let wanted = match &self.wanted {
            Wanted::All => true,
            Wanted::Id(wanted) => *wanted == id(),
            Wanted::Name(wanted) => wanted == name,
            Wanted::Like(pattern) => !name.is_empty() && matches(pattern, name),
        };
        wanted && (!self.unnamed || name.is_empty())
    }
}

/// Whether a whole name is like a pattern. Takes at most the product of their lengths in steps.
fn matches(pattern: &[char], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut seen) = (0, 0);
    // Where to go on if the rest does not match: behind the last star, one character later.
    let mut again = None;
    loop {
        if pattern.get(at) == Some(&'*') {
            at += 1;
            again = Some((at, seen));
            continue;
        }
        match name.get(seen) {
            None if at == pattern.len() => return true,
            None => return false,
            Some(&letter) => {
                if let Some(behind) = step(pattern, at, letter) {
                    (at, seen) = (behind, seen + 1);
                    continue;
                }
            }
        }
        let Some((behind, from)) = &mut again else { return false };
        *from += 1;
        (at, seen) = (*behind, *from);
    }
}

/// Position behind the part of the pattern at `at`, which stands for one character. `None` if this part does
/// not stand for `letter`.
fn step(pattern: &[char], at: usize, letter: char) -> Option<usize> {
    match pattern.get(at)? {
        '?' => Some(at + 1),
        '[' => match set(pattern, at + 1) {
            Some((excludes, letters, behind)) => (is_in(letters, letter) != excludes).then_some(behind),
            None => (letter == '[').then_some(at + 1),
        },
        same => (*same == letter).then_some(at + 1),
    }
}

/// Parses the set that begins behind a bracket. Returns whether the set excludes its characters, the
/// characters, and the position behind the set. `None` if the bracket is not closed, and stands for itself.
fn set(pattern: &[char], at: usize) -> Option<(bool, &[char], usize)> {
    let excludes = pattern.get(at) == Some(&'!');
    let first = at + usize::from(excludes);
    // A bracket that comes first belongs to the set.
    let end = (first + 1..pattern.len()).find(|end| pattern[*end] == ']')?;
    Some((excludes, &pattern[first..end], end + 1))
}

/// Whether a character is one of the letters of a set, or in one of its ranges.
fn is_in(letters: &[char], letter: char) -> bool {
    let mut rest = letters;
    loop {
        rest = match rest {
            [] => return false,
            [low, '-', high, ..] if (*low..=*high).contains(&letter) => return true,
            [_, '-', _, rest @ ..] => rest,
            [one, ..] if *one == letter => return true,
            [_, rest @ ..] => rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(pattern: &str, name: &str) -> bool {
        Filter::of(pattern).prepare().admits(|| ObjectId::from_name(name), name)
    }

    #[test]
    fn a_pattern_follows_the_rules_of_fnmatch() {
        for (pattern, names, others) in [
            ("tmp/*", &["tmp/", "tmp/a", "tmp/a/b"][..], &["tmp", "a/tmp/", ""][..]),
            ("*a*b", &["ab", "xaxxb", "aab b"], &["ba", "abc"]),
            ("p-?", &["p-1", "p-ß"], &["p-", "p-12"]),
            ("p-[0-9x]", &["p-3", "p-x"], &["p-a", "p-"]),
            ("p-[!0-9]", &["p-a"], &["p-3", "p-"]),
            ("[]-]", &["]", "-"], &["[", "a"]),
            ("[a", &["[a"], &["a"]),
            ("[*]", &["*"], &["a", "[*]"]),
            ("plain", &["plain"], &["plain2", ""]),
            ("*", &["a"], &[""]),
        ] {
            assert!(names.iter().all(|name| admits(pattern, name)), "{pattern}");
            assert!(!others.iter().any(|name| admits(pattern, name)), "{pattern}");
        }
    }

    #[test]
    fn a_pattern_takes_no_time_beyond_measure() {
        let pattern = "*a".repeat(100) + "*b";
        assert!(!admits(&pattern, &"a".repeat(255)));
    }

    #[test]
    fn an_id_stands_for_itself_and_unnamed_objects_have_no_name() {
        let id = ObjectId::from_name("other");
        let of = |filter: Filter, name| filter.prepare().admits(|| id, name);
        assert!(of(Filter::of(&id.to_string()), "name"));
        assert!(!of(Filter::of(&ObjectId::from_name("x").to_string()), "x"));
        let unnamed = Filter { unnamed: true, ..Filter::default() };
        assert!(of(unnamed.clone(), "") && !of(unnamed, "name"));
        assert!(of(Filter::default(), "") && of(Filter::default(), "name"));
    }
}
