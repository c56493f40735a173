//! Tests of regions at home, on a node that is alone: its store, its directory and its tasks, without
//! clients.

mod fencing;
mod life;
mod operations;
mod rights;
mod room;
mod waits;

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use plasmon::Error;
use plasmon::region::Rights;
use plasmon_fabric::{Faults, MemoryNetwork};

use super::{Home, Region, Wanted};
use crate::config::Config;
use crate::directory::Directory;
use crate::kernel::Kernel;
use crate::kernel::clock::Clock;
use crate::kernel::tasks::Tasks;
use crate::kernel::waker::Waker;
use crate::membership::Cluster;
use crate::memory::{Arena, ArenaConfig, HugePages};
use crate::net::network::Network;
use crate::object::{Keeping, Table};
use crate::placement::Placement;
use crate::sessions::Clients;
use crate::store::{Readers, Store};
use crate::transfer::{Transfer, Tunings};

const MEMORY_BYTES: u64 = 16 << 20;
/// User who makes regions in these tests.
const OWNER: u32 = 70_001;
const OTHER: u32 = 70_002;
const THIRD: u32 = 70_003;
/// Maximum number of turns until a task is over.
const MAX_TURNS: usize = 10_000;

/// A node that is alone in its cluster.
struct Bench {
    home: Rc<Home>,
    placement: Rc<Placement>,
    store: Rc<Store>,
    tasks: Tasks,
    now: Rc<Cell<Instant>>,
}

fn bench() -> Bench {
    bench_with(|_| {})
}

/// Makes a node with settings that `set` changes.
fn bench_with(set: impl FnOnce(&mut Config)) -> Bench {
    let mut config =
        Config { prefault: false, huge_pages: false, ..Config::new(MEMORY_BYTES, "a socket of a test") };
    set(&mut config);
    let tasks = Tasks::new();
    let now = Rc::new(Cell::new(Instant::now()));
    let source = Rc::clone(&now);
    let clock = Clock::with_source(move || source.get(), Duration::ZERO);
    let kernel = Rc::new(Kernel::new(config, "10.0.0.1:1".into(), clock, &tasks));
    let arena = Arena::new(&ArenaConfig {
        capacity: MEMORY_BYTES,
        segment_size: None,
        huge_pages: HugePages::Never,
        prefault: false,
        near: None,
        huge_allowance: None,
    });
    let arena = arena.expect("there is memory for a small arena");
    let objects = Table::new(Keeping::Memory, arena.home());
    let stamps = objects.stamps.borrow().memory().clone();
    let provider = MemoryNetwork::new(1, Faults::default()).provider(1);
    let network = Network::open(&kernel, &[provider], &arena, &stamps);
    let network = Rc::new(network.expect("the network in memory has room"));
    let readers = Clients::default() as Rc<dyn Readers>;
    let store = Rc::new(Store::new(&kernel, &network, arena, objects, None, readers));
    let cluster = Rc::new(Cluster::new(&kernel, &network, &store));
    let directory = Rc::new(Directory::new(&kernel, &network, &store, &cluster));
    let (tunings, waker) = (Tunings::load(None, "memory"), Waker::new().expect("an eventfd"));
    let transfer = Rc::new(Transfer::new(&directory, tunings, waker));
    let placement = Rc::new(Placement::new(&transfer));
    Bench { home: Home::new(&placement), placement, store, tasks, now }
}

impl Bench {
    /// Runs one turn of the engine, a millisecond after the last.
    fn turn(&mut self) {
        self.now.set(self.now.get() + Duration::from_millis(1));
        self.placement.kernel.clock.fire();
        self.tasks.run_until_stalled();
    }

    /// Begins a task. The receiver gets what the task returns.
    fn begin<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> oneshot::Receiver<T> {
        let (sender, done) = oneshot::channel();
        self.placement.kernel.spawn(async move { _ = sender.send(task.await) });
        done
    }

    /// Runs turns until a task is over.
    fn end<T>(&mut self, mut begun: oneshot::Receiver<T>) -> T {
        for _ in 0..MAX_TURNS {
            self.turn();
            if let Some(done) = begun.try_recv().expect("the task is not dropped") {
                return done;
            }
        }
        panic!("a task is not done after {MAX_TURNS} turns");
    }

    fn run<T: 'static>(&mut self, task: impl Future<Output = T> + 'static) -> T {
        let begun = self.begin(task);
        self.end(begun)
    }

    fn try_make(&mut self, wanted: Wanted, user: u32) -> Result<Rc<Region>, Error> {
        let home = Rc::clone(&self.home);
        self.run(async move { home.make(wanted, user).await.map(|(region, _)| region) })
    }

    /// Makes a region of the owner.
    fn make(&mut self, name: &str, len: u64) -> Rc<Region> {
        self.try_make(wanted(name, len), OWNER).unwrap_or_else(|error| panic!("it can be made: {error}"))
    }

    fn free(&mut self, region: &Rc<Region>, user: u32) -> Result<(), Error> {
        let (home, region) = (Rc::clone(&self.home), Rc::clone(region));
        self.run(async move { home.free(&region, user).await })
    }
}

fn wanted(name: &str, len: u64) -> Wanted {
    Wanted {
        name: name.into(),
        len,
        public: Rights::NONE,
        mappable: true,
        ephemeral: false,
        exist_ok: false,
        room: Duration::ZERO,
    }
}

/// Returns the kind of the error of a call that has to fail.
fn failed<T>(result: Result<T, Error>) -> plasmon::ErrorKind {
    result.err().expect("it fails").kind()
}
