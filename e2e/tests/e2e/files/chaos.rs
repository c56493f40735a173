//! Chaos on mounts: programs on three hosts write, append, count under a lock, rename and read, while nodes
//! die, stand still and are cut off, the home too, and mounts and etcd die.
//!
//! Volumes have two copies of names and of bytes, and after each fault all of them again before the next. So
//! whatever a program was told is done has to be there afterwards, from every host: files whole, each record
//! of a common log once, each count, a renamed file under one of its names. What a program got an error for
//! may be there or not, and it gets one only if its own mount or the node of it was broken meanwhile. The
//! seed, 1 unless `PLASMON_E2E_SEED` sets another, determines what programs do and what breaks, but not how
//! calls interleave.

mod faults;
mod limited;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::thread::{self, JoinHandle};

use plasmon::files::{AttachOptions, Checked, Trouble, Volume, VolumeInfo, VolumeState, Volumes};
use plasmon_e2e::{Chance, Cluster, EtcdOptions, Pattern, eventually, until};
use rustix::fs::{FlockOperation, flock};

use self::faults::{Breaks, Fault};
use self::limited::Limited;
use super::{Mounted, can_mount, kill, own_descriptors, plasmon, text};
use crate::commands::json;
use crate::support::MIB;

const NODES: usize = 3;
/// Volume without limits.
const KEPT: &str = "kept";
/// Number of programs on each mount.
const PROGRAMS: usize = 2;
/// Number of files that a program keeps.
const FILES: usize = 16;
/// Lengths of files in bytes.
const LENGTHS: [usize; 7] = [0, 100, 4_000, 5_000, 130_000, MIB + 7, 2 * MIB + 300];
/// Log to which all programs append.
const LOG: &str = "log";
/// Number to which all programs add, each under a lock of the whole file.
const COUNTER: &str = "counter";
/// Length of a record in bytes: its number, and bytes that follow from it.
const RECORD: usize = 64;
/// Number of calls of programs that end well between two faults.
const CALLS: usize = 60;
/// Error of bytes that are lost.
const EIO: i32 = 5;

/// Number of faults.
fn faults() -> usize {
    if std::env::var_os("PLASMON_E2E_LONG").is_some() { 40 } else { 5 }
}

/// State that all programs share.
#[derive(Default)]
struct Ground {
    over: AtomicBool,
    /// Number of calls that ended well.
    done: AtomicUsize,
    breaks: Breaks,
    /// Held shared during a call of a program, and alone by who looks at volumes at rest.
    gate: RwLock<()>,
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
    limited: Limited,
    stored: Vec<Stored>,
    /// Files whose rename failed, with the other name that they may have.
    renamed: Vec<(Stored, String)>,
    /// Records by whether they were acknowledged.
    records: BTreeMap<u64, bool>,
    /// Number of counts that were acknowledged, and of those that may have been made or not.
    counts: [u64; 2],
    named: u64,
}

impl Program {
    fn new(mounts: [&Mounted; 2], number: usize, chance: Chance, ground: &Arc<Ground>) -> Self {
        Self {
            root: mounts[0].root().to_owned(),
            number,
            chance,
            ground: Arc::clone(ground),
            limited: Limited::new(mounts[1].root(), number),
            stored: Vec::new(),
            renamed: Vec::new(),
            records: BTreeMap::new(),
            counts: [0; 2],
            named: 0,
        }
    }

