//! The side that reads, a worker.
//!
//! - `read`: one read of the whole, both sides polling;
//! - `read_chunks`: reads of 1 MiB each, four at a time, both sides polling;
//! - `read_asleep`, `read_chunks_asleep`: the same, with both sides asleep in the kernel while they wait.

use std::collections::VecDeque;
use std::rc::Rc;

use plasmon_bench::Result;
use plasmon_bench::content::value;
use plasmon_bench::memory::Mapping;
use plasmon_bench::protocol::{Call, Greeting, Limit, Numbers, Peer};
use plasmon_fabric::{Access, Region, RemoteRegion, Slice};

use crate::node::{Node, POLL, SLEEP};

const CHUNK: usize = 1 << 20;
const READS: usize = 4;

/// A reader of one server's memory.
pub(crate) struct Reader {
    node: Node,
    server: plasmon_fabric::Peer,
    remote: RemoteRegion,
    target: Option<Rc<Region>>,
}

impl Reader {
    pub(crate) fn connect(provider: &str, address: &str, greeting: &str) -> Result<Self> {
        let node = Node::open(provider, address)?;
        let mut words = greeting.trim().split(',');
        let mut number = || -> Result<u64> { Ok(words.next().ok_or("a short greeting")?.parse()?) };
        let remote = RemoteRegion { base: number()?, key: number()?, len: number()? };
        let server = node.endpoint.connect(&unhex(words.next().ok_or("a short greeting")?)?)?;
        Ok(Self { node, server, remote, target: None })
    }

    /// A registered place for `size` bytes.
    fn target(&mut self, size: usize) -> Result<Slice> {
        if size as u64 > self.remote.len {
            return Err(format!("{size} bytes are more than there are").into());
        }
        let target = match self.target.take().filter(|target| target.len() >= size) {
            Some(target) => target,
            None => self.node.register(Mapping::huge(size.max(CHUNK))?, Access::LOCAL)?,
        };
        Ok(self.target.insert(target).slice(0, size)?)
    }
}

impl Peer for Reader {
    fn greeting(&self) -> Greeting {
        Greeting {
            version: "",
            in_place: false,
            shared: true,
            operations: &["read", "read_chunks", "read_asleep", "read_chunks_asleep"],
        }
    }

    fn operation(
        &mut self,
        operation: &str,
        size: usize,
        _owner: u64,
        _numbers: Numbers,
        _batch: usize,
    ) -> Result<Box<dyn Call + '_>> {
        let (chunk, polling) = match operation {
            "read" => (size, true),
            "read_chunks" => (CHUNK, true),
            "read_asleep" => (size, false),
            "read_chunks_asleep" => (CHUNK, false),
            other => return Err(format!("there is no operation {other:?}").into()),
        };
        let target = self.target(size)?;
        if polling {
            tell(&self.node, self.server, POLL)?;
        }
        Ok(Box::new(Read { reader: self, target, chunk: chunk.max(1), polling }))
    }

    fn discard(&mut self, _owner: u64, _numbers: Numbers) -> Result<()> {
        Ok(())
    }
}

/// Tells the server how to wait, and waits until it does.
fn tell(node: &Node, server: plasmon_fabric::Peer, word: u8) -> Result<()> {
    node.send(server, word)?;
    match node.next_message(true)?.0 {
        answer if answer == word => Ok(()),
        other => Err(format!("the server answered {other} to {word}").into()),
    }
}

struct Read<'a> {
    reader: &'a Reader,
    target: Slice,
    chunk: usize,
    polling: bool,
}

impl Limit for Read<'_> {
    fn call(&mut self) -> Result<()> {
        let Reader { node, server, remote, .. } = self.reader;
        let mut under_way = VecDeque::with_capacity(READS);
        for start in (0..self.target.len()).step_by(self.chunk) {
            if under_way.len() == READS
                && let Some(oldest) = under_way.pop_front()
            {
                node.finish(&oldest, self.polling)?;
            }
            let len = self.chunk.min(self.target.len() - start);
            let into = self.target.slice(start, len)?;
            under_way.push_back(node.endpoint.read(*server, into, *remote, start as u64));
        }
        under_way.iter().try_for_each(|read| node.finish(read, self.polling))
    }

    fn check(&mut self) -> Result<()> {
        if self.target.to_vec() != value(self.target.len()) {
            return Err("other bytes were read than are there".into());
        }
        Ok(())
    }
}

impl Drop for Read<'_> {
    fn drop(&mut self) {
        // A server that cannot be told is seen by the next operation.
        if self.polling && tell(&self.reader.node, self.reader.server, SLEEP).is_err() {
            eprintln!("plasmon-bench-fabric: the server does not answer");
        }
    }
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let byte = |at| u8::from_str_radix(text.get(at..at + 2).ok_or("half a byte")?, 16).map_err(Into::into);
    (0..text.len()).step_by(2).map(byte).collect()
}
