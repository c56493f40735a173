//! Windows: memory of a node that one other node may write objects to.
//!
//! [`Windows`] owns the windows. Engine thread only. The *owner* of a window makes it for one *writer*, and
//! tells the writer its place and its random key. The writer alone chooses the slots that it writes to: it
//! takes free ones, writes, and sends a message behind the write, by the same endpoint. The owner releases
//! the slots when it has copied the bytes.
//!
//! Invariants: a slot is written again only after the owner has seen the former write as a whole, and has
//! released the slot. An object ends at the end of its last slot, and the owner puts random bytes there
//! before it releases a slot: so it sees whether a write is complete, even if the message behind the write
//! came by another connection. A window to which a write may still be under way although it was given up is
//! *spoilt*: the writer writes to it no more, the owner makes another one of other memory, and the former key
//! dies.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::NodeId;
use plasmon_fabric::{Access, Completion, Memory, Op, Region, RemoteRegion, Slice};
use tracing::{debug, warn};

use super::frame::Message;
use super::members::Incarnation;
use super::network::{Network, Remote};
use super::traffic::Traffic;
use crate::kernel::planted::{Bug, is_planted};
use crate::kernel::random::{HashMap, random_u64};
use crate::memory::BlockMemory;

/// Length of a slot in bytes.
pub(crate) const SLOT_BYTES: usize = 64 << 10;
/// Number of slots of a window.
const SLOTS: usize = 32;
/// Length of a window in bytes.
const WINDOW_BYTES: usize = SLOTS * SLOT_BYTES;
/// Maximum length in bytes of an object that is written to a window.
pub(crate) const PUSHED_BYTES_MAX: u32 = 256 << 10;
/// Number of bytes at the end of an object by which the owner sees that all of it has come.
pub(crate) const MARK_BYTES: usize = 16;
/// Maximum number of windows that a node makes for its peers.
const WINDOWS_MAX: usize = 32;
/// Minimum time between two windows for one peer, because each spoilt window costs addresses.
const ANOTHER_AFTER: Duration = Duration::from_secs(10);
/// Time without a write after which the owner tells the writer again where the window is.
const TELL_AGAIN: Duration = Duration::from_secs(5);
/// Time for which the key of a spoilt window stays valid. So a write that began before ends in memory that
/// nobody uses, and breaks no connection.
const FORMER_KEY_GRACE: Duration = Duration::from_secs(15);

/// The windows of this node, and the known windows of its peers.
#[derive(Default)]
pub(crate) struct Windows {
    own: RefCell<HashMap<NodeId, Own>>,
    theirs: RefCell<HashMap<NodeId, Theirs>>,
    /// Spoilt windows whose keys still live, the oldest first.
    former: RefCell<VecDeque<(Instant, Rc<Window>)>>,
    numbers: Cell<u64>,
}

/// A window of this node.
pub(crate) struct Window {
    number: u64,
    /// The number of the fabric by which the window is reached, and the name of the fabric.
    on: usize,
    provider: String,
    /// The incarnation of this node in which the writer was told of the window.
    incarnation: Incarnation,
    memory: Rc<BlockMemory>,
    region: Rc<Region>,
}

/// This node's window for a peer.
struct Own {
    /// The window; `None` if it was spoilt.
    window: Option<Rc<Window>>,
    made_at: Instant,
    /// Time at which the peer was told of the window, or last used it.
    alive_at: Instant,
}

/// A peer's window for this node.
struct Theirs {
    number: u64,
    on: usize,
    /// The incarnation of this node for which the window was made.
    incarnation: Incarnation,
    region: RemoteRegion,
    /// A bit for each slot, which is set if the slot is free.
    free: u32,
    spoilt: bool,
}

/// Slots of a peer's window that this node has taken. Released slots are free again. If slots are dropped
/// without a release, the window is spoilt, because something may still be written to them.
pub(crate) struct Slots {
    windows: Rc<Windows>,
    node: NodeId,
    window: u64,
    first: u32,
    bits: u32,
    to: Remote,
    is_free: bool,
}

