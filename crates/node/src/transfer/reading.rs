//! One-sided reads of an object's pieces into its landing, a limited number at a time. The protocols
//! *read*, *read-first*, *striped-read*, *relayed-read* and *read-register* use it, and so do
//! measurements. Owns no state. Engine thread only.
//!
//! Invariants: an operation owns its memory until the fabric is finished with it. When one read fails, the
//! whole transfer is given up at once, and the reads under way go on by themselves. The provider may still
//! write the bytes of a failed read, so that memory is not used again before its landing is dropped.

use std::future::{Future, ready};
use std::rc::Rc;

use futures::future::Either;
use futures::stream::{StreamExt, TryStreamExt, iter};
use plasmon::{NodeId, ObjectId};
use plasmon_fabric::Slice;

use super::failure::{Failure, STALLED};
use super::landing::Landing;
use super::lease::Lease;
use super::pieces::{pairs, pairs_by, part, placed, whole};
use super::record::{Arrived, Trace};
use super::tuning::Plan;
use crate::memory::Piece;
use crate::net::frame::Location;
use crate::net::network::Remote;
use crate::object::Head;
use crate::transfer::Transfer;

/// A holder's offer of an object to be read.
pub(super) struct Offer {
    pub(super) head: Head,
    pub(super) pieces: Vec<Location>,
    pub(super) lease: Lease,
}

impl Offer {
    /// Checks that the offer is of this object and that its pieces make up the whole of it.
    pub(super) fn check(&self, id: ObjectId) -> Result<(), Failure> {
        if self.head.id != id || whole(&self.pieces) != Some(self.head.len()) {
            return Err(Failure::Holder("it offered another object or another length".into()));
        }
        Ok(())
    }
}

/// The landing of an object on this node, with the counter of its bytes.
#[derive(Clone, Copy)]
pub(super) struct Here<'a> {
    pub(super) landing: &'a Rc<Landing>,
    pub(super) arrived: &'a Arrived,
}

/// Awaits reads, `window` of them at a time, begun in their order. Returns the sum of the fabric's reads
/// that they report. Ends with the first failure.
pub(super) async fn in_window(
    reads: impl Iterator<Item = impl Future<Output = Result<u64, Failure>>>,
    window: u32,
) -> Result<u64, Failure> {
    let reads = iter(reads).buffer_unordered(window as usize);
    reads.try_fold(0, |sum, more| ready(Ok(sum + more))).await
}

impl Transfer {
    /// Reads all of an object from one holder, some chunks at a time, and a word behind the last chunk.
    pub(super) async fn read_all(
        &self,
        holder: NodeId,
        pieces: &[Location],
        landing: &Rc<Landing>,
        behind: Option<(Slice, Remote)>,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        let choice = self.tuner.choose(holder, landing.len());
        if landing.len() > choice.plan.chunk {
            trace.because(&format!(", {choice}"));
        }
        let began = self.kernel.clock.now();
        let here = Here { landing, arrived: &trace.arrived() };
        trace.read(self.read_part(holder, pieces, here, landing.len(), behind, choice.plan).await?);
        self.tuner.saw(holder, choice.plan, landing.len(), self.kernel.clock.now() - began);
        Ok(())
    }

    /// Reads the first bytes of pieces at a holder, and a word behind them; returns the number of the
    /// fabric's reads.
    pub(super) async fn read_part(
        &self,
        holder: NodeId,
        pieces: &[Location],
        here: Here<'_>,
        len: u64,
        behind: Option<(Slice, Remote)>,
        Plan { chunk, window }: Plan,
    ) -> Result<u64, Failure> {
        let chunk = || self.network.qos.chunk(holder, chunk);
        let chunks = pairs_by(part(pieces, 0, len), here.landing.pieces(), chunk);
        let reads = placed(chunks, 0)
            .map(|(at, from, into)| Either::Left(self.read_chunk(holder, from, (at, into), here)));
        let word = behind.map(|(into, from)| Either::Right(self.read_slice(holder, into, from)));
        in_window(reads.chain(word), window).await
    }

