//! Cases of regions: their names are unique, come back with their nodes or are given to other regions, and go
//! when the regions are freed, whatever each node does in the meantime.

use std::rc::Rc;
use std::time::Duration;

use futures::channel::oneshot;
use plasmon::drain::{DrainStatus, DrainStep};
use plasmon::region::{Rights, region_id};
use plasmon::wire::{NewObject, Operation, Request, Terms};
use plasmon::{Error, ErrorKind, Rights as ObjectRights};

use super::{DISK_SEEDS, REST_TIME, Simulation};
use crate::control::Event;
use crate::region::home::{Home, Region, Wanted};

/// The user whose regions these are.
const USER: u32 = 7;
/// Seeds of each case: of clusters without disks, whose nodes have little memory.
const SEEDS: u64 = 4;
/// Time in which nodes follow a change of members.
const VIEW_TIME: Duration = Duration::from_millis(100);
/// Longest time that a request of a client takes.
const REQUEST_TIME: Duration = Duration::from_secs(2);
/// Number of nodes that make regions; a cluster has at least so many nodes.
const HOMES: usize = 3;

/// A cluster, and the regions of each of its nodes.
struct Bench {
    simulation: Simulation,
    homes: Vec<Rc<Home>>,
}

impl Bench {
    fn new(seed: u64, has_faults: bool) -> Self {
        let simulation = Simulation::new(seed, |_| Vec::new());
        if !has_faults {
            simulation.network.change_faults(|faults| {
                (faults.spoiled_read_ppm, faults.cut_ppm, faults.early_send_ppm) = (0, 0, 0);
            });
        }
        let cores = simulation.hosts.iter().filter_map(|host| host.core());
        let homes = cores.map(|core| Rc::clone(&core.regions.home)).collect();
        Self { simulation, homes }
    }

    /// Has a node begin to do something.
    fn begin<T: 'static>(
        &self,
        host: usize,
        task: impl Future<Output = T> + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, done) = oneshot::channel();
        self.simulation.hosts[host].spawn(async move { _ = sender.send(task.await) });
        done
    }

    /// Lets time pass until the result has come.
    fn end<T>(&mut self, mut begun: oneshot::Receiver<T>) -> T {
        let due = self.simulation.time.now() + REST_TIME;
        while self.simulation.time.now() < due {
            self.simulation.pass(Duration::from_millis(1));
            if let Some(done) = begun.try_recv().expect("its node lives") {
                return done;
            }
        }
        panic!("it is not done in {REST_TIME:?}");
    }

    fn begin_make(&self, host: usize, name: &str) -> oneshot::Receiver<Result<Rc<Region>, Error>> {
        let home = Rc::clone(&self.homes[host]);
        let wanted = wanted(name);
        self.begin(host, async move { home.make(wanted, USER).await.map(|(region, _)| region) })
    }

    fn make_ephemeral(&mut self, host: usize, name: &str) -> Rc<Region> {
        let home = Rc::clone(&self.homes[host]);
        let wanted = Wanted { ephemeral: true, ..wanted(name) };
        let begun = self.begin(host, async move { home.make(wanted, USER).await });
        self.end(begun).expect("the name is free").0
    }

    fn try_make(&mut self, host: usize, name: &str) -> Result<Rc<Region>, ErrorKind> {
        let begun = self.begin_make(host, name);
        self.end(begun).map_err(|error| error.kind())
    }

    fn make(&mut self, host: usize, name: &str) -> Rc<Region> {
        let made = self.try_make(host, name);
        made.unwrap_or_else(|kind| panic!("node {host} makes region {name}: {kind:?}"))
    }

    fn free(&mut self, host: usize, region: &Rc<Region>) -> Result<(), ErrorKind> {
        let (home, region) = (Rc::clone(&self.homes[host]), Rc::clone(region));
        let begun = self.begin(host, async move { home.free(&region, USER).await });
        self.end(begun).map_err(|error| error.kind())
    }

    /// Has a node find a region, on whichever node the region lives.
    fn try_find(&mut self, host: usize, name: &str) -> Result<(), ErrorKind> {
        let core = self.simulation.hosts[host].core().expect("it runs");
        let (regions, name) = (Rc::clone(&core.regions), name.to_owned());
        let finding = async move { regions.find(&name, None, Rights::READ, USER).await.map(drop) };
        let begun = self.begin(host, finding);
        self.end(begun).map_err(|error| error.kind())
    }

    /// Lets the cluster come to rest.
    fn rest(&mut self) {
        self.simulation.pass(REST_TIME);
        self.homes.iter().for_each(|home| home.on_tick());
    }

    /// Has the coordinator take a node for gone. The node fences itself first.
    fn expel(&mut self, host: usize) {
        let now = self.simulation.time.now();
        self.simulation.hosts[host].is_expelled = true;
        self.simulation.hosts[host].send(Event::Expelled, now);
        self.simulation.pass(VIEW_TIME);
    }

    fn kill(&mut self, host: usize) {
        let Simulation { hosts, coordinator, time, .. } = &mut self.simulation;
        hosts[host].kill();
        coordinator.forget(hosts, time.now(), None);
        self.simulation.pass(VIEW_TIME);
    }

    /// Has a client of a host ask for something that its node may refuse.
    fn ask(&mut self, host: usize, request: Request) {
        self.simulation.with_worker(host, |worker, simulation| worker.ask_further(simulation, request));
        self.simulation.pass(REQUEST_TIME);
    }

    /// Returns the nodes that have a region, each with the region.
    fn found(&self, name: &str) -> Vec<(usize, Rc<Region>)> {
        let homes = self.homes.iter().enumerate();
        homes.filter_map(|(host, home)| Some((host, home.find(&region_id(name))?))).collect()
    }

    fn drain_status(&self, user: u32) -> DrainStatus {
        let core = self.simulation.hosts[1].core().expect("it runs");
        core.placement.drain_here(DrainStep::Look, user).expect("everybody may look")
    }

    /// Ends a case: nothing is left of it.
    fn finish(mut self, seed: u64) {
        let wrong = self.simulation.wrong();
        assert!(wrong.is_empty(), "seed {seed}:\n{}", wrong.join("\n"));
    }
}

