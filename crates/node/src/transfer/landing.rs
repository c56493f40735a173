//! Landings: the memory to which the bytes of a fetched object come, in a replica or in memory that a
//! client has given. Every protocol writes to a [`Landing`]. This module makes landings, and seals the
//! objects that are complete. Engine thread only.
//!
//! Invariant: every operation of a fabric or a socket owns its landing until it is finished with it, and
//! drops it before the operation is reported as over. An attempt that failed leaves its memory to those
//! operations, and the next attempt takes other memory. Memory that a client has given is the same each
//! time: nothing else is written there, and the client gets no answer, before those operations are over.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use plasmon::{Error, ErrorKind};
use plasmon_fabric::{Access, FabricError, Memory, Region, Slice};
use tracing::debug;

use super::failure::{Failure, STALLED};
use super::pieces::Span;
use crate::kernel::counted::Counted;
use crate::memory::{Extent, IoRange, OutOfBounds, Piece, Run, Writer, Zone};
use crate::net::registrations::Adopted;
use crate::object::{Head, Held, Role, Sealing};
use crate::transfer::Transfer;

/// How long to wait before checking again whether operations are over.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// The receiver of a fetched object's bytes.
#[derive(Clone)]
pub(super) enum Target {
    /// A replica on this node. Each attempt takes other memory.
    Replica,
    /// A client's memory, for the object's data alone.
    Given(Rc<Given>),
}

impl Target {
    /// The name of the target, for `explain`.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Replica => "replica",
            Self::Given(_) => "given",
        }
    }
}

/// The landings of a fetch in memory that a client has given.
#[derive(Default)]
pub(super) struct Attempts(RefCell<Vec<Weak<Landing>>>);

impl Attempts {
    fn begin(&self, landing: &Rc<Landing>) {
        self.0.borrow_mut().push(Rc::downgrade(landing));
    }

    /// Whether no operation owns any of the landings.
    fn are_over(&self) -> bool {
        self.0.borrow().iter().all(|attempt| attempt.strong_count() == 0)
    }
}

/// Memory that a client has given for the data of one object.
pub(crate) struct Given {
    memory: GivenMemory,
    /// Number of bytes that may be written to the memory.
    room: u64,
    attempts: Attempts,
    /// Number of bytes of data, once all are there.
    landed: Cell<Option<u64>>,
}

/// The place of memory that a client has given.
pub(crate) enum GivenMemory {
    /// A piece of an extent that the arena has lent.
    Lent { extent: Rc<Extent>, at: u64 },
    /// A piece of the client's own memory.
    Adopted { adopted: Rc<Adopted>, at: u64 },
}

/// The memory of one attempt.
pub(super) struct Landing {
    place: Place,
    /// Number of bytes that are kept: all of the object's, or its data alone.
    len: u64,
}

enum Place {
    Replica {
        extent: Extent,
        /// Others that find no room wait for this memory to be a replica, which may leave, or free.
        _counted: Counted<Rc<Cell<u64>>>,
    },
    Lent {
        given: Rc<Given>,
        run: Run,
    },
    Adopted {
        given: Rc<Given>,
        adopted: Rc<Adopted>,
        at: u64,
        /// The last used registration of the memory, and the number of its fabric.
        region: RefCell<Option<(usize, Rc<Region>)>>,
    },
}

impl Given {
    /// Takes the first `room` bytes of a client's memory, which lie within it.
    pub(crate) fn new(memory: GivenMemory, room: u64) -> Rc<Self> {
        Rc::new(Self { memory, room, attempts: Attempts::default(), landed: Cell::new(None) })
    }

    /// Number of bytes of data, once all are there.
    pub(crate) fn landed(&self) -> Option<u64> {
        self.landed.get()
    }

    /// Takes the memory for one attempt at an object.
    fn take(self: &Rc<Self>, head: &Head) -> Result<Rc<Landing>, Failure> {
        let too_small = || {
            let text = format!(
                "object {} has {} bytes of data, and the memory to get it into only {}",
                head.id, head.data_len, self.room
            );
            Failure::Here(Error::new(ErrorKind::Invalid, text))
        };
        if head.data_len > self.room {
            return Err(too_small());
        }
        let place = match &self.memory {
            GivenMemory::Lent { extent, at } => Place::Lent {
                run: extent.part(*at, head.data_len).ok_or_else(too_small)?,
                given: Rc::clone(self),
            },
            GivenMemory::Adopted { adopted, at } => {
                let (given, adopted) = (Rc::clone(self), Rc::clone(adopted));
                Place::Adopted { given, adopted, at: *at, region: RefCell::default() }
            }
        };
        let landing = Rc::new(Landing { place, len: head.data_len });
        self.attempts.begin(&landing);
        Ok(landing)
    }
}

