//! The requester's side: bringing an object here. Engine thread only.
//!
//! One fetch serves all gets of an object by one user; it ends when the last of them stops waiting.
//! It asks the object's keeper, which sends it on to a holder or keeps it until there is one, and it
//! asks again when the members change, when a holder fails it, and from time to time in any case, so
//! that no lost message can strand it.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::{Either, FutureExt, Shared, WeakShared, select};
use futures::stream::{self, TryStreamExt};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};
use plasmon_fabric::{FabricError, Op};
use tracing::{debug, warn};

use super::CHUNK;
use crate::cluster::{Call, Envelope, Location, Message};
use crate::engine::Core;
use crate::memory::{Extent, Piece, Writer, Zone};
use crate::object::{Conflict, Head, Replica, Role};

/// When an unanswered request is made again, at first; every further time after twice as long.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// And at the longest: before the keeper forgets that this node waits.
const ASK_AGAIN_AT_LAST: Duration = Duration::from_secs(8);

/// How long one chunk may take.
const STALLED: Duration = Duration::from_secs(10);

type Outcome = Pin<Box<dyn Future<Output = Result<(), Error>>>>;
/// A fetch that others may join.
pub(super) type WeakFetch = WeakShared<Outcome>;

/// Why an attempt at a holder failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The holder is to blame: another may do better.
    #[error("{0}")]
    Holder(String),
    /// This node is to blame: no holder will do better.
    #[error("{0}")]
    Here(Error),
}

impl From<FabricError> for Failure {
    fn from(error: FabricError) -> Self {
        Self::Holder(error.to_string())
    }
}

impl Core {
    /// Brings an object here for a user. The future ends when it is sealed on this node, or with the
    /// reason why it will never be; it has no deadline of its own.
    pub(crate) fn fetch(self: &Rc<Self>, id: ObjectId, tenant: u32) -> Shared<Outcome> {
        let mut fetches = self.transfer.fetches.borrow_mut();
        if let Some(fetch) = fetches.get(&(id, tenant)).and_then(WeakShared::upgrade)
            && fetch.peek().is_none()
        {
            return fetch;
        }
        let fetch: Outcome = Box::pin(fetch(Rc::clone(self), id, tenant));
        let fetch = fetch.shared();
        fetches.insert((id, tenant), fetch.downgrade().expect("not polled yet"));
        fetch
    }

    /// Seals a fetched object, unless it came to be here in another way.
    fn seal_fetched(&self, head: Head, extent: Rc<Extent>) {
        let id = head.id;
        match self.objects.borrow().conflict(&id) {
            Some(Conflict::Sealed | Conflict::Creating { .. }) => {
                debug!("object {id} came to be here while it was being fetched");
                return;
            }
            None => {}
        }
        self.seal(Replica::new(head, Role::Cached, None, extent, self.clock.unix_ms()));
    }
}

/// A request to the keeper, withdrawn if it is dropped before its answer came.
struct Ask {
    core: Rc<Core>,
    call: Call,
    id: ObjectId,
    keeper: NodeId,
    /// Nobody is to be told: it was answered, or is about to be asked again.
    settled: bool,
}

impl Drop for Ask {
    fn drop(&mut self) {
        if !self.settled {
            let (core, request) = (&self.core, self.call.request());
            core.send(self.keeper, core.envelope(request, core.node, 0, Message::Forget { id: self.id }));
        }
    }
}

async fn fetch(core: Rc<Core>, id: ObjectId, tenant: u32) -> Result<(), Error> {
    let mut except = Vec::new();
    let mut patience = ASK_AGAIN;
    let mut attempt = 0;
    loop {
        let creating = core.objects.borrow().creation(&id).is_some();
        if creating {
            // A replica could not be sealed now; a seal here ends the gets, and an abort this wait.
            core.clock.sleep(ASK_AGAIN).await;
            continue;
        }
        let next_view = core.cluster.next_view();
        let again = core.clock.sleep(patience);
        patience = (2 * patience).min(ASK_AGAIN_AT_LAST);
        let keeper = core.cluster.keeper(&id, attempt);
        attempt += 1;
        let call = Call::open(&core, None);
        let mut ask = Ask { core: Rc::clone(&core), call, id, keeper, settled: false };
        let asked_at = core.clock.now();
        ask.call.send(keeper, tenant, Message::Fetch { id, forwarded: false, except: except.clone() });
        let answer = match select(std::pin::pin!(ask.call.answer()), select(next_view, again)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => {
                except.clear();
                // Asking again replaces this request, at this keeper; the other lets it expire.
                ask.settled = true;
                continue;
            }
        };
        ask.settled = true;
        let Some(Envelope { from, request, message, .. }) = answer else {
            continue;
        };
        let failure = match message {
            Message::Refused { error } if error.kind() == ErrorKind::NotFound => {
                Failure::Holder(error.message().to_owned())
            }
            Message::Refused { error } => return Err(error),
            Message::Eager { head, bytes } => match core.take_eager(id, head, &bytes).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            },
            Message::Offer { head, lease_ms, pieces } => {
                let lease = Lease::new(&core, from, request, lease_ms, asked_at);
                let taken = core.take_offer(id, head, &pieces, &lease).await;
                drop(lease);
                match taken {
                    Ok(()) => return Ok(()),
                    Err(failure) => failure,
                }
            }
            other => Failure::Holder(format!("an answer of the wrong kind: {other:?}")),
        };
        core.transfer.counters.borrow_mut().fetch_failures += 1;
        match failure {
            Failure::Here(error) => return Err(error),
            Failure::Holder(reason) => {
                warn!("cannot fetch object {id} from node {from}: {reason}; trying elsewhere");
                if !except.contains(&from) {
                    except.push(from);
                }
            }
        }
    }
}

