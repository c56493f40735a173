//! Calls that clients of this node make. Owns [`Outgoing`]. Engine thread only.
//!
//! The node is chosen here: this node if processes of it serve, else the node with the fewest of this
//! node's calls under way. A node that has no server says so, and another is tried.
//!
//! Invariants: a call is sent to a further node only if the one before has said that the function was not
//! run. A function that may have been run is never reported as not run. Memory of the caller that another
//! node may read is kept until that node has answered, even if nobody waits for the answer any more.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::channel::oneshot;
use plasmon::service::PING;
use plasmon::shared::{CallResult, PAYLOAD_LEN};
use plasmon::text::printable;
use plasmon::wire::{LentRange, Replied, SlotResult};
use plasmon::{Class, Error, ErrorKind, NodeId};

use super::Calls;
use super::bodies::{Body, Told};
use super::frames::CallFrame;
use super::incoming::{Arriving, Asker, Ended, Incoming};
use super::joining::Known;
use crate::kernel::random::HashMap;
use crate::kernel::{ClientKey, class};
use crate::net::calls::Call;
use crate::net::frame::{Envelope, Frames, Message};
use crate::net::network::Network;
use crate::transfer::Written;

/// The longest time that a call may take, whatever the client says.
const LONGEST_CALL: Duration = Duration::from_secs(24 * 3600);
/// How long after a call's time-out the node that has the call may say that it was not run.
const GRACE: Duration = Duration::from_millis(50);
/// How often one call asks the home of its service, or uses its last answer, for the nodes that have servers.
const ROUNDS: usize = 3;

/// Maximum number of replies of a client that wait to be taken.
const MAX_KEPT: usize = 256;

/// Order of a client for a call.
pub(super) struct Wanted {
    pub(super) service: u32,
    pub(super) function: u16,
    /// Number of bytes in lent memory, and their place; 0 if the payload is sent.
    pub(super) lent: (u32, LentRange),
    pub(super) payload: Bytes,
    /// Room for a reply; `None` if the client wants no reply.
    pub(super) room: Option<(u32, LentRange)>,
}

/// A reply for which the client had no room.
struct Kept {
    client: ClientKey,
    body: Rc<Body>,
    due: Instant,
}

/// The calls that clients of this node make.
#[derive(Default)]
pub(super) struct Outgoing {
    /// Number of calls under way at each node.
    under_way: RefCell<HashMap<NodeId, usize>>,
    kept: RefCell<HashMap<u64, Kept>>,
    turn: Cell<usize>,
}

impl Outgoing {
    /// Drops replies that were not taken in time.
    pub(super) fn drop_late(&self, now: Instant) {
        self.drop_kept(|kept| kept.due <= now);
    }

    /// Drops the replies that a client has not taken.
    pub(super) fn end_client(&self, client: ClientKey) {
        self.drop_kept(|kept| kept.client == client);
    }

    fn drop_kept(&self, is_meant: impl Fn(&Kept) -> bool) {
        let dropped: Vec<_> = self.kept.borrow_mut().extract_if(|_, kept| is_meant(kept)).collect();
        drop(dropped);
    }

    /// Returns a reply that a client has not taken.
    fn kept(&self, client: ClientKey, number: u64) -> Option<Rc<Body>> {
        let kept = self.kept.borrow();
        kept.get(&number).filter(|kept| kept.client == client).map(|kept| Rc::clone(&kept.body))
    }

    fn count_kept(&self, client: ClientKey) -> usize {
        self.kept.borrow().values().filter(|kept| kept.client == client).count()
    }

    /// Number of calls under way at other nodes.
    pub(super) fn count(&self) -> u64 {
        self.under_way.borrow().values().sum::<usize>() as u64
    }

    fn count_at(&self, node: NodeId, change: isize) {
        let mut under_way = self.under_way.borrow_mut();
        let count = under_way.entry(node).or_default();
        *count = count.saturating_add_signed(change);
        if *count == 0 {
            under_way.remove(&node);
        }
    }
}

/// The progress of a call that a client waits for.
#[derive(Default)]
struct Progress {
    /// The call at another node, which may run the function.
    there: RefCell<Option<There>>,
    /// The call at a port of this node.
    here: RefCell<Option<Rc<Incoming>>>,
}

