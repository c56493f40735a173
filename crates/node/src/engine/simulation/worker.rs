//! A client of a simulation: it makes one call at a time, as the seed says, and notes the answers.

mod replaces;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use plasmon::digest::Digest;
use plasmon::wire::{DeleteOutcome, NewObject, Placement, Presence, Reply, Request, Span, Terms};
use plasmon::{Class, Error, ErrorKind, ObjectId, Rights};
use plasmon_linear::{Action, Call, Value};

use super::{FIRST_REPLICATED_ID, IDS, Simulation, below, percent, span};
use crate::kernel::ClientKey;
use crate::service::{Asked, Session};
use crate::sessions::client::Client;

/// Longest pause between two calls of a client.
const MAX_THINKING: Duration = Duration::from_millis(60);
/// Pause of a client whose node is gone.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// Longest time that a put waits until another node keeps the object too, in microseconds.
const KEEP_PATIENCE_US: u64 = 5_000_000;
/// The user of all clients.
pub(super) const USER: u32 = 1000;
/// Lengths in bytes of objects that go with the request that puts them.
const INLINE_LENGTHS: [usize; 5] = [8, 100, 5_000, 20_000, MAX_INLINE_BYTES];
/// Length in bytes of the longest object that goes with the request that puts it.
const MAX_INLINE_BYTES: usize = 60_000;
/// Lengths in bytes of objects that are written in place: three that are pushed, one that is longer than a
/// piece of a transfer, and one that is longer than a segment.
const MAPPED_LENGTHS: [usize; 5] = [100_000, 200_000, 250_000, 1_100_000, 2_100_000];

/// A session that keeps its replies.
#[derive(Default)]
pub(super) struct Replies(pub(super) RefCell<VecDeque<(u64, Reply)>>);

impl Session for Replies {
    fn user(&self) -> u32 {
        USER
    }

    fn send(&self, request: u64, reply: &Reply, _: Vec<Arc<OwnedFd>>) {
        self.0.borrow_mut().push_back((request, reply.clone()));
    }

    fn ring(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The version that a compare-and-set expects, and its value.
type Expected = Option<(u64, Value)>;

/// Call for which a client waits.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Doing {
    Put {
        id: usize,
        value: Value,
        len: usize,
    },
    /// The last part of a put: the object exists, and another node is to keep it too.
    Keep {
        id: usize,
        value: Value,
    },
    /// The first part of a put: the object is to be written in place.
    Create {
        id: usize,
        value: Value,
        len: usize,
    },
    /// A write, or a compare-and-set with the value that it expects.
    Replace {
        id: usize,
        value: Value,
        expected: Option<Value>,
    },
    /// The first part of a write or a compare-and-set: the object is to be written in place.
    CreateOver {
        id: usize,
        value: Value,
        len: usize,
        expected: Expected,
    },
    Delete {
        id: usize,
    },
    Get {
        id: usize,
    },
    /// A get that brings only what exists.
    Seek {
        id: usize,
    },
    /// A get that brings all objects that exist.
    SeekAll,
    Contains,
    /// A call whose answer says nothing about an id.
    Else,
}

/// A client and its connection.
pub(super) struct Worker {
    number: usize,
    pub(super) host: usize,
    /// Number of the start of the host's node to which the client is connected.
    start: u64,
    session: Rc<Replies>,
    key: ClientKey,
    /// The call for which the client waits: its number, the moment at which it began, and its kind.
    doing: Option<(u64, u64, Doing)>,
    /// The view in which the call began.
    epoch: u64,
    next_at: Duration,
    requests: u64,
    puts: u32,
    /// Whether the object that the client is putting in the place of another may end by itself.
    ends: bool,
    pub(super) calls: usize,
    pub(super) successes: usize,
    /// Descriptions of answers that break a promise.
    pub(super) wrong: Vec<String>,
    /// The reply to the last request of a further service.
    pub(super) last_further: Option<Reply>,
    /// Result of the client's last get.
    pub(super) last_get: Option<Result<(), String>>,
}

/// Bytes of a value.
fn bytes(value: Value, len: usize) -> Vec<u8> {
    let seed = [value.writer.to_le_bytes(), value.number.to_le_bytes()].concat();
    let mut bytes = seed.repeat(len.div_ceil(8));
    bytes.truncate(len);
    bytes
}

/// Digest of an object's data, as clients make it.
fn digest(data: &[u8]) -> u64 {
    let mut digest = Digest::new();
    digest.add(data);
    digest.value()
}

impl Worker {
    /// Connects a client to a host's node.
    pub(super) fn connect(number: usize, host: usize, simulation: &mut Simulation) -> Self {
        let mut worker = Self {
            number,
            host,
            start: 0,
            session: Rc::default(),
            key: ClientKey::MIN,
            doing: None,
            epoch: 0,
            next_at: simulation.time.now(),
            requests: 0,
            puts: 0,
            ends: false,
            calls: 0,
            successes: 0,
            wrong: Vec::new(),
            last_further: None,
            last_get: None,
        };
        worker.connect_again(simulation);
        worker
    }

