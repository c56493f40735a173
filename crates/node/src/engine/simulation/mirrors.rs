//! Mirrors of volumes in a simulation: an operation that was answered is done, whichever of home and mirrors
//! dies, stands still or is cut off, and no answer tells a state that is over.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use plasmon::ErrorKind;
use plasmon::wire::files::{
    Errno, FileOperation, FileOutcome, LockKind, LockRange, ROOT_INODE, SetAttributes, VolumeChange,
    VolumeState, Written,
};
use plasmon::wire::{Reply, Request};

use super::counters::{Ended, SETTLED_TIME, User, end};
use super::files::{Writer, attach, attached_by, detach, lines, list, make, outcome, remove};
use super::worker::USER;
use super::{Setup, Simulation, below, percent, span};
use crate::object::ROOT;

/// Seeds of each case.
const SEEDS: RangeInclusive<u64> = 1..=4;
/// Number of rounds in which all clients do something.
const ROUNDS: usize = 30;
/// Longest time that a call may take.
const CALL_PATIENCE: Duration = Duration::from_secs(60);
/// Longest time until a death is noticed.
const LEASE: Duration = Duration::from_secs(5);

/// A cluster whose clients append to one file and ask how long it is.
struct Bench {
    seed: u64,
    simulation: Simulation,
    writers: Vec<Writer>,
    inode: u64,
    /// The lines that were appended, with their writers.
    appended: Vec<(u64, usize, Ended)>,
    /// Questions for the length, and the number of lines that were certainly there when each was asked.
    asked: Vec<(usize, Ended, usize)>,
    /// Hosts whose nodes are dead, and hosts whose nodes were no members for so long that the sessions of
    /// their clients have ended.
    dead: BTreeSet<usize>,
    expelled: BTreeSet<usize>,
}

impl Bench {
    fn new(seed: u64) -> Self {
        Self::by(seed, USER)
    }

    /// Makes a bench as [`Bench::new`] does, for clients of a user.
    fn by(seed: u64, uid: u32) -> Self {
        let (mut simulation, mut writers) = attached_by(seed, uid);
        let inode = make(&mut simulation, &mut writers, "log");
        // Every session has the file open.
        for writer in &mut writers[1..] {
            let open = FileOperation::Open { inode, read: true, write: true, truncate: false, maps: false };
            assert!(matches!(writer.run(&mut simulation, open), FileOutcome::Opened { .. }));
        }
        let (appended, asked, dead, expelled) = Default::default();
        Self { seed, simulation, writers, inode, appended, asked, dead, expelled }
    }

    /// The host of the home, and the hosts of the mirrors.
    fn hosts(&self) -> (usize, Vec<usize>) {
        let record = self.simulation.coordinator.record("simulated").expect("the volume is there");
        let host = |node| self.simulation.hosts.iter().position(|host| host.id() == Some(node));
        let home = host(record.home).expect("the home is there");
        (home, record.mirrors.iter().filter_map(|mirror| host(*mirror)).collect())
    }

    /// Number of operations that the node of a host has decided as a home, by its own count.
    fn decided(&self, host: usize) -> u64 {
        self.simulation.hosts[host].core().expect("it runs").services.status().files.decided
    }

    /// Number of lines that are certainly there.
    fn certain(&self) -> usize {
        let done = |ended: &Ended| matches!(ended.get(), Some(Ok(_)));
        self.appended.iter().filter(|(_, _, ended)| done(ended)).count()
    }

