//! Failures of peers, networks and callers: every one is reported, and harms nothing else.

use std::any::Any;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use plasmon_fabric::{Access, FabricError, OpKind, Provider, RemoteRegion};

use super::Case;
use super::remote::{LEN, Remote, SEED};
use super::support::{Driver, Node, assert_same, hang, pattern, reads_to_the_end, source, whole};

pub(crate) const CASES: &[Case] = &[
    ("fails_when_the_peer_is_killed", peer_is_killed),
    ("fails_when_the_peer_hangs", peer_hangs),
    ("fails_when_nobody_listens", nobody_listens),
    ("fails_without_a_route", no_route),
    ("fails_with_a_wrong_key", wrong_key),
    ("fails_past_the_end", past_the_end),
    ("fails_without_permission", without_permission),
    ("fails_after_the_region_is_dropped", region_is_dropped),
    ("fails_with_a_stale_peer", stale_peer),
    ("fails_with_a_bad_address", bad_address),
    ("fails_with_a_foreign_slice", foreign_slice),
];

/// Cases that are about libfabric's own look-up.
pub(crate) const OF_LIBFABRIC: &[Case] = &[("fails_with_an_unknown_provider", unknown_provider)];

/// A peer dies with reads, writes and messages under way. The operations may fail or stay, but polling goes
/// on, `disconnect` ends all operations, every buffer comes back, and a new peer can be talked to.
fn peer_is_killed(provider: &Provider) {
    for round in 0..4 {
        let mut remote = Remote::start(provider);
        let node = Node::new(provider);
        let mut driver = Driver::new(&[&node]);
        let bulk = node.bulk.connect(&remote.bulk).expect("connect");
        let small = node.small.connect(&remote.small).expect("connect");
        let target = node.memory(16 << 20, Access::LOCAL);
        // Messages without a meaning: the peer only has to receive them.
        let note = node.holding(&node.small.address());
        node.small.receive(node.empty(8)).expect("receive");

        let operations = || {
            let mut ops = Vec::new();
            for chunk in 0..16 {
                let into = target.slice(chunk << 20, 1 << 20).expect("within");
                ops.push(node.bulk.read(bulk, into, remote.region, 0));
                let from = target.slice(chunk << 20, 1 << 10).expect("within");
                ops.push(node.bulk.write(bulk, from, remote.region, 1 << 20, None));
                ops.push(node.small.send(small, note.clone()));
            }
            ops
        };
        let first = operations();
        if round > 0 {
            driver.succeed(&first[..1]);
        }
        let mut ops = first;
        ops.extend(operations());
        remote.kill();
        driver.linger(Duration::from_millis(300));
        // New operations towards the dead peer do no harm either.
        let region = remote.region;
        ops.push(node.bulk.read(bulk, whole(&target, 1000), region, 0));
        ops.push(node.small.send(small, note.clone()));
        driver.linger(Duration::from_millis(100));
        for op in &ops {
            if let Some(Err(error)) = op.result() {
                let expected =
                    matches!(error, FabricError::PeerGone { .. } | FabricError::Unreachable { .. });
                assert!(expected, "{error:?}");
            }
        }
        node.bulk.disconnect(bulk);
        node.small.disconnect(small);
        let unresolved = ops.iter().filter(|op| op.result().is_none()).count();
        assert_eq!(unresolved, 0, "operations outlive the disconnect");
        assert_eq!(node.domain.stats().queued, 0);

        // Another peer, while the dead one's buffers come back.
        let successor = Remote::start(provider);
        let bulk = node.bulk.connect(&successor.bulk).expect("connect");
        let into = node.empty(LEN);
        let op = node.bulk.read(bulk, into.clone(), successor.region, 0);
        driver.succeed(&[op]);
        assert_same(&into.to_vec(), &pattern(LEN, SEED), "what was read");
        driver.until("the buffers of the dead", |_| {
            let receives = 1;
            (node.domain.stats().in_flight <= receives).then_some(())
        });
        successor.finish();
    }
}

/// A peer is alive but makes no progress, from different moments on. `disconnect` ends all operations towards
/// the peer, and gives the buffers back without the peer's help if the provider is able to.
fn peer_hangs(provider: &Provider) {
    for steps in [0, 1, 2, 3, 4, 6, 8] {
        hang(provider, false);
        let (here, there) = (Node::new(provider), Node::new(provider));
        let memory = there.memory(8 << 20, Access::REMOTE_READ_WRITE);
        let region = memory.remote();
        let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
        let mut both = Driver::new(&[&here, &there]);
        both.succeed(&[here.bulk.read(peer, here.empty(8 << 20), region, 0)]);

        let target = here.memory(8 << 20, Access::LOCAL);
        let owner: Rc<dyn Any> = Rc::new(());
        let mut ops = Vec::new();
        for _ in 0..20 {
            let slice = whole(&target, 8 << 20).with_owner(Rc::clone(&owner));
            ops.push(here.bulk.read(peer, slice.clone(), region, 0));
            ops.push(here.bulk.write(peer, slice.clone(), region, 0, None));
            let small = slice.slice(0, here.bulk.eager_size()).expect("within");
            ops.push(here.bulk.send(peer, small));
        }
        for _ in 0..steps {
            both.step();
        }
        // From now on, only this side moves.
        hang(provider, true);
        let mut alone = Driver::new(&[&here]);
        alone.linger(Duration::from_millis(50));
        assert!(ops.iter().any(|op| op.result().is_none()), "the peer does not hang");
        here.bulk.disconnect(peer);
        assert!(ops.iter().all(|op| op.result().is_some()));
        drop(ops);
        alone.linger(Duration::from_millis(50));
        let mut driver = if reads_to_the_end(provider) { both } else { alone };
        driver.until("all buffers", |_| (Rc::strong_count(&owner) == 1).then_some(()));
        assert_eq!(here.domain.stats().in_flight, 0);
    }
}

