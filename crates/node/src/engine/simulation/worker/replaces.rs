//! Calls of a client of a simulation that put an object in the place of another.

use plasmon::ErrorKind;
use plasmon::wire::{Placement, Replacing, Reply, Request, SealingOver, Terms};
use plasmon_linear::{Action, Value};

use super::super::{FIRST_REPLICATED_ID, Simulation, below, percent};
use super::{Doing, Expected, Worker};

/// Longest time that a replacement may take, in microseconds.
const TIMEOUT_US: u64 = 2_000_000;
/// Number of replacements in a hundred that expect a version.
const EXPECTING_PERCENT: usize = 50;
/// Number of these in a hundred whose version may be long gone.
const OLD_VERSION_PERCENT: usize = 20;
/// Number of new objects in a hundred that end by themselves after a while, and of those that end with their
/// client.
const TTL_PERCENT: usize = 10;
const OWNED_PERCENT: usize = 5;
/// Times in milliseconds after which they do.
const TTLS_MS: [u64; 3] = [1, 300, 3_000];

impl Worker {
    /// Returns a write, or a compare-and-set that expects a version of which a client was told. An object
    /// that two nodes are to keep is only compared and set: a write where there is none is a put, which makes
    /// its copies after the object is there.
    pub(super) fn replace(&mut self, simulation: &Simulation, id: usize) -> (Doing, Request) {
        let known = &simulation.versions[id];
        let expected = match known.len() {
            0 => None,
            count => (id >= FIRST_REPLICATED_ID || percent(EXPECTING_PERCENT)).then(|| {
                match percent(OLD_VERSION_PERCENT) {
                    true => known[below(count)],
                    false => known[count - 1 - below(count.min(2))],
                }
            }),
        };
        let put = self.put(id, simulation.ids[id], simulation.hosts[self.host].has_disk());
        if expected.is_none() && id >= FIRST_REPLICATED_ID {
            return put;
        }
        let (doing, mut request) = over(put, expected);
        // Nodes that come back may bring what has ended meanwhile.
        if !simulation.brings_back() {
            let terms = terms_of(&mut request);
            terms.ttl_ms = if percent(TTL_PERCENT) { TTLS_MS[below(TTLS_MS.len())] } else { 0 };
            terms.owned = id < FIRST_REPLICATED_ID && percent(OWNED_PERCENT);
        }
        if percent(50) {
            // As many nodes are to keep the new object as were to keep the former one.
            terms_of(&mut request).copies = 0;
        }
        self.ends = terms_of(&mut request).ttl_ms > 0 || terms_of(&mut request).owned;
        (doing, request)
    }

    /// Puts an object of `len` bytes in the place of another, or of an expected one, whatever the seed says.
    pub(in super::super) fn replace_now(
        &mut self,
        simulation: &mut Simulation,
        (id, len): (usize, usize),
        expected: Expected,
    ) {
        let begin = simulation.moment();
        let (doing, request) = over(self.put_of(id, simulation.ids[id], len), expected);
        self.ends = false;
        self.begin(simulation, begin, doing, request);
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
                self.note_end(simulation, begin, id, value);
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
            _ => return self.note_maybe_replaced(simulation, begin, (id, value, expected)),
        };
        simulation.note(id, self.call(begin, end, action));
    }

    /// Notes a write or a compare-and-set whose outcome is not known.
    pub(super) fn note_maybe_replaced(
        &self,
        simulation: &mut Simulation,
        begin: u64,
        (id, value, expected): (usize, Value, Option<Value>),
    ) {
        let action = match expected {
            Some(from) => Action::MaybeSwapped { from, to: value },
            None => Action::MaybeWrote(value),
        };
        self.note_end(simulation, begin, id, value);
        simulation.note(id, self.call(begin, None, action));
    }

    /// Notes that a value may end by itself, if it may.
    fn note_end(&self, simulation: &mut Simulation, begin: u64, id: usize, value: Value) {
        if self.ends {
            simulation.note(id, self.call(begin + 1, None, Action::MaybeEnded(value)));
        }
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
        let (object, data, (expected, from)) = (simulation.ids[id], data.into(), expected.unzip());
        let over = SealingOver { id: object, expected, digest, timeout_us: TIMEOUT_US, data };
        let request = Request::SealOver(over);
        self.begin(simulation, begin, Doing::Replace { id, value, expected: from }, request);
    }
}

/// Makes a put a write, or a compare-and-set of the version that is expected.
fn over((doing, request): (Doing, Request), expected: Expected) -> (Doing, Request) {
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

/// The terms of an object that is to take the place of another.
fn terms_of(request: &mut Request) -> &mut Terms {
    match request {
        Request::Replace(replacing) => &mut replacing.object.terms,
        Request::Create { object, .. } => &mut object.terms,
        other => panic!("{other:?} replaces nothing"),
    }
}
