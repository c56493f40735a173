"""Calls of a client for asyncio: in threads, and for the event loop that watches the connection."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import plasmon
from plasmon import _internal
from plasmon._arguments import seconds, wait_seconds
from plasmon._terms import left
from plasmon.errors import Disconnected, InvalidArgument, TimedOut

_P = ParamSpec("_P")
_T = TypeVar("_T")
_C = TypeVar("_C", bound="Looping")

Awaited: TypeAlias = "_internal.AwaitedOperation | _internal.AwaitedSync"
"""Operation or wait that was begun for the event loop."""

_MAX_THREADS = 8
"""Number of threads for short calls, and for calls that may wait for room."""


def soon(
    method: Callable[Concatenate[plasmon.Client, _P], _T],
) -> Callable[Concatenate[_C, _P], Coroutine[Any, Any, _T]]:
    """Coroutine of a short call, which runs in a thread."""

    @wraps(method)
    async def call(self: _C, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self._run(self._prompt, partial(method, self._client, *args, **kwargs))

    return call


def patiently(
    method: Callable[Concatenate[plasmon.Client, _P], _T],
) -> Callable[Concatenate[_C, _P], Coroutine[Any, Any, _T]]:
    """Coroutine of a call that may wait. It runs in another thread, so that it does not delay short calls.

    The time that the call waits for a thread counts as well.
    """
    signature = inspect.signature(method)

    @wraps(method)
    async def call(self: _C, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        bound = signature.bind(self._client, *args, **kwargs)
        timeout = seconds(bound.arguments.get("timeout"))
        began = time.monotonic()

        def made() -> _T:
            if timeout is not None:
                bound.arguments["timeout"] = left(timeout, began)
            return method(*bound.args, **bound.kwargs)

        return await self._run(self._patient, made, timeout)

    return call


class Looping:
    """Connection for the tasks of one event loop, and threads for the calls that the loop does not make."""

    def __init__(self, client: plasmon.Client) -> None:
        """Makes a connection for the running event loop."""
        self._client = client
        self._asyncio = asyncio.get_running_loop()
        self._loop = _internal.Loop(client._native)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._prompt = ThreadPoolExecutor(_MAX_THREADS, "plasmon-aio")
        self._patient = ThreadPoolExecutor(_MAX_THREADS, "plasmon-aio-patient")
        self._listening = True
        self._writing = False
        for descriptor in self._loop.descriptors():
            self._asyncio.add_reader(descriptor, self._turn)

    def _end(self) -> None:
        """Ends all waits, after the client was closed."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Disconnected("this client is closed: connect again"))
        # Queued calls are not cancelled: they find the client closed and raise an error that says so.
        self._prompt.shutdown(wait=False)
        self._patient.shutdown(wait=False)

    def _check(self) -> None:
        """Refuses a closed client, and a client of another event loop."""
        if self._client.closed:
            raise Disconnected("this client is closed: connect again")
        if asyncio.get_running_loop() is not self._asyncio:
            raise InvalidArgument("this client belongs to another event loop: connect in each")

    async def _run(
        self, threads: ThreadPoolExecutor, call: Callable[[], _T], timeout: float | None = None
    ) -> _T:
        """Runs a call in a thread. The call ends there, too, when its task is cancelled."""
        self._check()
        cancellation = _internal.Cancellation()
        begun = threading.Event()

        def run() -> _T:
            begun.set()
            return cancellation.run(call)

        # Context variables of the task, such as a chosen class of work, hold in the thread as well.
        running = self._asyncio.run_in_executor(threads, copy_context().run, run)
        try:
            limit = wait_seconds(timeout)
            if limit:
                await asyncio.wait([running], timeout=limit)
                if not begun.is_set():
                    running.cancel()
                    raise TimedOut(
                        f"{_MAX_THREADS} calls of this client wait for the node at {self._client.socket}, so "
                        "that this one could not begin"
                    )
            return await running
        except asyncio.CancelledError:
            cancellation.cancel()
            running.cancel()
            raise

    async def _within(
        self, threads: ThreadPoolExecutor, call: Callable[[Any], _T], timeout: float | None
    ) -> _T:
        """Runs a call in a thread, with what is left of its time-out when a thread is free."""
        began = time.monotonic()
        return await self._run(threads, lambda: call(left(timeout, began)), timeout)

    async def _operate(self, call: Callable[[], _T], timeout: float | None) -> _T:
        """Makes a call on a region or a service in a thread: in another one if it may wait for others."""
        return await self._run(self._prompt if timeout is None else self._patient, call, timeout)

    async def _finish(self, begun: Awaited) -> Any:
        """Waits for the result of an operation on a region. It is given up with the task."""
        complete = self._completion(begun)
        try:
            while not complete.done():
                await asyncio.wait([complete], timeout=begun.patience())
                if not complete.done() and begun.patience() == 0:
                    raise begun.late()
            complete.result()
            return begun.result()
        finally:
            self._give_up([begun])

    def _completion(self, call: _internal.Pending | Awaited) -> asyncio.Future[None]:
        """Future that is done when the call is complete."""
        complete = self._asyncio.create_future()
        self._waiting[call.number] = complete
        return complete

    async def _complete(self, calls: builtins.list[_internal.Pending]) -> None:
        """Waits for calls that began together, at most as long as a node may take to answer."""
        complete = [self._completion(call) for call in calls]
        missing = set(complete)
        while missing:
            _, missing = await asyncio.wait(missing, timeout=calls[-1].patience())
            if missing and calls[-1].patience() == 0:
                raise TimedOut(
                    f"the node at {self._client.socket} did not answer in time; it may be stopped or "
                    "overloaded: see its log"
                )
        for one in complete:
            one.result()

    def _give_up(self, calls: Iterable[_internal.Pending | Awaited]) -> None:
        """Gives calls up, and releases objects that have not been taken from them."""
        for call in calls:
            self._waiting.pop(call.number, None)
            call.cancel()

    def _turn(self) -> None:
        """Takes a turn, because the connection or the bell is ready."""
        finished, unsent, ended = self._loop.turn()
        for number in finished:
            complete = self._waiting.get(number)
            if complete is not None and not complete.done():
                complete.set_result(None)
        if ended:
            self._stop_listening()
        elif unsent != self._writing:
            socket, _ = self._loop.descriptors()
            if unsent:
                self._asyncio.add_writer(socket, self._turn)
            else:
                self._asyncio.remove_writer(socket)
            self._writing = unsent

    def _stop_listening(self) -> None:
        if not self._listening:
            return
        self._listening = False
        socket, bell = self._loop.descriptors()
        self._asyncio.remove_reader(socket)
        self._asyncio.remove_reader(bell)
        self._asyncio.remove_writer(socket)
