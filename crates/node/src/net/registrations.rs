//! The registration cache: memory of clients, registered with the fabric when it is first used. Engine
//! thread only.
//!
//! The cache is bounded by number and by bytes; the least recently used registration goes first. A
//! registration that an operation uses ends with that operation, even if the cache has dropped it. The key
//! is the client's explicit registration, never an address: an address may be other memory later.

use std::cell::RefCell;
use std::rc::Rc;

use lru::LruCache;
use plasmon::status::RegistrationStatus;
use plasmon_fabric::{Access, Domain, FabricError, Region};

use crate::memory::ForeignMemory;

/// Maximum number of registrations.
const MAX_REGISTRATIONS: usize = 1024;
/// Maximum number of bytes; a single registration may have more.
const MAX_REGISTERED_BYTES: u64 = 16 << 30;

/// Memory of a client; its registration ends with it.
pub(crate) struct Adopted {
    number: u64,
    memory: Rc<ForeignMemory>,
    gone: Rc<RefCell<Vec<u64>>>,
}

impl Adopted {
    pub(crate) fn memory(&self) -> &Rc<ForeignMemory> {
        &self.memory
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> u64 {
        plasmon_fabric::Memory::len(&*self.memory) as u64
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        self.gone.borrow_mut().push(self.number);
    }
}

/// The registration cache.
pub(crate) struct Registrations {
    next: u64,
    /// Registrations by the memory's number and the fabric.
    regions: LruCache<(u64, usize), Rc<Region>>,
    /// Numbers whose memory nobody uses any more.
    gone: Rc<RefCell<Vec<u64>>>,
    status: RegistrationStatus,
}

impl Registrations {
    pub(crate) fn new() -> Self {
        let (regions, gone) = (LruCache::unbounded(), Rc::default());
        Self { next: 0, regions, gone, status: RegistrationStatus::default() }
    }

    /// Takes a client's memory into use.
    pub(crate) fn adopt(&mut self, memory: ForeignMemory) -> Adopted {
        self.next += 1;
        Adopted { number: self.next, memory: Rc::new(memory), gone: Rc::clone(&self.gone) }
    }

    /// The registration of a client's memory with a fabric, by its number and its domain.
    pub(crate) fn region(
        &mut self,
        (on, domain): (usize, &Domain),
        adopted: &Adopted,
    ) -> Result<Rc<Region>, FabricError> {
        self.tidy();
        if let Some(region) = self.regions.get(&(adopted.number, on)) {
            self.status.hits += 1;
            return Ok(Rc::clone(region));
        }
        self.status.misses += 1;
        let memory = Rc::clone(&adopted.memory) as Rc<dyn plasmon_fabric::Memory>;
        let len = memory.len() as u64;
        while self.regions.len() >= MAX_REGISTRATIONS
            || (self.status.bytes > 0 && self.status.bytes + len > MAX_REGISTERED_BYTES)
        {
            let Some((_, oldest)) = self.regions.pop_lru() else { break };
            self.status.evicted += 1;
            self.status.bytes -= oldest.len() as u64;
        }
        let region = domain.register(memory, Access::LOCAL)?;
        self.regions.put((adopted.number, on), Rc::clone(&region));
        self.status.bytes += len;
        Ok(region)
    }

    /// Ends the registrations whose memory is gone.
    pub(crate) fn tidy(&mut self) {
        for gone in self.gone.take() {
            let keys: Vec<_> = self.regions.iter().map(|(key, _)| *key).filter(|key| key.0 == gone).collect();
            for region in keys.iter().filter_map(|key| self.regions.pop(key)) {
                self.status.bytes -= region.len() as u64;
            }
        }
    }

    pub(crate) fn status(&self) -> RegistrationStatus {
        RegistrationStatus { regions: self.regions.len() as u64, ..self.status.clone() }
    }
}
