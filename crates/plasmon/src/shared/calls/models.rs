//! Models of the slots: no bell is lost, no wake-up is lost, and no request or result is seen in part. The
//! opening of [`models`](crate::shared::models) says what loom checks.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::entries::{CallPayload, CallRequest, CallResult};
use super::mapped;
use super::slots::{self, ATTENTION, Slot};
use crate::ErrorKind;
use crate::shared::models::{Futex, check};
use crate::shared::words::Words;

/// Returns a request whose every word is `n`.
fn request(n: u8) -> CallRequest {
    CallRequest {
        opcode: n,
        class: None,
        timeout_us: n.into(),
        arguments: [n.into(); 6],
        payload: payload(n),
    }
}

/// Returns a result whose every word is `n`.
fn result(n: u8) -> CallResult {
    let error = ErrorKind::from_wire(n.into());
    CallResult { error, values: [n.into(); 7], payload: payload(n) }
}

fn payload(n: u8) -> CallPayload {
    CallPayload::new(&[n; 8]).unwrap()
}

fn words(slots: usize) -> Arc<Words> {
    Arc::new(Words::in_memory(slots::words_of(slots, 1)))
}

/// Returns the slots whose bits are set in a word.
fn slots_of(mut bits: u64) -> impl Iterator<Item = Slot> {
    std::iter::from_fn(move || {
        let slot = (bits != 0).then(|| Slot(bits.trailing_zeros() as u8));
        bits &= bits.wrapping_sub(1);
        slot
    })
}

/// Two threads submit while the engine takes: each request is taken once, and whole.
#[test]
fn a_request_is_taken_whole() {
    check(3, || {
        let words = words(2);
        let clients: Vec<_> = (0..2)
            .map(|slot| {
                let words = words.clone();
                thread::spawn(move || Slot(slot).submit(&words, 1, &request(slot + 1)))
            })
            .collect();
        let take = || {
            let taken = slots::take_submitted(&words, 0);
            for slot in slots_of(taken) {
                assert_eq!(slot.request(&words), Some((1, request(slot.0 + 1))));
            }
            taken
        };
        let early = take();
        clients.into_iter().for_each(|client| client.join().unwrap());
        let late = take();
        assert_eq!((early & late, early | late), (0, 3));
    });
}

/// The engine goes to sleep while two threads submit: its bell is rung, or it has seen both.
#[test]
fn the_engine_does_not_oversleep() {
    check(3, || {
        let words = words(2);
        let bell = Arc::new(AtomicBool::new(false));
        ATTENTION.set(&words, true, false);
        let clients: Vec<_> = (0..2)
            .map(|slot| {
                let (words, bell) = (words.clone(), bell.clone());
                thread::spawn(move || {
                    Slot(slot).submit(&words, 1, &request(slot + 1));
                    if ATTENTION.must_ring(&words) {
                        bell.store(true, Ordering::Release);
                    }
                })
            })
            .collect();
        ATTENTION.set(&words, false, false);
        // The server does not sleep while it sees a slot here.
        let seen = slots::any_bit(&words);
        let taken = if seen { slots::take_submitted(&words, 0) } else { 0 };
        clients.into_iter().for_each(|client| client.join().unwrap());
        let rung = bell.load(Ordering::Acquire);
        assert!(rung || taken == 3, "asleep with the slots {taken:#b} seen and no bell");
    });
}

/// Observations of the engine about a call that is given up, and about the next call in the slot.
#[derive(Default)]
struct Seen {
    under_way: Option<u32>,
    ended: bool,
}

impl Seen {
    /// Looks as the engine does: first for calls that were given up, then for new calls.
    fn look(&mut self, words: &Words, slot: Slot) {
        if slots::take_given_up(words, 0) != 0
            && let Some(seq) = self.under_way
            && slot.is_given_up(words, seq)
        {
            self.end(words, slot, seq);
        }
        if slots::take_submitted(words, 0) != 0 {
            let (seq, _) = slot.request(words).unwrap();
            self.under_way = Some(seq);
            if slot.is_given_up(words, seq) {
                self.end(words, slot, seq);
            }
        }
    }