impl Progress {
    /// Whether a function may have been run.
    fn may_have_run(&self) -> bool {
        self.there.borrow().is_some() || self.here.borrow().as_ref().is_some_and(|call| call.is_begun())
    }

    /// Gives up the call at another node, if there is one; returns whether there is. That node says
    /// if the function was not run.
    fn give_up(&self) -> bool {
        let there = self.there.borrow();
        there.iter().for_each(There::give_up);
        there.is_some()
    }
}

/// A call at another node. That node is told if nobody waits for the answer any more.
struct There {
    network: Rc<Network>,
    node: NodeId,
    call: u64,
    /// The class of the call. The message that gives the call up has the same class, so that it
    /// comes behind the call.
    class: Class,
    /// Whether the node need not be told any more that the call is given up.
    over: Cell<bool>,
}

impl There {
    fn give_up(&self) {
        if !self.over.replace(true) {
            class::within(self.class, || {
                self.network.tell(self.node, CallFrame::GiveUp { call: self.call });
            });
        }
    }
}

impl Drop for There {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Whether an error says that the function was not run, and may be run by another node.
fn is_elsewhere(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotHere | ErrorKind::Busy)
}

impl Calls {
    /// Calls a function for a client.
    pub(super) async fn call(
        self: Rc<Self>,
        client: ClientKey,
        wanted: Wanted,
        due: Instant,
    ) -> Result<CallResult, Error> {
        let known = self.handles.get(client, wanted.service)?;
        let named = known.functions.get(usize::from(wanted.function)).map(String::as_str);
        let Some(function) = named.or((wanted.function == PING).then_some("")) else {
            let (name, count) = (printable(&known.name), known.functions.len());
            let text =
                format!("service '{name}' has {count} functions, and none of number {}", wanted.function);
            return Err(Error::new(ErrorKind::Invalid, text));
        };
        let body = Rc::new(self.body_of(client, &wanted.payload, wanted.lent)?);
        if let Some((room @ 1.., into)) = wanted.room {
            self.requests.give(client, into, room.into())?;
        }
        self.counts.begun.add(1);
        let (user, one_way, progress) = (self.user(client), wanted.room.is_none(), Progress::default());
        let began = self.kernel.clock.now();
        let what = What { known: &known, function, user, body: &body, due, one_way };
        let (clock, mut made) = (&self.kernel.clock, pin!(self.anywhere(&what, &progress)));
        let ended = match clock.bounded(Some(due), made.as_mut()).await {
            None if progress.give_up() => clock.bounded(Some(due + GRACE), made).await,
            ended => ended,
        };
        let ended = ended.unwrap_or_else(|| Err(late(&what, progress.may_have_run())))?;
        // A caller that wants no reply has no room for one.
        let (room, into) = wanted.room.unwrap_or((0, LentRange { buffer: 0, at: 0 }));
        self.hand_over(client, ended, (room, into), (began, due))
    }

    /// Returns the time at which a call of a client is over.
    pub(super) fn due_of(&self, timeout_us: u64) -> Instant {
        self.kernel.clock.now() + Duration::from_micros(timeout_us).min(LONGEST_CALL)
    }

    /// Calls a function on a node that serves it, one node after the other.
    async fn anywhere(self: &Rc<Self>, what: &What<'_>, progress: &Progress) -> Result<Ended, Error> {
        let mut refused: Vec<NodeId> = Vec::new();
        let mut why = None;
        self.refresh_soon(what.known);
        for round in 0..ROUNDS {
            if round > 0 {
                // All known servers were asked in vain.
                self.refresh(what.known).await.map_err(|error| match (&why, error.kind()) {
                    (Some(why), ErrorKind::NotFound) => nobody(what.known, Some(why)),
                    _ => error,
                })?;
                refused.clear();
            }
            while let Some(node) = self.choose(what, &refused) {
                if self.kernel.clock.now() >= what.due {
                    return Err(late(what, false));
                }
                let ended = match node == self.kernel.node {
                    true => self.call_here(what, progress).await,
                    false => self.call_there(node, what, progress).await,
                };
                match ended {
                    Err(error) if is_elsewhere(&error) => why = Some(error),
                    ended => return ended,
                }
                refused.push(node);
            }
        }
        Err(match why {
            Some(busy) if busy.kind() == ErrorKind::Busy => busy,
            why => nobody(what.known, why.as_ref()),
        })
    }

