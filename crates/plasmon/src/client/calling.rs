//! Calls by slot: what a client asks of the daemon without the socket, from any number of threads.
//!
//! Owns no state; the connection has the slots, which are asked for by the first call. Any thread. A call
//! that is given up keeps its slot until the daemon has answered.

use std::time::{Duration, Instant};

use super::Client;
use super::connection::{Undo, unexpected};
use super::due::{Due, due};
use super::vigil::Vigil;
use crate::shared::{CallPayload, CallRequest, CallResult, ClientCalls, WaitStats};
use crate::wire::{Ping, requests};
use crate::{NodeId, Result};

/// Times of a ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pinged {
    /// Time from the call until its return.
    pub total: Duration,
    /// Part of it from the moment when this client's node asked the other node until its answer. Zero if the
    /// client pinged its own node.
    pub network: Duration,
}

impl Client {
    /// Asks a node of the cluster for a sign of life, and measures how long that takes. The call goes by slot
    /// to the node of this host, and from there to the other node.
    ///
    /// # Errors
    /// `Disconnected` if there is no such node in the cluster. `TimedOut` if it does not answer in time.
    pub fn ping(&self, node: NodeId, timeout: Duration) -> Result<Pinged> {
        let request = CallRequest {
            opcode: Ping::OPCODE,
            timeout_us: timeout.as_micros().try_into().unwrap_or(u64::MAX),
            arguments: Ping { node }.arguments(),
            payload: CallPayload::EMPTY,
        };
        let due = due(Some(timeout));
        // The first call asks for the slots, which is no part of what is measured.
        self.slots(due)?;
        let began = Instant::now();
        let [network_ns, ..] = self.call(&request, node != self.node, due)?.values;
        Ok(Pinged { total: began.elapsed(), network: Duration::from_nanos(network_ns) })
    }

    /// Number of calls by slot of this connection, by how their waits ended.
    pub fn wait_stats(&self) -> WaitStats {
        self.connection.wait_stats()
    }

    /// Makes a call, which another node carries out if it is `far`, and waits for its result.
    fn call(&self, request: &CallRequest, far: bool, due: Due) -> Result<CallResult> {
        let slots = self.slots(due)?;
        let mut vigil = Vigil::new(self, due);
        let mut alive = || vigil.goes_on();
        let submitted = slots.submit(request, far, &mut alive);
        let result = submitted.and_then(|call| call.wait(&mut alive));
        result.map_err(|_| vigil.error())?.into_result()
    }

    /// Slots of the connection, which the daemon makes when they are first asked for.
    fn slots(&self, due: Due) -> Result<&ClientCalls> {
        if let Some(slots) = self.connection.slots() {
            return Ok(slots);
        }
        let asked = self.ask_until(requests::Slots, Undo::Nothing, due);
        // Of two threads that ask, the daemon refuses one, after it has answered the other.
        match self.connection.slots() {
            Some(slots) => Ok(slots),
            None => Err(asked.map_or_else(|error| error, |_| unexpected("slots that cannot be used"))),
        }
    }
}
