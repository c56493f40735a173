//! Short objects in batches: objects of which several fit a message are asked for and sent
//! together. Owns [`Batches`]. Engine thread only.
//!
//! A get of many objects first brings the short ones in this way: one frame to each keeper, one from there to
//! each holder, and answers that are filled to the length of a message. An object that does not come this way
//! (it is longer, no node holds it, a frame was lost, it is damaged) is fetched afterwards like any other, so
//! nothing depends on a batch. Other gets of the objects wait for the batch before they ask for themselves.
//!
//! Invariant: an answer brings objects that were asked for, each once. So the number of objects in
//! answers that were not looked at yet is bounded.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::channel::oneshot;
use futures::future::Shared;
use futures::{FutureExt, StreamExt};
use plasmon::{NodeId, ObjectId, Protocol, UsedProtocol};

use super::comparing::Wanted;
use super::failure::Failure;
use super::fetch::SharedFetch;
use super::landing::Target;
use super::record::Trace;
use crate::directory::arrivals::{Noted, Place};
use crate::kernel::random::HashMap;
use crate::net::frame::{Envelope, FRAME_MAX_BYTES, HEADER_LEN, MAX_ENTRIES, Message, Whole};
use crate::object::{Head, Pin};
use crate::transfer::Transfer;

/// Number of bytes up to which an object is short.
const SHORT_BYTES: u64 = 4 << 10;
/// Smallest number of objects that are asked for together.
const LEAST_OBJECTS: usize = 4;
/// How long answers may stay away before the remaining objects are fetched one by one.
const BATCH_PATIENCE: Duration = Duration::from_millis(50);
/// Number of bytes of a message that objects may take. The other bytes are for the request and the
/// lengths of the lists.
const ROOM_BYTES: usize = FRAME_MAX_BYTES - HEADER_LEN - size_of::<u64>() - 2 * size_of::<u32>();
/// Maximum number of bytes that an object takes in a message beside its name and its bytes.
const WHOLE_BYTES: usize = 96;

/// The batches that wait for answers, by the numbers of their requests.
#[derive(Default)]
pub(super) struct Batches {
    open: RefCell<HashMap<u64, Open>>,
    /// The batch by which an object comes for a user.
    coming: RefCell<HashMap<(ObjectId, u32), u64>>,
    next: Cell<u64>,
}

struct Open {
    /// Number of objects that no answer has named yet.
    left: usize,
    answers: UnboundedSender<Answer>,
    compare: Wanted,
    ended: Shared<oneshot::Receiver<()>>,
}

/// Answer of a node about objects of a batch.
struct Answer {
    from: NodeId,
    objects: Vec<Whole>,
    missing: Vec<ObjectId>,
}

/// A batch that waits for answers. The batch ends when this value is dropped.
struct Batch {
    batches: Rc<Batches>,
    request: u64,
    ids: Vec<ObjectId>,
    user: u32,
    /// Number of objects that are not here yet and may still come.
    left: Cell<usize>,
    answers: UnboundedReceiver<Answer>,
    /// The sender that tells gets of the batch's end, by being dropped with it.
    _end: oneshot::Sender<()>,
}

impl Batch {
    /// Opens a batch of objects that come by no other batch.
    fn open(batches: &Rc<Batches>, mut ids: Vec<ObjectId>, user: u32, compare: &Wanted) -> Self {
        let request = batches.next.get();
        batches.next.set(request + 1);
        // An id may have been given twice.
        ids.retain(|id| batches.coming.borrow_mut().insert((*id, user), request).is_none());
        let (sender, answers) = unbounded();
        let (end, ended) = oneshot::channel();
        let (left, compare, ended) = (ids.len(), Rc::clone(compare), ended.shared());
        batches.open.borrow_mut().insert(request, Open { left, answers: sender, compare, ended });
        let (batches, left) = (Rc::clone(batches), Cell::new(left));
        Self { batches, request, ids, user, left, answers, _end: end }
    }

    /// Whether an object is not here yet and may still come.
    fn wants(&self, id: &ObjectId) -> bool {
        self.batches.coming.borrow().get(&(*id, self.user)) == Some(&self.request)
    }

