//! The holder's side: answering a fetch. Engine thread only; nothing waits.

use std::rc::Rc;

use plasmon::{Error, ErrorKind, NodeId, ObjectId, Protocol};

use super::lease::LEASE_MS;
use crate::cluster::{Envelope, Location, Message, Wish};
use crate::engine::Core;
use crate::memory::{Extent, Piece};
use crate::object::{Pin, Replica};

impl Core {
    /// Answers a fetch that came to this node as a holder. `others` hold the object too.
    pub(crate) fn serve(self: &Rc<Self>, asked: &Envelope, id: ObjectId, wish: Wish, others: &[NodeId]) {
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
                Some(pin) => self.offer(asked, pin, wish, others),
                None => return self.serve_from_disk(asked.clone(), replica, wish, others.to_vec()),
            },
        };
        self.answer(asked, message);
    }

    /// Answers when the object is in memory again.
    fn serve_from_disk(
        self: &Rc<Self>,
        asked: Envelope,
        replica: Rc<Replica>,
        wish: Wish,
        others: Vec<NodeId>,
    ) {
        let core = Rc::clone(self);
        self.spawn(async move {
            match core.bring_back(&replica).await {
                Ok(()) => core.serve(&asked, replica.head.id, wish, &others),
                Err(error) => core.answer(&asked, Message::Refused { error }),
            }
        });
    }

    /// The object itself, or how it can be had and for how long.
    fn offer(&self, asked: &Envelope, pin: Pin, wish: Wish, others: &[NodeId]) -> Message {
        let fits = Message::fits_eager(&pin.head);
        match wish.protocol {
            Protocol::Auto if fits && pin.head.len() <= u64::from(wish.eager_max) => {
                self.whole(&pin, "eager")
            }
            Protocol::Send if fits => self.whole(&pin, "send"),
            Protocol::Auto | Protocol::Read => self.location(asked, pin, others),
            Protocol::Send => {
                self.count_served("send", &pin);
                let head = pin.head.clone();
                self.grant_lease(asked, pin, Vec::new());
                Message::Stream { head, lease_ms: LEASE_MS }
            }
            Protocol::ReadRegister => self.registered(asked, pin),
            Protocol::Socket => Message::Refused { error: not_served("protocol socket") },
        }
    }

    fn count_served(&self, protocol: &str, pin: &Pin) {
        self.transfer.count(protocol, |count| {
            count.served += 1;
            count.served_bytes += pin.head.len();
        });
    }

    /// The object, inside the message.
    fn whole(&self, pin: &Pin, protocol: &str) -> Message {
        let head = pin.head.clone();
        let mut bytes = vec![0; head.len() as usize];
        pin.extent.read(0, &mut bytes).expect("a replica's extent has its length");
        self.count_served(protocol, pin);
        self.transfer.count(protocol, |count| count.copied_bytes += head.len());
        let mut counters = self.transfer.counters.borrow_mut();
        counters.eager_served += 1;
        counters.cpu_copied_bytes += head.len();
        Message::Eager { head, bytes: bytes.into() }
    }

    /// Where it lies.
    fn location(&self, asked: &Envelope, pin: Pin, others: &[NodeId]) -> Message {
        self.count_served("read", &pin);
        self.transfer.counters.borrow_mut().rendezvous_served += 1;
        let pieces = self.locate(&pin.extent);
        let head = pin.head.clone();
        // One that was taken out of the table and is pinned by somebody has none.
        let mut objects = self.objects.borrow_mut();
        let stamp = objects.has(pin.replica()).then(|| objects.stamps.of(head.id));
        drop(objects);
        self.grant_lease(asked, pin, Vec::new());
        Message::Offer { head, lease_ms: LEASE_MS, pieces, stamp, others: others.to_vec() }
    }

    /// Where an extent lies, for peers.
    pub(super) fn locate(&self, extent: &Extent) -> Vec<Location> {
        let arena = self.arena.borrow();
        let locate = |piece: Piece| Location {
            segment: piece.segment,
            version: arena.version(piece.segment),
            offset: piece.offset,
            len: piece.len,
        };
        extent.pieces().map(locate).collect()
    }

    /// Where it lies, registered for this reader alone.
    fn registered(&self, asked: &Envelope, pin: Pin) -> Message {
        let regions = match self.register_extent(&pin.extent) {
            Ok(regions) => regions,
            Err(error) => {
                let text = format!("object {} cannot be registered: {error}", pin.head.id);
                return Message::Refused { error: Error::new(ErrorKind::Internal, text) };
            }
        };
        self.count_served("read-register", &pin);
        self.transfer.count("read-register", |count| count.registrations += regions.len() as u64);
        self.transfer.counters.borrow_mut().rendezvous_served += 1;
        let (head, remote) = (pin.head.clone(), regions.iter().map(|region| region.remote()).collect());
        self.grant_lease(asked, pin, regions);
        Message::Registered { head, lease_ms: LEASE_MS, regions: remote }
    }
}

/// What a peer is told that asks for what there is not.
pub(super) fn not_served(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("not served: {what}"))
}

/// What a user is told of another user's private object.
pub(crate) fn not_visible(id: ObjectId, tenant: u32) -> Error {
    Error::new(
        ErrorKind::NotAllowed,
        format!("object {id} is private to the user who created it, and user {tenant} is another"),
    )
}
