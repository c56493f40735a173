//! Rings: puts, creations, seals, aborts and deletions through shared memory, without a system call while the
//! engine is awake. The engine looks at the [`slots`](super::slots) of a client together with its ring.
//!
//! Engine thread only. A ring's entry is carried out soon or not at all: an entry that waits for other nodes
//! has a task ([`waits`](super::waits)). A client that is told to ask by the socket makes the same request
//! there, where it may wait and gets a full error. So an entry that cannot be served changes nothing.
//!
//! A client rings its bell, an eventfd in the engine's epoll set, unless it sees that the engine looks at
//! its ring anyway. The engine does so from the first ring on until it goes to sleep.

use std::cell::{OnceCell, RefCell};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use plasmon::shared::{
    Completion, Deleted, EngineChannel, MAX_DELETED, Operation, Outcome, Submission, TableId,
};
use plasmon::wire::files::parts_of;
use plasmon::wire::{MAX_METADATA, MAX_NAME, NewObject, Terms};
use plasmon::{Error, ErrorKind, ObjectId};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::sched_getcpu;

use super::client::Client;
use super::counting::{Counting, Seen};
use super::requests::{Creations, INLINE_MAX};
use super::sharing::cannot_share;
use super::slots::Slots;
use super::sockets::bell_token;
use super::waits::Waits;
use crate::kernel::ClientKey;
use crate::memory::Domain;
use crate::object::{FastPins, Replica};
use crate::sessions::Sessions;

/// Number of entries of one client served before the others get their turn.
const TURN_ENTRIES: usize = 64;

/// The engine's end of a client's page set.
pub(crate) struct Channel {
    pub(super) pages: EngineChannel,
    /// The entries that wait for other nodes.
    pub(super) waits: Waits,
    /// The client's slots, once it has asked for them.
    pub(super) slots: OnceCell<Rc<Slots>>,
    /// The bell, in the epoll set; the client has it too, so that closing it here would not remove it from
    /// the set.
    bell: Arc<OwnedFd>,
    epoll: Rc<OwnedFd>,
    /// The client's own counts when they were last added.
    seen: RefCell<Seen>,
}

/// What becomes of an entry that is carried out.
pub(super) enum Served {
    /// It was carried out, with this answer.
    Done(u64),
    /// A task completes it.
    Waits,
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.pages.close();
        // The removal fails only for a descriptor that is not in the set.
        let _ = epoll::delete(&*self.epoll, &self.bell);
    }
}

impl Channel {
    /// Tells the client whether the engine looks at its ring and its slots, and whether it may spin.
    fn set_attention(&self, looks: bool, spare: bool) {
        self.pages.set_attention(looks, spare);
        if let Some(slots) = self.slots.get() {
            slots.pages.set_attention(looks, spare);
        }
    }

    /// Whether the client has submitted anything that was not taken yet.
    fn has_submissions(&self) -> bool {
        let by_slot = |slots: &Rc<Slots>| slots.pages.has_submissions();
        self.pages.has_submissions() || self.slots.get().is_some_and(by_slot)
    }

    /// Whether the client last waited on this core.
    fn is_on_core(&self, core: usize) -> bool {
        let by_slot = |slots: &Rc<Slots>| slots.pages.is_on_core(core);
        self.pages.is_on_core(core) || self.slots.get().is_some_and(by_slot)
    }

    /// Copies the payload of an entry, once. `None` if it reaches beyond the data area.
    fn copy<'a>(&self, at: u32, len: usize, into: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        into.resize(len, 0);
        self.pages.payload(at, into).ok()?;
        Some(into)
    }
}

/// The rings that the engine looks at.
pub(crate) struct Rings {
    active: Vec<ClientKey>,
    cores: usize,
    /// Whether a client whose entries were served last waits on the engine's own core.
    shares_core: bool,
    /// The payload of an entry, copied once before anything of it is checked.
    payload: Vec<u8>,
}

impl Rings {
    pub(crate) fn new(cores: usize) -> Self {
        Self { active: Vec::new(), cores, shares_core: false, payload: Vec::new() }
    }

