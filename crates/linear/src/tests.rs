//! Tests with histories that are known to be good or bad, and with random histories against an exhaustive
//! search.

use proptest::prelude::*;

use super::search::{Held, Outcome, State, Step, search};
use super::*;

const A: Value = Value { writer: 1, number: 1 };
const B: Value = Value { writer: 2, number: 1 };

fn call(begin: u64, end: impl Into<Option<u64>>, action: Action) -> Call {
    let end: Option<u64> = end.into();
    Call { node: 0, client: Some(0), begin: begin * 1000, end: end.map(|end| end * 1000), action }
}

/// Returns the descriptions of the violations that are found in a history.
fn wrong(calls: &[Call]) -> Vec<&'static str> {
    let kind = |violation| match violation {
        Violation::Impossible { kind, .. } => kind,
        Violation::Undecided { .. } => "undecided",
    };
    violations(calls, 10).into_iter().map(kind).collect()
}

fn good(calls: &[Call]) {
    assert_eq!(wrong(calls), [""; 0]);
}

fn bad(calls: &[Call], kind: &str) {
    assert_eq!(wrong(calls), [kind]);
}

use Action::*;

#[test]
fn one_call_after_the_other() {
    good(&[]);
    good(&[
        call(0, 1, Deleted(false)),
        call(2, 3, Contains(false)),
        call(4, 5, Put(A)),
        call(6, 7, Got(A)),
        call(8, 9, Refused),
        call(10, 11, Contains(true)),
        call(12, 13, Deleted(true)),
        call(14, 15, Deleted(false)),
        call(16, 17, Put(B)),
        call(18, 19, Got(B)),
    ]);
}

#[test]
fn a_stale_get_does_not_fit() {
    let put_anew = [call(0, 1, Put(A)), call(2, 3, Deleted(true)), call(4, 5, Put(B))];
    let got = |begin, value| [&put_anew[..], &[call(begin, 9, Got(value))]].concat();
    bad(&got(6, A), "a get gave what was not there");
    good(&got(6, B));
    // This get began before the deletion ended.
    good(&got(3, A));
    // A value that was never put can never be got.
    bad(&got(0, Value { writer: 3, number: 1 }), "a get gave what was not there");
}

#[test]
fn a_get_after_a_deletion_does_not_fit() {
    let deleted = [call(0, 1, Put(A)), call(2, 3, Deleted(true))];
    bad(&[&deleted[..], &[call(4, 5, Got(A))]].concat(), "a get gave what was not there");
    bad(&[&deleted[..], &[call(4, 5, Contains(true))]].concat(), "contains saw what was not there");
    bad(&[&deleted[..], &[call(4, 5, Deleted(true))]].concat(), "a deletion found what was not there");
    bad(&[&deleted[..], &[call(4, 5, Refused)]].concat(), "a put was refused although the id was free");
}

#[test]
fn two_readers_agree_on_the_order() {
    // The deletion lasts: one reader misses the value, and another finds it later.
    let calls =
        [call(0, 1, Put(A)), call(2, 9, Deleted(true)), call(3, 4, Contains(false)), call(5, 6, Got(A))];
    bad(&calls, "a get gave what was not there");
    let calls =
        [call(0, 1, Put(A)), call(2, 9, Deleted(true)), call(3, 6, Contains(false)), call(5, 6, Got(A))];
    good(&calls);
}

#[test]
fn a_lost_put_does_not_fit() {
    bad(&[call(0, 1, Put(A)), call(2, 3, Put(B))], "a put ended well although the id was taken");
    bad(&[call(0, 1, Put(A)), call(2, 3, Contains(false))], "contains missed what was there");
    bad(&[call(0, 1, Put(A)), call(2, 3, Deleted(false))], "a deletion missed what was there");
    // Of two deletions one finds it.
    let both = [call(0, 1, Put(A)), call(2, 5, Deleted(true)), call(3, 6, Deleted(true))];
    bad(&both, "a deletion found what was not there");
}

