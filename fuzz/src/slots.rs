//! Calls by slot and their results, as words and a payload: what a client may ask, and a daemon may answer.
//!
//! The bytes of a call are its number, its words and its payload. Those of a result are its place in the list
//! of results, its words and its payload.

use plasmon::shared::{ARGUMENTS, VALUES};
use plasmon::wire::{CALLS, Draw, RESULTS, Types};

use crate::channel::Words;

/// Number of seeds of each call and of each result.
const OF_EACH: usize = 4;

/// Reads whatever a client may ask.
pub(crate) fn calls(bytes: &[u8]) {
    let Some((number, arguments, payload)) = taken::<ARGUMENTS>(bytes) else { return };
    for protocol in &CALLS {
        let is_call = (protocol.examine)(number, arguments, payload);
        assert!(!is_call || (protocol.first..=protocol.last).contains(&number), "{number}");
    }
}

/// Reads whatever a daemon may answer.
pub(crate) fn results(bytes: &[u8]) {
    let Some((place, values, payload)) = taken::<VALUES>(bytes) else { return };
    (RESULTS[usize::from(place) % RESULTS.len()].examine)(values, payload);
}

/// A byte, so many words, and the rest.
fn taken<const WORDS: usize>(bytes: &[u8]) -> Option<(u8, [u64; WORDS], &[u8])> {
    let mut input = Words(bytes);
    let first = input.byte()?;
    let mut words = [0; WORDS];
    for word in &mut words {
        *word = input.word()?;
    }
    Some((first, words, input.0))
}

fn bytes_of(first: u8, words: &[u64], payload: &[u8]) -> Vec<u8> {
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    std::iter::once(first).chain(words).chain(payload.iter().copied()).collect()
}

pub(crate) fn call_seeds() -> Vec<Vec<u8>> {
    let mut draw = Draw::new(1);
    let mut seeds = Vec::new();
    for protocol in &CALLS {
        for row in (protocol.rows)(&mut Types::default()) {
            for _ in 0..OF_EACH {
                let (number, arguments, payload) = (protocol.draw)(row.number, &mut draw);
                seeds.push(bytes_of(number, &arguments, &payload));
            }
        }
    }
    seeds
}

pub(crate) fn result_seeds() -> Vec<Vec<u8>> {
    let mut draw = Draw::new(2);
    let mut seeds = Vec::new();
    for (place, result) in (0..).zip(&RESULTS) {
        for _ in 0..OF_EACH {
            let (values, payload) = (result.draw)(&mut draw);
            seeds.push(bytes_of(place, &values, &payload));
        }
    }
    seeds
}
