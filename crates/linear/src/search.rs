//! The search for an order of calls that explains their answers.
//!
//! Owns the list of the calls' begins and ends, and the memory of what was tried. Any thread. The list is in
//! the order of time. A call that was given its moment is taken out of the list with its begin and its end.
//! Only calls before the first end in the list can come next. A call whose answer fits and that changes
//! nothing is taken at once, because no later moment would be better. Calls that change something are tried
//! one after the other. Invariant: a set of taken calls is tried once with each state of the register.

use std::cmp::Reverse;
use std::collections::HashSet;

use super::{Action, Call, STEPS, Value};

/// Outcome of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// An order of the calls explains all answers.
    Fits,
    /// No order of the calls explains all answers: none gets past the end of this call.
    Stuck(usize),
    /// There were too many orders to try.
    Undecided,
}

/// Content of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Held {
    /// No value.
    Absent,
    /// A value that every call sees.
    Present(Value),
    /// A value that a call may see or not.
    Doubtful(Value),
}

/// State of a register: its content, and the put that has claimed it. No other put can succeed before the
/// claiming put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) held: Held,
    claim: Option<usize>,
}

/// Effect of a call on a register.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The call fits and changes nothing.
    Same,
    /// The call fits and changes the register.
    To(State),
    /// The call does not fit, or is optional and does nothing.
    No,
    /// The call is a refused put, which fits only if another put has claimed the register.
    IfClaimed,
}

impl State {
    /// Returns the state of a register that no put has claimed.
    pub(super) fn of(held: Held) -> Self {
        Self { held, claim: None }
    }

    /// Returns the state of the register after the put with this number has claimed it.
    pub(super) fn claimed_by(self, put: usize) -> Self {
        Self { claim: Some(put), ..self }
    }

    /// Returns the effect of the call with this number.
    pub(super) fn step(self, number: usize, action: Action) -> Step {
        use Held::{Absent, Doubtful, Present};
        let others = self.claim.is_some_and(|claim| claim != number);
        let to = |held| Step::To(Self::of(held));
        match (action, self.held) {
            (action, _) if action.claims() && others => Step::No,
            (Action::Wrote(value) | Action::MaybeWrote(value), _) => to(Present(value)),
            (Action::Swapped { from, to: value } | Action::MaybeSwapped { from, to: value }, held) => {
                match held {
                    Present(held) | Doubtful(held) if held == from => to(Present(value)),
                    _ => Step::No,
                }
            }
            (Action::Put(value) | Action::MaybePut(value), Absent | Doubtful(_)) => to(Present(value)),
            (Action::Put(_) | Action::MaybePut(_), Present(_)) => Step::No,
            (Action::Refused, Absent) if self.claim.is_none() => Step::IfClaimed,
            (Action::Refused, _) => Step::Same,
            (Action::Deleted(true), Absent) | (Action::Deleted(false), Present(_)) => Step::No,
            (Action::Deleted(false), Absent) => Step::Same,
            (Action::MaybeDeleted | Action::Lost, Absent) => Step::No,
            (Action::MaybeEnded(value), Present(held) | Doubtful(held)) if held == value => to(Absent),
            (Action::MaybeEnded(_), _) => Step::No,
            (Action::Deleted(_) | Action::MaybeDeleted | Action::Lost, _) => to(Absent),
            (Action::Got(got), Present(value) | Doubtful(value)) if got == value => Step::Same,
            (Action::Got(_), _) => Step::No,
            (Action::Contains(_), Doubtful(_)) => Step::Same,
            (Action::Contains(found), held) if found == (held != Absent) => Step::Same,
            (Action::Contains(_), _) => Step::No,
            (Action::CutOff, Present(value)) => to(Doubtful(value)),
            (Action::CutOff, _) => Step::No,
        }
    }
}

/// Searches for an order of calls on a register that held `before`, or else was absent.
pub(super) fn search(calls: &[Call], before: Option<Held>) -> Outcome {
    let mut list = List::of(calls);
    let mut tried = HashSet::new();
    let mut taken = vec![0; calls.len().div_ceil(64)].into_boxed_slice();
    let mut furthest: Option<(u64, usize)> = None;
    let mut way: Vec<Fork> = Vec::new();
    let mut next = Some((None, State::of(before.unwrap_or(Held::Absent))));
    for _ in 0..STEPS {
        if let Some((number, state)) = next.take() {
            let mut fork = Fork { taken: Vec::new(), choices: Vec::new() };
            // A node that is cut off stays cut off, so that it may hide one value after the other.
            if let Some(number) = number.filter(|number: &usize| calls[*number].action != Action::CutOff) {
                fork.take(number, &mut list, &mut taken);
            }
            let Some(end) = fork.explore(calls, state, &mut list, &mut taken) else { return Outcome::Fits };
            let at = calls[end].end.map(|time| (time, end));
            furthest = furthest.max(at);
            if !tried.insert((taken.clone(), state)) {
                fork.choices.clear();
            }
            way.push(fork);
        }
        let Some(fork) = way.last_mut() else {
            return furthest.map_or(Outcome::Fits, |(_, number)| Outcome::Stuck(number));
        };
        next = fork.choices.pop().map(|(number, state)| (Some(number), state));
        if next.is_none() {
            fork.undo(&mut list, &mut taken);
            way.pop();
        }
    }
    Outcome::Undecided
}

