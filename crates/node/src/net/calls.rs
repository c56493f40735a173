//! Asking other nodes and this one: requests, the answers that come back, and frames to this node itself.
//!
//! Owns the calls without an answer, and the frames of this node to itself. Engine thread only. A [`Call`]
//! ends with its answer, with the end of the node that was asked, or by being dropped. It has no deadline;
//! the caller sets one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures::channel::oneshot;
use plasmon::{Class, Error, ErrorKind, NodeId};

use super::frame::{Ask, Envelope, Frames, Message};
use super::network::Network;
use crate::kernel::class;
use crate::kernel::clock::rounded;
use crate::kernel::random::HashMap;

/// The calls that have no answer yet.
pub(super) struct Calls {
    open: RefCell<HashMap<u64, Open>>,
    /// The open calls that the other node holds until something happens: nobody expects their answers soon.
    held: RefCell<HashMap<u64, Open>>,
    next_request: Cell<u64>,
}

impl Default for Calls {
    fn default() -> Self {
        Self { open: RefCell::default(), held: RefCell::default(), next_request: Cell::new(1) }
    }
}

/// A call without its answer.
struct Open {
    /// The node that must live for the answer to come; `None` when any node may answer.
    to: Option<NodeId>,
    answer: oneshot::Sender<Envelope>,
}

impl Calls {
    fn of(&self, is_held: bool) -> &RefCell<HashMap<u64, Open>> {
        if is_held { &self.held } else { &self.open }
    }
}

/// A request under way.
pub(crate) struct Call {
    network: Rc<Network>,
    request: u64,
    is_held: bool,
    /// The class of the work that asks.
    class: Class,
    answer: oneshot::Receiver<Envelope>,
}

impl Call {
    /// Opens a call that fails when the node `to` goes. With `None`, only an answer ends the call.
    pub(crate) fn open(network: &Rc<Network>, to: Option<NodeId>) -> Self {
        Self::open_as(network, to, false)
    }

    fn open_as(network: &Rc<Network>, to: Option<NodeId>, is_held: bool) -> Self {
        let next = &network.calls.next_request;
        let request = next.replace(next.get() + 1);
        let (sender, answer) = oneshot::channel();
        network.calls.of(is_held).borrow_mut().insert(request, Open { to, answer: sender });
        Self { network: Rc::clone(network), request, is_held, class: class::current(), answer }
    }

    /// The number that joins answer and request.
    pub(crate) fn request(&self) -> u64 {
        self.request
    }

    /// Sends the request.
    pub(crate) fn send(&self, to: NodeId, user: u32, message: Message) -> bool {
        self.send_as(to, user, message, false)
    }

    fn send_as(&self, to: NodeId, user: u32, message: Message, by_class: bool) -> bool {
        let (network, class) = (&self.network, self.class);
        let envelope = network.envelope(self.request, network.kernel.node, user, message);
        network.send(to, Envelope { class, by_class, ..envelope })
    }

    /// Withdraws the request, by a frame that arrives behind the request.
    pub(crate) fn withdraw(&self, to: NodeId, message: Message) {
        self.send(to, 0, message);
    }

    /// The answer, if it has come.
    pub(crate) fn take_answer(&mut self) -> Option<Envelope> {
        self.answer.try_recv().ok().flatten()
    }

    /// Waits for the answer; `None` when the node that was asked has gone.
    pub(crate) async fn answer(&mut self) -> Option<Envelope> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.network.calls.of(self.is_held).borrow_mut().remove(&self.request);
    }
}

impl Network {
    /// Hands an answer to its call. Returns the answer if no call waits for it, or the call waits for another
    /// node's.
    pub(crate) fn complete(&self, envelope: Envelope) -> Option<Envelope> {
        let meant = |call: &Open| call.to.is_none_or(|to| to == envelope.from);
        let take = |is_held| {
            let mut calls = self.calls.of(is_held).borrow_mut();
            calls.get(&envelope.request).is_some_and(meant).then(|| calls.remove(&envelope.request))?
        };
        match take(false).or_else(|| take(true)) {
            Some(call) => call.answer.send(envelope).err(),
            None => Some(envelope),
        }
    }

    /// Ends the calls to nodes that have gone.
    pub(crate) fn abandon(&self, gone: &[NodeId]) {
        for is_held in [false, true] {
            let mut calls = self.calls.of(is_held).borrow_mut();
            calls.retain(|_, call| !call.to.is_some_and(|to| gone.contains(&to)));
        }
    }

    /// Whether this node made a request of this number, and waits for its answer no more.
    pub(crate) fn has_ended(&self, request: u64) -> bool {
        let is_open = |is_held| self.calls.of(is_held).borrow().contains_key(&request);
        (1..self.calls.next_request.get()).contains(&request) && !is_open(false) && !is_open(true)
    }

