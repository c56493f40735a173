//! Services, for Python: the native bases of `plasmon.Service` and `plasmon.Server`, and calls that came.
//!
//! Owns handles, ports and received calls. Any thread. All waits are made without the GIL. Invariant: no
//! Python code runs, and nobody waits with the GIL, while a handle or a call is locked.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plasmon::service::{self, Allow, AwaitedReply, Call, CallData, Reply, ServeOptions, Server, Service};
use plasmon::{Error, ErrorKind, Result};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::awaited::AwaitedOperation;
use crate::begun::{Begun, PendingOperation};
use crate::classes::{chosen, classed, during};
use crate::client::Client;
use crate::detached::{detached, ended_by, without_signals};
use crate::error::{closed, invalid, raised};
use crate::given::given;
use crate::lock::{cloned, lock, taken};
use crate::memory::{Bytes, fill, flat};
use crate::outgoing::Outgoing;
use crate::terms::{Text, duration};

/// Number of bytes that are copied without releasing the GIL.
const MAX_HELD_BYTES: usize = 64 << 10;

/// Native base of `plasmon.Service`: a handle to a service.
#[pyclass(frozen, subclass, weakref, module = "plasmon._internal")]
pub(crate) struct ServiceHandle {
    /// Service. `None` once closed.
    service: Mutex<Option<Service>>,
    name: String,
    owner: u32,
    functions: Vec<String>,
    /// Whether the client is closed.
    closing: Arc<AtomicBool>,
}

#[pymethods]
impl ServiceHandle {
    /// Finds a service. `owner` is that of the service, if it matters.
    #[new]
    fn new(
        py: Python<'_>,
        client: &Client,
        name: Text,
        #[pyo3(from_py_with = given)] owner: Option<u32>,
        #[pyo3(from_py_with = given)] timeout: f64,
    ) -> PyResult<Self> {
        let timeout = Some(duration(py, Some(timeout))?.unwrap_or(Duration::MAX));
        let found = client.run(py, |client| Service::find(client, owner, &name, timeout))?;
        let service = found.map_err(|error| raised(py, &error))?;
        let (owner, functions) = (service.owner(), service.functions().to_vec());
        let closing = Arc::clone(&client.closing);
        Ok(Self { service: Mutex::new(Some(service)), name: name.into(), owner, functions, closing })
    }

    /// User id of the service's owner.
    #[getter]
    fn owner(&self) -> u32 {
        self.owner
    }

    /// Names of the functions.
    #[getter]
    fn functions(&self) -> Vec<String> {
        self.functions.clone()
    }

