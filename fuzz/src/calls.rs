//! Fuzz target of the slots of a client. Whatever the client writes anywhere in them, the engine takes
//! requests out of them, takes no slot twice before its result, and loses nothing but this client's.
//!
//! The bytes are a list of what the client writes and the engine does, in turn: a verb, and what it takes.

use std::fs::File;
use std::os::unix::fs::FileExt;

use plasmon::shared::{CallResult, EngineCalls, Misused, PAYLOAD_LEN, SLOTS};

use crate::channel::{LEN, Words};

/// Offset of the submitted bits in a page set.
const SUBMITTED: u64 = 4 << 10;
/// Offset of the first slot in a page set.
const FIRST_SLOT: u64 = 128 << 10;
/// Bytes of a slot.
const SLOT_LEN: u64 = 512;

/// The engine's end of the slots, and the slots that it has taken and not answered.
struct Served {
    engine: EngineCalls,
    under_way: Vec<u8>,
}

/// Plays a list of writes of the client and steps of the engine.
pub(crate) fn page_set(bytes: &[u8]) {
    let (engine, descriptor) = EngineCalls::new().expect("a page set");
    let client = File::from(descriptor);
    let mut served = Served { engine, under_way: Vec::new() };
    let mut input = Words(bytes);
    while step(&mut input, &mut served, &client).is_some() {}
    take(&mut served);
}

/// Plays one step. Returns `None` when the input has ended.
fn step(input: &mut Words, served: &mut Served, client: &File) -> Option<()> {
    let write =
        |at: u64, word: u64| client.write_all_at(&word.to_le_bytes(), at % (LEN - 8)).expect("512 KiB");
    match input.byte()? % 5 {
        0 => write(input.word()?, input.word()?),
        1 => write(SUBMITTED + u64::from(input.byte()?) % 4 * 8, input.word()?),
        2 => {
            let first = FIRST_SLOT + u64::from(input.byte()?) * SLOT_LEN;
            for at in (first..first + 64).step_by(8) {
                write(at, input.word()?);
            }
        }
        3 => take(served),
        _ => {
            if let Some(slot) = served.under_way.pop() {
                served.engine.answer(slot, &CallResult::of(&[slot.into()]));
            }
        }
    }
    Some(())
}

fn take(served: &mut Served) {
    // Tries more often than there are slots.
    for _ in 0..2 * SLOTS {
        match served.engine.take() {
            Some(Ok((slot, request))) => {
                assert!(!served.under_way.contains(&slot), "slot {slot} was taken twice");
                assert!(request.payload.len() <= PAYLOAD_LEN);
                served.under_way.push(slot);
            }
            Some(Err(Misused::Twice(slot))) => assert!(served.under_way.contains(&slot)),
            Some(Err(Misused::Request(slot))) => assert!(!served.under_way.contains(&slot)),
            None => break,
        }
    }
    assert_eq!(served.engine.under_way() as usize, served.under_way.len());
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let request = |slot: u8, payload_len: u64| -> Vec<u8> {
        let words = [1 | 100 << 32 | payload_len << 48, 1_000_000, 1, 2, 3, 4, 5, 6];
        [2, slot].into_iter().chain(words.into_iter().flat_map(u64::to_le_bytes)).collect()
    };
    let submit = |at: u8, bits: u64| -> Vec<u8> { [1, at].into_iter().chain(bits.to_le_bytes()).collect() };
    vec![
        [request(0, 0), submit(0, 1), vec![3, 4]].concat(),
        [request(0, 320), request(255, 8), submit(0, 1), submit(3, 1 << 63), vec![3, 4, 4]].concat(),
        [
            request(7, 0),
            submit(0, 1 << 7),
            vec![3],
            submit(0, 1 << 7),
            vec![3, 4],
            submit(0, 1 << 7),
            vec![3],
        ]
        .concat(),
        [request(1, 321), submit(0, u64::MAX), submit(1, u64::MAX), vec![3, 4, 3]].concat(),
    ]
}
