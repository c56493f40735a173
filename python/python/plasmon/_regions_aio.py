"""Regions for asyncio: the operations of `plasmon.Region` as coroutines.

Operations on a region that is mapped in this process are made at once. Others take no thread, however many
tasks wait: the event loop watches the connection. Only what copies many bytes runs in threads of the client,
and what is rare: rights, moves, snapshots, and the end of a region.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from plasmon import _internal
from plasmon._arguments import instance, wait_seconds
from plasmon._closing import ClosingAsync
from plasmon._internal import RegionCalls
from plasmon._regions import Region as Blocking
from plasmon._sync_aio import Guard
from plasmon._terms import left
from plasmon.errors import TimedOut

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike
    from typing_extensions import Buffer as Readable

    from plasmon.aio import Client

_P = ParamSpec("_P")
_T = TypeVar("_T")

_MAX_WAITS = 2048
"""Number of waits for words under way. Others queue, so that the node takes the client's other requests."""
_MAX_OPERATIONS = 1024
"""Number of other operations on regions under way."""
_MAX_CALLS = 512
"""Number of calls of functions under way."""


class Kind(Enum):
    """Kind of turn that tasks take. One kind does not hold up another."""

    WAIT = _MAX_WAITS
    OPERATION = _MAX_OPERATIONS
    CALL = _MAX_CALLS


class Turns:
    """Turns of the operations and calls of one client that the event loop waits for."""

    def __init__(self) -> None:
        self._turns = {kind: asyncio.Semaphore(kind.value) for kind in Kind}

    async def take(self, kind: Kind, timeout: float) -> asyncio.Semaphore:
        """Waits until another operation may begin. The caller releases the result when that has ended."""
        turns = self._turns[kind]
        try:
            # A turn that is free is taken without a timer.
            limit = wait_seconds(timeout)
            await (asyncio.wait_for(turns.acquire(), limit) if turns.locked() else turns.acquire())
        except TimeoutError:
            raise TimedOut(
                f"{kind.value} operations of this client wait for nodes, so that this one could not begin"
            ) from None
        return turns


def _begun(
    method: Callable[Concatenate[Blocking, _P], _T],
    begin: Callable[..., _internal.AwaitedOperation | None],
    at_once: bool = True,
) -> Callable[Concatenate[Region, _P], Coroutine[Any, Any, _T]]:
    """Coroutine of an operation that the event loop waits for.

    With `at_once`, an operation on a mapped region that shows no guard is made at once, by some loads and
    stores.
    """

    @wraps(method)
    async def call(self: Region, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if at_once and self._region.local and kwargs.get("fence") is None:
            return method(self._region, *args, **kwargs)
        timeout: Any = kwargs.get("timeout", 30)
        began = time.monotonic()
        kind = Kind.WAIT if begin is RegionCalls.wait else Kind.OPERATION
        self._client._check()
        turns = await self._client._turns.take(kind, timeout)
        try:
            begun = begin(self._calls, *args, **kwargs)
            if begun is not None:
                done: _T = await self._client._finish(begun)
                return done
        finally:
            turns.release()
        return await self._client._within(
            self._client._prompt, _bound(self, method, args, kwargs), left(timeout, began)
        )

    return call


def _bound(
    region: Region, method: Callable[..., _T], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Any], _T]:
    """Blocking call, which takes a time-out."""
    return lambda rest: method(region._region, *args, **kwargs | {"timeout": rest})


def _threaded(
    method: Callable[Concatenate[Blocking, _P], _T], timeout: float = 30, waits: bool = False
) -> Callable[Concatenate[Region, _P], Coroutine[Any, Any, _T]]:
    """Coroutine of a rare call with a time-out by default.

    It runs in a thread: in another one if it waits for others.
    """

    @wraps(method)
    async def call(self: Region, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        client = self._client
        threads = client._patient if waits else client._prompt
        limit: Any = kwargs.get("timeout", timeout)
        return await client._within(threads, _bound(self, method, args, kwargs), limit)

    return call


class Region(ClosingAsync):
    """Region for the tasks of one event loop: `plasmon.Region` with coroutines.

    `plasmon.aio.Client.create_region` and `map_region` give regions out. A region used as an asynchronous
    context manager gives its handle up at the end of the block.

    A cancelled task stops waiting. An operation that reads or waits ends on the node as well; a change goes
    on.
    """

    def __init__(self, region: Blocking, client: Client) -> None:
        self._region = region
        self._calls = RegionCalls(region)
        self._client = client

    read = _begun(Blocking.read, RegionCalls.read)
    read_into = _begun(Blocking.read_into, RegionCalls.read_into)
    fetch_add = _begun(Blocking.fetch_add, RegionCalls.fetch_add)
    swap = _begun(Blocking.swap, RegionCalls.swap)
    compare_swap = _begun(Blocking.compare_swap, RegionCalls.compare_swap)
    test_and_set = _begun(Blocking.test_and_set, RegionCalls.test_and_set)
    fill = _begun(Blocking.fill, RegionCalls.fill, at_once=False)
    wait = _begun(Blocking.wait, RegionCalls.wait, at_once=False)
    notify = _begun(Blocking.notify, RegionCalls.notify, at_once=False)
    grant = _threaded(Blocking.grant)
    revoke = _threaded(Blocking.revoke)
    move = _threaded(Blocking.move, 60, waits=True)
    snapshot = _threaded(Blocking.snapshot, waits=True)
    info = _threaded(Blocking.info)
    free = _threaded(Blocking.free)

    async def write(
        self, data: Readable, offset: int = 0, *, timeout: float = 30, fence: Guard | None = None
    ) -> None:
        """Writes bytes, as `plasmon.Region.write` does."""
        shown = None if fence is None else instance(fence, Guard, "a fence")._guard
        await self._write(data, offset, timeout=timeout, fence=shown)

    _write = _begun(Blocking.write, RegionCalls.write)

    async def copy_from(
        self,
        source: Region,
        *,
        source_offset: int = 0,
        offset: int = 0,
        size: int | None = None,
        timeout: float = 30,
    ) -> None:
        """Copies bytes of another region, as `plasmon.Region.copy_from` does."""
        await self._copy(
            instance(source, Region, "what is copied from")._region,
            source_offset=source_offset,
            offset=offset,
            size=size,
            timeout=timeout,
        )

    _copy = _begun(Blocking.copy_from, RegionCalls.copy_from, at_once=False)

    def view(self) -> memoryview:
        """Bytes of the region in the memory of this process, as `plasmon.Region.view` returns them."""
        return self._region.view()

    def array(
        self, dtype: DTypeLike = "u1", shape: int | tuple[int, ...] = -1, offset: int = 0
    ) -> np.ndarray[Any, Any]:
        """NumPy array over the region's memory, as `plasmon.Region.array` returns it."""
        return self._region.array(dtype, shape, offset)

    @property
    def name(self) -> str:
        """Name of the region, as the client names it."""
        return self._region.name

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self._region.size

    @property
    def home(self) -> str:
        """Id of the node on which the region lives, as this handle last heard."""
        return self._region.home

    @property
    def mode(self) -> str:
        """Rights of the handle: "r" to read, "w" to change, "rw" for both."""
        return self._region.mode

    @property
    def local(self) -> bool:
        """Whether the region's bytes are mapped in this process."""
        return self._region.local

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the client is closed."""
        return self._region.closed

    def close(self) -> None:
        """Gives the handle up. The region stays. Views stay valid."""
        self._region.close()

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return repr(self._region).replace("plasmon.Region", "plasmon.aio.Region", 1)
