//! Tells the programs which commit they are made of, if they are made in this repository's work tree.
//!
//! A package of the sources has no commit, and a folder of somebody else's repository has none of ours. The
//! script runs again only when another commit is checked out.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let own = std::env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    let version = match commit() {
        Some(commit) => format!("{own} ({commit})"),
        None => own,
    };
    println!("cargo::rustc-env=PLASMON_VERSION={version}");
    println!("cargo::rerun-if-changed=build.rs");
}

/// Abbreviated commit that is checked out.
fn commit() -> Option<String> {
    let root = Path::new("../..").canonicalize().ok()?;
    if Path::new(&git(&["rev-parse", "--show-toplevel"])?).canonicalize().ok()? != root {
        return None;
    }
    // The log of HEAD grows with every commit and checkout. A path that is absent would count as changed.
    for name in ["HEAD", "logs/HEAD"] {
        let path = PathBuf::from(git(&["rev-parse", "--git-path", name])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
