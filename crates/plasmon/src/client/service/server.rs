//! Servers: threads of this process that receive calls and reply to them.
//!
//! Owns the number of a port, calls that came while their receivers were interrupted, and waits that the
//! daemon did not end in time. Any thread receives; each call belongs to the thread that received it. A
//! thread that receives is parked in a call by slot. If the thread is interrupted, the daemon ends the wait,
//! and a call that came meanwhile is kept for the next receiver. If the thread's time is over and the daemon
//! does not say so, the next receiver goes on with the wait. Invariant: neither an interrupt nor a time-out
//! loses a call.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::data::{Data, Room, Sent};
use super::{SlotCall, begin};
use crate::client::calling::Calls;
use crate::client::connection::unexpected;
use crate::client::due::{Due, due as due_of};
use crate::client::vigil::Vigil;
use crate::client::{Client, Scratch};
use crate::service::{Caller, PING};
use crate::shared::{CallResult, PAYLOAD_LEN};
use crate::wire::{Looked, Received, Request, ServiceCall, SlotResult};
use crate::{Error, ErrorKind, Result};

/// Longest time for which a thread is parked at a port without asking again. The slot is free for other calls
/// before the thread asks again.
const PARK: Duration = Duration::from_secs(2);
/// Longest time for which a thread is parked that replied with the same request. An interrupt does not end
/// such a wait early, because the daemon may not have taken the reply yet.
const REPLY_PARK: Duration = Duration::from_millis(500);
/// Time after which a parked thread looks whether the daemon lives. After a signal the thread looks at once.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Shortest time after which it looks, if its time is short.
const SHORTEST_LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Time-out of calls that the daemon answers by itself.
const DAEMON_PATIENCE: Duration = Duration::from_secs(30);

/// Server of a service in this process. [`Client::serve`] makes one. Dropping this value ends the server:
/// calls that wait go to other servers, and calls that were received can still be answered.
///
/// Any number of threads may receive at a time. Functions run in the threads that receive them, never in the
/// daemon.
pub struct Server {
    client: Client,
    name: String,
    port: u32,
    closed: AtomicBool,
    /// Calls that came while their receivers were interrupted.
    ready: Mutex<Vec<Call>>,
    /// Waits that the daemon did not end within the time-outs of their receivers.
    left: Mutex<Vec<Parked>>,
}

/// Wait for a call at a port, with the room for the call's data.
struct Parked {
    wait: SlotCall,
    room: Room,
    /// Whether the daemon may end the wait early.
    ends_early: bool,
}

/// End of a wait for a call: the result, and whether the thread was interrupted meanwhile.
type Unparked = (CallResult, Room, bool);

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

/// Call that a thread has received. Dropping it without an answer tells the caller that the server dropped
/// the call.
pub struct Call {
    client: Client,
    received: Received,
    data: Data,
    /// Time until which the caller waits. `None` if the caller waits without limit.
    due: Option<Instant>,
    answered: bool,
}

impl Server {
    pub(in crate::client) fn new(client: &Client, name: &str, port: u32) -> Self {
        Self {
            client: client.clone(),
            name: name.to_owned(),
            port,
            closed: AtomicBool::new(false),
            ready: Mutex::default(),
            left: Mutex::default(),
        }
    }

    /// Name of the service.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ends the server: nothing comes any more, and threads that receive get an error of the kind `Invalid`.
    /// Calls that were received can still be answered.
    pub fn close(&self) {
        if !self.closed.swap(true, Ordering::Relaxed) {
            self.client.connection.send_and_forget(&Request::Unserve { port: self.port });
        }
    }

    /// Waits for a call. `None` if none came in time.
    ///
    /// # Errors
    /// `Interrupted`; the next thread that asks receives a call that came meanwhile. `Disconnected`.
    /// `NotAllowed` or `Invalid` if the name is another user's by now, or is served with other functions.
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Option<Call>> {
        self.receive_after(None, timeout, due_of(timeout))
    }

    /// Replies to a call, and waits for the next one. This takes one call of the daemon if the reply is of at
    /// most 320 bytes. A caller that does not take a long reply in time is no error.
    ///
    /// # Errors
    /// As [`Call::reply`] and [`Server::receive`].
    pub fn reply_and_receive(
        &self,
        call: Call,
        data: &[u8],
        timeout: Option<Duration>,
    ) -> Result<Option<Call>> {
        let ready = !self.ready.lock().is_empty();
        if ready || data.len() > PAYLOAD_LEN {
            call.reply(data).or_else(|error| match error.kind() {
                ErrorKind::TimedOut => Ok(()),
                _ => Err(error),
            })?;
            return self.receive(timeout);
        }
        self.receive_after(Some((call, data)), timeout, due_of(timeout))
    }

