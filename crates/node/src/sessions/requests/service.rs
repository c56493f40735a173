//! The clients' requests about objects and about the node, as a service. Owns no state. Engine thread only.

use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::shared::{ARGUMENTS, CallPayload, CallRequest};
use plasmon::status::Status;
use plasmon::wire::{FIRST_OTHER, Reply, Request, Table, WireError};
use plasmon::{Class, Error, ErrorKind, NodeId};

use super::{Requests, writing};
use crate::kernel::ClientKey;
use crate::net::frame::{Envelope, Message, OBJECTS_FRAMES};
use crate::service::{Answer, Asked, Service};
use crate::sessions::answering::WALK_WEIGHT;

impl Service for Requests {
    fn name(&self) -> &'static str {
        "objects"
    }

    fn requests(&self) -> RangeInclusive<u8> {
        1..=FIRST_OTHER - 1
    }

    fn frames(&self) -> RangeInclusive<u8> {
        OBJECTS_FRAMES
    }

    fn on_frame(self: Rc<Self>, frame: Envelope) -> Result<(), WireError> {
        match &frame.message {
            Message::List { filter, from } => self.on_list(&frame, filter, *from),
            &Message::Watch { feed, begins, most } => self.on_watch(frame, feed, begins, most),
            Message::Unwatch { feed } => self.subscriptions.feeds.end(frame.from, *feed),
            // An answer for which nobody waits any more.
            _ if frame.is_answer() => {}
            other => return Err(WireError::Opcode(other.opcode())),
        }
        Ok(())
    }

    fn on_request(self: Rc<Self>, asked: Asked) -> Result<Answer, WireError> {
        self.on_object_request(asked)
    }

    fn on_gone(&self, gone: &[NodeId]) {
        self.subscriptions.feeds.on_gone(gone);
    }

    fn on_session_end(&self, client: ClientKey) {
        self.subscriptions.end(client);
        self.placement.end_owned(client);
    }

    fn on_tick(self: Rc<Self>, now: Instant) {
        self.sessions.dismiss_silent(now);
        self.subscriptions.feeds.on_tick(now);
    }

    fn on_turn_end(self: Rc<Self>) -> bool {
        self.subscriptions.tell()
    }

    fn report(&self, status: &mut Status) {
        status.clients = self.sessions.clients.borrow().len() as u64;
        status.connections = self.sessions.connections();
        status.calls = self.sessions.calls();
        status.slots = self.sessions.slots_status();
    }
}

impl Requests {
    /// Answers a request about objects, or any other.
    ///
    /// # Errors
    /// When no client sends such a request.
    fn on_object_request(self: &Rc<Self>, asked: Asked) -> Result<Answer, WireError> {
        let Asked { session: client, number: request, request: asked, file } = asked;
        let creations = &self.creations;
        Ok(match asked {
            Request::Put { object, digest, room_us, data } => {
                let (weight, room) = (writing::weight(data.len()), Duration::from_micros(room_us));
                Answer::later(weight, Rc::clone(creations).put(client, object, digest, room, data))
            }
            Request::Create { object, data_len, metadata_len, room_us } => {
                let (sizes, room) = ((data_len, metadata_len), Duration::from_micros(room_us));
                Answer::later(1, Rc::clone(creations).create(client, object, sizes, room))
            }
            Request::Seal { id, digest, data } => {
                let weight = writing::weight(data.len());
                Answer::later(weight, Rc::clone(creations).seal_for(client, id, digest, data))
            }
            Request::Replace(replacing) => Rc::clone(creations).on_replace(client, replacing),
            Request::SealOver(over) => Rc::clone(creations).on_seal_over(client, over),
            Request::Version(offset) => Answer::now(self.version(client, offset)),
            Request::Abort { id } => Answer::now(creations.abort(client, id).map(|()| Reply::Done)),
            Request::Get { timeout_us, verify, ids } => {
                self.get(client, request, timeout_us, (ids, verify));
                Answer::Silent
            }
            Request::Seek { timeout_us, verify, ids } => {
                self.seek(client, request, timeout_us, (ids, verify));
                Answer::Silent
            }
            Request::Wait { timeout_us, count, ids } => {
                self.wait_for(client, request, timeout_us, count as usize, ids);
                Answer::Silent
            }
            Request::Release { offsets } => {
                self.release(client, &offsets);
                Answer::Silent
            }
            Request::Contains { ids } => {
                self.contains(client, request, ids);
                Answer::Silent
            }
            Request::Refresh { ids } => Answer::now(Ok(self.refresh(client, &ids))),
            Request::Delete { ids } => {
                self.delete(client, request, ids);
                Answer::Silent
            }
            Request::Collect { number } => creations.collect(client, number),
            Request::Evict { bytes } => Answer::now(Ok(Reply::Evicted { bytes: self.evict(bytes) })),
            Request::Explain { id } => Answer::now(self.explain_to(client, &id)),
            Request::Locations { id } => Answer::plain(1, Rc::clone(self).locations(client, id)),
            Request::Prefetch { timeout_us, ids } => Answer::now(self.prefetch(client, timeout_us, &ids)),
            Request::GetInto { timeout_us, id, buffer, at, room, verify } => {
                let place = (buffer, at, room);
                Answer::plain(1, Rc::clone(self).get_into(client, timeout_us, (id, verify), place))
            }
            Request::PutFrom { object, digest, buffer, data_len } => {
                let put = Rc::clone(&self.lending).put_from(client, object, digest, (buffer, data_len));
                Answer::later(1, put)
            }
            Request::Replicate { timeout_us, id, copies, put } => {
                Answer::plain(1, Rc::clone(self).replicate_for(client, timeout_us, id, (copies, put)))
            }
            Request::Migrate { timeout_us, id, node } => {
                Answer::plain(1, Rc::clone(self).migrate_for(client, timeout_us, id, node))
            }
            Request::Broadcast { timeout_us, id, nodes } => {
                Answer::plain(1, Rc::clone(self).broadcast_for(client, timeout_us, id, nodes))
            }
            Request::Pin { timeout_us, id } => {
                Answer::plain(1, Rc::clone(self).pin_for(client, timeout_us, id))
            }
            Request::Unpin { id } => {
                self.unpin_for(client, &id);
                Answer::now(Ok(Reply::Done))
            }
            other => {
                let asked = Asked { session: client, number: request, request: other, file };
                return self.on_node_request(asked);
            }
        })
    }

