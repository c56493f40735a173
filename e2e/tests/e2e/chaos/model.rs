//! What is known of every object and every daemon: what must be readable, what cannot be, and what may be
//! either.
//!
//! Shared by all threads. What is about to happen is noted before it does, what has happened after it has:
//! between the two an object may be there or not, and so may one whose put or deletion was cut off.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use plasmon::{ErrorKind, ObjectId};

use super::life::Life;
use super::schedule::{NAMES, NODES, WORKERS, Which, id_of};

/// A daemon: of a node, in one of its runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) node: usize,
    /// Odd while the node has no daemon.
    run: usize,
}

/// An object: of a worker, by the number of its put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) worker: usize,
    pub(super) number: usize,
}

/// What is known of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It is being put.
    Putting,
    /// It is there, as long as somebody who has it for certain lives.
    Sealed,
    /// It may be there.
    Either(&'static str),
    /// Its put was refused.
    Never,
    /// It was deleted while nothing was broken.
    Gone,
}

/// An object and all that is known of it.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) key: Key,
    pub(super) id: ObjectId,
    pub(super) life: Life,
    pub(super) state: State,
    /// Whose it is: where it was put, or moved to.
    pub(super) home: Place,
    /// Whose it may be instead: moves there are under way, or their end is not known.
    targets: Vec<Place>,
    /// Moves that were begun, and those of them that are over.
    moves: (usize, usize),
    /// How many nodes are to keep it, if that is certain.
    pub(super) copies: Option<u16>,
    /// Where somebody pins it, and how often it had been moved: from where it has been moved away nobody else
    /// gets it.
    pins: Vec<(Place, Option<usize>)>,
    /// Where it is kept besides, as the last to have it replicated was told.
    kept: Vec<Place>,
    /// Replications that were begun, and those of them that are over.
    replications: (usize, usize),
    /// One of them was given up: it may go on.
    uncertain: bool,
    /// Deletions that were begun.
    deletions: usize,
}

impl Record {
    /// Whether it is this daemon's for certain.
    pub(super) fn is_at(&self, place: Place) -> bool {
        self.home == place && self.targets.is_empty()
    }

    /// Whether nobody moves it.
    fn at_rest(&self) -> bool {
        self.moves.0 == self.moves.1 && self.targets.is_empty()
    }
}

/// Whether anything is broken: every fault counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Weather {
    faults: usize,
    calm: bool,
}

impl Weather {
    /// Whether nothing was broken on purpose from then until now.
    pub(super) fn calm_until(self, now: Self) -> bool {
        self.calm && self == now
    }
}

/// The model.
pub(super) struct Model {
    seed: u64,
    runs: [AtomicUsize; NODES],
    /// What the daemons call themselves.
    names_of: Mutex<BTreeMap<String, Place>>,
    weather: Mutex<Weather>,
    records: Mutex<Vec<Vec<Record>>>,
    /// All that was ever put under each name.
    names: Mutex<Vec<Vec<Life>>>,
    /// How calls ended.
    ends: Mutex<BTreeMap<String, usize>>,
}

