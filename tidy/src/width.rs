//! Lines of at most 110 columns, in code and in Markdown.

use crate::{Finding, Kind, Source, Text};

const COLUMNS: usize = 110;

/// Files that a command writes whole, and the command: what is in them is decided there.
const GENERATED: [(&str, &str); 1] = [("docs/benchmarks.md", "make bench-report")];

/// Lines that are too wide. In Markdown those of tables and code blocks may be, and the targets of links do
/// not count. The rows of tables in Rust's documentation may be wide as well.
#[must_use]
pub fn wide_lines(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for text in source.texts().filter(|text| text.kind != Kind::Manifest && !is_generated(&text.path)) {
        let wide: Vec<_> = match text.kind {
            Kind::Markdown => wide_markdown(text),
            _ => text
                .content
                .lines()
                .enumerate()
                .filter(|(_, line)| is_wide(line) && !is_row_of_documentation(line))
                .map(|(at, _)| at + 1)
                .collect(),
        };
        found.extend(wide.into_iter().map(|line| Finding {
            path: text.path.clone(),
            line,
            item: String::new(),
            advice: format!("the line has more than {COLUMNS} columns: break it"),
        }));
    }
    found
}

fn is_generated(path: &str) -> bool {
    GENERATED.iter().any(|(generated, _)| *generated == path)
}

fn is_wide(line: &str) -> bool {
    line.chars().count() > COLUMNS
}

/// Whether the line is the row of a table in Rust's documentation, which cannot be broken.
fn is_row_of_documentation(line: &str) -> bool {
    let line = line.trim_start();
    ["//! |", "/// |"].iter().any(|row| line.starts_with(row)) && line.ends_with('|')
}

fn wide_markdown(text: &Text) -> Vec<usize> {
    let mut wide = Vec::new();
    let mut code = false;
    for (at, line) in text.content.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        let table = line.trim_start().starts_with('|');
        // A link cannot be broken, and neither can a word.
        if !code && !table && is_wide(&without_targets(line)) && line.trim().contains(' ') {
            wide.push(at + 1);
        }
    }
    wide
}

/// The line without the targets of its links: what a reader of the page sees.
fn without_targets(line: &str) -> String {
    let mut seen = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((_, beyond)) = after.split_once(')') else { break };
        seen.push_str(before);
        seen.push(']');
        rest = beyond;
    }
    seen + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_counted_and_not_bytes() {
        let line = |columns: usize| format!("// {}\n", "\u{e4}".repeat(columns - 3));
        assert_eq!(wide_lines(&Source::of(&[("a.rs", &line(110)), ("a.py", &line(110))])), []);
        let wide = line(111);
        assert_eq!(wide_lines(&Source::of(&[("a.rs", &wide), ("a.py", &wide), ("a.sh", &wide)])).len(), 3);
    }

    #[test]
    fn rows_of_tables_may_be_wide_in_documentation() {
        let row = format!("| {}|", "word ".repeat(30));
        let fine = format!("//! {row}\n    /// {row}\n");
        assert_eq!(wide_lines(&Source::of(&[("a.rs", &fine)])), []);
        assert_eq!(wide_lines(&Source::of(&[("a.rs", &format!("// {row}\n//! {row} more\n"))])).len(), 2);
    }

    #[test]
    fn tables_code_and_links_may_be_wide_in_markdown() {
        let long = "word ".repeat(30);
        let link = format!("see [this]({}) and that\n", "x".repeat(120));
        let fine = format!("| {long}|\n```\n{long}\n```\n{link}");
        assert_eq!(wide_lines(&Source::of(&[("a.md", &fine), ("docs/benchmarks.md", &long)])), []);
        let found = wide_lines(&Source::of(&[("a.md", &format!("{fine}{long}\n"))]));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [6]);
    }
}
