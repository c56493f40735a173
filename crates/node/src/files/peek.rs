//! Peeks: ranges of objects that lie on other nodes, for clients that read files at random. Owns [`Peeking`].
//! Engine thread only.
//!
//! The first range of an object is asked for at its holder, whose answer also says where the object lies.
//! Further ranges are read there one-sidedly, with the stamp that tells whether the object still lies there.
//! No replica is made here.
//!
//! Invariant: a client gets only bytes of objects of its own volume that its user may read. In a shared
//! volume, a session without trust gets only ranges that its home has told it.

use std::cell::{Cell, RefCell};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use lru::LruCache;
use plasmon::wire::Reply;
use plasmon::wire::files::{MAX_PEEK_BYTES, parts_of};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::Files;
use super::attached::Reach;
use super::frames::{FileFrame, Lying, ask};
use crate::directory::arrivals::Lies;
use crate::kernel::ClientKey;
use crate::object::{DEEDS, Pin, not_visible};
use crate::transfer::range::read_range;

/// Maximum number of bytes that an answer brings.
pub(super) const MAX_ANSWER_BYTES: u32 = 12 << 10;
/// Maximum number of objects whose places this node remembers.
const MAX_KEPT_PLACES: NonZeroUsize = NonZeroUsize::new(1 << 14).unwrap();
/// Time that a holder may take to answer.
const HOLDER_PATIENCE: Duration = Duration::from_secs(2);

/// Places of objects of which clients read ranges, and counts of these reads.
pub(super) struct Peeking {
    known: RefCell<LruCache<ObjectId, (NodeId, Rc<Lies>)>>,
    /// Number of ranges so far that came in answers of holders.
    pub(super) asked: Cell<u64>,
    /// Number of ranges so far that were read one-sidedly.
    pub(super) read: Cell<u64>,
    /// Number of ranges so far that this node gave other nodes.
    pub(super) given: Cell<u64>,
}

impl Default for Peeking {
    fn default() -> Self {
        let known = RefCell::new(LruCache::new(MAX_KEPT_PLACES));
        Self { known, asked: Cell::default(), read: Cell::default(), given: Cell::default() }
    }
}

/// A range of an object, and the node that may hold the object.
pub(super) struct Wish {
    pub(super) id: ObjectId,
    /// Node that is asked first.
    pub(super) node: NodeId,
    pub(super) at: u64,
    pub(super) len: u32,
}

