//! What the machine can do without any store: no store on it can be faster.
//!
//! - `memcpy`: into shared memory that was written lately: as much of it as the objects take that a store is
//!   given in one turn, one after the other, as by puts into reused memory;
//! - `memcpy_prefaulted`: into shared memory that is there, but was not written lately;
//! - `memcpy_fresh`: into shared memory that nobody has touched, with its page faults;
//! - `socket_round_trip`, `eventfd_round_trip`, `futex_round_trip`: between two processes;
//! - `clock`: one reading of the clock, which is in every figure once.

use std::time::Instant;

use plasmon_bench::Result;
use plasmon_bench::content::value;
use plasmon_bench::memory::Mapping;
use plasmon_bench::protocol::{Call, Greeting, Limit, Numbers, Peer};

use crate::echo::Echo;

/// Shared memory to walk through: more than fits in the caches of most machines.
const WALKED: usize = 512 << 20;

const OPERATIONS: &[&str] = &[
    "memcpy",
    "memcpy_prefaulted",
    "memcpy_fresh",
    "socket_round_trip",
    "eventfd_round_trip",
    "futex_round_trip",
    "clock",
];

/// The machine.
#[derive(Default)]
pub(crate) struct Raw {
    /// Made when first needed, and kept: making it takes a while.
    walked: Option<Mapping>,
    /// What `memcpy` writes to.
    written: Option<Mapping>,
    /// Where the last copy went.
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
        _batch: usize,
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

/// Copies into one place after the other, and begins again after the last.
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

/// The place after `position` for `len` bytes, in memory of `size` bytes.
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
