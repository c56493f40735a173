//! *send*: the object comes in messages only. An object that fits one message comes as with *eager*.
//! For a longer object, the requester takes memory and says that it is ready, and the holder sends
//! part after part, copied into registered blocks and out of them. The window keeps the holder from
//! sending parts that find no block. A part out of order ends the attempt, and so does silence. An object
//! that is on disk, and for which its holder has no memory, comes in this way by any protocol: each part is
//! read when it is sent. The state is that of `Transfer`. Engine thread only.

use std::rc::Rc;

use bytes::Bytes;
use futures::channel::oneshot;
use futures::future::{Either, select};
use plasmon::digest::Digest;
use plasmon::{Error, ErrorKind, NodeId, Protocol, UsedProtocol};
use tracing::warn;

use super::failure::{Failure, STALLED};
use super::landing::Landing;
use super::lease::{Kept, Lease, Owed};
use super::pieces::PART_BYTES;
use super::record::{Arrived, Trace};
use crate::net::frame::Message;
use crate::object::Head;
use crate::transfer::Transfer;

/// Why an object comes in parts although that is not asked for.
const ON_DISK: &str = "its holder has it on disk and no memory for it";
/// Position of a part behind which no part comes, because the holder has given up. No object is so long.
const GIVEN_UP: u64 = u64::MAX;

/// An object that comes in parts.
pub(super) struct Incoming {
    landing: Rc<Landing>,
    /// Number of bytes of all parts.
    len: u64,
    received: u64,
    arrived: Arrived,
    whole: Option<oneshot::Sender<()>>,
}

/// The wait for an object that comes in parts. However the wait ends, no part is taken afterwards.
struct Arrival<'a> {
    transfer: &'a Transfer,
    key: (NodeId, u64),
}

impl Arrival<'_> {
    /// Returns when no part has come for a while. The lease shows that the holder lives, but only
    /// parts show that it sends them.
    async fn stalls(&self) -> Failure {
        let received = || self.transfer.incoming.borrow().get(&self.key).map(|object| object.received);
        loop {
            let before = received();
            self.transfer.kernel.clock.sleep(STALLED).await;
            if received() == before {
                return Failure::Holder(format!("no part of it came for {STALLED:?}"));
            }
        }
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.transfer.incoming.borrow_mut().remove(&self.key);
    }
}

/// Takes the parts of an object to memory of this node.
async fn take_parts(
    transfer: &Rc<Transfer>,
    head: &Head,
    lease: &Lease,
    trace: &mut Trace,
) -> Result<Rc<Landing>, Failure> {
    let _slot = transfer.slots.take(lease.holder).await;
    let landing = transfer.landing_of_messages(head, &trace.target, &trace.wanted).await?;
    trace.allocated();
    let (whole, done) = oneshot::channel();
    let key = (lease.holder, lease.request);
    let incoming = Incoming {
        landing: Rc::clone(&landing),
        len: head.len(),
        received: 0,
        arrived: trace.arrived(),
        whole: Some(whole),
    };
    transfer.incoming.borrow_mut().insert(key, incoming);
    // When this value is dropped, the entry does not own the memory any more.
    let arrival = Arrival { transfer, key };
    transfer.network.tell(lease.holder, Message::Ready { request: lease.request });
    match select(done, std::pin::pin!(arrival.stalls())).await {
        Either::Left((Ok(()), _)) => Ok(landing),
        Either::Left((Err(_), _)) => Err(Failure::Holder("it gave up, or sent parts out of order".into())),
        Either::Right((failure, _)) => Err(failure),
    }
}

impl Transfer {
    /// Takes an object that a holder will send in parts.
    pub(super) async fn take_stream(
        self: &Rc<Self>,
        head: Head,
        lease: Lease,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        if head.id != trace.id {
            return Err(Failure::Holder("it sent another object".into()));
        }
        let why = match self.kernel.config.protocol {
            Protocol::Send => "send is asked for",
            _ => ON_DISK,
        };
        trace.answered(lease.holder, UsedProtocol::Send, head.len(), why);
        let landing = lease.during(take_parts(self, &head, &lease, trace)).await?;
        let copied = landing.len();
        trace.copied(copied);
        trace.moved();
        self.records.count_copy(copied);
        self.land(head, landing, &trace.wanted).await
    }

