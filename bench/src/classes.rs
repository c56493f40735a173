//! Classes of work beside each other: low reads of a region of another host, high reads of it, and small
//! calls of class high. One process; the threads wait for their node, so they take little of a processor.
//!
//! The answer is one line of JSON: bytes a second of high and of low work alone and together, the time after
//! the end of high work in which low work has its rate again, and the times of small calls alone and beside
//! low work.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::region::Rights;
use plasmon::{Class, Client, Region, RegionOptions};
use serde_json::json;

/// Size in bytes of the region, and of one read of it.
const REGION_BYTES: u64 = 64 << 20;
const READ_BYTES: usize = 1 << 20;
/// Number of threads that read for a class.
const READERS: usize = 4;
/// The share of the rate alone that low work has again.
const WHOLE: f64 = 0.95;
/// The span over which that is looked at.
const WINDOW: Duration = Duration::from_millis(100);

type Failure = Box<dyn Error + Send + Sync>;

/// When each read ended.
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
    let (both, beside) = thread::scope(|scope| {
        let low = scope.spawn(|| read_during(&low, &name, 3 * span));
        thread::sleep(span);
        let began = Instant::now();
        let high = read_during(&high, &name, span);
        let ended = Instant::now();
        let low = low.join().map_err(|_| Failure::from("a reader failed"))??;
        let together = low.iter().filter(|end| (began..ended).contains(end)).count() * READ_BYTES;
        let again = whole_after(&low, ended, low_alone);
        Ok::<_, Failure>(((rate(&high?), together as f64 / (ended - began).as_secs_f64()), again))
    })?;
    let busy = thread::scope(|scope| {
        let reads = scope.spawn(|| read_during(&low, &name, span + WINDOW));
        thread::sleep(WINDOW);
        let calls = call_during(&high, &name, span);
        reads.join().map_err(|_| Failure::from("a reader failed"))??;
        calls
    })?;
    made.free()?;
    println!(
        "{}",
        json!({
            "high_alone": high_alone, "low_alone": low_alone, "high": both.0, "low": both.1,
            "whole_after_ms": beside.map(|after| after.as_secs_f64() * 1e3),
            "calls_idle_us": [part(&idle, 0.5), part(&idle, 0.99)],
            "calls_us": [part(&busy, 0.5), part(&busy, 0.99)],
        })
    );
    Ok(())
}

fn mapped(client: &Client, name: &str) -> plasmon::Result<Region> {
    client.map_region(name, Rights::READ, None)
}

/// Reads the region in turns, by some threads, for so long. Returns when the reads ended.
fn read_during(client: &Client, name: &str, span: Duration) -> Result<Ends, Failure> {
    let (stop, began) = (AtomicBool::new(false), Instant::now());
    let read = |thread: usize| -> Result<Ends, Failure> {
        let region = mapped(client, name)?;
        let mut buffer = client.buffer(READ_BYTES, true, None)?;
        let (mut ends, mut at) = (Ends::new(), (thread * READ_BYTES) as u64);
        while began.elapsed() < span && !stop.load(Ordering::Relaxed) {
            region.read_to(at, &mut buffer, 0..READ_BYTES)?;
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
    let (region, began) = (mapped(client, name)?, Instant::now());
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

/// The time that a part of all calls took at most.
fn part(times: &[f64], part: f64) -> f64 {
    times
        .get(((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}
