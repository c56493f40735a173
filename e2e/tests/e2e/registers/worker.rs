//! Worker: a client of a node that makes drawn calls, and notes the answers with their times.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use plasmon::{
    Client, CreateOptions, DeleteOutcome, Error, ErrorKind, NodeId, Object, ObjectId, Presence, Scratch,
    Version,
};
use plasmon_e2e::linear::{Action, Call, Value};
use plasmon_e2e::wait::{let_pass, patiently};
use plasmon_e2e::{Chance, PATIENCE};

use super::WRITERS;
use super::content::{LANDING, bytes, len, of_data, of_object};

/// Numbers that are drawn for workers that only read.
const READS: Range<usize> = 38..90;
/// Largest number of objects that a worker holds.
const HELD: usize = 2;

/// Time that a put waits for others to make room.
const ROOM: Duration = Duration::from_secs(5);

/// State that all workers share.
pub(super) struct Ground {
    pub(super) sockets: Vec<PathBuf>,
    pub(super) nodes: Vec<NodeId>,
    pub(super) start: Instant,
    /// Errors with which any call may end.
    pub(super) excuses: &'static [ErrorKind],
    /// Longest rest after a call.
    pub(super) pause: Duration,
    /// Largest number of calls of a worker in a round.
    pub(super) calls: usize,
}

impl Ground {
    /// Time in nanoseconds since the start: the clock of all histories.
    pub(super) fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// Round with ids that were never used before.
pub(super) struct Round {
    pub(super) ids: Vec<ObjectId>,
    pub(super) over: AtomicBool,
}

/// Call on an id, given by its number in the round.
pub(super) type Noted = (usize, Call);

/// Client that makes calls.
pub(super) struct Worker<'a> {
    ground: &'a Ground,
    number: usize,
    node: usize,
    chance: Chance,
    client: Client,
    landing: Scratch,
    puts: u32,
    held: VecDeque<(Value, Object)>,
    /// The last object of each id that this worker put in the place of another.
    told: HashMap<ObjectId, (Value, Version)>,
    calls: Vec<Noted>,
    /// Number of calls by how they ended.
    pub(super) ends: BTreeMap<String, usize>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(ground: &'a Ground, number: usize, chance: Chance) -> Self {
        let node = number % ground.sockets.len();
        let (client, landing) = connect(&ground.sockets[node]).expect("every node is there at first");
        Self {
            ground,
            number,
            node,
            chance,
            client,
            landing,
            puts: 0,
            held: VecDeque::new(),
            told: HashMap::new(),
            calls: Vec::new(),
            ends: BTreeMap::new(),
        }
    }

    /// Makes calls until the round is over or there are enough. Returns the calls.
    pub(super) fn work(&mut self, round: &Round) -> Vec<Noted> {
        for _ in 0..self.ground.calls {
            if round.over.load(Ordering::Relaxed) {
                break;
            }
            self.act(round);
            let_pass(self.chance.span(self.ground.pause), "the pause between two calls is drawn");
        }
        while !self.held.is_empty() {
            self.let_go();
        }
        std::mem::take(&mut self.calls)
    }

    fn act(&mut self, round: &Round) {
        let at = self.chance.below(round.ids.len());
        let id = round.ids[at];
        let what = if self.number < WRITERS { 0..100 } else { READS };
        match what.start + self.chance.below(what.len()) {
            0..9 => self.put(round, at),
            9..16 => self.replace(round, at),
            16..26 => self.delete(round, &[at]),
            26..38 => {
                self.delete(round, &[at]);
                self.put(round, at);
            }
            38..64 => self.get(round, at),
            64..73 => self.get_into(round, at),
            73..80 => self.contains(round),
            80..90 => {
                let (_, _, evicted) = self.call("evict", |client, _| client.evict(u64::MAX));
                self.explained(evicted, &[]);
            }
            90..92 => {
                let (_, _, located) = self.call("locations", |client, _| client.locations(id));
                self.explained(located, &[]);
            }
            92..94 => {
                let node = *self.chance.pick(&self.ground.nodes);
                self.spread("migrate", |client, patience| client.migrate(id, node, patience));
            }
            94..96 => {
                let copies = 1 + self.chance.below(2) as u16;
                self.spread("replicate", |client, patience| client.replicate(id, copies, patience));
            }
            96..98 => self.spread("broadcast", |client, patience| client.broadcast(id, &[], patience)),
            98 => {
                let all: Vec<_> = (0..round.ids.len()).collect();
                self.delete(round, &all);
            }
            _ => self.let_go(),
        }
    }

