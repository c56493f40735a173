//! Names that clients of simulated nodes keep: after a change was answered, every name that a client keeps is
//! true, unless the home has stopped waiting for that client.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use bytes::Bytes;
use plasmon::wire::files::{Actor, FileAnswer, FileAsked, FileOperation, FileOutcome, ROOT_INODE, Stale};
use plasmon::wire::{Reply, Request};

use super::counters::{SETTLED_TIME, User, end};
use super::files::{Writer, attached};
use super::{Simulation, below, percent};

/// Seeds of each case.
const SEEDS: RangeInclusive<u64> = 1..=8;
/// Number of changes and lookups in a run.
const ACTS: usize = 150;
/// Names that clients make, remove and look up.
const NAMES: [&str; 3] = ["one", "two", "three"];
/// Time that passes between two looks at the messages of the home.
const STEP_TIME: Duration = Duration::from_millis(1);
/// Maximum number of steps of an operation.
const MAX_STEPS: u32 = 60_000;

/// Inode for which each name stands, and time until which the name may be kept.
type Kept = BTreeMap<&'static str, (Option<u64>, Instant)>;

/// A client that keeps what the home tells it, as a kernel does.
struct Keeper {
    writer: Writer,
    /// The connection by which the home tells the changes of others.
    follower: User,
    kept: Kept,
    /// Whether a change was told since the operation under way was asked for.
    overtaken: bool,
    /// Whether the client neither reads nor confirms messages.
    stopped: bool,
}

impl Keeper {
    fn new(simulation: &mut Simulation, writer: Writer) -> Self {
        let mut follower = User::connect(simulation, writer.user.host);
        let (volume, session, secret) = (writer.number, writer.session, writer.secret);
        let begun = follower.ask(simulation, Request::WatchVolume { volume, session, secret });
        assert_eq!(begun, Ok(Reply::VolumeStale { number: 0, stale: Vec::new() }));
        Self { writer, follower, kept: Kept::new(), overtaken: false, stopped: false }
    }

    /// Forgets the names that a message says have changed, and confirms the message.
    fn hear(&mut self, simulation: &Simulation) {
        if self.stopped {
            return;
        }
        let told: Vec<_> = self.follower.session.0.borrow_mut().drain(..).collect();
        for (_, reply) in told {
            let Reply::VolumeStale { number, stale } = reply else { panic!("{reply:?}") };
            self.overtaken = true;
            for one in stale {
                if let Stale::Name { name, .. } = one {
                    self.kept.retain(|kept, _| kept.as_bytes() != name);
                }
            }
            self.follower.begin_ask(simulation, Request::ConfirmStale { number });
        }
    }
}

/// Clients on all nodes.
struct Keepers(Vec<Keeper>);

