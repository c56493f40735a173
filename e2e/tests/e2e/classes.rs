//! Tests of classes of work: who may have which, that all work of every class is done, and that a node says
//! what it did for each.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use plasmon::{Class, Client, ErrorKind, RegionOptions};
use plasmon_e2e::{Cluster, PATIENCE, Pattern};
use rustix::process::geteuid;

use crate::commands::{failure, json};
use crate::support::{MIB, NOBODY, client_of, get, kind, put};

/// Number of objects that low work gets.
const OBJECTS: usize = 24;
/// Size in bytes of an object that low work gets.
const OBJECT_BYTES: usize = 8 * MIB;
/// Number of times that high work gets a small object meanwhile, at least.
const SMALL_GETS: u64 = 100;

#[test]
fn high_work_goes_on_beside_low_work_that_is_limited() {
    beside_each_other("priority");
}

#[test]
fn high_work_goes_on_beside_low_work_in_separate_lanes() {
    beside_each_other("separate");
}

#[test]
fn classes_need_no_setting() {
    beside_each_other("off");
}

/// Has low work bring large objects and a large region while high work brings small objects, and checks that
/// both are done whole, and what the node says of it.
fn beside_each_other(qos: &str) {
    let cluster = Cluster::builder().nodes(2).memory("512MiB").args(&["--qos", qos]).start();
    let holder = cluster.client(0);
    let large: Vec<_> = (0..OBJECTS).map(|at| put(&holder, Pattern(at as u64), OBJECT_BYTES)).collect();
    let region =
        holder.create_region("large", OBJECT_BYTES as u64, &RegionOptions::default()).expect("it is made");
    region.fill(0..region.len(), 7).expect("it is filled");
    let normal = cluster.client(1);
    let (high, low) = (with_class(&normal, Class::High), with_class(&normal, Class::Low));
    let (done, small) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) || small.load(Ordering::Relaxed) < SMALL_GETS {
                let id = put(&holder, Pattern(1), 1000);
                Pattern(1).check(get(&high, id).data());
                small.fetch_add(1, Ordering::Relaxed);
            }
        });
        for (at, id) in large.iter().enumerate() {
            Pattern(at as u64).check(get(&low, *id).data());
        }
        read_whole(&low);
        done.store(true, Ordering::Relaxed);
    });
    assert!(small.load(Ordering::Relaxed) >= SMALL_GETS);
    let classes = cluster.status(1).classes;
    assert_eq!(classes.qos, qos);
    let moved = (OBJECTS * OBJECT_BYTES) as u64;
    assert!(classes.low.received_bytes >= moved, "{classes:?}");
    assert!(classes.low.operations >= OBJECTS as u64, "{classes:?}");
    assert!(classes.high.operations >= SMALL_GETS, "{classes:?}");
    assert!(classes.high.received_bytes >= SMALL_GETS * 1000, "{classes:?}");
    assert!(classes.high.received_bytes < moved && classes.normal.received_bytes < moved, "{classes:?}");
    assert_eq!((classes.high.waits, classes.normal.waits), (0, 0), "{classes:?}");
}

fn read_whole(low: &Client) {
    let same = low.map_region("large", plasmon::region::Rights::READ, None).expect("it is there");
    let mut bytes = vec![0; OBJECT_BYTES];
    same.read(0, &mut bytes).expect("its home lives");
    assert!(bytes.iter().all(|byte| *byte == 7));
}

fn with_class(client: &Client, class: Class) -> Client {
    client.with_class(class).unwrap_or_else(|error| panic!("work of class {class}: {error}"))
}

#[test]
fn a_class_is_for_those_to_whom_the_node_gives_it() {
    let cluster = Cluster::builder().args(&["--classes", "low="]).start();
    let client = cluster.client(0);
    with_class(&client, Class::High);
    with_class(&client, Class::Normal);
    let refused = client.with_class(Class::Low).expect_err("nobody may have low work");
    assert!(
        refused.kind() == ErrorKind::NotAllowed && refused.to_string().contains("--classes"),
        "{refused}"
    );
    // A call has the class that it names, if its user may have that.
    let ping = |class: Class| class.during(|| client.ping(client.node(), PATIENCE));
    ping(Class::High).expect("it is this user's");
    assert_eq!(kind(ping(Class::Low)), ErrorKind::NotAllowed);
    client.ping(client.node(), PATIENCE).expect("the client goes on");
    let put = |class: &'static str| ["put", "/etc/passwd", "--priority", class];
    json(&cluster, 0, &put("high"));
    assert!(failure(&cluster, 0, &put("low")).1.contains("--classes"));
    let (code, said) = failure(&cluster, 0, &put("urgent"));
    assert!(code == 2 && said.contains("high, normal and low"), "{said}");
}

#[test]
fn high_work_is_the_own_users_and_roots_by_default() {
    if !geteuid().is_root() {
        eprintln!("Only root can be another user: not tested.");
        return;
    }
    let cluster = Cluster::builder().start();
    fs::set_permissions(cluster.socket(0), Permissions::from_mode(0o666)).expect("the socket is ours");
    let nobody = client_of(NOBODY, &cluster, 0);
    let classify = |class: Class| class.during(|| nobody.ping(nobody.node(), Duration::from_secs(10)));
    assert_eq!(kind(classify(Class::High)), ErrorKind::NotAllowed);
    classify(Class::Normal).expect("it is everybody's");
    classify(Class::Low).expect("it is everybody's");
}

#[test]
fn wrong_settings_of_classes_are_refused() {
    let cluster = Cluster::builder().start();
    for (args, said) in [
        (["--qos", "fair"], "separate"),
        (["--classes", "urgent=*"], "high, normal and low"),
        (["--classes", "high"], "CLASS=USERS"),
        (["--classes", "normal=root"], "everybody's"),
    ] {
        let (code, told) = failure(&cluster, 0, &[&["serve"], &args[..]].concat());
        assert!(code == 2 && told.contains(said), "{args:?}: {told}");
    }
}