    /// Takes note that an object has come, or does not come by this batch.
    fn end(&self, id: &ObjectId) {
        if self.wants(id) {
            self.batches.coming.borrow_mut().remove(&(*id, self.user));
            self.left.set(self.left.get() - 1);
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.left.get() > 0 {
            self.ids.iter().for_each(|id| self.end(id));
        }
        self.batches.open.borrow_mut().remove(&self.request);
    }
}

impl Batches {
    /// Returns the end of the batch that is bringing an object for a user, and whether this batch
    /// compares objects.
    fn coming(&self, id: &ObjectId, user: u32) -> Option<(Shared<oneshot::Receiver<()>>, Wanted)> {
        let coming = self.coming.borrow();
        let open = self.open.borrow();
        let one = open.get(coming.get(&(*id, user))?)?;
        Some((one.ended.clone(), Rc::clone(&one.compare)))
    }

    /// Waits for the end of the batch that is bringing an object; returns whether there was such a batch.
    /// If this get wants it, the batch compares objects from now on.
    pub(super) async fn await_others(&self, id: &ObjectId, user: u32, wanted: &Wanted) -> bool {
        let Some((ended, compare)) = self.coming(id, user) else { return false };
        compare.set(compare.get() || wanted.get());
        // The end comes as an error, because nothing is sent.
        let _ = ended.await;
        true
    }

    /// Whether there was a batch of this number, and it has ended.
    fn has_ended(&self, request: u64) -> bool {
        request < self.next.get() && !self.open.borrow().contains_key(&request)
    }

    /// Takes an answer; `false` if the answer names more objects than were asked for, or if its
    /// batch has ended.
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
    /// Brings here those of the objects that are short and sealed, if there are several. Failures are silent:
    /// objects that are not here afterwards have to be fetched. `verify` is that of [`Transfer::fetch`].
    pub(crate) async fn bring_short(self: &Rc<Self>, ids: &[ObjectId], user: u32, verify: bool) {
        if ids.len() < LEAST_OBJECTS
            || self.kernel.config.protocol != Protocol::Auto
            || self.cluster.solo()
            || self.cluster.fenced()
            || self.cluster.withholds()
        {
            return;
        }
        let wanted: Vec<_> = ids.iter().filter(|id| may_be_short(self, id, user)).copied().collect();
        if wanted.len() < LEAST_OBJECTS {
            return;
        }
        let compare = Wanted::new(Cell::new(verify));
        let mut batch = Batch::open(&self.batches, wanted, user, &compare);
        let note = |id: &ObjectId| Noted::begin(&self.directory.arrivals, *id);
        let _noted: Vec<_> = batch.ids.iter().map(note).collect();
        ask_for_short(self, &batch.ids, batch.request, user);
        while batch.left.get() > 0 {
            let due = Some(self.kernel.clock.now() + BATCH_PATIENCE);
            let Some(Some(answer)) = self.kernel.clock.bounded(due, batch.answers.next()).await else {
                return;
            };
            for Whole { head, bytes } in answer.objects {
                let id = head.id;
                if batch.wants(&id) {
                    take_short(self, answer.from, (head, bytes), user, &compare).await;
                    batch.end(&id);
                }
            }
            answer.missing.iter().for_each(|id| batch.end(id));
        }
    }

    /// Takes an answer to a batch of this node.
    pub(super) fn on_short(&self, from: NodeId, request: u64, objects: &[Whole], missing: &[ObjectId]) {
        let answer = Answer { from, objects: objects.to_vec(), missing: missing.to_vec() };
        if !self.batches.take(request, answer) && !self.batches.has_ended(request) {
            self.network.drop_frame(&format!("objects from node {from} that nobody waits for"));
        }
    }

