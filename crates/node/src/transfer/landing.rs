//! Landings: the memory to which the bytes of a fetched object come, in a replica or in memory that a
//! client has given. Every protocol writes to a [`Landing`]. This module makes landings, compares the bytes
//! that come with the digest of their seal, and seals the objects that are complete. Engine thread only.
//!
//! Invariant: every operation of a fabric or a socket owns its landing until it is finished with
//! it, and drops the landing before the operation is reported as over. An attempt that failed
//! leaves its memory to those operations, and the next attempt takes other memory. Memory that a
//! client has given is the same for each attempt: before those operations are over, nothing else is
//! written there, and the client gets no answer.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use plasmon::{Error, ErrorKind};
use plasmon_fabric::{Access, FabricError, Memory, Region, Slice};
use tracing::debug;

use super::comparing::{Comparison, TURN_BYTES, Wanted, is_compared};
use super::failure::{Failure, STALLED};
use super::pieces::Span;
use crate::kernel::counted::Counted;
use crate::kernel::lives::is_later;
use crate::memory::{BlockMemory, Extent, IoRange, OutOfBounds, Piece, Run, Writer, Zone};
use crate::net::registrations::Adopted;
use crate::object::{Head, Held, Replica, Role, Sealing};
use crate::transfer::Transfer;

/// The segment of pieces that lie in a client's own memory, and so in no segment of the arena.
const OWN: u32 = u32::MAX;
/// Interval at which it is checked whether operations are over.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// The receiver of a fetched object's bytes.
#[derive(Clone)]
pub(super) enum Target {
    /// A replica on this node. Each attempt takes other memory.
    Replica,
    /// A client's memory, which takes the object's data alone.
    Given(Rc<Given>),
}

impl Target {
    /// Returns the name of the target, for `explain`.
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
    /// Number of bytes of data, once all of them are there.
    landed: Cell<Option<u64>>,
}

/// The place of memory that a client has given.
pub(crate) enum GivenMemory {
    /// A piece of an extent that the arena has lent.
    Lent { extent: Rc<Extent>, at: u64 },
    /// A piece of the client's own memory.
    Adopted { adopted: Rc<Adopted>, at: u64 },
    /// A part of a region of this node, which the landing keeps.
    Region(Run),
}

/// The memory of one attempt.
pub(super) struct Landing {
    place: Place,
    /// Number of bytes that are kept: all bytes of the object, or its data alone.
    len: u64,
    /// The memory for the metadata of an object whose data comes to a client's memory, if the
    /// object has to be compared.
    tail: Option<Extent>,
    comparison: Option<Comparison>,
    /// Value that keeps the sender's memory in place. It is dropped when no operation reads there any more.
    _keeps: Option<Rc<dyn Any>>,
}

enum Place {
    Replica {
        extent: Extent,
        /// Count of replicas on their way. Fetches that find no room wait for such a replica, which may
        /// then leave memory, or for its memory to be free.
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
        /// The registration of the memory that was used last, and the number of its fabric.
        region: RefCell<Option<(usize, Rc<Region>)>>,
    },
}

impl Given {
    /// Takes the first `room` bytes of a client's memory, which has at least that many.
    pub(crate) fn new(memory: GivenMemory, room: u64) -> Rc<Self> {
        Rc::new(Self { memory, room, attempts: Attempts::default(), landed: Cell::new(None) })
    }

    /// Number of bytes of data, once all of them are there.
    pub(crate) fn landed(&self) -> Option<u64> {
        self.landed.get()
    }

    /// Takes the memory for one attempt at an object.
    fn take(
        self: &Rc<Self>,
        head: &Head,
        tail: Option<Extent>,
        comparison: Option<Comparison>,
    ) -> Result<Rc<Landing>, Failure> {
        let too_small = || {
            let text = format!(
                "object {} has {} bytes of data, and the memory to get it into only {}",
                head.id, head.data_len, self.room
            );
            Failure::Here(Error::new(ErrorKind::Invalid, text))
        };
        let place = self.place(head.data_len).ok_or_else(too_small)?;
        let len = head.data_len + tail.as_ref().map_or(0, |tail| tail.len());
        Ok(self.begin(Landing { place, len, tail, comparison, _keeps: None }))
    }

