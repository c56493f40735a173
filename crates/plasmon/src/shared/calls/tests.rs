//! Tests of both ends of the slots in one process, over the mappings that two processes have.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::entries::WORDS;
use super::slots::Slot;
use super::*;
use crate::shared::channel::Unanswered;
use crate::shared::words::Words;
use crate::{Class, Error, ErrorKind};

const MANNER: Manner = Manner { far: false, goes_on: true };

struct Ends {
    engine: EngineCalls,
    client: ClientCalls,
    /// Bell that the client rings.
    bell: OwnedFd,
    pages: OwnedFd,
}

fn ends() -> Ends {
    let (engine, pages) = EngineCalls::new().unwrap();
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let client = ClientCalls::new(&pages, bell.try_clone().unwrap()).unwrap();
    Ends { engine, client, bell, pages }
}

/// Returns a request that follows from a number.
fn request(n: u64) -> CallRequest {
    let bytes: Vec<u8> = (0..n as usize % (PAYLOAD_LEN + 1)).map(|at| (n as usize + at) as u8).collect();
    CallRequest {
        opcode: n as u8,
        class: Class::from_wire((n % 4) as u8),
        timeout_us: n,
        arguments: [n, !n, n << 7, n.wrapping_mul(31), 0, u64::MAX],
        payload: CallPayload::new(&bytes).unwrap(),
    }
}

/// Returns the result with which a request is answered.
fn result_of(request: &CallRequest) -> CallResult {
    let payload = request.payload.iter().rev().copied().collect::<Vec<_>>();
    CallResult {
        payload: CallPayload::new(&payload).unwrap(),
        ..CallResult::of(&request.arguments.map(|argument| argument ^ 1))
    }
}

impl Ends {
    /// Answers all requests as the engine does. Returns their number.
    fn serve(&self) -> usize {
        let mut served = 0;
        while let Some(taken) = self.engine.take() {
            let (slot, request) = taken.unwrap();
            self.engine.answer(slot, &result_of(&request));
            served += 1;
        }
        served
    }

    fn submit(&self, n: u64) -> CallUnderWay<&ClientCalls> {
        ClientCalls::submit(&self.client, &request(n), MANNER, &mut || true).unwrap()
    }

    fn rang(&self) -> bool {
        rustix::io::read(&self.bell, &mut [0u8; 8]).is_ok()
    }
}

#[test]
fn requests_of_all_lengths_are_answered() {
    let ends = ends();
    for n in [0, 1, 7, 8, 9, 63, 64, 319, 320, 321] {
        let call = ends.submit(n);
        assert!(ends.engine.has_submissions());
        let (slot, taken) = ends.engine.take().unwrap().unwrap();
        assert_eq!(taken, request(n));
        assert_eq!(ends.engine.under_way(), 1);
        ends.engine.answer(slot, &result_of(&taken));
        assert_eq!(call.wait(&mut || true).unwrap(), result_of(&request(n)));
        assert!(!ends.engine.has_submissions());
        assert_eq!(ends.engine.under_way(), 0);
    }
    assert!(CallPayload::new(&[0; PAYLOAD_LEN + 1]).is_none());
}

#[test]
fn results_come_in_any_order() {
    let ends = ends();
    let calls: Vec<_> = (0..SLOTS as u64).map(|n| ends.submit(n)).collect();
    let mut taken: Vec<_> = std::iter::from_fn(|| ends.engine.take()).map(Result::unwrap).collect();
    assert_eq!(taken.len(), SLOTS);
    assert_eq!(ends.engine.under_way() as usize, SLOTS);
    taken.sort_by_key(|(slot, _)| slot.wrapping_mul(37));
    for (slot, request) in taken {
        ends.engine.answer(slot, &result_of(&request));
    }
    for (n, call) in calls.into_iter().enumerate().rev() {
        assert_eq!(call.wait(&mut || true).unwrap(), result_of(&request(n as u64)));
    }
}

#[test]
fn errors_have_words_that_fit() {
    let ends = ends();
    let call = ends.submit(1);
    let (slot, _) = ends.engine.take().unwrap().unwrap();
    let text = "ä".repeat(PAYLOAD_LEN);
    ends.engine.answer(slot, &CallResult::failed(&Error::new(ErrorKind::NotAllowed, &text)));
    let error = call.wait(&mut || true).unwrap().into_result().unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::NotAllowed, &text[..PAYLOAD_LEN]));
}

