//! Tests of the operations on bytes and words.

use plasmon::ErrorKind;
use plasmon::wire::Operation;

use super::*;
use crate::region::home::Done;
use crate::region::home::words::STEP_BYTES;

/// Carries out an operation of the owner.
fn done(region: &Region, operation: Operation, data: &[u8]) -> Done {
    region.carry_out(OWNER, operation, data).unwrap_or_else(|error| panic!("{operation:?}: {error}"))
}

fn kind(region: &Region, operation: Operation, data: &[u8]) -> ErrorKind {
    failed(region.carry_out(OWNER, operation, data))
}

#[test]
fn what_is_written_is_read() {
    let mut bench = bench();
    let region = bench.make("a", 1 << 20);
    for (offset, len) in [(0, 8), (8, 8), (3, 8), (100, 1), (4093, 4099), (1, 256 << 10), ((1 << 20) - 5, 5)]
    {
        let bytes: Vec<u8> = (0..len).map(|at| (offset + at) as u8 | 1).collect();
        done(&region, Operation::Write { offset }, &bytes);
        assert_eq!(done(&region, Operation::Read { offset, len }, &[]).data, bytes);
    }
    done(&region, Operation::Write { offset: 1 << 20 }, &[]);
    assert_eq!(done(&region, Operation::Read { offset: 1 << 20, len: 0 }, &[]), Done::default());
    done(&region, Operation::Fill { offset: 3, len: 10, byte: 9 }, &[]);
    assert_eq!(done(&region, Operation::Read { offset: 3, len: 10 }, &[]).data, [9; 10]);
}

#[test]
fn words_have_one_owner_of_their_bytes_at_a_time() {
    let mut bench = bench();
    let region = bench.make("a", 64);
    done(&region, Operation::Write { offset: 8 }, &u64::MAX.to_ne_bytes());
    let add = |value| done(&region, Operation::FetchAdd { offset: 8, value }, &[]).value;
    assert_eq!([add(3), add(0), add(1u64.wrapping_neg())], [u64::MAX, 2, 2]);
    let swap = |value| done(&region, Operation::Swap { offset: 8, value }, &[]).value;
    assert_eq!([swap(7), swap(8)], [1, 7]);
    let compare =
        |expected, value| done(&region, Operation::CompareSwap { offset: 8, expected, value }, &[]).value;
    assert_eq!([compare(7, 9), compare(8, 10), compare(8, 11)], [8, 8, 10]);
    let set = || done(&region, Operation::TestAndSet { offset: 8 }, &[]).value;
    assert_eq!([set(), set()], [10, 1]);
    assert_eq!(done(&region, Operation::Read { offset: 8, len: 8 }, &[]).data, 1u64.to_ne_bytes());
    // The bytes beside the word are as they were.
    assert_eq!(done(&region, Operation::Read { offset: 0, len: 8 }, &[]).data, [0; 8]);
    assert_eq!(done(&region, Operation::Read { offset: 16, len: 8 }, &[]).data, [0; 8]);
}

#[test]
fn bytes_that_a_region_does_not_have_are_refused() {
    let mut bench = bench();
    let region = bench.make("a", 100);
    for (offset, len) in [(0, 101), (100, 1), (101, 0), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)] {
        assert_eq!(kind(&region, Operation::Read { offset, len }, &[]), ErrorKind::Invalid);
        assert_eq!(kind(&region, Operation::Fill { offset, len, byte: 1 }, &[]), ErrorKind::Invalid);
        assert_eq!(failed(region.run(offset, len)), ErrorKind::Invalid);
        let (filled, filling) = (Rc::clone(&region), bench.home.clone());
        let fill = bench.run(async move {
            drop(filling);
            filled.fill(OWNER, offset, len, 1).await
        });
        assert_eq!(failed(fill), ErrorKind::Invalid);
    }
    assert_eq!(kind(&region, Operation::Write { offset: 98 }, &[1; 3]), ErrorKind::Invalid);
    // The last whole word begins at 88. The bytes behind it are not a word.
    for offset in [1, 4, 7, 89, 96, 100, u64::MAX, u64::MAX - 7] {
        let words = [
            Operation::FetchAdd { offset, value: 1 },
            Operation::Swap { offset, value: 1 },
            Operation::CompareSwap { offset, expected: 0, value: 1 },
            Operation::TestAndSet { offset },
            Operation::Notify { offset },
        ];
        words.iter().for_each(|word| assert_eq!(kind(&region, *word, &[]), ErrorKind::Invalid));
        assert_eq!(failed(region.wait(OWNER, offset, 0).map(drop)), ErrorKind::Invalid);
    }
    assert_eq!(done(&region, Operation::TestAndSet { offset: 88 }, &[]).value, 0);
    assert_eq!(kind(&region, Operation::Wait { offset: 0, expected: 0 }, &[]), ErrorKind::Invalid);
    let all = region.run(0, 100).expect("it is there");
    assert_eq!((all.len(), region.run(100, 0).map(|run| run.len())), (100, Ok(0)));
}

#[test]
fn one_operation_is_on_as_many_bytes_as_a_turn_has_time_for() {
    let mut bench = bench();
    let region = bench.make("a", 2 * STEP_BYTES);
    let long = STEP_BYTES + 1;
    assert_eq!(kind(&region, Operation::Read { offset: 0, len: long }, &[]), ErrorKind::Invalid);
    assert_eq!(kind(&region, Operation::Write { offset: 0 }, &vec![1; long as usize]), ErrorKind::Invalid);
    assert_eq!(kind(&region, Operation::Fill { offset: 0, len: long, byte: 1 }, &[]), ErrorKind::Invalid);
    done(&region, Operation::Read { offset: 0, len: STEP_BYTES }, &[]);
}

#[test]
fn a_long_fill_takes_several_turns() {
    let mut bench = bench();
    let region = bench.make("a", 4 << 20);
    let filled = Rc::clone(&region);
    let begun = bench.begin(async move { filled.fill(OWNER, 5, 3 << 20, 7).await });
    bench.turn();
    let byte = |at| done(&region, Operation::Read { offset: at, len: 1 }, &[]).data[0];
    assert_eq!([byte(4), byte(5), byte(3 << 20)], [0, 7, 0]);
    bench.end(begun).expect("the owner may");
    assert_eq!([byte(4), byte(3 << 20), byte((3 << 20) + 4), byte((3 << 20) + 5)], [0, 7, 7, 0]);
    assert_eq!(
        failed(bench.run({
            let region = Rc::clone(&region);
            async move { region.fill(OTHER, 0, 1, 1).await }
        })),
        ErrorKind::NotAllowed
    );
    // A fill ends when its region has ended.
    let filled = Rc::clone(&region);
    let begun = bench.begin(async move { filled.fill(OWNER, 0, 4 << 20, 8).await });
    bench.turn();
    bench.free(&region, OWNER).expect("the owner may");
    assert_eq!(failed(bench.end(begun)), ErrorKind::Freed);
    assert_eq!(bench.store.regions.bytes(), 0);
}
