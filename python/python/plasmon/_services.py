"""Services: functions that processes of any host run for others, under one name."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import inspect
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from weakref import WeakSet

from plasmon import _internal, _messages
from plasmon._arguments import shown, wait_seconds, whole
from plasmon._classes import Priority
from plasmon._closing import Closing
from plasmon._handle import Handle
from plasmon._regions import EVERYONE, user_id
from plasmon.errors import Error, InvalidArgument, TimedOut, WrongType

if TYPE_CHECKING:
    from typing_extensions import Buffer as Readable

_F = TypeVar("_F", bound=Callable[..., Any])

Allow = Literal["user", "everyone"] | Collection[int | str]
"""Users who may call, beside the server's own user and root: nobody, every user, or these."""

MAX_THREADS = 128
"""Largest number of threads of a server. Each that waits for a call takes one of a client's 256 slots."""
_MAX_JOINT_BYTES = 320
"""Size of a reply that is sent together with the wait for the next call."""
_MAX_OWN_BYTES = 256 << 10
"""Size of a message that is made in memory of this process, and then copied. Larger ones are made in memory
that the node lends."""

_log = logging.getLogger("plasmon")
_running: ContextVar[Call] = ContextVar("plasmon.call")
_servers: WeakSet[Server] = WeakSet()
"""Servers of this process that are open."""


def expose(function: _F) -> _F:
    """Marks a method as one that `Client.serve` offers if it is given the object."""
    marks = getattr(function, "__dict__", None)
    if not callable(function) or not isinstance(marks, dict):
        raise WrongType(f"a method is exposed, not {shown(function)}")
    marks["_plasmon_exposed"] = True
    return function


def current_call() -> Call:
    """The call for which this thread or task runs the function of a service; else `InvalidArgument`."""
    try:
        return _running.get()
    except LookupError:
        raise InvalidArgument(
            "no function of a service is being run here: a thread that it started has no call"
        ) from None


class Call:
    """Call for which the function of a service is run. `current_call` returns it."""

    def __init__(self, server: Server, received: _internal.ReceivedCall) -> None:
        self._server = server
        self._received = received

    @property
    def function(self) -> str:
        """Name of the function."""
        return self._server.functions[self._received.function]

    @property
    def user(self) -> int:
        """User id of the caller, as the caller's node knows it."""
        return self._received.user

    @property
    def node(self) -> str:
        """Id of the caller's node."""
        return self._received.node

    @property
    def left(self) -> float:
        """Time in seconds for which the caller waits yet; 0 once the call was answered."""
        return self._received.left()

    def caller_gone(self) -> bool:
        """Whether the caller waits no more, because it died, gave up, or its time is over."""
        return self._received.gone()

    def __repr__(self) -> str:
        return f"<plasmon.Call of {self.function!r} by user {self.user} on node {self.node}>"


class Service(_internal.ServiceHandle, Closing):
    """Functions that processes of any host run for others, under one name.

    `Client.service` finds services. A service used as a context manager gives its handle up at the end of the
    block; the service itself stays. Any number of threads may call its functions at a time.

    A call goes to a server of this host if there is one, else to the host with the fewest calls of this
    host's under way. A function is run at most once a call. `CallFailed` says that it was run and failed,
    `OutcomeUnknown` that it may have been run, or may be running. After any other error it was not run,
    unless the error says so.
    """

    _client: Handle
    _name: str

    @property
    def name(self) -> str:
        """Name of the service, as the client names it."""
        return self._name

    def invoke(
        self,
        function: str,
        *args: Any,
        timeout: float = 10,
        allow_pickle: bool = False,
        priority: Priority | None = None,
    ) -> Any:
        """Calls a function with Python values, and returns the value that it returns.

        The server has to serve with `values=True`. Arrays, tables and frames are not copied where they
        arrive: they are over read-only memory that the bytes were received in.

        Args:
            function: Name of the function.
            args: Arguments: `None`, numbers, texts, bytes, arrays and scalars of NumPy, tables and frames;
                lists, tuples and dicts of these; and what can be pickled, if that is allowed.
            timeout: Time in seconds that the call may take.
            allow_pickle: Whether arguments may be pickled, and the result unpickled. A pickle runs any code
                that its maker wants. The server has to allow it as well.
            priority: Class of the call: "high", "normal" or "low", instead of the client's.

        Raises:
            CallFailed: The function was run and raised an exception, or its arguments could not be read.
            WrongType: An argument cannot be sent, or only as a pickle.
            MalformedValue: The function was run, and its result is no value, or a pickle that is not allowed.
        """
        packed = self._pack(args, allow_pickle)
        return self._unpack(self.ask(function, packed, timeout, priority), allow_pickle)

    def _pack(self, args: tuple[Any, ...], allow_pickle: bool) -> bytearray | _internal.Outgoing:
        """Encodes the arguments of a call."""
        return _pack(self._client, args, allow_pickle)

    def _unpack(self, reply: memoryview, allow_pickle: bool) -> Any:
        """Value that a function returned."""
        trusted = self.owner in (0, self._client.user)
        return _messages.unpack(reply, allow_pickle, not trusted)

    def __repr__(self) -> str:
        state = "closed" if self.closed else ", ".join(self.functions)
        return f"<plasmon.Service {self.name!r}: {state}>"


