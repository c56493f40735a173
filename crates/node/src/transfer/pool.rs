//! The pool of message blocks: registered memory in pieces of one size.
//!
//! Engine thread only. Receives take blocks for good (explicit use); a send takes one and gives it
//! back by itself when the fabric is finished with it (implicit use). The pool grows by whole slabs,
//! each registered once, and never shrinks.

use std::any::Any;
use std::cell::RefCell;
use std::rc::{Rc, Weak};

use plasmon_fabric::{Access, Domain, FabricError, Slice};

use crate::memory::BlockMemory;

/// Blocks in a slab.
const SLAB: usize = 64;

/// Registered blocks of one size.
pub(crate) struct Pool {
    domain: Domain,
    block: usize,
    free: RefCell<Vec<Slice>>,
}

/// Returns a block to its pool when the last operation lets go of it.
struct Lent {
    pool: Weak<Pool>,
    block: Option<Slice>,
}

impl Pool {
    pub(crate) fn new(domain: &Domain, block: usize) -> Rc<Self> {
        Rc::new(Self { domain: domain.clone(), block, free: RefCell::default() })
    }

    /// A block that returns by itself.
    pub(crate) fn lend(self: &Rc<Self>) -> Result<Slice, FabricError> {
        let block = self.keep()?;
        let lent = Lent { pool: Rc::downgrade(self), block: Some(block.clone()) };
        Ok(block.with_owner(Rc::new(lent) as Rc<dyn Any>))
    }

    /// A block that is never given back.
    pub(crate) fn keep(&self) -> Result<Slice, FabricError> {
        if let Some(block) = self.free.borrow_mut().pop() {
            return Ok(block);
        }
        let memory = Rc::new(BlockMemory::new(SLAB * self.block));
        let region = self.domain.register(memory, Access::LOCAL)?;
        let mut free = self.free.borrow_mut();
        for at in 0..SLAB {
            free.push(region.slice(at * self.block, self.block)?);
        }
        Ok(free.pop().expect("just filled"))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(pool), Some(block)) = (self.pool.upgrade(), self.block.take()) {
            pool.free.borrow_mut().push(block);
        }
    }
}
