//! Spilling: primaries are written to disk and read back. The state is that of `Store`. Engine
//! thread only; the spill thread does the I/O.
//!
//! An object that is being written stays readable, pinned, where it is. It leaves memory only when it
//! is on disk. An object that is read back gets new memory. Both operations go on if nobody waits any
//! more. After a failure of the disk, writing is tried again after longer and longer pauses, and at
//! once when an object on the disk was deleted.

use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use futures::future::{FutureExt, Shared};
use plasmon::text::printable;
use plasmon::{Error, ErrorKind, ObjectId};
use tracing::{debug, info, warn};

use super::Store;
use super::quotas::NOBODY;
use crate::kernel::random::HashMap;
use crate::memory::{Writer, Zone};
use crate::net::frame::Holding;
use crate::object::{DEEDS, Head, Held, Keeping, Pin, Replica, Role, Sealing};
use crate::spill::{Header, Item, Recovered, SpillError, SpillStore};

/// How long an object on disk waits for others to make room for its return.
const ROOM_PATIENCE: Duration = Duration::from_secs(3);

/// The pause after a first failure, in which nothing is written. The pause doubles with each
/// further failure, up to [`MAX_FAILURE_PAUSE`].
const FAILURE_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause after failures.
const MAX_FAILURE_PAUSE: Duration = Duration::from_secs(30);

/// Interval at which the disk is asked for its free bytes.
const LOOK_AGE: Duration = Duration::from_secs(1);

/// Maximum number of bytes on disk beside an object's own: its record, the rest of its last page,
/// and the header of its file.
const RECORD_OVERHEAD_BYTES: u64 = 16 << 10;

/// The last failure to write objects to disk.
pub(crate) struct Failing {
    error: SpillError,
    pause: Duration,
    retry: Instant,
}

impl Failing {
    /// Makes the state after a failure, which may follow another failure.
    fn after(before: Option<Failing>, error: SpillError, now: Instant) -> Failing {
        let pause = before.map_or(FAILURE_PAUSE, |before| (before.pause * 2).min(MAX_FAILURE_PAUSE));
        Failing { error, pause, retry: now + pause }
    }

    /// Whether `error` is of the same kind as this failure.
    fn goes_on(&self, error: &SpillError) -> bool {
        std::mem::discriminant(&self.error) == std::mem::discriminant(error)
    }
}

/// Objects that are being read back, each with how long that waits for room, and the tasks that wait for it.
pub(crate) type Restoring = HashMap<(ObjectId, Duration), Shared<oneshot::Receiver<Result<(), Error>>>>;

impl Store {
    pub(crate) fn spill_store(&self) -> Option<&SpillStore> {
        self.spill.as_ref()
    }

    /// Writes objects to disk, or those of them for which the disk has room.
    ///
    /// # Errors
    /// When no object was written: the number of bytes of objects for which the disk has room.
    pub(crate) async fn write_to_disk(&self, mut pins: Vec<Pin>) -> Result<(), u64> {
        let Some(disk) = self.spill_store() else { return Err(0) };
        // The reason why some objects were left out.
        let mut full = None;
        loop {
            let item = |pin: &Pin| Item { head: header(pin), bytes: pin.run().io_range() };
            let items = pins.iter().map(item);
            let (written, written_from) = disk.write(items.collect(), pins).await;
            pins = written_from;
            match written {
                Ok(places) => {
                    let mut objects = self.objects.borrow_mut();
                    for (pin, place) in pins.iter().zip(places) {
                        if !objects.written(pin.replica(), place) {
                            disk.forget(place);
                        }
                    }
                    match full {
                        Some(error) => self.spilling_failed(error),
                        None if self.spill_failure.take().is_some() => info!("objects can be spilled again"),
                        None => {}
                    }
                    return Ok(());
                }
                Err(error) => {
                    let free = if let SpillError::NoSpace { free, .. } = error { free } else { 0 };
                    let (fit, rest) = fitting(pins, free);
                    let mut objects = self.objects.borrow_mut();
                    rest.iter().for_each(|pin| objects.not_written(pin.replica()));
                    drop(objects);
                    if fit.is_empty() {
                        self.spilling_failed(full.unwrap_or(error));
                        return Err(free.saturating_sub(RECORD_OVERHEAD_BYTES));
                    }
                    full.get_or_insert(error);
                    pins = fit;
                }
            }
        }
    }