class Server(_internal.ServerHandle, Closing):
    """Functions of this process that others call. `Client.serve` makes servers.

    A server used as a context manager closes at the end of the block. It also ends with its client, and when
    the process ends. A forked child has none of its parent's servers.
    """

    _client: Handle
    _name: str
    _names: tuple[str, ...]
    _run: list[Callable[[_internal.ReceivedCall], Readable | _internal.Outgoing]]

    def _start(self, threads: int) -> None:
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._counting = threading.Lock()
        self._left = threads
        name = f"plasmon-serve-{self._name}"
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        _servers.add(self)
        for thread in self._threads:
            thread.start()

    @property
    def name(self) -> str:
        """Name of the service, as the client names it."""
        return self._name

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the functions, in the order that all servers of this name have."""
        return self._names

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the server has ended. Returns whether it has.

        Args:
            timeout: Time in seconds to wait; by default without limit.

        Raises:
            Error: Something else than `close` ended the server: its node is gone, or the name is another
                user's by now.
        """
        over = self._over.wait(wait_seconds(timeout))
        if over and self._error is not None:
            raise self._error
        return over

    def close(self, *, wait: bool = True) -> None:
        """Ends the server. No function is begun any more; calls that wait go to other servers of the name.

        Args:
            wait: Whether to wait for functions that are being run, except for one that calls this.
        """
        self.end()
        _servers.discard(self)
        if wait:
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()

    def _serve(self) -> None:
        """Runs functions in one thread until the server ends."""
        answered: tuple[_internal.ReceivedCall, Readable] | None = None
        try:
            while True:
                try:
                    received = self.receive(*answered or ())
                    answered = None
                    if received is None:
                        break
                    answered = self._answer(received)
                    del received
                except TimedOut:
                    # The node does not answer now. It may again.
                    answered = None
                except Error:
                    raise
                except BaseException:
                    # The program may raise an exception in any of its threads, at any place.
                    answered = None
                    _note("a thread of service %r goes on after an exception", self._name)
        except Error as error:
            self._error = error
        finally:
            with self._counting:
                self._left -= 1
                last = self._left == 0
            if last:
                self.end()
                _servers.discard(self)
                self._over.set()

    def _answer(self, received: _internal.ReceivedCall) -> tuple[_internal.ReceivedCall, Readable] | None:
        """Runs the function of a call. Returns the reply, unless it was sent already."""
        token = _running.set(Call(self, received))
        try:
            reply = self._run[received.function](received)
            if not isinstance(reply, _internal.Outgoing) and len(reply := _bytes(reply)) <= _MAX_JOINT_BYTES:
                return received, reply
        except BaseException as error:
            _note("function %r of service %r failed", self._names[received.function], self._name)
            failure = _failure(error)
            self._tell(lambda: received.fail(failure))
            return None
        finally:
            _running.reset(token)
        self._tell(lambda: received.reply(reply))
        return None

    def _tell(self, tell: Callable[[], None]) -> None:
        """Answers a call. A caller that does not take the answer must not end the server."""
        try:
            tell()
        except Exception:
            _note("a caller of service %r has no answer", self._name)

    def _follow_fork(self) -> None:
        """Ends the server in a forked child, which has none of its threads."""
        self.end()
        self._threads = []
        self._counting = threading.Lock()
        self._over = threading.Event()
        self._over.set()

    def __repr__(self) -> str:
        state = "closed" if self.closed else ", ".join(self.functions)
        return f"<plasmon.Server of {self.name!r}: {state}>"