    /// Serves the rings and slots that were rung, and those looked at already; returns the number of entries
    /// and calls.
    pub(crate) fn turn(&mut self, creations: &Rc<Creations>, rung: &mut Vec<ClientKey>) -> usize {
        if !rung.is_empty() {
            for key in rung.drain(..) {
                if !self.active.contains(&key) {
                    self.active.push(key);
                }
            }
            // A client that is looked at rings all the same after it was given slots.
            self.attend(&creations.sessions);
        }
        let mut served = 0;
        let (payload, shares_core) = (&mut self.payload, &mut self.shares_core);
        let core = sched_getcpu();
        self.active.retain(|key| match creations.sessions.channel(*key) {
            None => false,
            Some(channel) => match creations.serve(*key, &channel, payload) {
                Ok(count) => {
                    if count > 0 {
                        let shares = channel.is_on_core(core);
                        *shares_core = shares || served > 0 && *shares_core;
                    }
                    served += count;
                    true
                }
                Err(why) => {
                    creations.sessions.let_go(*key, &why);
                    false
                }
            },
        });
        served
    }

    /// Tells all clients whose rings are looked at that they need not ring.
    fn attend(&self, sessions: &Sessions) {
        let spare = self.spares_cores();
        for channel in self.active.iter().filter_map(|key| sessions.channel(*key)) {
            channel.set_attention(true, spare);
        }
    }

    /// Whether the engine looks at any ring.
    fn are_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// Whether there are cores for the engine and all clients whose rings it looks at.
    fn spares_cores(&self) -> bool {
        (1..self.cores).contains(&self.active.len())
    }

    /// Whether to look at the rings once more before going to sleep. It costs the only client its core if it
    /// waits there.
    pub(crate) fn may_have_more(&self) -> bool {
        self.are_active() && !(self.shares_core && self.active.len() == 1)
    }

    /// Whether to look at the rings for a while before going to sleep. A client that waits on the engine's
    /// own core would have to wait for the end of that.
    pub(crate) fn may_spin(&self) -> bool {
        self.spares_cores() && !self.shares_core
    }

    /// Tells all clients to ring from now on; returns whether a client has an entry already and did not
    /// ring.
    pub(crate) fn rest(&mut self, sessions: &Sessions) -> bool {
        let channels: Vec<_> = self.active.iter().filter_map(|key| sessions.channel(*key)).collect();
        channels.iter().for_each(|channel| channel.set_attention(false, false));
        if channels.iter().any(|channel| channel.has_submissions()) {
            self.attend(sessions);
            return true;
        }
        self.active.clear();
        false
    }
}

impl Sessions {
    pub(super) fn channel(&self, key: ClientKey) -> Option<Rc<Channel>> {
        self.clients.borrow().get(&key)?.channel.clone()
    }

    /// Makes a client its page set and its bell.
    pub(crate) fn make_channel(&self, key: ClientKey) -> Result<(OwnedFd, Arc<OwnedFd>), Error> {
        let failed = |error: io::Error| cannot_share(error.to_string());
        if self.channel(key).is_some() {
            return Err(Error::new(ErrorKind::Invalid, "this client has its channel already"));
        }
        let (pages, descriptor) = EngineChannel::new().map_err(failed)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from);
        let bell = Arc::new(bell.map_err(failed)?);
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&*self.epoll, &bell, EventData::new_u64(bell_token(key)), flags)
            .map_err(io::Error::from)
            .map_err(failed)?;
        let theirs = Arc::clone(&bell);
        let seen = RefCell::new(Seen::since(self.kernel.clock.now()));
        let (slots, waits, epoll) = (OnceCell::new(), Waits::default(), Rc::clone(&self.epoll));
        let channel = Rc::new(Channel { pages, waits, slots, bell, epoll, seen });
        self.client_mut(key, |client| client.channel = Some(channel));
        Ok((descriptor, theirs))
    }

    /// Updates the clients' tables with the versions of the arena's segments.
    pub(crate) fn share_segments(&self) {
        let arena = self.store.arena.borrow();
        let mut objects = self.store.objects.borrow_mut();
        for segment in 0..arena.segment_count() {
            objects.shared.set_segment_version(segment, arena.version(segment));
        }
    }
}

