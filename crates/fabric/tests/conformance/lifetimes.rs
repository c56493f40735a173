//! Lifetimes of buffers, owners, memory and handles, whichever of them is dropped first.

use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use plasmon_fabric::{Access, FabricError, Provider};

use super::Case;
use super::support::{Driver, Node, Pages, assert_same, pattern, reads_to_the_end, whole};

pub(crate) const CASES: &[Case] = &[
    ("lifetimes_of_dropped_futures", dropped_futures),
    ("lifetimes_of_a_closed_endpoint", closed_endpoint),
    ("lifetimes_of_a_target", target_of_writes),
    ("lifetimes_of_memory", memory),
    ("lifetimes_of_retired_memory", retired_memory),
    ("lifetimes_in_any_order", any_order),
    ("lifetimes_of_owners_that_call_back", owners_that_call_back),
    ("wakes_tasks", wakes_tasks),
];

/// Futures are dropped at once. The owners of their buffers stay until the data is there.
fn dropped_futures(provider: &Provider) {
    const COUNT: usize = 50;
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    let source = there.memory(1 << 20, Access::REMOTE_READ);
    let wanted = pattern(1 << 20, 1);
    whole(&source, 1 << 20).copy_from_slice(&wanted).expect("fits");
    let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
    let target = here.memory(COUNT << 20, Access::LOCAL);
    let owners: Vec<Weak<dyn Any>> = (0..COUNT)
        .map(|index| {
            let owner: Rc<dyn Any> = Rc::new(index);
            let into = target.slice(index << 20, 1 << 20).expect("within");
            let into = into.with_owner(Rc::clone(&owner));
            drop(here.bulk.read(peer, into, source.remote(), 0));
            Rc::downgrade(&owner)
        })
        .collect();
    assert!(owners.iter().all(|owner| owner.strong_count() == 1), "an owner is gone too early");
    driver.until("all owners", |_| owners.iter().all(|owner| owner.strong_count() == 0).then_some(()));
    for index in 0..COUNT {
        let found = target.slice(index << 20, 1 << 20).expect("within").to_vec();
        assert_same(&found, &wanted, "what was read");
    }
    assert_eq!(here.domain.stats().in_flight, 0);
}

/// An endpoint is dropped in the middle of reads, writes, sends and receives. Its operations end, its buffers
/// are free, and memory that is unmapped afterwards is not touched.
fn closed_endpoint(provider: &Provider) {
    for polls in [0, 1, 10, 100, 1000] {
        let (here, there) = (Node::new(provider), Node::new(provider));
        let region = there.memory(1 << 20, Access::REMOTE_READ_WRITE);
        let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
        there.bulk.receive(there.empty(1 << 20)).expect("receive");
        let pages = Pages::new(8 << 20);
        let mapping = Rc::downgrade(&pages);
        // On verbs, what is sent in one piece of this length has to be readable.
        let access = if provider.is_rdma() { Access::REMOTE_READ } else { Access::LOCAL };
        let target = here.domain.register(pages, access).expect("register");
        here.bulk.receive(whole(&target, 64)).expect("receive");
        let immediate = provider.carries_immediates().then_some(1);
        let mut ops = Vec::new();
        for chunk in 0..8 {
            let slice = target.slice(chunk << 20, 1 << 20).expect("within");
            ops.push(here.bulk.read(peer, slice.clone(), region.remote(), 0));
            ops.push(here.bulk.write(peer, slice.clone(), region.remote(), 0, immediate));
            ops.push(here.bulk.send(peer, slice));
        }
        drop(target);
        let mut driver = Driver::new(&[&here, &there]);
        for _ in 0..polls {
            driver.step();
        }
        driver.events.clear();
        let Node { domain, small, bulk } = here;
        drop(bulk);
        for op in &ops {
            match op.result().expect("an operation outlives its endpoint") {
                Ok(()) | Err(FabricError::Closed { .. }) => {}
                Err(other) => panic!("unexpected: {other:?}"),
            }
        }
        if reads_to_the_end(provider) {
            let mut driver = Driver::of(&[&domain, &there.domain]);
            driver.until("the reads", |_| mapping.upgrade().is_none().then_some(()));
        }
        assert!(mapping.upgrade().is_none(), "the buffers are still held");
        assert_eq!(domain.stats().in_flight, 0);
        // The other lane goes on, and late completions of the closed one confuse nobody.
        let here = Node { bulk: domain.endpoint().expect("a new lane"), domain, small };
        let mut driver = Driver::new(&[&here, &there]);
        for (lane, address) in [(&here.small, there.small.address()), (&here.bulk, there.bulk.address())] {
            let peer = lane.connect(&address).expect("connect");
            driver.succeed(&[lane.read(peer, here.empty(1 << 20), region.remote(), 0)]);
        }
    }
}