    /// Whether `close` was called, or the client is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.closing.load(Ordering::Relaxed) || lock(&self.service).is_none()
    }

    /// Gives the handle up. The service stays.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(taken(&self.service)));
    }

    /// Calls a function, and waits for its reply.
    ///
    /// Args:
    ///     function: Name of the function.
    ///     data: Bytes for the function.
    ///     timeout: Time in seconds that the call may take.
    ///     into: Writable buffer that receives the reply. Then the part that holds it is returned.
    ///     priority: Class of the call: "high", "normal" or "low", instead of the client's.
    ///
    /// Raises:
    ///     CallFailed: The function was run and failed.
    ///     OutcomeUnknown: The function may have been run, or may be running.
    ///     TimedOut: No thread of a server was free in time. The function was not run.
    ///     ObjectNotFound: No process serves it any more. The function was not run.
    ///     InvalidArgument: There is no such function; or the reply, which is lost, does not fit the buffer.
    #[pyo3(signature = (function, data = None, *, timeout = 10.0, into = None, priority = None))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        function: Text,
        data: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = given)] timeout: f64,
        into: Option<&Bound<'py, PyAny>>,
        priority: Option<Text>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // The function is not run for a buffer that cannot be written.
        let room = into.map(Bytes::given_to_fill).transpose()?;
        let data = data.map(Bytes::given).transpose()?;
        let sent = data.as_ref().map_or(&[][..], Bytes::as_slice);
        let timeout = limit(py, timeout)?;
        let reply = self.run(py, priority, |service| service.call(&function, sent, timeout))?;
        let Some((into, mut room)) = into.zip(room) else {
            return bytes_of(py, &reply).map(Bound::into_any);
        };
        let room = room.as_mut_slice();
        let (len, most) = (reply.len(), room.len());
        if len > most {
            let text = format!("the function was run, but its reply of {len} bytes does not fit into {most}");
            return Err(invalid(py, &text));
        }
        copy(py, &reply, &mut room[..len]);
        flat_view(into)?.get_item(pyo3::types::PySlice::new(py, 0, len as isize, 1))
    }

    /// Calls a function with bytes, or with what was written to lent memory, and returns its reply in place.
    fn ask<'py>(
        &self,
        py: Python<'py>,
        function: Text,
        data: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = given)] timeout: f64,
        priority: Option<Text>,
    ) -> PyResult<Bound<'py, PyMemoryView>> {
        let timeout = limit(py, timeout)?;
        let reply = match data.cast::<Outgoing>() {
            Ok(outgoing) => {
                let (memory, len) = outgoing.get().take(py)?;
                self.run(py, priority, |service| service.begin_from(&function, memory, len, timeout)?.wait())?
            }
            Err(_) => {
                let data = Bytes::given(data)?;
                let sent = data.as_slice();
                self.run(py, priority, |service| service.call(&function, sent, timeout))?
            }
        };
        PyMemoryView::from(Bound::new(py, Came(Whole::Reply(reply)))?.as_any())
    }

    /// Begins a call for an event loop. `None` if it is to be made in a thread.
    fn await_call(
        &self,
        py: Python<'_>,
        function: Text,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given)] timeout: f64,
        priority: Option<Text>,
    ) -> PyResult<Option<AwaitedOperation>> {
        if data.is_instance_of::<Outgoing>() {
            return Ok(None);
        }
        let (data, timeout) = (Bytes::given(data)?, limit(py, timeout)?);
        let (service, class) = (self.service(py)?, chosen(py, priority.as_deref())?);
        let begun = during(class, || service.await_call(&function, data.as_slice(), timeout));
        begun.map(|begun| begun.map(AwaitedOperation::of_call)).map_err(|error| raised(py, &error))
    }

    /// Begins a call. The result is `bytes`.
    ///
    /// Args:
    ///     function: Name of the function.
    ///     data: Bytes for the function.
    ///     timeout: Time in seconds that the call may take.
    ///     priority: Class of the call: "high", "normal" or "low", instead of the client's.
    #[pyo3(signature = (function, data = None, *, timeout = 10.0, priority = None))]
    fn begin(
        &self,
        py: Python<'_>,
        function: Text,
        data: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = given)] timeout: f64,
        priority: Option<Text>,
    ) -> PyResult<PendingOperation> {
        let data = data.map(Bytes::given).transpose()?;
        let sent = data.as_ref().map_or(&[][..], Bytes::as_slice);
        let timeout = limit(py, timeout)?;
        let begun = self.run(py, priority, |service| service.begin(&function, sent, timeout))?;
        Ok(PendingOperation::new(Begun::Call(Box::new(begun)), &self.closing))
    }

    /// Calls a function without waiting for its reply.
    ///
    /// The caller is not told what the function returns or raises, nor whether the function is run at all if
    /// its server dies.
    ///
    /// Args:
    ///     function: Name of the function.
    ///     data: Bytes for the function.
    ///     confirm: Whether to wait until a server has the call. More than 320 bytes are waited for in any
    ///         case.
    ///     priority: Class of the call: "high", "normal" or "low", instead of the client's.
    #[pyo3(signature = (function, data = None, *, confirm = false, priority = None))]
    fn send(
        &self,
        py: Python<'_>,
        function: Text,
        data: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = given)] confirm: bool,
        priority: Option<Text>,
    ) -> PyResult<()> {
        let data = data.map(Bytes::given).transpose()?;
        let sent = data.as_ref().map_or(&[][..], Bytes::as_slice);
        self.run(py, priority, |service| match confirm {
            true => service.send(&function, sent),
            false => service.post(&function, sent),
        })
    }
}

impl ServiceHandle {
    fn service(&self, py: Python<'_>) -> PyResult<Service> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(raised(py, &closed()));
        }
        let given_up = || format!("this handle to service '{}' is closed: find the service again", self.name);
        cloned(&self.service).ok_or_else(|| invalid(py, &given_up()))
    }

    /// Makes a call of a class without the GIL. Signals and the end of the client end it where it waits.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        priority: Option<Text>,
        call: impl FnOnce(&Service) -> Result<T> + Send,
    ) -> PyResult<T> {
        let service = self.service(py)?;
        let result = classed(py, priority.as_deref(), || ended_by(&self.closing, || call(&service)))?;
        result.map_err(|error| raised(py, &self.told(error)))
    }

    fn told(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Interrupted if self.closing.load(Ordering::Relaxed) => closed(),
            _ => error,
        }
    }
}

/// Reply that the node keeps until it is taken.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct KeptReply(Mutex<Option<service::KeptReply>>);

#[pymethods]
impl KeptReply {
    /// Takes the reply, for which this thread waits.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        let kept = taken(&self.0).ok_or_else(|| invalid(py, "this reply was taken already"))?;
        let reply = detached(py, || kept.take()).map_err(|error| raised(py, &error))?;
        PyMemoryView::from(Bound::new(py, Came(Whole::Reply(reply)))?.as_any())
    }
}

