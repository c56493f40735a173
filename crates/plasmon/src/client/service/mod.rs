//! Services of a client: handles by which functions of other processes are called, and servers.
//!
//! A [`Service`] is a number of this connection, and so is the port of a [`Server`]. Any thread. Functions
//! are called and answered by slot; bytes that no slot has room for travel through memory that the daemon
//! lent ([`data`]).
//!
//! Invariant: a call that was submitted and not answered fails with `OutcomeUnknown`, or with `Interrupted`
//! if its caller interrupted it.

mod data;
mod looping;
mod server;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use self::data::Data;
pub use self::looping::{Awaited, AwaitedCall, KeptReply};
pub use self::server::{Call, Server};

use self::data::{Room, Sent};
use super::calling::{Call as SlotCall, Calls};
use super::connection::unexpected;
use super::due::{Due, due, rest, rest_of};
use super::reading::microseconds;
use super::{Client, Scratch};
use crate::service::{PING, Times};
use crate::shared::{CallPayload, CallRequest, CallResult, Manner, PAYLOAD_LEN};
use crate::text::printable;
use crate::wire::{BySlot, LentRange, Replied, Request, ServiceCall, SlotResult, replies};
use crate::{Class, Error, ErrorKind, Result};

/// Time-out of a call that does not wait for a reply.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Range that stands for no lent memory.
const NOWHERE: LentRange = LentRange { buffer: 0, at: 0 };

/// Handle to a service, which ends when this value is dropped.
struct Handle {
    client: Client,
    number: u32,
    name: String,
    owner: u32,
    functions: Vec<String>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.client.connection.send_and_forget(&Request::LeaveService { service: self.number });
    }
}

/// Functions that processes of any host run for others, under one name.
///
/// [`Client::service`] finds one. Any number of threads may call its functions at a time, and clones share
/// the handle. A call goes to a server of this host if there is one, else to the host at which this host has
/// the fewest calls under way.
///
/// A function is run at most once a call. If a call fails with `OutcomeUnknown`, the function may have been
/// run, or be running: its server died during the call, time ran out, or there was no room for a long reply.
/// The same holds for `Interrupted`. After `Raised` the function was run and failed. Any other error says
/// that the function was not run.
#[derive(Clone)]
pub struct Service {
    handle: Arc<Handle>,
}

/// Reply to a call: its bytes.
#[derive(Debug)]
pub struct Reply {
    data: Data,
    times: Times,
}

impl Reply {
    fn new(data: Data, replied: Replied, began: Instant) -> Self {
        let Replied { queue, wire, function, .. } = replied;
        Self { data, times: Times { queue, wire, function, total: began.elapsed() } }
    }

    /// Time of the call, and its parts.
    pub fn times(&self) -> Times {
        self.times
    }

    /// Bytes of the reply.
    pub fn into_vec(self) -> Vec<u8> {
        self.data.into_vec()
    }
}

impl Deref for Reply {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data
    }
}

/// Call that was begun. [`PendingReply::wait`] returns its reply. Dropping this value gives the call up: the
/// function is not run, unless a thread of a server has the call already.
#[must_use = "the error of a call that is not waited for is not seen"]
pub struct PendingReply {
    service: Service,
    call: SlotCall,
    sent: Sent,
    room: Room,
    due: Due,
    began: Instant,
}

impl Service {
    pub(super) fn new(client: &Client, name: &str, found: replies::ServiceFound) -> Self {
        let replies::ServiceFound { service, owner, functions } = found;
        let name = name.to_owned();
        Self { handle: Arc::new(Handle { client: client.clone(), number: service, name, owner, functions }) }
    }

    /// Name of the service.
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// User to whom the service belongs.
    pub fn owner(&self) -> u32 {
        self.handle.owner
    }

    /// Names of the functions.
    pub fn functions(&self) -> &[String] {
        &self.handle.functions
    }

    /// Calls a function, and waits for its reply.
    ///
    /// # Errors
    /// `Raised` if the function failed, with its words. `OutcomeUnknown` if it may have been run. `TimedOut`
    /// if no thread of a server was free in time. `NotFound` if no process serves it any more. `Invalid` if
    /// there is no such function, `NotAllowed` if this user may not call it, `TooLarge` for more than 1 GiB.
    /// `Busy` if 1,024 calls wait already at each server. `Full` if the node has no memory for the data.
    /// `Disconnected`.
    pub fn call(&self, function: &str, data: &[u8], timeout: Duration) -> Result<Reply> {
        self.begin(function, data, timeout)?.wait()
    }