/// Slots that were taken of a peer's window, or the number of a window that is spoilt.
enum Taken {
    Slots(Slots),
    /// The window of this number is spoilt: nothing is written to it any more.
    Spoilt(u64),
}

/// Number of slots for `len` bytes; `None` if the bytes are fewer than the mark, or too many.
fn slots_for(len: u64) -> Option<u32> {
    let fits = (MARK_BYTES as u64..=u64::from(PUSHED_BYTES_MAX)).contains(&len);
    fits.then(|| len.div_ceil(SLOT_BYTES as u64) as u32)
}

/// Offset in bytes of an object of this length in its window, if its slots begin at `first`; `None` if it
/// does not fit there.
fn place(first: u32, len: u64) -> Option<usize> {
    let end = first.checked_add(slots_for(len)?).filter(|end| *end as usize <= SLOTS)?;
    Some(end as usize * SLOT_BYTES - len as usize)
}

impl Slots {
    /// The number of the window, and that of the first of the slots.
    pub(crate) fn name(&self) -> (u64, u32) {
        (self.window, self.first)
    }

    /// The number of the fabric by which the slots are reached.
    pub(crate) fn on(&self) -> usize {
        self.to.on
    }

    /// Frees the slots: the owner has seen what was written.
    pub(crate) fn release(mut self) {
        self.is_free = true;
        if let Some(window) = self.windows.theirs.borrow_mut().get_mut(&self.node)
            && window.number == self.window
        {
            window.free |= self.bits;
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        if self.is_free {
            return;
        }
        if let Some(window) = self.windows.theirs.borrow_mut().get_mut(&self.node)
            && window.number == self.window
        {
            debug!(node = %self.node, "a window of a peer is spoilt");
            window.spoilt = true;
        }
    }
}

impl Window {
    /// Returns the memory, and the offset of an object of this length in slots from `first` on. `None` if the
    /// object does not fit there, or is not complete: its last bytes have to be `mark`.
    pub(crate) fn arrived(&self, first: u32, len: u64, mark: u128) -> Option<(&BlockMemory, usize)> {
        let at = place(first, len)?;
        let words = [1, 0].map(|word| (at + len as usize) / size_of::<u64>() - 1 - word);
        let [low, high] = words.map(|word| u128::from(u64::from_le(self.memory.load(word))));
        (low | high << 64 == mark).then_some((&*self.memory, at))
    }

    /// Whether an object of this length has a place in slots from `first` on.
    pub(crate) fn has_place(first: u32, len: u64) -> bool {
        place(first, len).is_some()
    }

    /// Makes the slots of an object ready for the next one. After that, the writer may be told that they are
    /// free.
    pub(crate) fn put_back(&self, first: u32, len: u64) {
        let count = slots_for(len).unwrap_or_default();
        (first..first.saturating_add(count)).for_each(|slot| self.mark(slot as usize));
    }

    /// Puts random bytes at the end of a slot.
    fn mark(&self, slot: usize) {
        let end = (slot + 1) * SLOT_BYTES / size_of::<u64>();
        (end - MARK_BYTES / size_of::<u64>()..end).for_each(|word| self.memory.store(word, random_u64()));
    }

    fn message(&self) -> Message {
        let RemoteRegion { base, key, len } = self.region.remote();
        Message::Window { window: self.number, base, key, len, provider: self.provider.clone() }
    }
}

impl Windows {
    /// Takes the window for a peer out of use.
    fn close(&self, own: &mut Own, now: Instant) {
        if let Some(window) = own.window.take() {
            self.former.borrow_mut().push_back((now + FORMER_KEY_GRACE, window));
        }
    }

    /// Takes note of a peer's window.
    pub(super) fn told(&self, node: NodeId, window: (u64, RemoteRegion), on: usize, own: Incarnation) {
        let (number, region) = window;
        let mut theirs = self.theirs.borrow_mut();
        if theirs.get(&node).is_some_and(|known| known.number == number && known.incarnation == own) {
            return;
        }
        let free = if region.len == WINDOW_BYTES as u64 { u32::MAX } else { 0 };
        let window = Theirs { number, on, incarnation: own, region, free, spoilt: false };
        theirs.insert(node, window);
    }

