//! Tests of clients that scribble over the page set by which they call on regions and touch them, or that
//! stand still amid a touch: they hurt nobody else, and hold up nobody for ever.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::region::{Region, RegionOptions, Rights};
use plasmon::wire::{Receiver, Reply, Request};
use plasmon::{Client, CreateOptions, ErrorKind, NodeId, ObjectId};
use plasmon_e2e::{Chance, Cluster, PATIENCE, Pattern, eventually, wait};

use crate::support::{ask, get, kind};

/// Size in bytes of the regions. The counter comes first, the pattern behind it.
const LEN: u64 = 100_000;
const COUNTER: u64 = 0;
const PATTERN: u64 = 8;
/// Time for which the engine waits for processes that touch a region.
const STILL: Duration = Duration::from_secs(10);

/// Offset of the submitted bits in a page set.
const SUBMITTED: u64 = 4 << 10;
/// Offset of the first slot.
const FIRST_SLOT: u64 = 128 << 10;
/// Bytes of a slot.
const SLOT_LEN: u64 = 512;
/// Offset of the pins of mapped regions.
const PINS: u64 = 384 << 10;
/// Offset of the words of mapped regions.
const STATES: u64 = 512 << 10;
/// Bit of the pin of a view.
const VIEW: u64 = 1 << 63;

/// Client that has its slots and their bell in its own hands, and handles to regions: of its own, one here
/// and one far away, and to the region *shared*, to read it.
struct Scribbler {
    stream: UnixStream,
    receiver: Receiver,
    slots: File,
    bell: File,
    /// Handles of the regions.
    handles: Vec<u32>,
    /// Word that lets it touch the region *shared*.
    word: u32,
}

