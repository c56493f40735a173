//! Tests of waits for the change of a word.

use std::sync::atomic::Ordering;

use plasmon::ErrorKind;
use plasmon::wire::Operation;

use super::*;

type Begun = oneshot::Receiver<Result<u64, Error>>;

/// Begins a wait of `user` for a change of the word at `offset`.
fn wait(bench: &mut Bench, region: &Rc<Region>, user: u32, offset: u64, expected: u64) -> Begun {
    let waiting = region.wait(user, offset, expected).unwrap_or_else(|error| panic!("{error}"));
    let begun = bench.begin(waiting);
    bench.turn();
    begun
}

/// Returns the result of a wait, if the wait has ended by now.
fn given(bench: &mut Bench, begun: &mut Begun) -> Option<Result<u64, ErrorKind>> {
    bench.turn();
    let given = begun.try_recv().expect("the task is not dropped");
    given.map(|given| given.map_err(|error| error.kind()))
}

fn carry_out(region: &Region, operation: Operation, data: &[u8]) {
    region.carry_out(OWNER, operation, data).unwrap_or_else(|error| panic!("{operation:?}: {error}"));
}

#[test]
fn a_wait_ends_when_its_word_changes() {
    let mut bench = bench();
    let region = bench.make("a", 64);
    let mut over = wait(&mut bench, &region, OWNER, 8, 5);
    assert_eq!(given(&mut bench, &mut over), Some(Ok(0)), "it was another already");
    let changes: [(Operation, &[u8]); 7] = [
        (Operation::FetchAdd { offset: 8, value: 1 }, &[]),
        (Operation::Swap { offset: 8, value: 9 }, &[]),
        (Operation::CompareSwap { offset: 8, expected: 0, value: 1 }, &[]),
        (Operation::TestAndSet { offset: 8 }, &[]),
        (Operation::Write { offset: 15 }, &[1]),
        (Operation::Write { offset: 5 }, &[1; 4]),
        (Operation::Fill { offset: 0, len: 64, byte: 3 }, &[]),
    ];
    for (change, data) in changes {
        let mut begun = wait(&mut bench, &region, OWNER, 8, 0);
        carry_out(&region, Operation::FetchAdd { offset: 0, value: 1 }, &[]);
        carry_out(&region, Operation::Write { offset: 16 }, &[7; 8]);
        carry_out(&region, Operation::FetchAdd { offset: 8, value: 0 }, &[]);
        assert_eq!(given(&mut bench, &mut begun), None, "its word is the same");
        carry_out(&region, change, data);
        // The word had another value in between.
        carry_out(&region, Operation::Fill { offset: 0, len: 64, byte: 0 }, &[]);
        let value = given(&mut bench, &mut begun);
        assert!(matches!(value, Some(Ok(value)) if value != 0), "{change:?} gives {value:?}");
    }
    assert_eq!(bench.home.ground.counts.waiting.get(), 0);
}

#[test]
fn who_writes_to_mapped_memory_notifies() {
    let mut bench = bench();
    let region = bench.make("a", 64);
    let mut begun = wait(&mut bench, &region, OWNER, 0, 0);
    carry_out(&region, Operation::Notify { offset: 0 }, &[]);
    let run = region.run(0, 64).expect("it is there");
    run.word(0).expect("it is a word").store(4, Ordering::SeqCst);
    assert_eq!(given(&mut bench, &mut begun), None, "nobody has said so");
    carry_out(&region, Operation::Notify { offset: 8 }, &[]);
    assert_eq!(given(&mut bench, &mut begun), None, "that is another word");
    carry_out(&region, Operation::Notify { offset: 0 }, &[]);
    assert_eq!(given(&mut bench, &mut begun), Some(Ok(4)));
    // A transfer reports the bytes that it has changed.
    let mut begun = wait(&mut bench, &region, OWNER, 8, 0);
    run.write(8, &[1]).expect("it is there");
    region.changed(0, 64);
    assert!(matches!(given(&mut bench, &mut begun), Some(Ok(_))));
}

#[test]
fn a_wait_ends_with_its_region() {
    let mut bench = bench();
    let (freed, displaced) = (bench.make("a", 64), bench.make("b", 64));
    let mut one = wait(&mut bench, &freed, OWNER, 0, 0);
    let mut other = wait(&mut bench, &displaced, OWNER, 0, 0);
    bench.free(&freed, OWNER).expect("the owner may");
    assert_eq!(given(&mut bench, &mut one), Some(Err(ErrorKind::Freed)));
    bench.store.remove(&displaced.id());
    assert_eq!(given(&mut bench, &mut other), None);
    bench.home.on_tick();
    assert_eq!(given(&mut bench, &mut other), Some(Err(ErrorKind::Freed)));
    assert_eq!(failed(freed.wait(OWNER, 0, 0).map(drop)), ErrorKind::Freed);
}

#[test]
fn a_wait_ends_with_the_right_to_read() {
    let mut bench = bench();
    let region = bench.make("a", 64);
    assert_eq!(failed(region.wait(OTHER, 0, 0).map(drop)), ErrorKind::NotAllowed);
    region.grant(OWNER, Some(OTHER), Rights::READ).expect("the owner may");
    region.grant(OWNER, None, Rights::READ).expect("the owner may");
    let mut waits = [OWNER, OTHER, THIRD].map(|user| wait(&mut bench, &region, user, 0, 0));
    region.revoke(OWNER, None).expect("the owner may");
    assert_eq!(given(&mut bench, &mut waits[2]), Some(Err(ErrorKind::NotAllowed)));
    assert_eq!(given(&mut bench, &mut waits[1]), None);
    region.revoke(OWNER, Some(OTHER)).expect("the owner may");
    assert_eq!(given(&mut bench, &mut waits[1]), Some(Err(ErrorKind::NotAllowed)));
    assert_eq!(given(&mut bench, &mut waits[0]), None);
}

#[test]
fn a_region_has_so_many_waits() {
    let mut bench = bench();
    let region = bench.make("a", 64);
    let begin = |at: u64| region.wait(OWNER, at % 8 * 8, 0);
    let mut waits: Vec<_> = (0..4096).map(|at| begin(at).unwrap_or_else(|error| panic!("{error}"))).collect();
    assert_eq!(failed(begin(0).map(drop)), ErrorKind::Busy);
    // A wait that is given up leaves a place.
    waits.truncate(4000);
    assert_eq!(bench.home.ground.counts.waiting.get(), 4000);
    let more: Vec<_> = (0..96).map(begin).collect();
    assert!(more.iter().all(Result::is_ok) && begin(0).is_err());
    carry_out(&region, Operation::Fill { offset: 0, len: 64, byte: 1 }, &[]);
    let waits = waits.into_iter().chain(more.into_iter().filter_map(Result::ok));
    let begun = bench.begin(futures::future::join_all(waits));
    assert!(bench.end(begun).iter().all(|given| *given == Ok(0x0101_0101_0101_0101)));
    assert!(begin(0).is_ok());
}
