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

use plasmon_fabric::{Access, Domain, Endpoint, Event, Memory, Op, Peer, Region, RemoteRegion, Slice};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Bytes of the largest read.
const LARGEST_BYTES: usize = 4 << 20;
/// Size in bytes and number of the reads of each row.
const READS: [(usize, usize); 4] = [(1 << 10, 5000), (64 << 10, 3000), (1 << 20, 500), (LARGEST_BYTES, 200)];
/// Size in bytes and number of the messages of each row.
const MESSAGES: [(usize, usize); 3] = [(16, 5000), (1 << 10, 5000), (16 << 10, 3000)];
/// Size in bytes and number of the objects of each row. Each row has three ways to get the objects.
const OBJECTS: [(usize, usize); 5] =
    [(16 << 10, 3000), (32 << 10, 3000), (64 << 10, 3000), (128 << 10, 2000), (256 << 10, 2000)];
/// Number of bytes of an object in one message.
const PIECE: usize = 16 << 10;
/// Number of receive buffers for messages.
const BUFFERS: usize = 32;
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
    measure_objects(domain, &memory, (&endpoint, peer), region)?;
    let (rounds, start) = (1_000_000, Instant::now());
    for _ in 0..rounds {
        domain.poll(&mut events)?;
    }
    println!("poll, idle {:>25.3} us", micros(start.elapsed()) / f64::from(rounds));
    Ok(())
}

/// Way in which an object comes to this side, after this side has asked for the object by a message.
#[derive(Clone, Copy)]
enum Way {
    /// The other side answers, and this side reads.
    Read,
    /// The other side answers by as many messages as it takes; this side copies them.
    Messages,
    /// The other side writes to this side's memory, with a message behind; this side copies the bytes.
    Write,
}

/// Prints how long objects take in each way.
fn measure_objects(
    domain: &Domain,
    memory: &Rc<Region>,
    (endpoint, peer): (&Endpoint, Peer),
    region: RemoteRegion,
) -> Result<()> {
    let window = domain.register(Arena::new()?, Access::REMOTE_WRITE)?;
    let (ours, to, mut events) = (endpoint.address(), window.remote(), Vec::new());
    for slot in 0..BUFFERS {
        endpoint.receive(memory.slice(LARGEST_BYTES + (slot << 14), PIECE)?)?;
    }
    let mut bytes = vec![0; LARGEST_BYTES];
    for (size, rounds) in OBJECTS {
        print!("object   {:>7} KiB ", size >> 10);
        for (name, way) in [("read", Way::Read), ("messages", Way::Messages), ("write", Way::Write)] {
            let mut question = ours.clone();
            for word in [way as u64 + 1, size as u64, to.base, to.key, to.len] {
                question.extend_from_slice(&word.to_le_bytes());
            }
            let message = memory.slice(LARGEST_BYTES - PIECE, question.len())?;
            message.copy_from_slice(&question)?;
            let answers = if let Way::Messages = way { size.div_ceil(PIECE) } else { 1 };
            let median = median(rounds, || {
                let op = endpoint.send(peer, message.clone());
                let mut got = 0;
                while got < answers {
                    domain.poll(&mut events)?;
                    for event in events.drain(..) {
                        let (slice, len) = received(event)?;
                        if let Way::Messages = way {
                            slice.slice(0, len)?.copy_to_slice(&mut bytes[got * PIECE..][..len])?;
                        }
                        endpoint.receive(slice)?;
                        got += 1;
                    }
                }
                match way {
                    Way::Read => {
                        let into = memory.slice(0, size)?;
                        finish(domain, endpoint.read(peer, into, region, 0), &mut events)?;
                    }
                    Way::Write => window.slice(0, size)?.copy_to_slice(&mut bytes[..size])?,
                    Way::Messages => {}
                }
                finish(domain, op, &mut events)
            })?;
            print!("  {name} {:>7.1} us", micros(median));
        }
        println!();
    }
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

    // This process ends with its parent, also if the parent dies without killing it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let mut peer = None;
    let (mut events, mut under_way) = (Vec::new(), Vec::new());
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
            let words: Vec<u64> = words(&slice, address.len(), len)?;
            match words[..] {
                [way @ 1..=3, size, base, key, len] => {
                    let size = size as usize;
                    let mut ops = Vec::new();
                    if way == 3 {
                        let (from, to_region) = (memory.slice(0, size)?, RemoteRegion { base, key, len });
                        ops.push(endpoint.write(to, from, to_region, 0, None));
                    }
                    let pieces = if way == 2 { size / PIECE } else { 1 };
                    for piece in 0..pieces {
                        let bytes = if way == 2 { PIECE } else { 64 };
                        // A message is copied to a block, as its frame has a header.
                        let block = memory.slice(LARGEST_BYTES + ((BUFFERS + piece) << 14), bytes)?;
                        let mut copy = vec![0; bytes];
                        memory.slice(piece * PIECE, bytes)?.copy_to_slice(&mut copy)?;
                        block.copy_from_slice(&copy)?;
                        ops.push(endpoint.send(to, block));
                    }
                    under_way.extend(ops);
                }
                _ => finish(domain, endpoint.send(to, slice.slice(0, len)?), &mut events)?,
            }
            under_way.retain(|op| op.result().is_none());
            endpoint.receive(slice)?;
        }
    }
}

/// Words behind the address in a message of `len` bytes, if there are as many as a question has.
fn words(slice: &Slice, address: usize, len: usize) -> Result<Vec<u64>> {
    if len < address + 40 {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; 40];
    slice.slice(address, 40)?.copy_to_slice(&mut bytes)?;
    Ok(bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect())
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