class Services(Handle):
    """Calls of a client about services."""

    def serve(
        self,
        name: str,
        functions: Mapping[str, Callable[..., Any]] | object,
        *,
        threads: int = 1,
        allow: Allow = "user",
        values: bool = False,
        allow_pickle: bool = False,
    ) -> Server:
        """Runs functions for callers on any host, in threads of this process, until the server is closed.

        Several processes, on any hosts, may serve the same functions, in the same order, under one name. The
        name belongs to the user who serves it first.

        A function gets `bytes` and returns bytes, or `None` for no bytes. `current_call` tells it who calls.
        With `values` it gets the arguments of `Service.invoke`, and returns a value. If the function raises,
        the caller gets `CallFailed` with the type and the text of the exception, of which 320 bytes are sent.

        Args:
            name: Name of the service.
            functions: Functions by their names; or an object, whose methods that are marked by `expose` are
                served, in the order of their names.
            threads: Number of threads that run functions, at most 128.
            allow: Users who may call, beside this user and root: "everyone", or at most 64 user ids or names.
            values: Whether arguments and results are Python values instead of bytes.
            allow_pickle: Whether arguments may be unpickled, and results pickled. A pickle runs any code that
                its maker wants, so this trusts all who may call.

        Raises:
            NotAllowed: The name belongs to another user.
            InvalidArgument: Others serve other functions under the name, or an argument is wrong.
        """
        threads = whole(threads, "the number of threads of a server", 1, MAX_THREADS)
        if allow_pickle and not values:
            raise InvalidArgument("allow_pickle=True is for functions of values: give values=True as well")
        offered = functions_of(functions)
        server = Server(self._connected(), self._full(name, "a service"), [*offered], _users(allow))
        server._client, server._name, server._names = self, name, tuple(offered)
        if values:
            server._run = [self._of_values(function, allow_pickle) for function in offered.values()]
        else:
            server._run = [_of_bytes(function) for function in offered.values()]
        server._start(threads)
        return server

    def service(self, name: str, *, owner: int | str | None = None, timeout: float = 0) -> Service:
        """Finds a service, to call its functions.

        Args:
            name: Name of the service.
            owner: User to whom the service has to belong, by id or name; by default this user or root.
            timeout: Time in seconds to wait for a process to serve it.

        Raises:
            ObjectNotFound: No process serves it.
            NotAllowed: It belongs to another user.
            TimedOut: A node did not answer.
        """
        wanted = None if owner is None else user_id(owner)
        service = Service(self._connected(), self._full(name, "a service"), wanted, timeout)
        service._client, service._name = self, name
        return service

    def multicast(
        self,
        services: Sequence[Service],
        function: str,
        data: Readable = b"",
        *,
        timeout: float = 10,
        priority: Priority | None = None,
    ) -> builtins.list[bytes | Error]:
        """Calls the same function of several services at the same time, at most 64 at once.

        Args:
            services: Services that have the function.
            function: Name of the function.
            data: Bytes for the function.
            timeout: Time in seconds that each call may take.
            priority: Class of the calls: "high", "normal" or "low", instead of the client's.

        Returns:
            What each of them replied, in order, or the exception that its call would have raised.
        """
        return _internal.multicast(self._connected(), services, function, data, timeout, priority)

    def _of_values(
        self, function: Callable[..., Any], allow_pickle: bool
    ) -> Callable[[_internal.ReceivedCall], Readable | _internal.Outgoing]:
        """Function of a call of bytes, made of one of Python values."""
        trusted = (0, self.user)

        def run(received: _internal.ReceivedCall) -> Readable | _internal.Outgoing:
            args = _messages.unpack(received.memory(), allow_pickle, received.user not in trusted)
            if not isinstance(args, tuple):
                raise WrongType(f"the arguments of a call are a tuple, not {type(args).__name__}")
            return _pack(self, function(*args), allow_pickle)

        return run


