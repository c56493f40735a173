//! Tables of the protocols in the documentation, and the test that they match the code.
//!
//! A page has a part that is made from the code, between two comments with the part's name. A test calls
//! [`check`] for it; with `PLASMON_WRITE_PAGES=1` in the environment the call writes the part anew.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use super::fields::{Types, listed};
use super::table::Row;

/// Environment variable that makes [`check`] write pages anew.
const WRITE: &str = "PLASMON_WRITE_PAGES";

/// Tables in Markdown of the rows of `asking`, with their answers in `answering`, and of the types of their
/// fields.
pub fn rows(asking: &[Row], answering: &[Row]) -> String {
    let mut types = Types::default();
    let mut page = "| frame | what it says | body | answer |\n|---|---|---|---|\n".to_owned();
    for row in asking {
        let answer = |name: &&str| {
            let row = answering.iter().find(|row| row.name == *name);
            row.map_or_else(|| (*name).to_owned(), |row| format!("{} {}", row.opcode, row.words()))
        };
        let answers: Vec<_> = row.answers.iter().map(answer).collect();
        let about = row.about.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
        let (name, body) = (row.words(), listed(&(row.fields)(&mut types)));
        writeln!(page, "| {} {name} | {about} | {body} | {} |", row.opcode, answers.join(", or "))
            .expect("text takes all");
    }
    page.push_str("\n| type | what it is made of |\n|---|---|\n");
    for (name, parts) in types.0 {
        writeln!(page, "| {name} | {parts} |").expect("text takes all");
    }
    page
}

/// Compares the part `part` of a page with `text`, or writes it if [`WRITE`] is set.
///
/// # Panics
/// If they differ, and if the page or the part does not exist.
pub fn check(page: &Path, part: &str, text: &str) {
    let whole = fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    let (begin, end) =
        (format!("<!-- {part}: made from the code -->\n"), format!("<!-- end of {part} -->\n"));
    let (before, rest) = whole.split_once(&begin).unwrap_or_else(|| panic!("no part {part} begins"));
    let (there, after) = rest.split_once(&end).unwrap_or_else(|| panic!("no part {part} ends"));
    let text = format!("\n{text}\n");
    if there == text {
        return;
    }
    assert!(
        env::var_os(WRITE).is_some(),
        "{} and the code differ in {part}: run this test with {WRITE}=1",
        page.display()
    );
    fs::write(page, [before, &begin, &text, &end, after].concat()).expect("the page can be written");
}