impl Keepers {
    /// Has an operation of one client carried out, while all clients hear their messages.
    fn run(&mut self, simulation: &mut Simulation, at: usize, operation: FileOperation) -> FileAnswer {
        let keeper = &mut self.0[at];
        keeper.overtaken = false;
        keeper.writer.numbers += 1;
        let number = keeper.writer.numbers;
        let asked = FileAsked { number, answered: number, actor: Actor::default(), operation };
        let request = Request::OnFile { volume: keeper.writer.volume, asked };
        keeper.writer.user.begin_ask(simulation, request);
        for _ in 0..MAX_STEPS {
            simulation.pass(STEP_TIME);
            self.0.iter_mut().for_each(|keeper| keeper.hear(simulation));
            let answered = self.0[at].writer.user.session.0.borrow_mut().pop_front();
            match answered {
                Some((_, Reply::FileDone(answer))) => return answer,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        panic!("an operation of client {at} is not answered");
    }

    /// Returns the inode of a name, as a client knows it or is told.
    fn look(&mut self, simulation: &mut Simulation, at: usize, name: &'static str) -> Option<u64> {
        let asked = simulation.time.instant();
        if let Some((inode, _)) = self.0[at].kept.get(name).filter(|(_, until)| asked < *until) {
            return *inode;
        }
        let lookup = FileOperation::Lookup { folder: ROOT_INODE, name: Bytes::from_static(name.as_bytes()) };
        let answer = self.run(simulation, at, lookup);
        let inode = match answer.outcome {
            FileOutcome::Entry(attributes) => Some(attributes.inode),
            _ => None,
        };
        let keeper = &mut self.0[at];
        if !keeper.overtaken {
            let valid = Duration::from_millis(answer.valid_ms.into());
            keeper.kept.insert(name, (inode, asked + valid));
        }
        inode
    }

    /// Makes a name or removes it. The model knows for what the name stands then.
    fn change(
        &mut self,
        simulation: &mut Simulation,
        at: usize,
        name: &'static str,
        model: &mut BTreeMap<&'static str, u64>,
    ) {
        let (folder, bytes) = (ROOT_INODE, Bytes::from_static(name.as_bytes()));
        // A kernel knows the changes that it makes itself.
        self.0[at].kept.remove(name);
        if model.remove(name).is_some() {
            let answer = self.run(simulation, at, FileOperation::RemoveFolder { folder, name: bytes });
            assert_eq!(answer.outcome, FileOutcome::Done);
            return;
        }
        let make = FileOperation::MakeFolder { folder, name: bytes, mode: 0o755 };
        match self.run(simulation, at, make).outcome {
            FileOutcome::Entry(attributes) => _ = model.insert(name, attributes.inode),
            other => panic!("{other:?}"),
        }
    }
}

/// Messages about changes that all homes have sent, and those that were missed.
fn counts(simulation: &Simulation) -> (u64, u64) {
    let files = |host: usize| simulation.hosts[host].core().expect("it runs").services.status().files;
    let all = (0..simulation.hosts.len()).map(files);
    all.fold((0, 0), |(told, missed), files| (told + files.told, missed + files.missed))
}

fn keepers(seed: u64) -> (Simulation, Keepers) {
    let (mut simulation, writers) = attached(seed);
    let keepers = writers.into_iter().map(|writer| Keeper::new(&mut simulation, writer)).collect();
    (simulation, Keepers(keepers))
}

#[test]
fn names_that_are_kept_are_true() {
    let (mut told, mut certain) = (0, 0);
    for seed in SEEDS {
        let (mut simulation, mut keepers) = keepers(seed);
        let mut model = BTreeMap::new();
        for act in 0..ACTS {
            let (at, name) = (below(keepers.0.len()), NAMES[below(NAMES.len())]);
            if percent(20) {
                keepers.change(&mut simulation, at, name, &mut model);
            } else {
                let found = keepers.look(&mut simulation, at, name);
                let (_, missed) = counts(&simulation);
                let is_true = found == model.get(name).copied();
                assert!(is_true || missed > 0, "seed {seed}, act {act}: client {at} found {found:?}");
            }
        }
        let (sent, missed) = counts(&simulation);
        told += sent;
        certain += u32::from(missed == 0);
        end(simulation);
    }
    assert!(told > 50 && certain > 0, "changes were told {told} times, in {certain} runs without a miss");
}

#[test]
fn a_client_that_is_stopped_keeps_nothing_for_longer_than_a_second() {
    for seed in SEEDS {
        let (mut simulation, mut keepers) = keepers(seed);
        let mut model = BTreeMap::new();
        keepers.change(&mut simulation, 1, "one", &mut model);
        let found = keepers.look(&mut simulation, 0, "one");
        assert_eq!(found, model.get("one").copied(), "seed {seed}");
        keepers.0[0].stopped = true;
        let (_, before) = counts(&simulation);
        keepers.change(&mut simulation, 1, "one", &mut model);
        let (_, missed) = counts(&simulation);
        let valid = keepers.0[0].kept.get("one").is_some_and(|(_, until)| simulation.time.instant() < *until);
        assert!(missed > before || !valid, "seed {seed}: it was waited for");
        // The home does not wait for the client again, though the client may keep another name.
        keepers.change(&mut simulation, 2, "two", &mut model);
        simulation.pass(Duration::from_secs(1));
        let until = keepers.0[0].kept.get("one").map(|(_, until)| *until);
        assert!(until.is_none_or(|until| until <= simulation.time.instant()), "seed {seed}");
        // When the client goes on, it hears which messages it has missed, and asks.
        keepers.0[0].stopped = false;
        keepers.0[0].hear(&simulation);
        assert_eq!(keepers.look(&mut simulation, 0, "one"), None, "seed {seed}");
        simulation.pass(SETTLED_TIME);
        end(simulation);
    }
}

#[test]
fn a_session_is_followed_by_who_knows_its_secret() {
    let (mut simulation, mut writers) = attached(1);
    let (one, other) = (0, 1);
    let (volume, session, secret) = (writers[one].number, writers[one].session, writers[one].secret);
    let watch = |session, secret| Request::WatchVolume { volume, session, secret };
    let user = &mut writers[one].user;
    assert!(user.ask(&mut simulation, watch(session, secret ^ 1)).is_err(), "another secret");
    assert!(user.ask(&mut simulation, watch(session + 77, secret)).is_err(), "no such session");
    let foreign = writers[other].user.ask(&mut simulation, watch(session, secret));
    assert!(foreign.is_err(), "a session of another node");
    // A client that follows nothing confirms nothing.
    writers[other].user.begin_ask(&simulation, Request::ConfirmStale { number: 1 });
    assert!(writers[one].user.ask(&mut simulation, watch(session, secret)).is_ok());
    end(simulation);
}
