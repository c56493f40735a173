//! Calls of a client of a simulation that put an object in the place of another.

use plasmon::ErrorKind;
use plasmon::wire::{Placement, Replacing, Reply, Request, SealingOver};
use plasmon_linear::{Action, Value};

use super::super::{FIRST_REPLICATED_ID, Simulation, below, percent};
use super::{Doing, Expected, Worker};

/// Longest time that a replacement may take, in microseconds.
const TIMEOUT_US: u64 = 2_000_000;

impl Worker {
    /// Returns a write, or a compare-and-set that expects a version of which a client was told. An object
    /// that two nodes are to keep is only compared and set: a write where there is none is a put, which makes
    /// its copies after the object is there.
    pub(super) fn replace(&mut self, simulation: &Simulation, id: usize) -> (Doing, Request) {
        let known = &simulation.versions[id];
        let expected = match known.len() {
            0 => None,
            count => {
                (id >= FIRST_REPLICATED_ID || percent(50)).then(|| known[count - 1 - below(count.min(2))])
            }
        };
        let (doing, mut request) = self.put(id, simulation.ids[id], simulation.hosts[self.host].has_disk());
        if expected.is_none() && id >= FIRST_REPLICATED_ID {
            return (doing, request);
        }
        if let Request::Put { object, .. } | Request::Create { object, .. } = &mut request
            && percent(50)
        {
            // As many nodes are to keep the new object as were to keep the former one.
            object.terms.copies = 0;
        }
        match (doing, request) {
            (Doing::Put { id, value, .. }, Request::Put { object, digest, data, .. }) => {
                let (version, from) = expected.unzip();
                let timeout_us = TIMEOUT_US;
                let replacing = Replacing { object, expected: version, digest, timeout_us, data };
                (Doing::Replace { id, value, expected: from }, Request::Replace(replacing))
            }
            (
                Doing::Create { id, value, len },
                Request::Create { mut object, data_len, metadata_len, room_us },
            ) => {
                object.terms.replaces = true;
                let request = Request::Create { object, data_len, metadata_len, room_us };
                (Doing::CreateOver { id, value, len, expected }, request)
            }
            other => other,
        }
    }

    /// Notes how a write or a compare-and-set has ended.
    pub(super) fn note_replaced(
        &mut self,
        simulation: &mut Simulation,
        (begin, end): (u64, Option<u64>),
        (id, value, expected): (usize, Value, Option<Value>),
        reply: &Reply,
    ) {
        let action = match reply {
            Reply::Replaced { version } => {
                simulation.versions[id].push((*version, value));
                match expected {
                    Some(from) => Action::Swapped { from, to: value },
                    None => Action::Wrote(value),
                }
            }
            Reply::Failed { error } if error.kind() == ErrorKind::Conflict && expected.is_some() => {
                let is = error.version().map(|version| version.number());
                let known = simulation.versions[id].iter().find(|(version, _)| Some(*version) == is);
                known.map_or(Action::Contains(true), |(_, value)| Action::Got(*value))
            }
            Reply::Failed { error } if error.kind() == ErrorKind::NotFound && expected.is_some() => {
                Action::Contains(false)
            }
            _ => {
                let action = match expected {
                    Some(from) => Action::MaybeSwapped { from, to: value },
                    None => Action::MaybeWrote(value),
                };
                return simulation.note(id, self.call(begin, None, action));
            }
        };
        simulation.note(id, self.call(begin, end, action));
    }

    /// Writes an object in its place, and puts it in the place of another.
    pub(super) fn seal_over(
        &mut self,
        simulation: &mut Simulation,
        begin: u64,
        (id, value, len): (usize, Value, usize),
        expected: Expected,
        placement: Placement,
    ) {
        let Some((digest, data)) = self.write(simulation, id, (value, len), placement) else { return };
        let (object, data) = (simulation.ids[id], data.into());
        let (expected, from) = expected.unzip();
        let over = SealingOver { id: object, expected, digest, timeout_us: TIMEOUT_US, data };
        self.begin(simulation, begin, Doing::Replace { id, value, expected: from }, Request::SealOver(over));
    }
}