    /// Reads one piece of an object, which begins `at` bytes from its start, one chunk after the other;
    /// returns the number of the fabric's reads.
    pub(super) async fn read_piece(
        &self,
        offer: &Offer,
        (at, into): (u64, Piece),
        chunk: u64,
        here: Here<'_>,
    ) -> Result<u64, Failure> {
        let mut reads = 0;
        for (at, from, into) in placed(pairs(part(&offer.pieces, at, into.len), [into], chunk), at) {
            reads += self.read_chunk(offer.lease.holder, from, (at, into), here).await?;
        }
        Ok(reads)
    }

    /// Reads one chunk, which begins `at` bytes from the object's start.
    async fn read_chunk(
        &self,
        holder: NodeId,
        from: Location,
        (at, into): (u64, Piece),
        here: Here<'_>,
    ) -> Result<u64, Failure> {
        let unknown = || Failure::Holder(format!("segment {} is not known here", from.segment));
        let remote = self.network.remote(holder, &from).ok_or_else(unknown)?;
        let slice = here.landing.slice(self, remote.on, into)?;
        let reads = self.read_slice(holder, slice, remote).await?;
        here.arrived.add(into.len);
        here.landing.came(at, into.len).map_err(|error| Failure::Holder(error.to_string()))?;
        Ok(reads)
    }

    /// Fills a slice by one read. Gives up when no byte comes for a while: the lease shows that the
    /// holder lives, but only bytes show that the bulk lane works.
    pub(super) async fn read_slice(&self, holder: NodeId, into: Slice, from: Remote) -> Result<u64, Failure> {
        let _permit = self.network.qos.read(holder, into.len() as u64).await;
        let read = self.network.read(holder, into, from).ok_or_else(Failure::gone)?;
        let due = self.kernel.clock.now() + STALLED;
        match self.kernel.clock.bounded(Some(due), read).await {
            Some(result) => result.map(|()| 1).map_err(Failure::from),
            None => {
                // A read that does not end would hold its memory until TCP gives up.
                self.network.reset_bulk(holder);
                Err(Failure::Holder(format!("no bytes came on the bulk lane for {STALLED:?}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use futures::channel::oneshot;
    use futures::executor::LocalPool;
    use futures::task::LocalSpawnExt;

    use super::*;

    #[test]
    fn reads_begin_in_order_and_no_more_than_a_window_are_under_way() {
        let (begun, under_way) = (RefCell::new(Vec::new()), Cell::new(0));
        let (begun, under_way) = (Rc::new(begun), Rc::new(under_way));
        let (ends, waits): (Vec<_>, Vec<_>) = (0..7).map(|_| oneshot::channel::<()>()).unzip();
        let mut pool = LocalPool::new();
        let counted = {
            let (begun, under_way) = (Rc::clone(&begun), Rc::clone(&under_way));
            let reads = waits.into_iter().enumerate().map(move |(number, wait)| {
                let (begun, under_way) = (Rc::clone(&begun), Rc::clone(&under_way));
                async move {
                    begun.borrow_mut().push(number);
                    under_way.set(under_way.get() + 1);
                    wait.await.expect("it is told");
                    under_way.set(under_way.get() - 1);
                    Ok(2)
                }
            });
            pool.spawner().spawn_local_with_handle(in_window(reads, 3)).expect("spawn")
        };
        let mut ends: Vec<_> = ends.into_iter().map(Some).collect();
        // The second of the reads under way ends first, and the next read takes its place.
        for (number, so_far) in [(1, 4), (0, 5), (3, 6), (2, 7), (6, 7), (5, 7), (4, 7)] {
            pool.run_until_stalled();
            assert!(under_way.get() <= 3);
            ends[number].take().expect("once").send(()).expect("it is awaited");
            pool.run_until_stalled();
            assert_eq!(*begun.borrow(), (0..so_far).collect::<Vec<_>>());
        }
        assert_eq!(pool.run_until(counted).expect("all come"), 14);
    }

    #[test]
    fn the_first_read_that_fails_ends_all() {
        let begun = Cell::new(0);
        let reads = (0..100).map(|number| {
            let begun = &begun;
            async move {
                begun.set(begun.get() + 1);
                if number == 4 { Err(Failure::Ended) } else { Ok(1) }
            }
        });
        let ended = futures::executor::block_on(in_window(reads, 2));
        assert!(matches!(ended, Err(Failure::Ended)));
        assert!(begun.get() <= 6, "{} begun", begun.get());
    }
}