impl Model {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            runs: Default::default(),
            names_of: Mutex::default(),
            weather: Mutex::new(Weather { faults: 0, calm: true }),
            records: Mutex::new(vec![Vec::new(); WORKERS]),
            names: Mutex::new(vec![Vec::new(); NAMES]),
            ends: Mutex::default(),
        }
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// The daemon that a node has now, if it has one.
    pub(super) fn daemon(&self, node: usize) -> Option<Place> {
        let run = self.runs[node].load(Ordering::SeqCst);
        run.is_multiple_of(2).then_some(Place { node, run })
    }

    /// Whether a daemon still lives.
    pub(super) fn lives(&self, place: Place) -> bool {
        self.daemon(place.node) == Some(place)
    }

    /// A daemon is about to be killed, or was started.
    pub(super) fn begins_or_ends(&self, node: usize) {
        self.runs[node].fetch_add(1, Ordering::SeqCst);
    }

    /// What the daemon that a node has now calls itself.
    pub(super) fn is_called(&self, node: usize, name: &str) {
        let place = self.daemon(node).expect("it was started");
        self.names_of.lock().unwrap().insert(name.to_owned(), place);
    }

    /// The daemon that a node has now, and what it calls itself.
    pub(super) fn called(&self, node: usize) -> Option<(Place, String)> {
        let (place, names) = (self.daemon(node)?, self.names_of.lock().unwrap());
        names.iter().find(|(_, called)| **called == place).map(|(name, _)| (place, name.clone()))
    }

    pub(super) fn weather(&self) -> Weather {
        *self.weather.lock().unwrap()
    }

    /// Something is about to break.
    pub(super) fn breaks(&self) {
        let mut weather = self.weather.lock().unwrap();
        *weather = Weather { faults: weather.faults + 1, calm: false };
    }

    /// Everything is as it was: this was looked at.
    pub(super) fn is_calm(&self) {
        self.weather.lock().unwrap().calm = true;
    }

    /// Whether an object has to be found.
    pub(super) fn must(&self, record: &Record) -> bool {
        let at_home = self.lives(record.home) && record.targets.iter().all(|place| self.lives(*place));
        let unmoved = record.pins.iter().filter(|(_, moves)| *moves == Some(record.moves.0));
        let mut places = unmoved.map(|(place, _)| place).chain(&record.kept);
        let held = places.any(|place| self.lives(*place));
        record.state == State::Sealed && (at_home || held)
    }

    /// What is known of an object.
    pub(super) fn record(&self, key: Key) -> Option<Record> {
        self.records.lock().unwrap()[key.worker].get(key.number).cloned()
    }

    /// All objects.
    pub(super) fn records(&self) -> Vec<Record> {
        self.records.lock().unwrap().concat()
    }

    /// The object that a schedule means, if there is one by now.
    pub(super) fn find(&self, which: Which) -> Option<Record> {
        let records = self.records.lock().unwrap();
        let of_worker = &records[which.worker];
        of_worker.len().checked_sub(1 + which.back).map(|number| of_worker[number].clone())
    }

    /// The object that a worker puts next.
    pub(super) fn next_of(&self, worker: usize) -> Key {
        Key { worker, number: self.records.lock().unwrap()[worker].len() }
    }

    pub(super) fn id(&self, key: Key) -> ObjectId {
        id_of(self.seed, key.worker, key.number)
    }

    /// Bytes that may be on a node for good.
    pub(super) fn burden(&self, node: usize) -> usize {
        let records = self.records.lock().unwrap();
        let there = records
            .iter()
            .flatten()
            .filter(|record| record.home.node == node && !matches!(record.state, State::Never | State::Gone));
        there.map(|record| record.life.len).sum()
    }

    /// A worker is about to put an object.
    pub(super) fn begin_put(&self, worker: usize, life: Life, copies: u16, home: Place) -> Record {
        let mut records = self.records.lock().unwrap();
        let key = Key { worker, number: records[worker].len() };
        let record = Record {
            key,
            id: self.id(key),
            life,
            state: State::Putting,
            home,
            targets: Vec::new(),
            moves: (0, 0),
            copies: Some(copies),
            pins: Vec::new(),
            kept: Vec::new(),
            replications: (0, 0),
            uncertain: false,
            deletions: 0,
        };
        records[worker].push(record.clone());
        record
    }

    /// How that ended.
    pub(super) fn end_put(&self, key: Key, end: Result<(), ErrorKind>) {
        self.change(key, |record| {
            record.state = match end {
                _ if record.deletions > 0 => State::Either("it was deleted while it was put"),
                Ok(()) | Err(ErrorKind::TooFew) => State::Sealed,
                Err(ErrorKind::Full) => State::Never,
                Err(_) => State::Either("its put was cut off"),
            };
        });
    }

    /// An object is about to be deleted; gives what was known before.
    pub(super) fn begin_delete(&self, key: Key) -> Option<Record> {
        let before = self.record(key)?;
        self.change(key, |record| {
            record.deletions += 1;
            if record.state == State::Sealed {
                record.state = State::Either("its deletion was begun");
            }
        });
        Some(before)
    }

    /// It is gone for certain.
    pub(super) fn end_delete(&self, key: Key) {
        self.change(key, |record| record.state = State::Gone);
    }

    /// Somebody at a daemon pins it, who had found it to be so before.
    pub(super) fn pin(&self, before: &Record, at: Place) {
        let moves = before.at_rest().then_some(before.moves.0);
        self.change(before.key, |record| record.pins.push((at, moves)));
    }

    /// He is about to let go of it.
    pub(super) fn unpin(&self, key: Key, at: Place) {
        self.change(key, |record| {
            let pin = record.pins.iter().position(|(place, _)| *place == at).expect("it was pinned");
            record.pins.swap_remove(pin);
        });
    }

    /// Another number of nodes is about to keep it: some that do may not from now on. Gives a number if
    /// nobody else is about to say another one.
    pub(super) fn begin_replicate(&self, key: Key) -> Option<(usize, usize)> {
        self.change(key, |record| {
            let alone = record.replications.0 == record.replications.1 && !record.uncertain;
            record.kept.clear();
            record.copies = None;
            record.replications.0 += 1;
            alone.then_some((record.replications.0, record.moves.0))
        })
    }

    /// These keep it now, unless somebody else has said something else meanwhile.
    pub(super) fn end_replicate(
        &self,
        key: Key,
        number: Option<(usize, usize)>,
        copies: u16,
        end: Result<&[String], ErrorKind>,
    ) {
        let names = self.names_of.lock().unwrap();
        self.change(key, |record| {
            record.replications.1 += 1;
            match end {
                Ok(holders) if number == Some((record.replications.0, record.moves.0)) => {
                    record.copies = Some(copies);
                    if record.targets.is_empty() {
                        record.kept = holders.iter().filter_map(|name| names.get(name).copied()).collect();
                    }
                }
                Ok(_) | Err(ErrorKind::TooFew | ErrorKind::NotFound | ErrorKind::Lost) => {}
                Err(_) => record.uncertain = true,
            }
        });
    }

    /// An object is about to be another daemon's: who keeps it besides may not from now on. Gives a number if
    /// nobody else moves it.
    pub(super) fn begin_move(&self, key: Key, to: Place) -> Option<usize> {
        self.change(key, |record| {
            let alone = record.at_rest();
            record.kept.clear();
            record.targets.push(to);
            record.moves.0 += 1;
            alone.then_some(record.moves.0)
        })
    }

    /// It is, or is where it was, unless somebody else has moved it meanwhile.
    pub(super) fn end_move(&self, key: Key, number: Option<usize>, to: Place, end: Result<(), ErrorKind>) {
        self.change(key, |record| {
            record.moves.1 += 1;
            if number != Some(record.moves.0) {
                return;
            }
            match end {
                Ok(()) => {
                    record.home = to;
                    record.targets.clear();
                }
                // It may go on.
                Err(ErrorKind::TimedOut | ErrorKind::Disconnected) => {}
                Err(_) => record.targets.clear(),
            }
        });
    }

    fn change<T>(&self, key: Key, change: impl FnOnce(&mut Record) -> T) -> T {
        change(&mut self.records.lock().unwrap()[key.worker][key.number])
    }

    /// Something is about to be put under a name.
    pub(super) fn name(&self, name: usize, life: Life) {
        self.names.lock().unwrap()[name].push(life);
    }

    /// Whether it ever was.
    pub(super) fn was_named(&self, name: usize, life: Life) -> bool {
        self.names.lock().unwrap()[name].contains(&life)
    }

    pub(super) fn count(&self, end: String) {
        *self.ends.lock().unwrap().entry(end).or_default() += 1;
    }

    /// How calls ended, for people.
    pub(super) fn ends(&self) -> String {
        format!("{:?}", self.ends.lock().unwrap())
    }
}
