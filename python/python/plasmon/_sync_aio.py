"""Locks and barriers for asyncio.

Waits take no thread, however many tasks wait: the event loop watches the connection.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING

from plasmon._blocks import Taker
from plasmon._closing import ClosingAsync
from plasmon._internal import Guard as Blocking
from plasmon._sync import Barrier as BlockingBarrier
from plasmon._sync import Lock as BlockingLock
from plasmon.errors import Error

if TYPE_CHECKING:
    from plasmon.aio import Client


class Guard:
    """Possession of a lock: `plasmon.Guard` whose `release` is a coroutine.

    `Region.write` takes the guard as it is.
    """

    def __init__(self, guard: Blocking, client: Client) -> None:
        self._guard = guard
        self._client = client

    @property
    def valid(self) -> bool:
        """Whether the lock is held now, as `plasmon.Guard.valid` says it."""
        return self._guard.valid

    @property
    def token(self) -> int:
        """Token of the guard: larger than that of every guard of this lock before."""
        return self._guard.token

    @property
    def abandoned(self) -> bool:
        """Whether the holder before died or lost the lock, so that what it changed may be half done."""
        return self._guard.abandoned

    @property
    def released(self) -> bool:
        """Whether `release` was called, or the block was left."""
        return self._guard.released

    async def release(self) -> None:
        """Unlocks. A second call does nothing.

        Raises:
            Fenced: The lock was lost before: others may have held it since.
        """
        # A cancelled task unlocks as well.
        await asyncio.shield(self._client._operate(self._guard.release, None))

    def __repr__(self) -> str:
        return repr(self._guard).replace("plasmon.Guard", "plasmon.aio.Guard", 1)


class Lock:
    """Lock for the tasks of one event loop: `plasmon.Lock` with coroutines.

    `plasmon.aio.Client.lock` makes locks. A lock used as an asynchronous context manager is held in the
    block, and gives the `Guard` out. A cancelled task waits no longer. Two tasks wait for each other; a block
    within a block of the same lock, in one task, raises `Busy`, or counts with `reentrant=True`.
    """

    def __init__(self, lock: BlockingLock, client: Client) -> None:
        self._lock = lock
        self._client = client

    @property
    def name(self) -> str:
        """Name of the lock, as the client names it."""
        return self._lock.name

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the client is closed."""
        return self._lock.closed

    async def acquire(self, timeout: float | None = None) -> Guard:
        """Waits for the lock, as `plasmon.Lock.acquire` does."""
        return Guard(self._lock._acquire(await self._taken(timeout)), self._client)

    async def release(self) -> None:
        """Unlocks what this task acquired last, as `plasmon.Lock.release` does for a thread."""
        await Guard(self._lock._to_release(), self._client).release()

    def close(self) -> None:
        """Gives the handle up. Guards stay, until they are released."""
        self._lock.close()

    async def _taken(self, timeout: float | None) -> Blocking:
        self._client._check()
        begun = self._lock.begin(self._lock._timeout if timeout is None else timeout)
        guard: Blocking = await self._client._finish(begun)
        self._client._client._guards.add(guard)
        return guard

    async def __aenter__(self) -> Guard:
        hold = self._lock._joined(Taker.here(), awaits=True)
        if hold is None:
            hold = self._lock._enter(await self._taken(None))
        return Guard(hold.guard, self._client)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        guard = self._lock._left()
        if guard is None:
            return
        try:
            await Guard(guard, self._client).release()
        except Error:
            if value is None:
                raise

    def __repr__(self) -> str:
        return repr(self._lock).replace("plasmon.Lock", "plasmon.aio.Lock", 1)


class Barrier(ClosingAsync):
    """Barrier for the tasks of one event loop: `plasmon.Barrier` with coroutines.

    `plasmon.aio.Client.barrier` makes barriers; each is a party. A cancelled task waits no longer, which
    breaks the barrier.
    """

    def __init__(self, barrier: BlockingBarrier, client: Client) -> None:
        self._barrier = barrier
        self._client = client

    @property
    def name(self) -> str:
        """Name of the barrier, as the client names it."""
        return self._barrier.name

    @property
    def parties(self) -> int:
        """Number of parties."""
        return self._barrier.parties

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the client is closed."""
        return self._barrier.closed

    async def wait(self, timeout: float | None = None) -> int:
        """Waits until all parties have arrived, as `plasmon.Barrier.wait` does."""
        self._client._check()
        index: int = await self._client._finish(self._barrier.begin(timeout))
        return index

    def close(self) -> None:
        """Leaves the barrier, which breaks it for those who wait there."""
        self._barrier.close()

    def __repr__(self) -> str:
        return repr(self._barrier).replace("plasmon.Barrier", "plasmon.aio.Barrier", 1)
