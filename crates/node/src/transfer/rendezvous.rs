//! *read*: the requester reads the object where it lies, arena to arena, under a lease. No copy on either
//! side. Engine thread only.
//!
//! A large object that several nodes hold is read from all of them in *stripes*: whoever is done with a chunk
//! takes the next. An attempt in which any holder fails is given up as a whole, with its memory: the provider may
//! still write what a failed read was to bring.

use std::cell::RefCell;
use std::future::Future;
use std::iter::Peekable;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, join_all, select, try_join_all};
use plasmon::{Error, ErrorKind, NodeId, ObjectId, Protocol};
use plasmon_fabric::{Op, Slice};

use super::chunks::chunks;
use super::landing::{Landing, Target};
use super::lease::Lease;
use super::record::{Arrived, Trace};
use super::tuning::Plan;
use super::{Failure, STALLED};
use crate::cluster::{Call, Envelope, Location, Message, Remote, Stage, Wish};
use crate::engine::Core;
use crate::memory::{Extent, Piece, Writer, Zone};
use crate::object::Head;

/// Shorter objects are read from one holder: asking others takes as long as reading so much.
const STRIPED: u64 = 16 << 20;
/// Bytes that a holder takes on at a time then.
const STRIPE: u64 = 1 << 20;
/// How long another holder may take to offer its replica.
const OTHERS_PATIENCE: Duration = Duration::from_secs(2);

/// What a holder offered.
pub(super) struct Offer {
    pub(super) head: Head,
    pub(super) pieces: Vec<Location>,
    pub(super) lease: Lease,
}

impl Offer {
    /// Whether it is of this object, and its pieces make up the whole of it.
    pub(super) fn check(&self, id: ObjectId) -> Result<(), Failure> {
        if self.head.id != id || whole(&self.pieces) != Some(self.head.len()) {
            return Err(Failure::Holder("it offered another object or another length".into()));
        }
        Ok(())
    }
}

/// Where an object arrives.
#[derive(Clone, Copy)]
pub(super) struct Here<'a> {
    pub(super) landing: &'a Rc<Landing>,
    pub(super) arrived: &'a Arrived,
}

/// The chunks that nobody has taken yet; all holders have the same bytes at the same place of the object.
type Work = RefCell<Peekable<Box<dyn Iterator<Item = (u64, Piece)>>>>;

impl Core {
    /// Room in the arena for a fetched object: what this node can make itself is waited for.
    pub(super) async fn room_for(self: &Rc<Self>, head: &Head) -> Result<Rc<Extent>, Failure> {
        self.extent_for(head).await.map(Rc::new)
    }

    pub(super) async fn extent_for(self: &Rc<Self>, head: &Head) -> Result<Extent, Failure> {
        let zone = Zone { domain: head.domain(), writer: Writer::Engine };
        self.room(zone, head.len(), Duration::ZERO).await.map_err(Failure::Here)
    }

    /// Reads an object that a holder offered, from `others` as well if it is large.
    pub(super) async fn take_offer(
        self: &Rc<Self>,
        id: ObjectId,
        tenant: u32,
        offer: Offer,
        others: &[NodeId],
        target: &Target,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        offer.check(id)?;
        let landing = {
            let moving = std::pin::pin!(self.move_here(tenant, &offer, others, target, trace));
            match select(moving, std::pin::pin!(offer.lease.keep())).await {
                Either::Left((landing, _)) => landing?,
                Either::Right((failure, _)) => return Err(failure),
            }
        };
        offer.lease.check()?;
        trace.moved();
        self.count_rendezvous(&offer.head);
        self.land(&offer.head, landing, target)
    }

    pub(super) fn count_rendezvous(&self, head: &Head) {
        let mut counters = self.transfer.counters.borrow_mut();
        counters.rendezvous_fetched += 1;
        counters.rendezvous_fetched_bytes += head.len();
    }

