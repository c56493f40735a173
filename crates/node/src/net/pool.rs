//! Buffer pools: registered blocks for messages and other staged bytes, one pool for each size of block.
//!
//! Owns the blocks. Engine thread only. A block has three areas. Its *descriptor*, which the fabric needs to
//! reach it, is the registration of its slab, made once and carried by its [`Slice`]. A frame's header and
//! fields are its *request*, and the bytes of objects behind them its *data*; the frame tells where the data
//! begins. Blocks are used in pairs: one to send, and one posted to receive.
//!
//! Receives take blocks for good (explicit use). A send takes the smallest sufficient block, which returns
//! by itself when the fabric is finished with it (implicit use). A pool grows by whole slabs and never
//! shrinks.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use plasmon::status::PoolStatus;
use plasmon_fabric::{Access, Domain, FabricError, Slice};

use crate::memory::BlockMemory;

/// Maximum number of bytes in a slab.
const MAX_SLAB_BYTES: usize = 1 << 20;
/// Maximum number of blocks in a slab.
const MAX_SLAB_BLOCKS: usize = 256;

/// The pools of a node, smallest blocks first.
pub(crate) struct Pools {
    provider: String,
    pools: Vec<Rc<Pool>>,
}

/// Blocks of one size.
struct Pool {
    domain: Domain,
    block: usize,
    free: RefCell<Vec<Slice>>,
    blocks: Cell<u64>,
    kept: Cell<u64>,
    lent: Cell<u64>,
    lent_ever: Cell<u64>,
}

/// Returns a block to its pool when the last operation drops it.
struct Lent {
    pool: Weak<Pool>,
    block: Option<Slice>,
}

impl Pools {
    /// Makes a pool for each of `sizes`, in bytes. The pools grow on demand.
    pub(crate) fn new(domain: &Domain, provider: &str, sizes: &[usize]) -> Self {
        debug_assert!(sizes.is_sorted());
        Self {
            provider: provider.to_owned(),
            pools: sizes.iter().map(|block| Rc::new(Pool::new(domain, *block))).collect(),
        }
    }

    /// Lends a block of at least `len` bytes, cut to that length. The block returns when it is dropped.
    pub(crate) fn lend(&self, len: usize) -> Result<Slice, FabricError> {
        self.of(len).lend()?.slice(0, len)
    }

    /// Gives a block of at least `len` bytes that is never returned.
    pub(crate) fn keep(&self, len: usize) -> Result<Slice, FabricError> {
        let pool = self.of(len);
        pool.kept.set(pool.kept.get() + 1);
        pool.take()
    }

    /// Returns the pool of the smallest sufficient blocks. If no blocks are large enough, returns the pool of
    /// the largest, whose blocks cannot be cut to more than their length.
    fn of(&self, len: usize) -> &Rc<Pool> {
        let fits = self.pools.iter().find(|pool| pool.block >= len);
        fits.or(self.pools.last()).expect("there is a pool")
    }

    /// Returns the use of each pool, for the report.
    pub(crate) fn status(&self) -> Vec<PoolStatus> {
        let status = |pool: &Rc<Pool>| PoolStatus {
            provider: self.provider.clone(),
            block_bytes: pool.block as u64,
            blocks: pool.blocks.get(),
            kept: pool.kept.get(),
            lent: pool.lent.get(),
            lent_ever: pool.lent_ever.get(),
        };
        self.pools.iter().map(status).collect()
    }
}

impl Pool {
    fn new(domain: &Domain, block: usize) -> Self {
        let counts = || Cell::new(0);
        let (blocks, kept, lent, lent_ever) = (counts(), counts(), counts(), counts());
        Self { domain: domain.clone(), block, free: RefCell::default(), blocks, kept, lent, lent_ever }
    }

    fn lend(self: &Rc<Self>) -> Result<Slice, FabricError> {
        let block = self.take()?;
        self.lent.set(self.lent.get() + 1);
        self.lent_ever.set(self.lent_ever.get() + 1);
        let lent = Lent { pool: Rc::downgrade(self), block: Some(block.clone()) };
        Ok(block.with_owner(Rc::new(lent) as Rc<dyn Any>))
    }

    fn take(&self) -> Result<Slice, FabricError> {
        if let Some(block) = self.free.borrow_mut().pop() {
            return Ok(block);
        }
        let count = (MAX_SLAB_BYTES / self.block).clamp(1, MAX_SLAB_BLOCKS);
        let memory = Rc::new(BlockMemory::new(count * self.block));
        let region = self.domain.register(memory, Access::LOCAL)?;
        let mut free = self.free.borrow_mut();
        for at in 0..count {
            free.push(region.slice(at * self.block, self.block)?);
        }
        self.blocks.set(self.blocks.get() + count as u64);
        Ok(free.pop().expect("just filled"))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(pool), Some(block)) = (self.pool.upgrade(), self.block.take()) {
            pool.lent.set(pool.lent.get() - 1);
            pool.free.borrow_mut().push(block);
        }
    }
}
