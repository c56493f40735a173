//! Tests of calls, locks and barriers between two guests on one cable, a node in each.
//!
//! The same test runs in both, as one half of it: see [`half`](super::half).

use plasmon::region::{RegionOptions, Rights};
use plasmon::service::ServeOptions;
use plasmon::sync::{Lock, LockOptions};
use plasmon_e2e::{PATIENCE, Pattern, eventually, until};

use super::half::Half;
use super::{VERBS, packets};
use crate::support::MIB;

/// Sizes in bytes of calls and of their replies, and whether one-sided reads bring them. What is shorter
/// comes with a message.
const BODIES: [(usize, bool); 4] = [(64, false), (4096, false), (64 << 10, true), (4 * MIB, true)];

impl Half {
    /// Number of one-sided reads that this guest's node has made.
    fn reads(&self) -> u64 {
        self.client.status().expect("the node answers").fabric.reads
    }

    /// Does something to which a body of so many bytes comes, and checks by which way it comes.
    fn brought<T>(&self, len: usize, one_sided: bool, act: impl FnOnce() -> T) -> T {
        let before = self.reads();
        let done = act();
        let reads = self.reads() - before;
        assert_eq!(reads > 0, one_sided, "{reads} reads for {len} bytes");
        done
    }
}

#[test]
#[ignore = "needs two guests: make test-rdma"]
fn bodies_of_calls_cross_the_cable_in_messages_or_by_reads() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let half = Half::start(folder.path(), &[]);
    assert_eq!(half.client.status().expect("the node answers").fabric.provider, VERBS);
    let before = packets();
    if half.guest == 0 {
        // A node that is asked may be late: guests are emulated.
        let service =
            until("the other guest serves", || half.client.service("echo", Some(2 * PATIENCE)).ok());
        // The reads by which the nodes find each other are over after a first call.
        service.call("echo", b"", 2 * PATIENCE).expect("the function answers");
        for (len, one_sided) in BODIES {
            let data = Pattern(len as u64).bytes(len);
            let call = || service.call("echo", &data, 2 * PATIENCE);
            let reply = half.brought(len, one_sided, call);
            assert!(*reply.expect("the function answers") == *data, "a reply of {len} other bytes");
        }
        assert_eq!(half.client.status().expect("the node answers").functions.begun, 1 + BODIES.len() as u64);
    } else {
        let server = half.client.serve("echo", &["echo"], &ServeOptions::default()).expect("it serves");
        let receive = || server.receive(Some(2 * PATIENCE)).expect("it serves").expect("the other calls");
        receive().reply(b"").expect("the caller waits");
        for (len, one_sided) in BODIES {
            let call = half.brought(len, one_sided, receive);
            assert_eq!(call.data().len(), len);
            Pattern(len as u64).check(call.data());
            let data = call.data().to_vec();
            call.reply(&data).expect("the caller waits");
        }
        // A long reply has been taken when it has returned: the server may end.
        drop(server);
        let counts = half.client.status().expect("the node answers").functions;
        assert_eq!((counts.served, counts.failed), (1 + BODIES.len() as u64, 0));
    }
    assert!(packets() - before >= (4 * MIB / 4096) as u64, "too few packets for that many bytes");
    half.part();
}

#[test]
#[ignore = "needs two guests: make test-rdma"]
fn a_lock_and_a_barrier_hold_over_the_cable() {
    const TIMES: u64 = 20;
    const ROUNDS: usize = 5;
    let folder = tempfile::tempdir().expect("a folder can be made");
    let half = Half::start(folder.path(), &[]);
    if half.guest == 0 {
        drop(half.client.create_region("count", 8, &RegionOptions::default()).expect("there is room"));
    }
    let region = half.client.map_region("count", Rights::READ_WRITE, Some(2 * PATIENCE));
    let region = region.expect("the first guest makes it");
    let count = || {
        let mut word = [0; 8];
        region.read(0, &mut word).expect("its home lives");
        u64::from_le_bytes(word)
    };
    let lock = Lock::new(&half.client, "count", &LockOptions::default()).expect("it is a name");
    let mut last = 0;
    for _ in 0..TIMES {
        let guard = lock.take(Some(PATIENCE)).expect("each lets go of it");
        assert!(guard.is_valid() && guard.token() > last, "a guard with {} after {last}", guard.token());
        last = guard.token();
        region.write_fenced(0, b"", &guard).expect("nobody has it later");
        region.write_fenced(0, &(count() + 1).to_le_bytes(), &guard).expect("nobody has it later");
        guard.unlock().expect("it was held");
    }
    let barrier = half.client.barrier("both", 2).expect("it is a name");
    let wait = |_| barrier.wait(Some(2 * PATIENCE)).expect("both arrive");
    let places: Vec<u64> = (0..ROUNDS).map(wait).collect();
    assert_eq!(count(), 2 * TIMES, "both have counted before one has passed");
    half.tell("places", &places.iter().map(|place| *place as u8).collect::<Vec<_>>());
    let others = half.hear("places");
    assert!(places.iter().zip(others.data()).all(|(own, other)| own + u64::from(*other) == 1), "{places:?}");
    // Both parties have passed the last round: closing the barrier now breaks nothing.
    drop(barrier);
    eventually("nothing is held", || {
        let locks = half.client.status().expect("the node answers").locks;
        (locks.held, locks.arrived, locks.lost) == (0, 0, 0)
    });
    half.part();
}
