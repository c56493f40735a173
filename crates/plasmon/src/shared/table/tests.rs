//! Tests of a writer and a reader of one table, in one process, over the mappings that two processes have.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use proptest::prelude::*;

use super::index::{LINE_WORDS, MAX_PROBE_LINES};
use super::layout::{MAX_CHUNKS, chunk_len, chunk_start, place_of};
use super::*;
use crate::ObjectId;

/// Table, and a reader that asks for parts as a client does.
struct Table {
    writer: Mutex<TableWriter>,
    reader: TableReader,
}

impl Table {
    fn new() -> Self {
        let writer = TableWriter::new().unwrap();
        let (part, root) = writer.grants().next().unwrap();
        assert_eq!(part, Part::Root);
        let reader = TableReader::new(&root.try_clone().unwrap()).unwrap();
        Self { writer: Mutex::new(writer), reader }
    }

    fn writer(&self) -> MutexGuard<'_, TableWriter> {
        self.writer.lock().unwrap()
    }

    fn find(&self, id: &ObjectId) -> Found {
        loop {
            match self.reader.find(id) {
                Found::Outdated => {
                    for (part, file) in self.writer().grants() {
                        self.reader.add(part, &file.try_clone().unwrap()).unwrap();
                    }
                }
                found => return found,
            }
        }
    }

    fn snapshot(&self, id: &ObjectId) -> (u32, Snapshot) {
        match self.find(id) {
            Found::Entry { number, snapshot } => (number, snapshot),
            found => panic!("{id} is there, and the table says {found:?}"),
        }
    }
}

/// Returns an id that begins with `n` and is well mixed behind it.
fn id(n: u64) -> ObjectId {
    let mut bytes = [0; ObjectId::LEN];
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    bytes[8..16].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    ObjectId::from_bytes(bytes)
}

fn first_word(id: &ObjectId) -> u64 {
    u64::from_le_bytes(id.as_bytes()[..8].try_into().unwrap())
}

/// Returns an object whose fields follow from its id and from the number of its moves.
fn object(id: ObjectId, moves: u64) -> NewEntry {
    let n = first_word(&id);
    NewEntry {
        id,
        offset: Some(n << 8 | moves),
        data_len: n.wrapping_mul(3),
        metadata_len: (n as u32).wrapping_mul(7),
        digest: n.wrapping_mul(11),
        uid: (n as u32).wrapping_mul(13),
    }
}

fn assert_belongs_together(id: &ObjectId, snapshot: &Snapshot) {
    let expected = object(*id, snapshot.offset & 0xff);
    let place = (snapshot.state == State::Sealed).then_some(snapshot.offset);
    assert_eq!(snapshot.generation % 2, 0);
    assert_eq!(snapshot.id, *id);
    match snapshot.state {
        State::Sealed => assert_eq!(place, expected.offset),
        State::Spilled => assert_eq!(snapshot.offset, 0),
        State::Free => panic!("{id} was found in an entry that is nobody's"),
    }
    assert_eq!(
        (snapshot.data_len, snapshot.metadata_len, snapshot.digest, snapshot.uid),
        (expected.data_len, expected.metadata_len, expected.digest, expected.uid)
    );
}

#[derive(Debug, Clone)]
enum Step {
    Insert {
        spilled: bool,
    },
    /// Other objects are entered and stay, in this number: the index grows.
    InsertMany(u16),
    /// Other objects are entered and removed, in this number: the index fills with former entries.
    Churn(u16),
    Remove,
    Free,
    Hide,
    Show,
    /// The object is in memory from now on, or on disk only.
    Place(Option<u64>),
    Tend(u16),
    Solo(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => any::<bool>().prop_map(|spilled| Step::Insert { spilled }),
        1 => (1..2000u16).prop_map(Step::InsertMany),
        1 => (1..2000u16).prop_map(Step::Churn),
        4 => Just(Step::Remove),
        3 => Just(Step::Free),
        3 => Just(Step::Hide),
        3 => Just(Step::Show),
        5 => any::<Option<u64>>().prop_map(Step::Place),
        3 => (0..3000u16).prop_map(Step::Tend),
        2 => any::<bool>().prop_map(Step::Solo),
    ]
}

/// Object in the model.
struct Known {
    number: u32,
    offset: Option<u64>,
    generation: u64,
    hidden: bool,
}

