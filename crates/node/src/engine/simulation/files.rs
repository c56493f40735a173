//! Files of simulated nodes: an operation is done once although connections break, and its answer is true of
//! the volume.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use plasmon::shared::{CallPayload, CallRequest};
use plasmon::wire::files::{
    Actor, Errno, FileAnswer, FileAsked, FileOperation, FileOutcome, FilesCall, LockKind, LockRange, Place,
    ROOT_INODE, Section, Settling, Source, Written, decoded, file_object,
};
use plasmon::wire::{BySlot, NewObject, Reply, Request, Terms};
use plasmon::{Error, ErrorKind, ObjectId, Rights};

use super::counters::{Ended, SETTLED_TIME, User, end};
use super::worker::USER;
use super::{Simulation, below, percent, span};

/// Seeds of each case.
const SEEDS: RangeInclusive<u64> = 1..=6;
/// Number of rounds in which all clients do something. All lines have room in the map of a file.
const ROUNDS: usize = 60;
/// Number of bytes of an object.
const OBJECT_BYTES: usize = 5000;
/// Longest time that a call may take.
const CALL_PATIENCE: Duration = Duration::from_secs(120);

/// A client that is attached to the volume.
pub(super) struct Writer {
    pub(super) user: User,
    pub(super) volume: u32,
    pub(super) session: u32,
    pub(super) secret: u64,
    /// Number of the volume, as all nodes know it.
    pub(super) number: u32,
    pub(super) numbers: u64,
}

impl Writer {
    pub(super) fn attach(simulation: &mut Simulation, host: usize) -> Self {
        Self::attach_by(simulation, host, USER)
    }

    /// Attaches a client of a user.
    pub(super) fn attach_by(simulation: &mut Simulation, host: usize, uid: u32) -> Self {
        let mut user = User::connect(simulation, host);
        let core = simulation.hosts[host].core().expect("it runs");
        core.sessions.client_mut(user.key, |client| client.uid = uid).expect("it has connected");
        match user.ask(simulation, attach()) {
            Ok(Reply::VolumeAttached { volume, session, secret, info, .. }) => {
                Self { user, volume, session, secret, number: info.number, numbers: 0 }
            }
            other => panic!("{other:?}"),
        }
    }

    /// Puts an object with bytes for a file, which `copies` nodes keep. Returns a section of the object.
    pub(super) fn put(
        &mut self,
        simulation: &mut Simulation,
        counter: u64,
        copies: u16,
    ) -> (ObjectId, Section) {
        let id = file_object(self.number, self.session, counter);
        let terms = Terms { fresh: true, copies: 0, ttl_ms: 0, owned: false, replaces: false };
        let (rights, name, metadata) = (Rights::Private, String::new(), Bytes::new());
        let object = NewObject { id, rights, name, metadata, terms };
        let data = Bytes::from_static(&[7; OBJECT_BYTES]);
        let put = Request::Put { object, digest: 0, room_us: 1_000_000, data };
        assert_eq!(self.user.ask(simulation, put), Ok(Reply::Done));
        if copies > 1 {
            let settle =
                Request::Settle(Settling { volume: self.volume, ids: vec![id], place: Place::Local, copies });
            let settled = self.user.ask(simulation, settle);
            assert!(matches!(settled, Ok(Reply::Settled { .. })), "{settled:?}");
        }
        let (len, node) = (OBJECT_BYTES as u64, simulation.hosts[self.user.host].id().expect("it runs"));
        let source = Source::Object { id, at: 0, object_len: len, node };
        (id, Section { offset: 0, len, source })
    }

    fn commit(&mut self, simulation: &mut Simulation, inode: u64, section: Section) {
        let sections = vec![section];
        let commit = FileOperation::Commit {
            inode,
            sections,
            modified: None,
            drops_privileges: false,
            credit: 0,
            credit_of: 0,
        };
        assert!(matches!(self.run(simulation, commit), FileOutcome::Entry(_)));
    }