    /// Answers a request about this node, other nodes, or the client itself.
    ///
    /// # Errors
    /// When no client sends such a request.
    fn on_node_request(self: &Rc<Self>, asked: Asked) -> Result<Answer, WireError> {
        let Asked { session: client, number: request, request: asked, file } = asked;
        Ok(match asked {
            Request::Hello { name } => Answer::now(Ok(self.hello(client, name))),
            Request::List { filter } => {
                self.list(client, request, &filter);
                Answer::Silent
            }
            Request::Page { node, filter, from } => {
                Answer::plain(WALK_WEIGHT, Rc::clone(self).page_for(client, node, filter, from))
            }
            Request::EndOwned => {
                self.placement.end_owned(client);
                Answer::now(Ok(Reply::Done))
            }
            Request::Members => Answer::now(Ok(Reply::Members(self.members()))),
            Request::Status => Answer::now(Ok(Reply::Status(self.services.status_json()))),
            Request::Overview => Answer::plain(WALK_WEIGHT, Rc::clone(self).overview()),
            Request::Options { name, quota, class } => {
                Answer::now(self.set_options(client, name, quota, class))
            }
            Request::Subscribe { cluster } => self.subscribe(client, request, cluster),
            Request::Channel => Answer::Now(self.sessions.open_channel(client)),
            Request::Slots => Answer::Now(self.sessions.open_slots(client)),
            Request::Call { operation, class, timeout_us, arguments, payload } => {
                let call = call((operation, class), timeout_us, &arguments, &payload);
                let call = call.ok_or(WireError::Malformed("call: it fits no slot"))?;
                self.sessions.call(client, call)
            }
            Request::Tables => Answer::Now(self.sessions.share_tables(client)),
            Request::Calibrate { peer } => Answer::plain(WALK_WEIGHT, Rc::clone(self).calibrate_to(peer)),
            Request::Lend { len, private, room_us } => {
                let room = Duration::from_micros(room_us);
                Answer::later(1, Rc::clone(&self.lending).lend_to(client, len, private, room))
            }
            Request::Adopt { len } => {
                // The table of requests says how many descriptors come with each.
                let adopted = file.map(|file| self.lending.adopt(client, len, &file));
                let missing =
                    || Err(Error::new(ErrorKind::Invalid, "memory to register came without its file"));
                Answer::now(adopted.unwrap_or_else(missing))
            }
            Request::GiveBack { buffer } => {
                self.lending.take_back(client, buffer);
                Answer::Silent
            }
            Request::Drain { node, step } => Answer::plain(1, Rc::clone(self).drain_for(client, node, step)),
            Request::Cancel { request } => {
                self.sessions.cancel(client, request);
                Answer::Silent
            }
            other => return Err(WireError::Opcode(other.opcode())),
        })
    }
}

/// Makes a call of these arguments and bytes; `None` if a slot has no room for them.
fn call(
    (opcode, class): (u8, Option<Class>),
    timeout_us: u64,
    given: &[u64],
    payload: &[u8],
) -> Option<CallRequest> {
    let mut arguments = [0; ARGUMENTS];
    arguments.get_mut(..given.len())?.copy_from_slice(given);
    Some(CallRequest { opcode, class, timeout_us, arguments, payload: CallPayload::new(payload)? })
}