    /// Answers, as a holder, a fetch of many objects with those that are short.
    pub(super) fn serve_short(&self, asked: &Envelope, ids: &[ObjectId]) {
        // A slow asker that has no room for more gets none of the objects.
        let gives = || !self.cluster.withholds() && self.network.takes_more(asked.reply_to);
        let (mut missing, mut objects, mut room) = (Vec::new(), Vec::new(), ROOM_BYTES);
        for id in ids {
            let Some(whole) = gives().then(|| short(self, id, asked.user)).flatten() else {
                missing.push(*id);
                continue;
            };
            let len = WHOLE_BYTES + whole.head.name.len() + whole.bytes.len();
            if len > room {
                tell_short(self, asked, std::mem::take(&mut objects), Vec::new());
                room = ROOM_BYTES;
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
fn may_be_short(transfer: &Transfer, id: &ObjectId, user: u32) -> bool {
    let is_known_as_long = |place: &Place| place.at.is_some();
    let is_coming = |(fetch, ..): &SharedFetch| fetch.upgrade().is_some_and(|fetch| fetch.peek().is_none());
    transfer.store.objects.borrow().conflict(id).is_none()
        && !transfer.fetches.borrow().get(&(*id, user)).is_some_and(is_coming)
        && transfer.batches.coming(id, user).is_none()
        && !transfer.directory.arrivals.known.borrow().peek(id).is_some_and(is_known_as_long)
}

/// Asks the holders that are known, and the keepers of the other objects.
fn ask_for_short(transfer: &Transfer, ids: &[ObjectId], request: u64, user: u32) {
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
        // If the node has gone, no answer comes, and its objects are fetched one by one.
        transfer.network.send(to, transfer.network.envelope(request, transfer.kernel.node, user, message));
    }
}

/// Takes one object of an answer.
async fn take_short(
    transfer: &Rc<Transfer>,
    from: NodeId,
    (head, bytes): (Head, Bytes),
    user: u32,
    compare: &Wanted,
) {
    let (id, life, epoch) = (head.id, head.life, transfer.cluster.epoch());
    let mut trace = Trace::begin(&transfer.records, id, user, (Target::Replica, Rc::clone(compare)));
    trace.answered(from, UsedProtocol::Eager, head.len(), "it fits a message with others");
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
    // An asker that has gone gets no answer.
    transfer.network.tell(asked.reply_to, Message::Short { request: asked.request, objects, missing });
}

/// Returns an object that is short and in memory here, if a user may see it.
fn short(transfer: &Transfer, id: &ObjectId, user: u32) -> Option<Whole> {
    let objects = transfer.store.objects.borrow();
    let replica = objects.get(id).filter(|replica| replica.visible_to(user) && !replica.is_guarded())?;
    let pin = Pin::new(replica)?;
    let head = pin.head();
    if head.len() > SHORT_BYTES {
        return None;
    }
    let mut bytes = vec![0; head.len() as usize];
    pin.run().read(0, &mut bytes).expect("as long as its object");
    transfer.count_enclosed(UsedProtocol::Eager, &head);
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

    fn ids(count: u8) -> Vec<ObjectId> {
        (0..count).map(|number| ObjectId::from_bytes([number; 20])).collect()
    }

    #[test]
    fn an_object_is_coming_until_its_batch_has_brought_it_or_ended() {
        let (batches, compare) = (Rc::new(Batches::default()), Wanted::default());
        let all = ids(6);
        let batch = Batch::open(&batches, [ids(5), ids(2)].concat(), 7, &compare);
        assert_eq!(batch.left.get(), 5, "two were given twice");
        assert!(batches.coming(&all[5], 7).is_none(), "nobody wants it");
        assert!(batches.coming(&all[4], 8).is_none(), "it comes for another user");
        let (ended, compares) = batches.coming(&all[4], 7).expect("it is coming");
        assert!(Rc::ptr_eq(&compare, &compares));
        assert!(ended.clone().now_or_never().is_none());
        batch.end(&all[1]);
        batch.end(&all[1]);
        assert_eq!(batch.left.get(), 4);
        assert!(batches.coming(&all[1], 7).is_none(), "it is here");
        let later = Batch::open(&batches, vec![all[1]], 7, &compare);
        drop(batch);
        assert!(ended.now_or_never().is_some());
        assert!(batches.coming(&all[4], 7).is_none());
        assert!(batches.coming(&all[1], 7).is_some());
        drop(later);
        assert!(batches.coming.borrow().is_empty() && batches.open.borrow().is_empty());
    }

    #[test]
    fn answers_name_no_more_objects_than_were_asked_for() {
        let batches = Rc::new(Batches::default());
        let batch = Batch::open(&batches, ids(5), 7, &Wanted::default());
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
            user: u32::MAX,
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
        assert!(
            out.len() <= WHOLE_BYTES + 255 + SHORT_BYTES as usize && out.len() <= ROOM_BYTES,
            "{}",
            out.len()
        );
    }
}