/// Region that is wanted: 64 KiB, mappable.
fn wanted(name: &str) -> Wanted {
    Wanted {
        name: name.into(),
        len: 64 << 10,
        public: Rights::NONE,
        mappable: true,
        ephemeral: false,
        exist_ok: false,
        room: Duration::from_secs(20),
    }
}

/// Adds 1 to a word of a region, and returns what it was before.
fn add(region: &Region) -> Result<u64, ErrorKind> {
    let done = region.carry_out(USER, Operation::FetchAdd { offset: 0, value: 1 }, &[]);
    done.map(|done| done.value).map_err(|error| error.kind())
}

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    (1..=count).filter(|seed| !seed.is_multiple_of(DISK_SEEDS))
}

#[test]
fn of_nodes_that_make_a_region_at_once_one_makes_it() {
    for seed in seeds(SEEDS) {
        let mut bench = Bench::new(seed, false);
        let begun: Vec<_> = (0..HOMES).map(|host| bench.begin_make(host, "a")).collect();
        let made: Vec<_> = begun.into_iter().map(|one| bench.end(one)).collect();
        let refused: Vec<_> = made.iter().filter_map(|made| Some(made.as_ref().err()?.kind())).collect();
        assert_eq!(refused, [ErrorKind::Exists; HOMES - 1], "seed {seed}");
        drop(made);
        let (home, region) = bench.found("a").pop().expect("one has made it");
        assert_eq!([add(&region), add(&region)], [Ok(0), Ok(1)]);
        for host in 0..HOMES {
            assert_eq!(bench.try_make(host, "a").err(), Some(ErrorKind::Exists), "seed {seed}");
        }
        assert_eq!(bench.free(home, &region), Ok(()));
        assert_eq!(add(&region), Err(ErrorKind::Freed));
        // The name of the region is free everywhere.
        let other = (home + 1) % HOMES;
        let again = bench.make(other, "a");
        assert_eq!(add(&again), Ok(0), "seed {seed}");
        assert_eq!(bench.free(other, &again), Ok(()));
        drop((region, again));
        bench.finish(seed);
    }
}

