//! *eager*: the object comes inside a message. It takes one copy on each side and one round trip. Engine
//! thread only.

use std::rc::Rc;

use bytes::Bytes;

use super::failure::Failure;
use super::record::Trace;
use crate::net::frame::Message;
use crate::object::{Head, Pin};
use crate::transfer::Transfer;

impl Transfer {
    /// Makes the holder's answer to a fetch: the object, inside the message.
    pub(super) fn enclose(&self, pin: &Pin, head: Head, protocol: &str) -> Message {
        let mut bytes = vec![0; head.len() as usize];
        pin.run().read(0, &mut bytes).expect("as long as its object");
        self.records.count_served(protocol, &head);
        self.records.count(protocol, |count| count.copied_bytes += head.len());
        let mut counters = self.records.counters.borrow_mut();
        counters.eager_served += 1;
        counters.cpu_copied_bytes += head.len();
        Message::Eager { head, bytes: bytes.into() }
    }

    /// Takes an object that came inside a message.
    pub(super) async fn take_eager(
        self: &Rc<Self>,
        head: Head,
        bytes: &Bytes,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        if head.id != trace.id || bytes.len() as u64 != head.len() {
            return Err(Failure::Holder("it sent another object or another length".into()));
        }
        let landing = self.landing(&head, &trace.target).await?;
        trace.allocated();
        let copied = landing.write(0, bytes).map_err(|error| Failure::Holder(error.to_string()))?;
        trace.copied(copied);
        trace.moved();
        let mut counters = self.records.counters.borrow_mut();
        counters.eager_fetched += 1;
        counters.eager_fetched_bytes += copied;
        counters.cpu_copied_bytes += copied;
        drop(counters);
        self.land(head, landing)
    }
}
