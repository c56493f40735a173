//! Rings: puts, creations, seals, aborts and deletions through shared memory, without a system call while the
//! engine is awake. The engine looks at the [`slots`](super::slots) of a client together with its ring.
//!
//! Owns which rings the engine looks at. Engine thread only. Invariants: a ring's entry is carried out soon
//! or not at all: an entry that waits for other nodes has a task ([`waits`](super::waits)). An entry that
//! cannot be served changes nothing: the client is told to make the same request by the socket, where it may
//! wait and gets a full error.
//!
//! A client rings its bell, an eventfd in the engine's epoll set, unless it sees that the engine looks at its
//! ring anyway. The engine looks at a ring from its first bell on until the engine goes to sleep.

use std::cell::{OnceCell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use plasmon::shared::{Completion, Deleted, EngineChannel, MAX_DELETED, Operation, Outcome, Submission};
use plasmon::wire::files::parts_of;
use plasmon::wire::{MAX_METADATA_BYTES, MAX_NAME_BYTES, NewObject, Terms};
use plasmon::{Error, ErrorKind, ObjectId};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::sched_getcpu;

use super::channel::Channel;
use super::counting::Seen;
use super::outcomes::Outcomes;
use super::requests::{Creations, INLINE_MAX_BYTES};
use super::sharing::cannot_share;
use super::sockets::bell_token;
use crate::kernel::ClientKey;
use crate::sessions::Sessions;

/// Number of entries of one client served before the others get their turn.
const TURN_ENTRIES: usize = 64;

/// Outcome of an entry that is carried out.
enum Served {
    /// The entry was carried out, with this answer.
    Done(u64),
    /// A task completes the entry.
    Waits,
}

/// The rings that the engine looks at.
pub(crate) struct Rings {
    active: Vec<ClientKey>,
    cores: usize,
    /// Whether the client whose entries were served last waits on the engine's own core.
    shares_core: bool,
    /// The payload of an entry, copied once before any of it is checked.
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
            // A client whose ring is looked at already may still ring, after it was given slots.
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

    /// Whether to look at the rings once more before going to sleep. That costs the only client its core if
    /// the client waits there.
    pub(crate) fn may_have_more(&self) -> bool {
        self.are_active() && !(self.shares_core && self.active.len() == 1)
    }

    /// Whether to look at the rings for a while before going to sleep. A client that waits on the engine's
    /// own core would have to wait until the engine stops looking.
    pub(crate) fn may_spin(&self) -> bool {
        self.spares_cores() && !self.shares_core
    }

    /// Tells all clients to ring from now on. Returns whether a client has submitted an entry already without
    /// ringing.
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
        let (slots, outcomes, epoll) = (OnceCell::new(), Outcomes::default(), Rc::clone(&self.epoll));
        let channel = Rc::new(Channel { pages, outcomes, slots, bell, epoll, seen });
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

    /// Carries out an entry. `None` if the entry changed nothing, and the client is to ask by the socket.
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
                // A client that has to wait, or that was not the first to create the id, is answered by the
                // socket.
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
        if name_len > MAX_NAME_BYTES || metadata_len > MAX_METADATA_BYTES {
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
            terms: Terms {
                fresh: entry.fresh,
                copies: 0,
                ttl_ms: entry.ttl_ms,
                owned: entry.owned,
                replaces: false,
            },
        };
        if !self.claims_at_once(&object) {
            return self.make_later(key, channel, entry, object, data).map(|()| Served::Waits);
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

    /// Deletes objects, here or everywhere. A client is to ask by the socket for an object with a counted
    /// pin, because the client may have released that pin by the socket before.
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
            // The socket tells the reason.
            return None;
        }
        let at_once: Vec<_> = {
            let objects = self.store.objects.borrow();
            ids.iter().map(|id| objects.get(id).is_none_or(|replica| replica.pins() == 0)).collect()
        };
        if !self.cluster.solo() {
            let all = at_once.iter().all(|now| *now);
            let later = all.then(|| self.delete_later(key, channel, entry, ids)).flatten();
            return later.map(|()| Served::Waits);
        }
        let chosen: Vec<_> = ids.iter().zip(&at_once).filter(|(_, now)| **now).map(|(id, _)| *id).collect();
        let user = self.sessions.client(key, |client| client.uid);
        let mut outcomes = self.directory.deletion.delete_here(&chosen, &[], user).into_iter();
        let deleted = Deleted::of(at_once.iter().map(|now| now.then(|| outcomes.next()).flatten()));
        Some(Served::Done(deleted.0))
    }
}

/// Returns the length of data that travels through the ring. `None` if it is too long for that.
fn small(len: u64) -> Option<usize> {
    (len <= u64::from(INLINE_MAX_BYTES)).then_some(len as usize)
}