#[test]
fn regions_come_back_with_their_node_unless_others_freed_or_made_them() {
    for seed in seeds(SEEDS) {
        let mut bench = Bench::new(seed, false);
        let [stays, displaced, freed] = ["stays", "displaced", "freed"].map(|name| bench.make(0, name));
        assert_eq!(add(&stays), Ok(0));
        bench.expel(0);
        assert_eq!(add(&stays), Err(ErrorKind::Disconnected), "seed {seed}");
        assert_eq!(bench.try_make(0, "other").err(), Some(ErrorKind::Disconnected));
        assert_eq!(bench.free(0, &stays), Err(ErrorKind::Disconnected));
        let [instead, meanwhile] = ["displaced", "freed"].map(|name| bench.make(1, name));
        assert_eq!(bench.free(1, &meanwhile), Ok(()));
        bench.simulation.join(0);
        bench.rest();
        assert_eq!([add(&stays), add(&instead)], [Ok(1), Ok(0)], "seed {seed}");
        assert_eq!([add(&displaced), add(&freed)], [Err(ErrorKind::Freed); 2], "seed {seed}");
        assert_eq!(bench.try_make(2, "stays").err(), Some(ErrorKind::Exists), "seed {seed}");
        assert_eq!([bench.free(0, &stays), bench.free(1, &instead)], [Ok(()); 2]);
        drop((stays, displaced, freed, instead, meanwhile));
        bench.finish(seed);
    }
}

#[test]
fn a_region_outlives_its_keeper_and_goes_with_its_home() {
    for seed in seeds(SEEDS) {
        let mut bench = Bench::new(seed, false);
        let region = bench.make(1, "a");
        let keepers = bench.simulation.hosts[0].core().expect("it runs").cluster.keepers(&region.id());
        let first = bench.simulation.hosts.iter().position(|host| host.id() == Some(keepers.first));
        let first = first.expect("a member");
        bench.kill(first);
        let other = (0..HOMES).find(|host| ![first, 1].contains(host)).expect("there are three");
        if first != 1 {
            assert_eq!(bench.try_make(other, "a").err(), Some(ErrorKind::Exists), "seed {seed}");
            assert_eq!(add(&region), Ok(0));
            assert_eq!(bench.free(1, &region), Ok(()));
        }
        let again = bench.make(other, "a");
        assert_eq!(add(&again), Ok(0), "seed {seed}");
    }
}

#[test]
fn no_object_takes_the_place_of_a_region() {
    for seed in seeds(SEEDS) {
        let mut bench = Bench::new(seed, false);
        let region = bench.make(1, "a");
        let id = region.id();
        // An id that is said to be drawn at random is not claimed.
        for (fresh, rights) in [(true, ObjectRights::Private), (false, ObjectRights::ReadWrite)] {
            for host in 0..HOMES {
                let terms = Terms { fresh, copies: 1, ttl_ms: 0, owned: false, replaces: false };
                let (name, metadata) = (String::new(), Default::default());
                let object = NewObject { id, rights, name, metadata, terms };
                bench.ask(
                    host,
                    Request::Put { object, digest: 0, room_us: 1_000_000, data: vec![1; 99].into() },
                );
                let node = bench.simulation.hosts[host].id().expect("it runs");
                bench.ask(host, Request::Delete { ids: vec![id] });
                bench.ask(host, Request::Prefetch { timeout_us: 1_000_000, ids: vec![id] });
                bench.ask(host, Request::Migrate { timeout_us: 1_000_000, id, node });
                bench.ask(host, Request::Evict { bytes: u64::MAX });
            }
        }
        bench.rest();
        assert_eq!(add(&region), Ok(0), "seed {seed}");
        assert_eq!(bench.simulation.here(0, &[id]) + bench.simulation.here(2, &[id]), 0, "seed {seed}");
        assert_eq!(bench.free(1, &region), Ok(()));
        drop(region);
        bench.finish(seed);
    }
}

#[test]
fn a_drain_moves_regions_and_names_those_that_stay() {
    for seed in seeds(SEEDS) {
        let mut bench = Bench::new(seed, false);
        let region = bench.make(1, "a");
        let ephemeral = bench.make_ephemeral(1, "b");
        assert_eq!(add(&region), Ok(0));
        bench.simulation.put(1, 0, 100);
        bench.simulation.hosts[1].drain();
        bench.rest();
        let status = bench.drain_status(0);
        assert!(status.is_stuck() && (status.objects, status.moved_objects) == (0, 1), "{status:?}");
        assert_eq!((status.regions, status.region_names), (1, vec!["b".to_owned()]), "seed {seed}");
        assert_eq!(bench.drain_status(USER).region_names, Vec::<String>::new());
        assert_eq!(bench.try_make(1, "c").err(), Some(ErrorKind::Disconnected));
        assert_eq!(add(&region), Err(ErrorKind::NotHere), "seed {seed}: it has moved");
        let moved = bench.homes.iter().find_map(|home| home.find(&region_id("a"))).expect("a node has it");
        assert_eq!((moved.life(), add(&moved)), (region.life(), Ok(1)), "seed {seed}");
        assert_eq!(bench.free(1, &ephemeral), Ok(()));
        drop((region, ephemeral, moved));
        bench.simulation.pass(REST_TIME);
        assert!(!bench.simulation.hosts[1].is_alive(), "seed {seed}: it leaves");
    }
}

