//! Types of at most 80 methods, in however many files their `impl` blocks stand.

use std::collections::BTreeMap;

use crate::tokens::{self, Group, Token};
use crate::{Finding, Kind, Source};

const METHODS: usize = 80;

/// A type: the file that defines it, and its name.
type Type<'a> = (&'a str, &'a str);

/// Rust types with too many methods: functions of inherent `impl` blocks, with or without `self`.
#[must_use]
pub fn many_methods(source: &Source) -> Vec<Finding> {
    let mut defined: BTreeMap<Type<'_>, Vec<(&str, usize)>> = BTreeMap::new();
    for text in source.of_kind(Kind::Rust) {
        tokens::each(&text.tokens, &mut |tokens| {
            for (at, token) in tokens.iter().enumerate() {
                if let Some(name) = definition(&tokens[at..]) {
                    let places = defined.entry((package(&text.path), name)).or_default();
                    places.push((&text.path, token.line()));
                }
            }
        });
    }
    let mut methods: BTreeMap<(Type<'_>, usize), usize> = BTreeMap::new();
    for text in source.of_kind(Kind::Rust) {
        tokens::each(&text.tokens, &mut |tokens| {
            for at in 0..tokens.len() {
                let Some((name, body)) = inherent(&tokens[at..]) else { continue };
                // Among several types of one name, the one that is defined nearest is meant.
                let places = defined.get(&(package(&text.path), name));
                let nearest = places.and_then(|places| {
                    places.iter().max_by_key(|(path, _)| shared_folders(path, &text.path))
                });
                let (path, line) = nearest.copied().unwrap_or((&text.path, tokens[at].line()));
                *methods.entry(((path, name), line)).or_default() += count(body);
            }
        });
    }
    let many = methods.into_iter().filter(|(_, count)| *count > METHODS);
    many.map(|(((path, name), line), count)| Finding {
        path: path.to_owned(),
        line,
        item: name.to_owned(),
        advice: format!(
            "`{name}` has {count} methods, and {METHODS} are the most: give a part of its state, with the \
             methods that need no more than that, a type of its own"
        ),
    })
    .collect()
}

/// The folder of the package that a file belongs to.
fn package(path: &str) -> &str {
    let end = ["/src/", "/tests/", "/benches/"].iter().filter_map(|folder| path.find(folder)).min();
    end.map_or("", |end| &path[..end])
}

/// Number of folders that two files have in common, and one more if they are the same file.
fn shared_folders(one: &str, other: &str) -> usize {
    one.split('/').zip(other.split('/')).take_while(|(one, other)| one == other).count()
}

/// The name of the type that `tokens` begin to define.
fn definition(tokens: &[Token]) -> Option<&str> {
    let [kind, name, ..] = tokens else { return None };
    let defines = ["struct", "enum", "union"].iter().any(|word| kind.is_word(word));
    name.word().filter(|_| defines)
}

/// The type and the body of the inherent `impl` block with which `tokens` begin.
fn inherent(tokens: &[Token]) -> Option<(&str, &Group)> {
    let (first, rest) = tokens.split_first()?;
    if !first.is_word("impl") {
        return None;
    }
    let (mut depth, mut name) = (0, None);
    for (at, token) in rest.iter().enumerate() {
        match token {
            Token::Mark('<', _) => depth += 1,
            // The end of an arrow is no bracket.
            Token::Mark('>', _) if at > 0 && !rest[at - 1].is_mark('-') => depth -= 1,
            Token::Group(body) if depth == 0 && body.open == '{' => return Some((name?, body)),
            Token::Mark(';', _) => return None,
            Token::Word(word, _) if depth == 0 => match word.as_str() {
                "for" => return None,
                "where" => {
                    let body = rest[at..].iter().find_map(|token| token.group('{'))?;
                    return Some((name?, body));
                }
                word => name = Some(word),
            },
            _ => {}
        }
    }
    None
}

/// Number of functions that stand right in a block.
fn count(body: &Group) -> usize {
    body.tokens.windows(2).filter(|pair| pair[0].is_word("fn") && pair[1].word().is_some()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(of: &str, methods: usize) -> String {
        format!("impl {of} {{\n{}}}\n", "    pub fn a(&self) -> B<C> { fn d() {} }\n".repeat(methods))
    }

    fn found(files: &[(&str, String)]) -> Vec<Finding> {
        let files: Vec<_> = files.iter().map(|(path, content)| (*path, content.as_str())).collect();
        many_methods(&Source::of(&files))
    }

    #[test]
    fn a_type_of_80_methods_passes_and_one_more_does_not() {
        let all = |methods| [("a/src/lib.rs", format!("//! A.\nstruct B;\n{}", block("B", methods)))];
        assert_eq!(found(&all(80)), []);
        let found = found(&all(81));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].item.as_str()), (2, "B"));
    }

    #[test]
    fn the_blocks_of_a_type_in_all_files_of_its_package_count_together() {
        let files = |other: &str| {
            let generic = "struct B<'a, T>(&'a T);\nimpl<'a, T: Fn() -> T> B<'a, T> where T: C<T> {}\n";
            [
                ("crates/a/src/b/mod.rs", format!("{generic}{}", block("B<'_, u8>", 40))),
                ("crates/a/src/b/c.rs", block("super::B<'_, u8>", 1)),
                ("crates/d/src/lib.rs", block(other, 40)),
            ]
        };
        assert_eq!(found(&files("B")), []);
        let mut all = files("B");
        all[2].0 = "crates/a/src/c.rs";
        assert_eq!(found(&all).len(), 1);
    }

    #[test]
    fn a_block_belongs_to_the_nearest_type_of_its_name() {
        let file = |path, methods| (path, format!("enum B {{}}\n{}", block("B", methods)));
        let beside = ("a/src/c/e.rs", block("B", 20));
        assert_eq!(found(&[file("a/src/c/d.rs", 60), file("a/src/f/g.rs", 60), beside.clone()]), []);
        assert_eq!(found(&[file("a/src/c/d.rs", 61), file("a/src/f/g.rs", 60), beside]).len(), 1);
    }

    #[test]
    fn methods_of_traits_do_not_count() {
        let many = |head: &str| [("a/src/lib.rs", format!("struct B;\n{}", block(head, 81)))];
        assert_eq!(found(&many("C<for<'a> fn(&'a D)> for B")), []);
        assert_eq!(found(&many("B where for<'a> C<'a>: D")).len(), 1);
    }
}
