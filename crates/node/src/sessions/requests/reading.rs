//! Requests that find objects: get, wait, contains. Owns no state. Engine thread only.

use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{Either, join_all, pending, select};
use futures::stream::{FuturesUnordered, StreamExt};
use plasmon::wire::{Access, MAX_IDS, Presence, Reply};
use plasmon::{Error, ErrorKind, ObjectId};

use super::Requests;
use super::seeking::KEEPER_PATIENCE;
use crate::kernel::ClientKey;
use crate::kernel::planted::{Bug, is_planted};
use crate::object::{Conflict, Pin, Replica};

impl Requests {
    pub(super) fn get(
        self: &Rc<Self>,
        client: ClientKey,
        request: u64,
        timeout_us: u64,
        (ids, verify): (Vec<ObjectId>, bool),
    ) {
        let user = self.sessions.client(client, |client| client.uid);
        if let Some(results) = self.pin_all_here(&ids, user) {
            return self.got(client, request, results);
        }
        let due = self.sessions.due(timeout_us);
        let requests = Rc::clone(self);
        self.sessions.wait(client, request, ids.len(), async move {
            if timeout_us > 0 {
                requests.kernel.clock.bounded(due, requests.transfer.bring_short(&ids, user, verify)).await;
            }
            let gets = ids.into_iter().map(|id| requests.get_one((id, verify), user, timeout_us == 0, due));
            let results = join_all(gets).await;
            requests.got(client, request, results);
        });
    }

    /// Counts a get of these objects. Returns their pins, if all of them are here, or errors for those that
    /// this user may not see.
    pub(super) fn pin_all_here(&self, ids: &[ObjectId], user: u32) -> Option<Vec<Result<Pin, Error>>> {
        let here: Vec<_> = ids.iter().map(|id| self.pin_here(*id, user)).collect();
        let hits = here.iter().filter(|one| matches!(one, Some(Ok(_)))).count();
        self.sessions.counting.count_gets(hits, ids.len() - hits);
        here.into_iter().collect()
    }

    /// Returns a pin on an object that is in memory here, or an error if this user may not see it; `None` if
    /// it is not here.
    pub(super) fn pin_here(&self, id: ObjectId, user: u32) -> Option<Result<Pin, Error>> {
        if self.cluster.withholds() {
            return None;
        }
        let objects = self.store.objects.borrow();
        let replica = objects.get(&id)?;
        if !replica.visible_to(user) {
            return Some(Err(crate::object::not_visible(id, user)));
        }
        let is_given = !replica.is_guarded() || is_planted(Bug::GuardedGivenUnasked);
        is_given.then(|| Pin::new(replica).map(Ok)).flatten()
    }

    /// Waits until an object is in memory here, wherever it comes from, and pins it. With `no_time` the
    /// request would not wait at all; for any other request, an absent object is a time-out, however late the
    /// wait begins. With `verify`, bytes from another node are compared with the digest of their seal,
    /// whatever the setting of this node says.
    pub(super) async fn get_one(
        self: &Rc<Self>,
        (id, verify): (ObjectId, bool),
        user: u32,
        no_time: bool,
        due: Option<Instant>,
    ) -> Result<Pin, Error> {
        // The life of a guarded replica of which the keeper has said, since this get began, that it is given.
        let mut current = None;
        loop {
            if let Some(result) = self.pin_here(id, user) {
                return result;
            }
            let guarded = self.guarded_here(&id);
            if let Some(guarded) = &guarded
                && !self.cluster.withholds()
            {
                if current != Some(guarded.life) && !self.cluster.fenced() {
                    current = self.ask_current(id, user, no_time, due).await?;
                }
                if current == Some(guarded.life) || self.cluster.fenced() {
                    if let Some(pin) = Pin::new(guarded) {
                        return Ok(pin);
                    }
                    self.kernel
                        .clock
                        .bounded(due.filter(|_| !no_time), self.store.bring_back(guarded))
                        .await
                        .ok_or_else(|| self.timed_out(id, user))??;
                    continue;
                }
            }
            if self.cluster.withholds() {
                match self.kernel.clock.bounded(due, self.cluster.next_view()).await {
                    None => return Err(self.timed_out(id, user)),
                    Some(_) => continue,
                }
            }
            let on_disk = self.store.objects.borrow().get(&id).filter(|one| !one.is_guarded()).cloned();
            if let Some(replica) = on_disk {
                // A get without time does not stop waiting for a read from this node's own disk.
                let due = due.filter(|_| !no_time);
                match self.kernel.clock.bounded(due, self.store.bring_back(&replica)).await {
                    None => {
                        let no_memory = self.store.cannot_come_back(&replica);
                        return Err(no_memory.unwrap_or_else(|| self.timed_out(id, user)));
                    }
                    Some(restored) => restored?,
                }
                continue;
            }
            if no_time && guarded.is_none() {
                return Err(self.absent(id));
            }
            let sealed = self.store.objects.borrow_mut().wait(id);
            let brought = async {
                if self.cluster.solo() {
                    // When this wait ends, there are other members to ask.
                    let _ = self.cluster.next_view().await;
                    Ok(())
                } else {
                    self.transfer.fetch(id, user, verify).await
                }
            };
            let brought = std::pin::pin!(brought);
            match self.kernel.clock.bounded(due, select(sealed, brought)).await {
                None => return Err(self.timed_out(id, user)),
                Some(Either::Left(_) | Either::Right((Ok(()), _))) => {}
                Some(Either::Right((Err(error), _))) => return Err(error),
            }
        }
    }