    /// Begins an operation by a slot.
    pub(super) fn begin(&mut self, simulation: &Simulation, operation: FileOperation) -> Ended {
        self.numbers += 1;
        self.again(simulation, self.numbers, operation)
    }

    /// Asks for an operation again, under the number that it had.
    pub(super) fn again(&self, simulation: &Simulation, number: u64, operation: FileOperation) -> Ended {
        let asked = FileAsked { number, answered: 0, actor: Actor::default(), operation };
        let (opcode, arguments, payload) = FilesCall::OnFile { volume: self.volume, asked }.packed();
        let payload = CallPayload::new(&payload).expect("it fits a slot");
        let timeout_us = CALL_PATIENCE.as_micros() as u64;
        let request = CallRequest { opcode, class: None, timeout_us, arguments, payload };
        self.user.call_with(simulation, request)
    }

    /// Carries out an operation by the socket.
    pub(super) fn run(&mut self, simulation: &mut Simulation, operation: FileOperation) -> FileOutcome {
        self.numbers += 1;
        let asked = FileAsked { number: self.numbers, answered: 0, actor: Actor::default(), operation };
        match self.user.ask(simulation, Request::OnFile { volume: self.volume, asked }) {
            Ok(Reply::FileDone(FileAnswer { outcome, .. })) => outcome,
            other => panic!("{other:?}"),
        }
    }
}

/// A request for a session.
pub(super) fn attach() -> Request {
    let name = "simulated".to_owned();
    Request::AttachVolume { name, create: true, read_only: false, checked: false, again: None }
}

/// A request to end a session.
pub(super) fn detach(writer: &Writer) -> Request {
    Request::DetachVolume { volume: writer.volume }
}

/// A request for the volumes that the node of a host lists.
pub(super) fn list(simulation: &Simulation, host: usize) -> Request {
    Request::ListVolumes { node: simulation.hosts[host].id().expect("it runs"), from: 0 }
}

/// A request to remove the volume.
pub(super) fn remove(lost: bool) -> Request {
    Request::RemoveVolume { name: "simulated".to_owned(), lost }
}

/// The outcome of an operation that has ended.
pub(super) fn outcome(ended: &Ended) -> Result<FileOutcome, Error> {
    let result = ended.get().expect("every operation ends").as_ref().map_err(Clone::clone)?;
    assert_eq!(result.values[0], 0, "the answer fits a slot");
    let answer = decoded::<FileAnswer>(Bytes::copy_from_slice(&result.payload), "answer");
    Ok(answer.expect("it is one").outcome)
}

/// A cluster of whose nodes each has a client that is attached to a volume, whose home is any of them.
pub(super) fn attached(seed: u64) -> (Simulation, Vec<Writer>) {
    attached_by(seed, USER)
}

/// Makes a cluster as [`attached`] does, with clients of a user.
pub(super) fn attached_by(seed: u64, uid: u32) -> (Simulation, Vec<Writer>) {
    let mut simulation = Simulation::new(seed, |_| Vec::new());
    simulation.network.change_faults(|faults| (faults.spoiled_read_ppm, faults.cut_ppm) = (0, 0));
    simulation.pass(SETTLED_TIME);
    let first = below(simulation.hosts.len());
    let hosts = simulation.hosts.len();
    let mut attach = |at| Writer::attach_by(&mut simulation, (first + at) % hosts, uid);
    let writers = (0..hosts).map(&mut attach).collect();
    (simulation, writers)
}

/// Makes a file by the first writer. All writers look its name up, because sessions of users name nothing
/// else.
pub(super) fn make(simulation: &mut Simulation, writers: &mut [Writer], name: &'static str) -> u64 {
    let name = Bytes::from_static(name.as_bytes());
    let create = FileOperation::Create {
        folder: ROOT_INODE,
        name: name.clone(),
        mode: 0o644,
        exclusive: true,
        maps: false,
    };
    let FileOutcome::Opened { attributes: made, .. } = writers[0].run(simulation, create) else {
        panic!("the file is made");
    };
    for writer in &mut writers[1..] {
        let lookup = FileOperation::Lookup { folder: ROOT_INODE, name: name.clone() };
        let found = writer.run(simulation, lookup);
        assert!(matches!(found, FileOutcome::Entry(attributes) if attributes.inode == made.inode));
    }
    made.inode
}

