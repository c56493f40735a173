//! The requester's side: bringing an object here. Engine thread only.
//!
//! One fetch serves all gets of an object by one user; it ends when the last of them stops waiting.
//! Where an object was before is tried first ([`known`](super::known)). Else it asks the object's keeper, which
//! sends it on to a holder or keeps it until there is one, and it asks again when the members change, when a
//! holder fails it, and from time to time in any case, so that no lost message can strand it. A keeper that is silent
//! where the other one is not comes second for a while: it may be dead, and nobody have noticed yet.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::{Either, FutureExt, Shared, WeakShared, select};
use plasmon::{Error, ErrorKind, NodeId, ObjectId, Protocol};
use tracing::{debug, warn};

use super::Failure;
use super::known::Place;
use super::landing::{Given, Target};
use super::lease::Lease;
use super::record::Trace;
use super::rendezvous::Offer;
use crate::cluster::{Call, Envelope, Message, Stage, Wish};
use crate::engine::Core;
use crate::memory::Extent;
use crate::object::{Conflict, Head, Held, Role, Sealing};

/// When the other keeper is asked as well: far more than an answer takes, and little to whoever waits for a keeper that
/// has just died.
const ASK_OTHER: Duration = Duration::from_millis(50);
/// When an unanswered request is made again then; every further time after twice as long.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// And at the longest: before the keeper forgets that this node waits.
const ASK_AGAIN_AT_LAST: Duration = Duration::from_secs(8);

pub(crate) type Outcome = Pin<Box<dyn Future<Output = Result<(), Error>>>>;
/// A fetch that others may join.
pub(super) type WeakFetch = WeakShared<Outcome>;

impl Core {
    /// Brings an object here for a user. The future ends when it is sealed on this node, or with the
    /// reason why it will never be; it has no deadline of its own.
    pub(crate) fn fetch(self: &Rc<Self>, id: ObjectId, tenant: u32) -> Shared<Outcome> {
        let core = Rc::clone(self);
        self.share_fetch(id, tenant, move || Box::pin(fetch(core, id, tenant, Target::Replica)))
    }

    /// The fetch of an object for a user that is under way, or a new one.
    pub(super) fn share_fetch(
        &self,
        id: ObjectId,
        tenant: u32,
        begin: impl FnOnce() -> Outcome,
    ) -> Shared<Outcome> {
        let mut fetches = self.transfer.fetches.borrow_mut();
        if let Some(fetch) = fetches.get(&(id, tenant)).and_then(WeakShared::upgrade)
            && fetch.peek().is_none()
        {
            return fetch;
        }
        let fetch = begin().shared();
        fetches.insert((id, tenant), fetch.downgrade().expect("not polled yet"));
        fetch
    }

    /// Whether objects come by protocols that can bring their data into memory that clients give.
    pub(crate) fn lands_anywhere(&self) -> bool {
        matches!(self.config.protocol, Protocol::Auto | Protocol::Read) && !self.cluster.solo()
    }

    /// Brings an object's data into memory that a client gives; `given` says how much it is then. The future has
    /// no deadline of its own; what it leaves under way when it fails or is dropped, [`Core::settle`] waits for.
    ///
    /// # Errors
    /// The reason why the object will never come.
    pub(crate) async fn fetch_into(
        self: &Rc<Self>,
        id: ObjectId,
        tenant: u32,
        given: &Rc<Given>,
    ) -> Result<(), Error> {
        fetch(Rc::clone(self), id, tenant, Target::Given(Rc::clone(given))).await
    }

    /// How objects are to come here.
    pub(super) fn wish(&self) -> Wish {
        Wish { protocol: self.config.protocol, eager_max: self.eager_max() }
    }

    /// Seals a fetched object, unless it came to be here in another way.
    pub(super) fn seal_fetched(&self, head: Head, extent: Rc<Extent>) -> Result<(), Failure> {
        // An operation lets go of what it owns before it is seen to be over.
        let held = || Error::new(ErrorKind::Internal, "a transfer that is over still owns its memory");
        let extent = Rc::into_inner(extent).ok_or_else(|| Failure::Here(held()))?;
        let id = head.id;
        match self.objects.borrow().conflict(&id) {
            Some(Conflict::Sealed | Conflict::Creating { .. }) => {
                debug!("object {id} came to be here while it was being fetched");
                return Ok(());
            }
            None => {}
        }
        let (bytes, created) = (Held::Memory(extent), self.clock.unix_ms());
        let sealing = Sealing { head, role: Role::Cached, creator: None, bytes, created };
        self.seal(sealing).map(drop).map_err(Failure::Here)
    }
}

