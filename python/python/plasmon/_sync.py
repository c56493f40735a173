"""Locks and barriers: one process of the cluster at a time, or all of them together."""

from __future__ import annotations

import threading
from types import TracebackType
from weakref import WeakSet

from plasmon import _internal
from plasmon._arguments import whole
from plasmon._closing import Closing
from plasmon._handle import Handle
from plasmon._internal import Guard
from plasmon.errors import Error, InvalidArgument


class Lock(_internal.LockHandle):
    """Lock that one process of the cluster holds at a time, or several that share it.

    `Client.lock` makes locks. A lock used as a context manager is held in the block, and gives the `Guard`
    out. Any number of threads may use it. Who waits gets the lock in the order of asking.

    The lock is held as long as the process runs, however long that takes. The lock passes on when the process
    dies, and when it is stopped for longer than `ttl`. So a program asks `Guard.valid` before it does what
    only the holder may do, and gives the guard to `Region.write`.
    """

    _client: Locks
    _name: str
    _timeout: float | None
    _held: list[Guard]
    """Guards of `acquire` that were not released."""
    _entered: threading.local
    """Guards of the blocks of each thread."""

    @property
    def name(self) -> str:
        """Name of the lock, as the client names it."""
        return self._name

    def acquire(self, timeout: float | None = None) -> Guard:
        """Waits for the lock, and holds it until `release`, or until the guard's own.

        Args:
            timeout: Time in seconds to wait; by default that of the lock. 0 does not wait.

        Raises:
            Busy: The lock is held, and the time-out is 0.
            TimedOut: The lock did not become free in time.
        """
        guard = self._taken(timeout)
        self._held.append(guard)
        return guard

    def release(self) -> None:
        """Unlocks what `acquire` took last.

        Raises:
            Fenced: The lock was lost before: others may have held it since.
            InvalidArgument: The lock is not held.
        """
        try:
            guard = self._held.pop()
        except IndexError:
            raise InvalidArgument(f"lock {self._name!r} is not held: acquire it first") from None
        guard.release()

    def close(self) -> None:
        """Gives the handle up. Guards stay, until they are released."""
        self.end()

    def _taken(self, timeout: float | None) -> Guard:
        guard = self.take(self._timeout if timeout is None else timeout)
        self._client._guards.add(guard)
        return guard

    def __enter__(self) -> Guard:
        guard = self._taken(None)
        self._blocks().append(guard)
        return guard

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        release(self._blocks().pop(), value)

    def _blocks(self) -> list[Guard]:
        entered = self._entered.__dict__
        blocks: list[Guard] = entered.setdefault("blocks", [])
        return blocks

    def __repr__(self) -> str:
        return f"<plasmon.Lock {self._name!r}{', closed' if self.closed else ''}>"


def release(guard: Guard, raised: BaseException | None) -> None:
    """Unlocks at the end of a block. If that raised, this is told rather than that the lock was lost."""
    try:
        guard.release()
    except Error:
        if raised is None:
            raise


class Barrier(_internal.BarrierHandle, Closing):
    """Barrier at which a number of parties wait for each other, again and again.

    `Client.barrier` makes barriers; each is a party. A party that dies, is closed or waits no longer breaks
    the barrier for those who wait.
    """

    _name: str

    @property
    def name(self) -> str:
        """Name of the barrier, as the client names it."""
        return self._name

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.parties} parties"
        return f"<plasmon.Barrier {self._name!r}, {state}>"


class Locks(Handle):
    """Calls of a client that make locks and barriers."""

    _guards: WeakSet[Guard]
    """Guards of this client, which it releases when it closes."""

    def lock(
        self,
        name: str,
        *,
        ttl: float = 10,
        shared: bool = False,
        timeout: float | None = None,
        public: bool = False,
    ) -> Lock:
        """A lock, to be held in a block: `with client.lock("name") as guard:`.

        Args:
            name: Name of the lock.
            ttl: Time in seconds, of 0.1 to 60, after which the lock passes on if the process that holds it is
                stopped, or its host is cut off. As long as the process runs, it keeps the lock.
            shared: Whether others may hold the lock at the same time that share it as well.
            timeout: Time in seconds to wait for the lock; by default there is no limit. 0 does not wait.
            public: Whether the lock is everybody's. Otherwise it is this user's, and other users have locks
                of the same name of their own.

        Raises:
            InvalidArgument: The name or the time to live cannot be one.
        """
        lock = Lock(self._connected(), self._full(name, "a lock"), ttl, shared, public, timeout)
        lock._client, lock._name, lock._timeout = self, name, timeout
        lock._held, lock._entered = [], threading.local()
        return lock

    def barrier(self, name: str, parties: int, *, public: bool = False) -> Barrier:
        """A barrier, at which `parties` of these wait for each other.

        Args:
            name: Name of the barrier.
            parties: Number of parties, of which this is one.
            public: Whether the barrier is everybody's, instead of this user's.

        Raises:
            InvalidArgument: Others have it with another number of parties.
        """
        parties = whole(parties, "the number of parties of a barrier", 1, (1 << 32) - 1)
        barrier = Barrier(self._connected(), self._full(name, "a barrier"), parties, public)
        barrier._name = name
        return barrier

    def _release_all(self) -> None:
        """Unlocks what this client holds."""
        for guard in list(self._guards):
            guard.give_up()