#[test]
fn whoever_finds_no_slot_waits_for_one() {
    let ends = ends();
    let mut calls: Vec<_> = (0..SLOTS as u64).map(|n| ends.submit(n)).collect();
    assert!(
        ClientCalls::submit(&ends.client, &request(0), MANNER, &mut || false).is_err(),
        "there is no slot"
    );
    let more = AtomicU64::new(0);
    thread::scope(|threads| {
        for n in 0..3 {
            let (ends, more) = (&ends.client, &more);
            threads.spawn(move || {
                let call = ClientCalls::submit(ends, &request(n), MANNER, &mut || true).unwrap();
                assert_eq!(call.wait(&mut || true).unwrap(), result_of(&request(n)));
                more.fetch_add(1, Ordering::Relaxed);
            });
        }
        while more.load(Ordering::Relaxed) < 3 {
            ends.serve();
            if let Some(call) = calls.pop() {
                call.wait(&mut || true).unwrap();
            }
        }
    });
}

#[test]
fn a_slot_that_was_given_up_comes_back_with_its_result() {
    let ends = ends();
    let calls: Vec<_> = (0..SLOTS as u64).map(|n| ends.submit(n)).collect();
    for call in calls {
        let given_up = call.wait_napping(Duration::from_millis(1), &mut || false);
        assert_eq!(given_up.unwrap_err(), Unanswered);
    }
    assert!(
        ClientCalls::submit(&ends.client, &request(0), MANNER, &mut || false).is_err(),
        "the engine still has all"
    );
    assert_eq!(ends.serve(), SLOTS);
    let calls: Vec<_> = (0..SLOTS as u64).map(|n| ends.submit(n)).collect();
    ends.serve();
    for (n, call) in (0..).zip(calls) {
        assert_eq!(call.wait(&mut || true).unwrap(), result_of(&request(n)));
    }
    assert_eq!(ends.client.stats().looked, SLOTS as u64);
}

#[test]
fn a_call_that_is_ended_early_still_has_its_result() {
    let ends = ends();
    let mut call = ends.submit(1);
    let (slot, _) = ends.engine.take().unwrap().unwrap();
    assert!(!call.comes_napping(Duration::from_millis(1), &mut || false));
    assert_eq!(ends.engine.take_given_up().count(), 0);
    call.end_early();
    assert_eq!(ends.engine.take_given_up().collect::<Vec<_>>(), [slot]);
    assert!(!call.has_come(), "its slot is not free");
    ends.engine.answer(slot, &result_of(&request(1)));
    assert!(call.comes(&mut || true));
    assert_eq!(call.take(), result_of(&request(1)));
}

#[test]
fn what_nobody_waits_for_is_given_up_unless_it_goes_on() {
    let ends = ends();
    ends.engine.set_attention(true, false);
    let submit = |n, goes_on| {
        let manner = Manner { far: false, goes_on };
        ClientCalls::submit(&ends.client, &request(n), manner, &mut || true).unwrap()
    };
    let take = || ends.engine.take().unwrap().unwrap().0;
    // Given up before the engine takes it.
    drop(submit(1, false));
    assert_eq!(ends.engine.take_given_up().count(), 0, "it is not under way");
    let early = take();
    assert!(ends.engine.is_given_up(early));
    ends.engine.answer(early, &CallResult::of(&[]));
    // Given up while it is under way.
    let call = submit(2, false);
    let slot = take();
    assert!(!ends.engine.is_given_up(slot));
    ends.engine.set_attention(false, false);
    assert!(!ends.engine.has_submissions());
    ends.rang();
    drop(call);
    assert!(ends.rang() && ends.engine.has_submissions());
    assert_eq!(ends.engine.take_given_up().collect::<Vec<_>>(), [slot]);
    assert!(!ends.engine.has_submissions());
    ends.engine.answer(slot, &CallResult::of(&[]));
    // A call that goes on after it is given up.
    let call = submit(3, true);
    let slot = take();
    drop(call);
    assert_eq!(ends.engine.take_given_up().count(), 0);
    assert!(!ends.engine.is_given_up(slot));
    ends.engine.answer(slot, &CallResult::of(&[]));
    // All slots are free again.
    let calls: Vec<_> = (0..SLOTS as u64).map(|n| submit(n, false)).collect();
    assert_eq!(ends.serve(), SLOTS);
    drop(calls);
    assert_eq!(ends.engine.take_given_up().count(), 0, "their results had come");
}

#[test]
fn the_bell_rings_when_nobody_looks() {
    let ends = ends();
    drop(ends.submit(0));
    assert!(ends.rang());
    ends.engine.set_attention(true, false);
    drop(ends.submit(1));
    assert!(!ends.rang());
    ends.engine.set_attention(false, false);
    assert!(ends.engine.has_submissions());
    assert_eq!(ends.serve(), 2);
}

#[test]
fn a_slot_that_is_submitted_twice_is_noticed() {
    let ends = ends();
    let call = ends.submit(1);
    let (slot, _) = ends.engine.take().unwrap().unwrap();
    Slot(slot).submit(&Words::open(&ends.pages, true).unwrap(), 9, &request(2));
    assert_eq!(ends.engine.take(), Some(Err(Misused::Twice(slot))));
    assert_eq!(ends.engine.take(), None);
    drop(call);
}

