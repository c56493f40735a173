//! Rust as a tree of tokens with the lines where they stand. Comments are no tokens; doc comments are
//! attributes.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A token, or what stands between two brackets.
#[derive(Debug)]
pub enum Token {
    /// An identifier or keyword.
    Word(String, usize),
    /// A character of punctuation.
    Mark(char, usize),
    /// A literal.
    Literal(usize),
    /// A pair of brackets.
    Group(Group),
}

/// Tokens between two brackets.
#[derive(Debug)]
pub struct Group {
    /// The opening bracket.
    pub open: char,
    /// Line of the opening bracket.
    pub first: usize,
    /// Line of the closing bracket.
    pub last: usize,
    /// Tokens between the brackets.
    pub tokens: Vec<Token>,
}

impl Token {
    /// Line on which the token begins.
    pub(crate) fn line(&self) -> usize {
        match self {
            Token::Word(_, line) | Token::Mark(_, line) | Token::Literal(line) => *line,
            Token::Group(group) => group.first,
        }
    }

    /// The identifier or keyword that the token is.
    pub(crate) fn word(&self) -> Option<&str> {
        if let Token::Word(word, _) = self { Some(word) } else { None }
    }

    /// Whether the token is this word.
    pub(crate) fn is_word(&self, wanted: &str) -> bool {
        self.word() == Some(wanted)
    }

    /// Whether the token is this mark.
    pub(crate) fn is_mark(&self, wanted: char) -> bool {
        matches!(self, Token::Mark(mark, _) if *mark == wanted)
    }

    /// The pair of brackets that the token is, if they open with this one.
    pub(crate) fn group(&self, open: char) -> Option<&Group> {
        match self {
            Token::Group(group) if group.open == open => Some(group),
            _ => None,
        }
    }
}

/// Tokens of the Rust file at `path`.
pub(crate) fn of(path: &str, content: &str) -> Vec<Token> {
    let stream: TokenStream = content.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
    let tokens = list(stream);
    // Otherwise the text of every file is kept until the thread ends.
    proc_macro2::extra::invalidate_current_thread_spans();
    tokens
}

fn list(stream: TokenStream) -> Vec<Token> {
    let token = |tree| match tree {
        TokenTree::Ident(word) => Token::Word(word.to_string(), word.span().start().line),
        TokenTree::Punct(mark) => Token::Mark(mark.as_char(), mark.span().start().line),
        TokenTree::Literal(literal) => Token::Literal(literal.span().start().line),
        TokenTree::Group(group) => Token::Group(Group {
            open: match group.delimiter() {
                Delimiter::Parenthesis => '(',
                Delimiter::Brace => '{',
                Delimiter::Bracket => '[',
                Delimiter::None => ' ',
            },
            first: group.span_open().start().line,
            last: group.span_close().start().line,
            tokens: list(group.stream()),
        }),
    };
    stream.into_iter().map(token).collect()
}

/// Calls `look` with each list of tokens: `tokens`, and what stands between brackets in it, however deep.
pub(crate) fn each<'a>(tokens: &'a [Token], look: &mut impl FnMut(&'a [Token])) {
    look(tokens);
    for token in tokens {
        if let Token::Group(group) = token {
            each(&group.tokens, look);
        }
    }
}

/// Whether a token for which `wanted` holds stands among `tokens`, however deep.
pub(crate) fn any(tokens: &[Token], wanted: &impl Fn(&Token) -> bool) -> bool {
    tokens.iter().any(|token| match token {
        Token::Group(group) => any(&group.tokens, wanted),
        token => wanted(token),
    })
}

/// The test code of a file: all of it, or what stands in its modules of tests.
pub(crate) fn tests<'a>(tokens: &'a [Token], all: bool, look: &mut impl FnMut(&'a [Token])) {
    if all {
        return look(tokens);
    }
    for (at, token) in tokens.iter().enumerate() {
        if !token.is_word("mod") {
            continue;
        }
        if let Some(module) = tokens.get(at + 2).and_then(|token| token.group('{')) {
            let attributes = &tokens[at.saturating_sub(2)..at];
            let test = any(attributes, &|token| token.is_word("cfg"))
                && any(attributes, &|token| token.is_word("test"));
            tests(&module.tokens, test, look);
        }
    }
}