    /// Chooses the node for a call: this one, or the one with the fewest calls under way. `None` if
    /// all have refused.
    fn choose(&self, what: &What<'_>, refused: &[NodeId]) -> Option<NodeId> {
        let here = self.kernel.node;
        if !refused.contains(&here) && self.serving.has(&what.known.id, what.known.owner) {
            return Some(here);
        }
        let nodes = what.known.nodes.borrow();
        let under_way = self.outgoing.under_way.borrow();
        let turn = self.outgoing.turn.get().wrapping_add(1);
        self.outgoing.turn.set(turn);
        let begin = turn % nodes.len().max(1);
        let in_turn = nodes[begin..].iter().chain(&nodes[..begin]);
        let open = in_turn.filter(|node| **node != here && !refused.contains(node));
        open.min_by_key(|node| under_way.get(node).copied().unwrap_or_default()).copied()
    }

    async fn call_here(self: &Rc<Self>, what: &What<'_>, progress: &Progress) -> Result<Ended, Error> {
        let (sender, ended) = oneshot::channel();
        let arriving = Arriving {
            user: what.user,
            from: self.kernel.node,
            body: Rc::clone(what.body),
            due: what.due,
            one_way: what.one_way,
            asker: Asker::Here(sender),
        };
        let whose = (&what.known.id, what.known.owner);
        let call = self.admit(whose, what.function, arriving)?;
        progress.here.replace(Some(call));
        let ended = ended.await;
        progress.here.take();
        ended.unwrap_or_else(|_| Err(Error::new(ErrorKind::OutcomeUnknown, "this node is ending")))
    }

    async fn call_there(
        self: &Rc<Self>,
        node: NodeId,
        what: &What<'_>,
        progress: &Progress,
    ) -> Result<Ended, Error> {
        self.cluster.ensure_member()?;
        let told = self.told(what.body, node)?;
        let (place, Told { data, pieces, written }) = (told.place(), told);
        let number = self.draw();
        let left = what.due.saturating_duration_since(self.kernel.clock.now());
        let frame = CallFrame::Call {
            call: number,
            id: what.known.id,
            owner: what.known.owner,
            function: what.function.to_owned(),
            left_us: left.as_micros().try_into().unwrap_or(u64::MAX),
            one_way: what.one_way,
            data,
            pieces,
            written: place,
        };
        let mut call = Call::open(&self.network, Some(node));
        if !call.send(node, what.user, frame.into_message()) {
            let text = format!("node {node} is no member of the cluster, or is cut off");
            return Err(Error::new(ErrorKind::NotHere, text));
        }
        self.outgoing.count_at(node, 1);
        let there = There {
            network: Rc::clone(&self.network),
            node,
            call: number,
            class: class::current(),
            over: Cell::new(false),
        };
        progress.there.replace(Some(there));
        let (sender, answer) = oneshot::channel();
        let (calls, body) = (Rc::clone(self), Rc::clone(what.body));
        self.kernel.spawn(async move {
            let answer = call.answer().await;
            calls.outgoing.count_at(node, -1);
            match &answer {
                Some(_) => {
                    written.into_iter().for_each(Written::release);
                    drop(body);
                }
                None => calls.hold(body),
            }
            // The call may be over. A reply in memory is given back then.
            _ = sender.send(answer.map(|answer| calls.returned(node, answer)));
        });
        let answer = answer.await;
        progress.there.borrow().iter().for_each(|there| there.over.set(true));
        match answer {
            Ok(Some(Err(error))) if is_elsewhere(&error) => {
                progress.there.take();
                Err(error)
            }
            Ok(Some(ended)) => ended.map_err(|error| match error.kind() {
                // The error comes from an answer that makes no sense.
                ErrorKind::Internal => unknown(what, error.message()),
                _ => error,
            }),
            Ok(None) => Err(unknown(what, &format!("node {node} has left the cluster, or was cut off"))),
            Err(_) => Err(unknown(what, "this node is ending")),
        }
    }