    /// Takes slots of a peer's window, if at least `left` others stay free. `here` is the fabric by which the
    /// peer is reached, and the incarnation of this node: a window for other ones is forgotten.
    fn take(self: &Rc<Self>, node: NodeId, here: (usize, Incarnation), len: u64, left: u32) -> Option<Taken> {
        let count = slots_for(len)?;
        let mut theirs = self.theirs.borrow_mut();
        let window = theirs.get_mut(&node)?;
        if (window.on, window.incarnation) != here {
            theirs.remove(&node);
            return None;
        }
        if window.spoilt {
            return Some(Taken::Spoilt(window.number));
        }
        if window.free.count_ones() < count + left {
            return None;
        }
        let run = u32::MAX >> (u32::BITS - count);
        let first = (0..=u32::BITS - count).find(|first| window.free >> first & run == run)?;
        let to = Remote { on: window.on, region: window.region, offset: place(first, len)? as u64 };
        let bits = run << first;
        window.free &= !bits;
        let (windows, window) = (Rc::clone(self), window.number);
        Some(Taken::Slots(Slots { windows, node, window, first, bits, to, is_free: false }))
    }

    /// Closes the window of this node to which a peer says that it writes no more.
    pub(super) fn shut(&self, node: NodeId, number: u64, now: Instant) {
        if let Some(own) = self.own.borrow_mut().get_mut(&node)
            && own.window.as_ref().is_some_and(|window| window.number == number)
        {
            self.close(own, now);
        }
    }

    /// Forgets a peer that has gone.
    pub(super) fn forget(&self, node: NodeId, now: Instant) {
        self.theirs.borrow_mut().remove(&node);
        if let Some(mut own) = self.own.borrow_mut().remove(&node) {
            self.close(&mut own, now);
        }
    }

    /// Returns memory for another window, never that of a spoilt one whose key lives.
    fn memory(&self) -> Rc<BlockMemory> {
        let former = self.former.borrow().back().map(|(_, window)| Rc::clone(&window.memory));
        let used_again = former.filter(|_| is_planted(Bug::WindowUsedAgain));
        used_again.unwrap_or_else(|| Rc::new(BlockMemory::new(WINDOW_BYTES)))
    }

    /// Ends the keys of windows that have been spoilt for long.
    pub(super) fn tend(&self, now: Instant) {
        self.former.borrow_mut().retain(|(until, window)| {
            if *until <= now {
                window.memory.give_back();
            }
            *until > now
        });
    }
}

impl Network {
    /// Makes a window for a peer, if it has none, and tells the peer of it.
    pub(crate) fn open_window(&self, node: NodeId) {
        let (now, incarnation) = (self.kernel.clock.now(), self.kernel.incarnation.get());
        let on = self.fabric_to(node);
        let mut all = self.windows.own.borrow_mut();
        if !all.contains_key(&node) && all.len() >= WINDOWS_MAX {
            return;
        }
        let known = all.contains_key(&node);
        let own = all.entry(node).or_insert(Own { window: None, made_at: now, alive_at: now });
        if own.window.as_ref().is_some_and(|window| (window.on, window.incarnation) != (on, incarnation)) {
            self.windows.close(own, now);
        }
        let message = match &own.window {
            Some(_) if now < own.alive_at + TELL_AGAIN => return,
            Some(window) => window.message(),
            None if known && now < own.made_at + ANOTHER_AFTER => return,
            None => {
                own.made_at = now;
                let Some(window) = self.make_window(on) else { return };
                own.window.insert(window).message()
            }
        };
        own.alive_at = now;
        drop(all);
        // The peer may have gone, and then needs no window.
        self.tell(node, message);
    }

