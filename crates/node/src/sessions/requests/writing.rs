//! Requests that make objects: put, create, seal, abort. Owns [`Creations`]. Engine thread only. Invariant: a
//! creation that its client was not told of is aborted, and its quota is given back.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use plasmon::wire::{self, Access, MAX_METADATA_BYTES, NewObject, Reply, Span};
use plasmon::{Error, ErrorKind, ObjectId, Rights};

use super::exists;
use crate::directory::Directory;
use crate::directory::claims::{Claim, Claims};
use crate::kernel::{ClientKey, Kernel};
use crate::membership::Cluster;
use crate::memory::{Extent, Writer, Zone};
use crate::object::{Conflict, Creation, Head, Held, Role, Sealing, Table};
use crate::placement::Placement;
use crate::service::Outcome;
use crate::sessions::Sessions;
use crate::store::Store;
use crate::store::quotas::NOBODY;
use crate::transfer::Transfer;

/// Maximum number of bytes of an object that travels through the socket or the ring, and that the engine
/// writes.
pub(crate) const INLINE_MAX_BYTES: u32 = 64 << 10;
/// Metadata that the client writes is longer than an inline object, so an inline object never has such
/// metadata.
const _: () = assert!(MAX_METADATA_BYTES >= INLINE_MAX_BYTES as usize);
/// Time for which a put waits until this node knows again which objects were deleted.
const MEMBER_PATIENCE: Duration = Duration::from_secs(30);
/// Number of bytes of a waiting put that weigh as much as one object.
const BYTES_PER_WEIGHT: usize = 1 << 10;

/// The weight of a put while it waits, in objects.
pub(in crate::sessions) fn weight(data: usize) -> usize {
    1 + data / BYTES_PER_WEIGHT
}

/// Maker of the objects that clients create: it claims ids, reserves memory, charges quotas and seals.
pub(crate) struct Creations {
    pub(in crate::sessions) kernel: Rc<Kernel>,
    pub(in crate::sessions) store: Rc<Store>,
    pub(in crate::sessions) cluster: Rc<Cluster>,
    pub(in crate::sessions) directory: Rc<Directory>,
    pub(in crate::sessions) claims: Rc<Claims>,
    pub(super) transfer: Rc<Transfer>,
    pub(super) placement: Rc<Placement>,
    pub(in crate::sessions) sessions: Rc<Sessions>,
}

impl Creations {
    pub(super) fn new(placement: &Rc<Placement>, sessions: &Rc<Sessions>) -> Self {
        Self {
            kernel: Rc::clone(&placement.kernel),
            store: Rc::clone(&placement.store),
            cluster: Rc::clone(&placement.cluster),
            directory: Rc::clone(&placement.directory),
            claims: Rc::clone(&placement.directory.claims),
            transfer: Rc::clone(&placement.transfer),
            placement: Rc::clone(placement),
            sessions: Rc::clone(sessions),
        }
    }

