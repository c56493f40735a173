//! Short objects in batches: those that several fit a message are asked for and sent together. Engine thread
//! only.
//!
//! A get of many objects first brings the short ones in this way: one frame to each keeper, one from there to
//! each holder, and answers that are filled to the length of a message. What is not brought so (it is longer,
//! nobody holds it, a frame was lost, it is damaged) is fetched afterwards like any other object, so nothing
//! depends on this.
//!
//! Invariant: an answer brings objects that were asked for, each once. So what is kept of answers that nobody
//! has looked at is bounded.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use plasmon::{NodeId, ObjectId, Protocol};

use super::comparing::Wanted;
use super::failure::Failure;
use super::fetch::WeakFetch;
use super::landing::Target;
use super::record::Trace;
use crate::directory::arrivals::{Noted, Place};
use crate::kernel::random::{HashMap, HashSet};
use crate::net::frame::{Envelope, FRAME_MAX, HEADER_LEN, MAX_ENTRIES, Message, Whole};
use crate::object::{Head, Pin};
use crate::transfer::Transfer;

/// Number of bytes up to which an object is short.
const SHORT_BYTES: u64 = 4 << 10;
/// Smallest number of objects that are asked for together.
const LEAST: usize = 4;
/// How long answers may stay away before the rest is fetched one by one.
const PATIENCE: Duration = Duration::from_millis(50);
/// Number of bytes of a message that objects may take, beside the request and the lengths of the lists.
const ROOM: usize = FRAME_MAX - HEADER_LEN - size_of::<u64>() - 2 * size_of::<u32>();
/// Number of bytes that an object takes in a message beside its name and its bytes, at most.
const WHOLE_BYTES: usize = 96;

/// The batches that wait for answers, by the numbers of their requests.
#[derive(Default)]
pub(super) struct Batches {
    open: RefCell<HashMap<u64, Open>>,
    next: Cell<u64>,
}

struct Open {
    /// Number of objects that no answer has named yet.
    left: usize,
    answers: UnboundedSender<Answer>,
}

/// What a node says of objects of a batch.
struct Answer {
    from: NodeId,
    objects: Vec<Whole>,
    missing: Vec<ObjectId>,
}

/// A batch that waits for answers, until this is dropped.
struct Batch {
    batches: Rc<Batches>,
    request: u64,
    answers: UnboundedReceiver<Answer>,
}

impl Batch {
    fn open(batches: &Rc<Batches>, left: usize) -> Self {
        let request = batches.next.get();
        batches.next.set(request + 1);
        let (sender, answers) = unbounded();
        batches.open.borrow_mut().insert(request, Open { left, answers: sender });
        Self { batches: Rc::clone(batches), request, answers }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.batches.open.borrow_mut().remove(&self.request);
    }
}

impl Batches {
    /// Whether there was a batch of this number, and nobody waits for its answers any more.
    fn has_ended(&self, request: u64) -> bool {
        request < self.next.get() && !self.open.borrow().contains_key(&request)
    }

    /// Takes an answer; `false` if it says more than was asked, or nobody waits for it.
    fn take(&self, request: u64, answer: Answer) -> bool {
        let mut open = self.open.borrow_mut();
        let Some(batch) = open.get_mut(&request) else { return false };
        let named = answer.objects.len() + answer.missing.len();
        if named == 0 || named > batch.left {
            return false;
        }
        batch.left -= named;
        batch.answers.unbounded_send(answer).is_ok()
    }
}