    /// Takes the memory for `len` bytes that belong to no object. `keeps` is kept until no
    /// operation has the memory.
    pub(super) fn take_plain(
        self: &Rc<Self>,
        len: u64,
        keeps: Option<Rc<dyn Any>>,
    ) -> Result<Rc<Landing>, OutOfBounds> {
        let place = self.place(len).ok_or(OutOfBounds { at: 0, len, extent: self.room })?;
        Ok(self.begin(Landing { place, len, tail: None, comparison: None, _keeps: keeps }))
    }

    fn begin(&self, landing: Landing) -> Rc<Landing> {
        let landing = Rc::new(landing);
        self.attempts.begin(&landing);
        landing
    }

    /// Returns the first `len` bytes of the memory; `None` if the memory has fewer.
    fn place(self: &Rc<Self>, len: u64) -> Option<Place> {
        let given = Rc::clone(self);
        let len = Some(len).filter(|len| *len <= self.room)?;
        Some(match &self.memory {
            GivenMemory::Lent { extent, at } => Place::Lent { run: extent.part(*at, len)?, given },
            GivenMemory::Region(run) => Place::Lent { run: run.part(0, len)?, given },
            GivenMemory::Adopted { adopted, at } => {
                Place::Adopted { given, adopted: Rc::clone(adopted), at: *at, region: RefCell::default() }
            }
        })
    }

    /// Returns the memory as a part of the arena; `None` if it is the client's own.
    pub(crate) fn run(&self) -> Option<Run> {
        match &self.memory {
            GivenMemory::Lent { extent, at } => extent.part(*at, self.room),
            GivenMemory::Region(run) => Some(run.clone()),
            GivenMemory::Adopted { .. } => None,
        }
    }

    /// Copies `bytes` into the memory, `at` bytes from its start.
    ///
    /// # Errors
    /// When the bytes are not within the memory.
    pub(crate) fn write(self: &Rc<Self>, at: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.all()?.write(at, bytes).map(drop)
    }

    /// Copies bytes out of the memory, `at` bytes from its start.
    ///
    /// # Errors
    /// When the bytes are not within the memory.
    pub(crate) fn read(self: &Rc<Self>, at: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        self.all()?.read(at, into)
    }

    /// Returns all of the memory, for the engine itself.
    fn all(self: &Rc<Self>) -> Result<Landing, OutOfBounds> {
        let place = self.place(self.room).ok_or(OutOfBounds { at: 0, len: self.room, extent: self.room })?;
        Ok(Landing { place, len: self.room, tail: None, comparison: None, _keeps: None })
    }
}

impl Landing {
    /// Number of bytes that are kept here. Metadata lies behind the data. If the data comes to a client's
    /// memory, there is room for metadata only if the object has to be compared.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the place of a replica's memory; `None` if the memory is a client's.
    pub(super) fn replica(&self) -> Option<Run> {
        match &self.place {
            Place::Replica { extent, .. } => Some(Run::clone(extent)),
            Place::Lent { .. } | Place::Adopted { .. } => None,
        }
    }