impl Creations {
    /// Serves a client's ring and slots; an error ends the client.
    fn serve(
        self: &Rc<Self>,
        key: ClientKey,
        channel: &Channel,
        payload: &mut Vec<u8>,
    ) -> Result<usize, String> {
        let entries = self.serve_ring(key, channel, payload)?;
        let calls = channel.slots.get().map_or(Ok(0), |slots| self.sessions.serve_slots(key, slots))?;
        Ok(entries + calls)
    }

    /// Serves a client's ring; an error ends the client.
    fn serve_ring(
        self: &Rc<Self>,
        key: ClientKey,
        channel: &Channel,
        payload: &mut Vec<u8>,
    ) -> Result<usize, String> {
        let mut served = 0;
        while served < TURN_ENTRIES {
            let Some(submission) = channel.pages.take() else { break };
            let submission = submission.map_err(|error| format!("its ring has an invalid entry: {error}"))?;
            served += 1;
            let is_wanted = !channel.pages.was_given_up(channel.pages.last_taken());
            let submitted = is_wanted
                .then(|| self.sessions.work_as(key, || self.submitted(key, channel, &submission, payload)));
            let submitted = submitted.flatten();
            let (outcome, answer) = match submitted {
                Some(Served::Done(answer)) => (Outcome::Done, answer),
                Some(Served::Waits) => continue,
                None => (Outcome::AskBySocket, 0),
            };
            let completion = Completion { token: submission.token, outcome, answer };
            if !channel.pages.complete(&completion) {
                return Err("it does not read the completions in its ring".into());
            }
        }
        if served > 0 {
            channel.pages.wake();
        }
        Ok(served)
    }

    /// Carries out an entry. `None`: it changed nothing, and the client is to ask by the socket.
    fn submitted(
        self: &Rc<Self>,
        key: ClientKey,
        channel: &Channel,
        entry: &Submission,
        payload: &mut Vec<u8>,
    ) -> Option<Served> {
        let done = |()| Served::Done(0);
        match entry.operation {
            Operation::Put | Operation::Create => self.make_by_ring(key, channel, entry, payload),
            Operation::Seal => {
                // A client that has to wait, or was not first, is answered by the socket.
                self.claims.holds(&entry.id)?.ok()?;
                let data = channel.copy(entry.payload, small(entry.data_len)?, payload)?;
                self.seal_creation(key, entry.id, entry.digest, data).ok().map(done)
            }
            Operation::Abort => self.abort(key, entry.id).ok().map(done),
            Operation::Delete => {
                let ids = channel.copy(entry.payload, small(entry.data_len)?, payload)?;
                self.delete_by_ring(key, channel, entry, ids)
            }
        }
    }

    /// Puts an object, or begins a creation and answers with its place.
    fn make_by_ring(
        self: &Rc<Self>,
        key: ClientKey,
        channel: &Channel,
        entry: &Submission,
        payload: &mut Vec<u8>,
    ) -> Option<Served> {
        let (name_len, metadata_len) = (usize::from(entry.name_len), entry.metadata_len as usize);
        let inline_len = if entry.operation == Operation::Put { small(entry.data_len)? } else { 0 };
        if name_len > MAX_NAME || metadata_len > MAX_METADATA {
            return None;
        }
        let payload = channel.copy(entry.payload, name_len + metadata_len + inline_len, payload)?;
        let (name, rest) = payload.split_at(name_len);
        let (metadata, data) = rest.split_at(metadata_len);
        small((metadata.len() + data.len()) as u64)?;
        let object = NewObject {
            id: entry.id,
            rights: entry.rights,
            name: String::from_utf8(name.to_vec()).ok()?,
            metadata: Bytes::copy_from_slice(metadata),
            terms: Terms { fresh: entry.fresh, copies: 0, ttl_ms: entry.ttl_ms, owned: entry.owned },
        };
        if !self.claims_at_once(&object) {
            return self.make_later(key, channel, entry, object, data);
        }
        if entry.operation == Operation::Create {
            let begun = Rc::clone(self).begin_claimed(key, object, (entry.data_len, 0), Duration::ZERO);
            return begun.now_or_never()?.ok()?.tell_by_ring().ok().map(Served::Done);
        }
        let claim = self.claim_for(key, &object, Duration::ZERO).now_or_never()?.ok()?;
        let write = |extent: &crate::memory::Extent| {
            extent.write(0, data).and_then(|()| extent.write(data.len() as u64, metadata))
        };
        let made = self.make(key, object, data.len() as u64, entry.digest, Duration::ZERO, write);
        made.now_or_never()?.ok()?;
        claim.fulfil();
        Some(Served::Done(0))
    }