    /// Has clients append for some rounds, and ask.
    fn work(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let certain = self.certain();
            for at in 0..self.writers.len() {
                let writer = &mut self.writers[at];
                if self.dead.contains(&writer.user.host) || percent(30) {
                    continue;
                }
                let line = self.appended.len() as u64 + 1;
                let written = Written::Bytes(Bytes::copy_from_slice(&u64::to_le_bytes(line)));
                let append = FileOperation::Append {
                    inode: self.inode,
                    written,
                    drops_privileges: false,
                    credit: 0,
                    credit_of: 0,
                };
                self.appended.push((line, at, writer.begin(&self.simulation, append)));
                let ask = FileOperation::GetAttributes { inode: self.inode };
                self.asked.push((at, writer.begin(&self.simulation, ask), certain));
            }
            self.simulation.pass(span(Duration::from_millis(100)));
        }
    }

    /// Kills the node of a host. The death is noticed some time later.
    fn kill(&mut self, host: usize) {
        self.simulation.hosts[host].kill();
        self.dead.insert(host);
        self.work(ROUNDS / 3);
        self.simulation.pass(span(LEASE));
        self.simulation.coordinator.forget(&mut self.simulation.hosts, self.simulation.time.now(), None);
    }

    /// Parts a host from all others, or joins it with them again.
    fn part(&mut self, host: usize, parted: bool) {
        for other in (0..self.simulation.hosts.len()).filter(|other| *other != host) {
            self.simulation.network.partition(host as u32, other as u32, parted);
        }
    }

    /// A writer whose session goes on.
    fn living(&self) -> usize {
        let goes_on = |writer: &Writer| {
            let host = &writer.user.host;
            !self.dead.contains(host) && !self.expelled.contains(host)
        };
        self.writers.iter().position(goes_on).expect("a node lives")
    }

    /// Lets everything come to rest, and checks that all answers were true. Operations of clients whose nodes
    /// were members all the time must have been done.
    fn check(mut self) {
        self.simulation.mend();
        self.simulation.pass(CALL_PATIENCE);
        let (seed, living) = (self.seed, self.living());
        let found = lines(&mut self.simulation, &mut self.writers[living], self.inode);
        let once: BTreeSet<_> = found.iter().copied().collect();
        assert_eq!(once.len(), found.len(), "seed {seed}: a line is there twice");
        let mut done = 0;
        for (line, at, ended) in &self.appended {
            let host = &self.writers[*at].user.host;
            let (lives, was_out) = (!self.dead.contains(host), self.expelled.contains(host));
            match ended.get().map(|_| outcome(ended)) {
                Some(Ok(FileOutcome::Appended { offset, .. })) => {
                    let there = found.get(offset as usize / 8);
                    assert_eq!(there, Some(line), "seed {seed}: it is where it was said to be");
                    done += 1;
                }
                Some(Err(_)) if was_out => {}
                None if !lives => {}
                other => panic!("seed {seed}: line {line} of writer {at}: {other:?}"),
            }
        }
        assert!(done > self.appended.len() / 4, "seed {seed}: {done} of {}", self.appended.len());
        for (at, ended, certain) in &self.asked {
            let host = &self.writers[*at].user.host;
            let (lives, was_out) = (!self.dead.contains(host), self.expelled.contains(host));
            match ended.get().map(|_| outcome(ended)) {
                Some(Ok(FileOutcome::Entry(attributes))) => {
                    let told = attributes.size as usize / 8;
                    assert!(
                        told >= *certain,
                        "seed {seed}: writer {at} was told of {told} of {certain} lines"
                    );
                }
                Some(Err(_)) if was_out => {}
                None if !lives => {}
                other => panic!("seed {seed}: a question of writer {at}: {other:?}"),
            }
        }
        end(self.simulation);
    }
}

#[test]
fn a_new_volume_has_a_mirror_that_knows_what_the_home_knows() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        let (home, mirrors) = bench.hosts();
        assert_eq!((home, mirrors.len()), (bench.writers[0].user.host, 1), "seed {seed}");
        bench.work(ROUNDS);
        bench.check();
    }
}

#[test]
fn the_coordinators_node_is_no_mirror_while_another_may_be() {
    for seed in SEEDS {
        let three = |seed| Setup { max_hosts: 3, ..Setup::plain(seed) };
        let mut simulation = Simulation::with(seed, |_| Vec::new(), three);
        simulation.pass(SETTLED_TIME);
        let (home, coordinator, other) = (0, 1, 2);
        let ids: Vec<_> = simulation.hosts.iter().map(|host| host.id().expect("it runs")).collect();
        simulation.hosts[home].core().expect("it runs").cluster.coordinator.set(Some(ids[coordinator]));
        // The other node hears of the volume after the home has asked it.
        simulation.coordinator.late = Some((other, Duration::from_millis(100)));
        Writer::attach_by(&mut simulation, home, USER);
        let record = simulation.coordinator.record("simulated").expect("the volume is there");
        assert_eq!(record.mirrors, [ids[other]], "seed {seed}");
        end(simulation);
    }
}