impl Transfer {
    /// Brings those of the objects here that are short and sealed, if there are several. It fails in silence:
    /// what is not here afterwards has to be fetched. `verify` is that of [`Transfer::fetch`].
    pub(crate) async fn bring_short(self: &Rc<Self>, ids: &[ObjectId], tenant: u32, verify: bool) {
        if ids.len() < LEAST
            || self.kernel.config.protocol != Protocol::Auto
            || self.cluster.solo()
            || self.cluster.fenced()
            || self.cluster.withholds()
        {
            return;
        }
        let mut wanted: HashSet<ObjectId> =
            ids.iter().filter(|id| may_be_short(self, id, tenant)).copied().collect();
        if wanted.len() < LEAST {
            return;
        }
        let _noted: Vec<_> = wanted.iter().map(|id| Noted::begin(&self.directory.arrivals, *id)).collect();
        let mut batch = Batch::open(&self.batches, wanted.len());
        // In the order of the ids, so that the same ids make the same frames.
        ask_for_short(self, ids.iter().filter(|id| wanted.contains(*id)), batch.request, tenant);
        let compare = Wanted::new(Cell::new(verify));
        while !wanted.is_empty() {
            let due = Some(self.kernel.clock.now() + PATIENCE);
            let Some(Some(answer)) = self.kernel.clock.bounded(due, batch.answers.next()).await else {
                return;
            };
            for Whole { head, bytes } in answer.objects {
                if wanted.remove(&head.id) {
                    take_short(self, answer.from, (head, bytes), tenant, &compare).await;
                }
            }
            answer.missing.iter().for_each(|id| _ = wanted.remove(id));
        }
    }

    /// Takes an answer to a batch of this node's.
    pub(super) fn on_short(&self, from: NodeId, request: u64, objects: &[Whole], missing: &[ObjectId]) {
        let answer = Answer { from, objects: objects.to_vec(), missing: missing.to_vec() };
        if !self.batches.take(request, answer) && !self.batches.has_ended(request) {
            self.network.drop_frame(&format!("objects from node {from} that nobody waits for"));
        }
    }

    /// Answers a fetch of many objects that came to this node as a holder: with those that are short.
    pub(super) fn serve_short(&self, asked: &Envelope, ids: &[ObjectId]) {
        // What a slow asker has no room for is not brought so.
        let gives = || !self.cluster.withholds() && self.network.takes_more(asked.reply_to);
        let (mut missing, mut objects, mut room) = (Vec::new(), Vec::new(), ROOM);
        for id in ids {
            let Some(whole) = gives().then(|| short(self, id, asked.tenant)).flatten() else {
                missing.push(*id);
                continue;
            };
            let len = WHOLE_BYTES + whole.head.name.len() + whole.bytes.len();
            if len > room {
                tell_short(self, asked, std::mem::take(&mut objects), Vec::new());
                room = ROOM;
            }
            room -= len;
            objects.push(whole);
        }
        if !objects.is_empty() {
            tell_short(self, asked, objects, Vec::new());
        }
        if !missing.is_empty() {
            tell_short(self, asked, Vec::new(), missing);
        }
    }
}

/// Whether an object that is not here may be asked for in a batch.
fn may_be_short(transfer: &Transfer, id: &ObjectId, tenant: u32) -> bool {
    let is_known_as_long = |place: &Place| place.at.is_some();
    let is_coming =
        |(fetch, _): &(WeakFetch, Wanted)| fetch.upgrade().is_some_and(|fetch| fetch.peek().is_none());
    transfer.store.objects.borrow().conflict(id).is_none()
        && !transfer.fetches.borrow().get(&(*id, tenant)).is_some_and(is_coming)
        && !transfer.directory.arrivals.known.borrow().peek(id).is_some_and(is_known_as_long)
}

/// Asks the holders that are known, and the keepers of the other objects.
fn ask_for_short<'a>(
    transfer: &Transfer,
    ids: impl Iterator<Item = &'a ObjectId>,
    request: u64,
    tenant: u32,
) {
    let now = transfer.kernel.clock.now();
    let mut asked: Vec<((NodeId, bool), Vec<ObjectId>)> = Vec::new();
    for id in ids {
        let known = transfer.directory.arrivals.known.borrow();
        let holder = known.peek(id).filter(|place| transfer.cluster.kept_since(id, place.epoch));
        let to = match holder {
            Some(place) => (place.holder, true),
            None => (transfer.cluster.keeper_for(id, 0, now), false),
        };
        match asked.iter_mut().find(|(other, lot)| *other == to && lot.len() < MAX_ENTRIES) {
            Some((_, lot)) => lot.push(*id),
            None => asked.push((to, vec![*id])),
        }
    }
    for ((to, holds), ids) in asked {
        let message = if holds { Message::FetchShort { ids } } else { Message::FindShort { ids } };
        // Objects of a node that has gone are fetched one by one when no answer comes.
        transfer.network.send(to, transfer.network.envelope(request, transfer.kernel.node, tenant, message));
    }
}