/// A port has no listener. An operation towards the port fails or waits, without a storm of attempts, and
/// `disconnect` ends it.
fn nobody_listens(provider: &Provider) {
    let node = Node::new(provider);
    let mut driver = Driver::new(&[&node]);
    let dead = {
        let other = Node::new(provider);
        other.small.address()
    };
    let peer = node.small.connect(&dead).expect("connect");
    let op = node.small.send(peer, node.holding(b"anyone?"));
    let behind = node.small.send(peer, node.holding(b"hello?"));
    driver.linger(Duration::from_millis(200));
    let before = node.domain.stats().retries;
    driver.linger(Duration::from_millis(500));
    let attempts = node.domain.stats().retries - before;
    assert!(attempts <= 40, "{attempts} attempts in half a second");
    match op.result() {
        None => {
            assert_eq!(node.domain.stats().queued, 2);
            assert!(node.domain.sleep_limit().is_some());
        }
        Some(result) => {
            let error = result.expect_err("nobody is there");
            assert!(matches!(error, FabricError::Unreachable { .. }), "{error:?}");
        }
    }
    node.small.disconnect(peer);
    for op in [op, behind] {
        let error = driver.outcome(&op).expect_err("nobody is there");
        assert!(matches!(error, FabricError::PeerGone { .. } | FabricError::Unreachable { .. }), "{error:?}");
    }
    assert_eq!(node.domain.stats().queued, 0);
    assert_eq!(node.domain.sleep_limit(), None);
}

/// No connection to an address can even be begun. Operations towards the address fail or wait, and both lanes
/// can be left and tried again without harm.
fn no_route(provider: &Provider) {
    let node = Node::new(provider);
    let mut driver = Driver::new(&[&node]);
    let mut nowhere = node.small.address();
    let host = if nowhere.len() >= 24 { 8..24 } else { 4..8 };
    // Broadcast, or multicast: neither takes connections.
    nowhere[host].fill(255);
    for _ in 0..3 {
        let Ok(peer) = node.small.connect(&nowhere) else { return };
        let ops = [0, 1].map(|_| node.small.send(peer, node.holding(b"anywhere?")));
        driver.linger(Duration::from_millis(20));
        node.small.disconnect(peer);
        for op in ops {
            let error = driver.outcome(&op).expect_err("there is no way");
            assert!(
                matches!(error, FabricError::PeerGone { .. } | FabricError::Unreachable { .. }),
                "{error:?}"
            );
        }
    }
    assert_eq!(node.domain.stats().queued, 0);
}

fn wrong_key(provider: &Provider) {
    refused(provider, Access::REMOTE_READ, |region| RemoteRegion { key: !region.key, ..region });
}

/// A forged length passes the check of this side, and the peer's side must refuse it.
fn past_the_end(provider: &Provider) {
    let (here, there) = (Node::new(provider), Node::new(provider));
    let region = there.memory(1 << 16, Access::REMOTE_READ).remote();
    let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
    for offset in [1, 1 << 16, u64::MAX, u64::MAX - (1 << 16) + 1] {
        let error = here.bulk.read(peer, here.empty(1 << 16), region, offset).result();
        let expected =
            FabricError::OutOfBounds { operation: OpKind::Read, offset, len: 1 << 16, limit: 1 << 16 };
        assert_eq!(error, Some(Err(expected)));
    }
    assert_eq!(here.domain.stats().in_flight, 0);
    // The whole pattern is 64 KiB; the read below asks for more.
    refused(provider, Access::REMOTE_READ, |region| RemoteRegion { len: region.len * 2, ..region });
}

fn without_permission(provider: &Provider) {
    refused(provider, Access::REMOTE_WRITE, |region| region);
    refused(provider, Access::LOCAL, |region| region);
}