    /// A replica of this node that is given only to who has asked.
    fn guarded_here(&self, id: &ObjectId) -> Option<Rc<Replica>> {
        self.store.objects.borrow().get(id).filter(|one| one.is_guarded()).cloned()
    }

    /// Asks which life of an object is given now.
    async fn ask_current(
        &self,
        id: ObjectId,
        user: u32,
        no_time: bool,
        due: Option<Instant>,
    ) -> Result<Option<u64>, Error> {
        let due = if no_time { Some(self.kernel.clock.now() + KEEPER_PATIENCE) } else { due };
        let told = self.directory.writer.current(id, (user, false), due).await;
        told.map(|told| told.life).map_err(|error| match error.kind() {
            ErrorKind::TimedOut => self.timed_out(id, user),
            _ => error,
        })
    }

    /// Brings an object's data into a client's memory, and returns its length. `None` if the client should
    /// get the object and copy it.
    pub(super) async fn get_into(
        self: Rc<Self>,
        client: ClientKey,
        timeout_us: u64,
        (id, verify): (ObjectId, bool),
        (buffer, at, room): (u64, u64, u64),
    ) -> Result<Reply, Error> {
        const COPY: Reply = Reply::Landed { data_len: None };
        let user = self.sessions.client(client, |client| client.uid);
        let at_once = timeout_us == 0;
        let due = self.sessions.due(timeout_us).filter(|_| !at_once);
        if !self.transfer.lands_anywhere() || self.is_here(&id) {
            return Ok(COPY);
        }
        if at_once {
            self.existing(&[id], user).await.remove(0)?;
        }
        self.lending.settle_buffer(client, buffer).await?;
        let given = self.lending.give(client, buffer, at, room)?;
        let sealed = self.store.objects.borrow_mut().wait(id);
        let given_up = async {
            match at_once {
                true => self.vanishing(id, user).await,
                false => {
                    self.kernel.clock.bounded(due, pending::<()>()).await;
                    self.timed_out(id, user)
                }
            }
        };
        let outcome = {
            let fetching = std::pin::pin!(self.transfer.fetch_into(id, user, &given, verify));
            match select(select(sealed, fetching), std::pin::pin!(given_up)).await {
                Either::Left((Either::Left(_), _)) => Ok(None),
                Either::Left((Either::Right((fetched, _)), _)) => fetched.map(Some),
                Either::Right((error, _)) => Err(error),
            }
        };
        // Whatever the outcome, nothing writes to the memory after the client has its answer.
        self.transfer.settle(&given).await?;
        Ok(outcome?.map_or(COPY, |()| Reply::Landed { data_len: given.landed() }))
    }

    fn absent(&self, id: ObjectId) -> Error {
        Error::new(ErrorKind::NotFound, format!("object {id} {}", self.whereabouts(&id)))
    }

    pub(super) fn timed_out(&self, id: ObjectId, user: u32) -> Error {
        let known = self.store.objects.borrow().conflict(&id).is_some() || self.directory.deleted(&id);
        let why = match self.transfer.records.explain(&id, user).arriving {
            Some(arriving) => format!(
                "{} of its {} bytes have come from node {}",
                arriving.arrived_bytes,
                arriving.bytes,
                arriving.holders.join(", ")
            ),
            None if known => format!("it {}", self.whereabouts(&id)),
            None => format!(
                "it {}; nobody has put it, or it is another user's private object, or the nodes that have it \
                 do not answer: `plasmon explain {id}` says what is known of it",
                self.whereabouts(&id)
            ),
        };
        Error::new(ErrorKind::TimedOut, format!("object {id} did not come within the time-out: {why}"))
    }

    /// Describes what this node knows of an object that is not here.
    fn whereabouts(&self, id: &ObjectId) -> String {
        match self.store.objects.borrow().conflict(id) {
            Some(Conflict::Sealed) if self.cluster.withholds() => {
                let again = || "this node has just become a member of its cluster again".to_owned();
                let why = self.cluster.trouble().unwrap_or_else(again);
                format!("is on this node, but may have been deleted meanwhile: {why}")
            }
            Some(Conflict::Creating { client }) => {
                format!("is being created by {} and not sealed yet", self.store.readers.describe(client))
            }
            Some(Conflict::Sealed) => "is on this node's disk, and was not read in time".into(),
            _ if self.directory.deleted(id) => "was deleted".into(),
            _ => match self.cluster.trouble() {
                None => "is not on this node".into(),
                Some(trouble) => format!("is not on this node, and {trouble}"),
            },
        }
    }

