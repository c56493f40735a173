//! A walk through all calls of the Rust API that take a time-out, while a node is stopped: each ends within
//! its time-out, one after the other and in many threads, and again when it is made once more.
//!
//! The source says which calls there are, so a call that is added without a row here fails the test.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::region::{Principal, RegionOptions, Rights};
use plasmon::service::ServeOptions;
use plasmon::sync::{Lock, LockOptions};
use plasmon::{Barrier, Client, CreateOptions, Error, NodeId, ObjectId, Region, Service};
use plasmon_e2e::{Cluster, PATIENCE, Pattern};

use crate::support::{LONG_LEASE, MIB, put};

/// Time-out of each call.
const TIMEOUT: Duration = Duration::from_millis(200);
/// Time that a call may take beyond its time-out.
const SLACK: Duration = Duration::from_millis(500);
/// Time that a question may take which [`Client::get_existing`] asks when its time-out is over.
const QUESTION: Duration = Duration::from_secs(1);
/// Number of times that a call which was late is made again.
const TRIES: usize = 2;
/// Number of threads that make a call at a time.
const THREADS: usize = 8;
/// Number of calls that are walked at a time.
const TOGETHER: usize = 6;
/// Size in bytes of data that travel through lent memory.
const LONG: usize = 100_000;

/// Types whose calls are walked.
const TYPES: [&str; 9] =
    ["Client", "Scratch", "Region", "Service", "Server", "Lock", "Barrier", "Subscription", "RegionEvents"];
/// Calls that take a time-out and wait for nothing, with the reason.
const LEFT_OUT: [(&str, &str); 15] = [
    ("Client::within", "it makes no call"),
    ("Region::with_timeout", "it makes no call"),
    ("Client::begin_get", "an event loop waits for it"),
    ("Client::begin_wait", "an event loop waits for it"),
    ("Service::await_call", "an event loop waits for it"),
    ("Lock::await_guard", "an event loop waits for it"),
    ("Barrier::await_passage", "an event loop waits for it"),
    ("Region::await_operation", "an event loop waits for it"),
    ("Region::await_read", "an event loop waits for it"),
    ("Region::await_read_into", "an event loop waits for it"),
    ("Region::await_write", "an event loop waits for it"),
    ("Region::await_write_fenced", "an event loop waits for it"),
    ("Region::await_copy", "an event loop waits for it"),
    ("Region::fence", "it waits for operations, each of which ends by its own time-out"),
    ("Region::view", "it looks at memory"),
];

type Call = Arc<dyn Fn() -> Result<(), Error> + Send + Sync>;