#[test]
fn a_put_is_refused_by_one_that_is_under_way() {
    let refused = [call(0, 9, Put(A)), call(1, 2, Refused), call(3, 4, Contains(false)), call(5, 9, Got(A))];
    good(&refused);
    bad(
        &[call(0, 9, Put(A)), call(10, 11, Deleted(true)), call(12, 13, Refused)],
        "a put was refused although the id was free",
    );
    // The node that has claimed an id is the next to put it.
    let calls = [
        call(0, 20, Put(A)),
        call(1, 2, Refused),
        call(3, 9, Put(B)),
        call(10, 11, Deleted(true)),
        call(12, 20, Got(A)),
    ];
    assert_eq!(wrong(&calls)[0], "a put ended well although the id was taken");
    // No object explains the refusal of either put.
    assert_eq!(wrong(&[call(0, 2, Refused), call(1, 3, Refused)]).len(), 2);
}

#[test]
fn an_unknown_outcome_is_any() {
    for put in [None, Some(call(0, None, MaybePut(A)))] {
        let calls: Vec<_> = put.into_iter().chain([call(1, 2, Got(A)), call(3, 4, Got(A))]).collect();
        assert_eq!(wrong(&calls).is_empty(), put.is_some());
    }
    let unknown = call(0, None, MaybePut(A));
    good(&[unknown, call(1, 2, Contains(false)), call(3, 4, Got(A)), call(5, 6, Deleted(true))]);
    good(&[unknown, call(1, 2, Put(B)), call(3, 4, Deleted(true)), call(5, 6, Got(A))]);
    good(&[unknown, call(1, 2, Refused), call(3, 4, Refused)]);
    // The call takes effect at most once, and not before its begin.
    bad(
        &[unknown, call(1, 2, Got(A)), call(3, 4, Deleted(true)), call(5, 6, Got(A))],
        "a get gave what was not there",
    );
    bad(&[call(0, 1, Got(A)), call(2, None, MaybePut(A))], "a get gave what was not there");

    let unknown = call(2, None, MaybeDeleted);
    good(&[call(0, 1, Put(A)), unknown, call(3, 4, Got(A)), call(5, 6, Contains(false))]);
    bad(
        &[call(0, 1, Put(A)), unknown, call(3, 4, Contains(false)), call(5, 6, Got(A))],
        "a get gave what was not there",
    );
}

#[test]
fn a_death_takes_a_value_once_and_for_good() {
    let death = call(2, None, Lost);
    good(&[call(0, 1, Put(A)), death, call(3, 4, Got(A)), call(5, 6, Contains(false)), call(7, 8, Put(B))]);
    bad(
        &[call(0, 1, Put(A)), death, call(3, 4, Contains(false)), call(5, 6, Got(A))],
        "a get gave what was not there",
    );
    bad(
        &[call(0, 1, Put(A)), death, call(3, 4, Put(B)), call(5, 6, Contains(false))],
        "contains missed what was there",
    );
    bad(
        &[call(0, 1, Put(A)), call(2, 3, Contains(false)), call(4, None, Lost)],
        "contains missed what was there",
    );
}

#[test]
fn who_is_cut_off_hides_values_and_brings_none_back() {
    let cut = call(2, None, CutOff);
    let hidden = [call(0, 1, Put(A)), cut, call(3, 4, Contains(false)), call(5, 6, Got(A))];
    good(&hidden);
    let with = |calls: &[Call]| [&hidden[..], calls].concat();
    for free in [Deleted(true), Deleted(false), Put(B)] {
        let freed = with(&[call(7, 8, free)]);
        good(&freed);
        bad(&[&freed[..], &[call(9, 10, Got(A))]].concat(), "a get gave what was not there");
    }
    // The node that is cut off may hide one value after the other.
    good(&with(&[call(7, 8, Put(B)), call(9, 10, Contains(false)), call(11, 12, Got(B))]));
}

