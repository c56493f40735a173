//! Room in the arena, and the queue for it.
//!
//! Owns [`Room`]. Engine thread only. The store makes room in this order: it evicts objects that may
//! leave memory ([`crate::object::Table::propose`]), writes primaries to disk if there is a spill
//! directory, and moves objects together ([`super::compaction`]). A request that finds no room waits in
//! one queue, first come, first served. The request waits for as long as the node itself can make room,
//! and beyond that for as long as it asked to wait. A request without patience is served past the queue
//! if there is room, and refused at once if the node itself cannot make any.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use futures::channel::oneshot;
use plasmon::{Error, ErrorKind};

use super::Store;
use crate::memory::{AllocError, Extent, Zone};
use crate::net::frame::Withdrawal;
use crate::object::{FastPins, InMemory, Keeping, Replica};

/// Interval at which the queue is served again while only clients can free memory.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// How long spilling and moving are not tried again after they made no room.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Minimum number of bytes written to disk at a time. Writes are then fewer and larger, and the
/// next requests find room.
const SPILL_BATCH_BYTES: u64 = 16 << 20;

/// The room that a request wants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    zone: Zone,
    len: u64,
    /// The zone that is taken if the wanted one has no room, contiguous or in several places; `None` if the
    /// request takes contiguous room of the wanted zone only.
    makeshift: Option<Zone>,
}

impl Wish {
    /// A wish for contiguous room.
    fn whole(zone: Zone, len: u64) -> Self {
        Self { zone, len, makeshift: None }
    }

    /// A wish for contiguous room, or else for room in several places or in another zone.
    pub(super) fn any(zone: Zone, len: u64, makeshift: Zone) -> Self {
        Self { zone, len, makeshift: Some(makeshift) }
    }
}

/// The requests that wait for room.
#[derive(Default)]
pub(crate) struct Room {
    queue: RefCell<VecDeque<Waiting>>,
    /// Whether the task that serves the queue is running.
    served: Cell<bool>,
    pub(crate) compacted: Cell<u64>,
    /// Time until which spilling and moving are not tried again, because they made no room.
    rest_until: Cell<Option<Instant>>,
}

struct Waiting {
    wish: Wish,
    /// Time at which the request stops waiting for clients to free memory.
    due: Instant,
    answer: oneshot::Sender<Result<Extent, Error>>,
}

impl Room {
    /// Number of waiting requests.
    pub(crate) fn waiting(&self) -> u64 {
        self.queue.borrow().iter().filter(|one| !one.answer.is_canceled()).count() as u64
    }
}

impl Store {
    /// Finds room in the arena, at once or after a wait. The wait lasts for as long as the node itself
    /// can make room, and then at most for `patience`, in which clients may free memory.
    ///
    /// # Errors
    /// `TooLarge` for an object that can never fit, `Full` when the objects that remain may not leave
    /// memory.
    pub(crate) async fn room(
        self: &Rc<Self>,
        zone: Zone,
        len: u64,
        patience: Duration,
    ) -> Result<Extent, Error> {
        self.room_for(Wish::whole(zone, len), patience).await
    }

    /// Finds the room that a request wants, as [`Store::room`] does. A makeshift is taken before
    /// clients are waited for.
    ///
    /// # Errors
    /// Errors of [`Store::room`].
    pub(super) async fn room_for(self: &Rc<Self>, wish: Wish, patience: Duration) -> Result<Extent, Error> {
        let queued = !self.room.queue.borrow().is_empty();
        if !queued || patience.is_zero() {
            match self.allocate(wish.zone, wish.len) {
                Ok(extent) => return Ok(extent),
                Err(AllocError::Full { .. }) if self.can_make_room(wish.len) => {}
                Err(error) => match self.make_do(wish) {
                    Some(extent) => return Ok(extent),
                    None if matches!(error, AllocError::Full { .. }) && !patience.is_zero() => {}
                    None => return Err(self.no_room(wish.len, &error)),
                },
            }
        }
        let now = self.kernel.clock.now();
        let due = now.checked_add(patience).unwrap_or(now + Duration::from_secs(1 << 30));
        let (answer, answered) = oneshot::channel();
        self.room.queue.borrow_mut().push_back(Waiting { wish, due, answer });
        if !self.room.served.replace(true) {
            let store = Rc::clone(self);
            self.kernel.spawn(async move { store.serve_queue().await });
        }
        answered.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the node is stopping")))
    }

    /// Takes the makeshift of a request, if it has one and there is room for it.
    fn make_do(&self, wish: Wish) -> Option<Extent> {
        let Wish { zone, len, makeshift } = wish;
        let other = makeshift?;
        let in_places = |zone| {
            let places = self.regions.places_left();
            let taken = self.arena.borrow_mut().allocate_in_places(zone, len, places);
            self.follow_arena();
            taken
        };
        let made = in_places(zone).or_else(|_| self.allocate(other, len)).or_else(|_| in_places(other));
        made.inspect_err(|error| tracing::debug!(%error, len, "no room in several places either")).ok()
    }

