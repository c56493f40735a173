//! Chaos on mounts: programs on three hosts write, append, rename and read while a node dies again and again.
//!
//! The volume has two copies of bytes. So whatever a program was told is done has to be there afterwards,
//! from every host: files whole, each record of a common log once, a renamed file under one of its names.
//! What a program got an error for may be there or not. The seed, 1 unless `PLASMON_E2E_SEED` sets another,
//! determines what programs do and who dies, but not how the calls interleave. The home of the volume is
//! spared, as names are on it alone.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use plasmon_e2e::wait::let_pass;
use plasmon_e2e::{Chance, Cluster, Pattern, eventually};

use super::{Mounted, can_mount, kill, own_descriptors, plasmon, text};
use crate::commands::json;
use crate::support::MIB;

const NODES: usize = 3;
/// Home of the volume, which has the coordinator, too.
const HOME: usize = 0;
/// Number of programs on each mount.
const PROGRAMS: usize = 2;
/// Number of files that a program keeps.
const FILES: usize = 16;
/// Lengths of files in bytes.
const LENGTHS: [usize; 7] = [0, 100, 4_000, 5_000, 130_000, MIB + 7, 2 * MIB + 300];
/// Log to which all programs append.
const LOG: &str = "log";
/// Length of a record in bytes: its number, and bytes that follow from it.
const RECORD: usize = 64;
/// Number of calls of programs that end well between two deaths.
const CALLS: usize = 60;
const EIO: i32 = 5;

/// Number of deaths.
fn deaths() -> usize {
    if std::env::var_os("PLASMON_E2E_LONG").is_some() { 40 } else { 3 }
}

/// What all programs share.
#[derive(Default)]
struct Ground {
    over: AtomicBool,
    /// Number of calls that ended well.
    done: AtomicUsize,
}

/// File that a program was told is stored.
#[derive(Debug, Clone)]
struct Stored {
    name: String,
    pattern: Pattern,
    len: usize,
}

impl Stored {
    fn is_at(&self, root: &Path) -> io::Result<bool> {
        Ok(fs::read(root.join(&self.name))? == self.pattern.bytes(self.len))
    }
}

/// Program on a mount, with what it was told.
struct Program {
    root: PathBuf,
    number: usize,
    chance: Chance,
    ground: Arc<Ground>,
    /// Whether the node of its mount is spared.
    spared: bool,
    stored: Vec<Stored>,
    /// Files whose rename failed, with the other name that they may have.
    renamed: Vec<(Stored, String)>,
    /// Records by whether they were acknowledged.
    records: BTreeMap<u64, bool>,
    named: u64,
}

impl Program {
    fn new(mounted: &Mounted, number: usize, spared: bool, chance: Chance, ground: &Arc<Ground>) -> Self {
        Self {
            root: mounted.root().to_owned(),
            number,
            chance,
            ground: Arc::clone(ground),
            spared,
            stored: Vec::new(),
            renamed: Vec::new(),
            records: BTreeMap::new(),
            named: 0,
        }
    }

    fn work(mut self) -> Self {
        own_descriptors();
        while !self.ground.over.load(Ordering::SeqCst) {
            let well = match self.chance.below(10) {
                0..4 => self.write(),
                4..7 => self.append(),
                7 => self.rename(),
                _ => self.read(),
            };
            match well {
                Ok(()) => _ = self.ground.done.fetch_add(1, Ordering::SeqCst),
                // What else a call may fail with is a bug.
                Err(error) => assert_eq!(error.raw_os_error(), Some(EIO), "program {}: {error}", self.number),
            }
        }
        self
    }

    fn name(&mut self) -> String {
        self.named += 1;
        format!("{}-{}", self.number, self.named)
    }

    fn write(&mut self) -> io::Result<()> {
        if self.stored.len() == FILES {
            let oldest = self.stored.remove(0);
            fs::remove_file(self.root.join(&oldest.name))?;
        }
        let (name, pattern) = (self.name(), Pattern(self.chance.word()));
        let len = *self.chance.pick(&LENGTHS);
        let mut file = File::create_new(self.root.join(&name))?;
        file.write_all(&pattern.bytes(len))?;
        file.sync_all()?;
        self.stored.push(Stored { name, pattern, len });
        Ok(())
    }

    fn append(&mut self) -> io::Result<()> {
        let number = (self.number as u64) << 32 | self.records.len() as u64;
        self.records.insert(number, false);
        let mut log = OpenOptions::new().append(true).open(self.root.join(LOG))?;
        log.write_all(&record(number))?;
        log.sync_all()?;
        self.records.insert(number, true);
        Ok(())
    }

    fn rename(&mut self) -> io::Result<()> {
        if self.stored.is_empty() {
            return Ok(());
        }
        let (at, name) = (self.chance.below(self.stored.len()), self.name());
        let moved = fs::rename(self.root.join(&self.stored[at].name), self.root.join(&name));
        match moved {
            Ok(()) => self.stored[at].name = name,
            Err(_) => self.renamed.push((self.stored.remove(at), name)),
        }
        moved
    }

