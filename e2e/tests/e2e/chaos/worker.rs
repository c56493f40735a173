//! A client that does what was drawn for it, and compares what comes with the model.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::{Client, CreateOptions, DeleteOutcome, Error, ErrorKind, Object, ObjectId, Presence, Spread};
use plasmon_e2e::PATIENCE;

use super::life::Life;
use super::model::{Key, Model, Place, Record, State, Weather, named};
use super::schedule::{NODES, Operation, Operations, WORKERS, Which};

/// What a call may take beyond its time-out: its daemon may be stopped for 10 s, and the machine has other things to
/// do.
const SLACK: Duration = Duration::from_secs(40);
/// What a get must be given before a time-out is held against the cluster.
const AMPLE: Duration = Duration::from_secs(10);
/// A deletion waits for keepers and holders, each for some seconds.
const DELETION: Duration = Duration::from_secs(10);
/// Objects that a worker holds at most.
const HELD: usize = 4;
/// Bytes that a node is given to keep: memory and disk hold more.
const BURDEN: usize = 40 << 20;

/// What workers do: work, rest, or come to their end.
const WORK: u8 = 0;
const REST: u8 = 1;
const END: u8 = 2;

/// What all threads share.
pub(super) struct Ground {
    pub(super) model: Model,
    pub(super) sockets: Vec<PathBuf>,
    order: AtomicU8,
    resting: Vec<AtomicBool>,
    /// When the call of each worker has to be over, and what it is.
    calls: Vec<Mutex<Option<(Instant, String)>>>,
    /// The epoch of each node when all was calm.
    epochs: Mutex<Vec<u64>>,
    journal: Mutex<File>,
    start: Instant,
}

impl Ground {
    pub(super) fn new(model: Model, sockets: Vec<PathBuf>, journal: File) -> Self {
        Self {
            model,
            sockets,
            order: AtomicU8::new(REST),
            resting: (0..WORKERS).map(|_| AtomicBool::new(false)).collect(),
            calls: (0..WORKERS).map(|_| Mutex::default()).collect(),
            epochs: Mutex::default(),
            journal: Mutex::new(journal),
            start: Instant::now(),
        }
    }

    pub(super) fn work(&self) {
        self.order.store(WORK, Ordering::SeqCst);
    }

    /// Has the workers rest after what they are about.
    pub(super) fn rest(&self) {
        self.order.store(REST, Ordering::SeqCst);
    }

    pub(super) fn end(&self) {
        self.order.store(END, Ordering::SeqCst);
    }

    pub(super) fn ends(&self) -> bool {
        self.order.load(Ordering::SeqCst) == END
    }

    pub(super) fn all_rest(&self) -> bool {
        self.resting.iter().all(|rests| rests.load(Ordering::SeqCst))
    }

    /// Whether nothing was broken from then until now: neither on purpose, nor because this machine was too busy to
    /// let a node say in time that it lives.
    pub(super) fn calm(&self, since: Weather) -> bool {
        let epoch = |socket: &PathBuf| {
            Client::connect(socket).and_then(|client| client.status()).map(|it| it.cluster.epoch)
        };
        let same = |(socket, before): (&PathBuf, &u64)| epoch(socket).is_ok_and(|now| now == *before);
        since.calm_until(self.model.weather())
            && self.sockets.iter().zip(self.epochs.lock().unwrap().iter()).all(same)
    }

    /// Everything is as it was: this was looked at.
    pub(super) fn is_calm(&self, epochs: Vec<u64>) {
        *self.epochs.lock().unwrap() = epochs;
        self.model.is_calm();
    }

    /// The call that should be over and is not.
    pub(super) fn hanging(&self) -> Option<String> {
        let hangs = |call: &Mutex<Option<(Instant, String)>>| {
            let call = call.lock().unwrap();
            call.as_ref().filter(|(due, _)| *due < Instant::now()).map(|(_, what)| what.clone())
        };
        self.calls.iter().find_map(hangs)
    }

