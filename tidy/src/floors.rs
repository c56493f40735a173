//! Imports of the node's rooms point down.
//!
//! A room is a folder or file right below `crates/node/src`. Each stands on a floor, and code of a room may
//! name rooms of lower floors only: neither higher ones nor others of its own floor. `lib.rs` and the doors
//! beside it stand above all.

use std::collections::BTreeSet;

use crate::tokens::{Group, Token};
use crate::{Finding, Kind, Source, Text};

const NODE: &str = "crates/node/src/";

/// Rooms and the floors on which they stand.
const FLOORS: [(&str, u32); 25] = [
    ("memory", 1),
    // Place of the node on its host.
    ("numa", 2),
    ("spill", 2),
    // Settings of the node: plain data.
    ("config", 3),
    ("kernel", 4),
    ("object", 5),
    ("qos", 5),
    ("net", 6),
    ("store", 7),
    ("control", 8),
    ("membership", 9),
    ("service", 10),
    ("directory", 11),
    ("transfer", 12),
    ("placement", 13),
    ("sessions", 14),
    ("guard", 14),
    ("region", 15),
    ("call", 16),
    ("sync", 17),
    ("files", 17),
    ("engine", 18),
    // Doors for the fuzzer and for simulations, and the crate's own surface: they may name everybody.
    ("fuzzing", TOP),
    ("simulation", TOP),
    ("lib", TOP),
];

const TOP: u32 = 19;

/// Rooms without a floor, and imports that point up or to another room of the same floor.
#[must_use]
pub fn imports(source: &Source) -> Vec<Finding> {
    let node: Vec<_> =
        source.of_kind(Kind::Rust).filter_map(|text| Some((text, text.path.strip_prefix(NODE)?))).collect();
    let rooms: BTreeSet<_> = node.iter().map(|(_, path)| room(path)).collect();
    let mut found = Vec::new();
    for name in rooms.iter().filter(|name| floor(name).is_none()) {
        let (text, _) = node.iter().find(|(_, path)| room(path) == *name).expect("a room has a file");
        let advice = format!("the room `{name}` has no floor: give it one in {}", file!());
        found.push(Finding { path: text.path.clone(), line: 1, item: (*name).to_owned(), advice });
    }
    for (text, path) in &node {
        let own = room(path);
        let Some(from) = floor(own) else { continue };
        let mut uses = Vec::new();
        collect(&text.tokens, module_depth(path), &mut uses);
        for (name, line) in uses {
            // A name that is no room is one that `lib.rs` has: the surface of the crate itself.
            let target = if rooms.contains(name) { name } else { "lib" };
            if target != own && floor(target).is_some_and(|to| to >= from) {
                found.push(refused(text, line, own, from, target, name));
            }
        }
    }
    found
}

fn refused(text: &Text, line: usize, own: &str, from: u32, target: &str, name: &str) -> Finding {
    let to = floor(target).unwrap_or(TOP);
    let way = if to > from { "up" } else { "to a room beside it" };
    let advice = format!(
        "`crate::{name}` points {way}, from `{own}` (floor {from}) to `{target}` (floor {to}): \
         move what is named down, or hand it in"
    );
    Finding { path: text.path.clone(), line, item: target.to_owned(), advice }
}

/// Rooms with their floors, from the highest floor down; those of one floor in the order of their names.
pub(crate) fn rooms_from_the_top() -> Vec<(&'static str, u32)> {
    let mut rooms: Vec<_> = FLOORS.into_iter().filter(|(_, floor)| *floor < TOP).collect();
    rooms.sort_by_key(|(name, floor)| (std::cmp::Reverse(*floor), *name));
    rooms
}

fn floor(room: &str) -> Option<u32> {
    FLOORS.iter().find(|(name, _)| *name == room).map(|(_, floor)| *floor)
}

/// The room of a file below `crates/node/src`.
fn room(path: &str) -> &str {
    path.split('/').next().and_then(|name| name.split('.').next()).unwrap_or_default()
}

