//! Regions of a client: handles to memory with a name, which lives on one node and which others read and
//! write as well.
//!
//! A [`Handle`] is a number of this connection. It ends when the last clone of its [`Region`], the last view
//! and the last operation that was begun are gone. Any thread. Of a region that lives on this host, and that
//! this user may map, the handle has the memory, and operations are loads and stores ([`memory`]). All others
//! are calls by slot ([`access`], [`pending`]), whose bytes travel in the slot or through memory that the
//! daemon lent ([`transfer`]). Calls about rights, moves, snapshots and the end of a region go by the socket.
//!
//! Invariant: a change that was submitted and not answered fails with `OutcomeUnknown`, or with `Interrupted`
//! if its caller interrupted it.

mod access;
mod looping;
mod memory;
mod pending;
mod transfer;

use super::copies::await_copies;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

pub use self::looping::Awaited;
pub(super) use self::memory::RegionMemory;
pub use self::memory::View;
pub use self::pending::Pending;

use self::pending::Begun;
use super::connection::{Connection, Undo};
use super::due::{Due, due};
use super::reading::microseconds;
use super::writing::{check, new_object};
use super::{Client, CreateOptions, Question};
use crate::region::{Principal, RegionInfo, RegionState, Rights};
use crate::wire::{Request, replies, requests};
use crate::{Error, ErrorKind, NodeId, ObjectId, Result};

/// Time-out of an operation, unless the program sets another.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Named memory that lives on one node, its home, and that processes of all hosts read and write.
///
/// [`Client::create_region`] and [`Client::map_region`] give regions out. Any number of threads may use a
/// region at a time, and clones share the handle. Each operation ends within 30 s, or as
/// [`Region::with_timeout`] says.
///
/// An operation on bytes that fails with `OutcomeUnknown` may have been carried out, or may still be: the
/// home or a connection died during the operation, or time ran out. The same holds for `Interrupted`. Any
/// other error of such an operation says that nothing was changed, except that a change of more than 320
/// bytes may have been made in part.
#[derive(Clone)]
pub struct Region {
    client: Client,
    handle: Arc<Handle>,
    timeout: Duration,
    /// Whether operations may make calls.
    calls: bool,
    /// Ticket of the guard that writes show. 0 for none.
    fence: u64,
}

/// Handle to a region, which ends when this value is dropped.
pub(super) struct Handle {
    connection: Arc<Connection>,
    number: u32,
    name: String,
    len: u64,
    owner: u32,
    rights: Rights,
    home: Mutex<NodeId>,
    state: AtomicU8,
    /// Memory of the region, if this process may map it.
    memory: Option<RegionMemory>,
    /// Whether the region is known to have left `memory`.
    has_left: AtomicBool,
    /// Operations that were begun. Operations that ended are removed when the next one begins.
    begun: Mutex<Vec<Weak<Begun>>>,
}

impl Handle {
    pub(super) fn new(
        connection: Arc<Connection>,
        name: &str,
        mapped: &replies::RegionMapped,
        memory: Option<RegionMemory>,
    ) -> Arc<Self> {
        Arc::new(Self {
            connection,
            number: mapped.handle,
            name: name.to_owned(),
            len: mapped.len,
            owner: mapped.owner,
            rights: mapped.rights,
            home: Mutex::new(mapped.home),
            state: AtomicU8::new(RegionState::Live as u8),
            memory,
            has_left: AtomicBool::new(false),
            begun: Mutex::default(),
        })
    }

    /// Memory of the region, if its bytes may be read and written there.
    #[inline]
    fn mapped(&self) -> Option<&RegionMemory> {
        let memory = self.memory.as_ref()?;
        (!self.has_left.load(Ordering::Acquire) && self.connection.is_lively()).then_some(memory)
    }

    /// Lets `act` touch the memory, if the engine says that the region is still there.
    #[inline]
    fn touch<T>(&self, writes: bool, act: impl FnOnce(&RegionMemory) -> T) -> Option<T> {
        let memory = self.mapped().filter(|memory| !writes || memory.is_writable())?;
        self.connection.slots()?.touch(memory.state_word(), || act(memory))
    }

