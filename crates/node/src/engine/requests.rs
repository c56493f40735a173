//! What clients may ask, request by request. Engine thread only.
//!
//! A request that can be answered at once is; one that has to wait becomes a task of its client,
//! which ends with it. A request that fails leaves everything as it was.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::{Either, abortable, join_all, select};
use plasmon::wire::{Access, DeleteOutcome, Granted, NewObject, Placement, Presence, Reply, Request, Span};
use plasmon::{Error, ErrorKind, ObjectId};

use super::client::ClientKey;
use super::core::Core;
use crate::memory::{self, Extent, Writer, Zone};
use crate::object::{Conflict, Creation, Head, Pin, Replica, Role};

/// Largest object that travels through the socket and that the engine writes itself.
pub(super) const INLINE_MAX: u32 = 64 << 10;
/// What the requests of one client may weigh that are not done yet, in objects.
const UNDER_WAY: usize = 1 << 16;
/// Bytes that a waiting request may hold for each object it counts.
const WEIGHT: usize = 1 << 10;
/// What a request costs that walks the table.
const WALK: usize = 128;
/// Rows in one frame of a listing.
const LIST_ROWS: usize = 512;

impl Core {
    /// Answers a client's request, or starts what will. Returns what it cost, in simple requests.
    pub(super) fn request(self: &Rc<Self>, client: ClientKey, request: u64, asked: Request) -> usize {
        let cost = match &asked {
            Request::Get { ids, .. } => ids.len().max(1),
            Request::List | Request::Status => WALK,
            _ => 1,
        };
        let done = match asked {
            Request::Hello { name } => Ok(self.hello(client, name)),
            Request::Seal { id, data, .. } => self.seal_creation(client, id, &data).map(|()| Reply::SEALED),
            Request::Abort { id } => self.abort(client, id).map(|()| Reply::ABORTED),
            Request::Status => Ok(Reply::Status(self.status_json())),
            later => {
                self.begin(client, request, later);
                return cost;
            }
        };
        let reply = done.unwrap_or_else(|error| Reply::Failed { error });
        self.reply(client, request, &reply);
        cost
    }

    /// Starts a request that answers by itself, now or later, or not at all.
    fn begin(self: &Rc<Self>, client: ClientKey, request: u64, asked: Request) {
        match asked {
            Request::Put { object, data, .. } => {
                let weight = 1 + data.len() / WEIGHT;
                self.if_new(client, request, weight, object, move |core, tenant, object| {
                    core.put(client, tenant, object, &data).map(|()| (Reply::PUT_DONE, Vec::new()))
                });
            }
            Request::Create { object, data_len, .. } => {
                self.if_new(client, request, 1, object, move |core, tenant, object| {
                    core.create(client, tenant, object, data_len)
                });
            }
            Request::Get { timeout_us, ids } => self.get(client, request, timeout_us, ids),
            Request::Release { offsets } => self.release(client, &offsets),
            Request::Contains { ids } => self.contains(client, request, ids),
            Request::Delete { ids } => self.delete(client, request, ids),
            Request::List => self.list(client, request),
            Request::Cancel { request } => self.cancel(client, request),
            // Answered at once, in `request`.
            _ => {}
        }
    }

    fn hello(&self, client: ClientKey, name: String) -> Reply {
        self.client_mut(client, |client| {
            client.name = name;
            client.greeted = true;
        });
        let arena = self.arena.borrow();
        Reply::Hello {
            node: self.node,
            segment_size: arena.segment_size(),
            segments: arena.segment_count(),
            inline_max: INLINE_MAX,
        }
    }

