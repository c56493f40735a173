//! Tests of all calls by slot: every call survives encoding as words, and words decode to at most one call.

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

#[test]
fn ranges_do_not_overlap() {
    let of = |first, last| {
        let mut protocol = CALLS[0];
        (protocol.first, protocol.last) = (first, last);
        protocol
    };
    assert!(are_apart(&[of(1, 2), of(3, 3), of(4, 9)]));
    assert!(!are_apart(&[of(1, 3), of(3, 4)]));
    assert!(!are_apart(&[of(4, 5), of(1, 2)]));
    assert!(!are_apart(&[of(1, 2), of(4, 3)]));
}

/// Returns the numbers of the calls of a protocol.
fn numbers(protocol: &CallProtocol) -> Vec<u8> {
    (protocol.rows)(&mut Types::default()).iter().map(|row| row.number).collect()
}

#[test]
fn every_call_and_every_result_survives_its_words() {
    let mut draw = Draw::new(1);
    for protocol in &CALLS {
        for number in numbers(protocol).into_iter().flat_map(|number| [number; 100]) {
            let (encoded, arguments, payload) = (protocol.draw)(number, &mut draw);
            assert_eq!(encoded, number);
            assert!((protocol.first..=protocol.last).contains(&number));
            assert!((protocol.examine)(number, arguments, &payload), "{number} {arguments:x?} {payload:?}");
        }
    }
    for result in RESULTS.iter().flat_map(|result| [result; 100]) {
        let (values, payload) = (result.draw)(&mut draw);
        assert!((result.examine)(values, &payload), "{values:x?} {payload:?}");
    }
}

proptest! {
    #[test]
    fn damaged_words_are_another_call_or_none(
        protocol in select(&CALLS), row in any::<Index>(), seed: u64,
        at in 0..ARGUMENTS, word: u64, keep: u64,
    ) {
        let number = *row.get(&numbers(&protocol));
        let (number, mut arguments, payload) = (protocol.draw)(number, &mut Draw::new(seed));
        arguments[at] = arguments[at] & keep | word & !keep;
        (protocol.examine)(number, arguments, &payload);
    }

    #[test]
    fn random_words_never_panic(
        number: u8, words: [u64; VALUES], few in 0..=VALUES,
        payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut values = [0; VALUES];
        values[..few].copy_from_slice(&words[..few]);
        let [arguments @ .., _] = values;
        for protocol in &CALLS {
            let is_call = (protocol.examine)(number, arguments, &payload);
            prop_assert!(!is_call || (protocol.first..=protocol.last).contains(&number));
        }
        for result in &RESULTS {
            (result.examine)(values, &payload);
        }
    }
}