    /// Takes a part of an object, or keeps it in the room of its request.
    pub(crate) fn take_part(&self, holder: NodeId, request: u64, at: u64, bytes: &Bytes) {
        let mut incoming = self.incoming.borrow_mut();
        let Some(object) = incoming.get_mut(&(holder, request)) else {
            if self.rooms.take(holder, request, at, bytes) {
                return;
            }
            // The rest of a transfer that was given up comes here as well, and so does a second answer.
            if !self.network.has_ended(request) {
                self.network.drop_frame(&format!("a part from node {holder} that nobody waits for"));
            }
            return;
        };
        let len = bytes.len() as u64;
        let fits = at == object.received && len <= object.len - object.received;
        if fits {
            object.landing.came_in_message(bytes);
        }
        if !fits || object.landing.write(at, bytes).is_err() {
            // The waiting task sees that the sender is gone.
            incoming.remove(&(holder, request));
            return;
        }
        object.received += len;
        object.arrived.add(len);
        if object.received == object.len
            && let Some(whole) = object.whole.take()
        {
            // A task that has given up needs no news.
            let _ = whole.send(());
        }
    }

    /// Sends a leased object, once, to its reader that is ready, as fast as the reader takes the parts.
    pub(crate) fn stream(self: &Rc<Self>, reader: NodeId, request: u64) {
        let key = (reader, request);
        let mut leases = self.leases.granted.borrow_mut();
        let Some(lease) = leases.get_mut(&key).filter(|lease| matches!(lease.owed, Owed::Parts)) else {
            self.network.drop_frame(&format!("node {reader} is ready for an object that it was not offered"));
            return;
        };
        lease.owed = Owed::Nothing;
        drop(leases);
        let transfer = Rc::clone(self);
        self.kernel.spawn(async move {
            let mut sent = (0, Digest::new());
            // The lease alone keeps the object: a reader that takes nothing does not keep it any longer.
            while let Some((len, bytes)) = transfer.part(&key, &mut sent).await {
                let at = sent.0;
                let count = bytes.len() as u64;
                if !transfer.network.tell(reader, Message::Part { request, at, bytes: bytes.into() }) {
                    return;
                }
                transfer.records.count(UsedProtocol::Send, |counters| counters.copied_bytes += count);
                transfer.records.count_copy(count);
                sent.0 += count;
                if sent.0 >= len {
                    return;
                }
                transfer.network.drained(reader).await;
            }
        });
    }

    /// Returns the length of a leased object, and its next part behind the bytes that were `sent`, of which a
    /// digest is made. `None` when the lease has ended.
    async fn part(&self, lease: &(NodeId, u64), (at, digest): &mut (u64, Digest)) -> Option<(u64, Vec<u8>)> {
        let (replica, promised) = match &self.leases.granted.borrow().get(lease)?.kept {
            Kept::OnDisk { replica, promised } => (Rc::clone(replica), *promised),
            kept => {
                let whole = kept.run()?;
                let mut bytes = vec![0; PART_BYTES.min((whole.len() - *at) as usize)];
                whole.read(*at, &mut bytes).expect("inside the object");
                return Some((whole.len(), bytes));
            }
        };
        let (id, len) = (replica.id(), replica.len());
        let part = PART_BYTES.min(len.saturating_sub(*at) as usize);
        let read = self.store.read_on_disk(&replica, *at, part).await.and_then(|bytes| {
            digest.add(&bytes);
            // The reader seals the object when it has the last part.
            if *at + part as u64 == len && digest.value() != promised {
                let text =
                    format!("object {id} is damaged: its bytes on disk are not those that were written");
                return Err(Error::new(ErrorKind::Damaged, text));
            }
            Ok(bytes)
        });
        match read {
            Ok(bytes) => Some((len, bytes)),
            Err(error) => {
                warn!(object = %id, node = %lease.0, %error, "an object is not sent any further from disk");
                self.leases.granted.borrow_mut().remove(lease);
                // The reader asks again, and is told.
                self.store.note_unreadable(&replica, error);
                let given_up = Message::Part { request: lease.1, at: GIVEN_UP, bytes: Bytes::new() };
                self.network.tell(lease.0, given_up);
                None
            }
        }
    }
}
