//! Where the bytes of a fetched object go: a replica's memory, or memory that a client has given for them.
//! Engine thread only.
//!
//! Every operation owns its [`Landing`] until the fabric is finished with it. An attempt that failed leaves its
//! memory to those operations and the next one takes other memory, but what a client has given is the same each
//! time: nobody writes there again, and no answer goes to the client, before they are over.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use plasmon::{Error, ErrorKind};
use plasmon_fabric::{Region, Slice};

use super::{Adopted, Failure, STALLED};
use crate::engine::Core;
use crate::memory::{Extent, OutOfBounds, Piece, Run};
use crate::object::Head;

/// How long to wait before looking again whether operations are over.
const SETTLING: Duration = Duration::from_millis(5);

/// What an object is fetched for.
#[derive(Clone)]
pub(super) enum Target {
    /// A replica on this node.
    Replica,
    /// Its data alone, into a client's memory.
    Given(Rc<Given>),
}

impl Target {
    pub(super) fn is_given(&self) -> bool {
        matches!(self, Self::Given(_))
    }
}

/// Memory that a client has given for the data of one object.
pub(crate) struct Given {
    memory: GivenMemory,
    /// Bytes that may be written there.
    room: u64,
    attempts: RefCell<Vec<Weak<Landing>>>,
    /// Bytes of data, once all are there.
    landed: Cell<Option<u64>>,
}

/// Where that is.
pub(crate) enum GivenMemory {
    /// A piece of what the arena has lent.
    Lent { extent: Rc<Extent>, at: u64 },
    /// A piece of memory of the client's own.
    Adopted { adopted: Rc<Adopted>, at: u64 },
}

/// The memory of one attempt.
pub(super) struct Landing {
    place: Place,
    len: u64,
}

enum Place {
    Replica(Extent),
    Lent {
        _kept: Rc<Extent>,
        run: Run,
    },
    Adopted {
        adopted: Rc<Adopted>,
        at: u64,
        /// Its registration that was last used, and with which fabric.
        region: RefCell<Option<(usize, Rc<Region>)>>,
    },
}

impl Given {
    /// `room` bytes of it, which lie within.
    pub(crate) fn new(memory: GivenMemory, room: u64) -> Rc<Self> {
        Rc::new(Self { memory, room, attempts: RefCell::default(), landed: Cell::new(None) })
    }

    /// Bytes of data, once all are there.
    pub(crate) fn landed(&self) -> Option<u64> {
        self.landed.get()
    }

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
                _kept: Rc::clone(extent),
            },
            GivenMemory::Adopted { adopted, at } => {
                Place::Adopted { adopted: Rc::clone(adopted), at: *at, region: RefCell::default() }
            }
        };
        let landing = Rc::new(Landing { place, len: head.data_len });
        self.attempts.borrow_mut().push(Rc::downgrade(&landing));
        Ok(landing)
    }

    fn is_settled(&self) -> bool {
        self.attempts.borrow().iter().all(|attempt| attempt.strong_count() == 0)
    }
}

impl Landing {
    pub(super) fn replica(extent: Extent) -> Rc<Self> {
        let len = extent.len();
        Rc::new(Self { place: Place::Replica(extent), len })
    }

    /// Bytes that are to come.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Where it lies in the arena, if that is a replica's.
    pub(super) fn run(&self) -> Option<Run> {
        match &self.place {
            Place::Replica(extent) => Some(Run::clone(extent)),
            Place::Lent { .. } | Place::Adopted { .. } => None,
        }
    }

    /// Its pieces in order.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        match &self.place {
            Place::Replica(extent) => extent.pieces().collect(),
            Place::Lent { run, .. } => run.pieces().collect(),
            Place::Adopted { at, .. } => vec![Piece { segment: 0, offset: *at, len: self.len }],
        }
    }

    /// Copies `bytes` in, from its start on.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<(), OutOfBounds> {
        match &self.place {
            Place::Replica(extent) => extent.write(0, bytes),
            Place::Lent { run, .. } => run.write(0, bytes),
            Place::Adopted { adopted, at, .. } => adopted.memory().write(*at, bytes),
        }
    }

    /// A piece of one of its pieces, for an operation of a fabric, which owns it from now on.
    pub(super) fn slice(self: &Rc<Self>, core: &Core, on: usize, piece: Piece) -> Result<Slice, Failure> {
        let slice = match &self.place {
            Place::Replica(_) | Place::Lent { .. } => core.slice_of(on, piece)?,
            Place::Adopted { adopted, region, .. } => {
                let mut last = region.borrow_mut();
                if last.as_ref().is_none_or(|(fabric, _)| *fabric != on) {
                    *last = Some((on, register(core, on, adopted).map_err(Failure::Here)?));
                }
                let (_, region) = last.as_ref().expect("just set");
                region.slice(piece.offset as usize, piece.len as usize)?
            }
        };
        Ok(slice.with_owner(Rc::clone(self) as Rc<dyn std::any::Any>))
    }
}

/// The registration of a client's memory with a fabric.
fn register(core: &Core, on: usize, adopted: &Adopted) -> Result<Rc<Region>, Error> {
    core.transfer.registration((on, core.network.domain(on)), adopted).map_err(|error| {
        let text = format!("memory of {} bytes cannot be registered with the fabric: {error}", adopted.len());
        Error::new(ErrorKind::Full, text)
    })
}

impl Core {
    /// Memory for the next attempt: for a replica what this node can make is waited for.
    pub(super) async fn landing(
        self: &Rc<Self>,
        head: &Head,
        target: &Target,
    ) -> Result<Rc<Landing>, Failure> {
        match target {
            Target::Replica => self.extent_for(head).await.map(Landing::replica),
            Target::Given(given) => given.take(head),
        }
    }

    /// All bytes are there: seals the replica, or says how many there are.
    pub(super) fn land(&self, head: &Head, landing: Rc<Landing>, target: &Target) -> Result<(), Failure> {
        let held = || Error::new(ErrorKind::Internal, "a transfer that is over still owns its memory");
        // An operation lets go of what it owns before it is seen to be over.
        let landing = Rc::into_inner(landing).ok_or_else(|| Failure::Here(held()))?;
        match (landing.place, target) {
            (Place::Replica(extent), _) => self.seal_fetched(head.clone(), Rc::new(extent)),
            (_, Target::Given(given)) => {
                given.landed.set(Some(head.data_len));
                Ok(())
            }
            (_, Target::Replica) => Err(Failure::Here(held())),
        }
    }

    /// Waits until no operation writes to what a client has given.
    ///
    /// # Errors
    /// When that takes too long.
    pub(crate) async fn settle(&self, given: &Given) -> Result<(), Error> {
        let due = self.clock.now() + STALLED;
        while !given.is_settled() {
            if self.clock.now() > due {
                let text = "memory that was given for an object is still being written by the fabric, after the \
                            transfer failed; its bytes are undefined: do not use this memory again";
                return Err(Error::new(ErrorKind::Internal, text));
            }
            self.clock.sleep(SETTLING).await;
        }
        given.attempts.borrow_mut().clear();
        Ok(())
    }
}
