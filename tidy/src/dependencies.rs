//! No dependency that nothing uses.

use toml::{Table, Value};

use crate::tokens;
use crate::{Finding, Kind, Source, Text};

/// Tables of a manifest that name dependencies.
const TABLES: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

/// Dependencies of the workspace that no crate has, and dependencies of a crate that its code never names.
#[must_use]
pub fn unused_dependencies(source: &Source) -> Vec<Finding> {
    let manifests: Vec<_> = source.of_kind(Kind::Manifest).map(|text| (text, parse(text))).collect();
    let mut found = Vec::new();
    for (text, manifest) in &manifests {
        let workspace = manifest.get("workspace").and_then(|workspace| workspace.get("dependencies"));
        for name in workspace.and_then(Value::as_table).into_iter().flat_map(Table::keys) {
            if !manifests.iter().any(|(_, manifest)| names(manifest).contains(name)) {
                found.push(finding(text, name, "no crate has this dependency of the workspace: remove it"));
            }
        }
        let folder = text.path.strip_suffix("Cargo.toml").unwrap_or_default();
        if manifest.contains_key("package") {
            for name in names(manifest).into_iter().filter(|name| !is_named(source, folder, name)) {
                found.push(finding(text, &name, "no code of this crate names this dependency: remove it"));
            }
        }
    }
    found
}

fn parse(text: &Text) -> Table {
    text.content.parse().unwrap_or_else(|error| panic!("{}: {error}", text.path))
}

/// Names of all dependencies of a crate, as its code says them.
fn names(manifest: &Table) -> Vec<String> {
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let places = std::iter::once(manifest).chain(targets.filter_map(Value::as_table));
    let tables = places.flat_map(|place| TABLES.iter().filter_map(|name| place.get(*name)?.as_table()));
    tables.flat_map(|table| table.keys().cloned()).collect()
}

fn is_named(source: &Source, folder: &str, dependency: &str) -> bool {
    let word = dependency.replace('-', "_");
    let code = source.of_kind(Kind::Rust).filter(|text| text.path.starts_with(folder));
    code.into_iter().any(|text| tokens::any(&text.tokens, &|token| token.is_word(&word)))
}

fn finding(text: &Text, name: &str, advice: &str) -> Finding {
    let line = text.content.lines().position(|line| line.starts_with(name)).map_or(1, |at| at + 1);
    Finding { path: text.path.clone(), line, item: name.to_owned(), advice: format!("`{name}`: {advice}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "[workspace.dependencies]\nused-one = \"1\"\nslab = \"1\"\n";
    const CRATE: &str = "[package]\nname = \"a\"\n[dependencies]\nused-one.workspace = true\n\
                         [target.'cfg(unix)'.dev-dependencies]\nidle = \"1\"\n";

    #[test]
    fn dependencies_are_had_and_named() {
        let source = Source::of(&[
            ("Cargo.toml", ROOT),
            ("a/Cargo.toml", CRATE),
            ("a/src/lib.rs", "use used_one::X;"),
        ]);
        let found = unused_dependencies(&source);
        let found: Vec<_> = found.iter().map(|it| (it.path.as_str(), it.line, it.item.as_str())).collect();
        assert_eq!(found, [("Cargo.toml", 3, "slab"), ("a/Cargo.toml", 6, "idle")]);
    }

    #[test]
    fn a_comment_does_not_name_a_dependency() {
        let source =
            Source::of(&[("a/Cargo.toml", CRATE), ("a/src/lib.rs", "// used_one\n//! idle\nmod used {}")]);
        assert_eq!(unused_dependencies(&source).len(), 2);
    }
}
