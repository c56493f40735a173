//! Barriers of this node's clients: which clients have handles, and which have arrived. Owns
//! [`Meetings`]. Engine thread only.
//!
//! This node adds its clients up, and tells the home of a barrier how many handles they have and
//! how many calls wait. The home is told again whenever that has changed and the home has answered,
//! and so is each new home.
//!
//! Invariants: a call that has arrived passes, hears that the barrier is broken, or breaks the barrier by
//! going away. Messages of a home are accepted by the same rules as grants of locks
//! ([`tickets`](super::tickets)).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use futures::channel::oneshot;
use plasmon::shared::CallResult;
use plasmon::sync::{MAX_PARTIES, barrier_id};
use plasmon::text::printable;
use plasmon::wire::{Passed, Reply, SlotResult};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::Locks;
use super::barrier::{differs, eldest_for_people, still_broken};
use super::frames::{Meeting, Party, ask};
use super::lock::nanos;
use super::tickets::MAX_TICKETS;
use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;
use crate::service::Return;

/// How long a home may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// The pause before a home that did not answer is told again.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest pause before a home is asked again for leave to open a barrier.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a generation that was passed is remembered, for a new home.
const REMEMBERED_TIME: Duration = Duration::from_secs(60);

/// A call that waits at a barrier.
struct Arrival {
    number: u64,
    client: ClientKey,
    passed: oneshot::Sender<Result<Passed, Error>>,
}

/// A barrier as the clients of this node have it.
struct Here {
    row: Meeting,
    arrivals: VecDeque<Arrival>,
    /// Whether the home has to be told of a change.
    changed: bool,
    /// Whether a task is telling the home.
    is_telling: bool,
    /// Time when the last handle was closed.
    idle_since: u64,
    /// The open handles, the oldest first, with the processes of their clients.
    open: BTreeMap<u32, u32>,
    /// The party that has been there for the longest, on any node, as the home last told it.
    eldest: Option<Party>,
}

/// The barriers of a client by its handles, each with the client's process.
type Opened = HashMap<u32, (ObjectId, u32)>;

/// The barriers of this node's clients.
#[derive(Default)]
pub(super) struct Meetings {
    here: RefCell<BTreeMap<ObjectId, Here>>,
    /// The handles of each client.
    handles: RefCell<HashMap<ClientKey, Opened>>,
    /// Senders for tasks that wait until the homes know of all changes.
    settling: RefCell<Vec<oneshot::Sender<()>>>,
    last_handle: Cell<u32>,
    last_arrival: Cell<u64>,
}

/// A handle that is being opened.
struct Opening {
    locks: Rc<Locks>,
    id: ObjectId,
    is_open: bool,
}

impl Drop for Opening {
    fn drop(&mut self) {
        if !self.is_open {
            self.locks.leave(&self.id, None);
        }
    }
}

/// A call that waits. If this value is dropped before the call has the result, the barrier is broken.
struct Waiting {
    locks: Rc<Locks>,
    id: ObjectId,
    number: u64,
    pid: u32,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut here = self.locks.meetings.here.borrow_mut();
        let Some(one) = here.get_mut(&self.id) else { return };
        let before = one.arrivals.len();
        one.arrivals.retain(|arrival| arrival.number != self.number);
        if one.arrivals.len() < before {
            let (name, node) = (printable(&one.row.name), self.locks.kernel.node);
            let why =
                format!("barrier '{name}' is broken: process {} on node {node} waited no longer", self.pid);
            one.break_up(why);
            drop(here);
            self.locks.gather(self.id);
        }
    }
}

impl Here {
    fn new(name: String, owner: Option<u32>, parties: u32) -> Self {
        let row = Meeting {
            name,
            owner,
            parties,
            life: 0,
            handles: 0,
            left: 0,
            pid: 0,
            arrived: 0,
            generation: 0,
            first: 0,
            count: 0,
            broken: None,
        };
        Self {
            row,
            arrivals: VecDeque::new(),
            changed: false,
            is_telling: false,
            idle_since: 0,
            open: BTreeMap::new(),
            eldest: None,
        }
    }

    /// Breaks the barrier for the calls that wait here.
    fn break_up(&mut self, why: String) {
        let why = self.row.broken.get_or_insert(why).clone();
        self.changed = true;
        for arrival in self.arrivals.drain(..) {
            // The waiting task may have gone.
            _ = arrival.passed.send(Err(Error::new(ErrorKind::Broken, why.clone())));
        }
    }

    fn told(&self) -> Meeting {
        let pid = self.open.first_key_value().map_or(0, |(_, pid)| *pid);
        Meeting { arrived: self.arrivals.len() as u32, pid, ..self.row.clone() }
    }
}

