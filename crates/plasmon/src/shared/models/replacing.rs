//! Models of an object that takes the place of another of its id in the table: whoever looks for the id finds
//! the former object, or is told to ask, or finds the successor, in this order. Nobody is told that there is
//! none, and nobody reads the memory of the former object after it went to another one.
//!
//! The engine's steps are those of `object::table::supersede` and of `TableWriter`, the reader's those of
//! `TableReader` and of the client's `Fast`.

use loom::sync::Arc;
use loom::sync::atomic::{Ordering, fence};
use loom::thread;

use super::{Memory, check, object};
use crate::shared::channel::pins::{self, Slot, TableId};
use crate::shared::table::entry::{Entry, Snapshot};
use crate::shared::table::index::Index;
use crate::shared::table::root::Root;
use crate::shared::words::Words;

const HASH: u64 = 7 << 32;
/// Numbers of entries: of the object that is replaced, of its successor, and of one whose word in the index
/// is free again.
const FORMER: u32 = 0;
const SUCCESSOR: u32 = 1;
const NEIGHBOUR: u32 = 2;
/// Number that all fields of the id of both objects have, and numbers of their digests.
const ID: u8 = 9;
/// What the memory of a freed object holds.
const OF_ANOTHER: u64 = 99;

/// What a search comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    Former,
    Asks,
    Successor,
}

struct Table {
    root: Root,
    index: Index,
    entries: Words,
    pages: Words,
    /// The bytes of the former object, and of its successor.
    memory: [Memory; 2],
}

impl Table {
    /// Makes the table of a node that is alone, with the former object behind a word that was used before, or
    /// in front of all free words.
    fn new(is_behind_a_free_word: bool) -> Arc<Self> {
        let root = Root::begin(Words::in_memory([0, 1, 5]), 0);
        let index = Index::new(Words::in_memory(0..8), 8);
        let (entries, pages) = (Words::in_memory(0..16), super::pages(2));
        let memory = [FORMER, SUCCESSOR].map(|number| Memory::new(number.into()));
        let table = Self { root, index, entries, pages, memory };
        if is_behind_a_free_word {
            assert!(table.index.insert(HASH, NEIGHBOUR).is_some());
        }
        table.enter(FORMER, true);
        if is_behind_a_free_word {
            assert!(table.index.remove(HASH, NEIGHBOUR));
        }
        Arc::new(table)
    }

    fn entry(&self, number: u32) -> Entry<'_> {
        Entry::new(&self.entries, number as usize)
    }

    /// Enters an object, hidden or not, as `TableWriter::insert_as` does.
    fn enter(&self, number: u32, is_shown: bool) {
        let new = Snapshot { digest: number.into(), ..object(ID) };
        self.entry(number).write(is_shown, |entry| entry.set(&new));
        assert!(self.index.insert(HASH, number).is_some());
    }

    /// Puts the successor in the place of the former object, and gives the memory of that one to another
    /// object, unless it is pinned.
    fn supersede(&self, is_shown: bool) {
        self.entry(FORMER).hide();
        self.enter(SUCCESSOR, is_shown);
        self.entry(FORMER).hide();
        self.root.count_removal();
        assert!(self.index.remove(HASH, FORMER));
        fence(Ordering::SeqCst);
        let mut pinned = false;
        pins::for_each_pin(&self.pages, |table, entry| {
            pinned |= table == TableId::Shared && entry == FORMER;
        });
        if !pinned {
            self.memory[FORMER as usize].write(OF_ANOTHER);
        }
    }

    /// Looks for the id, and reads the bytes of what is found.
    fn look(&self, slot: &Slot) -> Seen {
        let (before, mut is_hidden) = (self.root.removals(), false);
        let found = self.index.find(HASH, |number| match self.entry(number).read() {
            Some(snapshot) => (snapshot.id == object(ID).id).then_some((number, snapshot)),
            None => {
                is_hidden = true;
                None
            }
        });
        let Some((number, snapshot)) = found else {
            assert!(is_hidden || !self.root.still_has(before), "there is one throughout");
            return Seen::Asks;
        };
        assert_eq!(
            snapshot,
            Snapshot { generation: snapshot.generation, digest: number.into(), ..object(ID) }
        );
        pins::pin(&self.pages, slot, TableId::Shared, number);
        let holds = self.entry(number).is(snapshot.generation);
        if holds {
            assert_eq!(self.memory[number as usize].read(), u64::from(number));
        }
        pins::unpin(&self.pages, slot);
        match number {
            _ if !holds => Seen::Asks,
            FORMER => Seen::Former,
            _ => Seen::Successor,
        }
    }
}

fn a_successor_follows(is_behind_a_free_word: bool) {
    check(3, move || {
        let table = Table::new(is_behind_a_free_word);
        let reader = {
            let table = table.clone();
            thread::spawn(move || [0; 2].map(|slot| table.look(&Slot::nth(slot))))
        };
        table.supersede(true);
        let [one, other] = reader.join().unwrap();
        assert!(one <= other, "{one:?}, then {other:?}");
        assert_eq!(table.look(&Slot::nth(1)), Seen::Successor);
    });
}

#[test]
fn a_successor_is_found_in_the_place_of_the_former_object() {
    a_successor_follows(false);
}

/// The successor takes a word where searches have been already that come to the former object only then.
#[test]
fn a_successor_is_found_in_front_of_the_former_object() {
    a_successor_follows(true);
}

/// A guarded object is entered hidden: clients ask for it. From when it is shown it is found as a whole.
#[test]
fn an_object_that_is_entered_hidden_is_asked_for_until_it_is_shown() {
    check(3, || {
        let table = Table::new(false);
        table.supersede(false);
        let reader = {
            let table = table.clone();
            thread::spawn(move || [0; 2].map(|slot| table.look(&Slot::nth(slot))))
        };
        assert_eq!(table.look(&Slot::nth(1)), Seen::Asks);
        table.entry(SUCCESSOR).show();
        let [one, other] = reader.join().unwrap();
        assert!(Seen::Asks <= one && one <= other, "{one:?}, then {other:?}");
        assert_eq!(table.look(&Slot::nth(1)), Seen::Successor);
    });
}

/// While a guarded object comes in hidden, no reader finds it.
#[test]
fn nobody_finds_an_object_that_is_hidden() {
    check(3, || {
        let table = Table::new(false);
        let reader = {
            let table = table.clone();
            thread::spawn(move || [0; 2].map(|slot| table.look(&Slot::nth(slot))))
        };
        table.supersede(false);
        let [one, other] = reader.join().unwrap();
        assert!(one <= other && other < Seen::Successor, "{one:?}, then {other:?}");
    });
}