/// A request to the keeper, withdrawn if it is dropped before its answer came.
struct Ask {
    core: Rc<Core>,
    call: Call,
    id: ObjectId,
    keeper: NodeId,
    at: Instant,
    /// Nobody is to be told: it was answered, or could not be asked.
    settled: bool,
}

impl Ask {
    /// The answer, if there was a request.
    async fn answer(ask: &mut Option<Self>) -> Option<Envelope> {
        match ask {
            Some(ask) => ask.call.answer().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let (core, request) = (&self.core, self.call.request());
        match self.call.take_answer() {
            // It came, and nobody wants it any more.
            Some(answer) if answer.message.comes_with_a_lease() => {
                core.tell(answer.from, Message::Release { requests: vec![request] });
            }
            Some(_) => {}
            None => {
                _ = core
                    .send(self.keeper, core.envelope(request, core.node, 0, Message::Forget { id: self.id }))
            }
        }
    }
}

pub(super) async fn fetch(core: Rc<Core>, id: ObjectId, tenant: u32, target: Target) -> Result<(), Error> {
    let mut trace = Trace::begin(&core, id, tenant, &target);
    match core.fetch_known(id, tenant, &target, &mut trace).await {
        None => {}
        Some(Ok(())) => {
            trace.finish();
            return Ok(());
        }
        Some(Err(error)) => return Err(error),
    }
    let mut except = Vec::new();
    let mut patience = ASK_OTHER;
    let mut attempt = 0;
    // The request before the last: its answer may still come.
    let mut earlier = None;
    loop {
        if core.cluster.fenced() {
            // Whom to ask is known when this node is a member again.
            let _ = core.cluster.next_view().await;
            continue;
        }
        let creating = core.objects.borrow().creation(&id).is_some();
        if creating {
            // A replica could not be sealed now; a seal here ends the gets, and an abort this wait.
            core.clock.sleep(ASK_AGAIN).await;
            continue;
        }
        let next_view = core.cluster.next_view();
        let again = core.clock.sleep(patience);
        patience = (2 * patience).clamp(ASK_AGAIN, ASK_AGAIN_AT_LAST);
        let keeper = core.cluster.keeper_for(&id, attempt, core.clock.now());
        attempt += 1;
        let call = Call::open(&core, None);
        let at = core.clock.now();
        let mut ask = Ask { core: Rc::clone(&core), call, id, keeper, at, settled: false };
        let fetch = Message::Fetch { id, stage: Stage::Asked, avoid: except.clone(), wish: core.wish() };
        if !ask.call.send(keeper, tenant, fetch) && attempt % 2 == 1 {
            // It cannot be reached: the other keeper is asked at once.
            ask.settled = true;
            continue;
        }
        let answers = {
            let (last, before) = (pin!(ask.call.answer()), pin!(Ask::answer(&mut earlier)));
            match select(select(last, before), select(next_view, again)).await {
                Either::Left((Either::Left((answer, _)), _)) => Ok((answer, true)),
                Either::Left((Either::Right((answer, _)), _)) => Ok((answer, false)),
                Either::Right((Either::Left(_), _)) => Err(true),
                Either::Right((Either::Right(_), _)) => Err(false),
            }
        };
        let (answer, of_the_last) = match answers {
            Ok(answered) => answered,
            Err(followed) => {
                except.clear();
                earlier = Some(ask);
                if followed {
                    // Other keepers, perhaps: all begins anew.
                    (attempt, patience, earlier) = (0, ASK_OTHER, None);
                }
                continue;
            }
        };
        // If it came at once: the object may have been put only now.
        let at_once = core.clock.now() < ask.at + ASK_OTHER;
        match &earlier {
            Some(earlier) if of_the_last && at_once && earlier.keeper != keeper => {
                core.cluster.suspect(earlier.keeper, core.clock.now());
            }
            _ => {}
        }
        // Whoever has not answered need not: what comes nevertheless is given back.
        let mut answered = ask;
        if !of_the_last {
            answered = earlier.take().expect("it has answered");
        }
        earlier = None;
        answered.settled = true;
        let asked_at = answered.at;
        let Some(answer) = answer else { continue };
        let from = answer.from;
        match core.take(id, tenant, answer, asked_at, &target, &mut trace).await {
            Ok(()) => {
                trace.finish();
                return Ok(());
            }
            Err(Failure::Here(error)) => return Err(error),
            Err(Failure::Holder(reason)) => {
                trace.failed();
                if let Target::Given(given) = &target {
                    core.settle(given).await?;
                }
                warn!(object = %id, node = %from, %reason, "an object cannot be fetched; trying elsewhere");
                if !except.contains(&from) {
                    except.push(from);
                }
            }
        }
    }
}

impl Core {
    /// Fetches an object from where it was, if that is known; nothing when the directory is to be asked.
    async fn fetch_known(
        self: &Rc<Self>,
        id: ObjectId,
        tenant: u32,
        target: &Target,
        trace: &mut Trace,
    ) -> Option<Result<(), Error>> {
        if self.config.protocol != Protocol::Auto || self.objects.borrow().creation(&id).is_some() {
            return None;
        }
        let place = self.transfer.known.borrow_mut().get(&id).cloned()?;
        let tried = match &place.at {
            Some(at) if at.0.visible_to(tenant) => self.read_first(place.holder, at, target, trace).await,
            _ => self.fetch_direct(id, tenant, place.holder, target, trace).await,
        };
        match tried {
            Ok(()) => Some(Ok(())),
            Err(Failure::Here(error)) => Some(Err(error)),
            Err(Failure::Holder(reason)) => {
                debug!("object {id} is not to be had from node {}, where it was: {reason}", place.holder);
                self.transfer.known.borrow_mut().pop(&id);
                match target {
                    Target::Given(given) => self.settle(given).await.err().map(Err),
                    Target::Replica => None,
                }
            }
        }
    }

