//! Pulls: an object of a file that was put on this node goes to the node on which it is to lie. Owns no
//! state. Engine thread only.
//!
//! The other node gets one message with the order and with the place of the object, reads the object
//! one-sidedly, and answers when it is the primary. An unanswered pull is sent again to the same node, as
//! long as that node is a member, because it may have the object by then. Invariant: until a node has taken
//! an object, the object stays as it is here.

use std::rc::Rc;
use std::time::Duration;

use plasmon::{Error, ErrorKind, NodeId};

use super::frames::{Lying, Room, ask};
use super::place::Placing;
use crate::kernel::counted::Counted;
use crate::net::frame::Order;
use crate::object::{InMemory, Replica, Role};

/// Time that a node may take to answer a pull before it is asked again. An object is small.
const PULL_PATIENCE: Duration = Duration::from_secs(10);
/// Time that a node may take to say how much room it has.
const ROOM_PATIENCE: Duration = Duration::from_secs(2);
/// Pause before a node that could not be reached is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

impl Placing {
    /// Asks a node to take an object of this node in a role. Returns the room that the node has left.
    ///
    /// # Errors
    /// Why the node does not have the object; `NotFound` if the object has gone.
    pub(super) async fn give(
        self: &Rc<Self>,
        replica: &Rc<Replica>,
        to: NodeId,
        role: Role,
        copies: u16,
    ) -> Result<Room, Error> {
        let (id, life, user) = (replica.id(), replica.life, replica.ownership().user);
        let _turn = self.placement.turn_to_give(to).await?;
        let _pulled = Counted::new(&self.pulled);
        let order = Order { id, life, role, copies, patient: false, from: Some(self.kernel.node) };
        loop {
            let lies = self.placement.lies(replica, to);
            let (_pin, lying) = lies
                .map(|(pin, (head, pieces, stamp))| (pin, Lying { head, pieces, stamp }))
                .map_or((None, None), |(pin, lying)| (Some(pin), Some(lying)));
            let error = match self.network.ask(to, user, ask::Pull { order, lying }, PULL_PATIENCE).await {
                Ok(ask::HasRoom { room }) => return Ok(room),
                Err(error) => error,
            };
            if !self.store.objects.borrow().has(replica) {
                return Err(Error::new(ErrorKind::NotFound, format!("object {id} has gone")));
            }
            match error.kind() {
                ErrorKind::TimedOut => {}
                ErrorKind::Disconnected if self.cluster.is_member(to) => {
                    self.kernel.clock.sleep(RETRY_PAUSE).await
                }
                _ => return Err(error),
            }
            self.repeated.set(self.repeated.get() + 1);
        }
    }

    /// Takes an object of a file from another node.
    ///
    /// # Errors
    /// Why this node does not have the object. Never `TimedOut`, which tells the sender that there was no
    /// answer.
    pub(super) async fn take_pulled(
        self: &Rc<Self>,
        order: Order,
        user: u32,
        lying: Option<Lying>,
    ) -> Result<(), Error> {
        self.ensure_takes_objects()?;
        if !self.room_here().takes {
            let text = format!("node {} is nearly full, and takes no bytes of files", self.kernel.node);
            return Err(Error::new(ErrorKind::Full, text));
        }
        let lies = lying.map(|Lying { head, pieces, stamp }| (head, pieces, stamp));
        self.placement.take(order, user, lies).await.map_err(|error| match error.kind() {
            ErrorKind::TimedOut | ErrorKind::Disconnected => Error::new(ErrorKind::Busy, error.message()),
            _ => error,
        })?;
        self.taken.set(self.taken.get() + 1);
        Ok(())
    }

    /// Refuses objects of files of other nodes.
    ///
    /// # Errors
    /// `NotAllowed` in cache mode, without files, and while this node is drained.
    fn ensure_takes_objects(&self) -> Result<(), Error> {
        let (config, node) = (&self.kernel.config, self.kernel.node);
        if config.cache || !config.files {
            let why = if config.cache { "is a cache" } else { "was started with --no-files" };
            let text = format!("node {node} {why}, and takes no bytes of files");
            return Err(Error::new(ErrorKind::NotAllowed, text));
        }
        self.placement.ensure_stays().map_err(|error| Error::new(ErrorKind::NotAllowed, error.message()))
    }

    /// Returns the room that this node has for objects of files. It takes objects also if they fit only after
    /// spilling, for which the taker waits.
    pub(super) fn room_here(&self) -> Room {
        if self.ensure_takes_objects().is_err() {
            return Room::NEVER;
        }
        let usage = self.store.arena.borrow_mut().usage();
        let InMemory { primary, kept, cached, .. } = self.store.objects.borrow().in_memory();
        let (disk, capacity) = (self.store.free_on_disk(), usage.capacity);
        let room = Room { takes: false, free: usage.free.saturating_add(cached), disk, capacity };
        let spilled = Room { free: room.free.saturating_add(disk.min(primary + kept)), ..room };
        Room { takes: spilled.has_memory(), ..room }
    }

    /// Returns the room that a node has. The node is asked if it has not said so lately. `None` if it does
    /// not answer.
    pub(super) async fn room_of(&self, node: NodeId, user: u32) -> Option<Room> {
        if node == self.kernel.node {
            return Some(self.room_here());
        }
        let now = self.kernel.clock.now();
        if let Some(room) = self.rooms.known(node, now) {
            return Some(room);
        }
        let ask::HasRoom { room } = self.network.ask(node, user, ask::AskRoom, ROOM_PATIENCE).await.ok()?;
        self.rooms.note(node, room, now);
        Some(room)
    }
}