    fn make_window(&self, on: usize) -> Option<Rc<Window>> {
        let memory = self.windows.memory();
        let registered = self.domain(on).register(Rc::clone(&memory) as Rc<dyn Memory>, Access::REMOTE_WRITE);
        let region = registered.inspect_err(|error| {
            warn!("no memory can be opened to writes of other nodes, so objects are read: {error}");
        });
        let number = self.windows.numbers.get() + 1;
        self.windows.numbers.set(number);
        let incarnation = self.kernel.incarnation.get();
        let provider = self.domain(on).provider().name().to_owned();
        let window = Window { number, on, provider, incarnation, memory, region: region.ok()? };
        (0..SLOTS).for_each(|slot| window.mark(slot));
        Some(Rc::new(window))
    }

    /// Returns the window of this number that was made for a peer, unless it is spoilt, and notes that the
    /// peer uses it.
    pub(crate) fn window(&self, node: NodeId, number: u64) -> Option<Rc<Window>> {
        let mut all = self.windows.own.borrow_mut();
        let own = all.get_mut(&node)?;
        let window = own.window.clone().filter(|window| window.number == number)?;
        own.alive_at = self.kernel.clock.now();
        Some(window)
    }

    /// Takes the window for a peer out of use, because a write to it is not complete and may still go on.
    pub(crate) fn spoil_window(&self, node: NodeId, number: u64) {
        self.windows.shut(node, number, self.kernel.clock.now());
    }

    /// Takes slots of a peer's window for an object of this length. `None` if there is no window, too few
    /// other slots would stay free (`left`), or the work at hand is limited.
    pub(crate) fn slots(&self, node: NodeId, len: u64, left: u32) -> Option<Slots> {
        if self.qos.limits(node) {
            // Limited work is read in pieces by the reader.
            return None;
        }
        let on = self.peers.borrow().get(&node).filter(|peer| !peer.cut_off)?.fabric();
        match self.windows.take(node, (on, self.kernel.incarnation.get()), len, left)? {
            Taken::Slots(slots) => Some(slots),
            Taken::Spoilt(window) => {
                // The peer may have missed this when it was told before.
                self.tell(node, Message::Shut { window });
                None
            }
        }
    }

    /// Writes an object to its slots. A message that is sent to the node after that arrives behind the write,
    /// if both go by the same connection. `None` if the node is not a member any more, or is cut off.
    pub(crate) fn write_to(&self, slots: &Slots, from: Slice) -> Option<Op> {
        self.write(slots.node, Traffic::Messages, from, slots.to, Completion::HandedOver)
    }

    /// Writes by the lane for a kind of traffic. `None` when the node is not a member any more, or is cut
    /// off.
    pub(crate) fn write(
        &self,
        node: NodeId,
        traffic: Traffic,
        from: Slice,
        to: Remote,
        completion: Completion,
    ) -> Option<Op> {
        let mut peers = self.peers.borrow_mut();
        let peer = peers.get_mut(&node).filter(|peer| !peer.cut_off)?;
        peer.used = true;
        let (fabric, lane) = (&self.fabrics[to.on], peer.lane_on(to.on)?);
        let (endpoint, end) = match traffic {
            Traffic::Messages => (fabric.messages(), lane.messages),
            Traffic::Bulk => (&fabric.bulk()[0], lane.bulk[0]),
        };
        Some(match completion {
            Completion::Acknowledged => endpoint.write(end, from, to.region, to.offset, None),
            Completion::HandedOver => endpoint.hand_over(end, from, to.region, to.offset),
        })
    }
}

#[cfg(test)]
mod tests {
    use plasmon_fabric::{Domain, Faults, MemoryNetwork};

    use super::*;

    const NODE: NodeId = NodeId::from_bytes([1; 16]);
    const REGION: RemoteRegion = RemoteRegion { base: 0, key: 7, len: WINDOW_BYTES as u64 };
    const MAX: u64 = PUSHED_BYTES_MAX as u64;

    fn taken(windows: &Rc<Windows>, len: u64) -> Option<Slots> {
        match windows.take(NODE, (0, 5), len, 0) {
            Some(Taken::Slots(slots)) => Some(slots),
            _ => None,
        }
    }

    fn is_spoilt(windows: &Rc<Windows>) -> bool {
        matches!(windows.take(NODE, (0, 5), 100, 0), Some(Taken::Spoilt(_)))
    }

