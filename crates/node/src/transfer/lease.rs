//! Leases: the pins that a holder keeps for readers whose reads it cannot see. Owns [`Leases`].
//! Engine thread only.
//!
//! The reader counts the span from before it asked, and relies on nine tenths of the span. The holder
//! counts from when it answered. So the reader's end of a lease comes before the holder's.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::{Either, select};
use plasmon::{Error, ErrorKind, NodeId};
use plasmon_fabric::Region;

use super::failure::Failure;
use crate::directory::news::News;
use crate::kernel::random::HashMap;
use crate::kernel::{Kernel, class};
use crate::memory::{Extent, Run};
use crate::net::frame::{Envelope, Message, ask};
use crate::net::network::Network;
use crate::object::{Pin, Replica};
use crate::store::Lessor;

/// How long a reader may read without renewing the lease.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
/// The span of a lease in milliseconds.
pub(super) const LEASE_MS: u32 = LEASE.as_millis() as u32;

/// The holder's side of a lease, which ends at a time unless it is renewed.
pub(super) struct Granted {
    pub(super) kept: Kept,
    pub(super) owed: Owed,
    pub(super) until: Instant,
}

/// Thing that a lease keeps: an object, or memory that belongs to no object.
pub(super) enum Kept {
    Object(Pin),
    Lent(Extent),
    /// Memory that will be an object. Other nodes read as much of the object as is there. This node's
    /// own fetch of the object owns the memory.
    Passing(Run),
    /// An object that is read from disk and that memory has no room for. A deletion ends it for its reader.
    OnDisk {
        replica: Rc<Replica>,
        /// The digest that the bytes have if they are not damaged.
        promised: u64,
    },
}

impl Kept {
    /// Returns the bytes that are kept, if they are in memory.
    pub(super) fn run(&self) -> Option<Run> {
        match self {
            Self::Object(pin) => Some(pin.run()),
            Self::Lent(extent) => Some(Run::clone(extent)),
            Self::Passing(run) => Some(run.clone()),
            Self::OnDisk { .. } => None,
        }
    }
}

/// Duty of the holder towards the reader of a lease, beside keeping the bytes.
pub(super) enum Owed {
    Nothing,
    /// The holder sends the object in parts when the reader says that it is ready.
    Parts,
    /// The holder sends the object through a socket to a reader that shows this secret.
    Socket(u128),
    /// The holder keeps registrations that it made for this reader.
    Regions {
        _kept: Vec<Rc<Region>>,
    },
}

/// The leases that this node has given out, and the access to other nodes for its own leases.
pub(super) struct Leases {
    kernel: Rc<Kernel>,
    network: Rc<Network>,
    news: Rc<News>,
    /// The leases given to peers, by the peer and its request.
    pub(super) granted: RefCell<HashMap<(NodeId, u64), Granted>>,
}

/// The reader's side of a lease. Dropping it tells the holder that the lease is over.
pub(super) struct Lease {
    leases: Rc<Leases>,
    pub(super) holder: NodeId,
    pub(super) request: u64,
    span: Cell<Duration>,
    /// The time before which bytes that were read are certainly the object's.
    until: Cell<Instant>,
}

/// Returns the part of a span that the reader relies on, because two clocks may differ slightly in speed.
fn trusted(span: Duration) -> Duration {
    span * 9 / 10
}

impl Lease {
    pub(super) fn new(
        leases: &Rc<Leases>,
        holder: NodeId,
        request: u64,
        lease_ms: u32,
        asked_at: Instant,
    ) -> Self {
        let span = Duration::from_millis(u64::from(lease_ms));
        let until = Cell::new(asked_at + trusted(span));
        Self { leases: Rc::clone(leases), holder, request, span: Cell::new(span), until }
    }

