//! Reading and writing side, a worker.
//!
//! - `read`: one read of the whole, both sides polling;
//! - `read_chunks`: reads of 512 KiB each, four at a time, both sides polling;
//! - `read_asleep`, `read_chunks_asleep`: as above, with both sides asleep in the kernel while they wait;
//! - `write_asleep`: one write of the same bytes as are there, until the other side has acknowledged it;
//! - `read_begun_asleep`: a batch of reads in flight;
//! - `message_asleep`: a small message there and back;
//! - `message_paced`: a batch of such messages, 1,000 a second, both sides polling all the time.
//!
//! Each reads one place again and again, which is then in the processor's caches. With `_places` after its
//! name it reads as many places as a store has objects, in memory like that of a store.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon_bench::Result;
use plasmon_bench::content::{is_at, value};
use plasmon_bench::memory::{Mapping, Places};
use plasmon_bench::protocol::{Call, Greeting, Limit, Numbers, Peer};
use plasmon_fabric::{Access, Region, RemoteRegion, Slice};

use crate::node::{MESSAGE, Node, POLL, SLEEP};
use crate::server::LARGEST;

const CHUNK_BYTES: usize = 512 << 10;
const READS: usize = 4;
/// Time from one paced message to the next.
const GAP: Duration = Duration::from_millis(1);

/// Reader of one server's memory.
pub(crate) struct Reader {
    node: Node,
    server: plasmon_fabric::Peer,
    one: Kind,
    many: Kind,
}

/// Memory of one kind: the server's, and as much of this process as was needed so far.
struct Kind {
    remote: RemoteRegion,
    target: Option<Rc<Region>>,
}

impl Reader {
    pub(crate) fn connect(provider: &str, address: &str, greeting: &str) -> Result<Self> {
        let node = Node::open(provider, address)?;
        let words: Vec<&str> = greeting.trim().split(',').collect();
        let [one, many, address] = match words[..] {
            [a, b, c, d, e, f, address] => [[a, b, c].join(","), [d, e, f].join(","), address.to_owned()],
            _ => return Err(format!("not a greeting: {greeting}").into()),
        };
        let server = node.endpoint.connect(&unhex(&address)?)?;
        Ok(Self { node, server, one: Kind::new(&one)?, many: Kind::new(&many)? })
    }
}

impl Kind {
    fn new(words: &str) -> Result<Self> {
        let numbers = words.split(',').map(str::parse).collect::<std::result::Result<Vec<u64>, _>>()?;
        let remote = RemoteRegion { base: numbers[0], key: numbers[1], len: numbers[2] };
        Ok(Self { remote, target: None })
    }

    /// Registered memory of at least `len` bytes.
    fn target(&mut self, len: usize, node: &Node, map: fn(usize) -> Result<Mapping>) -> Result<Slice> {
        if len as u64 > self.remote.len {
            return Err(format!("{len} bytes are more than there are").into());
        }
        let target = match self.target.take().filter(|target| target.len() >= len) {
            Some(target) => target,
            None => node.register(map(len.max(CHUNK_BYTES))?, Access::LOCAL)?,
        };
        Ok(self.target.insert(target).slice(0, len)?)
    }
}

impl Peer for Reader {
    fn greeting(&self) -> Greeting {
        Greeting {
            version: "",
            in_place: false,
            shared: true,
            operations: &[
                "read",
                "read_chunks",
                "read_asleep",
                "read_chunks_asleep",
                "read_places",
                "read_chunks_places",
                "read_asleep_places",
                "read_chunks_asleep_places",
                "write_asleep_places",
                "read_begun_asleep_places",
                "message_asleep",
                "message_paced",
            ],
        }
    }

    fn operation(
        &mut self,
        operation: &str,
        size: usize,
        _owner: u64,
        numbers: Numbers,
        batch: usize,
    ) -> Result<Box<dyn Call + '_>> {
        if operation.starts_with("message") {
            if size > MESSAGE {
                return Err(format!("{size} bytes are more than a message carries").into());
            }
            if operation == "message_paced" {
                tell(&self.node, self.server, POLL)?;
                return Ok(Box::new(Paced { reader: self, messages: batch }));
            }
            return Ok(Box::new(Message(self)));
        }
        let (way, as_a_store) = match operation.strip_suffix("_places") {
            Some(way) => (way, true),
            None => (operation, false),
        };
        let (chunk, polling) = match way {
            "read" => (size, true),
            "read_chunks" => (CHUNK_BYTES, true),
            "read_asleep" | "write_asleep" | "read_begun_asleep" => (size, false),
            "read_chunks_asleep" => (CHUNK_BYTES, false),
            other => return Err(format!("there is no operation {other:?}").into()),
        };
        let (places, kind, map): (_, _, fn(usize) -> Result<Mapping>) = if as_a_store {
            let places = Places::many(size, numbers.count(), LARGEST);
            (places, &mut self.many, |len| Mapping::new(len, true))
        } else {
            (Places::one(size), &mut self.one, Mapping::huge)
        };
        let (remote, target) = (kind.remote, kind.target(places.len(), &self.node, map)?);
        if polling {
            tell(&self.node, self.server, POLL)?;
        }
        if way == "write_asleep" {
            target.copy_from_slice(&value(target.len()))?;
            return Ok(Box::new(Write { reader: self, remote, source: target, places }));
        }
        let (together, batch) = if way == "read_begun_asleep" { (batch, batch) } else { (READS, 1) };
        let read =
            Read { reader: self, remote, target, places, chunk: chunk.max(1), together, batch, polling };
        Ok(Box::new(read))
    }

    fn discard(&mut self, _owner: u64, _numbers: Numbers) -> Result<()> {
        Ok(())
    }
}