#[test]
fn what_was_done_outlives_the_home() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        let (home, mirrors) = bench.hosts();
        bench.work(ROUNDS);
        bench.kill(home);
        bench.work(ROUNDS);
        bench.simulation.pass(SETTLED_TIME);
        let (now, others) = bench.hosts();
        assert_eq!(now, mirrors[0], "seed {seed}: the mirror is the home");
        assert_eq!(others.len(), 1, "seed {seed}: another node has become a mirror");
        bench.check();
    }
}

#[test]
fn what_was_done_outlives_a_mirror() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        let (home, mirrors) = bench.hosts();
        bench.work(ROUNDS);
        bench.kill(mirrors[0]);
        bench.work(ROUNDS);
        bench.simulation.pass(SETTLED_TIME);
        let (now, others) = bench.hosts();
        assert_eq!((now, others.len()), (home, 1), "seed {seed}: another node is the mirror");
        assert_ne!(others, mirrors);
        bench.check();
    }
}

#[test]
fn what_was_done_outlives_home_and_mirror_in_turn() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        for _ in 0..bench.simulation.hosts.len() - 1 {
            bench.work(ROUNDS / 3);
            let (home, mirrors) = bench.hosts();
            let dies = if percent(50) || mirrors.is_empty() { home } else { mirrors[0] };
            bench.kill(dies);
            bench.work(ROUNDS / 3);
            bench.simulation.pass(SETTLED_TIME);
        }
        bench.check();
    }
}

#[test]
fn a_home_that_is_cut_off_tells_nobody_what_is_not_so_any_more() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        bench.work(ROUNDS / 2);
        let (home, _) = bench.hosts();
        let decided = bench.decided(home);
        bench.part(home, true);
        bench.work(ROUNDS / 2);
        bench.simulation.pass(span(LEASE));
        // The node does not know that it is no member any more.
        let now = bench.simulation.time.now();
        bench.simulation.coordinator.remove(&mut bench.simulation.hosts, home, now);
        bench.work(ROUNDS);
        bench.simulation.pass(SETTLED_TIME);
        bench.work(ROUNDS / 2);
        assert_ne!(bench.hosts().0, home, "seed {seed}: another node is the home");
        bench.part(home, false);
        bench.simulation.join(home);
        bench.expelled.insert(home);
        bench.work(ROUNDS / 2);
        assert!(decided > 0 && bench.decided(home) >= decided, "seed {seed}: what it did counts");
        bench.check();
    }
}

#[test]
fn a_home_that_stood_still_tells_nobody_what_is_not_so_any_more() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        bench.work(ROUNDS / 2);
        let (home, _) = bench.hosts();
        let until = bench.simulation.time.now() + 2 * LEASE;
        if percent(50) {
            bench.simulation.hosts[home].stall(until);
        } else {
            bench.simulation.hosts[home].sleep(until);
        }
        bench.work(ROUNDS / 3);
        bench.simulation.pass(LEASE);
        let now = bench.simulation.time.now();
        bench.simulation.coordinator.remove(&mut bench.simulation.hosts, home, now);
        // The other nodes go on while the node stands still, and when it goes on.
        for _ in 0..12 {
            bench.work(3);
            bench.simulation.pass(Duration::from_millis(500));
        }
        assert_ne!(bench.hosts().0, home, "seed {seed}: another node is the home");
        bench.simulation.join(home);
        bench.expelled.insert(home);
        bench.work(ROUNDS / 3);
        bench.check();
    }
}

#[test]
fn a_drained_home_hands_its_volumes_over() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        bench.work(ROUNDS / 2);
        let (home, mirrors) = bench.hosts();
        let drained = if percent(50) { home } else { mirrors[0] };
        bench.simulation.hosts[drained].drain();
        bench.work(ROUNDS);
        bench.simulation.pass(CALL_PATIENCE);
        assert!(!bench.simulation.hosts[drained].is_alive(), "seed {seed}: it leaves");
        bench.dead.insert(drained);
        let (now, others) = bench.hosts();
        assert!(now != drained && !others.contains(&drained), "seed {seed}");
        bench.check();
    }
}