    /// Reads an object into memory of its own, some chunks at a time.
    async fn move_here(
        self: &Rc<Self>,
        tenant: u32,
        offer: &Offer,
        others: &[NodeId],
        target: &Target,
        trace: &mut Trace,
    ) -> Result<Rc<Landing>, Failure> {
        let _slot = self.transfer.slots.acquire().await.expect("the semaphore is never closed");
        let landing = self.landing(&offer.head, target).await?;
        trace.allocated();
        if offer.head.len() < STRIPED || others.is_empty() {
            self.read_all(offer.lease.holder, &offer.pieces, &landing, None, trace).await?;
            return Ok(landing);
        }
        let mut at = 0;
        let whole = landing.pieces().into_iter().flat_map(|piece| {
            (piece.offset..piece.offset + piece.len).step_by(STRIPE as usize).map(move |offset| Piece {
                offset,
                len: STRIPE.min(piece.offset + piece.len - offset),
                ..piece
            })
        });
        let work = whole.map(move |piece| {
            let start = at;
            at += piece.len;
            (start, piece)
        });
        let work: Work = RefCell::new((Box::new(work) as Box<dyn Iterator<Item = _>>).peekable());
        let here = Here { landing: &landing, arrived: &trace.arrived() };
        let first = self.stripe(offer, &work, here);
        let rest = others.iter().map(|other| self.stripe_of(*other, tenant, offer, &work, here));
        let (first, rest) = futures::future::join(first, join_all(rest)).await;
        trace.read(first?);
        for (holder, reads) in others.iter().zip(rest) {
            if let Some(reads) = reads? {
                trace.also_from(*holder);
                trace.read(reads);
            }
        }
        if work.borrow_mut().peek().is_some() {
            return Err(Failure::Holder("it was not read to the end".into()));
        }
        Ok(landing)
    }

    /// Reads chunks from another holder, if it offers the same object; says how many.
    async fn stripe_of(
        self: &Rc<Self>,
        holder: NodeId,
        tenant: u32,
        first: &Offer,
        work: &Work,
        here: Here<'_>,
    ) -> Result<Option<u64>, Failure> {
        let asked_at = self.clock.now();
        let mut call = Call::open(self, Some(holder));
        let wish = Wish { protocol: Protocol::Read, eager_max: 0 };
        let fetch = Message::Fetch { id: first.head.id, stage: Stage::Direct, avoid: Vec::new(), wish };
        if !call.send(holder, tenant, fetch) {
            return Ok(None);
        }
        let due = self.clock.now() + OTHERS_PATIENCE;
        let Some(Some(Envelope { request, message: Message::Offer { head, lease_ms, pieces, .. }, .. })) =
            self.clock.bounded(Some(due), call.answer()).await
        else {
            // The first does it without.
            return Ok(None);
        };
        let offer = Offer { head, pieces, lease: Lease::new(self, holder, request, lease_ms, asked_at) };
        offer.check(first.head.id)?;
        if offer.head.life != first.head.life || offer.head.len() != first.head.len() {
            return Ok(None);
        }
        let reading = std::pin::pin!(self.stripe(&offer, work, here));
        let reads = match select(reading, std::pin::pin!(offer.lease.keep())).await {
            Either::Left((reads, _)) => reads?,
            Either::Right((failure, _)) => return Err(failure),
        };
        offer.lease.check()?;
        Ok((reads > 0).then_some(reads))
    }

    /// Reads chunks from a holder until there are none.
    async fn stripe(&self, offer: &Offer, work: &Work, here: Here<'_>) -> Result<u64, Failure> {
        let plan = self.choose_plan(offer.lease.holder, 0).plan;
        let lane = || async {
            let mut reads = 0;
            loop {
                let Some((at, into)) = work.borrow_mut().next() else { return Ok(reads) };
                let from = part(&offer.pieces, at, into.len);
                for (from, into) in chunks(&from, std::iter::once(into), plan.chunk) {
                    reads += 1;
                    self.read(offer.lease.holder, from, into, here).await?;
                }
            }
        };
        let reads: Result<Vec<u64>, Failure> = try_join_all((0..plan.window).map(|_| lane())).await;
        Ok(reads?.into_iter().sum())
    }

    /// Reads all of an object from one holder, some chunks at a time, and behind the last of them a word.
    pub(super) async fn read_all(
        &self,
        holder: NodeId,
        pieces: &[Location],
        landing: &Rc<Landing>,
        behind: Option<(Slice, Remote)>,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        let choice = self.choose_plan(holder, landing.len());
        if landing.len() > choice.plan.chunk {
            trace.because(&format!(", {choice}"));
        }
        let began = self.clock.now();
        let here = Here { landing, arrived: &trace.arrived() };
        trace.read(self.read_part(holder, pieces, here, landing.len(), behind, choice.plan).await?);
        self.saw_plan(holder, choice.plan, landing.len(), self.clock.now() - began);
        Ok(())
    }

    /// Reads the first bytes of what lies in pieces at a holder, and behind them a word; says how many reads it took.
    pub(super) async fn read_part(
        &self,
        holder: NodeId,
        pieces: &[Location],
        here: Here<'_>,
        len: u64,
        behind: Option<(Slice, Remote)>,
        Plan { chunk, window }: Plan,
    ) -> Result<u64, Failure> {
        let from = part(pieces, 0, len);
        let chunks = chunks(&from, here.landing.pieces().into_iter(), chunk);
        let reads = chunks.map(|(from, into)| Either::Left(self.read(holder, from, into, here)));
        let word = |(into, from)| {
            Either::Right(async move { self.finish_read(holder, self.post_read(holder, into, from)?).await })
        };
        self.pipeline(reads.chain(behind.map(word)), window).await
    }

