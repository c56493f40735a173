//! Worker: a client that makes the operations drawn for it, and compares the answers with the model.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plasmon::{
    Client, CreateOptions, DeleteOutcome, Error, ErrorKind, Object, ObjectId, Presence, Rights, Spread,
    Version,
};
use plasmon_e2e::PATIENCE;
use plasmon_e2e::wait::{SLACK, ended_in_time, let_pass, patiently};

use super::barriers::Barriers;
use super::life::Life;
use super::locks::Locks;
use super::model::{Key, Model, Place, Record, State, Weather};
use super::names::Histories;
use super::regions::Regions;
use super::schedule::{Fault, NODES, Operation, Operations, WORKERS, Which};
use crate::call_model::CallModel;

/// Time that a call may take beyond its time-out because of faults. Its daemon may be stopped for 10 s, and
/// five daemons, some of which are starting, share the machine.
const DISTURBANCE: Duration = Duration::from_secs(30);
/// Shortest time-out of a get that must not time out.
pub(super) const AMPLE: Duration = Duration::from_secs(10);
/// Time that a deletion may take, because it waits some seconds each for keepers and holders.
pub(super) const DELETION: Duration = Duration::from_secs(10);
/// Largest number of objects that a worker holds.
const HELD: usize = 4;
/// Size in bytes of the objects that a node is given to keep. Memory and disk have room for more.
pub(super) const BURDEN_BYTES: usize = 40 << 20;

/// State of workers that make operations.
const WORK: u8 = 0;
/// State of workers that rest until the next round.
const REST: u8 = 1;
/// State of workers that are to end.
const END: u8 = 2;

/// State that all threads share.
pub(super) struct Ground {
    pub(super) model: Model,
    pub(super) histories: Histories,
    pub(super) regions: Regions,
    pub(super) locks: Locks,
    pub(super) barriers: Barriers,
    pub(super) calls_made: CallModel,
    pub(super) sockets: Vec<PathBuf>,
    order: AtomicU8,
    resting: Vec<AtomicBool>,
    /// For each worker, the time at which its call has to end, and a description of the call.
    calls: Vec<Mutex<Option<(Instant, String)>>>,
    /// Epoch of each node after the last check.
    epochs: Mutex<Vec<u64>>,
    journal: Mutex<File>,
    start: Instant,
}