    fn connect_again(&mut self, simulation: &Simulation) {
        let host = &simulation.hosts[self.host];
        let Some(core) = host.core() else { return };
        (self.start, self.session, self.key) = (host.starts, Rc::default(), core.sessions.next_key());
        let session = Rc::clone(&self.session) as Rc<dyn Session>;
        let mut client = Client::new(session, 0, simulation.time.instant());
        client.class = Class::ALL[below(Class::ALL.len())];
        core.sessions.clients.borrow_mut().insert(self.key, client);
        self.ask(simulation, Request::Hello { name: format!("worker {}", self.number) });
        self.session.0.borrow_mut().clear();
    }

    /// Whether the node to which the client is connected still runs.
    fn is_connected(&self, simulation: &Simulation) -> bool {
        let host = &simulation.hosts[self.host];
        host.is_alive() && host.starts == self.start
    }

    /// Time at which the client makes its next call.
    pub(super) fn due(&self) -> Option<Duration> {
        self.doing.is_none().then_some(self.next_at)
    }

    /// Whether the client waits for nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.doing.is_none()
    }

    /// Whether the client is putting an object of this id.
    pub(super) fn puts(&self, id: usize) -> bool {
        let doing = self.doing.as_ref().map(|(.., doing)| doing);
        match doing {
            Some(
                Doing::Put { id: put, .. } | Doing::Create { id: put, .. } | Doing::Keep { id: put, .. },
            ) => *put == id,
            _ => false,
        }
    }

    /// Makes a request, and returns its number.
    fn ask(&mut self, simulation: &Simulation, request: Request) -> u64 {
        self.requests += 1;
        let asked = Asked { session: self.key, number: self.requests, request, file: None };
        simulation.hosts[self.host].ask(asked);
        self.requests
    }

    /// Makes the next call.
    fn act(&mut self, simulation: &mut Simulation) {
        if !self.is_connected(simulation) {
            self.next_at = simulation.time.now() + RECONNECT_PAUSE;
            return;
        }
        let id = below(IDS);
        let nodes: Vec<_> = simulation.hosts.iter().filter_map(|host| host.id()).collect();
        let (timeout_us, ids) = ([0, 5_000, 100_000, 2_000_000][below(4)], simulation.ids.clone());
        let only = vec![ids[id]];
        let begin = simulation.moment();
        let (doing, request) = match below(100) {
            0..22 => self.put(id, ids[id], simulation.hosts[self.host].has_disk()),
            22..30 => self.replace(simulation, id),
            30..42 if !simulation.brings_back() => (Doing::Delete { id }, Request::Delete { ids: only }),
            30..68 => (Doing::Get { id }, Request::Get { timeout_us, verify: false, ids: only }),
            68..72 => {
                (Doing::Seek { id }, Request::Seek { timeout_us: 10_000_000, verify: false, ids: only })
            }
            72..74 => (Doing::SeekAll, Request::Seek { timeout_us: 10_000_000, verify: false, ids }),
            74..84 => (Doing::Contains, Request::Contains { ids }),
            84..90 => (Doing::Else, Request::Evict { bytes: u64::MAX }),
            90..92 => (Doing::Else, Request::Locations { id: ids[id] }),
            92..95 => {
                let node = nodes[below(nodes.len())];
                (Doing::Else, Request::Migrate { timeout_us, id: ids[id], node })
            }
            95..98 => (Doing::Else, Request::Replicate { timeout_us, id: ids[id], copies: 2, put: false }),
            _ => (Doing::Else, Request::Broadcast { timeout_us, id: ids[id], nodes: Vec::new() }),
        };
        self.begin(simulation, begin, doing, request);
    }

    /// Makes a call, and has the client's node take a turn.
    fn begin(&mut self, simulation: &mut Simulation, begin: u64, doing: Doing, request: Request) {
        self.calls += 1;
        self.epoch = simulation.coordinator.epoch();
        let number = self.ask(simulation, request);
        self.doing = Some((number, begin, doing));
        simulation.hosts[self.host].turn(simulation.time.now());
        self.hear(simulation);
    }