    fn read(&mut self) -> io::Result<()> {
        if self.stored.is_empty() {
            return Ok(());
        }
        let stored = &self.stored[self.chance.below(self.stored.len())];
        match stored.is_at(&self.root) {
            Ok(same) => assert!(same, "{stored:?} has other bytes"),
            Err(error) if self.spared => panic!("{stored:?} on a mount whose node lives: {error}"),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Looks for all that was acknowledged, by a mount.
    fn check(&self, root: &Path) {
        for stored in &self.stored {
            let same = stored.is_at(root).unwrap_or_else(|error| panic!("{stored:?}: {error}"));
            assert!(same, "{stored:?} has other bytes");
        }
        for (stored, other) in &self.renamed {
            let names = [&stored.name, other].map(|name| Stored { name: name.clone(), ..stored.clone() });
            let there: Vec<_> = names.iter().filter(|one| root.join(&one.name).exists()).collect();
            assert_eq!(there.len(), 1, "{stored:?} or {other}");
            assert!(there[0].is_at(root).expect("read"), "{stored:?} has other bytes");
        }
    }
}

fn record(number: u64) -> Vec<u8> {
    let mut record = number.to_le_bytes().to_vec();
    record.extend(Pattern(number).bytes(RECORD - record.len()));
    record
}

/// Looks for the records of all programs, by a mount.
fn check_log(root: &Path, programs: &[Program]) -> usize {
    // Without pages of the kernel, which hold many records: lost bytes are errors for those who read them.
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let log = OpenOptions::new().read(true).custom_flags(direct).open(root.join(LOG)).expect("open");
    let len = log.metadata().expect("stat").len();
    assert_eq!(len % RECORD as u64, 0, "no record is torn");
    let (mut found, mut lost) = (BTreeMap::<u64, usize>::new(), 0);
    for at in (0..len).step_by(RECORD) {
        let mut bytes = [0; RECORD];
        match log.read_exact_at(&mut bytes, at) {
            Ok(()) => {
                let number = u64::from_le_bytes(*bytes.first_chunk().expect("it is longer"));
                assert!(bytes[..] == record(number)[..], "a record at {at} that nobody wrote: {bytes:?}");
                *found.entry(number).or_default() += 1;
            }
            Err(error) if error.raw_os_error() == Some(EIO) => lost += 1,
            Err(error) => panic!("the log at {at}: {error}"),
        }
    }
    let (mut unsure, mut sure) = (0, 0);
    for (number, acknowledged) in programs.iter().flat_map(|program| &program.records) {
        match (acknowledged, found.remove(number)) {
            (true, Some(1)) => sure += 1,
            (false, None | Some(1)) => unsure += 1,
            (_, times) => panic!("record {number:x}, acknowledged: {acknowledged}, is there {times:?} times"),
        }
    }
    assert!(found.is_empty(), "records that nobody wrote: {found:?}");
    assert!(lost <= unsure, "{lost} records are lost, and {unsure} were not acknowledged");
    sure
}

fn complete(cluster: &Cluster) {
    eventually("all nodes are members", || {
        (0..NODES).all(|node| cluster.status(node).cluster.members.len() == NODES)
    });
}

/// Kills a node and starts it again, while programs go on.
fn torment(
    cluster: &mut Cluster,
    ground: &Ground,
    programs: &[JoinHandle<Program>],
    chance: &mut Chance,
    victim: usize,
) {
    let get_on = || {
        let before = ground.done.load(Ordering::SeqCst);
        eventually("programs get on", || {
            assert!(!programs.iter().any(JoinHandle::is_finished), "a program found something wrong");
            ground.done.load(Ordering::SeqCst) >= before + CALLS
        });
    };
    for _ in 0..deaths() {
        get_on();
        cluster.kill(victim);
        let_pass(chance.span(Duration::from_secs(2)), "the time until the node is back is drawn");
        cluster.start_again(victim, &[]);
        complete(cluster);
    }
    get_on();
}

#[test]
fn what_programs_were_told_is_done_survives_the_deaths_of_a_node() {
    if !can_mount() {
        return;
    }
    let mut chance = Chance::of_this_run_or("chaos on mounts", 1);
    let mut cluster = Cluster::builder().nodes(NODES).memory("256MiB").start();
    json(&cluster, HOME, &["volume", "create", "kept", "--copies", "2"]);
    let mounts: Vec<_> =
        (0..NODES).map(|node| Mounted::with(&cluster, node, &["--volume", "kept"])).collect();
    File::create_new(mounts[HOME].path(LOG)).expect("create");
    let victim = HOME + 1 + chance.below(NODES - 1);
    let ground = Arc::new(Ground::default());
    let programs: Vec<_> = (0..NODES * PROGRAMS)
        .map(|number| {
            let node = number % NODES;
            let program = Program::new(&mounts[node], number, node != victim, chance.split(), &ground);
            thread::spawn(move || program.work())
        })
        .collect();
    torment(&mut cluster, &ground, &programs, &mut chance, victim);
    ground.over.store(true, Ordering::SeqCst);
    let programs: Vec<_> =
        programs.into_iter().map(|one| one.join().expect("a program found something wrong")).collect();
    for mounted in &mounts {
        programs.iter().for_each(|program| program.check(mounted.root()));
        let records = check_log(mounted.root(), &programs);
        let files: usize = programs.iter().map(|program| program.stored.len()).sum();
        eprintln!("chaos on mounts: {files} files and {records} records are there");
        assert!(files > 0 && records > 0, "nothing was tried");
    }
    // A node that was started meanwhile has a view of the mounts of its own, in which they would go on.
    mounts.iter().for_each(|mounted| kill(mounted.pid));
    drop(mounts);
    let socket = cluster.socket(HOME);
    eventually("the volume goes", || {
        plasmon(&["volume", "rm", "kept", "--socket", text(&socket)]).status.success()
    });
    for node in 0..NODES {
        eventually("nothing is left", || cluster.status(node).memory.used == 0);
    }
}
