//! Tests of both ends of a channel in one process, over the mappings that two processes have.

use std::collections::HashSet;
use std::iter;
use std::os::fd::OwnedFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::client::Unanswered;
use super::layout::PAGE_SET_BYTES;
use super::pins::SLOTS;
use super::ring::ENTRIES;
use super::*;
use crate::shared::words::Words;
use crate::shared::{Found, NewEntry, TableReader, TableWriter};
use crate::{ObjectId, Rights};

struct Ends {
    engine: EngineChannel,
    client: ClientChannel,
    /// Bell that the client rings.
    bell: OwnedFd,
    /// Descriptor of the page set.
    pages: OwnedFd,
}

fn ends() -> Ends {
    let (engine, pages) = EngineChannel::new().unwrap();
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let client = ClientChannel::new(&pages, bell.try_clone().unwrap()).unwrap();
    Ends { engine, client, bell, pages }
}

fn put(token: u64, data_len: usize) -> Submission {
    Submission {
        token,
        rights: Rights::from_wire((token % 3) as u8).expect("there are three"),
        fresh: token % 3 == 1,
        data_len: data_len as u64,
        digest: !token,
        ..Submission::of(Operation::Put, ObjectId::from_bytes([token as u8; ObjectId::LEN]))
    }
}

fn done(submission: &Submission) -> Completion {
    Completion { token: submission.token, outcome: Outcome::Done, answer: submission.token << 12 }
}

/// Returns bytes that follow from a token.
fn bytes(token: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (token.wrapping_mul(31) ^ at ^ at >> 8) as u8).collect()
}

impl Ends {
    /// Handles all submissions as the engine does. Returns their number.
    fn serve(&self) -> u64 {
        let mut served = 0;
        while let Some(submission) = self.engine.take() {
            let submission = submission.unwrap();
            let mut payload = vec![0; submission.data_len as usize];
            self.engine.payload(submission.payload, &mut payload).unwrap();
            assert!(payload == bytes(submission.token, payload.len()), "the payload is another's");
            assert!(self.engine.complete(&done(&submission)));
            served += 1;
        }
        self.engine.wake();
        served
    }

    /// Empties the bell. Returns whether it rang.
    fn rang(&self) -> bool {
        rustix::io::read(&self.bell, &mut [0u8; 8]).is_ok()
    }
}

fn never_gone() -> bool {
    true
}

#[test]
fn submissions_of_all_sizes_are_completed() {
    let ends = ends();
    for (token, len) in [0, 1, 63, 64, 65, 64 << 10, DATA_LEN - 1, DATA_LEN].into_iter().enumerate() {
        let (token, data) = (token as u64, bytes(token as u64, len));
        let mut ring = ends.client.ring().unwrap();
        let (first, second) = data.split_at(len / 3);
        assert!(ring.submit(put(token, len), &[first, second]));
        assert!(ends.engine.has_submissions());
        assert_eq!(ends.serve(), 1);
        let mut completions = Vec::new();
        ring.finish(Duration::ZERO, never_gone, |completion| completions.push(completion)).unwrap();
        assert_eq!(completions, [done(&put(token, len))]);
        assert!(!ends.engine.has_submissions());
    }
}

#[test]
fn what_does_not_fit_is_not_submitted() {
    let ends = ends();
    let mut ring = ends.client.ring().unwrap();
    assert!(!ring.submit(put(1, DATA_LEN + 1), &[&bytes(1, DATA_LEN + 1)]));
    assert!(!ends.engine.has_submissions());
    // Together they are too large as well, until the first is done.
    assert!(ring.submit(put(1, DATA_LEN - 64), &[&bytes(1, DATA_LEN - 64)]));
    assert!(!ring.submit(put(2, 65), &[&bytes(2, 65)]));
    assert!(ring.submit(put(2, 64), &[&bytes(2, 64)]));
    assert_eq!(ends.serve(), 2);
    ring.finish(Duration::ZERO, never_gone, |_| {}).unwrap();
    let mut ring = ends.client.ring().unwrap();
    assert!(ring.submit(put(3, 65), &[&bytes(3, 65)]));
    assert_eq!(ends.serve(), 1);
    ring.finish(Duration::ZERO, never_gone, |_| {}).unwrap();
}

