//! Worker of the benchmark of files: a process that uses files as programs do, and times it.
//!
//! It exchanges lines of JSON: a [`Request`] in, an [`Answer`] out. Owns no files; paths come with the
//! requests. Runs on the worker's only thread. Invariant: bytes are checked where they are read, so that no
//! figure is of bytes that are not those written. Each page of a file begins with a number that follows from
//! its place; the rest is looked at in the last block alone, outside of the time.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, ErrorKind, Read, Write, stdin, stdout};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use plasmon_bench::Result;
use plasmon_bench::protocol::Greeting;
use rustix::fs::{Advice, OFlags, fadvise};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Number of bytes of a file that begin with a number of their own.
const PAGE: usize = 4096;
/// Place of a buffer in its page, if it is not to begin with one: that of a large `malloc`.
const UNALIGNED: usize = 16;
/// Factor that spreads numbers over all bits.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Request of the harness.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
enum Request {
    /// Write a range in order, sync the file and close it.
    Write {
        #[serde(flatten)]
        range: Range,
        start: u64,
    },
    /// Read a range in order.
    Read {
        #[serde(flatten)]
        range: Range,
        start: u64,
    },
    /// Read blocks of a range at random, each at most once.
    Random {
        #[serde(flatten)]
        range: Range,
        reads: usize,
        seconds: f64,
    },
    /// Make an operation on many small files of a folder.
    Names { operation: Operation, folder: PathBuf, count: u64, bytes: usize, start: u64 },
}

/// Range of a file, and how it is read or written.
#[derive(Debug, Deserialize)]
struct Range {
    path: PathBuf,
    offset: u64,
    bytes: u64,
    /// Number of bytes in a call.
    block: usize,
    /// Seed that tells the contents of this file from those of others.
    seed: u64,
    /// Whether the file is opened with O_DIRECT.
    direct: bool,
    /// Whether the buffer begins with a page.
    aligned: bool,
    /// Whether bytes that were read are compared.
    check: bool,
}

/// Operation on a small file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Operation {
    /// Make an empty file.
    Create,
    /// Ask for the attributes of a file.
    Stat,
    /// Remove a file.
    Unlink,
    /// Make a file of some bytes.
    Store,
    /// Read a file whole.
    Load,
}

/// Answer to the harness. Times are in nanoseconds.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Answer {
    /// First and last moment, of the monotonic clock.
    Span { begin: u64, end: u64 },
    /// Time of each call.
    Calls { ns: Vec<u64> },
    /// Reason of a failure.
    Failed { error: String },
}

/// Answers requests until standard input ends.
pub(crate) fn serve() -> Result<()> {
    let greeting = Greeting {
        version: "",
        in_place: false,
        shared: true,
        operations: &["write", "read", "random", "create", "stat", "unlink", "store", "load"],
    };
    let mut answers = stdout().lock();
    writeln!(answers, "{}", serde_json::to_string(&greeting)?)?;
    for line in stdin().lock().lines() {
        let answer = serde_json::from_str::<Request>(&line?)
            .map_err(Into::into)
            .and_then(answer)
            .unwrap_or_else(|error| Answer::Failed { error: error.to_string() });
        writeln!(answers, "{}", serde_json::to_string(&answer)?)?;
    }
    Ok(())
}

fn answer(request: Request) -> Result<Answer> {
    match request {
        Request::Write { range, start } => write(&range, start),
        Request::Read { range, start } => read(&range, start),
        Request::Random { range, reads, seconds } => random(&range, reads, Duration::from_secs_f64(seconds)),
        Request::Names { operation, folder, count, bytes, start } => {
            names(operation, &folder, count, bytes, start)
        }
    }
}

fn write(range: &Range, start: u64) -> Result<Answer> {
    let mut buffer = Buffer::new(range.block, range.aligned)?;
    let begin = wait(start)?;
    let file = open(range, OpenOptions::new().write(true).create(true).truncate(range.offset == 0))?;
    let (mut at, end) = (range.offset, end_of(range)?);
    while at < end {
        let len = part(range, end - at);
        buffer.mark(at, range.seed, len);
        file.write_all_at(&buffer.bytes()[..len], at).map_err(|error| failed("write", range, &error))?;
        at += len as u64;
    }
    file.sync_all().map_err(|error| failed("sync", range, &error))?;
    drop(file);
    Ok(Answer::Span { begin, end: now() })
}