/// The part of a lease that the reader relies on: two clocks may differ in speed, if only by little.
fn trusted(span: Duration) -> Duration {
    span * 9 / 10
}

/// The reader's end of a lease. Dropping it tells the holder that it is over.
struct Lease {
    core: Rc<Core>,
    holder: NodeId,
    request: u64,
    span: Cell<Duration>,
    /// Bytes read before this moment are certainly the object's.
    until: Cell<Instant>,
}

impl Lease {
    fn new(core: &Rc<Core>, holder: NodeId, request: u64, lease_ms: u32, asked_at: Instant) -> Self {
        let span = Duration::from_millis(u64::from(lease_ms));
        let until = Cell::new(asked_at + trusted(span));
        Self { core: Rc::clone(core), holder, request, span: Cell::new(span), until }
    }

    fn holds(&self) -> bool {
        self.core.clock.now() < self.until.get()
    }

    /// Renews at half time, for ever; ends when the holder does not.
    async fn keep(&self) -> Failure {
        loop {
            let half = self.span.get() / 2;
            self.core.clock.until(self.until.get() - half).await;
            let renewing_at = self.core.clock.now();
            let renew = Message::Renew { lease: self.request };
            match self.core.ask(self.holder, 0, renew, half).await {
                Ok(Message::Renewed { lease_ms }) => {
                    self.span.set(Duration::from_millis(u64::from(lease_ms)));
                    self.until.set(renewing_at + trusted(self.span.get()));
                }
                Ok(_) => return Failure::Holder("the lease was answered by something else".into()),
                Err(error) => return Failure::Holder(format!("the lease was not renewed: {error}")),
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.core.tell(self.holder, Message::Release { requests: vec![self.request] });
    }
}

impl Core {
    /// Room in the arena for a fetched object: what this node can make itself is waited for.
    async fn room_for(self: &Rc<Self>, head: &Head) -> Result<Rc<Extent>, Failure> {
        let zone = Zone { domain: head.domain(), writer: Writer::Engine };
        self.room(zone, head.len(), Duration::ZERO).await.map(Rc::new).map_err(Failure::Here)
    }

    /// An object that came inside a message.
    async fn take_eager(self: &Rc<Self>, id: ObjectId, head: Head, bytes: &Bytes) -> Result<(), Failure> {
        if head.id != id || bytes.len() as u64 != head.len() {
            return Err(Failure::Holder("it sent another object or another length".into()));
        }
        let extent = self.room_for(&head).await?;
        extent.write(0, bytes).map_err(|error| Failure::Holder(error.to_string()))?;
        let mut counters = self.transfer.counters.borrow_mut();
        counters.eager_fetched += 1;
        counters.eager_fetched_bytes += head.len();
        counters.cpu_copied_bytes += head.len();
        drop(counters);
        self.seal_fetched(head, extent);
        Ok(())
    }

    /// An object that lies at a holder: reads it, piece by piece, under the lease.
    async fn take_offer(
        self: &Rc<Self>,
        id: ObjectId,
        head: Head,
        pieces: &[Location],
        lease: &Lease,
    ) -> Result<(), Failure> {
        let offered = pieces.iter().try_fold(0u64, |sum, piece| {
            piece.offset.checked_add(piece.len)?;
            sum.checked_add(piece.len)
        });
        if head.id != id || offered != Some(head.len()) {
            return Err(Failure::Holder("it offered another object or another length".into()));
        }
        let extent = {
            let moving = std::pin::pin!(self.move_here(&head, pieces, lease));
            match select(moving, std::pin::pin!(lease.keep())).await {
                Either::Left((extent, _)) => extent?,
                Either::Right((failure, _)) => return Err(failure),
            }
        };
        if !lease.holds() {
            return Err(Failure::Holder("the lease ended before the last byte came".into()));
        }
        let mut counters = self.transfer.counters.borrow_mut();
        counters.rendezvous_fetched += 1;
        counters.rendezvous_fetched_bytes += head.len();
        drop(counters);
        self.seal_fetched(head, extent);
        Ok(())
    }

    /// Reads an object into memory of its own, some chunks at a time.
    async fn move_here(
        self: &Rc<Self>,
        head: &Head,
        pieces: &[Location],
        lease: &Lease,
    ) -> Result<Rc<Extent>, Failure> {
        let _slot = self.transfer.slots.acquire().await.expect("the semaphore is never closed");
        let extent = self.room_for(head).await?;
        let reads = chunks(pieces, extent.pieces())
            .map(|(from, into)| Ok(self.read(lease.holder, from, into, &extent)));
        stream::iter(reads)
            .try_buffer_unordered(super::READS)
            .try_for_each(|()| std::future::ready(Ok(())))
            .await?;
        Ok(extent)
    }

    /// Reads one chunk. The operation owns the extent until the fabric is finished with it.
    async fn read(
        &self,
        holder: NodeId,
        from: Location,
        into: Piece,
        extent: &Rc<Extent>,
    ) -> Result<(), Failure> {
        let operation = self.post_read(holder, from, into, extent)?;
        // The lease says that the holder lives; only bytes say that the bulk lane does.
        let due = self.clock.now() + STALLED;
        match self.clock.bounded(Some(due), operation).await {
            Some(result) => result.map_err(Failure::from),
            None => {
                // What does not end by itself would hold the extent for as long as TCP is patient.
                self.network.reset_bulk(holder);
                Err(Failure::Holder(format!("no bytes came on the bulk lane for {STALLED:?}")))
            }
        }
    }

    fn post_read(
        &self,
        holder: NodeId,
        from: Location,
        into: Piece,
        extent: &Rc<Extent>,
    ) -> Result<Op, Failure> {
        let unknown = || Failure::Holder(format!("segment {} is not known here", from.segment));
        let remote = self.network.remote(holder, &from).ok_or_else(unknown)?;
        let unregistered = || {
            let text = format!("segment {} of this node is not registered with the fabric", into.segment);
            Failure::Here(Error::new(ErrorKind::Internal, text))
        };
        let slice = self.network.local(&self.arena.borrow(), into).ok_or_else(unregistered)?;
        let slice = slice.with_owner(Rc::clone(extent) as Rc<dyn std::any::Any>);
        self.network
            .read(holder, slice, remote)
            .ok_or_else(|| Failure::Holder("it has left the cluster".into()))
    }
}

/// Pairs of equal pieces there and here, none longer than a chunk nor across a segment's end.
fn chunks(there: &[Location], here: impl Iterator<Item = Piece>) -> impl Iterator<Item = (Location, Piece)> {
    let mut there = there.iter().copied().filter(|piece| piece.len > 0).peekable();
    let mut here = here.peekable();
    std::iter::from_fn(move || {
        let (from, into) = (there.peek_mut()?, here.peek_mut()?);
        let len = from.len.min(into.len).min(CHUNK);
        let chunk = (Location { len, ..*from }, Piece { len, ..*into });
        from.offset += len;
        from.len -= len;
        into.offset += len;
        into.len -= len;
        if from.len == 0 {
            there.next();
        }
        if into.len == 0 {
            here.next();
        }
        Some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_both_sides_in_order_and_cross_no_border() {
        let there = [(3, 100, 2 * CHUNK + 5), (4, 0, 10)].map(|(segment, offset, len)| Location {
            segment,
            version: 1,
            offset,
            len,
        });
        let total = 2 * CHUNK + 15;
        let here =
            [(0, 64, 7), (1, 0, total - 7)].map(|(segment, offset, len)| Piece { segment, offset, len });
        let chunks: Vec<_> = chunks(&there, here.into_iter()).collect();
        let (mut from_at, mut into_at) = (0, 0);
        for (from, into) in &chunks {
            assert_eq!(from.len, into.len);
            assert!(from.len > 0 && from.len <= CHUNK);
            let start = if from.segment == 3 { from.offset - 100 } else { 2 * CHUNK + 5 + from.offset };
            assert_eq!(start, from_at);
            let start = if into.segment == 0 { into.offset - 64 } else { 7 + into.offset };
            assert_eq!(start, into_at);
            from_at += from.len;
            into_at += into.len;
        }
        assert_eq!((from_at, into_at), (total, total));
    }
}