/// An endpoint is dropped while a peer writes through it. The writer gets an error, and nothing is written
/// after the memory is gone.
fn target_of_writes(provider: &Provider) {
    let mut immediates = vec![None];
    immediates.extend(provider.carries_immediates().then_some(Some(7)));
    for immediate in immediates {
        for steps in [0, 1, 2, 3, 5, 8] {
            let (here, there) = (Node::new(provider), Node::new(provider));
            let region = here.memory(32 << 20, Access::REMOTE_WRITE);
            let remote = region.remote();
            let peer = there.bulk.connect(&here.bulk.address()).expect("connect");
            let mut driver = Driver::new(&[&here, &there]);
            driver.succeed(&[there.bulk.write(peer, there.empty(1), remote, 0, None)]);
            let from = there.holding(&pattern(32 << 20, 1));
            let op = there.bulk.write(peer, from, remote, 0, immediate);
            for _ in 0..steps {
                driver.step();
            }
            let finished = op.result().is_some();
            let Node { domain, small, bulk } = here;
            drop((bulk, region));
            let mut driver = Driver::of(&[&domain, &there.domain]);
            driver.linger(Duration::from_millis(20));
            assert_eq!(domain.stats().retired_bytes, if provider.is_rdma() { 0 } else { 32 << 20 });
            drop(small);
            assert_eq!(domain.stats().retired_bytes, 0);
            there.bulk.disconnect(peer);
            if !finished {
                driver.outcome(&op).expect_err("the target is gone");
            }
        }
    }
}

/// Region, slice and domain keep memory as documented, and release it when they are dropped.
fn memory(provider: &Provider) {
    let node = Node::new(provider);
    let pages = Pages::new(1 << 16);
    let mapping = Rc::downgrade(&pages);
    let region = node.domain.register(pages, Access::LOCAL).expect("register");
    let stats = node.domain.stats();
    assert_eq!((stats.regions, stats.registered_bytes), (1, 1 << 16));
    let slice = region.slice(100, 10).expect("within");
    drop(region);
    assert!(mapping.upgrade().is_some(), "a slice does not keep its memory");
    slice.copy_from_slice(b"0123456789").expect("fits");
    assert_same(&slice.slice(3, 4).expect("within").to_vec(), b"3456", "a piece of a slice");
    slice.slice(3, 8).expect_err("past the slice, though within the region");
    slice.copy_from_slice(&[0; 11]).expect_err("past the slice");
    slice.copy_to_slice(&mut [0; 11]).expect_err("past the slice");
    drop(slice);
    assert!(mapping.upgrade().is_none(), "the memory is still held");
    let stats = node.domain.stats();
    assert_eq!((stats.regions, stats.registered_bytes, stats.retired_bytes), (0, 0, 0));
}