impl Locks {
    /// Makes a handle to a barrier, if its home agrees.
    pub(super) async fn open_barrier(
        self: Rc<Self>,
        client: ClientKey,
        name: String,
        public: bool,
        parties: u32,
        timeout_us: u64,
    ) -> Result<Reply, Error> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if name.is_empty() {
            return invalid("a barrier needs a name".to_owned());
        }
        if !(1..=MAX_PARTIES).contains(&parties) {
            return invalid(format!("{parties} parties are not between 1 and {MAX_PARTIES}"));
        }
        let open = self.meetings.handles.borrow().get(&client).map_or(0, HashMap::len);
        if open >= MAX_TICKETS {
            let text = format!("this client has {MAX_TICKETS} handles to barriers already: close some");
            return Err(Error::new(ErrorKind::Full, text));
        }
        let (user, pid) = self.sessions.client(client, |client| (client.uid, client.pid));
        let owner = (!public).then_some(user);
        let id = barrier_id(owner, &name);
        let mut opening = self.enter(id, name.clone(), owner, parties)?;
        let due = self.sessions.due(timeout_us);
        let why = RefCell::new(None);
        let joined = self.kernel.clock.bounded(due, self.leave_to_open(&id, user, &why)).await;
        let joined = joined.unwrap_or_else(|| {
            let home = self.places.home(&id);
            let unheard = || format!("node {home}, which decides about it, does not answer");
            let why = why.take().unwrap_or_else(unheard);
            let text = format!("barrier '{}' was not opened in time: {why}", printable(&name));
            Err(Error::new(ErrorKind::TimedOut, text))
        })?;
        let handle = self.meetings.last_handle.get().wrapping_add(1);
        self.meetings.last_handle.set(handle);
        if let Some(one) = self.meetings.here.borrow_mut().get_mut(&id) {
            let ask::Joined { life, generation, eldest } = joined;
            one.open.insert(handle, pid);
            one.eldest = eldest;
            if one.row.life != life {
                (one.row.life, one.row.generation) = (life, generation);
                (one.row.first, one.row.count) = (0, 0);
            }
        }
        opening.is_open = true;
        self.meetings.handles.borrow_mut().entry(client).or_default().insert(handle, (id, pid));
        // The home learns the process as well.
        self.gather(id);
        Ok(Reply::BarrierOpened { barrier: handle })
    }

    /// Asks the home of a barrier for leave to open a handle, until the home answers. `why` has what the home
    /// last said against it.
    async fn leave_to_open(
        self: &Rc<Self>,
        id: &ObjectId,
        user: u32,
        why: &RefCell<Option<String>>,
    ) -> Result<ask::Joined, Error> {
        let mut pause = PAUSE;
        loop {
            let row = self.meetings.here.borrow().get(id).map(Here::told);
            let Some(row) = row else {
                return Err(Error::new(ErrorKind::Internal, "a barrier has gone that is being opened"));
            };
            let question = ask::Gather { row, opening: true };
            match self.network.ask(self.places.home(id), user, question, ANSWER_PATIENCE).await {
                Err(error) if is_for_now(&error) => {
                    why.replace(Some(error.message().to_owned()));
                    self.kernel.clock.sleep(pause).await;
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
                joined => return joined,
            }
        }
    }

    /// Adds a handle that is being opened.
    fn enter(
        self: &Rc<Self>,
        id: ObjectId,
        name: String,
        owner: Option<u32>,
        parties: u32,
    ) -> Result<Opening, Error> {
        let mut here = self.meetings.here.borrow_mut();
        let one = here.entry(id).or_insert_with(|| Here::new(name.clone(), owner, parties));
        if one.row.handles == 0 {
            *one = Here { is_telling: one.is_telling, ..Here::new(name, owner, parties) };
        }
        let eldest = one.eldest.or_else(|| {
            let (_, pid) = one.open.first_key_value()?;
            Some(Party { node: self.kernel.node, pid: *pid })
        });
        if one.row.parties != parties {
            return Err(differs(&one.row.name, (one.row.parties, parties), eldest));
        }
        if let Some(why) = &one.row.broken {
            return Err(still_broken(why, eldest));
        }
        one.row.handles += 1;
        Ok(Opening { locks: Rc::clone(self), id, is_open: false })
    }

    /// Ends a handle, which has no number if it was not opened yet.
    fn leave(self: &Rc<Self>, id: &ObjectId, handle: Option<u32>) {
        let mut here = self.meetings.here.borrow_mut();
        let Some(one) = here.get_mut(id) else { return };
        one.row.handles = one.row.handles.saturating_sub(1);
        one.row.left = one.row.left.wrapping_add(u32::from(handle.is_some()));
        handle.iter().for_each(|handle| _ = one.open.remove(handle));
        one.idle_since = self.kernel.clock.boot_ns();
        one.changed = true;
        drop(here);
        self.gather(*id);
    }

    /// Closes a client's handle to a barrier, which breaks the barrier for calls that wait. The
    /// answer comes when the home knows of the close. So every client that opens the barrier
    /// afterwards finds it closed by this one.
    pub(super) async fn close_barrier(
        self: Rc<Self>,
        client: ClientKey,
        handle: u32,
    ) -> Result<Reply, Error> {
        let id = {
            let mut handles = self.meetings.handles.borrow_mut();
            handles.get_mut(&client).and_then(|handles| handles.remove(&handle))
        };
        let Some((id, _)) = id else { return Ok(Reply::Done) };
        self.leave(&id, Some(handle));
        let due = Some(self.kernel.clock.now() + ANSWER_PATIENCE);
        while self.meetings.are_telling(|one| *one == id) {
            let (sender, settled) = oneshot::channel();
            self.meetings.settling.borrow_mut().push(sender);
            if self.kernel.clock.bounded(due, settled).await.is_none() {
                // The home is away, and is told when it is back.
                break;
            }
        }
        Ok(Reply::Done)
    }

    /// Ends the handles of a client that has gone, which breaks their barriers.
    pub(super) fn end_parties(self: &Rc<Self>, client: ClientKey) {
        let handles = self.meetings.handles.borrow_mut().remove(&client);
        for (handle, (id, pid)) in handles.into_iter().flatten() {
            if let Some(one) = self.meetings.here.borrow_mut().get_mut(&id) {
                one.arrivals.retain(|arrival| arrival.client != client);
                let (name, node) = (printable(&one.row.name), self.kernel.node);
                let why = format!("barrier '{name}' is broken: process {pid} on node {node} has ended");
                one.break_up(why);
            }
            self.leave(&id, Some(handle));
        }
    }

    /// Waits at a barrier.
    pub(super) fn arrive(self: &Rc<Self>, client: ClientKey, handle: u32, timeout_us: u64) -> Return {
        let id = {
            let handles = self.meetings.handles.borrow();
            handles.get(&client).and_then(|handles| handles.get(&handle)).copied()
        };
        let Some((id, pid)) = id else {
            let text = format!("this connection has no handle {handle} to a barrier: open it again");
            return Return::Now(Err(Error::new(ErrorKind::NotFound, text)));
        };
        let number = self.meetings.last_arrival.get() + 1;
        self.meetings.last_arrival.set(number);
        let (passed, told) = oneshot::channel();
        let name = {
            let mut here = self.meetings.here.borrow_mut();
            let Some(one) = here.get_mut(&id) else {
                return Return::Now(Err(Error::new(ErrorKind::Internal, "a barrier with handles has gone")));
            };
            if let Some(why) = &one.row.broken {
                return Return::Now(Err(Error::new(ErrorKind::Broken, why.clone())));
            }
            one.arrivals.push_back(Arrival { number, client, passed });
            one.changed = true;
            one.row.name.clone()
        };
        self.gather(id);
        let due = self.sessions.due(timeout_us);
        let waiting = Waiting { locks: Rc::clone(self), id, number, pid };
        Return::in_time(async move {
            let waiting = waiting;
            match waiting.locks.kernel.clock.bounded(due, told).await {
                Some(Ok(result)) => result.map(|passed| CallResult::of(&passed.values())),
                Some(Err(_)) => Err(Error::new(ErrorKind::Interrupted, "the client has gone")),
                None => {
                    let eldest = waiting.locks.meetings.eldest(&id, (waiting.locks.kernel.node, pid));
                    let text = format!(
                        "not all parties arrived at barrier '{}' in time; it is broken now{eldest}",
                        printable(&name)
                    );
                    Err(Error::new(ErrorKind::TimedOut, text))
                }
            }
        })
    }

    /// Tells the home of a barrier what has changed, at once or after its next answer.
    fn gather(self: &Rc<Self>, id: ObjectId) {
        let mut here = self.meetings.here.borrow_mut();
        let Some(one) = here.get_mut(&id) else { return };
        one.changed = true;
        if std::mem::replace(&mut one.is_telling, true) {
            return;
        }
        drop(here);
        let locks = Rc::clone(self);
        self.kernel.spawn(async move {
            while let Some(row) = locks.next_told(&id) {
                let home = locks.places.home(&id);
                let question = ask::Gather { row, opening: false };
                match locks.network.ask(home, 0, question, ANSWER_PATIENCE).await {
                    Ok(ask::Joined { eldest, .. }) => locks.meetings.note_eldest(&id, eldest),
                    Err(_) => {
                        locks.meetings.note_changed(&id);
                        locks.kernel.clock.sleep(PAUSE).await;
                    }
                }
            }
        });
    }

    /// Returns the next meeting that the home is to be told of; `None` if the home knows of all changes.
    fn next_told(&self, id: &ObjectId) -> Option<Meeting> {
        let mut here = self.meetings.here.borrow_mut();
        let one = here.get_mut(id)?;
        one.is_telling = std::mem::take(&mut one.changed);
        if !one.is_telling {
            // The waiting task may have gone.
            self.meetings.settling.take().into_iter().for_each(|waits| _ = waits.send(()));
        }
        one.is_telling.then(|| one.told())
    }

    /// Takes the message of a home that a barrier is passed.
    pub(super) fn take_passed(&self, from: (NodeId, u64), id: &ObjectId, told: ask::Passed) {
        let mut here = self.meetings.here.borrow_mut();
        let Some(one) = here.get_mut(id).filter(|_| self.is_from_home(from, id)) else { return };
        let ask::Passed { life, generation, first, count, .. } = told;
        let is_next = generation >= one.row.generation;
        if one.row.life != life
            || one.row.broken.is_some()
            || generation.saturating_add(1) < one.row.generation
        {
            return;
        }
        if is_next {
            (one.row.generation, one.row.first, one.row.count) = (generation.saturating_add(1), first, count);
        } else {
            one.row.count = one.row.count.saturating_add(count);
        }
        for index in first..first.saturating_add(count) {
            let Some(arrival) = one.arrivals.pop_front() else { break };
            // The waiting task may have gone.
            _ = arrival.passed.send(Ok(Passed { index, generation }));
        }
    }

    /// Takes the message of a home that a barrier is broken.
    pub(super) fn take_broken(&self, from: (NodeId, u64), id: &ObjectId, life: u64, why: String) {
        let mut here = self.meetings.here.borrow_mut();
        let one = here.get_mut(id).filter(|one| one.row.life == life && self.is_from_home(from, id));
        one.into_iter().for_each(|one| one.break_up(why.clone()));
    }

    /// Whether a message that was sent in the view of an epoch is from the present home.
    fn is_from_home(&self, (from, epoch): (NodeId, u64), id: &ObjectId) -> bool {
        self.places.home(id) == from && self.places.moved(id) <= epoch && !self.cluster.fenced()
    }

    /// Tells new homes what this node's clients do.
    pub(super) fn gather_again(self: &Rc<Self>, is_new: impl Fn(&ObjectId) -> bool) {
        let ids: Vec<_> = self.meetings.here.borrow().keys().copied().collect();
        for id in ids.into_iter().filter(is_new) {
            self.meetings.note_changed(&id);
            self.gather(id);
        }
    }
}