impl Ground {
    pub(super) fn new(model: Model, sockets: Vec<PathBuf>, journal: File) -> Self {
        Self {
            model,
            histories: Histories::new(),
            regions: Regions::default(),
            locks: Locks::default(),
            barriers: Barriers::default(),
            calls_made: CallModel::default(),
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

    /// Makes the workers rest after their present operation.
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

    /// Whether there was no fault from `since` until now: neither a drawn one, nor a machine so busy that a
    /// node could not renew its lease.
    pub(super) fn calm(&self, since: Weather) -> bool {
        let epoch = |socket: &PathBuf| {
            Client::connect(socket).and_then(|client| client.status()).map(|it| it.cluster.epoch)
        };
        let same = |(socket, before): (&PathBuf, &u64)| epoch(socket).is_ok_and(|now| now == *before);
        since.calm_until(self.model.weather())
            && self.sockets.iter().zip(self.epochs.lock().unwrap().iter()).all(same)
    }

    /// Notes that a fault is about to happen.
    pub(super) fn breaks(&self, fault: &Fault) {
        let before = self.model.weather();
        let busy = before.calm_until(before) && !self.calm(before);
        self.model.breaks(fault);
        if busy {
            // The machine had too little time for its nodes: the answers so far prove nothing.
            self.histories.clear();
        }
    }

    /// Notes that all faults are repaired, which was checked.
    pub(super) fn is_calm(&self, epochs: Vec<u64>) {
        *self.epochs.lock().unwrap() = epochs;
        self.model.is_calm();
    }

    /// Description of a call that has not ended in time, if there is one.
    pub(super) fn hanging(&self) -> Option<String> {
        let hangs = |call: &Mutex<Option<(Instant, String)>>| {
            let call = call.lock().unwrap();
            call.as_ref().filter(|(due, _)| *due < Instant::now()).map(|(_, what)| what.clone())
        };
        self.calls.iter().find_map(hangs)
    }

    /// Notes an event, for people who look for the reason of a failure.
    pub(super) fn note(&self, what: &str) {
        let line = format!("{:9.3} {what}\n", self.start.elapsed().as_secs_f64());
        // A journal that cannot be written is missed when it is looked for.
        let _ = self.journal.lock().unwrap().write_all(line.as_bytes());
    }

    /// Connects to a node, and waits until it has a daemon. Returns the client and the daemon.
    pub(super) fn connect(&self, node: usize) -> (Client, Place) {
        let connected = patiently(2 * PATIENCE, || {
            let before = self.model.daemon(node);
            let client = before.and_then(|_| Client::connect(&self.sockets[node]).ok());
            match (before, client) {
                (Some(place), Some(client)) if self.model.lives(place) => Ok((client, place)),
                _ => Err(()),
            }
        });
        connected.unwrap_or_else(|()| panic!("nobody can connect to node {node}"))
    }
}

/// Client that makes operations.
pub(super) struct Worker {
    pub(super) ground: Arc<Ground>,
    pub(super) number: usize,
    pub(super) node: usize,
    client: Client,
    /// Daemon that the worker is connected to.
    pub(super) at: Place,
    held: VecDeque<(Key, Life, Place, Object)>,
    /// Time that the last call had.
    limit: Duration,
    /// Number of puts and replacements under names so far.
    pub(super) named: u32,
    /// The version of each object of which the worker was told last.
    pub(super) told: HashMap<ObjectId, (Life, Version)>,
}

impl Worker {
    pub(super) fn new(ground: &Arc<Ground>, number: usize) -> Self {
        let node = number % NODES;
        let (client, at) = ground.connect(node);
        let (ground, held, limit) = (Arc::clone(ground), VecDeque::new(), Duration::ZERO);
        Self { ground, number, node, client, at, held, limit, named: 0, told: HashMap::new() }
    }

    /// Makes one operation after the other, and rests when it is told to.
    pub(super) fn work(mut self) {
        let ground = Arc::clone(&self.ground);
        let model = &ground.model;
        let mut operations = Operations::of(model.seed(), self.number);
        loop {
            match ground.order.load(Ordering::SeqCst) {
                WORK => {}
                REST => {
                    // All that exists has to be readable then: what is held takes the room for it.
                    while !self.held.is_empty() {
                        self.let_go();
                    }
                    ground.resting[self.number].store(true, Ordering::SeqCst);
                    let_pass(Duration::from_millis(5), "it rests until it is told otherwise");
                    continue;
                }
                _ => break,
            }
            ground.resting[self.number].store(false, Ordering::SeqCst);
            let (operation, pause) = operations.next().expect("they have no end");
            self.perform(&operation);
            let_pass(pause, "the schedule says how long it rests between two operations");
        }
        while !self.held.is_empty() {
            self.let_go();
        }
    }

    fn perform(&mut self, operation: &Operation) {
        match operation {
            Operation::Put { len, private, digest, copies } => {
                let options = CreateOptions {
                    rights: if *private { Rights::Private } else { Rights::Read },
                    digest: *digest,
                    replicas: *copies,
                    ..CreateOptions::default()
                };
                self.put(*len, options);
            }
            Operation::PutName { name, len } => self.put_name(*name, *len),
            Operation::Replace { which, len, copies, how } => self.replace(*which, *len, *copies, *how),
            Operation::ReplaceName { name, len, how } => self.replace_name(*name, *len, *how),
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
                self.delete_name(*name);
            }
            Operation::ContainsName { name } => self.contains_name(*name),
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
            Operation::Replicate { which, copies, patience } => self.replicate(*which, *copies, *patience),
            Operation::Migrate { which, to, patience } => self.migrate(*which, *to, *patience),
            Operation::Broadcast { which, patience } => {
                let Some(key) = self.ground.model.find(*which).map(|record| record.key) else { return };
                let _ = self.spread("broadcast", key, *patience, |client, id| {
                    client.broadcast(id, &[], Some(*patience))
                });
            }
            Operation::Ping { to } => self.ping(*to),
            Operation::Add { region } => self.add(*region),
            Operation::ReadRegion { region } => self.read_region(*region),
            Operation::MoveRegion { region, to } => self.move_region(*region, *to),
            Operation::SnapshotRegion { region } => self.snapshot_region(*region),
            Operation::FreeRegion { region } => self.free_region(*region),
            Operation::Lock { lock, patience, span, quietly } => {
                self.lock(*lock, *patience, *span, *quietly);
            }
            Operation::Meet { barrier, patience } => self.meet(*barrier, *patience),
            Operation::Call { service, lens, patience } => self.call_function(*service, *lens, *patience),
            Operation::List => {
                let listed = self.call("list", Duration::ZERO, Client::list);
                self.explained(listed);
            }
        }
    }

    fn found(&self, which: &[Which]) -> Vec<Record> {
        which.iter().filter_map(|one| self.ground.model.find(*one)).collect()
    }

    /// Makes a call that must end in time.
    pub(super) fn call<T>(
        &mut self,
        what: &str,
        limit: Duration,
        call: impl FnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (ground, begun) = (Arc::clone(&self.ground), Instant::now());
        self.limit = limit;
        let name = format!("worker {} on node {}: {what} within {limit:?}", self.number, self.node);
        *ground.calls[self.number].lock().unwrap() =
            Some((begun + limit + DISTURBANCE + SLACK, name.clone()));
        let result = call(&self.client);
        *ground.calls[self.number].lock().unwrap() = None;
        let took = begun.elapsed();
        let end = result.as_ref().map_or_else(|error| format!("{:?}", error.kind()), |_| "well".to_owned());
        match &result {
            Ok(_) => ground.note(&format!("{name}: well after {took:.3?}")),
            Err(error) => ground.note(&format!("{name}: {end} after {took:.3?}: {error}")),
        }
        ended_in_time(&name, begun, limit + DISTURBANCE);
        let kind = what.split_once(" of ").map_or(what, |(kind, _)| kind);
        ground.model.count(format!("{kind}: {end}"));
        if let Err(error) = &result
            && error.kind() == ErrorKind::Disconnected
        {
            self.connect_again(error);
        }
        result
    }

    /// Connects again after the daemon was killed. Nothing else ends a connection.
    fn connect_again(&mut self, reason: &Error) {
        // A node that cannot be reached for a deletion is another one's fault.
        if self.client.status().is_ok() {
            assert!(!self.ground.calm(self.ground.model.weather()), "nothing is broken: {reason}");
            return;
        }
        assert!(!self.ground.model.lives(self.at), "the daemon of node {} lives: {reason}", self.node);
        (self.client, self.at) = self.ground.connect(self.node);
    }

    /// Checks that a failure is explained by a fault, or a refusal by a full store. Without a fault, a call
    /// of little time may end by that on a busy machine.
    pub(super) fn explained<T>(&self, result: Result<T, Error>) {
        if let Err(error) = result {
            let kind = error.kind();
            let broken = [ErrorKind::Disconnected, ErrorKind::TimedOut, ErrorKind::OutcomeUnknown];
            let broken = broken.contains(&kind);
            assert!(broken, "{kind:?}: {error}");
            let had_no_core = kind == ErrorKind::TimedOut && self.limit < AMPLE;
            let calm = self.ground.calm(self.ground.model.weather());
            assert!(had_no_core || !calm, "nothing is broken: {error}");
        }
    }

    fn put(&mut self, len: usize, options: CreateOptions) {
        let ground = Arc::clone(&self.ground);
        let model = &ground.model;
        if model.burden(self.node) + len > BURDEN_BYTES {
            return model.count("put: not made, the node has enough".to_owned());
        }
        let seed =
            u64::from_le_bytes(model.id(model.next_of(self.number)).as_bytes()[..8].try_into().unwrap());
        let life = Life { seed, len };
        let Record { key, id, .. } = model.begin_put(self.number, life, options.replicas, self.at);
        let (data, metadata) = (life.data(), life.metadata());
        let end = self.call(&format!("put of {id}, {len} bytes"), Duration::ZERO, |client| {
            client.put(id, &data, &metadata, &options)
        });
        if let Err(error) = &end {
            let kind = error.kind();
            let explained = matches!(kind, ErrorKind::Full | ErrorKind::Disconnected | ErrorKind::TimedOut);
            // The object was sealed, and deleted before others had it; or there are too few other nodes.
            let spread = options.replicas > 1
                && matches!(kind, ErrorKind::TooFew | ErrorKind::NotFound | ErrorKind::Lost);
            assert!(explained || spread, "{kind:?}: {error}");
        }
        model.end_put(key, end.map_err(|error| error.kind()));
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

    /// Compares the result of a get with the states of the object before and after.
    pub(super) fn judge(
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
                model.is_given(before, &record, life);
                assert_ne!(record.state, State::Never, "its put was refused: {record:?}");
                return Some((life, object));
            }
            Err(error) => error,
        };
        let must = |record: Option<&Record>| record.is_some_and(|record| model.must(record));
        let must = must(before) && must(after.as_ref());
        let calm = must && self.ground.calm(weather);
        let is_here = |record: Option<&Record>| record.is_some_and(|record| record.is_at(at));
        let local = is_here(before) && is_here(after.as_ref());
        let why = format!("{error} ({after:?}, calm: {calm}, from {at:?})");
        match error.kind() {
            ErrorKind::Disconnected => {}
            // A node whose memory is pinned and whose disk is full says so.
            ErrorKind::Full => {}
            ErrorKind::TimedOut => assert!(!must || !calm || patience < AMPLE, "{why}"),
            ErrorKind::NotFound => assert!(patience.is_zero() && !calm, "{why}"),
            ErrorKind::Lost => assert!(!must || !calm && !local, "{why}"),
            other => panic!("{other:?}: {why}"),
        }
        None
    }