    /// Whether the node itself could make room, so that even a request without patience waits.
    fn can_make_room(&self, len: u64) -> bool {
        let spills = self.objects.borrow().keeping() == Keeping::Disk && !self.spilling_rests();
        spills || self.could_compact(len)
    }

    /// Returns why there is no memory for `len` bytes of an object, if requests wait and nothing that the
    /// node can do helps, so that only clients can free memory.
    pub(super) fn stuck(&self, zone: Zone, len: u64) -> Option<Error> {
        let helpless = self.room.waiting() > 0 && self.room.rest_until.get().is_some();
        let error = if helpless { self.allocate(zone, len).err() } else { None };
        error.map(|error| self.no_room(len, &error))
    }

    /// Serves the waiting requests, one after the other.
    async fn serve_queue(self: Rc<Self>) {
        loop {
            let front = {
                let mut queue = self.room.queue.borrow_mut();
                while queue.front().is_some_and(|one| one.answer.is_canceled()) {
                    queue.pop_front();
                }
                queue.front().map(|one| one.wish)
            };
            let Some(wish @ Wish { zone, len, .. }) = front else {
                self.room.served.set(false);
                return;
            };
            let error = match self.allocate(zone, len) {
                Ok(extent) => {
                    self.room.rest_until.set(None);
                    self.answer_front(Ok(extent));
                    continue;
                }
                Err(error) => error,
            };
            let full = matches!(error, AllocError::Full { .. });
            let tries =
                full && self.kernel.clock.now() >= self.room.rest_until.get().unwrap_or(self.kernel.started);
            if tries {
                if self.spill(len).await {
                    self.room.rest_until.set(None);
                    continue;
                }
                if let Some(extent) = self.compact(zone, len).await {
                    self.room.rest_until.set(None);
                    self.answer_front(Ok(extent));
                    continue;
                }
                // A disk stays full, and objects stay pinned, for a while: only clients can help.
                self.room.rest_until.set(Some(self.kernel.clock.now() + RETRY_PAUSE));
            }
            if let Some(extent) = self.make_do(wish) {
                self.answer_front(Ok(extent));
                continue;
            }
            if !full {
                self.answer_front(Err(self.no_room(len, &error)));
                continue;
            }
            if tries {
                self.refuse_impatient(&error);
            }
            self.kernel.clock.sleep(LOOK_INTERVAL).await;
        }
    }

    /// Ends the wait of all requests whose time to wait for clients is over.
    fn refuse_impatient(&self, error: &AllocError) {
        let now = self.kernel.clock.now();
        let (impatient, patient) = self.room.queue.take().into_iter().partition(|one| one.due <= now);
        *self.room.queue.borrow_mut() = patient;
        let impatient: VecDeque<Waiting> = impatient;
        for one in impatient {
            // The first request in the queue may want more than there is, and this request less.
            let Wish { zone, len, .. } = one.wish;
            let found = self.allocate(zone, len).ok().or_else(|| self.make_do(one.wish));
            let answer = found.ok_or_else(|| self.no_room(len, error));
            // A requester that has gone needs no answer.
            let _ = one.answer.send(answer);
        }
    }

    fn answer_front(&self, answer: Result<Extent, Error>) {
        if let Some(front) = self.room.queue.borrow_mut().pop_front() {
            // If the requester has gone, the extent is dropped and becomes free again.
            let _ = front.answer.send(answer);
        }
    }

    /// Finds room in the arena at once; objects that may leave memory make way for it.
    pub(crate) fn allocate(&self, zone: Zone, len: u64) -> Result<Extent, AllocError> {
        loop {
            let allocated = self.arena.borrow_mut().allocate(zone, len);
            self.follow_arena();
            match allocated {
                // Nothing is evicted if the eviction of all objects would not make room.
                Err(AllocError::Full { .. }) if self.could_hold(len) && self.make_way(len).is_some() => {}
                other => return other,
            }
        }
    }

    /// Registers changes of the arena with the fabric, and tells clients.
    fn follow_arena(&self) {
        let mut arena = self.arena.borrow_mut();
        let changes = self.network.follow_arena(&mut arena);
        if !changes.is_empty() {
            let mut objects = self.objects.borrow_mut();
            for segment in changes {
                objects.shared.set_segment_version(segment, arena.version(segment));
            }
        }
    }

