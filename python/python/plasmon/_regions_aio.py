"""Regions for asyncio: the operations of `plasmon.Region` as coroutines.

Operations on a region that is mapped in this process are made at once. All others run in threads of the
client, so that the event loop goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from plasmon._regions import Region as Blocking

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

_P = ParamSpec("_P")
_T = TypeVar("_T")

Run = Callable[[Callable[[], Any], float | None], Coroutine[Any, Any, Any]]
"""Runs a call in a thread of the client. The time-out is that of a call that waits for others."""


def _quick(
    method: Callable[Concatenate[Blocking, _P], _T],
) -> Callable[Concatenate[Region, _P], Coroutine[Any, Any, _T]]:
    """Coroutine of an operation that is some loads and stores if the region is mapped."""

    @wraps(method)
    async def call(self: Region, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if self._region.local:
            return method(self._region, *args, **kwargs)
        done: _T = await self._run(lambda: method(self._region, *args, **kwargs), None)
        return done

    return call


def _slow(
    method: Callable[Concatenate[Blocking, _P], _T], timeout: float | None = None
) -> Callable[Concatenate[Region, _P], Coroutine[Any, Any, _T]]:
    """Coroutine of an operation that is a call. With a time-out by default it waits for others."""

    @wraps(method)
    async def call(self: Region, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        limit: Any = kwargs.get("timeout", timeout) if timeout is not None else None
        done: _T = await self._run(lambda: method(self._region, *args, **kwargs), limit)
        return done

    return call


class Region:
    """Region for the tasks of one event loop: `plasmon.Region` with coroutines.

    `plasmon.aio.Client.create_region` and `map_region` give regions out. A region used as an asynchronous
    context manager gives its handle up at the end of the block.
    """

    def __init__(self, region: Blocking, run: Run) -> None:
        self._region = region
        self._run = run

    read = _quick(Blocking.read)
    read_into = _quick(Blocking.read_into)
    write = _quick(Blocking.write)
    fetch_add = _quick(Blocking.fetch_add)
    swap = _quick(Blocking.swap)
    compare_swap = _quick(Blocking.compare_swap)
    test_and_set = _quick(Blocking.test_and_set)
    fill = _slow(Blocking.fill)
    wait = _slow(Blocking.wait, 30)
    notify = _slow(Blocking.notify)
    grant = _slow(Blocking.grant)
    revoke = _slow(Blocking.revoke)
    move = _slow(Blocking.move, 60)
    snapshot = _slow(Blocking.snapshot, 30)
    info = _slow(Blocking.info)
    free = _slow(Blocking.free)

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

        def copy() -> None:
            self._region.copy_from(
                source._region, source_offset=source_offset, offset=offset, size=size, timeout=timeout
            )

        await self._run(copy, None)

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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._region).replace("plasmon.Region", "plasmon.aio.Region", 1)
