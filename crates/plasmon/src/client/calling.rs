//! Calls by slot: what a client asks of the daemon without the socket, from any number of threads.
//!
//! Owns no state; the connection has the slots, which the first call asks for. Any thread. A call that is
//! given up keeps its slot until the daemon has answered. The daemon ends a call that changes nothing when
//! the call is given up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Client;
use super::connection::{Undo, unexpected};
use super::due::{Due, due};
use super::vigil::Vigil;
use crate::shared::{
    CallPayload, CallRequest, CallResult, CallUnderWay, ClientCalls, Manner, SLOTS, WaitStats,
};
use crate::wire::{BySlot, ClusterCall, Reached, SlotResult, requests};
use crate::{Class, Error, ErrorKind, NodeId, Result};

/// Times of a ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pinged {
    /// Time from the call until its return.
    pub total: Duration,
    /// Part of `total` from the moment when this client's node asked the other node until the answer. Zero if
    /// the client pinged its own node.
    pub network: Duration,
}

/// Call by slot that is under way.
pub(super) type Call = CallUnderWay<Arc<ClientCalls>>;

impl Client {
    /// Asks a node of the cluster for a sign of life, and measures how long that takes. The call goes by slot
    /// to the node of this host, and from there to the other node.
    ///
    /// # Errors
    /// `Disconnected` if there is no such node in the cluster. `TimedOut` if the node does not answer in
    /// time.
    pub fn ping(&self, node: NodeId, timeout: Duration) -> Result<Pinged> {
        let (opcode, arguments) = ClusterCall::Ping { node }.encode();
        let request = CallRequest {
            opcode,
            class: Class::chosen(),
            timeout_us: timeout.as_micros().try_into().unwrap_or(u64::MAX),
            arguments,
            payload: CallPayload::EMPTY,
        };
        let due = due(Some(timeout));
        // The first call asks for the slots, which is no part of what is measured.
        Calls(self).slots(due)?;
        let began = Instant::now();
        let manner = Manner { far: node != self.node, goes_on: false };
        let result = Calls(self).make(&request, manner, due)?;
        let total = began.elapsed();
        let Some(Reached { took }) = Reached::of_values(result.values, &result.payload) else {
            return Err(self.connection.fail(unexpected("a ping without a time")));
        };
        Ok(Pinged { total, network: took })
    }

    /// Number of calls by slot of this connection, by how their waits ended.
    pub fn wait_stats(&self) -> WaitStats {
        self.connection.wait_stats()
    }
}

/// Calls by slot of a client.
pub(super) struct Calls<'a>(pub(super) &'a Client);

impl Calls<'_> {
    /// Makes a call, and waits for its result.
    fn make(&self, request: &CallRequest, manner: Manner, due: Due) -> Result<CallResult> {
        let call = self.begin(request, manner, due)?;
        self.finish(call, due)?.into_result()
    }

    /// Begins a call. After an error nothing was submitted.
    pub(super) fn begin(&self, request: &CallRequest, manner: Manner, due: Due) -> Result<Call> {
        let slots = Arc::clone(self.slots(due)?);
        let mut vigil = Vigil::new(self.0, due);
        ClientCalls::submit(slots, request, manner, &mut || vigil.goes_on())
            .map_err(|_| self.short(vigil.error()))
    }

    /// Error of a call that found no free slot. If the daemon lives, the calls of this client itself have all
    /// slots.
    fn short(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::TimedOut || !self.0.connection.is_lively() {
            return error;
        }
        let text = format!(
            "this client has {SLOTS} calls and operations under way, and none of them was over in time: take \
             the results of those that were begun, or make fewer at a time"
        );
        Error::new(ErrorKind::Busy, text)
    }

    /// Waits for the result of a call. An error means that there is no result: the call may still be carried
    /// out.
    pub(super) fn finish(&self, call: Call, due: Due) -> Result<CallResult> {
        // A forked child does not have the slots.
        self.0.connection.check_process()?;
        let mut vigil = Vigil::new(self.0, due);
        call.wait(&mut || vigil.goes_on()).map_err(|_| vigil.error())
    }

    /// Slots of the connection, which the daemon makes when they are first asked for.
    pub(super) fn slots(&self, due: Due) -> Result<&Arc<ClientCalls>> {
        if let Some(slots) = self.0.connection.slots() {
            return Ok(slots);
        }
        let asked = self.0.ask_until(requests::Slots, Undo::Nothing, due);
        // Of two threads that ask, the daemon refuses one, after it has answered the other.
        match self.0.connection.slots() {
            Some(slots) => Ok(slots),
            None => Err(asked.map_or_else(|error| error, |_| unexpected("slots that cannot be used"))),
        }
    }
}