/// Number of modules around the code of a file: 0 at the root of the crate.
fn module_depth(path: &str) -> usize {
    if room(path) == "lib" {
        return 0;
    }
    path.split('/').count() - usize::from(path.ends_with("/mod.rs"))
}

/// Names that stand right below the root of the crate, wherever `code` names them, with their lines.
fn collect<'a>(code: &'a [Token], depth: usize, uses: &mut Vec<(&'a str, usize)>) {
    let mut at = 0;
    while at < code.len() {
        match &code[at] {
            Token::Word(word, _) if word == "crate" => follow(&code[at + 1..], uses),
            Token::Word(word, _) if word == "super" => {
                let mut supers = 1;
                while is_path(&code[at + 1..]) && code.get(at + 3).is_some_and(|next| next.is_word("super")) {
                    supers += 1;
                    at += 3;
                }
                if supers == depth {
                    follow(&code[at + 1..], uses);
                }
            }
            Token::Group(Group { open, tokens, .. }) => {
                let module = *open == '{' && at > 1 && code[at - 2].is_word("mod");
                collect(tokens, depth + usize::from(module), uses);
            }
            _ => {}
        }
        at += 1;
    }
}

/// The names that follow the root of the crate: `::a`, or those of `::{a, b::c}`.
fn follow<'a>(code: &'a [Token], uses: &mut Vec<(&'a str, usize)>) {
    if !is_path(code) {
        return;
    }
    match code.get(2) {
        Some(Token::Word(word, line)) => uses.push((word, *line)),
        Some(Token::Group(group)) if group.open == '{' => {
            let begins = |at: &usize| *at == 0 || group.tokens[at - 1].is_mark(',');
            let first = (0..group.tokens.len()).filter(begins);
            uses.extend(
                first.filter_map(|at| group.tokens[at].word().map(|word| (word, group.tokens[at].line()))),
            );
        }
        _ => {}
    }
}

fn is_path(code: &[Token]) -> bool {
    code.len() > 1 && code[0].is_mark(':') && code[1].is_mark(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, code: &str) -> Vec<(usize, String)> {
        let rooms = ["kernel", "memory", "store", "directory", "transfer", "engine", "lib"]
            .map(|room| format!("{NODE}{room}.rs"));
        let mut files: Vec<_> = rooms.iter().map(|path| (path.as_str(), "")).collect();
        let path = format!("{NODE}{path}");
        files.push((&path, code));
        imports(&Source::of(&files)).into_iter().map(|finding| (finding.line, finding.item)).collect()
    }

    #[test]
    fn imports_may_point_down() {
        assert_eq!(found("store/a.rs", "use crate::{kernel::Waker, memory};\nuse crate::store::B;"), []);
        assert_eq!(found("lib.rs", "pub use crate::engine::Node;"), []);
    }

    #[test]
    fn imports_may_not_point_up_or_aside() {
        assert_eq!(
            found("store/a.rs", "use crate::{\n    kernel,\n    engine::Core,\n};"),
            [(3, "engine".into())]
        );
        assert_eq!(found("directory/a.rs", "fn a() -> crate::transfer::Way {}"), [(1, "transfer".into())]);
        assert_eq!(found("store/a.rs", "use super::super::engine::Core;"), [(1, "engine".into())]);
        assert_eq!(
            found("store/mod.rs", "mod tests {\n    use super::super::engine;\n}"),
            [(2, "engine".into())]
        );
        assert_eq!(found("store/mod.rs", "use crate::NodeError;"), [(1, "lib".into())]);
    }

    #[test]
    fn what_stays_in_the_room_is_free() {
        assert_eq!(found("store/a/b.rs", "use super::super::c;\npub(in crate::store) fn d() {}"), []);
        assert_eq!(found("store/mod.rs", "mod tests {\n    use super::*;\n}"), []);
    }

    #[test]
    fn every_room_has_a_floor() {
        assert_eq!(found("attic/mod.rs", ""), [(1, "attic".into())]);
    }
}
