//! Calls as a service: their frames, their requests and calls by slot, and their reactions to events. The
//! state is that of `Calls`. Engine thread only.

use std::ops::RangeInclusive;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use plasmon::shared::{CallRequest, CallResult};
use plasmon::status::{FunctionsStatus, Status};
use plasmon::wire::{BySlot, LentRange, Reply, Request, ServiceCall, Table, WireError};
use plasmon::{Error, ErrorKind, NodeId};

use super::Calls;
use super::frames::{CALL_FRAMES, CallFrame, ask};
use super::incoming::{Arriving, Asker};
use super::outgoing::Wanted;
use crate::kernel::ClientKey;
use crate::membership::views::Change;
use crate::net::frame::{Envelope, Frames, Message};
use crate::service::{Answer, Asked, Return, Service};

/// How long another node may take to list its names.
const LIST_PATIENCE: Duration = Duration::from_secs(30);

impl Service for Calls {
    fn name(&self) -> &'static str {
        "calls"
    }

    fn frames(&self) -> RangeInclusive<u8> {
        CALL_FRAMES
    }

    fn requests(&self) -> RangeInclusive<u8> {
        110..=119
    }

    fn calls(&self) -> RangeInclusive<u8> {
        ServiceCall::FIRST..=ServiceCall::LAST
    }

    fn on_frame(self: Rc<Self>, mut frame: Envelope) -> Result<(), WireError> {
        let message = std::mem::replace(&mut frame.message, Message::Done);
        self.act(frame, CallFrame::from_message(message)?)
    }

    fn on_request(self: Rc<Self>, asked: Asked) -> Result<Answer, WireError> {
        let client = asked.session;
        Ok(match asked.request {
            Request::Serve { name, functions, allow } => {
                Answer::plain(1, self.serve(client, name, functions, allow))
            }
            Request::Unserve { port } => {
                self.unserve(client, port);
                Answer::Silent
            }
            Request::FindService { name, owner, timeout_us } => {
                Answer::plain(1, self.find(client, name, owner, timeout_us))
            }
            Request::LeaveService { service } => {
                self.handles.close(client, service);
                Answer::Silent
            }
            Request::ListServices { node, from } => Answer::plain(1, self.list(client, node, from)),
            Request::DropCall { number } => {
                // A drop of another's call, or of one that was answered, does nothing.
                _ = self.fail(client, number, "the server dropped the call");
                Answer::Silent
            }
            other => return Err(WireError::Opcode(other.opcode())),
        })
    }

    fn on_call(self: Rc<Self>, client: ClientKey, request: CallRequest) -> Return {
        let Some(call) = ServiceCall::decode(request.opcode, request.arguments, &request.payload) else {
            return Return::unknown(request.opcode);
        };
        self.carry_out(client, call, &request)
    }

    fn on_change(self: Rc<Self>, change: &Change) {
        let gone = match change {
            Change::View(view) => {
                self.names.follow_members();
                // If this node begins a new membership, other nodes do not know of replies lent in
                // the former one.
                self.lose_lent(&view.gone, view.begins);
                &view.gone
            }
            // Nodes that are members still may read here yet.
            Change::Fenced { gone } => gone,
            Change::Records | Change::FormerLives(_) => return,
        };
        self.rejoin(gone);
    }

    fn on_gone(&self, gone: &[NodeId]) {
        self.handles.lose(gone);
        let mut foreign = self.foreign.borrow_mut();
        foreign.retain(|(node, _), call| {
            let is_gone = gone.contains(node);
            call.upgrade().filter(|_| is_gone).iter().for_each(|call| call.give_up());
            !is_gone
        });
    }

    fn on_session_end(&self, client: ClientKey) {
        self.end_server(client);
        self.handles.close_all(client);
        self.outgoing.end_client(client);
    }

    fn on_tick(self: Rc<Self>, now: Instant) {
        self.names.tidy();
        self.handles.tidy();
        self.outgoing.drop_late(now);
        self.serving.drop_late(now);
        self.foreign.borrow_mut().retain(|_, call| call.strong_count() > 0);
        self.join_again(now);
    }

    fn report(&self, status: &mut Status) {
        let (ports, waiting, running) = self.serving.counts();
        status.functions = FunctionsStatus {
            names: self.names.count() as u64,
            ports,
            waiting,
            running,
            under_way: self.outgoing.count(),
            begun: self.counts.begun.0.get(),
            served: self.counts.served.0.get(),
            failed: self.counts.failed.0.get(),
            bodies_written: self.counts.bodies_written.0.get(),
            bodies_read: self.counts.bodies_read.0.get(),
        };
    }
}

