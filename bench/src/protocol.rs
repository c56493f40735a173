//! The requests of the harness, and the loops that time what a peer does.
//!
//! Runs on the worker's only thread. Invariant: between two readings of the clock there is one call and
//! nothing else.

use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::Result;

/// Times of calls that `sustain` reports.
const SAMPLE: usize = 2000;

/// The numbers of objects: the first, how many, and the step from one to the next, if it is not 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Numbers(u64, u64, #[serde(default)] u64);

impl Numbers {
    pub(crate) fn count(self) -> usize {
        usize::try_from(self.1).unwrap_or(usize::MAX)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = u64> {
        let Self(first, count, step) = self;
        (0..count).map(move |place| first + place * step.max(1))
    }
}

/// What a peer can do; the first line a worker writes.
#[derive(Debug, Serialize)]
pub(crate) struct Greeting {
    /// Of what is measured.
    pub(crate) version: &'static str,
    /// Whether a get gives the bytes where they lie.
    pub(crate) in_place: bool,
    /// Whether a client can name an object that another one has put.
    pub(crate) shared: bool,
    /// What can be measured.
    pub(crate) operations: &'static [&'static str],
}

/// A line of the harness.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub(crate) enum Request {
    /// Time single calls.
    Measure {
        #[serde(flatten)]
        work: Work,
        /// How many, at most.
        calls: Option<usize>,
        /// For how long, about.
        seconds: Option<f64>,
    },
    /// Call as fast as possible for a time.
    Sustain {
        #[serde(flatten)]
        work: Work,
        /// When to begin, in nanoseconds of the monotonic clock.
        start: u64,
        /// For how long.
        seconds: f64,
    },
    /// Make the ids of objects ready, so that `Sustain` starts in time.
    Prepare { owner: u64, numbers: Numbers },
    /// Delete objects.
    Discard { owner: u64, numbers: Numbers },
}

/// Which operation, on which objects.
#[derive(Debug, Deserialize)]
pub(crate) struct Work {
    operation: String,
    size: usize,
    owner: u64,
    numbers: Numbers,
    batch: Option<usize>,
}

/// A line for the harness; times are nanoseconds.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Answer {
    Measured { ns: Vec<u64> },
    Sustained { calls: usize, ns: u64, sample: Vec<u64> },
    Failed { error: String },
    Done {},
}

/// One operation, prepared: everything but the call itself has been done.
///
/// It is called on units by their index: objects, or batches of them.
pub(crate) trait Call {
    /// How many different units it can be called on.
    fn units(&self) -> usize;
    /// Whether it can be called once for each of them only, as a put or a deletion.
    fn once(&self) -> bool;
    /// Makes ready for the call on a unit; is not timed.
    fn prepare(&mut self, _index: usize) -> Result<()> {
        Ok(())
    }
    /// The call on a unit.
    fn call(&mut self, index: usize) -> Result<()>;
    /// Looks whether a unit, the last one called on, is as it should be; is not timed.
    fn check(&mut self, index: usize) -> Result<()>;
}

/// What is measured: a store, or the machine.
pub(crate) trait Peer {
    /// What it can do.
    fn greeting(&self) -> Greeting;
    /// Prepares an operation on the objects of an owner.
    fn operation(
        &mut self,
        operation: &str,
        size: usize,
        owner: u64,
        numbers: Numbers,
        batch: usize,
    ) -> Result<Box<dyn Call + '_>>;
    /// Makes the ids of objects ready.
    fn prepare(&mut self, _owner: u64, _numbers: Numbers) {}
    /// Deletes objects.
    fn discard(&mut self, owner: u64, numbers: Numbers) -> Result<()>;
}

/// Does what one request asks for.
pub(crate) fn answer(peer: &mut impl Peer, request: Request) -> Result<Answer> {
    match request {
        Request::Measure { work, calls, seconds } => {
            let seconds = seconds.map_or(Duration::MAX, Duration::from_secs_f64);
            measure(&mut *prepare(peer, &work)?, calls.unwrap_or(usize::MAX), seconds)
        }
        Request::Sustain { work, start, seconds } => {
            sustain(&mut *prepare(peer, &work)?, start, Duration::from_secs_f64(seconds))
        }
        Request::Prepare { owner, numbers } => {
            peer.prepare(owner, numbers);
            Ok(Answer::Done {})
        }
        Request::Discard { owner, numbers } => {
            peer.discard(owner, numbers)?;
            Ok(Answer::Done {})
        }
    }
}

fn prepare<'a>(peer: &'a mut impl Peer, work: &Work) -> Result<Box<dyn Call + 'a>> {
    let batch = work.batch.unwrap_or(1).max(1);
    peer.operation(&work.operation, work.size, work.owner, work.numbers, batch)
}

fn measure(call: &mut dyn Call, calls: usize, seconds: Duration) -> Result<Answer> {
    let calls = if call.once() { calls.min(call.units()) } else { calls };
    let begin = Instant::now();
    let mut ns = Vec::new();
    while ns.len() < calls && begin.elapsed() < seconds {
        let index = ns.len() % call.units();
        call.prepare(index)?;
        let start = Instant::now();
        call.call(index)?;
        ns.push(nanoseconds(start.elapsed()));
    }
    if let Some(last) = ns.len().checked_sub(1) {
        call.check(last % call.units())?;
    }
    Ok(Answer::Measured { ns })
}

fn sustain(call: &mut dyn Call, start: u64, seconds: Duration) -> Result<Answer> {
    let now = clock_gettime(ClockId::Monotonic);
    let ready = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let Some(rest) = start.checked_sub(ready) else {
        return Err(format!("this worker was ready {:.1} s too late", (ready - start) as f64 / 1e9).into());
    };
    thread::sleep(Duration::from_nanos(rest));
    let limit = if call.once() { call.units() } else { usize::MAX };
    let mut ns = Vec::new();
    let begin = Instant::now();
    let mut now = begin;
    while ns.len() < limit && now - begin < seconds {
        let before = now;
        call.call(ns.len() % call.units())?;
        now = Instant::now();
        ns.push(nanoseconds(now - before));
    }
    if let Some(last) = ns.len().checked_sub(1) {
        call.check(last % call.units())?;
    }
    let sample = ns.iter().copied().step_by((ns.len() / SAMPLE).max(1)).take(SAMPLE).collect();
    Ok(Answer::Sustained { calls: ns.len(), ns: nanoseconds(now - begin), sample })
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