/// The lines of a file, which are numbers.
pub(super) fn lines(simulation: &mut Simulation, writer: &mut Writer, inode: u64) -> Vec<u64> {
    let FileOutcome::Map { map, .. } = writer.run(simulation, FileOperation::Map { inode, from: 0 }) else {
        panic!("the file has a map");
    };
    let mut bytes = Vec::new();
    for section in map.sections {
        let Source::Inline(part) = section.source else { panic!("all bytes lie in the map") };
        bytes.extend_from_slice(&part);
    }
    bytes.as_chunks::<8>().0.iter().map(|line| u64::from_le_bytes(*line)).collect()
}

#[test]
fn what_is_appended_is_there_once_although_connections_break() {
    for seed in SEEDS {
        let (mut simulation, mut writers) = attached(seed);
        let inode = make(&mut simulation, &mut writers, "log");
        simulation.network.change_faults(|faults| faults.cut_ppm = 20_000);
        let (mut ended, mut parted, mut line) = (Vec::new(), None, 0);
        for round in 0..ROUNDS {
            for writer in &mut writers {
                line += 1;
                let written = Written::Bytes(Bytes::copy_from_slice(&u64::to_le_bytes(line)));
                let append = FileOperation::Append {
                    inode,
                    written,
                    drops_privileges: false,
                    credit: 0,
                    credit_of: 0,
                };
                ended.push((line, writer.begin(&simulation, append.clone())));
                if percent(20) {
                    // An operation that is asked for again gets the same answer, and is not done again.
                    ended.push((line, writer.again(&simulation, writer.numbers, append)));
                }
            }
            simulation.pass(span(Duration::from_millis(50)));
            if round % 10 == 5 {
                let (one, other) = (below(writers.len()), below(writers.len()));
                if one != other {
                    simulation.network.partition(one as u32, other as u32, true);
                    parted = Some((one, other));
                }
            } else if let Some((one, other)) = parted.filter(|_| round % 10 == 8) {
                // The pause is sometimes longer than a home is waited for.
                simulation.pass(span(Duration::from_secs(15)));
                simulation.network.partition(one as u32, other as u32, false);
            }
        }
        simulation.mend();
        simulation.pass(CALL_PATIENCE);
        let found = lines(&mut simulation, &mut writers[0], inode);
        let once: BTreeSet<_> = found.iter().copied().collect();
        assert_eq!(once.len(), found.len(), "seed {seed}: a line is there twice");
        let mut done = 0;
        for (line, ended) in &ended {
            match outcome(ended) {
                Ok(FileOutcome::Appended { offset, .. }) => {
                    assert_eq!(
                        found[offset as usize / 8],
                        *line,
                        "seed {seed}: it is where it was said to be"
                    );
                    done += 1;
                }
                Ok(other) => panic!("seed {seed}: {other:?}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Disconnected, "seed {seed}: {error}"),
            }
        }
        assert!(done > ROUNDS, "seed {seed}: {done} of {} lines were appended", ended.len());
        end(simulation);
    }
}

#[test]
fn one_of_those_who_make_a_name_has_made_it() {
    for seed in SEEDS {
        let (mut simulation, mut writers) = attached(seed);
        simulation.network.change_faults(|faults| faults.cut_ppm = 20_000);
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            let name = Bytes::from(format!("name {round}"));
            let made = FileOperation::MakeFolder { folder: ROOT_INODE, name, mode: 0o755 };
            let all: Vec<_> =
                writers.iter_mut().map(|writer| writer.begin(&simulation, made.clone())).collect();
            simulation.pass(span(Duration::from_millis(20)));
            rounds.push(all);
        }
        simulation.mend();
        simulation.pass(CALL_PATIENCE);
        for (round, all) in rounds.iter().enumerate() {
            let outcomes: Vec<_> = all.iter().map(|one| outcome(one).expect("no home went")).collect();
            let made = outcomes.iter().filter(|outcome| matches!(outcome, FileOutcome::Entry(_))).count();
            let taken = FileOutcome::Failed(Errno::Exists);
            let refused = outcomes.iter().filter(|outcome| **outcome == taken).count();
            assert_eq!((made, refused), (1, all.len() - 1), "seed {seed}, round {round}");
        }
        end(simulation);
    }
}