#[test]
fn a_name_has_one_region_whatever_breaks() {
    for seed in seeds(2 * SEEDS) {
        let mut bench = Bench::new(seed, true);
        for round in 0..2 * HOMES {
            let begun: Vec<_> = (0..HOMES).map(|host| bench.begin_make(host, "a")).collect();
            let expelled = (round % 2 == 1).then_some(round / 2);
            expelled.into_iter().for_each(|host| bench.expel(host));
            let made: Vec<_> = begun.into_iter().map(|one| bench.end(one).map(drop)).collect();
            expelled.into_iter().for_each(|host| bench.simulation.join(host));
            bench.rest();
            let found = bench.found("a");
            let least = usize::from(expelled.is_none());
            assert!((least..=1).contains(&found.len()), "seed {seed}, round {round}: {made:?}");
            for (host, region) in found {
                assert_eq!(bench.free(host, &region), Ok(()), "seed {seed}, round {round}");
            }
        }
    }
}

#[test]
fn a_region_is_found_as_soon_as_it_is_made_and_not_after_it_was_freed() {
    for seed in seeds(SEEDS) {
        let mut bench = Bench::new(seed, false);
        for round in 0..2 * HOMES {
            // The next region of a name may have another home.
            let (home, name) = (round % HOMES, format!("a{}", round / 2));
            let region = bench.make(home, &name);
            for host in 0..HOMES {
                assert_eq!(bench.try_find(host, &name), Ok(()), "seed {seed}, round {round}, node {host}");
            }
            assert_eq!(bench.free(home, &region), Ok(()));
            for host in 0..HOMES {
                let found = bench.try_find(host, &name);
                assert_eq!(found, Err(ErrorKind::NotFound), "seed {seed}, round {round}, node {host}");
            }
        }
        // Keepers remember a region that was lost when the next one is made.
        let (lost, other) = (bench.make(1, "a"), 2);
        drop(lost);
        bench.rest();
        bench.kill(1);
        assert_eq!(bench.try_find(other, "a"), Err(ErrorKind::Lost), "seed {seed}");
        bench.make(0, "a");
        assert_eq!(bench.try_find(other, "a"), Ok(()), "seed {seed}");
    }
}

#[test]
fn a_name_has_one_region_after_a_cluster_began_anew_with_another_of_it() {
    for seed in seeds(2 * SEEDS) {
        for fences in [false, true] {
            let mut bench = Bench::new(seed, false);
            let region = bench.make(1, "a");
            assert_eq!(add(&region), Ok(0));
            drop(region);
            // The members go on for a while without the node of the coordinator, or end.
            let (now, others) = (bench.simulation.time.now(), 1..bench.homes.len());
            for host in others.clone().filter(|_| fences) {
                bench.simulation.hosts[host].is_expelled = true;
                bench.simulation.hosts[host].send(Event::Expelled, now);
            }
            bench.simulation.hosts[0].kill();
            bench.simulation.coordinator.begin_anew();
            bench.simulation.pass(VIEW_TIME);
            bench.simulation.hosts[0].start_again();
            bench.homes[0] = Rc::clone(&bench.simulation.hosts[0].core().expect("it runs").regions.home);
            bench.simulation.join(0);
            bench.simulation.pass(VIEW_TIME);
            let instead = bench.make(0, "a");
            assert_eq!(add(&instead), Ok(0), "seed {seed}");
            drop(instead);
            for host in others {
                bench.simulation.join(host);
                bench.simulation.pass(VIEW_TIME);
            }
            bench.rest();
            let found = bench.found("a");
            assert_eq!(found.len(), 1, "seed {seed}, fences: {fences}");
            assert_eq!(add(&found[0].1), Ok(1), "seed {seed}");
            for host in 0..HOMES {
                assert_eq!(bench.try_find(host, "a"), Ok(()), "seed {seed}, node {host}");
            }
        }
    }
}
