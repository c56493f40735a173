//! The holder's side: answering a fetch, keeping leases. Engine thread only; nothing waits.

use std::rc::Rc;

use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::{LEASE, Lease};
use crate::cluster::{Envelope, Location, Message};
use crate::engine::Core;
use crate::object::{Pin, Replica};

const LEASE_MS: u32 = LEASE.as_millis() as u32;

impl Core {
    /// Answers a fetch that the directory sent here.
    pub(crate) fn serve(self: &Rc<Self>, asked: &Envelope, id: ObjectId) {
        let replica = self.objects.borrow().get(&id).cloned();
        let message = match replica {
            None => {
                // Most likely it was just deleted, and the directory is about to hear of it. Should it not,
                // it hears it now; the asker asks it again.
                self.unpublish(id, true);
                let text = format!("node {} does not hold object {id} any more", self.node);
                Message::Refused { error: Error::new(ErrorKind::NotFound, text) }
            }
            Some(replica) if !replica.head.visible_to(asked.tenant) => {
                Message::Refused { error: not_visible(id, asked.tenant) }
            }
            Some(replica) => match Pin::new(&replica) {
                Some(pin) => self.offer(asked, pin),
                None => return self.serve_from_disk(asked.clone(), replica),
            },
        };
        self.answer(asked, message);
    }

    /// Answers when the object is in memory again.
    fn serve_from_disk(self: &Rc<Self>, asked: Envelope, replica: Rc<Replica>) {
        let core = Rc::clone(self);
        self.spawn(async move {
            match core.bring_back(&replica).await {
                Ok(()) => core.serve(&asked, replica.head.id),
                Err(error) => core.answer(&asked, Message::Refused { error }),
            }
        });
    }

    /// The object itself, or where it lies and for how long.
    fn offer(&self, asked: &Envelope, pin: Pin) -> Message {
        let head = pin.head.clone();
        let mut counters = self.transfer.counters.borrow_mut();
        if Message::fits_eager(&head) {
            let mut bytes = vec![0; head.len() as usize];
            pin.extent.read(0, &mut bytes).expect("a replica's extent has its length");
            counters.eager_served += 1;
            counters.cpu_copied_bytes += head.len();
            return Message::Eager { head, bytes: bytes.into() };
        }
        counters.rendezvous_served += 1;
        let arena = self.arena.borrow();
        let locate = |piece: crate::memory::Piece| Location {
            segment: piece.segment,
            version: arena.version(piece.segment),
            offset: piece.offset,
            len: piece.len,
        };
        let pieces = pin.extent.pieces().map(locate).collect();
        let lease = Lease { _pin: pin, until: self.clock.now() + LEASE };
        self.transfer.leases.borrow_mut().insert((asked.reply_to, asked.request), lease);
        Message::Offer { head, lease_ms: LEASE_MS, pieces }
    }

    /// Extends a lease, unless it has ended: then the reader must fetch again.
    pub(crate) fn renew(&self, asked: &Envelope, lease: u64) {
        let until = self.clock.now() + LEASE;
        let key = (asked.reply_to, lease);
        let renewed = self.transfer.leases.borrow_mut().get_mut(&key).map(|lease| lease.until = until);
        let message = match renewed {
            Some(()) => Message::Renewed { lease_ms: LEASE_MS },
            None => Message::Refused {
                error: Error::new(ErrorKind::TimedOut, format!("the lease at node {} has ended", self.node)),
            },
        };
        self.answer(asked, message);
    }

    /// Ends leases that their reader does not need any more.
    pub(crate) fn release_leases(&self, reader: NodeId, requests: &[u64]) {
        let mut leases = self.transfer.leases.borrow_mut();
        for request in requests {
            leases.remove(&(reader, *request));
        }
    }
}

/// What a user is told of another user's private object.
pub(crate) fn not_visible(id: ObjectId, tenant: u32) -> Error {
    Error::new(
        ErrorKind::NotAllowed,
        format!("object {id} is private to the user who created it, and user {tenant} is another"),
    )
}
