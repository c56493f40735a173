//! *eager*: the object comes inside a message. One copy on each side, one round trip. Engine thread only.

use std::rc::Rc;

use bytes::Bytes;
use plasmon::ObjectId;

use super::Failure;
use super::landing::Target;
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
        target: &Target,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        if head.id != id || bytes.len() as u64 != head.len() {
            return Err(Failure::Holder("it sent another object or another length".into()));
        }
        let landing = self.landing(&head, target).await?;
        trace.allocated();
        // Metadata is behind the data, and only a replica has room for it.
        let bytes = &bytes[..landing.len() as usize];
        landing.write(bytes).map_err(|error| Failure::Holder(error.to_string()))?;
        trace.copied(bytes.len() as u64);
        trace.moved();
        let mut counters = self.transfer.counters.borrow_mut();
        counters.eager_fetched += 1;
        counters.eager_fetched_bytes += bytes.len() as u64;
        counters.cpu_copied_bytes += bytes.len() as u64;
        drop(counters);
        self.land(&head, landing, target)
    }
}