#[test]
fn mirrors_join_and_go_as_the_owner_says_while_the_volume_is_used() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        for copies in [3, 1, 2] {
            bench.work(ROUNDS / 3);
            let change = VolumeChange { metadata_copies: Some(copies), ..VolumeChange::default() };
            let set = Request::SetVolume { name: "simulated".to_owned(), change };
            let at = below(bench.writers.len());
            let set = bench.writers[at].user.ask(&mut bench.simulation, set);
            assert!(matches!(set, Ok(Reply::Volume(_))), "seed {seed}: {set:?}");
            bench.work(ROUNDS / 3);
            bench.simulation.pass(SETTLED_TIME);
            let mirrors = bench.hosts().1.len() as u64;
            assert_eq!(mirrors + 1, u64::from(copies), "seed {seed}: the record has as many nodes");
            let has =
                |host: &super::host::Host| host.core().expect("it runs").services.status().files.mirrors;
            let have: u64 = bench.simulation.hosts.iter().map(has).sum();
            assert_eq!(have, mirrors, "seed {seed}: no node keeps names that are not to be there");
        }
        let (home, mirrors) = bench.hosts();
        bench.kill(home);
        bench.work(ROUNDS / 3);
        bench.simulation.pass(SETTLED_TIME);
        assert_eq!(bench.hosts().0, mirrors[0], "seed {seed}: the mirror is the home");
        bench.check();
    }
}

#[test]
fn opens_and_locks_outlive_the_home() {
    // A new home believes root about what its sessions have open, and knows what the sessions of others have
    // open.
    for (seed, uid) in SEEDS.flat_map(|seed| [(seed, USER), (seed, ROOT)]) {
        let mut bench = Bench::by(seed, uid);
        let (home, _) = bench.hosts();
        let (simulation, inode) = (&mut bench.simulation, bench.inode);
        let lock = |wait| {
            let kind = LockKind::Exclusive;
            let range = LockRange { owner: 1, pid: 1, start: 0, end: u64::MAX, kind, flock: true };
            FileOperation::Lock { inode, range, wait }
        };
        let held = bench.writers[1].run(simulation, lock(false));
        assert!(matches!(held, FileOutcome::Entry(_)), "seed {seed}: {held:?}");
        let waits = bench.writers[2].begin(simulation, lock(true));
        let unlink = FileOperation::Unlink { folder: ROOT_INODE, name: Bytes::from_static(b"log") };
        assert_eq!(bench.writers[1].run(simulation, unlink), FileOutcome::Done);
        bench.kill(home);
        bench.simulation.pass(CALL_PATIENCE);
        let (simulation, writers) = (&mut bench.simulation, &mut bench.writers);
        assert!(waits.get().is_none(), "seed {seed}: the lock is held");
        let ask = FileOperation::GetAttributes { inode };
        let there = writers[1].run(simulation, ask.clone());
        assert!(matches!(there, FileOutcome::Entry(_)), "seed {seed}: it is open, and not {there:?}");
        // The lock passes on, then the last close ends the file.
        let request = detach(&writers[1]);
        assert_eq!(writers[1].user.ask(simulation, request), Ok(Reply::Done));
        simulation.pass(SETTLED_TIME);
        assert!(matches!(outcome(&waits), Ok(FileOutcome::Entry(_))), "seed {seed}: it is free");
        for writer in writers.iter_mut().skip(2) {
            let close = FileOperation::Closed { opens: vec![(inode, false)] };
            assert_eq!(writer.run(simulation, close), FileOutcome::Done, "seed {seed}");
        }
        let gone = writers[2].run(simulation, ask);
        assert_eq!(gone, FileOutcome::Failed(Errno::Stale), "seed {seed}: nobody has it open");
        end(bench.simulation);
    }
}

