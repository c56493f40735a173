//! Printing of untrusted text on a terminal: characters that control the terminal or mislead the reader are
//! escaped.
//!
//! Names of objects and clients, paths, hosts and messages of other programs may hold any character. Some
//! control a terminal, some change the order of the text shown, and some are invisible, so that two different
//! names look the same. Owns no state. Any thread.

use std::borrow::Cow;
use std::fmt::Write;

/// Escapes every character of the text that controls a terminal or misleads its reader, as `\n` or
/// `\u{202e}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, deceives, |char, out| out.extend(char.escape_default()))
}

/// Escapes text as [`printable`] does, but keeps line feeds.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    let deceives = |char| char != '\n' && deceives(char);
    escaped(text, deceives, |char, out| out.extend(char.escape_default()))
}

/// Escapes the characters in JSON that [`printable_lines`] would escape, as `\u202e`. The strings keep their
/// values.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let deceives = |char| char != '\n' && deceives(char);
    escaped(json, deceives, |char, out| {
        for unit in char.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    })
}

fn escaped(
    text: &str,
    is_escaped: impl Fn(char) -> bool,
    escape: impl Fn(char, &mut String),
) -> Cow<'_, str> {
    if !text.chars().any(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_escaped(char) { escape(char, &mut out) } else { out.push(char) }
    }
    Cow::Owned(out)
}

/// Whether a character is a control character, changes the direction of text, ends a line, or is invisible.
fn deceives(char: char) -> bool {
    char.is_control()
        || matches!(
            char,
            '\u{ad}' // Soft hyphen.
            | '\u{34f}' // Joins what it stands between.
            | '\u{61c}' // Direction, as are some of the next.
            | '\u{115f}'..='\u{1160}' // Letters that take no room.
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}' // Tags.
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD: &str =
        "\u{1b}[31m\u{7}\r\u{7f}\u{9b}\u{202e}\u{2066}\u{2028}\u{200b}\u{200f}\u{e0041}\u{feff}";

    #[test]
    fn what_deceives_is_escaped_and_the_rest_stays() {
        for plain in ["", "data/part-0.parquet", "Größe 大きさ حجم 🦀 \\ \"x\""] {
            assert!(matches!(printable(plain), Cow::Borrowed(same) if same == plain));
        }
        let shown = r"\u{1b}[31m\u{7}\r\u{7f}\u{9b}\u{202e}\u{2066}\u{2028}\u{200b}\u{200f}\u{e0041}\u{feff}";
        assert_eq!(printable(BAD), shown);
        assert_eq!(printable("a\nb"), r"a\nb");
        assert_eq!(printable_lines("a\nb\r"), "a\nb\\r");
    }

    #[test]
    fn json_says_the_same() {
        let json = serde_json::to_string(&[BAD, "大"]).expect("it is text");
        let shown = printable_json(&json);
        assert!(shown.chars().all(|char| !deceives(char)), "{shown}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&shown).expect("it is JSON"), [BAD, "大"]);
    }
}
