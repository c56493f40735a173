//! What the machine can do without any store: no store on it can be faster.
//!
//! - `memcpy`: into shared memory that was written a moment ago, as a put into reused memory;
//! - `memcpy_prefaulted`: into shared memory that is there, but was not written lately;
//! - `memcpy_fresh`: into shared memory that nobody has touched, with its page faults;
//! - `socket_round_trip`, `eventfd_round_trip`, `futex_round_trip`: between two processes;
//! - `clock`: one reading of the clock, which is in every figure once.

use std::ops::Range;
use std::time::Instant;

use crate::Result;
use crate::echo::Echo;
use crate::memory::Mapping;
use crate::protocol::{Call, Greeting, Peer};
use crate::store::value;

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
    /// Where the next copy goes.
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
        _numbers: Range<u64>,
    ) -> Result<Box<dyn Call + '_>> {
        Ok(match operation {
            "memcpy" => {
                let mut target = Mapping::new(size, true)?;
                let source = value(size);
                target.bytes().copy_from_slice(&source);
                Box::new(Copy { source, target })
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

    fn discard(&mut self, _owner: u64, _numbers: Range<u64>) -> Result<()> {
        Ok(())
    }
}

struct Copy {
    source: Vec<u8>,
    target: Mapping,
}

impl Limit for Copy {
    fn call(&mut self) -> Result<()> {
        self.target.bytes().copy_from_slice(&self.source);
        Ok(())
    }
}

struct Walk<'a> {
    source: Vec<u8>,
    target: &'a mut Mapping,
    position: &'a mut usize,
}

impl Limit for Walk<'_> {
    fn prepare(&mut self) -> Result<()> {
        *self.position += self.source.len();
        if *self.position + self.source.len() > WALKED {
            *self.position = 0;
        }
        Ok(())
    }

    fn call(&mut self) -> Result<()> {
        self.target.bytes()[*self.position..][..self.source.len()].copy_from_slice(&self.source);
        Ok(())
    }
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

/// A [`Call`] that is the same for all objects and leaves nothing behind.
trait Limit {
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }
    fn call(&mut self) -> Result<()>;
}

impl<T: Limit> Call for T {
    fn objects(&self) -> usize {
        1
    }

    fn once(&self) -> bool {
        false
    }

    fn prepare(&mut self, _index: usize) -> Result<()> {
        Limit::prepare(self)
    }

    fn call(&mut self, _index: usize) -> Result<()> {
        Limit::call(self)
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        Ok(())
    }
}