    /// Brings an object to other nodes. The number of holders afterwards depends on deaths and on free
    /// memory.
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

    /// Asks another node for a sign of life.
    fn ping(&mut self, to: usize) {
        let Some((place, name)) = self.ground.model.called(to) else { return };
        let node = name.parse().expect("a node's id");
        let what = format!("ping of node {}", place.node);
        let pinged = self.call(&what, DELETION, |client| client.ping(node, DELETION));
        self.explained(pinged);
    }

    /// Makes more nodes keep an object.
    fn replicate(&mut self, which: Which, copies: u16, patience: Duration) {
        let Some(key) = self.ground.model.find(which).map(|record| record.key) else { return };
        let number = self.ground.model.begin_replicate(key);
        let end = self
            .spread("replicate", key, patience, |client, id| client.replicate(id, copies, Some(patience)));
        let holders = end.as_ref().map(|spread| &spread.holders[..]).map_err(Error::kind);
        self.ground.model.end_replicate(key, number, copies, holders);
    }

    /// Moves an object to another node.
    fn migrate(&mut self, which: Which, to: usize, patience: Duration) {
        let ground = Arc::clone(&self.ground);
        let model = &ground.model;
        let (Some(record), Some((place, name))) = (model.find(which), model.called(to)) else { return };
        if model.burden(to) + record.lives.len() > BURDEN_BYTES {
            return model.count("migrate: not made, the node has enough".to_owned());
        }
        let (key, to) = (record.key, name.parse().expect("a node's id"));
        let number = model.begin_move(key, place);
        let what = format!("migrate of {} to node {}", record.id, place.node);
        let end = self.call(&what, patience, |client| client.migrate(record.id, to, Some(patience)));
        if let Err(error) = &end {
            let explained = [
                ErrorKind::TimedOut,
                ErrorKind::NotFound,
                ErrorKind::Disconnected,
                ErrorKind::Lost,
                ErrorKind::Full,
                ErrorKind::Busy,
                // The target is no member, as far as the node that was asked knows.
                ErrorKind::Invalid,
            ];
            assert!(explained.contains(&error.kind()), "{:?}: {error}", error.kind());
        }
        model.end_move(key, number, place, end.map(drop).map_err(|error| error.kind()));
    }

