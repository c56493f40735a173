"""Services for asyncio: calls as coroutines, and coroutines as functions of a server.

Calls take no thread, however many tasks wait: the event loop watches the connection. Only what copies many
bytes, long data and long replies, runs in threads of the client. Functions that are coroutines run in the
event loop; the threads of the server wait for them.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from plasmon._classes import Priority
from plasmon._closing import ClosingAsync
from plasmon._internal import KeptReply, Outgoing
from plasmon._regions_aio import Kind
from plasmon._services import Server as BlockingServer
from plasmon._services import Service as Blocking
from plasmon._terms import left

if TYPE_CHECKING:
    from typing_extensions import Buffer as Readable

    from plasmon.aio import Client

_CALL_SECONDS = 10


class Service(ClosingAsync):
    """Service for the tasks of one event loop: `plasmon.Service` with coroutines.

    `plasmon.aio.Client.service` finds services. A service used as an asynchronous context manager gives its
    handle up at the end of the block. A cancelled task stops waiting; the function is run all the same if a
    thread of a server has the call already.
    """

    def __init__(self, service: Blocking, client: Client) -> None:
        self._service = service
        self._client = client

    @overload
    async def call(
        self,
        function: str,
        data: Readable | None = None,
        *,
        timeout: float = ...,
        into: None = None,
        priority: Priority | None = None,
    ) -> bytes: ...
    @overload
    async def call(
        self,
        function: str,
        data: Readable | None = None,
        *,
        timeout: float = ...,
        into: Readable,
        priority: Priority | None = None,
    ) -> memoryview: ...
    async def call(
        self,
        function: str,
        data: Readable | None = None,
        *,
        timeout: float = _CALL_SECONDS,
        into: Readable | None = None,
        priority: Priority | None = None,
    ) -> bytes | memoryview:
        """Calls a function, and waits for its reply, as `plasmon.Service.call` does."""
        if into is not None:

            def made(rest: Any) -> memoryview:
                return self._service.call(function, data, timeout=rest, into=into, priority=priority)

            return await self._client._within(self._client._patient, made, timeout)
        return bytes(await self._ask(function, b"" if data is None else data, timeout, priority))

    async def invoke(
        self,
        function: str,
        *args: Any,
        timeout: float = _CALL_SECONDS,
        allow_pickle: bool = False,
        priority: Priority | None = None,
    ) -> Any:
        """Calls a function with Python values, as `plasmon.Service.invoke` does."""
        message = self._service._pack(args, allow_pickle)
        return self._service._unpack(await self._ask(function, message, timeout, priority), allow_pickle)

    async def _ask(
        self, function: str, data: Readable | Outgoing, timeout: float, priority: Priority | None
    ) -> memoryview:
        """Reply to a call. No thread waits for the function."""
        client = self._client
        client._check()
        began = time.monotonic()
        turns = await client._turns.take(Kind.CALL, timeout)
        try:
            begun = self._service.await_call(function, data, timeout, priority)
            if begun is not None:
                came: memoryview | KeptReply = await client._finish(begun)
                if isinstance(came, memoryview):
                    return came
                return await client._run(client._prompt, came.take, left(timeout, began))
        finally:
            turns.release()

        def ask(rest: Any) -> memoryview:
            return self._service.ask(function, data, rest, priority)

        return await client._within(client._patient, ask, left(timeout, began))

    async def send(
        self,
        function: str,
        data: Readable | None = None,
        *,
        confirm: bool = False,
        priority: Priority | None = None,
    ) -> None:
        """Calls a function without waiting for its reply, as `plasmon.Service.send` does."""
        made = partial(self._service.send, function, data, confirm=confirm, priority=priority)
        await self._client._operate(made, None)

    @property
    def name(self) -> str:
        """Name of the service, as the client names it."""
        return self._service.name

    @property
    def owner(self) -> int:
        """User id of the service's owner."""
        return self._service.owner

    @property
    def functions(self) -> list[str]:
        """Names of the functions."""
        return self._service.functions

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the client is closed."""
        return self._service.closed

    def close(self) -> None:
        """Gives the handle up. The service stays."""
        self._service.close()

    def __repr__(self) -> str:
        return repr(self._service).replace("plasmon.Service", "plasmon.aio.Service", 1)


class Server:
    """Functions of this process that others call: `plasmon.Server` for an event loop.

    `plasmon.aio.Client.serve` makes servers. A server used as an asynchronous context manager closes at the
    end of the block.
    """

    def __init__(self, server: BlockingServer) -> None:
        self._server = server

    @property
    def name(self) -> str:
        """Name of the service, as the client names it."""
        return self._server.name

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the functions, in the order that all servers of this name have."""
        return self._server.functions

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the client is closed."""
        return self._server.closed

    async def close(self, *, wait: bool = True) -> None:
        """Ends the server, as `plasmon.Server.close` does."""
        await asyncio.to_thread(self._server.close, wait=wait)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._server).replace("plasmon.Server", "plasmon.aio.Server", 1)


def in_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., Any]) -> Callable[..., Any]:
    """Function for a thread of a server: a coroutine function runs in the event loop."""
    if not inspect.iscoroutinefunction(function):
        return function

    @wraps(function)
    def run(*args: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(function(*args), loop).result()

    return run
