//! Fuzz target of the page set of a client. Whatever the client writes anywhere in it, the engine takes
//! entries, bytes, pins and access bits out of it, and loses nothing but this client's.
//!
//! The bytes are a list of what the client writes and the engine does, in turn: a verb, and what it takes.

use std::fs::File;
use std::os::unix::fs::FileExt;

use plasmon::shared::{Completion, DATA_LEN, EngineChannel, Operation, Outcome, TableId};

/// Bytes of a page set.
pub(crate) const LEN: u64 = 512 << 10;
/// Offset of the tail of the submissions.
const TAIL: u64 = 64;
/// Offset of the head of the completions.
const HEAD_OF_COMPLETIONS: u64 = 256;
/// Offset of the number of pins that were ever used.
const PINS_USED: u64 = 448;
/// Offset of the first submission.
const SUBMISSIONS: u64 = 4 << 10;
/// Offset of the first pin.
const PINS: u64 = 36 << 10;
/// Entries in a ring.
const ENTRIES: u64 = 256;
/// Pins that a client can have.
const SLOTS: usize = 4096;

/// The words of the input, as long as there are any.
pub(crate) struct Words<'a>(pub(crate) &'a [u8]);

impl Words<'_> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn word(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }
}

/// Plays a list of writes of the client and steps of the engine.
pub(crate) fn page_set(bytes: &[u8]) {
    let (engine, descriptor) = EngineChannel::new().expect("a page set");
    let client = File::from(descriptor);
    let mut input = Words(bytes);
    while step(&mut input, &engine, &client).is_some() {}
    serve(&engine);
    look(&engine);
}

/// Plays one step. Returns `None` when the input has ended.
fn step(input: &mut Words, engine: &EngineChannel, client: &File) -> Option<()> {
    let write =
        |at: u64, word: u64| client.write_all_at(&word.to_le_bytes(), at % (LEN - 8)).expect("512 KiB");
    match input.byte()? % 8 {
        0 => write(input.word()?, input.word()?),
        1 => write(TAIL, input.word()?),
        2 => write(HEAD_OF_COMPLETIONS, input.word()?),
        3 => write(PINS_USED, input.word()?),
        4 => {
            let (at, words) = entry(input)?;
            let first = SUBMISSIONS + at % ENTRIES * 64;
            (first..).step_by(8).zip(words).for_each(|(at, word)| write(at, word));
        }
        5 => write(PINS + input.word()? % SLOTS as u64 * 8, input.word()?),
        6 => serve(engine),
        _ => look(engine),
    }
    Some(())
}

fn entry(input: &mut Words) -> Option<(u64, [u64; 8])> {
    let at = input.word()?;
    let mut words = [0; 8];
    for word in &mut words {
        *word = input.word()?;
    }
    Some((at, words))
}

/// Takes requests off the rings and completes them, as the engine does.
fn serve(engine: &EngineChannel) {
    // Tries more often than there are entries.
    for _ in 0..2 * ENTRIES {
        let Some(Ok(entry)) = engine.take() else { break };
        let len = match entry.operation {
            Operation::Create | Operation::Abort => 0,
            Operation::Put | Operation::Seal | Operation::Delete => entry.data_len.min(1 << 16),
        };
        let len = usize::from(entry.name_len) + entry.metadata_len.min(1 << 16) as usize + len as usize;
        let mut payload = vec![0; len];
        let inside = entry.payload as usize + len <= DATA_LEN;
        assert_eq!(engine.payload(entry.payload, &mut payload).is_ok(), inside);
        let outcome = if entry.patient { Outcome::Collect } else { Outcome::Done };
        let completion = Completion { token: entry.token, outcome, answer: entry.data_len };
        if !engine.complete(&completion) {
            break;
        }
    }
    engine.has_submissions();
}

/// Looks at pins, as the engine does before it lets objects go.
fn look(engine: &EngineChannel) {
    let mut pins = 0;
    let mut entries = Vec::new();
    engine.for_each_pin(|table, entry| {
        pins += 1;
        entries.push((table, entry));
    });
    assert!(pins <= SLOTS);
    for (table, entry) in entries.into_iter().chain([(TableId::Shared, u32::MAX), (TableId::Private, 0)]) {
        engine.take_accessed(table, entry);
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let words = |verb: u8, words: &[u64]| -> Vec<u8> {
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        std::iter::once(verb).chain(words).collect()
    };
    // One of each operation, with a name of 3 bytes, metadata of 4 and data of 100; every other one is
    // patient.
    let submissions = (0..).zip(Operation::ALL).map(|(at, operation)| {
        let first = *operation as u64 | (at & 1) << 12 | 3 << 16 | 4 << 32;
        words(4, &[at, first, 9 + at, 1, 2, 3 | at << 38, 100, 7, 0])
    });
    let submissions = submissions.collect::<Vec<_>>().concat();
    let tail = words(1, &[Operation::ALL.len() as u64]);
    let pins = [words(3, &[2]), words(5, &[0, 1 << 63 | 7]), words(5, &[1, 1 << 63 | 1 << 32 | 8])].concat();
    vec![
        [submissions.clone(), tail.clone(), vec![6]].concat(),
        [pins.clone(), vec![7]].concat(),
        [submissions, tail, vec![6], words(2, &[1]), words(1, &[300]), vec![6], pins, vec![7]].concat(),
        [words(1, &[u64::MAX]), vec![6], words(3, &[u64::MAX]), vec![7]].concat(),
        [words(0, &[100 << 10, 7]), vec![6]].concat(),
    ]
}
