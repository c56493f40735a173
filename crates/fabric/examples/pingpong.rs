//! Costs of the wrapper: median latencies between two processes of this host, one operation at a time.
//!
//! `cargo run --release -p plasmon-fabric --example pingpong [provider] [address]`
//!
//! The process starts itself again as the other side, which serves reads and sends messages back. Both sides
//! poll without pause, so meaningful figures need two idle cores.

use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon_fabric::{Access, Domain, Event, Memory, Op, RemoteRegion, Slice};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Bytes of the largest read.
const LARGEST_BYTES: usize = 4 << 20;
/// Size in bytes and number of the reads of each row.
const READS: [(usize, usize); 4] = [(1 << 10, 5000), (64 << 10, 3000), (1 << 20, 500), (LARGEST_BYTES, 200)];
/// Size in bytes and number of the messages of each row.
const MESSAGES: [(usize, usize); 3] = [(16, 5000), (1 << 10, 5000), (16 << 10, 3000)];
/// Environment variable that makes a process the other side.
const SERVER: &str = "PLASMON_PINGPONG_SERVER";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next();
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1".to_owned());
    let provider = plasmon_fabric::choose(name.as_deref(), Some(&address))?;
    let domain = Domain::open(&provider)?;
    if std::env::var_os(SERVER).is_some() {
        return serve(&domain);
    }
    let mut child = Command::new(std::env::current_exe()?)
        .args([provider.name(), &address])
        .env(SERVER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut greeting = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut greeting)?;
    println!("{} on {} ({})", provider.name(), provider.domain(), provider.reason());
    let outcome = measure(&domain, &greeting);
    child.kill()?;
    child.wait()?;
    outcome
}

fn measure(domain: &Domain, greeting: &str) -> Result<()> {
    let mut words = greeting.split_whitespace();
    let mut number = || -> Result<u64> { Ok(words.next().ok_or("a short greeting")?.parse()?) };
    let region = RemoteRegion { base: number()?, key: number()?, len: number()? };
    let address = words.map(str::parse).collect::<std::result::Result<Vec<u8>, _>>()?;

    let memory = domain.register(Arena::new()?, Access::LOCAL)?;
    let endpoint = domain.endpoint()?;
    let peer = endpoint.connect(&address)?;
    // The first bytes of every message tell the other side where to answer.
    let ours = endpoint.address();
    let mut events = Vec::new();
    let connect = {
        let start = Instant::now();
        finish(domain, endpoint.read(peer, memory.slice(0, 1)?, region, 0), &mut events)?;
        start.elapsed()
    };
    println!("first read, with the connection {:>10.1} us", micros(connect));
    for (size, rounds) in READS {
        let into = memory.slice(0, size)?;
        let median =
            median(rounds, || finish(domain, endpoint.read(peer, into.clone(), region, 0), &mut events))?;
        let rate = size as f64 / median.as_secs_f64() / 1e9;
        println!("read     {:>7} KiB {:>16.1} us {rate:>8.2} GB/s", size >> 10, micros(median));
    }
    for (size, rounds) in MESSAGES {
        let message = memory.slice(0, size.max(ours.len()))?;
        message.copy_from_slice(&ours)?;
        let mut answer = memory.slice(LARGEST_BYTES, 16 << 10)?;
        let median = median(rounds, || {
            endpoint.receive(answer.clone())?;
            let op = endpoint.send(peer, message.clone());
            while events.is_empty() {
                domain.poll(&mut events)?;
            }
            answer = received(events.remove(0))?.0;
            finish(domain, op, &mut events)
        })?;
        println!("message  {:>7} B   {:>16.1} us there and back", message.len(), micros(median));
    }
    let (rounds, start) = (1_000_000, Instant::now());
    for _ in 0..rounds {
        domain.poll(&mut events)?;
    }
    println!("poll, idle {:>25.3} us", micros(start.elapsed()) / f64::from(rounds));
    Ok(())
}

/// Registers memory, prints how to reach it, and answers messages until the process is killed.
fn serve(domain: &Domain) -> Result<()> {
    let memory = domain.register(Arena::new()?, Access::REMOTE_READ)?;
    let endpoint = domain.endpoint()?;
    for slot in 0..8 {
        endpoint.receive(memory.slice(LARGEST_BYTES + (slot << 14), 16 << 10)?)?;
    }
    let (region, address) = (memory.remote(), endpoint.address());
    let bytes: Vec<String> = address.iter().map(u8::to_string).collect();
    println!("{} {} {} {}", region.base, region.key, region.len, bytes.join(" "));

    // Ends with its parent, should that die without killing it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let mut peer = None;
    let mut events = Vec::new();
    loop {
        domain.poll(&mut events)?;
        while !events.is_empty() {
            let (slice, len) = received(events.remove(0))?;
            let mut sender = vec![0; address.len()];
            slice.copy_to_slice(&mut sender)?;
            let to = match peer {
                Some(peer) => peer,
                None => *peer.insert(endpoint.connect(&sender)?),
            };
            finish(domain, endpoint.send(to, slice.slice(0, len)?), &mut events)?;
            endpoint.receive(slice)?;
        }
    }
}

fn received(event: Event) -> Result<(Slice, usize)> {
    match event {
        Event::Received { slice, len, .. } => Ok((slice, len)),
        other => Err(format!("unexpected: {other:?}").into()),
    }
}

/// Polls until the operation is finished.
fn finish(domain: &Domain, op: Op, events: &mut Vec<Event>) -> Result<()> {
    loop {
        if let Some(result) = op.result() {
            return Ok(result?);
        }
        domain.poll(events)?;
    }
}

fn median(rounds: usize, mut round: impl FnMut() -> Result<()>) -> Result<Duration> {
    for _ in 0..rounds / 10 {
        round()?;
    }
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        round()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[rounds / 2])
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Memory with room for the largest read and some messages. It is mapped for good.
struct Arena(NonNull<u8>);

impl Arena {
    fn new() -> Result<Rc<Arena>> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), 2 * LARGEST_BYTES, protection, flags)? };
        Ok(Rc::new(Arena(NonNull::new(base.cast()).ok_or("no memory")?)))
    }
}

// SAFETY: the mapping is never unmapped, and no reference to its bytes is ever made.
unsafe impl Memory for Arena {
    fn base(&self) -> NonNull<u8> {
        self.0
    }

    fn len(&self) -> usize {
        2 * LARGEST_BYTES
    }
}