impl Meetings {
    fn note_changed(&self, id: &ObjectId) {
        if let Some(one) = self.here.borrow_mut().get_mut(id) {
            one.changed = true;
        }
    }

    fn note_eldest(&self, id: &ObjectId, eldest: Option<Party>) {
        if let Some(one) = self.here.borrow_mut().get_mut(id) {
            one.eldest = eldest;
        }
    }

    /// Says for people which party has been at a barrier for the longest, unless it is the one that is told.
    fn eldest(&self, id: &ObjectId, (node, pid): (NodeId, u32)) -> String {
        let eldest = self.here.borrow().get(id).and_then(|one| one.eldest);
        eldest_for_people(eldest.filter(|eldest| (eldest.node, eldest.pid) != (node, pid)))
    }

    /// Whether the homes of some of these barriers are still to be told of a change.
    pub(super) fn are_telling(&self, is_meant: impl Fn(&ObjectId) -> bool) -> bool {
        self.here.borrow().iter().any(|(id, one)| one.is_telling && is_meant(id))
    }

    /// Breaks all barriers with handles, because this node is no member any more.
    pub(super) fn break_all(&self, why: &str) {
        for one in self.here.borrow_mut().values_mut().filter(|one| one.row.handles > 0) {
            let name = printable(&one.row.name).to_string();
            one.break_up(format!("barrier '{name}' is broken: {why}"));
        }
    }

    /// Forgets the barriers to which no client has had a handle for a while.
    pub(super) fn forget(&self, now: u64) {
        let late = |one: &Here| now.saturating_sub(one.idle_since) > nanos(REMEMBERED_TIME);
        self.here.borrow_mut().retain(|_, one| one.row.handles > 0 || one.is_telling || !late(one));
    }

    /// Number of calls that wait.
    pub(super) fn waiting(&self) -> u64 {
        self.here.borrow().values().map(|one| one.arrivals.len() as u64).sum()
    }
}

/// Whether an error of a home may soon be over.
fn is_for_now(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotHere | ErrorKind::TimedOut | ErrorKind::Disconnected)
}