    /// Whether operations touch the memory, as far as can be known before they do.
    fn is_touchable(&self, writes: bool) -> bool {
        self.mapped().is_some_and(|memory| !writes || memory.is_writable())
    }

    /// Notes that the region is no more, if an error says so.
    fn note(&self, error: &Error) {
        let state = match error.kind() {
            ErrorKind::Freed => RegionState::Freed,
            ErrorKind::Lost => RegionState::Lost,
            _ => return,
        };
        self.state.store(state as u8, Ordering::Relaxed);
        self.has_left.store(true, Ordering::Release);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.connection.send_and_forget(&Request::UnmapRegion { handle: self.number });
    }
}

impl Region {
    pub(super) fn new(client: Client, handle: Arc<Handle>) -> Self {
        Self { client, handle, timeout: TIMEOUT, calls: true, fence: 0 }
    }

    /// Returns the same region with another time-out of each operation.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the same region, whose operations on bytes make no calls: each is some loads and stores, or
    /// fails with `NotHere` and does nothing. Such a region is for threads that must not wait.
    #[must_use]
    pub fn without_calls(self) -> Self {
        Self { calls: false, ..self }
    }

    /// Name of the region.
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// Size in bytes, which is never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.handle.len
    }

    /// Node on which the region lives, as this handle last heard ([`Region::info`]).
    pub fn home(&self) -> NodeId {
        *self.handle.home.lock()
    }

    /// User to whom the region belongs.
    pub fn owner(&self) -> u32 {
        self.handle.owner
    }

    /// Rights of the handle.
    pub fn rights(&self) -> Rights {
        self.handle.rights
    }

    /// State of the region, as the operations of this handle found it.
    pub fn state(&self) -> RegionState {
        let state = self.handle.state.load(Ordering::Relaxed);
        RegionState::from_wire(state).unwrap_or(RegionState::Live)
    }

    /// Whether the region's bytes are mapped in this process, so that operations are loads and stores.
    pub fn is_mapped(&self) -> bool {
        self.handle.touch(false, |_| ()).is_some()
    }

    /// Description of the region as it is now.
    ///
    /// # Errors
    /// `Freed` or `Lost` if the region is no more. `Disconnected`, or `TimedOut` if a node does not answer.
    pub fn info(&self) -> Result<RegionInfo> {
        self.info_until(self.due())
    }

    fn info_until(&self, due: Due) -> Result<RegionInfo> {
        let describe = requests::DescribeRegion { handle: self.handle.number };
        let replies::Region(info) = self.ask(describe, due)?;
        *self.handle.home.lock() = info.home;
        Ok(info)
    }

    /// Gives a user rights beside those that the user has. At most 64 users have rights.
    ///
    /// # Errors
    /// `NotAllowed` if this handle lacks the master's right. `Full` for too many users. Otherwise as
    /// [`Region::info`].
    pub fn grant(&self, to: Principal, rights: Rights) -> Result<()> {
        let grant = requests::GrantRegion { handle: self.handle.number, user: user_of(to), rights };
        self.ask(grant, self.due()).map(drop)
    }

    /// Takes all rights from a user, or the rights that every user has. The owner and root keep theirs.
    /// Operations of that user that began before may still be carried out.
    ///
    /// # Errors
    /// As [`Region::grant`].
    pub fn revoke(&self, from: Principal) -> Result<()> {
        let revoke = requests::RevokeRegion { handle: self.handle.number, user: user_of(from) };
        self.ask(revoke, self.due()).map(drop)
    }

    /// Moves the region to another node. Operations of others wait during the move, and go on at the new
    /// home.
    ///
    /// # Errors
    /// `NotAllowed` if this handle lacks the master's right. `NotFound` if there is no such node, `Full` if
    /// the node has no room. `Busy` if a view of the region keeps it here. After these errors the region
    /// stays where it is. Otherwise as [`Region::info`].
    pub fn move_to(&self, node: NodeId, timeout: Duration) -> Result<()> {
        let timeout_us = microseconds(Some(timeout));
        let request = requests::MoveRegion { handle: self.handle.number, node, timeout_us };
        self.ask(request, due(Some(timeout)))?;
        // Whoever finds the memory mapped after this began before the move was over.
        self.handle.has_left.store(true, Ordering::Release);
        *self.handle.home.lock() = node;
        Ok(())
    }

    /// Frees the region: its name at once, its memory when nobody has it mapped any more. Operations of all
    /// handles fail with `Freed` from then on.
    ///
    /// # Errors
    /// `NotAllowed` if this handle lacks the master's right. Otherwise as [`Region::info`].
    pub fn free(self) -> Result<()> {
        let timeout_us = microseconds(Some(self.timeout));
        self.ask(requests::FreeRegion { handle: self.handle.number, timeout_us }, self.due())?;
        self.handle.note(&Error::new(ErrorKind::Freed, ""));
        Ok(())
    }

    /// Makes an object of the region's bytes, which nobody changes while they are copied, except through
    /// mapped memory. The object lies on the region's home.
    ///
    /// # Errors
    /// As [`Client::put`] for the object, and as [`Region::info`].
    pub fn snapshot(&self, id: ObjectId, options: &CreateOptions) -> Result<ObjectId> {
        check(&[], options)?;
        let object = new_object(id, &[], options);
        let room = options.timeout();
        let room_us = room.map_or(0, |room| microseconds(Some(room)));
        let due = due(Some(room.unwrap_or(self.timeout)));
        self.ask(requests::SnapshotRegion { handle: self.handle.number, object, room_us }, due)?;
        await_copies(&self.client, id, options, due)?;
        Ok(id)
    }

    fn due(&self) -> Due {
        due(Some(self.timeout))
    }

    fn ask<Q: Question>(&self, question: Q, due: Due) -> Result<Q::Answer> {
        self.client.ask_until(question, Undo::Nothing, due).inspect_err(|error| self.handle.note(error))
    }

    /// Whether the region lives on another node.
    fn is_far(&self) -> bool {
        self.home() != self.client.node
    }

    /// Refuses a range that the region does not have, or a right that the handle lacks.
    #[inline]
    fn check(&self, offset: u64, len: u64, wanted: Rights) -> Result<()> {
        if !self.handle.rights.contain(wanted) {
            return Err(self.lacks(wanted));
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.handle.len => Ok(()),
            _ => Err(self.beyond(offset, len)),
        }
    }

    /// Refuses a word that the region does not have, or that is not aligned.
    #[inline]
    fn check_word(&self, offset: u64, wanted: Rights) -> Result<()> {
        self.check(offset, 8, wanted)?;
        if offset.is_multiple_of(8) { Ok(()) } else { Err(self.crooked(offset)) }
    }

    #[cold]
    fn lacks(&self, wanted: Rights) -> Error {
        let text = format!(
            "the handle to region '{}' has the rights {}, and this takes {wanted}: map the region with more",
            self.name(),
            self.handle.rights
        );
        Error::new(ErrorKind::NotAllowed, text)
    }

    #[cold]
    fn beyond(&self, offset: u64, len: u64) -> Error {
        let text = format!(
            "{len} bytes at offset {offset} are out of bounds: region '{}' has {} bytes",
            self.name(),
            self.handle.len
        );
        Error::new(ErrorKind::Invalid, text)
    }

    #[cold]
    fn not_here(&self) -> Error {
        let text =
            format!("region '{}' is not mapped in this process, and calls are not wanted", self.name());
        Error::new(ErrorKind::NotHere, text)
    }

    #[cold]
    fn crooked(&self, offset: u64) -> Error {
        let text = format!(
            "offset {offset} of region '{}' is no word: words are at multiples of 8 bytes",
            self.name()
        );
        Error::new(ErrorKind::Invalid, text)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("name", &self.name())
            .field("len", &self.handle.len)
            .field("home", &self.home())
            .field("rights", &self.handle.rights)
            .finish()
    }
}

fn user_of(principal: Principal) -> Option<u32> {
    match principal {
        Principal::User(user) => Some(user),
        Principal::Everyone => None,
    }
}
