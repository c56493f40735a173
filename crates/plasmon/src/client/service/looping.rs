//! Calls of functions for an event loop: each is begun by the socket that the loop watches, and its reply is
//! read when it has come.
//!
//! Owns the calls under way. Any thread, none of which waits here. A call whose data would have to wait for
//! memory is not begun, and a reply that the daemon keeps is taken afterwards: the program does both in a
//! thread. So no thread waits for a function. A call that is given up is ended as [`PendingReply`] is.

use std::time::{Duration, Instant};

use bytes::Bytes;

#[cfg(doc)]
use super::PendingReply;
use super::data::{Room, Sent};
use super::{Reply, SEND_TIMEOUT, Service, rest};
use crate::client::Pending;
use crate::client::connection::{Undo, silent, unexpected};
use crate::client::due::{Due, due};
use crate::client::reading::microseconds;
use crate::shared::CallResult;
use crate::wire::{BySlot, Replied, Request, SlotResult};
use crate::{Class, Error, Result};

/// Call of a function that was begun for an event loop. Dropping it gives the call up.
pub struct AwaitedCall {
    service: Service,
    call: Pending,
    sent: Sent,
    room: Room,
    due: Due,
    began: Instant,
}

/// Outcome of a call that was begun for an event loop.
pub enum Awaited {
    /// Reply to the call.
    Reply(Reply),
    /// Reply that the daemon keeps.
    Kept(KeptReply),
}

/// Reply that the daemon keeps until it is taken, or the time of the call is over.
pub struct KeptReply {
    service: Service,
    replied: Replied,
    due: Due,
    began: Instant,
}

impl Service {
    /// Begins a call for the event loop that watches this client ([`Client::watch`](crate::Client::watch)).
    /// The loop gives it up when [`AwaitedCall::patience`] is over. `None` if the data are more than 256 KiB,
    /// or if this client has no free lent memory for them.
    ///
    /// # Errors
    /// As [`Service::begin`].
    pub fn await_call(&self, function: &str, data: &[u8], timeout: Duration) -> Result<Option<AwaitedCall>> {
        let (client, function) = (&self.handle.client, self.number_of(function)?);
        let Some(mut sent) = Sent::free(client, data)? else { return Ok(None) };
        let mut room = Room::free(client);
        let (began, due) = (Instant::now(), due(Some(timeout)));
        let (operation, arguments) = self.called(function, &sent, &room).encode();
        let timeout_us = microseconds(Some(timeout));
        let payload = Bytes::copy_from_slice(sent.payload(data));
        let request = Request::Call {
            operation,
            class: Class::chosen(),
            timeout_us,
            arguments: arguments.to_vec(),
            payload,
        };
        let call = client.connection.begin(&request, Undo::Cancel, Vec::new(), false, (due, None))?;
        sent.set_busy(true);
        room.set_busy(true);
        Ok(Some(AwaitedCall { service: self.clone(), call, sent, room, due, began }))
    }
}

impl AwaitedCall {
    /// Number of the call, as [`Turn::finished`](crate::Turn::finished) lists it.
    pub fn number(&self) -> u64 {
        self.call.number()
    }

    /// Time from now after which the loop asks again. Zero means that the loop is to give the call up by
    /// [`AwaitedCall::late`].
    pub fn patience(&mut self) -> Option<Duration> {
        self.call.patience()
    }

    /// Outcome of the call, when it has come.
    ///
    /// # Errors
    /// As [`Service::call`]. `Invalid` if the reply has not come yet.
    pub fn result(self) -> Result<Awaited> {
        let Self { service, call, mut sent, mut room, due, began } = self;
        let answered = call.called();
        room.set_busy(answered.is_err());
        let ended = answered.map_err(|error| service.unanswered(error)).and_then(|called| called);
        sent.settle(&ended);
        let called = ended?;
        let result = CallResult::with(&called.values, &called.payload);
        let replied = result.as_ref().and_then(|result| Replied::of_values(result.values, &result.payload));
        let wrong = || service.handle.client.connection.fail(unexpected("a reply of another length"));
        let (result, replied) = result.zip(replied).ok_or_else(wrong)?;
        match (room.data(&result, replied.len), replied.number) {
            (Some(data), 0) => Ok(Awaited::Reply(Reply::new(data, replied, began))),
            (None, number) if number != 0 => Ok(Awaited::Kept(KeptReply { service, replied, due, began })),
            _ => Err(wrong()),
        }
    }

    /// Gives up the call, whose reply has not come in time. Returns the call's error.
    pub fn late(self) -> Error {
        let path = self.service.handle.client.connection.path();
        self.service.unanswered(silent(path, self.began.elapsed()))
    }
}

impl KeptReply {
    /// Takes the reply. The calling thread waits for the reply's bytes.
    ///
    /// # Errors
    /// `OutcomeUnknown` if the reply cannot be had any more.
    pub fn take(self) -> Result<Reply> {
        let Self { service, replied, due, began } = self;
        let data = service.take_reply(replied, rest(due).unwrap_or(SEND_TIMEOUT), due)?;
        Ok(Reply::new(data, replied, began))
    }
}
