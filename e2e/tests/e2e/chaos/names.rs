//! Names that all workers use, and their check: as long as there is no fault, a name is a register, as
//! [`crate::registers`] defines it.
//!
//! At the beginning of each round no name has an object. From then until the first fault the calls are noted,
//! and checked after the round. A call that ended after the first fault may have taken effect or not.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use plasmon::{CreateOptions, DeleteOutcome, Error, ErrorKind, ObjectId, Presence};
use plasmon_e2e::linear::{Action, Call, Value, violations};

use super::life::Life;
use super::model::Weather;
use super::schedule::NAMES;
use super::worker::{DELETION, Worker};

/// Largest number of violations of a name that are looked for.
const MOST: usize = 3;

/// Id and text of a name.
pub(super) fn named(name: usize) -> (ObjectId, String) {
    let text = format!("chaos/{name}");
    (ObjectId::from_name(&text), text)
}

/// Calls on each name since the round began.
pub(super) struct Histories {
    start: Instant,
    calls: Mutex<Vec<Vec<Call>>>,
}

impl Histories {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), calls: Mutex::new(vec![Vec::new(); NAMES]) }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Forgets the noted calls.
    pub(super) fn clear(&self) {
        self.calls.lock().unwrap().iter_mut().for_each(Vec::clear);
    }

    /// Checks whether each name can have been a register, and forgets the noted calls. Returns their number.
    pub(super) fn check(&self) -> usize {
        let mut checked = 0;
        for (name, calls) in self.calls.lock().unwrap().iter_mut().enumerate() {
            let found: Vec<_> = violations(calls, MOST).iter().map(ToString::to_string).collect();
            assert!(found.is_empty(), "name {name} is no register:\n{}", found.join("\n"));
            checked += calls.len();
            calls.clear();
        }
        checked
    }
}

/// Beginning of a call, with the faults at that time.
pub(super) struct Begun {
    time: u64,
    weather: Weather,
}

impl Worker {
    pub(super) fn begin(&self) -> Begun {
        let weather = self.ground.model.weather();
        Begun { time: self.ground.histories.now(), weather }
    }

    /// Notes the answer to a call if there was no fault by then; otherwise its possible effect.
    pub(super) fn end(&self, name: usize, begun: &Begun, told: Option<Action>, otherwise: Option<Action>) {
        let now = self.ground.histories.now();
        if !begun.weather.calm_until(begun.weather) {
            return;
        }
        // A fault clears the notes either after this, or before, and then this call sees the fault.
        let mut calls = self.ground.histories.calls.lock().unwrap();
        let told = told.filter(|_| begun.weather.calm_until(self.ground.model.weather()));
        let end = told.is_some().then_some(now);
        if let Some(action) = told.or(otherwise) {
            let client = Some(self.number);
            calls[name].push(Call { node: self.node, client, begin: begun.time, end, action });
        }
    }

    pub(super) fn put_name(&mut self, name: usize, len: usize) {
        self.named += 1;
        let value = Value { writer: self.number as u32, number: self.named };
        let life = Life { seed: u64::from(value.writer) << 32 | u64::from(value.number), len };
        self.ground.model.name(name, life);
        let (id, text) = named(name);
        let options = CreateOptions { name: Some(text), ..CreateOptions::default() };
        let (data, metadata) = (life.data(), life.metadata());
        let begun = self.begin();
        let put = self.call("put name", Duration::ZERO, |client| client.put(id, &data, &metadata, &options));
        let told = match put.as_ref().map_err(Error::kind) {
            Ok(()) => Some(Action::Put(value)),
            Err(ErrorKind::Exists) => Some(Action::Refused),
            Err(_) => None,
        };
        let otherwise = (told != Some(Action::Refused)).then_some(Action::MaybePut(value));
        self.end(name, &begun, told, otherwise);
        match put {
            Err(error) if matches!(error.kind(), ErrorKind::Exists | ErrorKind::Full) => {}
            result => self.explained(result),
        }
    }

    pub(super) fn get_name(&mut self, name: usize, patience: Duration) {
        let (id, begun) = (named(name).0, self.begin());
        match self.call("get name", patience, |client| client.get(&[id], Some(patience))?.remove(0)) {
            Ok(object) => {
                let life = Life::of(&object);
                let value = Value { writer: (life.seed >> 32) as u32, number: life.seed as u32 };
                self.end(name, &begun, Some(Action::Got(value)), None);
                assert!(self.ground.model.was_named(name, life), "{life:?} was never put under name {name}");
            }
            Err(error) => {
                let explained = [
                    ErrorKind::TimedOut,
                    ErrorKind::Disconnected,
                    ErrorKind::Lost,
                    ErrorKind::Full,
                    ErrorKind::NotFound,
                ];
                assert!(explained.contains(&error.kind()), "{:?}: {error}", error.kind());
            }
        }
    }

    pub(super) fn delete_name(&mut self, name: usize) {
        let (id, begun) = (named(name).0, self.begin());
        let deleted = self.call("delete name", DELETION, |client| client.delete(&[id]));
        let told =
            deleted.as_ref().ok().map(|outcomes| Action::Deleted(outcomes[0] != DeleteOutcome::Absent));
        self.end(name, &begun, told, Some(Action::MaybeDeleted));
        self.explained(deleted);
    }

    pub(super) fn contains_name(&mut self, name: usize) {
        let (id, begun) = (named(name).0, self.begin());
        let contains = self.call("contains name", DELETION, |client| client.contains(&[id]));
        let told = contains.as_ref().ok().map(|found| Action::Contains(found[0] != Presence::Absent));
        self.end(name, &begun, told, None);
        self.explained(contains);
    }
}
