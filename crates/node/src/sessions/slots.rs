//! Slots: calls of clients through shared memory, each answered when its service says so.
//!
//! Owns the tasks of waiting calls. Engine thread only. The engine looks at a client's slots when it looks at
//! its ring ([`rings`](super::rings)), and one bell wakes it for both. A slot is under way from the look
//! until its result. Invariant: nothing that the client writes to a slot under way counts. A call that waits
//! is a task, which ends with its client, with the time-out of the call, and when the client gives the call
//! up. An event loop makes the same calls by its socket.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{AbortHandle, abortable};
use plasmon::shared::{CallRequest, CallResult, EngineCalls};
use plasmon::status::SlotsStatus;
use plasmon::wire::Reply;
use plasmon::{Error, ErrorKind};

use super::Sessions;
use super::sharing::cannot_share;
use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;
use crate::service::{Answer, Outcome, Return};

/// Number of calls of one client that are begun before the others get their turn.
const TURN_CALLS: usize = 64;

/// The weight of a call by socket that waits, in objects.
const CALL_WEIGHT: usize = 16;

/// The engine's end of a client's slots.
pub(crate) struct Slots {
    pub(crate) pages: EngineCalls,
    /// The tasks that find results, by slot.
    waiting: RefCell<HashMap<u8, AbortHandle>>,
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.waiting.get_mut().values().for_each(AbortHandle::abort);
    }
}

impl Slots {
    fn answer(&self, slot: u8, result: Result<CallResult, Error>) {
        self.pages.answer(slot, &result.unwrap_or_else(|error| CallResult::failed(&error)));
    }

    /// Ends a call under way for which nobody waits any more.
    fn end(&self, slot: u8) {
        if let Some(task) = self.waiting.borrow_mut().remove(&slot) {
            task.abort();
            self.answer(slot, Err(given_up()));
        }
    }
}

impl Sessions {
    /// Makes a client its slots.
    pub(super) fn open_slots(&self, key: ClientKey) -> Outcome {
        let refused = |text| Err(Error::new(ErrorKind::Invalid, text));
        let Some(channel) = self.channel(key) else {
            return refused("slots have the bell of a channel: ask for the channel first");
        };
        if channel.slots.get().is_some() {
            return refused("this client has its slots already");
        }
        let failed = |error: io::Error| cannot_share(error.to_string());
        let (pages, descriptor) = EngineCalls::new().map_err(failed)?;
        let slots = Rc::new(Slots { pages, waiting: RefCell::default() });
        channel.slots.get_or_init(|| slots);
        Ok((Reply::Slots, vec![descriptor.into()]))
    }

    /// The slots of a client, if it has asked for them.
    pub(crate) fn slots(&self, key: ClientKey) -> Option<Rc<Slots>> {
        self.channel(key)?.slots.get().cloned()
    }

    /// Begins the calls that a client has submitted; returns their number. An error ends the client.
    pub(super) fn serve_slots(self: &Rc<Self>, key: ClientKey, slots: &Slots) -> Result<usize, String> {
        for slot in slots.pages.take_given_up() {
            slots.end(slot);
        }
        let mut begun = 0;
        while begun < TURN_CALLS {
            let Some(taken) = slots.pages.take() else { break };
            let (slot, request) = taken.map_err(|error| format!("it does not keep to its slots: {error}"))?;
            begun += 1;
            if slots.pages.is_given_up(slot) {
                slots.answer(slot, Err(given_up()));
                continue;
            }
            let begun = self.work(key, request.class, || self.begin_call(key, slots, slot, request));
            if let Err(error) = begun {
                slots.answer(slot, Err(error));
            }
        }
        self.calls_by_slot.set(self.calls_by_slot.get() + begun as u64);
        Ok(begun)
    }

    fn begin_call(self: &Rc<Self>, key: ClientKey, slots: &Slots, slot: u8, request: CallRequest) {
        let timeout_us = request.timeout_us;
        match self.services.on_call(key, request) {
            Return::Now(result) => slots.answer(slot, result),
            Return::Later { mut task, over } => match task.as_mut().now_or_never() {
                Some(result) => slots.answer(slot, result),
                None => self.answer_slot_later(key, slots, slot, self.in_time(timeout_us, over, task)),
            },
        }
    }

    /// Begins a call that came by the socket.
    pub(super) fn call(self: &Rc<Self>, key: ClientKey, request: CallRequest) -> Answer {
        let begun = self.work(key, request.class, || self.call_by_socket(key, request));
        begun.unwrap_or_else(|error| Answer::now(Err(error)))
    }

    fn call_by_socket(self: &Rc<Self>, key: ClientKey, request: CallRequest) -> Answer {
        let called = |result: CallResult| Reply::Called {
            values: result.values.to_vec(),
            payload: Bytes::copy_from_slice(&result.payload),
        };
        let timeout_us = request.timeout_us;
        match self.services.on_call(key, request) {
            Return::Now(result) => Answer::now(result.map(called)),
            Return::Later { task, over } => {
                let task = self.in_time(timeout_us, over, task);
                Answer::plain(CALL_WEIGHT, async move { task.await.map(called) })
            }
        }
    }

    /// Awaits the result of a call's task. When the time-out of the call is over, the result is the error
    /// that the call has named for that, unless the task looks after its time by itself.
    fn in_time<T: Future<Output = Result<CallResult, Error>>>(
        &self,
        timeout_us: u64,
        over: Option<ErrorKind>,
        task: T,
    ) -> impl Future<Output = Result<CallResult, Error>> + use<T> {
        let (kernel, due) = (Rc::clone(&self.kernel), over.and_then(|_| self.due(timeout_us)));
        async move {
            let Some(over) = over else { return task.await };
            let over = || Err(Error::new(over, "the call did not end within its time-out"));
            kernel.clock.bounded(due, task).await.unwrap_or_else(over)
        }
    }

    /// Answers a call when its task is done.
    fn answer_slot_later(
        self: &Rc<Self>,
        key: ClientKey,
        slots: &Slots,
        slot: u8,
        task: impl Future<Output = Result<CallResult, Error>> + 'static,
    ) {
        let sessions = Rc::clone(self);
        let (task, handle) = abortable(async move {
            let result = task.await;
            if let Some(slots) = sessions.slots(key) {
                slots.waiting.borrow_mut().remove(&slot);
                slots.answer(slot, result);
            }
        });
        slots.waiting.borrow_mut().insert(slot, handle);
        self.kernel.spawn(task.map(drop));
    }

    /// Returns the figures of the slots of all clients, for the report.
    pub(super) fn slots_status(&self) -> SlotsStatus {
        let clients = self.clients.borrow();
        let open = || clients.values().filter_map(|client| client.channel.as_ref()?.slots.get());
        SlotsStatus {
            clients: open().count() as u64,
            under_way: open().map(|slots| u64::from(slots.pages.under_way())).sum(),
            calls: self.calls_by_slot.get(),
        }
    }
}

fn given_up() -> Error {
    Error::new(ErrorKind::Interrupted, "the client no longer waits")
}