impl Wish {
    fn range(&self) -> Range<u64> {
        self.at..self.at.saturating_add(self.len.into())
    }
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

fn nowhere(id: ObjectId) -> Error {
    Error::new(ErrorKind::NotFound, format!("object {id} is not in the memory of a node that answers"))
}

fn no_range(id: ObjectId, at: u64, len: u32) -> Error {
    Error::new(ErrorKind::Invalid, format!("object {id} has no range of {len} bytes at {at}"))
}

impl Files {
    /// Gives a client a range of an object of a volume to which it is attached.
    pub(super) async fn peek(
        self: Rc<Self>,
        client: ClientKey,
        volume: u32,
        wish: Wish,
    ) -> Result<Reply, Error> {
        let attached = self.attached.get(client, volume)?;
        let is_of = parts_of(&wish.id).is_some_and(|(volume, ..)| volume == attached.key.volume);
        if !is_of || wish.len == 0 || wish.len as usize > MAX_PEEK_BYTES {
            let text = format!("no range of {} bytes of object {} is read alone", wish.len, wish.id);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let id = wish.id;
        if attached.reach == Reach::Granted && !self.granted.has(&attached.key, &id, &wish.range()) {
            let text = format!("this session was not told of such a range of object {id}: ask for the map");
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        // The home has checked the permissions of files of other users.
        let user = if attached.reach == Reach::Own { attached.user } else { DEEDS };
        if let Some(bytes) = self.range_here(&wish, user)? {
            return Ok(Reply::Peeked { bytes });
        }
        let known = self.peeking.known.borrow_mut().get(&id).cloned();
        if let Some((holder, lies)) = known.filter(|(_, lies)| lies.0.visible_to(user)) {
            if let Ok(bytes) = read_range(&self.placement.transfer, holder, &lies, wish.range()).await {
                count(&self.peeking.read);
                return Ok(Reply::Peeked { bytes });
            }
            self.peeking.known.borrow_mut().pop(&id);
        }
        let bytes = self.ask_holders(&wish, user).await?;
        Ok(Reply::Peeked { bytes })
    }

    /// Returns a range of an object, if the object is in the memory of this node.
    fn range_here(&self, wish: &Wish, user: u32) -> Result<Option<Bytes>, Error> {
        let replica = self.store.objects.borrow().get(&wish.id).cloned();
        let pin = replica.filter(|replica| replica.visible_to(user)).and_then(|replica| Pin::new(&replica));
        let Some(pin) = pin else { return Ok(None) };
        if wish.range().end > pin.head().data_len {
            return Err(no_range(wish.id, wish.at, wish.len));
        }
        read(&pin, wish.at, wish.len).map(Some)
    }

    /// Asks the node of the wish for a range of its object, then the holders that the directory knows.
    async fn ask_holders(&self, wish: &Wish, user: u32) -> Result<Bytes, Error> {
        let own = self.kernel.node;
        if wish.node != own
            && self.cluster.is_member(wish.node)
            && let Ok(bytes) = self.ask_holder(wish.node, wish, user).await
        {
            return Ok(bytes);
        }
        for (node, _) in self.directory.holders(wish.id, user).await? {
            if node != own
                && node != wish.node
                && let Ok(bytes) = self.ask_holder(node, wish, user).await
            {
                return Ok(bytes);
            }
        }
        Err(nowhere(wish.id))
    }

    async fn ask_holder(&self, holder: NodeId, wish: &Wish, user: u32) -> Result<Bytes, Error> {
        let &Wish { id, at, len, .. } = wish;
        let question = ask::Peek { id, at, len };
        let ask::Peeked { lying, bytes } = self.network.ask(holder, user, question, HOLDER_PATIENCE).await?;
        let Lying { head, pieces, stamp } = lying;
        if head.id != id || !head.visible_to(user) {
            return Err(nowhere(id));
        }
        let lies = Rc::new((head, pieces, stamp));
        self.peeking.known.borrow_mut().put(id, (holder, Rc::clone(&lies)));
        if bytes.len() == len as usize {
            count(&self.peeking.asked);
            return Ok(bytes);
        }
        let bytes = read_range(&self.placement.transfer, holder, &lies, wish.range()).await?;
        count(&self.peeking.read);
        Ok(bytes)
    }

    /// Gives another node a range of an object of this node, and the place of the object.
    ///
    /// # Errors
    /// `NotFound` if the object is not in memory here, `NotAllowed` if the user may not read the object,
    /// `Invalid` if the object has no such range.
    pub(super) async fn give_range(
        &self,
        to: NodeId,
        user: u32,
        id: ObjectId,
        at: u64,
        len: u32,
    ) -> Result<FileFrame, Error> {
        self.homes.ensure_serves()?;
        let replica = self.store.objects.borrow().get(&id).cloned().ok_or_else(|| nowhere(id))?;
        if !replica.visible_to(user) {
            return Err(not_visible(id, user));
        }
        self.store.bring_back_at_once(&replica).await?;
        let (pin, (head, pieces, stamp)) = self.placement.lies(&replica, to).ok_or_else(|| nowhere(id))?;
        let fits = at.checked_add(len.into()).is_some_and(|end| end <= head.data_len);
        if !fits || parts_of(&id).is_none() {
            return Err(no_range(id, at, len));
        }
        let bytes = if len <= MAX_ANSWER_BYTES { read(&pin, at, len)? } else { Bytes::new() };
        count(&self.peeking.given);
        Ok(FileFrame::Peeked { lying: Lying { head, pieces, stamp }, bytes })
    }
}

/// Returns bytes of an object that is pinned.
fn read(pin: &Pin, at: u64, len: u32) -> Result<Bytes, Error> {
    let mut bytes = vec![0; len as usize];
    pin.run().read(at, &mut bytes).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    Ok(bytes.into())
}
