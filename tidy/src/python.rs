//! Python as logical lines: as much of its grammar as rules need.
//!
//! Invariant: what stands in a string, behind a `#` or between brackets begins no line.

/// A logical line: it ends where no bracket and no string is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// Number of the first of its physical lines, from 1.
    pub(crate) first: usize,
    /// Number of the last of its physical lines.
    pub(crate) last: usize,
    /// Number of spaces before it.
    pub(crate) indent: usize,
    /// Text of the first physical line, without the spaces.
    pub(crate) text: &'a str,
}

/// A function: the first and the last of its lines.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// Logical lines of a file. Empty lines and lines of comments alone are none.
pub(crate) fn lines(content: &str) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    let mut state = State::default();
    for (line, number) in content.lines().zip(1..) {
        let text = line.trim_start();
        if state.is_open() {
            lines.last_mut().expect("a line has begun").last = number;
        } else if !text.is_empty() && !text.starts_with('#') {
            lines.push(Line { first: number, last: number, indent: line.len() - text.len(), text });
        }
        state.read(line);
    }
    lines
}

/// Functions of a file, also those in classes and in other functions.
pub(crate) fn functions<'a>(content: &'a str) -> Vec<Function<'a>> {
    let lines = lines(content);
    let function = |(at, line): (usize, &Line<'a>)| {
        let signature = line.text.strip_prefix("async ").unwrap_or(line.text).strip_prefix("def ")?;
        let name = signature.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()?;
        let body = lines[at + 1..].iter().take_while(|inner| inner.indent > line.indent);
        Some(Function { name, first: line.first, last: body.last().unwrap_or(line).last })
    };
    lines.iter().enumerate().filter_map(function).collect()
}

/// Whether a file begins with a docstring.
pub(crate) fn has_docstring(content: &str) -> bool {
    lines(content)
        .first()
        .is_some_and(|line| line.text.starts_with("\"\"\"") || line.text.starts_with("r\"\"\""))
}

/// Brackets and strings that are open at the end of a line.
#[derive(Default)]
struct State {
    /// Number of brackets.
    brackets: usize,
    /// The quote of a string, and whether three of them end it.
    string: Option<(u8, bool)>,
    /// Whether a backslash continues the line.
    continued: bool,
}

impl State {
    fn is_open(&self) -> bool {
        self.brackets > 0 || self.string.is_some() || self.continued
    }

    /// Reads a line to its end.
    fn read(&mut self, line: &str) {
        let bytes = line.as_bytes();
        let mut at = 0;
        self.continued = false;
        while at < bytes.len() {
            let tripled = |quote: u8| bytes[at..].starts_with(&[quote; 3]);
            let mut step = 1;
            match (self.string, bytes[at]) {
                (_, b'\\') => {
                    self.continued = at + 1 == bytes.len();
                    step = 2;
                }
                (Some((quote, true)), byte) if byte == quote && tripled(quote) => {
                    self.string = None;
                    step = 3;
                }
                (Some((quote, false)), byte) if byte == quote => self.string = None,
                (Some(_), _) => {}
                (None, b'#') => break,
                (None, quote @ (b'"' | b'\'')) => {
                    self.string = Some((quote, tripled(quote)));
                    step = if tripled(quote) { 3 } else { 1 };
                }
                (None, b'(' | b'[' | b'{') => self.brackets += 1,
                (None, b')' | b']' | b'}') => self.brackets = self.brackets.saturating_sub(1),
                (None, _) => {}
            }
            at += step;
        }
        // A string in single quotes ends with its line.
        if !self.continued && self.string.is_some_and(|(_, tripled)| !tripled) {
            self.string = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\
#!/usr/bin/env python3
\"\"\"What it is: (

def no_function(): it is text.
\"\"\"

class A:
    async def a(
        self, text: str = \"#(\", other: str = '\\'('
    ) -> None:
        def inner(): return [1,
2]

        run(\"\"\"
def program(): pass
\"\"\")
        # Behind it.

    # Before the next.
    def b(self): ...  # (

total = 1 + \\
    2
";

    #[test]
    fn functions_end_with_the_last_line_of_their_bodies() {
        let found: Vec<_> = functions(CODE)
            .into_iter()
            .map(|function| (function.name, function.first, function.last))
            .collect();
        assert_eq!(found, [("a", 8, 16), ("inner", 11, 12), ("b", 20, 20)]);
    }

    #[test]
    fn brackets_strings_and_backslashes_continue_lines() {
        let found: Vec<_> =
            lines(CODE).into_iter().map(|line| (line.first, line.last, line.indent)).collect();
        assert_eq!(
            found,
            [(2, 5, 0), (7, 7, 0), (8, 10, 4), (11, 12, 8), (14, 16, 8), (20, 20, 4), (22, 23, 0)]
        );
    }

    #[test]
    fn a_docstring_is_the_first_that_a_file_says() {
        assert!(has_docstring(CODE));
        assert!(!has_docstring("import a\n\"\"\"What.\"\"\"\n"));
        assert!(!has_docstring(""));
    }
}
