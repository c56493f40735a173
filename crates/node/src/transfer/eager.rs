//! *eager*: the object comes inside a message. One copy on each side, one round trip. Engine thread only.

use std::rc::Rc;

use bytes::Bytes;
use plasmon::ObjectId;

use super::Failure;
use super::record::Trace;
use crate::engine::Core;
use crate::object::Head;

impl Core {
    /// Takes an object that came inside a message.
    pub(super) async fn take_eager(
        self: &Rc<Self>,
        id: ObjectId,
        head: Head,
        bytes: &Bytes,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        if head.id != id || bytes.len() as u64 != head.len() {
            return Err(Failure::Holder("it sent another object or another length".into()));
        }
        let extent = self.room_for(&head).await?;
        trace.allocated();
        extent.write(0, bytes).map_err(|error| Failure::Holder(error.to_string()))?;
        trace.copied(head.len());
        trace.moved();
        let mut counters = self.transfer.counters.borrow_mut();
        counters.eager_fetched += 1;
        counters.eager_fetched_bytes += head.len();
        counters.cpu_copied_bytes += head.len();
        drop(counters);
        self.seal_fetched(head, extent)
    }
}
