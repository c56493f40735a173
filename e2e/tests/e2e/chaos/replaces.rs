//! Replacements: objects that take the place of others, and what follows for the [`Model`].
//!
//! A replacement is like a move to the node of the writer, of which all that is known is which lives may be
//! there: the former ones until it has ended well, the new one from its beginning, unless it was refused.
//! After a replacement with an unknown outcome either may be there, and the new one may come later.

use std::sync::Arc;
use std::time::Duration;

use plasmon::{Client, CreateOptions, Error, ErrorKind, ObjectId, Version};
use plasmon_e2e::linear::{Action, Value};

use super::life::Life;
use super::model::{Model, Place, Record, State};
use super::names::named;
use super::schedule::{How, Which};
use super::worker::{AMPLE, BURDEN_BYTES, Worker};

/// How a replacement ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Well,
    /// The former object stays.
    Refused,
    Unknown,
}

/// A replacement that was begun.
struct Begun {
    before: Record,
    /// The daemon that writes.
    at: Place,
    life: Life,
    /// The number of moves and replacements that were begun, if no other was under way.
    number: Option<usize>,
    /// The number of nodes that are to keep the new object, if that is certain.
    copies: Option<u16>,
    /// The number of nodes that are to keep the former object, if that is certain.
    former: Option<u16>,
}

impl Model {
    /// Notes that a get which began with the record `before` gave this life of an object.
    pub(super) fn is_given(&self, before: Option<&Record>, after: &Record, life: Life) {
        // An object that was not yet put when the call began had no other life then.
        let begin = before.unwrap_or(after);
        let strict = self.weather().is_strict();
        let may_be = if strict { after.lives.admit(&begin.lives, life) } else { after.lives.may_have(life) };
        assert!(may_be, "{life:?} of {after:?}; when the call began: {before:?}");
        if let Some(before) = before {
            self.was_told(before, life);
        }
    }

    /// Notes that a call which began with the record `before` was told of a life.
    pub(super) fn was_told(&self, before: &Record, life: Life) {
        if self.weather().is_strict() {
            self.change(before.key, |record| record.lives.were_told(&before.lives, life));
        }
    }

    fn begin_replace(&self, before: Record, life: Life, asked: u16, at: Place) -> Begun {
        self.change(before.key, |record| {
            let alone = record.at_rest();
            let is_known = record.is_known() && record.replacements.0 == record.replacements.1;
            let former = record.copies.filter(|_| alone && is_known);
            let copies = if asked == 0 { former } else { Some(asked).filter(|_| alone && is_known) };
            record.lives.begins(life);
            record.kept.clear();
            record.copies = None;
            record.targets.push(at);
            record.moves.0 += 1;
            record.replacements.0 += 1;
            let number = alone.then_some(record.moves.0);
            let mut before = before;
            before.replications = record.replications;
            Begun { before, at, life, number, copies, former }
        })
    }

    fn end_replace(&self, begun: &Begun, end: End) {
        let strict = self.weather().is_strict();
        self.change(begun.before.key, |record| {
            record.moves.1 += 1;
            record.replacements.1 += 1;
            if record.deletions != begun.before.deletions || record.state != State::Sealed {
                record.state = State::Either("it was deleted while it was replaced");
            }
            let alone = begun.number == Some(record.moves.0);
            let untouched = alone && record.replications == begun.before.replications;
            match end {
                End::Well if strict => record.lives.were_told(&begun.before.lives, begun.life),
                End::Well => {}
                End::Refused => record.lives.is_refused(begun.life),
                End::Unknown => record.in_doubt = true,
            }
            match end {
                End::Well if alone && strict => {
                    record.home = begun.at;
                    record.targets.clear();
                    record.copies = begun.copies.filter(|_| untouched);
                }
                End::Refused if alone => {
                    record.targets.clear();
                    record.copies = begun.former.filter(|_| untouched);
                }
                _ => {}
            }
        });
    }
}