    fn end(&mut self, words: &Words, slot: Slot, seq: u32) {
        assert_eq!(seq, 1, "the next call was ended");
        self.ended = true;
        self.under_way = None;
        slot.answer(words, seq, &result(1));
    }
}

/// A call is given up while the engine looks and goes to sleep: the engine ends it, or its bell is rung. The
/// next call in the slot is not ended.
#[test]
fn a_call_that_is_given_up_is_ended() {
    check(3, || {
        let (words, slot) = (words(1), Slot(0));
        let bell = Arc::new(AtomicBool::new(false));
        ATTENTION.set(&words, true, false);
        let client = {
            let (words, bell) = (words.clone(), bell.clone());
            let ring = move |words: &Words| {
                if ATTENTION.must_ring(words) {
                    bell.store(true, Ordering::Release);
                }
            };
            thread::spawn(move || {
                slot.submit(&words, 1, &request(1));
                slot.give_up(&words, 1);
                ring(&words);
                if slot.is_answered(&words, 1) {
                    slot.submit(&words, 2, &request(2));
                    ring(&words);
                }
            })
        };
        let mut seen = Seen::default();
        seen.look(&words, slot);
        ATTENTION.set(&words, false, false);
        if slots::any_bit(&words) {
            seen.look(&words, slot);
        }
        client.join().unwrap();
        assert!(seen.ended || bell.load(Ordering::Acquire), "asleep with a call that was given up");
        seen.look(&words, slot);
        assert!(seen.ended);
    });
}

/// A thread goes to sleep while the engine answers: it is woken, or it has seen the result, which is whole.
#[test]
fn a_thread_does_not_oversleep() {
    check(3, || {
        let (words, slot) = (words(1), Slot(0));
        let futex = Arc::new(Futex::default());
        let engine = {
            let (words, futex) = (words.clone(), futex.clone());
            thread::spawn(move || {
                slot.answer(&words, 1, &result(1));
                if slot.asleep().must_wake(&words) {
                    futex.wake();
                }
            })
        };
        if !slot.is_answered(&words, 1) {
            slot.asleep().set(&words, true);
            if !slot.is_answered(&words, 1) {
                futex.wait(|| slot.is_answered(&words, 1));
            }
        }
        let saw = slot.is_answered(&words, 1);
        assert!(!saw || slot.result(&words) == result(1), "a result in half");
        engine.join().unwrap();
        assert!(!futex.sleeps(), "asleep with a result and nobody to wake it");
    });
}

/// A slot is used twice: the engine finds the second request whole, and the thread takes no former result.
#[test]
fn a_slot_is_used_again() {
    check(3, || {
        let (words, slot) = (words(1), Slot(0));
        let client = {
            let words = words.clone();
            thread::spawn(move || {
                for n in 1..3 {
                    slot.submit(&words, n, &request(n as u8));
                    if !slot.is_answered(&words, n) {
                        return;
                    }
                    assert_eq!(slot.result(&words), result(n as u8));
                }
            })
        };
        let serve = || {
            if slots::take_submitted(&words, 0) != 0 {
                let (seq, taken) = slot.request(&words).unwrap();
                assert_eq!(taken, request(seq as u8));
                slot.answer(&words, seq, &result(seq as u8));
            }
        };
        serve();
        serve();
        client.join().unwrap();
    });
}

/// A thread touches a region while the engine takes it away: the engine waits for the thread, or keeps it
/// out.
#[test]
fn a_region_that_was_taken_away_is_touched_by_nobody() {
    check(4, || {
        let words = Arc::new(Words::in_memory(mapped::words_of(1)));
        let memory = Arc::new(AtomicBool::new(false));
        mapped::set(&words, 0, true);
        let toucher = {
            let (words, memory) = (words.clone(), memory.clone());
            thread::spawn(move || {
                mapped::touch(&words, 0, 0, || {
                    assert!(!memory.load(Ordering::Relaxed), "it was taken away");
                });
            })
        };
        mapped::set(&words, 0, false);
        if !mapped::is_touched(&words, 1, 0) {
            memory.store(true, Ordering::Relaxed);
        }
        toucher.join().unwrap();
    });
}
