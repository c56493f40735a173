//! Tests that wait for conditions: no sleep of a fixed time, and no assertion on how long something took.
//!
//! The helpers that look again and again until a condition holds, and the one for promised time-outs, are the
//! only places that may do either; see [`HELPERS`].

use std::collections::BTreeSet;

use crate::tokens::{self, Token};
use crate::{Finding, Kind, Source, Text};

/// Files of the helpers for waiting, by which all others wait.
const HELPERS: [&str; 5] = [
    "e2e/src/wait.rs",
    "crates/fabric/tests/conformance/wait.rs",
    "python/tests/conftest.py",
    "crates/node/tests/wait/mod.rs",
    "crates/node/src/spill/tests/mod.rs",
];

const SLEEP_ADVICE: &str =
    "a test sleeps for a fixed time: wait for what is to happen (plasmon_e2e::wait, conftest.eventually)";
const TIME_ADVICE: &str =
    "a test asserts how long something took: wait for it, or, for a promised time-out, use `ended_in_time`";

/// Sleeps in test code.
#[must_use]
pub fn fixed_sleeps(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for text in tested(source) {
        if text.kind == Kind::Python {
            found.extend(python_sleeps(&text.content).map(|line| finding(text, line, SLEEP_ADVICE)));
            continue;
        }
        tokens::tests(&text.tokens, text.is_test(), &mut |code| {
            tokens::each(code, &mut |code| {
                found.extend(sleeps(code).map(|line| finding(text, line, SLEEP_ADVICE)))
            });
        });
    }
    found
}

/// Assertions in test code on how long something took.
#[must_use]
pub fn asserted_times(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for text in tested(source) {
        let lines = match text.kind {
            Kind::Python => python_times(&text.content),
            _ => rust_times(text),
        };
        found.extend(lines.into_iter().map(|line| finding(text, line, TIME_ADVICE)));
    }
    found
}

fn tested(source: &Source) -> impl Iterator<Item = &Text> {
    let code =
        source.texts().filter(|text| text.kind == Kind::Rust || text.kind == Kind::Python && text.is_test());
    code.filter(|text| !HELPERS.contains(&text.path.as_str()))
}

fn finding(text: &Text, line: usize, advice: &str) -> Finding {
    Finding { path: text.path.clone(), line, item: String::new(), advice: advice.to_owned() }
}

/// Lines of calls of a function `sleep`. A method is none: the injected clock has one. A file's own function
/// of that name has to be called something else if it does not sleep for a fixed time.
fn sleeps(code: &[Token]) -> impl Iterator<Item = usize> {
    let call = |at: usize| {
        code[at].is_word("sleep") && code.get(at + 1).is_some_and(|next| next.group('(').is_some())
    };
    let other = |at: usize| at > 0 && (code[at - 1].is_mark('.') || code[at - 1].is_word("fn"));
    (0..code.len()).filter(move |at| call(*at) && !other(*at)).map(|at| code[at].line())
}

/// Lines that sleep, but for those that do so while a condition does not hold.
fn python_sleeps(content: &str) -> impl Iterator<Item = usize> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let lines: Vec<_> = content.lines().collect();
    (0..lines.len())
        .filter(move |at| {
            // `asyncio.sleep(0)` lets other tasks run, and takes no time.
            let sleeps = lines[*at].replace("asyncio.sleep(0)", "").contains("sleep(");
            let outer =
                lines[..*at].iter().rev().find(|line| !line.is_empty() && indent(line) < indent(lines[*at]));
            let waits = outer
                .map(|line| line.trim_start())
                .is_some_and(|line| line.starts_with("while ") && !line.starts_with("while True"));
            sleeps && !waits
        })
        .map(|at| at + 1)
}

fn tells_time(token: &Token) -> bool {
    token.is_word("elapsed") || token.is_word("duration_since")
}

fn rust_times(text: &Text) -> Vec<usize> {
    let mut names = BTreeSet::new();
    let mut lines = Vec::new();
    tokens::tests(&text.tokens, text.is_test(), &mut |code| {
        tokens::each(code, &mut |code| names.extend(times(code)));
        tokens::each(code, &mut |code| lines.extend(assertions_on(code, &names)));
    });
    lines
}

/// Names of variables that hold how long something took.
fn times(code: &[Token]) -> Vec<String> {
    let mut names = Vec::new();
    for (at, token) in code.iter().enumerate() {
        let Some(name) = code.get(at + 1).and_then(Token::word).filter(|_| token.is_word("let")) else {
            continue;
        };
        let end = code[at..].iter().position(|token| token.is_mark(';')).map_or(code.len(), |end| at + end);
        let value = code[at..end].iter().filter(|token| token.group('{').is_none());
        if value.into_iter().any(|token| match token {
            Token::Group(group) => tokens::any(&group.tokens, &tells_time),
            token => tells_time(token),
        }) {
            names.push(name.to_owned());
        }
    }
    names
}