/// In every round the ring takes as many entries as fit, and one more is refused.
#[test]
fn a_full_ring_refuses() {
    let ends = ends();
    for round in 0..5 {
        let mut ring = ends.client.ring().unwrap();
        // The rounds begin at different entries.
        let count = if round == 0 { 100 } else { ENTRIES };
        for n in 0..count {
            assert!(ring.submit(put(round * ENTRIES + n, 8), &[&bytes(round * ENTRIES + n, 8)]));
        }
        assert_eq!(ring.submit(put(0, 0), &[]), count < ENTRIES);
        ends.serve();
        let mut tokens = Vec::new();
        ring.finish(Duration::ZERO, never_gone, |completion| tokens.push(completion.token)).unwrap();
        tokens.truncate(count as usize);
        assert_eq!(tokens, (round * ENTRIES..round * ENTRIES + count).collect::<Vec<_>>());
    }
    // A client that does not take its completions gets no more.
    let told = (0..2 * ENTRIES).filter(|n| ends.engine.complete(&done(&put(*n, 0)))).count();
    assert_eq!(told as u64, ENTRIES);
}

#[test]
fn a_client_whose_daemon_is_gone_gives_up() {
    let ends = ends();
    let mut ring = ends.client.ring().unwrap();
    assert!(ring.submit(put(1, 0), &[]));
    let mut looks = 0;
    let alive = || {
        looks += 1;
        looks < 3
    };
    assert_eq!(ring.finish(Duration::ZERO, alive, |_| {}), Err(Unanswered));
    assert!(ends.client.ring().is_none(), "its memory may still be in use");
}

#[test]
fn nobody_waits_for_whoever_waits_for_a_daemon_that_says_nothing() {
    let ends = ends();
    let mut ring = ends.client.ring().unwrap();
    assert!(ring.submit(put(1, 0), &[]));
    thread::scope(|threads| {
        assert!(threads.spawn(|| ends.client.ring().is_none()).join().unwrap());
        assert_eq!(threads.spawn(|| ends.client.strays()).join().unwrap(), []);
    });
    ends.serve();
    ring.finish(Duration::ZERO, never_gone, |_| {}).unwrap();
    assert!(ends.client.ring().is_some());
}

#[test]
fn what_was_given_up_is_caught_up_with() {
    let ends = ends();
    let create = |token| Submission { operation: Operation::Create, ..put(token, 0) };
    let give_up = |submissions: &[Submission]| {
        let mut ring = ends.client.ring().unwrap();
        for submission in submissions {
            assert!(ring.submit(*submission, &[]));
        }
        ring.finish_napping(Duration::from_millis(1), Duration::ZERO, || false, |_| {}).unwrap_err();
    };
    give_up(&[create(1), create(2), put(3, 0)]);
    let mut served = 0;
    while let Some(submission) = ends.engine.take() {
        assert!(ends.client.ring().is_none(), "there is more to come");
        assert!(ends.engine.was_given_up(ends.engine.last_taken()));
        let submission = submission.unwrap();
        // One of the submissions was refused.
        let outcome = if submission.token == 1 { Outcome::AskBySocket } else { Outcome::Done };
        assert!(ends.engine.complete(&Completion { outcome, ..done(&submission) }));
        served += 1;
    }
    assert_eq!(served, 3);
    assert!(ends.client.ring().is_none(), "what it would create may exist until it is aborted");
    assert_eq!(ends.client.strays(), [Stray::Creation(create(2).id)]);
    assert_eq!(ends.client.strays(), []);

    // Creations whose thread waited are no strays, nor are creations that are not completed yet.
    let mut ring = ends.client.ring().unwrap();
    assert!(ring.submit(create(4), &[]));
    ends.serve();
    assert!(!ends.engine.was_given_up(ends.engine.last_taken()));
    ring.finish(Duration::ZERO, never_gone, |_| {}).unwrap();
    give_up(&[put(4, 0)]);
    assert!(ends.client.ring().is_none());
    assert_eq!(ends.client.strays(), []);
    ends.serve();
    let mut ring = ends.client.ring().unwrap();
    assert_eq!(ends.client.strays(), []);
    // The whole data area can be used again.
    assert!(ring.submit(put(5, DATA_LEN), &[&bytes(5, DATA_LEN)]));
    assert_eq!(ends.serve(), 1);
    let mut completions = Vec::new();
    ring.finish(Duration::ZERO, never_gone, |completion| completions.push(completion)).unwrap();
    assert_eq!(completions, [done(&put(5, 0))]);
}