impl Scribbler {
    fn connect(cluster: &Cluster, nth: usize) -> Self {
        let mut stream = UnixStream::connect(cluster.socket(0)).expect("the daemon listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("the time-out is not zero");
        let mut receiver = Receiver::default();
        let mut ask = |request: Request| ask(&mut stream, &mut receiver, &request);
        ask(Request::Hello { name: "scribbler".to_owned() });
        let (_, channel) = ask(Request::Channel);
        let (Reply::Slots, slots) = ask(Request::Slots) else { panic!("no slots") };
        let far = cluster.client(1).node();
        let mut handles = Vec::new();
        for (name, node) in [("near", None), ("far", Some(far))] {
            let create = Request::CreateRegion {
                name: format!("{name} {nth}"),
                len: LEN,
                node,
                public: Rights::NONE,
                mappable: true,
                ephemeral: true,
                exist_ok: false,
                room_us: 0,
            };
            let (Reply::RegionMapped { handle, .. }, _) = ask(create) else { panic!("no region") };
            handles.push(handle);
        }
        let (name, rights) = ("shared".to_owned(), Rights::READ);
        let map = Request::MapRegion { name, owner: None, rights, timeout_us: 0 };
        let (Reply::RegionMapped { handle, place, .. }, _) = ask(map) else { panic!("no region") };
        handles.push(handle);
        ask(Request::Lend { len: LEN, private: false, room_us: 0 });
        let bell = channel.into_iter().nth(1).expect("a bell").into();
        let slots = slots.into_iter().next().expect("a page set").into();
        // Elsewhere it is not mapped.
        let word = place.map_or(0, |place| place.word);
        Self { stream, receiver, slots, bell, handles, word }
    }

    fn write(&self, at: u64, word: u64) {
        // A page set that the daemon has given up is written in vain.
        let _ = self.slots.write_at(&word.to_le_bytes(), at);
    }

    /// Whether the daemon has hung up.
    fn is_dismissed(&mut self) -> bool {
        self.stream.set_nonblocking(true).expect("it is a socket");
        matches!(self.receiver.receive(&self.stream), Ok(0))
    }

    /// Submits any call on a region, or what looks like one.
    fn call(&self, chance: &mut Chance) {
        let slot = chance.below(256) as u64;
        let at = FIRST_SLOT + slot * SLOT_LEN;
        let any = |chance: &mut Chance| match chance.below(6) {
            0 => 0,
            1 => 8 * chance.below(LEN as usize / 8) as u64,
            2 => LEN - 8,
            3 => chance.below(400) as u64,
            4 => u64::MAX - chance.below(9) as u64,
            _ => chance.word(),
        };
        let handle = if chance.percent(90) { (*chance.pick(&self.handles)).into() } else { any(chance) };
        let (opcode, len) = (100 + chance.below(20) as u64, chance.below(330) as u64);
        self.write(at, chance.below(1 << 20) as u64 | opcode << 32 | len << 48);
        self.write(at + 8, any(chance));
        self.write(at + 16, handle);
        (3..8).for_each(|word| self.write(at + word * 8, any(chance)));
        self.write(SUBMITTED + slot / 64 * 8, 1 << (slot % 64));
    }

    /// Writes something to some place.
    fn scribble(&self, chance: &mut Chance) {
        let at = match chance.below(5) {
            0 => SUBMITTED + chance.below(4) as u64 * 8,
            1 => FIRST_SLOT + chance.below(256 * 64) as u64 * 8,
            2 => PINS + chance.below(4096) as u64 * 8,
            3 => STATES + chance.below(8) as u64 * 8,
            _ => chance.below(128 << 10) as u64 * 8,
        };
        let word = match chance.below(5) {
            0 => 0,
            1 => 1 + chance.below(4) as u64,
            2 => VIEW | (1 + chance.below(4) as u64),
            3 => 1 << chance.below(64),
            _ => chance.word(),
        };
        self.write(at, word);
    }

    fn ring(&mut self) {
        // Nobody may listen any more.
        let _ = self.bell.write(&1u64.to_ne_bytes());
    }

    /// Pins the region *shared*, as a thread does that is stopped while it touches the region.
    fn pin(&self, view: u64) {
        self.write(PINS, view | (u64::from(self.word) + 1));
    }
}

fn make(client: &Client, name: &str, mappable: bool) -> Region {
    let options = RegionOptions { mappable, ..RegionOptions::default() };
    let region = client.create_region(name, LEN, &options).expect("there is room");
    region.write(PATTERN, &Pattern(4).bytes((LEN - PATTERN) as usize)).expect("write");
    region
}

fn check(region: &Region) {
    let mut found = vec![0; (LEN - PATTERN) as usize];
    region.read(PATTERN, &mut found).expect("read");
    Pattern(4).check(&found);
}

fn snapshot(region: &Region) -> Result<ObjectId, plasmon::Error> {
    region.snapshot(ObjectId::random(), &CreateOptions::default())
}

fn moved(region: &Region, to: NodeId) -> Result<(), plasmon::Error> {
    region.move_to(to, PATIENCE)
}

#[test]
fn scribbling_over_the_words_of_regions_hurts_nobody_else() {
    let rounds = if std::env::var_os("PLASMON_E2E_LONG").is_some() { 400 } else { 40 };
    let cluster = Cluster::builder().nodes(2).start();
    let clients = [cluster.client(0), cluster.client(1)];
    let made = [make(&clients[0], "shared", true), make(&clients[0], "called", false)];
    let mut chance = Chance::of_this_run("scribbling_over_the_words_of_regions_hurts_nobody_else");
    let over = AtomicBool::new(false);
    let added: u64 = thread::scope(|scope| {
        let adders: Vec<_> = clients
            .iter()
            .map(|client| {
                let over = &over;
                scope.spawn(move || {
                    let map = |name| client.map_region(name, Rights::ALL, None).expect("it is there");
                    let regions = ["shared", "called"].map(map);
                    let mut added = 0;
                    while !over.load(Ordering::Relaxed) {
                        for region in &regions {
                            region.fetch_add(COUNTER, 1).expect("nobody dies");
                            check(region);
                        }
                        added += 1;
                    }
                    added
                })
            })
            .collect();
        for nth in 0..rounds {
            let mut scribbler = Scribbler::connect(&cluster, nth);
            for _ in 0..40 {
                for _ in 0..50 {
                    scribbler.call(&mut chance);
                    scribbler.scribble(&mut chance);
                }
                scribbler.ring();
            }
            if nth % 20 == 7 {
                // The scribbler's pins may keep the region where it is, and as it is.
                let kept = [snapshot(&made[0]).map(drop), moved(&made[0], clients[nth % 2].node())];
                for result in kept {
                    let is_busy = |error: &plasmon::Error| error.kind() == ErrorKind::Busy;
                    assert!(result.as_ref().err().is_none_or(is_busy), "{result:?}");
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        adders.into_iter().map(|adder| adder.join().expect("all adds end well")).sum()
    });
    eventually("nothing is left of the scribblers", || {
        let status = cluster.status(0);
        (status.slots.clients, status.slots.under_way, status.regions.regions) == (2, 0, 2)
            || (status.regions.regions, cluster.status(1).regions.regions) == (1, 1)
    });
    for region in &made {
        assert_eq!(region.fetch_add(COUNTER, 0).expect("it is there"), added, "{}", region.name());
        check(region);
        for client in &clients {
            moved(region, client.node()).expect("nobody has a view of it");
        }
        let object = get(&clients[1], snapshot(region).expect("nobody touches it"));
        Pattern(4).check(&object.data()[PATTERN as usize..]);
    }
    // The engine took all that made sense as calls.
    assert!(cluster.status(0).slots.calls > rounds as u64);
}

#[test]
fn a_process_that_stops_amid_a_touch_holds_up_nobody_for_ever() {
    let cluster = Cluster::builder().nodes(2).start();
    let clients = [cluster.client(0), cluster.client(1)];
    let region = make(&clients[0], "shared", true);
    let far = clients[1].map_region("shared", Rights::ALL, None).expect("it is there");
    let mut stopped = Scribbler::connect(&cluster, 0);
    // Amid a view the region cannot move, and can be copied.
    stopped.pin(VIEW);
    assert_eq!(kind(moved(&region, clients[1].node())), ErrorKind::Busy);
    snapshot(&region).expect("whoever has a view is not waited for");
    // Amid a store nobody knows the bytes.
    stopped.pin(0);
    let began = Instant::now();
    assert_eq!(kind(moved(&region, clients[1].node())), ErrorKind::Busy);
    assert_eq!(kind(snapshot(&far)), ErrorKind::Busy);
    wait::ended_in_time("a move and a snapshot", began, 2 * STILL);
    for (nth, region) in [&region, &far].into_iter().enumerate() {
        assert_eq!(region.fetch_add(COUNTER, 1), Ok(nth as u64), "changes go on");
        check(region);
    }
    assert!(!stopped.is_dismissed(), "it has broken no rule");
    // A region that is freed under a stopped process keeps its memory until that process has gone.
    let began = Instant::now();
    far.free().expect("free");
    wait::ended_in_time("the release", began, STILL);
    assert_eq!(kind(region.fetch_add(COUNTER, 1)), ErrorKind::Freed);
    drop(region);
    let next = make(&clients[0], "shared", true);
    let held =
        |regions: u64| eventually("the memory is held", || cluster.status(0).regions.bytes == regions * LEN);
    // Memory of three regions is held: the stopped process's own, the freed one, the next one.
    held(3);
    drop(stopped);
    held(1);
    moved(&next, clients[1].node()).expect("nobody touches it");
    check(&next);
}