/// Takes one object of an answer.
async fn take_short(
    transfer: &Rc<Transfer>,
    from: NodeId,
    (head, bytes): (Head, Bytes),
    tenant: u32,
    compare: &Wanted,
) {
    let (id, life, epoch) = (head.id, head.life, transfer.cluster.epoch());
    let mut trace = Trace::begin(&transfer.records, id, tenant, (Target::Replica, Rc::clone(compare)));
    trace.answered(from, "eager", head.len(), "it fits a message with others");
    match transfer.take_eager(head, &[bytes], &mut trace).await {
        Ok(()) => {
            trace.finish();
            transfer.remember(id, life, Place { holder: from, epoch, at: None });
        }
        Err(reason @ Failure::Damaged { .. }) => _ = trace.told_damaged(&reason),
        Err(_) => trace.failed(),
    }
}

fn tell_short(transfer: &Transfer, asked: &Envelope, objects: Vec<Whole>, missing: Vec<ObjectId>) {
    // An asker that is gone gets no answer.
    transfer.network.tell(asked.reply_to, Message::Short { request: asked.request, objects, missing });
}

/// An object that is short and in memory here, if a user may see it.
fn short(transfer: &Transfer, id: &ObjectId, tenant: u32) -> Option<Whole> {
    let objects = transfer.store.objects.borrow();
    let replica = objects.get(id).filter(|replica| replica.visible_to(tenant))?;
    let pin = Pin::new(replica)?;
    let head = pin.head();
    if head.len() > SHORT_BYTES {
        return None;
    }
    let mut bytes = vec![0; head.len() as usize];
    pin.run().read(0, &mut bytes).expect("as long as its object");
    transfer.count_enclosed("eager", &head);
    Some(Whole { head, bytes: bytes.into() })
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use plasmon::Rights;
    use plasmon::wire::Wire;

    use super::*;

    const HOLDER: NodeId = NodeId::from_bytes([1; 16]);

    fn missing(count: usize) -> Answer {
        Answer { from: HOLDER, objects: Vec::new(), missing: vec![ObjectId::from_name("a"); count] }
    }

    #[test]
    fn answers_name_no_more_objects_than_were_asked_for() {
        let batches = Rc::new(Batches::default());
        let batch = Batch::open(&batches, 5);
        assert!(!batches.take(batch.request + 1, missing(1)), "nobody waits for it");
        assert!(!batches.take(batch.request, missing(0)), "it says nothing");
        assert!(batches.take(batch.request, missing(3)));
        assert!(!batches.take(batch.request, missing(3)), "two are left");
        assert!(batches.take(batch.request, missing(2)));
        assert!(!batches.take(batch.request, missing(1)));
        let request = batch.request;
        drop(batch);
        assert!(!batches.take(request, missing(1)), "it has ended");
        assert!(batches.open.borrow().is_empty());
    }

    #[test]
    fn no_object_takes_more_of_a_message_than_is_counted() {
        let head = Head {
            id: ObjectId::from_name("a"),
            life: u64::MAX,
            tenant: u32::MAX,
            rights: Rights::default(),
            data_len: SHORT_BYTES,
            metadata_len: 0,
            digest: u64::MAX,
            copies: u16::MAX,
            expires: u64::MAX,
            owned: true,
            name: "n".repeat(255).into(),
        };
        let bytes = Bytes::from(vec![1; SHORT_BYTES as usize]);
        let mut out = BytesMut::new();
        let whole = Whole { head, bytes };
        <Whole as Wire<Whole>>::put(&whole, &mut out);
        assert!(out.len() <= WHOLE_BYTES + 255 + SHORT_BYTES as usize && out.len() <= ROOM, "{}", out.len());
    }
}
