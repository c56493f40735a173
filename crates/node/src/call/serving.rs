//! Services of the processes of this node: their ports, and the calls that their threads have. Owns
//! [`Serving`]. Engine thread only.
//!
//! Invariants: numbers of ports and calls are valid on one connection alone, and are not used again. A
//! call that a thread has ends with the thread's answer, or with the client.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use futures::channel::oneshot;
use plasmon::service::{Allow, MAX_ALLOWED, MAX_FUNCTIONS, MAX_FUNCTIONS_BYTES, service_id};
use plasmon::shared::CallResult;
use plasmon::text::printable;
use plasmon::wire::{LentRange, Looked, MAX_NAME_BYTES, Received, Reply, SlotResult};
use plasmon::{Error, ErrorKind, ObjectId};

use super::Calls;
use super::bodies::until_dropped;
use super::incoming::{Arriving, Incoming, nobody_here};
use super::names::ensure_same;
use super::ports::{Port, Served};
use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;

/// Maximum number of ports of a client.
const MAX_PORTS: usize = 1 << 12;

/// A call that a thread of a client has.
struct Begun {
    client: ClientKey,
    call: Rc<Incoming>,
    /// The service, for errors.
    served: Rc<Served>,
}

/// Services that the processes of a node serve.
#[derive(Default)]
pub(super) struct Serving {
    served: RefCell<HashMap<ObjectId, Rc<Served>>>,
    ports: RefCell<HashMap<(ClientKey, u32), Rc<Port>>>,
    begun: RefCell<HashMap<u64, Begun>>,
    next_port: Cell<u32>,
}

/// Refuses a name, functions or permissions that no process can serve.
///
/// # Errors
/// `Invalid`.
fn check(name: &str, functions: &[String], allow: &Allow) -> Result<(), Error> {
    let shown = printable(name);
    let bytes: usize = functions.iter().map(String::len).sum();
    let twice = || functions.iter().enumerate().find(|(at, one)| functions[..*at].contains(one));
    let why = match () {
        () if name.is_empty() || name.len() > MAX_NAME_BYTES => {
            format!("the name of a service has 1 to {MAX_NAME_BYTES} bytes, and this one has {}", name.len())
        }
        () if functions.is_empty() || functions.len() > MAX_FUNCTIONS => format!(
            "service '{shown}' cannot have {} functions: 1 to {MAX_FUNCTIONS} are allowed",
            functions.len()
        ),
        () if bytes > MAX_FUNCTIONS_BYTES => format!(
            "the names of the functions of service '{shown}' have {bytes} bytes together, and \
             {MAX_FUNCTIONS_BYTES} at most are allowed"
        ),
        () if functions.iter().any(|one| one.is_empty() || one.len() > MAX_NAME_BYTES) => {
            format!("the name of each function of service '{shown}' has to have 1 to {MAX_NAME_BYTES} bytes")
        }
        () if matches!(allow, Allow::Users(users) if users.len() > MAX_ALLOWED) => {
            format!("service '{shown}' can allow {MAX_ALLOWED} users at most, or everyone")
        }
        () => match twice() {
            Some((_, one)) => format!("service '{shown}' has function '{}' twice", printable(one)),
            None => return Ok(()),
        },
    };
    Err(Error::new(ErrorKind::Invalid, why))
}

/// Makes the error for a call whose data did not come to the server.
fn unread(error: &Error) -> Error {
    let text = format!("the data of the call did not come to the server; the function was not run: {error}");
    Error::new(error.kind(), text)
}

