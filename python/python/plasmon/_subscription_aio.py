"""Subscriptions for asyncio, and what is awaited or entered to open one, or to connect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from plasmon._closing import ClosingAsync
from plasmon._records import Event, RegionEvent
from plasmon._subscription import Events
from plasmon.errors import Disconnected

_E = TypeVar("_E")
_O = TypeVar("_O", bound=AbstractAsyncContextManager[Any])


class _Events(ClosingAsync, Generic[_E]):
    """Events of one kind, which take no thread."""

    def __init__(self, events: Events[_E]) -> None:
        self._events = events
        self._stop_waiting: Callable[[], None] = lambda: None

    async def next(self) -> _E:
        """Waits for the next event. Only one task at a time may wait.

        Raises:
            Disconnected: The node is gone, or the subscription was closed.
        """
        loop = asyncio.get_running_loop()
        while (event := self._events.next(0)) is None:
            readable = asyncio.Event()
            descriptor = self._events.fileno()
            loop.add_reader(descriptor, readable.set)

            def stop(descriptor: int = descriptor, readable: asyncio.Event = readable) -> None:
                self._stop_waiting = lambda: None
                loop.remove_reader(descriptor)
                readable.set()

            self._stop_waiting = stop
            try:
                await readable.wait()
            finally:
                # After `close` the descriptor may belong to another file.
                self._stop_waiting()
        return event

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._events.closed

    def close(self) -> None:
        """Ends the subscription, and with it the wait of another task."""
        self._stop_waiting()
        self._events.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _E:
        try:
            if not self.closed:
                return await self.next()
        except Disconnected:
            # Another task may have closed it while this one waited.
            if not self.closed:
                raise
        raise StopAsyncIteration


class Subscription(_Events[Event]):
    """Subscription to the objects of a node: an asynchronous iterator over events, and a context manager.

    `Client.subscribe` makes subscriptions. The events are those of `plasmon.Subscription`. The subscription
    takes no thread.
    """


class RegionEvents(_Events[RegionEvent]):
    """Events of the regions of a client: an asynchronous iterator over them, and a context manager.

    `Client.region_events` makes them. The events are those of `plasmon.RegionEvents`. They take no thread,
    and end when the client is closed.
    """


class Opening(Generic[_O]):
    """Client or subscription that is being opened: awaited, or entered as a context."""

    def __init__(self, opening: Callable[[], Coroutine[Any, Any, _O]]) -> None:
        self._opening = opening
        self._opened: _O | None = None

    def __await__(self) -> Generator[Any, None, _O]:
        return self._opening().__await__()

    async def __aenter__(self) -> _O:
        self._opened = await self._opening()
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(kind, value, traceback)