/// Calls by their names.
struct Walk(Vec<(&'static str, Call)>);

impl Walk {
    fn add<T>(&mut self, name: &'static str, call: impl Fn() -> Result<T, Error> + Send + Sync + 'static) {
        self.0.push((name, Arc::new(move || call().map(drop))));
    }
}

/// What the calls are made on. The home of the region and of the service is another node than the client's.
struct Ground {
    client: Client,
    far: Client,
    there: ObjectId,
    region: Region,
    service: Service,
    lock: Lock,
    barrier: Barrier,
    name: String,
}

impl Ground {
    fn new(cluster: &Cluster) -> Self {
        let (client, far) = (cluster.client(0), cluster.client(1));
        let there = put(&far, Pattern(1), MIB);
        let options = RegionOptions { public: Rights::READ_WRITE, ..RegionOptions::default() };
        far.create_region("walked", 4 * LONG as u64, &options).expect("there is room");
        let region = client.map_region("walked", Rights::ALL, Some(PATIENCE)).expect("it is there");
        let server = Arc::new(far.serve("walked", &["f"], &ServeOptions::default()).expect("it serves"));
        for _ in 0..THREADS {
            let server = Arc::clone(&server);
            // These threads end with their node.
            thread::spawn(move || {
                while let Ok(call) = server.receive(None) {
                    call.into_iter().for_each(|call| drop(call.reply(b"")));
                }
            });
        }
        let service = client.service("walked", Some(PATIENCE)).expect("it is served");
        service.call("f", b"", PATIENCE).expect("it is served");
        let lock = Lock::new(&client, "walked", &LockOptions::default()).expect("a handle");
        // Nobody else comes.
        let barrier = Barrier::new(&client, "walked", 1000, false).expect("a handle");
        let region = region.with_timeout(TIMEOUT);
        Self { client, far, there, region, service, lock, barrier, name: "walked".to_owned() }
    }

    fn node(&self) -> NodeId {
        self.far.node()
    }
}

fn options() -> CreateOptions {
    CreateOptions { room: Some(TIMEOUT), ..CreateOptions::default() }
}

/// Calls about objects.
fn of_objects(ground: &Ground, walk: &mut Walk) {
    let Ground { client, there, .. } = ground;
    let (there, node, soon) = (*there, ground.node(), Some(TIMEOUT));
    let on = |call: fn(&Client, ObjectId, NodeId) -> Result<(), Error>| {
        let client = client.clone();
        move || call(&client, there, node)
    };
    const SOON: Option<Duration> = Some(TIMEOUT);
    walk.add("Client::get", on(|client, id, _| client.get(&[id], SOON)?.remove(0).map(drop)));
    walk.add(
        "Client::get_interruptible",
        on(|client, id, _| client.get_interruptible(&[id], SOON, &mut || false)?.remove(0).map(drop)),
    );
    walk.add(
        "Client::get_existing",
        on(|client, id, _| client.get_existing(&[id], SOON)?.remove(0).map(drop)),
    );
    walk.add("Client::wait", on(|client, id, _| client.wait(&[id], 1, SOON, None).map(drop)));
    walk.add("Client::pin", on(|client, id, _| client.pin(id, SOON)));
    walk.add("Client::replicate", on(|client, id, _| client.replicate(id, 2, SOON).map(drop)));
    walk.add("Client::migrate", on(|client, id, node| client.migrate(id, node, SOON).map(drop)));
    walk.add("Client::broadcast", on(|client, id, _| client.broadcast(id, &[], SOON).map(drop)));
    walk.add("Client::prefetch", on(|client, id, _| client.prefetch(&[id], TIMEOUT)));
    walk.add("Client::ping", on(|client, _, node| client.ping(node, TIMEOUT).map(drop)));
    walk.add("Client::get_into", on(|client, id, _| client.get_into(id, &mut vec![0; MIB], SOON).map(drop)));
    walk.add("Client::buffer", on(|client, _, _| client.buffer(MIB, true, SOON).map(drop)));
    walk.add("Client::put", on(|client, _, _| client.put(ObjectId::random(), &[1; LONG], b"", &options())));
    walk.add(
        "Client::put_parts",
        on(|client, _, _| client.put_parts(ObjectId::random(), LONG, &[(0, &[1; LONG])], b"", &options())),
    );
    walk.add(
        "Client::put_many",
        on(|client, _, _| {
            let objects =
                [(ObjectId::random(), &[1; 100][..], &b""[..]), (ObjectId::random(), &[2; LONG], b"")];
            client.put_many(&objects, &options())?.into_iter().collect()
        }),
    );
    walk.add(
        "Client::replace",
        on(|client, id, _| client.replace(id, &[1; LONG], b"", &options(), None).map(drop)),
    );
    walk.add(
        "Client::replace_parts",
        on(|client, id, _| client.replace_parts(id, 2, &[(0, b"ab")], b"", &options(), None).map(drop)),
    );
    walk.add(
        "Client::get_versioned",
        on(|client, id, _| client.get_versioned(&[id], SOON)?.remove(0).map(drop)),
    );
    walk.add(
        "Client::create",
        on(|client, _, _| client.create(ObjectId::random(), LONG as u64, b"", &options()).map(drop)),
    );
    walk.add(
        "Client::connect_with",
        on(|client, _, _| Client::connect_with(client.socket(), "late", SOON, None).map(drop)),
    );
    for (name, replaces) in [("Client::put_from", false), ("Scratch::replace", true)] {
        let scratches = (0..4 * THREADS).map(|_| client.buffer(MIB, false, None).expect("there is room"));
        let scratches: Mutex<Vec<_>> = Mutex::new(scratches.collect());
        let (putting, id) = (client.clone(), ObjectId::random());
        walk.add(name, move || {
            let Some(mut scratch) = scratches.lock().expect("no panic").pop() else { return Ok(()) };
            match replaces {
                true => scratch.replace(id, MIB, b"", &options(), None).map(drop),
                false => putting.put_from(ObjectId::random(), &mut scratch, MIB, b"", &options()).map(drop),
            }
        });
    }
    let listening = client.subscribe("walked").expect("it subscribes");
    let listening = Mutex::new(listening);
    walk.add("Subscription::next", move || match listening.try_lock() {
        Ok(mut events) => events.next(soon, None).map(drop),
        Err(_) => Ok(()),
    });
}

/// Calls about regions.
fn of_regions(ground: &Ground, walk: &mut Walk) {
    let on = |call: fn(&Region) -> Result<(), Error>| {
        let region = ground.region.clone();
        move || call(&region)
    };
    walk.add("Region::read", on(|region| region.read(0, &mut [0; LONG])));
    walk.add("Region::write", on(|region| region.write(0, &[1; LONG])));
    walk.add("Region::fill", on(|region| region.fill(0..1000, 1)));
    walk.add("Region::copy_from", on(|region| region.copy_from(0, region, 0..1000)));
    walk.add("Region::fetch_add", on(|region| region.fetch_add(0, 1).map(drop)));
    walk.add("Region::swap", on(|region| region.swap(0, 1).map(drop)));
    walk.add("Region::compare_swap", on(|region| region.compare_swap(0, 1, 1).map(drop)));
    walk.add("Region::test_and_set", on(|region| region.test_and_set(0).map(drop)));
    walk.add("Region::wait", on(|region| region.wait(2 * LONG as u64, 0, TIMEOUT).map(drop)));
    walk.add("Region::notify", on(|region| region.notify(0)));
    walk.add("Region::info", on(|region| region.info().map(drop)));
    walk.add("Region::grant", on(|region| region.grant(Principal::User(9), Rights::READ)));
    walk.add("Region::revoke", on(|region| region.revoke(Principal::User(9))));
    walk.add("Region::snapshot", on(|region| region.snapshot(ObjectId::random(), &options()).map(drop)));
    walk.add("Region::begin_read", on(|region| region.begin_read(0, LONG)?.wait().map(drop)));
    walk.add("Region::begin_write", on(|region| region.begin_write(0, &[1; LONG])?.wait()));
    walk.add("Region::begin_fetch_add", on(|region| region.begin_fetch_add(0, 1)?.wait().map(drop)));
    walk.add("Region::begin_compare_swap", on(|region| region.begin_compare_swap(0, 1, 1)?.wait().map(drop)));
    let (region, node) = (ground.region.clone(), ground.client.node());
    walk.add("Region::move_to", move || region.move_to(node, TIMEOUT));
    let guard = ground.lock.take(Some(PATIENCE)).expect("nobody has it");
    let region = ground.region.clone();
    walk.add("Region::write_fenced", move || region.write_fenced(0, &[1; LONG], &guard));
    let scratch = || Mutex::new(ground.client.buffer(MIB, true, None).expect("there is room"));
    let (region, memory) = (ground.region.clone(), scratch());
    walk.add("Region::read_to", move || match memory.try_lock() {
        Ok(mut memory) => region.read_to(0, &mut memory, 0..LONG),
        Err(_) => Ok(()),
    });
    let (region, memory) = (ground.region.clone(), scratch());
    walk.add("Region::write_from", move || match memory.try_lock() {
        Ok(memory) => region.write_from(0, &memory, 0..LONG),
        Err(_) => Ok(()),
    });
    let (client, name) = (ground.client.clone(), ground.name.clone());
    walk.add("Client::map_region", move || client.map_region(&name, Rights::READ, Some(TIMEOUT)).map(drop));
    let (client, name) = (ground.client.clone(), ground.name.clone());
    walk.add("Client::map_region_of", move || {
        client.map_region_of(None, &name, Rights::READ, Some(TIMEOUT)).map(drop)
    });
    let client = ground.client.clone();
    walk.add("Client::create_region", move || {
        let options = RegionOptions { room: Some(TIMEOUT), ..RegionOptions::default() };
        client.create_region(&ObjectId::random().to_string(), 1000, &options).map(drop)
    });
    let events = Mutex::new(ground.client.region_events().expect("it subscribes"));
    walk.add("RegionEvents::next_within", move || match events.try_lock() {
        Ok(mut events) => events.next_within(Some(TIMEOUT), None).map(drop),
        Err(_) => Ok(()),
    });
    let freed = (0..4 * THREADS).map(|nth| {
        let name = format!("freed {nth}");
        ground.far.create_region(&name, 1000, &RegionOptions::default()).expect("there is room");
        ground.client.map_region(&name, Rights::ALL, None).expect("it is there").with_timeout(TIMEOUT)
    });
    let freed: Mutex<Vec<_>> = Mutex::new(freed.collect());
    walk.add("Region::free", move || {
        let region = freed.lock().expect("no panic").pop();
        region.map_or(Ok(()), Region::free)
    });
}

/// Calls about services, locks and barriers.
fn of_programs(ground: &Ground, walk: &mut Walk) {
    let on = |call: fn(&Service) -> Result<(), Error>| {
        let service = ground.service.clone();
        move || call(&service)
    };
    walk.add("Service::call", on(|service| service.call("f", &[1; 400], TIMEOUT).map(drop)));
    walk.add("Service::ping", on(|service| service.ping(TIMEOUT).map(drop)));
    walk.add("Service::begin", on(|service| service.begin("f", &[1; LONG], TIMEOUT)?.wait().map(drop)));
    let scratches = (0..4 * THREADS).map(|_| ground.client.buffer(MIB, true, None).expect("there is room"));
    let (service, scratches) = (ground.service.clone(), Mutex::new(scratches.collect::<Vec<_>>()));
    walk.add("Service::begin_from", move || {
        let Some(memory) = scratches.lock().expect("no panic").pop() else { return Ok(()) };
        service.begin_from("f", memory, LONG, TIMEOUT)?.wait().map(drop)
    });
    let of_client = |call: fn(&Client, &str) -> Result<(), Error>| {
        let (client, name) = (ground.client.clone(), ground.name.clone());
        move || call(&client, &name)
    };
    walk.add("Client::service", of_client(|client, name| client.service(name, Some(TIMEOUT)).map(drop)));
    walk.add(
        "Service::find",
        of_client(|client, name| Service::find(client, None, name, Some(TIMEOUT)).map(drop)),
    );
    const ASKED: LockOptions =
        LockOptions { ttl: plasmon::sync::DEFAULT_TTL, shared: false, public: false, timeout: Some(TIMEOUT) };
    walk.add("Client::lock", of_client(|client, _| client.lock("other", &ASKED).map(drop)));
    walk.add("Lock::new", of_client(|client, _| Lock::new(client, "third", &ASKED).map(drop)));
    let lock = ground.lock.clone();
    walk.add("Lock::take", move || lock.take(Some(TIMEOUT)).map(drop));
    let barrier = ground.barrier.clone();
    walk.add("Barrier::wait", move || barrier.wait(Some(TIMEOUT)).map(drop));
    let (client, service) = (ground.client.clone(), ground.service.clone());
    walk.add("Client::multicast", move || {
        let to = vec![service.clone(); 3];
        client.multicast(&to, "f", &[1; LONG], TIMEOUT)?.into_iter().try_for_each(|reply| reply.map(drop))
    });
    let serving = ground.client.serve("served here", &["f"], &ServeOptions::default()).expect("it serves");
    let calls = ground.client.service("served here", Some(PATIENCE)).expect("it is served");
    let called: Vec<_> = (0..4 * THREADS)
        .map(|_| {
            let begun = calls.begin("f", b"", PATIENCE).expect("it is sent");
            (serving.receive(Some(PATIENCE)).expect("it serves").expect("a call"), begun)
        })
        .collect();
    let (serving, called) = (Arc::new(serving), Mutex::new(called));
    let receiving = Arc::clone(&serving);
    walk.add("Server::receive", move || receiving.receive(Some(TIMEOUT)).map(drop));
    walk.add("Server::reply_and_receive", move || {
        let Some((call, _)) = called.lock().expect("no panic").pop() else { return Ok(()) };
        serving.reply_and_receive(call, b"", Some(TIMEOUT)).map(drop)
    });
}

/// Makes a call. Says how long it took, if it was late.
fn late(name: &str, call: &Call) -> Option<String> {
    let began = Instant::now();
    let ended = call();
    let took = began.elapsed();
    let promised = if name == "Client::get_existing" { TIMEOUT + QUESTION } else { TIMEOUT };
    (took > promised + SLACK).then(|| format!("{name} took {took:?}: {ended:?}"))
}

/// Makes all calls, some at a time, each in so many threads and twice in each. A call that was late is made
/// again when all others are over, alone, since machines are loaded. Returns those that were late each time.
fn made(walk: &Walk, threads: usize) -> Vec<String> {
    let mut again = Vec::new();
    for some in walk.0.chunks(TOGETHER) {
        let late: BTreeSet<usize> = thread::scope(|scope| {
            let each = (0..some.len()).flat_map(|at| (0..threads).map(move |_| at));
            let making: Vec<_> = each
                .map(|at| {
                    let (name, call) = &some[at];
                    (
                        at,
                        scope.spawn(move || {
                            [late(name, call), late(name, call)].into_iter().flatten().count()
                        }),
                    )
                })
                .collect();
            let made = making.into_iter().map(|(at, thread)| (at, thread.join().expect("no panic")));
            made.filter(|(_, late)| *late > 0).map(|(at, _)| at).collect()
        });
        again.extend(late.into_iter().map(|at| &some[at]));
    }
    again
        .into_iter()
        .filter_map(|(name, call)| (0..TRIES).map_while(|_| late(name, call)).nth(TRIES - 1))
        .collect()
}

/// Walks through all calls while a node is stopped.
fn walked(stopped: usize) {
    let cluster = Cluster::builder().nodes(2).memory("512MiB").args(&LONG_LEASE).start();
    let ground = Ground::new(&cluster);
    let mut walk = Walk(Vec::new());
    of_objects(&ground, &mut walk);
    of_regions(&ground, &mut walk);
    of_programs(&ground, &mut walk);
    let names: BTreeSet<_> = walk.0.iter().map(|(name, _)| *name).collect();
    let left_out: BTreeSet<_> = LEFT_OUT.iter().map(|(name, _)| *name).collect();
    let public = timed_calls();
    let missing: Vec<_> = public
        .iter()
        .filter(|name| !names.contains(name.as_str()) && !left_out.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "calls that take a time-out and have no row here: {missing:?}");
    assert!(names.iter().all(|name| public.contains(*name)), "a row is of no call: {names:?}");
    cluster.pause(stopped);
    for threads in [1, THREADS] {
        let late = made(&walk, threads);
        assert!(late.is_empty(), "{threads} threads at a time: {late:#?}");
    }
    cluster.resume(stopped);
}

#[test]
fn no_call_outlives_its_time_out_while_its_own_node_is_stopped() {
    walked(0);
}

#[test]
fn no_call_outlives_its_time_out_while_another_node_is_stopped() {
    walked(1);
}

/// Calls of the client that take a time-out, as its source has them.
fn timed_calls() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/plasmon/src/client")) {
        let source = fs::read_to_string(&file).expect("it is text");
        let (mut owner, mut signature) = (String::new(), None::<(String, String)>);
        for line in source.lines() {
            if let Some(rest) = line.strip_prefix("impl ") {
                owner =
                    rest.split(|char: char| !char.is_alphanumeric()).next().unwrap_or_default().to_owned();
            }
            if let Some(rest) = line.strip_prefix("    pub fn ") {
                let name = rest.split(['(', '<']).next().unwrap_or_default();
                signature = Some((format!("{owner}::{name}"), String::new()));
            }
            let Some((name, text)) = &mut signature else { continue };
            text.push_str(line);
            if line.contains('{') {
                if TYPES.contains(&owner.as_str()) && takes_time_out(&owner, text) {
                    found.insert(name.clone());
                }
                signature = None;
            }
        }
    }
    found
}

/// Whether a call takes a time-out: as an argument, among its options, or as all operations of a region do.
fn takes_time_out(owner: &str, signature: &str) -> bool {
    const ARGUMENTS: [&str; 6] = [
        "timeout: ",
        "room: Option<Duration>",
        "patience: Duration",
        "&CreateOptions",
        "&RegionOptions",
        "&LockOptions",
    ];
    ARGUMENTS.iter().any(|argument| signature.contains(argument))
        || owner == "Region" && signature.contains("Result<")
}

/// Source files of a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).expect("the source is there").map(|entry| entry.expect("an entry").path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let files = files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.chain(folders.iter().flat_map(|folder| self::files(folder))).collect()
}