    /// Returns the put of an object. Large objects are more frequent where a disk takes objects without room
    /// in memory.
    fn put(&mut self, id: usize, object: ObjectId, has_disk: bool) -> (Doing, Request) {
        let len = match percent(if has_disk { 50 } else { 25 }) {
            true => MAPPED_LENGTHS[below(MAPPED_LENGTHS.len())],
            false => INLINE_LENGTHS[below(INLINE_LENGTHS.len())],
        };
        self.put_of(id, object, len)
    }

    /// Returns the put of an object of `len` bytes.
    fn put_of(&mut self, id: usize, object: ObjectId, len: usize) -> (Doing, Request) {
        self.puts += 1;
        let value = Value { writer: self.number as u32, number: self.puts };
        let copies = if id < FIRST_REPLICATED_ID { 1 } else { 2 };
        let new = NewObject {
            id: object,
            rights: Rights::default(),
            name: String::new(),
            metadata: Default::default(),
            terms: Terms { fresh: false, copies, ttl_ms: 0, owned: false, replaces: false },
        };
        let room_us = 1_000_000;
        if len > MAX_INLINE_BYTES {
            let request = Request::Create { object: new, data_len: len as u64, metadata_len: 0, room_us };
            return (Doing::Create { id, value, len }, request);
        }
        let data: Bytes = bytes(value, len).into();
        let digest = digest(&data);
        (Doing::Put { id, value, len }, Request::Put { object: new, digest, room_us, data })
    }

    /// Takes in the replies that have come.
    fn hear(&mut self, simulation: &mut Simulation) {
        if !self.is_connected(simulation) {
            self.give_up(simulation);
            if simulation.hosts[self.host].serves() {
                self.connect_again(simulation);
            }
        }
        loop {
            let reply = self.session.0.borrow_mut().pop_front();
            let Some((number, reply)) = reply else { return };
            if self.doing.as_ref().is_none_or(|(request, ..)| *request != number) {
                continue;
            }
            let (_, begin, doing) = self.doing.take().expect("it waits for this");
            self.next_at = simulation.time.now() + span(MAX_THINKING);
            self.note(simulation, begin, doing, reply);
        }
    }

    /// Ends a call whose node is gone: its outcome is not known.
    fn give_up(&mut self, simulation: &mut Simulation) {
        self.next_at = simulation.time.now() + RECONNECT_PAUSE;
        if let Some((_, begin, doing)) = self.doing.take() {
            // Other nodes give up the claim when they know that the node is gone.
            self.note_unknown(simulation, (begin, u64::MAX), &doing);
        }
    }

    fn note_unknown(&self, simulation: &mut Simulation, (begin, end): (u64, u64), doing: &Doing) {
        let failed_put = match *doing {
            Doing::Put { id, .. } | Doing::Create { id, .. } | Doing::Keep { id, .. } => Some(id),
            Doing::Replace { id, expected: None, .. } => Some(id),
            _ => None,
        };
        failed_put.into_iter().for_each(|id| simulation.failed_puts[id].push((begin, end)));
        if let Doing::Replace { id, value, expected } = *doing {
            return self.note_maybe_replaced(simulation, begin, (id, value, expected));
        }
        let (id, action) = match *doing {
            Doing::Put { id, value, .. } | Doing::Keep { id, value } => (id, Action::MaybePut(value)),
            Doing::Delete { id } => (id, Action::MaybeDeleted),
            _ => return,
        };
        simulation.note(id, self.call(begin, None, action));
    }

    fn call(&self, begin: u64, end: Option<u64>, action: Action) -> Call {
        Call { node: self.host, client: Some(self.number), begin, end, action }
    }

