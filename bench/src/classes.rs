//! Classes of work beside each other: low reads of a region of another host, high reads of it, small calls of
//! class high, and a log of class high on the other host beside low writes to the region. One process; the
//! threads wait for their node, so they take little of a processor.
//!
//! The answer is one line of JSON: bytes a second of high and of low work alone and together, the time after
//! the end of high work in which low work has its rate again, both rates over time, the times of small calls
//! alone and beside low work, and commits a second alone and beside low writes, with the bytes a second of
//! these.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::region::Rights;
use plasmon::{Class, Client, ErrorKind, NodeId, RegionOptions};
use plasmon_log::Log;
use serde_json::json;

/// Size in bytes of the region.
const REGION_BYTES: u64 = 64 << 20;
/// Size in bytes of one read of the region.
const READ_BYTES: usize = 1 << 20;
/// Number of threads that read for a class, or write.
const READERS: usize = 4;
/// Bytes of the log.
const LOG_BYTES: u64 = 64 << 20;
/// The record of a transaction.
const RECORD: [u8; 16] = *b"0123456789abcdef";
/// Number of transactions under way.
const WINDOW_OF_LOG: usize = 64;
/// Share of its rate without other work at which low work counts as having its rate again.
const WHOLE: f64 = 0.95;
/// Span over which the rate of low work is looked at.
const WINDOW: Duration = Duration::from_millis(100);

type Failure = Box<dyn Error + Send + Sync>;

/// Times at which reads ended.
type Ends = Vec<Instant>;

/// Measures for so many seconds a phase, and prints the answer.
pub(crate) fn measure(socket: &str, home: &str, seconds: &str) -> Result<(), Failure> {
    let span = Duration::from_secs_f64(seconds.parse()?);
    let holder = Client::connect(home)?;
    let name = format!("classes-{}", std::process::id());
    let made = holder.create_region(&name, REGION_BYTES, &RegionOptions::default())?;
    made.fill(0..REGION_BYTES, 1)?;
    let client = Client::connect(socket)?;
    let (high, low) = (client.with_class(Class::High)?, client.with_class(Class::Low)?);
    // The first reads make connections, and tell the rate.
    read_during(&low, &name, span / 4)?;
    let rate = |ends: &Ends| (ends.len() * READ_BYTES) as f64 / span.as_secs_f64();
    let high_alone = rate(&read_during(&high, &name, span)?);
    let low_alone = rate(&read_during(&low, &name, span)?);
    let idle = call_during(&high, &name, span)?;
    let (both, beside, over_time) = thread::scope(|scope| {
        let low = scope.spawn(|| read_during(&low, &name, 3 * span));
        thread::sleep(span);
        let began = Instant::now();
        let high = read_during(&high, &name, span);
        let ended = Instant::now();
        let low = low.join().map_err(|_| Failure::from("a reader failed"))??;
        let high = high?;
        let together = low.iter().filter(|end| (began..ended).contains(end)).count() * READ_BYTES;
        let again = whole_after(&low, ended, low_alone);
        let over_time = over_time((&high, &low), began, span);
        let both = (rate(&high), together as f64 / (ended - began).as_secs_f64());
        Ok::<_, Failure>((both, again, over_time))
    })?;
    let busy = thread::scope(|scope| {
        let reads = scope.spawn(|| read_during(&low, &name, span + WINDOW));
        thread::sleep(WINDOW);
        let calls = call_during(&high, &name, span);
        reads.join().map_err(|_| Failure::from("a reader failed"))??;
        calls
    })?;
    let logged = append_beside((&high, &low), (&name, holder.node()), span)?;
    made.free()?;
    println!(
        "{}",
        json!({
            "high_alone": high_alone, "low_alone": low_alone, "high": both.0, "low": both.1,
            "over_time": over_time,
            "whole_after_ms": beside.map(|after| after.as_secs_f64() * 1e3),
            "calls_idle_us": [part(&idle, 0.5), part(&idle, 0.99)],
            "calls_us": [part(&busy, 0.5), part(&busy, 0.99)],
            "log_alone": logged.alone, "log": logged.beside, "writes": logged.writes,
        })
    );
    Ok(())
}

/// Rates of a log of class high.
struct Logged {
    /// Commits a second without other work.
    alone: f64,
    /// Commits a second beside low writes.
    beside: f64,
    /// Bytes a second of low writes meanwhile.
    writes: f64,
}

/// Appends to a log at a node, alone and beside low writes to a region of the same node.
fn append_beside(
    (high, low): (&Client, &Client),
    (name, home): (&str, NodeId),
    span: Duration,
) -> Result<Logged, Failure> {
    let alone = append_during(high, home, span)?;
    let (beside, writes) = thread::scope(|scope| {
        let writes = scope.spawn(|| move_during(low, name, Way::Write, span + 2 * WINDOW));
        thread::sleep(WINDOW);
        let began = Instant::now();
        let rate = append_during(high, home, span);
        let ended = Instant::now();
        let writes = writes.join().map_err(|_| Failure::from("a writer failed"))??;
        let together = writes.iter().filter(|end| (began..ended).contains(end)).count() * READ_BYTES;
        Ok::<_, Failure>((rate?, together as f64 / (ended - began).as_secs_f64()))
    })?;
    Ok(Logged { alone, beside, writes })
}

