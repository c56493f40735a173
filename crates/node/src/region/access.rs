//! Operations on regions, for clients. This node carries an operation out if the region lives here, else the
//! region's home does. Owns no state. Engine thread only.
//!
//! Invariant: an operation that changes something is sent to a home once. The network counts messages, so the
//! home acts on it once. If no answer comes, the error says that the outcome is unknown.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use plasmon::region::Rights;
use plasmon::shared::{CallRequest, CallResult, PAYLOAD_LEN};
use plasmon::wire::{BySlot, OnRegion, Operation, RegionCall};
use plasmon::{Error, ErrorKind, NodeId};

use super::Regions;
use super::frames::{CARRIED_MAX_BYTES, ask};
use super::handles::At;
use super::home::Done;
use super::mapping::Mapping;
use super::moving::has_moved;
use crate::guard::Fence;
use crate::kernel::ClientKey;
use crate::net::frame::Ask;
use crate::service::Return;

/// Longest time that a home may take for an operation, whatever time-out the client sets.
pub(super) const LONGEST_OPERATION: Duration = Duration::from_secs(24 * 3600);

/// Whether an operation changes a region.
pub(super) fn changes(operation: &Operation) -> bool {
    !matches!(operation, Operation::Read { .. } | Operation::Wait { .. } | Operation::Notify { .. })
}

/// Returns the right that an operation takes.
fn right(operation: &Operation) -> Rights {
    if changes(operation) { Rights::WRITE } else { Rights::READ }
}

/// Refuses an operation if the rights of the handle do not contain the right that it takes.
///
/// # Errors
/// `NotAllowed`.
pub(super) fn ensure(has: Rights, wanted: Rights) -> Result<(), Error> {
    if has.contain(wanted) {
        return Ok(());
    }
    let text =
        format!("the handle has the rights '{has}', and this takes '{wanted}': map the region with more");
    Err(Error::new(ErrorKind::NotAllowed, text))
}

impl Regions {
    /// Carries out a call by slot. Follows the region if it moves meanwhile.
    pub(super) fn call(self: &Rc<Self>, client: ClientKey, request: CallRequest) -> Return {
        let call = OnRegion::decode(request.opcode, request.arguments, &request.payload);
        let Some(OnRegion { handle: number, guard, call }) = call else {
            return Return::unknown(request.opcode);
        };
        let attempt = match self.handles.get(client, number) {
            Ok(handle) => self.attempt(client, handle, (call, guard), &request),
            Err(error) => Return::Now(Err(error)),
        };
        let regions = Rc::clone(self);
        let again = move |error: Error| async move {
            let attempt =
                async |at, rights| match regions.attempt(client, (at, rights), (call, guard), &request) {
                    Return::Now(result) => result,
                    Return::Later { task, .. } => task.await,
                };
            regions.with_moved(client, number, error, attempt).await
        };
        match attempt {
            Return::Now(Err(error)) if has_moved(&error) => returned(&call, again(error)),
            Return::Now(result) => Return::Now(result),
            Return::Later { task, .. } => returned(&call, async move {
                match task.await {
                    Err(error) if has_moved(&error) => again(error).await,
                    result => result,
                }
            }),
        }
    }

    /// Carries out a call where its region is now, as far as this node knows.
    fn attempt(
        self: &Rc<Self>,
        client: ClientKey,
        (at, rights): (At, Rights),
        (call, guard): (RegionCall, u64),
        request: &CallRequest,
    ) -> Return {
        let user = self.sessions.client(client, |client| client.uid);
        let patience = Duration::from_micros(request.timeout_us).min(LONGEST_OPERATION);
        let fence = match guard {
            0 => None,
            ticket => match self.guards.show(client, ticket) {
                Ok(fence) => Some(fence),
                Err(error) => return Return::Now(Err(error)),
            },
        };
        match call {
            RegionCall::On(operation) => {
                if let Err(error) = ensure(rights, right(&operation)).and_then(|()| fits(&operation)) {
                    return Return::Now(Err(error));
                }
                self.operate(at, (user, fence), operation, &request.payload, patience)
            }
            RegionCall::ReadTo { offset, len, memory } => {
                let reading = Rc::clone(self).read_to(client, (at, rights), (offset, len), memory, patience);
                returned(&call, reading)
            }
            RegionCall::WriteFrom { offset, len, memory } => {
                let to = (at, rights, fence);
                let writing = Rc::clone(self).write_from(client, to, (offset, len), memory, patience);
                returned(&call, writing)
            }
            RegionCall::Copy { offset, len, source, source_offset } => {
                let source = match self.handles.get(client, source) {
                    Ok(source) => source,
                    Err(error) => return Return::Now(Err(error)),
                };
                let copying =
                    Rc::clone(self).copy((at, rights), user, offset, source, (source_offset, len), patience);
                returned(&call, copying)
            }
        }
    }