    /// Makes an object of bytes that came in a frame.
    pub(in crate::sessions) async fn put(
        self: Rc<Self>,
        client: ClientKey,
        object: NewObject,
        digest: u64,
        room: Duration,
        data: Bytes,
    ) -> Outcome {
        let (id, metadata) = (object.id, object.metadata.clone());
        if data.len() + metadata.len() > INLINE_MAX_BYTES as usize {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("object {id}: {} bytes are too many for a put frame; create it instead", data.len()),
            ));
        }
        let claim = self.claim_for(client, &object, room).await?;
        self.make(client, object, data.len() as u64, digest, room, |extent| {
            extent.write(0, &data).and_then(|()| extent.write(data.len() as u64, &metadata))
        })
        .await?;
        claim.fulfil();
        Ok((Reply::Done, Vec::new()))
    }

    /// Makes an object that the engine writes.
    pub(crate) async fn make(
        self: &Rc<Self>,
        client: ClientKey,
        object: NewObject,
        data_len: u64,
        digest: u64,
        room: Duration,
        write: impl FnOnce(&Extent) -> Result<(), crate::memory::OutOfBounds>,
    ) -> Result<(), Error> {
        let mut head = self.head(client, object, data_len, 0)?;
        head.digest = digest;
        let (extent, charge) = self.reserve(client, &head, Writer::Engine, room).await?;
        self.claims.confirm(&head.id).await?;
        self.may_create(client, head.id)?;
        write(&extent).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        self.transfer.records.count_copy(head.len());
        let (bytes, created) = (Held::Memory(extent), self.kernel.clock.unix_ms());
        let sealing = Sealing { head, role: Role::Primary, creator: Some(client), bytes, created };
        let replica = self.store.seal(sealing)?;
        charge.keep();
        self.sessions.counting.count_put(replica.len());
        self.placement.note_expiry(&replica);
        self.placement.note_owned(client, &replica);
        Ok(())
    }

    /// Makes an object for a user who need not have a client on this node. `fill` writes the `data_len` bytes
    /// of its data, in as many turns as it needs.
    pub(crate) async fn make_for(
        self: &Rc<Self>,
        user: u32,
        object: NewObject,
        data_len: u64,
        room: Duration,
        fill: impl AsyncFnOnce(&Extent) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if object.terms.owned {
            let text = format!("object {}: only what a client puts by itself ends with it", object.id);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let claim = self.claim_by(user, NOBODY, &object, room).await?;
        let metadata = object.metadata.clone();
        let head = self.head_by(user, object, data_len, 0)?;
        let (extent, charge) = self.reserve(NOBODY, &head, Writer::Engine, room).await?;
        fill(&extent).await?;
        let written = extent.write(data_len, &metadata);
        written.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        self.claims.confirm(&head.id).await?;
        self.may_create(NOBODY, head.id)?;
        self.transfer.records.count_copy(head.len());
        let (bytes, created) = (Held::Memory(extent), self.kernel.clock.unix_ms());
        let sealing = Sealing { head, role: Role::Primary, creator: Some(NOBODY), bytes, created };
        let replica = self.store.seal(sealing)?;
        charge.keep();
        claim.fulfil();
        self.sessions.counting.count_put(replica.len());
        self.placement.note_expiry(&replica);
        Ok(())
    }

    /// Claims the id of an object, unless the id was drawn at random for the object: such an id is only
    /// looked up once. The caller asks [`Creations::may_create`] after its last wait. `patience` is that of
    /// [`Claims::claim`].
    pub(crate) async fn claim_for(
        self: &Rc<Self>,
        client: ClientKey,
        object: &NewObject,
        patience: Duration,
    ) -> Result<Claim, Error> {
        let user = self.sessions.client(client, |client| client.uid);
        self.claim_by(user, client, object, patience).await
    }

    async fn claim_by(
        self: &Rc<Self>,
        user: u32,
        client: ClientKey,
        object: &NewObject,
        patience: Duration,
    ) -> Result<Claim, Error> {
        let id = object.id;
        let drawn = is_drawn(object);
        self.await_certainty(id).await?;
        if drawn { self.placement.ensure_stays() } else { self.may_create(client, id) }?;
        if self.directory.known_here(&id, user) == Some(true) {
            return Err(exists(id, "exists already"));
        }
        if drawn { Ok(Claim::of_nobody(id)) } else { self.claims.claim(id, user, patience).await }
    }

    /// Waits until the objects that this node holds of an id certainly exist. A node that is not a member may
    /// hold objects that others have deleted.
    pub(super) async fn await_certainty(&self, id: ObjectId) -> Result<(), Error> {
        let due = Some(self.kernel.clock.now() + MEMBER_PATIENCE);
        let sealed = || matches!(self.store.objects.borrow().conflict(&id), Some(Conflict::Sealed));
        while self.cluster.withholds() && sealed() {
            if self.kernel.clock.bounded(due, self.cluster.next_view()).await.is_none() {
                let text = format!(
                    "cannot create object {id}: one of this id is here, and it is not known whether it was \
                     deleted while this node was not a member of its cluster; try again"
                );
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
        }
        Ok(())
    }

    /// Whether [`Creations::claim_for`] can claim without asking another node.
    pub(crate) fn claims_at_once(&self, object: &NewObject) -> bool {
        is_drawn(object) || self.claims.decides_here(&object.id, self.kernel.clock.now())
    }

    /// Begins a creation. Returns the place of its data, with the descriptors that the client needs. The
    /// sizes are bytes of data, and of metadata that the client writes by itself.
    pub(super) async fn create(
        self: Rc<Self>,
        client: ClientKey,
        object: NewObject,
        sizes: (u64, u32),
        room: Duration,
    ) -> Outcome {
        self.begin_claimed(client, object, sizes, room).await?.tell()
    }

    /// Claims an id and begins a creation. The sizes are those of [`Creations::create`].
    pub(in crate::sessions) async fn begin_claimed(
        self: Rc<Self>,
        client: ClientKey,
        object: NewObject,
        sizes: (u64, u32),
        room: Duration,
    ) -> Result<Begun, Error> {
        let id = object.id;
        let claim = match object.terms.replaces {
            true => {
                let user = self.sessions.client(client, |client| client.uid);
                self.directory.writer.ensure_may_replace(id, user).await?;
                self.unclaimed(id).await?
            }
            false => self.claim_for(client, &object, room).await?,
        };
        let (placement, segments) = self.begin(client, object, sizes, room).await?;
        claim.keep();
        Ok(Begun { creations: self, client, id, placement, segments, told: false })
    }

    /// Begins a creation. Returns the place of its data and its segments. The sizes are those of
    /// [`Creations::create`].
    async fn begin(
        self: &Rc<Self>,
        client: ClientKey,
        object: NewObject,
        (data_len, written): (u64, u32),
        room: Duration,
    ) -> Result<(wire::Placement, Vec<u32>), Error> {
        let (metadata, replaces) = (object.metadata.clone(), object.terms.replaces);
        let head = self.head(client, object, data_len, written)?;
        let inline = head.len() <= u64::from(INLINE_MAX_BYTES);
        let writer = if inline { Writer::Engine } else { Writer::Uid(head.user) };
        let (extent, charge) = self.reserve(client, &head, writer, room).await?;
        if replaces { self.placement.ensure_stays() } else { self.may_create(client, head.id) }?;
        let written = extent.write(head.data_len, &metadata);
        written.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        let (placement, segments) = if inline {
            (wire::Placement::Inline, Vec::new())
        } else {
            let span = Span { offset: extent.offset(), data_len, metadata_len: head.metadata_len, digest: 0 };
            (wire::Placement::Mapped(span), extent.segments().collect())
        };
        let created = self.kernel.clock.unix_ms();
        let creation = Creation { head, extent, client, inline, created, replaces };
        self.enter(creation)?;
        charge.keep();
        Ok((placement, segments))
    }

    /// Returns the head of an object that is to be created, if its sizes are valid. `written` is the number
    /// of bytes of metadata that the client writes by itself; 0 if it has sent all metadata.
    pub(super) fn head(
        &self,
        client: ClientKey,
        object: NewObject,
        data_len: u64,
        written: u32,
    ) -> Result<Head, Error> {
        let user = self.sessions.client(client, |client| client.uid);
        self.head_by(user, object, data_len, written)
    }

    fn head_by(&self, user: u32, object: NewObject, data_len: u64, written: u32) -> Result<Head, Error> {
        let NewObject { id, rights, name, metadata, terms } = object;
        let large = written as usize > MAX_METADATA_BYTES && metadata.is_empty();
        if written > 0 && !large {
            let text = format!("object {id}: {written} bytes of metadata must be in the request");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let metadata_len = written.max(metadata.len() as u32);
        if data_len.checked_add(u64::from(metadata_len)).is_none() {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("object {id}: {data_len} bytes are not a valid size"),
            ));
        }
        let rights = if rights == Rights::Read { self.kernel.config.public } else { rights };
        let life = self.kernel.lives.draw();
        let expires =
            if terms.ttl_ms == 0 { 0 } else { self.kernel.clock.unix_ms().saturating_add(terms.ttl_ms) };
        let (name, copies, owned) = (name.into(), terms.copies, terms.owned);
        let digest = 0;
        Ok(Head { id, name, life, user, rights, data_len, metadata_len, digest, copies, expires, owned })
    }

    /// Whether an object of this id may be created here. The caller asks again after each wait.
    pub(super) fn may_create(&self, client: ClientKey, id: ObjectId) -> Result<(), Error> {
        self.placement.ensure_stays()?;
        match self.store.objects.borrow().conflict(&id) {
            None => Ok(()),
            Some(Conflict::Sealed) => Err(exists(id, "exists already")),
            Some(Conflict::Creating { client: other }) => {
                let who =
                    if other == client { "this client".into() } else { self.store.readers.describe(other) };
                Err(exists(id, &format!("is being created by {who}")))
            }
        }
    }

    /// Takes room for a new object, counted against its quotas. Another object may take the id during the
    /// wait, so the caller checks the id again.
    pub(super) async fn reserve<'a>(
        self: &'a Rc<Self>,
        client: ClientKey,
        head: &Head,
        writer: Writer,
        room: Duration,
    ) -> Result<(Extent, Charge<'a>), Error> {
        let zone = Zone { domain: head.domain(), writer };
        let charge = self.charge(|| format!("create object {}", head.id), client, head.user, head.len())?;
        let extent = self.store.room(zone, head.len(), room).await.map_err(|error| {
            error.about(head.id).while_doing(&format!("cannot create object {}", head.id))
        })?;
        Ok((extent, charge))
    }

    /// Counts bytes against quotas, to do `what`.
    pub(super) fn charge(
        &self,
        what: impl Fn() -> String,
        client: ClientKey,
        user: u32,
        len: u64,
    ) -> Result<Charge<'_>, Error> {
        let taken = self.store.quotas.borrow_mut().take(what, user, client, len);
        taken?;
        Ok(Charge { store: &self.store, user, client, len, keep: false })
    }

    /// Seals a creation of this client, which makes it immutable and visible.
    pub(crate) fn seal_creation(
        self: &Rc<Self>,
        client: ClientKey,
        id: ObjectId,
        digest: u64,
        data: &[u8],
    ) -> Result<(), Error> {
        let objects = self.store.objects.borrow();
        let creation = self.own_creation(&objects, client, &id, "seal")?;
        let expected = if creation.inline { creation.head.data_len } else { 0 };
        if data.len() as u64 != expected {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("object {id}: sealed with {} bytes where {expected} belong", data.len()),
            ));
        }
        let written = creation.extent.write(0, data);
        written.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        self.transfer.records.count_copy(data.len() as u64);
        drop(objects);
        let replica = self.store.seal_creation(&id, digest)?;
        self.claims.fulfil(&id);
        self.sessions.counting.count_put(replica.len());
        self.placement.note_expiry(&replica);
        self.placement.note_owned(client, &replica);
        Ok(())
    }

    /// Seals a creation once it is certain that no other node was first. If another node was, the creation is
    /// given up.
    pub(super) async fn seal_for(
        self: Rc<Self>,
        client: ClientKey,
        id: ObjectId,
        digest: u64,
        data: Bytes,
    ) -> Outcome {
        self.own_creation(&self.store.objects.borrow(), client, &id, "seal")?;
        self.claims.confirm(&id).await.inspect_err(|_| self.give_up(&id))?;
        self.seal_creation(client, id, digest, &data)?;
        Ok((Reply::Done, Vec::new()))
    }

    /// Gives up a creation of this client.
    ///
    /// # Errors
    /// `NotFound` if no such creation is under way, `Exists` if the object is sealed already, `NotAllowed` if
    /// another client creates it.
    pub(in crate::sessions) fn abort(&self, client: ClientKey, id: ObjectId) -> Result<(), Error> {
        let replacing = self.store.objects.borrow_mut().end_replacing(client, &id);
        if let Some(creation) = replacing {
            self.store.quotas.borrow_mut().forget(&creation.head, client);
            return Ok(());
        }
        self.own_creation(&self.store.objects.borrow(), client, &id, "abort")?;
        self.give_up(&id);
        Ok(())
    }

    /// Gives up a creation.
    pub(crate) fn give_up(&self, id: &ObjectId) {
        let ended = self.store.objects.borrow_mut().end(id);
        if let Some(creation) = ended {
            self.store.quotas.borrow_mut().forget(&creation.head, creation.client);
            self.claims.release(id);
        }
    }

    /// Returns a creation of this client, or the error why the client cannot seal or abort it.
    pub(super) fn own_creation<'a>(
        &self,
        objects: &'a Table,
        client: ClientKey,
        id: &ObjectId,
        verb: &str,
    ) -> Result<&'a Creation, Error> {
        match objects.creation(id) {
            Some(creation) if creation.client == client => Ok(creation),
            Some(creation) => Err(Error::new(
                ErrorKind::NotAllowed,
                format!(
                    "cannot {verb} object {id}: {} is creating it",
                    self.store.readers.describe(creation.client)
                ),
            )),
            None if objects.get(id).is_some() => {
                Err(Error::new(ErrorKind::Exists, format!("cannot {verb} object {id}: it is sealed already")))
            }
            None => Err(Error::new(
                ErrorKind::NotFound,
                format!("cannot {verb} object {id}: it is not being created; create it first"),
            )),
        }
    }
}