    /// Whether a call waits for an answer, other than the answers that nodes hold until something happens.
    pub(crate) fn asks(&self) -> bool {
        !self.calls.open.borrow().is_empty()
    }

    /// Makes the envelope of a frame from this node.
    pub(crate) fn envelope(&self, request: u64, reply_to: NodeId, user: u32, message: Message) -> Envelope {
        Envelope {
            request,
            from: self.kernel.node,
            incarnation: self.kernel.incarnation.get(),
            reply_to,
            epoch: self.epoch.get(),
            deadline_us: u64::MAX,
            user,
            class: class::current(),
            by_class: false,
            answers: false,
            message,
        }
    }

    /// Sends a frame, to this node as well; `false` when there is no such member.
    pub(crate) fn send(&self, to: NodeId, envelope: Envelope) -> bool {
        if to == self.kernel.node {
            self.loopback.borrow_mut().push(envelope);
            return true;
        }
        self.send_to_peer(to, envelope)
    }

    /// Takes the frames of this node to itself since the last call.
    pub(crate) fn take_loopback(&self) -> Vec<Envelope> {
        std::mem::take(&mut *self.loopback.borrow_mut())
    }

    /// Whether there are frames of this node to itself.
    pub(crate) fn talks_to_itself(&self) -> bool {
        !self.loopback.borrow().is_empty()
    }

    /// Sends a message that needs no answer; `false` when there is no such member.
    pub(crate) fn tell(&self, to: NodeId, message: impl Frames) -> bool {
        let by_class = message.goes_by_class();
        let envelope = self.envelope(0, self.kernel.node, 0, message.into_message());
        self.send(to, Envelope { by_class, ..envelope })
    }

    /// Answers a frame.
    pub(crate) fn answer(&self, asked: &Envelope, answer: impl Frames) {
        let by_class = answer.goes_by_class();
        let message = answer.into_message();
        let answers = matches!(message, Message::Other(_));
        let answer = self.envelope(asked.request, asked.reply_to, asked.user, message);
        // The node that asked may have gone.
        self.send(asked.reply_to, Envelope { answers, by_class, ..answer });
    }

    /// Sends a request and waits for its answer; returns the answer's fields.
    ///
    /// # Errors
    /// The answer's own; `Disconnected` when the node has gone, `TimedOut` when it does not answer within
    /// `patience`, `Internal` when its answer is of another kind than was asked for.
    pub(crate) async fn ask<Q: Ask>(
        self: &Rc<Self>,
        to: NodeId,
        user: u32,
        question: Q,
        patience: Duration,
    ) -> Result<Q::Answer, Error> {
        self.ask_by(Call::open(self, Some(to)), to, user, question, patience).await
    }

    /// Sends a request and waits for its answer, which the other node holds until something happens; returns
    /// the answer's fields.
    ///
    /// # Errors
    /// As [`Network::ask`].
    pub(crate) async fn ask_held<Q: Ask>(
        self: &Rc<Self>,
        to: NodeId,
        user: u32,
        question: Q,
        patience: Duration,
    ) -> Result<Q::Answer, Error> {
        self.ask_by(Call::open_as(self, Some(to), true), to, user, question, patience).await
    }

    async fn ask_by<Q: Ask>(
        self: &Rc<Self>,
        mut call: Call,
        to: NodeId,
        user: u32,
        question: Q,
        patience: Duration,
    ) -> Result<Q::Answer, Error> {
        let gone = || {
            Error::new(
                ErrorKind::Disconnected,
                format!("node {to} has left the cluster, or was cut off (its log and this node's say why)"),
            )
        };
        let question: Q::Table = question.into();
        let by_class = question.goes_by_class();
        if !call.send_as(to, user, question.into_message(), by_class) {
            return Err(gone());
        }
        let due = self.kernel.clock.now() + patience;
        match self.kernel.clock.bounded(Some(due), call.answer()).await {
            Some(Some(Envelope { message: Message::Refused { error }, .. })) => Err(error),
            Some(Some(answer)) => {
                let answer = Q::Answers::from_message(answer.message).ok();
                answer.and_then(|answer| Q::Answer::try_from(answer).ok()).ok_or_else(|| {
                    let text = format!("node {to} sent an answer of the wrong kind: see its release");
                    Error::new(ErrorKind::Internal, text)
                })
            }
            Some(None) => Err(gone()),
            None => {
                let text = format!("node {to} did not answer within {:?}", rounded(patience));
                Err(Error::new(ErrorKind::TimedOut, text))
            }
        }
    }
}
