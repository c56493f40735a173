//! *read*: the requester reads the object from the holder's arena into its own, under a lease. Neither
//! side copies. Owns no state. Engine thread only.

use std::rc::Rc;

use plasmon::NodeId;

use super::failure::Failure;
use super::landing::Landing;
use super::reading::Offer;
use super::record::Trace;
use super::striped_read::is_striped;
use crate::transfer::Transfer;

impl Transfer {
    /// Reads an object that a holder offered, and if the object is large, from `others` as well.
    pub(super) async fn take_offer(
        self: &Rc<Self>,
        offer: Offer,
        others: &[NodeId],
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        offer.check(trace.id)?;
        let landing = offer.lease.during(self.read_here(&offer, others, trace)).await?;
        offer.lease.check()?;
        trace.moved();
        self.records.count_rendezvous(&offer.head);
        self.land(offer.head, landing, &trace.wanted).await
    }

    async fn read_here(
        self: &Rc<Self>,
        offer: &Offer,
        others: &[NodeId],
        trace: &mut Trace,
    ) -> Result<Rc<Landing>, Failure> {
        let slot = self.slots.take(offer.lease.holder).await;
        let landing = self.landing(&offer.head, &trace.target, &trace.wanted).await?;
        trace.allocated();
        if is_striped(&offer.head, others) && !trace.alone {
            self.read_striped((offer, slot), others, &landing, trace).await?;
        } else {
            self.read_all(offer.lease.holder, &offer.pieces, &landing, None, trace).await?;
        }
        Ok(landing)
    }
}
