//! Model of every object and every daemon: which objects must be readable, which cannot be, and which may be.
//!
//! All threads share it. An event is noted before it happens, and its outcome afterwards. In between an
//! object may exist or not; the same holds for an object whose put or deletion was interrupted.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use plasmon::{ErrorKind, ObjectId};

use super::life::Life;
use super::lives::Lives;
use super::schedule::{Coordinator, Fault, NAMES, NODES, WORKERS, Which, id_of};

/// Daemon of a node, in one of its runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) node: usize,
    /// Number of the run. It is odd while the node has no daemon.
    run: usize,
}

/// Key of an object: the worker that put it, and the number of the put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) worker: usize,
    pub(super) number: usize,
}

/// State of an object in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The object is being put.
    Putting,
    /// The object exists as long as a node lives that holds it for certain.
    Sealed,
    /// The object may exist.
    Either(&'static str),
    /// The put of the object was refused.
    Never,
    /// The object was deleted while there was no fault.
    Gone,
}

/// Object with its state in the model.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) key: Key,
    pub(super) id: ObjectId,
    pub(super) lives: Lives,
    pub(super) state: State,
    /// Primary of the object: the daemon where it was put, or moved to.
    pub(super) home: Place,
    /// Daemons that may be the primary instead, because moves or replacements to them are under way or ended
    /// with an unknown outcome.
    pub(super) targets: Vec<Place>,
    /// Number of moves and replacements that were begun, and number of those that have ended.
    pub(super) moves: (usize, usize),
    /// Number of nodes that should keep the object, if it is certain.
    pub(super) copies: Option<u16>,
    /// Daemons at which a client pins the object, with the number of moves before the pin. Other clients
    /// cannot get it at a daemon from which it was moved away.
    pins: Vec<(Place, Option<usize>)>,
    /// Daemons that keep the object, too, as the last replication reported, or as was seen when nothing was
    /// broken.
    pub(super) kept: Vec<Place>,
    /// Number of daemons that had died by then.
    deaths: usize,
    /// Number of replications that were begun, and number of replications that have ended.
    pub(super) replications: (usize, usize),
    /// Whether a replication was given up, so that it may still go on.
    uncertain: bool,
    /// Number of deletions that were begun.
    pub(super) deletions: usize,
    /// Number of replacements that were begun, and number of replacements that have ended.
    pub(super) replacements: (usize, usize),
    /// Whether a replacement ended with an unknown outcome, so that it may come later.
    pub(super) in_doubt: bool,
}

impl Record {
    /// Whether the daemon holds the object for certain.
    pub(super) fn is_at(&self, place: Place) -> bool {
        self.home == place && self.targets.is_empty()
    }

    /// Whether no replacement of the object is under way or may come later.
    pub(super) fn is_settled(&self) -> bool {
        self.replacements.0 == self.replacements.1 && !self.in_doubt
    }

    /// Whether it is known how many nodes are to keep the object.
    pub(super) fn is_known(&self) -> bool {
        self.replications.0 == self.replications.1 && !self.uncertain
    }

    /// Whether no move of the object is under way.
    pub(super) fn at_rest(&self) -> bool {
        self.moves.0 == self.moves.1 && self.targets.is_empty()
    }
}

/// Count of all faults so far, and whether there is one now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Weather {
    faults: usize,
    calm: bool,
    /// Whether no node can have given out what others have deleted or replaced, since all was repaired.
    strict: bool,
}

impl Weather {
    /// Whether there was no fault from this moment until `now`.
    pub(super) fn calm_until(self, now: Self) -> bool {
        self.calm && self == now
    }

    /// Whether what calls are told by now has one order.
    pub(super) fn is_strict(self) -> bool {
        self.strict
    }
}

/// Model of a run.
pub(super) struct Model {
    seed: u64,
    coordinator: Coordinator,
    runs: [AtomicUsize; NODES],
    /// Daemons by the node ids that they report.
    names_of: Mutex<BTreeMap<String, Place>>,
    weather: Mutex<Weather>,
    records: Mutex<Vec<Vec<Record>>>,
    /// Lives that were ever put under each name.
    names: Mutex<Vec<Vec<Life>>>,
    /// Number of calls by how they ended.
    ends: Mutex<BTreeMap<String, usize>>,
}