#[test]
fn an_outcome_that_nobody_collected_is_a_stray() {
    let ends = ends();
    let strays = [(Operation::Delete, None), (Operation::Put, None), (Operation::Create, Some(put(1, 0).id))];
    for (operation, created) in strays {
        let mut ring = ends.client.ring().unwrap();
        assert!(ring.submit(Submission { operation, ..put(1, 0) }, &[]));
        ring.finish_napping(Duration::from_millis(1), Duration::ZERO, || false, |_| {}).unwrap_err();
        let submission = ends.engine.take().unwrap().unwrap();
        let collect = Completion { outcome: Outcome::Collect, answer: 9, ..done(&submission) };
        assert!(ends.engine.complete(&collect));
        assert!(ends.client.ring().is_none());
        assert_eq!(ends.client.strays(), [Stray::Outcome(9, created)]);
        assert!(ends.client.ring().is_some());
    }
}

#[test]
fn nobody_is_patient_while_others_want_the_rings() {
    let ends = ends();
    let is_patient = |ring: &mut Ring<'_>| {
        assert!(ring.submit(Submission { patient: true, ..put(1, 0) }, &[]));
        let submission = ends.engine.take().unwrap().unwrap();
        assert!(ends.engine.complete(&done(&submission)));
        submission.patient
    };
    let patient = || {
        let mut ring = ends.client.ring().unwrap();
        let patient = is_patient(&mut ring);
        ring.finish(Duration::ZERO, never_gone, |_| {}).unwrap();
        patient
    };
    assert!(patient());
    thread::scope(|threads| {
        let ring = ends.client.ring().unwrap();
        assert!(threads.spawn(|| ends.client.ring().is_none()).join().unwrap());
        drop(ring);
    });
    assert!(!patient());
    assert!((0..100).any(|_| patient()), "the others have gone long since");
}

#[test]
fn who_is_asked_whether_to_go_on_may_use_the_client() {
    let ends = ends();
    let mut ring = ends.client.ring().unwrap();
    assert!(ring.submit(put(1, 0), &[]));
    let mut asked = 0;
    let alive = || {
        asked += 1;
        assert!(ends.client.ring().is_none(), "there is one, and somebody has it");
        asked < 3 || ends.serve() == 1
    };
    ring.finish_napping(Duration::from_millis(1), Duration::ZERO, alive, |_| {}).unwrap();
    assert_eq!(asked, 3);
    assert!(ends.client.ring().is_some());
}

/// The engine sleeps on its bell, the clients' threads on their completions, 10,000 times.
#[test]
fn nobody_oversleeps() {
    const ROUNDS: u64 = 10_000;
    /// Length of a nap. A nap ends by its length only in a failing test.
    const NAP: Duration = Duration::from_secs(120);
    /// Time in milliseconds of a look at the bell, and number of looks in a row without a ring after which a
    /// client oversleeps.
    const LOOK_MS: i64 = 100;
    const MAX_QUIET_LOOKS: u32 = 300;
    let ends = ends();
    let Ends { engine, client, bell, .. } = &ends;
    let mut overslept = false;
    thread::scope(|threads| {
        let clients: Vec<_> = (0..2u64)
            .map(|thread| {
                threads.spawn(move || {
                    for round in (thread..ROUNDS).step_by(2) {
                        let count = 1 + round % 3;
                        let mut ring = iter::from_fn(|| Some(client.ring())).flatten().next().unwrap();
                        for n in 0..count {
                            assert!(ring.submit(put(round + n, 16), &[&bytes(round + n, 16)]));
                        }
                        let spin = Duration::from_micros(round % 4 * 5);
                        let mut tokens = Vec::new();
                        let done = |completion: Completion| tokens.push(completion.token);
                        ring.finish_napping(NAP, spin, never_gone, done).unwrap();
                        assert_eq!(tokens, (round..round + count).collect::<Vec<_>>());
                    }
                })
            })
            .collect();
        let (mut round, mut quiet_looks) = (0u64, 0);
        while !clients.iter().all(thread::ScopedJoinHandle::is_finished) {
            round += 1;
            engine.set_attention(true, round.is_multiple_of(2));
            while ends.serve() > 0 {}
            engine.set_attention(false, false);
            if engine.has_submissions() {
                continue;
            }
            // Only the bell wakes the engine. The time-out only ends a failing test.
            let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: LOOK_MS * 1_000_000 };
            let rang = poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&timeout)).unwrap() > 0;
            assert!(rang || !engine.has_submissions(), "the engine slept while there was something to do");
            ends.rang();
            quiet_looks = if rang { 0 } else { quiet_looks + 1 };
            overslept |= quiet_looks > MAX_QUIET_LOOKS;
        }
    });
    assert!(!overslept, "only the end of its nap woke a client");
}