    fn hold(&mut self, which: Which) {
        let Some(record) = self.ground.model.find(which) else { return };
        if let Some((life, object)) = self.get(record.key, Duration::from_secs(1)) {
            let at = self.at;
            self.ground.model.pin(&record, at);
            self.held.push_back((record.key, life, at, object));
        }
        if self.held.len() > HELD {
            self.let_go();
        }
    }

    /// Releases held objects, and checks that they have not changed.
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
        let there = before.is_at(before.home) && model.lives(before.home) && before.is_settled();
        let certain = before.state == State::Sealed && there && ground.calm(weather);
        match deleted {
            Ok(outcomes) if certain => {
                let well = matches!(outcomes[..], [DeleteOutcome::Deleted | DeleteOutcome::Deferred]);
                assert!(well, "{outcomes:?} of {before:?}");
                model.end_delete(&before);
            }
            result => self.explained(result),
        }
    }

    fn contains(&mut self, records: &[Record]) {
        let ground = Arc::clone(&self.ground);
        let (model, at) = (&ground.model, self.at);
        let here = |record: &Record| record.is_at(at) && model.must(record);
        let before: Vec<_> = records.iter().map(here).collect();
        let ids: Vec<_> = records.iter().map(|record| record.id).collect();
        match self.call("contains", DELETION, |client| client.contains(&ids)) {
            Ok(found) => {
                for ((record, before), found) in records.iter().zip(before).zip(found) {
                    let still = model.record(record.key).as_ref().is_some_and(here);
                    assert!(!before || !still || found == Presence::Here, "{found:?}: {record:?}");
                }
            }
            result => self.explained(result),
        }
    }
}
