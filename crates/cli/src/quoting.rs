//! Quoting of words for a shell, in commands that are printed to be typed.
//!
//! Owns no state. Any thread. Both programs of this crate print such commands.

/// Quotes a word so that a shell reads it unchanged.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || "-_./:=,@%+".contains(char);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_a_quoted_word_unchanged() {
        assert_eq!(quoted("/run/plasmon.sock"), "/run/plasmon.sock");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