#[test]
fn who_is_cut_off_gives_what_others_have_replaced() {
    let set = [call(0, 1, Put(A)), call(4, 5, Swapped { from: A, to: B })];
    let with = |calls: &[Call]| [&set[..], calls].concat();
    let (cut, got) = (call(2, None, CutOff), call(6, 7, Got(A)));
    good(&with(&[cut, got, call(8, 9, Got(B))]));
    bad(&with(&[got]), "a get gave what was not there");
    bad(&with(&[Call { node: 1, ..cut }, got]), "a get gave what was not there");
    bad(&with(&[call(8, None, CutOff), got]), "a get gave what was not there");
}

#[test]
fn a_write_takes_the_place_of_what_is_there() {
    let written = [call(0, 1, Put(A)), call(2, 5, Wrote(B))];
    let with = |calls: &[Call]| [&written[..], calls].concat();
    good(&with(&[call(3, 4, Got(A)), call(3, 4, Got(B))]));
    // Whoever has seen the new value never sees the old one again, and nobody ever sees none.
    bad(&with(&[call(3, 4, Got(B)), call(5, 6, Got(A))]), "a get gave what was not there");
    bad(&with(&[call(6, 7, Got(A))]), "a get gave what was not there");
    bad(&with(&[call(3, 4, Contains(false))]), "contains missed what was there");
    // A write into a register without a value is a put, and claims the id as one does.
    good(&[call(0, 9, Wrote(A)), call(1, 2, Refused), call(3, 4, Contains(false)), call(5, 9, Got(A))]);
    // The put that has claimed an id comes before any write.
    let behind = [
        call(0, 20, Put(A)),
        call(1, 2, Refused),
        call(3, 9, Wrote(B)),
        call(10, 11, Deleted(true)),
        call(12, 20, Got(A)),
    ];
    assert!(!wrong(&behind).is_empty());
    // A write with an unknown outcome takes effect once, or never.
    let unknown = [call(0, 1, Put(A)), call(2, None, MaybeWrote(B))];
    good(&[&unknown[..], &[call(3, 4, Got(A)), call(5, 6, Got(B)), call(7, 8, Deleted(true))]].concat());
    bad(&[&unknown[..], &[call(3, 4, Got(B)), call(5, 6, Got(A))]].concat(), "a get gave what was not there");
}

#[test]
fn a_value_that_may_end_takes_no_other_along() {
    let ends = [call(0, 1, Wrote(A)), call(1, None, MaybeEnded(A))];
    let with = |calls: &[Call]| [&ends[..], calls].concat();
    good(&with(&[call(3, 4, Got(A)), call(5, 6, Contains(false)), call(7, 8, Put(B))]));
    bad(&with(&[call(3, 4, Contains(false)), call(5, 6, Got(A))]), "a get gave what was not there");
    let replaced = with(&[call(3, 4, Wrote(B)), call(5, 6, Contains(false))]);
    bad(&replaced, "contains missed what was there");
}

#[test]
fn of_two_that_expect_one_value_one_sets_another() {
    let set = |begin, end, from, to| call(begin, end, Swapped { from, to });
    let c = Value { writer: 3, number: 1 };
    good(&[call(0, 1, Put(A)), set(2, 5, A, B), call(3, 4, Got(A)), set(6, 7, B, c), call(8, 9, Got(c))]);
    bad(
        &[call(0, 1, Put(A)), set(2, 5, A, B), set(3, 6, A, c)],
        "a compare-and-set found what was not there",
    );
    bad(&[set(2, 5, A, B)], "a compare-and-set found what was not there");
    // What it said of the register may be checked by what it found.
    good(&[
        call(0, 1, Put(A)),
        call(2, 9, Wrote(B)),
        call(3, 4, Got(A)),
        set(3, 8, A, c),
        call(10, 11, Got(B)),
    ]);
    let unknown = call(2, None, MaybeSwapped { from: A, to: B });
    good(&[call(0, 1, Put(A)), unknown, call(3, 4, Got(A)), call(5, 6, Got(B))]);
    bad(
        &[call(0, 1, Put(A)), unknown, call(3, 4, Wrote(c)), call(5, 6, Got(B))],
        "a get gave what was not there",
    );
}