    /// Asks a thread of a server for a sign of life: it takes the call as any other, and answers without
    /// running a function of the program. Returns the times of the call.
    ///
    /// # Errors
    /// As [`Service::call`].
    pub fn ping(&self, timeout: Duration) -> Result<Times> {
        let limits = (timeout, due(Some(timeout)));
        self.begin_with(PING, Sent::nothing(), &[], limits)?.wait().map(|reply| reply.times())
    }

    /// Begins a call as [`Service::call`] makes it. Up to 256 calls and operations of a client are under way
    /// at a time. A thread that begins another one waits until a result is taken.
    ///
    /// # Errors
    /// As [`Service::call`], for what is known at once.
    pub fn begin(&self, function: &str, data: &[u8], timeout: Duration) -> Result<PendingReply> {
        self.begin_until(function, data, (timeout, due(Some(timeout))))
    }

    /// Begins a call as [`Service::begin`] does, with a time-out and the end that follows from it.
    pub(super) fn begin_until(
        &self,
        function: &str,
        data: &[u8],
        limits: (Duration, Due),
    ) -> Result<PendingReply> {
        let function = self.number_of(function)?;
        self.begin_with(function, Sent::new(&self.handle.client, data, limits.1)?, data, limits)
    }

    /// Begins a call as [`Service::begin`] does, without a copy: its data are the first bytes of lent memory.
    ///
    /// # Errors
    /// As [`Service::begin`].
    pub fn begin_from(
        &self,
        function: &str,
        memory: Scratch,
        len: usize,
        timeout: Duration,
    ) -> Result<PendingReply> {
        let limits = (timeout, due(Some(timeout)));
        self.begin_with(self.number_of(function)?, Sent::lent(memory, len)?, &[], limits)
    }

    fn begin_with(
        &self,
        function: u16,
        mut sent: Sent,
        data: &[u8],
        (timeout, due): (Duration, Due),
    ) -> Result<PendingReply> {
        let client = &self.handle.client;
        let began = Instant::now();
        let mut room = Room::new(client, due)?;
        let what = self.called(function, &sent, &room);
        let call = begin(client, what, sent.payload(data), rest_of(timeout, due), due)?;
        sent.set_busy(true);
        room.set_busy(true);
        Ok(PendingReply { service: self.clone(), call, sent, room, due, began })
    }

    /// Call of a function with the bytes of `sent`, whose reply comes to `room`.
    fn called(&self, function: u16, sent: &Sent, room: &Room) -> ServiceCall {
        ServiceCall::Call {
            service: self.handle.number,
            function,
            len: sent.len(),
            data: sent.range(),
            room: room.len(),
            into: room.range(),
        }
    }

    /// Calls a function without waiting for its reply: returns when a server has the call. The caller does
    /// not learn what the function returns, or whether the function was run if its server died.
    ///
    /// # Errors
    /// As [`Service::call`].
    pub fn send(&self, function: &str, data: &[u8]) -> Result<()> {
        let due = due(Some(SEND_TIMEOUT));
        let (call, mut sent) = self.begin_send(function, data, due)?;
        let ended = self.settle(Calls(&self.handle.client).finish(call, due));
        sent.settle(&ended);
        ended.map(drop)
    }

    /// Calls a function as [`Service::send`] does. If the data have at most 320 bytes, the call does not even
    /// wait until a server has it, and the caller does not learn whether a server got it.
    ///
    /// # Errors
    /// As [`Service::send`], for what is known at once.
    pub fn post(&self, function: &str, data: &[u8]) -> Result<()> {
        // The memory of longer data cannot be used again before the call has ended.
        if data.len() > PAYLOAD_LEN {
            return self.send(function, data);
        }
        self.begin_send(function, data, due(Some(SEND_TIMEOUT))).map(drop)
    }

