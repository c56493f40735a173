//! Memory that clients work in: lent from the arena, or their own. Owns no state: each [`Lent`] belongs to
//! its client. Engine thread only.
//!
//! Invariants: lent memory counts as an object of its client does. An object that is put from lent memory
//! stays where it is; an object that is got into such memory comes by reads of the fabric. Lent memory is
//! freed with the client, or when the last operation on it is over.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use plasmon::wire::{Access, NewObject, Reply};
use plasmon::{Error, ErrorKind};

use super::Creations;
use crate::directory::claims::Claims;
use crate::kernel::{ClientKey, Kernel};
use crate::memory::{Domain, ForeignMemory, PAGE_BYTES, Writer, Zone};
use crate::object::{Held, Role, Sealing};
use crate::placement::Placement;
use crate::service::Outcome;
use crate::sessions::Sessions;
use crate::sessions::lent::Lent;
use crate::store::Store;
use crate::transfer::{Given, GivenMemory, Transfer};

/// Number of bytes behind a buffer for the metadata of the object that is made of the buffer.
const METADATA_BYTES: u64 = 1 << 10;
/// Maximum number of buffers of a client.
const MAX_LENT_PIECES: usize = 4096;

/// State for lending memory to clients.
pub(super) struct Lending {
    kernel: Rc<Kernel>,
    store: Rc<Store>,
    claims: Rc<Claims>,
    transfer: Rc<Transfer>,
    placement: Rc<Placement>,
    sessions: Rc<Sessions>,
    creations: Rc<Creations>,
}

impl Lending {
    pub(super) fn new(placement: &Rc<Placement>, sessions: &Rc<Sessions>, creations: &Rc<Creations>) -> Self {
        Self {
            kernel: Rc::clone(&placement.kernel),
            store: Rc::clone(&placement.store),
            claims: Rc::clone(&placement.directory.claims),
            transfer: Rc::clone(&placement.transfer),
            placement: Rc::clone(placement),
            sessions: Rc::clone(sessions),
            creations: Rc::clone(creations),
        }
    }

    pub(super) async fn lend_to(
        self: Rc<Self>,
        client: ClientKey,
        len: u64,
        private: bool,
        room: Duration,
    ) -> Outcome {
        self.may_have_more(client)?;
        let too_large =
            || Error::new(ErrorKind::TooLarge, format!("{len} bytes are not a valid length of a buffer"));
        let whole = len.checked_add(METADATA_BYTES).and_then(|len| len.checked_next_multiple_of(PAGE_BYTES));
        let capacity = whole.ok_or_else(too_large)?;
        let uid = self.sessions.client(client, |client| client.uid);
        let domain = if private { Domain::Private(uid) } else { Domain::Shared };
        let what = || format!("lend a buffer of {len} bytes");
        let extent = {
            let charge = self.creations.charge(what, client, uid, capacity)?;
            let extent = self.store.room(Zone { domain, writer: Writer::Uid(uid) }, capacity, room).await;
            let extent = extent.map_err(|error| error.while_doing(&format!("cannot {}", what())))?;
            charge.keep();
            extent
        };
        let segments: Vec<_> = extent.segments().collect();
        let offset = extent.offset();
        let granted = self.sessions.grant(client, &segments, Access::Write);
        let (granted, descriptors) = granted.inspect_err(|_| {
            self.store.quotas.borrow_mut().subtract(uid, client, capacity);
        })?;
        let buffer = self.note(client, Lent::Arena { extent: Rc::new(extent), uid, private, given: None });
        Ok((Reply::Lent { buffer, offset, capacity, granted }, descriptors))
    }