impl Serving {
    /// Number of ports, number of calls that wait at them, and number of calls that threads have.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let ports = self.ports.borrow();
        let waiting = ports.values().map(|port| port.count() as u64).sum();
        (ports.len() as u64, waiting, self.begun.borrow().len() as u64)
    }

    /// Whether processes of this node serve a name.
    pub(super) fn has(&self, id: &ObjectId, owner: u32) -> bool {
        let served = self.served.borrow();
        served.get(id).is_some_and(|served| served.owner == owner && !served.ports.borrow().is_empty())
    }

    fn port(&self, client: ClientKey, number: u32) -> Result<Rc<Port>, Error> {
        self.ports.borrow().get(&(client, number)).cloned().ok_or_else(|| {
            let text = format!("this client has no port {number}: it was closed, or is another client's");
            Error::new(ErrorKind::Invalid, text)
        })
    }

    /// Returns a call that a thread of a client has.
    fn begun(&self, client: ClientKey, number: u64) -> Result<Rc<Incoming>, Error> {
        let begun = self.begun.borrow();
        let own = begun.get(&number).filter(|begun| begun.client == client);
        own.map(|begun| Rc::clone(&begun.call)).ok_or_else(|| {
            let text = format!("this client has no call {number}: it was answered already, or is another's");
            Error::new(ErrorKind::Invalid, text)
        })
    }

    /// Takes a call from the thread of a client that has it, to be answered.
    fn end(&self, client: ClientKey, number: u64) -> Result<Rc<Incoming>, Error> {
        let call = self.begun(client, number)?;
        self.begun.borrow_mut().remove(&number);
        Ok(call)
    }

    /// Returns the service of a name, as processes of this node serve it.
    pub(super) fn served(&self, id: &ObjectId) -> Option<Rc<Served>> {
        self.served.borrow().get(id).cloned()
    }

    /// Returns all services that processes of this node serve.
    pub(super) fn all(&self) -> Vec<Rc<Served>> {
        self.served.borrow().values().cloned().collect()
    }

    /// Drops the waiting calls whose time is over, or whose callers have gone.
    pub(super) fn drop_late(&self, now: Instant) {
        let ports: Vec<_> = self.ports.borrow().values().cloned().collect();
        ports.iter().for_each(|port| port.drop_late(now));
    }

    /// Returns the service of a name, for another port.
    ///
    /// # Errors
    /// `NotAllowed` or `Invalid` if the name is served here by another user, or with other functions.
    fn served_as(&self, name: &str, owner: u32, functions: &[String]) -> Result<Rc<Served>, Error> {
        let id = service_id(name);
        let new = || {
            Rc::new(Served {
                name: name.to_owned(),
                id,
                owner,
                functions: functions.to_vec(),
                ports: RefCell::default(),
                joined: Cell::default(),
                joining: RefCell::default(),
            })
        };
        let mut all = self.served.borrow_mut();
        // A name that a process tried to serve in vain has no owner.
        all.retain(|one, served| *one != id || served.is_wanted());
        let served = Rc::clone(all.entry(id).or_insert_with(new));
        drop(all);
        if served.owner != owner {
            let (name, owner) = (printable(name), served.owner);
            let text = format!("service '{name}' belongs to user {owner}: serve under another name");
            return Err(Error::new(ErrorKind::NotAllowed, text));
        }
        ensure_same(name, &served.functions, functions)?;
        Ok(served)
    }

    /// Forgets a service that no process of this node serves.
    pub(super) fn forget(&self, served: &Rc<Served>) {
        let is_it = self.served(&served.id).is_some_and(|one| Rc::ptr_eq(&one, served));
        if is_it && served.ports.borrow().is_empty() {
            self.served.borrow_mut().remove(&served.id);
        }
    }
}