    fn begin_send(&self, function: &str, data: &[u8], due: Due) -> Result<(SlotCall, Sent)> {
        let (client, function) = (&self.handle.client, self.number_of(function)?);
        let mut sent = Sent::new(client, data, due)?;
        let (len, range) = (sent.len(), sent.range());
        let what = ServiceCall::Send { service: self.handle.number, function, len, data: range };
        let call = begin(client, what, sent.payload(data), rest_of(SEND_TIMEOUT, due), due)?;
        sent.set_busy(true);
        Ok((call, sent))
    }

    /// Number of a function.
    fn number_of(&self, function: &str) -> Result<u16> {
        let functions = &self.handle.functions;
        functions.iter().position(|one| one == function).map(|at| at as u16).ok_or_else(|| {
            let names: Vec<_> = functions.iter().map(|one| printable(one)).collect();
            let (function, name) = (printable(function), printable(self.name()));
            let text = format!("service '{name}' has no function '{function}': it has {}", names.join(", "));
            Error::new(ErrorKind::Invalid, text)
        })
    }

    /// Result of a call that was submitted. The outcome of a call that was not answered is not known.
    fn settle(&self, answered: Result<CallResult>) -> Result<CallResult> {
        answered.map_err(|error| self.unanswered(error))?.into_result()
    }

    /// Error of a call that was submitted and that the daemon has not answered.
    fn unanswered(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::Interrupted {
            return error;
        }
        let name = printable(self.name());
        let text = format!("a function of service '{name}' may have been run: {}", error.message());
        Error::new(ErrorKind::OutcomeUnknown, text)
    }
}

impl PendingReply {
    /// Waits for the reply.
    ///
    /// # Errors
    /// As [`Service::call`].
    pub fn wait(self) -> Result<Reply> {
        let Self { service, call, mut sent, mut room, due, began } = self;
        let client = &service.handle.client;
        let answered = Calls(client).finish(call, due);
        room.set_busy(answered.is_err());
        let ended = service.settle(answered);
        sent.settle(&ended);
        let result = ended?;
        let Some(replied) = Replied::of_values(result.values, &result.payload) else {
            return Err(client.connection.fail(unexpected("a reply without a length")));
        };
        let data = match (room.data(&result, replied.len), replied.number) {
            (Some(data), 0) => data,
            (None, number) if number != 0 => {
                service.take_reply(replied, rest(due).unwrap_or(SEND_TIMEOUT), due)?
            }
            _ => return Err(client.connection.fail(unexpected("a reply of another length"))),
        };
        Ok(Reply::new(data, replied, began))
    }

    /// Whether the result has come, so that [`PendingReply::wait`] returns soon.
    pub fn is_over(&self) -> bool {
        self.call.has_come()
    }
}

impl Service {
    /// Takes a reply that the daemon keeps.
    fn take_reply(&self, replied: Replied, timeout: Duration, due: Due) -> Result<Data> {
        let take = |into| ServiceCall::TakeReply { number: replied.number, into };
        Data::take(&self.handle.client, replied.len, take, timeout, due).map_err(|error| match error.kind() {
            ErrorKind::TimedOut | ErrorKind::Disconnected | ErrorKind::Full | ErrorKind::Busy => {
                let name = printable(self.name());
                let text =
                    format!("a function of service '{name}' was run, and its reply did not come: {error}");
                Error::new(ErrorKind::OutcomeUnknown, text)
            }
            _ => error,
        })
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("name", &self.name()).field("functions", &self.functions()).finish()
    }
}

impl fmt::Debug for PendingReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingReply").field("service", &self.service).field("over", &self.is_over()).finish()
    }
}

/// Begins a call by slot, which the daemon is to end after `timeout`. After an error nothing was submitted.
fn begin(
    client: &Client,
    what: ServiceCall,
    payload: &[u8],
    timeout: Duration,
    due: Due,
) -> Result<SlotCall> {
    client.connection.check_process()?;
    let Some(payload) = CallPayload::new(payload) else {
        return Err(Error::new(ErrorKind::Internal, "no slot has room for these bytes"));
    };
    // Only a call with a reply is ended when its caller waits no more: the server is told. All others go on.
    let manner = Manner { far: false, goes_on: !matches!(what, ServiceCall::Call { .. }) };
    let (opcode, arguments) = what.encode();
    let timeout_us = microseconds(Some(timeout));
    let request = CallRequest { opcode, class: Class::chosen(), timeout_us, arguments, payload };
    Calls(client).begin(&request, manner, due)
}