    /// Deletes objects, here or everywhere. The socket is to be asked for an object with a counted pin: the
    /// client may have released that pin by the socket before.
    fn delete_by_ring(
        self: &Rc<Self>,
        key: ClientKey,
        channel: &Channel,
        entry: &Submission,
        ids: &[u8],
    ) -> Option<Served> {
        let (ids, rest) = ids.as_chunks::<{ ObjectId::LEN }>();
        if !rest.is_empty() || ids.len() > MAX_DELETED {
            return None;
        }
        let ids: Vec<_> = ids.iter().map(|id| ObjectId::from_bytes(*id)).collect();
        if ids.iter().any(|id| parts_of(id).is_some()) {
            // The socket says why not.
            return None;
        }
        let at_once: Vec<_> = {
            let objects = self.store.objects.borrow();
            ids.iter().map(|id| objects.get(id).is_none_or(|replica| replica.pins() == 0)).collect()
        };
        if !self.cluster.solo() {
            let all = at_once.iter().all(|now| *now);
            return if all { self.delete_later(key, channel, entry, ids) } else { None };
        }
        let chosen: Vec<_> = ids.iter().zip(&at_once).filter(|(_, now)| **now).map(|(id, _)| *id).collect();
        let tenant = self.sessions.client(key, |client| client.uid);
        let mut outcomes = self.directory.deletion.delete_here(&chosen, tenant).into_iter();
        let deleted = Deleted::of(at_once.iter().map(|now| now.then(|| outcomes.next()).flatten()));
        Some(Served::Done(deleted.0))
    }
}

/// The size of what travels through the ring. `None` if it is larger than that may be.
fn small(len: u64) -> Option<usize> {
    (len <= u64::from(INLINE_MAX)).then_some(len as usize)
}

impl Client {
    /// Adds the pins that this client has set by itself.
    pub(crate) fn fast_pins(&self, fast: &mut FastPins) {
        if let Some(channel) = &self.channel {
            channel.pages.for_each_pin(|table, entry| fast.add(self.domain(table), entry));
        }
    }

    /// Calls `see` for every pin that this client has set by itself, until `see` says that it is enough.
    pub(super) fn each_fast_pin(
        &self,
        mut see: impl FnMut(Domain, u32) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut flow = ControlFlow::Continue(());
        if let Some(channel) = &self.channel {
            channel.pages.for_each_pin(|table, entry| {
                if flow.is_continue() {
                    flow = see(self.domain(table), entry);
                }
            });
        }
        flow
    }

    /// Adds the gets that this client has made by itself since it was last looked at.
    pub(super) fn add_counts(&self, counting: &Counting, now: Instant) {
        if let Some(channel) = &self.channel {
            counting.add(&mut channel.seen.borrow_mut(), channel.pages.counts(), now);
        }
    }

    /// Number of objects that this client has pinned by itself.
    pub(crate) fn count_fast_pins(&self) -> u64 {
        let mut count = 0;
        if let Some(channel) = &self.channel {
            channel.pages.for_each_pin(|_, _| count += 1);
        }
        count
    }

    /// Whether this client has read an object by itself since the last call.
    pub(crate) fn take_accessed(&self, replica: &Replica) -> bool {
        let Some(channel) = &self.channel else { return false };
        let table = match replica.domain() {
            Domain::Shared => TableId::Shared,
            Domain::Private(uid) if uid == self.uid => TableId::Private,
            Domain::Private(_) | Domain::Nobody => return false,
        };
        channel.pages.take_accessed(table, replica.entry())
    }

    fn domain(&self, table: TableId) -> Domain {
        match table {
            TableId::Shared => Domain::Shared,
            TableId::Private => Domain::Private(self.uid),
        }
    }
}