    /// Returns the pieces of the memory in order.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        let mut pieces: Vec<_> = match &self.place {
            Place::Replica { extent, .. } => extent.pieces().collect(),
            Place::Lent { run, .. } => run.pieces().collect(),
            Place::Adopted { at, .. } => vec![Piece { segment: OWN, offset: *at, len: self.data_len() }],
        };
        pieces.extend(self.tail.iter().flat_map(|tail| tail.pieces()));
        pieces
    }

    /// Number of bytes before the tail.
    fn data_len(&self) -> u64 {
        self.len - self.tail.as_ref().map_or(0, |tail| tail.len())
    }

    /// Returns the tail and a position in it, if the byte at `at` lies in the tail.
    fn in_tail(&self, at: u64) -> Option<(&Extent, u64)> {
        let tail = self.tail.as_ref()?;
        Some((tail, at.checked_sub(self.data_len())?))
    }

    /// Splits `len` bytes from `at` on where the tail begins; returns how many of them lie before the tail.
    fn before_tail(&self, at: u64, len: usize) -> usize {
        let before = self.data_len().saturating_sub(at);
        len.min(usize::try_from(before).unwrap_or(usize::MAX))
    }

    /// Copies in the object's `bytes` from `at` on, as far as they are kept here; returns how many
    /// were copied.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<u64, OutOfBounds> {
        let room = usize::try_from(self.len.saturating_sub(at)).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(room)];
        let (data, metadata) = bytes.split_at(self.before_tail(at, bytes.len()));
        if !data.is_empty() {
            match &self.place {
                Place::Replica { extent, .. } => extent.write(at, data)?,
                Place::Lent { run, .. } => run.write(at, data)?,
                Place::Adopted { adopted, at: start, .. } => adopted.memory().write(start + at, data)?,
            }
        }
        if let Some((tail, at)) = self.in_tail(at + data.len() as u64)
            && !metadata.is_empty()
        {
            tail.write(at, metadata)?;
        }
        Ok(bytes.len() as u64)
    }

    /// Copies in an object of `len` bytes that begins at byte `start` of a block, as far as the object is
    /// kept here. Returns how many bytes were copied.
    pub(super) fn copy_block(&self, block: &BlockMemory, start: usize, len: u64) -> Result<u64, OutOfBounds> {
        let len = usize::try_from(self.len.min(len)).unwrap_or(usize::MAX);
        let data = self.before_tail(0, len);
        self.io_range()?.copy_block(block, start, data)?;
        if let Some(tail) = &self.tail {
            tail.io_range().copy_block(block, start + data, len - data)?;
        }
        Ok(len as u64)
    }

    /// Copies out bytes that lie `at` bytes from the beginning.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let (data, metadata) = into.split_at_mut(self.before_tail(at, into.len()));
        if !data.is_empty() {
            match &self.place {
                Place::Replica { extent, .. } => extent.read(at, data)?,
                Place::Lent { run, .. } => run.read(at, data)?,
                Place::Adopted { adopted, at: start, .. } => {
                    adopted.memory().io_range(start + at, data.len() as u64)?.read(0, data)?;
                }
            }
        }
        match self.in_tail(at + data.len() as u64) {
            Some((tail, at)) if !metadata.is_empty() => tail.read(at, metadata),
            _ => Ok(()),
        }
    }

    /// Takes note that `len` bytes from `at` on have come, and looks at them if the object is compared.
    pub(super) fn came(&self, at: u64, len: u64) -> Result<(), OutOfBounds> {
        match &self.comparison {
            Some(comparison) => comparison.came(at, len, |at, into| self.read(at, into)),
            None => Ok(()),
        }
    }

    /// Looks at the next bytes of an object that comes in messages, if the object is compared.
    /// These bytes need not be kept.
    pub(super) fn came_in_message(&self, bytes: &[u8]) {
        if let Some(comparison) = &self.comparison {
            comparison.add(bytes);
        }
    }

    /// Returns the bytes of the memory for another thread, without the tail. The bytes stay the
    /// object's for as long as the landing is owned.
    pub(super) fn io_range(&self) -> Result<IoRange, OutOfBounds> {
        match &self.place {
            Place::Replica { extent, .. } => Ok(extent.io_range()),
            Place::Lent { run, .. } => Ok(run.io_range()),
            Place::Adopted { adopted, at, .. } => adopted.memory().io_range(*at, self.data_len()),
        }
    }

    /// Returns the bytes of the tail for another thread, if there is a tail.
    pub(super) fn io_range_of_tail(&self) -> Option<IoRange> {
        self.tail.as_ref().map(|tail| tail.io_range())
    }

    /// Returns a part of one of the landing's pieces, for an operation of a fabric. The operation
    /// owns the landing from now on.
    pub(super) fn slice(
        self: &Rc<Self>,
        transfer: &Transfer,
        on: usize,
        piece: Piece,
    ) -> Result<Slice, Failure> {
        let slice = match &self.place {
            Place::Adopted { adopted, region, .. } if piece.segment == OWN => {
                let mut last = region.borrow_mut();
                if last.as_ref().is_none_or(|(fabric, _)| *fabric != on) {
                    *last = Some((on, register(transfer, on, adopted).map_err(Failure::Here)?));
                }
                let (_, region) = last.as_ref().expect("just set");
                region.slice(piece.offset as usize, piece.len as usize)?
            }
            _ => transfer.network.local(on, &transfer.store.arena.borrow(), piece).ok_or_else(|| {
                let text =
                    format!("segment {} of this node is not registered with the fabric", piece.segment);
                Failure::Here(Error::new(ErrorKind::Internal, text))
            })?,
        };
        Ok(self.owned(slice))
    }

    /// Registers the memory with a fabric for one transfer; returns the registrations in order.
    pub(super) fn register(
        &self,
        transfer: &Transfer,
        on: usize,
    ) -> Result<Vec<Span<Rc<Region>>>, FabricError> {
        let register = |run| -> Result<Vec<_>, FabricError> {
            let regions = transfer.register_run(on, run)?.into_iter();
            Ok(regions.map(|of| Span { at: 0, len: of.len() as u64, of }).collect())
        };
        let mut regions = match &self.place {
            Place::Replica { extent, .. } => register(extent)?,
            Place::Lent { run, .. } => register(run)?,
            Place::Adopted { adopted, at, .. } => {
                let memory = Rc::clone(adopted.memory()) as Rc<dyn Memory>;
                let region = transfer.network.domain(on).register(memory, Access::LOCAL)?;
                vec![Span { of: region, at: *at, len: self.data_len() }]
            }
        };
        if let Some(tail) = &self.tail {
            regions.extend(register(tail)?);
        }
        Ok(regions)
    }

    /// Has a slice of the memory own the landing, for an operation of a fabric.
    pub(super) fn owned(self: &Rc<Self>, slice: Slice) -> Slice {
        slice.with_owner(Rc::clone(self) as Rc<dyn Any>)
    }
}

