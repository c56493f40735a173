//! *read-register*: *read* with memory that is registered for each transfer, on both sides. This protocol
//! exists to measure the cost of these registrations. Owns no state. Engine thread only.

use std::rc::Rc;

use plasmon::{Error, ErrorKind, UsedProtocol};
use plasmon_fabric::RemoteRegion;

use super::failure::Failure;
use super::landing::Landing;
use super::lease::{LEASE_MS, Lease, Owed};
use super::pieces::{Span, pairs, placed};
use super::reading::in_window;
use super::record::Trace;
use crate::net::frame::{Envelope, Message};
use crate::net::network::Remote;
use crate::object::{Head, Pin};
use crate::transfer::Transfer;

impl Transfer {
    /// Makes the holder's answer to a fetch: the object's location, registered for this reader alone.
    pub(super) fn registered(&self, asked: &Envelope, pin: Pin, head: Head) -> Message {
        let regions = match self.register_run(self.network.fabric_to(asked.from), &pin.run()) {
            Ok(regions) => regions,
            Err(error) => {
                let text = format!("object {} cannot be registered: {error}", head.id);
                return Message::Refused { error: Error::new(ErrorKind::Internal, text) };
            }
        };
        self.records.count_served(UsedProtocol::ReadRegister, &head);
        self.records.count(UsedProtocol::ReadRegister, |count| count.registrations += regions.len() as u64);
        self.records.counters.borrow_mut().rendezvous_served += 1;
        let remote = regions.iter().map(|region| region.remote()).collect();
        self.leases.grant(asked, pin, Owed::Regions { _kept: regions });
        Message::Registered { head, lease_ms: LEASE_MS, regions: remote }
    }

    /// Reads an object through registrations made for this transfer.
    pub(super) async fn take_registered(
        self: &Rc<Self>,
        head: Head,
        regions: &[RemoteRegion],
        lease: Lease,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        let offered = regions.iter().try_fold(0u64, |sum, region| sum.checked_add(region.len));
        if head.id != trace.id || offered != Some(head.len()) {
            return Err(Failure::Holder("it offered another object or another length".into()));
        }
        let landing = lease.during(self.read_registered(&head, regions, &lease, trace)).await?;
        lease.check()?;
        trace.moved();
        self.records.count_rendezvous(&head);
        self.land(head, landing, &trace.wanted).await
    }

    async fn read_registered(
        self: &Rc<Self>,
        head: &Head,
        there: &[RemoteRegion],
        lease: &Lease,
        trace: &mut Trace,
    ) -> Result<Rc<Landing>, Failure> {
        let _slot = self.slots.take(lease.holder).await;
        let landing = self.landing(head, &trace.target, &trace.wanted).await?;
        trace.allocated();
        let on = self.network.fabric_to(lease.holder);
        let here = landing.register(self, on)?;
        trace.registered(here.len() as u64);
        let plan = self.tuner.choose(lease.holder, 0).plan;
        let arrived = trace.arrived();
        let chunks = pairs(there.iter().copied().map(Span::from), here, plan.chunk);
        let reads = placed(chunks, 0).map(|(at, from, into)| {
            let (landing, arrived) = (&landing, &arrived);
            async move {
                let remote = Remote { on, region: from.of, offset: from.at };
                let slice = landing.owned(into.of.slice(into.at as usize, into.len as usize)?);
                let reads = self.read_slice(lease.holder, slice, remote).await?;
                arrived.add(into.len);
                landing.came(at, into.len).map_err(|error| Failure::Holder(error.to_string()))?;
                Ok(reads)
            }
        });
        trace.read(in_window(reads, plan.window).await?);
        Ok(landing)
    }
}