    /// Notes that objects that should be on disk stay in memory. Logs only the first of several
    /// failures of one kind.
    fn spilling_failed(&self, error: SpillError) {
        let before = self.spill_failure.take();
        if before.as_ref().is_some_and(|before| before.goes_on(&error)) {
            debug!("objects still cannot be spilled: {error}");
        } else {
            warn!("objects cannot be spilled and stay in memory, until a further attempt succeeds: {error}");
        }
        let failing = Failing::after(before, error, self.kernel.clock.now());
        *self.spill_failure.borrow_mut() = Some(failing);
    }

    /// Whether writing to disk failed so lately that it is not tried now.
    pub(crate) fn spilling_rests(&self) -> bool {
        self.spill_failure.borrow().as_ref().is_some_and(|failing| self.kernel.clock.now() < failing.retry)
    }

    /// Number of bytes that were free on the disk at the last look, which is asked for once a second. 0
    /// if objects do not go to disk, or if writing failed lately.
    pub(crate) fn free_on_disk(&self) -> u64 {
        let Some(disk) = self.spill_store() else { return 0 };
        if self.objects.borrow().keeping() != Keeping::Disk || self.spilling_rests() {
            return 0;
        }
        let now = self.kernel.clock.now();
        if self.disk_looked.get().is_none_or(|looked| now >= looked + LOOK_AGE) {
            self.disk_looked.set(Some(now));
            disk.look_at_free();
        }
        disk.usage().free_bytes
    }

    /// Why writing to disk failed at the last attempt.
    pub(crate) fn spill_failure(&self) -> Option<String> {
        self.spill_failure.borrow().as_ref().map(|failing| failing.error.to_string())
    }

    /// Explains, for an error, why the store is full although it has a disk, or that it has none.
    pub(crate) fn spill_advice(&self) -> String {
        match (self.spill_failure(), self.spill_store()) {
            (Some(failure), _) => format!(". Spilling failed: {}", printable(&failure)),
            (None, None) => ", or with --spill-dir".into(),
            (None, Some(_)) => String::new(),
        }
    }

    /// Brings an object of this node back into memory, if it is on disk.
    ///
    /// # Errors
    /// Errors of [`Store::room`] if no room was made for it in time, `Damaged` if the bytes are.
    pub(crate) async fn bring_back(self: &Rc<Self>, replica: &Rc<Replica>) -> Result<(), Error> {
        self.bring_back_within(replica, ROOM_PATIENCE).await
    }

    /// Brings an object back as [`Store::bring_back`] does, but waits for no client to make room.
    ///
    /// # Errors
    /// Errors of [`Store::bring_back`].
    pub(crate) async fn bring_back_at_once(self: &Rc<Self>, replica: &Rc<Replica>) -> Result<(), Error> {
        self.bring_back_within(replica, Duration::ZERO).await
    }