#[test]
fn a_close_that_is_asked_for_again_ends_one_open() {
    for (seed, uid) in SEEDS.flat_map(|seed| [(seed, USER), (seed, ROOT)]) {
        let mut bench = Bench::by(seed, uid);
        let (home, _) = bench.hosts();
        let (simulation, inode) = (&mut bench.simulation, bench.inode);
        let open = FileOperation::Open { inode, read: true, write: true, truncate: false, maps: false };
        let opened = bench.writers[1].run(simulation, open);
        assert!(matches!(opened, FileOutcome::Opened { .. }), "seed {seed}: {opened:?}");
        let close = FileOperation::Closed { opens: vec![(inode, false)] };
        let closed = bench.writers[1].begin(simulation, close.clone());
        let number = bench.writers[1].numbers;
        let again = bench.writers[1].again(simulation, number, close.clone());
        simulation.pass(SETTLED_TIME);
        assert_eq!((outcome(&closed), outcome(&again)), (Ok(FileOutcome::Done), Ok(FileOutcome::Done)));
        for at in (0..bench.writers.len()).filter(|at| *at != 1) {
            let closed = bench.writers[at].run(simulation, close.clone());
            assert_eq!(closed, FileOutcome::Done, "seed {seed}");
        }
        let unlink = FileOperation::Unlink { folder: ROOT_INODE, name: Bytes::from_static(b"log") };
        assert_eq!(bench.writers[1].run(simulation, unlink), FileOutcome::Done, "seed {seed}");
        bench.kill(home);
        bench.simulation.pass(CALL_PATIENCE);
        let (simulation, writer) = (&mut bench.simulation, &mut bench.writers[1]);
        let ask = FileOperation::GetAttributes { inode };
        let there = writer.run(simulation, ask.clone());
        assert!(matches!(there, FileOutcome::Entry(_)), "seed {seed}: it is open, and not {there:?}");
        // The client may not have received the answer of the former home.
        let again = writer.again(simulation, number, close.clone());
        simulation.pass(SETTLED_TIME);
        assert_eq!(outcome(&again), Ok(FileOutcome::Done), "seed {seed}");
        let there = writer.run(simulation, ask.clone());
        assert!(matches!(there, FileOutcome::Entry(_)), "seed {seed}: it is open, and not {there:?}");
        assert_eq!(writer.run(simulation, close), FileOutcome::Done, "seed {seed}");
        assert_eq!(writer.run(simulation, ask), FileOutcome::Failed(Errno::Stale), "seed {seed}");
        end(bench.simulation);
    }
}

#[test]
fn a_new_home_cuts_no_file_before_others_have_told_that_they_write_it() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        let (home, mirrors) = bench.hosts();
        let at = |host| bench.writers.iter().position(|writer| writer.user.host == host);
        let cutter = at(mirrors[0]).expect("each host has one");
        let other = (0..bench.simulation.hosts.len()).find(|host| ![home, mirrors[0]].contains(host));
        let other = other.expect("there are three");
        bench.simulation.network.partition(other as u32, mirrors[0] as u32, true);
        bench.kill(home);
        let (simulation, inode) = (&mut bench.simulation, bench.inode);
        simulation.pass(Duration::from_secs(4));
        let writer = &mut bench.writers[cutter];
        let written = Written::Bytes(Bytes::from_static(b"a line"));
        let append =
            FileOperation::Append { inode, written, drops_privileges: false, credit: 0, credit_of: 0 };
        let appended = writer.begin(simulation, append);
        let set = SetAttributes { size: Some(0), ..SetAttributes::default() };
        let cut = writer.begin(simulation, FileOperation::SetAttributes { inode, set });
        simulation.pass(Duration::from_millis(500));
        let is_done = matches!(appended.get().map(|_| outcome(&appended)), Some(Ok(_)));
        assert!(is_done, "seed {seed}: the new home decides");
        assert!(cut.get().is_none(), "seed {seed}: another may have something to commit");
        simulation.network.partition(other as u32, mirrors[0] as u32, false);
        simulation.pass(CALL_PATIENCE);
        assert!(matches!(outcome(&cut), Ok(FileOutcome::Entry(_))), "seed {seed}");
        end(bench.simulation);
    }
}