impl Worker {
    /// Puts an object in the place of another.
    pub(super) fn replace(&mut self, which: Which, len: usize, copies: u16, how: How) {
        let ground = Arc::clone(&self.ground);
        let model = &ground.model;
        let Some(found) = model.find(which).filter(|record| record.state == State::Sealed) else { return };
        if model.burden(self.node) + len > BURDEN_BYTES {
            return model.count("replace: not made, the node has enough".to_owned());
        }
        let id = found.id;
        let expected = if how.compares {
            let Some(told) = self.told.get(&id).copied().or_else(|| self.versioned(&found)) else { return };
            Some(told)
        } else {
            None
        };
        let Some(before) = model.record(found.key) else { return };
        self.named += 1;
        let life = Life { seed: 1 << 63 | u64::from(self.number as u32) << 32 | u64::from(self.named), len };
        let (weather, calm_before) = (model.weather(), model.must(&before));
        let begun = model.begin_replace(before, life, copies, self.at);
        let options = CreateOptions { replicas: copies, ..CreateOptions::default() };
        let what = format!("replace of {id}, {len} bytes, {copies} copies, {how:?}, {expected:?}");
        let result = self.put_over(&what, id, life, &options, how.creates, expected.map(|told| told.1));
        let end = match result.as_ref().map_err(Error::kind) {
            Ok(version) => {
                self.told.insert(id, (life, *version));
                End::Well
            }
            // The object may be there, with too few copies or until it was deleted.
            Err(_) if copies > 1 => End::Unknown,
            Err(ErrorKind::Disconnected | ErrorKind::OutcomeUnknown) => End::Unknown,
            Err(_) => End::Refused,
        };
        model.end_replace(&begun, end);
        if let (Ok(_), Some((from, _))) = (&result, expected) {
            let known = &begun.before.lives;
            assert!(!weather.is_strict() || known.admit(known, from), "{from:?} was there: {known:?}");
        }
        match result.map_err(|error| (error.kind(), error)) {
            Err((ErrorKind::Full, _)) => {}
            // Without a number, as many nodes are to keep the new object as kept the former one.
            Err((ErrorKind::TooFew | ErrorKind::Lost, _)) if copies != 1 => {}
            Err((ErrorKind::Conflict, _)) if expected.is_some() => {}
            Err((ErrorKind::NotFound, error)) if expected.is_some() || copies > 1 => {
                let after = model.record(begun.before.key);
                let must = calm_before && after.as_ref().is_some_and(|after| model.must(after));
                assert!(!must || !ground.calm(weather), "{error}: {after:?}");
            }
            result => self.explained(result.map_err(|(_, error)| error)),
        }
    }

    /// Gets an object with its version, and remembers both.
    fn versioned(&mut self, record: &Record) -> Option<(Life, Version)> {
        let ground = Arc::clone(&self.ground);
        let (id, weather, at, patience) =
            (record.id, ground.model.weather(), self.at, Duration::from_millis(200));
        let before = ground.model.record(record.key);
        let got = self.call(&format!("get with version of {id}"), patience, |client| {
            client.get_versioned(&[id], Some(patience))?.remove(0)
        });
        let version = got.as_ref().ok().map(|(_, version)| *version);
        let object = got.map(|(object, _)| object);
        let (life, _) = self.judge(record.key, before.as_ref(), weather, at, patience, object)?;
        let told = (life, version?);
        self.told.insert(id, told);
        Some(told)
    }

    /// Puts an object in the place of what has its id.
    fn put_over(
        &mut self,
        what: &str,
        id: ObjectId,
        life: Life,
        options: &CreateOptions,
        creates: bool,
        expected: Option<Version>,
    ) -> Result<Version, Error> {
        let (data, metadata) = (life.data(), life.metadata());
        let options = CreateOptions { room: Some(AMPLE), replace: creates, ..options.clone() };
        self.call(what, AMPLE, |client: &Client| {
            if !creates {
                return client.replace(id, &data, &metadata, &options, expected);
            }
            let mut creation = client.create(id, data.len() as u64, &metadata, &options)?;
            creation.as_mut_slice().copy_from_slice(&data);
            creation.replace(expected)
        })
    }

    /// Puts an object under a name, whatever is there, or in the place of what the worker was told of last.
    pub(super) fn replace_name(&mut self, name: usize, len: usize, how: How) {
        let (id, text) = named(name);
        let expected = self.told.get(&id).copied().filter(|_| how.compares);
        self.named += 1;
        let to = Value { writer: self.number as u32, number: self.named };
        let life = Life { seed: u64::from(to.writer) << 32 | u64::from(to.number), len };
        self.ground.model.name(name, life);
        let options = CreateOptions { name: Some(text), ..CreateOptions::default() };
        let begun = self.begin();
        let version = expected.map(|(_, version)| version);
        let result = self.put_over("replace name", id, life, &options, how.creates, version);
        let from =
            expected.map(|(from, _)| Value { writer: (from.seed >> 32) as u32, number: from.seed as u32 });
        let (told, otherwise) = match result.as_ref().map_err(Error::kind) {
            Ok(version) => {
                self.told.insert(id, (life, *version));
                (Some(from.map_or(Action::Wrote(to), |from| Action::Swapped { from, to })), true)
            }
            Err(ErrorKind::Conflict) => (Some(Action::Contains(true)), false),
            Err(ErrorKind::NotFound) => (Some(Action::Contains(false)), false),
            Err(ErrorKind::TimedOut | ErrorKind::Full) => (None, false),
            Err(_) => (None, true),
        };
        let maybe = from.map_or(Action::MaybeWrote(to), |from| Action::MaybeSwapped { from, to });
        self.end(name, &begun, told, otherwise.then_some(maybe));
        match result {
            Err(error) if error.kind() == ErrorKind::Full => {}
            Err(error)
                if expected.is_some()
                    && matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {}
            result => self.explained(result),
        }
    }
}