#[test]
fn a_lock_passes_from_session_to_session_and_ends_with_a_node() {
    for seed in SEEDS {
        let (mut simulation, mut writers) = attached(seed);
        let inode = make(&mut simulation, &mut writers, "locked");
        for writer in &mut writers[1..] {
            let open = FileOperation::Open { inode, read: true, write: true, truncate: false, maps: false };
            assert!(matches!(writer.run(&mut simulation, open), FileOutcome::Opened { .. }));
        }
        let lock = |kind, wait| {
            let range = LockRange { owner: 1, pid: 1, start: 0, end: u64::MAX, kind, flock: true };
            FileOperation::Lock { inode, range, wait }
        };
        let mut waiting: Vec<_> = writers
            .iter_mut()
            .map(|writer| (writer.session, writer.begin(&simulation, lock(LockKind::Exclusive, true))))
            .collect();
        let mut order = BTreeSet::new();
        while !waiting.is_empty() {
            simulation.pass(SETTLED_TIME);
            let holds: Vec<_> = waiting
                .iter()
                .filter(|(_, ended)| ended.get().is_some())
                .map(|(session, _)| *session)
                .collect();
            assert_eq!(holds.len(), 1, "seed {seed}: {holds:?} hold the lock");
            waiting.retain(|(session, _)| *session != holds[0]);
            order.insert(holds[0]);
            let writer = writers.iter_mut().find(|writer| writer.session == holds[0]).expect("it is one");
            let unlocked = writer.run(&mut simulation, lock(LockKind::Unlocked, false));
            assert!(matches!(unlocked, FileOutcome::Entry(_)), "seed {seed}: {unlocked:?}");
        }
        assert_eq!(order.len(), writers.len());
        // The node of a session that holds the lock dies. It is not the home.
        let held = writers[1].run(&mut simulation, lock(LockKind::Exclusive, false));
        assert!(matches!(held, FileOutcome::Entry(_)), "seed {seed}: {held:?}");
        let waits = writers[0].begin(&simulation, lock(LockKind::Exclusive, true));
        simulation.pass(SETTLED_TIME);
        assert!(waits.get().is_none(), "seed {seed}: the lock is held");
        simulation.hosts[writers[1].user.host].kill();
        simulation.coordinator.forget(&mut simulation.hosts, simulation.time.now(), None);
        simulation.pass(CALL_PATIENCE);
        assert!(matches!(outcome(&waits), Ok(FileOutcome::Entry(_))), "seed {seed}: it is free");
        end(simulation);
    }
}

#[test]
fn a_session_ends_although_its_home_is_out_of_reach_when_its_client_goes() {
    for seed in SEEDS {
        let (mut simulation, mut writers) = attached(seed);
        let inode = make(&mut simulation, &mut writers, "locked");
        let open = FileOperation::Open { inode, read: true, write: true, truncate: false, maps: false };
        assert!(matches!(writers[1].run(&mut simulation, open), FileOutcome::Opened { .. }));
        let kind = LockKind::Exclusive;
        let range = LockRange { owner: 1, pid: 1, start: 0, end: u64::MAX, kind, flock: true };
        let lock = FileOperation::Lock { inode, range, wait: false };
        let held = writers[1].run(&mut simulation, lock.clone());
        assert!(matches!(held, FileOutcome::Entry(_)), "seed {seed}: {held:?}");
        let (home, host) = (writers[0].user.host, writers[1].user.host);
        simulation.network.partition(home as u32, host as u32, true);
        let core = simulation.hosts[host].core().expect("it runs");
        core.sessions.let_go(writers[1].user.key, "it has died");
        simulation.pass(span(Duration::from_secs(15)));
        assert_eq!(
            writers[0].run(&mut simulation, lock.clone()),
            FileOutcome::Failed(Errno::Again),
            "seed {seed}: the home knows nothing of it"
        );
        simulation.network.partition(home as u32, host as u32, false);
        simulation.mend();
        simulation.pass(CALL_PATIENCE);
        let locked = writers[0].run(&mut simulation, lock);
        assert!(matches!(locked, FileOutcome::Entry(_)), "seed {seed}: it is free, not {locked:?}");
        end(simulation);
    }
}