    /// Frees deleted objects whose pins have ended. If there are none, evicts objects until `bytes`
    /// more are free, or until no more may leave. Returns the number of bytes of data and metadata
    /// that were freed; `None` if nothing was.
    pub(crate) fn make_way(&self, bytes: u64) -> Option<u64> {
        let reaped = self.reap();
        if reaped.is_some() {
            return reaped;
        }
        // Objects that clients have pinned now are passed over. The scan after the hiding finds the
        // pins that clients set in the meantime.
        let held = self.scan_pins();
        let proposed = self.objects.borrow_mut().propose(
            bytes,
            |replica| held.of(replica) > 0,
            |replica| self.take_accessed(replica),
        );
        if proposed.is_empty() {
            return None;
        }
        let fast = self.scan_pins();
        let evicted = self.objects.borrow_mut().evict(proposed, &fast);
        let mut freed = None;
        for (replica, gone) in evicted {
            freed = Some(freed.unwrap_or(0) + replica.len());
            if gone {
                self.unpublish(replica.id(), Withdrawal::Evicted);
                self.quotas.borrow_mut().give_back(&replica);
            }
        }
        freed
    }

    /// Frees the doomed objects (deleted but pinned) whose last pin has gone. Returns the number of bytes
    /// freed; `None` if there was no such object.
    pub(crate) fn reap(&self) -> Option<u64> {
        if self.objects.borrow().limbo() == 0 {
            return None;
        }
        let fast = self.scan_pins();
        self.objects.borrow_mut().reap(&fast)
    }

    /// Scans the pins that clients have set without the engine. After the scan, no client can pin
    /// an object that was hidden before the scan.
    pub(crate) fn scan_pins(&self) -> FastPins {
        // The fence pairs with the one between a client's pin and its second look at the generation.
        fence(Ordering::SeqCst);
        let mut fast = FastPins::default();
        self.readers.fast_pins(&mut fast);
        fast
    }

    /// Whether a client has read an object without the engine since the last call.
    pub(crate) fn take_accessed(&self, replica: &Replica) -> bool {
        self.readers.take_accessed(replica)
    }

    /// Writes primaries to disk, so that their memory becomes free; returns whether any were written.
    async fn spill(self: &Rc<Self>, bytes: u64) -> bool {
        if self.objects.borrow().keeping() != Keeping::Disk || self.spilling_rests() {
            return false;
        }
        let take = |bytes, longest| {
            let mut objects = self.objects.borrow_mut();
            objects.take_dirty(bytes, longest, |replica| self.take_accessed(replica))
        };
        let pins = take(bytes.max(SPILL_BATCH_BYTES), u64::MAX);
        if pins.is_empty() {
            return false;
        }
        match self.write_to_disk(pins).await {
            Ok(()) => true,
            // None of these objects fits on the disk; other objects may.
            Err(left) if left > 0 => {
                let pins = take(left, left);
                !pins.is_empty() && self.write_to_disk(pins).await.is_ok()
            }
            Err(_) => false,
        }
    }

    /// Whether evicting everything that may leave could make room.
    pub(crate) fn could_hold(&self, len: u64) -> bool {
        let objects = self.objects.borrow();
        let InMemory { primary, kept, unsealed, .. } = objects.in_memory();
        let stays = if objects.keeping() == Keeping::Memory { primary + kept + unsealed } else { unsealed };
        let stays = stays + self.regions.bytes();
        len <= self.arena.borrow().capacity().saturating_sub(stays)
    }

    /// Makes the error that says why there is no room, and what takes the memory.
    pub(super) fn no_room(&self, len: u64, error: &AllocError) -> Error {
        let size = |bytes| ByteSize::b(bytes).display().iec();
        match error {
            AllocError::TooLarge { capacity, .. } => Error::new(
                ErrorKind::TooLarge,
                format!(
                    "an object of {} cannot fit: the whole store of node {} has {}; start that with more {}",
                    size(len),
                    self.kernel.node,
                    size(*capacity),
                    self.what_limits()
                ),
            ),
            AllocError::Full { free_total, largest_run, .. } => {
                let usage = self.arena.borrow_mut().usage();
                let why_not = match () {
                    () if len > usage.free => String::new(),
                    () if len > *free_total => {
                        format!(", but only {} of it where such an object may lie", size(*free_total))
                    }
                    () => format!(", but in pieces of at most {}", size(*largest_run)),
                };
                let mut lines = vec![format!(
                    "the store is full: {} wanted, {} free{why_not}",
                    size(len),
                    size(usage.free)
                )];
                lines.extend(self.holding(&usage).into_iter().map(|line| format!("  {line}")));
                lines.push(format!(
                    "delete objects, release what is pinned, or start the node with more {}{}",
                    self.what_limits(),
                    self.spill_advice()
                ));
                Error::new(ErrorKind::Full, lines.join("\n")).counting(len, self.held())
            }
            other => Error::new(ErrorKind::Internal, format!("cannot allocate {}: {other}", size(len))),
        }
    }

    /// Number of bytes of memory that objects hold.
    fn held(&self) -> u64 {
        let InMemory { primary, kept, cached, unsealed } = self.objects.borrow().in_memory();
        primary + kept + cached + unsealed
    }

    /// Names the settings that limit the store.
    fn what_limits(&self) -> &'static str {
        if self.kernel.config.capacity.is_some() { "--capacity and --memory" } else { "--memory" }
    }
}
