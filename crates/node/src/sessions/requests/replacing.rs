//! Requests that put an object in the place of another: replace, seal over. Owns no state. Engine thread
//! only. Invariant: from the request on the object is the daemon's, which ends what was begun if the client
//! goes.

use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::channel::oneshot;
use plasmon::wire::files::parts_of;
use plasmon::wire::{NewObject, Replacing, Reply, SealingOver};
use plasmon::{Error, ErrorKind, ObjectId};

use super::writing::{Creations, INLINE_MAX_BYTES, weight};
use super::{Requests, exists};
use crate::directory::claims::Claim;
use crate::kernel::ClientKey;
use crate::memory::Writer;
use crate::object::Creation;
use crate::placement::ahead::Copies;
use crate::service::{Answer, Outcome};

/// How long a replacement may take if its client sets no time-out.
const LONGEST_TIME: Duration = Duration::from_secs(30);
/// How much longer than that its answer is waited for.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// What is asked of a replacement.
struct Terms {
    /// The life that is to be replaced; `None` for any.
    expected: Option<u64>,
    digest: u64,
    /// Time-out in microseconds, 0 for the longest.
    timeout_us: u64,
}

impl Terms {
    fn patience(&self) -> Duration {
        match self.timeout_us {
            0 => LONGEST_TIME,
            timeout_us => Duration::from_micros(timeout_us).min(LONGEST_TIME),
        }
    }
}

impl Creations {
    /// Waits until an object that is to be replaced certainly exists, if one is here. The id is not claimed.
    pub(super) async fn unclaimed(&self, id: ObjectId) -> Result<Claim, Error> {
        self.await_certainty(id).await?;
        self.placement.ensure_stays()?;
        if parts_of(&id).is_some() {
            let text = format!("object {id} has bytes of a file: change the file");
            return Err(Error::new(ErrorKind::NotAllowed, text).about(id));
        }
        Ok(Claim::of_nobody(id))
    }

    /// Enters a creation that was begun.
    pub(super) fn enter(&self, creation: Creation) -> Result<(), Error> {
        let id = creation.head.id;
        let mut objects = self.store.objects.borrow_mut();
        if !creation.replaces {
            objects.begin(creation);
            return Ok(());
        }
        match objects.begin_replacing(creation) {
            None => Ok(()),
            Some(_) => Err(exists(id, "is being replaced by this client already")),
        }
    }

    /// Answers a request that puts an object of bytes in the place of another.
    pub(super) fn on_replace(self: Rc<Self>, client: ClientKey, replacing: Replacing) -> Answer {
        let Replacing { object, expected, digest, timeout_us, data } = replacing;
        let (weight, terms) = (weight(data.len()), Terms { expected, digest, timeout_us });
        let id = object.id;
        Answer::later(weight, about(id, self.replace(client, object, terms, data)))
    }

    /// Answers a request that puts a creation in the place of an object.
    pub(super) fn on_seal_over(self: Rc<Self>, client: ClientKey, over: SealingOver) -> Answer {
        let SealingOver { id, expected, digest, timeout_us, data } = over;
        let (weight, terms) = (weight(data.len()), Terms { expected, digest, timeout_us });
        Answer::later(weight, about(id, self.seal_over(client, id, terms, data)))
    }

