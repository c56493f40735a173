//! *read-register*: what *read* would cost if memory were registered for each transfer, on both sides, for
//! measuring. Engine thread only.

use std::rc::Rc;

use futures::future::{Either, select};
use plasmon::ObjectId;
use plasmon_fabric::{FabricError, Region, RemoteRegion};

use super::Failure;
use super::lease::Lease;
use super::record::Trace;
use crate::cluster::Remote;
use crate::engine::Core;
use crate::memory::{Extent, Run};
use crate::object::Head;

impl Core {
    /// Registers bytes of the arena by themselves, piece by piece; none need nothing.
    pub(super) fn register_run(&self, on: usize, run: &Run) -> Result<Vec<Rc<Region>>, FabricError> {
        let arena = self.arena.borrow();
        let pieces = run.pieces().filter(|piece| piece.len > 0);
        pieces.map(|piece| self.network.register_part(on, &arena, piece)).collect()
    }

    /// Reads an object through registrations made for this transfer.
    pub(super) async fn take_registered(
        self: &Rc<Self>,
        id: ObjectId,
        head: Head,
        regions: &[RemoteRegion],
        lease: Lease,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        let offered = regions.iter().try_fold(0u64, |sum, region| sum.checked_add(region.len));
        if head.id != id || offered != Some(head.len()) {
            return Err(Failure::Holder("it offered another object or another length".into()));
        }
        let extent = {
            let moving = std::pin::pin!(self.move_registered(&head, regions, &lease, trace));
            match select(moving, std::pin::pin!(lease.keep())).await {
                Either::Left((extent, _)) => extent?,
                Either::Right((failure, _)) => return Err(failure),
            }
        };
        lease.check()?;
        trace.moved();
        self.count_rendezvous(&head);
        self.seal_fetched(head, extent)
    }

    async fn move_registered(
        self: &Rc<Self>,
        head: &Head,
        there: &[RemoteRegion],
        lease: &Lease,
        trace: &mut Trace,
    ) -> Result<Rc<Extent>, Failure> {
        let _slot = self.transfer.slots.acquire().await.expect("the semaphore is never closed");
        let extent = self.room_for(head).await?;
        trace.allocated();
        let on = self.network.fabric_to(lease.holder);
        let here = self.register_run(on, &extent)?;
        trace.registered(here.len() as u64);
        let plan = self.choose_plan(lease.holder, 0).plan;
        let mut posts = Vec::new();
        let (mut from, mut into) = ((0, 0), (0, 0));
        while let (Some(source), Some(target)) = (there.get(from.0), here.get(into.0)) {
            let len = (source.len - from.1).min(target.len() as u64 - into.1).min(plan.chunk);
            if len > 0 {
                posts
                    .push((Remote { on, region: *source, offset: from.1 }, (Rc::clone(target), into.1, len)));
            }
            (from.1, into.1) = (from.1 + len, into.1 + len);
            if from.1 == source.len {
                from = (from.0 + 1, 0);
            }
            if into.1 == target.len() as u64 {
                into = (into.0 + 1, 0);
            }
        }
        let (extent_for_reads, arrived) = (Rc::clone(&extent), &trace.arrived());
        let reads = posts.into_iter().map(|(remote, (target, at, len))| {
            let extent = Rc::clone(&extent_for_reads);
            async move {
                let slice =
                    target.slice(at as usize, len as usize)?.with_owner(extent as Rc<dyn std::any::Any>);
                self.finish_read(lease.holder, self.post_read(lease.holder, slice, remote)?).await?;
                arrived.add(len);
                Ok(())
            }
        });
        trace.read(self.pipeline(reads, plan.window).await?);
        Ok(extent)
    }
}