/// Reply to a call that an event loop has waited for: its bytes, or a `KeptReply`.
pub(crate) fn outcome_of(py: Python<'_>, outcome: AwaitedReply) -> PyResult<Bound<'_, PyAny>> {
    match outcome {
        AwaitedReply::Reply(reply) => {
            let came = Bound::new(py, Came(Whole::Reply(reply)))?;
            PyMemoryView::from(came.as_any()).map(Bound::into_any)
        }
        AwaitedReply::Kept(kept) => Bound::new(py, KeptReply(Mutex::new(Some(kept)))).map(Bound::into_any),
    }
}

/// Calls the same function of several services. Returns what each of them says: bytes, or an exception.
#[pyfunction]
pub(crate) fn multicast<'py>(
    py: Python<'py>,
    client: &Client,
    #[pyo3(from_py_with = given)] services: Vec<PyRef<'py, ServiceHandle>>,
    function: Text,
    data: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = given)] timeout: f64,
    priority: Option<Text>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let to = services.iter().map(|service| service.service(py)).collect::<PyResult<Vec<_>>>()?;
    let (data, timeout) = (Bytes::given(data)?, limit(py, timeout)?);
    let sent = data.as_slice();
    let class = chosen(py, priority.as_deref())?;
    let replies =
        client.run(py, |client| during(class, || client.multicast(&to, &function, sent, timeout)))?;
    let replies = replies.map_err(|error| raised(py, &error))?;
    let told = |reply: Result<Reply>| match reply {
        Ok(reply) => bytes_of(py, &reply).map(Bound::into_any),
        Err(error) => Ok(raised(py, &error).into_value(py).into_bound(py).into_any()),
    };
    replies.into_iter().map(told).collect()
}

/// Native base of `plasmon.Server`: a port at which calls of a service come to this process.
#[pyclass(frozen, subclass, weakref, module = "plasmon._internal")]
pub(crate) struct ServerHandle {
    server: Server,
    ended: Arc<AtomicBool>,
    /// Whether the client is closed.
    closing: Arc<AtomicBool>,
}

#[pymethods]
impl ServerHandle {
    /// Serves functions. `users` are those who may call, beside this user and root: every user if `None`.
    #[new]
    fn new(
        py: Python<'_>,
        client: &Client,
        name: Text,
        #[pyo3(from_py_with = given)] functions: Vec<Text>,
        #[pyo3(from_py_with = given)] users: Option<Vec<u32>>,
    ) -> PyResult<Self> {
        let allow = match users {
            None => Allow::Everyone,
            Some(users) if users.is_empty() => Allow::User,
            Some(users) => Allow::Users(users),
        };
        let functions: Vec<&str> = functions.iter().map(|name| &**name).collect();
        let served = client.run(py, |client| client.serve(&name, &functions, &ServeOptions { allow }))?;
        let server = served.map_err(|error| raised(py, &error))?;
        Ok(Self { server, ended: Arc::default(), closing: Arc::clone(&client.closing) })
    }

    /// Whether `close` was called, or the client is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.ended.load(Ordering::Relaxed) || self.closing.load(Ordering::Relaxed)
    }

    /// Ends the server: no call comes any more. Calls that came can still be answered.
    fn end(&self, py: Python<'_>) {
        self.ended.store(true, Ordering::Relaxed);
        py.detach(|| self.server.close());
    }

    /// Waits for a call, after it has replied to one with at most 320 bytes. `None` once the server is
    /// closed.
    #[pyo3(signature = (answered = None, reply = None))]
    fn receive(
        &self,
        py: Python<'_>,
        answered: Option<&ReceivedCall>,
        reply: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<ReceivedCall>> {
        let reply = reply.map(Bytes::of).transpose()?.map(|reply| reply.as_slice().to_vec());
        let reply = reply.unwrap_or_default();
        let answered = match answered {
            Some(call) => Some(call.take(py)?),
            None => None,
        };
        let received = detached(py, || without_signals(|| self.next(answered, &reply)));
        match received {
            Ok(call) => call.map(|call| ReceivedCall::new(py, call)).transpose(),
            Err(_) if self.closed() => Ok(None),
            Err(error) => Err(raised(py, &error)),
        }
    }
}

impl ServerHandle {
    fn next(&self, answered: Option<Call>, reply: &[u8]) -> Result<Option<Call>> {
        if self.closed() {
            return answered.map_or(Ok(()), |call| call.reply(reply)).map(|()| None);
        }
        let wait = || match answered {
            Some(call) => self.server.reply_and_receive(call, reply, None),
            None => self.server.receive(None),
        };
        match ended_by(&self.closing, || ended_by(&self.ended, wait)) {
            // A call that came meanwhile is run, because nobody else would get it.
            Err(error) if error.kind() == ErrorKind::Interrupted => self.server.receive(Some(Duration::ZERO)),
            received => received,
        }
    }
}