/// With a provider that serves peers in software, memory that peers could reach outlives the region until the
/// endpoints that could serve the peers are closed.
fn retired_memory(provider: &Provider) {
    let Node { domain, small, bulk } = Node::new(provider);
    let pages = Pages::new(1 << 16);
    let mapping = Rc::downgrade(&pages);
    drop(domain.register(pages, Access::REMOTE_WRITE).expect("register"));
    let kept = !provider.is_rdma();
    assert_eq!(domain.stats().retired_bytes, if kept { 1 << 16 } else { 0 });
    assert_eq!(mapping.upgrade().is_some(), kept);
    let newer = domain.endpoint().expect("endpoint");
    drop(small);
    assert_eq!(mapping.upgrade().is_some(), kept);
    drop(bulk);
    assert!(mapping.upgrade().is_none(), "only an endpoint that never knew the region is left");
    drop(newer);
}

/// Regions and slices may outlive endpoints and the last handle of the domain.
fn any_order(provider: &Provider) {
    let node = Node::new(provider);
    let pages = Pages::new(1 << 16);
    let mapping = Rc::downgrade(&pages);
    let region = node.domain.register(pages, Access::REMOTE_READ_WRITE).expect("register");
    let slice = whole(&region, 16);
    node.small.receive(slice.clone()).expect("receive");
    drop(node);
    drop(region);
    slice.copy_from_slice(&[7; 16]).expect("fits");
    drop(slice);
    assert!(mapping.upgrade().is_none(), "the domain or its memory leaks");
}

/// The drop of a buffer's owner may use the domain, because the domain's state is not borrowed then.
fn owners_that_call_back(provider: &Provider) {
    struct CallsBack(Rc<Node>, Rc<Cell<u32>>);
    impl Drop for CallsBack {
        fn drop(&mut self) {
            self.0.domain.stats();
            self.0.domain.poll(&mut Vec::new()).expect("poll");
            let peer = self.0.small.connect(&self.0.bulk.address()).expect("connect");
            drop(self.0.small.send(peer, self.0.holding(b"from a drop")));
            self.0.small.disconnect(peer);
            self.1.set(self.1.get() + 1);
        }
    }
    let node = Rc::new(Node::new(provider));
    let count = Rc::new(Cell::new(0));
    let region = node.memory(1 << 16, Access::REMOTE_READ);
    let peer = node.bulk.connect(&node.small.address()).expect("connect");
    for succeeds in [true, false] {
        let owner = Rc::new(CallsBack(Rc::clone(&node), Rc::clone(&count)));
        let into = node.empty(1 << 16).with_owner(owner);
        let op = node.bulk.read(peer, into, region.remote(), 0);
        if succeeds {
            Driver::new(&[&node]).succeed(&[op]);
        } else {
            node.bulk.disconnect(peer);
            assert!(op.result().is_some());
        }
    }
    Driver::new(&[&node]).until("both owners", |_| (count.get() == 2).then_some(()));
}

/// `poll` wakes a waiting task once there is a result.
fn wakes_tasks(provider: &Provider) {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    let region = there.memory(4096, Access::REMOTE_READ);
    let peer = here.small.connect(&there.small.address()).expect("connect");
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let mut context = Context::from_waker(&waker);
    let mut task = pin!(async {
        here.small.read(peer, here.empty(4096), region.remote(), 0).await?;
        here.small.read(peer, here.empty(4096), region.remote(), 1).await
    });
    assert!(task.as_mut().poll(&mut context).is_pending());
    driver.until("the first wake", |_| (count.0.load(Ordering::Relaxed) == 1).then_some(()));
    match task.as_mut().poll(&mut context) {
        Poll::Ready(Err(FabricError::OutOfBounds { .. })) => {}
        other => panic!("unexpected: {other:?}"),
    }
    // And by `disconnect`.
    let mut op = pin!(here.small.read(peer, here.empty(4096), region.remote(), 0));
    assert!(op.as_mut().poll(&mut context).is_pending());
    here.small.disconnect(peer);
    assert_eq!(count.0.load(Ordering::Relaxed), 2);
    assert!(matches!(op.as_mut().poll(&mut context), Poll::Ready(Err(FabricError::PeerGone { .. }))));
}