    pub(super) fn adopt(&self, client: ClientKey, len: u64, file: &OwnedFd) -> Result<Reply, Error> {
        self.may_have_more(client)?;
        let memory = ForeignMemory::map(file, len).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("cannot register memory of {len} bytes: {error}"))
        })?;
        let adopted = Rc::new(self.transfer.adopt(memory));
        let buffer = self.note(client, Lent::Own { adopted, given: None });
        Ok(Reply::Lent { buffer, offset: 0, capacity: 0, granted: Vec::new() })
    }

    pub(super) fn take_back(&self, client: ClientKey, buffer: u64) {
        let lent = self.sessions.client_mut(client, |client| client.lent.remove(&buffer)).flatten();
        if let Some(lent) = lent {
            lent.uncount(&self.store, client);
        }
    }

    /// Returns a piece of a client's memory, for the fabric to write.
    pub(super) fn give(
        &self,
        client: ClientKey,
        buffer: u64,
        at: u64,
        room: u64,
    ) -> Result<Rc<Given>, Error> {
        let outside = |len: u64| {
            let text = format!("{room} bytes at {at} are not within a buffer of {len}");
            Error::new(ErrorKind::Invalid, text)
        };
        let fits = |len| at.checked_add(room).is_some_and(|end| end <= len);
        self.with_lent(client, buffer, |lent| {
            let memory = match lent {
                Lent::Arena { extent, .. } if !fits(extent.len()) => return Err(outside(extent.len())),
                Lent::Arena { extent, .. } => GivenMemory::Lent { extent: Rc::clone(extent), at },
                Lent::Own { adopted, .. } if !fits(adopted.len()) => return Err(outside(adopted.len())),
                Lent::Own { adopted, .. } => GivenMemory::Adopted { adopted: Rc::clone(adopted), at },
            };
            let given = Given::new(memory, room);
            *lent.last() = Some(Rc::clone(&given));
            Ok(given)
        })
    }

    /// Makes an object of lent memory. The client does not have the memory any more then.
    pub(super) async fn put_from(
        self: Rc<Self>,
        client: ClientKey,
        object: NewObject,
        digest: u64,
        (buffer, data_len): (u64, u64),
    ) -> Outcome {
        let (id, private) = (object.id, object.rights.is_private());
        let claim = self.creations.claim_for(client, &object, Duration::ZERO).await?;
        self.settle_buffer(client, buffer).await?;
        self.claims.confirm(&id).await?;
        self.creations.may_create(client, id)?;
        let metadata = object.metadata.clone();
        let mut head = self.creations.head(client, object, data_len, 0)?;
        head.digest = digest;
        let wrong =
            |why: &str| Error::new(ErrorKind::Invalid, format!("cannot put object {id} from memory {why}"));
        self.with_lent(client, buffer, |lent| match lent {
            Lent::Own { .. } => Err(wrong("that the node did not lend")),
            Lent::Arena { extent, .. } if head.len() > extent.len() => {
                Err(wrong("that is shorter than the object"))
            }
            Lent::Arena { .. } if head.len() <= u64::from(super::INLINE_MAX_BYTES) => {
                Err(wrong("of the node: the object is too small for that"))
            }
            Lent::Arena { private: of, .. } if *of != private => {
                Err(wrong("that was lent for the other kind of objects: private or shared"))
            }
            Lent::Arena { extent, .. } if Rc::strong_count(extent) > 1 => Err(Error::new(
                ErrorKind::Busy,
                format!("cannot put object {id}: a get into its memory is under way"),
            )),
            Lent::Arena { .. } => Ok(()),
        })?;
        let lent = self.sessions.client_mut(client, |client| client.lent.remove(&buffer)).flatten();
        let Some(Lent::Arena { extent, .. }) = lent else { return Err(no_buffer(buffer)) };
        let capacity = extent.len();
        let mut extent = Rc::into_inner(extent).expect("counted above, and nothing was awaited since");
        extent.shorten(head.len());
        self.store.quotas.borrow_mut().subtract(head.user, client, capacity - head.len());
        let (len, user) = (head.len(), head.user);
        let written = extent.write(data_len, &metadata);
        written.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        let (bytes, created) = (Held::Memory(extent), self.kernel.clock.unix_ms());
        let sealing = Sealing { head, role: Role::Primary, creator: Some(client), bytes, created };
        let sealed = self.store.seal(sealing);
        let replica = sealed.inspect_err(|_| self.store.quotas.borrow_mut().subtract(user, client, len))?;
        claim.fulfil();
        self.sessions.counting.count_put(replica.len());
        self.placement.note_expiry(&replica);
        self.placement.note_owned(client, &replica);
        Ok((Reply::Done, Vec::new()))
    }

    /// Waits until the last get into a buffer is over.
    pub(super) async fn settle_buffer(&self, client: ClientKey, buffer: u64) -> Result<(), Error> {
        let last = self.with_lent(client, buffer, |lent| Ok(lent.last().take()))?;
        match last {
            Some(given) => self.transfer.settle(&given).await,
            None => Ok(()),
        }
    }

    fn may_have_more(&self, client: ClientKey) -> Result<(), Error> {
        if self.sessions.client(client, |client| client.lent.len()) < MAX_LENT_PIECES {
            return Ok(());
        }
        let text = format!("this client has {MAX_LENT_PIECES} buffers already: release some first");
        Err(Error::new(ErrorKind::Busy, text))
    }

    fn note(&self, client: ClientKey, lent: Lent) -> u64 {
        let noted = self.sessions.client_mut(client, |client| {
            client.next_lent += 1;
            client.lent.insert(client.next_lent, lent);
            client.next_lent
        });
        noted.unwrap_or_default()
    }

    fn with_lent<T>(
        &self,
        client: ClientKey,
        buffer: u64,
        with: impl FnOnce(&mut Lent) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let found = self.sessions.client_mut(client, |client| client.lent.get_mut(&buffer).map(with));
        found.flatten().ok_or_else(|| no_buffer(buffer))?
    }
}

fn no_buffer(buffer: u64) -> Error {
    Error::new(ErrorKind::Invalid, format!("this client has no buffer {buffer}"))
}
