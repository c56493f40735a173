//! The registration cache: memory of clients, registered with the fabric when it is first used.
//!
//! Owns the registrations. Engine thread only. The key is the client's explicit registration, never an
//! address: an address may be other memory later. Invariants: the cache is bounded by number and by bytes;
//! the least recently used registration goes first. A registration that an operation uses ends with that
//! operation, even if the cache has dropped it.

use std::cell::RefCell;
use std::rc::Rc;

use lru::LruCache;
use plasmon::status::RegistrationStatus;
use plasmon_fabric::{Access, Domain, FabricError, Region};

use crate::memory::ForeignMemory;

/// Maximum number of registrations.
const MAX_REGISTRATIONS: usize = 1024;
/// Maximum number of registered bytes; a single registration may have more.
const MAX_REGISTERED_BYTES: u64 = 16 << 30;

/// Memory that a client registered. After it is dropped, its registrations with fabrics end at the next
/// [`Registrations::tidy`].
pub(crate) struct Adopted {
    number: u64,
    memory: Rc<ForeignMemory>,
    gone: Rc<RefCell<Vec<u64>>>,
}

impl Adopted {
    /// The memory itself.
    pub(crate) fn memory(&self) -> &Rc<ForeignMemory> {
        &self.memory
    }

    /// Number of bytes of the memory.
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
    /// Registrations by the number of the memory and the number of the fabric.
    registered: LruCache<(u64, usize), Rc<Region>>,
    /// Numbers of memory that nobody uses any more.
    gone: Rc<RefCell<Vec<u64>>>,
    status: RegistrationStatus,
}

impl Registrations {
    /// Makes an empty cache.
    pub(crate) fn new() -> Self {
        let (registered, gone) = (LruCache::unbounded(), Rc::default());
        Self { next: 0, registered, gone, status: RegistrationStatus::default() }
    }

    /// Takes a client's memory into use.
    pub(crate) fn adopt(&mut self, memory: ForeignMemory) -> Adopted {
        self.next += 1;
        Adopted { number: self.next, memory: Rc::new(memory), gone: Rc::clone(&self.gone) }
    }

    /// Returns the registration of a client's memory with the fabric of number `on`, whose domain is
    /// `domain`. Registers the memory if the cache has no registration.
    pub(crate) fn region(
        &mut self,
        (on, domain): (usize, &Domain),
        adopted: &Adopted,
    ) -> Result<Rc<Region>, FabricError> {
        self.tidy();
        if let Some(region) = self.registered.get(&(adopted.number, on)) {
            self.status.hits += 1;
            return Ok(Rc::clone(region));
        }
        self.status.misses += 1;
        let memory = Rc::clone(&adopted.memory) as Rc<dyn plasmon_fabric::Memory>;
        let len = memory.len() as u64;
        while self.registered.len() >= MAX_REGISTRATIONS
            || (self.status.bytes > 0 && self.status.bytes + len > MAX_REGISTERED_BYTES)
        {
            let Some((_, oldest)) = self.registered.pop_lru() else { break };
            self.status.evicted += 1;
            self.status.bytes -= oldest.len() as u64;
        }
        let region = domain.register(memory, Access::LOCAL)?;
        self.registered.put((adopted.number, on), Rc::clone(&region));
        self.status.bytes += len;
        Ok(region)
    }

    /// Ends the registrations of memory that nobody uses any more.
    pub(crate) fn tidy(&mut self) {
        for gone in self.gone.take() {
            let keys: Vec<_> =
                self.registered.iter().map(|(key, _)| *key).filter(|key| key.0 == gone).collect();
            for region in keys.iter().filter_map(|key| self.registered.pop(key)) {
                self.status.bytes -= region.len() as u64;
            }
        }
    }

    /// Returns the figures of the cache for the report.
    pub(crate) fn status(&self) -> RegistrationStatus {
        RegistrationStatus { regions: self.registered.len() as u64, ..self.status.clone() }
    }
}