    fn work(mut self) -> Self {
        own_descriptors();
        let (ground, node) = (Arc::clone(&self.ground), self.number % NODES);
        while !ground.over.load(Ordering::SeqCst) {
            let _open = ground.gate.read().expect("who looks at rest finds nothing wrong");
            let before = ground.breaks.of(node);
            let (what, well) = match self.chance.below(15) {
                0..4 => ("write", self.write()),
                4..7 => ("append", self.append()),
                7 => ("rename", self.rename()),
                8..10 => ("read", self.read()),
                10..12 => ("count", self.count()),
                _ => ("limited", self.limited.work(&mut self.chance)),
            };
            match well {
                Ok(()) => _ = ground.done.fetch_add(1, Ordering::SeqCst),
                Err(error) => assert!(
                    ground.breaks.explain(node, before, error.raw_os_error()),
                    "{what} of program {}, for which nothing broke: {error}",
                    self.number
                ),
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

    /// Adds 1 to the number in a file. The lock goes with the descriptor.
    fn count(&mut self) -> io::Result<()> {
        let counter = OpenOptions::new().read(true).write(true).open(self.root.join(COUNTER))?;
        flock(&counter, FlockOperation::LockExclusive)?;
        let mut bytes = [0; 8];
        counter.read_exact_at(&mut bytes, 0)?;
        self.counts[1] += 1;
        counter.write_all_at(&(u64::from_le_bytes(bytes) + 1).to_le_bytes(), 0)?;
        counter.sync_all()?;
        self.counts[1] -= 1;
        self.counts[0] += 1;
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
        assert!(stored.is_at(&self.root)?, "{stored:?} has other bytes");
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

/// Looks at the number to which all programs have added, by a mount.
fn check_counter(root: &Path, programs: &[Program]) {
    let bytes = fs::read(root.join(COUNTER)).expect("read");
    let count = u64::from_le_bytes(bytes.try_into().expect("a number"));
    let [sure, unsure] = [0, 1].map(|at| programs.iter().map(|program| program.counts[at]).sum::<u64>());
    assert!(sure > 0 && (sure..=sure + unsure).contains(&count), "{count}, of {sure} and perhaps {unsure}");
}

/// Description of a volume by its home, while there is one.
fn info(cluster: &Cluster, name: &str) -> Option<VolumeInfo> {
    let listed = Volumes::by(&cluster.client(0)).list().ok()?;
    listed.volumes.into_iter().find(|info| info.name == name && info.state == VolumeState::Served)
}

/// Findings of a check of a volume, if all nodes have answered: and whether two nodes have all bytes of which
/// one has any. Others are those of commits that were not answered; programs look for their own.
fn checked(cluster: &Cluster, name: &str) -> Option<(Checked, bool)> {
    let options = AttachOptions { read_only: true, checked: false, ..AttachOptions::default() };
    let mut whole = true;
    let volume = Volume::attach(&cluster.client(0), name, &options).ok()?;
    let checked = volume.check(false, |finding| whole &= finding.trouble == Trouble::Lost).ok()?;
    checked.missing.is_empty().then_some((checked, whole))
}

/// Waits until all nodes are members, and two of them have each name and each byte.
fn whole(cluster: &Cluster) {
    eventually("all nodes are members", || {
        (0..NODES).all(|node| cluster.status(node).cluster.members.len() == NODES)
    });
    for name in [KEPT, limited::NAME] {
        eventually("a mirror has the names", || {
            info(cluster, name).is_some_and(|info| info.mirrors.len() == 1)
        });
        eventually("two nodes have the bytes", || checked(cluster, name).is_some_and(|(_, whole)| whole));
    }
}

/// Breaks one thing after the other, while programs go on.
fn torment(
    cluster: &mut Cluster,
    ground: &Ground,
    mounts: &mut [[Mounted; NODES]; 2],
    programs: &[JoinHandle<Program>],
    chance: &mut Chance,
) {
    let get_on = || {
        let before = ground.done.load(Ordering::SeqCst);
        eventually("programs get on", || {
            assert!(!programs.iter().any(JoinHandle::is_finished), "a program found something wrong");
            ground.done.load(Ordering::SeqCst) >= before + CALLS
        });
    };
    let mut homes = 0;
    for turn in 0..faults() {
        get_on();
        let home = until("a node is the home", || info(cluster, KEPT)).home;
        let home = (0..NODES).find(|node| cluster.client(*node).node() == home).expect("a node is the home");
        let fault = Fault::of_turn(turn, home, chance);
        homes += usize::from(fault.concerns(home));
        eprintln!("chaos on mounts: {fault:?}, the home is {home}");
        ground.breaks.begin(fault, cluster, mounts, chance);
        let rest = ground.gate.write().expect("programs hold it shared");
        ground.breaks.repair(fault, cluster, mounts);
        whole(cluster);
        limited::look(cluster);
        ground.breaks.end(fault);
        drop(rest);
    }
    get_on();
    eprintln!("chaos on mounts: {} faults, {homes} of them of the home", faults());
}

#[test]
fn what_programs_were_told_is_done_survives_the_deaths_of_nodes() {
    if !can_mount() {
        return;
    }
    let mut chance = Chance::of_this_run_or("chaos on mounts", 1);
    let mut cluster = Cluster::builder().nodes(NODES).memory("256MiB").etcd(EtcdOptions::default()).start();
    json(&cluster, chance.below(NODES), &["volume", "create", KEPT, "--copies", "2"]);
    limited::create(&cluster, chance.below(NODES));
    let mount = |name: &str| [0, 1, 2].map(|node| Mounted::with(&cluster, node, &["--volume", name]));
    let mut all = [mount(KEPT), mount(limited::NAME)];
    let [mounts, limited] = &all;
    File::create_new(mounts[0].path(LOG)).expect("create");
    fs::write(mounts[0].path(COUNTER), 0_u64.to_le_bytes()).expect("write");
    whole(&cluster);
    let ground = Arc::new(Ground::default());
    let programs: Vec<_> = (0..NODES * PROGRAMS)
        .map(|number| {
            let mounts = [mounts, limited].map(|mounts| &mounts[number % NODES]);
            let program = Program::new(mounts, number, chance.split(), &ground);
            thread::spawn(move || program.work())
        })
        .collect();
    torment(&mut cluster, &ground, &mut all, &programs, &mut chance);
    ground.over.store(true, Ordering::SeqCst);
    let programs: Vec<_> =
        programs.into_iter().map(|one| one.join().expect("a program found something wrong")).collect();
    let [mounts, limited] = &all;
    for (mounted, limited) in mounts.iter().zip(limited) {
        programs.iter().for_each(|program| program.check(mounted.root()));
        let records = check_log(mounted.root(), &programs);
        check_counter(mounted.root(), &programs);
        let files: usize = programs.iter().map(|program| program.stored.len()).sum();
        eprintln!("chaos on mounts: {files} files and {records} records are there");
        assert!(files > 0 && records > 0, "nothing was tried");
        programs.iter().for_each(|program| program.limited.check(limited.root()));
    }
    limited::look_at_all(&cluster, limited, programs.iter().map(|program| &program.limited));
    // A node that was started meanwhile has a view of the mounts of its own, in which they would go on.
    all.iter().flatten().for_each(|mounted| kill(mounted.pid));
    drop(all);
    let socket = cluster.socket(0);
    for name in [KEPT, limited::NAME] {
        eventually("the volume goes", || {
            plasmon(&["volume", "rm", name, "--socket", text(&socket)]).status.success()
        });
    }
    for node in 0..NODES {
        eventually("nothing is left", || cluster.status(node).memory.used == 0);
    }
}