    /// Carries out an operation here, or has the home carry it out.
    fn operate(
        self: &Rc<Self>,
        at: At,
        (user, fence): (u32, Option<Fence>),
        operation: Operation,
        data: &[u8],
        patience: Duration,
    ) -> Return {
        match (at, operation) {
            (At::Here(region), Operation::Wait { offset, expected }) => {
                match region.wait(user, offset, expected) {
                    Ok(waiting) => Return::later(async move { Ok(CallResult::of(&[waiting.await?])) }),
                    Err(error) => Return::Now(Err(error)),
                }
            }
            (At::Here(region), Operation::Fill { offset, len, byte }) => Return::uncertain(async move {
                let _changing = region.begin_change().await;
                region.fill(user, offset, len, byte).await?;
                Ok(CallResult::of(&[0]))
            }),
            (At::Here(region), operation) if fence.is_some() => {
                let data = data.to_vec();
                Return::uncertain(async move {
                    let _changing = region.begin_change().await;
                    region.ensure(user, Rights::WRITE)?;
                    let _fenced = region.begin_shown(fence).await?;
                    result(&region.carry_out(user, operation, &data)?)
                })
            }
            (At::Here(region), operation) if changes(&operation) && region.is_frozen() => {
                let data = data.to_vec();
                Return::later(async move {
                    region.thawed().await;
                    result(&region.carry_out(user, operation, &data)?)
                })
            }
            (At::Here(region), operation) => {
                Return::Now(region.carry_out(user, operation, data).and_then(|done| result(&done)))
            }
            (At::There(mapping), operation) => {
                let (regions, data) = (Rc::clone(self), Bytes::copy_from_slice(data));
                let changing = changes(&operation);
                let asking = async move {
                    let done = regions.access(&mapping, (user, fence), operation, data, patience).await?;
                    result(&done)
                };
                if changing { Return::uncertain(asking) } else { Return::later(asking) }
            }
        }
    }

    /// Has a home carry out an operation.
    ///
    /// # Errors
    /// The home's own. `Freed` or `Lost`; `OutcomeUnknown` for a change whose answer did not come; `Internal`
    /// if the answer has another length than was asked for.
    pub(super) async fn access(
        self: &Rc<Self>,
        mapping: &Rc<Mapping>,
        (user, fence): (u32, Option<Fence>),
        operation: Operation,
        data: Bytes,
        patience: Duration,
    ) -> Result<Done, Error> {
        let question = ask::Access { desk: mapping.desk(), operation, data, fence };
        let ask::Accessed { value, data } = match operation {
            Operation::Wait { .. } => self.await_home(mapping, user, question, patience).await?,
            _ => self.ask_home(mapping, user, question, patience, changes(&operation)).await?,
        };
        // A client accepts only an answer of the length that it asked for.
        let expected = if let Operation::Read { len, .. } = operation { len } else { 0 };
        if data.len() as u64 != expected {
            return Err(wrong_answer(mapping.home));
        }
        Ok(Done { value, data: data.into() })
    }

    /// Waits for a word at a home. The home keeps each question for a while only, so that waits of clients
    /// that have gone do not accumulate there. This node asks again while its client waits.
    async fn await_home(
        self: &Rc<Self>,
        mapping: &Rc<Mapping>,
        user: u32,
        question: ask::Access,
        patience: Duration,
    ) -> Result<ask::Accessed, Error> {
        let due = self.kernel.clock.now() + patience;
        loop {
            mapping.ensure()?;
            let left = due.saturating_duration_since(self.kernel.clock.now());
            let answer = self.network.ask_held(mapping.home, user, question.clone(), left).await;
            match answer {
                Err(error) if error.kind() == ErrorKind::TimedOut && self.kernel.clock.now() < due => {}
                answer => return answer.map_err(|error| self.failed(mapping, error, false)),
            }
        }
    }

    /// Asks the home of a region. Makes the error of a missing answer say whether the region may have been
    /// changed.
    ///
    /// # Errors
    /// As [`Regions::access`].
    pub(super) async fn ask_home<Q: Ask>(
        self: &Rc<Self>,
        mapping: &Rc<Mapping>,
        user: u32,
        question: Q,
        patience: Duration,
        changing: bool,
    ) -> Result<Q::Answer, Error> {
        mapping.ensure()?;
        self.cluster.ensure_member()?;
        let answer = self.network.ask(mapping.home, user, question, patience).await;
        answer.map_err(|error| self.failed(mapping, error, changing))
    }

    /// Makes the error for an operation that a home did not carry out, or did not answer.
    fn failed(&self, mapping: &Mapping, error: Error, changing: bool) -> Error {
        match error.kind() {
            ErrorKind::Freed => {
                self.mappings.end(mapping.home, mapping.desk());
                error
            }
            ErrorKind::Disconnected | ErrorKind::TimedOut if changing => {
                let text = format!(
                    "it is unknown whether region '{}' was changed: its home, node {}, did not answer ({})",
                    mapping.name,
                    mapping.home,
                    error.message()
                );
                Error::new(ErrorKind::OutcomeUnknown, text)
            }
            ErrorKind::Disconnected => mapping.lost(),
            _ => error,
        }
    }
}

/// Refuses to read more bytes than a slot has room for.
///
/// # Errors
/// `Invalid`.
fn fits(operation: &Operation) -> Result<(), Error> {
    match operation {
        Operation::Read { len, .. } if *len > PAYLOAD_LEN as u64 => {
            let text = format!("{len} bytes do not fit a slot: read them into lent memory");
            Err(Error::new(ErrorKind::Invalid, text))
        }
        _ => Ok(()),
    }
}

/// Makes the outcome of a call whose result a task finds. The outcome of a change is unknown if the task is
/// not over in time.
fn returned(call: &RegionCall, task: impl Future<Output = Result<CallResult, Error>> + 'static) -> Return {
    match call {
        RegionCall::On(operation) if !changes(operation) => Return::later(task),
        RegionCall::ReadTo { .. } => Return::later(task),
        _ => Return::uncertain(task),
    }
}

pub(super) fn wrong_answer(home: NodeId) -> Error {
    Error::new(ErrorKind::Internal, format!("node {home} sent an answer of the wrong kind: see its release"))
}

/// Makes the result of a call whose operation was carried out.
fn result(done: &Done) -> Result<CallResult, Error> {
    let wrong = || Error::new(ErrorKind::Internal, "a home has sent more bytes than were asked for");
    CallResult::with(&[done.value], &done.data).ok_or_else(wrong)
}

/// Whether `len` bytes travel with an operation.
pub(super) fn are_carried(len: u64) -> bool {
    len <= CARRIED_MAX_BYTES
}