#[test]
fn sessions_and_locks_outlive_the_time_in_which_no_node_is_a_member() {
    for seed in SEEDS {
        let (mut simulation, mut writers) = attached(seed);
        let inode = make(&mut simulation, &mut writers, "locked");
        let open = FileOperation::Open { inode, read: true, write: true, truncate: false, maps: false };
        assert!(matches!(writers[1].run(&mut simulation, open), FileOutcome::Opened { .. }));
        let lock = |kind| {
            let range = LockRange { owner: 1, pid: 1, start: 0, end: u64::MAX, kind, flock: true };
            FileOperation::Lock { inode, range, wait: false }
        };
        let held = writers[1].run(&mut simulation, lock(LockKind::Exclusive));
        assert!(matches!(held, FileOutcome::Entry(_)), "seed {seed}: {held:?}");
        // The coordinator is away for longer than sessions outlive their nodes.
        let hosts = simulation.hosts.len();
        (0..hosts).for_each(|host| simulation.begin_expelling(host));
        simulation.pass(CALL_PATIENCE);
        assert_eq!(simulation.coordinator.len(), 0, "seed {seed}: no node is a member");
        (0..hosts).for_each(|host| simulation.join(host));
        simulation.pass(SETTLED_TIME);
        let refused = writers[0].run(&mut simulation, lock(LockKind::Exclusive));
        assert_eq!(refused, FileOutcome::Failed(Errno::Again), "seed {seed}: the lock is held");
        for (writer, kind) in [(1, LockKind::Unlocked), (0, LockKind::Exclusive)] {
            let passed = writers[writer].run(&mut simulation, lock(kind));
            assert!(matches!(passed, FileOutcome::Entry(_)), "seed {seed}: {passed:?}");
        }
        end(simulation);
    }
}

/// Carries an operation out without more time passing than it needs.
fn soon(simulation: &mut Simulation, writer: &mut Writer, operation: FileOperation) -> FileOutcome {
    let ended = writer.begin(simulation, operation);
    for _ in 0..1000 {
        if ended.get().is_some() {
            break;
        }
        simulation.pass(Duration::from_millis(2));
    }
    outcome(&ended).expect("no home went")
}

#[test]
fn a_refused_lock_lets_nothing_go_that_lingers() {
    for seed in SEEDS {
        let (mut simulation, mut writers) = attached(seed);
        let locked = make(&mut simulation, &mut writers, "locked");
        let replaced = make(&mut simulation, &mut writers, "replaced");
        let open =
            |inode| FileOperation::Open { inode, read: true, write: true, truncate: false, maps: false };
        assert!(matches!(writers[1].run(&mut simulation, open(locked)), FileOutcome::Opened { .. }));
        let kind = LockKind::Exclusive;
        let range = LockRange { owner: 1, pid: 1, start: 0, end: u64::MAX, kind, flock: true };
        let lock = FileOperation::Lock { inode: locked, range, wait: false };
        let held = writers[1].run(&mut simulation, lock.clone());
        assert!(matches!(held, FileOutcome::Entry(_)), "seed {seed}: {held:?}");
        let close = FileOperation::Closed { opens: vec![(replaced, false)] };
        assert_eq!(writers[0].run(&mut simulation, close), FileOutcome::Done);
        let name = Bytes::from_static(b"replaced");
        let unlink = FileOperation::Unlink { folder: ROOT_INODE, name };
        assert_eq!(soon(&mut simulation, &mut writers[0], unlink), FileOutcome::Done);
        let refused = soon(&mut simulation, &mut writers[0], lock);
        assert_eq!(refused, FileOutcome::Failed(Errno::Again), "seed {seed}: the lock is held");
        let opened = soon(&mut simulation, &mut writers[1], open(replaced));
        assert!(matches!(opened, FileOutcome::Opened { .. }), "seed {seed}: {opened:?}");
        end(simulation);
    }
}

