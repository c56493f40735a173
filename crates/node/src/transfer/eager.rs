//! *eager*: the object comes inside the answer, in one round trip, with one copy on each side. If
//! the object does not fit the message, all pieces but the last come in messages right before. Owns
//! no state. Engine thread only.

use std::rc::Rc;

use bytes::Bytes;
use plasmon::UsedProtocol;

use super::failure::Failure;
use super::pieces::PART_BYTES;
use super::record::Trace;
use crate::memory::Run;
use crate::net::frame::{Envelope, Message};
use crate::object::{Head, Pin};
use crate::transfer::Transfer;

impl Transfer {
    /// Makes the holder's answer to a fetch: the object, inside the message and those before it.
    pub(super) fn enclose(&self, asked: &Envelope, pin: &Pin, head: Head, protocol: UsedProtocol) -> Message {
        self.count_enclosed(protocol, &head);
        self.in_messages(asked, head, &pin.run())
    }

    /// Counts an object that this node sends in messages.
    pub(super) fn count_enclosed(&self, protocol: UsedProtocol, head: &Head) {
        self.records.count_served(protocol, head);
        self.records.count(protocol, |count| count.copied_bytes += head.len());
        let mut counters = self.records.counters.borrow_mut();
        counters.eager_served += 1;
        counters.cpu_copied_bytes += head.len();
    }

    /// Sends an asker the first bytes of a run in messages, as many as an object with this head has.
    /// Returns the answer, which brings the last of these bytes.
    pub(super) fn in_messages(&self, asked: &Envelope, head: Head, run: &Run) -> Message {
        let piece = |at: u64, len: u64| {
            let mut bytes = vec![0; len as usize];
            run.read(at, &mut bytes).expect("as long as its object");
            Bytes::from(bytes)
        };
        let (len, room, part) = (head.len(), Message::eager_room(&head), PART_BYTES as u64);
        let mut at = 0;
        while len - at > room {
            let bytes = piece(at, part.min(len - at));
            // An asker that is gone gets no answer either.
            self.network.tell(asked.reply_to, Message::Part { request: asked.request, at, bytes });
            at += part.min(len - at);
        }
        Message::Eager { head, bytes: piece(at, len - at) }
    }

    /// Takes an object that came in messages, whose pieces are in order.
    pub(super) async fn take_eager(
        self: &Rc<Self>,
        head: Head,
        pieces: &[Bytes],
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        if head.id != trace.id || pieces.iter().map(|piece| piece.len() as u64).sum::<u64>() != head.len() {
            return Err(Failure::Holder("it sent another object, or not all of it came".into()));
        }
        let landing = self.landing_of_messages(&head, &trace.target, &trace.wanted).await?;
        trace.allocated();
        let (mut at, mut copied) = (0, 0);
        for piece in pieces {
            landing.came_in_message(piece);
            copied += landing.write(at, piece).map_err(|error| Failure::Holder(error.to_string()))?;
            at += piece.len() as u64;
        }
        trace.copied(copied);
        trace.moved();
        self.records.count_eager(copied);
        self.land(head, landing, &trace.wanted).await
    }
}