/// A creation that its client does not know of yet. If this value is dropped before the client was told, the
/// creation is aborted.
pub(in crate::sessions) struct Begun {
    creations: Rc<Creations>,
    client: ClientKey,
    id: ObjectId,
    placement: wire::Placement,
    segments: Vec<u32>,
    told: bool,
}

impl Begun {
    /// Answers the client with the place, and with the descriptors that it needs.
    pub(in crate::sessions) fn tell(mut self) -> Outcome {
        let (granted, descriptors) =
            self.creations.sessions.grant(self.client, &self.segments, Access::Write)?;
        self.told = true;
        Ok((Reply::Created { placement: self.placement, granted }, descriptors))
    }

    /// Tells the client by the ring. Returns the offset of a large object, or 0 for a small one. Returns
    /// `Err(self)` if the client needs descriptors, which only the socket carries.
    pub(in crate::sessions) fn tell_by_ring(mut self) -> Result<u64, Self> {
        let offset = match self.placement {
            wire::Placement::Inline => 0,
            wire::Placement::Mapped(span)
                if self.creations.sessions.may_write(self.client, &self.segments) =>
            {
                span.offset
            }
            wire::Placement::Mapped(_) => return Err(self),
        };
        self.told = true;
        Ok(offset)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.told {
            // If the client has gone, the creation has ended already.
            let _ = self.creations.abort(self.client, self.id);
        }
    }
}

/// Whether the id of an object was drawn at random for it.
fn is_drawn(object: &NewObject) -> bool {
    object.terms.fresh && object.name.is_empty()
}

/// Bytes counted against quotas. Dropping the charge gives them back, unless they are kept, because later
/// steps may fail or be dropped.
pub(super) struct Charge<'a> {
    store: &'a Store,
    user: u32,
    client: ClientKey,
    len: u64,
    keep: bool,
}

impl Charge<'_> {
    /// Leaves the bytes counted: the object has them.
    pub(super) fn keep(mut self) {
        self.store.quotas.borrow_mut().taken(self.user, self.client, self.len);
        self.keep = true;
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        if !self.keep {
            let mut quotas = self.store.quotas.borrow_mut();
            quotas.taken(self.user, self.client, self.len);
            quotas.subtract(self.user, self.client, self.len);
        }
    }
}
