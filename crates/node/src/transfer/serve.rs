//! The holder's side of a fetch: answering by the protocol that the asker wishes. Owns no state.
//! Engine thread only.
//!
//! Invariant: a request is answered once, and has one lease at most.

use std::rc::Rc;

use plasmon::{Error, ErrorKind, NodeId, ObjectId, Protocol, UsedProtocol};

use super::lease::{Kept, LEASE_MS, Owed};
use super::pieces::locate;
use super::rooms::MAX_MESSAGES_BYTES;
use crate::net::frame::{Envelope, Location, Message, Stage, Wish, Withdrawal};
use crate::object::{Head, Pin, Replica, Stamp, not_visible};
use crate::transfer::Transfer;

impl Transfer {
    /// Answers a fetch that came to this node as a holder. The nodes `others` hold the object too.
    pub(crate) fn serve(self: &Rc<Self>, asked: &Envelope, id: ObjectId, wish: Wish, others: &[NodeId]) {
        if self.leases.has(asked) || self.pushes.has(asked) {
            let why = format!("a fetch of {} for a request that node {} has a lease for", id, asked.reply_to);
            return self.network.drop_frame(&why);
        }
        if let Message::Fetch { life, .. } = asked.message
            && self.directory.writer.withholds(&id, life)
        {
            return serve_when_switched(self, asked.clone(), (id, life), wish, others.to_vec());
        }
        let replica = self.store.objects.borrow().get(&id).cloned();
        let message = match replica {
            Some(_) if self.cluster.withholds() => {
                let text = format!(
                    "node {} has just become a member again, and object {id} may have been deleted",
                    self.kernel.node
                );
                Message::Refused { error: Error::new(ErrorKind::NotFound, text) }
            }
            None if matches!(asked.message, Message::Fetch { stage: Stage::Relayed, .. }) => {
                return self.relays.on_fetch(asked, id);
            }
            None => {
                if matches!(asked.message, Message::Fetch { stage: Stage::Forwarded, .. }) {
                    // Most likely the object was just deleted, and the directory is about to learn of the
                    // deletion. If not, the directory learns now that the object is not here, and the
                    // asker asks the directory again. A holder that was asked without the directory
                    // cannot say what the directory knows, such as that all nodes have lost the object.
                    self.store.unpublish(id, Withdrawal::Deleted);
                }
                let text = format!("node {} does not hold object {id} any more", self.kernel.node);
                Message::Refused { error: Error::new(ErrorKind::NotFound, text) }
            }
            Some(replica)
                if replica.is_guarded() && !self.directory.guards.lets_go(asked, &id, replica.life) =>
            {
                let text = format!("object {id} is being replaced; its first keeper says who gives it");
                Message::Refused { error: Error::new(ErrorKind::NotFound, text) }
            }
            Some(replica) if !replica.visible_to(asked.user) => {
                Message::Refused { error: not_visible(id, asked.user) }
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
        self.network.answer(asked, message);
        if whole {
            self.relays.pass_whole(asked);
        }
    }

    /// Answers a fetch of an object that is on disk: when the object is back in memory, or, if this node has
    /// no memory for it, by sending it from the disk, since the asker may have memory.
    fn serve_from_disk(
        self: &Rc<Self>,
        asked: Envelope,
        replica: Rc<Replica>,
        wish: Wish,
        others: Vec<NodeId>,
    ) {
        let transfer = Rc::clone(self);
        self.kernel.spawn(async move {
            let message = match transfer.store.bring_back_at_once(&replica).await {
                Ok(()) => return transfer.serve(&asked, replica.id(), wish, &others),
                Err(error) if matches!(error.kind(), ErrorKind::Full | ErrorKind::TooLarge) => {
                    match transfer.store.promised_on_disk(&replica).await {
                        Ok(Some(promised)) => stream_of_disk(&transfer, &asked, &replica, promised),
                        // The object was deleted, or is another one by now.
                        Ok(None) => return transfer.serve(&asked, replica.id(), wish, &others),
                        Err(error) => Message::Refused { error },
                    }
                }
                Err(error) => Message::Refused { error },
            };
            transfer.network.answer(&asked, message);
        });
    }

    /// Makes the answer to a fetch: the object itself, or how and for how long the object can be read.
    fn offer(self: &Rc<Self>, asked: &Envelope, pin: Pin, wish: Wish, others: &[NodeId]) -> Message {
        let head = pin.head();
        let fits = head.len() <= Message::eager_room(&head);
        let eager = head.len() <= u64::from(wish.eager_max.min(MAX_MESSAGES_BYTES));
        match wish.protocol {
            Protocol::Auto if eager && fits => self.enclose(asked, &pin, head, UsedProtocol::Eager),
            Protocol::Send if fits => self.enclose(asked, &pin, head, UsedProtocol::Send),
            Protocol::Auto => match self.push_object(asked, &pin, &head, wish.push_max) {
                Some(pushed) => pushed,
                None if eager && self.network.takes_more(asked.reply_to) => {
                    self.enclose(asked, &pin, head, UsedProtocol::Eager)
                }
                None => self.location(asked, pin, head, others),
            },
            Protocol::Read => self.location(asked, pin, head, others),
            Protocol::Send => {
                self.records.count_served(UsedProtocol::Send, &head);
                self.leases.grant(asked, pin, Owed::Parts);
                Message::Stream { head, lease_ms: LEASE_MS }
            }
            Protocol::ReadRegister => self.registered(asked, pin, head),
            Protocol::Socket => self.dial(asked, pin, head),
        }
    }

    /// Makes the answer that says that an object of at most `most` bytes was written to the asker's
    /// window. `None` if the object is longer, or if the window has no room for it.
    fn push_object(&self, asked: &Envelope, pin: &Pin, head: &Head, most: u32) -> Option<Message> {
        if head.len() > u64::from(most) {
            return None;
        }
        let kept = Rc::new(Pin::new(pin.replica())?);
        let message = self.push(asked, head, (&pin.run(), kept), || place(self, pin))?;
        self.records.count_served(UsedProtocol::Push, head);
        Some(message)
    }

    /// Makes an offer of the place of an object, where the asker reads it.
    fn location(&self, asked: &Envelope, pin: Pin, head: Head, others: &[NodeId]) -> Message {
        self.records.count_served(UsedProtocol::Read, &head);
        self.records.counters.borrow_mut().rendezvous_served += 1;
        let (pieces, stamp) = place(self, &pin);
        self.leases.grant(asked, pin, Owed::Nothing);
        Message::Offer { head, lease_ms: LEASE_MS, pieces, stamp, others: others.to_vec() }
    }

    /// Answers the nodes that waited for an object that this node was ordered to have. The object
    /// is here, or will not be.
    pub(crate) fn serve_waiting(self: &Rc<Self>, id: ObjectId) {
        self.serve_at_last(self.relays.end_waiting(&id));
    }

    /// Answers fetches that have waited, with the object or with a refusal.
    fn serve_at_last(self: &Rc<Self>, waiting: Vec<Envelope>) {
        for asked in waiting {
            if let Message::Fetch { id, wish, ref others, .. } = asked.message {
                // An object that is not here by now is refused.
                let here = self.store.objects.borrow().get(&id).is_some();
                let stage = if here { Stage::Relayed } else { Stage::Direct };
                let message = Message::Fetch { id, life: 0, stage, wish, others: others.clone() };
                self.serve(&Envelope { message, ..asked }, id, wish, &[]);
            }
        }
    }

    /// Answers the nodes that waited for an object for too long; called regularly.
    pub(crate) fn tend_relays(self: &Rc<Self>) {
        let overdue = self.relays.overdue();
        self.serve_at_last(overdue);
    }
}

/// Answers a fetch of an object of this node when it is known whether it was switched to.
fn serve_when_switched(
    transfer: &Rc<Transfer>,
    asked: Envelope,
    (id, life): (ObjectId, u64),
    wish: Wish,
    others: Vec<NodeId>,
) {
    let serving = Rc::clone(transfer);
    transfer.kernel.spawn(async move {
        serving.directory.writer.until_known(id, life).await;
        serving.serve(&asked, id, wish, &others);
    });
}

/// Makes the answer that says that an object comes in parts, which are read from the disk.
fn stream_of_disk(transfer: &Transfer, asked: &Envelope, replica: &Rc<Replica>, promised: u64) -> Message {
    let head = replica.head();
    transfer.records.count_served(UsedProtocol::Send, &head);
    let kept = Kept::OnDisk { replica: Rc::clone(replica), promised };
    transfer.leases.keep(asked, kept, Owed::Parts);
    Message::Stream { head, lease_ms: LEASE_MS }
}

/// Returns where an object lies, and its stamp. An object that was removed from the table and is still pinned
/// has no stamp.
fn place(transfer: &Transfer, pin: &Pin) -> (Vec<Location>, Option<Stamp>) {
    let pieces = locate(&transfer.store, &pin.run());
    let objects = transfer.store.objects.borrow();
    let stamp = objects.has(pin.replica()).then(|| objects.stamps.borrow_mut().of(pin.replica().id()));
    (pieces, stamp)
}
