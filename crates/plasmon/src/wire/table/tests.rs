//! Tests of tables: rows that survive the wire, and numbers that are refused.

use super::*;
use crate::ObjectId;
use crate::wire::{AtMost, Each, Wire};

crate::wire::record! {
    /// Position on a page.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Place {
        page: u16,
        note: Option<String> as Each<AtMost<9>>,
    }
}

crate::wire::codes! {
    /// Paper of a page.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Paper: u16 {
        0 Plain,
        300 Coloured,
    }
}

crate::wire::codes! {
    /// Reason why there is no page.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Reason: u8 else Other {
        0 Other,
        1 Burnt,
    }
}

/// Struct of another crate.
type Range = std::ops::Range<u64>;

crate::wire::record! {
    impl for Range as Pages { start: u64, end: u64 }
}

crate::wire::table! {
    /// Enum with data, as a field.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) enum Page {
        0 Lost(why: Reason),
        7 Found { at: Place, paper: Paper },
        8 Several(pages: Vec<Range> as Each<Pages>),
    }
}

crate::wire::table! {
    /// Message of one peer to another.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) enum Say in says -> Say in self {
        /// Asks for the pages.
        1 Look { ids: Vec<ObjectId> as AtMost<3>, patient: bool } -> Pages,
        2 Pages(pages: Vec<Page>),
        /// Asks for any page.
        3 Bring -> Pages | Done,
        9 Done,
    }
    retired 4, 5
}

fn encoded(said: &Say) -> BytesMut {
    let mut out = BytesMut::new();
    Say::put(said, &mut out);
    out
}

fn decoded(bytes: &[u8]) -> Result<Say, WireError> {
    let mut body = Reader::new(Bytes::copy_from_slice(bytes), "page");
    let said = Say::take(&mut body)?;
    body.finish(said)
}

#[test]
fn every_row_survives_the_wire() {
    for said in Say::draw_all(200, 7) {
        let bytes = encoded(&said);
        assert_eq!(decoded(&bytes).as_ref(), Ok(&said));
        assert_eq!(Say::decode_body(said.opcode(), bytes.freeze().slice(1..)), Ok(said));
    }
}

#[test]
fn the_bytes_are_the_fields_in_their_order() {
    let at = Place { page: 0x0201, note: Some("ab".into()) };
    let pages = vec![Page::Found { at, paper: Paper::Coloured }, Page::Several(vec![3..4, 5..6])];
    let expected = [2, 2, 0, 0, 0, 7, 1, 2, 1, 2, 0, 0, 0, b'a', b'b', 44, 1, 8, 2, 0, 0, 0];
    let expected = [&expected[..], &[3u64, 4, 5, 6].map(u64::to_le_bytes).concat()].concat();
    assert_eq!(encoded(&Say::Pages(pages))[..], expected);
}

#[test]
fn what_is_out_of_range_is_refused() {
    let page = |rest: &[u8]| decoded(&[&[2, 1, 0, 0, 0][..], rest].concat());
    assert_eq!(page(&[0, 1]), Ok(Say::Pages(vec![Page::Lost(Reason::Burnt)])));
    assert_eq!(page(&[0, 77]), Ok(Say::Pages(vec![Page::Lost(Reason::Other)])), "it is read as another");
    assert_eq!(page(&[1, 1]), Err(WireError::Opcode(1)), "there is no such variant");
    assert_eq!(page(&[7, 0, 0, 0, 44, 2]), Err(WireError::Malformed("page")), "there is no such paper");
    assert_eq!(page(&[7, 0, 0, 2, 44, 1]), Err(WireError::Malformed("page")), "2 is no bool");
    assert_eq!(page(&[0, 1, 0]), Err(WireError::Malformed("page")), "something is left");
    assert_eq!(decoded(&[4]), Err(WireError::Opcode(4)), "it is retired");
    let four = [&[1, 4, 0, 0, 0][..], &[0; 81]].concat();
    assert_eq!(decoded(&four), Err(WireError::Malformed("page")), "three at most");
    let list = Bytes::from_static(&[2, 0, 0, 0, 0, 0]);
    let list = |most| Vec::<bool>::take(&mut Reader::new(list.clone(), "list").with_most_items(most));
    assert_eq!((list(2), list(1)), (Ok(vec![false; 2]), Err(WireError::Malformed("list"))));
}

#[test]
fn a_question_names_the_type_of_its_answer() {
    fn ask<Q: Ask<Table = Say, Answers = Say>>(
        question: Q,
        answer: impl Fn(Say) -> Say,
    ) -> Result<Q::Answer, Say> {
        answer(question.into()).try_into()
    }
    let look = || says::Look { ids: vec![], patient: true };
    let echo = |said| match said {
        Say::Look { patient, .. } => Say::Pages(vec![Page::Several(vec![]); patient.into()]),
        other => other,
    };
    assert_eq!(ask(look(), echo), Ok(says::Pages(vec![Page::Several(vec![])])));
    assert_eq!(ask(look(), |_| Say::Done), Err(Say::Done));
    assert_eq!(Say::from(says::Bring), Say::Bring);
    const ANSWERS: [bool; 256] = answers(Say::ROWS, Say::ROWS);
    let answers: Vec<_> = (0u8..=255).filter(|opcode| ANSWERS[usize::from(*opcode)]).collect();
    assert_eq!(answers, [2, 9]);
}

#[test]
fn rows_tell_what_they_are_made_of() {
    let mut types = Types::default();
    let row = |number: usize, types: &mut Types| (Say::ROWS[number].fields)(types);
    assert_eq!(row(0, &mut types), [("ids", "[object id], at most 3".into()), ("patient", "bool".into())]);
    assert_eq!(row(1, &mut types), [("pages", "[page]".into())]);
    assert_eq!(Say::ROWS[0].about, [" Asks for the pages."]);
    assert_eq!(Say::ROWS[2].answers, ["Pages", "Done"]);
    let page = "u8: 0 lost (why: reason), 7 found (at: place, paper: paper), 8 several (pages: [pages])";
    let types: Vec<_> = types.0.iter().map(|(name, parts)| (&name[..], &parts[..])).collect();
    let place = ("place", "page: u16, note: text of at most 9 bytes or none");
    let reason = ("reason", "u8: 0 other, 1 burnt");
    let paper = ("paper", "u16: 0 plain, 300 coloured");
    assert_eq!(types, [("page", page), ("pages", "start: u64, end: u64"), paper, place, reason]);
}

#[test]
fn a_number_is_used_once() {
    assert!(are_distinct(&[1, 2, 255]));
    assert!(!are_distinct(&[1, 2, 1]));
}
