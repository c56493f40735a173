//! Asking an object's keepers for the object repeatedly, until an answer comes. Owns [`Asking`].
//! Engine thread only.
//!
//! A keeper forwards a request to a holder, or keeps it until there is one. A keeper is asked again when
//! the members change, when a holder has failed, and from time to time in any case, so that no lost
//! message can strand a get. A keeper that is silent while the other one answers may have died without
//! being noticed yet: for a while it is the second to be asked.
//!
//! Invariants: a get has at most two open requests, and an answer to either ends both. A request that ends
//! without an answer is withdrawn at its receiver. A lease that comes with an answer that nobody takes is
//! given back.

use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::{Either, select};
use plasmon::{NodeId, ObjectId};

use super::rooms::{MAX_MESSAGES_BYTES, ONE_MESSAGE_BYTES, Room};
use crate::net::calls::Call;
use crate::net::frame::{Envelope, Message};
use crate::transfer::Transfer;

/// How long the first keeper may take before the other keeper is asked as well. This time is much longer
/// than an answer takes, and short for a client whose keeper has just died.
const ASK_OTHER: Duration = Duration::from_millis(50);
/// How long an unanswered request waits after that until another request is made. Each further wait
/// is twice as long.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(2);
/// The longest wait before another request is made. This wait is shorter than the time after which
/// a keeper forgets that this node waits.
const ASK_AGAIN_AT_LAST: Duration = Duration::from_secs(8);

/// A get that asks the keepers of its object.
pub(super) struct Asking {
    transfer: Rc<Transfer>,
    id: ObjectId,
    user: u32,
    /// Holders that have failed since the last silence of a keeper or change of the view.
    avoid: Vec<NodeId>,
    /// Number of requests made since the view last changed.
    attempt: usize,
    /// How long the next request waits for an answer until another is made.
    patience: Duration,
    /// The request before the last, whose answer may still come.
    earlier: Option<Ask>,
}

/// An answer to a get: the object, how it can be read, or a refusal.
pub(super) struct Answered {
    pub(super) answer: Envelope,
    /// Pieces of the object that came before the answer.
    pub(super) pieces: Vec<Bytes>,
    /// Time at which the request was made.
    pub(super) asked_at: Instant,
}

/// A request to a keeper. It is withdrawn if this value is dropped before an answer came.
struct Ask {
    transfer: Rc<Transfer>,
    call: Call,
    id: ObjectId,
    keeper: NodeId,
    room: Room,
    at: Instant,
    /// Whether the receiver need not be told that the request has ended: it has answered, or could
    /// not be asked.
    settled: bool,
}

/// The first of the events that a get waits for.
enum Heard {
    /// The answer to the last request.
    Last(Option<Envelope>),
    /// The answer to the request before the last.
    Earlier(Option<Envelope>),
    NewView,
    /// The time to ask again, before any answer came.
    Nothing,
}

impl Asking {
    pub(super) fn new(transfer: &Rc<Transfer>, id: ObjectId, user: u32) -> Self {
        Self {
            transfer: Rc::clone(transfer),
            id,
            user,
            avoid: Vec::new(),
            attempt: 0,
            patience: ASK_OTHER,
            earlier: None,
        }
    }

    /// Has the keepers choose other holders than this one, which has failed.
    pub(super) fn avoid(&mut self, holder: NodeId) {
        if !self.avoid.contains(&holder) {
            self.avoid.push(holder);
        }
    }

    /// Returns the next answer, however long it takes.
    pub(super) async fn next(&mut self) -> Answered {
        loop {
            self.until_it_may_come().await;
            if let Some(answered) = self.ask_once().await {
                return answered;
            }
        }
    }

    /// Waits until this node is a member and no client of it is creating the object.
    async fn until_it_may_come(&self) {
        loop {
            if self.transfer.cluster.fenced() {
                // The keepers are known again when this node is a member again.
                let _ = self.transfer.cluster.next_view().await;
                continue;
            }
            if self.transfer.store.objects.borrow().creation(&self.id).is_none() {
                return;
            }
            // A replica could not be sealed now. If the creation is sealed, the gets end; if it is
            // aborted, this wait ends.
            self.transfer.kernel.clock.sleep(ASK_AGAIN).await;
        }
    }