/// Number of nodes that hold an object.
fn holders(simulation: &Simulation, id: ObjectId) -> usize {
    let alive = (0..simulation.hosts.len()).filter(|host| simulation.hosts[*host].is_alive());
    alive.map(|host| simulation.here(host, &[id])).sum()
}

#[test]
fn an_object_that_no_file_has_is_deleted() {
    for seed in SEEDS {
        let (mut simulation, mut writers) = attached(seed);
        let kept = make(&mut simulation, &mut writers, "kept");
        let (committed, section) = writers[1].put(&mut simulation, 1, 1);
        writers[1].commit(&mut simulation, kept, section);
        let (left, _) = writers[1].put(&mut simulation, 2, 1);
        let delete = Request::Delete { ids: vec![committed] };
        let refused = writers[1].user.ask(&mut simulation, delete).map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::NotAllowed), "seed {seed}: it goes with its file alone");
        assert_eq!((holders(&simulation, committed), holders(&simulation, left)), (1, 1));
        // A client dies with an object that it did not commit.
        let core = simulation.hosts[writers[1].user.host].core().expect("it runs");
        core.sessions.let_go(writers[1].user.key, "it has died");
        simulation.pass(SETTLED_TIME);
        assert_eq!((holders(&simulation, committed), holders(&simulation, left)), (1, 0), "seed {seed}");
        // A node dies with a client, whose objects others keep.
        let (left, _) = writers[2].put(&mut simulation, 1, 2);
        let (copied, section) = writers[2].put(&mut simulation, 2, 2);
        let copy = make(&mut simulation, &mut writers[2..=2], "copy");
        writers[2].commit(&mut simulation, copy, section);
        simulation.hosts[writers[2].user.host].kill();
        simulation.coordinator.forget(&mut simulation.hosts, simulation.time.now(), None);
        simulation.pass(CALL_PATIENCE);
        assert_eq!(holders(&simulation, left), 0, "seed {seed}: its session has ended");
        assert!(holders(&simulation, copied) > 0, "seed {seed}: a file has it");
        // A file goes, then the volume.
        let name = Bytes::from_static(b"kept");
        let unlink = FileOperation::Unlink { folder: ROOT_INODE, name };
        assert_eq!(writers[0].run(&mut simulation, unlink), FileOutcome::Done);
        simulation.pass(SETTLED_TIME);
        assert_eq!(holders(&simulation, committed), 1, "seed {seed}: it is open");
        let close = FileOperation::Closed { opens: vec![(kept, false)] };
        assert_eq!(writers[0].run(&mut simulation, close), FileOutcome::Done);
        simulation.pass(SETTLED_TIME);
        assert_eq!(holders(&simulation, committed), 0, "seed {seed}");
        for living in (0..writers.len()).filter(|at| ![1, 2].contains(at)) {
            let detach = Request::DetachVolume { volume: writers[living].volume };
            assert_eq!(writers[living].user.ask(&mut simulation, detach), Ok(Reply::Done), "seed {seed}");
        }
        assert_eq!(writers[0].user.ask(&mut simulation, remove(false)), Ok(Reply::Done), "seed {seed}");
        simulation.pass(SETTLED_TIME);
        assert_eq!(holders(&simulation, copied), 0, "seed {seed}");
        end(simulation);
    }
}