#[test]
fn the_bell_is_rung_only_for_an_engine_that_sleeps() {
    let ends = ends();
    for looks in [false, true] {
        ends.engine.set_attention(looks, false);
        let mut ring = ends.client.ring().unwrap();
        assert!(ring.submit(put(1, 0), &[]));
        ends.serve();
        ring.finish(Duration::ZERO, never_gone, |_| {}).unwrap();
        assert_eq!(ends.rang(), !looks);
    }
}

#[test]
fn a_client_says_on_which_core_it_waits() {
    let ends = ends();
    let cores = |ends: &Ends| (0..4096).filter(|core| ends.engine.is_on_core(*core)).count();
    assert_eq!(cores(&ends), 0);
    let mut ring = ends.client.ring().unwrap();
    assert!(ring.submit(put(1, 0), &[]));
    ends.serve();
    ring.finish(Duration::ZERO, never_gone, |_| ()).unwrap();
    assert_eq!(cores(&ends), 1);
}

#[test]
fn pins_are_seen_until_they_are_taken_back() {
    let ends = ends();
    let seen = || {
        let mut seen = Vec::new();
        ends.engine.for_each_pin(|table, entry| seen.push((table, entry)));
        seen
    };
    assert_eq!(seen(), []);
    let first = ends.client.pin(TableId::Shared, 0).unwrap();
    let second = ends.client.pin(TableId::Private, u32::MAX).unwrap();
    assert_eq!(seen(), [(TableId::Shared, 0), (TableId::Private, u32::MAX)]);
    ends.client.unpin(first);
    assert_eq!(seen(), [(TableId::Private, u32::MAX)]);
    ends.client.unpin(second);
    assert_eq!(seen(), []);

    let slots: Vec<Slot> =
        (0..SLOTS as u32).map(|entry| ends.client.pin(TableId::Shared, entry).unwrap()).collect();
    assert!(ends.client.pin(TableId::Shared, 9).is_none(), "one more than there are slots");
    assert_eq!(seen(), (0..SLOTS as u32).map(|entry| (TableId::Shared, entry)).collect::<Vec<_>>());
    slots.into_iter().for_each(|slot| ends.client.unpin(slot));
    assert_eq!(seen(), []);
    assert!(ends.client.pin(TableId::Shared, 9).is_some());
}

/// Threads that pin and unpin at the same time never share a slot.
#[test]
fn threads_have_slots_of_their_own() {
    const THREADS: u32 = 4;
    const EACH: u32 = SLOTS as u32 / THREADS;
    let Ends { engine, client, .. } = &ends();
    let all_pinned = Barrier::new(THREADS as usize + 1);
    thread::scope(|threads| {
        for thread in 0..THREADS {
            let all_pinned = &all_pinned;
            threads.spawn(move || {
                let entries = thread * EACH..(thread + 1) * EACH;
                for _ in 0..3 {
                    let slots: Vec<_> =
                        entries.clone().map(|entry| client.pin(TableId::Shared, entry).unwrap()).collect();
                    slots.into_iter().for_each(|slot| client.unpin(slot));
                }
                let slots: Vec<_> = entries.map(|entry| client.pin(TableId::Shared, entry)).collect();
                all_pinned.wait();
                assert!(slots.iter().all(Option::is_some));
            });
        }
        all_pinned.wait();
        let mut seen = HashSet::new();
        engine.for_each_pin(|_, entry| assert!(seen.insert(entry)));
        assert_eq!(seen.len(), SLOTS);
    });
}