    /// Checks that the bytes read so far are certainly the object's.
    ///
    /// # Errors
    /// When the lease has ended.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.leases.kernel.clock.now() < self.until.get() {
            return Ok(());
        }
        Err(Failure::Holder("the lease ended before the last byte came".into()))
    }

    /// Awaits an operation under the lease, and renews the lease meanwhile.
    ///
    /// # Errors
    /// Errors of the operation, or a failure if the holder does not renew the lease.
    pub(super) async fn during<T>(
        &self,
        done: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        match select(pin!(done), pin!(self.keep())).await {
            Either::Left((ended, _)) => ended,
            Either::Right((failure, _)) => Err(failure),
        }
    }

    /// Renews the lease at half time, again and again. Returns when the holder does not renew it.
    async fn keep(&self) -> Failure {
        loop {
            let half = self.span.get() / 2;
            self.leases.kernel.clock.until(self.until.get() - half).await;
            let renewing_at = self.leases.kernel.clock.now();
            let renew = ask::Renew { lease: self.request };
            match class::urgently(self.leases.network.ask(self.holder, 0, renew, half)).await {
                Ok(ask::Renewed { lease_ms }) => {
                    self.span.set(Duration::from_millis(u64::from(lease_ms)));
                    self.until.set(renewing_at + trusted(self.span.get()));
                }
                Err(error) => return Failure::Holder(format!("the lease was not renewed: {error}")),
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leases.news.release_soon(self.holder, self.request);
    }
}

impl Leases {
    pub(super) fn new(kernel: &Rc<Kernel>, network: &Rc<Network>, news: &Rc<News>) -> Self {
        let granted = RefCell::default();
        Self { kernel: Rc::clone(kernel), network: Rc::clone(network), news: Rc::clone(news), granted }
    }

    /// Keeps an object for the node that fetches it.
    pub(super) fn grant(&self, asked: &Envelope, pin: Pin, owed: Owed) {
        self.keep(asked, Kept::Object(pin), owed);
    }

    /// Keeps memory that belongs to no object, for a peer.
    pub(super) fn lend(&self, asked: &Envelope, extent: Extent) {
        self.keep(asked, Kept::Lent(extent), Owed::Nothing);
    }

    pub(super) fn keep(&self, asked: &Envelope, kept: Kept, owed: Owed) {
        let lease = Granted { kept, owed, until: self.kernel.clock.now() + LEASE };
        // A request in another node's name may not replace the lease of that reader.
        self.granted.borrow_mut().entry((asked.reply_to, asked.request)).or_insert(lease);
    }

    /// Whether a lease was given out for this request already. A node asks for one object in a request.
    pub(super) fn has(&self, asked: &Envelope) -> bool {
        self.granted.borrow().contains_key(&(asked.reply_to, asked.request))
    }

    /// Extends a lease. A reader whose lease has ended has to fetch again.
    pub(super) fn renew(&self, asked: &Envelope, lease: u64) {
        let until = self.kernel.clock.now() + LEASE;
        let key = (asked.from, lease);
        let renewed = self.granted.borrow_mut().get_mut(&key).map(|lease| lease.until = until);
        let message = match renewed {
            Some(()) => Message::Renewed { lease_ms: LEASE_MS },
            None => Message::Refused {
                error: Error::new(
                    ErrorKind::TimedOut,
                    format!("the lease at node {} has ended", self.kernel.node),
                ),
            },
        };
        self.network.answer(asked, message);
    }

    /// Ends the leases that their reader no longer needs.
    pub(super) fn release(&self, reader: NodeId, requests: &[u64]) {
        let mut granted = self.granted.borrow_mut();
        for request in requests {
            granted.remove(&(reader, *request));
        }
    }

    /// Ends the leases that their readers have not renewed in time.
    pub(super) fn expire(&self, now: Instant) {
        self.granted.borrow_mut().retain(|_, lease| lease.until > now);
    }
}

impl Lessor for Leases {
    fn each_lease(&self, see: &mut dyn FnMut(NodeId, &Rc<Replica>) -> ControlFlow<()>) -> ControlFlow<()> {
        self.granted.borrow().iter().try_for_each(|((reader, _), lease)| match &lease.kept {
            Kept::Object(pin) => see(*reader, pin.replica()),
            Kept::Lent(_) | Kept::Passing(_) | Kept::OnDisk { .. } => ControlFlow::Continue(()),
        })
    }
}
