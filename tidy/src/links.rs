//! Relative links of Markdown files lead to files of the tree, and their anchors to headings there.
//!
//! A link is `[text](target)`, an image `![text](target)`; the text may run over lines. Links into the web
//! are not followed, and nothing inside code is a link.

use std::collections::BTreeMap;

use crate::{Finding, Kind, Source, Text};

/// Links that lead to no file or to no heading.
#[must_use]
pub fn links(source: &Source) -> Vec<Finding> {
    let pages: BTreeMap<_, _> =
        source.of_kind(Kind::Markdown).map(|text| (text.path.as_str(), anchors(&text.content))).collect();
    let mut found = Vec::new();
    for text in source.of_kind(Kind::Markdown) {
        for (line, target) in targets(&text.content) {
            if let Some(advice) = refusal(source, &pages, text, &target) {
                found.push(Finding { path: text.path.clone(), line, item: target, advice });
            }
        }
    }
    found
}

/// Trouble with a link of this file, if there is any.
fn refusal(
    source: &Source,
    pages: &BTreeMap<&str, Vec<String>>,
    text: &Text,
    target: &str,
) -> Option<String> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    if path.contains(':') {
        return None;
    }
    let path = match path {
        "" => Some(text.path.clone()),
        path => resolved(&text.path, path),
    };
    let Some(path) = path.filter(|path| source.has(path)) else {
        return Some(format!("the link `{target}` leads to no file of the repository"));
    };
    let headings = pages.get(path.as_str())?;
    let is_there = anchor.is_empty() || headings.iter().any(|heading| heading == anchor);
    (!is_there).then(|| format!("{path} has no heading for the anchor `#{anchor}`"))
}

/// The path that a relative target has from the root of the repository; `None` above the root.
fn resolved(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<_> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The targets of a page's links, with their lines.
fn targets(content: &str) -> Vec<(usize, String)> {
    let (mut targets, mut code) = (Vec::new(), false);
    for (number, line) in prose(content) {
        let line = without_code(line, &mut code);
        let mut rest = line.as_str();
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, beyond)) = after.split_once(')') else { break };
            // A title may follow the target.
            targets.extend(target.split(' ').next().map(|target| (number, target.to_owned())));
            rest = beyond;
        }
    }
    targets
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(content: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut seen = BTreeMap::new();
    for (_, line) in prose(content) {
        let Some(heading) = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))
        else {
            continue;
        };
        let anchor = anchor(heading);
        let times: &mut usize = seen.entry(anchor.clone()).or_default();
        anchors.push(if *times == 0 { anchor } else { format!("{anchor}-{times}") });
        *times += 1;
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let kept = |sign: &char| sign.is_alphanumeric() || [' ', '-', '_'].contains(sign);
    let lower = without_link_targets(heading).trim().to_lowercase();
    lower.chars().filter(kept).map(|sign| if sign == ' ' { '-' } else { sign }).collect()
}

/// A heading's text, without the targets of the links in it.
fn without_link_targets(heading: &str) -> String {
    let mut parts = heading.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once(')').map_or(part, |(_, after)| after));
    }
    text
}

/// The lines of a page that are not inside fenced code, with their numbers.
fn prose(content: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    content.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((at + 1, line))
    })
}

/// A line without the code between backticks. Code may run over the lines of a paragraph: `code` says whether
/// it does so at the end of the line before, and then of this one.
fn without_code(line: &str, code: &mut bool) -> String {
    if line.is_empty() || line.starts_with(['#', '|']) {
        *code = false;
    }
    let mut kept = String::new();
    for (at, part) in line.split('`').enumerate() {
        *code ^= at > 0;
        kept.push_str(if *code { "`" } else { part });
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> Vec<(usize, String)> {
        let other = "# The `whole` page\n\n## Again\n\n```\n# no heading\n```\n\n## Again\n";
        let files = [("docs/a.md", page), ("docs/b/c.md", other), ("run.sh", "#!/bin/sh\n")];
        links(&Source::of(&files)).into_iter().map(|finding| (finding.line, finding.item)).collect()
    }

    #[test]
    fn links_to_files_folders_and_headings_are_followed() {
        assert_eq!(found("[c](b/c.md), ![run](../run.sh), [docs](../docs), [b](b/)\n"), []);
        assert_eq!(found("[one](b/c.md#the-whole-page) [two\nlines](b/c.md#again-1 \"title\")\n"), []);
        assert_eq!(found("# Here, *too*: yes\n\n[up](#here-too-yes)\n"), []);
    }

    #[test]
    fn links_to_nothing_are_refused() {
        assert_eq!(found("\n[c](c.md)\n"), [(2, "c.md".into())]);
        assert_eq!(found("[root](../../run.sh)\n"), [(1, "../../run.sh".into())]);
        assert_eq!(found("[a](b/c.md#no-heading)\n"), [(1, "b/c.md#no-heading".into())]);
        assert_eq!(found("[a](#again)\n"), [(1, "#again".into())]);
    }

    #[test]
    fn the_web_and_code_are_left_alone() {
        assert_eq!(found("[web](https://example.org/x#y) `a[0](x)`\n```\n[c](c.md)\n```\n"), []);
        assert_eq!(found("`code\n[over](lines)` [c](c.md)\n\na ` alone\n\n[d](d.md)\n").len(), 2);
    }
}