/// Place in the search: the calls that were taken to get to this place, and the calls that can come next. The
/// last choice is tried first.
struct Fork {
    taken: Vec<usize>,
    choices: Vec<(usize, State)>,
}

impl Fork {
    /// Takes a call out of the list.
    fn take(&mut self, number: usize, list: &mut List, taken: &mut [u64]) {
        list.remove(number);
        taken[number / 64] |= 1 << (number % 64);
        self.taken.push(number);
    }

    /// Puts the taken calls back into the list.
    fn undo(&mut self, list: &mut List, taken: &mut [u64]) {
        while let Some(number) = self.taken.pop() {
            list.restore(number);
            taken[number / 64] &= !(1 << (number % 64));
        }
    }

    /// Takes the calls that fit and change nothing, and notes the calls that change something. Returns the
    /// call whose end comes first, if any end is left.
    fn explore(&mut self, calls: &[Call], state: State, list: &mut List, taken: &mut [u64]) -> Option<usize> {
        let mut refused = Vec::new();
        let mut at = list.first();
        let end = loop {
            match at {
                None => break None,
                Some(Mark::End(number)) => break Some(number),
                Some(Mark::Begin(number)) => {
                    match state.step(number, calls[number].action) {
                        Step::Same => self.take(number, list, taken),
                        Step::To(state) => self.choices.push((number, state)),
                        Step::IfClaimed => refused.push(number),
                        Step::No => {}
                    }
                    at = list.after(number);
                }
            }
        };
        for refused in refused {
            self.choices.extend(list.open(calls).map(|put| (refused, claim(calls, state, put))));
        }
        // The last choice is tried first: calls that must take effect come before optional ones, in the order
        // of time.
        self.choices.sort_by_key(|(number, _)| {
            let Call { action, begin, .. } = calls[*number];
            (!action.is_optional(), action != Action::Refused, Reverse(begin))
        });
        end
    }
}

/// Returns the state of a register after a put was refused because of the put `put`. The claim of a put that
/// never ended may be over at any time, and is not noted.
fn claim(calls: &[Call], state: State, put: usize) -> State {
    if calls[put].end.is_some() { state.claimed_by(put) } else { state }
}

/// Begin or end of a call.
#[derive(Clone, Copy)]
enum Mark {
    Begin(usize),
    End(usize),
}

/// List of the begins and ends of calls, linked in the order of time. Place 0 is before all.
struct List {
    marks: Vec<Option<Mark>>,
    next: Vec<usize>,
    before: Vec<usize>,
    /// Places of the begin and the end of each call.
    places: Vec<(usize, Option<usize>)>,
}

impl List {
    /// Makes the list of all calls.
    fn of(calls: &[Call]) -> Self {
        let mut times = Vec::new();
        for (number, call) in calls.iter().enumerate() {
            // A begin at the time of an end may have been before the end.
            times.push((call.begin, 0, Mark::Begin(number)));
            times.extend(call.end.map(|end| (end.max(call.begin), 1, Mark::End(number))));
        }
        times.sort_by_key(|(time, rank, _)| (*time, *rank));
        let mut places = vec![(0, None); calls.len()];
        for (at, (_, _, mark)) in times.iter().enumerate() {
            match mark {
                Mark::Begin(number) => places[*number].0 = at + 1,
                Mark::End(number) => places[*number].1 = Some(at + 1),
            }
        }
        let len = times.len() + 1;
        let marks = std::iter::once(None).chain(times.into_iter().map(|(_, _, mark)| Some(mark))).collect();
        let next = (1..=len).map(|at| at % len).collect();
        let before = (0..len).map(|at| (at + len - 1) % len).collect();
        Self { marks, next, before, places }
    }

    /// Returns the first begin or end in the list.
    fn first(&self) -> Option<Mark> {
        self.marks[self.next[0]]
    }

    /// Returns the begin or end that follows the begin of a call. For a removed call, returns the one that
    /// followed when the call was removed.
    fn after(&self, number: usize) -> Option<Mark> {
        self.marks[self.next[self.places[number].0]]
    }

    /// Returns the numbers of the puts and writes that may have claimed the register: those that have begun
    /// and have no moment so far.
    fn open<'a>(&'a self, calls: &'a [Call]) -> impl Iterator<Item = usize> + 'a {
        let begun = std::iter::successors(self.first(), |mark| match mark {
            Mark::Begin(number) => self.after(*number),
            Mark::End(_) => None,
        });
        begun.filter_map(|mark| match mark {
            Mark::Begin(number) => calls[number].action.claims().then_some(number),
            Mark::End(_) => None,
        })
    }

    /// Removes the begin and the end of a call.
    fn remove(&mut self, number: usize) {
        let (begin, end) = self.places[number];
        for at in end.into_iter().chain(std::iter::once(begin)) {
            let (before, next) = (self.before[at], self.next[at]);
            self.next[before] = next;
            self.before[next] = before;
        }
    }

    /// Puts back the begin and the end of the call that was removed last.
    fn restore(&mut self, number: usize) {
        let (begin, end) = self.places[number];
        for at in std::iter::once(begin).chain(end) {
            let (before, next) = (self.before[at], self.next[at]);
            self.next[before] = at;
            self.before[next] = at;
        }
    }
}