/// Reads a peer's region after `forge`; the peer must refuse, and both sides must go on working.
fn refused(provider: &Provider, access: Access, forge: impl Fn(RemoteRegion) -> RemoteRegion) {
    let (here, there, third) = (Node::new(provider), Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there, &third]);
    let guarded = there.memory(1 << 16, access);
    whole(&guarded, 1 << 16).copy_from_slice(&pattern(1 << 16, 1)).expect("fits");
    let open = there.memory(1 << 16, Access::REMOTE_READ);
    whole(&open, 1 << 16).copy_from_slice(&pattern(1 << 16, 2)).expect("fits");
    let elsewhere = third.memory(1 << 16, Access::REMOTE_READ);
    whole(&elsewhere, 1 << 16).copy_from_slice(&pattern(1 << 16, 3)).expect("fits");

    let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
    let other = here.bulk.connect(&third.bulk.address()).expect("connect");
    let forged = forge(guarded.remote());
    let into = here.empty(usize::try_from(forged.len).expect("small"));
    let error = {
        let op = here.bulk.read(peer, into.clone(), forged, 0);
        driver.outcome(&op).expect_err("the peer should refuse")
    };
    assert!(
        matches!(error, FabricError::BadKey { .. } | FabricError::PeerGone { .. }),
        "not recognisable: {error:?}"
    );
    assert!(into.to_vec().iter().all(|byte| *byte == 0), "bytes came through all the same");

    // Another peer is not affected; the same peer works again, after a try or two on what was its connection.
    let into = here.empty(1 << 16);
    let op = here.bulk.read(other, into.clone(), elsewhere.remote(), 0);
    driver.succeed(&[op]);
    assert_same(&into.to_vec(), &pattern(1 << 16, 3), "another peer's memory");
    let into = here.empty(1 << 16);
    let mut tries = 0;
    while let Err(error) = {
        let op = here.bulk.read(peer, into.clone(), open.remote(), 0);
        driver.outcome(&op)
    } {
        tries += 1;
        assert!(tries < 10, "the peer cannot be read from any more: {error}");
    }
    assert_same(&into.to_vec(), &pattern(1 << 16, 2), "the same peer's memory");
}

fn region_is_dropped(provider: &Provider) {
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    let region = there.memory(1 << 16, Access::REMOTE_READ);
    let remote = region.remote();
    let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
    driver.succeed(&[here.bulk.read(peer, here.empty(1 << 16), remote, 0)]);
    drop(region);
    assert_eq!(there.domain.stats().regions, 0);
    let op = here.bulk.read(peer, here.empty(1 << 16), remote, 0);
    let error = driver.outcome(&op).expect_err("the key should be dead");
    assert!(
        matches!(error, FabricError::BadKey { .. } | FabricError::PeerGone { .. }),
        "not recognisable: {error:?}"
    );
}

/// The number of a disconnected peer may be used again. The old name then does not reach the new peer.
fn stale_peer(provider: &Provider) {
    let (here, there, third) = (Node::new(provider), Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there, &third]);
    third.small.receive(third.empty(64)).expect("receive");
    let stale = here.small.connect(&there.small.address()).expect("connect");
    here.small.disconnect(stale);
    here.small.disconnect(stale);
    let mut seen = HashSet::from([stale]);
    for _ in 0..100 {
        let peer = here.small.connect(&third.small.address()).expect("connect");
        assert!(seen.insert(peer), "a peer's value came back");
        here.small.disconnect(peer);
    }
    let fresh = here.small.connect(&third.small.address()).expect("connect");
    let error = here.small.send(stale, here.holding(b"stale")).result();
    assert!(matches!(error, Some(Err(FabricError::PeerGone { .. }))), "{error:?}");
    // A peer belongs to one endpoint.
    let error = here.bulk.send(fresh, here.holding(b"wrong lane")).result();
    assert!(matches!(error, Some(Err(FabricError::PeerGone { .. }))), "{error:?}");
    let op = here.small.send(fresh, here.holding(b"fresh"));
    assert_same(&driver.message().2, b"fresh", "message");
    driver.succeed(&[op]);
}

fn bad_address(provider: &Provider) {
    let node = Node::new(provider);
    let mut address = node.small.address();
    address.push(0);
    let mut bad = vec![Vec::new(), vec![0; 3], vec![0xff; 5000], address.clone()];
    if provider.name().ends_with("ofi_rxm") || provider.memory_network().is_some() {
        address.pop();
        bad.push(vec![0; address.len()]);
        bad.push(vec![0xff; address.len()]);
    }
    for bytes in bad {
        let error = node.small.connect(&bytes).expect_err("not an address");
        assert!(matches!(error, FabricError::InvalidAddress { .. }), "{error:?}");
    }
}

fn unknown_provider(provider: &Provider) {
    let error = plasmon_fabric::choose(Some("carrier-pigeon"), Some(&source()));
    let text = error.expect_err("no such provider").to_string();
    assert!(text.contains("carrier-pigeon"), "{text}");
    assert!(text.contains(provider.name()), "{text}");
    // An address of another machine cannot be listened on.
    let error = plasmon_fabric::choose(Some(provider.name()), Some("192.0.2.1"));
    let text = error.expect_err("not our address").to_string();
    assert!(text.contains("192.0.2.1"), "{text}");
}

fn foreign_slice(provider: &Provider) {
    let (here, there) = (Node::new(provider), Node::new(provider));
    let peer = here.small.connect(&there.small.address()).expect("connect");
    let result = here.small.send(peer, there.holding(b"not mine")).result();
    assert!(matches!(result, Some(Err(FabricError::Provider { .. }))), "{result:?}");
    here.small.receive(there.empty(8)).expect_err("not mine either");
}
