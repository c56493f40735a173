//! Answers to operations: what a session is told beside the outcome, and for how long it may keep that. Owns
//! no state. Engine thread only.
//!
//! Invariant: a session keeps only what it watches, unless it is the only one.

use std::collections::BTreeSet;

use plasmon::wire::files::{Attributes, Extended, FileAnswer, FileOperation, FileOutcome};

use super::cut::Operation;
use super::decide::Limits;
use super::state::State;
use super::volume::Volume;
use super::watch::VALID_TIME;

impl Volume {
    /// Returns the answer to an operation with its outcome. `gone` is a folder that the operation removed.
    pub(super) fn answer(
        &self,
        state: &State,
        operation: &Operation<'_>,
        (outcome, gone): (FileOutcome, Option<u64>),
        limits: Limits,
    ) -> FileAnswer {
        let now = self.kernel.clock.now();
        let asked = &operation.asked.operation;
        let mut folders = folders_of(state, asked, &outcome);
        folders.extend(gone.and_then(|gone| state.attributes(gone)));
        let may_keep = if self.is_alone(state) {
            self.valid_until.set(now + VALID_TIME);
            true
        } else if operation.follows {
            let room = limits.memory.saturating_sub(state.memory);
            let (session, mut watchers) = (operation.key.session, self.watchers.borrow_mut());
            if !watchers.give_folders(now, session, &folders, room) {
                folders.clear();
            }
            watchers.give(now, session, asked, &outcome, room)
        } else {
            folders.clear();
            false
        };
        let valid_ms = if may_keep { VALID_TIME.as_millis() as u32 } else { 0 };
        FileAnswer { valid_ms, outcome, folders, limited: Some(state.terms.are_limited()) }
    }
}

/// Returns attributes of the folders in which an operation has changed names, and of folders that it moved.
fn folders_of(state: &State, operation: &FileOperation, outcome: &FileOutcome) -> Vec<Attributes> {
    use FileOperation as O;
    let above = match operation {
        _ if matches!(outcome, FileOutcome::Failed(_)) => return Vec::new(),
        O::Create { name, .. } if name.is_empty() => return Vec::new(),
        O::Create { folder, .. }
        | O::MakeFolder { folder, .. }
        | O::MakeNode { folder, .. }
        | O::MakeSymlink { folder, .. }
        | O::Link { folder, .. }
        | O::Unlink { folder, .. }
        | O::RemoveFolder { folder, .. } => BTreeSet::from([*folder]),
        O::Rename { folder, name, to_folder, to_name, .. } => {
            let moved = [state.entry(*folder, name), state.entry(*to_folder, to_name)];
            let moved = moved.into_iter().flatten().map(|entry| entry.inode);
            let is_folder = |inode: &u64| state.inode(*inode).is_some_and(|inode| inode.folder().is_some());
            [*folder, *to_folder].into_iter().chain(moved.filter(is_folder)).collect()
        }
        _ => return Vec::new(),
    };
    above.into_iter().filter_map(|folder| state.attributes(folder)).collect()
}

/// Returns the folder that an operation removes if it succeeds.
pub(super) fn gone_folder(state: &State, operation: &FileOperation) -> Option<u64> {
    use FileOperation as O;
    let (folder, name) = match operation {
        O::RemoveFolder { folder, name } => (folder, name),
        O::Rename { to_folder, to_name, exchange: false, .. } => (to_folder, to_name),
        _ => return None,
    };
    let inode = state.entry(*folder, name)?.inode;
    state.inode(inode)?.folder().map(|_| inode)
}

/// Returns an outcome as it is kept. Whoever repeats the operation asks for the map of an opened file too.
pub(super) fn kept(outcome: &FileOutcome) -> FileOutcome {
    match outcome {
        FileOutcome::Opened { attributes, created, map, maps } if !map.sections.is_empty() => {
            let map = Extended { sections: Vec::new(), next: Some(0) };
            FileOutcome::Opened { attributes: attributes.clone(), created: *created, map, maps: *maps }
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use plasmon::wire::files::{ROOT_INODE, Section, Source, Time, VolumeTerms};

    use super::*;

    #[test]
    fn an_outcome_is_kept_without_a_map() {
        let state = State::new(1, VolumeTerms::default(), 0, 0, Time::default());
        let attributes = state.attributes(ROOT_INODE).expect("every volume has a root");
        let section = Section { offset: 0, len: 3, source: Source::Inline("abc".into()) };
        let opened = |sections, next| {
            let map = Extended { sections, next };
            FileOutcome::Opened { attributes: attributes.clone(), created: true, map, maps: true }
        };
        assert_eq!(kept(&opened(vec![section], None)), opened(Vec::new(), Some(0)));
        let empty = opened(Vec::new(), None);
        assert_eq!(kept(&empty), empty);
    }
}