impl Model {
    pub(super) fn new(seed: u64, coordinator: Coordinator) -> Self {
        Self {
            seed,
            coordinator,
            runs: Default::default(),
            names_of: Mutex::default(),
            weather: Mutex::new(Weather { faults: 0, calm: true, strict: true }),
            records: Mutex::new(vec![Vec::new(); WORKERS]),
            names: Mutex::new(vec![Vec::new(); NAMES]),
            ends: Mutex::default(),
        }
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// Present daemon of a node, if it has one.
    pub(super) fn daemon(&self, node: usize) -> Option<Place> {
        let run = self.runs[node].load(Ordering::SeqCst);
        run.is_multiple_of(2).then_some(Place { node, run })
    }

    /// Whether a daemon is still running.
    pub(super) fn lives(&self, place: Place) -> bool {
        self.daemon(place.node) == Some(place)
    }

    /// Notes that a daemon is about to be killed, or was started.
    pub(super) fn begins_or_ends(&self, node: usize) {
        self.runs[node].fetch_add(1, Ordering::SeqCst);
    }

    /// Number of daemons that have died.
    fn deaths(&self) -> usize {
        self.runs.iter().map(|run| run.load(Ordering::SeqCst).div_ceil(2)).sum()
    }

    /// Notes the node id of a node's present daemon.
    pub(super) fn is_called(&self, node: usize, name: &str) {
        let place = self.daemon(node).expect("it was started");
        self.names_of.lock().unwrap().insert(name.to_owned(), place);
    }

    /// Present daemon of a node, with its node id.
    pub(super) fn called(&self, node: usize) -> Option<(Place, String)> {
        let (place, names) = (self.daemon(node)?, self.names_of.lock().unwrap());
        names.iter().find(|(_, called)| **called == place).map(|(name, _)| (place, name.clone()))
    }

    pub(super) fn weather(&self) -> Weather {
        *self.weather.lock().unwrap()
    }

    /// Notes that a fault is about to happen.
    pub(super) fn breaks(&self, fault: &Fault) {
        let mut weather = self.weather.lock().unwrap();
        // Without etcd, a node that others take for dead need not know it, and gives out what it holds.
        let strict = self.coordinator == Coordinator::Etcd
            || matches!(fault, Fault::Kill(1..) | Fault::FullDisk(_)) && weather.strict;
        *weather = Weather { faults: weather.faults + 1, calm: false, strict };
    }

    /// Notes that all faults are repaired, which was checked.
    pub(super) fn is_calm(&self) {
        let mut weather = self.weather.lock().unwrap();
        (weather.calm, weather.strict) = (true, true);
    }

    /// Whether an object has to be found.
    pub(super) fn must(&self, record: &Record) -> bool {
        let at_home = self.lives(record.home) && record.targets.iter().all(|place| self.lives(*place));
        let unmoved = record.pins.iter().filter(|(_, moves)| *moves == Some(record.moves.0));
        let pinned = unmoved.map(|(place, _)| place).any(|place| self.lives(*place));
        record.state == State::Sealed && (at_home || pinned || self.is_kept(record))
    }

    /// Whether a daemon that keeps an object is left for certain. When one of those that are known here was
    /// silent for a while, another may have taken the place of any of them. So all that keep the object may
    /// have died, if as many daemons have.
    fn is_kept(&self, record: &Record) -> bool {
        let all_live = record.kept.iter().all(|place| self.lives(*place));
        let keeping = record.kept.len().min(record.copies.map_or(0, usize::from));
        keeping > 0 && (all_live || self.deaths() - record.deaths < keeping)
    }

    /// Notes the nodes that keep an object while nothing is broken.
    pub(super) fn is_kept_by(&self, key: Key, nodes: &[usize]) {
        let (places, deaths) = (nodes.iter().filter_map(|node| self.daemon(*node)).collect(), self.deaths());
        self.change(key, |record| (record.kept, record.deaths) = (places, deaths));
    }

    /// State of an object in the model.
    pub(super) fn record(&self, key: Key) -> Option<Record> {
        self.records.lock().unwrap()[key.worker].get(key.number).cloned()
    }

    /// All objects.
    pub(super) fn records(&self) -> Vec<Record> {
        self.records.lock().unwrap().concat()
    }

    /// Object that a schedule names, if it exists by now.
    pub(super) fn find(&self, which: Which) -> Option<Record> {
        let records = self.records.lock().unwrap();
        let of_worker = &records[which.worker];
        of_worker.len().checked_sub(1 + which.back).map(|number| of_worker[number].clone())
    }

    /// Key of the next object that a worker puts.
    pub(super) fn next_of(&self, worker: usize) -> Key {
        Key { worker, number: self.records.lock().unwrap()[worker].len() }
    }

    pub(super) fn id(&self, key: Key) -> ObjectId {
        id_of(self.seed, key.worker, key.number)
    }

    /// Size in bytes of the objects that may be on a node permanently.
    pub(super) fn burden(&self, node: usize) -> usize {
        let records = self.records.lock().unwrap();
        let there = records
            .iter()
            .flatten()
            .filter(|record| record.home.node == node && !matches!(record.state, State::Never | State::Gone));
        there.map(|record| record.lives.len()).sum()
    }

    /// Notes that a worker is about to put an object.
    pub(super) fn begin_put(&self, worker: usize, life: Life, copies: u16, home: Place) -> Record {
        let mut records = self.records.lock().unwrap();
        let key = Key { worker, number: records[worker].len() };
        let record = Record {
            key,
            id: self.id(key),
            lives: Lives::of(life),
            state: State::Putting,
            home,
            targets: Vec::new(),
            moves: (0, 0),
            copies: Some(copies),
            pins: Vec::new(),
            kept: Vec::new(),
            deaths: 0,
            replications: (0, 0),
            uncertain: false,
            deletions: 0,
            replacements: (0, 0),
            in_doubt: false,
        };
        records[worker].push(record.clone());
        record
    }

    /// Notes the outcome of a put.
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

    /// Notes that an object is about to be deleted. Returns its state before.
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

    /// Notes that an object is deleted for certain, unless it was replaced since the deletion began.
    pub(super) fn end_delete(&self, before: &Record) {
        self.change(before.key, |record| {
            record.state = match record.is_settled() && record.replacements == before.replacements {
                true => State::Gone,
                false => State::Either("it was replaced while it was deleted"),
            };
        });
    }

    /// Notes that nobody finds an object any more.
    pub(super) fn is_gone(&self, key: Key) {
        self.change(key, |record| (record.state, record.in_doubt) = (State::Gone, false));
    }

    /// Notes that a client at a daemon has pinned an object, whose state was `before` when the client got it.
    pub(super) fn pin(&self, before: &Record, at: Place) {
        let moves = before.at_rest().then_some(before.moves.0);
        self.change(before.key, |record| record.pins.push((at, moves)));
    }

    /// Notes that a client at a daemon is about to unpin an object.
    pub(super) fn unpin(&self, key: Key, at: Place) {
        self.change(key, |record| {
            let pin = record.pins.iter().position(|(place, _)| *place == at).expect("it was pinned");
            record.pins.swap_remove(pin);
        });
    }

    /// Notes that another number of nodes is about to keep an object, so that nodes which keep it may stop
    /// doing so. Returns a number if no other replication is under way.
    pub(super) fn begin_replicate(&self, key: Key) -> Option<(usize, usize)> {
        self.change(key, |record| {
            let alone = record.is_known() && record.replacements.0 == record.replacements.1;
            record.kept.clear();
            record.copies = None;
            record.replications.0 += 1;
            alone.then_some((record.replications.0, record.moves.0))
        })
    }

    /// Notes the nodes that keep an object after a replication, unless another replication came in between.
    pub(super) fn end_replicate(
        &self,
        key: Key,
        number: Option<(usize, usize)>,
        copies: u16,
        end: Result<&[String], ErrorKind>,
    ) {
        let (names, deaths) = (self.names_of.lock().unwrap(), self.deaths());
        self.change(key, |record| {
            record.replications.1 += 1;
            match end {
                Ok(holders) if number == Some((record.replications.0, record.moves.0)) => {
                    record.copies = Some(copies);
                    if record.targets.is_empty() {
                        record.kept = holders.iter().filter_map(|name| names.get(name).copied()).collect();
                        record.deaths = deaths;
                    }
                }
                Ok(_) | Err(ErrorKind::TooFew | ErrorKind::NotFound | ErrorKind::Lost) => {}
                Err(_) => record.uncertain = true,
            }
        });
    }

    /// Notes that an object is about to be moved, so that nodes which keep it may stop doing so. Returns a
    /// number if no other move is under way.
    pub(super) fn begin_move(&self, key: Key, to: Place) -> Option<usize> {
        self.change(key, |record| {
            let alone = record.at_rest();
            record.kept.clear();
            record.targets.push(to);
            record.moves.0 += 1;
            alone.then_some(record.moves.0)
        })
    }

    /// Notes the outcome of a move, unless another move came in between.
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
                // The move may go on.
                Err(ErrorKind::TimedOut | ErrorKind::Disconnected) => {}
                Err(_) => record.targets.clear(),
            }
        });
    }

    pub(super) fn change<T>(&self, key: Key, change: impl FnOnce(&mut Record) -> T) -> T {
        change(&mut self.records.lock().unwrap()[key.worker][key.number])
    }

    /// Notes that a life is about to be put under a name.
    pub(super) fn name(&self, name: usize, life: Life) {
        self.names.lock().unwrap()[name].push(life);
    }

    /// Whether a life was ever put under a name.
    pub(super) fn was_named(&self, name: usize, life: Life) -> bool {
        self.names.lock().unwrap()[name].contains(&life)
    }

    pub(super) fn count(&self, end: String) {
        *self.ends.lock().unwrap().entry(end).or_default() += 1;
    }

    /// Number of calls by how they ended, as text for people.
    pub(super) fn ends(&self) -> String {
        format!("{:?}", self.ends.lock().unwrap())
    }
}