    /// Awaits reads, some at a time; says how many there were.
    pub(super) async fn pipeline(
        &self,
        reads: impl Iterator<Item = impl Future<Output = Result<(), Failure>>>,
        window: u32,
    ) -> Result<u64, Failure> {
        let reads = RefCell::new(reads);
        let lane = || async {
            let mut count = 0;
            loop {
                let Some(read) = reads.borrow_mut().next() else { return Ok(count) };
                read.await?;
                count += 1;
            }
        };
        let counts: Result<Vec<u64>, Failure> = try_join_all((0..window).map(|_| lane())).await;
        Ok(counts?.into_iter().sum())
    }

    /// Reads one chunk. The operation owns the memory until the fabric is finished with it.
    pub(super) async fn read(
        &self,
        holder: NodeId,
        from: Location,
        into: Piece,
        here: Here<'_>,
    ) -> Result<(), Failure> {
        let unknown = || Failure::Holder(format!("segment {} is not known here", from.segment));
        let remote = self.network.remote(holder, &from).ok_or_else(unknown)?;
        let slice = here.landing.slice(self, remote.on, into)?;
        self.finish_read(holder, self.post_read(holder, slice, remote)?).await?;
        here.arrived.add(into.len);
        Ok(())
    }

    /// A piece of this node's arena, for an operation.
    pub(super) fn slice_of(&self, on: usize, piece: Piece) -> Result<Slice, Failure> {
        self.network.local(on, &self.arena.borrow(), piece).ok_or_else(|| {
            let text = format!("segment {} of this node is not registered with the fabric", piece.segment);
            Failure::Here(Error::new(ErrorKind::Internal, text))
        })
    }

    pub(super) fn post_read(&self, holder: NodeId, into: Slice, from: Remote) -> Result<Op, Failure> {
        let gone = || Failure::Holder("it has left the cluster".into());
        self.network.read(holder, into, from).ok_or_else(gone)
    }

    /// Waits for a read. The lease says that the holder lives; only bytes say that the bulk lane does.
    pub(super) async fn finish_read(&self, holder: NodeId, read: Op) -> Result<(), Failure> {
        let due = self.clock.now() + STALLED;
        match self.clock.bounded(Some(due), read).await {
            Some(result) => result.map_err(Failure::from),
            None => {
                // What does not end by itself would hold the extent for as long as TCP is patient.
                self.network.reset_bulk(holder);
                Err(Failure::Holder(format!("no bytes came on the bulk lane for {STALLED:?}")))
            }
        }
    }
}

/// The length of what lies in these; nothing if no memory can be so long.
pub(super) fn whole(pieces: &[Location]) -> Option<u64> {
    pieces.iter().try_fold(0u64, |sum, piece| {
        piece.offset.checked_add(piece.len)?;
        sum.checked_add(piece.len)
    })
}

/// The pieces of `len` bytes from `at` on, in an object that lies in these.
pub(super) fn part(pieces: &[Location], at: u64, len: u64) -> Vec<Location> {
    let (mut skip, mut left) = (at, len);
    let mut part = Vec::new();
    for piece in pieces {
        if skip >= piece.len {
            skip -= piece.len;
            continue;
        }
        let len = left.min(piece.len - skip);
        if len == 0 {
            break;
        }
        part.push(Location { offset: piece.offset + skip, len, ..*piece });
        left -= len;
        skip = 0;
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_lengths_that_no_memory_has_are_of_none() {
        let location = |offset, len| Location { segment: 1, version: 1, offset, len };
        assert_eq!(whole(&[]), Some(0));
        assert_eq!(whole(&[location(100, 10), location(0, u64::MAX - 10)]), Some(u64::MAX));
        assert_eq!(whole(&[location(0, u64::MAX), location(0, 33)]), None);
        assert_eq!(whole(&[location(u64::MAX, 1)]), None);
    }

    #[test]
    fn a_part_of_an_object_may_lie_in_several_pieces() {
        let location = |segment, offset, len| Location { segment, version: 1, offset, len };
        let pieces = [location(1, 100, 10), location(2, 0, 20), location(3, 0, 5)];
        assert_eq!(part(&pieces, 0, 35), pieces);
        assert_eq!(part(&pieces, 8, 4), [location(1, 108, 2), location(2, 0, 2)]);
        assert_eq!(part(&pieces, 10, 20), [location(2, 0, 20)]);
        assert_eq!(part(&pieces, 30, 5), [location(3, 0, 5)]);
        assert_eq!(part(&pieces, 35, 0), []);
    }
}