#[test]
fn nobody_else_can_take_the_page_set_for_slots() {
    let (_channel, pages) = crate::shared::EngineChannel::new().unwrap();
    let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    assert!(ClientCalls::new(&pages, bell).is_err());
}

/// An engine that sleeps on the bell, and threads that sleep on their results.
#[test]
fn many_threads_call_an_engine_that_sleeps() {
    const THREADS: u64 = 6;
    const CALLS: u64 = 3000;
    let Ends { engine, client, bell, .. } = ends();
    let over = AtomicBool::new(false);
    let start = Barrier::new(THREADS as usize);
    let answered = AtomicU64::new(0);
    thread::scope(|threads| {
        for thread in 0..THREADS {
            let (client, start, over, answered) = (&client, &start, &over, &answered);
            threads.spawn(move || {
                start.wait();
                for n in (0..CALLS).map(|n| n * THREADS + thread) {
                    let call = ClientCalls::submit(client, &request(n), MANNER, &mut || true).unwrap();
                    assert_eq!(call.wait(&mut || true).unwrap(), result_of(&request(n)));
                }
                if answered.fetch_add(1, Ordering::Relaxed) + 1 == THREADS {
                    over.store(true, Ordering::Relaxed);
                }
            });
        }
        let mut round = 0u64;
        while !over.load(Ordering::Relaxed) {
            engine.set_attention(true, round.is_multiple_of(2));
            while let Some(taken) = engine.take() {
                let (slot, request) = taken.unwrap();
                engine.answer(slot, &result_of(&request));
            }
            engine.set_attention(false, false);
            if !engine.has_submissions() {
                let limit = Duration::from_millis(200).try_into().ok();
                poll(&mut [PollFd::new(&bell, PollFlags::IN)], limit.as_ref()).unwrap();
                let _ = rustix::io::read(&bell, &mut [0u8; 8]);
            }
            round += 1;
        }
    });
    let waits = client.stats();
    assert_eq!(waits.looked + waits.yielded + waits.slept, THREADS * CALLS);
}

proptest! {
    #[test]
    fn no_words_break_the_decoder(words: [u64; WORDS], fill: u64) {
        let decoded = CallRequest::decode(words, |_| fill);
        let (len, class) = ((words[0] >> 48) as usize, (words[0] >> 40) as u8);
        let has_class = class == 0 || Class::from_wire(class).is_some();
        prop_assert_eq!(decoded.is_some(), len <= PAYLOAD_LEN && has_class);
        if let Some((seq, request)) = decoded {
            prop_assert_eq!(request.payload.len(), len);
            prop_assert_eq!(request.encode(seq), words);
        }
        let result = CallResult::decode(words, |_| fill);
        prop_assert!(result.payload.len() <= PAYLOAD_LEN);
    }

    #[test]
    fn results_survive(kind in 0..ErrorKind::ALL.len() + 1, values: [u64; VALUES], seq: u32) {
        let error = kind.checked_sub(1).map(|kind| ErrorKind::ALL[kind]);
        let result = CallResult { error, ..CallResult::of(&values) };
        let words = result.encode(seq);
        prop_assert_eq!(words[0] as u32, seq);
        prop_assert_eq!(CallResult::decode(words, |_| 0), result);
    }

    /// Whatever a client writes and submits, each slot is taken at most once before its result.
    #[test]
    fn scribbling_takes_no_slot_twice(steps in prop::collection::vec((0u64..65_536, any::<u64>()), 1..200)) {
        let ends = ends();
        let words = Words::open(&ends.pages, true).unwrap();
        let mut under_way = HashSet::new();
        for (at, word) in steps {
            // Half of the words are among the submitted bits.
            let at = if at % 2 == 0 { 512 + at / 2 % 4 } else { 8 + at };
            if at as usize != super::slots::ATTENTION.0 {
                words.at(at as usize % words_len()).store(word, Ordering::Relaxed);
            }
            for _ in 0..2 * SLOTS {
                match ends.engine.take() {
                    Some(Ok((slot, _))) => prop_assert!(under_way.insert(slot)),
                    Some(Err(Misused::Twice(slot))) => prop_assert!(under_way.contains(&slot)),
                    Some(Err(Misused::Request(slot))) => prop_assert!(!under_way.contains(&slot)),
                    None => break,
                }
            }
            if word % 3 == 0 && let Some(slot) = under_way.iter().next().copied() {
                under_way.remove(&slot);
                ends.engine.answer(slot, &CallResult::of(&[1]));
            }
            prop_assert_eq!(ends.engine.under_way() as usize, under_way.len());
        }
    }
}

/// Returns the number of words of a page set.
fn words_len() -> usize {
    PAGE_SET_BYTES / 8
}