#[derive(Default)]
struct Model {
    live: HashMap<u64, Known>,
    removed: Vec<u32>,
    /// Numbers of entries that are live or removed.
    taken: HashSet<u32>,
    /// Numbers of entries with generations that the entries no longer have.
    past: HashSet<(u32, u64)>,
    solo: bool,
    others: u64,
}

impl Model {
    fn apply(&mut self, table: &Table, n: u64, step: &Step) {
        match step {
            Step::Insert { spilled } => {
                if !self.live.contains_key(&n) {
                    self.insert(table, n, *spilled);
                }
            }
            Step::InsertMany(count) => {
                for _ in 0..*count {
                    let n = self.other();
                    self.insert(table, n, false);
                }
            }
            Step::Churn(count) => {
                for _ in 0..*count {
                    let n = self.other();
                    let mut writer = table.writer();
                    let number = writer.insert(&object(id(n), 0)).unwrap();
                    writer.remove(number);
                    writer.free(number);
                }
            }
            Step::Remove => {
                if let Some(known) = self.live.remove(&n) {
                    table.writer().remove(known.number);
                    self.past.insert((known.number, known.generation));
                    self.removed.push(known.number);
                }
            }
            Step::Free => {
                if let Some(number) = self.removed.pop() {
                    table.writer().free(number);
                    self.taken.remove(&number);
                }
            }
            Step::Hide | Step::Show => {
                if let Some(known) = self.live.get_mut(&n) {
                    known.hidden = matches!(step, Step::Hide);
                    let mut writer = table.writer();
                    if known.hidden { writer.hide(known.number) } else { writer.show(known.number) }
                }
            }
            Step::Place(offset) => {
                if let Some(known) = self.live.get_mut(&n) {
                    match offset {
                        Some(offset) => table.writer().set_sealed(known.number, *offset, true),
                        None => table.writer().set_spilled(known.number, true),
                    }
                    self.past.insert((known.number, known.generation));
                    let generation = table.snapshot(&id(n)).1.generation;
                    *known = Known { offset: *offset, generation, hidden: false, ..*known };
                }
            }
            Step::Tend(budget) => {
                table.writer().tend((*budget).into()).unwrap();
            }
            Step::Solo(solo) => {
                table.writer().set_solo(*solo);
                self.solo = *solo;
            }
        }
    }

    /// Returns the number of a new object that no step changes.
    fn other(&mut self) -> u64 {
        self.others += 1;
        self.others << 32
    }

    fn insert(&mut self, table: &Table, n: u64, spilled: bool) {
        let new = object(id(n), 0);
        let new = NewEntry { offset: new.offset.filter(|_| !spilled), ..new };
        let number = table.writer().insert(&new).unwrap();
        assert!(self.taken.insert(number), "number {number} is in use");
        let generation = table.snapshot(&id(n)).1.generation;
        self.live.insert(n, Known { number, offset: new.offset, generation, hidden: false });
    }

    fn check(&self, table: &Table, n: u64) {
        let found = table.find(&id(n));
        match self.live.get(&n) {
            None if self.solo => assert_eq!(found, Found::Absent),
            None => assert_eq!(found, Found::Unknown),
            Some(known) if known.hidden => {
                assert_eq!(found, Found::Unknown);
                assert!(!table.reader.still_is(known.number, known.generation));
            }
            Some(known) => {
                let object = object(id(n), 0);
                let snapshot = Snapshot {
                    generation: known.generation,
                    state: if known.offset.is_some() { State::Sealed } else { State::Spilled },
                    id: id(n),
                    offset: known.offset.unwrap_or(0),
                    data_len: object.data_len,
                    metadata_len: object.metadata_len,
                    digest: object.digest,
                    uid: object.uid,
                };
                assert_eq!(found, Found::Entry { number: known.number, snapshot });
                assert!(table.reader.still_is(known.number, known.generation));
            }
        }
    }