/// Lines of `assert!` and its kin that look at a time or at one of these variables.
fn assertions_on(code: &[Token], names: &BTreeSet<String>) -> Vec<usize> {
    let is_time = |token: &Token| tells_time(token) || token.word().is_some_and(|word| names.contains(word));
    let mut lines = Vec::new();
    for (at, token) in code.iter().enumerate() {
        let assertion = token.word().is_some_and(|word| word.starts_with("assert"))
            && code.get(at + 1).is_some_and(|next| next.is_mark('!'));
        let Some(Token::Group(arguments)) = code.get(at + 2).filter(|_| assertion) else { continue };
        // The message after the condition may tell the time.
        let condition = if token.is_word("assert") {
            let end = arguments.tokens.iter().position(|token| token.is_mark(','));
            &arguments.tokens[..end.unwrap_or(arguments.tokens.len())]
        } else {
            &arguments.tokens
        };
        if tokens::any(condition, &is_time) {
            lines.push(token.line());
        }
    }
    lines
}

fn python_times(content: &str) -> Vec<usize> {
    const CLOCKS: [&str; 3] = ["time.monotonic()", "time.perf_counter()", "time.time()"];
    let mut names = BTreeSet::new();
    let mut lines = Vec::new();
    for (at, line) in content.lines().enumerate() {
        let clock = CLOCKS.iter().any(|clock| line.contains(clock));
        if let Some((name, _)) = line.split_once(" = ").filter(|(_, value)| clock && value.contains(" - ")) {
            names.insert(name.trim().to_owned());
        }
        let words = || line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        if line.trim_start().starts_with("assert ") && (clock || words().any(|word| names.contains(word))) {
            lines.push(at + 1);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(found: &[Finding]) -> Vec<usize> {
        found.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_sleep_is_found_in_tests_and_nowhere_else() {
        let code =
            "fn a() { thread::sleep(B); }\n#[cfg(test)]\nmod tests {\n    fn c() { loop { sleep(B); } }\n}\n";
        assert_eq!(lines(&fixed_sleeps(&Source::of(&[("a/src/a.rs", code)]))), [4]);
        assert_eq!(lines(&fixed_sleeps(&Source::of(&[("a/tests/a.rs", code)]))), [1, 4]);
        assert_eq!(lines(&fixed_sleeps(&Source::of(&[("e2e/src/wait.rs", code)]))), []);
    }

    #[test]
    fn a_method_and_a_definition_are_no_sleep() {
        let code = "fn sleep(span: Duration) { clock.sleep(span); }";
        assert_eq!(fixed_sleeps(&Source::of(&[("a/tests/a.rs", code)])), []);
    }

    #[test]
    fn a_function_of_that_name_hides_no_sleep() {
        let code = "fn sleep(node: &Node) {}\nfn a() { use std::thread::{self, sleep}; sleep(B); }";
        assert_eq!(lines(&fixed_sleeps(&Source::of(&[("a/tests/a.rs", code)]))), [2]);
    }

    #[test]
    fn python_may_let_others_run_and_wait_for_a_condition() {
        let code = "await asyncio.sleep(0)\nawait asyncio.sleep(0.1)\ntime.sleep(1)\n\
                    while not a():\n    b()\n    \
                    time.sleep(1)\n";
        assert_eq!(lines(&fixed_sleeps(&Source::of(&[("python/tests/a.py", code)]))), [2, 3]);
        assert_eq!(fixed_sleeps(&Source::of(&[("bench/workers/a.py", code)])), []);
    }

    #[test]
    fn an_assertion_on_time_is_found_by_its_clock_and_by_its_variable() {
        let code = "fn a() {\n    assert!(begun.elapsed() < B);\n    let took = begun.elapsed();\n    \
                    assert!(took < B, \"slow\");\n    assert_eq!(c, d, \"after {took:?}\");\n    \
                    assert!(c, \"{:?}\", begun.elapsed());\n}\n";
        assert_eq!(lines(&asserted_times(&Source::of(&[("e2e/tests/e2e/a.rs", code)]))), [2, 4]);
        let python = "begun = time.monotonic()\ntook = time.monotonic() - begun\nassert took < 3\n\
                      assert time.monotonic() < begun + 3\nassert tooks\n";
        assert_eq!(lines(&asserted_times(&Source::of(&[("bench/tests/a.py", python)]))), [3, 4]);
    }
}