#[test]
fn access_bits_are_asked_for_once() {
    let ends = ends();
    ends.client.touch(TableId::Shared, 70);
    ends.client.touch(TableId::Private, u32::MAX);
    assert!(!ends.engine.take_accessed(TableId::Private, 70));
    assert!(!ends.engine.take_accessed(TableId::Shared, 71));
    for (table, entry) in [(TableId::Shared, 70), (TableId::Private, u32::MAX)] {
        assert!(ends.engine.take_accessed(table, entry));
        assert!(!ends.engine.take_accessed(table, entry));
    }
}

#[test]
fn a_page_set_of_another_shape_is_refused() {
    let bell = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let (_words, file) = Words::for_writers("no-magic", PAGE_SET_BYTES).unwrap();
    assert!(ClientChannel::new(&file, bell()).is_err());
    let (_words, file) = Words::for_writers("short", 4096).unwrap();
    assert!(ClientChannel::new(&file, bell()).is_err());
    let file = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, PAGE_SET_BYTES as u64).unwrap();
    assert!(ClientChannel::new(&file, bell()).is_err(), "it may shrink while it is mapped");
}

#[test]
fn ends_further_apart_than_the_ring_is_long_are_malformed() {
    let ends = ends();
    let words = Words::open(&ends.pages, true).unwrap();
    for apart in [ENTRIES + 1, u64::MAX] {
        words.at(64 / 8).store(apart, Ordering::Relaxed);
        assert_eq!(ends.engine.take(), Some(Err(Malformed::Ends(apart))));
    }
}

proptest! {
    /// The engine's calls end with valid results, whatever the words hold.
    #[test]
    fn the_engine_survives_any_words(
        garbage in prop::collection::vec((0..PAGE_SET_BYTES / 8, any::<u64>()), 0..64),
        heads in prop::collection::vec(
            (prop_oneof![Just(64 / 8), Just(256 / 8), Just(448 / 8)], 0..600u64), 0..4,
        ),
        at: u32, len in 0..2 * DATA_LEN,
    ) {
        let ends = ends();
        let words = Words::open(&ends.pages, true).unwrap();
        for (at, value) in garbage.iter().chain(&heads) {
            words.at(*at).store(*value, Ordering::Relaxed);
        }
        be_the_engine(&ends.engine);
        // The other results are none, or errors.
        prop_assert!(!matches!(ends.engine.take(), Some(Ok(_))));
        let inside = at as usize + len <= DATA_LEN;
        let copied = ends.engine.payload(at, &mut vec![0; len]);
        prop_assert_eq!(copied, if inside { Ok(()) } else { Err(Malformed::Payload) });
    }
}

/// Makes every call that the engine makes on a page set. The number of entries that are taken is limited,
/// because a client can submit without end.
fn be_the_engine(engine: &EngineChannel) {
    for _ in 0..ENTRIES {
        let Some(Ok(submission)) = engine.take() else { break };
        // Lengths are the client's words, too, so the engine bounds them.
        let mut payload = vec![0; (submission.data_len as usize).min(4096)];
        let _ = engine.payload(submission.payload, &mut payload);
        engine.complete(&done(&submission));
    }
    engine.wake();
    let mut pins = 0;
    engine.for_each_pin(|_, _| pins += 1);
    assert!(pins <= SLOTS);
    engine.take_accessed(TableId::Private, pins as u32);
    engine.set_attention(pins % 2 == 0, false);
}