    /// Notes what happens, for people who look for the reason of a failure.
    pub(super) fn note(&self, what: &str) {
        let line = format!("{:9.3} {what}\n", self.start.elapsed().as_secs_f64());
        // A journal that cannot be written is missed when it is looked for.
        let _ = self.journal.lock().unwrap().write_all(line.as_bytes());
    }

    /// A client of a node, and the daemon that it is connected to; waits for there to be one.
    pub(super) fn connect(&self, node: usize) -> (Client, Place) {
        let given_up = Instant::now() + 2 * PATIENCE;
        loop {
            let before = self.model.daemon(node);
            let client = before.and_then(|_| Client::connect(&self.sockets[node]).ok());
            if let (Some(place), Some(client)) = (before, client)
                && self.model.lives(place)
            {
                return (client, place);
            }
            assert!(Instant::now() < given_up, "nobody can connect to node {node}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A worker.
pub(super) struct Worker {
    ground: Arc<Ground>,
    number: usize,
    node: usize,
    client: Client,
    /// The daemon it is connected to.
    at: Place,
    held: VecDeque<(Key, Life, Place, Object)>,
}

impl Worker {
    pub(super) fn new(ground: &Arc<Ground>, number: usize) -> Self {
        let node = number % NODES;
        let (client, at) = ground.connect(node);
        Self { ground: Arc::clone(ground), number, node, client, at, held: VecDeque::new() }
    }

    /// Does one operation after the other, and rests when it is told to.
    pub(super) fn work(mut self) {
        let ground = Arc::clone(&self.ground);
        let model = &ground.model;
        let mut operations = Operations::of(model.seed(), self.number);
        loop {
            match ground.order.load(Ordering::SeqCst) {
                WORK => {}
                REST => {
                    ground.resting[self.number].store(true, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(5));
                    continue;
                }
                _ => break,
            }
            ground.resting[self.number].store(false, Ordering::SeqCst);
            let (operation, pause) = operations.next().expect("they have no end");
            self.perform(&operation);
            thread::sleep(pause);
        }
        while !self.held.is_empty() {
            self.let_go();
        }
    }

    fn perform(&mut self, operation: &Operation) {
        match operation {
            Operation::Put { len, private, digest } => self.put(*len, *private, *digest),
            Operation::PutName { name, len } => self.put_name(*name, *len),
            Operation::Get { which, patience } => {
                let key = self.ground.model.find(*which).map(|record| record.key);
                key.into_iter().for_each(|key| drop(self.get(key, *patience)));
            }
            Operation::GetMany { which, patience } => self.get_many(&self.found(which), *patience),
            Operation::GetName { name, patience } => self.get_name(*name, *patience),
            Operation::Hold { which } => self.hold(*which),
            Operation::LetGo => self.let_go(),
            Operation::Await { worker, patience } => {
                drop(self.get(self.ground.model.next_of(*worker), *patience));
            }
            Operation::Wait { which, count, patience } => self.wait(&self.found(which), *count, *patience),
            Operation::Delete { which } => self.delete(*which),
            Operation::DeleteName { name } => {
                let id = named(*name).0;
                let deleted = self.call("delete name", DELETION, |client| client.delete(&[id]));
                self.explained(deleted);
            }
            Operation::Contains { which } => self.contains(&self.found(which)),
            Operation::Locate { which } => {
                let ids: Vec<_> =
                    self.ground.model.find(*which).into_iter().map(|record| record.id).collect();
                for id in ids {
                    let located = self.call("locate", DELETION, |client| client.locations(id));
                    self.explained(located);
                }
            }
            Operation::Prefetch { which, patience } => {
                let ids: Vec<_> = self.found(which).iter().map(|record| record.id).collect();
                let begun = self.call("prefetch", Duration::ZERO, |client| client.prefetch(&ids, *patience));
                self.explained(begun);
            }
            Operation::Evict { bytes } => {
                let evicted = self.call("evict", Duration::ZERO, |client| client.evict(*bytes));
                self.explained(evicted);
            }
            Operation::Replicate { which, copies, patience } => {
                let Some(key) = self.ground.model.find(*which).map(|record| record.key) else { return };
                let number = self.ground.model.begin_replicate(key);
                let end = self.spread("replicate", key, *patience, |client, id| {
                    client.replicate(id, *copies, Some(*patience))
                });
                let holders = end.as_ref().map(|spread| &spread.holders[..]).map_err(Error::kind);
                self.ground.model.end_replicate(key, number, holders);
            }
            Operation::Broadcast { which, patience } => {
                let Some(key) = self.ground.model.find(*which).map(|record| record.key) else { return };
                let _ = self.spread("broadcast", key, *patience, |client, id| {
                    client.broadcast(id, &[], Some(*patience))
                });
            }
            Operation::List => {
                let listed = self.call("list", Duration::ZERO, Client::list);
                self.explained(listed);
            }
        }
    }

    fn found(&self, which: &[Which]) -> Vec<Record> {
        which.iter().filter_map(|one| self.ground.model.find(*one)).collect()
    }

    /// Makes a call that must be over in time.
    fn call<T>(
        &mut self,
        what: &str,
        limit: Duration,
        call: impl FnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (ground, begun) = (Arc::clone(&self.ground), Instant::now());
        let name = format!("worker {} on node {}: {what} within {limit:?}", self.number, self.node);
        *ground.calls[self.number].lock().unwrap() = Some((begun + limit + SLACK, name.clone()));
        let result = call(&self.client);
        *ground.calls[self.number].lock().unwrap() = None;
        let took = begun.elapsed();
        let end = result.as_ref().map_or_else(|error| format!("{:?}", error.kind()), |_| "well".to_owned());
        match &result {
            Ok(_) => ground.note(&format!("{name}: well after {took:.3?}")),
            Err(error) => ground.note(&format!("{name}: {end} after {took:.3?}: {error}")),
        }
        assert!(took < limit + SLACK, "{name} took {took:?}");
        let kind = what.split_once(" of ").map_or(what, |(kind, _)| kind);
        ground.model.count(format!("{kind}: {end}"));
        if let Err(error) = &result
            && error.kind() == ErrorKind::Disconnected
        {
            self.connect_again(error);
        }
        result
    }

    /// A new client, after the daemon was killed. Nothing else ends a connection.
    fn connect_again(&mut self, reason: &Error) {
        // A node that cannot be reached for a deletion is another one's fault.
        if self.client.status().is_ok() {
            assert!(!self.ground.calm(self.ground.model.weather()), "nothing is broken: {reason}");
            return;
        }
        assert!(!self.ground.model.lives(self.at), "the daemon of node {} lives: {reason}", self.node);
        (self.client, self.at) = self.ground.connect(self.node);
    }

    /// Only what is broken explains that a call fails, and a full store that one is refused.
    fn explained<T>(&self, result: Result<T, Error>) {
        if let Err(error) = result {
            let kind = error.kind();
            let broken = matches!(kind, ErrorKind::Disconnected | ErrorKind::TimedOut);
            assert!(broken, "{kind:?}: {error}");
            assert!(!self.ground.calm(self.ground.model.weather()), "nothing is broken: {error}");
        }
    }

    fn put(&mut self, len: usize, private: bool, digest: bool) {
        let ground = Arc::clone(&self.ground);
        let model = &ground.model;
        if model.burden(self.node) + len > BURDEN {
            return model.count("put: not made, the node has enough".to_owned());
        }
        let seed =
            u64::from_le_bytes(model.id(model.next_of(self.number)).as_bytes()[..8].try_into().unwrap());
        let life = Life { seed, len };
        let Record { key, id, .. } = model.begin_put(self.number, life, self.at);
        let options = CreateOptions { private, digest, ..CreateOptions::default() };
        let (data, metadata) = (life.data(), life.metadata());
        let end = self.call(&format!("put of {id}, {len} bytes"), Duration::ZERO, |client| {
            client.put(id, &data, &metadata, &options)
        });
        if let Err(error) = &end {
            let explained =
                matches!(error.kind(), ErrorKind::Full | ErrorKind::Disconnected | ErrorKind::TimedOut);
            assert!(explained, "{:?}: {error}", error.kind());
        }
        model.end_put(key, end.map_err(|error| error.kind()));
    }

    fn put_name(&mut self, name: usize, len: usize) {
        let ground = Arc::clone(&self.ground);
        let next = ground.model.next_of(self.number);
        let salt = Instant::now().duration_since(ground.start).as_nanos() as u64;
        let life = Life { seed: salt ^ (next.worker as u64) << 56, len };
        ground.model.name(name, life);
        let (id, text) = named(name);
        let options = CreateOptions { name: Some(text), ..CreateOptions::default() };
        let (data, metadata) = (life.data(), life.metadata());
        match self.call("put name", Duration::ZERO, |client| client.put(id, &data, &metadata, &options)) {
            Err(error) if matches!(error.kind(), ErrorKind::Exists | ErrorKind::Full) => {}
            result => self.explained(result),
        }
    }

    fn get_name(&mut self, name: usize, patience: Duration) {
        let id = named(name).0;
        match self.call("get name", patience, |client| client.get(&[id], Some(patience))?.remove(0)) {
            Ok(object) => {
                let life = Life::of(&object);
                assert!(self.ground.model.was_named(name, life), "{life:?} was never put under name {name}");
            }
            Err(error) => {
                let explained = [
                    ErrorKind::TimedOut,
                    ErrorKind::Disconnected,
                    ErrorKind::Lost,
                    ErrorKind::Full,
                    ErrorKind::NotFound,
                ];
                assert!(explained.contains(&error.kind()), "{:?}: {error}", error.kind());
            }
        }
    }

    fn get(&mut self, key: Key, patience: Duration) -> Option<(Life, Object)> {
        let ground = Arc::clone(&self.ground);
        let (id, before, weather, at) =
            (ground.model.id(key), ground.model.record(key), ground.model.weather(), self.at);
        let what = format!("get of {id}");
        let result = self.call(&what, patience, |client| client.get(&[id], Some(patience))?.remove(0));
        self.judge(key, before.as_ref(), weather, at, patience, result)
    }

    fn get_many(&mut self, records: &[Record], patience: Duration) {
        if records.is_empty() {
            return;
        }
        let ids: Vec<_> = records.iter().map(|record| record.id).collect();
        let (weather, at) = (self.ground.model.weather(), self.at);
        match self.call(&format!("get many of {ids:?}"), patience, |client| client.get(&ids, Some(patience)))
        {
            Ok(results) => {
                for (record, result) in records.iter().zip(results) {
                    drop(self.judge(record.key, Some(record), weather, at, patience, result));
                }
            }
            result => self.explained(result),
        }
    }

    /// Compares what a get gave with what is known of the object, before and after.
    fn judge(
        &self,
        key: Key,
        before: Option<&Record>,
        weather: Weather,
        at: Place,
        patience: Duration,
        result: Result<Object, Error>,
    ) -> Option<(Life, Object)> {
        let model = &self.ground.model;
        let after = model.record(key);
        let error = match result {
            Ok(object) => {
                let (life, record) = (Life::of(&object), after.expect("what is put is noted before"));
                assert_eq!(life, record.life, "of {}", record.id);
                assert_ne!(record.state, State::Never, "its put was refused: {record:?}");
                return Some((life, object));
            }
            Err(error) => error,
        };
        let must = |record: Option<&Record>| record.is_some_and(|record| model.must(record));
        let must = must(before) && must(after.as_ref());
        let calm = must && self.ground.calm(weather);
        let local = before.is_some_and(|record| record.home == at);
        let why = format!("{error} ({after:?}, calm: {calm}, from {at:?})");
        match error.kind() {
            ErrorKind::Disconnected => {}
            // A node whose memory is pinned and whose disk is full says so.
            ErrorKind::Full => {}
            ErrorKind::TimedOut => assert!(!must || !calm || patience < AMPLE, "{why}"),
            ErrorKind::NotFound => assert!(patience.is_zero(), "{why}"),
            ErrorKind::Lost => assert!(!must || !calm && !local, "{why}"),
            other => panic!("{other:?}: {why}"),
        }
        None
    }

    /// Has an object come to other nodes. How many have it then depends on who lives and has room.
    fn spread(
        &mut self,
        what: &str,
        key: Key,
        patience: Duration,
        spread: impl FnOnce(&Client, ObjectId) -> Result<Spread, Error>,
    ) -> Result<Spread, Error> {
        let id = self.ground.model.id(key);
        let end = self.call(&format!("{what} of {id}"), patience, |client| spread(client, id));
        if let Err(error) = &end {
            let explained = [
                ErrorKind::TimedOut,
                ErrorKind::NotFound,
                ErrorKind::Disconnected,
                ErrorKind::Lost,
                ErrorKind::Full,
                ErrorKind::TooFew,
            ];
            assert!(explained.contains(&error.kind()), "{:?}: {error}", error.kind());
        }
        end
    }

    fn hold(&mut self, which: Which) {
        let Some(record) = self.ground.model.find(which) else { return };
        if let Some((life, object)) = self.get(record.key, Duration::from_secs(1)) {
            let at = self.at;
            self.ground.model.pin(record.key, at);
            self.held.push_back((record.key, life, at, object));
        }
        if self.held.len() > HELD {
            self.let_go();
        }
    }

    /// What is held does not change, whatever breaks.
    fn let_go(&mut self) {
        if let Some((key, life, at, object)) = self.held.pop_front() {
            assert_eq!(Life::of(&object), life);
            self.ground.model.unpin(key, at);
        }
    }

    fn wait(&mut self, records: &[Record], count: usize, patience: Duration) {
        let ids: Vec<_> = records.iter().map(|record| record.id).collect();
        let count = count.min(ids.len());
        let waited = self.call("wait", patience, |client| client.wait(&ids, count, Some(patience), None));
        self.explained(waited);
    }

    fn delete(&mut self, which: Which) {
        let ground = Arc::clone(&self.ground);
        let model = &ground.model;
        let key = model.find(which).map(|record| record.key);
        let Some(before) = key.and_then(|key| model.begin_delete(key)) else { return };
        let (weather, id) = (model.weather(), before.id);
        let deleted = self.call(&format!("delete of {id}"), DELETION, |client| client.delete(&[id]));
        let certain = before.state == State::Sealed && model.lives(before.home) && ground.calm(weather);
        match deleted {
            Ok(outcomes) if certain => {
                let well = matches!(outcomes[..], [DeleteOutcome::Deleted | DeleteOutcome::Deferred]);
                assert!(well, "{outcomes:?} of {before:?}");
                model.end_delete(before.key);
            }
            result => self.explained(result),
        }
    }

    fn contains(&mut self, records: &[Record]) {
        let (model, at) = (&self.ground.model, self.at);
        let here: Vec<_> = records.iter().map(|record| record.home == at && model.must(record)).collect();
        let ids: Vec<_> = records.iter().map(|record| record.id).collect();
        match self.call("contains", DELETION, |client| client.contains(&ids)) {
            Ok(found) => {
                for ((record, here), found) in records.iter().zip(here).zip(found) {
                    let still =
                        self.ground.model.record(record.key).is_some_and(|now| self.ground.model.must(&now));
                    assert!(!here || !still || found == Presence::Here, "{found:?}: {record:?}");
                }
            }
            result => self.explained(result),
        }
    }
}