    fn put(&self, client: ClientKey, tenant: u32, object: NewObject, data: &[u8]) -> Result<(), Error> {
        let (id, metadata) = (object.id, object.metadata.clone());
        if data.len() + metadata.len() > INLINE_MAX as usize {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("object {id}: {} bytes are too many for a put frame; create it instead", data.len()),
            ));
        }
        let head = self.head(client, tenant, object, data.len() as u64)?;
        let extent = self.reserve(&head, Writer::Engine)?;
        self.write(&extent, 0, data)?;
        self.write(&extent, head.data_len, &metadata)?;
        self.seal(Replica::new(head, Role::Primary, extent, self.clock.now()));
        Ok(())
    }

    /// Creates an object, unless the cluster has it. The keeper is asked when it is this node, which
    /// costs nothing, or when the object has a name: random ids need no asking.
    fn if_new(
        self: &Rc<Self>,
        client: ClientKey,
        request: u64,
        weight: usize,
        object: NewObject,
        create: impl FnOnce(&Self, u32, NewObject) -> Result<(Reply, Vec<OwnedFd>), Error> + 'static,
    ) {
        let (id, tenant) = (object.id, self.client(client, |client| client.uid));
        let unnamed = object.name.is_empty();
        let finish = move |core: &Self, known| {
            let created =
                if known { Err(exists(id, "exists already")) } else { create(core, tenant, object) };
            match created {
                Ok((reply, descriptors)) => core.send_reply(client, request, &reply, descriptors),
                Err(error) => core.reply(client, request, &Reply::Failed { error }),
            }
        };
        match self.cluster.known_here(&id, tenant) {
            Some(known) => finish(self, known),
            None if unnamed => finish(self, false),
            None => {
                let core = Rc::clone(self);
                self.wait(client, request, weight, async move {
                    // A keeper that does not answer stops no creation: the object is made where it is.
                    let known = core.known(&[id], tenant).await.is_ok_and(|known| known == [true]);
                    finish(&core, known);
                });
            }
        }
    }

    fn create(
        &self,
        client: ClientKey,
        tenant: u32,
        object: NewObject,
        data_len: u64,
    ) -> Result<(Reply, Vec<OwnedFd>), Error> {
        let id = object.id;
        let (placement, segments) = self.reserve_for(client, tenant, object, data_len)?;
        let granted = self.grant(client, &segments, Access::Write);
        if granted.is_err() {
            self.objects.borrow_mut().end(&id);
        }
        granted.map(|(granted, descriptors)| (Reply::Created { placement, granted }, descriptors))
    }

    /// Begins a creation: where its data goes, and the segments that takes.
    fn reserve_for(
        &self,
        client: ClientKey,
        tenant: u32,
        object: NewObject,
        data_len: u64,
    ) -> Result<(Placement, Vec<u32>), Error> {
        let metadata = object.metadata.clone();
        let head = self.head(client, tenant, object, data_len)?;
        let inline = head.len() <= u64::from(INLINE_MAX);
        let writer = if inline { Writer::Engine } else { Writer::Uid(head.tenant) };
        let extent = self.reserve(&head, writer)?;
        self.write(&extent, head.data_len, &metadata)?;
        let (placement, segments) = if inline {
            (Placement::Inline, Vec::new())
        } else {
            let span = Span { offset: extent.offset(), data_len, metadata_len: head.metadata_len, digest: 0 };
            (Placement::Mapped(span), extent.segments().collect())
        };
        let created = self.clock.now();
        self.objects.borrow_mut().begin(Creation { head, extent, client, inline, created });
        Ok((placement, segments))
    }

    /// What is to be created, if it may be.
    fn head(&self, client: ClientKey, tenant: u32, object: NewObject, data_len: u64) -> Result<Head, Error> {
        let NewObject { id, private, name, metadata } = object;
        match self.objects.borrow().conflict(&id) {
            Some(Conflict::Sealed(_)) => return Err(exists(id, "exists already")),
            Some(Conflict::Creating { client: other }) => {
                let who = if other == client { "this client".into() } else { self.describe(other) };
                return Err(exists(id, &format!("is being created by {who}")));
            }
            None => {}
        }
        let metadata_len = metadata.len() as u32;
        if data_len.checked_add(u64::from(metadata_len)).is_none() {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("object {id}: {data_len} bytes are no size"),
            ));
        }
        let life = self.draw_life();
        Ok(Head { id, name, life, tenant, private, data_len, metadata_len })
    }

    /// Names a life of an id: never zero, and never drawn before in this cluster but by a miracle.
    fn draw_life(&self) -> u64 {
        super::random_u64().max(1)
    }

    fn reserve(&self, head: &Head, writer: Writer) -> Result<Rc<Extent>, Error> {
        let zone = Zone { domain: head.domain(), writer };
        let extent = self.allocate(zone, head.len());
        extent.map(Rc::new).map_err(|error| {
            Error::new(error.kind(), format!("cannot create object {}: {}", head.id, error.message()))
        })
    }

    fn write(&self, extent: &Extent, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.transfer.count_copy(bytes.len() as u64);
        extent.write(at, bytes).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
    }

    fn seal_creation(&self, client: ClientKey, id: ObjectId, data: &[u8]) -> Result<(), Error> {
        let objects = self.objects.borrow();
        let creation = self.own_creation(&objects, client, &id, "seal")?;
        let expected = if creation.inline { creation.head.data_len } else { 0 };
        if data.len() as u64 != expected {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("object {id}: sealed with {} bytes where {expected} belong", data.len()),
            ));
        }
        self.write(&creation.extent, 0, data)?;
        drop(objects);
        let creation = self.objects.borrow_mut().end(&id).expect("just seen");
        self.seal(Replica::new(creation.head, Role::Primary, creation.extent, self.clock.now()));
        Ok(())
    }

    fn abort(&self, client: ClientKey, id: ObjectId) -> Result<(), Error> {
        self.own_creation(&self.objects.borrow(), client, &id, "abort")?;
        self.objects.borrow_mut().end(&id);
        Ok(())
    }

    /// A creation of this client's, or why it cannot be sealed or aborted.
    fn own_creation<'a>(
        &self,
        objects: &'a crate::object::Table,
        client: ClientKey,
        id: &ObjectId,
        verb: &str,
    ) -> Result<&'a Creation, Error> {
        match objects.creation(id) {
            Some(creation) if creation.client == client => Ok(creation),
            Some(creation) => Err(Error::new(
                ErrorKind::NotAllowed,
                format!("cannot {verb} object {id}: {} is creating it", self.describe(creation.client)),
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

    fn get(self: &Rc<Self>, client: ClientKey, request: u64, timeout_us: u64, ids: Vec<ObjectId>) {
        let tenant = self.client(client, |client| client.uid);
        let here: Option<Vec<_>> = ids.iter().map(|id| self.pin_here(*id, tenant)).collect();
        if let Some(results) = here {
            return self.got(client, request, results);
        }
        if timeout_us == 0 {
            let now =
                ids.iter().map(|id| self.pin_here(*id, tenant).unwrap_or_else(|| Err(self.absent(*id))));
            return self.got(client, request, now.collect());
        }
        let due = self.clock.now().checked_add(Duration::from_micros(timeout_us));
        let due = due.filter(|_| timeout_us != u64::MAX);
        let core = Rc::clone(self);
        self.wait(client, request, ids.len(), async move {
            let gets = ids.into_iter().map(|id| core.get_one(id, tenant, due));
            let results = join_all(gets).await;
            core.got(client, request, results);
        });
    }

    /// A pin on an object that is sealed here, or the news that this user may not see it.
    fn pin_here(&self, id: ObjectId, tenant: u32) -> Option<Result<Pin, Error>> {
        let objects = self.objects.borrow();
        let replica = objects.get(&id)?;
        Some(if replica.head.visible_to(tenant) {
            Ok(Pin::new(replica))
        } else {
            Err(crate::transfer::not_visible(id, tenant))
        })
    }

    /// Waits until an object is here, wherever it comes from, and pins it.
    async fn get_one(self: &Rc<Self>, id: ObjectId, tenant: u32, due: Option<Instant>) -> Result<Pin, Error> {
        loop {
            if let Some(result) = self.pin_here(id, tenant) {
                return result;
            }
            let sealed = self.objects.borrow_mut().wait(id);
            let brought = async {
                if self.cluster.solo() {
                    // Its end means that there is company to ask.
                    let _ = self.cluster.next_view().await;
                    Ok(())
                } else {
                    self.fetch(id, tenant).await
                }
            };
            let brought = std::pin::pin!(brought);
            match self.clock.bounded(due, select(sealed, brought)).await {
                None => return Err(self.timed_out(id)),
                Some(Either::Left(_) | Either::Right((Ok(()), _))) => {}
                Some(Either::Right((Err(error), _))) => return Err(error),
            }
        }
    }

    fn absent(&self, id: ObjectId) -> Error {
        let text = format!("object {id} {}; give the get a time-out to wait for it", self.whereabouts(&id));
        Error::new(ErrorKind::NotFound, text)
    }

    fn timed_out(&self, id: ObjectId) -> Error {
        let text = format!("object {id} did not come within the time-out: it {}", self.whereabouts(&id));
        Error::new(ErrorKind::TimedOut, text)
    }

    /// What this node knows of an object that is not here.
    fn whereabouts(&self, id: &ObjectId) -> String {
        match self.objects.borrow().conflict(id) {
            Some(Conflict::Creating { client }) => {
                format!("is being created by {} and not sealed yet", self.describe(client))
            }
            _ if self.cluster.deleted(id) => "was deleted".into(),
            _ => "is not on this node".into(),
        }
    }

    /// Hands pinned objects to a client.
    fn got(&self, client: ClientKey, request: u64, results: Vec<Result<Pin, Error>>) {
        let mut segments: Vec<u32> = results.iter().flatten().flat_map(|pin| pin.extent.segments()).collect();
        segments.sort_unstable();
        segments.dedup();
        let (granted, descriptors) = match self.grant(client, &segments, Access::Read) {
            Ok(granted) => granted,
            Err(error) => return self.reply(client, request, &Reply::Failed { error }),
        };
        let objects =
            results.iter().map(|result| result.as_ref().map(|pin| pin.span()).map_err(Clone::clone));
        let reply = Reply::Got { objects: objects.collect(), granted };
        self.client_mut(client, |client| {
            for pin in results.into_iter().flatten() {
                client.pins.entry(pin.extent.offset()).or_default().push(pin);
            }
        });
        self.send_reply(client, request, &reply, descriptors);
    }

    fn release(&self, client: ClientKey, offsets: &[u64]) {
        self.client_mut(client, |client| {
            for offset in offsets {
                if let Some(pins) = client.pins.get_mut(offset) {
                    pins.pop();
                    if pins.is_empty() {
                        client.pins.remove(offset);
                    }
                }
            }
        });
    }

    fn contains(self: &Rc<Self>, client: ClientKey, request: u64, ids: Vec<ObjectId>) {
        let tenant = self.client(client, |client| client.uid);
        let here: Vec<_> =
            ids.iter().map(|id| self.pin_here(*id, tenant).is_some_and(|result| result.is_ok())).collect();
        if self.cluster.solo() || here.iter().all(|here| *here) {
            let presence = here.iter().map(|here| if *here { Presence::Here } else { Presence::Absent });
            return self.reply(client, request, &Reply::Contains(presence.collect()));
        }
        let core = Rc::clone(self);
        self.wait(client, request, ids.len(), async move {
            let reply = match core.known(&ids, tenant).await {
                Err(error) => Reply::Failed { error },
                Ok(elsewhere) => Reply::Contains(
                    here.into_iter()
                        .zip(elsewhere)
                        .map(|known| match known {
                            (true, _) => Presence::Here,
                            (false, true) => Presence::Elsewhere,
                            (false, false) => Presence::Absent,
                        })
                        .collect(),
                ),
            };
            core.reply(client, request, &reply);
        });
    }

    /// Deletes here at once and everywhere in the background: that goes on if the client leaves.
    fn delete(self: &Rc<Self>, client: ClientKey, request: u64, ids: Vec<ObjectId>) {
        if !self.set_out(client, ids.len()) {
            return self.reply(client, request, &Reply::Failed { error: busy() });
        }
        let tenant = self.client(client, |client| client.uid);
        let here: Vec<_> = ids.iter().map(|id| self.delete_here(id, tenant)).collect();
        let core = Rc::clone(self);
        self.spawn(async move {
            let everywhere = if core.cluster.solo() {
                Ok(vec![DeleteOutcome::Absent; ids.len()])
            } else {
                core.delete_in_cluster(&ids, tenant).await
            };
            let reply = match everywhere {
                // What is known here says more than what the keeper knows.
                Ok(everywhere) => Reply::Deleted(
                    here.into_iter()
                        .zip(everywhere)
                        .map(|(here, there)| if here == DeleteOutcome::Absent { there } else { here })
                        .collect(),
                ),
                Err(error) => {
                    // The keepers still believe that this node has what it removed.
                    let removed = |outcome: &DeleteOutcome| {
                        matches!(outcome, DeleteOutcome::Deleted | DeleteOutcome::Deferred)
                    };
                    let removed = ids.iter().zip(&here).filter(|(_, outcome)| removed(outcome));
                    removed.for_each(|(id, _)| core.unpublish(*id, true));
                    Reply::Failed { error }
                }
            };
            core.arrive(client, ids.len());
            core.reply(client, request, &reply);
        });
    }

    fn delete_here(&self, id: &ObjectId, tenant: u32) -> DeleteOutcome {
        let mut objects = self.objects.borrow_mut();
        match objects.get(id) {
            None => DeleteOutcome::Absent,
            Some(replica) if !replica.head.visible_to(tenant) => DeleteOutcome::NotAllowed,
            Some(replica) => {
                let pinned = replica.pins() > 0;
                if self.cluster.solo() {
                    self.bury(replica);
                }
                objects.remove(id);
                if pinned { DeleteOutcome::Deferred } else { DeleteOutcome::Deleted }
            }
        }
    }

    fn list(&self, client: ClientKey, request: u64) {
        let tenant = self.client(client, |client| client.uid);
        let mut rows = self.objects.borrow().list(tenant, self.clock.now());
        rows.sort_unstable_by_key(|row| (std::cmp::Reverse(row.age_ms), row.id));
        let mut rows = rows.into_iter().peekable();
        loop {
            let objects = rows.by_ref().take(LIST_ROWS).collect();
            let more = rows.peek().is_some();
            self.reply(client, request, &Reply::List { objects, more });
            if !more {
                return;
            }
        }
    }

    /// Runs a request that has to wait, for so many objects; it ends with its client.
    fn wait(
        self: &Rc<Self>,
        client: ClientKey,
        request: u64,
        objects: usize,
        task: impl Future<Output = ()> + 'static,
    ) {
        if !self.set_out(client, objects) {
            return self.reply(client, request, &Reply::Failed { error: busy() });
        }
        let (task, handle) = abortable(task);
        self.client_mut(client, |client| client.waiting.insert(request, handle));
        let core = Rc::clone(self);
        self.spawn(async move {
            // Whoever aborted it has taken it off the list: the id may be another request's by now.
            if task.await.is_ok() {
                core.client_mut(client, |client| client.waiting.remove(&request));
            }
            core.arrive(client, objects);
        });
    }

    /// Counts what a client has under way, if that is not too much.
    fn set_out(&self, client: ClientKey, objects: usize) -> bool {
        let counted = self.client_mut(client, |client| {
            let room = client.under_way + objects <= UNDER_WAY;
            client.under_way += if room { objects } else { 0 };
            room
        });
        counted == Some(true)
    }

    /// What [`Core::set_out`] counted is done.
    fn arrive(&self, client: ClientKey, objects: usize) {
        self.client_mut(client, |client| client.under_way -= objects);
    }

    /// Ends a request that waits; its last word is that it was interrupted.
    fn cancel(&self, client: ClientKey, request: u64) {
        let waiting = self.client_mut(client, |client| client.waiting.remove(&request));
        if let Some(waiting) = waiting.flatten() {
            waiting.abort();
            let error = Error::new(ErrorKind::Interrupted, "the client no longer waits");
            self.reply(client, request, &Reply::Failed { error });
        }
    }

    /// Descriptors of those segments that the client does not have yet.
    fn grant(
        &self,
        client: ClientKey,
        segments: &[u32],
        access: Access,
    ) -> Result<(Vec<Granted>, Vec<OwnedFd>), Error> {
        let mut arena = self.arena.borrow_mut();
        let (mut granted, mut descriptors) = (Vec::new(), Vec::new());
        for &segment in segments {
            let version = arena.version(segment);
            let has = self.client(client, |client| client.granted.get(&(segment, access)) == Some(&version));
            if has {
                continue;
            }
            let wanted = match access {
                Access::Read => memory::Access::Read,
                Access::Write => memory::Access::Write,
            };
            let descriptor = arena
                .descriptor(segment, wanted)
                .map_err(|error| error.to_string())
                .and_then(|fd| fd.try_clone_to_owned().map_err(|error| error.to_string()))
                .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot share memory: {error}")))?;
            granted.push(Granted { segment, version, access });
            descriptors.push(descriptor);
        }
        self.client_mut(client, |client| {
            client.granted.extend(granted.iter().map(|one| ((one.segment, access), one.version)));
        });
        Ok((granted, descriptors))
    }

    /// A client for a person to find: its name and process.
    fn describe(&self, client: ClientKey) -> String {
        let clients = self.clients.borrow();
        clients.get(&client).map_or_else(
            || "a client that has gone".into(),
            |client| format!("client {:?} (process {})", client.name, client.pid),
        )
    }
}

fn exists(id: ObjectId, what: &str) -> Error {
    let text = format!("object {id} {what}; objects never change: use another id, or delete it first");
    Error::new(ErrorKind::Exists, text)
}

fn busy() -> Error {
    let text = format!("this client waits for {UNDER_WAY} objects already; let some of them come first");
    Error::new(ErrorKind::Busy, text)
}