    fn note(&mut self, simulation: &mut Simulation, begin: u64, doing: Doing, reply: Reply) {
        let now = simulation.moment();
        let end = Some(now);
        simulation.trace(begin ^ u64::from(plasmon::wire::Table::opcode(&reply)) << 56);
        let failed = match &reply {
            Reply::Failed { error } => Some(error.kind()),
            _ => None,
        };
        self.successes += usize::from(failed.is_none());
        if let Reply::Failed { error } = &reply
            && error.kind() == ErrorKind::Internal
        {
            self.wrong.push(format!("{doing:?}: {error}"));
        }
        match (doing, reply) {
            (Doing::Create { id, value, len }, Reply::Created { placement, .. }) => {
                self.seal(simulation, begin, (id, value, len), placement);
            }
            (Doing::CreateOver { id, value, len, expected }, Reply::Created { placement, .. }) => {
                self.seal_over(simulation, begin, (id, value, len), expected, placement);
            }
            (Doing::Replace { id, value, expected }, reply) => {
                if failed.is_some() && expected.is_none() {
                    simulation.failed_puts[id].push((begin, now));
                }
                self.note_replaced(simulation, (begin, end), (id, value, expected), &reply);
            }
            (Doing::Put { id, .. } | Doing::Create { id, .. }, _) if failed == Some(ErrorKind::Exists) => {
                simulation.note(id, self.call(begin, end, Action::Refused));
            }
            (Doing::Put { id, value, .. }, Reply::Done) if id >= FIRST_REPLICATED_ID => {
                let object = simulation.ids[id];
                let request =
                    Request::Replicate { timeout_us: KEEP_PATIENCE_US, id: object, copies: 2, put: true };
                self.begin(simulation, begin, Doing::Keep { id, value }, request);
            }
            // What was put and is gone was deleted meanwhile.
            (Doing::Keep { id, value }, _) if failed == Some(ErrorKind::NotFound) => {
                simulation.note(id, self.call(begin, end, Action::Put(value)));
            }
            (Doing::Put { id, value, .. }, Reply::Done)
            | (Doing::Keep { id, value }, Reply::Report { .. }) => {
                simulation.note(id, self.call(begin, end, Action::Put(value)));
            }
            (Doing::Delete { id }, Reply::Deleted(outcomes)) => {
                let found = outcomes[0] != DeleteOutcome::Absent;
                simulation.note(id, self.call(begin, end, Action::Deleted(found)));
                if simulation.coordinator.epoch() > self.epoch {
                    // A keeper that is gone may have carried out the deletion before another was asked.
                    simulation.note(id, self.call(begin, None, Action::MaybeDeleted));
                }
            }
            (doing @ (Doing::Get { id } | Doing::Seek { id }), Reply::Got { mut objects, .. }) => {
                self.last_get = Some(objects[0].as_ref().map(drop).map_err(ToString::to_string));
                // A keeper answers about an object that is sought. Any other get was told of its own node
                // alone.
                let is_told = matches!(doing, Doing::Seek { .. });
                self.note_got(simulation, id, (begin, end, is_told), objects.remove(0));
            }
            (Doing::SeekAll, Reply::Got { objects, .. }) => {
                for (id, object) in objects.into_iter().enumerate() {
                    self.note_got(simulation, id, (begin, end, true), object);
                }
            }
            (Doing::Contains, Reply::Contains(presence)) => {
                for (id, presence) in presence.into_iter().enumerate() {
                    let there = presence != Presence::Absent;
                    simulation.note(id, self.call(begin, end, Action::Contains(there)));
                }
            }
            (doing, Reply::Failed { .. }) => {
                self.note_unknown(simulation, (begin, now), &doing);
            }
            (Doing::Else, reply @ Reply::Other(_)) => self.last_further = Some(reply),
            (Doing::Else, _) => {}
            (doing, reply) => self.wrong.push(format!("{doing:?} was answered with {reply:?}")),
        }
    }

    /// Notes how the get of an object has ended, and whether a keeper was asked if the object exists.
    fn note_got(
        &mut self,
        simulation: &mut Simulation,
        id: usize,
        (begin, end, is_told): (u64, Option<u64>, bool),
        object: Result<Span, Error>,
    ) {
        match object {
            Ok(span) => match self.read(simulation, span) {
                Ok((version, value)) => {
                    simulation.versions[id].push((version, value));
                    simulation.note(id, self.call(begin, end, Action::Got(value)));
                }
                Err(wrong) => self.wrong.push(wrong),
            },
            Err(error) if error.kind() == ErrorKind::NotFound && is_told => {
                simulation.note(id, self.call(begin, end, Action::Contains(false)));
            }
            Err(_) => {}
        }
    }

    /// Writes an object in its place, and seals it.
    fn seal(
        &mut self,
        simulation: &mut Simulation,
        begin: u64,
        (id, value, len): (usize, Value, usize),
        placement: Placement,
    ) {
        let Some((digest, data)) = self.write(simulation, id, (value, len), placement) else { return };
        let request = Request::Seal { id: simulation.ids[id], digest, data: data.into() };
        self.begin(simulation, begin, Doing::Put { id, value, len }, request);
    }

