//! The tree that the rules look at: every text file that git knows or would add.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::tokens::{self, Token};

/// Language of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `*.rs`
    Rust,
    /// `*.py`
    Python,
    /// `*.sh`, and what begins with `#!` and names a shell
    Shell,
    /// `*.md`
    Markdown,
    /// `Cargo.toml`
    Manifest,
}

/// One file.
#[derive(Debug)]
pub struct Text {
    /// Path of the file, from the root of the repository.
    pub path: String,
    /// Language of the file.
    pub kind: Kind,
    /// Contents of the file.
    pub content: String,
    /// Tokens of a Rust file, and none of any other.
    pub tokens: Vec<Token>,
}

impl Text {
    /// A file with this path and content; `None` if its kind has no rules.
    ///
    /// # Panics
    /// When a Rust file has no tokens that Rust knows.
    pub fn new(path: &str, content: String) -> Option<Text> {
        let kind = kind(path, &content)?;
        let tokens = if kind == Kind::Rust { tokens::of(path, &content) } else { Vec::new() };
        Some(Text { path: path.to_owned(), kind, content, tokens })
    }

    /// Whether the whole file is test code: tests, and what helps them. The programs that end-to-end tests
    /// start, and the guests', are none.
    #[must_use]
    pub fn is_test(&self) -> bool {
        let path = &self.path;
        let harness = path.starts_with("e2e/src/");
        let program = path.starts_with("e2e/src/bin/") || path.starts_with("e2e/src/guest/");
        harness && !program || path.contains("/tests/") || path.ends_with("/tests.rs")
    }
}

/// All files that rules look at, and the paths of all others.
#[derive(Debug)]
pub struct Source {
    texts: Vec<Text>,
    paths: BTreeSet<String>,
}

impl Source {
    /// The working tree at `root`: what git tracks, and what it would add.
    ///
    /// # Panics
    /// When a file of the tree cannot be read.
    #[must_use]
    pub fn read(root: &Path) -> Source {
        let names = listed(root).unwrap_or_else(|| walked(root));
        let names = names.iter().map(String::as_str);
        let paths: Vec<_> = names.filter(|path| root.join(path).is_file()).collect();
        let half = paths.len().div_ceil(2);
        let read = |paths: &[&str]| paths.iter().filter_map(|path| read(root, path)).collect::<Vec<_>>();
        // Rust's tokens are most of the work.
        let mut texts = std::thread::scope(|scope| {
            let late = scope.spawn(|| read(&paths[half..]));
            let mut texts = read(&paths[..half]);
            texts.extend(late.join().expect("the files are read"));
            texts
        });
        texts.sort_by(|one, other| one.path.cmp(&other.path));
        texts.dedup_by(|one, other| one.path == other.path);
        Source { texts, paths: paths.into_iter().map(str::to_owned).collect() }
    }

    /// Files made for a test of a rule.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Source {
        Source {
            texts: files
                .iter()
                .filter_map(|(path, content)| Text::new(path, (*content).to_owned()))
                .collect(),
            paths: files.iter().map(|(path, _)| (*path).to_owned()).collect(),
        }
    }

    /// All files, in the order of their paths.
    pub fn texts(&self) -> impl Iterator<Item = &Text> {
        self.texts.iter()
    }

    /// Files of one kind.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Text> {
        self.texts.iter().filter(move |text| text.kind == kind)
    }

    /// Whether there is a file at this path, of any kind, or a folder with files in it.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        self.paths.contains(path)
            || self.paths.range(folder.clone()..).next().is_some_and(|next| next.starts_with(&folder))
    }
}

fn read(root: &Path, path: &str) -> Option<Text> {
    let bytes = fs::read(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    Text::new(path, String::from_utf8(bytes).ok()?)
}

fn kind(path: &str, content: &str) -> Option<Kind> {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.').map(|(_, end)| end) {
        Some("rs") => Some(Kind::Rust),
        Some("py") => Some(Kind::Python),
        Some("sh") => Some(Kind::Shell),
        Some("md") => Some(Kind::Markdown),
        Some("toml") if name == "Cargo.toml" => Some(Kind::Manifest),
        _ => {
            let first = content.lines().next().unwrap_or_default();
            (first.starts_with("#!") && first.ends_with("sh")).then_some(Kind::Shell)
        }
    }
}

/// Paths of the files that git knows, or would; nothing where it does not say.
fn listed(root: &Path) -> Option<Vec<String>> {
    let git = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output();
    let git = git.ok().filter(|git| git.status.success())?;
    let names = String::from_utf8(git.stdout).expect("paths are UTF-8");
    Some(names.split_terminator('\0').map(str::to_owned).collect())
}

/// Paths of the files that are there, for a tree without git: none in hidden folders, nor in what was built.
fn walked(root: &Path) -> Vec<String> {
    let (mut paths, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder can be read") {
            let path = entry.expect("a folder can be read").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or(".");
            if name.starts_with('.') || ["target", "__pycache__"].contains(&name) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Some(path) = path.strip_prefix(root).ok().and_then(|path| path.to_str()) {
                paths.push(path.to_owned());
            }
        }
    }
    paths
}