/// Takes a landing whose transfer is over.
fn over(landing: Rc<Landing>) -> Result<Landing, Failure> {
    let held = || Error::new(ErrorKind::Internal, "a transfer that is over still owns its memory");
    Rc::into_inner(landing).ok_or_else(|| Failure::Here(held()))
}

/// Returns the memory of a replica whose bytes have come. `None` for memory that a client has given.
pub(super) fn extent_of(landing: Rc<Landing>) -> Result<Option<Extent>, Failure> {
    Ok(match over(landing)?.place {
        Place::Replica { extent, .. } => Some(extent),
        Place::Lent { .. } | Place::Adopted { .. } => None,
    })
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
        wanted: &Wanted,
    ) -> Result<Rc<Landing>, Failure> {
        let comparison = self.comparison(head, wanted);
        let tail = match target {
            Target::Given(_) if comparison.is_some() && head.metadata_len > 0 => {
                Some(self.room(head, head.metadata_len.into()).await.map_err(Failure::Here)?)
            }
            _ => None,
        };
        self.take_landing(head, target, tail, comparison).await
    }

    /// Returns memory as [`Transfer::landing`] does, without room for metadata beside a client's memory.
    /// The messages bring all bytes, so that metadata can be compared without being kept.
    pub(super) async fn landing_of_messages(
        self: &Rc<Self>,
        head: &Head,
        target: &Target,
        wanted: &Wanted,
    ) -> Result<Rc<Landing>, Failure> {
        self.take_landing(head, target, None, self.comparison(head, wanted)).await
    }

    async fn take_landing(
        self: &Rc<Self>,
        head: &Head,
        target: &Target,
        tail: Option<Extent>,
        comparison: Option<Comparison>,
    ) -> Result<Rc<Landing>, Failure> {
        match target {
            Target::Given(given) => given.take(head, tail, comparison),
            Target::Replica => {
                let extent = self.room(head, head.len()).await.map_err(Failure::Here)?;
                let len = extent.len();
                let place = Place::Replica { extent, _counted: Counted::new(Rc::clone(&self.landings)) };
                Ok(Rc::new(Landing { place, len, tail, comparison, _keeps: None }))
            }
        }
    }

    /// Begins the comparison of an object; `None` if the object is not to be compared.
    fn comparison(&self, head: &Head, wanted: &Wanted) -> Option<Comparison> {
        is_compared(head, self.kernel.config.verify, wanted).then(Comparison::begin)
    }

    /// Finds room for bytes of an object. If there is none, waits for other replicas on their way that
    /// could leave memory when they have come, and for the memory of attempts that failed.
    async fn room(self: &Rc<Self>, head: &Head, len: u64) -> Result<Extent, Error> {
        let zone = Zone { domain: head.domain(), writer: Writer::Engine };
        let due = self.kernel.clock.now() + STALLED;
        loop {
            let may_help = self.landings.get() > 0 && self.kernel.clock.now() <= due;
            match self.store.room(zone, len, Duration::ZERO).await {
                Err(error) if error.kind() == ErrorKind::Full && may_help && self.store.could_hold(len) => {
                    self.kernel.clock.sleep(LOOK_AGAIN_AFTER).await;
                }
                found => {
                    let fetch = || format!("cannot fetch object {}", head.id);
                    return found.map_err(|error| error.about(head.id).while_doing(&fetch()));
                }
            }
        }
    }

    /// Registers a run of the arena for one transfer, piece by piece; an empty run needs no registration.
    pub(super) fn register_run(&self, on: usize, run: &Run) -> Result<Vec<Rc<Region>>, FabricError> {
        let arena = self.store.arena.borrow();
        let pieces = run.pieces().filter(|piece| piece.len > 0);
        pieces.map(|piece| self.network.register_part(on, &arena, piece)).collect()
    }

    /// Compares the bytes of a landing with the digest of their seal, if the object is to be compared.
    /// Only bytes that were not looked at when they came are looked at now.
    pub(super) async fn compare(
        &self,
        head: &Head,
        landing: &Landing,
        wanted: &Wanted,
    ) -> Result<(), Failure> {
        let late = match (&landing.comparison, &landing.place) {
            // A get that wants the comparison has joined the fetch meanwhile.
            (None, Place::Replica { .. }) => self.comparison(head, wanted),
            _ => None,
        };
        let Some(comparison) = landing.comparison.as_ref().or(late.as_ref()) else { return Ok(()) };
        while comparison.at() < landing.len {
            let (at, len) = (comparison.at(), TURN_BYTES.min(landing.len - comparison.at()));
            let looked = comparison.came(at, len, |at, into| landing.read(at, into));
            looked.map_err(|error| Failure::Holder(error.to_string()))?;
            self.kernel.clock.sleep(Duration::ZERO).await;
        }
        self.records.counters.borrow_mut().compared += 1;
        match comparison.found() {
            found if found == head.digest => Ok(()),
            found => Err(Failure::Damaged { sealed: head.digest, found }),
        }
    }

    /// Completes a landing: seals the replica, unless the object came to this node in another way, or
    /// notes how many bytes a client was given.
    ///
    /// # Errors
    /// When the bytes are not those that were sealed, or when the object cannot be sealed here.
    pub(super) async fn land(
        &self,
        head: Head,
        landing: Rc<Landing>,
        wanted: &Wanted,
    ) -> Result<(), Failure> {
        self.compare(&head, &landing, wanted).await?;
        let extent = match over(landing)?.place {
            Place::Replica { extent, .. } => extent,
            Place::Lent { given, .. } | Place::Adopted { given, .. } => {
                given.landed.set(Some(head.data_len));
                return Ok(());
            }
        };
        if self.directory.arrivals.has_ended(&head.id, head.life) {
            return Err(Failure::Ended);
        }
        let is_guarded = self.directory.guards.covers(&head.id, head.life);
        let is_former = |one: &Rc<Replica>| one.is_guarded() && is_later(head.life, one.life);
        let stands = self.store.objects.borrow().get(&head.id).is_some_and(|one| !is_former(one));
        if stands || self.store.objects.borrow().creation(&head.id).is_some() {
            debug!("object {} came to this node in another way while it was being fetched", head.id);
            return Ok(());
        }
        let (bytes, created) = (Held::Memory(extent), self.kernel.clock.unix_ms());
        let sealing = Sealing { head, role: Role::Cached, creator: None, bytes, created };
        self.store.supersede(sealing, (is_guarded, false)).map(drop).map_err(|not| Failure::Here(not.error))
    }

    /// Waits until another attempt may use the target of a fetch.
    ///
    /// # Errors
    /// As [`Transfer::settle`].
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