impl Landing {
    /// Number of bytes that are kept here: metadata is behind the data, and only a replica has room for it.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The place of a replica's memory; `None` if the memory is a client's.
    pub(super) fn replica(&self) -> Option<Run> {
        match &self.place {
            Place::Replica { extent, .. } => Some(Run::clone(extent)),
            Place::Lent { .. } | Place::Adopted { .. } => None,
        }
    }

    /// The pieces of the memory in order.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        match &self.place {
            Place::Replica { extent, .. } => extent.pieces().collect(),
            Place::Lent { run, .. } => run.pieces().collect(),
            Place::Adopted { at, .. } => vec![Piece { segment: 0, offset: *at, len: self.len }],
        }
    }

    /// Copies in the object's `bytes` from `at` on, as far as they are kept here; returns how many are.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<u64, OutOfBounds> {
        let room = usize::try_from(self.len.saturating_sub(at)).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(room)];
        if !bytes.is_empty() {
            match &self.place {
                Place::Replica { extent, .. } => extent.write(at, bytes)?,
                Place::Lent { run, .. } => run.write(at, bytes)?,
                Place::Adopted { adopted, at: start, .. } => adopted.memory().write(start + at, bytes)?,
            }
        }
        Ok(bytes.len() as u64)
    }

    /// The bytes of the memory for another thread. They stay the object's for as long as the landing is
    /// owned.
    pub(super) fn io_range(&self) -> Result<IoRange, OutOfBounds> {
        match &self.place {
            Place::Replica { extent, .. } => Ok(extent.io_range()),
            Place::Lent { run, .. } => Ok(run.io_range()),
            Place::Adopted { adopted, at, .. } => adopted.memory().io_range(*at, self.len),
        }
    }

    /// A part of one of the landing's pieces, for an operation of a fabric, which owns the landing from now
    /// on.
    pub(super) fn slice(
        self: &Rc<Self>,
        transfer: &Transfer,
        on: usize,
        piece: Piece,
    ) -> Result<Slice, Failure> {
        let slice = match &self.place {
            Place::Replica { .. } | Place::Lent { .. } => {
                transfer.network.local(on, &transfer.store.arena.borrow(), piece).ok_or_else(|| {
                    let text =
                        format!("segment {} of this node is not registered with the fabric", piece.segment);
                    Failure::Here(Error::new(ErrorKind::Internal, text))
                })?
            }
            Place::Adopted { adopted, region, .. } => {
                let mut last = region.borrow_mut();
                if last.as_ref().is_none_or(|(fabric, _)| *fabric != on) {
                    *last = Some((on, register(transfer, on, adopted).map_err(Failure::Here)?));
                }
                let (_, region) = last.as_ref().expect("just set");
                region.slice(piece.offset as usize, piece.len as usize)?
            }
        };
        Ok(self.owned(slice))
    }

    /// Registers the memory with a fabric for one transfer; returns the regions in order.
    pub(super) fn register(
        &self,
        transfer: &Transfer,
        on: usize,
    ) -> Result<Vec<Span<Rc<Region>>>, FabricError> {
        let run = match &self.place {
            Place::Replica { extent, .. } => extent,
            Place::Lent { run, .. } => run,
            Place::Adopted { adopted, at, .. } => {
                let memory = Rc::clone(adopted.memory()) as Rc<dyn Memory>;
                let region = transfer.network.domain(on).register(memory, Access::LOCAL)?;
                return Ok(vec![Span { of: region, at: *at, len: self.len }]);
            }
        };
        let regions = transfer.register_run(on, run)?.into_iter();
        Ok(regions.map(|of| Span { at: 0, len: of.len() as u64, of }).collect())
    }

    /// A slice of the memory, for an operation of a fabric, which owns the landing from now on.
    pub(super) fn owned(self: &Rc<Self>, slice: Slice) -> Slice {
        slice.with_owner(Rc::clone(self) as Rc<dyn Any>)
    }
}

