//! *striped-read*: a large object that several nodes hold is read from all of them. Each holder serves
//! the next unread piece as soon as its last piece has come. A holder that has no free place, or that
//! offers nothing until all pieces are being read, is left out. Owns no state. Engine thread only.
//!
//! Invariants: an attempt in which any holder fails is given up as a whole, with its memory: the provider
//! may still write the bytes of a failed read. Each holder's place is free again when nothing more is read
//! from that holder, whatever the others do.

use std::cell::RefCell;
use std::iter::{Peekable, from_fn};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{Either, Shared, join, join_all, select};
use plasmon::{NodeId, Protocol};

use super::failure::Failure;
use super::landing::Landing;
use super::lease::Lease;
use super::pieces::cut;
use super::reading::{Here, Offer, in_window};
use super::record::Trace;
use super::slots::Slot;
use crate::memory::Piece;
use crate::net::calls::Call;
use crate::net::frame::{Envelope, Message, Stage, Wish};
use crate::object::Head;
use crate::transfer::Transfer;

/// Length in bytes of the shortest object that is striped. Asking other holders takes as long as
/// reading 16 MiB.
const STRIPED_BYTES: u64 = 16 << 20;
/// How long another holder may take to offer its replica.
const OTHERS_PATIENCE: Duration = Duration::from_secs(2);

/// The pieces that are not being read yet. All holders have the same bytes at the same place of the object.
type Work = RefCell<Peekable<Box<dyn Iterator<Item = (u64, Piece)>>>>;

/// Whether an object is to be read from these holders as well.
pub(super) fn is_striped(head: &Head, others: &[NodeId]) -> bool {
    head.len() >= STRIPED_BYTES && !others.is_empty()
}

impl Transfer {
    /// Reads an object from the holder of `offer`, at which `slot` is a place, and from those of
    /// `others` that offer the object too.
    pub(super) async fn read_striped(
        self: &Rc<Self>,
        (offer, slot): (&Offer, Slot),
        others: &[NodeId],
        landing: &Rc<Landing>,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        let pieces = Box::new(cut(landing.pieces())) as Box<dyn Iterator<Item = _>>;
        let work: Work = RefCell::new(pieces.peekable());
        let here = Here { landing, arrived: &trace.arrived() };
        // This channel closes when the first holder has given its last piece. Then no other holder
        // is waited for any more.
        let (reading, read) = oneshot::channel::<()>();
        let read = read.shared();
        let first = async {
            let reads = self.stripe(offer, &work, here).await;
            drop((slot, reading));
            reads
        };
        let asked = (trace.user, offer);
        let rest = others.iter().map(|other| self.stripe_of(*other, asked, &work, here, read.clone()));
        let (first, rest) = join(first, join_all(rest)).await;
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
        Ok(())
    }

    /// Reads pieces from another holder, if it offers the same object. Returns the number of the fabric's
    /// reads; `None` if the holder gave nothing.
    async fn stripe_of(
        self: &Rc<Self>,
        holder: NodeId,
        (user, first): (u32, &Offer),
        work: &Work,
        here: Here<'_>,
        read: Shared<oneshot::Receiver<()>>,
    ) -> Result<Option<u64>, Failure> {
        let Some(_slot) = self.slots.try_take(holder) else { return Ok(None) };
        let asked_at = self.kernel.clock.now();
        let mut call = Call::open(&self.network, Some(holder));
        let wish = Wish { protocol: Protocol::Read, eager_max: 0, push_max: 0 };
        let (id, stage) = (first.head.id, Stage::Direct);
        let fetch = Message::Fetch { id, life: 0, stage, wish, others: Vec::new() };
        if !call.send(holder, user, fetch) {
            return Ok(None);
        }
        let due = self.kernel.clock.now() + OTHERS_PATIENCE;
        let answer = pin!(self.kernel.clock.bounded(Some(due), call.answer()));
        let Either::Left((Some(Some(answer)), _)) = select(answer, read).await else {
            // The first holder goes on without this one.
            return Ok(None);
        };
        if !matches!(answer.message, Message::Offer { .. }) {
            self.decline(&answer);
            return Ok(None);
        }
        let Envelope { request, message: Message::Offer { head, lease_ms, pieces, .. }, .. } = answer else {
            return Ok(None);
        };
        let offer =
            Offer { head, pieces, lease: Lease::new(&self.leases, holder, request, lease_ms, asked_at) };
        offer.check(first.head.id)?;
        if offer.head.life != first.head.life || offer.head.len() != first.head.len() {
            return Ok(None);
        }
        let reads = offer.lease.during(self.stripe(&offer, work, here)).await?;
        offer.lease.check()?;
        Ok((reads > 0).then_some(reads))
    }

    /// Reads pieces from a holder until no unread one is left. Returns the number of the fabric's reads.
    async fn stripe(&self, offer: &Offer, work: &Work, here: Here<'_>) -> Result<u64, Failure> {
        let plan = self.tuner.choose(offer.lease.holder, 0).plan;
        let pieces = from_fn(|| work.borrow_mut().next());
        in_window(pieces.map(|piece| self.read_piece(offer, piece, plan.chunk, here)), plan.window).await
    }
}
