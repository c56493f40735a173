//! Tests of a rogue among those who use locks and barriers: it is not their home, and says that it is, or
//! that it holds what others hold. Regions refuse tokens that come too late from it as from anybody.
//!
//! Frames are written by hand, as `docs/design/sync.md` and `docs/design/region.md` describe them.

use std::thread;

use plasmon::region::{RegionOptions, Rights, region_id};
use plasmon::sync::{LockOptions, barrier_id, lock_id};
use plasmon::{Client, ErrorKind, Guard, ObjectId};
use plasmon_e2e::{Cluster, PATIENCE, eventually};

use super::frames::{self, Frame};
use super::region_frames::{self, desk_of, operation};
use super::regions::{ALL, refusal};
use super::{Rogue, cluster, heard, the_others_go_on};

/// Opcodes of frames about locks and barriers.
mod opcode {
    pub(super) const GRANTED: u8 = 241;
    pub(super) const REFUSED: u8 = 242;
    pub(super) const RELEASE: u8 = 243;
    pub(super) const RELEASED: u8 = 244;
    pub(super) const KEEP: u8 = 245;
    pub(super) const KEPT: u8 = 246;
    pub(super) const TOLD: u8 = 248;
    pub(super) const PASSED: u8 = 253;
    pub(super) const BROKEN: u8 = 254;
}

/// Numbers that a node may have drawn for the few calls of a test.
const NUMBERS: std::ops::RangeInclusive<u64> = 0..=32;

fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat()
}

/// A lock of user 0, and the number of a call or a guard.
fn numbered(lock: ObjectId, number: u64) -> Vec<u8> {
    [&lock.as_bytes()[..], &number.to_le_bytes()].concat()
}

/// A guard of a lock of user 0, with the largest token that there is.
fn row(name: &str, number: u64) -> Vec<u8> {
    let mut out = [&number.to_le_bytes()[..], &text(name.as_bytes())].concat();
    out.extend([1, 0, 0, 0, 0, 0]);
    for word in [u32::MAX, 1, 0] {
        out.extend(word.to_le_bytes());
    }
    out.extend(u128::MAX.to_le_bytes());
    out.extend(0_u64.to_le_bytes());
    out
}

fn granted(number: u64) -> Vec<u8> {
    let mut out = [number.to_le_bytes(), u64::MAX.to_le_bytes()].concat();
    out.extend(u128::MAX.to_le_bytes());
    out.push(0);
    out
}

fn refused(number: u64) -> Vec<u8> {
    let kind = ErrorKind::NotAllowed as u16;
    [&number.to_le_bytes()[..], &kind.to_le_bytes(), &text(b"as it likes"), &[0; 2]].concat()
}

impl Rogue {
    /// Says something to a node that is no answer.
    fn utter(&mut self, to: &str, opcode: u8, body: Vec<u8>) {
        let frame = self.frame(to, opcode, body);
        self.send(to, &frame);
    }

    /// Tells a node that a lock is granted, and that it is refused, for each number that it may have drawn.
    fn decide(&mut self, to: &str) {
        for number in NUMBERS {
            self.utter(to, opcode::GRANTED, granted(number));
            self.utter(to, opcode::REFUSED, refused(number));
        }
    }
}

/// Takes a lock that will be free soon.
fn take(client: &Client, name: &str) -> Guard {
    let options = LockOptions { timeout: Some(PATIENCE), ..LockOptions::default() };
    client.lock(name, &options).expect("it is free in time")
}

/// Number of calls of a node's clients that wait for locks.
fn waiting(cluster: &Cluster, node: usize) -> u64 {
    cluster.status(node).locks.waiting
}