    /// Replies to a call, if there is one to reply to, and waits for the next.
    fn receive_after(
        &self,
        mut reply: Option<(Call, &[u8])>,
        timeout: Option<Duration>,
        due: Due,
    ) -> Result<Option<Call>> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if reply.is_none()
                && let Some(call) = self.ready.lock().pop()
            {
                return Ok(Some(call));
            }
            let most = if reply.is_some() { REPLY_PARK } else { PARK };
            let left = until.map_or(most, |until| until.saturating_duration_since(Instant::now()).min(most));
            let left_over = if reply.is_none() { self.left.lock().pop() } else { None };
            let parked = match left_over {
                Some(parked) => parked,
                None => self.begin_to_park(reply.take(), left, due)?,
            };
            let Some((result, room, interrupted)) = self.park(parked, left, due)? else {
                return Ok(None);
            };
            match result.into_result() {
                Ok(result) => {
                    let call = self.received(&result, &room)?;
                    if interrupted {
                        self.ready.lock().extend(call);
                        return Err(interrupted_error());
                    }
                    if call.is_some() {
                        return Ok(call);
                    }
                }
                Err(_) if interrupted => return Err(interrupted_error()),
                Err(error) if error.kind() != ErrorKind::TimedOut => return Err(error),
                Err(_) if until.is_some_and(|until| Instant::now() >= until) => return Ok(None),
                Err(_) => {}
            }
        }
    }

    /// Replies to a call, if there is one to reply to, and begins to wait for the next. The daemon is to end
    /// the wait after `left`.
    fn begin_to_park(&self, reply: Option<(Call, &[u8])>, left: Duration, due: Due) -> Result<Parked> {
        // A reply is worth more than room for the next call.
        let mut room =
            Room::new(&self.client, due.or_else(|| self.client.due_of_answer())).unwrap_or_default();
        let (port, len, into) = (self.port, room.len(), room.range());
        let (what, payload) = match &reply {
            Some((call, data)) => {
                let number = call.received.number;
                (ServiceCall::ReplyAndReceive { number, port, room: len, into }, *data)
            }
            None => (ServiceCall::Receive { port, room: len, into }, &[][..]),
        };
        // After an error the call is dropped, which its caller is told.
        let wait = begin(&self.client, what, payload, left, due)?;
        let ends_early = reply.is_none();
        if let Some((mut call, _)) = reply {
            call.answered = true;
        }
        room.set_busy(true);
        Ok(Parked { wait, room, ends_early })
    }

    /// Waits for the end of a parked call, also if the thread is interrupted: the call may end early then, or
    /// at its time. `None` if the daemon has not ended the call at `due`: the next receiver goes on with it.
    fn park(&self, parked: Parked, left: Duration, due: Due) -> Result<Option<Unparked>> {
        self.client.connection.check_process()?;
        let Parked { mut wait, mut room, ends_early } = parked;
        let quiet = Client { interrupt: None, ..self.client.clone() };
        let longest = due_of(Some(left + DAEMON_PATIENCE));
        let mut vigil = Vigil::new(&quiet, due.into_iter().chain(longest).min());
        let interrupt = self.client.interrupt.as_ref();
        let mut interrupted = false;
        let mut is_new = false;
        // A thread whose time is short looks more often, so that it ends in time.
        let rest = due.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()));
        let nap = (rest / 2).clamp(SHORTEST_LOOK_INTERVAL, LOOK_INTERVAL);
        while !wait.comes_napping(nap, &mut || {
            is_new = !interrupted && interrupt.is_some_and(|interrupt| interrupt());
            !is_new && vigil.goes_on()
        }) {
            if !is_new {
                let error = vigil.error();
                // If the daemon is gone, so are the calls that it may have handed out.
                if error.kind() != ErrorKind::TimedOut {
                    return Err(error);
                }
                self.left.lock().push(Parked { wait, room, ends_early });
                return if due.is_some_and(|due| Instant::now() >= due) { Ok(None) } else { Err(error) };
            }
            interrupted = true;
            if ends_early {
                wait.end_early();
            }
        }
        room.set_busy(false);
        Ok(Some((wait.take(), room, interrupted)))
    }

    /// Call that was received. `None` if the call is answered already, because it was a ping, or because its
    /// data could not be brought and the caller was told.
    fn received(&self, result: &CallResult, room: &Room) -> Result<Option<Call>> {
        let Some(received) = Received::of_values(result.values, &result.payload) else {
            return Err(self.client.connection.fail(unexpected("a call without a caller")));
        };
        let due = Instant::now().checked_add(Duration::from_micros(received.left_us));
        let mut call = Call::new(&self.client, received, due);
        call.data = match room.data(result, received.len) {
            Some(data) => data,
            None if received.len > PAYLOAD_LEN as u64 => match self.take_data(&call) {
                Ok(data) => data,
                // If the daemon has gone, whoever receives next is told.
                Err(error) => {
                    _ = call.refuse(&format!("the function was not run: {error}"));
                    return Ok(None);
                }
            },
            None => return Err(self.client.connection.fail(unexpected("a call of another length"))),
        };
        if call.function() == PING {
            // The caller may have gone.
            _ = call.reply(&[]);
            return Ok(None);
        }
        Ok(Some(call))
    }

    /// Brings the data of a call that had no room. An interrupt of the thread does not end this, so that no
    /// call is lost.
    fn take_data(&self, call: &Call) -> Result<Data> {
        let quiet = Client { interrupt: None, ..self.client.clone() };
        let number = call.received.number;
        let (take, left) = (|into| ServiceCall::TakeData { number, into }, call.left());
        Data::take(&quiet, call.received.len, take, left, due_of(Some(left)))
    }
}

