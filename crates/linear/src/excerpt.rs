//! Excerpts of a history: the calls that show that no register explains it.
//!
//! Owns no state. Any thread. Invariant: the calls with a star cannot be explained, whatever else happened.

use std::collections::HashSet;
use std::fmt::Write;

use super::search::{Held, Outcome, search};
use super::{Action, Call, Value};

/// Largest number of lines of an excerpt.
const MAX_LINES: usize = 40;

/// Largest number of times that are tried as the begin of an excerpt.
const MAX_STARTS: usize = 100;

/// Value that no call has put or got.
const ANOTHER: Value = Value { writer: u32::MAX, number: u32::MAX };

/// Returns the text of the shortest part of a history that no register explains, marked with stars. `stuck`
/// is the call that does not fit. The text also has the calls that were made at the same time, and the call
/// that left the value that was got or replaced. All calls are shown as in `told`, even if `calls` has them
/// with an unknown outcome.
pub(super) fn around(told: &[Call], calls: &[Call], stuck: usize) -> String {
    let culprit = calls[stuck];
    let begun = until(calls, culprit);
    let (mut part, before) = from(&begun, culprit).map_or((begun, false), |part| (part, true));
    let mut at = 0;
    while at < part.len() {
        // A call that changes nothing is left out if the other calls are impossible without it.
        let mut fewer = part.clone();
        let spare = fewer.remove(at);
        if spare != culprit && spare.weakened().is_none() && is_impossible(&fewer, before) {
            part = fewer;
        } else {
            at += 1;
        }
    }
    let proof: HashSet<_> = part.iter().map(key).collect();
    let end = culprit.end.unwrap_or(u64::MAX);
    let needed = culprit.action.needed();
    let is_context = |call: &&Call| {
        let is_source = needed.is_some() && call.action.written() == needed;
        is_source || call.begin <= end && call.end.is_some_and(|end| end >= culprit.begin)
    };
    let mut shown: Vec<_> =
        told.iter().filter(|call| proof.contains(&key(call)) || is_context(call)).collect();
    shown.sort_by_key(|call| key(call));
    let mut text = String::new();
    let left_out = shown.len().saturating_sub(MAX_LINES);
    if left_out > 0 {
        writeln!(text, "  ({left_out} calls before these)").expect("a string takes all");
    }
    for call in &shown[left_out..] {
        let star = if proof.contains(&key(call)) { '*' } else { ' ' };
        let mark = if key(call) == key(&culprit) { "   <-- does not fit" } else { "" };
        writeln!(text, "{star} {call}{mark}").expect("a string takes all");
    }
    text
}

/// Returns a key that tells a call from others on its id and does not depend on its outcome.
fn key(call: &Call) -> (u64, usize, Option<usize>) {
    (call.begin, call.node, call.client)
}

/// Whether no register explains these calls. The register was absent before the calls, or with `before` may
/// have held any value.
fn is_impossible(calls: &[Call], before: bool) -> bool {
    let fails = |held| matches!(search(calls, held), Outcome::Stuck(_));
    if !before {
        return fails(None);
    }
    let needed = calls.iter().filter_map(|call| call.action.needed());
    let mut values: Vec<_> = needed.chain([ANOTHER]).collect();
    values.sort_unstable();
    values.dedup();
    let doubtful = calls.iter().any(|call| call.action == Action::CutOff);
    fails(None)
        && values.iter().all(|value| {
            fails(Some(Held::Present(*value))) && (!doubtful || fails(Some(Held::Doubtful(*value))))
        })
}

/// Returns the calls that began before the culprit ended. Calls that were not over by then count with an
/// unknown outcome.
fn until(calls: &[Call], culprit: Call) -> Vec<Call> {
    let end = culprit.end.unwrap_or(u64::MAX);
    let begun = calls.iter().filter(|call| call.begin <= end);
    let cut: Vec<_> = begun
        .filter_map(|call| if call.end.is_some_and(|at| at > end) { call.weakened() } else { Some(*call) })
        .collect();
    if is_impossible(&cut, false) { cut } else { calls.to_vec() }
}

/// Returns the calls that were not over at the latest time from which on the calls are impossible, whatever
/// the register held at that time. Calls that had begun before that time may have taken effect.
fn from(calls: &[Call], culprit: Call) -> Option<Vec<Call>> {
    let mut starts: Vec<_> =
        calls.iter().map(|call| call.begin).filter(|begin| *begin <= culprit.begin).collect();
    starts.sort_unstable();
    starts.dedup();
    let after = |start: u64| -> Vec<_> {
        let lasting = calls.iter().filter(|call| call.end.is_none_or(|end| end >= start));
        lasting.filter_map(|call| if call.begin < start { call.weakened() } else { Some(*call) }).collect()
    };
    starts.into_iter().rev().take(MAX_STARTS).map(after).find(|part| is_impossible(part, true))
}