    async fn bring_back_within(
        self: &Rc<Self>,
        replica: &Rc<Replica>,
        patience: Duration,
    ) -> Result<(), Error> {
        if replica.in_memory() {
            return Ok(());
        }
        let id = replica.id();
        if replica.is_deed() {
            let text = format!("object {id} is the deed of a region, which has no bytes");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let key = (id, patience);
        let under_way = self.restoring.borrow().get(&key).cloned();
        let restored = under_way.unwrap_or_else(|| {
            let (sender, receiver) = oneshot::channel();
            let receiver = receiver.shared();
            self.restoring.borrow_mut().insert(key, receiver.clone());
            let (store, replica) = (Rc::clone(self), Rc::clone(replica));
            self.kernel.spawn(async move {
                let restored = store.restore(&replica, patience).await;
                store.restoring.borrow_mut().remove(&key);
                // The receiver is gone if nobody waits any more.
                let _ = sender.send(restored);
            });
            receiver
        });
        restored.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the node is stopping")))
    }

    /// Returns why an object that is being read back finds no memory, if only clients can free some.
    pub(crate) fn cannot_come_back(&self, replica: &Replica) -> Option<Error> {
        let id = replica.id();
        let waits = self.restoring.borrow().contains_key(&(id, ROOM_PATIENCE));
        let error = if waits { self.stuck(zone_on_return(replica), replica.len()) } else { None };
        error.map(|error| no_memory(id, &error))
    }

    async fn restore(self: &Rc<Self>, replica: &Rc<Replica>, patience: Duration) -> Result<(), Error> {
        let id = replica.id();
        let room = self.room(zone_on_return(replica), replica.len(), patience);
        let extent = room.await.map_err(|error| no_memory(id, &error))?;
        if replica.in_memory() {
            // Somebody with another patience was faster.
            return Ok(());
        }
        let (Some(place), Some(disk)) = (replica.on_disk(), self.spill_store()) else {
            // The object was deleted: the waiters look again.
            return Ok(());
        };
        let digest = replica.snapshot().digest;
        let (read, extent) = disk.read(place, id, digest, extent).await;
        if !self.objects.borrow().has(replica) {
            return Ok(());
        }
        read.map_err(|error| damaged(id, &error))?;
        self.objects.borrow_mut().restored(replica, extent);
        Ok(())
    }

    /// Returns the digest that the bytes of an object on disk have if they are not damaged; `None` if the
    /// object is not on disk any more.
    ///
    /// # Errors
    /// `Damaged` if the object's record is damaged, or if its bytes were found damaged before.
    pub(crate) async fn promised_on_disk(&self, replica: &Replica) -> Result<Option<u64>, Error> {
        let (id, digest) = (replica.id(), replica.snapshot().digest);
        let (Some(place), Some(disk)) = (replica.on_disk(), self.spill_store()) else { return Ok(None) };
        if let Some((_, error)) = self.unreadable.borrow().get(&id).filter(|(life, _)| *life == replica.life)
        {
            return Err(error.clone());
        }
        let (promised, ()) = disk.promised(place, id, digest, replica.len()).await;
        if replica.on_disk().is_none() {
            return Ok(None);
        }
        promised.map(Some).map_err(|error| damaged(id, &error))
    }

    /// Notes that the bytes of an object on disk cannot be read, or are not those that were promised.
    pub(crate) fn note_unreadable(&self, replica: &Replica, error: Error) {
        if replica.on_disk().is_some() {
            self.unreadable.borrow_mut().insert(replica.id(), (replica.life, error));
        }
    }

    /// Reads `len` bytes from `at` on of an object that is on disk, without bringing the object into memory.
    ///
    /// # Errors
    /// `NotFound` if the object is not on disk any more, `Damaged` if the bytes cannot be read.
    pub(crate) async fn read_on_disk(
        &self,
        replica: &Replica,
        at: u64,
        len: usize,
    ) -> Result<Vec<u8>, Error> {
        let id = replica.id();
        let (Some(place), Some(disk)) = (replica.on_disk(), self.spill_store()) else {
            return Err(Error::new(ErrorKind::NotFound, format!("object {id} was deleted")));
        };
        let (part, ()) = disk.read_part(place, id, replica.len(), (at, len)).await;
        part.map_err(|error| damaged(id, &error))
    }

    /// Frees the bytes on disk of an object that is gone.
    pub(crate) fn forget_on_disk(&self, replica: &Replica) {
        if let (Some(place), Some(disk)) = (replica.on_disk(), self.spill_store()) {
            replica.set_on_disk(None);
            self.unreadable.borrow_mut().remove(&replica.id());
            disk.forget(place);
            if let Some(failing) = &mut *self.spill_failure.borrow_mut() {
                // The disk may have room now.
                failing.retry = self.kernel.clock.now();
            }
        }
    }

    /// Takes over the objects that a former daemon left on disk. Returns the objects that were taken over.
    pub(crate) fn recover(&self, recovered: Vec<Recovered>) -> Vec<Rc<Replica>> {
        let mut taken = Vec::new();
        for Recovered { header, place } in recovered {
            if header.owned || header.user == DEEDS {
                // The client of an owned object was one of the former daemon's, and is gone. So is
                // the region or service of a deed.
                self.spill_store().inspect(|disk| disk.forget(place));
                continue;
            }
            let (created, head) = (header.created, Head::from(header));
            let (user, len) = (head.user, head.len());
            let bytes = Held::Disk(place);
            let new = Sealing { head, role: Role::Primary, creator: Some(NOBODY), bytes, created };
            let sealed = self.objects.borrow_mut().seal(new);
            match sealed {
                Ok(replica) => {
                    // Another node may have taken the role, and has the bytes at hand.
                    replica.set_heir(true);
                    self.publish(Holding::of(&replica));
                    self.quotas.borrow_mut().count(user, len);
                    taken.push(replica);
                }
                Err(error) => warn!("a spilled object stays on disk for the next daemon: {error}"),
            }
        }
        let count = taken.len();
        if count > 0 {
            info!("{count} objects of a former daemon are on disk, and are read when they are asked for");
        }
        taken
    }
}

/// Splits objects into those for which a disk has room together, fewer than all of them, and the rest.
fn fitting(pins: Vec<Pin>, free: u64) -> (Vec<Pin>, Vec<Pin>) {
    let need = |pin: &Pin| pin.replica().len().saturating_add(RECORD_OVERHEAD_BYTES);
    let all = pins.iter().fold(0u64, |sum, pin| sum.saturating_add(need(pin)));
    // A disk may grant a user less than it reports as free.
    let mut left = if free < all { free } else { all / 2 };
    pins.into_iter().partition(|pin| {
        let fits = need(pin) <= left;
        left -= if fits { need(pin) } else { 0 };
        fits
    })
}

/// The header of an object's record on disk.
fn header(replica: &Replica) -> Header {
    let Head { id, name, life, user, rights, data_len, metadata_len, digest, copies, expires, owned } =
        replica.head();
    let created = replica.created;
    Header {
        id,
        name: name.into(),
        life,
        user,
        rights,
        data_len,
        metadata_len,
        digest,
        created,
        copies,
        expires,
        owned,
    }
}

impl From<Header> for Head {
    fn from(header: Header) -> Self {
        let Header {
            id,
            name,
            life,
            user,
            rights,
            data_len,
            metadata_len,
            digest,
            copies,
            expires,
            owned,
            ..
        } = header;
        Self {
            id,
            name: name.into(),
            life,
            user,
            rights,
            data_len,
            metadata_len,
            digest,
            copies,
            expires,
            owned,
        }
    }
}

/// Returns the zone for an object that is read back from disk.
fn zone_on_return(replica: &Replica) -> Zone {
    Zone { domain: replica.domain(), writer: Writer::Engine }
}

fn no_memory(id: ObjectId, error: &Error) -> Error {
    let text = format!("object {id} is on disk, and there is no memory for it: {}", error.message());
    Error::new(error.kind(), text)
}

fn damaged(id: ObjectId, error: &SpillError) -> Error {
    let text = format!("object {id} cannot be read back: {error}");
    Error::new(ErrorKind::Damaged, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit() {
        let now = Instant::now();
        let mut pauses = Vec::new();
        let mut failing = None;
        for _ in 0..10 {
            let one = Failing::after(failing, SpillError::Stopped, now);
            pauses.push((one.retry - now).as_millis());
            failing = Some(one);
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
    }
}