    /// Writes an object in its place, if it has one. Returns its digest, and the bytes that go with the seal.
    fn write(
        &self,
        simulation: &Simulation,
        id: usize,
        (value, len): (Value, usize),
        placement: Placement,
    ) -> Option<(u64, Vec<u8>)> {
        let core = simulation.hosts[self.host].core().cloned()?;
        let object = simulation.ids[id];
        let mut data = bytes(value, len);
        let digest = digest(&data);
        if let Placement::Mapped(_) = placement {
            let objects = core.store.objects.borrow();
            let creation = objects.creation(&object).filter(|creation| creation.client == self.key);
            let creation = creation.or(objects.replacement(self.key, &object)).expect("it is being created");
            creation.extent.write(0, &data).expect("it has room for the data");
            data.clear();
        }
        Some((digest, data))
    }

    /// Reads an object that was got, and releases it.
    fn read(&mut self, simulation: &Simulation, span: Span) -> Result<(u64, Value), String> {
        let core = simulation.hosts[self.host].core().expect("the node has answered").clone();
        let mut data = vec![0; span.data_len as usize];
        let read = core.sessions.client(self.key, |client| {
            let pin = client.pins.get(&span.offset).and_then(|pins| pins.last());
            pin.and_then(|pin| pin.run().read(0, &mut data).is_ok().then_some(pin.life))
        });
        let Some(version) = read else {
            return Err(format!("an object was got that is not pinned: {span:?}"));
        };
        self.ask(simulation, Request::Release { offsets: vec![span.offset] });
        let number = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().expect("four bytes"));
        let value = Value { writer: number(0), number: number(4) };
        let word = [value.writer.to_le_bytes(), value.number.to_le_bytes()].concat();
        let word: [u8; 8] = word.try_into().expect("two words of four bytes");
        let (words, rest) = data.as_chunks::<8>();
        if words.iter().any(|one| *one != word) || *rest != word[..rest.len()] {
            return Err(format!("the bytes of {value:?} are not those that were put"));
        }
        Ok((version, value))
    }

    /// Makes a request of a further service.
    pub(super) fn ask_further(&mut self, simulation: &mut Simulation, request: Request) {
        if !self.is_connected(simulation) {
            return;
        }
        let begin = simulation.moment();
        self.begin(simulation, begin, Doing::Else, request);
    }

    /// Asks for an object, whatever the seed says.
    pub(super) fn get(&mut self, simulation: &mut Simulation, id: usize) {
        self.last_get = None;
        if !self.is_connected(simulation) {
            return;
        }
        let (begin, ids) = (simulation.moment(), vec![simulation.ids[id]]);
        let request = Request::Get { timeout_us: 10_000_000, verify: false, ids };
        self.begin(simulation, begin, Doing::Get { id }, request);
    }

    /// Asks which objects are there, whatever the seed says.
    pub(super) fn ask_contains(&mut self, simulation: &mut Simulation) {
        if !self.is_connected(simulation) {
            return;
        }
        let (begin, ids) = (simulation.moment(), simulation.ids.clone());
        self.begin(simulation, begin, Doing::Contains, Request::Contains { ids });
    }

    /// Puts an object of `len` bytes, whatever the seed says.
    pub(super) fn put_now(&mut self, simulation: &mut Simulation, id: usize, len: usize) {
        let begin = simulation.moment();
        let (doing, request) = self.put_of(id, simulation.ids[id], len);
        self.begin(simulation, begin, doing, request);
    }

    /// Deletes an object, whatever the seed says.
    pub(super) fn delete(&mut self, simulation: &mut Simulation, id: usize) {
        if !self.is_connected(simulation) {
            return;
        }
        let (begin, ids) = (simulation.moment(), vec![simulation.ids[id]]);
        self.begin(simulation, begin, Doing::Delete { id }, Request::Delete { ids });
    }
}

impl Simulation {
    /// Does something with a worker, which may do something with the simulation.
    pub(super) fn with_worker(&mut self, number: usize, act: impl FnOnce(&mut Worker, &mut Self)) {
        let mut workers = std::mem::take(&mut self.workers);
        act(&mut workers[number], self);
        self.workers = workers;
    }

    /// Has all workers take in their replies.
    pub(super) fn hear_workers(&mut self) {
        for number in 0..self.workers.len() {
            self.with_worker(number, |worker, simulation| worker.hear(simulation));
        }
    }

    /// Has those workers make a call that are due.
    pub(super) fn let_workers_act(&mut self) {
        for number in 0..self.workers.len() {
            if self.workers[number].due().is_some_and(|due| due <= self.time.now()) {
                self.with_worker(number, |worker, simulation| worker.act(simulation));
            }
        }
    }
}