/// Call that came, until it is answered.
#[pyclass(frozen, weakref, module = "plasmon._internal")]
pub(crate) struct ReceivedCall {
    /// Call. `None` once answered.
    call: Mutex<Option<Call>>,
    /// Data. `None` once answered.
    data: Mutex<Option<Py<Came>>>,
    function: u16,
    user: u32,
    node: String,
}

impl ReceivedCall {
    fn new(py: Python<'_>, mut call: Call) -> PyResult<Self> {
        let (caller, function) = (call.caller(), call.function());
        let data = Py::new(py, Came(Whole::Call(call.take_data())))?;
        Ok(Self {
            call: Mutex::new(Some(call)),
            data: Mutex::new(Some(data)),
            function,
            user: caller.user,
            node: caller.node.to_string(),
        })
    }

    /// Takes the call, to answer it, and lets go of its data.
    fn take(&self, py: Python<'_>) -> PyResult<Call> {
        let (call, data) = py.detach(|| (taken(&self.call), taken(&self.data)));
        drop(data);
        call.ok_or_else(|| invalid(py, "this call was answered already"))
    }

    fn came<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Came>> {
        let data = lock(&self.data).as_ref().map(|data| data.clone_ref(py));
        data.map(|data| data.into_bound(py)).ok_or_else(|| invalid(py, "this call was answered already"))
    }
}

#[pymethods]
impl ReceivedCall {
    /// Number of the function.
    #[getter]
    fn function(&self) -> u16 {
        self.function
    }

    /// User id of the caller.
    #[getter]
    fn user(&self) -> u32 {
        self.user
    }

    /// Id of the caller's node.
    #[getter]
    fn node(&self) -> &str {
        &self.node
    }

    /// Copy of the data.
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        bytes_of(py, self.came(py)?.get())
    }

    /// Data in place.
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        PyMemoryView::from(self.came(py)?.as_any())
    }

    /// Time in seconds for which the caller waits yet; 0 once the call was answered.
    fn left(&self, py: Python<'_>) -> f64 {
        let left = py.detach(|| lock(&self.call).as_ref().map_or(Duration::ZERO, Call::left));
        left.as_secs_f64()
    }

    /// Whether the caller waits no more.
    fn gone(&self, py: Python<'_>) -> bool {
        detached(py, || without_signals(|| lock(&self.call).as_ref().is_none_or(Call::caller_gone)))
    }

    /// Replies with bytes, or with what was written to lent memory.
    fn reply(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let replied = match data.cast::<Outgoing>() {
            Ok(outgoing) => {
                let (memory, len) = outgoing.get().take(py)?;
                let call = self.take(py)?;
                detached(py, || without_signals(|| call.reply_from(memory, len)))
            }
            Err(_) => {
                let data = Bytes::given(data)?;
                let (call, sent) = (self.take(py)?, data.as_slice());
                detached(py, || without_signals(|| call.reply(sent)))
            }
        };
        replied.map_err(|error| raised(py, &error))
    }

    /// Says that the function failed, and why.
    fn fail(&self, py: Python<'_>, text: Text) -> PyResult<()> {
        let call = self.take(py)?;
        detached(py, || without_signals(|| call.fail(&text))).map_err(|error| raised(py, &error))
    }
}

/// Bytes that came, behind the buffer protocol: the data of a call, or a reply.
#[pyclass(frozen, module = "plasmon._internal")]
struct Came(Whole);

enum Whole {
    Call(CallData),
    Reply(Reply),
}

impl Deref for Came {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Whole::Call(data) => data,
            Whole::Reply(reply) => reply,
        }
    }
}

#[pymethods]
impl Came {
    /// # Safety
    /// Called by Python's buffer protocol, with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes: &[u8] = slf.get();
        // SAFETY: `slf` holds the bytes, which nobody writes.
        unsafe { fill(&slf, view, bytes.as_ptr().cast_mut(), bytes.len(), true, flags) }
    }
}

fn limit(py: Python<'_>, timeout: f64) -> PyResult<Duration> {
    Ok(duration(py, Some(timeout))?.unwrap_or(Duration::MAX))
}

fn flat_view<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyMemoryView>> {
    PyMemoryView::from(&flat(object)?)
}

fn copy(py: Python<'_>, from: &[u8], into: &mut [u8]) {
    if from.len() <= MAX_HELD_BYTES {
        into.copy_from_slice(from);
    } else {
        detached(py, || into.copy_from_slice(from));
    }
}

fn bytes_of<'py>(py: Python<'py>, from: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, from.len(), |into| {
        copy(py, from, into);
        Ok(())
    })
}
