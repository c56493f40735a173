//! Tests that compare any order of writes, deletions and restarts with a map.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Write(Vec<usize>),
    /// Forgets one object in so many, beginning at an offset.
    Forget(usize, usize),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let small = prop::collection::vec(0usize..2000, 1..60);
    let mixed = prop::collection::vec(prop_oneof![0usize..5000, 60_000usize..300_000], 1..6);
    prop_oneof![
        3 => prop_oneof![small, mixed].prop_map(Step::Write),
        3 => (1usize..5, 0usize..5).prop_map(|(every, from)| Step::Forget(every, from)),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn the_store_holds_what_was_written_and_not_forgotten(steps in prop::collection::vec(step(), 1..25)) {
        let mut bench = Bench::new();
        let mut expected: HashMap<u64, (Object, Place)> = HashMap::new();
        let mut number = 0;
        for step in steps.into_iter().chain([Step::Restart]) {
            match step {
                Step::Write(lens) => {
                    let batch: Vec<Object> = lens.into_iter().map(|len| {
                        number += 1;
                        object(number, len)
                    }).collect();
                    let places = bench.write(&batch);
                    expected.extend(batch.into_iter().zip(places).map(|it| (it.0.head.life, it)));
                }
                Step::Forget(every, from) => {
                    let mut lives: Vec<u64> = expected.keys().copied().collect();
                    lives.sort_unstable();
                    for life in lives.into_iter().skip(from).step_by(every) {
                        let (_, place) = expected.remove(&life).unwrap();
                        bench.store().forget(place);
                    }
                }
                Step::Restart => {
                    let recovered = bench.restart();
                    prop_assert_eq!(recovered.len(), expected.len());
                    prop_assert_eq!(bench.store().usage().failures, 0);
                    for recovered in recovered {
                        let (object, place) = expected.get_mut(&recovered.header.life).unwrap();
                        prop_assert_eq!(&object.head, &recovered.header);
                        *place = recovered.place;
                    }
                }
            }
            let sample: Vec<(Object, Place)> = expected.values().take(5).cloned().collect();
            for (object, place) in sample {
                bench.assert_reads(place, &object);
            }
        }
        for (object, place) in expected.into_values() {
            bench.assert_reads(place, &object);
            bench.store().forget(place);
        }
        prop_assert_eq!(bench.restart(), []);
        prop_assert_eq!(files(&bench.dir), Vec::<PathBuf>::new());
    }
}