#[test]
fn each_violation_is_found_and_the_excerpt_is_short() {
    let mut calls = Vec::new();
    for round in 0..50 {
        let (time, value) = (100 * round, Value { writer: 1, number: round as u32 });
        calls.extend([
            call(time, time + 1, Put(value)),
            call(time + 2, time + 9, Got(value)),
            call(time + 3, time + 8, Contains(true)),
            call(time + 10, time + 11, Deleted(true)),
        ]);
    }
    good(&calls);
    for round in [20, 30] {
        let old = Value { writer: 1, number: round as u32 - 1 };
        calls.push(call(100 * round + 4, 100 * round + 6, Got(old)));
    }
    let found = violations(&calls, 10);
    assert_eq!(found.len(), 2);
    let Violation::Impossible { excerpt, .. } = &found[0] else { panic!("{found:?}") };
    assert!(
        excerpt.contains("2004 to       2006 us  node 0, client 0  get: 1.19   <-- does not fit"),
        "{excerpt}"
    );
    assert!(excerpt.contains("put 1.19: well") && excerpt.lines().count() <= 6, "{excerpt}");
    assert_eq!(excerpt.lines().filter(|line| line.starts_with('*')).count(), 2, "{excerpt}");
}

#[test]
fn a_search_that_is_too_long_is_no_success() {
    // Whether any of the puts gave the value takes all orders to know.
    let mut calls: Vec<_> = (0..30)
        .flat_map(|writer| {
            let put = call(0, 100, Put(Value { writer, number: 0 }));
            [put, call(0, 100, Deleted(true))]
        })
        .collect();
    calls.push(call(0, 100, Got(Value { writer: 99, number: 0 })));
    assert!(matches!(violations(&calls, 10)[..], [Violation::Undecided { calls: 61 }]));
}

/// Whether some order of the calls explains all answers, by trying all orders.
fn slowly(calls: &[Call], state: State, left: &[usize]) -> bool {
    let end = left.iter().filter_map(|number| calls[*number].end).min();
    let Some(end) = end else { return true };
    let open = |number: &usize| calls[*number].begin <= end;
    left.iter().copied().filter(open).any(|number| {
        let others: Vec<_> = left.iter().copied().filter(|other| *other != number).collect();
        let puts = others.iter().filter(|other| open(other));
        let mut states = match state.step(number, calls[number].action) {
            Step::Same => vec![state],
            Step::To(state) => vec![state],
            Step::No => vec![],
            Step::IfClaimed => puts
                .filter_map(|put| match calls[*put].action {
                    Put(_) | Wrote(_) => Some(state.claimed_by(*put)),
                    MaybePut(_) | MaybeWrote(_) => Some(state),
                    _ => None,
                })
                .collect(),
        };
        let left = if calls[number].action == CutOff { left } else { &others };
        states.drain(..).any(|state| slowly(calls, state, left))
    })
}

fn value() -> impl Strategy<Value = Value> {
    (0..3u32).prop_map(|writer| Value { writer, number: 0 })
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => value().prop_map(Put),
        2 => Just(Refused),
        1 => value().prop_map(MaybePut),
        3 => value().prop_map(Wrote),
        1 => value().prop_map(MaybeWrote),
        3 => (value(), value()).prop_map(|(from, to)| Swapped { from, to }),
        1 => (value(), value()).prop_map(|(from, to)| MaybeSwapped { from, to }),
        4 => any::<bool>().prop_map(Deleted),
        1 => Just(MaybeDeleted),
        1 => value().prop_map(MaybeEnded),
        6 => value().prop_map(Got),
        3 => any::<bool>().prop_map(Contains),
        1 => Just(Lost),
        1 => Just(CutOff),
    ]
}

