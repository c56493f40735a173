//! Measurements of registering memory: by size, for each read, and by the number of regions of a device.
//!
//! Both ends are in this process, on one device and one thread. The figures are lines of CSV: the operation,
//! bytes, regions, the median in microseconds, and the number of samples.

use std::io::{Write, stdout};
use std::rc::Rc;
use std::time::Instant;

use plasmon_bench::Result;
use plasmon_bench::memory::Mapping;
use plasmon_fabric::{Access, Memory, Peer, Region};

use crate::node::{Node, POLL, Registered};

/// Sizes in bytes that are registered and read.
const REGISTERED: [usize; 7] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
const READ: [usize; 5] = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Size in bytes of memory that is one region, or many.
const ARENA: usize = 16 << 20;
const REGIONS: [usize; 7] = [1, 16, 64, 256, 1024, 2048, 4096];
/// Size in bytes of the reads in the regions.
const PAGE: usize = 4 << 10;
const SAMPLES: usize = 301;
/// Number of samples of slow operations.
const FEW: usize = 21;
const LONG: usize = 256 << 10;

struct Ends {
    reader: Node,
    holder: Node,
    peer: Peer,
    /// Memory at this end.
    here: Rc<dyn Memory>,
    there: Rc<dyn Memory>,
}

/// Measures everything and prints it.
pub(crate) fn run(provider: &str, address: &str) -> Result<()> {
    let (reader, holder) = (Node::open(provider, address)?, Node::open(provider, address)?);
    let peer = reader.endpoint.connect(&holder.endpoint.address())?;
    let memory = || -> Result<Rc<dyn Memory>> { Ok(Rc::new(Registered::new(Mapping::new(ARENA, true)?))) };
    let ends = Ends { here: memory()?, there: memory()?, reader, holder, peer };
    ends.connect()?;
    writeln!(stdout(), "what,bytes,regions,median_us,samples")?;
    for bytes in REGISTERED {
        let part: Rc<dyn Memory> = Rc::new(Registered::new(Mapping::new(bytes, true)?));
        let register = || -> Result<()> {
            drop(ends.reader.domain.register(Rc::clone(&part), Access::REMOTE_READ)?);
            Ok(())
        };
        let times = (0..=samples(bytes)).map(|_| timed(register)).collect::<Result<_>>()?;
        print("register", bytes, 1, times)?;
    }
    let (into, from) = ends.register()?;
    for bytes in READ {
        let part = || -> Result<Rc<dyn Memory>> { Ok(Rc::new(Registered::new(Mapping::new(bytes, true)?))) };
        let (here, there) = (part()?, part()?);
        let samples = samples(bytes);
        let [mut plain, mut registered] = [Vec::new(), Vec::new()];
        // The operations take turns, because the machine may become slower or faster meanwhile.
        for _ in 0..=samples {
            plain.push(timed(|| ends.read(&into, &from, 0, bytes))?);
            registered.push(timed(|| {
                let into = ends.reader.domain.register(Rc::clone(&here), Access::REMOTE_READ)?;
                let from = ends.holder.domain.register(Rc::clone(&there), Access::REMOTE_READ)?;
                ends.read(&into, &from, 0, bytes)
            })?);
        }
        print("read", bytes, 1, plain)?;
        print("read-register", bytes, 1, registered)?;
    }
    for regions in REGIONS {
        let len = ARENA / regions;
        let region =
            |_| -> Result<Rc<Region>> { ends.holder.register(Mapping::new(len, true)?, Access::REMOTE_READ) };
        let all = (0..regions).map(region).collect::<Result<Vec<_>>>()?;
        let mut turn = 0usize;
        let mut read = || {
            // The offset is far from the last one, and the same for any number of regions.
            turn = (turn + 1_597 * PAGE) % ARENA;
            ends.read(&into, &all[turn / len], turn % len, PAGE)
        };
        let times = (0..=samples(PAGE)).map(|_| timed(&mut read)).collect::<Result<_>>()?;
        print("read-of-many", PAGE, regions, times)?;
    }
    Ok(())
}

impl Ends {
    /// Polls both ends until a message has arrived. After that the device serves reads by itself.
    fn connect(&self) -> Result<()> {
        let message = self.reader.message(POLL)?;
        let sent = self.reader.endpoint.send(self.peer, message);
        while sent.result().is_none() || self.holder.events.borrow().is_empty() {
            for node in [&self.reader, &self.holder] {
                node.domain.poll(&mut node.events.borrow_mut())?;
            }
        }
        Ok(())
    }

    fn register(&self) -> Result<(Rc<Region>, Rc<Region>)> {
        let here = self.reader.domain.register(Rc::clone(&self.here), Access::LOCAL)?;
        Ok((here, self.holder.domain.register(Rc::clone(&self.there), Access::REMOTE_READ)?))
    }

    fn read(&self, into: &Rc<Region>, from: &Rc<Region>, at: usize, bytes: usize) -> Result<()> {
        let read = self.reader.endpoint.read(self.peer, into.slice(0, bytes)?, from.remote(), at as u64);
        if self.reader.domain.provider().is_rdma() {
            return self.reader.finish(&read, true);
        }
        // Without RDMA the holder's end has to poll to serve the read.
        loop {
            if let Some(result) = read.result() {
                return Ok(result?);
            }
            for node in [&self.reader, &self.holder] {
                node.domain.poll(&mut node.events.borrow_mut())?;
            }
        }
    }
}

/// Number of samples of an operation on so many bytes, after a first one that is not counted.
fn samples(bytes: usize) -> usize {
    if bytes < LONG { SAMPLES } else { FEW }
}

/// Time of an operation in microseconds.
fn timed(act: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    act()?;
    Ok(begin.elapsed().as_secs_f64() * 1e6)
}

/// Prints the median of all times but the first.
fn print(what: &str, bytes: usize, regions: usize, mut times: Vec<f64>) -> Result<()> {
    times.remove(0);
    times.sort_by(f64::total_cmp);
    let samples = times.len();
    writeln!(stdout(), "{what},{bytes},{regions},{:.3},{samples}", times[samples / 2])?;
    Ok(())
}
