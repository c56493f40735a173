//! Protocol of the harness: its requests, and the loops that time the calls of a peer.
//!
//! Runs on the worker's only thread. Invariant: between two readings of the clock there is one call and
//! nothing else.

use std::io::{BufRead, Write, stdin, stdout};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::Result;

/// Largest number of times that `sustain` reports.
const SAMPLE: usize = 2000;

/// Numbers of objects: the first, the count, and the step from one to the next if it is not 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Numbers(u64, u64, #[serde(default)] u64);

impl Numbers {
    /// Number of objects.
    pub fn count(self) -> usize {
        usize::try_from(self.1).unwrap_or(usize::MAX)
    }

    /// Iterator over the numbers.
    pub fn iter(self) -> impl Iterator<Item = u64> {
        let Self(first, count, step) = self;
        (0..count).map(move |place| first + place * step.max(1))
    }
}

/// Abilities of a peer: the first line that a worker writes.
#[derive(Debug, Serialize)]
pub struct Greeting {
    /// Version of the peer.
    pub version: &'static str,
    /// Whether a get returns the bytes in place.
    pub in_place: bool,
    /// Whether a client can name an object that another client has put.
    pub shared: bool,
    /// Operations that can be measured.
    pub operations: &'static [&'static str],
}

/// Request of the harness: a line of JSON.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Request {
    /// Time single calls.
    Measure {
        /// Operation and objects.
        #[serde(flatten)]
        work: Work,
        /// Largest number of calls.
        calls: Option<usize>,
        /// Approximate time in seconds.
        seconds: Option<f64>,
    },
    /// Call as fast as possible for a time.
    Sustain {
        /// Operation and objects.
        #[serde(flatten)]
        work: Work,
        /// Time of the first call, in nanoseconds of the monotonic clock.
        start: u64,
        /// Time in seconds.
        seconds: f64,
    },
    /// Compute the ids of objects, so that `Sustain` starts in time.
    Prepare {
        /// Owner of the objects.
        owner: u64,
        /// Numbers of the objects.
        numbers: Numbers,
    },
    /// Delete objects.
    Discard {
        /// Owner of the objects.
        owner: u64,
        /// Numbers of the objects.
        numbers: Numbers,
    },
    /// Drop all replicas that came from other nodes.
    Evict,
}

/// Operation with its objects.
#[derive(Debug, Deserialize)]
pub struct Work {
    operation: String,
    size: usize,
    owner: u64,
    numbers: Numbers,
    batch: Option<usize>,
}

/// Answer to the harness: a line of JSON. Times are in nanoseconds. `cpu_ns` is the CPU time of this process
/// in the loop.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// Times of single calls.
    Measured {
        /// Time of each call.
        ns: Vec<u64>,
        /// CPU time of all calls.
        cpu_ns: u64,
        /// Bytes that the last call has brought there and back, if it knows that better than who made it.
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
    },
    /// Calls one after the other, for a time.
    Sustained {
        /// Number of calls.
        calls: usize,
        /// Time of all calls together.
        ns: u64,
        /// Times of some calls.
        sample: Vec<u64>,
        /// CPU time of all calls.
        cpu_ns: u64,
    },
    /// Replicas were dropped.
    Evicted {
        /// Number of bytes dropped.
        bytes: u64,
    },
    /// The request failed.
    Failed {
        /// Reason of the failure.
        error: String,
    },
    /// The request was carried out.
    Done {},
}

/// Operation that is prepared: only the call itself is left to do.
///
/// It is called on units by their index: objects, or batches of objects.
pub trait Call {
    /// Number of different units on which it can be called.
    fn units(&self) -> usize;
    /// Whether it can be called only once for each unit, such as a put or a deletion.
    fn once(&self) -> bool;
    /// Prepares the call on a unit. Not timed.
    fn prepare(&mut self, _index: usize) -> Result<()> {
        Ok(())
    }
    /// Calls the operation on a unit.
    fn call(&mut self, index: usize) -> Result<()>;
    /// Time of the last call, if the call itself knows it better than who made it.
    fn took(&self) -> Option<Duration> {
        None
    }
    /// Bytes that the last call has brought there and back, if the call itself knows it better than who made
    /// it.
    fn bytes(&self) -> Option<u64> {
        None
    }
    /// Checks the unit of the last call. Not timed.
    fn check(&mut self, index: usize) -> Result<()>;
}

/// [`Call`] that is the same for all units and leaves nothing behind: an operation of the machine without a
/// store.
pub trait Limit {
    /// Prepares the call. Not timed.
    ///
    /// # Errors
    /// If it cannot be prepared.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }
    /// Makes the call.
    ///
    /// # Errors
    /// If the call fails.
    fn call(&mut self) -> Result<()>;
    /// Bytes that the call has brought there and back, if it knows them.
    fn bytes(&self) -> Option<u64> {
        None
    }
    /// Checks the effect of the call. Not timed.
    ///
    /// # Errors
    /// If the effect is wrong.
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

    fn bytes(&self) -> Option<u64> {
        Limit::bytes(self)
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        Limit::check(self)
    }
}

/// Subject of the measurement: a store, or the machine.
pub trait Peer {
    /// Abilities of the peer.
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
    /// Computes the ids of objects.
    fn prepare(&mut self, _owner: u64, _numbers: Numbers) {}
    /// Deletes objects.
    fn discard(&mut self, owner: u64, numbers: Numbers) -> Result<()>;
    /// Drops all replicas that came from other nodes. Returns their size in bytes.
    fn evict(&mut self) -> Result<u64> {
        Err("there is nothing to evict".into())
    }
}

/// Answers requests until standard input ends.
///
/// # Errors
/// If a pipe breaks. A failed request is an answer.
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

/// Carries out one request.
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
        let elapsed = start.elapsed();
        ns.push(nanoseconds(call.took().unwrap_or(elapsed)));
    }
    let cpu_ns = cpu_time() - cpu;
    if let Some(last) = ns.len().checked_sub(1) {
        call.check(last % call.units())?;
    }
    Ok(Answer::Measured { ns, cpu_ns, bytes: call.bytes() })
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

/// CPU time of all threads of this process, in nanoseconds.
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