/// Registers a client's memory with a fabric.
fn register(transfer: &Transfer, on: usize, adopted: &Adopted) -> Result<Rc<Region>, Error> {
    transfer.registration((on, transfer.network.domain(on)), adopted).map_err(|error| {
        let text = format!("memory of {} bytes cannot be registered with the fabric: {error}", adopted.len());
        Error::new(ErrorKind::Full, text)
    })
}

impl Transfer {
    /// Returns memory for the next attempt. For a replica, waits for room that this node can make.
    pub(super) async fn landing(
        self: &Rc<Self>,
        head: &Head,
        target: &Target,
    ) -> Result<Rc<Landing>, Failure> {
        match target {
            Target::Given(given) => given.take(head),
            Target::Replica => {
                let extent = self.room(head).await.map_err(Failure::Here)?;
                let len = extent.len();
                let place = Place::Replica { extent, _counted: Counted::new(Rc::clone(&self.landings)) };
                Ok(Rc::new(Landing { place, len }))
            }
        }
    }

    /// Finds room for a replica. Other replicas that are on their way here are waited for, if these could
    /// leave when they have come; so is the memory of attempts that failed.
    async fn room(self: &Rc<Self>, head: &Head) -> Result<Extent, Error> {
        let zone = Zone { domain: head.domain(), writer: Writer::Engine };
        let due = self.kernel.clock.now() + STALLED;
        loop {
            let may_help = self.landings.get() > 0 && self.kernel.clock.now() <= due;
            match self.store.room(zone, head.len(), Duration::ZERO).await {
                Err(error)
                    if error.kind() == ErrorKind::Full && may_help && self.store.could_hold(head.len()) =>
                {
                    self.kernel.clock.sleep(LOOK_AGAIN_AFTER).await;
                }
                found => return found,
            }
        }
    }

    /// Registers a run of the arena for one transfer, piece by piece; an empty run needs no registration.
    pub(super) fn register_run(&self, on: usize, run: &Run) -> Result<Vec<Rc<Region>>, FabricError> {
        let arena = self.store.arena.borrow();
        let pieces = run.pieces().filter(|piece| piece.len > 0);
        pieces.map(|piece| self.network.register_part(on, &arena, piece)).collect()
    }

    /// Completes a landing: seals the replica, unless the object came to this node in another way, or notes
    /// how many bytes a client was given.
    pub(super) fn land(&self, head: Head, landing: Rc<Landing>) -> Result<(), Failure> {
        let held = || Error::new(ErrorKind::Internal, "a transfer that is over still owns its memory");
        let landing = Rc::into_inner(landing).ok_or_else(|| Failure::Here(held()))?;
        let extent = match landing.place {
            Place::Replica { extent, .. } => extent,
            Place::Lent { given, .. } | Place::Adopted { given, .. } => {
                given.landed.set(Some(head.data_len));
                return Ok(());
            }
        };
        if self.directory.arrivals.has_ended(&head.id, head.life) {
            return Err(Failure::Ended);
        }
        if self.store.objects.borrow().conflict(&head.id).is_some() {
            debug!("object {} came to this node in another way while it was being fetched", head.id);
            return Ok(());
        }
        let (bytes, created) = (Held::Memory(extent), self.kernel.clock.unix_ms());
        let sealing = Sealing { head, role: Role::Cached, creator: None, bytes, created };
        self.store.seal(sealing).map(drop).map_err(Failure::Here)
    }

    /// Waits until another attempt may use the target of a fetch.
    ///
    /// # Errors
    /// The same as [`Transfer::settle`].
    pub(super) async fn settle_target(&self, target: &Target) -> Result<(), Error> {
        match target {
            // The next attempt takes other memory.
            Target::Replica => Ok(()),
            Target::Given(given) => self.settle(given).await,
        }
    }

    /// Waits until no operation writes to memory that a client has given.
    ///
    /// # Errors
    /// When the operations take too long.
    pub(crate) async fn settle(&self, given: &Given) -> Result<(), Error> {
        let due = self.kernel.clock.now() + STALLED;
        while !given.attempts.are_over() {
            if self.kernel.clock.now() > due {
                let text = "memory that was given for an object is still being written, after the transfer \
                            failed; its bytes are undefined: do not use this memory again";
                return Err(Error::new(ErrorKind::Internal, text));
            }
            self.kernel.clock.sleep(LOOK_AGAIN_AFTER).await;
        }
        given.attempts.0.borrow_mut().clear();
        Ok(())
    }
}
