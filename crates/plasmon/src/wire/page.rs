//! Tables of the protocols in the documentation, and the test that they match the code.
//!
//! Owns no state. Any thread. A page has a part that is made from the code, between two comments with the
//! part's name. A test calls [`check`] for the part. With `PLASMON_WRITE_PAGES=1` in the environment the call
//! writes the part anew.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use super::call_table::listed_places;
use super::fields::{Types, listed, words};
use super::protocols::CallProtocol;
use super::table::Row;

/// Environment variable that makes [`check`] write pages anew.
const WRITE: &str = "PLASMON_WRITE_PAGES";

/// Returns tables in Markdown of the rows of `asking`, with their answers in `answering`, and of the types of
/// their fields.
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
    push_types(&mut page, types);
    page
}

/// Returns tables in Markdown of calls by slot: the ranges of their numbers, the calls, and the types of
/// their fields and their results.
pub fn calls(protocols: &[CallProtocol]) -> String {
    let mut types = Types::default();
    let mut page = "| numbers | protocol |\n|---|---|\n".to_owned();
    for CallProtocol { name, first, last, .. } in protocols {
        let range = if first == last { first.to_string() } else { format!("{first} to {last}") };
        writeln!(page, "| {range} | {} |", words(name)).expect("text takes all");
    }
    page.push_str("\n| call | what it does | arguments | payload | result |\n|---|---|---|---|---|\n");
    for row in protocols.iter().flat_map(|protocol| (protocol.rows)(&mut types)) {
        let about = row.about.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
        let (payloads, words): (Vec<_>, Vec<_>) =
            row.fields.iter().cloned().partition(|(place, ..)| place == "payload");
        let payload =
            payloads.first().map_or(row.payload.to_owned(), |(_, name, shape)| format!("{name}: {shape}"));
        let (number, name, words) = (row.number, row.words(), listed_places(&words));
        writeln!(page, "| {number} {name} | {about} | {words} | {payload} | {} |", row.result)
            .expect("text takes all");
    }
    push_types(&mut page, types);
    page
}

/// Returns a table in Markdown of the fields of a header, each with offset, length, name and description.
pub fn fields(fields: &[(usize, usize, &str, &str)]) -> String {
    let mut table = "| at | bytes | field | what it is |\n|---|---|---|---|\n".to_owned();
    for (at, len, name, about) in fields {
        writeln!(table, "| {at} | {len} | {name} |{about} |").expect("text takes all");
    }
    table
}

/// Appends the table of the types of fields.
fn push_types(page: &mut String, types: Types) {
    page.push_str("\n| type | what it is made of |\n|---|---|\n");
    for (name, parts) in types.0 {
        writeln!(page, "| {name} | {parts} |").expect("text takes all");
    }
}

/// Compares the part `part` of a page with `text`, or writes it if [`WRITE`] is set.
///
/// # Panics
/// If page and code differ, and if the page or the part does not exist.
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