    /// Makes a request and waits for an answer to this request or to the one before. `None` when
    /// another request is to be made.
    async fn ask_once(&mut self) -> Option<Answered> {
        let next_view = self.transfer.cluster.next_view();
        let again = self.transfer.kernel.clock.sleep(self.patience);
        self.patience = (2 * self.patience).clamp(ASK_AGAIN, ASK_AGAIN_AT_LAST);
        let mut ask = self.send()?;
        let heard = {
            let (last, before) = (pin!(ask.call.answer()), pin!(Ask::answer(&mut self.earlier)));
            match select(select(last, before), select(next_view, again)).await {
                Either::Left((Either::Left((answer, _)), _)) => Heard::Last(answer),
                Either::Left((Either::Right((answer, _)), _)) => Heard::Earlier(answer),
                Either::Right((Either::Left(_), _)) => Heard::NewView,
                Either::Right((Either::Right(_), _)) => Heard::Nothing,
            }
        };
        // A request that has no answer is dropped here. A lease that its answer still brings is given back.
        match heard {
            Heard::Last(answer) => {
                self.suspect_silent(&ask);
                ask.settle(answer)
            }
            Heard::Earlier(answer) => self.earlier.take()?.settle(answer),
            Heard::NewView => {
                // The keepers may have changed, so all requests begin anew.
                self.avoid.clear();
                (self.attempt, self.patience, self.earlier) = (0, ASK_OTHER, None);
                None
            }
            Heard::Nothing => {
                self.avoid.clear();
                self.earlier = Some(ask);
                None
            }
        }
    }

    /// Sends a request to the keeper whose turn it is; `None` if the other keeper is to be asked at once.
    fn send(&mut self) -> Option<Ask> {
        let at = self.transfer.kernel.clock.now();
        let keeper = self.transfer.cluster.keeper_for(&self.id, self.attempt, at);
        self.attempt += 1;
        let call = Call::open(&self.transfer.network, None);
        // After a failure a long object is read, because it may not have come whole in messages.
        let most = if self.avoid.is_empty() { MAX_MESSAGES_BYTES } else { ONE_MESSAGE_BYTES };
        let (room, wish) = self.transfer.wish(call.request(), most);
        let avoid = self.avoid.clone();
        let transfer = Rc::clone(&self.transfer);
        let mut ask = Ask { transfer, call, id: self.id, keeper, room, at, settled: false };
        self.transfer.directory.news.release_now(keeper);
        let find = Message::Find { id: self.id, missed: false, wish, avoid };
        if !ask.call.send(keeper, self.user, find) && self.attempt % 2 == 1 {
            // The keeper cannot be reached.
            ask.settled = true;
            return None;
        }
        Some(ask)
    }

    /// Notes which keeper was silent when the last request was answered. From now on this keeper is
    /// the second to be asked.
    fn suspect_silent(&mut self, answered: &Ask) {
        let now = self.transfer.kernel.clock.now();
        // Only a fast answer shows that the other keeper was silent. After a slow one, the object
        // may have been put only now.
        if let Some(silent) = self.earlier.take().filter(|_| now < answered.at + ASK_OTHER)
            && silent.keeper != answered.keeper
        {
            self.transfer.cluster.suspect(silent.keeper, now);
        }
    }
}

impl Ask {
    /// Waits for the answer, if there was a request.
    async fn answer(ask: &mut Option<Self>) -> Option<Envelope> {
        match ask {
            Some(ask) => ask.call.answer().await,
            None => std::future::pending().await,
        }
    }

    /// Ends the request with its answer; `None` if no answer will come.
    fn settle(mut self, answer: Option<Envelope>) -> Option<Answered> {
        self.settled = true;
        answer.map(|answer| Answered { pieces: self.room.pieces_of(answer.from), answer, asked_at: self.at })
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let transfer = &self.transfer;
        match self.call.take_answer() {
            // The answer came, and no get takes it any more.
            Some(answer) => transfer.decline(&answer),
            None => {
                self.call.withdraw(self.keeper, Message::Forget { id: self.id });
            }
        }
    }
}