/// Appends records to a new log at a node for so long; returns how many were committed a second.
fn append_during(client: &Client, home: NodeId, span: Duration) -> Result<f64, Failure> {
    let name = format!("classes-{}", std::process::id());
    let log = Log::create(client, &name, LOG_BYTES, &[home])?;
    let mut writer = Log::open(client, &name)?.writer()?.with_window(WINDOW_OF_LOG);
    let (began, mut committed) = (Instant::now(), 0_u64);
    while began.elapsed() < span {
        while writer.under_way() < writer.window() {
            writer.begin(&[RECORD])?;
        }
        match writer.finish() {
            Some(Ok(_)) => committed += 1,
            // Segments that are full are freed.
            Some(Err(error)) if error.kind() == ErrorKind::Full => drop(log.trim(log.end()?)?),
            Some(Err(error)) => return Err(error.into()),
            None => {}
        }
    }
    let took = began.elapsed();
    while writer.finish().is_some() {}
    log.remove()?;
    Ok(committed as f64 / took.as_secs_f64())
}

/// Reads the region in turns, by some threads, for so long. Returns when the reads ended.
fn read_during(client: &Client, name: &str, span: Duration) -> Result<Ends, Failure> {
    move_during(client, name, Way::Read, span)
}

/// Use of the region.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

/// Reads or writes the region in turns, by some threads, for so long. Returns when each of them ended.
fn move_during(client: &Client, name: &str, way: Way, span: Duration) -> Result<Ends, Failure> {
    let (stop, began) = (AtomicBool::new(false), Instant::now());
    let read = |thread: usize| -> Result<Ends, Failure> {
        let region = client.map_region(name, Rights::READ_WRITE, None)?;
        let mut buffer = client.buffer(READ_BYTES, true, None)?;
        let (mut ends, mut at) = (Ends::new(), (thread * READ_BYTES) as u64);
        while began.elapsed() < span && !stop.load(Ordering::Relaxed) {
            match way {
                Way::Read => region.read_to(at, &mut buffer, 0..READ_BYTES)?,
                Way::Write => region.write_from(at, &buffer, 0..READ_BYTES)?,
            }
            ends.push(Instant::now());
            at = (at + (READERS * READ_BYTES) as u64) % REGION_BYTES;
        }
        Ok(ends)
    };
    let read = &read;
    let all: Vec<Result<Ends, Failure>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..READERS).map(|thread| scope.spawn(move || read(thread))).collect();
        let ended = threads.into_iter().map(|thread| {
            let ended = thread.join().unwrap_or_else(|_| Err("a reader failed".into()));
            if ended.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            ended
        });
        ended.collect()
    });
    let mut ends: Ends = all.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    ends.sort_unstable();
    Ok(ends)
}

/// Times reads of 8 bytes for so long, one after the other, in microseconds and in order.
fn call_during(client: &Client, name: &str, span: Duration) -> Result<Vec<f64>, Failure> {
    let (region, began) = (client.map_region(name, Rights::READ, None)?, Instant::now());
    let (mut times, mut word) = (Vec::new(), [0; 8]);
    while began.elapsed() < span {
        let called = Instant::now();
        region.read(0, &mut word)?;
        times.push(called.elapsed().as_secs_f64() * 1e6);
        // A thousand a second, as somebody who asks now and then.
        thread::sleep(Duration::from_millis(1));
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times)
}

/// The time after `ended` until the beginning of the first window in which the reads have their rate again.
fn whole_after(ends: &Ends, ended: Instant, rate: f64) -> Option<Duration> {
    let wanted = (WHOLE * rate * WINDOW.as_secs_f64() / READ_BYTES as f64).floor() as usize;
    let after = ends.partition_point(|end| *end < ended);
    (after..ends.len()).find_map(|first| {
        let end = *ends.get(first + wanted.max(1) - 1)?;
        (end - ends[first] <= WINDOW).then(|| ends[first] - ended)
    })
}

/// Rates of high and low reads in each window of the time in which both are made: the window's end, in
/// seconds since high reads began, and the bytes a second of both.
fn over_time((high, low): (&Ends, &Ends), began: Instant, span: Duration) -> Vec<(f64, f64, f64)> {
    let windows = (span.as_secs_f64() / WINDOW.as_secs_f64()).round() as u32;
    let first = began - windows * WINDOW;
    let rates = (1..=3 * windows).map(|window| {
        let end = first + window * WINDOW;
        let rate = |ends: &Ends| {
            let before = |at: Instant| ends.partition_point(|end| *end < at);
            ((before(end) - before(end - WINDOW)) * READ_BYTES) as f64 / WINDOW.as_secs_f64()
        };
        let end_s = (f64::from(window) - f64::from(windows)) * WINDOW.as_secs_f64();
        (end_s, rate(high), rate(low))
    });
    rates.collect()
}

/// The time that a part of all calls took at most.
fn part(times: &[f64], part: f64) -> f64 {
    times
        .get(((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}