    /// Makes a call. Returns the times before and after it.
    fn call<T>(
        &mut self,
        what: &str,
        call: impl FnOnce(&Client, &mut Scratch) -> Result<T, Error>,
    ) -> (u64, u64, Result<T, Error>) {
        let begin = self.ground.now();
        let result = call(&self.client, &mut self.landing);
        let end = self.ground.now();
        let ended = result.as_ref().map_or_else(|error| format!("{:?}", error.kind()), |_| "well".to_owned());
        *self.ends.entry(format!("{what}: {ended}")).or_default() += 1;
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Disconnected) {
            self.connect_again();
        }
        (begin, end, result)
    }

    /// Connects again if the daemon of the node was killed.
    fn connect_again(&mut self) {
        let connected = patiently(PATIENCE, || {
            if self.client.status().is_err() {
                (self.client, self.landing) = connect(&self.ground.sockets[self.node])?;
            }
            self.client.status()
        });
        connected.unwrap_or_else(|error| panic!("node {}: {error}", self.node));
    }

    fn note(&mut self, at: usize, begin: u64, end: Option<u64>, action: Action) {
        let call = Call { node: self.node, client: Some(self.number), begin, end, action };
        self.calls.push((at, call));
    }

    /// Checks that an error is of these kinds, or one that the weather excuses.
    fn explained<T>(&self, result: Result<T, Error>, kinds: &[ErrorKind]) {
        if let Err(error) = result {
            let kind = error.kind();
            let explained = kinds.contains(&kind) || self.ground.excuses.contains(&kind);
            assert!(explained, "client {} of node {}: {kind:?}: {error}", self.number, self.node);
        }
    }

    fn put(&mut self, round: &Round, at: usize) {
        let (id, options) = (round.ids[at], CreateOptions { room: Some(ROOM), ..CreateOptions::default() });
        self.puts += 1;
        let value = Value { writer: self.number as u32, number: self.puts };
        let (data, metadata) = bytes(value, len(&mut self.chance));
        let created = self.chance.percent(20);
        let (begin, end, result) = self.call("put", |client, _| {
            if !created {
                return client.put(id, &data, &metadata, &options);
            }
            let mut creation = client.create(id, data.len() as u64, &metadata, &options)?;
            creation.as_mut_slice().copy_from_slice(&data);
            creation.seal()
        });
        match &result {
            Ok(()) => self.note(at, begin, Some(end), Action::Put(value)),
            Err(error) if error.kind() == ErrorKind::Exists => {
                self.note(at, begin, Some(end), Action::Refused);
            }
            Err(_) => self.note(at, begin, None, Action::MaybePut(value)),
        }
        self.explained(result, &[ErrorKind::Exists]);
    }

    /// Writes, or compares with the last object that this worker was told of, and sets.
    fn replace(&mut self, round: &Round, at: usize) {
        let (id, room) = (round.ids[at], Some(ROOM));
        self.puts += 1;
        let to = Value { writer: self.number as u32, number: self.puts };
        let (data, metadata) = bytes(to, len(&mut self.chance));
        let known = self.told.get(&id).copied().filter(|_| self.chance.percent(50));
        let (from, expected) = known.unzip();
        let created = self.chance.percent(30);
        let (begin, end, result) = self.call("replace", |client, _| {
            let options = CreateOptions { room, replace: created, ..CreateOptions::default() };
            if !created {
                return client.replace(id, &data, &metadata, &options, expected);
            }
            let mut creation = client.create(id, data.len() as u64, &metadata, &options)?;
            creation.as_mut_slice().copy_from_slice(&data);
            creation.replace(expected)
        });
        match &result {
            Ok(version) => {
                self.told.insert(id, (to, *version));
                let wrote = from.map_or(Action::Wrote(to), |from| Action::Swapped { from, to });
                self.note(at, begin, Some(end), wrote);
            }
            Err(error) if error.kind() == ErrorKind::Conflict => {
                self.note(at, begin, Some(end), Action::Contains(true));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.note(at, begin, Some(end), Action::Contains(false));
            }
            // The old object stays after a time-out, and when there is no room.
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Full) => {}
            Err(_) => {
                let maybe = from.map_or(Action::MaybeWrote(to), |from| Action::MaybeSwapped { from, to });
                self.note(at, begin, None, maybe);
            }
        }
        let refused: &[_] = if from.is_some() { &[ErrorKind::Conflict, ErrorKind::NotFound] } else { &[] };
        self.explained(result, refused);
    }

    fn delete(&mut self, round: &Round, which: &[usize]) {
        let ids: Vec<_> = which.iter().map(|at| round.ids[*at]).collect();
        let (begin, end, result) = self.call("delete", |client, _| client.delete(&ids));
        for (number, at) in which.iter().enumerate() {
            match &result {
                Ok(outcomes) => {
                    let found = outcomes[number] != DeleteOutcome::Absent;
                    self.note(*at, begin, Some(end), Action::Deleted(found));
                }
                Err(_) => self.note(*at, begin, None, Action::MaybeDeleted),
            }
        }
        self.explained(result, &[]);
    }

    fn get(&mut self, round: &Round, at: usize) {
        let (id, patience) = (round.ids[at], self.patience());
        let (begin, end, result) = self.call("get", |client, _| client.get(&[id], Some(patience))?.remove(0));
        match result {
            Ok(object) => {
                let value = of_object(&object);
                self.note(at, begin, Some(end), Action::Got(value));
                if self.chance.percent(10) {
                    self.held.push_back((value, object));
                }
                if self.held.len() > HELD {
                    self.let_go();
                }
            }
            result => self.explained(result, &[ErrorKind::TimedOut, ErrorKind::NotFound]),
        }
    }

    fn get_into(&mut self, round: &Round, at: usize) {
        let (id, patience) = (round.ids[at], self.patience());
        let (begin, end, result) = self
            .call("get into", |client, landing| client.get_into(id, landing.as_mut_slice(), Some(patience)));
        match result {
            Ok(len) => {
                // An empty object does not say which it is.
                let value = of_data(&self.landing.as_slice()[..len]);
                self.note(at, begin, Some(end), value.map_or(Action::Contains(true), Action::Got));
            }
            // Some objects are larger.
            result => {
                self.explained(result, &[ErrorKind::TimedOut, ErrorKind::NotFound, ErrorKind::Invalid]);
            }
        }
    }

    fn contains(&mut self, round: &Round) {
        let (begin, end, result) = self.call("contains", |client, _| client.contains(&round.ids));
        for (at, presence) in result.iter().flatten().enumerate() {
            self.note(at, begin, Some(end), Action::Contains(*presence != Presence::Absent));
        }
        self.explained(result, &[]);
    }

    /// Brings an object to other nodes, if it exists.
    fn spread<T>(&mut self, what: &str, spread: impl FnOnce(&Client, Option<Duration>) -> Result<T, Error>) {
        let patience = Some(self.patience());
        let (_, _, result) = self.call(what, |client, _| spread(client, patience));
        let not_there = [
            ErrorKind::NotFound,
            ErrorKind::TimedOut,
            ErrorKind::Lost,
            ErrorKind::TooFew,
            ErrorKind::Busy,
            // The node that it was to go to.
            ErrorKind::Invalid,
        ];
        self.explained(result, &not_there);
    }

    /// Releases held objects, and checks that they have not changed.
    fn let_go(&mut self) {
        if let Some((value, object)) = self.held.pop_front() {
            assert_eq!(of_object(&object), value);
        }
    }

    fn patience(&mut self) -> Duration {
        Duration::from_millis(*self.chance.pick(&[0, 5, 20, 100, 300]))
    }
}

fn connect(socket: &PathBuf) -> Result<(Client, Scratch), Error> {
    let client = Client::connect(socket)?;
    let landing = client.buffer(LANDING, false, None)?;
    Ok((client, landing))
}