    /// Hands pinned objects to a client.
    pub(super) fn got(&self, client: ClientKey, request: u64, results: Vec<Result<Pin, Error>>) {
        let mut segments: Vec<u32> = results.iter().flatten().flat_map(|pin| pin.run().segments()).collect();
        segments.sort_unstable();
        segments.dedup();
        let (granted, descriptors) = match self.sessions.grant(client, &segments, Access::Read) {
            Ok(granted) => granted,
            Err(error) => return self.sessions.reply(client, request, &Reply::Failed { error }),
        };
        let objects =
            results.iter().map(|result| result.as_ref().map(|pin| pin.span()).map_err(Clone::clone));
        let reply = Reply::Got { objects: objects.collect(), granted };
        self.sessions.client_mut(client, |client| {
            for pin in results.into_iter().flatten() {
                client.pins.entry(pin.run().offset()).or_default().push(pin);
            }
        });
        self.sessions.send_reply(client, request, &reply, descriptors);
    }

    pub(super) fn release(&self, client: ClientKey, offsets: &[u64]) {
        self.sessions.client_mut(client, |client| {
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

    /// Waits until `count` of the objects are in memory here.
    pub(super) fn wait_for(
        self: &Rc<Self>,
        client: ClientKey,
        request: u64,
        timeout_us: u64,
        count: usize,
        ids: Vec<ObjectId>,
    ) {
        let user = self.sessions.client(client, |client| client.uid);
        let due = self.sessions.due(timeout_us);
        let requests = Rc::clone(self);
        self.sessions.wait(client, request, ids.len(), async move {
            let here = requests.wait_for_enough(&ids, user, timeout_us == 0, due, count).await;
            requests.sessions.reply(client, request, &Reply::Waited(here));
        });
    }

    async fn wait_for_enough(
        self: &Rc<Self>,
        ids: &[ObjectId],
        user: u32,
        no_time: bool,
        due: Option<Instant>,
        count: usize,
    ) -> Vec<bool> {
        let mut here = vec![false; ids.len()];
        let mut found = 0;
        let mut gets = FuturesUnordered::new();
        for (page, some) in ids.chunks(MAX_IDS).enumerate() {
            let first = page * MAX_IDS;
            if found >= count {
                // There are enough objects: the ones that are here already still count.
                for (at, id) in some.iter().enumerate() {
                    here[first + at] = self.pin_here(*id, user).is_some_and(|pinned| pinned.is_ok());
                }
                continue;
            }
            let get = |(at, id): (usize, &ObjectId)| {
                let id = *id;
                async move { (first + at, self.get_one((id, false), user, no_time, due).await.is_ok()) }
            };
            gets.extend(some.iter().enumerate().map(get));
            let mut note = |(at, ready): (usize, bool)| {
                here[at] = ready;
                found += usize::from(ready);
            };
            while let Some(got) = gets.next().now_or_never().flatten() {
                note(got);
            }
            if first + some.len() < ids.len() {
                // So many objects take time, so other tasks get their turn.
                self.kernel.clock.sleep(Duration::ZERO).await;
            }
        }
        // An object that failed does not come any more.
        while found < count
            && let Some((at, ready)) = gets.next().await
        {
            here[at] = ready;
            found += usize::from(ready);
        }
        while let Some((at, ready)) = gets.next().now_or_never().flatten() {
            here[at] = ready;
        }
        here
    }

    /// Marks objects as used just now.
    pub(super) fn refresh(&self, client: ClientKey, ids: &[ObjectId]) -> Reply {
        let user = self.sessions.client(client, |client| client.uid);
        let objects = self.store.objects.borrow();
        let seen = ids.iter().filter_map(|id| objects.get(id)).filter(|one| one.visible_to(user));
        seen.for_each(|replica| replica.touch());
        Reply::Done
    }

    pub(super) fn contains(self: &Rc<Self>, client: ClientKey, request: u64, ids: Vec<ObjectId>) {
        let user = self.sessions.client(client, |client| client.uid);
        let here: Vec<_> = {
            let objects = self.store.objects.borrow();
            let served = !self.cluster.withholds();
            let is_given = |one: &Rc<Replica>| one.visible_to(user) && !one.is_guarded();
            let visible = |id| served && objects.get(id).is_some_and(is_given);
            ids.iter().map(visible).collect()
        };
        if self.cluster.solo() || here.iter().all(|here| *here) {
            let presence = here.iter().map(|here| if *here { Presence::Here } else { Presence::Absent });
            return self.sessions.reply(client, request, &Reply::Contains(presence.collect()));
        }
        let requests = Rc::clone(self);
        self.sessions.wait(client, request, ids.len(), async move {
            let reply = match requests.directory.known(&ids, user).await {
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
            requests.sessions.reply(client, request, &reply);
        });
    }
}