impl Call {
    fn new(client: &Client, received: Received, due: Option<Instant>) -> Self {
        Self { client: client.clone(), received, data: Data::empty(), due, answered: false }
    }

    /// Number of the function: its place in the list that is served.
    pub fn function(&self) -> u16 {
        self.received.function
    }

    /// Data of the call.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Takes the data of the call, to read them after the call was answered. The call has no data any more.
    pub fn take_data(&mut self) -> Data {
        mem::replace(&mut self.data, Data::empty())
    }

    /// Caller of the function.
    pub fn caller(&self) -> Caller {
        Caller { node: self.received.node, user: self.received.user }
    }

    /// Time for which the caller still waits.
    pub fn left(&self) -> Duration {
        self.due.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()))
    }

    /// Whether the caller waits no more, as far as the daemon knows: it died, gave up, or its time is over.
    pub fn caller_gone(&self) -> bool {
        let look = ServiceCall::Look { number: self.received.number };
        let waits = self.ask(look, &[], DAEMON_PATIENCE).is_ok_and(|result| {
            Looked::of_values(result.values, &result.payload).is_some_and(|looked| !looked.gone)
        });
        !waits || self.left().is_zero()
    }

    /// Replies to the call. With a long reply, the function returns when the caller has taken the reply.
    ///
    /// # Errors
    /// `TooLarge` for more than 1 GiB. `Full` if the node has no memory for the bytes. `TimedOut` if the
    /// caller did not take a long reply in time. `Disconnected`. If the caller has gone, nobody gets the
    /// reply, which is no error.
    pub fn reply(self, data: &[u8]) -> Result<()> {
        match Sent::new(&self.client, data, due_of(Some(self.patience()))) {
            Ok(sent) => self.reply_with(sent, data),
            Err(error) => self.reply_nothing(error),
        }
    }

    /// Replies as [`Call::reply`] does, without a copy: with the first bytes of lent memory.
    ///
    /// # Errors
    /// As [`Call::reply`].
    pub fn reply_from(self, memory: Scratch, len: usize) -> Result<()> {
        match Sent::lent(memory, len) {
            Ok(sent) => self.reply_with(sent, &[]),
            Err(error) => self.reply_nothing(error),
        }
    }

    /// Tells the caller why there is no reply.
    fn reply_nothing(self, error: Error) -> Result<()> {
        self.fail(&format!("the function was run, and its reply cannot be sent: {error}"))?;
        Err(error)
    }

    fn reply_with(mut self, mut sent: Sent, data: &[u8]) -> Result<()> {
        let number = self.received.number;
        let reply = ServiceCall::Reply { number, len: sent.len(), data: sent.range() };
        let left = self.patience();
        sent.set_busy(true);
        let replied = self.ask(reply, sent.payload(data), left);
        sent.settle(&replied);
        self.answered = true;
        replied.map(drop)
    }

    /// Tells the caller that the function failed. The caller gets `text`, cut to 320 bytes, as an error of
    /// the kind `Raised`.
    ///
    /// # Errors
    /// `Disconnected`.
    pub fn fail(self, text: &str) -> Result<()> {
        let number = self.received.number;
        self.end_with(ServiceCall::Fail { number }, text)
    }

    /// Tells the caller that the function was not run. The caller gets `text`, cut to 320 bytes, as an error
    /// of the kind `TimedOut`.
    fn refuse(self, text: &str) -> Result<()> {
        let number = self.received.number;
        self.end_with(ServiceCall::Refuse { number }, text)
    }

    fn end_with(mut self, what: ServiceCall, text: &str) -> Result<()> {
        let end = (0..=text.len().min(PAYLOAD_LEN)).rev().find(|end| text.is_char_boundary(*end));
        let text = &text.as_bytes()[..end.unwrap_or(0)];
        self.answered = true;
        self.ask(what, text, DAEMON_PATIENCE).map(drop)
    }

    /// Longest time that a reply may take: until the caller stops waiting, and the daemon has said so.
    fn patience(&self) -> Duration {
        self.left().min(Duration::from_secs(24 * 3600)) + DAEMON_PATIENCE
    }

    fn ask(&self, what: ServiceCall, payload: &[u8], timeout: Duration) -> Result<CallResult> {
        let due = due_of(Some(timeout));
        let call = begin(&self.client, what, payload, timeout, due)?;
        Calls(&self.client).finish(call, due)?.into_result()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.answered {
            let number = self.received.number;
            self.client.connection.send_and_forget(&Request::DropCall { number });
        }
    }
}

fn interrupted_error() -> Error {
    Error::new(ErrorKind::Interrupted, "the wait for a call was interrupted")
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("name", &self.name).field("port", &self.port).finish()
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("function", &self.function())
            .field("len", &self.data.len())
            .field("caller", &self.caller())
            .finish()
    }
}