    /// Puts an object of bytes that came in a frame in the place of what has its id.
    async fn replace(
        self: Rc<Self>,
        client: ClientKey,
        object: NewObject,
        terms: Terms,
        data: Bytes,
    ) -> Outcome {
        let (id, metadata) = (object.id, object.metadata.clone());
        let due = self.kernel.clock.now() + terms.patience();
        if data.len() + metadata.len() > INLINE_MAX_BYTES as usize {
            let text =
                format!("object {id}: {} bytes are too many for a frame; create it instead", data.len());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.unclaimed(id).await?;
        let head = self.head(client, object, data.len() as u64, 0)?;
        let room = Duration::from_micros(terms.timeout_us);
        let (extent, charge) = self.reserve(client, &head, Writer::Engine, room).await?;
        let written = extent.write(0, &data).and_then(|()| extent.write(data.len() as u64, &metadata));
        written.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        self.transfer.records.count_copy(head.len());
        charge.keep();
        let created = self.kernel.clock.unix_ms();
        let creation = Creation { head, extent, client, inline: true, created, replaces: true };
        self.finish(client, creation, terms, due).await
    }

    /// Puts a creation of this client in the place of what has its id.
    async fn seal_over(
        self: Rc<Self>,
        client: ClientKey,
        id: ObjectId,
        terms: Terms,
        data: Bytes,
    ) -> Outcome {
        {
            let objects = self.store.objects.borrow();
            let creation = objects.replacement(client, &id).ok_or_else(|| {
                let text =
                    format!("cannot seal object {id}: this client does not create it to replace another");
                Error::new(ErrorKind::NotFound, text)
            })?;
            let expected = if creation.inline { creation.head.data_len } else { 0 };
            if data.len() as u64 != expected {
                let text = format!("object {id}: sealed with {} bytes where {expected} belong", data.len());
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let written = creation.extent.write(0, &data);
            written.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        }
        self.transfer.records.count_copy(data.len() as u64);
        let creation = self.store.objects.borrow_mut().end_replacing(client, &id);
        let creation = creation.ok_or_else(|| Error::new(ErrorKind::Internal, "a creation is gone"))?;
        let due = self.kernel.clock.now() + terms.patience();
        self.finish(client, creation, terms, due).await
    }

    /// Has a creation take the place of what has its id. That goes on if the client leaves.
    async fn finish(
        self: Rc<Self>,
        client: ClientKey,
        mut creation: Creation,
        terms: Terms,
        due: Instant,
    ) -> Outcome {
        creation.head.digest = terms.digest;
        let id = creation.head.id;
        let (sender, ended) = oneshot::channel();
        let creations = Rc::clone(&self);
        self.kernel.spawn(async move {
            let head = creation.head.clone();
            let mut copies = Copies::new(&creations.placement, head.copies);
            let copy = async |creation: &Creation| copies.bring(creation, due).await;
            let replaced = creations.directory.writer.replace(creation, terms.expected, due, copy).await;
            copies.end(id, replaced.as_ref().ok().map(|(life, _)| *life));
            match &replaced {
                Ok((_, Some(replica))) => {
                    creations.sessions.counting.count_put(replica.len());
                    creations.placement.note_expiry(replica);
                    creations.placement.note_owned(client, replica);
                    if !creations.sessions.clients.borrow().contains_key(&client) {
                        creations.placement.end_owned(client);
                    }
                }
                Ok((_, None)) => {}
                Err(_) => creations.store.quotas.borrow_mut().forget(&head, client),
            }
            // The client may have gone.
            let _ = sender.send(replaced.map(|(life, _)| life));
        });
        match self.kernel.clock.bounded(Some(due + ANSWER_PATIENCE), ended).await {
            Some(Ok(replaced)) => Ok((Reply::Replaced { version: replaced? }, Vec::new())),
            _ => {
                let text = format!(
                    "it is not known whether object {id} was replaced: the node that decides about it does \
                     not answer; the object is replaced when that node answers, or stays as it was"
                );
                Err(Error::new(ErrorKind::OutcomeUnknown, text).about(id))
            }
        }
    }
}

/// Has the error of a replacement name its object, by which a client knows that its node has decided.
async fn about(id: ObjectId, replacing: impl Future<Output = Outcome>) -> Outcome {
    replacing.await.map_err(|error| error.about(id))
}

impl Requests {
    /// Tells the version of an object that a client has pinned.
    pub(super) fn version(&self, client: ClientKey, offset: u64) -> Result<Reply, Error> {
        let pinned = self.sessions.client(client, |client| {
            let pins = client.pins.get(&offset)?;
            pins.last().map(|pin| pin.life)
        });
        let nothing = || Error::new(ErrorKind::NotFound, "this client has nothing pinned there");
        pinned.map(|version| Reply::Replaced { version }).ok_or_else(nothing)
    }
}
