//! Models of the orderings that [`shared`](super) relies on. Loom checks them in every interleaving and with
//! every value that a load may see:
//! `RUSTFLAGS="--cfg loom" cargo test --profile checked -p plasmon --lib models`.
//!
//! Loom's SeqCst fences order somewhat more than the language's do (they synchronize with each other), no
//! other thread runs between a store and the fence behind it, and no load sees a store that is executed
//! later. So a failing model shows a bug, while a passing one only supports the argument in the text.

mod replacing;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::channel::counts;
use super::channel::pins::{self, Slot, TableId};
use super::channel::ring::{ASLEEP, ATTENTION, COMPLETIONS, SUBMISSIONS};
use super::table::entry::{Entry, Snapshot, State};
use super::table::index::Index;
use super::words::Words;
use crate::ObjectId;

/// Checks all interleavings with at most `preemptions` preemptions.
pub(super) fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Returns an object whose every field is `n`.
fn object(n: u8) -> Snapshot {
    Snapshot {
        generation: 0,
        state: State::Sealed,
        id: ObjectId::from_bytes([n; ObjectId::LEN]),
        offset: n.into(),
        data_len: n.into(),
        metadata_len: n.into(),
        digest: n.into(),
        uid: n.into(),
    }
}

/// Returns the words of a chunk for this number of objects, eight for each.
fn entries(objects: usize) -> Words {
    let words = Words::in_memory(0..8 * objects);
    for at in 0..objects {
        Entry::new(&words, at).write(true, |entry| entry.set(&object(at as u8 + 1)));
    }
    words
}

/// Returns the words of the first pins of a page set, and of the number of used pins.
fn pages(slots: usize) -> Words {
    let first = (36 << 10) / 8;
    Words::in_memory((first..first + slots).chain([448 / 8]))
}

/// Bytes of an object, which hold the generation of its entry.
struct Memory(UnsafeCell<u64>);

impl Memory {
    fn new(value: u64) -> Self {
        Self(UnsafeCell::new(value))
    }

    fn read(&self) -> u64 {
        // SAFETY: loom reports concurrent accesses, which this model looks for.
        self.0.with(|byte| unsafe { *byte })
    }

    fn write(&self, value: u64) {
        // SAFETY: loom reports concurrent accesses, which this model looks for.
        self.0.with_mut(|byte| unsafe { *byte = value });
    }
}

// SAFETY: loom's cell reports when two threads access it at a time.
unsafe impl Sync for Memory {}

struct Store {
    entries: Words,
    pages: Words,
    memory: [Memory; 2],
}

impl Store {
    fn new(objects: usize) -> Arc<Self> {
        let memory = [(); 2].map(|()| Memory::new(2));
        Arc::new(Self { entries: entries(objects), pages: pages(2), memory })
    }

    /// Reads an object as a client does.
    fn get(&self, number: u32, slot: &Slot) {
        let entry = Entry::new(&self.entries, number as usize);
        let Some(snapshot) = entry.read() else { return };
        pins::pin(&self.pages, slot, TableId::Shared, number);
        if entry.is(snapshot.generation) {
            assert_eq!(self.memory[number as usize].read(), snapshot.generation);
        }
        pins::unpin(&self.pages, slot);
    }

    /// Replaces an object by another in the same place as the engine does, unless the object is pinned.
    fn evict(&self, number: u32, generation: u64) {
        let entry = Entry::new(&self.entries, number as usize);
        entry.hide();
        fence(Ordering::SeqCst);
        let mut pinned = false;
        pins::for_each_pin(&self.pages, |table, entry| {
            pinned |= table == TableId::Shared && entry == number;
        });
        if pinned {
            entry.show();
        } else {
            self.memory[number as usize].write(generation);
            entry.write(true, |_| ());
        }
    }
}

