//! Files of at most 600 lines, functions of at most 80, and an opening for each file.

use crate::{Finding, Kind, Source};
use crate::{python, tokens};

const FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 80;

/// Files of Rust and Python that are too long. The interface of Python's native module is one file by its
/// nature, and of another kind.
#[must_use]
pub fn long_files(source: &Source) -> Vec<Finding> {
    let limited = source.of_kind(Kind::Rust).chain(source.of_kind(Kind::Python));
    let long = limited.filter(|text| text.content.lines().count() > FILE_LINES);
    let finding = |text: &crate::Text| Finding {
        path: text.path.clone(),
        line: FILE_LINES + 1,
        item: String::new(),
        advice: format!(
            "the file has {} lines, and {FILE_LINES} are the most: give a concern of it a file of its own",
            text.content.lines().count()
        ),
    };
    long.map(finding).collect()
}

/// Functions that are too long: in Rust from `fn` to the closing brace, in Python from `def` to the last line
/// of the body.
#[must_use]
pub fn long_functions(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for text in source.of_kind(Kind::Rust) {
        tokens::each(&text.tokens, &mut |tokens| {
            for (at, pair) in tokens.windows(2).enumerate() {
                let Some(name) = pair[1].word().filter(|_| pair[0].is_word("fn")) else { continue };
                let end = tokens[at..].iter().find(|token| token.is_mark(';') || token.group('{').is_some());
                let Some(body) = end.and_then(|token| token.group('{')) else { continue };
                found.extend(long_function(text, name, pair[0].line(), body.last));
            }
        });
    }
    for text in source.of_kind(Kind::Python) {
        let functions = python::functions(&text.content).into_iter();
        found.extend(
            functions
                .filter_map(|function| long_function(text, function.name, function.first, function.last)),
        );
    }
    found
}

fn long_function(text: &crate::Text, name: &str, first: usize, last: usize) -> Option<Finding> {
    let lines = last + 1 - first;
    (lines > FUNCTION_LINES).then(|| Finding {
        path: text.path.clone(),
        line: first,
        item: name.to_owned(),
        advice: format!("`{name}` has {lines} lines, and {FUNCTION_LINES} are the most: divide it"),
    })
}

/// Files that do not open with their documentation: of Rust with `//!`, of Python with a docstring.
#[must_use]
pub fn unopened_modules(source: &Source) -> Vec<Finding> {
    let opened = |text: &&crate::Text| match text.kind {
        Kind::Python => python::has_docstring(&text.content),
        _ => text.content.trim_start().starts_with("//!"),
    };
    let finding = |text: &crate::Text| Finding {
        path: text.path.clone(),
        line: 1,
        item: String::new(),
        advice:
            "the file does not say what it is: open it with `//!` or a docstring, which say what it owns, \
                 its thread, its invariants"
                .to_owned(),
    };
    let limited = source.of_kind(Kind::Rust).chain(source.of_kind(Kind::Python));
    limited.filter(|text| !opened(text)).map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(lines: usize) -> String {
        format!("//! A.\nimpl A {{\n    fn b() {{\n{}    }}\n}}\n", "        c();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_of_80_lines_passes_and_one_more_does_not() {
        assert_eq!(long_functions(&Source::of(&[("a.rs", &function(80))])), []);
        let found = long_functions(&Source::of(&[("a.rs", &function(81))]));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].item.as_str()), (3, "b"));
    }

    #[test]
    fn a_function_of_python_has_as_many_lines() {
        let function =
            |lines: usize| format!("\"\"\"A.\"\"\"\n\n\ndef b():\n{}", "    c()\n".repeat(lines - 1));
        assert_eq!(long_functions(&Source::of(&[("a.py", &function(80))])), []);
        let found = long_functions(&Source::of(&[("a.py", &function(81))]));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].item.as_str()), (4, "b"));
    }

    #[test]
    fn a_signature_without_a_body_is_not_as_long_as_what_follows() {
        let trait_and_more =
            format!("trait A {{ fn b(); }}\nconst C: fn() = d;\nmod e {{\n{}}}\n", "\n".repeat(90));
        assert_eq!(long_functions(&Source::of(&[("a.rs", &trait_and_more)])), []);
    }

    #[test]
    fn a_file_of_600_lines_passes_and_one_more_does_not() {
        let lines = |count| "//!\n".repeat(count);
        assert_eq!(long_files(&Source::of(&[("a.rs", &lines(600)), ("a.md", &lines(601))])), []);
        assert_eq!(long_files(&Source::of(&[("a.rs", &lines(601)), ("a.py", &lines(601))])).len(), 2);
    }

    #[test]
    fn a_file_opens_with_its_documentation() {
        assert_eq!(unopened_modules(&Source::of(&[("a.py", "\"\"\"What.\"\"\"\n")])), []);
        assert_eq!(unopened_modules(&Source::of(&[("a.py", "import b\n")])).len(), 1);
        assert_eq!(unopened_modules(&Source::of(&[("a.rs", "//! What.\nuse b;\n")])), []);
        assert_eq!(unopened_modules(&Source::of(&[("a.rs", "use b;\n"), ("b.rs", "// What.\n")])).len(), 2);
    }
}