    /// Reads the answer of a node to a call.
    fn returned(&self, node: NodeId, answer: Envelope) -> Result<Ended, Error> {
        let wrong = || {
            let text = format!("node {node} sent an answer of the wrong kind: see its release");
            Error::new(ErrorKind::Internal, text)
        };
        if let Message::Refused { error } = answer.message {
            return Err(error);
        }
        let Ok(CallFrame::Returned { data, pieces, written, lent, queue_ns, function_ns }) =
            CallFrame::from_message(answer.message)
        else {
            return Err(wrong());
        };
        let body = self.reply_sent((node, lent), data, pieces, written).ok_or_else(wrong)?;
        let [queue, function] = [queue_ns, function_ns].map(Duration::from_nanos);
        Ok(Ended { body, queue, function })
    }

    /// Gives a client the reply, or keeps it until the client takes it.
    fn hand_over(
        &self,
        client: ClientKey,
        ended: Ended,
        room: (u32, LentRange),
        (began, due): (Instant, Instant),
    ) -> Result<CallResult, Error> {
        let Ended { body, queue, function } = ended;
        let total = self.kernel.clock.now().saturating_duration_since(began);
        let wire = total.saturating_sub(queue).saturating_sub(function);
        let mut replied = Replied { len: body.len(), number: 0, queue, wire, function };
        let fits = |payload: &[u8]| CallResult::with(&replied.values(), payload);
        if let Some(result) = body.payload().and_then(fits) {
            return Ok(result);
        }
        if !self.bring_now(client, &body, room)? {
            if self.outgoing.count_kept(client) >= MAX_KEPT {
                let text =
                    format!("the function was run, but this client has {MAX_KEPT} replies to take first");
                return Err(Error::new(ErrorKind::OutcomeUnknown, text));
            }
            replied.number = self.draw();
            let kept = Kept { client, body: Rc::new(body), due };
            self.outgoing.kept.borrow_mut().insert(replied.number, kept);
        }
        debug_assert!(replied.len > PAYLOAD_LEN as u64, "a short reply is a payload");
        Ok(CallResult::of(&replied.values()))
    }

    /// Brings a reply for which there was no room before.
    pub(super) async fn take_reply(
        self: Rc<Self>,
        client: ClientKey,
        number: u64,
        into: LentRange,
    ) -> Result<CallResult, Error> {
        let body = self.outgoing.kept(client, number).ok_or_else(|| {
            let text = format!(
                "reply {number} is not kept: it was taken, the time of its call is over, or it is another \
                 client's"
            );
            Error::new(ErrorKind::OutcomeUnknown, text)
        })?;
        let brought = self.bring(client, &body, into).await;
        // The client may correct a range that it named wrongly. Other errors are final, because the
        // bytes cannot be read.
        if brought.as_ref().err().is_none_or(|error| error.kind() != ErrorKind::Invalid) {
            let kept = self.outgoing.kept.borrow_mut().remove(&number);
            drop(kept);
        }
        brought.map_err(|error| match error.kind() {
            ErrorKind::Invalid => error,
            _ => {
                let text = format!("the function was run, but its reply could not be brought: {error}");
                Error::new(ErrorKind::OutcomeUnknown, text)
            }
        })?;
        Ok(CallResult::of(&[body.len()]))
    }
}

/// A call that is to be made.
struct What<'a> {
    known: &'a Rc<Known>,
    function: &'a str,
    user: u32,
    body: &'a Rc<Body>,
    due: Instant,
    one_way: bool,
}

fn unknown(what: &What<'_>, why: &str) -> Error {
    let (function, name) = (printable(what.function), printable(&what.known.name));
    let text = format!("it is unknown whether function '{function}' of service '{name}' was run: {why}");
    Error::new(ErrorKind::OutcomeUnknown, text)
}

fn late(what: &What<'_>, may_have_run: bool) -> Error {
    if may_have_run {
        return unknown(what, "it did not reply within the time-out");
    }
    let (function, name) = (printable(what.function), printable(&what.known.name));
    let text = format!(
        "function '{function}' of service '{name}' was not run within the time-out: no thread of a server \
         was free for it"
    );
    Error::new(ErrorKind::TimedOut, text)
}

fn nobody(known: &Known, why: Option<&Error>) -> Error {
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    let text = format!(
        "no process serves '{}' any more; the function was not run: wait for a server to come{why}",
        printable(&known.name)
    );
    Error::new(ErrorKind::NotFound, text)
}
