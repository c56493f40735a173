//! *send*: messages only. What fits one comes as *eager* does; for the rest the requester makes room, says that
//! it is ready, and the holder sends part after part, copied into registered blocks and out of them. Credits
//! keep the holder from sending what finds no block. Engine thread only.

use std::rc::Rc;

use bytes::Bytes;
use futures::channel::oneshot;
use futures::future::{Either, select};
use plasmon::{NodeId, ObjectId};

use super::Failure;
use super::lease::Lease;
use super::record::Trace;
use crate::cluster::{FRAME_MAX, HEADER_LEN, Message};
use crate::engine::Core;
use crate::memory::Extent;
use crate::object::Head;

/// Bytes of a part: what fits a message beside its header and what says where they belong.
const PART: usize = FRAME_MAX - HEADER_LEN - 2 * size_of::<u64>() - size_of::<u32>();

/// An object that comes in parts.
pub(super) struct Incoming {
    extent: Rc<Extent>,
    received: u64,
    whole: Option<oneshot::Sender<()>>,
}

impl Core {
    /// Takes an object that a holder will send in parts.
    pub(super) async fn take_stream(
        self: &Rc<Self>,
        id: ObjectId,
        head: Head,
        lease: Lease,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        if head.id != id {
            return Err(Failure::Holder("it sent another object".into()));
        }
        let extent = self.room_for(&head).await?;
        trace.allocated();
        let (whole, done) = oneshot::channel();
        let key = (lease.holder, lease.request);
        let incoming = Incoming { extent: Rc::clone(&extent), received: 0, whole: Some(whole) };
        self.transfer.incoming.borrow_mut().insert(key, incoming);
        self.tell(lease.holder, Message::Ready { request: lease.request });
        let ended = match select(done, std::pin::pin!(lease.keep())).await {
            Either::Left((Ok(()), _)) => Ok(()),
            Either::Left((Err(_), _)) => Err(Failure::Holder("it sent parts out of order".into())),
            Either::Right((failure, _)) => Err(failure),
        };
        self.transfer.incoming.borrow_mut().remove(&key);
        ended?;
        trace.copied(head.len());
        trace.moved();
        self.transfer.count_copy(head.len());
        self.seal_fetched(head, extent)
    }

    /// Takes a part.
    pub(crate) fn take_part(&self, holder: NodeId, request: u64, at: u64, bytes: &Bytes) {
        let mut incoming = self.transfer.incoming.borrow_mut();
        let Some(object) = incoming.get_mut(&(holder, request)) else { return };
        if at != object.received || object.extent.write(at, bytes).is_err() {
            // Whoever waits sees that the sender is gone.
            incoming.remove(&(holder, request));
            return;
        }
        object.received += bytes.len() as u64;
        if object.received == object.extent.len()
            && let Some(whole) = object.whole.take()
        {
            // Whoever has given up needs no news.
            let _ = whole.send(());
        }
    }

    /// The reader of a lease is ready: sends it the object, as fast as it takes it.
    pub(crate) fn stream(self: &Rc<Self>, reader: NodeId, request: u64) {
        let core = Rc::clone(self);
        self.spawn(async move {
            let key = (reader, request);
            let lease = core.transfer.leases.borrow().get(&key).map(|lease| Rc::clone(&lease.kept));
            let Some(kept) = lease else { return };
            let whole = kept.run();
            let mut at = 0;
            loop {
                let mut bytes = vec![0; PART.min((whole.len() - at) as usize)];
                whole.read(at, &mut bytes).expect("inside the object");
                let len = bytes.len() as u64;
                if !core.tell(reader, Message::Part { request, at, bytes: bytes.into() }) {
                    return;
                }
                core.transfer.count("send", |count| count.copied_bytes += len);
                core.transfer.count_copy(len);
                at += len;
                if at >= whole.len() {
                    return;
                }
                core.network.drained(reader).await;
                if !core.transfer.leases.borrow().contains_key(&key) {
                    return;
                }
            }
        });
    }
}