/// Tells the server how to wait, and waits for its confirmation.
fn tell(node: &Node, server: plasmon_fabric::Peer, word: u8) -> Result<()> {
    node.send(server, word)?;
    match node.next_message(true)?.0 {
        answer if answer == word => Ok(()),
        other => Err(format!("the server answered {other} to {word}").into()),
    }
}

struct Read<'a> {
    reader: &'a Reader,
    remote: RemoteRegion,
    target: Slice,
    places: Places,
    chunk: usize,
    /// Number of reads in flight.
    together: usize,
    /// Number of places in a call.
    batch: usize,
    polling: bool,
}

impl Call for Read<'_> {
    fn units(&self) -> usize {
        self.places.count().div_ceil(self.batch)
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, index: usize) -> Result<()> {
        let Reader { node, server, .. } = self.reader;
        let mut under_way = VecDeque::with_capacity(self.together);
        for place in (0..self.batch).map(|one| self.places.range(index * self.batch + one)) {
            for start in place.clone().step_by(self.chunk) {
                if under_way.len() == self.together
                    && let Some(oldest) = under_way.pop_front()
                {
                    node.finish(&oldest, self.polling)?;
                }
                let into = self.target.slice(start, self.chunk.min(place.end - start))?;
                under_way.push_back(node.endpoint.read(*server, into, self.remote, start as u64));
            }
        }
        under_way.iter().try_for_each(|read| node.finish(read, self.polling))
    }

    fn check(&mut self, index: usize) -> Result<()> {
        let place = self.places.range((index + 1) * self.batch - 1);
        if !is_at(place.start, &self.target.slice(place.start, place.len())?.to_vec()) {
            return Err("other bytes were read than are there".into());
        }
        Ok(())
    }
}

impl Drop for Read<'_> {
    fn drop(&mut self) {
        if self.polling {
            let_sleep(self.reader);
        }
    }
}

/// Has the server sleep again. If it cannot be told, the next operation fails.
fn let_sleep(reader: &Reader) {
    if tell(&reader.node, reader.server, SLEEP).is_err() {
        eprintln!("plasmon-bench-fabric: the server does not answer");
    }
}

/// Write of bytes that are there already, so that reads find what they expect.
struct Write<'a> {
    reader: &'a Reader,
    remote: RemoteRegion,
    source: Slice,
    places: Places,
}

impl Call for Write<'_> {
    fn units(&self) -> usize {
        self.places.count()
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, index: usize) -> Result<()> {
        let Reader { node, server, .. } = self.reader;
        let place = self.places.range(index);
        let from = self.source.slice(place.start, place.len())?;
        node.finish(&node.endpoint.write(*server, from, self.remote, place.start as u64, None), false)
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        Ok(())
    }
}

/// Small message, and the answer to it, between two that sleep while they wait.
struct Message<'a>(&'a Reader);

impl Limit for Message<'_> {
    fn call(&mut self) -> Result<()> {
        let Reader { node, server, .. } = self.0;
        let sent = node.endpoint.send(*server, node.message(SLEEP)?);
        let (answer, _) = node.next_message(false)?;
        node.finish(&sent, false)?;
        if answer == SLEEP { Ok(()) } else { Err(format!("the server answered {answer}").into()) }
    }
}

/// Small messages at a pace, and the answers to them, between two that poll all the time.
struct Paced<'a> {
    reader: &'a Reader,
    messages: usize,
}

impl Limit for Paced<'_> {
    fn call(&mut self) -> Result<()> {
        let (node, begin) = (&self.reader.node, Instant::now());
        for nth in 0..self.messages as u32 {
            while begin.elapsed() < GAP * nth {
                node.poll()?;
            }
            node.send(self.reader.server, POLL)?;
            match node.next_message(true)?.0 {
                POLL => {}
                other => return Err(format!("the server answered {other}").into()),
            }
        }
        Ok(())
    }
}

impl Drop for Paced<'_> {
    fn drop(&mut self) {
        let_sleep(self.reader);
    }
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let byte = |at| u8::from_str_radix(text.get(at..at + 2).ok_or("half a byte")?, 16).map_err(Into::into);
    (0..text.len()).step_by(2).map(byte).collect()
}
