//! Measurements of the machine without any store: no store on it can be faster.
//!
//! - `memcpy`: copies into shared memory that was written lately, one object after the other, over as much of
//!   it as a store gets in one turn, as for puts into reused memory;
//! - `memcpy_prefaulted`: copies into shared memory that is mapped, but was not written lately;
//! - `memcpy_fresh`: copies into shared memory that was never touched, with its page faults;
//! - `socket_round_trip`, `eventfd_round_trip`, `futex_round_trip`: round trips between two processes;
//! - `memset`: fills shared memory that was written lately;
//! - `locked_add`: adds of the processor to a word of shared memory, as many as a batch has;
//! - `clock`: one reading of the clock, which is in every figure once.

use std::sync::atomic::Ordering;
use std::time::Instant;

use plasmon_bench::Result;
use plasmon_bench::content::value;
use plasmon_bench::memory::Mapping;
use plasmon_bench::protocol::{Call, Greeting, Limit, Numbers, Peer};

use crate::echo::Echo;

/// Size in bytes of shared memory to walk through: more than the caches of most machines.
const WALKED: usize = 512 << 20;

const OPERATIONS: &[&str] = &[
    "memcpy",
    "memcpy_prefaulted",
    "memcpy_fresh",
    "socket_round_trip",
    "eventfd_round_trip",
    "futex_round_trip",
    "memset",
    "locked_add",
    "clock",
];

/// Machine as a peer.
#[derive(Default)]
pub(crate) struct Raw {
    /// Memory to walk through, which is made when it is first needed, because that takes a while.
    walked: Option<Mapping>,
    /// Memory that `memcpy` writes to.
    written: Option<Mapping>,
    /// Offset of the last copy.
    position: usize,
}

impl Peer for Raw {
    fn greeting(&self) -> Greeting {
        Greeting { version: "", in_place: false, shared: false, operations: OPERATIONS }
    }

    fn operation(
        &mut self,
        operation: &str,
        size: usize,
        _owner: u64,
        numbers: Numbers,
        batch: usize,
    ) -> Result<Box<dyn Call + '_>> {
        Ok(match operation {
            "memcpy" if size > 0 => {
                let source = value(size);
                let target = self.written.insert(Mapping::new(size * numbers.count(), true)?);
                target.bytes().chunks_exact_mut(size).for_each(|place| place.copy_from_slice(&source));
                Box::new(Walk { source, target, position: &mut self.position })
            }
            "memcpy_prefaulted" if (1..=WALKED).contains(&size) => {
                let target = match &mut self.walked {
                    Some(walked) => walked,
                    empty => empty.insert(Mapping::new(WALKED, true)?),
                };
                Box::new(Walk { source: value(size), target, position: &mut self.position })
            }
            "memcpy_fresh" => Box::new(Fresh { source: value(size), target: Mapping::new(size, false)? }),
            "memset" => Box::new(Fill(Mapping::new(size, true)?)),
            "locked_add" => Box::new(Adds { memory: Mapping::new(size_of::<u64>(), true)?, batch }),
            "clock" => Box::new(Clock),
            other => match other.strip_suffix("_round_trip") {
                Some(kind) => Box::new(RoundTrip(Echo::start(kind)?)),
                None => return Err(format!("there is no {other:?} of {size} bytes").into()),
            },
        })
    }

    fn discard(&mut self, _owner: u64, _numbers: Numbers) -> Result<()> {
        Ok(())
    }
}

/// Copy into one place after the other, from the beginning again after the last.
struct Walk<'a> {
    source: Vec<u8>,
    target: &'a mut Mapping,
    position: &'a mut usize,
}

impl Limit for Walk<'_> {
    fn prepare(&mut self) -> Result<()> {
        *self.position = next(*self.position, self.source.len(), self.target.bytes().len());
        Ok(())
    }

    fn call(&mut self) -> Result<()> {
        self.target.bytes()[*self.position..][..self.source.len()].copy_from_slice(&self.source);
        Ok(())
    }
}

/// Offset of the place after `position` for `len` bytes, in memory of `size` bytes.
fn next(position: usize, len: usize, size: usize) -> usize {
    if position + 2 * len > size { 0 } else { position + len }
}

struct Fresh {
    source: Vec<u8>,
    target: Mapping,
}

impl Limit for Fresh {
    fn prepare(&mut self) -> Result<()> {
        self.target = Mapping::new(self.source.len(), false)?;
        Ok(())
    }

    fn call(&mut self) -> Result<()> {
        self.target.bytes().copy_from_slice(&self.source);
        Ok(())
    }
}

struct Fill(Mapping);

impl Limit for Fill {
    fn call(&mut self) -> Result<()> {
        self.0.bytes().fill(0xA5);
        Ok(())
    }
}

struct Adds {
    memory: Mapping,
    batch: usize,
}

impl Limit for Adds {
    fn call(&mut self) -> Result<()> {
        let word = self.memory.word();
        for _ in 0..self.batch {
            std::hint::black_box(word.fetch_add(1, Ordering::SeqCst));
        }
        Ok(())
    }
}

struct RoundTrip(Echo);

impl Limit for RoundTrip {
    fn call(&mut self) -> Result<()> {
        self.0.round_trip()
    }
}

struct Clock;

impl Limit for Clock {
    fn call(&mut self) -> Result<()> {
        std::hint::black_box(Instant::now());
        Ok(())
    }
}