/// A client writes at random into every word while the engine works.
#[test]
fn a_client_that_writes_garbage_hurts_nobody_else() {
    const ROUNDS: u64 = 3_000;
    let vandal = ends();
    let neighbour = ends();
    let words = Words::open(&vandal.pages, true).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            let mut random = 7u64;
            while !over.load(Ordering::Relaxed) {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let value = match random >> 62 {
                    0 => random,
                    1 => random >> 56,
                    2 => 1,
                    _ => u64::MAX,
                };
                // Ends and pins are written more often than other words.
                let at =
                    (random >> 20) as usize % if random >> 40 & 1 == 0 { 64 } else { PAGE_SET_BYTES / 8 };
                words.at(at).store(value, Ordering::Relaxed);
            }
        });
        for round in 0..ROUNDS {
            be_the_engine(&vandal.engine);
            let mut ring = neighbour.client.ring().unwrap();
            assert!(ring.submit(put(round, 100), &[&bytes(round, 100)]));
            assert_eq!(neighbour.serve(), 1);
            let mut tokens = Vec::new();
            ring.finish(Duration::ZERO, never_gone, |completion| tokens.push(completion.token)).unwrap();
            assert_eq!(tokens, [round]);
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// Two threads of a client find, pin, validate and read objects, while the engine evicts unpinned objects and
/// puts others in their memory. A read never returns bytes of another object. The test lasts until the engine
/// has met a pin and has evicted an object, however the host schedules the threads.
#[test]
fn memory_that_a_pin_holds_is_not_used_again() {
    const OBJECTS: u64 = 8;
    const WORDS_EACH: usize = 32;
    const READS: u64 = 100_000;
    let Ends { engine, client, .. } = &ends();
    let mut writer = TableWriter::new().unwrap();
    let arena: Vec<AtomicU64> =
        (0..OBJECTS * WORDS_EACH as u64).map(|at| AtomicU64::new(at / WORDS_EACH as u64)).collect();
    let place = |n: u64| &arena[n as usize * WORDS_EACH..(n as usize + 1) * WORDS_EACH];
    let id = |n: u64| ObjectId::from_bytes([n as u8; ObjectId::LEN]);
    let numbers: Vec<u32> = (0..OBJECTS)
        .map(|n| {
            let new =
                NewEntry { id: id(n), offset: Some(n), data_len: 0, metadata_len: 0, digest: n, uid: 0 };
            writer.insert(&new).unwrap()
        })
        .collect();
    let mut grants = writer.grants();
    let reader = TableReader::new(&grants.next().unwrap().1.try_clone().unwrap()).unwrap();
    grants.for_each(|(part, file)| reader.add(part, &file.try_clone().unwrap()).unwrap());
    let (reads, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut evicted, mut kept) = (0u64, 0u64);
    thread::scope(|threads| {
        let readers = [0, 1].map(|thread| {
            let (reader, reads, over) = (&reader, &reads, &over);
            threads.spawn(move || {
                let mut n = thread;
                while !over.load(Ordering::Relaxed) {
                    n = (n + 1) % OBJECTS;
                    let Found::Entry { number, snapshot } = reader.find(&id(n)) else { continue };
                    let slot = client.pin(TableId::Shared, number).unwrap();
                    if reader.still_is(number, snapshot.generation) {
                        for word in place(snapshot.offset) {
                            assert_eq!(word.load(Ordering::Relaxed), snapshot.digest);
                        }
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                    client.unpin(slot);
                }
            })
        });
        let mut value = OBJECTS;
        let mut numbers = numbers;
        while reads.load(Ordering::Relaxed) < READS || evicted == 0 || kept == 0 {
            if readers.iter().any(|reader| reader.is_finished()) {
                break;
            }
            value += 1;
            let n = value % OBJECTS;
            writer.hide(numbers[n as usize]);
            fence(Ordering::SeqCst);
            let mut pinned = false;
            engine.for_each_pin(|_, entry| pinned |= entry == numbers[n as usize]);
            if pinned {
                writer.show(numbers[n as usize]);
                kept += 1;
                continue;
            }
            writer.remove(numbers[n as usize]);
            writer.free(numbers[n as usize]);
            place(n).iter().for_each(|word| word.store(value, Ordering::Relaxed));
            let new =
                NewEntry { id: id(n), offset: Some(n), data_len: 0, metadata_len: 0, digest: value, uid: 0 };
            numbers[n as usize] = writer.insert(&new).unwrap();
            evicted += 1;
        }
        over.store(true, Ordering::Relaxed);
    });
}