/// Two threads of a client read while the engine evicts: pinned bytes are never written.
#[test]
fn a_pinned_object_stays() {
    check(3, || {
        let store = Store::new(1);
        let clients: Vec<_> = (0..2)
            .map(|slot| {
                let store = store.clone();
                thread::spawn(move || store.get(0, &Slot::nth(slot)))
            })
            .collect();
        store.evict(0, 4);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
}

/// A client reads the object that was evicted and the one in its place.
#[test]
fn a_pin_is_of_the_object_that_was_found() {
    check(3, || {
        let store = Store::new(1);
        let client = {
            let store = store.clone();
            thread::spawn(move || (0..2).for_each(|_| store.get(0, &Slot::nth(0))))
        };
        store.evict(0, 4);
        client.join().unwrap();
    });
}

/// The engine finds another object in the slot. Even then, the reads of the former object are over.
#[test]
fn a_slot_used_again_does_not_hide_the_reads_before() {
    check(3, || {
        let store = Store::new(2);
        let client = {
            let store = store.clone();
            thread::spawn(move || {
                store.get(0, &Slot::nth(0));
                // There is no fence yet.
                pins::announce(&store.pages, &Slot::nth(0), TableId::Shared, 1);
            })
        };
        store.evict(0, 4);
        client.join().unwrap();
    });
}

#[test]
fn a_snapshot_is_never_a_mixture() {
    check(3, || {
        let words = Arc::new(entries(1));
        let reader = {
            let words = words.clone();
            thread::spawn(move || Entry::new(&words, 0).read())
        };
        Entry::new(&words, 0).write(true, |entry| entry.set(&object(2)));
        Entry::new(&words, 0).write(true, |entry| entry.set_place(State::Spilled, 0));
        if let Some(read) = reader.join().unwrap() {
            let expected = match (read.generation, read.state) {
                (2, State::Sealed) => object(1),
                (4, State::Sealed) => object(2),
                (6, State::Spilled) => Snapshot { state: State::Spilled, offset: 0, ..object(2) },
                odd => panic!("{odd:?} was never written"),
            };
            assert_eq!(read, Snapshot { generation: read.generation, ..expected });
        }
    });
}

/// Returns the words of the ends of a ring and of its first two entries, and `beside`.
fn ring_words(first: usize, ends: [usize; 2], beside: usize) -> Words {
    Words::in_memory((first..first + 16).chain(ends).chain([beside]))
}

fn submissions() -> Words {
    ring_words((4 << 10) / 8, [64 / 8, 128 / 8], 320 / 8)
}

fn completions() -> Words {
    ring_words((20 << 10) / 8, [192 / 8, 256 / 8], 384 / 8)
}

fn entry(n: u64) -> [u64; 8] {
    [n; 8]
}

#[test]
fn what_is_taken_is_what_was_put() {
    check(3, || {
        let words = Arc::new(submissions());
        let client = {
            let words = words.clone();
            thread::spawn(move || (0..2).for_each(|n| assert!(SUBMISSIONS.put(&words, n, entry(n + 1)))))
        };
        let waiting = SUBMISSIONS.waiting(&words, 0);
        for n in 0..waiting {
            assert_eq!(SUBMISSIONS.take(&words, n), entry(n + 1));
        }
        client.join().unwrap();
        assert_eq!(SUBMISSIONS.waiting(&words, waiting), 2 - waiting);
    });
}

/// The engine goes to sleep while a client submits twice: its bell is rung, or it has seen both.
#[test]
fn the_engine_does_not_oversleep() {
    check(3, || {
        let words = Arc::new(submissions());
        let bell = Arc::new(AtomicBool::new(false));
        ATTENTION.set(&words, true, false);
        let client = {
            let (words, bell) = (words.clone(), bell.clone());
            thread::spawn(move || {
                for n in 0..2 {
                    assert!(SUBMISSIONS.put(&words, n, entry(n)));
                    if ATTENTION.must_ring(&words) {
                        bell.store(true, Ordering::Release);
                    }
                }
            })
        };
        ATTENTION.set(&words, false, false);
        let seen = SUBMISSIONS.waiting(&words, 0);
        client.join().unwrap();
        let rung = bell.load(Ordering::Acquire);
        assert!(rung || seen == 2, "asleep with {} entries unseen and no bell", 2 - seen);
    });
}

/// Model of the kernel's futex: checking the word and falling asleep is one step for the thread that wakes.
#[derive(Default)]
pub(super) struct Futex(Mutex<bool>);

impl Futex {
    /// Falls asleep, unless `has_come` returns true.
    pub(super) fn wait(&self, has_come: impl FnOnce() -> bool) {
        let mut sleeps = self.0.lock().unwrap();
        *sleeps = !has_come();
    }

    pub(super) fn wake(&self) {
        *self.0.lock().unwrap() = false;
    }

    pub(super) fn sleeps(&self) -> bool {
        *self.0.lock().unwrap()
    }
}

#[test]
fn a_client_does_not_oversleep() {
    check(3, || {
        let words = Arc::new(completions());
        let futex = Arc::new(Futex::default());
        let engine = {
            let (words, futex) = (words.clone(), futex.clone());
            thread::spawn(move || {
                assert!(COMPLETIONS.put(&words, 0, entry(1)));
                if ASLEEP.must_wake(&words) {
                    futex.wake();
                }
            })
        };
        ASLEEP.set(&words, true);
        if COMPLETIONS.waiting(&words, 0) == 0 {
            futex.wait(|| COMPLETIONS.waiting(&words, 0) > 0);
        }
        engine.join().unwrap();
        assert!(!futex.sleeps(), "asleep with a completion and nobody to wake it");
    });
}

/// Neighbours of an object come and go: the object is always found. A new object is also found, as a whole.
#[test]
fn what_is_there_throughout_is_found() {
    const HASH: u64 = 7 << 32;
    const THERE: u32 = 0;
    const FORMER: u32 = 1;
    const NEW: u32 = 2;
    check(3, || {
        let index = Arc::new(Index::new(Words::in_memory(0..16), 16));
        let table = Arc::new(Words::in_memory(0..24));
        let write = |number: u32| {
            Entry::new(&table, number as usize).write(true, |entry| entry.set(&object(number as u8)));
        };
        [FORMER, THERE].into_iter().for_each(|number| {
            write(number);
            assert!(index.insert(HASH, number).is_some());
        });
        let reader = {
            let (index, table) = (index.clone(), table.clone());
            thread::spawn(move || {
                let found = index.find(HASH, |number| {
                    let read =
                        Entry::new(&table, number as usize).read().expect("written before it is found");
                    assert_eq!(read.digest, u64::from(number));
                    (number == THERE).then_some(read)
                });
                assert!(found.is_some(), "out of sight");
            })
        };
        assert!(index.remove(HASH, FORMER));
        write(NEW);
        assert!(index.insert(HASH, NEW).is_some());
        reader.join().unwrap();
    });
}

/// Gets of several threads are all counted, and the engine's sums never shrink meanwhile.
#[test]
fn no_get_is_lost_from_the_counts() {
    check(3, || {
        let words = Arc::new(Words::in_memory(counts::words_of(2)));
        let readers: Vec<_> = (0..2)
            .map(|slot| {
                let words = Arc::clone(&words);
                thread::spawn(move || (0..2).for_each(|_| drop(counts::count(&words, slot))))
            })
            .collect();
        let (one, other) = (counts::read(&words, 2).gets, counts::read(&words, 2).gets);
        assert!(one <= other && other <= 4, "{one}, {other}");
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(counts::read(&words, 2).gets, 4);
    });
}