impl Calls {
    /// Carries out a call by slot.
    fn carry_out(self: Rc<Self>, client: ClientKey, call: ServiceCall, request: &CallRequest) -> Return {
        let done = |done: Result<(), Error>| Return::Now(done.map(|()| CallResult::of(&[])));
        match call {
            ServiceCall::Call { service, function, len, data, room, into } => {
                self.begin(client, request, (service, function), (len, data), Some((room, into)))
            }
            ServiceCall::Send { service, function, len, data } => {
                self.begin(client, request, (service, function), (len, data), None)
            }
            ServiceCall::TakeReply { number, into } => Return::later(self.take_reply(client, number, into)),
            ServiceCall::Receive { port, room, into } => {
                Return::later(self.receive(client, port, (room, into)))
            }
            ServiceCall::TakeData { number, into } => Return::later(self.take_data(client, number, into)),
            ServiceCall::Reply { number, len, data } => {
                match self.reply(client, number, &request.payload, (len, data)) {
                    Ok(None) => done(Ok(())),
                    Err(error) => done(Err(error)),
                    Ok(Some((taken, due))) => Return::later(async move {
                        // A dropped sender says that the reply was taken, or that it is wanted no more.
                        if self.kernel.clock.bounded(Some(due), taken).await.is_none() {
                            let text = "the reply was not taken within the time-out of the call";
                            return Err(Error::new(ErrorKind::TimedOut, text));
                        }
                        Ok(CallResult::of(&[]))
                    }),
                }
            }
            ServiceCall::ReplyAndReceive { number, port, room, into } => {
                let nowhere = LentRange { buffer: 0, at: 0 };
                match self.reply(client, number, &request.payload, (0, nowhere)) {
                    Ok(_) => Return::later(self.receive(client, port, (room, into))),
                    Err(error) => done(Err(error)),
                }
            }
            ServiceCall::Fail { number } => {
                done(self.fail(client, number, &String::from_utf8_lossy(&request.payload)))
            }
            ServiceCall::Refuse { number } => {
                done(self.refuse(client, number, &String::from_utf8_lossy(&request.payload)))
            }
            ServiceCall::Look { number } => Return::Now(self.look(client, number)),
        }
    }

    fn begin(
        self: Rc<Self>,
        client: ClientKey,
        request: &CallRequest,
        (service, function): (u32, u16),
        lent: (u32, LentRange),
        room: Option<(u32, LentRange)>,
    ) -> Return {
        let due = self.due_of(request.timeout_us);
        let payload = Bytes::copy_from_slice(&request.payload);
        Return::in_time(self.call(client, Wanted { service, function, lent, payload, room }, due))
    }

    /// Lists the names that a node keeps.
    async fn list(self: Rc<Self>, client: ClientKey, node: NodeId, from: u64) -> Result<Reply, Error> {
        let (services, next) = if node == self.kernel.node {
            self.names.page(from)
        } else {
            let user = self.user(client);
            let ask::Listed { services, next } =
                self.network.ask(node, user, ask::List { from }, LIST_PATIENCE).await?;
            (services, next)
        };
        Ok(Reply::Services { services, next })
    }

    /// Acts on a frame of a member. `asked` is the envelope, without the frame.
    ///
    /// # Errors
    /// When no member sends such a frame.
    fn act(self: &Rc<Self>, asked: Envelope, frame: CallFrame) -> Result<(), WireError> {
        let (from, user) = (asked.from, asked.user);
        if asked.answers {
            // Nobody waits for this answer any more. A reply in memory is given back.
            if let CallFrame::Returned { data, pieces, written, lent, .. } = frame {
                drop(self.reply_sent((from, lent), data, pieces, written));
            }
            return Ok(());
        }
        let answer = match frame {
            CallFrame::Join { id, owner, functions } => {
                self.names.join(from, &id, owner, &functions).map(|()| CallFrame::Joined)
            }
            CallFrame::Part { id } => {
                self.names.part(&[from], &id);
                return Ok(());
            }
            CallFrame::Seek { id, owner } => self.names.sought(&id, owner, user).map(|told| {
                CallFrame::Sought { owner: told.owner, functions: told.functions, nodes: told.nodes }
            }),
            CallFrame::List { from } => {
                let (services, next) = self.names.page(from);
                Ok(CallFrame::Listed { services, next })
            }
            CallFrame::Call { call, id, owner, function, left_us, one_way, data, pieces, written } => {
                let body = self.sent(from, data, pieces, written);
                let body = body.ok_or(WireError::Malformed("data of a call"))?;
                let arriving = Arriving {
                    user,
                    from,
                    body: Rc::new(body),
                    due: self.due_of(left_us),
                    one_way,
                    asker: Asker::There(Box::new(asked)),
                };
                self.let_in((from, call), (&id, owner), &function, arriving);
                return Ok(());
            }
            CallFrame::GiveUp { call } => {
                let call = self.foreign.borrow_mut().remove(&(from, call));
                call.iter().filter_map(Weak::upgrade).for_each(|call| call.give_up());
                return Ok(());
            }
            CallFrame::Taken { lent } => {
                self.lent.taken(from, lent);
                return Ok(());
            }
            other => return Err(WireError::Opcode(other.opcode())),
        };
        match answer {
            Ok(answer) => self.network.answer(&asked, answer),
            Err(error) => self.network.answer(&asked, Message::Refused { error }),
        }
        Ok(())
    }

    /// Lets in a call of another node, or refuses it.
    fn let_in(
        self: &Rc<Self>,
        key: (NodeId, u64),
        whose: (&plasmon::ObjectId, u32),
        function: &str,
        arriving: Arriving,
    ) {
        // A call that is not let in was answered by `admit`.
        if let Ok(call) = self.admit(whose, function, arriving) {
            self.foreign.borrow_mut().insert(key, Rc::downgrade(&call));
        }
    }
}