    /// Asks a holder without the directory.
    async fn fetch_direct(
        self: &Rc<Self>,
        id: ObjectId,
        tenant: u32,
        holder: NodeId,
        target: &Target,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        let mut call = Call::open(self, Some(holder));
        let asked_at = self.clock.now();
        let gone = || Failure::Holder("it has left the cluster".into());
        let fetch = Message::Fetch { id, stage: Stage::Direct, avoid: Vec::new(), wish: self.wish() };
        if !call.send(holder, tenant, fetch) {
            return Err(gone());
        }
        match self.clock.bounded(Some(asked_at + ASK_AGAIN), call.answer()).await {
            Some(Some(answer)) => self.take(id, tenant, answer, asked_at, target, trace).await,
            Some(None) => Err(gone()),
            None => Err(Failure::Holder(format!("it did not answer within {ASK_AGAIN:?}"))),
        }
    }

    /// Brings an object here as a holder's answer says.
    async fn take(
        self: &Rc<Self>,
        id: ObjectId,
        tenant: u32,
        answer: Envelope,
        asked_at: Instant,
        target: &Target,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        let Envelope { from, request, message, .. } = answer;
        let lease = |lease_ms| Lease::new(self, from, request, lease_ms, asked_at);
        let protocol = self.config.protocol;
        let place = match message {
            Message::Refused { error } if error.kind() == ErrorKind::NotFound => {
                return Err(Failure::Holder(error.message().to_owned()));
            }
            Message::Refused { error } => return Err(Failure::Here(error)),
            Message::Eager { head, bytes } => {
                let (name, why) = match protocol {
                    Protocol::Send => ("send", "send is asked for".to_owned()),
                    _ => ("eager", "it fits a message".to_owned()),
                };
                trace.answered(from, name, head.len(), why);
                self.take_eager(id, head, &bytes, target, trace).await?;
                Place { holder: from, at: None }
            }
            Message::Offer { head, lease_ms, pieces, stamp, others } => {
                let why = match protocol {
                    Protocol::Auto => "it fits no message".to_owned(),
                    other => format!("{other} is asked for"),
                };
                trace.answered(from, "read", head.len(), why);
                let at = stamp.map(|stamp| Rc::new((head.clone(), pieces.clone(), stamp)));
                let offer = Offer { head, pieces, lease: lease(lease_ms) };
                let others = if protocol == Protocol::Auto { others.as_slice() } else { &[] };
                self.take_offer(id, tenant, offer, others, target, trace).await?;
                Place { holder: from, at }
            }
            Message::Stream { .. } | Message::Registered { .. } | Message::Dial { .. }
                if target.is_given() =>
            {
                return Err(Failure::Holder("it answered by a protocol that needs a replica".into()));
            }
            Message::Stream { head, lease_ms } => {
                trace.answered(from, "send", head.len(), format!("{protocol} is asked for"));
                self.take_stream(id, head, lease(lease_ms), trace).await?;
                Place { holder: from, at: None }
            }
            Message::Registered { head, lease_ms, regions } => {
                trace.answered(from, "read-register", head.len(), format!("{protocol} is asked for"));
                self.take_registered(id, head, &regions, lease(lease_ms), trace).await?;
                Place { holder: from, at: None }
            }
            Message::Dial { head, lease_ms, port, secret } => {
                trace.answered(from, "socket", head.len(), format!("{protocol} is asked for"));
                self.take_dialled(id, head, (port, secret), lease(lease_ms), trace).await?;
                Place { holder: from, at: None }
            }
            other => return Err(Failure::Holder(format!("an answer of the wrong kind: {other:?}"))),
        };
        self.transfer.known.borrow_mut().put(id, place);
        Ok(())
    }
}