    fn check_all(&self, table: &Table) {
        self.live.keys().for_each(|n| self.check(table, *n));
        for (number, generation) in &self.past {
            assert!(!table.reader.still_is(*number, *generation), "entry {number} is what it was");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_reader_finds_what_the_writer_says(steps in prop::collection::vec((0..24u64, step()), 1..120)) {
        let table = Table::new();
        let mut model = Model::default();
        for (n, step) in &steps {
            model.apply(&table, *n, step);
            (0..24).for_each(|n| model.check(&table, n));
        }
        model.check_all(&table);
    }
}

/// None of thousands of objects is missing at any moment while the index doubles five times.
#[test]
fn growth_loses_sight_of_nothing() {
    const OBJECTS: u64 = 100_000;
    let table = Table::new();
    table.writer().set_solo(true);
    let inserted = AtomicU64::new(0);
    thread::scope(|threads| {
        threads.spawn(|| {
            let mut n = 0u64;
            while inserted.load(Ordering::Acquire) < OBJECTS {
                n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let there = inserted.load(Ordering::Acquire);
                if there > 0 {
                    let id = id((n >> 33) % there);
                    assert_belongs_together(&id, &table.snapshot(&id).1);
                }
            }
        });
        for n in 0..OBJECTS {
            assert_eq!(table.find(&id(n)), Found::Absent);
            let number = table.writer().insert(&object(id(n), 0)).unwrap();
            inserted.store(n + 1, Ordering::Release);
            assert_eq!(table.snapshot(&id(n)).0, number);
        }
    });
    let doubled = table.writer().grants().any(|(part, _)| part == Part::Index { version: 6 });
    assert!(doubled, "8192 words have doubled until 100,000 are less than 60 % of them");
    (0..OBJECTS).for_each(|n| assert_belongs_together(&id(n), &table.snapshot(&id(n)).1));
}

/// Ids with one hash: objects that do not fit their lines are left to the daemon, and so are some objects
/// that belong in or near these lines. All others are found.
#[test]
fn ids_that_share_a_hash_cost_little_but_themselves() {
    const HOSTILE: u64 = 2_000;
    const OTHERS: u64 = 20_000;
    let table = Table::new();
    table.writer().set_solo(true);
    let seed = table.writer().seed;
    // A factor of the hash is 0, whatever the second word.
    let hostile = |n: u64| {
        let mut bytes = [0; ObjectId::LEN];
        bytes[..8].copy_from_slice(&(seed ^ 0xa076_1d64_78bd_642f).to_le_bytes());
        bytes[8..16].copy_from_slice(&n.to_le_bytes());
        ObjectId::from_bytes(bytes)
    };
    assert_eq!(index::hash(&hostile(1), seed), index::hash(&hostile(2), seed));
    let numbers: Vec<u32> =
        (0..HOSTILE).map(|n| table.writer().insert(&object(hostile(n), 0)).unwrap()).collect();
    for n in 0..OTHERS {
        table.writer().insert(&object(id(n), 0)).unwrap();
    }
    let seen = (0..HOSTILE).filter(|n| match table.find(&hostile(*n)) {
        Found::Entry { snapshot, .. } => snapshot.id == hostile(*n),
        found => {
            assert_eq!(found, Found::Unknown);
            false
        }
    });
    let seen = seen.count();
    assert!((1..=MAX_PROBE_LINES * LINE_WORDS).contains(&seen), "{seen} of one hash are in sight");
    let unseen = (0..OTHERS).filter(|n| !matches!(table.find(&id(*n)), Found::Entry { .. }));
    let unseen = unseen.inspect(|n| assert_eq!(table.find(&id(*n)), Found::Unknown)).count();
    assert!(unseen < OTHERS as usize / 50, "{unseen} of {OTHERS} objects of others are out of sight");
    // Entries are removed in the order in which they came, whether in the index or not.
    numbers.into_iter().for_each(|number| table.writer().remove(number));
    for n in 0..HOSTILE {
        assert_eq!(table.find(&hostile(n)), Found::Unknown, "the index has been incomplete");
    }
}

#[test]
fn every_number_has_a_place_in_a_chunk() {
    let last = u32::MAX / 2;
    assert_eq!(place_of(last), (MAX_CHUNKS - 1, chunk_len(MAX_CHUNKS as u32 - 1) as usize - 1));
    assert_eq!(place_of(last + 1).0, MAX_CHUNKS);
    assert_eq!((0..MAX_CHUNKS as u32).map(|chunk| u64::from(chunk_len(chunk))).sum::<u64>(), 1 << 31);
    for chunk in 0..MAX_CHUNKS as u32 {
        let (start, len) = (chunk_start(chunk), chunk_len(chunk));
        assert_eq!(place_of(start), (chunk as usize, 0));
        assert_eq!(place_of(start + (len - 1)), (chunk as usize, len as usize - 1));
        assert_eq!(place_of(start + len / 3), (chunk as usize, len as usize / 3));
    }
    // A number that no table has is not an error.
    let table = Table::new();
    for number in [0, last, last + 1, u32::MAX] {
        assert!(!table.reader.still_is(number, 0));
    }
}

#[test]
fn parts_of_a_wrong_shape_are_refused() {
    let table = Table::new();
    table.writer().insert(&object(id(1), 0)).unwrap();
    let writer = table.writer();
    let files: HashMap<Part, _> =
        writer.grants().map(|(part, file)| (part, file.try_clone().unwrap())).collect();
    let (root, index) = (&files[&Part::Root], &files[&Part::Index { version: 1 }]);
    assert!(TableReader::new(index).is_err());
    assert!(table.reader.add(Part::Chunk { number: 0 }, root).is_err());
    assert!(table.reader.add(Part::Chunk { number: MAX_CHUNKS as u32 }, index).is_err());
    assert!(table.reader.add(Part::Chunk { number: u32::MAX }, index).is_err());
}

#[test]
fn segments_have_versions() {
    let table = Table::new();
    assert_eq!(table.reader.segment_version(3), 0);
    table.writer().set_segment_version(3, 9);
    table.writer().set_segment_version(u32::MAX, 9);
    assert_eq!(table.reader.segment_version(3), 9);
    assert_eq!(table.reader.segment_version(2), 0);
    assert_eq!(table.reader.segment_version(u32::MAX), 0);
}

#[test]
fn a_million_objects_take_80_bytes_each_and_all_find_room() {
    const OBJECTS: u64 = 1_000_000;
    let table = Table::new();
    let mut writer = table.writer();
    writer.set_solo(true);
    for n in 0..OBJECTS {
        writer.insert(&object(id(n), 0)).unwrap();
    }
    while writer.tend(1 << 20).unwrap() {}
    let each = writer.memory() as f64 / OBJECTS as f64;
    println!("{each:.1} bytes of table for each of {OBJECTS} objects");
    assert!((80.0..82.0).contains(&each), "{each} bytes each");
    drop(writer);
    assert_eq!(table.find(&id(OBJECTS)), Found::Absent, "the index is complete");
}

/// One writer and two readers: a read of an entry always returns one object, whatever the entry becomes.
#[test]
fn what_is_read_belongs_together() {
    const IDS: u64 = 64;
    const FINDS: u64 = 100_000;
    let table = Table::new();
    let finds = AtomicU64::new(0);
    thread::scope(|threads| {
        for reader in 0..2 {
            let (table, finds) = (&table, &finds);
            threads.spawn(move || {
                let mut n = reader * IDS / 2;
                while finds.load(Ordering::Relaxed) < FINDS {
                    n = (n + 1) % IDS;
                    if let Found::Entry { snapshot, .. } = table.find(&id(n)) {
                        assert_belongs_together(&id(n), &snapshot);
                        finds.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut live: Vec<Option<u32>> = vec![None; IDS as usize];
        let mut removed = Vec::new();
        let mut random = 1u64;
        let mut round = 0;
        while finds.load(Ordering::Relaxed) < FINDS {
            round += 1;
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let n = (random >> 33) % IDS;
            let object = object(id(n), round % 256);
            let mut writer = table.writer();
            let number = live[n as usize];
            match (number, random >> 61) {
                (None, _) => live[n as usize] = Some(writer.insert(&object).unwrap()),
                (Some(number), 0..2) => {
                    writer.remove(number);
                    live[n as usize] = None;
                    removed.push(number);
                }
                (Some(number), 2..4) => writer.set_sealed(number, object.offset.unwrap(), true),
                (Some(number), 4) => writer.set_spilled(number, true),
                (Some(number), 5) => {
                    writer.hide(number);
                    writer.show(number);
                }
                // Another object takes the place of a removed one.
                (Some(_), _) => removed.drain(..).for_each(|number| writer.free(number)),
            }
            drop(writer);
        }
    });
}
