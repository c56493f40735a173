//! The holder's side: answering a fetch. Engine thread only; nothing waits.

use std::rc::Rc;

use plasmon::{Error, ErrorKind, NodeId, ObjectId, Protocol};

use super::lease::{LEASE_MS, Owed};
use crate::cluster::{Envelope, Location, Message, Stage, Wish};
use crate::engine::Core;
use crate::memory::{Piece, Run};
use crate::object::{Head, Pin, Replica};

impl Core {
    /// Answers a fetch that came to this node as a holder. `others` hold the object too.
    pub(crate) fn serve(self: &Rc<Self>, asked: &Envelope, id: ObjectId, wish: Wish, others: &[NodeId]) {
        if self.has_lease(asked) {
            let why = format!("a fetch of {} for a request that node {} has a lease for", id, asked.reply_to);
            return self.network.drop_frame(&why);
        }
        let replica = self.objects.borrow().get(&id).cloned();
        let message = match replica {
            None if matches!(asked.message, Message::Fetch { stage: Stage::Relayed, .. }) => {
                return self.relay_to(asked, id);
            }
            None => {
                if matches!(asked.message, Message::Fetch { stage: Stage::Forwarded, .. }) {
                    // Most likely it was just deleted, and the directory is about to hear of it. Should it not,
                    // it hears it now; the asker asks it again. Who asks without the directory says nothing
                    // of what that knows: that all have lost it, perhaps.
                    self.unpublish(id, true);
                }
                let text = format!("node {} does not hold object {id} any more", self.node);
                Message::Refused { error: Error::new(ErrorKind::NotFound, text) }
            }
            Some(replica) if !replica.visible_to(asked.tenant) => {
                Message::Refused { error: not_visible(id, asked.tenant) }
            }
            Some(replica) => match Pin::new(&replica) {
                Some(pin) => self.offer(asked, pin, wish, others),
                None => return self.serve_from_disk(asked.clone(), replica, wish, others.to_vec()),
            },
        };
        let whole = matches!(
            (&asked.message, &message),
            (Message::Fetch { stage: Stage::Relayed, .. }, Message::Offer { .. })
        );
        self.answer(asked, message);
        if whole {
            self.pass_whole(asked);
        }
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
                Ok(()) => core.serve(&asked, replica.id(), wish, &others),
                Err(error) => core.answer(&asked, Message::Refused { error }),
            }
        });
    }

    /// The object itself, or how it can be had and for how long.
    fn offer(self: &Rc<Self>, asked: &Envelope, pin: Pin, wish: Wish, others: &[NodeId]) -> Message {
        let head = pin.head();
        let fits = Message::fits_eager(&head);
        match wish.protocol {
            Protocol::Auto if fits && head.len() <= u64::from(wish.eager_max) => {
                self.whole(&pin, head, "eager")
            }
            Protocol::Send if fits => self.whole(&pin, head, "send"),
            Protocol::Auto | Protocol::Read => self.location(asked, pin, head, others),
            Protocol::Send => {
                self.count_served("send", &head);
                self.grant_lease(asked, pin, Owed::Parts);
                Message::Stream { head, lease_ms: LEASE_MS }
            }
            Protocol::ReadRegister => self.registered(asked, pin, head),
            Protocol::Socket => self.dial(asked, pin, head),
        }
    }

    pub(super) fn count_served(&self, protocol: &str, head: &Head) {
        self.transfer.count(protocol, |count| {
            count.served += 1;
            count.served_bytes += head.len();
        });
    }

    /// The object, inside the message.
    fn whole(&self, pin: &Pin, head: Head, protocol: &str) -> Message {
        let mut bytes = vec![0; head.len() as usize];
        pin.run().read(0, &mut bytes).expect("as long as its object");
        self.count_served(protocol, &head);
        self.transfer.count(protocol, |count| count.copied_bytes += head.len());
        let mut counters = self.transfer.counters.borrow_mut();
        counters.eager_served += 1;
        counters.cpu_copied_bytes += head.len();
        Message::Eager { head, bytes: bytes.into() }
    }

    /// Where it lies.
    fn location(&self, asked: &Envelope, pin: Pin, head: Head, others: &[NodeId]) -> Message {
        self.count_served("read", &head);
        self.transfer.counters.borrow_mut().rendezvous_served += 1;
        let pieces = self.locate(&pin.run());
        // One that was taken out of the table and is pinned by somebody has none.
        let objects = self.objects.borrow();
        let stamp = objects.has(pin.replica()).then(|| objects.stamps.borrow_mut().of(head.id));
        drop(objects);
        self.grant_lease(asked, pin, Owed::Nothing);
        Message::Offer { head, lease_ms: LEASE_MS, pieces, stamp, others: others.to_vec() }
    }

    /// Where bytes lie, for peers.
    pub(super) fn locate(&self, run: &Run) -> Vec<Location> {
        let arena = self.arena.borrow();
        let locate = |piece: Piece| Location {
            segment: piece.segment,
            version: arena.version(piece.segment),
            offset: piece.offset,
            len: piece.len,
        };
        run.pieces().map(locate).collect()
    }

    /// Where it lies, registered for this reader alone.
    fn registered(&self, asked: &Envelope, pin: Pin, head: Head) -> Message {
        let regions = match self.register_run(self.network.fabric_to(asked.from), &pin.run()) {
            Ok(regions) => regions,
            Err(error) => {
                let text = format!("object {} cannot be registered: {error}", head.id);
                return Message::Refused { error: Error::new(ErrorKind::Internal, text) };
            }
        };
        self.count_served("read-register", &head);
        self.transfer.count("read-register", |count| count.registrations += regions.len() as u64);
        self.transfer.counters.borrow_mut().rendezvous_served += 1;
        let remote = regions.iter().map(|region| region.remote()).collect();
        self.grant_lease(asked, pin, Owed::Regions { _kept: regions });
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