fn read(range: &Range, start: u64) -> Result<Answer> {
    let mut buffer = Buffer::new(range.block, range.aligned)?;
    let begin = wait(start)?;
    let file = open(range, OpenOptions::new().read(true))?;
    let (mut at, end) = (range.offset, end_of(range)?);
    let mut last = 0..0;
    while at < end {
        let len = part(range, end - at);
        fill(&file, &mut buffer.bytes()[..len], at).map_err(|error| failed("read", range, &error))?;
        if range.check {
            buffer.compare(at, range.seed, len)?;
        }
        last = at..at + len as u64;
        at = last.end;
    }
    drop(file);
    let ended = now();
    if range.check {
        buffer.compare_whole(last.start, range.seed, (last.end - last.start) as usize)?;
    }
    Ok(Answer::Span { begin, end: ended })
}

fn random(range: &Range, reads: usize, limit: Duration) -> Result<Answer> {
    let mut buffer = Buffer::new(range.block, range.aligned)?;
    let file = open(range, OpenOptions::new().read(true))?;
    // Without this a kernel reads more than it was asked for.
    fadvise(&file, 0, None, Advice::Random)?;
    let blocks = range.bytes / range.block as u64;
    let mut ns = Vec::with_capacity(reads);
    let began = Instant::now();
    for index in order(blocks, range.seed).take(reads) {
        if began.elapsed() > limit {
            break;
        }
        let at = range.offset + index * range.block as u64;
        let start = Instant::now();
        fill(&file, buffer.bytes(), at).map_err(|error| failed("read", range, &error))?;
        ns.push(start.elapsed().as_nanos() as u64);
        if range.check {
            buffer.compare(at, range.seed, range.block)?;
        }
    }
    Ok(Answer::Calls { ns })
}

/// All numbers below `count`, each once, in an order that the seed determines.
fn order(count: u64, seed: u64) -> impl Iterator<Item = u64> {
    let whole = count.next_power_of_two().max(2);
    let step = (seed.wrapping_mul(SPREAD) % whole) | 1;
    // A generator of full period: the factor is one more than a multiple of four, the step is odd.
    let mut next = seed % whole;
    (0..whole)
        .map(move |_| {
            next = (next.wrapping_mul(5 + 8 * 12_345).wrapping_add(step)) % whole;
            next
        })
        .filter(move |number| *number < count)
}

fn names(operation: Operation, folder: &Path, count: u64, bytes: usize, start: u64) -> Result<Answer> {
    let paths: Vec<PathBuf> = (0..count).map(|number| folder.join(format!("file-{number:06}"))).collect();
    let (content, mut found) = (noise(bytes), vec![0; bytes + 1]);
    let begin = wait(start)?;
    for path in &paths {
        one(operation, path, &content, &mut found)
            .map_err(|error| format!("{operation:?} of {}: {error}", path.display()))?;
    }
    Ok(Answer::Span { begin, end: now() })
}

/// Makes an operation on one small file.
fn one(operation: Operation, path: &Path, content: &[u8], found: &mut [u8]) -> Result<()> {
    match operation {
        Operation::Create => drop(File::create_new(path)?),
        Operation::Store => File::create_new(path)?.write_all(content)?,
        Operation::Unlink => fs::remove_file(path)?,
        Operation::Stat => {
            let len = fs::symlink_metadata(path)?.len();
            if len != content.len() as u64 {
                return Err(format!("it has {len} bytes instead of {}", content.len()).into());
            }
        }
        Operation::Load => {
            let (mut file, mut len) = (File::open(path)?, 0);
            loop {
                match file.read(&mut found[len..])? {
                    0 => break,
                    more => len += more,
                }
            }
            if found[..len] != *content {
                return Err("it has other bytes than were written".into());
            }
        }
    }
    Ok(())
}

fn open(range: &Range, options: &mut OpenOptions) -> Result<File> {
    let flags = if range.direct { OFlags::DIRECT } else { OFlags::empty() };
    let opened = options.custom_flags(flags.bits() as i32).open(&range.path);
    opened.map_err(|error| failed("open", range, &error))
}