impl Calls {
    /// Opens a port of a client.
    pub(super) async fn serve(
        self: Rc<Self>,
        client: ClientKey,
        name: String,
        functions: Vec<String>,
        allow: Allow,
    ) -> Result<Reply, Error> {
        check(&name, &functions, &allow)?;
        if self.serving.ports.borrow().keys().filter(|(key, _)| *key == client).count() >= MAX_PORTS {
            let text = format!("this client has {MAX_PORTS} ports already: close some");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let owner = self.user(client);
        loop {
            let served = self.serving.served_as(&name, owner, &functions)?;
            if served.joined.get().is_some() {
                return Ok(Reply::Serving { port: self.open(client, &served, allow) });
            }
            let joined = self.begin_join(&served).await;
            joined.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "this node is ending")))?;
        }
    }

    fn open(&self, client: ClientKey, served: &Rc<Served>, allow: Allow) -> u32 {
        let number = self.serving.next_port.get().wrapping_add(1);
        self.serving.next_port.set(number);
        let port = Port::new(number, client, served, allow);
        served.ports.borrow_mut().push(Rc::clone(&port));
        self.serving.ports.borrow_mut().insert((client, number), port);
        number
    }

    /// Closes a port of a client.
    pub(super) fn unserve(&self, client: ClientKey, number: u32) {
        if let Ok(port) = self.serving.port(client, number) {
            let text = format!("port {number} was closed: nothing comes there any more");
            self.close(&port, Error::new(ErrorKind::Invalid, text));
        }
    }

    /// Closes a port. The calls that wait there go to other ports of the service on this node, or
    /// back to their callers' nodes.
    pub(super) fn close(&self, port: &Rc<Port>, why: Error) {
        self.serving.ports.borrow_mut().remove(&(port.client, port.number));
        let served = &port.served;
        served.ports.borrow_mut().retain(|one| !Rc::ptr_eq(one, port));
        let now = self.kernel.clock.now();
        for call in port.end(why) {
            match served.port_for(call.user, now) {
                Ok(Some(other)) => other.enter(call),
                _ => call.answer(Err(nobody_here(self.kernel.node))),
            }
        }
        if served.ports.borrow().is_empty() {
            self.part(served);
        }
    }

    /// Ends what a client has served. Calls that its threads have end with an unknown outcome.
    pub(super) fn end_server(&self, client: ClientKey) {
        let ports = self.serving.ports.borrow();
        let own: Vec<_> = ports.values().filter(|port| port.client == client).cloned().collect();
        drop(ports);
        own.iter()
            .for_each(|port| self.close(port, Error::new(ErrorKind::Disconnected, "the client is gone")));
        let mut begun = self.serving.begun.borrow_mut();
        let ended: Vec<_> = begun.extract_if(|_, begun| begun.client == client).collect();
        drop(begun);
        for (_, Begun { call, served, .. }) in ended {
            let (function, name) = (served.name_of(call.function), &served.name);
            let text = format!(
                "the process on node {} that had begun function '{}' of service '{}' has ended: it is \
                 unknown how far the function came",
                self.kernel.node,
                printable(function),
                printable(name)
            );
            self.counts.failed.add(1);
            call.answer(Err(Error::new(ErrorKind::OutcomeUnknown, text)));
        }
    }

    /// Lets a call in: it waits at a port of this node until a thread takes it. A call that is not
    /// let in is answered with the error.
    ///
    /// # Errors
    /// `NotHere` if no process of this node serves the name for that owner, `Invalid` if there is no such
    /// function, `NotAllowed` if no server lets the user call, `Busy` if too many calls wait.
    pub(super) fn admit(
        self: &Rc<Self>,
        (id, owner): (&ObjectId, u32),
        function: &str,
        arriving: Arriving,
    ) -> Result<Rc<Incoming>, Error> {
        let user = arriving.user;
        let find = || -> Result<_, Error> {
            let nobody = || nobody_here(self.kernel.node);
            let served = self.serving.served(id).filter(|served| served.owner == owner);
            let served = served.ok_or_else(nobody)?;
            let port = served.port_for(user, self.kernel.clock.now())?.ok_or_else(nobody)?;
            Ok((served.function(function)?, port))
        };
        let (number, port) = match find() {
            Ok(found) => found,
            Err(error) => {
                Incoming::new(self, 0, arriving).answer(Err(error.clone()));
                return Err(error);
            }
        };
        let call = Incoming::new(self, number, arriving);
        port.enter(Rc::clone(&call));
        Ok(call)
    }

    /// Waits for a call at a port, and gives it to the thread.
    pub(super) async fn receive(
        self: Rc<Self>,
        client: ClientKey,
        number: u32,
        (room, into): (u32, LentRange),
    ) -> Result<CallResult, Error> {
        let port = self.serving.port(client, number)?;
        if room > 0 {
            self.requests.give(client, into, room.into())?;
        }
        let call = port.next(&self.kernel.clock).await?;
        let payload = call.body.payload();
        if payload.is_none()
            && let Err(error) = self.bring_now(client, &call.body, (room, into))
        {
            port.put_back(call);
            return Err(error);
        }
        // No other task runs between here and the result in the client's slot.
        let now = self.kernel.clock.now();
        call.begin(now);
        let number = self.draw();
        let received = Received {
            number,
            function: call.function,
            user: call.user,
            len: call.body.len(),
            left_us: call.due.saturating_duration_since(now).as_micros().try_into().unwrap_or(u64::MAX),
            node: call.from,
        };
        let result = CallResult::with(&received.values(), payload.unwrap_or_default());
        let served = Rc::clone(&port.served);
        self.serving.begun.borrow_mut().insert(number, Begun { client, call, served });
        result.ok_or_else(|| Error::new(ErrorKind::Internal, "a call has more bytes than its slot"))
    }

    /// Brings the data of a call for which there was no room before.
    pub(super) async fn take_data(
        self: Rc<Self>,
        client: ClientKey,
        number: u64,
        into: LentRange,
    ) -> Result<CallResult, Error> {
        let call = self.serving.begun(client, number)?;
        if let Err(error) = self.bring(client, &call.body, into).await {
            // The server may correct a range that it named wrongly. Other errors are final, because
            // the bytes cannot be read.
            if error.kind() != ErrorKind::Invalid && self.serving.end(client, number).is_ok() {
                self.counts.failed.add(1);
                call.answer(Err(unread(&error)));
            }
            return Err(error);
        }
        call.accept();
        Ok(CallResult::of(&[call.body.len()]))
    }

    /// Takes the reply to a call. For a long reply, returns the receiver that ends when the reply was
    /// taken, and the time when the wait for that ends.
    pub(super) fn reply(
        &self,
        client: ClientKey,
        number: u64,
        payload: &[u8],
        lent: (u32, LentRange),
    ) -> Result<Option<(oneshot::Receiver<()>, Instant)>, Error> {
        self.serving.begun(client, number)?;
        let mut body = self.body_of(client, payload, lent)?;
        let call = self.serving.end(client, number)?;
        self.counts.served.add(1);
        let taken = body.is_lent().then(|| (until_dropped(&mut body), call.due));
        call.answer(Ok(body));
        Ok(taken)
    }

    /// Ends a call with the error that its server tells.
    pub(super) fn fail(&self, client: ClientKey, number: u64, text: &str) -> Result<(), Error> {
        self.end_with(client, number, Error::new(ErrorKind::Raised, text))
    }

    /// Ends a call whose function its server did not run.
    pub(super) fn refuse(&self, client: ClientKey, number: u64, text: &str) -> Result<(), Error> {
        self.end_with(client, number, Error::new(ErrorKind::TimedOut, text))
    }

    fn end_with(&self, client: ClientKey, number: u64, error: Error) -> Result<(), Error> {
        let call = self.serving.end(client, number)?;
        self.counts.failed.add(1);
        call.answer(Err(error));
        Ok(())
    }

    /// Returns whether the caller of a call has gone, and the time for which the caller still waits.
    pub(super) fn look(&self, client: ClientKey, number: u64) -> Result<CallResult, Error> {
        let call = self.serving.begun(client, number)?;
        let left = call.due.saturating_duration_since(self.kernel.clock.now());
        let left_us = left.as_micros().try_into().unwrap_or(u64::MAX);
        Ok(CallResult::of(&Looked { gone: call.caller_gone(), left_us }.values()))
    }
}