    #[test]
    fn objects_end_where_their_slots_do() {
        let counts = [15, 16, 65_536, 65_537, MAX, MAX + 1].map(slots_for);
        assert_eq!(counts, [None, Some(1), Some(1), Some(2), Some(4), None]);
        assert_eq!(place(0, 16), Some(SLOT_BYTES - 16));
        assert_eq!(place(2, 100_000), Some(4 * SLOT_BYTES - 100_000));
        assert_eq!(place(28, MAX), Some(WINDOW_BYTES - MAX as usize));
        for first in [29, 32, u32::MAX] {
            assert_eq!(place(first, MAX), None);
        }
    }

    #[test]
    fn slots_are_taken_once_until_they_are_released() {
        let windows = Rc::new(Windows::default());
        assert!(taken(&windows, 100).is_none(), "there is no window");
        windows.told(NODE, (1, REGION), 0, 5);
        let mut all: Vec<_> = std::iter::from_fn(|| taken(&windows, MAX)).collect();
        let mut firsts: Vec<_> = all.iter().map(|slots| slots.name()).collect();
        firsts.sort_unstable();
        assert_eq!(firsts, (0..8).map(|number| (1, 4 * number)).collect::<Vec<_>>());
        assert!(taken(&windows, 100).is_none(), "all of it is taken");
        all.remove(3).release();
        let again: Vec<_> = std::iter::from_fn(|| taken(&windows, 100)).map(|slots| slots.name().1).collect();
        assert_eq!(again, [12], "the first of them was dropped, and spoils all");
        assert!(is_spoilt(&windows));
        // The same window is announced once more, and then another one.
        windows.told(NODE, (1, REGION), 0, 5);
        assert!(is_spoilt(&windows));
        windows.told(NODE, (2, REGION), 0, 5);
        let slots = taken(&windows, MAX).expect("it is free");
        all.drain(..).for_each(Slots::release);
        assert_eq!(windows.theirs.borrow()[&NODE].free, !0xf, "those were slots of another window");
        drop(slots);
        assert!(is_spoilt(&windows));
        // A window of another length, of a former life of this node, or for another fabric is none.
        for (region, on, own) in
            [(RemoteRegion { len: 1 << 40, ..REGION }, 0, 5), (REGION, 0, 4), (REGION, 1, 5)]
        {
            windows.told(NODE, (3, region), on, own);
            assert!(taken(&windows, 100).is_none() && !is_spoilt(&windows));
            windows.forget(NODE, Instant::now());
        }
    }

    #[test]
    fn an_object_has_come_when_its_last_bytes_have() {
        let domain = Domain::open(&MemoryNetwork::new(1, Faults::default()).provider(0)).expect("domain");
        let memory = Rc::new(BlockMemory::new(WINDOW_BYTES));
        let region = domain.register(Rc::clone(&memory) as Rc<dyn Memory>, Access::REMOTE_WRITE);
        let (provider, region) = ("memory".to_owned(), region.expect("region"));
        let window = Window { number: 1, on: 0, provider, incarnation: 1, memory, region };
        let (first, len) = (3, 100_001);
        window.put_back(0, MAX);
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let mark = u128::from_le_bytes(bytes[bytes.len() - MARK_BYTES..].try_into().expect("16 bytes"));
        assert!(window.arrived(first, len, mark).is_none());
        let at = place(first, len).expect("a place");
        let slot = window.region.slice(at, bytes.len()).expect("within");
        slot.copy_from_slice(&[&bytes[..bytes.len() - 1], &[0]].concat()).expect("fits");
        assert!(window.arrived(first, len, mark).is_none(), "a byte is missing");
        slot.copy_from_slice(&bytes).expect("fits");
        assert_eq!(window.arrived(first, len, mark).map(|(_, at)| at), Some(at));
        assert!(window.arrived(first + 1, len, mark).is_none());
        assert!(window.arrived(u32::MAX, len, mark).is_none() && window.arrived(31, len, mark).is_none());
        window.put_back(first, len);
        assert!(window.arrived(first, len, mark).is_none(), "it was taken already");
    }
}
