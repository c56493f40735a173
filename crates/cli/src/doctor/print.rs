//! Findings as text for a person: a block each, in lines that fit a terminal.
//!
//! Owns no state. Main thread.

use super::finding::Finding;

/// Columns of a line. Commands are not broken, so that they can be copied.
const LINE_COLUMNS: usize = 90;
/// Columns before the text of a block.
const MARGIN_COLUMNS: usize = 9;

/// Formats a finding as text, without the last newline.
pub(super) fn finding(finding: &Finding) -> String {
    let topic = finding.topic.replace('_', " ");
    let mut lines = Vec::new();
    let label = format!("{:<MARGIN_COLUMNS$}", finding.severity.name());
    wrap(&mut lines, &label, &format!("{topic}: {}", finding.found));
    let margin = " ".repeat(MARGIN_COLUMNS);
    if !finding.why.is_empty() {
        wrap(&mut lines, &margin, &finding.why);
    }
    for step in &finding.mend {
        wrap(&mut lines, &margin, &format!("{}:", step.what));
        lines.push(format!("{margin}    {}", step.command));
    }
    lines.join("\n")
}

/// Breaks text between words into lines that start at the same column. The first line follows a label.
fn wrap(lines: &mut Vec<String>, label: &str, text: &str) {
    let columns = |text: &str| text.chars().count();
    let mut line = label.to_owned();
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && columns(&line) + 1 + columns(word) > LINE_COLUMNS {
            lines.push(line);
            line = " ".repeat(columns(label));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    lines.push(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_and_commands_stay_whole() {
        let command = format!("echo '{}' | sudo tee /etc/sysctl.d/80-plasmon.conf", "x".repeat(80));
        let found = Finding::advice("huge_pages", "word ".repeat(40), "reason ".repeat(20))
            .mend("at every boot", command.clone());
        let text = finding(&found);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("advice   huge pages: word word"), "{text}");
        assert!(lines[1..].iter().all(|line| line.starts_with(&" ".repeat(MARGIN_COLUMNS))), "{text}");
        assert!(lines.iter().all(|line| line.len() <= LINE_COLUMNS || line.trim() == command), "{text}");
        assert_eq!(lines.last().map(|line| line.trim()), Some(command.as_str()));
        assert_eq!(text.matches("word").count(), 40);
        assert_eq!(text.matches("reason").count(), 20);
    }
}