/// Reads until the buffer is full. Fails at the end of the file.
fn fill(file: &File, buffer: &mut [u8], at: u64) -> std::io::Result<()> {
    let mut len = 0;
    while len < buffer.len() {
        match file.read_at(&mut buffer[len..], at + len as u64) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => len += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Length of the next call of a range of which so much is left.
fn part(range: &Range, left: u64) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(range.block)
}

fn end_of(range: &Range) -> Result<u64> {
    range.offset.checked_add(range.bytes).ok_or_else(|| "the range ends nowhere".into())
}

fn failed(what: &str, range: &Range, error: &dyn std::fmt::Display) -> Box<dyn std::error::Error> {
    format!("{what} of {}: {error}", range.path.display()).into()
}

/// Memory for a block of a file, with contents that are not zeros.
struct Buffer {
    memory: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Buffer {
    fn new(len: usize, aligned: bool) -> Result<Self> {
        if len == 0 || !len.is_multiple_of(PAGE) {
            return Err(format!("a block of {len} bytes is not of whole pages").into());
        }
        let mut memory = vec![0; len + 2 * PAGE];
        let begin = memory.as_ptr().align_offset(PAGE) + if aligned { 0 } else { UNALIGNED };
        memory[begin..begin + len].copy_from_slice(&noise(len));
        Ok(Self { memory, begin, len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.len]
    }

    /// Writes the number of each page, as the bytes are to lie at `at` of a file.
    fn mark(&mut self, at: u64, seed: u64, len: usize) {
        for (page, bytes) in self.bytes()[..len].chunks_mut(PAGE).enumerate() {
            let number = number(at + (page * PAGE) as u64, seed).to_le_bytes();
            let len = bytes.len().min(number.len());
            bytes[..len].copy_from_slice(&number[..len]);
        }
    }

    /// Compares the number of each page with what was written at `at` of the file.
    fn compare(&mut self, at: u64, seed: u64, len: usize) -> Result<()> {
        for (page, bytes) in self.bytes()[..len].chunks(PAGE).enumerate() {
            let place = at + (page * PAGE) as u64;
            let number = number(place, seed).to_le_bytes();
            if !number.starts_with(&bytes[..bytes.len().min(number.len())]) {
                return Err(format!("other bytes than were written at {place}").into());
            }
        }
        Ok(())
    }

    /// Compares all bytes of a block.
    fn compare_whole(&mut self, at: u64, seed: u64, len: usize) -> Result<()> {
        let mut written = Self::new(self.len, true)?;
        written.mark(at, seed, len);
        match self.bytes()[..len] == written.bytes()[..len] {
            true => Ok(()),
            false => Err(format!("other bytes than were written behind {at}").into()),
        }
    }
}

/// Bytes that are not zeros, the same in each page.
fn noise(len: usize) -> Vec<u8> {
    let page: Vec<u8> = (0..PAGE).map(|index| (index.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
    let mut noise = page.repeat(len.div_ceil(PAGE));
    noise.truncate(len);
    noise
}

/// Number with which the page at a place of a file begins: never that of another place or file nearby.
fn number(at: u64, seed: u64) -> u64 {
    (at / PAGE as u64 + 1).wrapping_mul(SPREAD) ^ seed.wrapping_mul(SPREAD).rotate_left(17)
}

/// Sleeps until a moment of the monotonic clock. Returns the moment at which it woke.
fn wait(start: u64) -> Result<u64> {
    let ready = now();
    let Some(rest) = start.checked_sub(ready) else {
        let late = (ready - start) as f64 / 1e9;
        return Err(format!("this worker was ready {late:.1} s too late").into());
    };
    thread::sleep(Duration::from_nanos(rest));
    Ok(now())
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_each_number_once_and_is_not_sorted() {
        for (count, seed) in [(1, 0), (7, 3), (64, 9), (1000, 12_345)] {
            let mut found: Vec<u64> = order(count, seed).collect();
            assert!(count < 8 || !found.is_sorted(), "{count} numbers in order");
            found.sort_unstable();
            assert_eq!(found, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn bytes_of_another_place_or_file_are_found() {
        let mut buffer = Buffer::new(2 * PAGE, false).expect("whole pages");
        buffer.mark(8192, 5, 2 * PAGE);
        buffer.compare(8192, 5, 2 * PAGE).expect("what was marked");
        buffer.compare_whole(8192, 5, 2 * PAGE).expect("what was marked");
        assert!(buffer.compare(4096, 5, 2 * PAGE).is_err(), "another place");
        assert!(buffer.compare(8192, 6, 2 * PAGE).is_err(), "another file");
        buffer.bytes()[PAGE + 100] ^= 1;
        buffer.compare(8192, 5, 2 * PAGE).expect("numbers of pages alone");
        assert!(buffer.compare_whole(8192, 5, 2 * PAGE).is_err(), "one byte");
    }

    #[test]
    fn a_buffer_begins_where_it_is_to() {
        for (aligned, place) in [(true, 0), (false, UNALIGNED)] {
            let mut buffer = Buffer::new(PAGE, aligned).expect("a whole page");
            assert_eq!(buffer.bytes().as_ptr().addr() % PAGE, place);
        }
        assert!(Buffer::new(100, true).is_err());
    }
}