#[test]
fn who_is_not_the_home_of_a_lock_grants_refuses_and_ends_nothing() {
    let (cluster, mut rogue) = cluster();
    let (home, other) = (cluster.status(0).node, cluster.status(1).node);
    let lock = lock_id(Some(0), "held");
    let holder = take(&cluster.client(0), "held");
    let client = cluster.client(1);
    thread::scope(|threads| {
        let waiter = threads.spawn(|| take(&client, "held"));
        eventually("it waits", || waiting(&cluster, 1) == 1);
        for node in [&home, &other] {
            rogue.decide(node);
            heard(&mut rogue, node);
        }
        // The rogue ends nothing that others hold or wait for, at their home.
        for number in NUMBERS {
            let body = [numbered(lock, number), vec![1, 1]].concat();
            let answer = rogue.ask_as(0, &home, opcode::RELEASE, body);
            assert_eq!(answer.opcode, opcode::RELEASED, "a guard that it has not is over");
        }
        assert_eq!((waiting(&cluster, 1), waiter.is_finished()), (1, false));
        assert!(holder.is_valid());
        // The rogue says that it holds the lock, and waits for it: the home knows nothing of that.
        let now = u64::MAX.to_le_bytes();
        let guards = [&1_u32.to_le_bytes()[..], &row("held", 7)].concat();
        let waits = [&1_u32.to_le_bytes()[..], &numbered(lock, 8)].concat();
        let kept = rogue.ask_as(0, &home, opcode::KEEP, [&now[..], &guards, &waits].concat());
        let unknown = [&2_u32.to_le_bytes()[..], &7_u64.to_le_bytes(), &8_u64.to_le_bytes()].concat();
        assert_eq!((kept.opcode, kept.body), (opcode::KEPT, unknown));
        // Nobody has asked what it holds.
        rogue.utter(&home, opcode::TOLD, [guards, vec![0; 5], vec![0]].concat());
        heard(&mut rogue, &home);
        holder.unlock().expect("it was held to the end");
        let next = waiter.join().expect("no panic");
        assert!(next.is_valid() && !next.abandoned() && next.token() > holder.token());
        assert_ne!(next.token(), u128::MAX);
    });
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn who_is_not_the_home_of_a_barrier_lets_nobody_pass_and_breaks_nothing() {
    let (cluster, mut rogue) = cluster();
    let id = barrier_id(Some(0), "two");
    let barriers = [0, 1].map(|node| cluster.client(node).barrier("two", 2).expect("it is a name"));
    let [near, far] = &barriers;
    thread::scope(|threads| {
        let waiter = threads.spawn(|| far.wait(Some(PATIENCE)));
        eventually("it waits", || cluster.status(1).locks.arrived == 1);
        let node = cluster.status(1).node;
        for life in NUMBERS.chain([u64::MAX]) {
            for generation in [0, 1, u64::MAX] {
                let words = [life.to_le_bytes(), generation.to_le_bytes()].concat();
                let places = [0_u32.to_le_bytes(), u32::MAX.to_le_bytes()].concat();
                rogue.utter(&node, opcode::PASSED, [&id.as_bytes()[..], &words, &places].concat());
            }
            let why = text(b"as it likes");
            rogue.utter(&node, opcode::BROKEN, [&id.as_bytes()[..], &life.to_le_bytes(), &why].concat());
        }
        heard(&mut rogue, &node);
        assert_eq!((cluster.status(1).locks.arrived, waiter.is_finished()), (1, false));
        let mut places = [near.wait(Some(PATIENCE)), waiter.join().expect("no panic")];
        places.sort_by_key(|place| place.as_ref().ok().copied());
        assert_eq!(places, [Ok(0), Ok(1)]);
    });
    drop(barriers);
    the_others_go_on(&cluster, &mut rogue);
}

#[test]
fn a_late_token_is_refused_whoever_shows_it() {
    let (cluster, mut rogue) = cluster();
    let name = rogue.foreign_name();
    let near =
        cluster.client(0).create_region(&name, 4096, &RegionOptions::default()).expect("there is room");
    let client = cluster.client(1);
    let guard = take(&client, &name);
    let far = client.map_region(&name, Rights::ALL, None).expect("it is there");
    far.write_fenced(0, b"honest", &guard).expect("it holds the lock");
    let home = near.home().to_string();
    let map = region_frames::body::map(region_id(&name), ALL);
    let desk = desk_of(&rogue.ask_as(0, &home, region_frames::opcode::MAP, map).body);
    let mut write = |lock: ObjectId, token: u128| -> Frame {
        let fence = [&[1][..], lock.as_bytes(), &token.to_le_bytes()].concat();
        let body = region_frames::body::about(desk, &[&operation::write(0), &text(b"rogue!"), &fence]);
        rogue.ask_as(0, &home, region_frames::opcode::ACCESS, body)
    };
    let lock = lock_id(Some(0), &name);
    for token in [0, 1, guard.token() - 1] {
        let answer = write(lock, token);
        assert_eq!(answer.opcode, frames::opcode::REFUSED, "token {token}");
        assert_eq!(refusal(&answer), Some(ErrorKind::Fenced), "token {token}");
    }
    // The rogue may show as many other locks as a region knows, and no more.
    let answers: Vec<_> = (0..100).map(|_| write(ObjectId::random(), 1)).collect();
    let full = answers.iter().filter(|answer| refusal(answer) == Some(ErrorKind::Full)).count();
    assert_eq!(full, 100 - 63, "one of 64 locks is the honest one");
    far.write_fenced(0, b"honest", &guard).expect("its guard is still the last");
    let mut found = [0; 6];
    near.read(0, &mut found).expect("read");
    assert_eq!(&found, b"honest");
    let leave = rogue.frame(&home, region_frames::opcode::LEAVE, region_frames::body::leave(desk, 1));
    rogue.send(&home, &leave);
    rogue.letting_go(|| near.free().expect("free"));
    the_others_go_on(&cluster, &mut rogue);
}