/// Returns a strategy for a call of some length at some time.
fn any_call() -> impl Strategy<Value = Call> {
    (0..20u64, 0..12u64, action()).prop_map(|(begin, len, action)| {
        let end = (!action.is_optional()).then_some(begin + len);
        call(begin, end, action)
    })
}

/// Call on a true register: the operation, its time before and after the moment of its effect, and whether
/// the answer is lost.
type Asked = (u8, u64, u64, bool);

fn asked() -> impl Strategy<Value = Vec<Asked>> {
    let lost = prop_oneof![15 => Just(false), 1 => Just(true)];
    prop::collection::vec((0..8u8, 0..60u64, 0..60u64, lost), 1..120)
}

/// Returns the history of calls on a true register, with one moment every 10 us.
fn atomic(asked: &[Asked]) -> Vec<Call> {
    let mut held = None;
    let mut calls = Vec::new();
    for (number, (what, before, after, lost)) in asked.iter().enumerate() {
        let moment = 100 + 10 * number as u64;
        let value = Value { writer: 0, number: number as u32 };
        let action = match (what, held) {
            (0 | 1, None) => {
                held = Some(value);
                Some(if *lost { MaybePut(value) } else { Put(value) })
            }
            (0 | 1, Some(_)) => Some(if *lost { MaybePut(value) } else { Refused }),
            (2, was) => {
                held = None;
                Some(if *lost { MaybeDeleted } else { Deleted(was.is_some()) })
            }
            (3, was) => Some(Contains(was.is_some())),
            (6, _) => {
                held = Some(value);
                Some(if *lost { MaybeWrote(value) } else { Wrote(value) })
            }
            (7, Some(from)) => {
                held = Some(value);
                Some(if *lost { MaybeSwapped { from, to: value } } else { Swapped { from, to: value } })
            }
            (_, was) => was.map(Got),
        };
        calls.extend(action.map(|action| {
            let end = (!action.is_optional()).then_some(moment + after);
            call(moment - before, end, action)
        }));
    }
    calls
}

fn is_known(call: &Call) -> bool {
    !call.action.is_optional()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn it_decides_as_one_who_tries_everything(calls in prop::collection::vec(any_call(), 0..8)) {
        let all: Vec<_> = (0..calls.len()).collect();
        let fits = search(&calls, None) == Outcome::Fits;
        prop_assert_eq!(fits, slowly(&calls, State::of(Held::Absent), &all));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_a_register_did_fits(asked in asked()) {
        prop_assert_eq!(wrong(&atomic(&asked)), [""; 0]);
    }

    #[test]
    fn one_get_of_a_former_value_does_not_fit(asked in asked(), which in any::<prop::sample::Index>()) {
        let mut calls = atomic(&asked);
        let is_put = |call: &Call| is_known(call) && call.action.written().is_some();
        let puts: Vec<_> = calls.iter().copied().filter(is_put).collect();
        let mut stale = Vec::new();
        for (at, got) in calls.iter().enumerate().filter(|(_, call)| matches!(call.action, Got(_))) {
            let over = |put: &&Call| put.end.is_some_and(|end| end < got.begin);
            for last in puts.iter().filter(over) {
                let former = puts.iter().filter(|put| put.end.is_some_and(|end| end < last.begin));
                stale.extend(former.filter_map(|put| Some((at, put.action.written()?))));
            }
        }
        prop_assume!(!stale.is_empty());
        let (at, former) = stale[which.index(stale.len())];
        calls[at].action = Got(former);
        let found = wrong(&calls);
        // A register with many calls of unknown outcome has too many orders.
        prop_assume!(found != ["undecided"]);
        prop_assert_eq!(found, ["a get gave what was not there"]);
    }
}
