//! Rates of appends: to the log that is made of regions, and to a stream of Redis.
//!
//! Owns the writers, each a thread with a connection of its own. The main thread trims what they append, so
//! that memory never runs out. Each program prints one line of JSON: how many records were committed, and in
//! how many seconds.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::{Client, ErrorKind, NodeId};
use plasmon_bench::Result;
use plasmon_log::Log;

use crate::redis::command;

/// Bytes of a record.
const RECORD: [u8; 16] = *b"0123456789abcdef";
/// Bytes of the log.
const CAPACITY: u64 = 128 << 20;
/// Most entries that the stream keeps, about.
const STREAM: &[u8] = b"1000000";
/// Time between two trims of the log.
const TRIM_EVERY: Duration = Duration::from_millis(10);

/// State that all writers share.
struct Shared {
    committed: AtomicU64,
    over: AtomicBool,
}

/// Appends to a new log, with copies on the nodes of the sockets in `homes`. The writers take turns to use
/// the nodes of the sockets in `sockets`. Of `work`, the first number is that of writers, the second that of
/// transactions under way for each, the third that of records in a transaction, the fourth that of seconds.
pub(crate) fn log(sockets: &str, homes: &str, work: [&str; 4]) -> Result<()> {
    let [writers, window, group, seconds] = numbers(work)?;
    let sockets: Vec<&str> = sockets.split(',').collect();
    let nodes =
        homes.split(',').map(|home| Ok(Client::connect(home)?.node())).collect::<Result<Vec<NodeId>>>()?;
    let client = Client::connect(sockets[0])?;
    let name = format!("bench-{}", std::process::id());
    let log = Log::create(&client, &name, CAPACITY, &nodes)?;
    let records = vec![RECORD; group as usize];
    let append = |number: usize, shared: &Shared| -> Result<()> {
        let client = Client::connect(sockets[number % sockets.len()])?;
        let mut writer = Log::open(&client, &name)?.writer()?.with_window(window as usize);
        while !shared.over.load(Ordering::Relaxed) {
            while writer.under_way() < writer.window() {
                writer.begin(&records)?;
            }
            match writer.finish() {
                Some(Err(error)) if error.kind() != ErrorKind::Full => return Err(error.into()),
                Some(Ok(_)) => {
                    shared.committed.fetch_add(group, Ordering::Relaxed);
                }
                _ => {}
            }
        }
        while let Some(result) = writer.finish() {
            result
                .map(drop)
                .or_else(|error| if error.kind() == ErrorKind::Full { Ok(()) } else { Err(error) })?;
        }
        Ok(())
    };
    measure(writers, seconds, append, || {
        log.trim(log.end()?)?;
        thread::sleep(TRIM_EVERY);
        Ok(())
    })?;
    Ok(log.remove()?)
}

/// Appends to a stream of the Redis at an address, with so many commands sent before answers are read.
pub(crate) fn xadd(address: &str, work: [&str; 3]) -> Result<()> {
    let [writers, pipeline, seconds] = numbers(work)?;
    let one = command(&[b"XADD", b"log", b"MAXLEN", b"~", STREAM, b"*", b"f", &RECORD]);
    let sent = one.repeat(pipeline as usize);
    let append = |_: usize, shared: &Shared| -> Result<()> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut answer = vec![0; 64 << 10];
        while !shared.over.load(Ordering::Relaxed) {
            stream.write_all(&sent)?;
            // An answer is two lines: the length of the entry's id, and the id.
            let mut ends = 0;
            while ends < 2 * pipeline {
                let came = stream.read(&mut answer)?;
                if came == 0 || answer[0] == b'-' {
                    return Err(format!("Redis: {}", String::from_utf8_lossy(&answer[..came])).into());
                }
                ends += answer[..came].iter().filter(|byte| **byte == b'\n').count() as u64;
            }
            shared.committed.fetch_add(pipeline, Ordering::Relaxed);
        }
        Ok(())
    };
    measure(writers, seconds, append, || {
        thread::sleep(TRIM_EVERY);
        Ok(())
    })
}

fn numbers<const N: usize>(words: [&str; N]) -> Result<[u64; N]> {
    let mut numbers = [0; N];
    for (number, word) in numbers.iter_mut().zip(words) {
        *number = word.parse().map_err(|_| format!("'{word}' is no number"))?;
    }
    Ok(numbers)
}

/// Lets writers append for so many seconds, after as long as a fifth of that, and prints the rate.
fn measure(
    writers: u64,
    seconds: u64,
    append: impl Fn(usize, &Shared) -> Result<()> + Sync,
    meanwhile: impl Fn() -> Result<()>,
) -> Result<()> {
    let (shared, append) = (&Shared { committed: AtomicU64::new(0), over: AtomicBool::new(false) }, &append);
    let (committed, took) = thread::scope(|scope| -> Result<(u64, Duration)> {
        let run = move |number: u64| {
            append(number as usize, shared)
                .map_err(|error| error.to_string())
                .inspect_err(|_| shared.over.store(true, Ordering::Relaxed))
        };
        let threads: Vec<_> = (0..writers).map(|number| scope.spawn(move || run(number))).collect();
        let until = |span: Duration| -> Result<(u64, Instant)> {
            let end = Instant::now() + span;
            while Instant::now() < end && !shared.over.load(Ordering::Relaxed) {
                meanwhile()?;
            }
            Ok((shared.committed.load(Ordering::Relaxed), Instant::now()))
        };
        let span = Duration::from_secs(seconds);
        let counted = until(span / 5).and_then(|before| Ok((before, until(span)?)));
        shared.over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| "a writer panicked")??;
        }
        let ((before, begin), (after, end)) = counted?;
        Ok((after - before, end - begin))
    })?;
    println!("{{\"committed\": {committed}, \"seconds\": {}}}", took.as_secs_f64());
    Ok(())
}