def _pack(client: Handle, value: Any, allow_pickle: bool) -> bytearray | _internal.Outgoing:
    """Encodes a value as a message to be sent."""

    def memory(size: int) -> bytearray | _internal.Outgoing:
        return bytearray(size) if size <= _MAX_OWN_BYTES else _internal.Outgoing(client._connected(), size)

    return _messages.pack(value, allow_pickle, memory)


def _of_bytes(function: Callable[..., Any]) -> Callable[[_internal.ReceivedCall], Readable]:
    """Function of a call, made of one that takes and returns bytes."""

    def run(received: _internal.ReceivedCall) -> Readable:
        reply: Readable | None = function(received.data())
        return b"" if reply is None else reply

    return run


def _bytes(reply: Any) -> memoryview | bytes | bytearray:
    """Bytes that a function returned."""
    if isinstance(reply, (bytes, bytearray)):
        return reply
    try:
        view = memoryview(reply)
    except TypeError:
        kind = type(reply).__name__
        raise WrongType(
            f"the function returned a value of type {kind}, not bytes: `serve` with values=True sends values"
        ) from None
    return view.cast("B") if view.c_contiguous and view.nbytes else view.tobytes()


def _failure(error: BaseException) -> str:
    """Type and text of an exception, for a caller.

    Lone surrogates are escaped, since no text between processes has them.
    """
    told: list[str] = []
    # Both may be code of the program.
    parts: tuple[Callable[[], str], ...] = (lambda: type(error).__name__, lambda: str(error))
    for part in parts:
        try:
            told.append(str.__str__(part()).encode("utf-8", "backslashreplace").decode())
        except BaseException:
            told.append("(its text cannot be told)" if told else "Exception")
    return ": ".join(told)


def _note(text: str, *args: object) -> None:
    """Logs what failed, with the exception. What the program has put into its log must not end a thread."""
    with contextlib.suppress(BaseException):
        _log.info(text, *args, exc_info=True)


def functions_of(given: Any) -> dict[str, Callable[..., Any]]:
    """Functions by their names, as `serve` takes them."""
    if isinstance(given, Mapping):
        functions = dict(given)
    else:
        functions = {name: getattr(given, name) for name in dir(given) if _is_exposed(given, name)}
        if not functions:
            raise InvalidArgument(
                f"an object of type {type(given).__name__} has no method that is marked by `plasmon.expose`"
            )
    for name, function in functions.items():
        if not isinstance(name, str) or not callable(function):
            raise WrongType(f"functions are callables by their names, not {shown(function)} by {shown(name)}")
    return functions


def _is_exposed(owner: object, name: str) -> bool:
    # Static methods and methods of a class hold a function; either of them may be marked.
    found = inspect.getattr_static(owner, name, None)
    both = (found, getattr(found, "__func__", None))
    return any("_plasmon_exposed" in getattr(one, "__dict__", {}) for one in both)


def _users(allow: Any) -> list[int] | None:
    """Ids of those who may call. `None` for every user."""
    if isinstance(allow, str) and allow in ("user", EVERYONE):
        return [] if allow == "user" else None
    if isinstance(allow, (str, bytes)) or not isinstance(allow, Iterable):
        raise InvalidArgument(
            f"those who may call are 'user', 'everyone', or several users, not {shown(allow)}"
        )
    users = [user_id(user) for user in allow]
    return None if None in users else [user for user in users if user is not None]


def _follow_fork() -> None:
    for server in list(_servers):
        server._follow_fork()
    _servers.clear()


def _close_all() -> None:
    """Ends the servers of this process, so that no function is begun while it ends."""
    for server in list(_servers):
        server.close(wait=False)


os.register_at_fork(after_in_child=_follow_fork)
atexit.register(_close_all)
