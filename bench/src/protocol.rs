//! The requests of the harness, and the loops that time what a peer does.
//!
//! Runs on the worker's only thread. Invariant: between two readings of the clock there is one call and
//! nothing else.

use std::io::{BufRead, Write, stdin, stdout};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::Result;

/// Times of calls that `sustain` reports.
const SAMPLE: usize = 2000;

/// The numbers of objects: the first, how many, and the step from one to the next, if it is not 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Numbers(u64, u64, #[serde(default)] u64);

impl Numbers {
    /// How many.
    pub fn count(self) -> usize {
        usize::try_from(self.1).unwrap_or(usize::MAX)
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = u64> {
        let Self(first, count, step) = self;
        (0..count).map(move |place| first + place * step.max(1))
    }
}

/// What a peer can do; the first line a worker writes.
#[derive(Debug, Serialize)]
pub struct Greeting {
    /// Of what is measured.
    pub version: &'static str,
    /// Whether a get gives the bytes where they lie.
    pub in_place: bool,
    /// Whether a client can name an object that another one has put.
    pub shared: bool,
    /// What can be measured.
    pub operations: &'static [&'static str],
}

/// A line of the harness.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Request {
    /// Time single calls.
    Measure {
        /// Which.
        #[serde(flatten)]
        work: Work,
        /// How many, at most.
        calls: Option<usize>,
        /// For how long, about.
        seconds: Option<f64>,
    },
    /// Call as fast as possible for a time.
    Sustain {
        /// Which.
        #[serde(flatten)]
        work: Work,
        /// When to begin, in nanoseconds of the monotonic clock.
        start: u64,
        /// For how long.
        seconds: f64,
    },
    /// Make the ids of objects ready, so that `Sustain` starts in time.
    Prepare {
        /// Whose they are.
        owner: u64,
        /// Which.
        numbers: Numbers,
    },
    /// Delete objects.
    Discard {
        /// Whose they are.
        owner: u64,
        /// Which.
        numbers: Numbers,
    },
    /// Drop all replicas that came from other nodes.
    Evict,
}

/// Which operation, on which objects.
#[derive(Debug, Deserialize)]
pub struct Work {
    operation: String,
    size: usize,
    owner: u64,
    numbers: Numbers,
    batch: Option<usize>,
}

/// A line for the harness; times are nanoseconds. `cpu_ns` is what this process spent in the loop.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// Times of single calls.
    Measured {
        /// Of each.
        ns: Vec<u64>,
        /// Of all.
        cpu_ns: u64,
    },
    /// Calls one after the other, for a time.
    Sustained {
        /// How many.
        calls: usize,
        /// How long they took together.
        ns: u64,
        /// Times of some of them.
        sample: Vec<u64>,
        /// Of all.
        cpu_ns: u64,
    },
    /// Replicas were dropped.
    Evicted {
        /// Of so many bytes.
        bytes: u64,
    },
    /// What was asked for could not be done.
    Failed {
        /// Why.
        error: String,
    },
    /// What was asked for was done.
    Done {},
}

/// One operation, prepared: everything but the call itself has been done.
///
/// It is called on units by their index: objects, or batches of them.
pub trait Call {
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

/// A [`Call`] that is the same for all units and leaves nothing behind: what a machine can do without a
/// store.
pub trait Limit {
    /// Makes ready for the call; is not timed.
    ///
    /// # Errors
    /// When that cannot be done.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }
    /// The call.
    ///
    /// # Errors
    /// When it fails.
    fn call(&mut self) -> Result<()>;
    /// Looks whether it did what it should have; is not timed.
    ///
    /// # Errors
    /// When it did not.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }
}

impl<T: Limit> Call for T {
    fn units(&self) -> usize {
        1
    }

    fn once(&self) -> bool {
        false
    }

    fn prepare(&mut self, _index: usize) -> Result<()> {
        Limit::prepare(self)
    }

    fn call(&mut self, _index: usize) -> Result<()> {
        Limit::call(self)
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        Limit::check(self)
    }
}

/// What is measured: a store, or the machine.
pub trait Peer {
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
    /// Drops all replicas that came from other nodes, and says of how many bytes.
    fn evict(&mut self) -> Result<u64> {
        Err("there is nothing to evict".into())
    }
}

/// Answers requests until standard input ends.
///
/// # Errors
/// When a pipe breaks; what a request asked for in vain is an answer.
pub fn serve(mut peer: impl Peer) -> Result<()> {
    let mut answers = stdout().lock();
    writeln!(answers, "{}", serde_json::to_string(&peer.greeting())?)?;
    for line in stdin().lock().lines() {
        let answer = serde_json::from_str::<Request>(&line?)
            .map_err(Into::into)
            .and_then(|request| answer(&mut peer, request))
            .unwrap_or_else(|error| Answer::Failed { error: error.to_string() });
        writeln!(answers, "{}", serde_json::to_string(&answer)?)?;
    }
    Ok(())
}

/// Does what one request asks for.
fn answer(peer: &mut impl Peer, request: Request) -> Result<Answer> {
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
        Request::Evict => Ok(Answer::Evicted { bytes: peer.evict()? }),
    }
}

fn prepare<'a>(peer: &'a mut impl Peer, work: &Work) -> Result<Box<dyn Call + 'a>> {
    let batch = work.batch.unwrap_or(1).max(1);
    if work.numbers.count() == 0 {
        return Err(format!("{} of no objects", work.operation).into());
    }
    peer.operation(&work.operation, work.size, work.owner, work.numbers, batch)
}

fn measure(call: &mut dyn Call, calls: usize, seconds: Duration) -> Result<Answer> {
    let calls = if call.once() { calls.min(call.units()) } else { calls };
    let (begin, cpu) = (Instant::now(), cpu_time());
    let mut ns = Vec::new();
    while ns.len() < calls && begin.elapsed() < seconds {
        let index = ns.len() % call.units();
        call.prepare(index)?;
        let start = Instant::now();
        call.call(index)?;
        ns.push(nanoseconds(start.elapsed()));
    }
    let cpu_ns = cpu_time() - cpu;
    if let Some(last) = ns.len().checked_sub(1) {
        call.check(last % call.units())?;
    }
    Ok(Answer::Measured { ns, cpu_ns })
}

fn sustain(call: &mut dyn Call, start: u64, seconds: Duration) -> Result<Answer> {
    let ready = clock(ClockId::Monotonic);
    let Some(rest) = start.checked_sub(ready) else {
        return Err(format!("this worker was ready {:.1} s too late", (ready - start) as f64 / 1e9).into());
    };
    thread::sleep(Duration::from_nanos(rest));
    let limit = if call.once() { call.units() } else { usize::MAX };
    let mut ns = Vec::new();
    let (begin, cpu) = (Instant::now(), cpu_time());
    let mut now = begin;
    while ns.len() < limit && now - begin < seconds {
        let before = now;
        call.call(ns.len() % call.units())?;
        now = Instant::now();
        ns.push(nanoseconds(now - before));
    }
    let cpu_ns = cpu_time() - cpu;
    if let Some(last) = ns.len().checked_sub(1) {
        call.check(last % call.units())?;
    }
    let sample = ns.iter().copied().step_by((ns.len() / SAMPLE).max(1)).take(SAMPLE).collect();
    Ok(Answer::Sustained { calls: ns.len(), ns: nanoseconds(now - begin), sample, cpu_ns })
}

/// What all threads of this process have spent.
fn cpu_time() -> u64 {
    clock(ClockId::ProcessCPUTime)
}

fn clock(id: ClockId) -> u64 {
    let now = clock_gettime(id);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
