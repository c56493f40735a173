//! Lives of one object in the model: its put, and the replacements that were begun.
//!
//! Every life has at most one span of time: whoever has seen another one after it never sees it again. Lives
//! are noted before they begin. What was told while a node may give out what others have replaced
//! ([`super::model::Weather`]) proves nothing about the order of lives.

use super::life::Life;

/// Lives that an object has had or may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lives {
    /// All that were begun.
    begun: Vec<Life>,
    /// Those that were refused for certain.
    refused: Vec<Life>,
    /// Those that have made way for others for certain.
    over: Vec<Life>,
    /// The one of which a call told last.
    present: Life,
}

impl Lives {
    pub(super) fn of(life: Life) -> Self {
        Self { begun: vec![life], refused: Vec::new(), over: Vec::new(), present: life }
    }

    pub(super) fn begins(&mut self, life: Life) {
        self.begun.push(life);
    }

    pub(super) fn is_refused(&mut self, life: Life) {
        self.refused.push(life);
    }

    pub(super) fn begun(&self) -> impl Iterator<Item = Life> {
        self.begun.iter().copied()
    }

    /// Lives that may be there.
    pub(super) fn possible(&self) -> impl Iterator<Item = Life> {
        self.begun.iter().copied().filter(|life| !self.refused.contains(life) && !self.over.contains(life))
    }

    /// Size in bytes of the largest life that may be there.
    pub(super) fn len(&self) -> usize {
        self.possible().map(|life| life.len).max().unwrap_or(0)
    }

    /// Whether this life was ever there, or may be.
    pub(super) fn may_have(&self, life: Life) -> bool {
        self.begun.contains(&life) && !self.refused.contains(&life)
    }

    /// Whether a call that began with `before` may have been told of this life.
    pub(super) fn admit(&self, before: &Self, life: Life) -> bool {
        self.may_have(life) && !before.over.contains(&life)
    }

    /// Notes that a call which began with `before` was told of this life.
    pub(super) fn were_told(&mut self, before: &Self, life: Life) {
        if before.present != life && !self.over.contains(&before.present) {
            self.over.push(before.present);
        }
        if !self.over.contains(&life) {
            self.present = life;
        }
    }
}

#[test]
fn a_life_that_has_made_way_is_not_admitted_again() {
    let [first, second, third] = [1, 2, 3].map(|seed| Life { seed, len: seed as usize });
    let mut lives = Lives::of(first);
    lives.begins(second);
    lives.begins(third);
    let begin = lives.clone();
    assert!([first, second, third].iter().all(|life| lives.admit(&begin, *life)));
    lives.were_told(&begin, second);
    assert!(lives.admit(&begin, first), "a call that began before may have been told of it");
    let later = lives.clone();
    assert!(!lives.admit(&later, first) && lives.admit(&later, second) && lives.admit(&later, third));
    lives.is_refused(third);
    assert!(!lives.admit(&begin, third));
    assert_eq!((lives.possible().collect::<Vec<_>>(), lives.len()), (vec![second], 2));
}