#[test]
fn a_session_of_which_its_node_was_not_told_ends_at_the_new_home() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        let (home, mirrors) = bench.hosts();
        let other = (0..bench.simulation.hosts.len()).find(|host| ![home, mirrors[0]].contains(host));
        let other = other.expect("there are three");
        let simulation = &mut bench.simulation;
        let sessions = |simulation: &Simulation, host: usize| {
            simulation.hosts[host].core().expect("it runs").services.status().files.sessions
        };
        let before = sessions(simulation, home);
        let mut user = User::connect(simulation, other);
        user.begin_ask(simulation, attach());
        while sessions(simulation, home) == before {
            simulation.pass(Duration::from_micros(10));
        }
        // The mirror is told of the session, but the session's node is not.
        simulation.network.partition(home as u32, other as u32, true);
        simulation.pass(Duration::from_millis(500));
        bench.kill(home);
        let simulation = &mut bench.simulation;
        let hosts = simulation.hosts.len() as u64;
        simulation.pass(Duration::from_secs(4));
        assert_eq!(sessions(simulation, mirrors[0]), hosts + 2, "seed {seed}: it is there, and another");
        simulation.pass(CALL_PATIENCE);
        assert_eq!(sessions(simulation, mirrors[0]), hosts, "seed {seed}: it has ended, as the home's has");
        end(bench.simulation);
    }
}

#[test]
fn a_lost_volume_is_forgotten_by_who_says_so() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        let (home, mirrors) = bench.hosts();
        for host in [home, mirrors[0]] {
            bench.simulation.hosts[host].kill();
            bench.dead.insert(host);
        }
        let now = bench.simulation.time.now();
        let simulation = &mut bench.simulation;
        simulation.coordinator.forget(&mut simulation.hosts, now, None);
        simulation.pass(SETTLED_TIME);
        let living: Vec<_> = (0..bench.writers.len())
            .filter(|at| !bench.dead.contains(&bench.writers[*at].user.host))
            .collect();
        let mut listed = Vec::new();
        for at in &living {
            let user = &mut bench.writers[*at].user;
            match user.ask(simulation, list(simulation, user.host)) {
                Ok(Reply::Volumes { volumes, .. }) => listed.extend(volumes),
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        let states: Vec<_> = listed.iter().map(|info| info.state).collect();
        assert_eq!(states, [VolumeState::Lost], "seed {seed}: one node lists it");
        let user = &mut bench.writers[living[0]].user;
        let kept = user.ask(simulation, remove(false)).map_err(|error| error.kind());
        assert_eq!(kept, Err(ErrorKind::Lost), "seed {seed}");
        assert_eq!(user.ask(simulation, remove(true)), Ok(Reply::Done), "seed {seed}");
        simulation.pass(SETTLED_TIME);
        assert_eq!(bench.simulation.coordinator.record("simulated"), None, "seed {seed}");
        // The name is free.
        let mut again = Writer::attach(&mut bench.simulation, bench.writers[living[0]].user.host);
        make(&mut bench.simulation, std::slice::from_mut(&mut again), "log");
        end(bench.simulation);
    }
}

#[test]
fn a_mirror_joins_a_volume_that_is_used() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        // There are many names to be walked.
        let mut names = Vec::new();
        for number in 0..150 {
            let name = Bytes::from(format!("name {number} {}", "x".repeat(below(150))));
            let made = FileOperation::MakeNode { folder: ROOT_INODE, name, mode: 0o644, device: 0 };
            names.push(bench.writers[0].begin(&bench.simulation, made));
            if number % 20 == 0 {
                bench.simulation.pass(Duration::from_millis(5));
            }
        }
        for _ in 0..2 {
            let (_, mirrors) = bench.hosts();
            bench.kill(mirrors[0]);
            bench.work(ROUNDS / 2);
            bench.simulation.pass(SETTLED_TIME);
            if bench.simulation.hosts.len() - bench.dead.len() < 3 {
                break;
            }
        }
        let (home, mirrors) = bench.hosts();
        if !mirrors.is_empty() {
            bench.kill(home);
            bench.simulation.pass(SETTLED_TIME);
            let living = bench.living();
            let writer = &mut bench.writers[living];
            let root = writer.run(&mut bench.simulation, FileOperation::GetAttributes { inode: ROOT_INODE });
            let FileOutcome::Entry(root) = root else { panic!("seed {seed}: {root:?}") };
            // There may be no memory for all.
            let made = names.iter().filter(|one| matches!(outcome(one), Ok(FileOutcome::Entry(_)))).count();
            assert!(made > 100, "seed {seed}: {made} names were made");
            assert_eq!(root.size, made as u64 + 1, "seed {seed}: all names are there");
        }
        bench.check();
    }
}
