//! Calls at a pace: so many a second, or as those who ask a large store of Facebook come.
//!
//! Owns the threads that call, which rest until it is time for the next call. A call that is late is made at
//! once. Sizes and gaps are those of the pool ETC in B. Atikoglu, Y. Xu, E. Frachtenberg, S. Jiang and
//! M. Paleczny, "Workload Analysis of a Large-Scale Key-Value Store", SIGMETRICS 2012, section 5: lengths of
//! keys are of a generalized extreme value distribution, lengths of values and gaps between requests of
//! generalized Pareto distributions, and values of few bytes of a table. All are drawn from one seed, so
//! every run makes the same calls.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::Service;
use plasmon_bench::Result;
use plasmon_bench::protocol::Limit;

use crate::calls::{CALL_PATIENCE, FUNCTIONS};

/// Number of threads that call.
const THREADS: usize = 8;
/// Number of calls that all threads make in a second at a steady pace.
const PACE: usize = 1000;
/// Longest key that memcached takes, in bytes.
const LONGEST_KEY: f64 = 250.0;
/// Longest value that is drawn, in bytes: the limit of memcached.
const LONGEST_VALUE: f64 = 1_000_000.0;
/// Share of the values that have as many bytes as the place in the table says.
const SHORT_VALUES: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837, 0.00837,
    0.08989, 0.00092, 0.00326, 0.01980,
];
const SEED: u64 = 2012;

/// A number of calls by several threads, 1,000 a second all together.
pub(crate) struct Paced<'a> {
    pub(crate) service: &'a Service,
    pub(crate) data: Vec<u8>,
    pub(crate) calls: usize,
}

impl Limit for Paced<'_> {
    fn call(&mut self) -> Result<()> {
        let gap = Duration::from_secs(1) / PACE as u32;
        at_times(&|nth| (nth < self.calls).then(|| gap * nth as u32), &|_| {
            self.service.call(FUNCTIONS[0], &self.data, CALL_PATIENCE).map(drop)
        })
    }
}

/// Calls an act for each number for which there is a time, at that time. Numbers go to the threads as they
/// come.
fn at_times(
    time: &(dyn Fn(usize) -> Option<Duration> + Sync),
    act: &(dyn Fn(usize) -> plasmon::Result<()> + Sync),
) -> Result<()> {
    let (begin, next) = (Instant::now(), AtomicUsize::new(0));
    let run = || -> plasmon::Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(at) = time(number) else { return Ok(()) };
            thread::sleep((begin + at).saturating_duration_since(Instant::now()));
            act(number)?;
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(run)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a call does not panic"))
    })
    .map_err(|error: plasmon::Error| error.into())
}

/// Requests for values as Facebook's clients make them.
pub(crate) struct Facebook<'a> {
    service: &'a Service,
    /// The key of each call, and when it is made.
    requests: Vec<(Vec<u8>, Duration)>,
    /// Bytes of keys and values.
    bytes: u64,
}

impl<'a> Facebook<'a> {
    /// Draws so many requests. The gaps between them are so many times longer than those of the pool.
    pub(crate) fn new(service: &'a Service, calls: usize, slower: usize) -> Self {
        let (mut draw, mut at) = (Draw(SEED), Duration::ZERO);
        let requests = (0..calls)
            .map(|_| {
                at += Duration::from_secs_f64(1e-6 * pareto(16.0292, 0.154971, draw.part())) * slower as u32;
                let len = extreme(30.7984, 8.20449, 0.078688, draw.part()).clamp(1.0, LONGEST_KEY);
                ((0..len as usize).map(|_| draw.word() as u8).collect(), at)
            })
            .collect();
        Self { service, requests, bytes: 0 }
    }
}

impl Limit for Facebook<'_> {
    fn call(&mut self) -> Result<()> {
        let (bytes, requests) = (AtomicU64::new(0), &self.requests);
        at_times(&|nth| requests.get(nth).map(|(_, at)| *at), &|nth| {
            let key = &requests[nth].0;
            let reply = self.service.call(FUNCTIONS[2], key, CALL_PATIENCE)?;
            bytes.fetch_add((key.len() + reply.len()) as u64, Ordering::Relaxed);
            Ok(())
        })?;
        self.bytes = bytes.into_inner();
        Ok(())
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.bytes)
    }

    fn check(&mut self) -> Result<()> {
        let whole = |(key, _): &(Vec<u8>, Duration)| (key.len() + value_of(key).len()) as u64;
        let wanted: u64 = self.requests.iter().map(whole).sum();
        if self.bytes == wanted {
            Ok(())
        } else {
            Err(format!("keys and values have {wanted} bytes, and {} came", self.bytes).into())
        }
    }
}

/// The value of a key, which has the same length each time.
pub(crate) fn value_of(key: &[u8]) -> Vec<u8> {
    // FNV-1a.
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    let mut draw = Draw(hash);
    let (which, mut before) = (draw.part(), 0.0);
    let short = SHORT_VALUES.iter().position(|share| {
        before += share;
        which < before
    });
    let mut long = || SHORT_VALUES.len() as f64 + pareto(214.476, 0.348238, draw.part()).min(LONGEST_VALUE);
    vec![7; short.unwrap_or_else(|| long() as usize)]
}

/// Value of a generalized Pareto distribution that begins at 0, of which so large a part is smaller.
fn pareto(scale: f64, shape: f64, part: f64) -> f64 {
    scale / shape * ((1.0 - part).powf(-shape) - 1.0)
}

/// Value of a generalized extreme value distribution of which so large a part is smaller.
fn extreme(place: f64, scale: f64, shape: f64, part: f64) -> f64 {
    place + scale / shape * ((-part.ln()).powf(-shape) - 1.0)
}

/// Numbers from a seed: SplitMix64.
struct Draw(u64);

impl Draw {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number between 0 and 1, and neither.
    fn part(&mut self) -> f64 {
        ((self.word() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_gaps_have_the_means_that_were_published() {
        const DRAWS: usize = 200_000;
        let mut draw = Draw(1);
        let mut mean =
            |one: &dyn Fn(f64) -> f64| (0..DRAWS).map(|_| one(draw.part())).sum::<f64>() / DRAWS as f64;
        let near = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 0.03;
        // The mean of a generalized Pareto distribution is the scale over one less the shape.
        let gap = mean(&|part| pareto(16.0292, 0.154971, part));
        assert!(near(gap, 16.0292 / (1.0 - 0.154971)), "{gap} us");
        // The mean of a generalized extreme value distribution with shape 0 is the place and 0.5772 of the
        // scale. With the small shape here it is a little more.
        let key = mean(&|part| extreme(30.7984, 8.20449, 0.078688, part));
        assert!(near(key, 36.3), "{key} bytes");
        let keys = (0..DRAWS as u64).map(|key| value_of(&key.to_le_bytes()).len());
        let (mut short, mut bytes) = (0, 0);
        for len in keys {
            short += usize::from(len < SHORT_VALUES.len());
            bytes += len.saturating_sub(SHORT_VALUES.len());
        }
        let long = bytes as f64 / (DRAWS - short) as f64;
        assert!(near(short as f64 / DRAWS as f64, SHORT_VALUES.iter().sum()), "{short} short values");
        assert!(near(long, 214.476 / (1.0 - 0.348238)), "{long} bytes");
    }

    #[test]
    fn a_key_has_one_value() {
        assert_eq!(value_of(b"a key"), value_of(b"a key"));
        assert!((0..100_u8).any(|key| value_of(&[key]).len() != value_of(b"a key").len()));
    }
}
